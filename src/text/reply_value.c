/* The values in calls: where they end, their types, and JSON for those that are not written as JSON. */
#include "text/reply_parts.h"

#include "files/config.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- brackets and strings ---- */

/* What may stand outside strings. That the value is well-formed is found out when it has ended; but a byte that cannot
 * be part of one ends the attempt at once, so that little that follows a malformed call is taken with it. */
static bool may_stand(char c, bool python)
{
    if (pm_is_space(c))
        return true;
    if (python)
        return isalnum((unsigned char)c) || (unsigned char)c >= 0x80 || (c && strchr("_.,:=+-()[]{}\"'", c));
    return isdigit((unsigned char)c) || (c && strchr("+-.,:[]{}\"eEtrufalsn", c));
}

pm_reading pm_scan_byte(pm_scan *scan, char c, bool python)
{
    if (scan->quote) {
        /* A line never ends inside a string. */
        if (python ? c == '\n' || c == '\0' : (unsigned char)c < ' ')
            return PM_READ_FAIL;
        if (scan->escaped)
            scan->escaped = false;
        else if (c == '\\')
            scan->escaped = true;
        else if (c == scan->quote)
            scan->quote = 0;
        return scan->quote || scan->depth ? PM_READ_MORE : PM_READ_DONE;
    }
    if (!may_stand(c, python))
        return PM_READ_FAIL;
    if (c == '"' || c == '\'')
        scan->quote = c;
    else if (strchr("([{", c))
        return ++scan->depth <= PM_MAX_NEST ? PM_READ_MORE : PM_READ_FAIL;
    else if (strchr(")]}", c) && --scan->depth == 0)
        return PM_READ_DONE;
    return PM_READ_MORE;
}

pm_reading pm_check_object(const char *text, size_t len)
{
    json_t *value = NULL;
    int status = pm_json_text("arguments", text, len, &value, NULL);
    bool object = json_is_object(value);
    json_decref(value);
    return status == PM_OK && !object ? PM_READ_FAIL : pm_reading_of(status);
}

pm_reading pm_put_string(pm_buf *out, const char *text, size_t len)
{
    if (!pm_utf8_valid(text, len, NULL))
        return PM_READ_FAIL;
    json_t *string = json_stringn_nocheck(text, len);
    char *json = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    pm_reading read = json ? pm_reading_of(pm_buf_add(out, json, strlen(json))) : PM_READ_MEMORY;
    free(json);
    json_decref(string);
    return read;
}

/* ---- types ---- */

enum { LOOKS_MAX = 1000 };

/* A look at a schema. */
typedef struct look {
    const json_t *root; /* what "$ref": "#" is */
    int left;           /* schemas that may yet be looked at: references could lead to any number */
} look;

/* The types that a schema allows by its type, its alternatives or its values; 0: it does not say. */
static int schema_types(look *l, const json_t *schema, int depth)
{
    static const char *const alternatives[] = {"anyOf", "oneOf", "allOf"};
    const json_t *type = json_object_get(schema, "type"), *constant = json_object_get(schema, "const"), *entry;
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    int types = pm_type_named(type);
    bool no_memory;
    size_t i;
    if (depth >= PM_MAX_NEST || l->left-- <= 0)
        return 0;
    json_array_foreach((json_t *)type, i, entry) types |= pm_type_named(entry);
    if (!types && ref)
        return schema_types(l, pm_json_refer(l->root, ref, &no_memory), depth + 1);
    for (size_t k = 0; !types && k < PM_COUNT(alternatives); k++) {
        const json_t *list = json_object_get(schema, alternatives[k]);
        json_array_foreach((json_t *)list, i, entry)
        {
            int one = schema_types(l, entry, depth + 1);
            if (!one)
                return 0; /* anything may be meant */
            types |= one;
        }
    }
    if (types)
        return types | (json_is_true(json_object_get(schema, "nullable")) ? PM_TYPE_NULL : 0);
    json_array_foreach(json_object_get(schema, "enum"), i, entry) types |= pm_type_of(entry);
    return constant ? types | pm_type_of(constant) : types;
}

/* The function of a tool: {"type": "function", "function": {...}}, or the function itself. */
static const json_t *find_tool(const json_t *tools, const char *function)
{
    size_t i;
    const json_t *tool;
    json_array_foreach((json_t *)tools, i, tool)
    {
        const json_t *inner = json_object_get(tool, "function"), *found = json_is_object(inner) ? inner : tool;
        const char *name = json_string_value(json_object_get(found, "name"));
        if (name && strcmp(name, function) == 0)
            return found;
    }
    return NULL;
}

bool pm_has_tool(const json_t *tools, const char *function)
{
    return find_tool(tools, function) != NULL;
}

int pm_argument_types(const json_t *tools, const char *function, const char *key)
{
    const json_t *parameters = json_object_get(find_tool(tools, function), "parameters");
    look l = {.root = parameters, .left = LOOKS_MAX};
    return schema_types(&l, json_object_get(json_object_get(parameters, "properties"), key), 0);
}

/* The type of a JSON value; 0 when text is none. */
static int value_type(const char *text, size_t len, bool *no_memory)
{
    json_error_t error;
    *no_memory = false;
    json_t *value = pm_json_load(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error, no_memory);
    int type = value ? pm_type_of(value) : 0;
    json_decref(value);
    return type;
}

/* Appends a Python word, list, tuple or dictionary whose type is allowed; PM_READ_FAIL when text is something else. */
static pm_reading put_python_value(pm_buf *out, const char *text, size_t len, int types)
{
    size_t at = 0, before = out->len;
    bool no_memory = false;
    if (!isalpha((unsigned char)text[0]) && !strchr("[({", text[0]))
        return PM_READ_FAIL;
    pm_reading read = pm_put_python(out, text, len, &at);
    if (read == PM_READ_DONE && (at != len || !(value_type(out->data + before, out->len - before, &no_memory) & types)))
        read = no_memory ? PM_READ_MEMORY : PM_READ_FAIL;
    if (read != PM_READ_DONE)
        out->len = before;
    return read;
}

pm_reading pm_put_typed(pm_buf *out, const char *text, size_t len, int types)
{
    const char *json = text + pm_skip_space(text, len, 0);
    size_t n = len - (size_t)(json - text);
    bool no_memory;
    while (n && pm_is_space(json[n - 1]))
        n--;
    if (types == PM_TYPE_STRING)
        return pm_put_string(out, text, len);
    int type = value_type(json, n, &no_memory), wanted = types ? types : PM_TYPE_ANY & ~PM_TYPE_STRING;
    if (no_memory)
        return PM_READ_MEMORY;
    if (type & wanted)
        return pm_reading_of(pm_buf_add(out, json, n));
    if (!type && n && (types || isalpha((unsigned char)json[0]))) {
        pm_reading read = put_python_value(out, json, n, wanted);
        if (read != PM_READ_FAIL)
            return read;
    }
    if (type && types && !(types & PM_TYPE_STRING))
        return pm_reading_of(pm_buf_add(out, json, n)); /* not what was asked for, which is for the tool to say */
    return pm_put_string(out, text, len);
}
