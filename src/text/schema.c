/* Schemas: what keywords they have, which kinds of values they allow, and what is built when. */
#include "text/schema_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMERIC = PM_TYPE_NUMBER | PM_TYPE_INTEGER };

const pm_keyword pm_keywords[] = {
    {"type", PM_KEYWORD_READ, 0},
    {"nullable", PM_KEYWORD_READ, 0},
    {"enum", PM_KEYWORD_READ, 0},
    {"const", PM_KEYWORD_READ, 0},
    {"anyOf", PM_KEYWORD_READ, 0},
    {"oneOf", PM_KEYWORD_READ, 0},
    {"allOf", PM_KEYWORD_READ, 0},
    {"$ref", PM_KEYWORD_READ, 0},
    {"properties", PM_KEYWORD_READ, PM_TYPE_OBJECT},
    {"required", PM_KEYWORD_READ, PM_TYPE_OBJECT},
    {"additionalProperties", PM_KEYWORD_READ, PM_TYPE_OBJECT},
    {"items", PM_KEYWORD_READ, PM_TYPE_ARRAY},
    {"prefixItems", PM_KEYWORD_READ, PM_TYPE_ARRAY},
    {"minItems", PM_KEYWORD_READ, PM_TYPE_ARRAY},
    {"maxItems", PM_KEYWORD_READ, PM_TYPE_ARRAY},
    {"minLength", PM_KEYWORD_READ, PM_TYPE_STRING},
    {"maxLength", PM_KEYWORD_READ, PM_TYPE_STRING},
    {"pattern", PM_KEYWORD_READ, PM_TYPE_STRING},
    {"format", PM_KEYWORD_READ, 0},
    {"minimum", PM_KEYWORD_READ, NUMERIC},
    {"maximum", PM_KEYWORD_READ, NUMERIC},
    {"exclusiveMinimum", PM_KEYWORD_READ, NUMERIC},
    {"exclusiveMaximum", PM_KEYWORD_READ, NUMERIC},
    {"$schema", PM_KEYWORD_NOTE, 0},
    {"$id", PM_KEYWORD_NOTE, 0},
    {"$comment", PM_KEYWORD_NOTE, 0},
    {"$defs", PM_KEYWORD_NOTE, 0},
    {"definitions", PM_KEYWORD_NOTE, 0},
    {"title", PM_KEYWORD_NOTE, 0},
    {"description", PM_KEYWORD_NOTE, 0},
    {"default", PM_KEYWORD_NOTE, 0},
    {"examples", PM_KEYWORD_NOTE, 0},
    {"deprecated", PM_KEYWORD_NOTE, 0},
    {"readOnly", PM_KEYWORD_NOTE, 0},
    {"writeOnly", PM_KEYWORD_NOTE, 0},
    {"contentEncoding", PM_KEYWORD_NOTE, 0},
    {"contentMediaType", PM_KEYWORD_NOTE, 0},
    {"contentSchema", PM_KEYWORD_NOTE, 0},
    {"not", PM_KEYWORD_REFUSED, 0},
    {"if", PM_KEYWORD_REFUSED, 0},
    {"then", PM_KEYWORD_REFUSED, 0},
    {"else", PM_KEYWORD_REFUSED, 0},
    {"dependentSchemas", PM_KEYWORD_REFUSED, PM_TYPE_OBJECT},
    {"dependentRequired", PM_KEYWORD_REFUSED, PM_TYPE_OBJECT},
    {"dependencies", PM_KEYWORD_REFUSED, PM_TYPE_OBJECT},
    {"patternProperties", PM_KEYWORD_REFUSED, PM_TYPE_OBJECT},
    {"propertyNames", PM_KEYWORD_REFUSED, PM_TYPE_OBJECT},
    {"minProperties", PM_KEYWORD_REFUSED, PM_TYPE_OBJECT},
    {"maxProperties", PM_KEYWORD_REFUSED, PM_TYPE_OBJECT},
    {"unevaluatedProperties", PM_KEYWORD_REFUSED, PM_TYPE_OBJECT},
    {"additionalItems", PM_KEYWORD_REFUSED, PM_TYPE_ARRAY},
    {"unevaluatedItems", PM_KEYWORD_REFUSED, PM_TYPE_ARRAY},
    {"contains", PM_KEYWORD_REFUSED, PM_TYPE_ARRAY},
    {"minContains", PM_KEYWORD_REFUSED, PM_TYPE_ARRAY},
    {"maxContains", PM_KEYWORD_REFUSED, PM_TYPE_ARRAY},
    {"uniqueItems", PM_KEYWORD_REFUSED, PM_TYPE_ARRAY},
    {"multipleOf", PM_KEYWORD_REFUSED, NUMERIC},
    {"$anchor", PM_KEYWORD_REFUSED, 0},
    {"$dynamicRef", PM_KEYWORD_REFUSED, 0},
    {"$dynamicAnchor", PM_KEYWORD_REFUSED, 0},
    {"$recursiveRef", PM_KEYWORD_REFUSED, 0},
    {"$recursiveAnchor", PM_KEYWORD_REFUSED, 0},
};
const size_t pm_n_keywords = PM_COUNT(pm_keywords);

/* Rules that are no kind of value. */
enum { RULE_LITERALS = 1 << 8, RULE_SPACE = 1 << 9, RULE_KEY = 1 << 10 };

enum {
    INDENT_MAX = 24, /* spaces or tabs that a line may begin with */
    PATH_MAX_BYTES = 400
};

/* ---- failures and where they are ---- */

int32_t pm_schema_fail(pm_schema_reader *reader, pm_status code, const char *format, ...)
{
    char message[512];
    va_list args;
    if (reader->status != PM_OK)
        return 0;
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    bool inside = reader->path.len > 0;
    reader->status = pm_fail(reader->err, code, "%s%s%s: %s", reader->what, inside ? ": #" : "",
                             inside ? reader->path.data : "", message);
    return 0;
}

int32_t pm_schema_fail_memory(pm_schema_reader *reader)
{
    if (reader->status == PM_OK)
        reader->status = pm_fail_memory(reader->err);
    return 0;
}

size_t pm_schema_in(pm_schema_reader *reader, const char *name)
{
    size_t before = reader->path.len;
    if (before < PATH_MAX_BYTES && pm_buf_printf(&reader->path, "/%.80s", name) != PM_OK)
        pm_schema_fail_memory(reader);
    return before;
}

void pm_schema_out(pm_schema_reader *reader, size_t before)
{
    if (reader->path.data) {
        reader->path.len = before;
        reader->path.data[before] = 0;
    }
}

/* ---- keywords ---- */

static const pm_keyword *find_keyword(const char *name)
{
    for (size_t i = 0; i < pm_n_keywords; i++)
        if (strcmp(pm_keywords[i].name, name) == 0)
            return &pm_keywords[i];
    return NULL;
}

int32_t pm_schema_count(pm_schema_reader *reader, const json_t *schema, const char *name, int32_t absent)
{
    const json_t *value = json_object_get(schema, name);
    double n = json_number_value(value);
    if (!value)
        return absent;
    if (!json_is_number(value) || n < 0 || n != (double)(int64_t)(n < 1e18 ? n : 0.5))
        return pm_schema_fail(reader, PM_ERR_INVALID, "%s is not a whole number of at least 0", name);
    return n < PM_COUNT_MAX ? (int32_t)n : PM_COUNT_MAX;
}

/* Whether a keyword that is refused says nothing with this value. */
static bool says_nothing(const json_t *schema, const char *name, const json_t *value)
{
    if (strcmp(name, "uniqueItems") == 0)
        return json_is_false(value);
    if (strcmp(name, "minProperties") == 0)
        return json_is_integer(value) &&
               json_integer_value(value) <= (json_int_t)json_array_size(json_object_get(schema, "required"));
    if (strcmp(name, "multipleOf") == 0) {
        const char *type = json_string_value(json_object_get(schema, "type"));
        return type && strcmp(type, "integer") == 0 && json_is_number(value) && json_number_value(value) == 1;
    }
    return false;
}

/* Refuses what is not read; `alone` may be a keyword beside which nothing else that is read may stand but type and
 * nullable. */
static void check_keywords(pm_schema_reader *reader, const json_t *schema, const char *alone)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)schema, name, value)
    {
        const pm_keyword *keyword = find_keyword(name);
        if (!keyword || keyword->kind == PM_KEYWORD_NOTE)
            continue;
        if (keyword->kind == PM_KEYWORD_REFUSED && !says_nothing(schema, name, value))
            pm_schema_fail(reader, PM_ERR_UNSUPPORTED, "'%s' is not supported", name);
        if (alone && keyword->kind == PM_KEYWORD_READ && strcmp(name, alone) != 0 && strcmp(name, "type") != 0 &&
            strcmp(name, "nullable") != 0)
            pm_schema_fail(reader, PM_ERR_UNSUPPORTED, "'%s' beside '%s' is not supported", name, alone);
    }
}

/* Whether a schema says anything about values of a type. */
static bool speaks_of(const json_t *schema, int type)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)schema, name, value)
    {
        const pm_keyword *keyword = find_keyword(name);
        if (keyword && keyword->kind == PM_KEYWORD_READ && (keyword->type & type))
            return true;
        if ((type & (PM_TYPE_STRING | NUMERIC)) && strcmp(name, "format") == 0)
            return true;
    }
    return false;
}

/* The types of `type`, which is a name or a list of names. */
static int listed_types(pm_schema_reader *reader, const json_t *type)
{
    int types = pm_type_named(type);
    size_t i;
    const json_t *entry;
    json_array_foreach((json_t *)type, i, entry)
    {
        int one = pm_type_named(entry);
        if (!one)
            return pm_schema_fail(reader, PM_ERR_INVALID, "'type' has something that is not the name of a type");
        types |= one;
    }
    if (!types)
        pm_schema_fail(reader, PM_ERR_INVALID, "'type' is not the name of a type, or a list of some");
    return types;
}

int pm_schema_types(pm_schema_reader *reader, const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    int types = type ? listed_types(reader, type) : 0;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)schema, name, value)
    {
        const pm_keyword *keyword = type ? NULL : find_keyword(name);
        if (keyword && keyword->kind == PM_KEYWORD_READ)
            types |= keyword->type;
        if (keyword && strcmp(name, "format") == 0)
            types |= PM_TYPE_STRING;
    }
    if (types && json_is_true(json_object_get(schema, "nullable")))
        types |= PM_TYPE_NULL;
    return types ? types : PM_TYPE_ANY;
}

/* ---- references ---- */

const json_t *pm_schema_resolve(pm_schema_reader *reader, const char *ref)
{
    bool no_memory;
    if (!ref || ref[0] != '#' || (ref[1] && ref[1] != '/')) {
        pm_schema_fail(reader, PM_ERR_UNSUPPORTED, "the $ref '%.100s' is not one into this schema, such as #/$defs/A",
                       ref ? ref : "");
        return NULL;
    }
    const json_t *target = pm_json_refer(reader->root, ref, &no_memory);
    if (!target && no_memory)
        pm_schema_fail_memory(reader);
    else if (!target)
        pm_schema_fail(reader, PM_ERR_INVALID, "there is nothing at the $ref '%.100s'", ref);
    return target;
}

/* ---- rules ---- */

/* A rule that is yet to be built. */
typedef struct pm_schema_wait {
    struct pm_schema_wait *next;
    const json_t *schema;
    int type;
    int32_t rule;
    bool no_angle, python;
    char *path;
} pm_schema_wait;

/* What tells rules apart. */
typedef struct rule_key {
    const json_t *schema;
    int type, spelling;
} rule_key;

/* The rule for values of one type of a schema, which need not be built yet. */
static int32_t rule_for(pm_schema_reader *reader, const json_t *schema, int type)
{
    rule_key *key = pm_arena_alloc(&reader->arena, 1, sizeof(*key));
    if (type < RULE_LITERALS && !speaks_of(schema, type))
        schema = NULL;
    if (!key)
        return pm_schema_fail_memory(reader);
    *key = (rule_key){schema, type, reader->no_angle + 2 * reader->python};
    int rule = pm_map_get(&reader->rules, (const char *)key, sizeof(*key), -1);
    if (rule >= 0)
        return rule;
    rule = pm_rule_new(reader->grammar, type == PM_TYPE_OBJECT || type == PM_TYPE_ARRAY);
    pm_schema_wait *wait = pm_arena_alloc(&reader->arena, 1, sizeof(*wait));
    char *path = pm_arena_strdup(&reader->arena, reader->path.data ? reader->path.data : "", reader->path.len);
    if (!wait || !path || pm_map_set(&reader->rules, (const char *)key, sizeof(*key), rule) != PM_OK)
        return pm_schema_fail_memory(reader);
    *wait = (pm_schema_wait){NULL, schema, type, rule, reader->no_angle, reader->python, path};
    if (reader->last)
        reader->last->next = wait;
    else
        reader->first = wait;
    reader->last = wait;
    return rule;
}

/* White space: one line with its indentation, so that no answer can go on with it for ever. */
static int32_t space_body(pm_grammar *grammar)
{
    int32_t end = pm_node_return(grammar), after = end;
    for (int i = 0; i < INDENT_MAX; i++) {
        int32_t more = pm_node_bytes(grammar);
        pm_edge_add(grammar, more, ' ', ' ', after);
        pm_edge_add(grammar, more, '\t', '\t', after);
        after = pm_node_either(grammar, more, end);
    }
    int32_t first = pm_node_bytes(grammar);
    pm_edge_add(grammar, first, ' ', ' ', end);
    pm_edge_add(grammar, first, '\n', '\n', after);
    return pm_node_either(grammar, first, end);
}

int32_t pm_schema_space(pm_schema_reader *reader, int32_t next)
{
    return pm_node_call(reader->grammar, rule_for(reader, NULL, RULE_SPACE), next);
}

int32_t pm_schema_blank(pm_schema_reader *reader, int32_t next)
{
    return pm_node_either(reader->grammar, pm_node_range(reader->grammar, ' ', ' ', next), next);
}

int32_t pm_schema_key(pm_schema_reader *reader, const json_t *names)
{
    int32_t rule = rule_for(reader, json_object_size(names) ? names : NULL, RULE_KEY);
    if (reader->grammar->status == PM_OK)
        reader->grammar->rules[rule].key = reader->grammar->keys = true;
    return rule;
}

pm_spelling pm_schema_spelling(const pm_schema_reader *reader)
{
    return reader->no_angle ? PM_SPELL_NO_ANGLE : PM_SPELL_JSON;
}

/* The body of a rule. */
static int32_t body(pm_schema_reader *reader, const pm_schema_wait *wait)
{
    if (wait->type & RULE_LITERALS)
        return pm_schema_literals(reader, wait->schema, wait->type & PM_TYPE_ANY);
    switch (wait->type) {
    case PM_TYPE_OBJECT: return pm_schema_object(reader, wait->schema);
    case PM_TYPE_ARRAY: return pm_schema_array(reader, wait->schema);
    case PM_TYPE_STRING: return pm_schema_string(reader, wait->schema);
    case PM_TYPE_NUMBER: return pm_schema_number(reader, wait->schema, false);
    case PM_TYPE_INTEGER: return pm_schema_number(reader, wait->schema, true);
    case RULE_KEY: return pm_key_body(reader, wait->schema);
    default: return space_body(reader->grammar);
    }
}

int pm_schema_finish(pm_schema_reader *reader)
{
    bool no_angle = reader->no_angle, python = reader->python;
    for (; reader->first && reader->status == PM_OK && reader->grammar->status == PM_OK;
         reader->first = reader->first->next) {
        const pm_schema_wait *wait = reader->first;
        int32_t outer = pm_rule_enter(reader->grammar, wait->rule);
        pm_schema_out(reader, 0);
        if (pm_buf_add(&reader->path, wait->path, strlen(wait->path)) != PM_OK)
            pm_schema_fail_memory(reader);
        reader->no_angle = wait->no_angle;
        reader->python = wait->python;
        int32_t start = body(reader, wait);
        reader->grammar->rules[wait->rule].start = start;
        pm_rule_leave(reader->grammar, outer);
    }
    reader->first = reader->last = NULL;
    reader->no_angle = no_angle;
    reader->python = python;
    pm_schema_out(reader, 0);
    if (reader->status == PM_OK && reader->grammar->status == PM_ERR_LIMIT)
        pm_schema_fail(reader, PM_ERR_LIMIT, "the schema is too large: it takes more than %d nodes", PM_NODES_MAX);
    else if (reader->status == PM_OK && reader->grammar->status != PM_OK)
        pm_schema_fail_memory(reader);
    return reader->status;
}

void pm_schema_free(pm_schema_reader *reader)
{
    pm_buf_free(&reader->path);
    pm_map_free(&reader->rules);
    pm_arena_free(&reader->arena);
}

/* ---- alternatives ---- */

/* Where the alternatives of a value go, and what was referred to on the way. */
typedef struct ways {
    int32_t split, next;
    const json_t **targets;
    size_t n, cap;
} ways;

static void add_text(pm_schema_reader *reader, const ways *w, const char *text)
{
    pm_way_add(reader->grammar, w->split, pm_node_text(reader->grammar, text, strlen(text), w->next));
}

/* Adds values of these types, as the schema has them. */
static void add_types(pm_schema_reader *reader, const ways *w, const json_t *schema, int types)
{
    static const int kinds[] = {PM_TYPE_OBJECT, PM_TYPE_ARRAY, PM_TYPE_STRING, PM_TYPE_NUMBER, PM_TYPE_INTEGER};
    for (size_t i = 0; i < PM_COUNT(kinds); i++) {
        bool covered = kinds[i] == PM_TYPE_INTEGER && (types & PM_TYPE_NUMBER);
        if ((types & kinds[i]) && !covered)
            pm_way_add(reader->grammar, w->split,
                       pm_node_call(reader->grammar, rule_for(reader, schema, kinds[i]), w->next));
    }
    if (types & PM_TYPE_BOOLEAN) {
        add_text(reader, w, reader->python ? "True" : "true");
        add_text(reader, w, reader->python ? "False" : "false");
    }
    if (types & PM_TYPE_NULL)
        add_text(reader, w, reader->python ? "None" : "null");
}

static void add_ways(pm_schema_reader *reader, ways *w, const json_t *schema, int types);

/* Adds what a reference leads to, unless it was there before: then it adds nothing. */
static void add_reference(pm_schema_reader *reader, ways *w, const json_t *ref, int types)
{
    const json_t *target = pm_schema_resolve(reader, json_string_value(ref));
    for (size_t i = 0; i < w->n; i++)
        if (w->targets[i] == target)
            return;
    void *targets = w->targets;
    int status = target ? pm_grow(&targets, &w->cap, w->n + 1, sizeof(*w->targets)) : PM_OK;
    w->targets = targets;
    if (!target || status != PM_OK) {
        if (target)
            pm_schema_fail_memory(reader);
        return;
    }
    w->targets[w->n++] = target;
    size_t before = pm_schema_in(reader, "$ref");
    add_ways(reader, w, target, types);
    pm_schema_out(reader, before);
}

/* Adds each schema of a list. */
static void add_list(pm_schema_reader *reader, ways *w, const char *name, const json_t *list, int types)
{
    size_t i;
    json_t *entry;
    if (!json_array_size(list)) {
        pm_schema_fail(reader, PM_ERR_INVALID, "'%s' is not a list of schemas", name);
        return;
    }
    if (strcmp(name, "allOf") == 0 && json_array_size(list) > 1) {
        pm_schema_fail(reader, PM_ERR_UNSUPPORTED, "'allOf' of more than one schema is not supported");
        return;
    }
    size_t before = pm_schema_in(reader, name);
    json_array_foreach((json_t *)list, i, entry)
    {
        char number[24];
        snprintf(number, sizeof(number), "%zu", i);
        size_t inner = pm_schema_in(reader, number);
        add_ways(reader, w, entry, types);
        pm_schema_out(reader, inner);
    }
    pm_schema_out(reader, before);
}

const char *pm_schema_alone(pm_schema_reader *reader, const json_t *schema)
{
    static const char *const alone[] = {"$ref", "allOf", "anyOf", "oneOf", "enum", "const"};
    const char *name = NULL;
    for (size_t i = 0; !name && i < PM_COUNT(alone); i++)
        name = json_object_get(schema, alone[i]) ? alone[i] : NULL;
    check_keywords(reader, schema, name);
    return name;
}

/* Adds what an object schema allows. */
static void add_object_schema(pm_schema_reader *reader, ways *w, const json_t *schema, int types)
{
    const char *name = pm_schema_alone(reader, schema);
    if (reader->status != PM_OK)
        return;
    if (name && (strcmp(name, "enum") == 0 || strcmp(name, "const") == 0)) {
        int allowed = json_object_get(schema, "type") ? types & pm_schema_types(reader, schema) : types;
        pm_way_add(reader->grammar, w->split,
                   pm_node_call(reader->grammar, rule_for(reader, schema, RULE_LITERALS | allowed), w->next));
        return;
    }
    if (!name) {
        add_types(reader, w, schema, types & pm_schema_types(reader, schema));
        return;
    }
    if (json_object_get(schema, "type"))
        types &= pm_schema_types(reader, schema);
    if (json_is_true(json_object_get(schema, "nullable")))
        add_types(reader, w, NULL, PM_TYPE_NULL);
    if (strcmp(name, "$ref") == 0)
        add_reference(reader, w, json_object_get(schema, name), types);
    else
        add_list(reader, w, name, json_object_get(schema, name), types);
}

/* Adds what a schema allows of these types. */
static void add_ways(pm_schema_reader *reader, ways *w, const json_t *schema, int types)
{
    if (reader->status != PM_OK || json_is_false(schema))
        return;
    if (++reader->depth > PM_SCHEMA_DEPTH_MAX)
        pm_schema_fail(reader, PM_ERR_LIMIT, "more than %d alternatives and references inside one another",
                       PM_SCHEMA_DEPTH_MAX);
    else if (json_is_true(schema))
        add_types(reader, w, NULL, types);
    else if (!json_is_object(schema))
        pm_schema_fail(reader, PM_ERR_INVALID, "a schema is neither an object nor true or false");
    else
        add_object_schema(reader, w, schema, types);
    reader->depth--;
}

int32_t pm_schema_value(pm_schema_reader *reader, const json_t *schema, int types, int32_t next)
{
    ways w = {.split = pm_node_split(reader->grammar), .next = next};
    add_ways(reader, &w, schema, types);
    free(w.targets);
    return w.split;
}

int32_t pm_schema_any(pm_schema_reader *reader, int types, int32_t next)
{
    ways w = {.split = pm_node_split(reader->grammar), .next = next};
    add_types(reader, &w, NULL, types);
    return w.split;
}
