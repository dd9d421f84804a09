/* Attention over a window and compressed rows, and the index over such rows (DeepSeek-V4), against a plain computation
 * in double, and the same bits however the work is cut. The compressed rows are random and imported. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/mixer.h"
#include "ops.h"

typedef struct problem {
    int heads, dim, pairs, window, ratio, length; /* ratio 0: no compressed rows */
    int top_k, index_heads, index_dim;            /* top_k 0: all of them */
    bool normed, sinks;
    pm_kv_type type;
} problem;

/* A sequence: inputs [length, ..], rows [length / ratio, ..], outputs [length, heads * dim] and the rows chosen. */
typedef struct sequence {
    float *q, *kv, *blocks, *index_q, *weights, *index_rows, *out;
    int32_t *chosen; /* [length, top_k] */
    int *count;      /* [length] */
} sequence;

typedef struct parameters {
    float *norm, *sinks, *inv_freq;
} parameters;

static const float eps = 1e-6f;

static int blocks_of(const problem *p)
{
    return p->ratio ? p->length / p->ratio : 0;
}

/* Vectors as the cache keeps them. */
static float *cached_array(const problem *p, uint64_t *seed, size_t n, int width)
{
    float *x = random_array(seed, n * (size_t)width, 1);
    double *row = must_alloc((size_t)width * sizeof *row);
    for (size_t at = 0; at < n * (size_t)width; at += (size_t)width) {
        for (int i = 0; i < width; i++)
            row[i] = (double)x[at + (size_t)i];
        as_stored(p->type, row, width);
        for (int i = 0; i < width; i++)
            x[at + (size_t)i] = (float)row[i];
    }
    free(row);
    return x;
}

static sequence new_sequence(const problem *p, uint64_t *seed)
{
    size_t n = (size_t)p->length, all = (size_t)(p->heads * p->dim), blocks = (size_t)blocks_of(p);
    size_t index = (size_t)(p->index_heads * p->index_dim);
    return (sequence){random_array(seed, n * all, 2),
                      random_array(seed, n * (size_t)p->dim, 2),
                      cached_array(p, seed, blocks, p->dim),
                      random_array(seed, n * index, 2),
                      random_array(seed, n * (size_t)p->index_heads, 2),
                      cached_array(p, seed, blocks, p->index_dim),
                      must_alloc(n * all * sizeof(float)),
                      must_alloc(n * (size_t)(p->top_k + 1) * sizeof(int32_t)),
                      must_alloc(n * sizeof(int))};
}

static void free_sequence(sequence *s)
{
    void *all[] = {s->q, s->kv, s->blocks, s->index_q, s->weights, s->index_rows, s->out, s->chosen, s->count};
    for (size_t i = 0; i < PM_COUNT(all); i++)
        free(all[i]);
}

static parameters new_parameters(const problem *p, uint64_t *seed)
{
    parameters w = {random_array(seed, (size_t)p->dim, 1), random_array(seed, (size_t)p->heads, 3),
                    must_alloc((size_t)p->pairs * sizeof(float))};
    for (int i = 0; i < p->pairs; i++)
        w.inv_freq[i] = powf(100.0f, -(float)i / (float)p->pairs);
    return w;
}

static void free_parameters(parameters *w)
{
    free(w->norm);
    free(w->sinks);
    free(w->inv_freq);
}

/* ---- running ---- */

enum { WINDOW, BLOCKS, INDEX, SLOTS };

static void import(pm_backend *backend, const problem *p, pm_rows *rows, const float *from, int64_t n, int width)
{
    size_t bytes = pm_kv_bytes(p->type, width);
    char *data = must_alloc((size_t)n * bytes);
    for (int64_t i = 0; i < n; i++, from += width) {
        char *to = data + (size_t)i * bytes;
        if (p->type == PM_KV_F16)
            pm_scalar_narrow(from, (uint16_t *)(void *)to, (size_t)width);
        else if (p->type == PM_KV_Q8)
            pm_scalar_pack(from, to, width);
        else
            memcpy(to, from, bytes);
    }
    assert_int_equal(backend->ops->rows_import(backend, rows, n, data, NULL), PM_OK);
    free(data);
}

static pm_rope rope_of(const problem *p, const parameters *w, int width)
{
    return (pm_rope){
        .first = width - 2 * p->pairs, .pairs = p->pairs, .interleaved = true, .inv_freq = w->inv_freq, .scale = 1.0f};
}

static pm_tensor *part(pm_backend *backend, const float *from, int first, int n, int width)
{
    return new_tensor(backend, n, width, from + (size_t)first * (size_t)width);
}

static void choose(pm_backend *backend, const problem *p, const parameters *w, sequence *s, const pm_batch *batch,
                   int first, pm_indices *chosen)
{
    int n = batch->n_tokens;
    pm_rope rope = rope_of(p, w, p->index_dim);
    pm_tensor *q = part(backend, s->index_q, first, n, p->index_heads * p->index_dim);
    pm_tensor *weights = part(backend, s->weights, first, n, p->index_heads);
    pm_sparse_index_args args = {.q = q,
                                 .weights = weights,
                                 .rope = &rope,
                                 .eps = eps,
                                 .scale = 0.125f,
                                 .weight_scale = 0.5f,
                                 .heads = p->index_heads,
                                 .head_dim = p->index_dim,
                                 .top_k = p->top_k,
                                 .rows = INDEX,
                                 .ratio = p->ratio,
                                 .out = chosen};
    assert_int_equal(backend->ops->sparse_index(backend, batch, &args, NULL), PM_OK);
    for (int t = 0; t < n; t++)
        s->count[first + t] = backend->ops->indices_read(chosen, t, s->chosen + (first + t) * p->top_k);
    backend->ops->tensor_free(backend, q);
    backend->ops->tensor_free(backend, weights);
}

/* Tokens [first, first + n); the compressed rows that they complete come first, as the family does it. */
static void step(pm_backend *backend, const problem *p, const parameters *w, sequence *s, pm_rows **rows, int first,
                 int n)
{
    const pm_backend_ops *op = backend->ops;
    pm_segment segment = {.n = n, .pos = first, .rows = rows};
    pm_batch batch = {.n_tokens = n, .n_segments = 1, .segments = &segment};
    pm_rope rope = rope_of(p, w, p->dim);
    pm_tensor *q = part(backend, s->q, first, n, p->heads * p->dim), *kv = part(backend, s->kv, first, n, p->dim);
    pm_tensor *norm = new_tensor(backend, 1, p->dim, w->norm), *sinks = new_tensor(backend, 1, p->heads, w->sinks);
    pm_tensor *out = new_tensor(backend, n, p->heads * p->dim, NULL);
    pm_indices *chosen = NULL;
    if (p->ratio) {
        int64_t from = first / p->ratio, more = (first + n) / p->ratio - from;
        import(backend, p, rows[BLOCKS], s->blocks + from * p->dim, more, p->dim);
        import(backend, p, rows[INDEX], s->index_rows + from * p->index_dim, more, p->index_dim);
    }
    if (p->top_k) {
        assert_int_equal(op->indices_new(backend, n, p->top_k, &chosen, NULL), PM_OK);
        choose(backend, p, w, s, &batch, first, chosen);
    }
    pm_latent_attention_args args = {.q = q,
                                     .q_normed = p->normed,
                                     .kv = kv,
                                     .kv_norm = norm,
                                     .rope = &rope,
                                     .sinks = p->sinks ? sinks : NULL,
                                     .eps = eps,
                                     .scale = 1 / sqrtf((float)p->dim),
                                     .heads = p->heads,
                                     .width = p->dim,
                                     .value_width = p->dim,
                                     .window = p->window,
                                     .rows = WINDOW,
                                     .blocks = BLOCKS,
                                     .ratio = p->ratio,
                                     .chosen = chosen,
                                     .top_k = p->top_k,
                                     .unrotate = true,
                                     .out = out};
    assert_int_equal(op->latent_attention(backend, &batch, &args, NULL), PM_OK);
    assert_int_equal(op->tensor_read(backend, out, 0, n, s->out + first * p->heads * p->dim, NULL), PM_OK);
    pm_tensor *all[] = {q, kv, norm, sinks, out};
    for (size_t i = 0; i < PM_COUNT(all); i++)
        op->tensor_free(backend, all[i]);
    op->indices_free(backend, chosen);
}

static void run(pm_backend *backend, const problem *p, const parameters *w, sequence *s, int chunk)
{
    pm_rows *rows[SLOTS];
    const pm_rows_spec specs[SLOTS] = {{.ratio = 1, .planes = 1, .width = p->dim, .window = p->window},
                                       {.ratio = p->ratio ? p->ratio : 1, .planes = 1, .width = p->dim},
                                       {.ratio = p->ratio ? p->ratio : 1, .planes = 1, .width = p->index_dim}};
    for (int i = 0; i < SLOTS; i++)
        assert_int_equal(backend->ops->rows_new(backend, &specs[i], p->type, &rows[i], NULL), PM_OK);
    for (int first = 0; first < p->length; first += chunk)
        step(backend, p, w, s, rows, first, chunk < p->length - first ? chunk : p->length - first);
    for (int i = 0; i < SLOTS; i++)
        backend->ops->rows_free(backend, rows[i]);
}

/* ---- in double ---- */

/* Turns the last pairs of a head by its position, or back. */
static void turn(const problem *p, const parameters *w, int position, int width, double *x, int way)
{
    for (int i = 0; i < p->pairs; i++) {
        double angle = (double)((float)position * w->inv_freq[i]), s = way * sin(angle), c = cos(angle);
        double *a = x + width - 2 * p->pairs + 2 * i, turned = a[0] * c - a[1] * s;
        a[1] = a[1] * c + a[0] * s;
        a[0] = turned;
    }
}

static double rms(const float *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return 1 / sqrt(sum / n + (double)eps);
}

/* The key of a position, or a compressed row. */
static void key_of(const problem *p, const parameters *w, const sequence *s, int position, double *out)
{
    const float *kv = s->kv + position * p->dim;
    double r = rms(kv, p->dim);
    for (int i = 0; i < p->dim; i++)
        out[i] = (double)kv[i] * r * (double)w->norm[i];
    turn(p, w, position, p->dim, out, 1);
    as_stored(p->type, out, p->dim);
}

static double index_score(const problem *p, const parameters *w, const sequence *s, int t, int row)
{
    double score = 0, q[64];
    for (int h = 0; h < p->index_heads; h++) {
        double dot = 0;
        for (int i = 0; i < p->index_dim; i++)
            q[i] = (double)s->index_q[(t * p->index_heads + h) * p->index_dim + i];
        turn(p, w, t, p->index_dim, q, 1);
        for (int i = 0; i < p->index_dim; i++)
            dot += q[i] * (double)s->index_rows[row * p->index_dim + i];
        score += (double)s->weights[t * p->index_heads + h] * 0.5 * fmax(0.125 * dot, 0);
    }
    return score;
}

/* Whether token t attends to a compressed row. */
static bool sees(const problem *p, const sequence *s, int t, int row)
{
    if (row >= (t + 1) / p->ratio)
        return false;
    for (int i = 0; p->top_k && i < s->count[t]; i++)
        if (s->chosen[t * p->top_k + i] == row)
            return true;
    return !p->top_k;
}

static void naive(const problem *p, const parameters *w, const sequence *s, int t, int head, double *out)
{
    const float *x = s->q + (t * p->heads + head) * p->dim;
    double q[128], k[128], r = p->normed ? rms(x, p->dim) : 1, sum = 0;
    for (int i = 0; i < p->dim; i++) {
        q[i] = (double)x[i] * r;
        out[i] = 0;
    }
    turn(p, w, t, p->dim, q, 1);
    for (int row = -p->length; row < blocks_of(p); row++) {
        double score = 0;
        int position = row + p->length; /* negative rows: positions of the window */
        if (row < 0 ? position > t || (p->window && position <= t - p->window) : !sees(p, s, t, row))
            continue;
        if (row < 0)
            key_of(p, w, s, position, k);
        for (int i = 0; row >= 0 && i < p->dim; i++)
            k[i] = (double)s->blocks[row * p->dim + i];
        for (int i = 0; i < p->dim; i++)
            score += q[i] * k[i];
        score = exp(score / sqrt(p->dim));
        sum += score;
        for (int i = 0; i < p->dim; i++)
            out[i] += score * k[i];
    }
    sum += p->sinks ? exp((double)w->sinks[head]) : 0;
    for (int i = 0; i < p->dim; i++)
        out[i] /= sum;
    turn(p, w, t, p->dim, out, -1);
}

/* ---- tests ---- */

static const problem problems[] = {
    {2, 32, 8, 6, 4, 40, 3, 2, 16, true, true, PM_KV_F32},    /* sparse, heads that tile tokens */
    {40, 16, 4, 5, 4, 30, 2, 3, 12, true, true, PM_KV_F16},   /* more heads than a tile */
    {3, 80, 16, 70, 8, 150, 0, 1, 32, true, true, PM_KV_F32}, /* a window wider than a block, all rows */
    {4, 24, 4, 9, 0, 50, 0, 1, 8, true, true, PM_KV_F16},     /* a window alone */
    {4, 24, 4, 0, 0, 70, 0, 1, 8, false, false, PM_KV_F32},
    {1, 8, 1, 3, 1, 140, 66, 2, 8, false, true, PM_KV_F32}, /* more chosen than a block holds */
    {3, 80, 16, 7, 4, 60, 5, 2, 32, true, true, PM_KV_Q8},
};

static void test_against_double(void **state)
{
    (void)state;
    for (size_t i = 0; i < PM_COUNT(problems); i++) {
        const problem *p = &problems[i];
        uint64_t seed = 500 + i;
        parameters w = new_parameters(p, &seed);
        sequence s = new_sequence(p, &seed);
        pm_backend *backend = cpu_backend(1, PM_SIMD_SCALAR);
        double want[128];
        run(backend, p, &w, &s, p->length);
        for (int t = 0; t < p->length; t++)
            for (int h = 0; h < p->heads; h++) {
                naive(p, &w, &s, t, h, want);
                for (int d = 0; d < p->dim; d++) {
                    double got = (double)s.out[(t * p->heads + h) * p->dim + d];
                    if (!(fabs(got - want[d]) <= stored_tolerance(p->type)))
                        fail_msg("problem %zu: token %d, head %d, element %d is %g, expected %g", i, t, h, d, got,
                                 want[d]);
                }
            }
        free_sequence(&s);
        free_parameters(&w);
        backend->ops->free(backend);
    }
}

/* The chosen rows are ascending and none that was left out scores more; all are chosen while there are no more. */
static void test_the_best_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < PM_COUNT(problems); i++) {
        const problem *p = &problems[i];
        uint64_t seed = 500 + i;
        parameters w = new_parameters(p, &seed);
        sequence s = new_sequence(p, &seed);
        pm_backend *backend = cpu_backend(1, PM_SIMD_BEST);
        run(backend, p, &w, &s, p->length);
        for (int t = 0; p->top_k && t < p->length; t++) {
            int rows = (t + 1) / p->ratio, n = s.count[t];
            const int32_t *chosen = s.chosen + t * p->top_k;
            double worst = INFINITY;
            assert_int_equal(n, rows < p->top_k ? rows : p->top_k);
            for (int j = 0; j < n; j++) {
                assert_true(chosen[j] >= 0 && chosen[j] < rows && (!j || chosen[j] > chosen[j - 1]));
                worst = fmin(worst, index_score(p, &w, &s, t, chosen[j]));
            }
            for (int row = 0; row < rows; row++)
                if (!sees(p, &s, t, row) && index_score(p, &w, &s, t, row) > worst + 1e-5)
                    fail_msg("problem %zu: token %d leaves row %d out, which is better than one chosen", i, t, row);
        }
        free_sequence(&s);
        free_parameters(&w);
        backend->ops->free(backend);
    }
}

static void test_same_bits(void **state)
{
    (void)state;
    static const int chunks[] = {1000, 1, 3, 7, 64};
    for (size_t i = 0; i < PM_COUNT(problems); i++) {
        const problem *p = &problems[i];
        uint64_t seed = 600 + i;
        parameters w = new_parameters(p, &seed);
        sequence s = new_sequence(p, &seed);
        size_t n = (size_t)(p->length * p->heads * p->dim);
        float *want = must_alloc(n * sizeof *want);
        pm_backend *reference = cpu_backend(1, PM_SIMD_SCALAR);
        run(reference, p, &w, &s, 1000);
        memcpy(want, s.out, n * sizeof *want);
        reference->ops->free(reference);
        for (int k = 0; k < count_settings(); k++) {
            pm_backend *backend = cpu_backend(settings[k].threads, settings[k].simd);
            for (size_t c = 0; c < PM_COUNT(chunks); c += EVERY) {
                run(backend, p, &w, &s, chunks[c]);
                assert_same_bits("out", s.out, want, n);
            }
            backend->ops->free(backend);
        }
        free(want);
        free_sequence(&s);
        free_parameters(&w);
    }
}

/* An index that chooses all rows gives the bits of none. */
static void test_all_chosen_is_all(void **state)
{
    (void)state;
    problem p = problems[0], all;
    p.top_k = 100;
    all = p;
    all.top_k = 0;
    uint64_t seed = 700;
    parameters w = new_parameters(&p, &seed);
    sequence s = new_sequence(&p, &seed);
    size_t n = (size_t)(p.length * p.heads * p.dim);
    float *want = must_alloc(n * sizeof *want);
    pm_backend *backend = cpu_backend(1, PM_SIMD_BEST);
    run(backend, &all, &w, &s, 7);
    memcpy(want, s.out, n * sizeof *want);
    run(backend, &p, &w, &s, 7);
    assert_same_bits("out", s.out, want, n);
    backend->ops->free(backend);
    free(want);
    free_sequence(&s);
    free_parameters(&w);
}

/* One token far into a context: of the quarter of a million compressed rows the best are found, wherever they lie. */
static void test_far_position(void **state)
{
    (void)state;
    enum { FAR = 1000003 };
    const problem p = {1, 8, 2, 5, 4, FAR + 1, 3, 1, 8, true, true, PM_KV_F32};
    uint64_t seed = 800;
    parameters w = new_parameters(&p, &seed);
    sequence s = new_sequence(&p, &seed);
    pm_backend *backend = cpu_backend(2, PM_SIMD_BEST);
    pm_rows *rows[SLOTS];
    float *keys = must_alloc(FAR * 8 * sizeof *keys); /* only those of the window are looked at */
    double want[8];
    for (int position = FAR - 5; position < FAR; position++) {
        key_of(&p, &w, &s, position, want);
        for (int i = 0; i < 8; i++)
            keys[position * 8 + i] = (float)want[i];
    }
    for (int i = 0; i < SLOTS; i++) {
        pm_rows_spec spec = {.ratio = i == WINDOW ? 1 : 4, .planes = 1, .width = 8};
        assert_int_equal(backend->ops->rows_new(backend, &spec, p.type, &rows[i], NULL), PM_OK);
        const float *from = i == WINDOW ? keys : i == BLOCKS ? s.blocks : s.index_rows;
        import(backend, &p, rows[i], from, FAR / spec.ratio, 8);
    }
    step(backend, &p, &w, &s, rows, FAR, 1);
    const int32_t *chosen = s.chosen + FAR * p.top_k;
    double worst = INFINITY;
    assert_int_equal(s.count[FAR], 3);
    for (int j = 0; j < 3; j++)
        worst = fmin(worst, index_score(&p, &w, &s, FAR, chosen[j]));
    for (int row = 0; row < (FAR + 1) / 4; row++)
        if (!sees(&p, &s, FAR, row) && index_score(&p, &w, &s, FAR, row) > worst + 1e-5)
            fail_msg("row %d is better than one chosen", row);
    naive(&p, &w, &s, FAR, 0, want);
    for (int d = 0; d < 8; d++)
        if (!(fabs((double)s.out[FAR * 8 + d] - want[d]) <= 1e-5))
            fail_msg("element %d is %g, expected %g", d, (double)s.out[FAR * 8 + d], want[d]);
    for (int i = 0; i < SLOTS; i++)
        backend->ops->rows_free(backend, rows[i]);
    free(keys);
    free_sequence(&s);
    free_parameters(&w);
    backend->ops->free(backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_double), cmocka_unit_test(test_the_best_rows),
        cmocka_unit_test(test_same_bits),      cmocka_unit_test(test_all_chosen_is_all),
        cmocka_unit_test(test_far_position),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
