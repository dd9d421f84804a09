#include "convert.h"

#include <stdio.h>
#include <string.h>

void pm_talk_add(pm_talk *talk, const char *role, json_t *content)
{
    json_t *message = json_pack("{s:s, s:o}", "role", role, "content", content);
    talk->failed |= json_array_append_new(talk->messages, message) != 0;
    talk->turn = strcmp(role, "assistant") == 0 && !talk->failed ? message : NULL;
}

static bool has_role(const json_t *message, const char *role)
{
    const char *own = json_string_value(json_object_get(message, "role"));
    return own && strcmp(own, role) == 0;
}

/* Puts the growing text where it belongs. */
static void put_text(pm_talk *talk)
{
    if (talk->growing) {
        json_t *value = talk->text.failed ? NULL : json_stringn(talk->text.data ? talk->text.data : "", talk->text.len);
        talk->failed |= json_object_set_new(talk->growing, talk->member, value) != 0;
    }
    talk->growing = NULL;
    talk->text.len = 0;
}

void pm_talk_extend(pm_talk *talk, json_t *message, const char *member, const char *separator, const char *text,
                    size_t len)
{
    talk->failed |= !message || !text;
    if (talk->failed)
        return;
    if (talk->growing != message || strcmp(talk->member, member) != 0) {
        put_text(talk);
        const json_t *before = json_object_get(message, member);
        pm_str_add(&talk->text, json_string_value(before), json_string_length(before));
        talk->growing = message;
        talk->member = member;
    }
    if (talk->text.len && len)
        pm_str_text(&talk->text, separator);
    pm_str_add(&talk->text, text, len);
}

bool pm_talk_end(pm_talk *talk)
{
    put_text(talk);
    pm_str_free(&talk->text);
    return !talk->failed;
}

void pm_talk_system(pm_talk *talk, const char *text, size_t len)
{
    json_t *first = json_array_get(talk->messages, 0);
    if (first && has_role(first, "system") && json_array_size(talk->messages) == 1)
        pm_talk_extend(talk, first, "content", "\n\n", text, len);
    else
        pm_talk_add(talk, "system", json_stringn(text, len));
}

/* The assistant's turn, with an empty content when it has just begun; NULL without memory. */
static json_t *turn_of(pm_talk *talk)
{
    if (!talk->turn && !talk->failed)
        pm_talk_add(talk, "assistant", json_string(""));
    return talk->turn;
}

static bool has_content(const pm_talk *talk)
{
    const json_t *turn = talk->turn;
    bool grows = talk->growing == turn && strcmp(talk->member, "content") == 0;
    return (grows ? talk->text.len : json_string_length(json_object_get(turn, "content"))) > 0 ||
           json_object_get(turn, "tool_calls");
}

void pm_talk_reasoning(pm_talk *talk, json_t *text)
{
    if (talk->turn && has_content(talk))
        talk->turn = NULL;
    json_t *turn = turn_of(talk);
    pm_talk_extend(talk, turn, "reasoning_content", "\n", json_string_value(text), json_string_length(text));
    json_decref(text);
}

void pm_talk_answer(pm_talk *talk, json_t *text)
{
    json_t *turn = turn_of(talk);
    pm_talk_extend(talk, turn, "content", "\n", json_string_value(text), json_string_length(text));
    json_decref(text);
}

void pm_talk_call(pm_talk *talk, const char *id, const char *name, json_t *arguments)
{
    json_t *turn = turn_of(talk), *calls = json_object_get(turn, "tool_calls");
    if (!calls) {
        calls = json_array();
        talk->failed |= json_object_set_new(turn, "tool_calls", calls) != 0;
    }
    json_t *call = json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", id, "type", "function", "function", "name", name,
                             "arguments", arguments);
    talk->failed |= talk->failed || json_array_append_new(calls, call) != 0;
}

void pm_talk_result(pm_talk *talk, const char *id, json_t *content)
{
    pm_talk_add(talk, "tool", content);
    json_t *message = json_array_get(talk->messages, json_array_size(talk->messages) - 1);
    talk->failed |= json_object_set_new(message, "tool_call_id", json_string(id)) != 0;
}

static bool is_text_part(const pm_parts *parts, const char *type)
{
    for (size_t i = 0; type && parts->types[i]; i++)
        if (strcmp(type, parts->types[i]) == 0)
            return true;
    return false;
}

json_t *pm_parts_text(const pm_parts *parts, const json_t *content, const char *path, pm_refusal *refusal)
{
    size_t i;
    const json_t *part;
    pm_str text = {0};
    if (json_is_string(content))
        return json_stringn(json_string_value(content), json_string_length(content));
    if (!json_is_array(content)) {
        pm_refuse(refusal, 400, "invalid_type", path, "'%s' must be a text or a list of parts", path);
        return NULL;
    }
    json_array_foreach((json_t *)content, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *words = json_object_get(part, "text");
        if (!is_text_part(parts, type) || !json_is_string(words)) {
            char why[128];
            snprintf(why, sizeof(why), "is '%.64s': only text is supported", type ? type : "");
            if (is_text_part(parts, type))
                pm_refuse_at(refusal, "invalid_type", "must be a text", "%s[%zu].text", path, i);
            else
                pm_refuse_at(refusal, "unsupported_value", why, "%s[%zu].type", path, i);
            pm_str_free(&text);
            return NULL;
        }
        if (text.len)
            pm_str_text(&text, parts->separator);
        pm_str_add(&text, json_string_value(words), json_string_length(words));
    }
    json_t *value = text.failed ? NULL : json_stringn(text.data ? text.data : "", text.len);
    pm_str_free(&text);
    if (!value)
        pm_refuse(refusal, 500, NULL, NULL, "out of memory");
    return value;
}

/* A function as a chat has it; NULL without memory. */
static json_t *convert_tool(const json_t *tool, const char *schema)
{
    json_t *function = json_object();
    const char *const members[][2] = {
        {"name", "name"}, {"description", "description"}, {"parameters", schema}, {"strict", "strict"}};
    bool fine = function != NULL;
    for (size_t i = 0; i < sizeof(members) / sizeof(*members); i++) {
        json_t *value = json_object_get(tool, members[i][1]);
        if (fine && value && !json_is_null(value))
            fine = json_object_set(function, members[i][0], value) == 0;
    }
    if (fine)
        return json_pack("{s:s, s:o}", "type", "function", "function", function);
    json_decref(function);
    return NULL;
}

json_t *pm_convert_tools(const json_t *tools, const char *type, const char *schema, pm_refusal *refusal)
{
    json_t *list = json_array();
    char must_be[64];
    size_t i;
    const json_t *tool;
    snprintf(must_be, sizeof(must_be), "must be \"%s\"", type);
    json_array_foreach((json_t *)tools, i, tool)
    {
        const char *name = json_string_value(json_object_get(tool, "name"));
        const char *own = json_string_value(json_object_get(tool, "type"));
        bool known = !own || strcmp(own, type) == 0;
        if (!known)
            pm_refuse_at(refusal, "unsupported_value", must_be, "tools[%zu].type", i);
        else if (!name || !*name)
            pm_refuse_at(refusal, "invalid_type", "is missing", "tools[%zu].name", i);
        else if (json_array_append_new(list, convert_tool(tool, schema)) == 0)
            continue;
        else
            pm_refuse(refusal, 500, NULL, NULL, "out of memory");
        json_decref(list);
        return NULL;
    }
    return list;
}
