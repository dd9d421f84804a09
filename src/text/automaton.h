/* Where in a grammar a text may be: all the ways to read it at once.
 *
 * A configuration is a node that takes bytes, the count of its rule, and the calls that are open, as a list of frames
 * which share their tails: equal lists are one list. Frames and configurations are stacks, so that a search can go back
 * to where it was. */
#ifndef PM_AUTOMATON_H
#define PM_AUTOMATON_H

#include "text/grammar.h"

typedef struct pm_config_at {
    int32_t node, count, frame;
} pm_config_at;

typedef struct pm_frame {
    int32_t back, count; /* where its rule returns to, with what count */
    int32_t parent;
    int32_t depth; /* objects and lists that are open */
    int32_t chain; /* the next frame with this hash, -1: none */
} pm_frame;

enum {
    PM_FRAME_END,    /* what returns here has read the whole */
    PM_FRAME_OUTSIDE /* what returns here leaves the part that is looked at */
};

/* Configurations side by side. */
typedef struct pm_set {
    size_t first, n;
    bool done;    /* the whole may end here */
    bool outside; /* the part may */
} pm_set;

typedef struct pm_automaton {
    const pm_grammar *grammar;
    pm_frame *frames;
    pm_config_at *configs, *work;
    size_t n_frames, n_configs, frames_cap, configs_cap, work_cap;
    int32_t *buckets; /* of frames, by hash */
    struct pm_seen *seen;
    size_t n_seen, seen_cap;
    uint32_t stamp;
    uint64_t effort; /* nodes that were gone through */
    int status;      /* PM_ERR_MEMORY, or PM_ERR_LIMIT: more ways at once than are followed */
} pm_automaton;

/* What a search goes back to. */
typedef struct pm_mark {
    size_t frames, configs;
} pm_mark;

int pm_automaton_init(pm_automaton *automaton, const pm_grammar *grammar); /* PM_OK or PM_ERR_MEMORY */
void pm_automaton_free(pm_automaton *automaton);

/* The beginning of a rule that returns to `frame`. */
pm_set pm_automaton_start(pm_automaton *automaton, int32_t rule, int32_t frame);

/* The configurations after one more byte; false when there are none and nothing may end, or on a failure. */
bool pm_automaton_step(pm_automaton *automaton, const pm_set *from, uint8_t byte, pm_set *to);

/* Where the rules of configurations return to. */
pm_set pm_automaton_return(pm_automaton *automaton, const pm_set *from);

/* A set of one configuration, whose rule returns outside. */
pm_set pm_automaton_alone(pm_automaton *automaton, int32_t node, int32_t count);

/* A set of these configurations, which must not be the automaton's own. */
pm_set pm_automaton_copy(pm_automaton *automaton, const pm_config_at *configs, size_t n);

static inline pm_mark pm_automaton_mark(const pm_automaton *automaton)
{
    return (pm_mark){automaton->n_frames, automaton->n_configs};
}
void pm_automaton_release(pm_automaton *automaton, pm_mark mark);

/* Forgets everything but the set, which becomes the first one. */
void pm_automaton_keep(pm_automaton *automaton, pm_set *set);

#endif
