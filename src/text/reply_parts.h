/* Inside the parser of answers: the reader of calls and their values. */
#ifndef PM_REPLY_PARTS_H
#define PM_REPLY_PARTS_H

#include "text/json_type.h"
#include "text/reply.h"

#include <jansson.h>

/* ---- calls (reply_call.c) ---- */

typedef struct pm_call {
    pm_buf name, id, arguments; /* id.data is NULL when the model gave none */
} pm_call;

typedef enum pm_reading {
    PM_READ_MORE,
    PM_READ_DONE,
    PM_READ_FAIL,
    PM_READ_MEMORY,
    PM_READ_NEXT /* inside the reader: the byte belongs to the pattern's next part */
} pm_reading;

/* What a function's status is to a reader. */
static inline pm_reading pm_reading_of(int status)
{
    return status == PM_OK ? PM_READ_DONE : status == PM_ERR_MEMORY ? PM_READ_MEMORY : PM_READ_FAIL;
}

/* ASCII white space, whatever the locale. */
static inline bool pm_is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The place of the first byte from text[at] on that is no white space. */
static inline size_t pm_skip_space(const char *text, size_t len, size_t at)
{
    while (at < len && pm_is_space(text[at]))
        at++;
    return at;
}

/* Where brackets and strings stand; zero-initialised is before the first. */
typedef struct pm_scan {
    int depth;
    char quote; /* of the string that is open, else 0 */
    bool escaped;
} pm_scan;

/* Takes one byte of a JSON or Python value that begins with a bracket or a quote; PM_READ_DONE with its last. */
pm_reading pm_scan_byte(pm_scan *scan, char c, bool python);

/* Reads one block of calls after the other. Zero-initialised plus `pattern` and `tools` is ready. */
typedef struct pm_call_reader {
    const char *pattern;
    const json_t *tools;    /* JSON array, or NULL */
    const char *at;         /* the part of the pattern that the next byte belongs to */
    size_t matched;         /* bytes of it so far */
    size_t start;           /* in the block: where it began */
    bool no_group, no_rest; /* in a choice: it is not the group's literal, not the one after the group */
    struct {
        bool open;
        size_t start, end;   /* in the block */
        const char *waiting; /* its %v or %V, when it has ended if what follows is as it must be; else NULL */
    } value;
    pm_scan scan;
    pm_buf name, id, key, type, arguments;
    pm_call *calls; /* what was read */
    size_t n_calls, calls_cap;
} pm_call_reader;

/* Begins a block whose first literal, the pattern's first `skip` bytes, was seen. */
void pm_call_begin(pm_call_reader *reader, size_t skip);

/* Reads block[*at], and with it what must be read again. On PM_READ_DONE the calls are there; on PM_READ_FAIL the block
 * cannot be a call: the byte that shows it is block[*at - 1]. */
pm_reading pm_call_read(pm_call_reader *reader, const char *block, size_t len, size_t *at);

/* The answer ends inside of the block, all of which was read: on PM_READ_DONE the calls are there that it has whole,
 * on PM_READ_FAIL it has none. */
pm_reading pm_call_cut(pm_call_reader *reader, const char *block);
void pm_call_reader_free(pm_call_reader *reader);

/* ---- values (reply_value.c); each gives PM_READ_DONE, PM_READ_FAIL or PM_READ_MEMORY ---- */

enum { PM_MAX_NEST = 200 }; /* brackets inside one another */

/* The types that a tool's schema allows for an argument; 0: it does not say. */
int pm_argument_types(const json_t *tools, const char *function, const char *key);

/* Whether `function` is one of the tools. */
bool pm_has_tool(const json_t *tools, const char *function);

/* Appends a value that was written without quotes, as JSON: of those types (0: JSON where it is some, else a string).
 */
pm_reading pm_put_typed(pm_buf *out, const char *text, size_t len, int types);
pm_reading pm_put_string(pm_buf *out, const char *text, size_t len);

/* Whether text is a JSON object such as pm_chat takes. */
pm_reading pm_check_object(const char *text, size_t len);

/* Appends the Python literal at text[*at] as JSON and moves *at behind it (reply_python.c). Of a number it takes what
 * may be one: whether it is shows when the whole is checked. */
pm_reading pm_put_python(pm_buf *out, const char *text, size_t len, size_t *at);

#endif
