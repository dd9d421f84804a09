/* The types of JSON values, and references inside of schemas. */
#ifndef PM_JSON_TYPE_H
#define PM_JSON_TYPE_H

#include <jansson.h>
#include <stdbool.h>

enum {
    PM_TYPE_STRING = 1,
    PM_TYPE_INTEGER = 2,
    PM_TYPE_NUMBER = 4,
    PM_TYPE_BOOLEAN = 8,
    PM_TYPE_OBJECT = 16,
    PM_TYPE_ARRAY = 32,
    PM_TYPE_NULL = 64,
    PM_TYPE_ANY = 127
};

int pm_type_named(const json_t *name); /* "number" is integers too; 0: no string, or no type */
int pm_type_of(const json_t *value);   /* 2.0 is an integer too */

/* What a "$ref" into the schema `root` refers to: "#", or a JSON pointer behind it. NULL when there is nothing, or
 * without memory. */
const json_t *pm_json_refer(const json_t *root, const char *ref, bool *no_memory);

#endif
