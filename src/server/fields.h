/* Reading JSON objects by tables of their fields.
 *
 * A table has one row for every field that a protocol documents: where its value goes, or that it is refused, or that
 * it changes nothing. docs/api.md has the same rows, and a test compares the two. A field that is null is one that is
 * not there; one that no table has is refused by its name. */
#ifndef PM_FIELDS_H
#define PM_FIELDS_H

#include "exchange.h"

typedef enum pm_field_kind {
    PM_FIELD_END,    /* of a table */
    PM_FIELD_BOOL,   /* bool */
    PM_FIELD_WHOLE,  /* int64_t, from min to max */
    PM_FIELD_INT,    /* int, from min to max */
    PM_FIELD_FLOAT,  /* float, from min to max */
    PM_FIELD_TEXT,   /* const char * */
    PM_FIELD_LIST,   /* json_t * */
    PM_FIELD_OBJECT, /* json_t * */
    PM_FIELD_ANY,    /* json_t * */
    PM_FIELD_READ,   /* `read` does it */
    PM_FIELD_ONLY,   /* refused, except for the value in `only` (JSON text), which changes nothing */
    PM_FIELD_VOID    /* accepted whatever it is: it changes no answer */
} pm_field_kind;

typedef struct pm_field {
    const char *name;
    pm_field_kind kind;
    size_t offset; /* in the target */
    double min, max;
    const char *only; /* of PM_FIELD_ONLY; NULL: refused in any case */
    bool (*read)(void *target, const char *name, json_t *value, pm_refusal *refusal);
} pm_field;

/* Rows of a table; the last is PM_LAST. */
#define PM_BOOL(label, at)                                                                                             \
    {                                                                                                                  \
        .name = (label), .kind = PM_FIELD_BOOL, .offset = (at)                                                         \
    }
#define PM_WHOLE(label, at, low, high)                                                                                 \
    {                                                                                                                  \
        .name = (label), .kind = PM_FIELD_WHOLE, .offset = (at), .min = (low), .max = (high)                           \
    }
#define PM_INT(label, at, low, high)                                                                                   \
    {                                                                                                                  \
        .name = (label), .kind = PM_FIELD_INT, .offset = (at), .min = (low), .max = (high)                             \
    }
#define PM_FLOAT(label, at, low, high)                                                                                 \
    {                                                                                                                  \
        .name = (label), .kind = PM_FIELD_FLOAT, .offset = (at), .min = (low), .max = (high)                           \
    }
#define PM_TEXT(label, at)                                                                                             \
    {                                                                                                                  \
        .name = (label), .kind = PM_FIELD_TEXT, .offset = (at)                                                         \
    }
#define PM_LIST(label, at)                                                                                             \
    {                                                                                                                  \
        .name = (label), .kind = PM_FIELD_LIST, .offset = (at)                                                         \
    }
#define PM_OBJECT(label, at)                                                                                           \
    {                                                                                                                  \
        .name = (label), .kind = PM_FIELD_OBJECT, .offset = (at)                                                       \
    }
#define PM_ANY(label, at)                                                                                              \
    {                                                                                                                  \
        .name = (label), .kind = PM_FIELD_ANY, .offset = (at)                                                          \
    }
#define PM_READ(label, how)                                                                                            \
    {                                                                                                                  \
        .name = (label), .kind = PM_FIELD_READ, .read = (how)                                                          \
    }
#define PM_ONLY(label, value)                                                                                          \
    {                                                                                                                  \
        .name = (label), .kind = PM_FIELD_ONLY, .only = (value)                                                        \
    }
#define PM_REFUSED(label)                                                                                              \
    {                                                                                                                  \
        .name = (label), .kind = PM_FIELD_ONLY                                                                         \
    }
#define PM_VOID(label)                                                                                                 \
    {                                                                                                                  \
        .name = (label), .kind = PM_FIELD_VOID                                                                         \
    }
#define PM_LAST                                                                                                        \
    {                                                                                                                  \
        .kind = PM_FIELD_END                                                                                           \
    }

/* Reads an object into `target`. `place` is what the object is in the request, such as "reasoning"; NULL: the request.
 * False with a refusal that names the field, such as "reasoning.effort". */
bool pm_fields_read(const pm_field *fields, json_t *object, const char *place, void *target, pm_refusal *refusal);

#endif
