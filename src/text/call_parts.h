/* Inside the grammar of calls. */
#ifndef PM_CALL_PARTS_H
#define PM_CALL_PARTS_H

#include "text/call_grammar.h"
#include "text/schema_parts.h"

enum { PM_CALL_PARTS_MAX = 32, PM_CALL_NAME_MAX = 256 };

/* A part of a pattern (reply.h): literal text, or what a code stands for. */
typedef struct pm_call_part {
    char code; /* 0: literal */
    const char *text;
    size_t len;
} pm_call_part;

typedef struct pm_call_tool {
    const char *name;
    const json_t *parameters; /* NULL: it takes none */
    const char *what;         /* the tool in messages */
} pm_call_tool;

typedef struct pm_call_build {
    pm_schema_reader *reader;
    const pm_call_language *calls;
    pm_call_part parts[PM_CALL_PARTS_MAX];
    int n_parts;
    pm_call_tool *tools;
    size_t n_tools;
} pm_call_build;

/* The arguments one by one, each as the parts from..to of the pattern have one. */
int32_t pm_call_members(const pm_call_build *build, const pm_call_tool *tool, int from, int to, int32_t next);

/* Arguments as in Python: (NAME=VALUE, ...). */
int32_t pm_call_keywords(const pm_call_build *build, const pm_call_tool *tool, int32_t next);

#endif
