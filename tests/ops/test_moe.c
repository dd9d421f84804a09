/* Mixture of experts: the operation against double arithmetic, and the same bits for a token whatever its company, the
 * level and the number of threads. */
#include "ops/matrices.h"

enum { MAX_TOKENS = 33, MAX_HIDDEN = 256 };

/* ---- the whole operation ---- */

typedef struct layer {
    const char *name;
    test_kind router, expert, down, shared;
    int hidden, width, shared_width, experts, top_k;
    bool normalise, shared_gate;
    bool ungated;
    int latent; /* 0: experts work on the hidden elements */
} layer;

#define AFFINE(bits, group)                                                                                            \
    {                                                                                                                  \
        "", PM_FORMAT_AFFINE, PM_SCALE_BF16, bits, group                                                               \
    }
#define MXFP4                                                                                                          \
    {                                                                                                                  \
        "", PM_FORMAT_MXFP4, PM_SCALE_E8M0, 4, 32                                                                      \
    }
#define MXFP8                                                                                                          \
    {                                                                                                                  \
        "", PM_FORMAT_MXFP8, PM_SCALE_E8M0, 8, 32                                                                      \
    }
#define NVFP4                                                                                                          \
    {                                                                                                                  \
        "", PM_FORMAT_NVFP4, PM_SCALE_E4M3, 4, 16                                                                      \
    }
#define FP8                                                                                                            \
    {                                                                                                                  \
        "", PM_FORMAT_FP8, PM_SCALE_F32, 8, 128                                                                        \
    }
#define FLOAT(format)                                                                                                  \
    {                                                                                                                  \
        "", format, PM_SCALE_BF16, 0, 0                                                                                \
    }

static const layer layers[] = {
    {"4-bit, 8-bit router", AFFINE(8, 64), AFFINE(4, 64), AFFINE(4, 64), AFFINE(4, 64), 256, 128, 64, 16, 4, true, true,
     false, 0},
    {"bf16", FLOAT(PM_FORMAT_BF16), FLOAT(PM_FORMAT_BF16), FLOAT(PM_FORMAT_BF16), FLOAT(PM_FORMAT_BF16), 72, 37, 19, 7,
     3, false, true, false, 0},
    {"no shared expert", FLOAT(PM_FORMAT_F32), AFFINE(4, 32), AFFINE(8, 32), AFFINE(4, 64), 96, 96, 0, 40, 8, true,
     false, false, 0},
    {"shared expert without gate", FLOAT(PM_FORMAT_F16), AFFINE(8, 128), AFFINE(6, 64), AFFINE(3, 32), 128, 192, 32, 5,
     5, false, false, false, 0},
    {"mxfp4", FLOAT(PM_FORMAT_BF16), MXFP4, MXFP4, MXFP4, 160, 96, 32, 9, 3, true, true, false, 0},
    {"mxfp8", AFFINE(8, 32), MXFP8, MXFP8, MXFP8, 160, 96, 32, 9, 3, false, false, false, 0},
    {"nvfp4", FLOAT(PM_FORMAT_BF16), NVFP4, NVFP4, NVFP4, 176, 48, 16, 9, 3, true, true, false, 0},
    {"fp8", FLOAT(PM_FORMAT_BF16), FP8, FP8, FP8, 200, 72, 40, 9, 3, true, true, false, 0},
    {"without gates", AFFINE(8, 64), AFFINE(4, 64), AFFINE(6, 32), AFFINE(4, 64), 128, 96, 64, 9, 3, true, false, true,
     0},
    {"latent", FLOAT(PM_FORMAT_BF16), AFFINE(4, 32), AFFINE(8, 64), AFFINE(4, 64), 192, 128, 64, 9, 3, true, false,
     true, 96},
    {"latent, gates, bf16", FLOAT(PM_FORMAT_BF16), FLOAT(PM_FORMAT_BF16), FLOAT(PM_FORMAT_F32), FLOAT(PM_FORMAT_BF16),
     90, 50, 0, 6, 4, false, false, false, 35},
    {"one expert", AFFINE(4, 64), AFFINE(4, 64), AFFINE(2, 64), AFFINE(5, 64), 64, 64, 64, 3, 1, true, true, false, 0},
};

typedef struct weights {
    test_matrix router, shared[3], shared_gate, experts[3][40], latent[2];
    pm_weight gate[40], up[40], down[40];
    float norm[MAX_HIDDEN];
} weights;

static void weights_make(weights *w, const layer *l, test_random *r)
{
    int in = l->latent ? l->latent : l->hidden;
    w->router = matrix_new(r, &l->router, CONTENTS_RANDOM, l->experts, l->hidden);
    for (int e = 0; e < l->experts; e++) {
        w->experts[0][e] = matrix_new(r, &l->expert, CONTENTS_RANDOM, l->width, in);
        w->experts[1][e] = matrix_new(r, &l->expert, CONTENTS_RANDOM, l->width, in);
        w->experts[2][e] = matrix_new(r, &l->down, CONTENTS_RANDOM, in, l->width);
        w->gate[e] = w->experts[0][e].w;
        w->up[e] = w->experts[1][e].w;
        w->down[e] = w->experts[2][e].w;
    }
    if (l->shared_width) {
        w->shared[0] = matrix_new(r, &l->shared, CONTENTS_RANDOM, l->shared_width, l->hidden);
        w->shared[1] = matrix_new(r, &l->shared, CONTENTS_RANDOM, l->shared_width, l->hidden);
        w->shared[2] = matrix_new(r, &l->shared, CONTENTS_RANDOM, l->hidden, l->shared_width);
        w->shared_gate = matrix_new(r, &l->router, CONTENTS_RANDOM, 1, l->hidden);
    }
    if (l->latent) {
        w->latent[0] = matrix_new(r, &l->expert, CONTENTS_RANDOM, l->latent, l->hidden);
        w->latent[1] = matrix_new(r, &l->expert, CONTENTS_RANDOM, l->hidden, l->latent);
    }
    for (int k = 0; k < l->hidden; k++)
        w->norm[k] = 1 + 0.3f * random_float(r);
}

static void weights_free(weights *w, const layer *l)
{
    matrix_free(&w->router);
    for (int i = 0; i < 3; i++) {
        for (int e = 0; e < l->experts; e++)
            matrix_free(&w->experts[i][e]);
        if (l->shared_width)
            matrix_free(&w->shared[i]);
    }
    if (l->shared_width)
        matrix_free(&w->shared_gate);
    for (int i = 0; l->latent && i < 2; i++)
        matrix_free(&w->latent[i]);
}

static void moe(pm_backend *backend, const layer *l, const weights *w, int tokens, const float *x, float *out)
{
    pm_tensor *norm = tensor_new(backend, 1, l->hidden, w->norm), *y = tensor_new(backend, tokens, l->hidden, x);
    pm_moe_args args = {.x = y,
                        .residual = y,
                        .out = y,
                        .norm = norm,
                        .eps = 1e-6f,
                        .route = {.kind = PM_ROUTE_SOFTMAX,
                                  .experts = l->experts,
                                  .top_k = l->top_k,
                                  .normalise = l->normalise,
                                  .scale = 1.5f},
                        .router = &w->router.w,
                        .gate = l->ungated ? NULL : w->gate,
                        .latent_in = l->latent ? &w->latent[0].w : NULL,
                        .latent_out = l->latent ? &w->latent[1].w : NULL,
                        .up = w->up,
                        .down = w->down};
    if (l->shared_width) {
        args.shared_gate_proj = l->ungated ? NULL : &w->shared[0].w;
        args.shared_up_proj = &w->shared[1].w;
        args.shared_down_proj = &w->shared[2].w;
        args.shared_expert_gate = l->shared_gate ? &w->shared_gate.w : NULL;
    }
    pm_error err;
    if (backend->ops->moe(backend, &(pm_batch){.n_tokens = tokens}, &args, &err) != PM_OK)
        fail_msg("%s: %s", l->name, err.message);
    tensor_get(backend, y, tokens, out);
    backend->ops->tensor_free(backend, norm);
    backend->ops->tensor_free(backend, y);
}

/* ---- the formula in double ---- */

static void product(const pm_weight *w, const double *x, double *y)
{
    for (int o = 0; o < w->out; o++) {
        y[o] = 0;
        for (int k = 0; k < w->in; k++)
            y[o] += weight_at(w, o, k) * x[k];
    }
}

static void feed_forward(const pm_weight *gate, const pm_weight *up, const pm_weight *down, const double *x,
                         double weight, double *out)
{
    double g[MAX_HIDDEN], u[MAX_HIDDEN], y[MAX_HIDDEN];
    product(up, x, u);
    if (gate)
        product(gate, x, g);
    for (int i = 0; i < up->out; i++)
        g[i] = gate ? g[i] / (1 + exp(-g[i])) * u[i] : fmax(u[i], 0) * fmax(u[i], 0);
    product(down, g, y);
    for (int i = 0; i < down->out; i++)
        out[i] += weight * y[i];
}

static void exact_moe(const layer *l, const weights *w, const float *x, double *out)
{
    double n[MAX_HIDDEN], latent[MAX_HIDDEN], routed[MAX_HIDDEN] = {0}, back[MAX_HIDDEN];
    double logits[40], square = 0, sum = 0, gate;
    bool taken[40] = {false};
    int ids[40];
    for (int k = 0; k < l->hidden; k++)
        square += (double)x[k] * (double)x[k];
    for (int k = 0; k < l->hidden; k++) {
        n[k] = x[k] / sqrt(square / l->hidden + 1e-6) * w->norm[k];
        out[k] = x[k];
    }
    product(&w->router.w, n, logits);
    for (int i = 0; i < l->top_k; i++) {
        ids[i] = -1;
        for (int e = 0; e < l->experts; e++)
            if (!taken[e] && (ids[i] < 0 || logits[e] > logits[ids[i]]))
                ids[i] = e;
        taken[ids[i]] = true;
    }
    for (int e = 0; e < l->experts; e++)
        if (taken[e] || !l->normalise)
            sum += exp(logits[e]);
    if (l->latent)
        product(&w->latent[0].w, n, latent);
    for (int i = 0; i < l->top_k; i++)
        feed_forward(l->ungated ? NULL : &w->gate[ids[i]], &w->up[ids[i]], &w->down[ids[i]], l->latent ? latent : n,
                     exp(logits[ids[i]]) / sum * 1.5, l->latent ? routed : out);
    if (l->latent)
        product(&w->latent[1].w, routed, back);
    for (int k = 0; l->latent && k < l->hidden; k++)
        out[k] += back[k];
    if (l->shared_width) {
        gate = INFINITY;
        if (l->shared_gate)
            product(&w->shared_gate.w, n, &gate);
        feed_forward(l->ungated ? NULL : &w->shared[0].w, &w->shared[1].w, &w->shared[2].w, n, 1 / (1 + exp(-gate)),
                     out);
    }
}

static void moe_is_right(void **state)
{
    (void)state;
    test_random r = {1};
    static weights w;
    float x[4 * MAX_HIDDEN], y[4 * MAX_HIDDEN];
    double exact[MAX_HIDDEN];
    pm_backend *backend = backend_new(1, PM_SIMD_SCALAR);
    for (size_t i = 0; i < PM_COUNT(layers); i++) {
        const layer *l = &layers[i];
        weights_make(&w, l, &r);
        for (int k = 0; k < 4 * l->hidden; k++)
            x[k] = random_float(&r) * 2;
        moe(backend, l, &w, 4, x, y);
        for (int t = 0; t < 4; t++) {
            double size = 0;
            exact_moe(l, &w, x + t * l->hidden, exact);
            for (int k = 0; k < l->hidden; k++)
                size = fmax(size, fabs(exact[k]));
            for (int k = 0; k < l->hidden; k++)
                if (!(fabs(y[t * l->hidden + k] - exact[k]) <= 2e-4 * size))
                    fail_msg("%s, token %d, element %d: %.9g, but exactly it is %.9g", l->name, t, k,
                             (double)y[t * l->hidden + k], exact[k]);
        }
        weights_free(&w, l);
    }
    backend->ops->free(backend);
}

static void company_level_and_threads_do_not_matter(void **state)
{
    const pm_precision precision = precision_of(state);
    test_random r = {2};
    static weights w;
    static float x[MAX_TOKENS * MAX_HIDDEN], alone[MAX_TOKENS * MAX_HIDDEN], y[MAX_TOKENS * MAX_HIDDEN];
    pm_backend *scalar = backend_of(1, PM_SIMD_SCALAR, precision);
    pm_backend *backends[1 + 3 * TEST_LEVELS] = {scalar};
    size_t n = 1;
    for (int level = 1; level < TEST_LEVELS; level++)
        for (int threads = 1; threads <= MOST_THREADS; threads += threads == 1 ? 1 : 3)
            if ((backends[n] = level_backend(threads, level, precision)))
                n++;
    static const int sizes[] = {1, 2, 3, 9, 33, 4, 1};
    for (size_t i = 0; i < PM_COUNT(layers); i++) {
        const layer *l = &layers[i];
        weights_make(&w, l, &r);
        for (int k = 0; k < MAX_TOKENS * l->hidden; k++)
            x[k] = random_float(&r) * 2;
        memcpy(x + 7 * l->hidden, x + 3 * l->hidden, (size_t)l->hidden * sizeof(*x)); /* the same token twice */
        for (int t = 0; t < MAX_TOKENS; t++)
            moe(scalar, l, &w, 1, x + t * l->hidden, alone + t * l->hidden);
        for (size_t b = 0; b < n; b++)
            for (size_t s = 0; s < PM_COUNT(sizes); s++) {
                char what[100];
                int first = (int)(random_u32(&r) % (uint32_t)(MAX_TOKENS + 1 - sizes[s]));
                moe(backends[b], l, &w, sizes[s], x + first * l->hidden, y);
                snprintf(what, sizeof(what), "%s, %d tokens, backend %zu", l->name, sizes[s], b);
                assert_same(what, alone + first * l->hidden, y, (size_t)(sizes[s] * l->hidden));
            }
        weights_free(&w, l);
    }
    for (size_t b = 0; b < n; b++)
        backends[b]->ops->free(backends[b]);
}

static void not_finite_stays_in_its_token(void **state)
{
    const pm_precision precision = precision_of(state);
    test_random r = {3};
    static weights w;
    float x[3 * MAX_HIDDEN], clean[3 * MAX_HIDDEN], y[3 * MAX_HIDDEN];
    for (int level = 0; level < TEST_LEVELS; level++) {
        pm_backend *backend = level_backend(2, level, precision);
        if (!backend)
            continue;
        for (size_t i = 0; i < PM_COUNT(layers); i++) {
            const layer *l = &layers[i];
            weights_make(&w, l, &r);
            for (int k = 0; k < 3 * l->hidden; k++)
                x[k] = random_float(&r);
            moe(backend, l, &w, 3, x, clean);
            x[l->hidden + 5] = NAN;
            moe(backend, l, &w, 3, x, y);
            for (int k = 0; k < l->hidden; k++) {
                assert_true(isnan(y[l->hidden + k]));
                assert_true(same_bits(y[k], clean[k]));
                assert_true(same_bits(y[2 * l->hidden + k], clean[2 * l->hidden + k]));
            }
            weights_free(&w, l);
        }
        backend->ops->free(backend);
    }
}

static pm_weight float_matrix(int out, int in, const float *data)
{
    return (pm_weight){.format = PM_FORMAT_F32, .out = out, .in = in, .data = data};
}

/* One token, with gates of 20 and -50 and ups of -30 and 30: only the gate's upper side is bounded. The result has no
 * residual, is the same through a routed and through the shared expert, and leaves x alone. */
static void limit_bounds_every_expert(void **state)
{
    (void)state;
    static const float gate_data[] = {20, 0, 0, -50}, up_data[] = {-30, 0, 0, 30}, down_data[] = {1, 0, 0, 1};
    static const float x_data[] = {1, 1}, norm_data[] = {1, 1}, router_data[] = {0, 0};
    const pm_weight gate = float_matrix(2, 2, gate_data), up = float_matrix(2, 2, up_data),
                    down = float_matrix(2, 2, down_data), router = float_matrix(1, 2, router_data);
    const double silu[] = {10 / (1 + exp(-10)), -50 / (1 + exp(50))};
    for (int level = 0; level < TEST_LEVELS; level++)
        for (int shared = 0; shared < 2; shared++)
            for (int limited = 0; limited < 2; limited++) {
                pm_backend *backend = level_backend(1, level, PM_PRECISION_EXACT);
                if (!backend)
                    continue;
                pm_tensor *x = tensor_new(backend, 1, 2, x_data), *norm = tensor_new(backend, 1, 2, norm_data);
                pm_tensor *out = tensor_new(backend, 1, 2, NULL);
                pm_moe_args args = {.x = x, .out = out, .norm = norm, .limit = limited ? 10 : 0};
                if (shared) {
                    args.shared_gate_proj = &gate;
                    args.shared_up_proj = &up;
                    args.shared_down_proj = &down;
                } else {
                    args.route = (pm_route){.experts = 1, .top_k = 1, .normalise = true, .scale = 1};
                    args.router = &router;
                    args.gate = &gate;
                    args.up = &up;
                    args.down = &down;
                }
                float y[2], after[2];
                pm_error err;
                assert_int_equal(backend->ops->moe(backend, &(pm_batch){.n_tokens = 1}, &args, &err), PM_OK);
                tensor_get(backend, out, 1, y);
                tensor_get(backend, x, 1, after);
                double first = limited ? silu[0] * -10 : 20 / (1 + exp(-20)) * -30, second = limited ? 10 : 30;
                assert_true(fabs(y[0] - first) < 1e-4);
                assert_true(fabs(y[1] - silu[1] * second) < 1e-4);
                assert_memory_equal(after, x_data, sizeof(after));
                backend->ops->tensor_free(backend, x);
                backend->ops->tensor_free(backend, norm);
                backend->ops->tensor_free(backend, out);
                backend->ops->free(backend);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moe_is_right),
        IN_BOTH_PRECISIONS(company_level_and_threads_do_not_matter),
        IN_BOTH_PRECISIONS(not_finite_stays_in_its_token),
        cmocka_unit_test(limit_bounds_every_expert),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
