/* Hyper-connections against a plain computation in double, and the same bits however the work is cut. */
#include "backend/cpu/cpu.h"
#include "ops.h"

enum { TOKENS = 7 };

typedef struct problem {
    int n, hidden, iterations; /* iterations 0: only the collapse */
} problem;

typedef struct data {
    float *streams, *y, *fn, *base, *scale; /* inputs */
    float *x, *mix, *after;                 /* outputs: hyper_in's, and the streams after hyper_out */
} data;

static const float eps = 1e-6f, norm_eps = 1e-5f;

static int weights_of(const problem *p)
{
    return p->iterations ? (2 + p->n) * p->n : p->n;
}

static int mix_of(const problem *p)
{
    return p->n + p->n * p->n;
}

static data new_data(const problem *p, uint64_t *seed)
{
    size_t wide = (size_t)p->n * (size_t)p->hidden, tokens = TOKENS, w = (size_t)weights_of(p);
    return (data){random_array(seed, tokens * wide, 2),
                  random_array(seed, tokens * (size_t)p->hidden, 2),
                  random_array(seed, w * wide, 0.1f),
                  random_array(seed, w, 1),
                  random_array(seed, 3, 1.5f),
                  must_alloc(tokens * (size_t)p->hidden * sizeof(float)),
                  must_alloc(tokens * (size_t)mix_of(p) * sizeof(float)),
                  must_alloc(tokens * wide * sizeof(float))};
}

static void free_data(data *d)
{
    float *all[] = {d->streams, d->y, d->fn, d->base, d->scale, d->x, d->mix, d->after};
    for (size_t i = 0; i < PM_COUNT(all); i++)
        free(all[i]);
}

/* Tokens [first, first + n) through both operations. */
static void run(pm_backend *backend, const problem *p, data *d, int first, int n)
{
    size_t wide = (size_t)p->n * (size_t)p->hidden, hidden = (size_t)p->hidden, at = (size_t)first;
    pm_tensor *streams = new_tensor(backend, n, p->n * p->hidden, d->streams + at * wide);
    pm_tensor *y = new_tensor(backend, n, p->hidden, d->y + at * hidden);
    pm_tensor *fn = new_tensor(backend, weights_of(p), p->n * p->hidden, d->fn);
    pm_tensor *base = new_tensor(backend, 1, weights_of(p), d->base);
    pm_tensor *scale = new_tensor(backend, 1, p->iterations ? 3 : 1, d->scale);
    pm_tensor *x = new_tensor(backend, n, p->hidden, NULL), *mix = new_tensor(backend, n, mix_of(p), NULL);
    pm_batch batch = {.n_tokens = n};
    pm_hyper_in_args in = {.streams = streams,
                           .fn = fn,
                           .base = base,
                           .scale = scale,
                           .norm_eps = norm_eps,
                           .eps = eps,
                           .n = p->n,
                           .hidden = p->hidden,
                           .iterations = p->iterations,
                           .x = x,
                           .mix = p->iterations ? mix : NULL};
    pm_hyper_out_args out = {y, mix, p->n, p->hidden, streams};
    assert_int_equal(backend->ops->hyper_in(backend, &batch, &in, NULL), PM_OK);
    assert_int_equal(backend->ops->tensor_read(backend, x, 0, n, d->x + at * hidden, NULL), PM_OK);
    if (p->iterations) {
        assert_int_equal(backend->ops->hyper_out(backend, &batch, &out, NULL), PM_OK);
        assert_int_equal(backend->ops->tensor_read(backend, mix, 0, n, d->mix + at * (size_t)mix_of(p), NULL), PM_OK);
        assert_int_equal(backend->ops->tensor_read(backend, streams, 0, n, d->after + at * wide, NULL), PM_OK);
    }
    pm_tensor *all[] = {streams, y, fn, base, scale, x, mix};
    for (size_t i = 0; i < PM_COUNT(all); i++)
        backend->ops->tensor_free(backend, all[i]);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Divides the lines of m by their sums + eps: rows, or columns. */
static void divide(double *m, int n, bool columns)
{
    int step = columns ? n : 1, apart = columns ? 1 : n;
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (int j = 0; j < n; j++)
            sum += m[i * apart + j * step];
        for (int j = 0; j < n; j++)
            m[i * apart + j * step] /= sum + (double)eps;
    }
}

/* pre [n], post [n], comb [n, n] of a token. */
static void naive(const problem *p, const data *d, int t, double *pre, double *post, double *comb)
{
    int n = p->n, wide = n * p->hidden;
    const float *s = d->streams + (size_t)t * (size_t)wide;
    double square = 0, w[(2 + PM_HYPER_STREAMS) * PM_HYPER_STREAMS];
    for (int i = 0; i < wide; i++)
        square += (double)s[i] * (double)s[i];
    for (int r = 0; r < weights_of(p); r++) {
        w[r] = 0;
        for (int i = 0; i < wide; i++)
            w[r] += (double)d->fn[(size_t)r * (size_t)wide + (size_t)i] * (double)s[i];
        w[r] = w[r] / sqrt(square / wide + (double)norm_eps) *
                   (double)d->scale[r < n       ? 0
                                    : r < 2 * n ? 1
                                                : 2] +
               (double)d->base[r];
    }
    for (int j = 0; j < n; j++)
        pre[j] = sigmoid(w[j]) + (double)eps;
    for (int j = 0; p->iterations && j < n; j++)
        post[j] = 2 * sigmoid(w[n + j]);
    for (int r = 0; p->iterations && r < n; r++) {
        double sum = 0;
        for (int c = 0; c < n; c++)
            sum += exp(w[2 * n + r * n + c]);
        for (int c = 0; c < n; c++)
            comb[r * n + c] = exp(w[2 * n + r * n + c]) / sum + (double)eps;
    }
    for (int i = 0; i < p->iterations; i++) {
        if (i > 0)
            divide(comb, n, false);
        divide(comb, n, true);
    }
}

static void assert_near(const char *what, size_t which, double got, double want)
{
    if (!(fabs(got - want) <= 1e-5 * (1 + fabs(want))))
        fail_msg("problem %zu: %s is %.9g, expected %.9g", which, what, got, want);
}

static const problem problems[] = {{4, 128, 20}, {4, 300, 1}, {2, 65, 3}, {8, 16, 5}, {1, 33, 2}, {4, 300, 0}};

static void check_token(size_t which, const data *d, int t)
{
    const problem *p = &problems[which];
    int n = p->n, hidden = p->hidden;
    double pre[PM_HYPER_STREAMS], post[PM_HYPER_STREAMS], comb[PM_HYPER_STREAMS * PM_HYPER_STREAMS];
    const float *s = d->streams + (size_t)t * (size_t)(n * hidden), *mix = d->mix + (size_t)t * (size_t)mix_of(p);
    naive(p, d, t, pre, post, comb);
    for (int i = 0; i < hidden; i++) {
        double x = 0;
        for (int j = 0; j < n; j++)
            x += pre[j] * (double)s[j * hidden + i];
        assert_near("x", which, (double)d->x[t * hidden + i], x);
    }
    for (int j = 0; p->iterations && j < n; j++)
        assert_near("post", which, (double)mix[j], post[j]);
    for (int j = 0; p->iterations && j < n * n; j++)
        assert_near("comb", which, (double)mix[n + j], comb[j]);
    for (int k = 0; p->iterations && k < n; k++)
        for (int i = 0; i < hidden; i++) {
            double y = post[k] * (double)d->y[t * hidden + i];
            for (int j = 0; j < n; j++)
                y += comb[j * n + k] * (double)s[j * hidden + i];
            assert_near("streams", which, (double)d->after[(t * n + k) * hidden + i], y);
        }
}

static void test_against_double(void **state)
{
    (void)state;
    pm_backend *backend = cpu_backend(1, PM_SIMD_SCALAR);
    for (size_t i = 0; i < PM_COUNT(problems); i++) {
        uint64_t seed = 10 + i;
        data d = new_data(&problems[i], &seed);
        run(backend, &problems[i], &d, 0, TOKENS);
        for (int t = 0; t < TOKENS; t++)
            check_token(i, &d, t);
        free_data(&d);
    }
    backend->ops->free(backend);
}

/* Levels, threads, and tokens one by one. */
static void test_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < PM_COUNT(problems); i++) {
        const problem *p = &problems[i];
        size_t hidden = TOKENS * (size_t)p->hidden;
        uint64_t seed = 20 + i;
        data want = new_data(p, &seed);
        pm_backend *reference = cpu_backend(1, PM_SIMD_SCALAR);
        run(reference, p, &want, 0, TOKENS);
        reference->ops->free(reference);
        for (int k = 0; k < count_settings(); k++)
            for (int chunk = 1; chunk <= TOKENS; chunk += TOKENS - 1) {
                seed = 20 + i;
                data got = new_data(p, &seed);
                pm_backend *backend = cpu_backend(settings[k].threads, settings[k].simd);
                for (int t = 0; t < TOKENS; t += chunk)
                    run(backend, p, &got, t, chunk);
                assert_same_bits("x", got.x, want.x, hidden);
                assert_same_bits("mix", got.mix, want.mix, TOKENS * (size_t)mix_of(p));
                assert_same_bits("streams", got.after, want.after, hidden * (size_t)p->n);
                backend->ops->free(backend);
                free_data(&got);
            }
        free_data(&want);
    }
}

/* After 20 iterations rows and columns sum to 1, so the streams' mean keeps its size. */
static void test_doubly_stochastic(void **state)
{
    (void)state;
    const problem p = {4, 64, 20};
    uint64_t seed = 30;
    data d = new_data(&p, &seed);
    pm_backend *backend = cpu_backend(1, PM_SIMD_BEST);
    run(backend, &p, &d, 0, TOKENS);
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < p.n; i++) {
            const float *comb = d.mix + t * mix_of(&p) + p.n;
            double row = 0, column = 0;
            for (int j = 0; j < p.n; j++) {
                row += (double)comb[i * p.n + j];
                column += (double)comb[j * p.n + i];
            }
            assert_near("the sum of a column", 0, column, 1);
            if (fabs(row - 1) > 1e-3)
                fail_msg("row %d of token %d sums to %g", i, t, row);
        }
    free_data(&d);
    backend->ops->free(backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_double),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_doubly_stochastic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
