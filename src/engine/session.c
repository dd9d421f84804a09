#include "engine/session.h"

#include <stdlib.h>
#include <string.h>

/* ---- life ---- */

void pm_session_free(pm_session *session)
{
    if (!session)
        return;
    pm_engine *engine = session->engine;
    const pm_backend_ops *ops = engine->backend->ops;
    pm_snapshot_drop_after(session, 0);
    for (int i = 0; session->rows && i < engine->cache->n_rows; i++)
        ops->rows_free(engine->backend, session->rows[i]);
    for (int i = 0; session->states && i < engine->cache->n_states; i++)
        ops->state_free(engine->backend, session->states[i]);
    engine->logits_held -= (session->logits != NULL) + (session->spare != NULL);
    free(session->rows);
    free(session->states);
    free(session->logits);
    free(session->spare);
    free(session->ids);
    free(session);
}

/* A session without rows; NULL after a failure. */
static pm_session *session_alloc(pm_engine *engine, pm_error *err)
{
    const pm_cache_spec *cache = engine->cache;
    pm_session *session = calloc(1, sizeof(*session));
    int status = PM_OK;
    if (!session) {
        pm_fail_memory(err);
        return NULL;
    }
    session->engine = engine;
    session->rows = calloc((size_t)cache->n_rows + 1, sizeof(pm_rows *));
    session->states = calloc((size_t)cache->n_states + 1, sizeof(pm_state *));
    session->logits = malloc((size_t)engine->vocab * sizeof(float));
    session->spare = malloc((size_t)engine->vocab * sizeof(float));
    engine->logits_held += (session->logits != NULL) + (session->spare != NULL);
    if (!session->rows || !session->states || !session->logits || !session->spare)
        status = pm_fail_memory(err);
    for (int i = 0; status == PM_OK && i < cache->n_states; i++)
        status = engine->backend->ops->state_new(engine->backend, &cache->states[i], &session->states[i], err);
    if (status == PM_OK)
        return session;
    pm_session_free(session);
    return NULL;
}

int pm_session_new(pm_session **out, pm_engine *engine, pm_error *err)
{
    pm_session *session = session_alloc(engine, err);
    int status = PM_OK;
    if (!session)
        return PM_ERR_MEMORY;
    for (int i = 0; status == PM_OK && i < engine->cache->n_rows; i++)
        status = engine->backend->ops->rows_new(engine->backend, &engine->cache->rows[i], engine->kv_type,
                                                &session->rows[i], err);
    if (status == PM_OK)
        *out = session;
    else
        pm_session_free(session);
    return status;
}

/* Takes over everything but the rows. */
static void copy_present(pm_session *session, const pm_session *from)
{
    const pm_engine *engine = from->engine;
    for (int i = 0; i < engine->cache->n_states; i++)
        engine->backend->ops->state_copy(engine->backend, session->states[i], from->states[i]);
    if (from->length)
        memcpy(session->ids, from->ids, from->length * sizeof(pm_token));
    if (from->has_logits)
        memcpy(session->logits, from->logits, (size_t)engine->vocab * sizeof(float));
    session->length = from->length;
    session->has_logits = from->has_logits;
    session->turn = from->turn;
    session->n_snapshots = from->n_snapshots;
    for (int i = 0; i < from->n_snapshots; i++) {
        session->snapshots[i] = from->snapshots[i];
        session->snapshots[i]->refs++;
    }
}

int pm_session_fork(pm_session **out, const pm_session *from, pm_error *err)
{
    pm_engine *engine = from->engine;
    pm_session *session = session_alloc(engine, err);
    int status = PM_OK;
    if (!session)
        return PM_ERR_MEMORY;
    if (pm_grow((void **)&session->ids, &session->cap, from->length, sizeof(pm_token)) != PM_OK)
        status = pm_fail_memory(err);
    for (int i = 0; status == PM_OK && i < engine->cache->n_rows; i++)
        status = engine->backend->ops->rows_fork(engine->backend, from->rows[i],
                                                 (int64_t)from->length / engine->cache->rows[i].ratio,
                                                 &session->rows[i], err);
    if (status != PM_OK) {
        pm_session_free(session);
        return status;
    }
    copy_present(session, from);
    *out = session;
    return PM_OK;
}

/* ---- small questions ---- */

size_t pm_session_tokens(const pm_session *session, const pm_token **ids)
{
    if (ids)
        *ids = session->ids;
    return session->length;
}

const float *pm_session_logits(const pm_session *session)
{
    return session->has_logits ? session->logits : NULL;
}

/* A lock-free store: safe in a signal handler. */
void pm_session_cancel(pm_session *session)
{
    atomic_store(&session->cancel, 1);
}

bool pm_session_cancelled(pm_session *session)
{
    return atomic_load_explicit(&session->cancel, memory_order_relaxed) && atomic_exchange(&session->cancel, 0);
}

int pm_session_reserve(pm_session *session, size_t n, pm_error *err)
{
    size_t need, ctx = (size_t)session->engine->ctx;
    if (!pm_add(session->length, n, &need) || need > ctx)
        return pm_fail(err, PM_ERR_LIMIT, "%zu tokens after %zu are more than the context of %zu", n, session->length,
                       ctx);
    if (pm_grow((void **)&session->ids, &session->cap, need, sizeof(pm_token)) != PM_OK)
        return pm_fail_memory(err);
    return PM_OK;
}

/* ---- going back ---- */

/* Where a model without states goes back to: anywhere, but logits are known only at the end. */
static size_t rewind_rows(pm_session *session, size_t pos, bool logits)
{
    if (pos == session->length && (session->has_logits || !logits))
        return pos;
    session->has_logits = false;
    return logits && pos ? pos - 1 : pos;
}

/* Where a model with states goes back to: the newest snapshot at or before `pos`, or the beginning. */
static size_t rewind_states(pm_session *session, size_t pos)
{
    const pm_engine *engine = session->engine;
    const pm_backend_ops *ops = engine->backend->ops;
    pm_snapshot_drop_after(session, pos);
    const pm_snapshot *snapshot = session->n_snapshots ? session->snapshots[session->n_snapshots - 1] : NULL;
    for (int i = 0; i < engine->cache->n_states; i++) {
        if (snapshot)
            ops->state_copy(engine->backend, session->states[i], snapshot->states[i]);
        else
            ops->state_zero(engine->backend, session->states[i]);
    }
    session->has_logits = snapshot != NULL;
    if (snapshot)
        memcpy(session->logits, snapshot->logits, (size_t)engine->vocab * sizeof(float));
    return snapshot ? snapshot->pos : 0;
}

void pm_session_rewind(pm_session *session, size_t pos, bool logits)
{
    const pm_engine *engine = session->engine;
    const pm_backend_ops *ops = engine->backend->ops;
    pos = engine->cache->n_states ? rewind_states(session, pos) : rewind_rows(session, pos, logits);
    for (int i = 0; i < engine->cache->n_rows; i++) {
        int64_t rows = (int64_t)pos / engine->cache->rows[i].ratio;
        if (ops->rows_length(session->rows[i]) > rows)
            ops->rows_truncate(engine->backend, session->rows[i], rows);
    }
    session->length = pos;
}

void pm_session_recover(pm_session *session)
{
    pm_session_rewind(session, session->length, false);
}

/* ---- sync ---- */

size_t pm_session_common(const pm_session *session, const pm_token *ids, size_t n)
{
    size_t p = 0, end = n < session->length ? n : session->length;
    while (p < end && ids[p] == session->ids[p])
        p++;
    return p;
}

size_t pm_timeline_keeps(const pm_engine *engine, const pm_timeline *timeline, size_t prefix, size_t n)
{
    if (prefix == timeline->length && (prefix < n || timeline->has_logits))
        return prefix;
    if (!engine->cache->n_states)
        return prefix < n ? prefix : n - 1;
    for (int i = timeline->n_snapshots - 1; i >= 0; i--)
        if (timeline->snapshots[i] <= prefix)
            return timeline->snapshots[i];
    return 0;
}

size_t pm_session_keeps(const pm_session *session, const pm_token *ids, size_t n)
{
    size_t positions[PM_SNAPSHOTS_MAX];
    for (int i = 0; i < session->n_snapshots; i++)
        positions[i] = session->snapshots[i]->pos;
    pm_timeline timeline = {session->length, session->has_logits, positions, session->n_snapshots};
    return pm_timeline_keeps(session->engine, &timeline, pm_session_common(session, ids, n), n);
}

void pm_session_keep(pm_session *session, const pm_token *ids, size_t n)
{
    size_t prefix = pm_session_common(session, ids, n);
    if (prefix < session->length || (prefix == n && !session->has_logits))
        pm_session_rewind(session, prefix, prefix == n);
}

int pm_session_sync(pm_session *session, const pm_token *ids, size_t n, const pm_sync_options *options,
                    pm_sync_stats *stats, pm_error *err)
{
    pm_engine *engine = session->engine;
    if (!ids || n == 0)
        return pm_fail(err, PM_ERR_INVALID, "the prompt is empty");
    if (n > (size_t)engine->ctx)
        return pm_fail(err, PM_ERR_LIMIT, "the prompt has %zu tokens, more than the context of %d", n, engine->ctx);
    int status = pm_engine_check_ids(engine, ids, n, err);
    if (status != PM_OK)
        return status;
    if (pm_session_cancelled(session))
        return pm_fail(err, PM_ERR_CANCELLED, "cancelled");
    /* Before anything is cut, so that a lack of memory leaves the timeline alone. ids may be the timeline itself, which
     * is then long enough. */
    if (n > session->cap && pm_grow((void **)&session->ids, &session->cap, n, sizeof(pm_token)) != PM_OK)
        return pm_fail_memory(err);

    pm_session_keep(session, ids, n);
    size_t reused = session->length;
    session->turn = (pm_turn){.mark = options ? options->mark : 0, .prompt = n};
    if (reused < n) {
        session->task = (pm_task){.tokens = ids + reused, .n = n - reused, .mark = session->turn.mark};
        status = pm_run_tasks(engine, &(pm_work){.session = session}, 1, options, n, err);
        session->task = (pm_task){0};
        if (status != PM_OK)
            return status;
    }
    pm_snapshot_take(session);
    if (stats)
        *stats = (pm_sync_stats){.reused = reused, .computed = n - reused};
    return PM_OK;
}
