/* Two backends side by side, the scalar CPU kernels and MLX: a case runs one operation on both, over steps of ragged
 * batches, with the same random inputs, and what comes out and what is left in rows and states is compared. */
#ifndef TEST_SIDES_H
#define TEST_SIDES_H

#include "ops/matrices.h"

#include <math.h>

enum {
    CPU,
    MLX,
    SIDES,
    SEQUENCES = 2,
    STEPS = 5,
    TOKENS = 13,
    MOST = 1 << 16,
    MAX_MADE = 64,
    MAX_SLOTS = 2,
    MAX_WEIGHTS = 64
};

/* New tokens of each sequence, step by step: chunks, one beside many, decoding. */
static const int schedule[STEPS][SEQUENCES] = {{7, 0}, {1, 9}, {3, 1}, {1, 1}, {12, 1}};

/* Both backends, and what a case has made on the one at hand. */
typedef struct world {
    pm_backend *backend[SIDES];
    int side, step, made;
    uint64_t drawn; /* tensors and matrices of this step, the same on both sides */
    pm_tensor *tensors[MAX_MADE], *outs[MAX_MADE];
    int out_cols[MAX_MADE], n_outs;
    test_matrix matrices[MAX_WEIGHTS];
    int n_matrices;
    pm_weight *weights[MAX_MADE];
    int n_weights;
    pm_indices *indices[SIDES];
    pm_rows *rows[SIDES][SEQUENCES][MAX_SLOTS];
    pm_state *states[SIDES][SEQUENCES][MAX_SLOTS];
} world;

/* ---- what a case makes ---- */

static inline float *random_floats(uint64_t seed, size_t n, float scale)
{
    test_random r = {seed};
    float *x = malloc(n * sizeof(*x));
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = scale * random_float(&r);
    return x;
}

static inline pm_tensor *keep(world *w, pm_tensor *tensor)
{
    assert_true(w->made < MAX_MADE);
    return w->tensors[w->made++] = tensor;
}

static inline pm_tensor *drawn(world *w, uint64_t seed, int rows, int cols, float scale, float shift)
{
    float *x = random_floats(seed, (size_t)rows * (size_t)cols, scale);
    for (int i = 0; i < rows * cols; i++)
        x[i] += shift;
    pm_tensor *tensor = keep(w, tensor_new(w->backend[w->side], rows, cols, x));
    free(x);
    return tensor;
}

/* Activations, others at every step. */
static inline pm_tensor *input(world *w, int rows, int cols, float scale)
{
    return drawn(w, 1000 + 100 * (uint64_t)w->step + w->drawn++, rows, cols, scale, 0);
}

/* Parameters, the same at every step: around `shift`. */
static inline pm_tensor *parameter(world *w, int rows, int cols, float scale, float shift)
{
    return drawn(w, 1 + w->drawn++, rows, cols, scale, shift);
}

/* Compared after both sides have run. */
static inline pm_tensor *output(world *w, int rows, int cols)
{
    assert_true(w->n_outs < MAX_MADE);
    w->out_cols[w->n_outs] = cols;
    return w->outs[w->n_outs++] = keep(w, tensor_new(w->backend[w->side], rows, cols, NULL));
}

/* n matrices of a kind, not yet loaded. */
static inline pm_weight *matrices(world *w, const test_kind *kind, int n, int out, int in)
{
    assert_true(w->n_weights < MAX_MADE);
    test_random r = {77 + w->drawn++};
    pm_weight *weights = calloc((size_t)n, sizeof(*weights));
    assert_non_null(weights);
    for (int i = 0; i < n; i++) {
        assert_true(w->n_matrices < MAX_WEIGHTS);
        test_matrix *m = &w->matrices[w->n_matrices++];
        *m = matrix_new(&r, kind, CONTENTS_RANDOM, out, in);
        weights[i] = m->w;
    }
    w->weights[w->n_weights++] = weights;
    return weights;
}

static inline void load(world *w, pm_weight *weights, int n)
{
    pm_backend *backend = w->backend[w->side];
    pm_error err;
    for (int i = 0; i < n; i++)
        if (backend->ops->weight_prepare(backend, &weights[i], &err) != PM_OK)
            fail_msg("weight_prepare: %s", err.message);
    if (backend->ops->weights_load && backend->ops->weights_load(backend, weights, n, &err) != PM_OK)
        fail_msg("weights_load: %s", err.message);
}

static inline pm_weight *loaded(world *w, const test_kind *kind, int n, int out, int in)
{
    pm_weight *weights = matrices(w, kind, n, out, in);
    load(w, weights, n);
    return weights;
}

static inline void must(world *w, int status, const pm_error *err)
{
    if (status != PM_OK)
        fail_msg("step %d on %s: %s", w->step, w->backend[w->side]->ops->name, err->message);
}

/* ---- running a case ---- */

typedef struct op_case {
    const char *name;
    void (*run)(world *w, const pm_batch *batch, const void *how);
    const void *how;
    pm_rows_spec rows[MAX_SLOTS];
    int n_states;
    pm_state_spec states[MAX_SLOTS];
    pm_kv_type type;
    float tolerance; /* relative to the largest magnitude; 0: 1e-4 */
} op_case;

static inline world *world_new(void)
{
    world *w = calloc(1, sizeof(*w));
    pm_error err;
    assert_non_null(w);
    w->backend[CPU] = backend_new(1, PM_SIMD_SCALAR);
    if (pm_backend_mlx_new(&w->backend[MLX], false, &err) != PM_OK)
        fail_msg("MLX: %s", err.message);
    return w;
}

static inline void world_caches(world *w, const op_case *c)
{
    for (int side = 0; side < SIDES; side++)
        for (int s = 0; s < SEQUENCES; s++)
            for (int i = 0; i < MAX_SLOTS; i++) {
                pm_backend *b = w->backend[side];
                if (c->rows[i].planes)
                    assert_int_equal(b->ops->rows_new(b, &c->rows[i], c->type, &w->rows[side][s][i], NULL), PM_OK);
                if (i < c->n_states)
                    assert_int_equal(b->ops->state_new(b, &c->states[i], &w->states[side][s][i], NULL), PM_OK);
            }
}

static inline void forget(world *w)
{
    for (int i = 0; i < w->made; i++)
        w->backend[w->side]->ops->tensor_free(w->backend[w->side], w->tensors[i]);
    for (int i = 0; i < w->n_matrices; i++)
        matrix_free(&w->matrices[i]);
    for (int i = 0; i < w->n_weights; i++)
        free(w->weights[i]);
    w->made = w->n_outs = w->n_matrices = w->n_weights = 0;
    w->drawn = 0;
}

static inline void world_free(world *w)
{
    for (int side = 0; side < SIDES; side++) {
        pm_backend *b = w->backend[side];
        for (int s = 0; s < SEQUENCES; s++)
            for (int i = 0; i < MAX_SLOTS; i++) {
                b->ops->rows_free(b, w->rows[side][s][i]);
                b->ops->state_free(b, w->states[side][s][i]);
            }
        if (w->indices[side])
            b->ops->indices_free(b, w->indices[side]);
        b->ops->free(b);
    }
    free(w);
}

/* Fails where the two are further apart than the tolerance times the largest of the first. */
static inline void assert_near(const op_case *c, const char *what, int step, const float *cpu, const float *mlx,
                               size_t n)
{
    double most = 0, tolerance = c->tolerance > 0 ? (double)c->tolerance : 1e-4;
    for (size_t i = 0; i < n; i++)
        if (isfinite(cpu[i]))
            most = fmax(most, fabs((double)cpu[i]));
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)cpu[i] - mlx[i]) <= tolerance * most) && cpu[i] != mlx[i])
            fail_msg("%s: %s, step %d: element %zu of %zu is %g on the CPU and %g on MLX (largest: %g)", c->name, what,
                     step, i, n, (double)cpu[i], (double)mlx[i], most);
}

static inline void compare_states(const op_case *c, const world *w, int s, int slot)
{
    size_t n = (size_t)c->states[slot].count;
    float *x[SIDES];
    for (int side = 0; side < SIDES; side++) {
        pm_backend *b = w->backend[side];
        x[side] = malloc((n + 1) * sizeof(float));
        assert_int_equal(b->ops->state_export(b, w->states[side][s][slot], x[side], NULL), PM_OK);
    }
    assert_near(c, "state", STEPS, x[CPU], x[MLX], n);
    free(x[CPU]);
    free(x[MLX]);
}

/* Rows of both sides; and what the CPU exports comes back out of MLX bit for bit. */
static inline void compare_rows(const op_case *c, const world *w, int s, int slot)
{
    const pm_rows_spec *spec = &c->rows[slot];
    int64_t length = w->backend[CPU]->ops->rows_length(w->rows[CPU][s][slot]);
    assert_int_equal(w->backend[MLX]->ops->rows_length(w->rows[MLX][s][slot]), length);
    size_t n = (size_t)length * (size_t)spec->planes * (size_t)spec->width, bytes = n * (c->type == PM_KV_F32 ? 4 : 2);
    float *floats[SIDES];
    void *raw[SIDES];
    for (int side = 0; side < SIDES; side++) {
        pm_backend *b = w->backend[side];
        raw[side] = malloc(bytes + 1);
        floats[side] = malloc((n + 1) * sizeof(float));
        assert_int_equal(b->ops->rows_export(b, w->rows[side][s][slot], 0, length, raw[side], NULL), PM_OK);
        for (size_t i = 0; i < n; i++)
            floats[side][i] = c->type == PM_KV_F32 ? ((float *)raw[side])[i] : pm_from_f16(((uint16_t *)raw[side])[i]);
    }
    assert_near(c, "rows", STEPS, floats[CPU], floats[MLX], n);
    pm_backend *b = w->backend[MLX];
    pm_rows *copy;
    assert_int_equal(b->ops->rows_new(b, spec, c->type, &copy, NULL), PM_OK);
    assert_int_equal(b->ops->rows_import(b, copy, length / 2, raw[CPU], NULL), PM_OK);
    assert_int_equal(
        b->ops->rows_import(b, copy, length - length / 2,
                            (char *)raw[CPU] + bytes / (size_t)(length ? length : 1) * (size_t)(length / 2), NULL),
        PM_OK);
    assert_int_equal(b->ops->rows_export(b, copy, 0, length, raw[MLX], NULL), PM_OK);
    assert_memory_equal(raw[CPU], raw[MLX], bytes);
    b->ops->rows_free(b, copy);
    for (int side = 0; side < SIDES; side++) {
        free(raw[side]);
        free(floats[side]);
    }
}

/* One step on one side; what it puts out follows one another in `to`. Returns how many floats. */
static inline size_t run_side(world *w, const op_case *c, const int64_t *pos, float *to)
{
    pm_segment segments[SEQUENCES];
    pm_token tokens[TOKENS];
    int outputs[SEQUENCES];
    pm_batch batch = {.tokens = tokens, .segments = segments, .outputs = outputs};
    for (int s = 0; s < SEQUENCES; s++) {
        int n = schedule[w->step][s];
        if (!n)
            continue;
        segments[batch.n_segments++] =
            (pm_segment){batch.n_tokens, n, pos[s], w->rows[w->side][s], w->states[w->side][s]};
        for (int i = 0; i < n; i++)
            tokens[batch.n_tokens++] = (pm_token)((pos[s] + i) * 7 % 19);
        outputs[batch.n_outputs++] = batch.n_tokens - 1;
    }
    c->run(w, &batch, c->how);
    size_t n = 0;
    for (int i = 0; i < w->n_outs; i++) {
        assert_true(n + (size_t)batch.n_tokens * (size_t)w->out_cols[i] <= MOST);
        assert_int_equal(
            w->backend[w->side]->ops->tensor_read(w->backend[w->side], w->outs[i], 0, batch.n_tokens, to + n, NULL),
            PM_OK);
        n += (size_t)batch.n_tokens * (size_t)w->out_cols[i];
    }
    forget(w);
    return n;
}

static inline void run_case(const op_case *c)
{
    world *w = world_new();
    int64_t pos[SEQUENCES] = {0};
    float *out[SIDES] = {malloc(MOST * sizeof(float)), malloc(MOST * sizeof(float))};
    world_caches(w, c);
    for (w->step = 0; w->step < STEPS; w->step++) {
        size_t n[SIDES];
        for (w->side = 0; w->side < SIDES; w->side++)
            n[w->side] = run_side(w, c, pos, out[w->side]);
        assert_int_equal(n[CPU], n[MLX]);
        assert_true(n[CPU] > 0);
        assert_near(c, "output", w->step, out[CPU], out[MLX], n[CPU]);
        for (int s = 0; s < SEQUENCES; s++)
            pos[s] += schedule[w->step][s];
    }
    for (int s = 0; s < SEQUENCES; s++)
        for (int i = 0; i < MAX_SLOTS; i++) {
            if (c->rows[i].planes)
                compare_rows(c, w, s, i);
            if (i < c->n_states)
                compare_states(c, w, s, i);
        }
    free(out[CPU]);
    free(out[MLX]);
    world_free(w);
}

#endif
