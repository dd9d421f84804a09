/* The gated delta net against a plain computation in double, and the same bits however the work is cut. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/memory.h"
#include "ops.h"

typedef struct problem {
    int key_heads, value_heads, key_dim, value_dim, kernel;
} problem;

typedef struct sequence {
    int length;
    float *qkv, *z, *a, *b, *out; /* [length, width] */
} sequence;

typedef struct parameters {
    float *conv, *A_log, *dt_bias, *norm;
} parameters;

/* The two memories of a sequence, in the order of the slots. */
typedef struct memory {
    pm_state *states[2];
} memory;

static const float eps = 1e-6f;

static const problem problems[] = {
    {.key_heads = 2, .value_heads = 4, .key_dim = 64, .value_dim = 64, .kernel = 4},
    {.key_heads = 1, .value_heads = 5, .key_dim = 32, .value_dim = 48, .kernel = 4},
    {.key_heads = 3, .value_heads = 3, .key_dim = 5, .value_dim = 20, .kernel = 3},
    {.key_heads = 2, .value_heads = 6, .key_dim = 20, .value_dim = 5, .kernel = 2},
    {.key_heads = 1, .value_heads = 2, .key_dim = 17, .value_dim = 71, .kernel = 11},
    {.key_heads = 1, .value_heads = 1, .key_dim = 128, .value_dim = 128, .kernel = 1},
};

static int channels(const problem *p)
{
    return 2 * p->key_heads * p->key_dim + p->value_heads * p->value_dim;
}

static int out_width(const problem *p)
{
    return p->value_heads * p->value_dim;
}

static sequence new_sequence(const problem *p, int length, uint64_t *seed)
{
    size_t n = (size_t)length;
    return (sequence){length,
                      random_array(seed, n * (size_t)channels(p), 2),
                      random_array(seed, n * (size_t)out_width(p), 3),
                      random_array(seed, n * (size_t)p->value_heads, 4),
                      random_array(seed, n * (size_t)p->value_heads, 3),
                      must_alloc(n * (size_t)out_width(p) * sizeof(float))};
}

static void free_sequence(sequence *s)
{
    free(s->qkv);
    free(s->z);
    free(s->a);
    free(s->b);
    free(s->out);
}

static parameters new_parameters(const problem *p, uint64_t *seed)
{
    return (parameters){random_array(seed, (size_t)(channels(p) * p->kernel), 1),
                        random_array(seed, (size_t)p->value_heads, 2), random_array(seed, (size_t)p->value_heads, 1),
                        random_array(seed, (size_t)p->value_dim, 1)};
}

static void free_parameters(parameters *w)
{
    free(w->conv);
    free(w->A_log);
    free(w->dt_bias);
    free(w->norm);
}

static memory new_memory(pm_backend *backend, const problem *p)
{
    memory m;
    pm_state_spec specs[2] = {{(int64_t)(p->kernel - 1) * channels(p)},
                              {(int64_t)p->value_heads * p->key_dim * p->value_dim}};
    for (int i = 0; i < 2; i++)
        assert_int_equal(backend->ops->state_new(backend, specs + i, m.states + i, NULL), PM_OK);
    return m;
}

static void free_memory(pm_backend *backend, memory *m)
{
    for (int i = 0; i < 2; i++)
        backend->ops->state_free(backend, m->states[i]);
}

static void copy_rows(pm_tensor *to, int at, const float *array, int from, int n)
{
    size_t width = (size_t)to->cols;
    memcpy(to->data + (size_t)at * width, array + (size_t)from * width, (size_t)n * width * sizeof(float));
}

/* Tokens [from[s], from[s] + take[s]) of n sequences in one step. */
static void step(pm_backend *backend, const problem *p, const parameters *w, sequence *seqs, const memory *memories,
                 const int *from, const int *take, int n)
{
    pm_segment *segments = must_alloc((size_t)n * sizeof *segments);
    int tokens = 0, used = 0;
    for (int s = 0; s < n; s++)
        if (take[s] > 0) {
            segments[used++] =
                (pm_segment){.first = tokens, .n = take[s], .pos = from[s], .states = memories[s].states};
            tokens += take[s];
        }
    pm_tensor *qkv = new_tensor(backend, tokens, channels(p), NULL),
              *z = new_tensor(backend, tokens, out_width(p), NULL);
    pm_tensor *a = new_tensor(backend, tokens, p->value_heads, NULL),
              *b = new_tensor(backend, tokens, p->value_heads, NULL);
    pm_tensor *out = new_tensor(backend, tokens, out_width(p), NULL);
    pm_tensor *conv = new_tensor(backend, channels(p), p->kernel, w->conv);
    pm_tensor *A_log = new_tensor(backend, 1, p->value_heads, w->A_log);
    pm_tensor *dt_bias = new_tensor(backend, 1, p->value_heads, w->dt_bias);
    pm_tensor *norm = new_tensor(backend, 1, p->value_dim, w->norm);
    for (int s = 0, at = 0; s < n; at += take[s], s++) {
        copy_rows(qkv, at, seqs[s].qkv, from[s], take[s]);
        copy_rows(z, at, seqs[s].z, from[s], take[s]);
        copy_rows(a, at, seqs[s].a, from[s], take[s]);
        copy_rows(b, at, seqs[s].b, from[s], take[s]);
    }
    pm_batch batch = {.n_tokens = tokens, .n_segments = used, .segments = segments};
    pm_gated_delta_args args = {.qkv = qkv,
                                .z = z,
                                .a = a,
                                .b = b,
                                .conv = conv,
                                .A_log = A_log,
                                .dt_bias = dt_bias,
                                .norm = norm,
                                .eps = eps,
                                .key_heads = p->key_heads,
                                .value_heads = p->value_heads,
                                .key_dim = p->key_dim,
                                .value_dim = p->value_dim,
                                .kernel = p->kernel,
                                .conv_state = 0,
                                .delta_state = 1,
                                .out = out};
    pm_error err;
    if (backend->ops->gated_delta(backend, &batch, &args, &err) != PM_OK)
        fail_msg("gated_delta: %s", err.message);
    for (int s = 0, at = 0; s < n; at += take[s], s++)
        memcpy(seqs[s].out + (size_t)from[s] * (size_t)out_width(p), out->data + (size_t)at * (size_t)out_width(p),
               (size_t)take[s] * (size_t)out_width(p) * sizeof(float));
    pm_tensor *all[] = {qkv, z, a, b, out, conv, A_log, dt_bias, norm};
    for (size_t i = 0; i < PM_COUNT(all); i++)
        backend->ops->tensor_free(backend, all[i]);
    free(segments);
}

/* Runs whole sequences together, `chunk` tokens of each a step; `memories` receives what is left, or is NULL. */
static void run(pm_backend *backend, const problem *p, const parameters *w, sequence *seqs, int n, int chunk,
                memory *memories)
{
    memory *used = must_alloc((size_t)n * sizeof *used);
    int *from = must_alloc((size_t)n * sizeof *from), *take = must_alloc((size_t)n * sizeof *take);
    for (int s = 0; s < n; s++) {
        used[s] = new_memory(backend, p);
        memset(seqs[s].out, 0, (size_t)seqs[s].length * (size_t)out_width(p) * sizeof(float));
    }
    for (int left = 1; left;) {
        left = 0;
        for (int s = 0; s < n; s++) {
            from[s] += take[s];
            take[s] = seqs[s].length - from[s] < chunk ? seqs[s].length - from[s] : chunk;
            left += take[s];
        }
        if (left)
            step(backend, p, w, seqs, used, from, take, n);
    }
    for (int s = 0; s < n; s++) {
        if (memories)
            memories[s] = used[s];
        else
            free_memory(backend, used + s);
    }
    free(used);
    free(from);
    free(take);
}

/* silu of the convolution of channel c at token t. */
static double naive_conv(const problem *p, const parameters *w, const sequence *seq, int t, int c)
{
    double sum = 0;
    for (int i = 0; i < p->kernel; i++) {
        int at = t + i - (p->kernel - 1);
        if (at >= 0)
            sum += (double)w->conv[c * p->kernel + i] * seq->qkv[(size_t)at * (size_t)channels(p) + (size_t)c];
    }
    return sum / (1 + exp(-sum));
}

/* All tokens of one value head into out [length, value_dim]; `s` [key_dim, value_dim] starts at zero. */
static void naive_head(const problem *p, const parameters *w, const sequence *seq, int head, double *s, double *out)
{
    int key_head = head / (p->value_heads / p->key_heads), keys = p->key_heads * p->key_dim, vd = p->value_dim;
    double *q = must_alloc((size_t)p->key_dim * sizeof *q), *k = must_alloc((size_t)p->key_dim * sizeof *k);
    for (int t = 0; t < seq->length; t++) {
        double qq = 1e-6, kk = 1e-6, squares = 0;
        for (int i = 0; i < p->key_dim; i++) {
            q[i] = naive_conv(p, w, seq, t, key_head * p->key_dim + i);
            k[i] = naive_conv(p, w, seq, t, keys + key_head * p->key_dim + i);
            qq += q[i] * q[i];
            kk += k[i] * k[i];
        }
        size_t at = (size_t)t * (size_t)p->value_heads + (size_t)head;
        double decay = exp(-exp((double)w->A_log[head]) * log1p(exp((double)seq->a[at] + w->dt_bias[head])));
        double beta = 1 / (1 + exp(-(double)seq->b[at]));
        for (int d = 0; d < vd; d++) {
            double recalled = 0, read = 0, v = naive_conv(p, w, seq, t, 2 * keys + head * vd + d);
            for (int i = 0; i < p->key_dim; i++)
                recalled += k[i] / sqrt(kk) * decay * s[i * vd + d];
            for (int i = 0; i < p->key_dim; i++) {
                s[i * vd + d] = decay * s[i * vd + d] + k[i] / sqrt(kk) * beta * (v - recalled);
                read += q[i] / sqrt(qq) / sqrt(p->key_dim) * s[i * vd + d];
            }
            out[t * vd + d] = read;
            squares += read * read;
        }
        for (int d = 0; d < vd; d++) {
            double z = seq->z[at * (size_t)vd + (size_t)d];
            out[t * vd + d] *= w->norm[d] / sqrt(squares / vd + (double)eps) * z / (1 + exp(-z));
        }
    }
    free(q);
    free(k);
}

static void test_against_double(void **state)
{
    (void)state;
    uint64_t seed = 1;
    pm_backend *backend = cpu_backend(1, PM_SIMD_SCALAR);
    for (size_t i = 0; i < PM_COUNT(problems); i++) {
        const problem *p = problems + i;
        size_t state_size = (size_t)(p->key_dim * p->value_dim);
        parameters w = new_parameters(p, &seed);
        sequence seq = new_sequence(p, 40, &seed);
        memory left;
        run(backend, p, &w, &seq, 1, 40, &left);
        double *out = must_alloc(40 * (size_t)p->value_dim * sizeof *out);
        for (int h = 0; h < p->value_heads; h++) {
            double *s = must_alloc(state_size * sizeof *s);
            naive_head(p, &w, &seq, h, s, out);
            for (int t = 0; t < 40; t++)
                for (int d = 0; d < p->value_dim; d++) {
                    double got = seq.out[(t * p->value_heads + h) * p->value_dim + d], want = out[t * p->value_dim + d];
                    if (!(fabs(got - want) < 1e-4))
                        fail_msg("problem %zu, token %d, head %d, element %d: %g, expected %g", i, t, h, d, got, want);
                }
            for (size_t e = 0; e < state_size; e++)
                assert_float_equal(left.states[1]->data[(size_t)h * state_size + e], s[e], 1e-5);
            free(s);
        }
        /* The conv state holds inputs, not outputs, of the convolution. */
        assert_same_bits("conv state", left.states[0]->data, seq.qkv + (40 - (p->kernel - 1)) * channels(p),
                         (size_t)((p->kernel - 1) * channels(p)));
        free(out);
        free_memory(backend, &left);
        free_sequence(&seq);
        free_parameters(&w);
    }
    backend->ops->free(backend);
}

/* Chunks, company, threads and instruction sets change no bit, of outputs and of states. */
static void test_invariance(void **state)
{
    (void)state;
    uint64_t seed = 2;
    enum { SEQUENCES = 4 };
    static const int lengths[SEQUENCES] = {70, 1, 16, 33}, chunks[] = {70, 64, 17, 7, 3, 1};
    int n_settings = count_settings();
    for (size_t i = 0; i < PM_COUNT(problems); i++) {
        const problem *p = problems + i;
        parameters w = new_parameters(p, &seed);
        sequence seqs[SEQUENCES];
        float *want[SEQUENCES];
        memory want_left[SEQUENCES], left[SEQUENCES];
        pm_backend *first = cpu_backend(settings[0].threads, settings[0].simd);
        for (int s = 0; s < SEQUENCES; s++) { /* alone and whole: the reference */
            size_t bytes = (size_t)lengths[s] * (size_t)out_width(p) * sizeof(float);
            seqs[s] = new_sequence(p, lengths[s], &seed);
            run(first, p, &w, seqs + s, 1, lengths[s], want_left + s);
            want[s] = must_alloc(bytes);
            memcpy(want[s], seqs[s].out, bytes);
        }
        for (int k = 0; k < n_settings; k++) {
            pm_backend *backend = cpu_backend(settings[k].threads, settings[k].simd);
            for (size_t c = 0; c < PM_COUNT(chunks); c += EVERY) {
                run(backend, p, &w, seqs, SEQUENCES, chunks[c], left);
                for (int s = 0; s < SEQUENCES; s++) {
                    char what[96];
                    snprintf(what, sizeof what, "problem %zu, setting %d, chunk %d, sequence %d", i, k, chunks[c], s);
                    assert_same_bits(what, seqs[s].out, want[s], (size_t)lengths[s] * (size_t)out_width(p));
                    for (int m = 0; m < 2; m++)
                        assert_same_bits(what, left[s].states[m]->data, want_left[s].states[m]->data,
                                         (size_t)left[s].states[m]->count);
                    free_memory(backend, left + s);
                }
            }
            backend->ops->free(backend);
        }
        for (int s = 0; s < SEQUENCES; s++) {
            free_memory(first, want_left + s);
            free(want[s]);
            free_sequence(seqs + s);
        }
        first->ops->free(first);
        free_parameters(&w);
    }
}

/* A prompt of n tokens and one more, for n around the kernel's length, and from a copy of the states. */
static void test_short_prompts_and_replay(void **state)
{
    (void)state;
    uint64_t seed = 3;
    pm_backend *backend = cpu_backend(1, PM_SIMD_BEST);
    for (size_t i = 0; i < PM_COUNT(problems); i++) {
        const problem *p = problems + i;
        parameters w = new_parameters(p, &seed);
        for (int n = 1; n <= p->kernel + 1; n++) {
            sequence seq = new_sequence(p, n + 1, &seed);
            size_t width = (size_t)out_width(p);
            run(backend, p, &w, &seq, 1, n + 1, NULL);
            float *want = must_alloc(width * sizeof *want);
            memcpy(want, seq.out + (size_t)n * width, width * sizeof *want);
            memory live = new_memory(backend, p), kept = new_memory(backend, p);
            step(backend, p, &w, &seq, &live, (int[]){0}, &n, 1);
            for (int m = 0; m < 2; m++)
                backend->ops->state_copy(backend, kept.states[m], live.states[m]);
            for (int again = 0; again < 2; again++) {
                memset(seq.out + (size_t)n * width, 0, width * sizeof(float));
                step(backend, p, &w, &seq, &live, &n, (int[]){1}, 1);
                assert_same_bits("prompt and one", seq.out + (size_t)n * width, want, width);
                for (int m = 0; m < 2; m++)
                    backend->ops->state_copy(backend, live.states[m], kept.states[m]);
            }
            free_memory(backend, &live);
            free_memory(backend, &kept);
            free(want);
            free_sequence(&seq);
        }
        free_parameters(&w);
    }
    backend->ops->free(backend);
}

/* A changed last token leaves everything before it alone. */
static void test_causal(void **state)
{
    (void)state;
    uint64_t seed = 4;
    const problem *p = problems;
    pm_backend *backend = cpu_backend(2, PM_SIMD_BEST);
    parameters w = new_parameters(p, &seed);
    sequence seq = new_sequence(p, 20, &seed);
    size_t width = (size_t)out_width(p), before = 19 * width;
    float *want = must_alloc(20 * width * sizeof *want);
    run(backend, p, &w, &seq, 1, 20, NULL);
    memcpy(want, seq.out, 20 * width * sizeof *want);
    for (int c = 0; c < channels(p); c++)
        seq.qkv[19 * channels(p) + c] += 1;
    run(backend, p, &w, &seq, 1, 20, NULL);
    assert_same_bits("earlier tokens", seq.out, want, before);
    assert_memory_not_equal(seq.out + before, want + before, width * sizeof *want);
    free(want);
    free_sequence(&seq);
    free_parameters(&w);
    backend->ops->free(backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_double),
        cmocka_unit_test(test_invariance),
        cmocka_unit_test(test_short_prompts_and_replay),
        cmocka_unit_test(test_causal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
