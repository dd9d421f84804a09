/* Arguments that are written one by one. */
#include "text/call_parts.h"

#include <stdlib.h>
#include <string.h>

/* The members of a tool's arguments. */
static void read_members(const pm_call_build *b, const pm_call_tool *tool, pm_members *out)
{
    pm_schema_reader *reader = b->reader;
    const json_t *schema = tool->parameters;
    for (int depth = 0; schema && depth < PM_SCHEMA_DEPTH_MAX; depth++) {
        const char *name = json_is_object(schema) ? pm_schema_alone(reader, schema) : NULL;
        if (!name)
            break;
        if (strcmp(name, "$ref") == 0) {
            schema = pm_schema_resolve(reader, json_string_value(json_object_get(schema, name)));
        } else if (strcmp(name, "allOf") == 0 && json_array_size(json_object_get(schema, name)) == 1) {
            schema = json_array_get(json_object_get(schema, name), 0);
        } else {
            pm_schema_fail(reader, PM_ERR_UNSUPPORTED, "'%s' of arguments that are written one by one is not supported",
                           name);
            return;
        }
    }
    if (reader->status == PM_OK && json_is_object(schema))
        pm_schema_members(reader, schema, out);
}

/* ---- between tags ---- */

/* One argument. */
typedef struct argument {
    const pm_call_build *build;
    const pm_member *member;
    const char *end; /* the tag behind its value */
    bool lines;      /* the value stands on lines of its own */
    bool raw;        /* it is a string without quotes */
    int types;       /* that are written as JSON */
} argument;

/* Whether a raw string has nothing said of its characters. */
static bool is_free(const json_t *schema)
{
    static const char *const names[] = {"minLength", "maxLength", "pattern", "format"};
    for (size_t i = 0; i < PM_COUNT(names); i++)
        if (json_object_get(schema, names[i]))
            return false;
    return true;
}

/* The text between a value and its end. */
static int32_t before_end(const argument *a, int32_t end)
{
    return a->lines ? pm_node_range(a->build->reader->grammar, '\n', '\n', end) : end;
}

static void add_raw(const argument *a, int32_t split, const json_t *schema, int32_t end, int32_t next, int depth);

/* Adds the strings of a list of values. */
static void add_values(const argument *a, int32_t split, const json_t *schema, int32_t end)
{
    pm_schema_reader *reader = a->build->reader;
    json_t *list = json_object_get(schema, "enum"), *value;
    int32_t choice = pm_choice_new(reader->grammar);
    size_t n = list ? json_array_size(list) : 1;
    for (size_t i = 0; i < n; i++) {
        value = list ? json_array_get(list, i) : json_object_get(schema, "const");
        if (!json_is_string(value))
            continue;
        if (strstr(json_string_value(value), a->end)) {
            pm_schema_fail(reader, PM_ERR_UNSUPPORTED, "the value '%.80s' of '%.80s' holds what ends a value",
                           json_string_value(value), a->member->name);
            return;
        }
        pm_choice_add(reader->grammar, choice, json_string_value(value), json_string_length(value), before_end(a, end));
    }
    pm_way_add(reader->grammar, split, choice);
}

/* Adds the strings that one keyword gives by other schemas. */
static void add_others(const argument *a, int32_t split, const json_t *schema, const char *name, int32_t end,
                       int32_t next, int depth)
{
    pm_schema_reader *reader = a->build->reader;
    const json_t *value = json_object_get(schema, name);
    size_t i;
    json_t *entry;
    if (strcmp(name, "$ref") == 0) {
        const json_t *target = pm_schema_resolve(reader, json_string_value(value));
        if (target)
            add_raw(a, split, target, end, next, depth + 1);
        return;
    }
    if (strcmp(name, "allOf") == 0 && json_array_size(value) > 1) {
        pm_schema_fail(reader, PM_ERR_UNSUPPORTED, "'allOf' of more than one schema is not supported");
        return;
    }
    json_array_foreach((json_t *)value, i, entry) add_raw(a, split, entry, end, next, depth + 1);
}

/* Adds to `split` the strings of a schema without quotes. `end` is the node of the tag behind them, `next` what comes
 * after it. */
static void add_raw(const argument *a, int32_t split, const json_t *schema, int32_t end, int32_t next, int depth)
{
    pm_schema_reader *reader = a->build->reader;
    const char *name = json_is_object(schema) ? pm_schema_alone(reader, schema) : NULL;
    if (reader->status != PM_OK || json_is_false(schema))
        return;
    if (depth > PM_SCHEMA_DEPTH_MAX / 16) {
        pm_schema_fail(reader, PM_ERR_LIMIT, "too many alternatives and references inside one another");
        return;
    }
    if (name && (strcmp(name, "enum") == 0 || strcmp(name, "const") == 0))
        add_values(a, split, schema, end);
    else if (name)
        add_others(a, split, schema, name, end, next, depth);
    else if (is_free(schema))
        pm_way_add(reader->grammar, split, pm_node_until(reader->grammar, a->build->calls->markers, a->end, next));
    else
        pm_way_add(reader->grammar, split, pm_schema_chars(reader, schema, PM_SPELL_RAW, before_end(a, end)));
}

/* The value and its end. Raw text with limits gets a rule of its own, whose count it has. */
static int32_t build_value(const argument *a, int32_t end, int32_t next)
{
    pm_schema_reader *reader = a->build->reader;
    pm_grammar *grammar = reader->grammar;
    int32_t value;
    if (a->raw) {
        int32_t rule = pm_rule_new(grammar, false), outer = pm_rule_enter(grammar, rule);
        int32_t done = pm_node_return(grammar), split = pm_node_split(grammar);
        const char *text = a->end;
        int32_t tag = pm_node_marked(grammar, a->build->calls->markers, text, strlen(text), done);
        add_raw(a, split, a->member->schema, tag, done, 0);
        if (grammar->status == PM_OK)
            grammar->rules[rule].start = split;
        pm_rule_leave(grammar, outer);
        value = pm_node_call(grammar, rule, next);
    } else {
        value = pm_schema_value(reader, a->member->schema, a->types, before_end(a, end));
    }
    return before_end(a, value);
}

/* Decides how the value of an argument is written, so that the parser reads it as it is meant. */
static void decide(argument *a, const pm_call_tool *tool, bool says_type)
{
    const json_t *schema = a->member->schema;
    int types = pm_argument_types(a->build->calls->tools, tool->name, a->member->name);
    int implied = json_is_object(schema) ? pm_schema_types(a->build->reader, schema) : PM_TYPE_ANY;
    const char *alone = json_is_object(schema) ? pm_schema_alone(a->build->reader, schema) : NULL;
    a->types = PM_TYPE_ANY;
    if (types) {
        a->raw = types == PM_TYPE_STRING;
    } else if (!says_type) { /* the parser takes what is no JSON, or is a JSON string, for text */
        a->raw = !alone && (implied == PM_TYPE_STRING || implied == PM_TYPE_ANY);
        a->types = PM_TYPE_ANY & ~PM_TYPE_STRING;
    }
}

/* Whether a name can stand where the pattern has it. */
static bool fits(const char *name, char end)
{
    for (const char *p = name; *p; p++)
        if ((unsigned char)*p < ' ' || *p == end)
            return false;
    return *name && strlen(name) <= PM_CALL_NAME_MAX;
}

/* One argument as the parts from..to have it. */
static int32_t build_argument(argument *a, const pm_call_tool *tool, int from, int to, int32_t next)
{
    const pm_call_build *b = a->build;
    pm_grammar *grammar = b->reader->grammar;
    char end[64] = "";
    int32_t after = next; /* what comes after the literal that is at hand */
    bool says_type = false;
    for (int i = from; i < to; i++)
        says_type |= b->parts[i].code == 't';
    decide(a, tool, says_type);
    for (int i = to; i-- > from;) {
        const pm_call_part *part = &b->parts[i];
        switch (part->code) {
        case 0:
            after = next;
            next = pm_node_marked(grammar, b->calls->markers, part->text, part->len, next);
            break;
        case '_': {
            int32_t space = pm_node_range(grammar, '\n', '\n', next);
            next = pm_node_either(grammar, space, next);
            break;
        }
        case 'v':
        case 'V':
            memcpy(end, part[1].text, part[1].len < sizeof(end) ? part[1].len : 0);
            a->end = end;
            a->lines = part->code == 'V';
            next = build_value(a, next, after);
            break;
        case 't': next = pm_node_text(grammar, a->raw ? "true" : "false", a->raw ? 4 : 5, next); break;
        default:
            if (!fits(a->member->name, part[1].text[0]))
                return pm_schema_fail(b->reader, PM_ERR_UNSUPPORTED,
                                      "the name '%.80s' of an argument cannot be written as %s has calls",
                                      a->member->name, b->calls->format->name);
            next = pm_node_text(grammar, a->member->name, strlen(a->member->name), next);
        }
    }
    return next;
}

int32_t pm_call_members(const pm_call_build *b, const pm_call_tool *tool, int from, int to, int32_t next)
{
    pm_members members = {0};
    read_members(b, tool, &members);
    for (size_t i = members.n; i-- > 0 && b->reader->status == PM_OK;) {
        argument a = {.build = b, .member = &members.list[i]};
        size_t before = pm_schema_in(b->reader, "properties");
        pm_schema_in(b->reader, a.member->name);
        int32_t this = build_argument(&a, tool, from, to, next);
        pm_schema_out(b->reader, before);
        next = members.list[i].required ? this : pm_node_either(b->reader->grammar, this, next);
    }
    free(members.list);
    return next;
}

/* ---- in Python ---- */

/* Going backwards as pm_schema_object does. */
int32_t pm_call_keywords(const pm_call_build *b, const pm_call_tool *tool, int32_t next)
{
    pm_schema_reader *reader = b->reader;
    pm_grammar *grammar = reader->grammar;
    pm_members members = {0};
    read_members(b, tool, &members);
    int32_t end = pm_node_range(grammar, ')', ')', next), after = end, first = end, more = 0;
    bool may_close = true;
    reader->python = true;
    for (size_t i = members.n; i-- > 0 && reader->status == PM_OK;) {
        const pm_member *m = &members.list[i];
        size_t before = pm_schema_in(reader, "properties");
        pm_schema_in(reader, m->name);
        int32_t value = pm_schema_value(reader, m->schema, PM_TYPE_ANY, after);
        pm_schema_out(reader, before);
        int32_t this = pm_node_text(grammar, m->name, strlen(m->name), pm_node_range(grammar, '=', '=', value));
        may_close &= !m->required;
        first = m->required ? this : pm_node_either(grammar, this, first);
        more = m->required ? this : pm_node_either(grammar, this, more);
        after = pm_node_split(grammar);
        pm_way_add(grammar, after, pm_node_range(grammar, ',', ',', pm_schema_blank(reader, more)));
        if (may_close)
            pm_way_add(grammar, after, end);
    }
    reader->python = false;
    free(members.list);
    return pm_node_range(grammar, '(', '(', first);
}
