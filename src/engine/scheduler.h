/* Many answers on one engine, and the timelines that are kept for later prompts. */
#ifndef PM_SCHEDULER_H
#define PM_SCHEDULER_H

#include "engine/disk.h"
#include "engine/generation.h"
#include "engine/session.h"

/* ---- pasts.c: timelines that nobody writes ---- */

typedef struct pm_past {
    pm_session *session;
    double gain;    /* tokens that it saves, for the bytes that it takes */
    double value;   /* what keeping it is worth: the lowest goes first */
    uint64_t used;  /* when that was last told; of equal values the older goes */
    double leaving; /* since when it is being written to make room; 0: it is not */
} pm_past;

typedef struct pm_pasts {
    pm_past *list; /* [n] */
    size_t n, cap;
    double level; /* the value of the last one that went: what comes later is worth so much more */
    uint64_t clock;
    pm_disk *disk; /* where they are kept beyond memory; NULL: nowhere */
} pm_pasts;

/* Takes over a session. Pasts that it begins with are dropped: it holds all of theirs. Out of memory, it is freed. */
void pm_pasts_keep(pm_pasts *pasts, pm_session *session);

typedef enum pm_eviction {
    PM_EVICT_NONE,  /* there is no other past */
    PM_EVICT_DONE,  /* one was dropped */
    PM_EVICT_LATER, /* the one to be dropped is being written to the disk first */
} pm_eviction;

/* Drops the past that is worth least, but not `spared` (may be NULL). With `must` it is waited a moment for its being
 * written, then dropped all the same. */
pm_eviction pm_pasts_evict(pm_pasts *pasts, const pm_session *spared, bool must);

/* Waits a moment for a past that is to be dropped to be written. */
void pm_pasts_wait(const pm_pasts *pasts);

/* The past that keeps most of ids[0..n), NULL when none keeps anything. *kept becomes how much, and *alike the length
 * of the longest beginning that a past has in common with them. */
const pm_session *pm_pasts_find(const pm_pasts *pasts, const pm_token *ids, size_t n, size_t *kept, size_t *alike);

/* A past as a session of the caller's own that begins with its first `kept` tokens: taken out of the list when these
 * are all it has, forked otherwise. */
int pm_pasts_use(pm_pasts *pasts, const pm_session *past, size_t kept, pm_session **out, pm_error *err);

/* Writes them to the disk, where there is one, for so many seconds at most, and frees them and it. */
void pm_pasts_free(pm_pasts *pasts, double seconds);

/* ---- scheduler.c ---- */

struct pm_request {
    pm_scheduler *scheduler;
    pm_request *next; /* in the queue, or of those that have ended */
    pm_generate_options options;
    pm_request_end *on_end;
    pm_generation generation;
    pm_token *ids; /* the prompt, then what has been sampled */
    size_t n, cap, n_prompt, mark;
    size_t branch;       /* where another timeline goes another way: worth a snapshot; 0: nowhere */
    pm_session *session; /* NULL while it waits */
    bool started;        /* it has been taken up before */
    bool fetched;        /* the disk has been asked */
    bool cancelled;
    pm_sync_stats cost;                /* of the prompt */
    double queued, begun, read, first; /* when it came, was taken up, had read its prompt, had a token */
};

struct pm_scheduler {
    pm_engine *engine;
    pm_scheduler_options options; /* without defaults */
    pm_request *queue;            /* in order */
    pm_request *ended;            /* in this step */
    pm_request **live;            /* [parallel], n_live of them, by age */
    pm_work *work;                /* [parallel] */
    pm_pasts pasts;
    pm_fetch *fetch;       /* a timeline that is being read from the disk, or NULL */
    pm_request *fetch_for; /* who waits for it; NULL: nobody any more */
    uint64_t fetch_bytes;  /* that it will take in memory, beyond what it takes now */
    int n_live;
    bool full;              /* nothing can be taken up until an answer ends */
    size_t piece;           /* tokens of prompts in a step that answers wait for */
    double token_seconds;   /* what a token of a prompt takes, about; 0: not known */
    size_t capacity;        /* tokens of a timeline that fits cache_bytes alone */
    pm_scheduler_info info; /* without what pm_scheduler_describe fills in */
};

#endif
