/* The vocabulary as a tree of bytes: tokens that begin alike share a path, so that a walk finds at once all that may
 * come next. */
#ifndef PM_VOCABULARY_H
#define PM_VOCABULARY_H

#include "text/tokenizer.h"

/* What a token is to a grammar. */
typedef enum pm_token_kind {
    PM_TOKEN_TEXT,
    PM_TOKEN_MARKER, /* stands between PM_MARKER_OPEN and PM_MARKER_CLOSE */
    PM_TOKEN_NOTHING /* never allowed */
} pm_token_kind;

/* Nodes are in the order of a walk, so that what is below one follows it. */
typedef struct pm_vocabulary {
    uint8_t *byte;
    uint16_t *depth; /* bytes before it */
    uint32_t *end;   /* where what is below it ends */
    pm_token *token; /* that ends here, -1: none */
    size_t n;
    pm_token *same;  /* [vocab] another token with the same bytes, -1: none */
    uint32_t *start; /* [vocab + 1] where a token's bytes begin in `bytes` */
    char *bytes;
    int vocab;
    int longest; /* bytes of a token */
    int nesting; /* brackets that one token opens, at most */
} pm_vocabulary;

/* `kinds` has one byte for each id below `vocab`, which may be more than the tokenizer knows. PM_ERR_UNSUPPORTED when
 * its tokens have no bytes of their own. */
int pm_vocabulary_new(pm_vocabulary **out, const pm_tokenizer *tokenizer, const uint8_t *kinds, int vocab,
                      pm_error *err);
void pm_vocabulary_free(pm_vocabulary *vocabulary);

static inline const char *pm_vocabulary_bytes(const pm_vocabulary *vocabulary, pm_token id, size_t *len)
{
    *len = vocabulary->start[id + 1] - vocabulary->start[id];
    return vocabulary->bytes + vocabulary->start[id];
}

#endif
