/* Latent attention and the sparse index against plain computations in double, and the same bits however the work is
 * cut. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/math.h"
#include "ops.h"

typedef struct problem {
    int heads, values, pairs, nope; /* nope: elements before the rope part of q_rope */
    bool interleaved;
    int index_heads, index_dim, top_k; /* top_k 0: no index */
    pm_kv_type type;
} problem;

/* One sequence: inputs [length, width], where its outputs and choices go. */
typedef struct sequence {
    int length;
    float *q, *q_rope, *kv, *index_q, *index_k, *weights;
    float *out;    /* [length, heads * values] */
    int32_t *rows; /* [length, top_k] */
    int *count;    /* [length] */
} sequence;

typedef struct parameters {
    float *kv_norm, *k_norm, *k_norm_bias, *inv_freq;
} parameters;

static const float eps = 1e-6f;

static int width_of(const problem *p)
{
    return p->values + 2 * p->pairs;
}

static int q_rope_stride(const problem *p)
{
    return p->nope + 2 * p->pairs;
}

static float scale_of(const problem *p)
{
    return 1 / sqrtf((float)q_rope_stride(p));
}

static size_t out_width(const problem *p)
{
    return (size_t)(p->heads * p->values);
}

static sequence new_sequence(const problem *p, int length, uint64_t *seed)
{
    size_t n = (size_t)length, top_k = p->top_k ? (size_t)p->top_k : 1;
    return (sequence){length,
                      random_array(seed, n * out_width(p), 2),
                      random_array(seed, n * (size_t)(p->heads * q_rope_stride(p)), 2),
                      random_array(seed, n * (size_t)width_of(p), 2),
                      random_array(seed, n * (size_t)(p->index_heads * p->index_dim), 2),
                      random_array(seed, n * (size_t)p->index_dim, 2),
                      random_array(seed, n * (size_t)p->index_heads, 1),
                      must_alloc(n * out_width(p) * sizeof(float)),
                      must_alloc(n * top_k * sizeof(int32_t)),
                      must_alloc(n * sizeof(int))};
}

static void free_sequence(sequence *s)
{
    void *all[] = {s->q, s->q_rope, s->kv, s->index_q, s->index_k, s->weights, s->out, s->rows, s->count};
    for (size_t i = 0; i < PM_COUNT(all); i++)
        free(all[i]);
}

static parameters new_parameters(const problem *p, uint64_t *seed)
{
    parameters w = {random_array(seed, (size_t)p->values, 1), random_array(seed, (size_t)p->index_dim, 1),
                    random_array(seed, (size_t)p->index_dim, 1), must_alloc((size_t)p->pairs * sizeof(float))};
    for (int i = 0; i < p->pairs; i++)
        w.inv_freq[i] = powf(10000.0f, -(float)i / (float)p->pairs);
    return w;
}

static void free_parameters(parameters *w)
{
    free(w->kv_norm);
    free(w->k_norm);
    free(w->k_norm_bias);
    free(w->inv_freq);
}

/* The latents of a sequence, and the keys of its index. */
typedef struct cache {
    pm_rows *rows[2];
} cache;

static cache new_cache(pm_backend *backend, const problem *p)
{
    cache c = {{NULL}};
    pm_rows_spec specs[] = {{1, 1, width_of(p), 0}, {1, 1, p->index_dim ? p->index_dim : 1, 0}};
    for (int i = 0; i < 2; i++)
        assert_int_equal(backend->ops->rows_new(backend, &specs[i], p->type, &c.rows[i], NULL), PM_OK);
    return c;
}

static void free_cache(pm_backend *backend, cache *c)
{
    for (int i = 0; i < 2; i++)
        backend->ops->rows_free(backend, c->rows[i]);
}

/* A tensor of rows [from[s], from[s] + take[s]) of an array of each sequence. `at`: offset of the array in sequence. */
static pm_tensor *collect(pm_backend *backend, const sequence *seqs, size_t at, int width, const int *from,
                          const int *take, int n, int tokens)
{
    size_t w = (size_t)width;
    float *all = must_alloc((size_t)tokens * w * sizeof *all), *to = all;
    for (int s = 0; s < n; s++) {
        const float *array = *(float *const *)(const void *)((const char *)(seqs + s) + at);
        memcpy(to, array + (size_t)from[s] * w, (size_t)take[s] * w * sizeof *to);
        to += (size_t)take[s] * w;
    }
    pm_tensor *tensor = new_tensor(backend, tokens, width, all);
    free(all);
    return tensor;
}

/* Appends tokens [from[s], from[s] + take[s]) of n sequences in one step. */
static int step(pm_backend *backend, const problem *p, const parameters *w, sequence *seqs, cache *caches,
                const int *from, const int *take, int n, pm_error *err)
{
    const pm_backend_ops *op = backend->ops;
    pm_segment *segments = must_alloc((size_t)n * sizeof *segments);
    int tokens = 0, used = 0, stride = q_rope_stride(p), rc = PM_OK;
    for (int s = 0; s < n; s++)
        if (take[s] > 0) {
            segments[used++] = (pm_segment){.first = tokens, .n = take[s], .pos = from[s], .rows = caches[s].rows};
            tokens += take[s];
        }
    pm_batch batch = {.n_tokens = tokens, .n_segments = used, .segments = segments};
    pm_tensor *q = collect(backend, seqs, offsetof(sequence, q), (int)out_width(p), from, take, n, tokens);
    pm_tensor *q_rope = collect(backend, seqs, offsetof(sequence, q_rope), p->heads * stride, from, take, n, tokens);
    pm_tensor *kv = collect(backend, seqs, offsetof(sequence, kv), width_of(p), from, take, n, tokens);
    pm_tensor *out = new_tensor(backend, tokens, (int64_t)out_width(p), NULL);
    pm_tensor *norm = new_tensor(backend, 1, p->values, w->kv_norm);
    pm_rope rope = {p->values, p->pairs, p->interleaved, w->inv_freq, 1.0f}, index_rope = rope;
    pm_indices *chosen = NULL;
    if (p->top_k) {
        pm_tensor *t[] = {
            collect(backend, seqs, offsetof(sequence, index_q), p->index_heads * p->index_dim, from, take, n, tokens),
            collect(backend, seqs, offsetof(sequence, index_k), p->index_dim, from, take, n, tokens),
            collect(backend, seqs, offsetof(sequence, weights), p->index_heads, from, take, n, tokens),
            new_tensor(backend, 1, p->index_dim, w->k_norm), new_tensor(backend, 1, p->index_dim, w->k_norm_bias)};
        index_rope.first = 0;
        assert_int_equal(op->indices_new(backend, tokens, p->top_k, &chosen, NULL), PM_OK);
        pm_sparse_index_args args = {.q = t[0],
                                     .k = t[1],
                                     .weights = t[2],
                                     .k_norm = t[3],
                                     .k_norm_bias = t[4],
                                     .rope = &index_rope,
                                     .eps = eps,
                                     .scale = 1 / sqrtf((float)p->index_dim),
                                     .weight_scale = 1 / sqrtf((float)p->index_heads),
                                     .heads = p->index_heads,
                                     .head_dim = p->index_dim,
                                     .top_k = p->top_k,
                                     .rows = 1,
                                     .layer = 7,
                                     .out = chosen};
        rc = op->sparse_index(backend, &batch, &args, err);
        for (int s = 0, at = 0; rc == PM_OK && s < n; at += take[s], s++)
            for (int i = 0; i < take[s]; i++)
                seqs[s].count[from[s] + i] =
                    op->indices_read(chosen, at + i, seqs[s].rows + (size_t)(from[s] + i) * (size_t)p->top_k);
        for (size_t i = 0; i < PM_COUNT(t); i++)
            op->tensor_free(backend, t[i]);
    }
    pm_latent_attention_args args = {.q = q,
                                     .q_rope = q_rope,
                                     .q_rope_first = p->nope,
                                     .q_rope_stride = stride,
                                     .kv = kv,
                                     .kv_norm = norm,
                                     .rope = &rope,
                                     .eps = eps,
                                     .scale = scale_of(p),
                                     .heads = p->heads,
                                     .width = width_of(p),
                                     .value_width = p->values,
                                     .rows = 0,
                                     .chosen = chosen,
                                     .top_k = p->top_k,
                                     .layer = 7,
                                     .out = out};
    rc = rc ? rc : op->latent_attention(backend, &batch, &args, err);
    for (int s = 0, at = 0; rc == PM_OK && s < n; at += take[s], s++)
        assert_int_equal(op->tensor_read(backend, out, at, take[s], seqs[s].out + (size_t)from[s] * out_width(p), NULL),
                         PM_OK);
    pm_tensor *all[] = {q, q_rope, kv, out, norm};
    for (size_t i = 0; i < PM_COUNT(all); i++)
        op->tensor_free(backend, all[i]);
    op->indices_free(backend, chosen);
    free(segments);
    return rc;
}

/* Runs whole sequences together, `chunk` tokens of each a step. */
static void run(pm_backend *backend, const problem *p, const parameters *w, sequence *seqs, int n, int chunk)
{
    cache *caches = must_alloc((size_t)n * sizeof *caches);
    int *from = must_alloc((size_t)n * sizeof *from), *take = must_alloc((size_t)n * sizeof *take);
    pm_error err;
    for (int s = 0; s < n; s++) {
        caches[s] = new_cache(backend, p);
        memset(seqs[s].out, 0, (size_t)seqs[s].length * out_width(p) * sizeof(float));
    }
    for (int left = 1; left;) {
        left = 0;
        for (int s = 0; s < n; s++) {
            from[s] += take[s];
            take[s] = seqs[s].length - from[s] < chunk ? seqs[s].length - from[s] : chunk;
            left += take[s];
        }
        if (left && step(backend, p, w, seqs, caches, from, take, n, &err) != PM_OK)
            fail_msg("step: %s", err.message);
    }
    for (int s = 0; s < n; s++) {
        assert_int_equal(backend->ops->rows_length(caches[s].rows[0]), seqs[s].length);
        assert_int_equal(backend->ops->rows_length(caches[s].rows[1]), p->top_k ? seqs[s].length : 0);
        free_cache(backend, &caches[s]);
    }
    free(caches);
    free(from);
    free(take);
}

/* ---- in double ---- */

static void turn(const problem *p, const parameters *w, int position, double *x)
{
    for (int i = 0; i < p->pairs; i++) {
        double angle = (double)((float)position * w->inv_freq[i]), s = sin(angle), c = cos(angle);
        double *a = x + (p->interleaved ? 2 * i : i), *b = x + (p->interleaved ? 2 * i + 1 : i + p->pairs);
        double turned = *a * c - *b * s;
        *b = *b * c + *a * s;
        *a = turned;
    }
}

/* What the cache holds of a row. */
static void naive_key(const problem *p, const parameters *w, const sequence *seq, int row, double *key)
{
    const float *kv = seq->kv + (size_t)row * (size_t)width_of(p);
    double sum = 0;
    for (int i = 0; i < p->values; i++)
        sum += (double)kv[i] * kv[i];
    for (int i = 0; i < width_of(p); i++)
        key[i] = kv[i] * (i < p->values ? w->kv_norm[i] / sqrt(sum / p->values + (double)eps) : 1);
    turn(p, w, row, key + p->values);
    as_stored(p->type, key, width_of(p));
}

/* Output of a head of a token that attends to the given rows. */
static void naive(const problem *p, const parameters *w, const sequence *seq, int position, int head,
                  const int32_t *rows, int n, double *out)
{
    size_t width = (size_t)width_of(p), at = (size_t)position * (size_t)p->heads + (size_t)head;
    double *q = must_alloc(width * sizeof *q), *key = must_alloc(width * sizeof *key), sum = 0;
    for (int i = 0; i < p->values; i++)
        q[i] = seq->q[at * (size_t)p->values + (size_t)i];
    for (int i = 0; i < 2 * p->pairs; i++)
        q[p->values + i] = seq->q_rope[at * (size_t)q_rope_stride(p) + (size_t)(p->nope + i)];
    turn(p, w, position, q + p->values);
    memset(out, 0, (size_t)p->values * sizeof *out);
    for (int j = 0; j < n; j++) {
        double score = 0;
        naive_key(p, w, seq, rows[j], key);
        for (size_t i = 0; i < width; i++)
            score += q[i] * key[i];
        double weight = exp(score * (double)scale_of(p));
        sum += weight;
        for (int i = 0; i < p->values; i++)
            out[i] += weight * key[i];
    }
    for (int i = 0; i < p->values; i++)
        out[i] /= sum;
    free(q);
    free(key);
}

/* The index's scores of the rows up to `position`. */
static void naive_scores(const problem *p, const parameters *w, const sequence *seq, int position, double *scores)
{
    int dim = p->index_dim;
    double *q = must_alloc((size_t)dim * sizeof *q), *key = must_alloc((size_t)dim * sizeof *key);
    for (int row = 0; row <= position; row++) {
        const float *k = seq->index_k + (size_t)row * (size_t)dim;
        double mean = 0, square = 0;
        for (int i = 0; i < dim; i++)
            mean += (double)k[i] / dim;
        for (int i = 0; i < dim; i++)
            square += (k[i] - mean) * (k[i] - mean) / dim;
        for (int i = 0; i < dim; i++)
            key[i] = (k[i] - mean) / sqrt(square + (double)eps) * w->k_norm[i] + w->k_norm_bias[i];
        turn(p, w, row, key);
        as_stored(p->type, key, dim);
        scores[row] = 0;
        for (int h = 0; h < p->index_heads; h++) {
            size_t at = (size_t)position * (size_t)p->index_heads + (size_t)h;
            double dot = 0;
            for (int i = 0; i < dim; i++)
                q[i] = seq->index_q[at * (size_t)dim + (size_t)i];
            turn(p, w, position, q);
            for (int i = 0; i < dim; i++)
                dot += q[i] * key[i];
            scores[row] += seq->weights[at] / sqrt((double)p->index_heads) * fmax(dot / sqrt((double)dim), 0);
        }
    }
    free(q);
    free(key);
}

/* ---- tests ---- */

static const problem problems[] = {
    {.heads = 4, .values = 64, .pairs = 16, .nope = 64, .interleaved = true, .type = PM_KV_F32},
    {.heads = 3, .values = 33, .pairs = 5, .nope = 7, .type = PM_KV_F16},
    {.heads = 40, .values = 128, .pairs = 8, .nope = 3, .interleaved = true, .type = PM_KV_F16},
    {.heads = 4,
     .values = 64,
     .pairs = 16,
     .nope = 64,
     .interleaved = true,
     .index_heads = 4,
     .index_dim = 64,
     .top_k = 32,
     .type = PM_KV_F32},
    {.heads = 5, .values = 48, .pairs = 3, .nope = 1, .index_heads = 3, .index_dim = 17, .top_k = 9, .type = PM_KV_F16},
    {.heads = 33,
     .values = 16,
     .pairs = 4,
     .nope = 0,
     .index_heads = 2,
     .index_dim = 80,
     .top_k = 70,
     .type = PM_KV_F32},
    {.heads = 3, .values = 96, .pairs = 5, .nope = 7, .type = PM_KV_Q8},
    {.heads = 5, .values = 48, .pairs = 9, .nope = 1, .index_heads = 3, .index_dim = 81, .top_k = 9, .type = PM_KV_Q8},
};

static void check_choice(const problem *p, const parameters *w, const sequence *seq, int t, size_t i)
{
    const int32_t *rows = seq->rows + (size_t)t * (size_t)p->top_k;
    int n = t + 1 < p->top_k ? t + 1 : p->top_k;
    double *scores = must_alloc((size_t)(t + 1) * sizeof *scores), least = INFINITY, most = -INFINITY;
    assert_int_equal(seq->count[t], n);
    naive_scores(p, w, seq, t, scores);
    for (int j = 0, row = 0; row <= t; row++) {
        if (j < n && rows[j] == row) {
            least = fmin(least, scores[row]);
            j++;
        } else {
            most = fmax(most, scores[row]);
        }
        if (row == t)
            assert_int_equal(j, n); /* ascending, all of them seen */
    }
    if (!(least > most - 1e-4))
        fail_msg("problem %zu, token %d: a row of score %g was chosen, and one of %g was not", i, t, least, most);
    free(scores);
}

static void test_against_double(void **state)
{
    (void)state;
    uint64_t seed = 1;
    pm_backend *backend = cpu_backend(1, PM_SIMD_SCALAR);
    for (size_t i = 0; i < PM_COUNT(problems); i++) {
        const problem *p = problems + i;
        parameters w = new_parameters(p, &seed);
        sequence seq = new_sequence(p, 100, &seed);
        double *want = must_alloc((size_t)p->values * sizeof *want);
        int32_t all[100];
        for (int t = 0; t < 100; t++)
            all[t] = t;
        run(backend, p, &w, &seq, 1, 100);
        for (int t = 0; t < 100; t += t < 8 ? 1 : 13) {
            if (p->top_k)
                check_choice(p, &w, &seq, t, i);
            for (int h = 0; h < p->heads; h += 1 + p->heads / 8) {
                const int32_t *rows = p->top_k ? seq.rows + (size_t)t * (size_t)p->top_k : all;
                naive(p, &w, &seq, t, h, rows, p->top_k ? seq.count[t] : t + 1, want);
                const float *got = seq.out + ((size_t)t * (size_t)p->heads + (size_t)h) * (size_t)p->values;
                for (int d = 0; d < p->values; d++)
                    if (!(fabs((double)got[d] - want[d]) < stored_tolerance(p->type)))
                        fail_msg("problem %zu, token %d, head %d, element %d: %g, expected %g", i, t, h, d,
                                 (double)got[d], want[d]);
            }
        }
        free(want);
        free_sequence(&seq);
        free_parameters(&w);
    }
    backend->ops->free(backend);
}

/* Chunks, company, threads and instruction sets change no bit, and no choice. */
static void test_invariance(void **state)
{
    (void)state;
    uint64_t seed = 2;
    enum { SEQUENCES = 4 };
    static const int lengths[SEQUENCES] = {130, 1, 65, 7}, chunks[] = {130, 64, 7, 1};
    int n_settings = count_settings();
    for (size_t i = 0; i < PM_COUNT(problems); i++) {
        const problem *p = problems + i;
        parameters w = new_parameters(p, &seed);
        sequence seqs[SEQUENCES];
        float *want[SEQUENCES];
        int32_t *rows[SEQUENCES];
        size_t top_k = p->top_k ? (size_t)p->top_k : 1;
        for (int s = 0; s < SEQUENCES; s++) {
            seqs[s] = new_sequence(p, lengths[s], &seed);
            want[s] = must_alloc((size_t)lengths[s] * out_width(p) * sizeof(float));
            rows[s] = must_alloc((size_t)lengths[s] * top_k * sizeof(int32_t));
        }
        for (int k = 0; k < n_settings; k++) {
            pm_backend *backend = cpu_backend(settings[k].threads, settings[k].simd);
            for (int s = 0; s < SEQUENCES && k == 0; s++) { /* alone and whole: the reference */
                run(backend, p, &w, seqs + s, 1, lengths[s]);
                memcpy(want[s], seqs[s].out, (size_t)lengths[s] * out_width(p) * sizeof(float));
                memcpy(rows[s], seqs[s].rows, (size_t)lengths[s] * top_k * sizeof(int32_t));
            }
            for (size_t c = 0; c < PM_COUNT(chunks); c += EVERY) {
                if (settings[k].simd == PM_SIMD_SCALAR && chunks[c] != 7)
                    continue; /* slow */
                run(backend, p, &w, seqs, SEQUENCES, chunks[c]);
                for (int s = 0; s < SEQUENCES; s++) {
                    char what[96];
                    snprintf(what, sizeof what, "problem %zu, setting %d, chunk %d, sequence %d", i, k, chunks[c], s);
                    assert_same_bits(what, seqs[s].out, want[s], (size_t)lengths[s] * out_width(p));
                    assert_memory_equal(seqs[s].rows, rows[s], (size_t)lengths[s] * top_k * sizeof(int32_t));
                }
            }
            backend->ops->free(backend);
        }
        for (int s = 0; s < SEQUENCES; s++) {
            free(want[s]);
            free(rows[s]);
            free_sequence(seqs + s);
        }
        free_parameters(&w);
    }
}

/* An index that may choose as many rows as there are gives the bits of attention without one. */
static void test_all_chosen_is_dense(void **state)
{
    (void)state;
    uint64_t seed = 3;
    for (size_t i = 0; i < PM_COUNT(problems); i++) {
        problem p = problems[i];
        pm_backend *backend = cpu_backend(2, PM_SIMD_BEST);
        p.index_heads = 2;
        p.index_dim = 16;
        p.pairs = 4;
        p.top_k = 0;
        parameters w = new_parameters(&p, &seed);
        sequence seq = new_sequence(&p, 100, &seed);
        size_t n = 100 * out_width(&p);
        float *want = must_alloc(n * sizeof *want);
        run(backend, &p, &w, &seq, 1, 100);
        memcpy(want, seq.out, n * sizeof *want);
        p.top_k = 100;
        free(seq.rows);
        seq.rows = must_alloc(100 * 100 * sizeof *seq.rows);
        run(backend, &p, &w, &seq, 1, 7);
        assert_same_bits("all chosen", seq.out, want, n);
        p.top_k = 99; /* only the last token leaves one out */
        run(backend, &p, &w, &seq, 1, 100);
        assert_same_bits("all but one chosen", seq.out, want, 99 * out_width(&p));
        assert_memory_not_equal(seq.out + 99 * out_width(&p), want + 99 * out_width(&p), out_width(&p) * sizeof *want);
        free(want);
        free_sequence(&seq);
        free_parameters(&w);
        backend->ops->free(backend);
    }
}

/* A changed last token leaves everything before it alone. */
static void test_causal(void **state)
{
    (void)state;
    uint64_t seed = 4;
    for (size_t i = 0; i < PM_COUNT(problems); i++) {
        const problem *p = problems + i;
        pm_backend *backend = cpu_backend(2, PM_SIMD_BEST);
        parameters w = new_parameters(p, &seed);
        sequence seq = new_sequence(p, 70, &seed);
        size_t before = 69 * out_width(p), n = before + out_width(p);
        float *want = must_alloc(n * sizeof *want);
        run(backend, p, &w, &seq, 1, 70);
        memcpy(want, seq.out, n * sizeof *want);
        for (int k = 0; k < width_of(p); k++)
            seq.kv[69 * (size_t)width_of(p) + (size_t)k] += 1;
        for (int k = 0; k < p->index_dim; k++)
            seq.index_k[69 * (size_t)p->index_dim + (size_t)k] *= -2;
        seq.q[before] += 1; /* the token may not have chosen itself */
        run(backend, p, &w, &seq, 1, 70);
        assert_same_bits("earlier tokens", seq.out, want, before);
        assert_memory_not_equal(seq.out + before, want + before, out_width(p) * sizeof *want);
        free(want);
        free_sequence(&seq);
        free_parameters(&w);
        backend->ops->free(backend);
    }
}

/* What the cache cannot hold is an error that names the layer, and leaves the cache as it was. */
static void test_values_that_do_not_fit(void **state)
{
    (void)state;
    uint64_t seed = 6;
    for (int of_index = 0; of_index < 2; of_index++) {
        problem p = problems[4];
        pm_backend *backend = cpu_backend(1, PM_SIMD_BEST);
        parameters w = new_parameters(&p, &seed);
        sequence seq = new_sequence(&p, 10, &seed);
        cache c = new_cache(backend, &p);
        pm_error err = {0};
        if (of_index)
            w.k_norm_bias[3] = 1.2e5f;
        else
            w.kv_norm[3] = -1.2e9f;
        assert_int_equal(step(backend, &p, &w, &seq, &c, (int[]){0}, (int[]){6}, 1, &err), PM_ERR_NUMERIC);
        if (strncmp(err.message, "layer 7: a key or value (", 25) != 0 || !strstr(err.message, "--kv-type f32"))
            fail_msg("the message is: %s", err.message);
        assert_int_equal(backend->ops->rows_length(c.rows[of_index]), 0);
        free_cache(backend, &c);
        free_sequence(&seq);
        free_parameters(&w);
        backend->ops->free(backend);
    }
}

/* A query or a weight of the index that is no number is an error, whether or not there is something to choose: the rows
 * chosen by it would be wrong, and the logits would not show it. */
static void test_index_not_finite(void **state)
{
    (void)state;
    uint64_t seed = 7;
    for (int of_weights = 0; of_weights < 2; of_weights++) {
        problem p = problems[4];
        pm_backend *backend = cpu_backend(1, PM_SIMD_BEST);
        parameters w = new_parameters(&p, &seed);
        sequence seq = new_sequence(&p, 10, &seed);
        cache c = new_cache(backend, &p);
        pm_error err = {0};
        (of_weights ? seq.weights : seq.index_q)[0] = of_weights ? INFINITY : NAN;
        assert_int_equal(step(backend, &p, &w, &seq, &c, (int[]){0}, (int[]){1}, 1, &err), PM_ERR_NUMERIC);
        assert_string_equal(err.message, "layer 7: a query of the index is not finite");
        assert_int_equal(backend->ops->rows_length(c.rows[1]), 0);
        free_cache(backend, &c);
        free_sequence(&seq);
        free_parameters(&w);
        backend->ops->free(backend);
    }
}

/* ---- the index by hand ---- */

/* Chooses top_k of the rows for one last token, without norm or rope to speak of: keys [n, dim] as they are, up to the
 * layer norm, which `bias` alone decides when the norm is zero. */
typedef struct by_hand {
    int n, dim, heads, top_k;
    const float *k, *q, *weights;
} by_hand;

static int choose_by_hand(const by_hand *c, int32_t *out)
{
    pm_backend *backend = cpu_backend(1, PM_SIMD_BEST);
    const pm_backend_ops *op = backend->ops;
    float freq = 0, *ones = must_alloc((size_t)c->dim * sizeof *ones),
          *zeros = must_alloc((size_t)c->dim * sizeof *zeros);
    float *all_q = must_alloc((size_t)(c->n * c->heads * c->dim) * sizeof *all_q);
    float *all_w = must_alloc((size_t)(c->n * c->heads) * sizeof *all_w);
    for (int i = 0; i < c->dim; i++)
        ones[i] = 1;
    memcpy(all_q + (size_t)((c->n - 1) * c->heads * c->dim), c->q, (size_t)(c->heads * c->dim) * sizeof *all_q);
    memcpy(all_w + (size_t)((c->n - 1) * c->heads), c->weights, (size_t)c->heads * sizeof *all_w);
    pm_tensor *t[] = {new_tensor(backend, c->n, c->heads * c->dim, all_q), new_tensor(backend, c->n, c->dim, c->k),
                      new_tensor(backend, c->n, c->heads, all_w), new_tensor(backend, 1, c->dim, ones),
                      new_tensor(backend, 1, c->dim, zeros)};
    pm_rows *rows;
    pm_rows_spec spec = {1, 1, c->dim, 0};
    pm_indices *chosen;
    pm_rope rope = {0, 1, false, &freq, 1};
    assert_int_equal(op->rows_new(backend, &spec, PM_KV_F32, &rows, NULL), PM_OK);
    assert_int_equal(op->indices_new(backend, c->n, c->top_k, &chosen, NULL), PM_OK);
    pm_segment segment = {.n = c->n, .rows = &rows};
    pm_sparse_index_args args = {.q = t[0],
                                 .k = t[1],
                                 .weights = t[2],
                                 .k_norm = t[3],
                                 .k_norm_bias = t[4],
                                 .rope = &rope,
                                 .eps = 0,
                                 .scale = 1,
                                 .weight_scale = 1,
                                 .heads = c->heads,
                                 .head_dim = c->dim,
                                 .top_k = c->top_k,
                                 .out = chosen};
    pm_batch batch = {.n_tokens = c->n, .n_segments = 1, .segments = &segment};
    assert_int_equal(op->sparse_index(backend, &batch, &args, NULL), PM_OK);
    int count = op->indices_read(chosen, c->n - 1, out);
    for (size_t i = 0; i < PM_COUNT(t); i++)
        op->tensor_free(backend, t[i]);
    op->indices_free(backend, chosen);
    op->rows_free(backend, rows);
    op->free(backend);
    free(ones);
    free(zeros);
    free(all_q);
    free(all_w);
    return count;
}

/* Negative products count as nothing, and the heads' sum decides for all heads (cases.md, C1): with products (3, -10)
 * and (1, 1) the first key wins by 3 to 2. Keys (1, 1, -1, -1) and (1, -1, 1, -1) are their own layer norms. */
static void test_positive_part_and_common_choice(void **state)
{
    (void)state;
    int32_t row[1];
    const float k[] = {1, 1, -1, -1, 1, -1, 1, -1}, weights[] = {1, 1};
    /* q1 . a = 3, q1 . b = 1; q2 . a = -10, q2 . b = 1 */
    const float q[] = {1, 0.5f, -0.5f, -1, -2.25f, -2.75f, 2.75f, 2.25f};
    by_hand c = {.n = 2, .dim = 4, .heads = 2, .top_k = 1, .k = k, .q = q, .weights = weights};
    for (int h = 0; h < 2; h++)
        for (int j = 0; j < 2; j++) {
            float dot = 0, want[2][2] = {{3, 1}, {-10, 1}};
            for (int i = 0; i < 4; i++)
                dot += q[4 * h + i] * k[4 * j + i];
            assert_float_equal(dot, want[h][j], 1e-6);
        }
    assert_int_equal(choose_by_hand(&c, row), 1);
    assert_int_equal(row[0], 0);
}

/* Equal scores go to the lower rows; the choice is ascending. */
static void test_ties(void **state)
{
    (void)state;
    enum { N = 200 };
    int32_t rows[N];
    float k[N * 2], q[] = {1, 0}, weights[] = {1};
    for (int i = 0; i < N; i++) { /* norms (1, -1) and (-1, 1): scores 1 and 0 */
        k[2 * i] = i % 3 ? -1.0f : 1.0f;
        k[2 * i + 1] = -k[2 * i];
    }
    by_hand c = {.n = N, .dim = 2, .heads = 1, .top_k = 40, .k = k, .q = q, .weights = weights};
    assert_int_equal(choose_by_hand(&c, rows), 40);
    for (int i = 0; i < 40; i++)
        assert_int_equal(rows[i], 3 * i);
    c.top_k = 70; /* 67 multiples of 3, and the first three others: 1, 2, 4 */
    assert_int_equal(choose_by_hand(&c, rows), 70);
    const int first[] = {0, 1, 2, 3, 4, 6, 9};
    for (int i = 0; i < 7; i++)
        assert_int_equal(rows[i], first[i]);
    assert_int_equal(rows[69], 198);
    weights[0] = -1; /* now the others are better, all at 0 */
    c.top_k = 5;
    const int worst[] = {1, 2, 4, 5, 7};
    assert_int_equal(choose_by_hand(&c, rows), 5);
    for (int i = 0; i < 5; i++)
        assert_int_equal(rows[i], worst[i]);
}

/* ---- far out ---- */

/* At a far position, over a context that was imported: the choice and the sum are right, and nothing overflows.
 * All index keys but three and all latents but those of the three rows are equal. */
static void far_position(int far)
{
    enum { TOP_K = 4, DIM = 4, WIDTH = 6, VALUES = 4 };
    const int needles[] = {5, far / 2, far - 1};
    pm_backend *backend = cpu_backend(2, PM_SIMD_BEST);
    const pm_backend_ops *op = backend->ops;
    float *latents = must_alloc((size_t)far * WIDTH * sizeof *latents),
          *keys = must_alloc((size_t)far * DIM * sizeof *keys);
    float freq = 0, ones[] = {1, 1, 1, 1}, zeros[WIDTH * 2] = {0}, q[] = {1, 1, 0, 0}, weight = 1;
    pm_rows *rows[2];
    pm_indices *chosen;
    pm_rope rope = {VALUES, 1, false, &freq, 1}, index_rope = {0, 1, false, &freq, 1};
    for (int i = 0; i < 3; i++) {
        keys[(size_t)needles[i] * DIM] = 1;
        latents[(size_t)needles[i] * WIDTH] = (float)(i + 1);
    }
    pm_rows_spec specs[] = {{1, 1, WIDTH, 0}, {1, 1, DIM, 0}};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(op->rows_new(backend, &specs[i], PM_KV_F32, &rows[i], NULL), PM_OK);
        assert_int_equal(op->rows_import(backend, rows[i], far, i ? keys : latents, NULL), PM_OK);
    }
    assert_int_equal(op->indices_new(backend, 1, TOP_K, &chosen, NULL), PM_OK);
    pm_tensor *t[] = {new_tensor(backend, 1, DIM, q),       new_tensor(backend, 1, DIM, zeros),
                      new_tensor(backend, 1, 1, &weight),   new_tensor(backend, 1, DIM, ones),
                      new_tensor(backend, 1, DIM, zeros),   new_tensor(backend, 1, VALUES, zeros),
                      new_tensor(backend, 1, 2, zeros),     new_tensor(backend, 1, WIDTH, zeros),
                      new_tensor(backend, 1, VALUES, ones), new_tensor(backend, 1, VALUES, NULL)};
    pm_segment segment = {.n = 1, .pos = far, .rows = rows};
    pm_batch batch = {.n_tokens = 1, .n_segments = 1, .segments = &segment};
    pm_sparse_index_args index = {.q = t[0],
                                  .k = t[1],
                                  .weights = t[2],
                                  .k_norm = t[3],
                                  .k_norm_bias = t[4],
                                  .rope = &index_rope,
                                  .eps = eps,
                                  .scale = 1,
                                  .weight_scale = 1,
                                  .heads = 1,
                                  .head_dim = DIM,
                                  .top_k = TOP_K,
                                  .rows = 1,
                                  .out = chosen};
    pm_latent_attention_args attend = {.q = t[5],
                                       .q_rope = t[6],
                                       .q_rope_stride = 2,
                                       .kv = t[7],
                                       .kv_norm = t[8],
                                       .rope = &rope,
                                       .eps = eps,
                                       .scale = 1,
                                       .heads = 1,
                                       .width = WIDTH,
                                       .value_width = VALUES,
                                       .chosen = chosen,
                                       .top_k = TOP_K,
                                       .out = t[9]};
    assert_int_equal(op->sparse_index(backend, &batch, &index, NULL), PM_OK);
    int32_t list[TOP_K];
    assert_int_equal(op->indices_read(chosen, 0, list), TOP_K);
    const int32_t want[] = {0, 5, far / 2, far - 1}; /* of the equal rest the lowest */
    assert_memory_equal(list, want, sizeof want);
    assert_int_equal(op->latent_attention(backend, &batch, &attend, NULL), PM_OK);
    float out[VALUES];
    assert_int_equal(op->tensor_read(backend, t[9], 0, 1, out, NULL), PM_OK);
    assert_float_equal(out[0], (0 + 1 + 2 + 3) / 4.0, 1e-6); /* all scores are zero */
    assert_int_equal(op->rows_length(rows[0]), far + 1);
    assert_int_equal(op->rows_length(rows[1]), far + 1);
    for (size_t i = 0; i < PM_COUNT(t); i++)
        op->tensor_free(backend, t[i]);
    op->indices_free(backend, chosen);
    op->rows_free(backend, rows[0]);
    op->rows_free(backend, rows[1]);
    op->free(backend);
    free(latents);
    free(keys);
}

/* ---- absorbed and expanded ---- */

/* kv_b_proj [heads * (NOPE + VALUE), LATENT] applied to queries and outputs (absorbed) gives what keys and values
 * expanded from the latents give, at the scale of an expanded head, 1 / sqrt(NOPE + ROPE) (cases.md, B3). */
static void test_absorbed_is_expanded(void **state)
{
    (void)state;
    enum { HEADS = 3, NOPE = 8, ROPE = 4, LATENT = 16, VALUE = 6, N = 9, PER = NOPE + VALUE, QK = NOPE + ROPE };
    uint64_t seed = 9;
    problem p = {.heads = HEADS, .values = LATENT, .pairs = ROPE / 2, .nope = NOPE, .interleaved = true};
    parameters w = new_parameters(&p, &seed);
    sequence seq = new_sequence(&p, N, &seed);
    float *kv_b = random_array(&seed, HEADS * PER * LATENT, 1);
    pm_weight keys[HEADS], values[HEADS];
    pm_backend *backend = cpu_backend(1, PM_SIMD_BEST);
    for (int h = 0; h < HEADS; h++) {
        keys[h] = (pm_weight){.format = PM_FORMAT_F32, .out = NOPE, .in = LATENT, .data = kv_b + h * PER * LATENT};
        values[h] =
            (pm_weight){.format = PM_FORMAT_F32, .out = VALUE, .in = LATENT, .data = kv_b + (h * PER + NOPE) * LATENT};
    }
    pm_batch batch = {.n_tokens = N};
    pm_tensor *q = new_tensor(backend, N, HEADS * QK, seq.q_rope),
              *latent = new_tensor(backend, N, HEADS * LATENT, NULL);
    pm_heads_args embed = {q, 0, QK, keys, HEADS, true, latent};
    assert_int_equal(backend->ops->heads(backend, &batch, &embed, NULL), PM_OK);
    assert_int_equal(backend->ops->tensor_read(backend, latent, 0, N, seq.q, NULL), PM_OK);
    run(backend, &p, &w, &seq, 1, N);
    pm_tensor *attended = new_tensor(backend, N, HEADS * LATENT, seq.out),
              *out = new_tensor(backend, N, HEADS * VALUE, NULL);
    pm_heads_args unembed = {attended, 0, LATENT, values, HEADS, false, out};
    float got[N * HEADS * VALUE];
    assert_int_equal(backend->ops->heads(backend, &batch, &unembed, NULL), PM_OK);
    assert_int_equal(backend->ops->tensor_read(backend, out, 0, N, got, NULL), PM_OK);
    for (int t = 0; t < N; t++)
        for (int h = 0; h < HEADS; h++) {
            double key[LATENT + ROPE], query[QK], want[VALUE] = {0}, sum = 0;
            for (int i = 0; i < QK; i++)
                query[i] = seq.q_rope[(t * HEADS + h) * QK + i];
            turn(&p, &w, t, query + NOPE);
            for (int j = 0; j <= t; j++) {
                double score = 0;
                naive_key(&p, &w, &seq, j, key);
                for (int i = 0; i < NOPE; i++)
                    for (int k = 0; k < LATENT; k++)
                        score += query[i] * kv_b[(h * PER + i) * LATENT + k] * key[k];
                for (int i = 0; i < ROPE; i++)
                    score += query[NOPE + i] * key[LATENT + i];
                double weight = exp(score / sqrt(QK));
                sum += weight;
                for (int i = 0; i < VALUE; i++)
                    for (int k = 0; k < LATENT; k++)
                        want[i] += weight * kv_b[(h * PER + NOPE + i) * LATENT + k] * key[k];
            }
            for (int i = 0; i < VALUE; i++)
                assert_float_equal(got[(t * HEADS + h) * VALUE + i], want[i] / sum, 2e-5);
        }
    pm_tensor *all[] = {q, latent, attended, out};
    for (size_t i = 0; i < PM_COUNT(all); i++)
        backend->ops->tensor_free(backend, all[i]);
    free(kv_b);
    free_sequence(&seq);
    free_parameters(&w);
    backend->ops->free(backend);
}

static void test_far_position(void **state)
{
    (void)state;
    far_position(100000);
    far_position(1000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_double),
        cmocka_unit_test(test_invariance),
        cmocka_unit_test(test_all_chosen_is_dense),
        cmocka_unit_test(test_causal),
        cmocka_unit_test(test_values_that_do_not_fit),
        cmocka_unit_test(test_positive_part_and_common_choice),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_index_not_finite),
        cmocka_unit_test(test_far_position),
        cmocka_unit_test(test_absorbed_is_expanded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
