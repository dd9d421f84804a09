/* Short convolution and Mamba-2 against plain computations in double, and the same bits however the work is cut. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/memory.h"
#include "ops.h"

/* One of the two operations at some size; heads 0: a short convolution. */
typedef struct problem {
    int heads, head_dim, groups, state_size; /* Mamba-2 */
    int width, kernel;                       /* short convolution: its channels */
    bool bias;
    float dt_min, dt_max;
} problem;

static const float eps = 1e-5f;

static const problem problems[] = {
    {.width = 64, .kernel = 3},
    {.width = 200, .kernel = 4, .bias = true},
    {.width = 5, .kernel = 2, .bias = true},
    {.width = 67, .kernel = 11},
    {.width = 9, .kernel = 1},
    {.heads = 4, .head_dim = 64, .groups = 2, .state_size = 64, .kernel = 4, .bias = true, .dt_max = INFINITY},
    {.heads = 6, .head_dim = 20, .groups = 3, .state_size = 17, .kernel = 4, .dt_min = .3f, .dt_max = .6f},
    {.heads = 5, .head_dim = 5, .groups = 1, .state_size = 128, .kernel = 2, .bias = true, .dt_max = 1},
    {.heads = 3, .head_dim = 71, .groups = 3, .state_size = 8, .kernel = 1, .bias = true, .dt_max = INFINITY},
    {.heads = 2, .head_dim = 32, .groups = 1, .state_size = 5, .kernel = 9, .dt_max = INFINITY},
};

static int inner(const problem *p)
{
    return p->heads ? p->heads * p->head_dim : p->width;
}

static int channels(const problem *p)
{
    return p->heads ? inner(p) + 2 * p->groups * p->state_size : p->width;
}

static int in_width(const problem *p)
{
    return p->heads ? inner(p) + channels(p) + p->heads : 3 * p->width;
}

/* Elements of the two states; a short convolution has no second one. */
static int64_t state_count(const problem *p, int i)
{
    return i == 0 ? (int64_t)(p->kernel - 1) * channels(p) : (int64_t)inner(p) * p->state_size;
}

typedef struct parameters {
    float *conv, *bias, *A_log, *D, *dt_bias, *norm;
} parameters;

typedef struct sequence {
    int length;
    float *x, *out; /* [length, in_width], [length, inner] */
    pm_state *states[2];
} sequence;

static parameters new_parameters(const problem *p, uint64_t *seed)
{
    size_t c = (size_t)channels(p), heads = (size_t)p->heads;
    return (parameters){random_array(seed, c * (size_t)p->kernel, 1),
                        random_array(seed, c, 1),
                        random_array(seed, heads, 2),
                        random_array(seed, heads, 1),
                        random_array(seed, heads, 1),
                        random_array(seed, (size_t)inner(p), 1)};
}

static void free_parameters(parameters *w)
{
    free(w->conv);
    free(w->bias);
    free(w->A_log);
    free(w->D);
    free(w->dt_bias);
    free(w->norm);
}

static sequence new_sequence(const problem *p, int length, uint64_t *seed)
{
    size_t n = (size_t)length;
    return (sequence){
        length, random_array(seed, n * (size_t)in_width(p), 2), must_alloc(n * (size_t)inner(p) * sizeof(float)), {0}};
}

static void new_states(pm_backend *backend, const problem *p, sequence *seq)
{
    for (int i = 0; i < 2; i++)
        assert_int_equal(backend->ops->state_new(backend, &(pm_state_spec){state_count(p, i)}, &seq->states[i], NULL),
                         PM_OK);
}

static void free_states(pm_backend *backend, sequence *seq)
{
    for (int i = 0; i < 2; i++)
        backend->ops->state_free(backend, seq->states[i]);
}

static void free_sequence(sequence *s)
{
    free(s->x);
    free(s->out);
}

static int apply(pm_backend *backend, const pm_batch *batch, const problem *p, const parameters *w, const pm_tensor *x,
                 pm_tensor *out, pm_error *err)
{
    pm_tensor conv = {channels(p), p->kernel, w->conv}, bias = {1, channels(p), w->bias};
    pm_tensor A_log = {1, p->heads, w->A_log}, D = {1, p->heads, w->D}, dt_bias = {1, p->heads, w->dt_bias};
    pm_tensor norm = {1, inner(p), w->norm};
    if (!p->heads)
        return backend->ops->short_conv(backend, batch,
                                        &(pm_short_conv_args){.bcx = x,
                                                              .conv = &conv,
                                                              .bias = p->bias ? &bias : NULL,
                                                              .width = p->width,
                                                              .kernel = p->kernel,
                                                              .out = out},
                                        err);
    return backend->ops->mamba2(backend, batch,
                                &(pm_mamba2_args){.projected = x,
                                                  .conv = &conv,
                                                  .conv_bias = p->bias ? &bias : NULL,
                                                  .A_log = &A_log,
                                                  .D = &D,
                                                  .dt_bias = &dt_bias,
                                                  .norm = &norm,
                                                  .eps = eps,
                                                  .dt_min = p->dt_min,
                                                  .dt_max = p->dt_max,
                                                  .heads = p->heads,
                                                  .head_dim = p->head_dim,
                                                  .groups = p->groups,
                                                  .state_size = p->state_size,
                                                  .kernel = p->kernel,
                                                  .ssm_state = 1,
                                                  .out = out},
                                err);
}

/* Tokens [from, from + chunk) of those of n sequences that have them, in one step. */
static void step(pm_backend *backend, const problem *p, const parameters *w, sequence *seqs, int n, int from, int chunk)
{
    enum { MOST = 8 };
    pm_segment segments[MOST];
    int tokens = 0, used = 0, of[MOST];
    for (int s = 0; s < n; s++) {
        int take = seqs[s].length - from < chunk ? seqs[s].length - from : chunk;
        if (take < 1)
            continue;
        of[used] = s;
        segments[used++] = (pm_segment){.first = tokens, .n = take, .pos = from, .states = seqs[s].states};
        tokens += take;
    }
    pm_tensor *x = new_tensor(backend, tokens, in_width(p), NULL), *out = new_tensor(backend, tokens, inner(p), NULL);
    size_t in_row = (size_t)in_width(p), out_row = (size_t)inner(p);
    for (int i = 0; i < used; i++)
        memcpy(x->data + (size_t)segments[i].first * in_row, seqs[of[i]].x + (size_t)from * in_row,
               (size_t)segments[i].n * in_row * sizeof(float));
    pm_error err;
    if (apply(backend, &(pm_batch){.n_tokens = tokens, .n_segments = used, .segments = segments}, p, w, x, out, &err))
        fail_msg("%s", err.message);
    for (int i = 0; i < used; i++)
        memcpy(seqs[of[i]].out + (size_t)from * out_row, out->data + (size_t)segments[i].first * out_row,
               (size_t)segments[i].n * out_row * sizeof(float));
    backend->ops->tensor_free(backend, x);
    backend->ops->tensor_free(backend, out);
}

/* Whole sequences from new states, which stay with them, `chunk` tokens of each a step. */
static void run(pm_backend *backend, const problem *p, const parameters *w, sequence *seqs, int n, int chunk)
{
    int longest = 0;
    for (int s = 0; s < n; s++) {
        new_states(backend, p, &seqs[s]);
        memset(seqs[s].out, 0, (size_t)seqs[s].length * (size_t)inner(p) * sizeof(float));
        longest = seqs[s].length > longest ? seqs[s].length : longest;
    }
    for (int from = 0; from < longest; from += chunk)
        step(backend, p, w, seqs, n, from, chunk);
}

/* ---- in double ---- */

/* What goes into the convolution at token t, channel c. */
static double conv_in(const problem *p, const sequence *seq, int t, int c)
{
    const float *row = seq->x + (size_t)t * (size_t)in_width(p);
    if (p->heads)
        return row[inner(p) + c];
    return (double)row[c] * row[2 * p->width + c];
}

static double convolved(const problem *p, const parameters *w, const sequence *seq, int t, int c)
{
    double sum = p->bias ? w->bias[c] : 0;
    for (int i = 0; i < p->kernel; i++)
        if (t + i >= p->kernel - 1)
            sum += (double)w->conv[c * p->kernel + i] * conv_in(p, seq, t + i - (p->kernel - 1), c);
    return p->heads ? sum / (1 + exp(-sum)) : sum;
}

static void naive_short_conv(const problem *p, const parameters *w, const sequence *seq, double *out)
{
    for (int t = 0; t < seq->length; t++)
        for (int c = 0; c < p->width; c++)
            out[t * p->width + c] =
                convolved(p, w, seq, t, c) * (double)seq->x[(size_t)t * (size_t)in_width(p) + (size_t)(p->width + c)];
}

/* One head over all tokens, gated and not yet normalised; `s` [state_size, head_dim] is zero. */
static void naive_head(const problem *p, const parameters *w, const sequence *seq, int h, double *s, double *out)
{
    int group = h / (p->heads / p->groups), dim = p->head_dim, n = p->state_size;
    for (int t = 0; t < seq->length; t++) {
        const float *row = seq->x + (size_t)t * (size_t)in_width(p);
        double dt = log1p(exp((double)row[inner(p) + channels(p) + h] + (double)w->dt_bias[h]));
        dt = fmin(fmax(dt, (double)p->dt_min), (double)p->dt_max);
        double decay = exp(-exp((double)w->A_log[h]) * dt);
        for (int d = 0; d < dim; d++) {
            double x = convolved(p, w, seq, t, h * dim + d), y = (double)w->D[h] * x, z = row[h * dim + d];
            for (int i = 0; i < n; i++) {
                double B = convolved(p, w, seq, t, inner(p) + group * n + i);
                double C = convolved(p, w, seq, t, inner(p) + (p->groups + group) * n + i);
                s[i * dim + d] = decay * s[i * dim + d] + B * dt * x;
                y += C * s[i * dim + d];
            }
            out[t * inner(p) + h * dim + d] = y * z / (1 + exp(-z));
        }
    }
}

static void naive_norm(const problem *p, const parameters *w, int length, double *out)
{
    int n = inner(p) / p->groups;
    for (int i = 0; i < length * p->groups; i++) {
        double squares = 0, *x = out + i * n;
        for (int k = 0; k < n; k++)
            squares += x[k] * x[k];
        for (int k = 0; k < n; k++)
            x[k] *= (double)w->norm[i % p->groups * n + k] / sqrt(squares / n + (double)eps);
    }
}

static void against_double(void **state)
{
    (void)state;
    enum { LENGTH = 40 };
    uint64_t seed = 1;
    pm_backend *backend = cpu_backend(1, PM_SIMD_SCALAR);
    for (size_t i = 0; i < PM_COUNT(problems); i++) {
        const problem *p = problems + i;
        parameters w = new_parameters(p, &seed);
        sequence seq = new_sequence(p, LENGTH, &seed);
        run(backend, p, &w, &seq, 1, LENGTH);
        double *out = must_alloc((size_t)(LENGTH * inner(p)) * sizeof *out);
        double *s = must_alloc((size_t)state_count(p, 1) * sizeof *s);
        int head_states = p->head_dim * p->state_size;
        if (!p->heads)
            naive_short_conv(p, &w, &seq, out);
        for (int h = 0; h < p->heads; h++)
            naive_head(p, &w, &seq, h, s + h * head_states, out);
        if (p->heads)
            naive_norm(p, &w, LENGTH, out);
        for (int k = 0; k < LENGTH * inner(p); k++)
            if (!(fabs((double)seq.out[k] - out[k]) < 2e-4))
                fail_msg("problem %zu, token %d, element %d: %g, expected %g", i, k / inner(p), k % inner(p),
                         (double)seq.out[k], out[k]);
        for (int64_t k = 0; k < state_count(p, 1); k++)
            assert_true(fabs((double)seq.states[1]->data[k] - s[k]) < 1e-4 * (1 + fabs(s[k])));
        for (int t = 0; t < p->kernel - 1; t++) /* what goes into the convolution, not what comes out */
            for (int c = 0; c < channels(p); c++) {
                float got = seq.states[0]->data[t * channels(p) + c];
                assert_true(got == (float)conv_in(p, &seq, LENGTH - (p->kernel - 1) + t, c));
            }
        free(out);
        free(s);
        free_states(backend, &seq);
        free_sequence(&seq);
        free_parameters(&w);
    }
    backend->ops->free(backend);
}

/* Chunks, company, threads and instruction sets change no bit, of outputs and of states. */
static void invariance(void **state)
{
    (void)state;
    uint64_t seed = 2;
    enum { SEQUENCES = 6 };
    static const int lengths[SEQUENCES] = {70, 1, 3, 9, 32, 33}, chunks[] = {70, 64, 33, 32, 31, 17, 7, 3, 2, 1};
    int n_settings = count_settings();
    for (size_t i = 0; i < PM_COUNT(problems); i++) {
        const problem *p = problems + i;
        parameters w = new_parameters(p, &seed);
        sequence want[SEQUENCES], seqs[SEQUENCES];
        pm_backend *first = cpu_backend(settings[0].threads, settings[0].simd);
        for (int s = 0; s < SEQUENCES; s++) { /* alone and whole: the reference */
            seqs[s] = want[s] = new_sequence(p, lengths[s], &seed);
            seqs[s].out = must_alloc((size_t)(lengths[s] * inner(p)) * sizeof(float));
            run(first, p, &w, want + s, 1, lengths[s]);
        }
        for (int k = 0; k < n_settings; k++) {
            pm_backend *backend = cpu_backend(settings[k].threads, settings[k].simd);
            for (size_t c = 0; c < PM_COUNT(chunks); c += EVERY) {
                run(backend, p, &w, seqs, SEQUENCES, chunks[c]);
                for (int s = 0; s < SEQUENCES; s++) {
                    char what[96];
                    snprintf(what, sizeof what, "problem %zu, setting %d, chunk %d, sequence %d", i, k, chunks[c], s);
                    assert_same_bits(what, seqs[s].out, want[s].out, (size_t)(lengths[s] * inner(p)));
                    for (int m = 0; m < 2; m++)
                        assert_same_bits(what, seqs[s].states[m]->data, want[s].states[m]->data,
                                         (size_t)state_count(p, m));
                    free_states(backend, seqs + s);
                }
            }
            backend->ops->free(backend);
        }
        for (int s = 0; s < SEQUENCES; s++) {
            free_states(first, want + s);
            free(seqs[s].out);
            free_sequence(want + s);
        }
        first->ops->free(first);
        free_parameters(&w);
    }
}

/* The first `length` tokens of `whole` in pieces that end at `cuts` (ascending, the last is the length), two sequences
 * side by side: the bits of the whole ones. */
static void check_cuts(pm_backend *backend, const problem *p, const parameters *w, const sequence *whole, int length,
                       const int *cuts, int n_cuts)
{
    sequence pieces[2];
    for (int s = 0; s < 2; s++) {
        pieces[s] = whole[s];
        pieces[s].length = length;
        pieces[s].out = must_alloc((size_t)(length * inner(p)) * sizeof(float));
        new_states(backend, p, &pieces[s]);
    }
    for (int i = 0, from = 0; i < n_cuts; from = cuts[i++])
        step(backend, p, w, pieces, 2, from, cuts[i] - from);
    for (int s = 0; s < 2; s++) {
        char what[96];
        snprintf(what, sizeof what, "problem %d, %d tokens, the first cut at %d", (int)(p - problems), length, cuts[0]);
        assert_same_bits(what, pieces[s].out, whole[s].out, (size_t)(length * inner(p)));
        for (int m = 0; m < 2 && length == whole[s].length; m++)
            assert_same_bits(what, pieces[s].states[m]->data, whole[s].states[m]->data, (size_t)state_count(p, m));
        free_states(backend, &pieces[s]);
        free(pieces[s].out);
    }
}

/* A border at every place of a prompt: at every residue of the kernel and of the 32 tokens between two passes over the
 * state; and the places where scan chunks of 256 tokens went wrong elsewhere. */
static void borders(void **state)
{
    enum { LENGTH = 99, LONG = 700 };
    static const int far[] = {100, 255, 256, 257, 356, 512, LONG};
    (void)state;
    uint64_t seed = 5;
    pm_backend *backend = cpu_backend(2, PM_SIMD_BEST);
    for (size_t i = 0; i < PM_COUNT(problems); i++) {
        const problem *p = problems + i;
        bool farther = i == 2 || i == 6;
        int length = farther ? LONG : LENGTH;
        parameters w = new_parameters(p, &seed);
        sequence whole[2];
        for (int s = 0; s < 2; s++) {
            whole[s] = new_sequence(p, length, &seed);
            run(backend, p, &w, &whole[s], 1, length);
        }
        for (int cut = 1; cut < LENGTH; cut++)
            check_cuts(backend, p, &w, whole, LENGTH, (int[]){cut, LENGTH}, 2);
        for (size_t k = 0; farther && k + 1 < PM_COUNT(far); k++)
            check_cuts(backend, p, &w, whole, LONG, (int[]){far[k], LONG}, 2);
        if (farther)
            check_cuts(backend, p, &w, whole, LONG, far, PM_COUNT(far));
        for (int s = 0; s < 2; s++) {
            free_states(backend, &whole[s]);
            free_sequence(&whole[s]);
        }
        free_parameters(&w);
    }
    backend->ops->free(backend);
}

/* A prompt of n tokens and one more, for n around the kernel's length, on a copy of the states. */
static void short_prompts_and_replay(void **state)
{
    (void)state;
    uint64_t seed = 3;
    pm_backend *backend = cpu_backend(1, PM_SIMD_BEST);
    for (size_t i = 0; i < PM_COUNT(problems); i++) {
        const problem *p = problems + i;
        parameters w = new_parameters(p, &seed);
        for (int n = 1; n <= p->kernel + 1; n++) {
            sequence whole = new_sequence(p, n + 1, &seed), prompt = whole, again = whole;
            prompt.out = must_alloc((size_t)((n + 1) * inner(p)) * sizeof(float));
            again.out = must_alloc((size_t)((n + 1) * inner(p)) * sizeof(float));
            run(backend, p, &w, &whole, 1, n + 1);
            prompt.length = n;
            run(backend, p, &w, &prompt, 1, n);
            prompt.length = n + 1;
            new_states(backend, p, &again);
            for (int m = 0; m < 2; m++)
                backend->ops->state_copy(backend, again.states[m], prompt.states[m]);
            step(backend, p, &w, &prompt, 1, n, 1);
            step(backend, p, &w, &again, 1, n, 1);
            size_t last = (size_t)(n * inner(p));
            assert_same_bits("the next token", prompt.out + last, whole.out + last, (size_t)inner(p));
            assert_same_bits("from a copy", again.out + last, whole.out + last, (size_t)inner(p));
            free_states(backend, &whole);
            free_states(backend, &prompt);
            free_states(backend, &again);
            free(prompt.out);
            free(again.out);
            free_sequence(&whole);
        }
        free_parameters(&w);
    }
    backend->ops->free(backend);
}

/* One token, one head: the step is softplus of the bias, bounded by the limits as given and by nothing else. */
static void time_steps(void **state)
{
    (void)state;
    static const struct {
        double step;
        float min, max, want;
    } cases[] = {
        {1e-5, 0, INFINITY, 1e-5f}, {3, 0, .1f, .1f},        {3, 0, INFINITY, 3},
        {1e-5, .001f, .1f, .001f},  {.05, .001f, .1f, .05f},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        float conv[] = {1, 1, 1}, A_log = -100, D = 0, norm = 1, dt_bias = (float)log(expm1(cases[i].step));
        float row[] = {1, 1.2785f, 1.2785f, 1.2785f, 0}; /* z, x, B, C, dt; silu(1.2785) is 1.0000 */
        problem p = {1, 1, 1, 1, 0, 1, false, cases[i].min, cases[i].max};
        parameters w = {conv, NULL, &A_log, &D, &dt_bias, &norm};
        sequence seq = {1, row, must_alloc(sizeof(float)), {0}};
        for (int level = 0; level < 2; level++) {
            pm_backend *backend = cpu_backend(1, level ? PM_SIMD_BEST : PM_SIMD_SCALAR);
            run(backend, &p, &w, &seq, 1, 1);
            assert_float_equal(seq.states[1]->data[0] / cases[i].want, 1, 1e-3);
            free_states(backend, &seq);
            backend->ops->free(backend);
        }
        free(seq.out);
    }
}

/* Groups of which one is a hundred times larger each come out with a mean square of 1. */
static void norm_per_group(void **state)
{
    (void)state;
    uint64_t seed = 4;
    problem p = {.heads = 2, .head_dim = 8, .groups = 2, .state_size = 4, .kernel = 2, .dt_max = INFINITY};
    parameters w = new_parameters(&p, &seed);
    sequence seq = new_sequence(&p, 1, &seed);
    pm_backend *backend = cpu_backend(1, PM_SIMD_BEST);
    for (int i = 0; i < inner(&p); i++) {
        w.norm[i] = 1;
        seq.x[i] *= i < 8 ? 1.0f : 100.0f; /* z: the gate comes before the norm */
    }
    w.D[0] = w.D[1] = 1000;
    run(backend, &p, &w, &seq, 1, 1);
    for (int g = 0; g < 2; g++) {
        double squares = 0;
        for (int i = 0; i < 8; i++)
            squares += (double)seq.out[8 * g + i] * seq.out[8 * g + i];
        assert_true(fabs(squares / 8 - 1) < 1e-3);
    }
    free_states(backend, &seq);
    backend->ops->free(backend);
    free_sequence(&seq);
    free_parameters(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_double),           cmocka_unit_test(invariance), cmocka_unit_test(borders),
        cmocka_unit_test(short_prompts_and_replay), cmocka_unit_test(time_steps), cmocka_unit_test(norm_per_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
