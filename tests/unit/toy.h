/* A toy for tests of sessions: a model whose logits are a hash of every token in order, and a backend whose rows and
 * states remember hashes. A cut, a copy or a piece that goes wrong anywhere gives other logits. A program that
 * includes it is linked so that calls of pm_model_step, pm_checkpoint_check and pm_checkpoint_count go to the toy. */
#ifndef TOY_H
#define TOY_H

#include "engine/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 16, CTX = 6000, STEP = 64, ROW_BYTES = 100, STATE_BYTES = 4000, FILE_ROW = 16 };

struct pm_rows {
    uint64_t *hash; /* after each token */
    int64_t n, cap;
};

struct pm_state {
    uint64_t hash;
};

typedef struct toy {
    int live;         /* rows and states that exist */
    int steps, fail;  /* steps so far; fail: the step that fails, 0: none */
    bool poisoned;    /* a step with the token VOCAB - 1 fails */
    int tokens, most; /* tokens computed so far, most in one step */
    uint64_t bytes;   /* of rows, shared or not, and states */
    pm_session *cancel;
} toy;

static toy world;

static uint64_t mix(uint64_t hash, int64_t pos, pm_token token)
{
    hash = (hash ^ (uint64_t)(pos * 1000003 + token + 1)) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
}

static int rows_new(pm_backend *backend, const pm_rows_spec *spec, pm_kv_type type, pm_rows **out, pm_error *err)
{
    (void)backend, (void)spec, (void)type, (void)err;
    *out = calloc(1, sizeof(pm_rows));
    (*out)->cap = CTX;
    (*out)->hash = calloc(CTX, sizeof(uint64_t));
    world.live++;
    return PM_OK;
}

static int rows_fork(pm_backend *backend, const pm_rows *rows, int64_t n, pm_rows **out, pm_error *err)
{
    rows_new(backend, NULL, PM_KV_F16, out, err);
    (*out)->n = n;
    world.bytes += (uint64_t)n * ROW_BYTES;
    memcpy((*out)->hash, rows->hash, (size_t)n * sizeof(uint64_t));
    return PM_OK;
}

static void rows_truncate(pm_backend *backend, pm_rows *rows, int64_t n)
{
    (void)backend;
    assert_true(n >= 0 && n <= rows->n);
    world.bytes -= (uint64_t)(rows->n - n) * ROW_BYTES;
    rows->n = n;
}

static int64_t rows_length(const pm_rows *rows)
{
    return rows->n;
}

static void rows_free(pm_backend *backend, pm_rows *rows)
{
    (void)backend;
    if (!rows)
        return;
    world.bytes -= (uint64_t)rows->n * ROW_BYTES;
    free(rows->hash);
    free(rows);
    world.live--;
}

static int state_new(pm_backend *backend, const pm_state_spec *spec, pm_state **out, pm_error *err)
{
    (void)backend, (void)spec, (void)err;
    *out = calloc(1, sizeof(pm_state));
    world.live++;
    world.bytes += STATE_BYTES;
    return PM_OK;
}

static void state_zero(pm_backend *backend, pm_state *state)
{
    (void)backend;
    state->hash = 0;
}

static void state_copy(pm_backend *backend, pm_state *to, const pm_state *from)
{
    (void)backend;
    *to = *from;
}

static uint64_t rows_bytes(const pm_rows_spec *spec, pm_kv_type type, int64_t tokens)
{
    (void)spec, (void)type;
    return (uint64_t)tokens * ROW_BYTES;
}

static uint64_t held(const pm_backend *backend)
{
    (void)backend;
    return world.bytes;
}

static void state_free(pm_backend *backend, pm_state *state)
{
    (void)backend;
    if (!state)
        return;
    free(state);
    world.live--;
    world.bytes -= STATE_BYTES;
}

static int rows_export(pm_backend *backend, const pm_rows *rows, int64_t first, int64_t n, void *out, pm_error *err)
{
    (void)backend, (void)err;
    assert_true(first >= 0 && first + n <= rows->n);
    memset(out, 0, (size_t)n * FILE_ROW);
    for (int64_t i = 0; i < n; i++)
        memcpy((char *)out + i * FILE_ROW, &rows->hash[first + i], sizeof(uint64_t));
    return PM_OK;
}

static int rows_import(pm_backend *backend, pm_rows *rows, int64_t n, const void *data, pm_error *err)
{
    (void)backend, (void)err;
    assert_true(rows->n + n <= rows->cap);
    for (int64_t i = 0; i < n; i++)
        memcpy(&rows->hash[rows->n + i], (const char *)data + i * FILE_ROW, sizeof(uint64_t));
    rows->n += n;
    world.bytes += (uint64_t)n * ROW_BYTES;
    return PM_OK;
}

static int state_export(pm_backend *backend, const pm_state *state, float *out, pm_error *err)
{
    (void)backend, (void)err;
    memset(out, 0, STATE_BYTES);
    memcpy(out, &state->hash, sizeof(uint64_t));
    return PM_OK;
}

static int state_import(pm_backend *backend, pm_state *state, const float *data, pm_error *err)
{
    (void)backend, (void)err;
    memcpy(&state->hash, data, sizeof(uint64_t));
    return PM_OK;
}

static const pm_backend_ops ops = {.name = "toy",
                                   .rows_new = rows_new,
                                   .rows_fork = rows_fork,
                                   .rows_truncate = rows_truncate,
                                   .rows_length = rows_length,
                                   .rows_free = rows_free,
                                   .rows_bytes = rows_bytes,
                                   .held = held,
                                   .rows_export = rows_export,
                                   .rows_import = rows_import,
                                   .state_export = state_export,
                                   .state_import = state_import,
                                   .state_new = state_new,
                                   .state_zero = state_zero,
                                   .state_copy = state_copy,
                                   .state_free = state_free};

static void logits_of(uint64_t rows, uint64_t state, float *out)
{
    for (int i = 0; i < VOCAB; i++)
        out[i] = (float)((mix(rows ^ (state << 1), i, 7) >> 40) & 0xffff);
}

static bool has_states; /* of the engine under test */

/* Takes the place of pm_model_step in this program. */
int __wrap_pm_model_step(pm_model *model, const pm_batch *batch, float *logits, pm_error *err);
int __wrap_pm_model_step(pm_model *model, const pm_batch *batch, float *logits, pm_error *err)
{
    (void)model;
    int output = 0;
    world.steps++;
    world.tokens += batch->n_tokens;
    world.most = batch->n_tokens > world.most ? batch->n_tokens : world.most;
    assert_true(batch->n_tokens >= 1 && batch->n_tokens <= STEP);
    for (int s = 0; s < batch->n_segments; s++) {
        const pm_segment *segment = &batch->segments[s];
        pm_rows *rows = segment->rows[0];
        assert_int_equal(segment->first, s ? batch->segments[s - 1].first + batch->segments[s - 1].n : 0);
        assert_int_equal(rows->n, segment->pos);
        for (int i = segment->first; i < segment->first + segment->n; i++) {
            uint64_t state = 0;
            assert_true(rows->n < rows->cap);
            rows->hash[rows->n] = mix(rows->n ? rows->hash[rows->n - 1] : 0, rows->n, batch->tokens[i]);
            if (has_states) {
                segment->states[0]->hash = mix(segment->states[0]->hash, rows->n, batch->tokens[i]);
                state = segment->states[0]->hash;
            }
            rows->n++;
            world.bytes += ROW_BYTES;
            if (output < batch->n_outputs && batch->outputs[output] == i)
                logits_of(rows->hash[rows->n - 1], state, logits + (size_t)output++ * VOCAB);
        }
    }
    assert_int_equal(output, batch->n_outputs);
    if (world.cancel)
        pm_session_cancel(world.cancel);
    bool poisoned = false;
    for (int i = 0; i < batch->n_tokens; i++)
        poisoned |= world.poisoned && batch->tokens[i] == VOCAB - 1;
    if (world.steps == world.fail || poisoned) {
        for (int i = 0; has_states && i < batch->n_segments; i++)
            batch->segments[i].states[0]->hash ^= 0x5555;
        memset(logits, 0xff, (size_t)batch->n_outputs * VOCAB * sizeof(float));
        return pm_fail(err, PM_ERR_NUMERIC, "the toy failed");
    }
    return PM_OK;
}

int __wrap_pm_checkpoint_check(const pm_checkpoint *checkpoint, pm_error *err);
int __wrap_pm_checkpoint_check(const pm_checkpoint *checkpoint, pm_error *err)
{
    (void)checkpoint, (void)err;
    return PM_OK;
}

size_t __wrap_pm_checkpoint_count(const pm_checkpoint *checkpoint);
size_t __wrap_pm_checkpoint_count(const pm_checkpoint *checkpoint)
{
    (void)checkpoint;
    return 0;
}

static pm_backend backend = {&ops};
static const pm_rows_spec rows_spec = {1, 2, 4, 0};
static const pm_state_spec state_spec = {STATE_BYTES / sizeof(float)};
static const pm_cache_spec with_states = {1, 1, &rows_spec, &state_spec};
static const pm_cache_spec without_states = {1, 0, &rows_spec, NULL};

static pm_engine *new_engine(bool states)
{
    pm_engine *engine = calloc(1, sizeof(*engine));
    has_states = states;
    world = (toy){0};
    *engine = (pm_engine){.backend = &backend,
                          .cache = states ? &with_states : &without_states,
                          .vocab = VOCAB,
                          .ctx = CTX,
                          .step_tokens = STEP,
                          .snapshot_stride = PM_SNAPSHOT_STRIDE,
                          .tokens = calloc(STEP, sizeof(pm_token)),
                          .segments = calloc(STEP, sizeof(pm_segment)),
                          .outputs = calloc(STEP, sizeof(int)),
                          .scheduled = calloc(STEP, sizeof(pm_session *))};
    return engine;
}

static void free_engine(pm_engine *engine)
{
    assert_int_equal(world.live, 0);
    free(engine->tokens);
    free(engine->segments);
    free(engine->outputs);
    free(engine->scheduled);
    free(engine->logits);
    free(engine);
}

static pm_session *new_session(pm_engine *engine)
{
    pm_session *session;
    assert_int_equal(pm_session_new(&session, engine, NULL), PM_OK);
    return session;
}

static unsigned seed = 1;

static int rnd(int n)
{
    seed = seed * 1103515245u + 12345u;
    return (int)((seed >> 16) % (unsigned)n);
}

static void random_ids(pm_token *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = rnd(VOCAB);
}

#endif
