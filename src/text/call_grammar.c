/* Calls of tools as a grammar: the patterns of reply_formats.c the other way round. */
#include "text/call_grammar.h"

#include "text/call_parts.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- patterns ---- */

/* Cuts a pattern into its parts; the last one is empty. */
static int cut_pattern(const char *pattern, pm_call_part parts[PM_CALL_PARTS_MAX])
{
    int n = 0;
    while (*pattern && n + 1 < PM_CALL_PARTS_MAX) {
        size_t len = strcspn(pattern, "%");
        parts[n++] = len ? (pm_call_part){0, pattern, len} : (pm_call_part){pattern[1], pattern, 2};
        pattern += len ? len : 2;
    }
    parts[n] = (pm_call_part){0};
    return n;
}

static bool has_part(const pm_call_build *b, char code)
{
    for (int i = 0; i < b->n_parts; i++)
        if (b->parts[i].code == code)
            return true;
    return false;
}

/* The number of the part that has the function's name. */
static int name_part(const pm_call_build *b)
{
    int i = 0;
    while (i < b->n_parts && (!b->parts[i].code || !strchr("nic", b->parts[i].code)))
        i++;
    return i;
}

/* White space between parts: up to two spaces or newlines. */
static int32_t build_gap(pm_grammar *grammar, int32_t next)
{
    int32_t after = next;
    for (int i = 0; i < 2; i++) {
        int32_t space = pm_node_range(grammar, '\n', '\n', after);
        pm_edge_add(grammar, space, ' ', ' ', after);
        after = pm_node_either(grammar, space, next);
    }
    return after;
}

static int32_t build_marked(const pm_call_build *b, const char *text, size_t len, int32_t next)
{
    return pm_node_marked(b->reader->grammar, b->calls->markers, text, len, next);
}

static int32_t build_plain(const pm_call_build *b, const char *text, int32_t next)
{
    return pm_node_text(b->reader->grammar, text, strlen(text), next);
}

/* ---- one call ---- */

/* The name of the member with the arguments: what the template is known by says it. */
static const char *arguments_key(const pm_call_format *format)
{
    return strstr(format->sign[0], "parameters") ? "parameters" : "arguments";
}

/* Arguments as a JSON object. */
static int32_t build_arguments(const pm_call_build *b, const pm_call_tool *tool, int32_t next)
{
    if (!tool->parameters)
        return build_plain(b, "{}", next);
    return pm_schema_value(b->reader, tool->parameters, PM_TYPE_OBJECT, next);
}

/* The rest of a JSON object behind the function's name. */
static int32_t build_object_rest(const pm_call_build *b, const pm_call_tool *tool, int32_t next)
{
    pm_schema_reader *reader = b->reader;
    int32_t end = pm_schema_blank(reader, pm_node_range(reader->grammar, '}', '}', next));
    int32_t value = pm_schema_blank(reader, build_arguments(b, tool, end));
    int32_t key = build_plain(b, "\"", build_plain(b, arguments_key(b->calls->format), build_plain(b, "\":", value)));
    return pm_node_range(reader->grammar, ',', ',', pm_schema_blank(reader, key));
}

/* The parts from..to of a pattern behind the function's name. A group that has no arguments is left out. */
static int32_t build_rest(const pm_call_build *b, const pm_call_tool *tool, int from, int to, int32_t next)
{
    for (int i = to; i-- > from;) {
        const pm_call_part *part = &b->parts[i];
        int open = i;
        switch (part->code) {
        case 0: next = build_marked(b, part->text, part->len, next); break;
        case '_': next = build_gap(b->reader->grammar, next); break;
        case 'a': next = build_arguments(b, tool, next); break;
        case ')':
            while (b->parts[open].code != '(')
                open--;
            if (has_part(b, 'k'))
                next = pm_call_members(b, tool, open + 1, i, next);
            i = open;
            break;
        default: break;
        }
    }
    return next;
}

/* How the part with the function's name spells it, into `out`. */
static int spell_name(const pm_call_tool *tool, char code, pm_buf *out)
{
    if (code == 'c') {
        int status = pm_buf_printf(out, "{\"name\": ");
        return status == PM_OK ? pm_json_literal(json_string(tool->name), false, out) : status;
    }
    return pm_buf_printf(out, code == 'i' ? "functions.%s:" : "%s", tool->name);
}

/* Up to four digits, the number of a call. */
static int32_t build_number(pm_grammar *grammar, int32_t next)
{
    int32_t after = next;
    for (int i = 0; i < 3; i++)
        after = pm_node_either(grammar, pm_node_range(grammar, '0', '9', after), next);
    return pm_node_range(grammar, '0', '9', after);
}

/* Adds a tool to the choice of names. */
static void add_tool(const pm_call_build *b, int32_t choice, const pm_call_tool *tool, char code, int32_t next)
{
    pm_buf name = {0};
    if (code == 'c')
        next = build_object_rest(b, tool, next);
    if (code == 'i')
        next = build_number(b->reader->grammar, next);
    if (spell_name(tool, code, &name) != PM_OK)
        pm_schema_fail_memory(b->reader);
    else
        pm_choice_add(b->reader->grammar, choice, name.data, name.len, next);
    pm_buf_free(&name);
    pm_schema_finish(b->reader); /* what waits is of this tool's schema */
}

/* Readies the reader for a tool's schema. */
static void enter_tool(const pm_call_build *b, const pm_call_tool *tool)
{
    b->reader->root = tool->parameters;
    b->reader->what = tool->what;
}

/* One call of a pattern that has the parts of a call one by one. */
static int32_t build_call(const pm_call_build *b, int32_t next)
{
    int at = name_part(b);
    int32_t choice = pm_choice_new(b->reader->grammar);
    for (size_t i = 0; i < b->n_tools && b->reader->status == PM_OK; i++) {
        enter_tool(b, &b->tools[i]);
        add_tool(b, choice, &b->tools[i], b->parts[at].code, build_rest(b, &b->tools[i], at + 1, b->n_parts, next));
    }
    return build_rest(b, NULL, 0, at, choice);
}

/* A list of calls: of JSON objects, or in Python. */
static int32_t build_list(const pm_call_build *b, bool python, int32_t next)
{
    pm_grammar *grammar = b->reader->grammar;
    int32_t choice = pm_choice_new(grammar), after = pm_node_split(grammar);
    pm_way_add(grammar, after, pm_schema_blank(b->reader, pm_node_range(grammar, ']', ']', next)));
    if (b->calls->parallel)
        pm_way_add(grammar, after, pm_node_range(grammar, ',', ',', pm_schema_blank(b->reader, choice)));
    for (size_t i = 0; i < b->n_tools && b->reader->status == PM_OK; i++) {
        enter_tool(b, &b->tools[i]);
        if (python)
            add_tool(b, choice, &b->tools[i], 'n', pm_call_keywords(b, &b->tools[i], after));
        else
            add_tool(b, choice, &b->tools[i], 'c', after);
    }
    return pm_node_range(grammar, '[', '[', choice);
}

/* ---- tools ---- */

/* The characters of names outside JSON, as the reader of calls has them; `more` beside letters and digits. */
static bool is_word(const char *name, const char *more)
{
    for (const char *p = name; *p; p++)
        if (!isalnum((unsigned char)*p) && (unsigned char)*p < 0x80 && !strchr(more, *p))
            return false;
    return *name && strlen(name) <= PM_CALL_NAME_MAX;
}

/* Whether names and arguments of all tools can be written as Python has them. */
static bool fits_python(const pm_call_build *b)
{
    for (size_t i = 0; i < b->n_tools; i++) {
        const json_t *properties = json_object_get(b->tools[i].parameters, "properties");
        const char *name;
        json_t *value;
        if (!is_word(b->tools[i].name, "_."))
            return false;
        json_object_foreach((json_t *)properties, name, value) if (!is_word(name, "_")) return false;
    }
    return true;
}

/* Takes one tool, {"type": "function", "function": {...}} or the function itself; *found counts it. */
static void read_tool(pm_call_build *b, const json_t *tool, pm_call_tool *out, bool *found)
{
    const json_t *inner = json_object_get(tool, "function");
    const json_t *function = json_is_object(inner) ? inner : tool;
    const char *name = json_string_value(json_object_get(function, "name"));
    pm_buf what = {0};
    if (!name || !*name) {
        pm_schema_fail(b->reader, PM_ERR_INVALID, "a tool has no name");
        return;
    }
    if (b->calls->function && strcmp(name, b->calls->function) != 0)
        return;
    if (pm_buf_printf(&what, "tool '%.100s'", name) != PM_OK ||
        !(out->what = pm_arena_strdup(&b->reader->arena, what.data, what.len)))
        pm_schema_fail_memory(b->reader);
    pm_buf_free(&what);
    out->name = name;
    out->parameters = json_object_get(function, "parameters");
    *found = true;
    char code = b->parts[name_part(b)].code;
    if ((code == 'n' || code == 'i') && !is_word(name, "_.:/-"))
        pm_schema_fail(b->reader, PM_ERR_UNSUPPORTED, "the name '%.100s' cannot be written as %s has calls", name,
                       b->calls->format->name);
}

static void read_tools(pm_call_build *b)
{
    size_t n = json_array_size(b->calls->tools), i;
    json_t *tool;
    b->tools = calloc(n + 1, sizeof(*b->tools));
    if (!b->tools) {
        pm_schema_fail_memory(b->reader);
        return;
    }
    json_array_foreach((json_t *)b->calls->tools, i, tool)
    {
        bool found = false;
        read_tool(b, tool, &b->tools[b->n_tools], &found);
        b->n_tools += found;
    }
    if (b->reader->status == PM_OK && !b->n_tools)
        pm_schema_fail(b->reader, PM_ERR_INVALID, "there is no tool '%.100s'", b->calls->function);
}

/* ---- the whole ---- */

/* Calls one after the other, or only one; around them the section, if the format has one. */
static int32_t build_calls(pm_call_build *b, int32_t next)
{
    pm_grammar *grammar = b->reader->grammar;
    const pm_call_format *format = b->calls->format;
    bool list = has_part(b, 'l') || has_part(b, 'p'), section = format->open && format->close;
    if (list) {
        int at = 0;
        while (!b->parts[at].code || !strchr("lp", b->parts[at].code))
            at++;
        bool python = b->parts[at].code == 'p' && fits_python(b);
        next = build_rest(b, NULL, at + 1, b->n_parts, next);
        return build_rest(b, NULL, 0, at, build_list(b, python, next));
    }
    if (section)
        next = build_gap(grammar, build_marked(b, format->close, strlen(format->close), next));
    int32_t after = pm_node_split(grammar), call = build_call(b, after);
    pm_way_add(grammar, after, next);
    if (b->calls->parallel && format->call[0] != '%') /* one that has no marker begins where the answer does */
        pm_way_add(grammar, after, build_gap(grammar, call));
    return section ? build_marked(b, format->open, strlen(format->open), build_gap(grammar, call)) : call;
}

int32_t pm_call_grammar(pm_schema_reader *reader, const pm_call_language *calls, int32_t next)
{
    pm_call_build b = {.reader = reader, .calls = calls};
    reader->what = "tools";
    if (!calls->format)
        return pm_schema_fail(reader, PM_ERR_UNSUPPORTED, "the model's chat template has no known format of calls");
    b.n_parts = cut_pattern(calls->format->call, b.parts);
    reader->no_angle = has_part(&b, 'k');
    read_tools(&b);
    int32_t node = reader->status == PM_OK ? build_calls(&b, next) : 0;
    reader->no_angle = reader->python = false;
    free(b.tools);
    return node;
}
