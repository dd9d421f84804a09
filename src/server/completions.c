/* POST /v1/completions, as OpenAI documents it. */
#include "ask.h"
#include "openai.h"

#include <stdio.h>
#include <string.h>

static const char object_name[] = "text_completion";

/* ---- the request ---- */

/* Here it is a number: so many others beside each token. */
static bool read_logprobs(void *target, const char *name, json_t *value, pm_refusal *refusal)
{
    pm_ask *ask = target;
    ask->top_logprobs = json_integer_value(value);
    ask->logprobs = true;
    if (json_is_integer(value) && ask->top_logprobs >= 0 && ask->top_logprobs <= 20)
        return true;
    return pm_refuse(refusal, 400, "invalid_value", name, "'%s' must be a whole number from 0 to 20", name);
}

static const pm_field fields[] = {
    PM_ANY("prompt", PM_ASK(prompt)),
    PM_TEXT("model", PM_ASK(model)),
    PM_ONLY("best_of", "1"),
    PM_BOOL("echo", PM_ASK(echo)),
    PM_FLOAT("frequency_penalty", PM_ASK(sampling.frequency_penalty), -2, 2),
    PM_READ("logit_bias", pm_read_logit_bias),
    PM_READ("logprobs", read_logprobs),
    PM_READ("max_completion_tokens", pm_read_max_tokens),
    PM_READ("max_tokens", pm_read_max_tokens),
    PM_WHOLE("n", PM_ASK(n), 1, PM_CHOICES_MAX),
    PM_FLOAT("presence_penalty", PM_ASK(sampling.presence_penalty), -2, 2),
    PM_READ("seed", pm_read_seed),
    PM_READ("stop", pm_read_stop),
    PM_BOOL("stream", PM_ASK(stream)),
    PM_READ("stream_options", pm_read_stream_options),
    PM_ONLY("suffix", "\"\""),
    PM_FLOAT("temperature", PM_ASK(sampling.temperature), 0, 100),
    PM_READ("top_p", pm_read_top_p),
    PM_VOID("user"),
    PM_SAMPLING_EXTENSIONS,
    PM_LAST,
};

static bool read_request(pm_job *job, pm_refusal *refusal)
{
    if (job->ask.echo && job->ask.logprobs)
        return pm_refuse(refusal, 400, "unsupported_value", "echo", "'echo' is not supported together with 'logprobs'");
    return true;
}

/* ---- logprobs: an entry for each token, [token, logprob, {token: logprob}, offset], later turned into columns ---- */

/* A token as text; one that is part of a character as its bytes, as OpenAI writes them. */
static json_t *name(const pm_server *server, pm_token id)
{
    char *bytes, text[512] = "bytes:";
    size_t len, used = strlen(text);
    if (pm_token_bytes(server->engine, id, &bytes, &len, NULL) != PM_OK)
        return json_string("");
    bool part = !pm_utf8_valid(bytes, len, NULL);
    for (size_t i = 0; part && i < len && used + 5 < sizeof(text); i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "\\x%02x", (unsigned char)bytes[i]);
    pm_free(bytes);
    return part ? json_string(text) : pm_token_text(server, id);
}

static void set(json_t *object, json_t *key, float logprob)
{
    json_object_set_new(object, json_string_value(key), json_real(pm_finite(logprob)));
    json_decref(key);
}

/* How many characters begin in the bytes of a token. */
static size_t characters(const pm_server *server, pm_token id)
{
    char *bytes;
    size_t len, n = 0;
    if (pm_token_bytes(server->engine, id, &bytes, &len, NULL) != PM_OK)
        return 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)bytes[i] & 0xC0) != 0x80;
    pm_free(bytes);
    return n;
}

static json_t *token(pm_choice *choice, pm_token id, float logprob, const pm_logprob *top)
{
    const pm_server *server = choice->job->server;
    json_t *others = json_object();
    for (int64_t i = 0; top && i < choice->job->ask.top_logprobs; i++)
        set(others, name(server, top[i].id), top[i].logprob);
    if (choice->job->ask.top_logprobs) /* the one that was chosen is always there */
        set(others, name(server, id), logprob);
    json_t *entry =
        json_pack("[o, f, o, I]", name(server, id), pm_finite(logprob), others, (json_int_t)choice->characters);
    choice->characters += characters(server, id);
    return entry;
}

static json_t *logprobs(pm_choice *choice)
{
    static const char *const columns[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    if (!choice->job->ask.logprobs)
        return json_null();
    json_t *entries = pm_choice_take_logprobs(choice), *object = json_object(), *entry;
    size_t i;
    for (size_t k = 0; k < 4; k++) {
        json_t *column = json_array();
        json_array_foreach(entries, i, entry)
        {
            json_array_append(column, json_array_get(entry, k));
        }
        json_object_set_new(object, columns[k], column);
    }
    json_decref(entries);
    return object;
}

/* ---- answers ---- */

/* The text of the prompt, for `echo`. */
static json_t *echoed(const pm_choice *choice, const char *text, size_t len)
{
    const pm_job *job = choice->job;
    pm_str whole = {0};
    char *prompt;
    size_t n;
    if (job->ask.echo &&
        pm_decode(job->server->engine, choice->prompt->ids, choice->prompt->n, true, &prompt, &n, NULL) == PM_OK) {
        pm_str_add(&whole, prompt, n);
        pm_free(prompt);
    }
    pm_str_add(&whole, text ? text : "", len);
    json_t *value = whole.failed ? NULL : json_stringn(whole.data, whole.len);
    pm_str_free(&whole);
    return value;
}

static void send(pm_choice *choice, const char *text, size_t len, const char *finish_reason)
{
    json_t *value = choice->begun ? json_stringn(text, len) : echoed(choice, text, len);
    choice->begun = true;
    pm_openai_chunk(choice, object_name, json_pack("{s:o, s:o}", "text", value, "logprobs", logprobs(choice)),
                    finish_reason);
}

static void piece(pm_choice *choice, const pm_event *event)
{
    send(choice, event->text, event->len, NULL);
}

static void finish(pm_choice *choice)
{
    send(choice, "", 0, pm_openai_finish(choice));
}

static void end(pm_job *job)
{
    if (job->ask.stream) {
        pm_openai_done(job, object_name);
        return;
    }
    json_t *choices = json_array();
    for (size_t i = 0; i < job->n_choices; i++) {
        pm_choice *choice = &job->choices[i];
        json_array_append_new(choices, json_pack("{s:i, s:o, s:o, s:s}", "index", choice->index, "text",
                                                 echoed(choice, choice->text.data, choice->text.len), "logprobs",
                                                 logprobs(choice), "finish_reason", pm_openai_finish(choice)));
    }
    json_t *whole = pm_openai_object(job, object_name, choices);
    json_object_set_new(whole, "usage", pm_openai_usage(job));
    pm_exchange_json(job->exchange, 200, whole);
}

const pm_dialect pm_completions_dialect = {
    .prefix = "cmpl-",
    .fields = fields,
    .read = read_request,
    .piece = piece,
    .finish = finish,
    .token = token,
    .end = end,
    .error = pm_openai_error,
    .broken = pm_openai_broken,
};
