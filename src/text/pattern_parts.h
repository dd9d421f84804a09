/* Inside the reader of patterns. */
#ifndef PM_PATTERN_PARTS_H
#define PM_PATTERN_PARTS_H

#include "text/schema_parts.h"

enum { PM_CHAR_LAST = 0x10FFFF };

typedef struct pm_span_of_chars {
    int32_t low, high;
} pm_span_of_chars;

/* A set of characters; zero-initialised is empty. */
typedef struct pm_char_set {
    pm_span_of_chars *spans;
    size_t n, cap;
} pm_char_set;

void pm_char_set_free(pm_char_set *set);
int pm_char_set_add(pm_char_set *set, int32_t low, int32_t high); /* PM_OK or PM_ERR_MEMORY */
/* Adds what \d, \w, \s or, of the capital letters, all others are; false when `letter` is none of these. */
bool pm_char_set_add_class(pm_char_set *set, char letter, int *status);
/* Puts the spans in order, apart from each other. */
void pm_char_set_order(pm_char_set *set);
/* The set becomes all characters that it does not have; in order before and after. */
int pm_char_set_invert(pm_char_set *set);

/* Takes one character of an ordered set, as strings spell it. NUL is never one. */
int32_t pm_char_set_build(pm_grammar *grammar, const pm_char_set *set, pm_spelling spelling, int32_t next);

#endif
