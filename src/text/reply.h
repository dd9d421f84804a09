/* What a model answers, taken apart into text, reasoning and calls of tools: the inside of pm_parser.
 *
 * How a family writes reasoning and calls is data: one row a format, chosen by what the chat template writes
 * (reply_formats.c). The reader of calls (reply_call.c) follows a row's pattern; the parser (reply.c) finds where
 * blocks begin, and gives back as text what did not turn out to be one. */
#ifndef PM_REPLY_H
#define PM_REPLY_H

#include "base/base.h"

/* ---- formats ---- */

typedef struct pm_reasoning_format {
    const char *open, *close; /* around a reasoning block, which only stands before text */
} pm_reasoning_format;

typedef struct pm_call_format {
    const char *name;
    const char *sign[2];      /* a template that has both texts writes this format; the second may be NULL */
    const char *open, *close; /* of the section that may surround calls, NULL: none */
    /* One call: literal text, and
     *     %_ white space, or none                   %n the function's name
     *     %i an id "functions.NAME:NUMBER"          %d an id
     *     %a arguments as a JSON object             %c a JSON object with name and arguments
     *     %l a JSON list of those                   %p a Python list of calls f(key=value), or such a JSON list
     *     %( .. %) any number of times              %k the name of an argument
     *     %v its value                              %V its value on lines of its own
     *     %t "true" when the value is a string, "false" when it is JSON */
    const char *call;
    bool short_ids; /* templates refuse ids in messages that are not nine letters and digits */
} pm_call_format;

extern const pm_call_format pm_call_formats[];
extern const size_t pm_n_call_formats;

/* What a model's answers may have beside text; NULL: none. */
typedef struct pm_reply_format {
    const pm_reasoning_format *reasoning;
    const pm_call_format *calls;
} pm_reply_format;

/* The formats of a chat template, by its source. */
pm_reply_format pm_reply_detect(const char *source, size_t len);

/* Whether a rendered prompt leaves a reasoning block open: it ends with the marker, white space aside, and the template
 * wrote all of it (trust as in pm_rendered). */
bool pm_reply_opened(pm_reply_format format, const char *prompt, const char *trust, size_t len);

/* Whether a token with this text is one of the format's markers, or part of one. */
bool pm_reply_marker(pm_reply_format format, const char *token);

/* ---- the parser ---- */

/* As pm_parser_new. */
int pm_reply_new(pm_parser **out, pm_reply_format format, const pm_parser_options *options, pm_error *err);

/* As pm_parse_message. */
int pm_reply_message(pm_reply_format format, const pm_parser_options *options, const char *text, size_t len, char **out,
                     pm_error *err);

#endif
