#include "text/guide.h"

#include <stdlib.h>
#include <string.h>

enum {
    WORTH_KEEPING = 512,    /* nodes of a walk: what took less is found again as fast */
    MASKS_BYTES = 16 << 20, /* of the masks that are kept */
    FIRST_SLOTS = 1 << 6
};

/* What a node allows without leaving its rule. */
typedef struct pm_guide_mask {
    struct pm_guide_mask *next; /* in its slot */
    int32_t node, count;
    size_t n_tokens, n_outside;
    uint32_t *outside; /* where in the vocabulary the rule may have ended, and tokens go on */
    pm_token *tokens;  /* NULL: there are many, */
    uint64_t *bits;    /* and these are they */
} pm_guide_mask;

/* ---- what is shared ---- */

static size_t words(const pm_vocabulary *vocabulary)
{
    return ((size_t)vocabulary->vocab + 63) / 64;
}

int pm_guide_masks_init(pm_guide_masks *masks, const pm_grammar *grammar, const pm_vocabulary *vocabulary)
{
    *masks = (pm_guide_masks){.grammar = grammar, .vocabulary = vocabulary, .n_slots = FIRST_SLOTS};
    masks->slots = calloc(FIRST_SLOTS, sizeof(*masks->slots));
    masks->found = calloc((size_t)vocabulary->vocab + 1, sizeof(*masks->found));
    masks->outside = calloc(vocabulary->n + 1, sizeof(*masks->outside));
    if (masks->slots && masks->found && masks->outside && pm_walker_init(&masks->walker, vocabulary) == PM_OK)
        return PM_OK;
    pm_guide_masks_free(masks);
    return PM_ERR_MEMORY;
}

static void free_mask(pm_guide_mask *mask)
{
    free(mask->outside);
    free(mask->tokens);
    free(mask->bits);
    free(mask);
}

static void forget_masks(pm_guide_masks *masks)
{
    for (size_t i = 0; masks->slots && i < masks->n_slots; i++) {
        for (pm_guide_mask *mask = masks->slots[i], *next; mask; mask = next) {
            next = mask->next;
            free_mask(mask);
        }
        masks->slots[i] = NULL;
    }
    masks->n = masks->bytes = 0;
}

void pm_guide_masks_free(pm_guide_masks *masks)
{
    forget_masks(masks);
    free(masks->slots);
    pm_walker_free(&masks->walker);
    free(masks->found);
    free(masks->outside);
    *masks = (pm_guide_masks){0};
}

static size_t slot_of(const pm_guide_masks *masks, int32_t node, int32_t count)
{
    return ((uint32_t)node * 0x9e3779b1u ^ (uint32_t)count * 0x85ebca6bu) % masks->n_slots;
}

static const pm_guide_mask *find_mask(const pm_guide_masks *masks, int32_t node, int32_t count)
{
    const pm_guide_mask *mask = masks->slots[slot_of(masks, node, count)];
    while (mask && (mask->node != node || mask->count != count))
        mask = mask->next;
    return mask;
}

/* Makes the table as large as it has masks. Without memory it stays. */
static void grow_slots(pm_guide_masks *masks)
{
    pm_guide_mask **old = masks->slots, **slots = calloc(masks->n_slots * 2, sizeof(*slots));
    size_t n = masks->n_slots;
    if (!slots)
        return;
    masks->slots = slots;
    masks->n_slots = n * 2;
    for (size_t i = 0; i < n; i++) {
        for (pm_guide_mask *mask = old[i], *next; mask; mask = next) {
            next = mask->next;
            size_t slot = slot_of(masks, mask->node, mask->count);
            mask->next = slots[slot];
            slots[slot] = mask;
        }
    }
    free(old);
}

/* Keeps what was found of a node. That there is no memory for it is no failure. */
static void keep_mask(pm_guide_masks *masks, int32_t node, int32_t count, size_t n_found, size_t n_outside)
{
    size_t n_words = words(masks->vocabulary);
    bool many = n_found > n_words * 2;
    size_t bytes = sizeof(pm_guide_mask) + n_outside * sizeof(uint32_t) +
                   (many ? n_words * sizeof(uint64_t) : n_found * sizeof(pm_token));
    if (masks->bytes + bytes > MASKS_BYTES)
        forget_masks(masks);
    pm_guide_mask *mask = calloc(1, sizeof(*mask));
    if (!mask)
        return;
    *mask = (pm_guide_mask){.node = node, .count = count, .n_tokens = n_found, .n_outside = n_outside};
    mask->outside = malloc((n_outside + 1) * sizeof(*mask->outside));
    if (many)
        mask->bits = calloc(n_words, sizeof(*mask->bits));
    else
        mask->tokens = malloc((n_found + 1) * sizeof(*mask->tokens));
    if (!mask->outside || (!mask->bits && !mask->tokens)) {
        free_mask(mask);
        return;
    }
    memcpy(mask->outside, masks->outside, n_outside * sizeof(*mask->outside));
    for (size_t i = 0; many && i < n_found; i++)
        pm_set_bit(mask->bits, masks->found[i]);
    if (!many)
        memcpy(mask->tokens, masks->found, n_found * sizeof(*mask->tokens));
    masks->bytes += bytes;
    if (++masks->n > masks->n_slots)
        grow_slots(masks);
    size_t slot = slot_of(masks, node, count);
    mask->next = masks->slots[slot];
    masks->slots[slot] = mask;
}

/* ---- counts ---- */

/* A count from which a token leads to the same as from this one: limits that it cannot reach make no difference. */
static int32_t canonical(const pm_guide *guide, const pm_config_at *at)
{
    const pm_grammar *grammar = guide->automaton.grammar;
    const pm_rule *rule = &grammar->rules[grammar->nodes[at->node].rule];
    int32_t base = 0, reach = at->count + guide->masks->vocabulary->longest;
    const int32_t limits[] = {rule->least, rule->most_high < 0 ? 0 : rule->most_low};
    if (rule->most_high >= 0 && at->count >= rule->most_low)
        return at->count;
    for (size_t i = 0; i < PM_COUNT(limits); i++) {
        if (limits[i] > at->count && limits[i] <= reach)
            return at->count;
        base = limits[i] <= at->count && limits[i] > base ? limits[i] : base;
    }
    return base;
}

/* ---- what may come next ---- */

/* Adds what tokens allow that go on where the rule of these configurations has ended. */
static void allow_outside(pm_guide *guide, const pm_set *group, const uint32_t *outside, size_t n)
{
    const pm_vocabulary *v = guide->masks->vocabulary;
    pm_automaton *automaton = &guide->automaton;
    pm_mark mark = pm_automaton_mark(automaton);
    pm_set after = n ? pm_automaton_return(automaton, group) : (pm_set){0};
    for (size_t i = 0; after.n && i < n; i++) {
        pm_walk w = {.bits = guide->bits};
        uint32_t at = outside[i];
        pm_guide_walk(guide, &w, &after, at + 1, v->end[at], (size_t)v->depth[at] + 1);
    }
    pm_automaton_release(automaton, mark);
}

/* Finds what a node allows, and keeps it where that was much work. */
static void look(pm_guide *guide, int32_t node, int32_t count, const pm_set *group)
{
    pm_guide_masks *masks = guide->masks;
    pm_automaton *automaton = &guide->automaton;
    pm_mark mark = pm_automaton_mark(automaton);
    pm_set start = pm_automaton_alone(automaton, node, count);
    pm_walk w = {0};
    pm_guide_walk(guide, &w, &start, 0, (uint32_t)masks->vocabulary->n, 0);
    pm_automaton_release(automaton, mark);
    if (automaton->status != PM_OK || automaton->effort > PM_EFFORT_MAX)
        return;
    for (size_t i = 0; i < w.n_found; i++)
        pm_set_bit(guide->bits, masks->found[i]);
    if (w.visited >= WORTH_KEEPING)
        keep_mask(masks, node, count, w.n_found, w.n_outside);
    allow_outside(guide, group, masks->outside, w.n_outside);
}

/* Adds what configurations allow that differ only in the calls that are open. */
static void allow_group(pm_guide *guide, const pm_set *group)
{
    pm_guide_masks *masks = guide->masks;
    const pm_config_at *at = &guide->automaton.configs[group->first];
    int32_t node = at->node, count = canonical(guide, at);
    const pm_guide_mask *mask = find_mask(masks, node, count);
    if (!mask) {
        look(guide, node, count, group);
        return;
    }
    for (size_t i = 0; mask->bits && i < words(masks->vocabulary); i++)
        guide->bits[i] |= mask->bits[i];
    for (size_t i = 0; mask->tokens && i < mask->n_tokens; i++)
        pm_set_bit(guide->bits, mask->tokens[i]);
    allow_outside(guide, group, mask->outside, mask->n_outside);
}

static int failure(const pm_automaton *automaton, pm_error *err)
{
    if (automaton->status == PM_ERR_MEMORY)
        return pm_fail_memory(err);
    return pm_fail(err, PM_ERR_LIMIT, "the schema allows more ways to read the answer than are followed at once");
}

/* Whether the depth that is left for a configuration may make a difference. */
static bool is_deep(const pm_guide *guide, const pm_config_at *at)
{
    const pm_automaton *automaton = &guide->automaton;
    int32_t within = guide->masks->vocabulary->nesting + automaton->grammar->deepest;
    return automaton->frames[at->frame].depth + within > PM_DEPTH_MAX;
}

int pm_guide_allow(pm_guide *guide, pm_error *err)
{
    const pm_vocabulary *v = guide->masks->vocabulary;
    pm_automaton *automaton = &guide->automaton;
    memset(guide->bits, 0, words(v) * sizeof(*guide->bits));
    automaton->effort = 0;
    for (size_t i = 0, n; i < guide->now.n && automaton->status == PM_OK && automaton->effort <= PM_EFFORT_MAX;
         i += n) {
        const pm_config_at *at = automaton->configs + i;
        bool deep = false;
        for (n = 0; i + n < guide->now.n && at[n].node == at->node && at[n].count == at->count; n++)
            deep |= is_deep(guide, &at[n]);
        pm_set group = {.first = i, .n = n};
        pm_walk w = {.bits = guide->bits};
        if (deep)
            pm_guide_walk(guide, &w, &group, 0, (uint32_t)v->n, 0);
        else
            allow_group(guide, &group);
    }
    return automaton->status == PM_OK && automaton->effort <= PM_EFFORT_MAX ? PM_OK : failure(automaton, err);
}

/* ---- going on ---- */

int pm_guide_init(pm_guide *guide, pm_guide_masks *masks, int32_t rule, pm_error *err)
{
    *guide = (pm_guide){.masks = masks, .bits = calloc(words(masks->vocabulary) + 1, sizeof(*guide->bits))};
    if (!guide->bits || pm_automaton_init(&guide->automaton, masks->grammar) != PM_OK) {
        pm_guide_free(guide);
        return pm_fail_memory(err);
    }
    guide->now = pm_automaton_start(&guide->automaton, rule, PM_FRAME_END);
    pm_automaton_keep(&guide->automaton, &guide->now);
    if (guide->automaton.status == PM_OK)
        return PM_OK;
    int status = failure(&guide->automaton, err);
    pm_guide_free(guide);
    return status;
}

void pm_guide_free(pm_guide *guide)
{
    pm_automaton_free(&guide->automaton);
    pm_guide_keys_free(&guide->keys);
    free(guide->bits);
    *guide = (pm_guide){0};
}

/* Steps over the bytes of a token; false when the text may not go on so, or on a failure of the automaton. */
static bool step_over(pm_guide *guide, const char *bytes, size_t len, pm_set *set, bool *twice, int *status)
{
    bool keys = guide->automaton.grammar->keys;
    for (size_t i = 0; i < len && !*twice && *status == PM_OK; i++) {
        pm_set next;
        if (!pm_automaton_step(&guide->automaton, set, (uint8_t)bytes[i], &next))
            return false;
        *set = next;
        if (keys)
            *status = pm_guide_keys_take(&guide->keys, &guide->automaton, set, bytes[i], twice);
    }
    return *status == PM_OK;
}

int pm_guide_take(pm_guide *guide, pm_token id, bool *refused, pm_error *err)
{
    pm_automaton *automaton = &guide->automaton;
    size_t len;
    const char *bytes = pm_vocabulary_bytes(guide->masks->vocabulary, id, &len);
    pm_mark mark = pm_automaton_mark(automaton);
    pm_set set = guide->now;
    pm_guide_keys before = {0};
    int status = PM_OK;
    *refused = false;
    bool ends = automaton->grammar->keys && memchr(bytes, '"', len);
    if (ends && pm_guide_keys_copy(&guide->keys, &before) != PM_OK)
        return pm_fail_memory(err);
    bool ok = step_over(guide, bytes, len, &set, refused, &status);
    if (*refused) {
        pm_automaton_release(automaton, mark);
        pm_guide_keys_free(&guide->keys);
        guide->keys = before;
        return PM_OK;
    }
    pm_guide_keys_free(&before);
    if (status != PM_OK)
        return pm_fail_memory(err);
    if (automaton->status != PM_OK)
        return failure(automaton, err);
    if (!ok)
        return pm_fail(err, PM_ERR_INVALID, "token %d is not allowed here", (int)id);
    guide->now = set;
    pm_automaton_keep(automaton, &guide->now);
    return PM_OK;
}
