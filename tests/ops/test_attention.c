/* Attention against a plain computation in double, and the same bits however the work is cut. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/math.h"
#include "ops.h"

typedef struct problem {
    int heads, kv_heads, head_dim, pairs, window;
    bool interleaved, norms, gated;
    pm_kv_type type;
} problem;

/* One sequence: inputs [length, width] and where its outputs go [length, heads * head_dim]. */
typedef struct sequence {
    int length;
    float *q, *k, *v, *out;
} sequence;

typedef struct parameters {
    float *q_norm, *k_norm, *inv_freq;
} parameters;

static const float eps = 1e-6f;

static int q_width(const problem *p)
{
    return p->heads * p->head_dim * (p->gated ? 2 : 1);
}

static int k_width(const problem *p)
{
    return p->kv_heads * p->head_dim;
}

static int out_width(const problem *p)
{
    return p->heads * p->head_dim;
}

static sequence new_sequence(const problem *p, int length, uint64_t *seed)
{
    size_t n = (size_t)length;
    return (sequence){length, random_array(seed, n * (size_t)q_width(p), 2),
                      random_array(seed, n * (size_t)k_width(p), 2), random_array(seed, n * (size_t)k_width(p), 2),
                      must_alloc(n * (size_t)out_width(p) * sizeof(float))};
}

static void free_sequence(sequence *s)
{
    free(s->q);
    free(s->k);
    free(s->v);
    free(s->out);
}

static parameters new_parameters(const problem *p, uint64_t *seed)
{
    parameters w = {random_array(seed, (size_t)p->head_dim, 1), random_array(seed, (size_t)p->head_dim, 1),
                    must_alloc((size_t)p->pairs * sizeof(float))};
    for (int i = 0; i < p->pairs; i++)
        w.inv_freq[i] = powf(10000.0f, -(float)i / (float)p->pairs);
    return w;
}

static void free_parameters(parameters *w)
{
    free(w->q_norm);
    free(w->k_norm);
    free(w->inv_freq);
}

static pm_rows *new_rows(pm_backend *backend, const problem *p)
{
    pm_rows *rows;
    pm_rows_spec spec = {.ratio = 1, .planes = 2 * p->kv_heads, .width = p->head_dim, .window = p->window};
    assert_int_equal(backend->ops->rows_new(backend, &spec, p->type, &rows, NULL), PM_OK);
    return rows;
}

/* Rows [from, from + n) of a sequence's array into a tensor, at row `at`. */
static void copy_rows(pm_tensor *to, int at, const float *array, int from, int n)
{
    size_t width = (size_t)to->cols;
    memcpy(to->data + (size_t)at * width, array + (size_t)from * width, (size_t)n * width * sizeof(float));
}

/* Appends tokens [from[s], from[s] + take[s]) of n sequences in one step. */
static int step(pm_backend *backend, const problem *p, const parameters *w, sequence *seqs, pm_rows **rows,
                const int *from, const int *take, int n, pm_error *err)
{
    pm_segment *segments = must_alloc((size_t)n * sizeof *segments);
    int tokens = 0, used = 0;
    for (int s = 0; s < n; s++)
        if (take[s] > 0) {
            segments[used++] = (pm_segment){.first = tokens, .n = take[s], .pos = from[s], .rows = rows + s};
            tokens += take[s];
        }
    pm_tensor *q = new_tensor(backend, tokens, q_width(p), NULL), *k = new_tensor(backend, tokens, k_width(p), NULL);
    pm_tensor *v = new_tensor(backend, tokens, k_width(p), NULL),
              *out = new_tensor(backend, tokens, out_width(p), NULL);
    pm_tensor *q_norm = new_tensor(backend, 1, p->head_dim, w->q_norm);
    pm_tensor *k_norm = new_tensor(backend, 1, p->head_dim, w->k_norm);
    pm_batch batch = {.n_tokens = tokens, .n_segments = used, .segments = segments};
    for (int s = 0, at = 0; s < n; at += take[s], s++) {
        copy_rows(q, at, seqs[s].q, from[s], take[s]);
        copy_rows(k, at, seqs[s].k, from[s], take[s]);
        copy_rows(v, at, seqs[s].v, from[s], take[s]);
    }
    pm_rope rope = {.pairs = p->pairs, .interleaved = p->interleaved, .inv_freq = w->inv_freq, .scale = 1.0f};
    pm_attention_args args = {.q = q,
                              .k = k,
                              .v = v,
                              .q_norm = p->norms ? q_norm : NULL,
                              .k_norm = p->norms ? k_norm : NULL,
                              .rope = p->pairs ? &rope : NULL,
                              .eps = eps,
                              .scale = 1 / sqrtf((float)p->head_dim),
                              .heads = p->heads,
                              .kv_heads = p->kv_heads,
                              .head_dim = p->head_dim,
                              .gated = p->gated,
                              .window = p->window,
                              .layer = 7,
                              .out = out};
    int rc = backend->ops->attention(backend, &batch, &args, err);
    for (int s = 0, at = 0; rc == PM_OK && s < n; at += take[s], s++)
        assert_int_equal(backend->ops->tensor_read(backend, out, at, take[s],
                                                   seqs[s].out + (size_t)from[s] * (size_t)out_width(p), NULL),
                         PM_OK);
    pm_tensor *all[] = {q, k, v, out, q_norm, k_norm};
    for (size_t i = 0; i < PM_COUNT(all); i++)
        backend->ops->tensor_free(backend, all[i]);
    free(segments);
    return rc;
}

/* Runs whole sequences together, `chunk` tokens of each a step. */
static void run(pm_backend *backend, const problem *p, const parameters *w, sequence *seqs, int n, int chunk)
{
    pm_rows **rows = must_alloc((size_t)n * sizeof(*rows));
    int *from = must_alloc((size_t)n * sizeof *from), *take = must_alloc((size_t)n * sizeof *take);
    pm_error err;
    for (int s = 0; s < n; s++) {
        rows[s] = new_rows(backend, p);
        memset(seqs[s].out, 0, (size_t)seqs[s].length * (size_t)out_width(p) * sizeof(float));
    }
    for (int left = 1; left;) {
        left = 0;
        for (int s = 0; s < n; s++) {
            from[s] += take[s];
            take[s] = seqs[s].length - from[s] < chunk ? seqs[s].length - from[s] : chunk;
            left += take[s];
        }
        if (left && step(backend, p, w, seqs, rows, from, take, n, &err) != PM_OK)
            fail_msg("attention: %s", err.message);
    }
    for (int s = 0; s < n; s++) {
        assert_int_equal(backend->ops->rows_length(rows[s]), seqs[s].length);
        backend->ops->rows_free(backend, rows[s]);
    }
    free(rows);
    free(from);
    free(take);
}

/* Norm and rope of one head in double. */
static void naive_head(const problem *p, const parameters *w, const float *x, const float *norm, int position,
                       double *out)
{
    double sum = 0;
    for (int i = 0; i < p->head_dim; i++)
        sum += (double)x[i] * x[i];
    double r = p->norms ? 1 / sqrt(sum / p->head_dim + (double)eps) : 1;
    for (int i = 0; i < p->head_dim; i++)
        out[i] = x[i] * r * (p->norms ? (double)norm[i] : 1);
    for (int i = 0; i < p->pairs; i++) {
        double angle = (double)((float)position * w->inv_freq[i]), s = sin(angle), c = cos(angle);
        double *a = out + (p->interleaved ? 2 * i : i), *b = out + (p->interleaved ? 2 * i + 1 : i + p->pairs);
        double turned = *a * c - *b * s;
        *b = *b * c + *a * s;
        *a = turned;
    }
}

static void naive(const problem *p, const parameters *w, const sequence *seq, int position, int head, double *out)
{
    size_t dim = (size_t)p->head_dim, kv_head = (size_t)(head / (p->heads / p->kv_heads));
    const float *q_row = seq->q + ((size_t)position * (size_t)p->heads + (size_t)head) * dim * (p->gated ? 2 : 1);
    double *q = must_alloc(dim * sizeof *q), *k = must_alloc(dim * sizeof *k), *v = must_alloc(dim * sizeof *v);
    double p_sum = 0;
    naive_head(p, w, q_row, w->q_norm, position, q);
    memset(out, 0, dim * sizeof *out);
    int first = p->window > 0 && position >= p->window ? position - p->window + 1 : 0;
    for (int j = first; j <= position; j++) {
        size_t at = ((size_t)j * (size_t)p->kv_heads + kv_head) * dim;
        naive_head(p, w, seq->k + at, w->k_norm, j, k);
        for (size_t i = 0; i < dim; i++)
            v[i] = (double)seq->v[at + i];
        as_stored(p->type, k, p->head_dim);
        as_stored(p->type, v, p->head_dim);
        double score = 0;
        for (size_t i = 0; i < dim; i++)
            score += q[i] * k[i];
        double weight = exp(score / sqrt((double)dim)); /* scores are small here: no maximum is needed */
        p_sum += weight;
        for (size_t i = 0; i < dim; i++)
            out[i] += weight * v[i];
    }
    for (size_t i = 0; i < dim; i++)
        out[i] = out[i] / p_sum * (p->gated ? 1 / (1 + exp(-(double)q_row[dim + i])) : 1);
    free(q);
    free(k);
    free(v);
}

static const problem problems[] = {
    {.heads = 4, .kv_heads = 2, .head_dim = 64, .pairs = 16, .norms = true, .gated = true, .type = PM_KV_F16},
    {.heads = 8, .kv_heads = 1, .head_dim = 16, .pairs = 8, .norms = true, .type = PM_KV_F32},
    {.heads = 3, .kv_heads = 3, .head_dim = 5, .pairs = 2, .gated = true, .type = PM_KV_F32},
    {.heads = 6, .kv_heads = 2, .head_dim = 20, .pairs = 10, .interleaved = true, .type = PM_KV_F16},
    {.heads = 2, .kv_heads = 1, .head_dim = 77, .norms = true, .type = PM_KV_F16},
    {.heads = 4, .kv_heads = 2, .head_dim = 32, .pairs = 16, .window = 8, .type = PM_KV_F32},
    {.heads = 4, .kv_heads = 4, .head_dim = 24, .pairs = 4, .window = 65, .gated = true, .type = PM_KV_F16},
    {.heads = 33, .kv_heads = 1, .head_dim = 8, .pairs = 4, .type = PM_KV_F32},
    {.heads = 4, .kv_heads = 2, .head_dim = 128, .pairs = 32, .norms = true, .type = PM_KV_Q8},
    {.heads = 3, .kv_heads = 1, .head_dim = 77, .pairs = 8, .window = 9, .gated = true, .type = PM_KV_Q8},
    {.heads = 2, .kv_heads = 2, .head_dim = 20, .pairs = 10, .interleaved = true, .type = PM_KV_Q8},
};

static void test_against_double(void **state)
{
    (void)state;
    uint64_t seed = 1;
    pm_backend *backend = cpu_backend(1, PM_SIMD_SCALAR);
    for (size_t i = 0; i < PM_COUNT(problems); i++) {
        const problem *p = problems + i;
        parameters w = new_parameters(p, &seed);
        sequence seq = new_sequence(p, 150, &seed);
        double *want = must_alloc((size_t)p->head_dim * sizeof *want);
        run(backend, p, &w, &seq, 1, 150);
        for (int t = 0; t < seq.length; t += t < 4 ? 1 : 13)
            for (int h = 0; h < p->heads; h++) {
                naive(p, &w, &seq, t, h, want);
                const float *got = seq.out + ((size_t)t * (size_t)p->heads + (size_t)h) * (size_t)p->head_dim;
                for (int d = 0; d < p->head_dim; d++)
                    if (!(fabs((double)got[d] - want[d]) < stored_tolerance(p->type)))
                        fail_msg("problem %zu, token %d, head %d, element %d: %g, expected %g", i, t, h, d,
                                 (double)got[d], want[d]);
            }
        free(want);
        free_sequence(&seq);
        free_parameters(&w);
    }
    backend->ops->free(backend);
}

/* Chunks, company, threads and instruction sets change no bit. */
static void test_invariance(void **state)
{
    (void)state;
    uint64_t seed = 2;
    enum { SEQUENCES = 5 };
    static const int lengths[SEQUENCES] = {130, 1, 64, 65, 7}, chunks[] = {130, 64, 7, 3, 1};
    int n_settings = count_settings();
    for (size_t i = 0; i < PM_COUNT(problems); i++) {
        const problem *p = problems + i;
        parameters w = new_parameters(p, &seed);
        sequence seqs[SEQUENCES];
        float *want[SEQUENCES];
        for (int s = 0; s < SEQUENCES; s++)
            seqs[s] = new_sequence(p, lengths[s], &seed);
        for (int k = 0; k < n_settings; k++) {
            pm_backend *backend = cpu_backend(settings[k].threads, settings[k].simd);
            for (int s = 0; s < SEQUENCES && k == 0; s++) { /* alone and whole: the reference */
                size_t bytes = (size_t)lengths[s] * (size_t)out_width(p) * sizeof(float);
                run(backend, p, &w, seqs + s, 1, lengths[s]);
                want[s] = must_alloc(bytes);
                memcpy(want[s], seqs[s].out, bytes);
            }
            for (size_t c = 0; c < PM_COUNT(chunks); c += EVERY) {
                if (k > 0 && settings[k].simd == PM_SIMD_SCALAR && chunks[c] != 7)
                    continue; /* slow, and its chunks have been compared on one thread */
                run(backend, p, &w, seqs, SEQUENCES, chunks[c]);
                for (int s = 0; s < SEQUENCES; s++) {
                    char what[96];
                    snprintf(what, sizeof what, "problem %zu, setting %d, chunk %d, sequence %d", i, k, chunks[c], s);
                    assert_same_bits(what, seqs[s].out, want[s], (size_t)lengths[s] * (size_t)out_width(p));
                }
            }
            backend->ops->free(backend);
        }
        for (int s = 0; s < SEQUENCES; s++) {
            free(want[s]);
            free_sequence(seqs + s);
        }
        free_parameters(&w);
    }
}

/* So much work for one token and one key head that the query heads are shared out. */
static void test_shared_out_decode(void **state)
{
    (void)state;
    uint64_t seed = 3;
    problem p = {.heads = 32, .kv_heads = 1, .head_dim = 72, .pairs = 16, .norms = true, .type = PM_KV_F16};
    parameters w = new_parameters(&p, &seed);
    sequence seq = new_sequence(&p, 105, &seed);
    size_t n = (size_t)seq.length * (size_t)out_width(&p);
    float *want = must_alloc(n * sizeof *want);
    int n_settings = count_settings();
    for (int k = 0; k < n_settings; k++) {
        pm_backend *backend = cpu_backend(settings[k].threads, settings[k].simd);
        pm_rows *rows = new_rows(backend, &p);
        assert_int_equal(step(backend, &p, &w, &seq, &rows, (int[]){0}, (int[]){100}, 1, NULL), PM_OK);
        for (int t = 100; t < 105; t++)
            assert_int_equal(step(backend, &p, &w, &seq, &rows, &t, (int[]){1}, 1, NULL), PM_OK);
        if (k == 0)
            memcpy(want, seq.out, n * sizeof *want);
        assert_same_bits("shared out", seq.out, want, n);
        backend->ops->rows_free(backend, rows);
        backend->ops->free(backend);
    }
    free(want);
    free_sequence(&seq);
    free_parameters(&w);
}

/* A changed last token leaves everything before it alone. */
static void test_causal(void **state)
{
    (void)state;
    uint64_t seed = 4;
    const problem *p = problems;
    pm_backend *backend = cpu_backend(2, PM_SIMD_BEST);
    parameters w = new_parameters(p, &seed);
    sequence seq = new_sequence(p, 70, &seed);
    size_t before = 69 * (size_t)out_width(p), last = 69 * (size_t)k_width(p);
    float *want = must_alloc((before + (size_t)out_width(p)) * sizeof *want);
    run(backend, p, &w, &seq, 1, 70);
    memcpy(want, seq.out, (before + (size_t)out_width(p)) * sizeof *want);
    for (int i = 0; i < k_width(p); i++) {
        seq.k[last + (size_t)i] += 1;
        seq.v[last + (size_t)i] -= 1;
    }
    run(backend, p, &w, &seq, 1, 70);
    assert_same_bits("earlier tokens", seq.out, want, before);
    assert_memory_not_equal(seq.out + before, want + before, (size_t)out_width(p) * sizeof *want);
    free(want);
    free_sequence(&seq);
    free_parameters(&w);
    backend->ops->free(backend);
}

/* Fork, cut back, write other tokens: each timeline is as if it had been computed alone. */
static void test_fork_and_cut(void **state)
{
    (void)state;
    uint64_t seed = 5;
    for (size_t i = 0; i < PM_COUNT(problems); i++) {
        const problem *p = problems + i;
        pm_backend *backend = cpu_backend(1, PM_SIMD_BEST);
        parameters w = new_parameters(p, &seed);
        sequence a = new_sequence(p, 140, &seed), b = new_sequence(p, 140, &seed);
        size_t q = (size_t)q_width(p), k = (size_t)k_width(p), width = (size_t)out_width(p);
        memcpy(b.q, a.q, 100 * q * sizeof(float)); /* the same first 100 tokens */
        memcpy(b.k, a.k, 100 * k * sizeof(float));
        memcpy(b.v, a.v, 100 * k * sizeof(float));
        run(backend, p, &w, &a, 1, 140);
        run(backend, p, &w, &b, 1, 140);
        float *want_a = must_alloc(140 * width * sizeof(float)), *want_b = must_alloc(140 * width * sizeof(float));
        memcpy(want_a, a.out, 140 * width * sizeof(float));
        memcpy(want_b, b.out, 140 * width * sizeof(float));
        memset(a.out, 0, 140 * width * sizeof(float));
        memset(b.out, 0, 140 * width * sizeof(float));

        pm_rows *rows = new_rows(backend, p), *fork;
        assert_int_equal(step(backend, p, &w, &a, &rows, (int[]){0}, (int[]){120}, 1, NULL), PM_OK);
        assert_int_equal(backend->ops->rows_fork(backend, rows, 100, &fork, NULL), PM_OK);
        assert_int_equal(step(backend, p, &w, &b, &fork, (int[]){100}, (int[]){40}, 1, NULL), PM_OK);
        assert_int_equal(step(backend, p, &w, &a, &rows, (int[]){120}, (int[]){20}, 1, NULL), PM_OK);
        assert_same_bits("original", a.out, want_a, 140 * width);
        assert_same_bits("fork", b.out + 100 * width, want_b + 100 * width, 40 * width);
        backend->ops->rows_truncate(backend, rows, 100);
        assert_int_equal(step(backend, p, &w, &b, &rows, (int[]){100}, (int[]){40}, 1, NULL), PM_OK);
        assert_same_bits("cut and continued", b.out + 100 * width, want_b + 100 * width, 40 * width);

        backend->ops->rows_free(backend, rows);
        backend->ops->rows_free(backend, fork);
        free(want_a);
        free(want_b);
        free_sequence(&a);
        free_sequence(&b);
        free_parameters(&w);
        backend->ops->free(backend);
    }
}

/* What the cache cannot hold is an error that names the layer, and leaves the cache as it was. */
static void test_values_that_do_not_fit(void **state)
{
    (void)state;
    static const struct {
        pm_kv_type type;
        float value;
        int status;
        const char *message;
    } cases[] = {
        {PM_KV_F16, 65519, PM_OK, ""},
        {PM_KV_F16, -1.2e5f, PM_ERR_NUMERIC,
         "layer 7: a key or value (1.2e+05) does not fit the f16 cache; use --kv-type f32"},
        {PM_KV_F32, 1.2e5f, PM_OK, ""},
        {PM_KV_F16, INFINITY, PM_ERR_NUMERIC, "layer 7: a key or value (inf) is not finite"},
        {PM_KV_F32, -INFINITY, PM_ERR_NUMERIC, "layer 7: a key or value (inf) is not finite"},
        {PM_KV_F32, NAN, PM_ERR_NUMERIC, "layer 7: a key or value (nan) is not finite"},
        {PM_KV_Q8, 1.7e38f, PM_OK, ""},
        {PM_KV_Q8, -0x1p127f, PM_ERR_NUMERIC,
         "layer 7: a key or value (1.7e+38) does not fit the q8 cache; use --kv-type f32"},
        {PM_KV_Q8, -INFINITY, PM_ERR_NUMERIC, "layer 7: a key or value (inf) is not finite"},
        {PM_KV_Q8, NAN, PM_ERR_NUMERIC, "layer 7: a key or value (nan) is not finite"},
    };
    uint64_t seed = 6;
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        problem p = {.heads = 2, .kv_heads = 1, .head_dim = 16, .type = cases[i].type};
        pm_backend *backend = cpu_backend(1, PM_SIMD_BEST);
        parameters w = new_parameters(&p, &seed);
        sequence seq = new_sequence(&p, 10, &seed);
        pm_rows *rows = new_rows(backend, &p);
        pm_error err = {0};
        seq.v[5 * 16 + 3] = cases[i].value;
        assert_int_equal(step(backend, &p, &w, &seq, &rows, (int[]){0}, (int[]){4}, 1, &err), PM_OK);
        assert_int_equal(step(backend, &p, &w, &seq, &rows, (int[]){4}, (int[]){6}, 1, &err), cases[i].status);
        assert_string_equal(err.message, cases[i].message);
        assert_int_equal(backend->ops->rows_length(rows), cases[i].status == PM_OK ? 10 : 4);
        backend->ops->rows_free(backend, rows);
        free_sequence(&seq);
        free_parameters(&w);
        backend->ops->free(backend);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_double),    cmocka_unit_test(test_invariance),
        cmocka_unit_test(test_shared_out_decode), cmocka_unit_test(test_causal),
        cmocka_unit_test(test_fork_and_cut),      cmocka_unit_test(test_values_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
