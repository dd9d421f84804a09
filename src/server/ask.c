#include "ask.h"

#include "state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { BIASES_MAX = 1 << 16 };

bool pm_read_stop(void *target, const char *name, json_t *value, pm_refusal *refusal)
{
    pm_ask *ask = target;
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (n > PM_STOP_MAX)
        return pm_refuse(refusal, 400, "invalid_value", name, "'%s' has %zu texts, more than %d", name, n, PM_STOP_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_string(text) || json_string_length(text) == 0)
            return pm_refuse(refusal, 400, "invalid_type", name,
                             "'%s' must be a text or a list of texts, none of them empty", name);
        if (json_string_length(text) > PM_STOP_BYTES)
            return pm_refuse(refusal, 400, "invalid_value", name, "'%s' has a text of %zu bytes, more than %d", name,
                             json_string_length(text), PM_STOP_BYTES);
        ask->stop[i] = json_string_value(text);
    }
    ask->n_stop = (int)n;
    return true;
}

bool pm_read_logit_bias(void *target, const char *name, json_t *value, pm_refusal *refusal)
{
    pm_ask *ask = target;
    const char *key;
    json_t *number;
    if (!json_is_object(value) || json_object_size(value) > BIASES_MAX)
        return pm_refuse(refusal, 400, "invalid_type", name, "'%s' must be an object of token ids and numbers", name);
    free(ask->bias);
    ask->n_bias = 0;
    ask->bias = calloc(json_object_size(value) + 1, sizeof(*ask->bias));
    if (!ask->bias)
        return pm_refuse(refusal, 500, NULL, NULL, "out of memory");
    json_object_foreach(value, key, number)
    {
        char *end;
        double bias = json_number_value(number);
        errno = 0;
        long id = strtol(key, &end, 10);
        if (*key < '0' || *key > '9' || *end || errno || id > INT32_MAX)
            return pm_refuse(refusal, 400, "invalid_value", name, "'%s' has '%.64s', which is no token id", name, key);
        if (!json_is_number(number) || !(bias >= -100 && bias <= 100))
            return pm_refuse(refusal, 400, "invalid_value", name, "'%s' of token %ld must be a number from -100 to 100",
                             name, id);
        ask->bias[ask->n_bias++] = (pm_bias){.id = (pm_token)id, .bias = (float)bias};
    }
    return true;
}

bool pm_read_seed(void *target, const char *name, json_t *value, pm_refusal *refusal)
{
    pm_ask *ask = target;
    if (!json_is_integer(value))
        return pm_refuse(refusal, 400, "invalid_type", name, "'%s' must be a whole number", name);
    ask->seed = json_integer_value(value);
    ask->seeded = true;
    return true;
}

/* Where a protocol has two names for it the smaller counts. */
bool pm_read_max_tokens(void *target, const char *name, json_t *value, pm_refusal *refusal)
{
    pm_ask *ask = target;
    int64_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < 0)
        return pm_refuse(refusal, 400, json_is_integer(value) ? "invalid_value" : "invalid_type", name,
                         "'%s' must be a whole number from 0", name);
    ask->max_tokens = ask->max_tokens < 0 || n < ask->max_tokens ? n : ask->max_tokens;
    return true;
}

bool pm_read_top_k(void *target, const char *name, json_t *value, pm_refusal *refusal)
{
    int64_t k = json_integer_value(value);
    if (!json_is_integer(value) || k < -1 || k > INT32_MAX)
        return pm_refuse(refusal, 400, "invalid_value", name, "'%s' must be a whole number from 0 (off)", name);
    ((pm_ask *)target)->sampling.top_k = k < 0 ? 0 : (int)k;
    return true;
}

/* 0 is what OpenAI allows and means the likeliest token. */
bool pm_read_top_p(void *target, const char *name, json_t *value, pm_refusal *refusal)
{
    double p = json_number_value(value);
    if (!json_is_number(value) || !(p >= 0 && p <= 1))
        return pm_refuse(refusal, 400, "invalid_value", name, "'%s' must be a number from 0 to 1", name);
    ((pm_ask *)target)->sampling.top_p = p < 1e-6 ? 1e-6f : (float)p;
    return true;
}

static const pm_field stream_options[] = {
    PM_BOOL("include_usage", PM_ASK(include_usage)),
    PM_VOID("include_obfuscation"),
    PM_LAST,
};

bool pm_read_stream_options(void *target, const char *name, json_t *value, pm_refusal *refusal)
{
    return pm_fields_read(stream_options, value, name, target, refusal);
}

bool pm_ask_check_model(const pm_server *server, const char *model, pm_refusal *refusal)
{
    if (!model || strcmp(model, server->name) == 0)
        return true;
    return pm_refuse(refusal, 404, "model_not_found", "model", "there is no model '%.128s' here, only '%.128s'", model,
                     server->name);
}

bool pm_ask_variable(pm_job *job, const char *name, json_t *value)
{
    json_t *variables = job->ask.variables;
    if (!variables) {
        variables = json_object();
        if (json_object_set_new(job->body, "chat_template_kwargs", variables) != 0)
            return false;
        job->ask.variables = variables;
    }
    if (!json_object_get(variables, name))
        return json_object_set_new(variables, name, value) == 0;
    json_decref(value);
    return true;
}

bool pm_ask_effort(pm_job *job, pm_refusal *refusal)
{
    const char *effort = job->ask.effort;
    if (!effort || (pm_ask_variable(job, "reasoning_effort", json_string(effort)) &&
                    pm_ask_variable(job, "enable_thinking", json_boolean(strcmp(effort, "none") != 0))))
        return true;
    return pm_refuse(refusal, 500, NULL, NULL, "out of memory");
}

/* A value as JSON text, malloc'ed; NULL stays NULL. */
static bool dump(const json_t *value, const char **out)
{
    *out = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    return !value || *out;
}

/* An answer that only calls has no content, and clients send it back so; half of all templates need one. */
static bool fill_contents(const json_t *messages)
{
    size_t i;
    json_t *message;
    json_array_foreach((json_t *)messages, i, message)
    {
        const json_t *content = json_object_get(message, "content");
        bool empty = !content || json_is_null(content);
        if (empty && json_array_size(json_object_get(message, "tool_calls")) &&
            json_object_set_new(message, "content", json_string("")) != 0)
            return false;
    }
    return true;
}

bool pm_ask_chat(const pm_ask *ask, pm_chat *out, pm_refusal *refusal)
{
    if (!fill_contents(ask->messages))
        return pm_refuse(refusal, 500, NULL, NULL, "out of memory");
    bool tools = ask->tool_use != PM_TOOLS_NONE && json_array_size(ask->tools) > 0;
    *out = (pm_chat){.no_generation_prompt = ask->no_generation_prompt};
    if (!ask->messages)
        return pm_refuse(refusal, 400, "missing_required_parameter", "messages", "'messages' is missing");
    if (dump(ask->messages, &out->messages) && dump(tools ? ask->tools : NULL, &out->tools) &&
        dump(ask->variables, &out->variables))
        return true;
    pm_ask_chat_free(out);
    return pm_refuse(refusal, 500, NULL, NULL, "out of memory");
}

void pm_ask_chat_free(pm_chat *chat)
{
    free((char *)chat->messages);
    free((char *)chat->tools);
    free((char *)chat->variables);
    *chat = (pm_chat){0};
}
