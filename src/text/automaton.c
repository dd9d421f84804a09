#include "text/automaton.h"

#include <stdlib.h>
#include <string.h>

enum {
    BUCKETS = 1 << 12,
    FRAMES_MAX = 1 << 18,
    CONFIGS_MAX = 1 << 21,
    WORK_MAX = 1 << 18, /* nodes to go through for one byte */
    FIRST_SEEN = 1 << 8
};

/* A slot of the table of what was gone through for one byte. */
typedef struct pm_seen {
    pm_config_at config;
    uint32_t stamp; /* of the byte that it belongs to */
} pm_seen;

int pm_automaton_init(pm_automaton *automaton, const pm_grammar *grammar)
{
    pm_automaton made = {.grammar = grammar, .seen_cap = FIRST_SEEN};
    made.buckets = malloc(BUCKETS * sizeof(*made.buckets));
    made.seen = calloc(FIRST_SEEN, sizeof(*made.seen));
    if (!made.buckets || !made.seen || pm_grow((void **)&made.frames, &made.frames_cap, 64, sizeof(pm_frame)) ||
        pm_grow((void **)&made.configs, &made.configs_cap, 256, sizeof(pm_config_at)) ||
        pm_grow((void **)&made.work, &made.work_cap, 256, sizeof(pm_config_at))) {
        pm_automaton_free(&made);
        return PM_ERR_MEMORY;
    }
    for (int i = 0; i < BUCKETS; i++)
        made.buckets[i] = -1;
    made.frames[PM_FRAME_END] = (pm_frame){.parent = -1};
    made.frames[PM_FRAME_OUTSIDE] = (pm_frame){.parent = -1, .depth = -PM_DEPTH_MAX};
    made.n_frames = 2;
    *automaton = made;
    return PM_OK;
}

void pm_automaton_free(pm_automaton *automaton)
{
    free(automaton->frames);
    free(automaton->configs);
    free(automaton->work);
    free(automaton->buckets);
    free(automaton->seen);
    *automaton = (pm_automaton){0};
}

static void fail(pm_automaton *automaton, int status)
{
    if (automaton->status == PM_OK)
        automaton->status = status;
}

/* Room for one more element. */
static bool room(pm_automaton *automaton, void **array, size_t *cap, size_t n, size_t max, size_t size)
{
    if (n < *cap)
        return true;
    int status = n >= max ? PM_ERR_LIMIT : pm_grow(array, cap, n + 1, size);
    if (status != PM_OK)
        fail(automaton, status);
    return status == PM_OK;
}

/* ---- frames ---- */

static uint32_t mix(int32_t a, int32_t b, int32_t c)
{
    uint64_t h = (uint32_t)a * 0x9e3779b97f4a7c15u;
    h = (h ^ (uint32_t)b) * 0xbf58476d1ce4e5b9u;
    h = (h ^ (h >> 29) ^ (uint32_t)c) * 0x94d049bb133111ebu;
    return (uint32_t)(h >> 32);
}

static uint32_t bucket_of(const pm_frame *frame)
{
    return mix(frame->back, frame->count, frame->parent) % BUCKETS;
}

/* The frame of these values: one that is there, or a new one. -1 on a failure. */
static int32_t find_frame(pm_automaton *automaton, pm_frame frame)
{
    uint32_t bucket = bucket_of(&frame);
    for (int32_t i = automaton->buckets[bucket]; i >= 0; i = automaton->frames[i].chain) {
        const pm_frame *other = &automaton->frames[i];
        if (other->back == frame.back && other->count == frame.count && other->parent == frame.parent &&
            other->depth == frame.depth)
            return i;
    }
    if (!room(automaton, (void **)&automaton->frames, &automaton->frames_cap, automaton->n_frames, FRAMES_MAX,
              sizeof(frame)))
        return -1;
    frame.chain = automaton->buckets[bucket];
    automaton->frames[automaton->n_frames] = frame;
    return automaton->buckets[bucket] = (int32_t)automaton->n_frames++;
}

void pm_automaton_release(pm_automaton *automaton, pm_mark mark)
{
    while (automaton->n_frames > mark.frames) { /* the newest of its bucket is the first there */
        const pm_frame *frame = &automaton->frames[--automaton->n_frames];
        automaton->buckets[bucket_of(frame)] = frame->chain;
    }
    automaton->n_configs = mark.configs;
}

/* ---- going through nodes that take nothing ---- */

static bool grow_seen(pm_automaton *automaton)
{
    size_t cap = automaton->seen_cap ? automaton->seen_cap * 2 : FIRST_SEEN;
    pm_seen *seen = calloc(cap, sizeof(*seen)), *old = automaton->seen;
    if (!seen) {
        fail(automaton, PM_ERR_MEMORY);
        return false;
    }
    for (size_t k = 0; k < automaton->seen_cap; k++) {
        if (old[k].stamp != automaton->stamp)
            continue;
        size_t i = mix(old[k].config.node, old[k].config.count, old[k].config.frame) & (cap - 1);
        while (seen[i].stamp == automaton->stamp)
            i = (i + 1) & (cap - 1);
        seen[i] = old[k];
    }
    free(old);
    automaton->seen = seen;
    automaton->seen_cap = cap;
    return true;
}

/* Whether the configuration is new for this byte; it is not from then on. */
static bool is_new(pm_automaton *automaton, const pm_config_at *config)
{
    if (automaton->n_seen * 2 >= automaton->seen_cap && !grow_seen(automaton))
        return false;
    size_t mask = automaton->seen_cap - 1, i = mix(config->node, config->count, config->frame) & mask;
    for (; automaton->seen[i].stamp == automaton->stamp; i = (i + 1) & mask)
        if (memcmp(&automaton->seen[i].config, config, sizeof(*config)) == 0)
            return false;
    automaton->seen[i] = (pm_seen){*config, automaton->stamp};
    automaton->n_seen++;
    return true;
}

/* Nothing was gone through yet. */
static void forget_seen(pm_automaton *automaton)
{
    automaton->n_seen = 0;
    if (++automaton->stamp == 0) {
        memset(automaton->seen, 0, automaton->seen_cap * sizeof(*automaton->seen));
        automaton->stamp = 1;
    }
}

static void add_config(pm_automaton *automaton, const pm_config_at *config)
{
    if (room(automaton, (void **)&automaton->configs, &automaton->configs_cap, automaton->n_configs, CONFIGS_MAX,
             sizeof(*config)))
        automaton->configs[automaton->n_configs++] = *config;
}

static void push(pm_automaton *automaton, size_t *n, int32_t node, int32_t count, int32_t frame)
{
    if (room(automaton, (void **)&automaton->work, &automaton->work_cap, *n, WORK_MAX, sizeof(pm_config_at)))
        automaton->work[(*n)++] = (pm_config_at){node, count, frame};
}

/* Enters a rule. */
static void call(pm_automaton *automaton, size_t *n, const pm_node *node, const pm_config_at *at)
{
    const pm_rule *rule = &automaton->grammar->rules[node->called];
    int32_t depth = automaton->frames[at->frame].depth + rule->nests;
    int32_t frame = find_frame(automaton, (pm_frame){node->next, at->count, at->frame, depth, -1});
    if (frame >= 0)
        push(automaton, n, rule->start, 0, frame);
}

/* Counts up to where it makes a difference. */
static int32_t counted(const pm_grammar *grammar, const pm_node *node, int32_t count)
{
    return node->limit == INT32_MAX && count >= grammar->rules[node->rule].least ? count : count + 1;
}

/* Adds to the set the configurations that are reached from this one without a byte. */
static void settle(pm_automaton *automaton, pm_config_at first, pm_set *set)
{
    const pm_grammar *grammar = automaton->grammar;
    size_t n = 0;
    push(automaton, &n, first.node, first.count, first.frame);
    while (n > 0 && automaton->status == PM_OK) {
        pm_config_at at = automaton->work[--n];
        const pm_node *node = &grammar->nodes[at.node];
        const pm_frame *frame = &automaton->frames[at.frame];
        automaton->effort++;
        if (frame->depth + node->depth > PM_DEPTH_MAX || !is_new(automaton, &at))
            continue;
        switch ((pm_node_kind)node->kind) {
        case PM_NODE_BYTES: add_config(automaton, &at); break;
        case PM_NODE_SPLIT:
            for (int32_t i = 0; i < node->n; i++)
                push(automaton, &n, grammar->edges[node->edges + i].to, at.count, at.frame);
            break;
        case PM_NODE_CALL: call(automaton, &n, node, &at); break;
        case PM_NODE_RETURN:
            set->done |= at.frame == PM_FRAME_END;
            set->outside |= at.frame == PM_FRAME_OUTSIDE;
            if (at.frame > PM_FRAME_OUTSIDE)
                push(automaton, &n, frame->back, frame->count, frame->parent);
            break;
        case PM_NODE_COUNT:
            if (at.count < node->limit)
                push(automaton, &n, node->next, counted(grammar, node, at.count), at.frame);
            break;
        case PM_NODE_ENOUGH:
            if (at.count >= node->limit)
                push(automaton, &n, node->next, at.count, at.frame);
            break;
        }
    }
    set->n = automaton->n_configs - set->first;
}

/* ---- sets ---- */

pm_set pm_automaton_start(pm_automaton *automaton, int32_t rule, int32_t frame)
{
    pm_set set = {.first = automaton->n_configs};
    forget_seen(automaton);
    settle(automaton, (pm_config_at){automaton->grammar->rules[rule].start, 0, frame}, &set);
    return set;
}

/* Where the byte leads from a node; NULL: nowhere. */
static const pm_edge *find_edge(const pm_grammar *grammar, const pm_node *node, uint8_t byte)
{
    const pm_edge *edges = grammar->edges + node->edges;
    int32_t low = 0, high = node->n;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (edges[middle].high < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low < node->n && edges[low].low <= byte ? &edges[low] : NULL;
}

/* Whether an edge's guard lets the configuration pass, which it may count. */
static bool passes(const pm_grammar *grammar, const pm_edge *edge, pm_config_at *at)
{
    const pm_rule *rule = &grammar->rules[grammar->nodes[at->node].rule];
    if (edge->guard == PM_GUARD_ENOUGH)
        return at->count >= rule->least;
    if (edge->guard == PM_GUARD_COUNT) {
        bool limited = rule->most_high >= 0;
        if (limited && at->count >= rule->most_low)
            return false;
        at->count += limited || at->count < rule->least;
    }
    return true;
}

bool pm_automaton_step(pm_automaton *automaton, const pm_set *from, uint8_t byte, pm_set *to)
{
    const pm_grammar *grammar = automaton->grammar;
    pm_set set = {.first = automaton->n_configs};
    if (from->n > 1)
        forget_seen(automaton);
    for (size_t i = 0; i < from->n; i++) {
        pm_config_at at = automaton->configs[from->first + i];
        const pm_edge *edge = find_edge(grammar, &grammar->nodes[at.node], byte);
        if (!edge || (edge->guard && !passes(grammar, edge, &at)))
            continue;
        at.node = edge->to;
        if (from->n == 1) {
            const pm_node *node = &grammar->nodes[at.node];
            if (node->kind == PM_NODE_BYTES && automaton->frames[at.frame].depth + node->depth <= PM_DEPTH_MAX) {
                add_config(automaton, &at);
                automaton->effort++;
                break;
            }
            forget_seen(automaton);
        }
        settle(automaton, at, &set);
    }
    set.n = automaton->n_configs - set.first;
    *to = set;
    return (set.n || set.done || set.outside) && automaton->status == PM_OK;
}

pm_set pm_automaton_return(pm_automaton *automaton, const pm_set *from)
{
    pm_set set = {.first = automaton->n_configs};
    forget_seen(automaton);
    for (size_t i = 0; i < from->n; i++) {
        int32_t place = automaton->configs[from->first + i].frame;
        pm_frame frame = automaton->frames[place];
        if (place == PM_FRAME_END)
            set.done = true;
        else if (place > PM_FRAME_OUTSIDE)
            settle(automaton, (pm_config_at){frame.back, frame.count, frame.parent}, &set);
    }
    set.n = automaton->n_configs - set.first;
    return set;
}

pm_set pm_automaton_alone(pm_automaton *automaton, int32_t node, int32_t count)
{
    pm_set set = {.first = automaton->n_configs};
    add_config(automaton, &(pm_config_at){node, count, PM_FRAME_OUTSIDE});
    set.n = automaton->n_configs - set.first;
    return set;
}

pm_set pm_automaton_copy(pm_automaton *automaton, const pm_config_at *configs, size_t n)
{
    pm_set set = {.first = automaton->n_configs};
    for (size_t i = 0; i < n; i++)
        add_config(automaton, &configs[i]);
    set.n = automaton->n_configs - set.first;
    return set;
}

/* ---- going on ---- */

static int by_node(const void *a, const void *b)
{
    const pm_config_at *x = a, *y = b;
    if (x->node != y->node)
        return x->node < y->node ? -1 : 1;
    if (x->count != y->count)
        return x->count < y->count ? -1 : 1;
    return x->frame < y->frame ? -1 : x->frame > y->frame;
}

/* Frames stand behind their parents, so that one pass marks and one moves what is in use. Moved frames are put into
 * their buckets anew. The `chain` of a frame says meanwhile where it goes. */
void pm_automaton_keep(pm_automaton *automaton, pm_set *set)
{
    pm_config_at *configs = automaton->configs;
    memmove(configs, configs + set->first, set->n * sizeof(*configs));
    set->first = 0;
    automaton->n_configs = set->n;
    for (size_t i = 2; i < automaton->n_frames; i++)
        automaton->frames[i].chain = -1;
    for (size_t i = 0; i < set->n; i++)
        automaton->frames[configs[i].frame].chain = 0;
    for (size_t i = automaton->n_frames; i-- > 2;)
        if (automaton->frames[i].chain == 0)
            automaton->frames[automaton->frames[i].parent].chain = 0;
    for (int i = 0; i < BUCKETS; i++)
        automaton->buckets[i] = -1;
    automaton->frames[PM_FRAME_END].chain = PM_FRAME_END;
    automaton->frames[PM_FRAME_OUTSIDE].chain = PM_FRAME_OUTSIDE;
    size_t n = 2;
    for (size_t i = 2; i < automaton->n_frames; i++)
        if (automaton->frames[i].chain == 0)
            automaton->frames[i].chain = (int32_t)n++;
    for (size_t i = 0; i < set->n; i++)
        configs[i].frame = automaton->frames[configs[i].frame].chain;
    /* A frame never moves up, so that no place is read after it was written; parents are read where they were. */
    for (size_t i = 2; i < automaton->n_frames; i++)
        if (automaton->frames[i].chain > 0)
            automaton->frames[i].parent = automaton->frames[automaton->frames[i].parent].chain;
    for (size_t i = 2; i < automaton->n_frames; i++) {
        pm_frame frame = automaton->frames[i];
        if (frame.chain <= 0)
            continue;
        size_t place = (size_t)frame.chain;
        uint32_t bucket = bucket_of(&frame);
        frame.chain = automaton->buckets[bucket];
        automaton->frames[place] = frame;
        automaton->buckets[bucket] = (int32_t)place;
    }
    automaton->n_frames = n;
    qsort(configs, set->n, sizeof(*configs), by_node);
}
