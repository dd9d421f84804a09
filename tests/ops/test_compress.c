/* The compressor against a plain computation in double, and the same bits however the work is cut. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/mixer.h"
#include "ops.h"

typedef struct problem {
    int ratio, width, pairs;
    bool overlap;
    pm_kv_type type;
} problem;

/* One sequence: inputs [length, row] and the rows made of them [length / ratio, width], as f32. */
typedef struct sequence {
    int length;
    float *kv, *gate, *out;
} sequence;

typedef struct parameters {
    float *position_bias, *norm, *inv_freq;
} parameters;

static const float eps = 1e-6f;

static int row_of(const problem *p)
{
    return p->overlap ? 2 * p->width : p->width;
}

static sequence new_sequence(const problem *p, int length, uint64_t *seed)
{
    size_t n = (size_t)length * (size_t)row_of(p), made = (size_t)(length / p->ratio) * (size_t)p->width;
    return (sequence){length, random_array(seed, n, 2), random_array(seed, n, 5), must_alloc(made * sizeof(float))};
}

static void free_sequence(sequence *s)
{
    free(s->kv);
    free(s->gate);
    free(s->out);
}

static parameters new_parameters(const problem *p, uint64_t *seed)
{
    parameters w = {random_array(seed, (size_t)p->ratio * (size_t)row_of(p), 1),
                    random_array(seed, (size_t)p->width, 1), must_alloc((size_t)p->pairs * sizeof(float))};
    for (int i = 0; i < p->pairs; i++)
        w.inv_freq[i] = powf(10000.0f, -(float)i / (float)p->pairs);
    return w;
}

static void free_parameters(parameters *w)
{
    free(w->position_bias);
    free(w->norm);
    free(w->inv_freq);
}

static void new_memory(pm_backend *backend, const problem *p, pm_rows **rows, pm_state **state)
{
    pm_rows_spec rows_spec = {.ratio = p->ratio, .planes = 1, .width = p->width};
    pm_state_spec state_spec = {.count = (p->overlap ? 6 : 3) * (int64_t)p->width};
    assert_int_equal(backend->ops->rows_new(backend, &rows_spec, p->type, rows, NULL), PM_OK);
    assert_int_equal(backend->ops->state_new(backend, &state_spec, state, NULL), PM_OK);
}

/* Tokens [from[s], from[s] + take[s]) of n sequences in one step. */
static int step(pm_backend *backend, const problem *p, const parameters *w, const sequence *seqs, pm_rows **rows,
                pm_state **states, const int *from, const int *take, int n, pm_error *err)
{
    pm_segment *segments = must_alloc((size_t)n * sizeof *segments);
    size_t row = (size_t)row_of(p);
    int tokens = 0, used = 0;
    for (int s = 0; s < n; s++)
        tokens += take[s];
    pm_tensor *kv = new_tensor(backend, tokens, row_of(p), NULL), *gate = new_tensor(backend, tokens, row_of(p), NULL);
    pm_tensor *bias = new_tensor(backend, p->ratio, row_of(p), w->position_bias);
    pm_tensor *norm = new_tensor(backend, 1, p->width, w->norm);
    tokens = 0;
    for (int s = 0; s < n; s++) {
        if (!take[s])
            continue;
        segments[used++] =
            (pm_segment){.first = tokens, .n = take[s], .pos = from[s], .rows = rows + s, .states = states + s};
        memcpy(kv->data + (size_t)tokens * row, seqs[s].kv + (size_t)from[s] * row,
               (size_t)take[s] * row * sizeof(float));
        memcpy(gate->data + (size_t)tokens * row, seqs[s].gate + (size_t)from[s] * row,
               (size_t)take[s] * row * sizeof(float));
        tokens += take[s];
    }
    pm_batch batch = {.n_tokens = tokens, .n_segments = used, .segments = segments};
    pm_rope rope = {.first = p->width - 2 * p->pairs,
                    .pairs = p->pairs,
                    .interleaved = true,
                    .inv_freq = w->inv_freq,
                    .scale = 1.0f};
    pm_compress_args args = {.kv = kv,
                             .gate = gate,
                             .position_bias = bias,
                             .norm = norm,
                             .rope = &rope,
                             .eps = eps,
                             .ratio = p->ratio,
                             .width = p->width,
                             .overlap = p->overlap,
                             .layer = 7};
    int rc = backend->ops->compress(backend, &batch, &args, err);
    pm_tensor *all[] = {kv, gate, bias, norm};
    for (size_t i = 0; i < PM_COUNT(all); i++)
        backend->ops->tensor_free(backend, all[i]);
    free(segments);
    return rc;
}

/* The cache's rows as f32 to seq->out. */
static void read_rows(pm_backend *backend, const problem *p, const pm_rows *rows, sequence *seq)
{
    int64_t n = seq->length / p->ratio;
    assert_int_equal(backend->ops->rows_length(rows), n);
    if (p->type == PM_KV_F32) {
        assert_int_equal(backend->ops->rows_export(backend, rows, 0, n, seq->out, NULL), PM_OK);
        return;
    }
    size_t bytes = pm_kv_bytes(p->type, p->width);
    char *data = must_alloc((size_t)n * bytes);
    assert_int_equal(backend->ops->rows_export(backend, rows, 0, n, data, NULL), PM_OK);
    for (int64_t i = 0; i < n; i++) {
        float *to = seq->out + i * p->width;
        if (p->type == PM_KV_F16)
            pm_scalar_widen((const uint16_t *)(const void *)(data + (size_t)i * bytes), to, (size_t)p->width);
        else
            pm_scalar_unpack(data + (size_t)i * bytes, to, p->width);
    }
    free(data);
}

/* Runs whole sequences together, `chunk` tokens of each a step. */
static void run(pm_backend *backend, const problem *p, const parameters *w, sequence *seqs, int n, int chunk)
{
    pm_rows **rows = must_alloc((size_t)n * sizeof(*rows));
    pm_state **states = must_alloc((size_t)n * sizeof(*states));
    int *from = must_alloc((size_t)n * sizeof *from), *take = must_alloc((size_t)n * sizeof *take);
    pm_error err;
    for (int s = 0; s < n; s++)
        new_memory(backend, p, &rows[s], &states[s]);
    for (int left = 1; left;) {
        left = 0;
        for (int s = 0; s < n; s++) {
            from[s] += take[s];
            take[s] = seqs[s].length - from[s] < chunk ? seqs[s].length - from[s] : chunk;
            left += take[s];
        }
        if (left && step(backend, p, w, seqs, rows, states, from, take, n, &err) != PM_OK)
            fail_msg("compress: %s", err.message);
    }
    for (int s = 0; s < n; s++) {
        read_rows(backend, p, rows[s], &seqs[s]);
        backend->ops->rows_free(backend, rows[s]);
        backend->ops->state_free(backend, states[s]);
    }
    free(rows);
    free(states);
    free(from);
    free(take);
}

/* Row `w` of a sequence in double, by the window as the paper has it. */
static void naive(const problem *p, const parameters *par, const sequence *seq, int w, double *out)
{
    size_t row = (size_t)row_of(p);
    double square = 0;
    for (int c = 0; c < p->width; c++) {
        double sum = 0, mean = 0;
        for (int i = p->overlap && w > 0 ? -p->ratio : 0; i < p->ratio; i++) {
            size_t column = (size_t)c + (p->overlap && i >= 0 ? (size_t)p->width : 0);
            size_t at = (size_t)(w * p->ratio + i) * row + column;
            double e = exp((double)seq->gate[at] +
                           (double)par->position_bias[(size_t)((i + p->ratio) % p->ratio) * row + column]);
            sum += e;
            mean += e * (double)seq->kv[at];
        }
        out[c] = mean / sum;
        square += out[c] * out[c];
    }
    for (int c = 0; c < p->width; c++)
        out[c] *= (double)par->norm[c] / sqrt(square / p->width + (double)eps);
    for (int i = 0; i < p->pairs; i++) {
        double angle = (double)((float)(w * p->ratio) * par->inv_freq[i]), s = sin(angle), c = cos(angle);
        double *a = out + p->width - 2 * p->pairs + 2 * i, turned = a[0] * c - a[1] * s;
        a[1] = a[1] * c + a[0] * s;
        a[0] = turned;
    }
}

static const problem problems[] = {
    {4, 64, 16, true, PM_KV_F32},   {4, 70, 3, true, PM_KV_F16}, {128, 64, 16, false, PM_KV_F32},
    {5, 129, 64, false, PM_KV_F32}, {1, 8, 4, true, PM_KV_F32},  {1, 2, 1, false, PM_KV_F16},
    {3, 70, 3, true, PM_KV_Q8},
};

static void test_against_double(void **state)
{
    (void)state;
    for (size_t i = 0; i < PM_COUNT(problems); i++) {
        const problem *p = &problems[i];
        uint64_t seed = 100 + i;
        parameters w = new_parameters(p, &seed);
        sequence seq = new_sequence(p, 3 * p->ratio + p->ratio / 2, &seed);
        pm_backend *backend = cpu_backend(1, PM_SIMD_SCALAR);
        double *want = must_alloc((size_t)p->width * sizeof *want);
        run(backend, p, &w, &seq, 1, 1000);
        for (int r = 0; r < seq.length / p->ratio; r++) {
            naive(p, &w, &seq, r, want);
            for (int c = 0; c < p->width; c++) {
                double got = (double)seq.out[(size_t)r * (size_t)p->width + (size_t)c];
                static const double nearness[] = {[PM_KV_F16] = 1e-3, [PM_KV_F32] = 3e-6, [PM_KV_Q8] = 2e-2};
                double near = nearness[p->type];
                if (!(fabs(got - want[c]) <= near * (1 + fabs(want[c]))))
                    fail_msg("problem %zu: row %d, element %d is %g, expected %g", i, r, c, got, want[c]);
            }
        }
        free(want);
        free_sequence(&seq);
        free_parameters(&w);
        backend->ops->free(backend);
    }
}

/* Levels, threads, chunks, and a batch of sequences of different lengths. */
static void test_same_bits(void **state)
{
    (void)state;
    static const int chunks[] = {1000, 1, 3, 7, 64};
    enum { SEQUENCES = 3 };
    for (size_t i = 0; i < PM_COUNT(problems); i++) {
        const problem *p = &problems[i];
        uint64_t seed = 200 + i;
        parameters w = new_parameters(p, &seed);
        sequence alone[SEQUENCES], seqs[SEQUENCES];
        const int lengths[SEQUENCES] = {2 * p->ratio + 1, p->ratio - 1, 3 * p->ratio};
        pm_backend *reference = cpu_backend(1, PM_SIMD_SCALAR);
        for (int s = 0; s < SEQUENCES; s++) {
            alone[s] = seqs[s] = new_sequence(p, lengths[s], &seed);
            seqs[s].out = must_alloc((size_t)(lengths[s] / p->ratio) * (size_t)p->width * sizeof(float));
            run(reference, p, &w, &alone[s], 1, 1000);
        }
        reference->ops->free(reference);
        for (int k = 0; k < count_settings(); k++) {
            pm_backend *backend = cpu_backend(settings[k].threads, settings[k].simd);
            for (size_t c = 0; c < PM_COUNT(chunks); c += EVERY) {
                run(backend, p, &w, seqs, SEQUENCES, chunks[c]);
                for (int s = 0; s < SEQUENCES; s++)
                    assert_same_bits("rows", seqs[s].out, alone[s].out,
                                     (size_t)(lengths[s] / p->ratio) * (size_t)p->width);
            }
            backend->ops->free(backend);
        }
        for (int s = 0; s < SEQUENCES; s++) {
            free(seqs[s].out);
            free_sequence(&alone[s]);
        }
        free_parameters(&w);
    }
}

/* Back to a copy of the state, and the rows cut to it, at every residue of the ratio. */
static void go_back(const problem *p, int length)
{
    const size_t made = (size_t)(length / p->ratio * p->width);
    uint64_t seed = 300;
    parameters w = new_parameters(p, &seed);
    sequence whole = new_sequence(p, length, &seed), other = new_sequence(p, length, &seed), again = whole;
    pm_backend *backend = cpu_backend(1, PM_SIMD_BEST);
    run(backend, p, &w, &whole, 1, 1000);
    again.out = must_alloc(made * sizeof(float));
    for (int cut = 1; cut < length; cut++) {
        pm_rows *rows;
        pm_state *memory, *copy;
        const pm_state_spec spec = {.count = (p->overlap ? 6 : 3) * (int64_t)p->width};
        new_memory(backend, p, &rows, &memory);
        assert_int_equal(backend->ops->state_new(backend, &spec, &copy, NULL), PM_OK);
        int zero = 0, rest = length - cut;
        assert_int_equal(step(backend, p, &w, &whole, &rows, &memory, &zero, &cut, 1, NULL), PM_OK);
        backend->ops->state_copy(backend, copy, memory);
        assert_int_equal(step(backend, p, &w, &other, &rows, &memory, &cut, &rest, 1, NULL), PM_OK);
        backend->ops->state_copy(backend, memory, copy);
        backend->ops->rows_truncate(backend, rows, cut / p->ratio);
        assert_int_equal(step(backend, p, &w, &whole, &rows, &memory, &cut, &rest, 1, NULL), PM_OK);
        read_rows(backend, p, rows, &again);
        assert_same_bits("rows", again.out, whole.out, made);
        backend->ops->rows_free(backend, rows);
        backend->ops->state_free(backend, memory);
        backend->ops->state_free(backend, copy);
    }
    free(again.out);
    free_sequence(&whole);
    free_sequence(&other);
    free_parameters(&w);
    backend->ops->free(backend);
}

static void test_going_back(void **state)
{
    (void)state;
    go_back(&(problem){4, 24, 4, true, PM_KV_F32}, 16);
    go_back(&(problem){128, 8, 4, false, PM_KV_F32}, 3 * 128 - 1);
}

/* The norm's weight is what makes a row too large for f16; NaN is refused by both types. */
static void test_values_that_do_not_fit(void **state)
{
    (void)state;
    for (int type = 0; type < 2; type++) {
        const problem p = {4, 8, 1, true, type ? PM_KV_F32 : PM_KV_F16};
        uint64_t seed = 400;
        parameters w = new_parameters(&p, &seed);
        sequence seq = new_sequence(&p, 6, &seed);
        pm_backend *backend = cpu_backend(1, PM_SIMD_BEST);
        pm_rows *rows;
        pm_state *memory;
        pm_error err;
        int zero = 0, all = 4;
        w.norm[3] = 1e8f;
        new_memory(backend, &p, &rows, &memory);
        int rc = step(backend, &p, &w, &seq, &rows, &memory, &zero, &all, 1, &err);
        assert_int_equal(rc, type ? PM_OK : PM_ERR_NUMERIC);
        if (!type)
            assert_non_null(strstr(err.message, "layer 7: a key or value"));
        backend->ops->rows_truncate(backend, rows, 0);
        seq.kv[8] = NAN; /* the second half: of this window */
        assert_int_equal(step(backend, &p, &w, &seq, &rows, &memory, &zero, &all, 1, &err), PM_ERR_NUMERIC);
        assert_non_null(strstr(err.message, "is not finite"));
        assert_int_equal(backend->ops->rows_length(rows), 0);
        all = 1;
        zero = 5;
        assert_int_equal(step(backend, &p, &w, &seq, &rows, &memory, &zero, &all, 1, &err), PM_ERR_INVALID);
        assert_non_null(strstr(err.message, "layer 7: the cache has 0 rows of 4 tokens, but the next position is 5"));
        backend->ops->rows_free(backend, rows);
        backend->ops->state_free(backend, memory);
        free_sequence(&seq);
        free_parameters(&w);
        backend->ops->free(backend);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_double),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_going_back),
        cmocka_unit_test(test_values_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
