/* JSON Schema as a grammar: what docs/schema.md says, and nothing else. */
#ifndef PM_SCHEMA_H
#define PM_SCHEMA_H

#include "text/grammar.h"
#include "text/json_type.h"

/* What a keyword of JSON Schema is to the reader. */
typedef enum pm_keyword_kind {
    PM_KEYWORD_READ,
    PM_KEYWORD_NOTE,   /* says nothing about which values are valid */
    PM_KEYWORD_REFUSED /* would have to be read */
} pm_keyword_kind;

typedef struct pm_keyword {
    const char *name;
    pm_keyword_kind kind;
    int type; /* that it speaks of (PM_TYPE_STRING, ...): a schema with no `type` is of this one; 0: of any */
} pm_keyword;

extern const pm_keyword pm_keywords[];
extern const size_t pm_n_keywords;

/* Formats of strings, with the pattern that they are. */
typedef struct pm_string_format {
    const char *name, *pattern; /* NULL: says nothing about which values are valid */
    int type;
} pm_string_format;

extern const pm_string_format pm_string_formats[];
extern const size_t pm_n_string_formats;

/* A reader of schemas; zero-initialised but for `grammar`. */
typedef struct pm_schema_reader {
    pm_grammar *grammar;
    pm_error *err;
    int status;                          /* the first failure, which filled *err */
    const char *what;                    /* what the schema is of, for messages */
    const json_t *root;                  /* what "$ref": "#" is */
    bool no_angle;                       /* no string may have '<' in it */
    bool python;                         /* true, false and null are written as Python has them */
    pm_buf path;                         /* where in the schema the reader is */
    pm_map rules;                        /* that there are, by schema, type and no_angle */
    pm_arena arena;                      /* of the keys of the map, and what waits */
    struct pm_schema_wait *first, *last; /* rules that are yet to be built */
    int depth;
} pm_schema_reader;

/* Where values of a schema begin that are of these types (PM_TYPE_ANY: all); `next` comes after them. `root` and `what`
 * must be set. What they call is built by pm_schema_finish. */
int32_t pm_schema_value(pm_schema_reader *reader, const json_t *schema, int types, int32_t next);

/* Where any value begins, or any object. */
int32_t pm_schema_any(pm_schema_reader *reader, int types, int32_t next);

/* Builds what is left to build. PM_OK, or the first failure of the reader or the grammar, with a message in *err. */
int pm_schema_finish(pm_schema_reader *reader);
void pm_schema_free(pm_schema_reader *reader);

#endif
