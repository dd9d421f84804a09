/* Objects and lists. */
#include "text/schema_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- objects ---- */

static int add_member(pm_members *m, const char *name, const json_t *schema, bool required)
{
    void *list = m->list;
    int status = pm_grow(&list, &m->cap, m->n + 1, sizeof(*m->list));
    m->list = list;
    if (status == PM_OK)
        m->list[m->n++] = (pm_member){name, schema, required};
    return status;
}

/* The names that are required, as a map to 1. */
static int read_required(pm_schema_reader *reader, const json_t *required, pm_map *out)
{
    size_t i;
    json_t *name;
    if (required && !json_is_array(required))
        return pm_schema_fail(reader, PM_ERR_INVALID, "'required' is not a list");
    json_array_foreach((json_t *)required, i, name)
    {
        if (!json_is_string(name))
            return pm_schema_fail(reader, PM_ERR_INVALID, "'required' has something that is not a name");
        if (pm_map_set(out, json_string_value(name), json_string_length(name), 1) != PM_OK)
            return pm_schema_fail_memory(reader);
    }
    return 0;
}

void pm_schema_members(pm_schema_reader *reader, const json_t *schema, pm_members *out)
{
    const json_t *properties = json_object_get(schema, "properties"), *required = json_object_get(schema, "required");
    const char *name;
    json_t *entry;
    pm_map wanted = {0};
    size_t i;
    out->names = properties;
    out->additional = json_object_get(schema, "additionalProperties");
    if (!out->additional)
        out->additional = properties ? json_false() : json_true();
    if (properties && !json_is_object(properties))
        pm_schema_fail(reader, PM_ERR_INVALID, "'properties' is not an object");
    read_required(reader, required, &wanted);
    json_object_foreach((json_t *)properties, name, entry)
    {
        bool is_wanted = pm_map_get(&wanted, name, strlen(name), 0) != 0;
        if (add_member(out, name, entry, is_wanted) != PM_OK || pm_map_set(&wanted, name, strlen(name), 0) != PM_OK)
            pm_schema_fail_memory(reader);
    }
    bool open = !json_object_get(schema, "additionalProperties");
    json_array_foreach((json_t *)required, i, entry)
    {
        if (reader->status != PM_OK || !pm_map_get(&wanted, json_string_value(entry), json_string_length(entry), 0))
            continue;
        if (add_member(out, json_string_value(entry), open ? json_true() : out->additional, true) != PM_OK ||
            pm_map_set(&wanted, json_string_value(entry), json_string_length(entry), 0) != PM_OK)
            pm_schema_fail_memory(reader);
    }
    pm_map_free(&wanted);
}

/* A value of a schema that is at `in` of the path. */
static int32_t value_in(pm_schema_reader *reader, const char *in, const char *name, const json_t *schema, int32_t next)
{
    size_t before = pm_schema_in(reader, in);
    if (name)
        pm_schema_in(reader, name);
    int32_t node = pm_schema_value(reader, schema, PM_TYPE_ANY, next);
    pm_schema_out(reader, before);
    return node;
}

/* `"name": value`, then `next`. */
static int32_t build_member(pm_schema_reader *reader, const pm_member *m, int32_t next)
{
    pm_buf text = {0};
    int32_t node = pm_schema_blank(reader, value_in(reader, "properties", m->name, m->schema, next));
    if (pm_json_literal(json_string(m->name), reader->no_angle, &text) != PM_OK || pm_buf_add(&text, ":", 1) != PM_OK)
        pm_schema_fail_memory(reader);
    else
        node = pm_node_text(reader->grammar, text.data, text.len, node);
    pm_buf_free(&text);
    return node;
}

/* `, ` and what comes after it. */
static int32_t after_comma(pm_schema_reader *reader, int32_t next)
{
    return next ? pm_node_range(reader->grammar, ',', ',', pm_schema_space(reader, next)) : 0;
}

/* A member with a name of its own, then `next`. */
static int32_t build_additional(pm_schema_reader *reader, const pm_members *m, int32_t next)
{
    pm_grammar *grammar = reader->grammar;
    if (json_is_false(m->additional))
        return 0;
    int32_t value = value_in(reader, "additionalProperties", NULL, m->additional, next);
    int32_t colon = pm_node_range(grammar, ':', ':', pm_schema_blank(reader, value));
    return pm_node_range(grammar, '"', '"', pm_node_call(grammar, pm_schema_key(reader, m->names), colon));
}

/* Members in their order, each of which may be left out that is not required. Going backwards, `after` is what may come
 * when a member was written, `first` when none was yet, and `more` when a comma was. */
int32_t pm_schema_object(pm_schema_reader *reader, const json_t *schema)
{
    pm_grammar *grammar = reader->grammar;
    pm_members m = {0};
    pm_schema_members(reader, schema, &m);
    int32_t end = pm_node_range(grammar, '}', '}', pm_node_return(grammar)), close = pm_schema_space(reader, end);
    int32_t after = pm_node_split(grammar), more = build_additional(reader, &m, after), first = pm_node_split(grammar);
    bool may_close = true;
    pm_way_add(grammar, after, close);
    pm_way_add(grammar, after, after_comma(reader, more));
    pm_way_add(grammar, first, end);
    pm_way_add(grammar, first, more);
    for (size_t i = m.n; i-- > 0 && reader->status == PM_OK;) {
        int32_t this = build_member(reader, &m.list[i], after);
        may_close &= !m.list[i].required;
        first = m.list[i].required ? this : pm_node_either(grammar, this, first);
        more = m.list[i].required ? this : pm_node_either(grammar, this, more);
        after = pm_node_split(grammar);
        pm_way_add(grammar, after, after_comma(reader, more));
        if (may_close)
            pm_way_add(grammar, after, close);
    }
    free(m.list);
    return pm_node_range(grammar, '{', '{', pm_schema_space(reader, first));
}

/* ---- lists ---- */

typedef struct bounds {
    int32_t least, most; /* most < 0: no limit */
} bounds;

/* Items after those of prefixItems, of which there are `bounds` more. Gives what may come when one was written; `first`
 * is what may come instead of the first one of all. */
static int32_t build_items(pm_schema_reader *reader, const json_t *items, bounds b, int32_t close, int32_t end,
                           int32_t *first)
{
    pm_grammar *grammar = reader->grammar;
    int32_t after = pm_node_split(grammar);
    items = items ? items : json_true();
    int32_t item = value_in(reader, "items", NULL, items, after);
    int32_t one = b.least > 0 ? value_in(reader, "items", NULL, items, end) : end; /* how deep an item is */
    pm_way_add(grammar, after, pm_node_count(grammar, b.most, after_comma(reader, item)));
    pm_way_add(grammar, after, pm_node_enough(grammar, b.least, one, close));
    *first = pm_node_either(grammar, pm_node_count(grammar, b.most, item), pm_node_enough(grammar, b.least, one, end));
    return after;
}

int32_t pm_schema_array(pm_schema_reader *reader, const json_t *schema)
{
    pm_grammar *grammar = reader->grammar;
    const json_t *items = json_object_get(schema, "items"), *prefix = json_object_get(schema, "prefixItems");
    bounds all = {pm_schema_count(reader, schema, "minItems", 0), pm_schema_count(reader, schema, "maxItems", -1)};
    if (json_is_array(items))
        return pm_schema_fail(reader, PM_ERR_UNSUPPORTED, "'items' that is a list is not supported: use prefixItems");
    if (prefix && !json_is_array(prefix))
        return pm_schema_fail(reader, PM_ERR_INVALID, "'prefixItems' is not a list");
    int32_t k = (int32_t)json_array_size(prefix);
    if (all.most >= 0 && all.most < k)
        k = all.most;
    /* A list that names its first items and does not say what more there is has no more than it must have. */
    if (prefix && !items && all.most < 0)
        all.most = all.least > k ? all.least : k;
    if (all.most >= 0 && all.most < all.least)
        return 0;
    bounds rest = {all.least > k ? all.least - k : 0, all.most < 0 ? -1 : all.most - k};
    int32_t end = pm_node_range(grammar, ']', ']', pm_node_return(grammar)), close = pm_schema_space(reader, end);
    int32_t first, after = build_items(reader, items, rest, close, end, &first);
    size_t before = pm_schema_in(reader, "prefixItems");
    for (int32_t i = k; i-- > 0;) {
        char number[16];
        snprintf(number, sizeof(number), "%d", (int)i);
        int32_t item = value_in(reader, number, NULL, json_array_get(prefix, (size_t)i), after);
        first = i < all.least ? item : pm_node_either(grammar, item, end);
        after = after_comma(reader, item);
        if (i >= all.least)
            after = pm_node_either(grammar, after, close);
    }
    pm_schema_out(reader, before);
    return pm_node_range(grammar, '[', '[', pm_schema_space(reader, first));
}
