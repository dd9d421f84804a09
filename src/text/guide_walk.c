/* Walks over the vocabulary. Sets of configurations that come again and again on the way, as inside strings, are states
 * with a table of where each byte leads, which is filled as it is needed. */
#include "text/guide.h"

#include <stdlib.h>
#include <string.h>

enum {
    STATES_MAX = 256,
    POOL_MAX = 1 << 12,   /* configurations of all states */
    SMALL = POOL_MAX / 8, /* of one state, at most */
    SHORT = 64            /* nodes of a walk for which states are not worth while */
};

/* Where a byte leads. */
enum { UNKNOWN = -1, NOWHERE = -2 };

typedef struct pm_walk_state {
    int16_t to[256]; /* states; UNKNOWN also where no state was made */
    pm_set set;      /* in the pool */
} pm_walk_state;

/* What holds after a byte on the way. */
typedef struct pm_walk_level {
    pm_set set;
    pm_mark mark; /* what the automaton held then */
    int state;    /* -1: none */
    bool copied;  /* the set is among the automaton's; else it is only known by its state */
} pm_walk_level;

int pm_walker_init(pm_walker *walker, const pm_vocabulary *vocabulary)
{
    walker->levels = calloc((size_t)vocabulary->longest + 2, sizeof(*walker->levels));
    walker->states = malloc(STATES_MAX * sizeof(*walker->states));
    walker->pool = calloc(POOL_MAX, sizeof(*walker->pool));
    return walker->levels && walker->states && walker->pool ? PM_OK : PM_ERR_MEMORY;
}

void pm_walker_free(pm_walker *walker)
{
    free(walker->levels);
    free(walker->states);
    free(walker->pool);
    *walker = (pm_walker){0};
}

/* The state of a set: one that is there, or a new one; -1 when there is no room, or the set has frames that do not
 * outlast the byte. */
static int find_state(pm_walker *walker, const pm_automaton *automaton, const pm_set *set, size_t n_frames)
{
    const pm_config_at *configs = automaton->configs + set->first;
    size_t bytes = set->n * sizeof(*configs);
    for (size_t i = 0; i < set->n; i++)
        if ((size_t)configs[i].frame >= n_frames)
            return -1;
    for (size_t i = 0; i < walker->n_states; i++) {
        const pm_set *other = &walker->states[i].set;
        if (other->n == set->n && other->done == set->done && other->outside == set->outside &&
            memcmp(walker->pool + other->first, configs, bytes) == 0)
            return (int)i;
    }
    if (walker->n_states == STATES_MAX || set->n > SMALL || walker->n_pool + set->n > POOL_MAX)
        return -1;
    pm_walk_state *state = &walker->states[walker->n_states];
    memset(state->to, 0xFF, sizeof(state->to)); /* UNKNOWN */
    state->set = *set;
    state->set.first = walker->n_pool;
    if (bytes)
        memcpy(walker->pool + walker->n_pool, configs, bytes);
    walker->n_pool += set->n;
    return (int)walker->n_states++;
}

/* Steps from a level to the next; false when the byte leads nowhere. */
static bool step(pm_guide *guide, pm_walk_level *level, uint8_t byte, size_t n_frames, bool is_long)
{
    pm_walker *walker = &guide->masks->walker;
    pm_automaton *automaton = &guide->automaton;
    pm_walk_state *state = level->state >= 0 ? &walker->states[level->state] : NULL;
    int to = state ? state->to[byte] : UNKNOWN;
    if (to == NOWHERE)
        return false;
    if (to >= 0) {
        level[1] = (pm_walk_level){walker->states[to].set, level->mark, to, false};
        return true;
    }
    if (!level->copied) {
        pm_automaton_release(automaton, level->mark);
        level->set = pm_automaton_copy(automaton, walker->pool + level->set.first, level->set.n);
        level->mark = pm_automaton_mark(automaton);
        level->copied = true;
    }
    pm_automaton_release(automaton, level->mark);
    automaton->effort += level->set.n;
    if (!pm_automaton_step(automaton, &level->set, byte, &level[1].set)) {
        if (state)
            state->to[byte] = NOWHERE;
        return false;
    }
    level[1].mark = pm_automaton_mark(automaton);
    level[1].copied = true;
    level[1].state = is_long ? find_state(walker, automaton, &level[1].set, n_frames) : -1;
    if (state)
        state->to[byte] = (int16_t)level[1].state;
    return true;
}

static void found(pm_guide *guide, pm_walk *walk, uint32_t at)
{
    const pm_vocabulary *v = guide->masks->vocabulary;
    for (pm_token id = v->token[at]; id >= 0; id = v->same[id]) {
        if (walk->bits)
            pm_set_bit(walk->bits, id);
        else
            guide->masks->found[walk->n_found++] = id;
    }
}

void pm_guide_walk(pm_guide *guide, pm_walk *walk, const pm_set *start, uint32_t from, uint32_t to, size_t base)
{
    const pm_vocabulary *v = guide->masks->vocabulary;
    pm_walker *walker = &guide->masks->walker;
    pm_automaton *automaton = &guide->automaton;
    pm_mark mark = pm_automaton_mark(automaton);
    walker->n_states = walker->n_pool = 0;
    walker->levels[0] = (pm_walk_level){*start, mark, -1, true};
    for (uint32_t i = from; i < to && automaton->effort <= PM_EFFORT_MAX;) {
        pm_walk_level *level = &walker->levels[v->depth[i] - base];
        walk->visited++;
        if (!step(guide, level, v->byte[i], mark.frames, walk->visited > SHORT)) {
            if (automaton->status != PM_OK)
                return;
            i = v->end[i];
            continue;
        }
        found(guide, walk, i);
        if (level[1].set.outside && v->end[i] > i + 1)
            guide->masks->outside[walk->n_outside++] = i;
        i = level[1].set.n ? i + 1 : v->end[i];
    }
    pm_automaton_release(automaton, mark);
}
