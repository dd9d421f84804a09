/* A session's own: its timeline, what the layers remember of it, and snapshots to roll back to. */
#ifndef PM_SESSION_H
#define PM_SESSION_H

#include "engine/engine.h"

#include <stdatomic.h>

/* ---- snapshots (snapshot.c) ----
 *
 * Rows can be cut anywhere, states cannot: a snapshot is a copy of all states at a position, with the logits after it.
 * A model without states needs none. A session keeps as many as fit PM_SNAPSHOT_BYTES, but at least PM_SNAPSHOTS_MIN
 * and at most PM_SNAPSHOTS_MAX; when one more is taken, one is dropped so that their spacing grows with the distance
 * from the end. Those of the present turn stay however long its answer becomes. Forks share them. */
enum { PM_SNAPSHOTS_MIN = 4, PM_SNAPSHOTS_MAX = 64, PM_SNAPSHOT_BYTES = 32 << 20 };

typedef struct pm_snapshot {
    size_t pos;
    int refs;
    pm_state **states; /* [cache->n_states] */
    float *logits;     /* [vocab] */
} pm_snapshot;

/* The positions that a next prompt returns to: before the generation prompt (where a template that writes the last
 * answer anew makes it differ) and after it. 0: none. */
typedef struct pm_turn {
    size_t mark, prompt;
} pm_turn;

/* Which of n >= PM_SNAPSHOTS_MIN snapshots at ascending positions to drop: the one whose absence leaves the smallest
 * gap in relation to its distance from the end. Never the newest, nor those of the turn. */
int pm_snapshot_victim(const size_t *positions, int n, pm_turn turn);

/* How many snapshots a session of this engine keeps. */
int pm_snapshot_limit(const pm_engine *engine);

/* Remembers the present, if it is not remembered already. Only a saving of later work: out of memory, there is no
 * snapshot and no error. */
void pm_snapshot_take(pm_session *session);

/* Adds a snapshot at a position after all others and gives it to be filled; NULL when out of memory. The session has
 * fewer than PM_SNAPSHOTS_MAX. */
pm_snapshot *pm_snapshot_add(pm_session *session, size_t pos);

/* Drops the session's snapshots after position `pos`. */
void pm_snapshot_drop_after(pm_session *session, size_t pos);

/* ---- sessions ---- */

/* What a step still has to do for a session. */
typedef struct pm_task {
    const pm_token *tokens;
    size_t n, done;
    float *logits; /* as pm_work.logits */
    size_t most;   /* tokens of one step, at most; 0: as many as there is room for */
    size_t mark;   /* take a snapshot at this position; 0: nowhere in particular */
    bool listed;   /* is part of the running call */
} pm_task;

struct pm_session {
    pm_engine *engine;
    pm_token *ids; /* the timeline */
    size_t length, cap;
    pm_rows **rows;        /* [cache->n_rows] */
    pm_state **states;     /* [cache->n_states] */
    float *logits, *spare; /* [vocab] after the last token, when has_logits; and as much room for the next */
    bool has_logits;
    pm_snapshot *snapshots[PM_SNAPSHOTS_MAX]; /* ascending positions, at most the length */
    int n_snapshots;
    pm_turn turn;
    pm_task task;
    _Atomic int cancel;
};

/* Cuts the timeline back to `pos` or to the last position before it that the session can return to; with `logits`, to
 * one after which logits are or will be known when the tokens up to `pos` are computed again. */
void pm_session_rewind(pm_session *session, size_t pos, bool logits);

/* How many tokens ids[0..n) and the timeline have in common from the start. */
size_t pm_session_common(const pm_session *session, const pm_token *ids, size_t n);

/* What of a timeline decides how much of it can be kept. */
typedef struct pm_timeline {
    size_t length;
    bool has_logits;
    const size_t *snapshots; /* [n_snapshots] positions, ascending */
    int n_snapshots;
} pm_timeline;

/* How many of n >= 1 tokens a timeline keeps that has the first `prefix` of them in common. */
size_t pm_timeline_keeps(const pm_engine *engine, const pm_timeline *timeline, size_t prefix, size_t n);

/* How many of ids[0..n), n >= 1, the session would keep if it were synced to them. */
size_t pm_session_keeps(const pm_session *session, const pm_token *ids, size_t n);

/* Cuts the timeline back to what ids[0..n), n >= 1, begin with, so that computing the others leads to their logits. */
void pm_session_keep(pm_session *session, const pm_token *ids, size_t n);

/* After a failed step: cuts the timeline back to where everything is known. */
void pm_session_recover(pm_session *session);

/* True, once, after pm_session_cancel. */
bool pm_session_cancelled(pm_session *session);

/* Makes room for n more tokens; PM_ERR_LIMIT when they do not fit the context. */
int pm_session_reserve(pm_session *session, size_t n, pm_error *err);

/* Computes one batch: pieces of the tasks of the n sessions in `work` (step.c); only work[i].session is looked at.
 * *computed is the number of its tokens, 0 when all tasks are done. After a failure each session has been recovered and
 * may be shorter than before. */
int pm_run_step(pm_engine *engine, const pm_work *work, int n, int *computed, pm_error *err);

/* Carries out the tasks of the n sessions in `work` (step.c); only work[i].session is looked at. `progress` may be
 * NULL and is told of the first session's task. */
int pm_run_tasks(pm_engine *engine, const pm_work *work, int n, const pm_sync_options *progress, size_t total,
                 pm_error *err);

#endif
