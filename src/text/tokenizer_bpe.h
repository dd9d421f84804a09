/* The merges of a BPE model, for the two files that it is made of. */
#ifndef PM_TOKENIZER_BPE_H
#define PM_TOKENIZER_BPE_H

#include "text/tokenizer_parts.h"

typedef struct pm_merge {
    pm_token left, right; /* left < 0: an empty slot */
    int32_t rank;
    pm_token result; /* -1: must not be used */
} pm_merge;

/* The slot of the pair, or the empty slot where it belongs. */
static inline pm_merge *pm_find_merge(const pm_bpe *bpe, pm_token left, pm_token right)
{
    uint64_t hash = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    for (size_t i = (size_t)(hash >> 32) & bpe->mask;; i = (i + 1) & bpe->mask) {
        pm_merge *slot = &bpe->merges[i];
        if (slot->left < 0 || (slot->left == left && slot->right == right))
            return slot;
    }
}

#endif
