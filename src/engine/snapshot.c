#include "engine/session.h"

#include <stdlib.h>
#include <string.h>

int pm_snapshot_victim(const size_t *positions, int n, pm_turn turn)
{
    int victim = 0;
    double smallest = 2;
    size_t end = positions[n - 1];
    for (int i = 0; i + 1 < n; i++) {
        size_t before = i ? positions[i - 1] : 0;
        if (positions[i] == turn.mark || positions[i] == turn.prompt)
            continue;
        double share = (double)(positions[i + 1] - before) / (double)(end - before);
        if (share < smallest) {
            smallest = share;
            victim = i;
        }
    }
    return victim;
}

int pm_snapshot_limit(const pm_engine *engine)
{
    double bytes = 4.0 * engine->vocab;
    for (int i = 0; i < engine->cache->n_states; i++)
        bytes += 4.0 * (double)engine->cache->states[i].count;
    double fit = PM_SNAPSHOT_BYTES / bytes;
    return fit < PM_SNAPSHOTS_MIN ? PM_SNAPSHOTS_MIN : fit > PM_SNAPSHOTS_MAX ? PM_SNAPSHOTS_MAX : (int)fit;
}

/* Gives up one reference. */
static void snapshot_release(pm_engine *engine, pm_snapshot *snapshot)
{
    if (!snapshot || --snapshot->refs > 0)
        return;
    if (snapshot->states)
        for (int i = 0; i < engine->cache->n_states; i++)
            engine->backend->ops->state_free(engine->backend, snapshot->states[i]);
    engine->logits_held -= snapshot->logits != NULL;
    free(snapshot->states);
    free(snapshot->logits);
    free(snapshot);
}

/* A snapshot with room for everything; NULL when out of memory. */
static pm_snapshot *snapshot_new(pm_engine *engine)
{
    const pm_cache_spec *cache = engine->cache;
    pm_snapshot *snapshot = calloc(1, sizeof(*snapshot));
    if (!snapshot)
        return NULL;
    snapshot->refs = 1;
    snapshot->states = calloc((size_t)cache->n_states, sizeof(pm_state *));
    snapshot->logits = malloc((size_t)engine->vocab * sizeof(float));
    engine->logits_held += snapshot->logits != NULL;
    bool ok = snapshot->states && snapshot->logits;
    for (int i = 0; ok && i < cache->n_states; i++)
        ok = engine->backend->ops->state_new(engine->backend, &cache->states[i], &snapshot->states[i], NULL) == PM_OK;
    if (!ok) {
        snapshot_release(engine, snapshot);
        snapshot = NULL;
    }
    return snapshot;
}

/* Takes one snapshot out of a full list and gives it back for reuse; NULL when a fork still needs it. */
static pm_snapshot *evict(pm_session *session)
{
    size_t positions[PM_SNAPSHOTS_MAX] = {0};
    for (int i = 0; i < session->n_snapshots; i++)
        positions[i] = session->snapshots[i]->pos;
    int victim = pm_snapshot_victim(positions, session->n_snapshots, session->turn);
    pm_snapshot *snapshot = session->snapshots[victim];
    session->n_snapshots--;
    memmove(&session->snapshots[victim], &session->snapshots[victim + 1],
            (size_t)(session->n_snapshots - victim) * sizeof(pm_snapshot *));
    if (snapshot->refs == 1)
        return snapshot;
    snapshot->refs--;
    return NULL;
}

void pm_snapshot_take(pm_session *session)
{
    pm_engine *engine = session->engine;
    int n = session->n_snapshots, n_states = engine->cache->n_states;
    if (!n_states || !session->has_logits || (n && session->snapshots[n - 1]->pos == session->length))
        return;
    pm_snapshot *snapshot = n < pm_snapshot_limit(engine) ? NULL : evict(session);
    if (!snapshot)
        snapshot = snapshot_new(engine);
    if (!snapshot)
        return;
    snapshot->pos = session->length;
    for (int i = 0; i < n_states; i++)
        engine->backend->ops->state_copy(engine->backend, snapshot->states[i], session->states[i]);
    memcpy(snapshot->logits, session->logits, (size_t)engine->vocab * sizeof(float));
    session->snapshots[session->n_snapshots++] = snapshot;
}

pm_snapshot *pm_snapshot_add(pm_session *session, size_t pos)
{
    pm_snapshot *snapshot = snapshot_new(session->engine);
    if (snapshot) {
        snapshot->pos = pos;
        session->snapshots[session->n_snapshots++] = snapshot;
    }
    return snapshot;
}

void pm_snapshot_drop_after(pm_session *session, size_t pos)
{
    while (session->n_snapshots && session->snapshots[session->n_snapshots - 1]->pos > pos)
        snapshot_release(session->engine, session->snapshots[--session->n_snapshots]);
}
