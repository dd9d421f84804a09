#include "engine/chat.h"

#include "files/config.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* ---- messages ---- */

/* Messages of failures begin with the place in the request, such as messages[0].content[1].type. */

/* Appends the text of one part of a content list. */
static int add_part(pm_buf *text, const json_t *part, size_t message, size_t index, pm_error *err)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *value = json_is_string(part) ? part : json_object_get(part, "text");
    if (!json_is_string(part)) {
        if (!type)
            return pm_fail(err, PM_ERR_INVALID, "messages[%zu].content[%zu].type is missing", message, index);
        if (strcmp(type, "text") != 0)
            return pm_fail(err, PM_ERR_UNSUPPORTED,
                           "messages[%zu].content[%zu].type is '%.100s': only text is supported", message, index, type);
        if (!json_is_string(value))
            return pm_fail(err, PM_ERR_INVALID, "messages[%zu].content[%zu].text is missing", message, index);
    }
    if (pm_buf_add(text, json_string_value(value), json_string_length(value)) != PM_OK)
        return pm_fail_memory(err);
    return PM_OK;
}

/* Replaces a list of parts by its text. */
static int join_parts(json_t *message, const json_t *parts, size_t index, pm_error *err)
{
    pm_buf text = {0};
    size_t i;
    const json_t *part;
    int status = pm_buf_reserve(&text, 0) == PM_OK ? PM_OK : pm_fail_memory(err);
    json_array_foreach((json_t *)parts, i, part)
    {
        if (status == PM_OK)
            status = add_part(&text, part, index, i, err);
    }
    if (status == PM_OK && json_object_set_new(message, "content", json_stringn(text.data, text.len)) != 0)
        status = pm_fail_memory(err);
    pm_buf_free(&text);
    return status;
}

static int check_content(json_t *message, size_t index, pm_error *err)
{
    const json_t *content = json_object_get(message, "content");
    if (json_is_string(content))
        return PM_OK;
    if (json_is_array(content))
        return join_parts(message, content, index, err);
    if (content && !json_is_null(content))
        return pm_fail(err, PM_ERR_INVALID, "messages[%zu].content is neither text nor a list of parts", index);
    if (json_array_size(json_object_get(message, "tool_calls")) == 0)
        return pm_fail(err, PM_ERR_INVALID, "messages[%zu].content is missing", index);
    return PM_OK;
}

/* The wire has arguments as JSON text, templates iterate over an object; a call without any may have no text. */
static int parse_arguments(json_t *function, size_t message, size_t index, pm_error *err)
{
    json_t *arguments = json_object_get(function, "arguments"), *parsed = NULL;
    char what[96];
    snprintf(what, sizeof(what), "messages[%zu].tool_calls[%zu].function.arguments", message, index);
    if (!arguments || json_is_object(arguments))
        return PM_OK;
    if (!json_is_string(arguments))
        return pm_fail(err, PM_ERR_INVALID, "%s is neither an object nor its text", what);
    size_t len = json_string_length(arguments);
    int status = pm_json_text(what, len ? json_string_value(arguments) : "{}", len ? len : 2, &parsed, err);
    if (status != PM_OK)
        return status == PM_ERR_MEMORY ? status : pm_fail(err, PM_ERR_INVALID, "%s is not valid JSON", what);
    if (!json_is_object(parsed)) {
        json_decref(parsed);
        return pm_fail(err, PM_ERR_INVALID, "%s is not a JSON object", what);
    }
    return json_object_set_new(function, "arguments", parsed) == 0 ? PM_OK : pm_fail_memory(err);
}

static int check_tool_calls(json_t *message, size_t index, pm_error *err)
{
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;
    if (!calls || json_is_null(calls))
        return PM_OK;
    if (!json_is_array(calls))
        return pm_fail(err, PM_ERR_INVALID, "messages[%zu].tool_calls is not a list", index);
    json_array_foreach(calls, i, call)
    {
        json_t *function = json_object_get(call, "function");
        if (!json_is_object(function) || !json_is_string(json_object_get(function, "name")))
            return pm_fail(err, PM_ERR_INVALID, "messages[%zu].tool_calls[%zu].function.name is missing", index, i);
        int status = parse_arguments(function, index, i, err);
        if (status != PM_OK)
            return status;
    }
    return PM_OK;
}

static int check_role(const json_t *message, size_t index, pm_error *err)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function"};
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!role)
        return pm_fail(err, PM_ERR_INVALID, "messages[%zu].role is missing", index);
    for (size_t i = 0; i < PM_COUNT(roles); i++)
        if (strcmp(role, roles[i]) == 0)
            return PM_OK;
    return pm_fail(err, PM_ERR_INVALID,
                   "messages[%zu].role is '%.64s', not one of system, developer, user, assistant, tool, function",
                   index, role);
}

/* As transformers hands messages over (apply_chat_template): members that are null are left out, since templates write
 * them as "None", and reasoning, whatever it is called, has the two names under which templates look for it. */
static int settle_members(json_t *message, pm_error *err)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *reasoning = NULL, *value;
    const char *name;
    void *next;
    json_object_foreach_safe(message, next, name, value)
    {
        if (json_is_null(value))
            json_object_del(message, name);
    }
    for (size_t i = 0; i < PM_COUNT(names) && !reasoning; i++)
        reasoning = json_object_get(message, names[i]);
    if (!reasoning)
        return PM_OK;
    json_incref(reasoning); /* replacing the last holder of it must not free it */
    bool whole = json_object_set(message, "reasoning_content", reasoning) == 0 &&
                 (json_object_get(message, "thinking") || json_object_set(message, "thinking", reasoning) == 0);
    json_decref(reasoning);
    return whole ? PM_OK : pm_fail_memory(err);
}

static int check_messages(json_t *messages, pm_error *err)
{
    size_t i;
    json_t *message;
    if (!json_is_array(messages))
        return pm_fail(err, PM_ERR_INVALID, "messages is not a list");
    if (json_array_size(messages) == 0)
        return pm_fail(err, PM_ERR_INVALID, "messages is empty");
    json_array_foreach(messages, i, message)
    {
        if (!json_is_object(message))
            return pm_fail(err, PM_ERR_INVALID, "messages[%zu] is not an object", i);
        int status = check_role(message, i, err);
        if (status == PM_OK)
            status = check_content(message, i, err);
        if (status == PM_OK)
            status = check_tool_calls(message, i, err);
        if (status == PM_OK)
            status = settle_members(message, err);
        if (status != PM_OK)
            return status;
    }
    return PM_OK;
}

/* ---- tools ---- */

/* A tool is {"type": "function", "function": {...}} or the function itself, which has a name. */
static int check_tools(const json_t *tools, pm_error *err)
{
    size_t i;
    const json_t *tool;
    if (!tools || json_is_null(tools))
        return PM_OK;
    if (!json_is_array(tools))
        return pm_fail(err, PM_ERR_INVALID, "tools is not a list");
    json_array_foreach((json_t *)tools, i, tool)
    {
        const json_t *inner = json_object_get(tool, "function"), *function = inner ? inner : tool;
        if (!json_is_object(function))
            return pm_fail(err, PM_ERR_INVALID, "tools[%zu]%s is not an object", i, inner ? ".function" : "");
        if (json_string_length(json_object_get(function, "name")) == 0)
            return pm_fail(err, PM_ERR_INVALID, "tools[%zu]%s.name is missing", i, inner ? ".function" : "");
    }
    return PM_OK;
}

/* ---- ids of calls ---- */

enum { SHORT_ID = 9 };

static bool is_short(const char *id)
{
    size_t n = strlen(id);
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)id[i]) || (unsigned char)id[i] >= 0x80)
            return false;
    return n == SHORT_ID;
}

/* Replaces a member that is an id of another form. */
static int shorten(json_t *object, const char *member, pm_error *err)
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    const char *id = json_string_value(json_object_get(object, member));
    char made[SHORT_ID];
    pm_hash hash;
    if (!id || is_short(id))
        return PM_OK;
    pm_hash_start(&hash);
    pm_hash_add(&hash, id, strlen(id));
    uint64_t number = pm_hash_value(&hash);
    for (size_t i = 0; i < SHORT_ID; i++, number /= sizeof(digits) - 1)
        made[i] = digits[number % (sizeof(digits) - 1)];
    return json_object_set_new(object, member, json_stringn(made, SHORT_ID)) == 0 ? PM_OK : pm_fail_memory(err);
}

int pm_chat_short_ids(json_t *variables, pm_error *err)
{
    size_t i, k;
    json_t *message, *call;
    int status = PM_OK;
    json_array_foreach(json_object_get(variables, "messages"), i, message)
    {
        json_array_foreach(json_object_get(message, "tool_calls"), k, call)
        {
            if (status == PM_OK)
                status = shorten(call, "id", err);
        }
        if (status == PM_OK)
            status = shorten(message, "tool_call_id", err);
    }
    return status;
}

/* ---- the whole ---- */

/* Parses a part of the request; *out stays NULL when there is none. */
static int parse(const char *what, const char *text, json_t **out, pm_error *err)
{
    return text ? pm_json_text(what, text, strlen(text), out, err) : PM_OK;
}

/* Adds the request's own variables. */
static int add_variables(json_t *all, const json_t *own, pm_error *err)
{
    const char *name;
    json_t *value;
    if (!own || json_is_null(own))
        return PM_OK;
    if (!json_is_object(own))
        return pm_fail(err, PM_ERR_INVALID, "variables is not an object");
    json_object_foreach((json_t *)own, name, value)
    {
        if (strcmp(name, "messages") == 0 || strcmp(name, "tools") == 0 || strcmp(name, "add_generation_prompt") == 0)
            return pm_fail(err, PM_ERR_INVALID, "variables.%s has a place of its own", name);
        if (json_object_set(all, name, value) != 0)
            return pm_fail_memory(err);
    }
    return PM_OK;
}

int pm_chat_variables(const pm_chat *chat, json_t **out, pm_error *err)
{
    json_t *messages = NULL, *tools = NULL, *variables = NULL, *all = NULL;
    int status = chat->messages ? PM_OK : pm_fail(err, PM_ERR_INVALID, "messages is missing");
    if (status == PM_OK)
        status = parse("messages", chat->messages, &messages, err);
    if (status == PM_OK)
        status = parse("tools", chat->tools, &tools, err);
    if (status == PM_OK)
        status = parse("variables", chat->variables, &variables, err);
    if (status == PM_OK)
        status = check_messages(messages, err);
    if (status == PM_OK)
        status = check_tools(tools, err);
    if (status != PM_OK)
        goto done;
    all = json_object();
    if (!all || json_object_set(all, "messages", messages) != 0 ||
        json_object_set(all, "tools", json_array_size(tools) ? tools : json_null()) != 0 ||
        json_object_set(all, "documents", json_null()) != 0 ||
        json_object_set(all, "add_generation_prompt", json_boolean(!chat->no_generation_prompt)) != 0)
        status = pm_fail_memory(err);
    if (status == PM_OK)
        status = add_variables(all, variables, err);
    if (status == PM_OK) {
        *out = all;
        all = NULL;
    }
done:
    json_decref(all);
    json_decref(messages);
    json_decref(tools);
    json_decref(variables);
    return status;
}
