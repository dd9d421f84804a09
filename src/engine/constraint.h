/* Answers held to a grammar: the inside of pm_constraint. */
#ifndef PM_CONSTRAINT_H
#define PM_CONSTRAINT_H

#include "text/guide.h"

/* What the vocabulary is to grammars, made when it is first asked for. */
typedef struct pm_constraint_words {
    pm_vocabulary *vocabulary;
    pm_marker_texts markers;
} pm_constraint_words;

struct pm_constraint {
    pm_grammar grammar;
    int32_t start;     /* the rule of an answer */
    int32_t reasoning; /* of one that begins inside a reasoning block; the same where there are none */
    pm_guide_masks masks;
};

void pm_constraint_words_free(pm_constraint_words *words);

#endif
