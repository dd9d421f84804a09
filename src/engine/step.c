/* Advancing many sessions at once: their tasks are cut into pieces, and the pieces of one step make up a batch. */
#include "engine/session.h"

#include <stdlib.h>
#include <string.h>

/* Rows of logits that one step computes for callers who want them after every token: bounds engine->logits. */
enum { CAPTURED_ROWS = 64 };

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Tokens until the next position where the session takes a snapshot: pieces end exactly there. */
static size_t until_snapshot(const pm_session *session)
{
    if (!session->engine->cache->n_states)
        return SIZE_MAX;
    size_t stride = (size_t)session->engine->snapshot_stride, mark = session->task.mark;
    size_t n = stride - session->length % stride;
    return mark > session->length ? min_size(n, mark - session->length) : n;
}

/* Adds the next n tokens of a session to the batch. The logits after the last are always computed: they cost little,
 * and so the session has them wherever it is stopped. */
static void add_segment(pm_engine *engine, pm_batch *batch, pm_session *session, size_t n)
{
    pm_task *task = &session->task;
    memcpy(engine->tokens + batch->n_tokens, task->tokens + task->done, n * sizeof(pm_token));
    for (size_t i = task->logits ? 0 : n - 1; i < n; i++)
        engine->outputs[batch->n_outputs++] = batch->n_tokens + (int)i;
    engine->segments[batch->n_segments] = (pm_segment){.first = batch->n_tokens,
                                                       .n = (int)n,
                                                       .pos = (int64_t)session->length,
                                                       .rows = session->rows,
                                                       .states = session->states};
    engine->scheduled[batch->n_segments++] = session;
    batch->n_tokens += (int)n;
}

/* The next batch: first the tasks with one token left, so that decoding never waits for a long prompt, then pieces of
 * the others, in order, while there is room. Empty when all is done. */
static pm_batch plan(pm_engine *engine, const pm_work *work, int n)
{
    pm_batch batch = {.tokens = engine->tokens, .segments = engine->segments, .outputs = engine->outputs};
    size_t captured = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < n; i++) {
            pm_session *session = work[i].session;
            size_t left = session->task.n - session->task.done;
            if (left == 0 || (left == 1) != (pass == 0))
                continue;
            size_t take = min_size(left, (size_t)(engine->step_tokens - batch.n_tokens));
            take = min_size(take, until_snapshot(session));
            if (session->task.most)
                take = min_size(take, session->task.most);
            if (session->task.logits) {
                take = min_size(take, CAPTURED_ROWS - captured);
                captured += take;
            }
            if (take)
                add_segment(engine, &batch, session, take);
        }
    }
    return batch;
}

/* Takes over what a step computed for one session; `rows` are its logits, of which the last are kept. */
static void commit(pm_session *session, int n, float *rows)
{
    pm_task *task = &session->task;
    size_t vocab = (size_t)session->engine->vocab, count = (size_t)n;
    float *last = task->logits ? rows + (count - 1) * vocab : rows;
    if (task->logits)
        memcpy(task->logits + task->done * vocab, rows, count * vocab * sizeof(float));
    if (last == session->spare) {
        session->spare = session->logits;
        session->logits = last;
    } else {
        memcpy(session->logits, last, vocab * sizeof(float));
    }
    session->has_logits = true;
    /* The tokens may lie in the timeline itself. */
    memmove(session->ids + session->length, task->tokens + task->done, count * sizeof(pm_token));
    session->length += count;
    task->done += count;
    if (session->length % (size_t)session->engine->snapshot_stride == 0 || session->length == task->mark)
        pm_snapshot_take(session);
}

/* One step of the model. */
static int advance(pm_engine *engine, const pm_batch *batch, pm_error *err)
{
    int status = pm_checkpoint_check(engine->checkpoint, err);
    if (status != PM_OK)
        return status;
    float *logits = engine->scheduled[0]->spare;
    size_t vocab = (size_t)engine->vocab;
    if (batch->n_outputs > 1) {
        size_t row;
        if (!pm_mul(vocab, sizeof(float), &row) ||
            pm_grow((void **)&engine->logits, &engine->logits_rows, (size_t)batch->n_outputs, row) != PM_OK)
            return pm_fail_memory(err);
        logits = engine->logits;
    }
    status = pm_model_step(engine->model, batch, logits, err);
    for (int i = 0; i < batch->n_segments; i++) {
        pm_session *session = engine->scheduled[i];
        int n = batch->segments[i].n;
        if (status != PM_OK) {
            pm_session_recover(session);
            continue;
        }
        float *rows = logits;
        logits += (session->task.logits ? (size_t)n : 1) * vocab;
        commit(session, n, rows);
    }
    return status;
}

static bool all_done(const pm_work *work, int n)
{
    for (int i = 0; i < n; i++)
        if (work[i].session->task.done < work[i].session->task.n)
            return false;
    return true;
}

/* True when one of the sessions was cancelled; its flag is cleared. */
static bool any_cancelled(const pm_work *work, int n)
{
    for (int i = 0; i < n; i++)
        if (pm_session_cancelled(work[i].session))
            return true;
    return false;
}

int pm_run_step(pm_engine *engine, const pm_work *work, int n, int *computed, pm_error *err)
{
    pm_batch batch = plan(engine, work, n);
    int status = batch.n_tokens ? advance(engine, &batch, err) : PM_OK;
    *computed = batch.n_tokens;
    return status;
}

int pm_run_tasks(pm_engine *engine, const pm_work *work, int n, const pm_sync_options *progress, size_t total,
                 pm_error *err)
{
    for (;;) {
        int computed;
        if (all_done(work, n))
            return PM_OK;
        if (any_cancelled(work, n))
            return pm_fail(err, PM_ERR_CANCELLED, "cancelled");
        int status = pm_run_step(engine, work, n, &computed, err);
        if (status != PM_OK)
            return status;
        if (progress && progress->progress)
            progress->progress(progress->user, work[0].session->length, total);
    }
}

int pm_engine_check_ids(const pm_engine *engine, const pm_token *ids, size_t n, pm_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= engine->vocab)
            return pm_fail(err, PM_ERR_INVALID, "token %zu is %d, outside the vocabulary of %d", i, (int)ids[i],
                           engine->vocab);
    return PM_OK;
}

/* Checks one piece of work and makes it its session's task. */
static int accept(pm_engine *engine, const pm_work *work, int i, pm_error *err)
{
    pm_session *session = work->session;
    if (!session || session->engine != engine)
        return pm_fail(err, PM_ERR_INVALID, "the session of work %d belongs to another engine", i);
    if (session->task.listed)
        return pm_fail(err, PM_ERR_INVALID, "the session of work %d is in the same call twice", i);
    if (!work->tokens || work->n == 0)
        return pm_fail(err, PM_ERR_INVALID, "work %d has no tokens", i);
    int status = pm_session_reserve(session, work->n, err);
    if (status == PM_OK)
        status = pm_engine_check_ids(engine, work->tokens, work->n, err);
    if (status != PM_OK)
        return status;
    session->task = (pm_task){.tokens = work->tokens, .n = work->n, .logits = work->logits, .listed = true};
    if (work->n > 1) { /* the end of a prompt, or of a part of one: such as that before the generation prompt */
        session->task.mark = session->length + work->n;
        session->turn = (pm_turn){.mark = session->turn.prompt, .prompt = session->task.mark};
    }
    return PM_OK;
}

int pm_step(pm_engine *engine, const pm_work *work, int n, pm_error *err)
{
    int status = PM_OK, accepted = 0;
    if (n < 0 || (n > 0 && !work))
        return pm_fail(err, PM_ERR_INVALID, "the list of work is missing");
    while (status == PM_OK && accepted < n) {
        status = accept(engine, &work[accepted], accepted, err);
        accepted += status == PM_OK;
    }
    if (status == PM_OK)
        status = pm_run_tasks(engine, work, n, NULL, 0, err);
    for (int i = 0; i < accepted; i++)
        work[i].session->task = (pm_task){0};
    return status;
}
