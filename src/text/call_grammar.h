/* Calls of tools as a grammar: what the parser of answers takes for one, with arguments of the tool's schema. */
#ifndef PM_CALL_GRAMMAR_H
#define PM_CALL_GRAMMAR_H

#include "text/reply.h"
#include "text/schema.h"

typedef struct pm_call_language {
    const pm_call_format *format; /* NULL: the model has none, which is an error */
    const pm_marker_texts *markers;
    const json_t *tools;
    const char *function; /* NULL: any */
    bool parallel;        /* more than one call may be made */
} pm_call_language;

/* Where calls begin that `next` comes after. Failures are the reader's. */
int32_t pm_call_grammar(pm_schema_reader *reader, const pm_call_language *calls, int32_t next);

#endif
