/* An answer held to a grammar: which tokens may come next.
 *
 * What a node allows on its own, as long as its rule does not return, is the same wherever the rule was called from; it
 * is found by one walk over the vocabulary and kept. Only tokens that go on after the end of the rule, such as a quote
 * with a comma behind it, are looked at anew, with the calls that are open (Dong et al. 2024, XGrammar). */
#ifndef PM_GUIDE_H
#define PM_GUIDE_H

#include "text/automaton.h"
#include "text/vocabulary.h"

enum { PM_EFFORT_MAX = 20 * 1000 * 1000 /* nodes to go through for one token */ };

/* Room for walks over the vocabulary (guide_walk.c). */
typedef struct pm_walker {
    struct pm_walk_level *levels; /* [longest + 2] */
    struct pm_walk_state *states;
    pm_config_at *pool; /* of the states */
    size_t n_states, n_pool;
} pm_walker;

/* What guides with the same grammar share: its masks, and room to work in. One thread at a time. */
typedef struct pm_guide_masks {
    const pm_grammar *grammar;
    const pm_vocabulary *vocabulary;
    struct pm_guide_mask **slots; /* hash table by node and count */
    size_t n_slots, n, bytes;
    pm_walker walker;
    pm_token *found;   /* [vocab] */
    uint32_t *outside; /* [vocabulary->n] */
} pm_guide_masks;

int pm_guide_masks_init(pm_guide_masks *masks, const pm_grammar *grammar, const pm_vocabulary *vocabulary);
void pm_guide_masks_free(pm_guide_masks *masks);

/* The keys of the objects that are open, which no other member may have. */
typedef struct pm_guide_keys {
    pm_buf text;    /* of all, and of the one that is being written */
    size_t *starts; /* [n] */
    int32_t *depths;
    size_t n, starts_cap, depths_cap;
    size_t start; /* of the one that is being written */
    int32_t depth;
    bool inside;
} pm_guide_keys;

typedef struct pm_guide {
    pm_guide_masks *masks;
    pm_automaton automaton;
    pm_set now;
    pm_guide_keys keys;
    uint64_t *bits; /* one a token */
} pm_guide;

/* Begins an answer that is of the rule. */
int pm_guide_init(pm_guide *guide, pm_guide_masks *masks, int32_t rule, pm_error *err);
void pm_guide_free(pm_guide *guide);

/* Sets guide->bits to the tokens that may come next. Tokens that end the answer, which may come when now.done, are the
 * caller's business. */
int pm_guide_allow(pm_guide *guide, pm_error *err);

/* Takes a token that may come next. *refused: it may not after all, since it would give an object the same key twice;
 * nothing has changed then. */
int pm_guide_take(pm_guide *guide, pm_token id, bool *refused, pm_error *err);

/* ---- guide_walk.c ---- */

int pm_walker_init(pm_walker *walker, const pm_vocabulary *vocabulary); /* PM_OK or PM_ERR_MEMORY */
void pm_walker_free(pm_walker *walker);

/* What a walk found: in masks->found and masks->outside, or straight in bits. */
typedef struct pm_walk {
    uint64_t *bits; /* NULL: make lists */
    size_t visited, n_found, n_outside;
} pm_walk;

/* Goes over vocabulary nodes from..to, the first of which has `base` bytes before it, starting from a set. */
void pm_guide_walk(pm_guide *guide, pm_walk *walk, const pm_set *start, uint32_t from, uint32_t to, size_t base);

static inline void pm_set_bit(uint64_t *bits, pm_token id)
{
    bits[id / 64] |= UINT64_C(1) << (id % 64);
}

/* ---- guide_keys.c ---- */

void pm_guide_keys_free(pm_guide_keys *keys);
/* Takes note of a byte that led to the set. *twice becomes true when it ends a key that its object has. PM_OK or
 * PM_ERR_MEMORY. */
int pm_guide_keys_take(pm_guide_keys *keys, const pm_automaton *automaton, const pm_set *set, char byte, bool *twice);
/* Copies; PM_OK or PM_ERR_MEMORY. */
int pm_guide_keys_copy(const pm_guide_keys *keys, pm_guide_keys *out);

#endif
