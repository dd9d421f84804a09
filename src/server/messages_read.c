/* What a request of /v1/messages asks, as Anthropic documents it, and POST /v1/messages/count_tokens, which answers how
 * long its prompt is. */
#include "messages.h"

#include "ask.h"
#include "constrain.h"
#include "convert.h"
#include "state.h"

#include <stdio.h>
#include <string.h>

/* ---- fields ---- */

/* How many tokens reasoning may take is a wish that no model here is told of. */
static const pm_field thinking_fields[] = {
    PM_VOID("type"),
    PM_VOID("budget_tokens"),
    PM_VOID("display"),
    PM_LAST,
};

static bool read_thinking(void *target, const char *name, json_t *value, pm_refusal *refusal)
{
    static const struct {
        const char *type;
        int thinking;
    } types[] = {{"enabled", 1}, {"adaptive", 1}, {"disabled", -1}};
    const char *type = json_string_value(json_object_get(value, "type"));
    for (size_t i = 0; type && i < sizeof(types) / sizeof(*types); i++) {
        if (strcmp(type, types[i].type) == 0) {
            ((pm_ask *)target)->thinking = types[i].thinking;
            return pm_fields_read(thinking_fields, value, name, target, refusal);
        }
    }
    return pm_refuse_at(refusal, "invalid_value", "must be enabled, adaptive or disabled", "%s.type", name);
}

static const pm_field output_fields[] = {
    PM_TEXT("effort", PM_ASK(effort)),
    PM_READ("format", pm_read_format),
    PM_LAST,
};

static bool read_output_config(void *target, const char *name, json_t *value, pm_refusal *refusal)
{
    return pm_fields_read(output_fields, value, name, target, refusal);
}

static const pm_field choice_fields[] = {
    PM_VOID("type"),
    PM_VOID("name"),
    PM_BOOL("disable_parallel_tool_use", PM_ASK(one_call)),
    PM_LAST,
};

static bool read_tool_choice(void *target, const char *name, json_t *value, pm_refusal *refusal)
{
    pm_ask *ask = target;
    return pm_read_anthropic_choice(ask, name, value, refusal) &&
           pm_fields_read(choice_fields, value, name, target, refusal);
}

const pm_field pm_messages_fields[] = {
    PM_LIST("messages", PM_ASK(messages)),
    PM_TEXT("model", PM_ASK(model)),
    PM_VOID("cache_control"), /* prefixes are kept in any case */
    PM_REFUSED("container"),
    PM_REFUSED("context_management"),
    PM_VOID("diagnostics"),
    PM_VOID("inference_geo"),
    PM_READ("max_tokens", pm_read_max_tokens),
    PM_REFUSED("mcp_servers"),
    PM_VOID("metadata"),
    PM_READ("output_config", read_output_config),
    PM_REFUSED("output_format"),
    PM_VOID("service_tier"),
    PM_VOID("speed"),
    PM_READ("stop_sequences", pm_read_stop),
    PM_BOOL("stream", PM_ASK(stream)),
    PM_ANY("system", PM_ASK(system)),
    PM_FLOAT("temperature", PM_ASK(sampling.temperature), 0, 100),
    PM_READ("thinking", read_thinking),
    PM_READ("tool_choice", read_tool_choice),
    PM_LIST("tools", PM_ASK(tools)),
    PM_READ("top_p", pm_read_top_p),
    PM_OBJECT("chat_template_kwargs", PM_ASK(variables)),
    PM_READ("seed", pm_read_seed),
    PM_SAMPLING_EXTENSIONS,
    PM_LAST,
};

/* ---- messages ---- */

static const char *const text_types[] = {"text", NULL};
static const pm_parts text_parts = {text_types, "\n"};

/* A block of a message's content, and where it stands. */
typedef struct block {
    const json_t *value;
    size_t message, index;
    pm_talk *talk;
    pm_refusal *refusal;
} block;

static bool lacks(const block *one, const char *name)
{
    return pm_refuse_at(one->refusal, "invalid_type", "is missing or wrong", "messages[%zu].content[%zu].%s",
                        one->message, one->index, name);
}

static json_t *copy_text(const json_t *text)
{
    return json_stringn(json_string_value(text), json_string_length(text));
}

/* Text of the user's after other text of the user's belongs to the same message. */
static bool take_user_text(const block *one)
{
    json_t *text = json_object_get(one->value, "text"), *messages = one->talk->messages;
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (!json_is_string(text))
        return lacks(one, "text");
    if (!role || strcmp(role, "user") != 0) {
        pm_talk_add(one->talk, "user", copy_text(text));
        return true;
    }
    pm_talk_extend(one->talk, last, "content", "\n", json_string_value(text), json_string_length(text));
    return true;
}

static bool take_system(const block *one)
{
    const json_t *text = json_object_get(one->value, "text");
    if (!json_is_string(text))
        return lacks(one, "text");
    pm_talk_system(one->talk, json_string_value(text), json_string_length(text));
    return true;
}

static bool take_result(const block *one)
{
    const char *id = json_string_value(json_object_get(one->value, "tool_use_id"));
    const json_t *content = json_object_get(one->value, "content");
    char path[64];
    snprintf(path, sizeof(path), "messages[%zu].content[%zu].content", one->message, one->index);
    if (!id)
        return lacks(one, "tool_use_id");
    json_t *text = content ? pm_parts_text(&text_parts, content, path, one->refusal) : json_string("");
    if (text)
        pm_talk_result(one->talk, id, text);
    return text != NULL;
}

static bool take_answer_text(const block *one)
{
    const json_t *text = json_object_get(one->value, "text");
    if (!json_is_string(text))
        return lacks(one, "text");
    pm_talk_answer(one->talk, copy_text(text));
    return true;
}

static bool take_thinking(const block *one)
{
    const json_t *text = json_object_get(one->value, "thinking");
    if (!json_is_string(text))
        return lacks(one, "thinking");
    pm_talk_reasoning(one->talk, copy_text(text));
    return true;
}

/* What is encrypted is somebody else's. */
static bool take_nothing(const block *one)
{
    (void)one;
    return true;
}

static bool take_call(const block *one)
{
    const char *id = json_string_value(json_object_get(one->value, "id"));
    const char *name = json_string_value(json_object_get(one->value, "name"));
    json_t *input = json_object_get(one->value, "input");
    if (!id || !name || !json_is_object(input))
        return lacks(one, !id ? "id" : !name ? "name" : "input");
    pm_talk_call(one->talk, id, name, json_incref(input));
    return true;
}

static const struct {
    const char *role, *type;
    bool (*take)(const block *one);
} block_types[] = {
    {"system", "text", take_system},          {"user", "text", take_user_text},
    {"user", "tool_result", take_result},     {"assistant", "text", take_answer_text},
    {"assistant", "thinking", take_thinking}, {"assistant", "redacted_thinking", take_nothing},
    {"assistant", "tool_use", take_call},
};

static bool take_block(const block *one, const char *role)
{
    const char *type = json_string_value(json_object_get(one->value, "type"));
    for (size_t i = 0; type && i < sizeof(block_types) / sizeof(*block_types); i++)
        if (strcmp(role, block_types[i].role) == 0 && strcmp(type, block_types[i].type) == 0)
            return block_types[i].take(one);
    char why[128];
    snprintf(why, sizeof(why), "is '%.64s', which is not supported in a message of the %s", type ? type : "", role);
    return pm_refuse_at(one->refusal, "unsupported_value", why, "messages[%zu].content[%zu].type", one->message,
                        one->index);
}

static bool take_message(const json_t *message, size_t index, pm_talk *talk, pm_refusal *refusal)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    json_t *content = json_object_get(message, "content");
    block one = {.message = index, .talk = talk, .refusal = refusal};
    if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 && strcmp(role, "system") != 0))
        return pm_refuse_at(refusal, "invalid_value", "must be user, assistant or system", "messages[%zu].role", index);
    if (!json_is_string(content) && !json_is_array(content))
        return pm_refuse_at(refusal, "invalid_type", "must be a text or a list of blocks", "messages[%zu].content",
                            index);
    if (json_is_string(content)) {
        json_t *alone = json_pack("{s:s, s:O}", "type", "text", "text", content);
        one.value = alone;
        bool fine = take_block(&one, role);
        json_decref(alone);
        return fine;
    }
    json_array_foreach(content, one.index, one.value)
    {
        if (!take_block(&one, role))
            return false;
    }
    return true;
}

static bool take_messages(const pm_ask *ask, pm_talk *talk, pm_refusal *refusal)
{
    size_t i, n = json_array_size(ask->messages);
    const json_t *message;
    json_t *system = ask->system ? pm_parts_text(&text_parts, ask->system, "system", refusal) : NULL;
    if (ask->system && !system)
        return false;
    if (json_string_length(system))
        pm_talk_system(talk, json_string_value(system), json_string_length(system));
    json_decref(system);
    if (n == 0)
        return pm_refuse(refusal, 400, "invalid_value", "messages", "'messages' must be a list that is not empty");
    json_array_foreach(ask->messages, i, message)
    {
        if (!take_message(message, i, talk, refusal))
            return false;
    }
    if (talk->turn)
        return pm_refuse_at(refusal, "unsupported_value",
                            "is the last and the assistant's: an answer cannot be begun for the model", "messages[%zu]",
                            n - 1);
    return true;
}

/* What counting needs too. */
static bool convert(pm_job *job, pm_refusal *refusal)
{
    pm_ask *ask = &job->ask;
    pm_talk talk = {.messages = json_array()};
    bool fine = talk.messages && json_object_set_new(job->body, "chat_messages", talk.messages) == 0;
    bool taken = fine && take_messages(ask, &talk, refusal);
    if (!pm_talk_end(&talk) || !fine)
        return pm_refuse(refusal, 500, NULL, NULL, "out of memory");
    if (!taken)
        return false;
    ask->messages = talk.messages;
    if (ask->tools) {
        json_t *tools = pm_convert_tools(ask->tools, "custom", "input_schema", refusal);
        if (!tools || json_object_set_new(job->body, "chat_tools", tools) != 0)
            return false;
        ask->tools = tools;
    }
    if (ask->thinking && !pm_ask_variable(job, "enable_thinking", json_boolean(ask->thinking > 0)))
        return pm_refuse(refusal, 500, NULL, NULL, "out of memory");
    return pm_ask_effort(job, refusal);
}

bool pm_messages_read(pm_job *job, pm_refusal *refusal)
{
    if (job->ask.max_tokens < 0)
        return pm_refuse(refusal, 400, "missing_required_parameter", "max_tokens", "'max_tokens' is missing");
    return convert(job, refusal);
}

/* ---- /v1/messages/count_tokens ---- */

void pm_work_count_tokens(pm_exchange *exchange)
{
    pm_server *server = exchange->server;
    pm_job job = {.exchange = exchange, .server = server, .ask.max_tokens = -1};
    pm_chat chat = {0};
    pm_prompt prompt = {0};
    pm_refusal refusal;
    pm_error err;
    job.body = pm_body_read(exchange, &refusal);
    bool right = job.body && pm_fields_read(pm_messages_fields, job.body, NULL, &job.ask, &refusal) &&
                 pm_ask_check_model(server, job.ask.model, &refusal) && convert(&job, &refusal) &&
                 pm_ask_chat(&job.ask, &chat, &refusal);
    int status = right ? pm_chat_prompt(server->engine, &chat, &prompt, &err) : PM_OK;
    if (status != PM_OK)
        pm_refuse_status(exchange, &refusal, status, &err);
    if (!right || status != PM_OK)
        pm_exchange_refuse(exchange, &refusal);
    else
        pm_exchange_json(exchange, 200, json_pack("{s:I}", "input_tokens", (json_int_t)prompt.n));
    pm_prompt_free(&prompt);
    pm_ask_chat_free(&chat);
    json_decref(job.body);
}
