/* What requests say of the form of answers: which tools may or must be called, and what text they are held to. */
#include "ask.h"

#include <stdio.h>
#include <string.h>

/* ---- tools ---- */

bool pm_read_parallel_calls(void *target, const char *name, json_t *value, pm_refusal *refusal)
{
    if (!json_is_boolean(value))
        return pm_refuse(refusal, 400, "invalid_type", name, "'%s' must be true or false", name);
    ((pm_ask *)target)->one_call = json_is_false(value);
    return true;
}

/* Takes the function that a forced call is of. */
static bool name_function(pm_ask *ask, const char *place, const json_t *function, pm_refusal *refusal)
{
    ask->tool_use = PM_TOOLS_REQUIRED;
    ask->choice_at = place;
    ask->function = json_string_value(function);
    return ask->function || pm_refuse_at(refusal, "invalid_value", "must be the name of a function", "%s", place);
}

/* A member of a choice that is a word of the list. */
static bool read_word(pm_ask *ask, const char *const words[3], const char *word)
{
    for (int i = 0; word && i < 3; i++) {
        if (words[i] && strcmp(word, words[i]) == 0) {
            ask->tool_use = (pm_tool_use)i;
            return true;
        }
    }
    return false;
}

/* {"mode": ..., "tools": [...]}, at a place of the request. */
static bool allow_tools(pm_ask *ask, const char *place, const json_t *value, pm_refusal *refusal)
{
    static const char *const modes[3] = {[PM_TOOLS_AUTO] = "auto", [PM_TOOLS_REQUIRED] = "required"};
    if (!read_word(ask, modes, json_string_value(json_object_get(value, "mode"))))
        return pm_refuse_at(refusal, "invalid_value", "must be \"auto\" or \"required\"", "%s.mode", place);
    ask->allowed = json_object_get(value, "tools");
    ask->choice_at = place;
    return json_array_size(ask->allowed) > 0 ||
           pm_refuse_at(refusal, "invalid_type", "must be a list of tools that is not empty", "%s.tools", place);
}

bool pm_read_tool_choice(void *target, const char *name, json_t *value, pm_refusal *refusal)
{
    static const char *const words[3] = {
        [PM_TOOLS_AUTO] = "auto", [PM_TOOLS_NONE] = "none", [PM_TOOLS_REQUIRED] = "required"};
    pm_ask *ask = target;
    const char *type = json_string_value(json_object_get(value, "type"));
    if (read_word(ask, words, json_string_value(value)))
        return true;
    if (type && strcmp(type, "function") == 0) {
        const json_t *function = json_object_get(value, "function");
        return function ? name_function(ask, "tool_choice.function.name", json_object_get(function, "name"), refusal)
                        : name_function(ask, "tool_choice.name", json_object_get(value, "name"), refusal);
    }
    if (type && strcmp(type, "allowed_tools") == 0) {
        const json_t *inner = json_object_get(value, "allowed_tools");
        return inner ? allow_tools(ask, "tool_choice.allowed_tools", inner, refusal)
                     : allow_tools(ask, "tool_choice", value, refusal);
    }
    return pm_refuse(refusal, 400, "unsupported_value", name,
                     "'%s' must be \"none\", \"auto\", \"required\", a function or allowed_tools", name);
}

bool pm_read_anthropic_choice(pm_ask *ask, const char *name, const json_t *value, pm_refusal *refusal)
{
    static const char *const words[3] = {
        [PM_TOOLS_AUTO] = "auto", [PM_TOOLS_NONE] = "none", [PM_TOOLS_REQUIRED] = "any"};
    const char *type = json_string_value(json_object_get(value, "type"));
    if (read_word(ask, words, type))
        return true;
    if (type && strcmp(type, "tool") == 0)
        return name_function(ask, "tool_choice.name", json_object_get(value, "name"), refusal);
    return pm_refuse_at(refusal, "invalid_value", "must be auto, any, tool or none", "%s.type", name);
}

/* The name of a tool, as a chat has it or without the object around it. */
static const char *name_of(const json_t *tool)
{
    const json_t *function = json_object_get(tool, "function");
    return json_string_value(json_object_get(function ? function : tool, "name"));
}

static json_t *find_tool(const json_t *tools, const char *name)
{
    size_t i;
    json_t *tool;
    json_array_foreach((json_t *)tools, i, tool)
    {
        const char *own = name_of(tool);
        if (own && name && strcmp(own, name) == 0)
            return tool;
    }
    return NULL;
}

bool pm_ask_choose_tools(pm_job *job, pm_refusal *refusal)
{
    pm_ask *ask = &job->ask;
    size_t i;
    const json_t *one;
    if (ask->function && json_array_size(ask->tools) > 0 && !find_tool(ask->tools, ask->function))
        return pm_refuse_at(refusal, "invalid_value", "is the name of none of the tools", "%s", ask->choice_at);
    if (!ask->allowed)
        return true;
    json_t *left = json_array();
    if (!left || json_object_set_new(job->body, "allowed_chat_tools", left) != 0)
        return pm_refuse(refusal, 500, NULL, NULL, "out of memory");
    json_array_foreach(ask->allowed, i, one)
    {
        json_t *tool = find_tool(ask->tools, name_of(one));
        if (!tool)
            return pm_refuse_at(refusal, "invalid_value", "is none of the tools", "%s.tools[%zu]", ask->choice_at, i);
        if (!find_tool(left, name_of(tool)) && json_array_append(left, tool) != 0)
            return pm_refuse(refusal, 500, NULL, NULL, "out of memory");
    }
    ask->tools = left;
    return true;
}

/* ---- text ---- */

/* Whether a schema is kept to is not a question here: it always is. */
#define SCHEMA_FIELDS                                                                                                  \
    PM_VOID("name"), PM_VOID("description"), PM_VOID("strict"), PM_OBJECT("schema", PM_ASK(schema)), PM_LAST

static const pm_field text_form[] = {PM_VOID("type"), PM_LAST};
static const pm_field object_form[] = {PM_VOID("type"), PM_OBJECT("schema", PM_ASK(schema)), PM_LAST};
static const pm_field schema_form[] = {PM_VOID("type"), SCHEMA_FIELDS};
static const pm_field inner_form[] = {SCHEMA_FIELDS};

static bool read_inner(void *target, const char *name, json_t *value, pm_refusal *refusal)
{
    return pm_fields_read(inner_form, value, name, target, refusal);
}

static const pm_field nested_form[] = {PM_VOID("type"), PM_READ("json_schema", read_inner), PM_LAST};

/* Reads a form; one with a schema has the fields of `with_schema`, and the schema at `inner`. */
static bool read_form(pm_ask *ask, const char *name, json_t *value, const pm_field *with_schema, const char *inner,
                      pm_refusal *refusal)
{
    const struct {
        const char *type, *schema;
        const pm_field *fields;
    } forms[] = {{"text", "", text_form}, {"json_object", ".schema", object_form}, {"json_schema", inner, with_schema}};
    const char *type = json_string_value(json_object_get(value, "type"));
    size_t n = sizeof(forms) / sizeof(*forms), i = 0;
    while (i < n && (!type || strcmp(type, forms[i].type) != 0))
        i++;
    if (i == n)
        return json_is_object(value) ? pm_refuse_at(refusal, "unsupported_value",
                                                    "must be text, json_object or json_schema", "%s.type", name)
                                     : pm_refuse_at(refusal, "invalid_type", "must be an object", "%s", name);
    snprintf(ask->schema_at, sizeof(ask->schema_at), "%s%s", name, forms[i].schema);
    if (!pm_fields_read(forms[i].fields, value, name, ask, refusal))
        return false;
    ask->json_object = i == 1 && !ask->schema;
    return i < 2 || ask->schema ||
           pm_refuse_at(refusal, "missing_required_parameter", "is missing", "%s", ask->schema_at);
}

bool pm_read_response_format(void *target, const char *name, json_t *value, pm_refusal *refusal)
{
    return read_form(target, name, value, nested_form, ".json_schema.schema", refusal);
}

bool pm_read_format(void *target, const char *name, json_t *value, pm_refusal *refusal)
{
    return read_form(target, name, value, schema_form, ".schema", refusal);
}
