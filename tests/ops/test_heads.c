/* Per-head matrices, as they are and transposed: against double arithmetic, and the same bits at every level, batch and
 * number of threads. */
#include "ops/matrices.h"

static const test_kind kinds[] = {
    {"f32", PM_FORMAT_F32, PM_SCALE_F32, 0, 0},
    {"f16", PM_FORMAT_F16, PM_SCALE_F16, 0, 0},
    {"bf16", PM_FORMAT_BF16, PM_SCALE_BF16, 0, 0},
    {"2-bit 64 bf16", PM_FORMAT_AFFINE, PM_SCALE_BF16, 2, 64},
    {"3-bit 32 f16", PM_FORMAT_AFFINE, PM_SCALE_F16, 3, 32},
    {"4-bit 32 f32", PM_FORMAT_AFFINE, PM_SCALE_F32, 4, 32},
    {"4-bit 64 bf16", PM_FORMAT_AFFINE, PM_SCALE_BF16, 4, 64},
    {"5-bit 64 bf16", PM_FORMAT_AFFINE, PM_SCALE_BF16, 5, 64},
    {"6-bit 64 bf16", PM_FORMAT_AFFINE, PM_SCALE_BF16, 6, 64},
    {"6-bit 128 f16", PM_FORMAT_AFFINE, PM_SCALE_F16, 6, 128},
    {"8-bit 64 bf16", PM_FORMAT_AFFINE, PM_SCALE_BF16, 8, 64},
    {"mxfp4", PM_FORMAT_MXFP4, PM_SCALE_E8M0, 4, 32},
    {"nvfp4", PM_FORMAT_NVFP4, PM_SCALE_E4M3, 4, 16},
    {"mxfp8", PM_FORMAT_MXFP8, PM_SCALE_E8M0, 8, 32},
    {"fp8, blocks of 20", PM_FORMAT_FP8, PM_SCALE_F32, 8, 20},
    {"fp8, blocks of 128", PM_FORMAT_FP8, PM_SCALE_F32, 8, 128},
};

/* Matrices [out, in] of `heads` heads, which are `of` rows apart in one large matrix from its row `first` on. */
typedef struct head_set {
    test_matrix whole;
    pm_weight *w;
    int heads, out, in;
} head_set;

static head_set heads_new(test_random *r, const test_kind *kind, int heads, int first, int of, int out, int in)
{
    head_set set = {matrix_new(r, kind, CONTENTS_RANDOM, heads * of, in), calloc((size_t)heads, sizeof(pm_weight)),
                    heads, out, in};
    const pm_weight *whole = &set.whole.w;
    for (int h = 0; h < heads; h++) {
        pm_weight *w = set.w + h;
        size_t row = (size_t)(h * of + first), scales = row;
        *w = *whole;
        w->out = out;
        if (kind->format == PM_FORMAT_FP8) {
            w->block_first = (int)row % w->block[0];
            scales = row / (size_t)w->block[0];
        }
        w->data = (const char *)whole->data + row * pm_weight_row_bytes(whole);
        if (whole->scales)
            w->scales = (const char *)whole->scales + scales * pm_weight_scale_bytes(whole);
        if (whole->biases)
            w->biases = (const char *)whole->biases + scales * pm_weight_scale_bytes(whole);
    }
    return set;
}

static void heads_free(head_set *set)
{
    matrix_free(&set->whole);
    free(set->w);
}

typedef struct call {
    const head_set *set;
    bool transposed;
    const float *x;
    int tokens, x_first, x_stride;
} call;

static int out_of(const call *c)
{
    return c->transposed ? c->set->in : c->set->out;
}

static int in_of(const call *c)
{
    return c->transposed ? c->set->out : c->set->in;
}

/* y: [tokens, heads, out] */
static void heads(pm_backend *backend, const call *c, float *y)
{
    int n = c->set->heads;
    pm_tensor *x = tensor_new(backend, c->tokens, n * c->x_stride, c->x);
    pm_tensor *out = tensor_new(backend, c->tokens, n * out_of(c), NULL);
    pm_heads_args args = {x, c->x_first, c->x_stride, c->set->w, n, c->transposed, out};
    assert_int_equal(backend->ops->heads(backend, &(pm_batch){.n_tokens = c->tokens}, &args, NULL), PM_OK);
    tensor_get(backend, out, c->tokens, y);
    backend->ops->tensor_free(backend, x);
    backend->ops->tensor_free(backend, out);
}

static void check_exact(const char *name, const call *c, const float *y)
{
    int out = out_of(c), in = in_of(c);
    for (int t = 0; t < c->tokens; t++)
        for (int h = 0; h < c->set->heads; h++)
            for (int o = 0; o < out; o++) {
                const pm_weight *w = c->set->w + h;
                const float *x = c->x + (size_t)((t * c->set->heads + h) * c->x_stride + c->x_first);
                double sum = 0, terms = 0;
                for (int i = 0; i < in; i++) {
                    double weight = c->transposed ? weight_at(w, i, o) : weight_at(w, o, i);
                    sum += weight * x[i];
                    terms += fabs(weight) + fabs(weight * x[i]);
                }
                double got = y[(size_t)((t * c->set->heads + h) * out + o)];
                if (!(fabs(got - sum) <= 4e-5 * terms)) /* 16 bits of x, f32 sums */
                    fail_msg("%s%s, token %d, head %d, element %d: %.9g, but exactly it is %.9g", name,
                             c->transposed ? " transposed" : "", t, h, o, got, sum);
            }
}

enum { MOST_TOKENS = 13 };

/* Every format, whole and as parts of one matrix: right, and the same whatever the level, batch and threads. */
static void every_format(void **state)
{
    (void)state;
    static const struct {
        int heads, first, of, out, in, x_first, x_more;
    } shapes[] = {{3, 0, 40, 40, 256, 0, 0}, {4, 24, 56, 32, 128, 7, 5}, {2, 0, 192, 192, 640, 0, 64}};
    test_random r = {11};
    for (size_t k = 0; k < PM_COUNT(kinds); k++)
        for (size_t s = 0; s < PM_COUNT(shapes); s += EVERY)
            for (int transposed = 0; transposed < 2; transposed++) {
                head_set set = heads_new(&r, &kinds[k], shapes[s].heads, shapes[s].first, shapes[s].of, shapes[s].out,
                                         shapes[s].in);
                call c = {&set, transposed, NULL, MOST_TOKENS, shapes[s].x_first, 0};
                c.x_stride = in_of(&c) + c.x_first + shapes[s].x_more;
                size_t per_token = (size_t)(set.heads * out_of(&c)), x_per_token = (size_t)(set.heads * c.x_stride);
                float *x = malloc(MOST_TOKENS * x_per_token * sizeof(*x));
                float *want = malloc(MOST_TOKENS * per_token * sizeof(*want)),
                      *y = malloc(MOST_TOKENS * per_token * sizeof(*y));
                for (size_t i = 0; i < MOST_TOKENS * x_per_token; i++)
                    x[i] = random_float(&r);
                c.x = x;
                pm_backend *scalar = backend_new(1, PM_SIMD_SCALAR);
                heads(scalar, &c, want);
                scalar->ops->free(scalar);
                check_exact(kinds[k].name, &c, want);
                for (int level = 0; level < TEST_LEVELS; level++)
                    for (int threads = 1; threads <= MOST_THREADS; threads += 4) {
                        pm_backend *backend = level_backend(threads, level, PM_PRECISION_EXACT);
                        if (!backend)
                            continue;
                        heads(backend, &c, y);
                        assert_same(kinds[k].name, y, want, MOST_TOKENS * per_token);
                        call one = c;
                        one.tokens = 1;
                        one.x = x + 5 * x_per_token;
                        heads(backend, &one, y);
                        assert_same(kinds[k].name, y, want + 5 * per_token, per_token);
                        backend->ops->free(backend);
                    }
                free(x);
                free(want);
                free(y);
                heads_free(&set);
            }
}

/* The product of the transposed matrix is that of the matrix transposed by hand. */
static void transposed_by_hand(void **state)
{
    (void)state;
    enum { OUT = 48, IN = 96, TOKENS = 3 };
    test_random r = {12};
    static float plain[OUT * IN], turned[IN * OUT], x[TOKENS * OUT], y[TOKENS * IN], want[TOKENS * IN];
    for (int i = 0; i < OUT; i++)
        for (int j = 0; j < IN; j++)
            plain[i * IN + j] = turned[j * OUT + i] = random_float(&r);
    for (int i = 0; i < TOKENS * OUT; i++)
        x[i] = random_float(&r);
    pm_weight w[] = {{.format = PM_FORMAT_F32, .out = OUT, .in = IN, .data = plain},
                     {.format = PM_FORMAT_F32, .out = IN, .in = OUT, .data = turned}};
    head_set sets[] = {{.w = &w[0], .heads = 1, .out = OUT, .in = IN}, {.w = &w[1], .heads = 1, .out = IN, .in = OUT}};
    pm_backend *backend = backend_new(1, PM_SIMD_BEST);
    heads(backend, &(call){&sets[0], true, x, TOKENS, 0, OUT}, y);
    heads(backend, &(call){&sets[1], false, x, TOKENS, 0, OUT}, want);
    for (int i = 0; i < TOKENS * IN; i++)
        if (!(fabsf(y[i] - want[i]) < 1e-5f))
            fail_msg("element %d is %g transposed and %g turned by hand", i, (double)y[i], (double)want[i]);
    backend->ops->free(backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_format), cmocka_unit_test(transposed_by_hand)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
