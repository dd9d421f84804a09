/* The answer of /v1/responses, as OpenAI documents it: a list of items, whole or as a stream of events. */
#include "responses.h"

#include "blocks.h"
#include "openai.h"

#include <stdio.h>
#include <string.h>

/* What the events of a stream say of an item's content. */
static const struct {
    const char *prefix; /* of its id */
    const char *part;   /* type of its only part; NULL: it has none */
    const char *delta, *done;
} forms[] = {
    [PM_BLOCK_TEXT] = {"msg", "output_text", "response.output_text.delta", "response.output_text.done"},
    [PM_BLOCK_REASONING] = {"rs", "reasoning_text", "response.reasoning_text.delta", "response.reasoning_text.done"},
    [PM_BLOCK_CALL] = {"fc", NULL, "response.function_call_arguments.delta", "response.function_call_arguments.done"},
};

/* ---- items ---- */

static json_t *item_id(const pm_choice *choice, size_t index, pm_block_kind kind)
{
    char id[80];
    snprintf(id, sizeof(id), "%s_%s%04zu", forms[kind].prefix, choice->job->exchange->id, index);
    return json_string(id);
}

/* The part of a text or of reasoning. */
static json_t *part_of(pm_block_kind kind, const char *text, size_t len)
{
    json_t *part = json_pack("{s:s, s:s%}", "type", forms[kind].part, "text", text, len);
    if (kind == PM_BLOCK_TEXT)
        json_object_update_new(part, json_pack("{s:[], s:[]}", "annotations", "logprobs"));
    return part;
}

/* Whether the answer was cut inside this block; calls are whole. */
static bool was_cut(const pm_choice *choice, size_t index, pm_block_kind kind)
{
    return choice->done && choice->ending == PM_ENDING_LENGTH && index + 1 == pm_blocks_count(choice) &&
           kind != PM_BLOCK_CALL;
}

/* An item, as it is at its beginning or with what it says. */
static json_t *item_of(const pm_choice *choice, size_t index, bool begins)
{
    const char *text;
    size_t len;
    const pm_block *block = pm_block_at(choice, index, &text, &len);
    const char *status = begins ? "in_progress" : was_cut(choice, index, block->kind) ? "incomplete" : "completed";
    json_t *id = item_id(choice, index, block->kind);
    json_t *parts = json_array();
    if (forms[block->kind].part && !begins)
        json_array_append_new(parts, part_of(block->kind, text, len));
    if (block->kind == PM_BLOCK_TEXT)
        return json_pack("{s:s, s:o, s:s, s:s, s:o}", "type", "message", "id", id, "status", status, "role",
                         "assistant", "content", parts);
    if (block->kind == PM_BLOCK_REASONING)
        return json_pack("{s:s, s:o, s:s, s:[], s:o}", "type", "reasoning", "id", id, "status", status, "summary",
                         "content", parts);
    json_decref(parts);
    const pm_call *call = &choice->calls[block->call];
    return json_pack("{s:s, s:o, s:s, s:s, s:s, s:s%}", "type", "function_call", "id", id, "status", status, "call_id",
                     call->id, "name", call->name, "arguments", text, begins ? (size_t)0 : len);
}

/* ---- the whole ---- */

static json_t *usage_of(const pm_job *job)
{
    pm_usage usage = pm_job_usage(job);
    return json_pack("{s:I, s:{s:I}, s:I, s:{s:I}, s:I}", "input_tokens", (json_int_t)usage.prompt,
                     "input_tokens_details", "cached_tokens", (json_int_t)usage.cached, "output_tokens",
                     (json_int_t)usage.answer, "output_tokens_details", "reasoning_tokens", (json_int_t)usage.reasoning,
                     "total_tokens", (json_int_t)(usage.prompt + usage.answer));
}

/* Members that a response has from its request, and what they are where that leaves them out. */
static void echo_request(const pm_job *job, json_t *response)
{
    static const struct {
        const char *name, *otherwise; /* JSON text */
    } members[] = {
        {"background", "false"},
        {"instructions", "null"},
        {"max_output_tokens", "null"},
        {"max_tool_calls", "null"},
        {"metadata", "{}"},
        {"parallel_tool_calls", "true"},
        {"previous_response_id", "null"},
        {"prompt_cache_key", "null"},
        {"safety_identifier", "null"},
        {"store", "false"},
        {"tool_choice", "\"auto\""},
        {"tools", "[]"},
        {"top_logprobs", "0"},
        {"truncation", "\"disabled\""},
        {"user", "null"},
        {"reasoning", "{\"effort\": null, \"summary\": null}"},
        {"text", "{\"format\": {\"type\": \"text\"}, \"verbosity\": \"medium\"}"},
    };
    for (size_t i = 0; i < sizeof(members) / sizeof(*members); i++) {
        json_t *own = json_object_get(job->body, members[i].name);
        if (own && !json_is_null(own))
            json_object_set(response, members[i].name, own);
        else
            json_object_set_new(response, members[i].name, json_loads(members[i].otherwise, JSON_DECODE_ANY, NULL));
    }
    json_object_set_new(response, "temperature", json_real((double)job->ask.sampling.temperature));
    json_object_set_new(response, "top_p", json_real((double)job->ask.sampling.top_p));
    json_object_set_new(response, "service_tier", json_string("default"));
}

static json_t *response_of(const pm_job *job, const char *status)
{
    json_t *response = json_pack("{s:s, s:s, s:I, s:s, s:s, s:n, s:n, s:n}", "id", job->id, "object", "response",
                                 "created_at", (json_int_t)job->created, "status", status, "model", job->server->name,
                                 "error", "incomplete_details", "usage");
    json_object_set_new(response, "output", json_array());
    echo_request(job, response);
    return response;
}

/* The response when the answer has ended. */
static json_t *final_response(const pm_job *job)
{
    const pm_choice *choice = &job->choices[0];
    bool cut = choice->ending == PM_ENDING_LENGTH;
    json_t *response = response_of(job, cut ? "incomplete" : "completed"),
           *output = json_object_get(response, "output");
    for (size_t i = 0; i < pm_blocks_count(choice); i++)
        json_array_append_new(output, item_of(choice, i, false));
    if (cut)
        json_object_set_new(response, "incomplete_details", json_pack("{s:s}", "reason", "max_output_tokens"));
    json_object_set_new(response, "usage", usage_of(job));
    return response;
}

/* ---- a stream ---- */

/* Sends an event, to whose members type and number are added. */
static void send(pm_job *job, const char *type, json_t *members)
{
    pm_job_begin(job);
    json_object_set_new(members, "type", json_string(type));
    json_object_set_new(members, "sequence_number", json_integer((json_int_t)job->sequence++));
    pm_job_send(job, type, members);
}

static void begin(pm_job *job)
{
    send(job, "response.created", json_pack("{s:o}", "response", response_of(job, "in_progress")));
    send(job, "response.in_progress", json_pack("{s:o}", "response", response_of(job, "in_progress")));
}

/* The members of an event about an item's content. */
static json_t *about(const pm_choice *choice, size_t index, pm_block_kind kind)
{
    json_t *members =
        json_pack("{s:o, s:I}", "item_id", item_id(choice, index, kind), "output_index", (json_int_t)index);
    if (forms[kind].part)
        json_object_set_new(members, "content_index", json_integer(0));
    return members;
}

static void open_item(pm_choice *choice, size_t index)
{
    const char *text;
    size_t len;
    pm_block_kind kind = pm_block_at(choice, index, &text, &len)->kind;
    send(choice->job, "response.output_item.added",
         json_pack("{s:I, s:o}", "output_index", (json_int_t)index, "item", item_of(choice, index, true)));
    if (!forms[kind].part)
        return;
    json_t *members = about(choice, index, kind);
    json_object_set_new(members, "part", part_of(kind, "", 0));
    send(choice->job, "response.content_part.added", members);
}

static void add_to_item(pm_choice *choice, size_t index, const char *piece, size_t n)
{
    const char *text;
    size_t len;
    pm_block_kind kind = pm_block_at(choice, index, &text, &len)->kind;
    json_t *members = about(choice, index, kind);
    json_object_set_new(members, "delta", json_stringn(piece, n));
    if (kind == PM_BLOCK_TEXT)
        json_object_set_new(members, "logprobs", json_array());
    send(choice->job, forms[kind].delta, members);
}

static void close_item(pm_choice *choice, size_t index)
{
    const char *text;
    size_t len;
    const pm_block *block = pm_block_at(choice, index, &text, &len);
    pm_block_kind kind = block->kind;
    json_t *members = about(choice, index, kind);
    json_object_set_new(members, kind == PM_BLOCK_CALL ? "arguments" : "text", json_stringn(text, len));
    if (kind == PM_BLOCK_TEXT)
        json_object_set_new(members, "logprobs", json_array());
    if (kind == PM_BLOCK_CALL)
        json_object_set_new(members, "name", json_string(choice->calls[block->call].name));
    send(choice->job, forms[kind].done, members);
    if (forms[kind].part) {
        members = about(choice, index, kind);
        json_object_set_new(members, "part", part_of(kind, text, len));
        send(choice->job, "response.content_part.done", members);
    }
    send(choice->job, "response.output_item.done",
         json_pack("{s:I, s:o}", "output_index", (json_int_t)index, "item", item_of(choice, index, false)));
}

static const pm_block_form form = {.open = open_item, .delta = add_to_item, .close = close_item};

static void piece(pm_choice *choice, const pm_event *event)
{
    pm_blocks_piece(choice, event, &form);
}

static void finish(pm_choice *choice)
{
    pm_blocks_finish(choice, &form);
}

static void end(pm_job *job)
{
    json_t *response = final_response(job);
    if (!job->ask.stream)
        pm_exchange_json(job->exchange, 200, response);
    else
        send(job, job->choices[0].ending == PM_ENDING_LENGTH ? "response.incomplete" : "response.completed",
             json_pack("{s:o}", "response", response));
}

/* Of a stream that cannot go on. */
static void broken(pm_job *job, const pm_refusal *refusal)
{
    json_t *response = response_of(job, "failed");
    json_object_set_new(response, "error",
                        json_pack("{s:s, s:s}", "code", "server_error", "message", refusal->message));
    send(job, "response.failed", json_pack("{s:o}", "response", response));
}

const pm_dialect pm_responses_dialect = {
    .prefix = "resp_",
    .chat = "input",
    .always = true,
    .echoes = true,
    .fields = pm_responses_fields,
    .read = pm_responses_read,
    .begin = begin,
    .piece = piece,
    .finish = finish,
    .end = end,
    .error = pm_openai_error,
    .broken = broken,
};
