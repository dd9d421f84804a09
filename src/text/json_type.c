#include "text/json_type.h"

#include "base/base.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- types ---- */

static const struct {
    const char *name;
    int type;
} type_names[] = {
    {"string", PM_TYPE_STRING},   {"integer", PM_TYPE_INTEGER}, {"number", PM_TYPE_NUMBER | PM_TYPE_INTEGER},
    {"boolean", PM_TYPE_BOOLEAN}, {"object", PM_TYPE_OBJECT},   {"array", PM_TYPE_ARRAY},
    {"null", PM_TYPE_NULL}};

int pm_type_named(const json_t *name)
{
    for (size_t i = 0; json_is_string(name) && i < PM_COUNT(type_names); i++)
        if (strcmp(json_string_value(name), type_names[i].name) == 0)
            return type_names[i].type;
    return 0;
}

int pm_type_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_STRING: return PM_TYPE_STRING;
    case JSON_INTEGER: return PM_TYPE_INTEGER;
    case JSON_REAL: /* 2.0 is an integer to JSON Schema */
        return PM_TYPE_NUMBER | (floor(json_real_value(value)) == json_real_value(value) ? PM_TYPE_INTEGER : 0);
    case JSON_TRUE:
    case JSON_FALSE: return PM_TYPE_BOOLEAN;
    case JSON_OBJECT: return PM_TYPE_OBJECT;
    case JSON_ARRAY: return PM_TYPE_ARRAY;
    default: return PM_TYPE_NULL;
    }
}

/* ---- references ---- */

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* One part of a JSON pointer in a URI, as it is meant (RFC 6901): %XX, then ~1 and ~0. */
static int unescape(const char *part, size_t len, pm_buf *out)
{
    out->len = 0;
    int status = pm_buf_reserve(out, len);
    for (size_t i = 0; i < len && status == PM_OK; i++) {
        char c = part[i];
        if (c == '%' && i + 2 < len && hex(part[i + 1]) >= 0 && hex(part[i + 2]) >= 0) {
            c = (char)(hex(part[i + 1]) * 16 + hex(part[i + 2]));
            i += 2;
        } else if (c == '~' && i + 1 < len && (part[i + 1] == '0' || part[i + 1] == '1')) {
            c = part[++i] == '0' ? '~' : '/';
        }
        status = pm_buf_add(out, &c, 1);
    }
    return status;
}

/* The element of a list by its number in text. */
static const json_t *element(const json_t *list, const char *text)
{
    char *end;
    unsigned long i = strtoul(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end ? json_array_get(list, i) : NULL;
}

const json_t *pm_json_refer(const json_t *root, const char *ref, bool *no_memory)
{
    const json_t *at = root;
    pm_buf part = {0};
    *no_memory = false;
    if (!ref || ref[0] != '#' || (ref[1] && ref[1] != '/'))
        return NULL;
    for (const char *p = ref + 1; at && *p == '/';) {
        size_t len = strcspn(++p, "/");
        if (unescape(p, len, &part) != PM_OK) {
            *no_memory = true;
            at = NULL;
            break;
        }
        p += len;
        at = json_is_array(at) ? element(at, part.data) : json_object_get(at, part.data);
    }
    pm_buf_free(&part);
    return at;
}
