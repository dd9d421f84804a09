/* What a request of /v1/responses asks, as OpenAI documents it. Nothing is stored: each request has all of its input.
 */
#include "ask.h"
#include "convert.h"
#include "responses.h"

#include <stdio.h>
#include <string.h>

/* ---- fields ---- */

static bool read_include(void *target, const char *name, json_t *value, pm_refusal *refusal)
{
    size_t i;
    json_t *one;
    (void)target;
    if (!json_is_array(value))
        return pm_refuse(refusal, 400, "invalid_type", name, "'%s' must be a list", name);
    json_array_foreach(value, i, one)
    {
        const char *word = json_string_value(one);
        if (!word || strcmp(word, "reasoning.encrypted_content") != 0) /* reasoning is given as it is */
            return pm_refuse(refusal, 400, "unsupported_value", name, "'%s' has '%.64s', which is not supported", name,
                             word ? word : "no text");
    }
    return true;
}

static const pm_field reasoning_fields[] = {
    PM_ONLY("context", "\"auto\""),
    PM_TEXT("effort", PM_ASK(effort)),
    PM_ONLY("mode", "\"standard\""),
    PM_VOID("generate_summary"), /* reasoning is given whole */
    PM_VOID("summary"),
    PM_LAST,
};

static bool read_reasoning(void *target, const char *name, json_t *value, pm_refusal *refusal)
{
    return pm_fields_read(reasoning_fields, value, name, target, refusal);
}

static const pm_field text_fields[] = {
    PM_READ("format", pm_read_format),
    PM_ONLY("verbosity", "\"medium\""),
    PM_LAST,
};

static bool read_text(void *target, const char *name, json_t *value, pm_refusal *refusal)
{
    return pm_fields_read(text_fields, value, name, target, refusal);
}

const pm_field pm_responses_fields[] = {
    PM_ANY("input", PM_ASK(prompt)),
    PM_TEXT("model", PM_ASK(model)),
    PM_VOID("access_programs"),
    PM_ONLY("background", "false"),
    PM_VOID("background_options"),
    PM_REFUSED("context_management"),
    PM_REFUSED("conversation"),
    PM_VOID("image"), /* options of a tool that is not here */
    PM_READ("include", read_include),
    PM_ANY("instructions", PM_ASK(system)),
    PM_READ("max_output_tokens", pm_read_max_tokens),
    PM_VOID("max_tool_calls"),
    PM_VOID("metadata"),
    PM_REFUSED("moderation"),
    PM_READ("parallel_tool_calls", pm_read_parallel_calls),
    PM_REFUSED("previous_response_id"),
    PM_REFUSED("prompt"),
    PM_VOID("prompt_cache_key"),
    PM_VOID("prompt_cache_options"),
    PM_VOID("prompt_cache_retention"),
    PM_READ("reasoning", read_reasoning),
    PM_VOID("safety_identifier"),
    PM_VOID("service_tier"),
    PM_ONLY("store", "false"),
    PM_BOOL("stream", PM_ASK(stream)),
    PM_READ("stream_options", pm_read_stream_options),
    PM_FLOAT("temperature", PM_ASK(sampling.temperature), 0, 100),
    PM_READ("text", read_text),
    PM_READ("tool_choice", pm_read_tool_choice),
    PM_LIST("tools", PM_ASK(tools)),
    PM_ONLY("top_logprobs", "0"),
    PM_READ("top_p", pm_read_top_p),
    PM_ONLY("truncation", "\"disabled\""),
    PM_VOID("user"),
    PM_OBJECT("chat_template_kwargs", PM_ASK(variables)),
    PM_READ("seed", pm_read_seed),
    PM_READ("stop", pm_read_stop),
    PM_SAMPLING_EXTENSIONS,
    PM_LAST,
};

/* ---- input ---- */

static const char *const text_types[] = {"input_text", "output_text", "text", NULL};
static const char *const thought_types[] = {"reasoning_text", "summary_text", NULL};
static const pm_parts text_parts = {text_types, ""}, thought_parts = {thought_types, "\n"};

/* An item of the input, and where it stands. */
typedef struct item {
    const json_t *value;
    size_t index;
    pm_talk *talk;
    pm_refusal *refusal;
} item;

/* A text member of an item, or NULL with a refusal. */
static const char *text_of(const item *one, const char *name)
{
    const char *text = json_string_value(json_object_get(one->value, name));
    if (!text)
        pm_refuse_at(one->refusal, "invalid_type", "must be a text", "input[%zu].%s", one->index, name);
    return text;
}

/* The text of a member that is a content, or NULL with a refusal. */
static json_t *content_of(const item *one, const char *name, const pm_parts *parts)
{
    char path[64];
    snprintf(path, sizeof(path), "input[%zu].%s", one->index, name);
    return pm_parts_text(parts, json_object_get(one->value, name), path, one->refusal);
}

static bool take_message(const item *one)
{
    const char *role = text_of(one, "role");
    json_t *text = role ? content_of(one, "content", &text_parts) : NULL;
    if (!text)
        return false;
    if (strcmp(role, "assistant") == 0) {
        pm_talk_answer(one->talk, text);
    } else if (strcmp(role, "user") == 0) {
        pm_talk_add(one->talk, "user", text);
    } else if (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0) {
        pm_talk_system(one->talk, json_string_value(text), json_string_length(text));
        json_decref(text);
    } else {
        char why[128];
        json_decref(text);
        snprintf(why, sizeof(why), "is '%.64s', not one of user, assistant, system, developer", role);
        return pm_refuse_at(one->refusal, "invalid_value", why, "input[%zu].role", one->index);
    }
    return true;
}

static bool take_call(const item *one)
{
    const char *id = text_of(one, "call_id"), *name = id ? text_of(one, "name") : NULL;
    const char *arguments = name ? text_of(one, "arguments") : NULL;
    if (arguments)
        pm_talk_call(one->talk, id, name, json_string(arguments));
    return arguments != NULL;
}

static bool take_output(const item *one)
{
    const char *id = text_of(one, "call_id");
    json_t *text = id ? content_of(one, "output", &text_parts) : NULL;
    if (text)
        pm_talk_result(one->talk, id, text);
    return text != NULL;
}

/* The reasoning itself, or else its summary; what is encrypted is somebody else's. */
static bool take_reasoning(const item *one)
{
    bool whole = json_array_size(json_object_get(one->value, "content")) > 0;
    if (!whole && json_array_size(json_object_get(one->value, "summary")) == 0)
        return true;
    json_t *text = content_of(one, whole ? "content" : "summary", &thought_parts);
    if (text)
        pm_talk_reasoning(one->talk, text);
    return text != NULL;
}

static const struct {
    const char *type;
    bool (*take)(const item *one);
} item_types[] = {
    {"message", take_message},
    {"function_call", take_call},
    {"function_call_output", take_output},
    {"reasoning", take_reasoning},
};

static bool take_item(const item *one)
{
    const json_t *type = json_object_get(one->value, "type");
    const char *word = json_is_object(one->value) && !type ? "message" : json_string_value(type);
    for (size_t i = 0; word && i < sizeof(item_types) / sizeof(*item_types); i++)
        if (strcmp(word, item_types[i].type) == 0)
            return item_types[i].take(one);
    char why[128];
    snprintf(why, sizeof(why), "is '%.64s', which is not supported", word ? word : "");
    return pm_refuse_at(one->refusal, "unsupported_value", why, "input[%zu].type", one->index);
}

static bool take_input(const pm_ask *ask, pm_talk *talk, pm_refusal *refusal)
{
    const json_t *input = ask->prompt;
    item one = {.talk = talk, .refusal = refusal};
    json_t *system = ask->system ? pm_parts_text(&text_parts, ask->system, "instructions", refusal) : NULL;
    if (ask->system && !system)
        return false;
    if (system)
        pm_talk_system(talk, json_string_value(system), json_string_length(system));
    json_decref(system);
    if (json_is_string(input)) {
        pm_talk_add(talk, "user", json_string(json_string_value(input)));
        return true;
    }
    if (!json_is_array(input) || json_array_size(input) == 0)
        return pm_refuse(refusal, 400, input ? "invalid_type" : "missing_required_parameter", "input",
                         "'input' must be a text or a list of items that is not empty");
    json_array_foreach((json_t *)input, one.index, one.value)
    {
        if (!take_item(&one))
            return false;
    }
    return true;
}

/* ---- the whole ---- */

bool pm_responses_read(pm_job *job, pm_refusal *refusal)
{
    pm_ask *ask = &job->ask;
    pm_talk talk = {.messages = json_array()};
    bool fine = talk.messages && json_object_set_new(job->body, "messages", talk.messages) == 0;
    bool taken = fine && take_input(ask, &talk, refusal);
    if (!pm_talk_end(&talk) || !fine)
        return pm_refuse(refusal, 500, NULL, NULL, "out of memory");
    if (!taken)
        return false;
    ask->messages = talk.messages;
    if (ask->tools) {
        json_t *tools = pm_convert_tools(ask->tools, "function", "parameters", refusal);
        if (!tools || json_object_set_new(job->body, "chat_tools", tools) != 0)
            return false;
        ask->tools = tools;
    }
    return pm_ask_effort(job, refusal);
}
