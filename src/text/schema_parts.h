/* Inside the reader of schemas. */
#ifndef PM_SCHEMA_PARTS_H
#define PM_SCHEMA_PARTS_H

#include "text/reply_parts.h"
#include "text/schema.h"

enum {
    PM_SCHEMA_DEPTH_MAX = 256, /* alternatives and references inside one another */
    PM_COUNT_MAX = 1 << 30,    /* of minLength, maxItems and the like */
    PM_INTEGER_DIGITS = 18,    /* so that an integer fits 64 bits */
    PM_FRACTION_DIGITS = 17,
    PM_EXPONENT_DIGITS = 2
};

/* How strings are written. */
typedef enum pm_spelling {
    PM_SPELL_JSON,
    PM_SPELL_NO_ANGLE, /* JSON in which '<' is escaped */
    PM_SPELL_RAW       /* as they are, without '<' and NUL */
} pm_spelling;

/* ---- schema.c ---- */

/* Fails with "WHAT: #PATH: " and the rest, without the path where that is empty; returns 0, which is a node. */
int32_t pm_schema_fail(pm_schema_reader *reader, pm_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int32_t pm_schema_fail_memory(pm_schema_reader *reader);

/* Goes into a member of the schema, for messages; pm_schema_out takes what this returns. */
size_t pm_schema_in(pm_schema_reader *reader, const char *name);
void pm_schema_out(pm_schema_reader *reader, size_t before);

/* Reads a number of things, from 0 on; `absent` where the schema does not have it. */
int32_t pm_schema_count(pm_schema_reader *reader, const json_t *schema, const char *name, int32_t absent);

/* White space as it may stand between the parts of a value: nothing, a space, or a newline and an indentation. */
int32_t pm_schema_space(pm_schema_reader *reader, int32_t next);
/* A space, or nothing. */
int32_t pm_schema_blank(pm_schema_reader *reader, int32_t next);
/* The rule of a key that is none of the names (an object's members, or NULL). */
int32_t pm_schema_key(pm_schema_reader *reader, const json_t *names);
pm_spelling pm_schema_spelling(const pm_schema_reader *reader);
/* The types that a schema allows by its `type` and `nullable`, or by what else it says; PM_TYPE_ANY when nothing. */
int pm_schema_types(pm_schema_reader *reader, const json_t *schema);
/* What "$ref" refers to; NULL on a failure. */
const json_t *pm_schema_resolve(pm_schema_reader *reader, const char *ref);

/* Refuses keywords that are not read, and gives the one of $ref, allOf, anyOf, oneOf, enum and const that the schema
 * has; NULL: none. */
const char *pm_schema_alone(pm_schema_reader *reader, const json_t *schema);

/* ---- members of objects (schema_object.c) ---- */

typedef struct pm_member {
    const char *name;
    const json_t *schema;
    bool required;
} pm_member;

typedef struct pm_members {
    pm_member *list; /* the caller frees it */
    size_t n, cap;
    const json_t *names;      /* the object `properties`, or NULL */
    const json_t *additional; /* of members with other names; json_false(): there are none */
} pm_members;

/* Reads the members that a schema names: its properties in order, then those that are only required. An object that has
 * properties and does not say whether it may have more has none. */
void pm_schema_members(pm_schema_reader *reader, const json_t *schema, pm_members *out);

/* ---- the kinds of values: each builds the body of a rule, and gives where it begins ---- */

int32_t pm_schema_object(pm_schema_reader *reader, const json_t *schema);
int32_t pm_schema_array(pm_schema_reader *reader, const json_t *schema);
int32_t pm_schema_string(pm_schema_reader *reader, const json_t *schema);
int32_t pm_schema_number(pm_schema_reader *reader, const json_t *schema, bool integer);

/* ---- values that are given one by one (schema_literal.c) ---- */

/* One of the values of `enum` or `const` that are of those types. */
int32_t pm_schema_literals(pm_schema_reader *reader, const json_t *schema, int types);

/* Appends a value, which it frees, as JSON without white space; without memory NULL. */
int pm_json_literal(json_t *value, bool no_angle, pm_buf *out);

/* One of some texts: the node where it begins, to which texts are added with what comes after them. */
int32_t pm_choice_new(pm_grammar *grammar);
void pm_choice_add(pm_grammar *grammar, int32_t choice, const char *text, size_t len, int32_t next);

/* The body of a key rule: the rest of a key behind its first quote, the last one included. */
int32_t pm_key_body(pm_schema_reader *reader, const json_t *names);

/* ---- strings (schema_string.c) ---- */

const pm_string_format *pm_format_find(const char *name); /* NULL: it is not known */
/* Adds to a node the edges of every character that a string may have; `next` comes after one. */
void pm_char_edges(pm_grammar *grammar, int32_t node, pm_spelling spelling, int32_t next);
/* A string's characters, by minLength, maxLength, pattern and format, and what comes after them. */
int32_t pm_schema_chars(pm_schema_reader *reader, const json_t *schema, pm_spelling spelling, int32_t next);

/* ---- patterns (pattern.c, pattern_class.c) ---- */

/* What a pattern (ECMA-262) matches. At most `most` characters (< 0: any number); where it may match fewer than
 * `least` it is refused. Returns the node, 0 with a message in `why` when the pattern cannot be read. */
int32_t pm_pattern_build(pm_grammar *grammar, const char *pattern, size_t len, pm_spelling spelling, int32_t least,
                         int32_t most, int32_t next, char why[128]);

#endif
