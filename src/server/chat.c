/* POST /v1/chat/completions, as OpenAI documents it. */
#include "ask.h"
#include "openai.h"

#include <string.h>

static const char object_name[] = "chat.completion", chunk_name[] = "chat.completion.chunk";

/* ---- the request ---- */

static const pm_field fields[] = {
    PM_LIST("messages", PM_ASK(messages)),
    PM_TEXT("model", PM_ASK(model)),
    PM_REFUSED("audio"),
    PM_FLOAT("frequency_penalty", PM_ASK(sampling.frequency_penalty), -2, 2),
    PM_REFUSED("function_call"),
    PM_REFUSED("functions"),
    PM_READ("logit_bias", pm_read_logit_bias),
    PM_BOOL("logprobs", PM_ASK(logprobs)),
    PM_READ("max_completion_tokens", pm_read_max_tokens),
    PM_READ("max_tokens", pm_read_max_tokens),
    PM_VOID("metadata"),
    PM_ONLY("modalities", "[\"text\"]"),
    PM_WHOLE("n", PM_ASK(n), 1, PM_CHOICES_MAX),
    PM_READ("parallel_tool_calls", pm_read_parallel_calls),
    PM_VOID("prediction"),
    PM_FLOAT("presence_penalty", PM_ASK(sampling.presence_penalty), -2, 2),
    PM_VOID("prompt_cache_key"),
    PM_VOID("prompt_cache_retention"),
    PM_TEXT("reasoning_effort", PM_ASK(effort)),
    PM_READ("response_format", pm_read_response_format),
    PM_VOID("safety_identifier"),
    PM_READ("seed", pm_read_seed),
    PM_VOID("service_tier"),
    PM_READ("stop", pm_read_stop),
    PM_ONLY("store", "false"),
    PM_BOOL("stream", PM_ASK(stream)),
    PM_READ("stream_options", pm_read_stream_options),
    PM_FLOAT("temperature", PM_ASK(sampling.temperature), 0, 100),
    PM_READ("tool_choice", pm_read_tool_choice),
    PM_LIST("tools", PM_ASK(tools)),
    PM_WHOLE("top_logprobs", PM_ASK(top_logprobs), 0, 20),
    PM_READ("top_p", pm_read_top_p),
    PM_VOID("user"),
    PM_ONLY("verbosity", "\"medium\""),
    PM_REFUSED("web_search_options"),
    PM_OBJECT("chat_template_kwargs", PM_ASK(variables)),
    PM_SAMPLING_EXTENSIONS,
    PM_LAST,
};

/* A tool must be a function with a name. */
static bool check_tools(const json_t *tools, pm_refusal *refusal)
{
    size_t i;
    const json_t *tool;
    json_array_foreach((json_t *)tools, i, tool)
    {
        const char *type = json_string_value(json_object_get(tool, "type"));
        const json_t *function = json_object_get(tool, "function");
        if (!type || strcmp(type, "function") != 0)
            return pm_refuse_at(refusal, "unsupported_value", "must be \"function\"", "tools[%zu].type", i);
        if (json_string_length(json_object_get(function, "name")) == 0)
            return pm_refuse_at(refusal, "invalid_type", "is missing", "tools[%zu].function.name", i);
    }
    return true;
}

static bool read_request(pm_job *job, pm_refusal *refusal)
{
    const pm_ask *ask = &job->ask;
    if (ask->top_logprobs && !ask->logprobs)
        return pm_refuse(refusal, 400, "invalid_value", "top_logprobs", "'top_logprobs' needs 'logprobs'");
    return check_tools(ask->tools, refusal) && pm_ask_effort(job, refusal);
}

/* ---- logprobs ---- */

static json_t *token_entry(const pm_server *server, pm_token id, float logprob)
{
    return json_pack("{s:o, s:f, s:o}", "token", pm_token_text(server, id), "logprob", pm_finite(logprob), "bytes",
                     pm_token_byte_list(server, id));
}

static json_t *token(pm_choice *choice, pm_token id, float logprob, const pm_logprob *top)
{
    const pm_server *server = choice->job->server;
    json_t *entry = token_entry(server, id, logprob), *others = json_array();
    for (int64_t i = 0; top && i < choice->job->ask.top_logprobs; i++)
        json_array_append_new(others, token_entry(server, top[i].id, top[i].logprob));
    json_object_set_new(entry, "top_logprobs", others);
    return entry;
}

/* The entries that are there, as "logprobs" has them. */
static json_t *logprobs(pm_choice *choice)
{
    json_t *entries = choice->job->ask.logprobs ? pm_choice_take_logprobs(choice) : NULL;
    if (!choice->job->ask.logprobs)
        return json_null();
    return json_pack("{s:o, s:n}", "content", entries ? entries : json_array(), "refusal");
}

/* ---- a stream ---- */

/* Sends a change of the message; the first of a choice says whose message it is. */
static void send(pm_choice *choice, json_t *delta, const char *finish)
{
    if (!choice->begun)
        json_object_set_new(delta, "role", json_string("assistant"));
    choice->begun = true;
    pm_openai_chunk(choice, chunk_name, json_pack("{s:o, s:o}", "delta", delta, "logprobs", logprobs(choice)), finish);
}

static void piece(pm_choice *choice, const pm_event *event)
{
    const pm_call *call = choice->n_calls ? &choice->calls[choice->n_calls - 1] : NULL;
    json_int_t index = (json_int_t)choice->n_calls - 1;
    switch (event->kind) {
    case PM_EVENT_TEXT: send(choice, json_pack("{s:s%}", "content", event->text, event->len), NULL); break;
    case PM_EVENT_REASONING:
        send(choice, json_pack("{s:s%}", "reasoning_content", event->text, event->len), NULL);
        break;
    case PM_EVENT_CALL:
        send(choice,
             json_pack("{s:[{s:I, s:s, s:s, s:{s:s, s:s}}]}", "tool_calls", "index", index, "id", call->id, "type",
                       "function", "function", "name", call->name, "arguments", ""),
             NULL);
        break;
    case PM_EVENT_ARGUMENTS:
        send(choice,
             json_pack("{s:[{s:I, s:{s:s%}}]}", "tool_calls", "index", index, "function", "arguments", event->text,
                       event->len),
             NULL);
        break;
    case PM_EVENT_CALL_END: break;
    }
}

static void finish(pm_choice *choice)
{
    send(choice, choice->begun ? json_object() : json_pack("{s:s}", "content", ""), pm_openai_finish(choice));
}

/* ---- a whole answer ---- */

static json_t *message(const pm_choice *choice)
{
    const pm_str *text = &choice->text, *reasoning = &choice->reasoning;
    json_t *object = json_pack(
        "{s:s, s:o, s:n}", "role", "assistant", "content",
        text->len || !choice->n_calls ? json_stringn(text->data ? text->data : "", text->len) : json_null(), "refusal");
    if (reasoning->len)
        json_object_set_new(object, "reasoning_content", json_stringn(reasoning->data, reasoning->len));
    if (!choice->n_calls)
        return object;
    json_t *calls = json_array();
    for (size_t i = 0; i < choice->n_calls; i++) {
        const pm_call *call = &choice->calls[i];
        const char *arguments = call->arguments.data ? call->arguments.data : "";
        json_array_append_new(calls, json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", call->id, "type", "function",
                                               "function", "name", call->name, "arguments", arguments));
    }
    json_object_set_new(object, "tool_calls", calls);
    return object;
}

static void end(pm_job *job)
{
    if (job->ask.stream) {
        pm_openai_done(job, chunk_name);
        return;
    }
    json_t *choices = json_array();
    for (size_t i = 0; i < job->n_choices; i++) {
        pm_choice *choice = &job->choices[i];
        json_array_append_new(choices,
                              json_pack("{s:i, s:o, s:o, s:s}", "index", choice->index, "message", message(choice),
                                        "logprobs", logprobs(choice), "finish_reason", pm_openai_finish(choice)));
    }
    json_t *whole = pm_openai_object(job, object_name, choices);
    json_object_set_new(whole, "usage", pm_openai_usage(job));
    pm_exchange_json(job->exchange, 200, whole);
}

const pm_dialect pm_chat_dialect = {
    .prefix = "chatcmpl-",
    .chat = "messages",
    .fields = fields,
    .read = read_request,
    .piece = piece,
    .finish = finish,
    .token = token,
    .end = end,
    .error = pm_openai_error,
    .broken = pm_openai_broken,
};
