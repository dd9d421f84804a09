/* Matrices: the scalar kernels against plain double arithmetic, every other level, batch and thread count against the
 * scalar kernels bit for bit. */
#include "ops/matrices.h"

enum { MAX_ROWS = 67, MAX_OUT = 65, MAX_IN = 2048 };

static const test_kind quantised_kinds[] = {
    {"2-bit 64 bf16", PM_FORMAT_AFFINE, PM_SCALE_BF16, 2, 64},
    {"2-bit 128 f32", PM_FORMAT_AFFINE, PM_SCALE_F32, 2, 128},
    {"3-bit 32 f16", PM_FORMAT_AFFINE, PM_SCALE_F16, 3, 32},
    {"3-bit 64 bf16", PM_FORMAT_AFFINE, PM_SCALE_BF16, 3, 64},
    {"4-bit 32 bf16", PM_FORMAT_AFFINE, PM_SCALE_BF16, 4, 32},
    {"4-bit 32 f16", PM_FORMAT_AFFINE, PM_SCALE_F16, 4, 32},
    {"4-bit 32 f32", PM_FORMAT_AFFINE, PM_SCALE_F32, 4, 32},
    {"4-bit 64 bf16", PM_FORMAT_AFFINE, PM_SCALE_BF16, 4, 64},
    {"4-bit 64 f16", PM_FORMAT_AFFINE, PM_SCALE_F16, 4, 64},
    {"4-bit 64 f32", PM_FORMAT_AFFINE, PM_SCALE_F32, 4, 64},
    {"4-bit 128 bf16", PM_FORMAT_AFFINE, PM_SCALE_BF16, 4, 128},
    {"4-bit 128 f16", PM_FORMAT_AFFINE, PM_SCALE_F16, 4, 128},
    {"4-bit 128 f32", PM_FORMAT_AFFINE, PM_SCALE_F32, 4, 128},
    {"5-bit 64 bf16", PM_FORMAT_AFFINE, PM_SCALE_BF16, 5, 64},
    {"5-bit 128 f16", PM_FORMAT_AFFINE, PM_SCALE_F16, 5, 128},
    {"6-bit 32 f32", PM_FORMAT_AFFINE, PM_SCALE_F32, 6, 32},
    {"6-bit 64 bf16", PM_FORMAT_AFFINE, PM_SCALE_BF16, 6, 64},
    {"8-bit 32 bf16", PM_FORMAT_AFFINE, PM_SCALE_BF16, 8, 32},
    {"8-bit 32 f16", PM_FORMAT_AFFINE, PM_SCALE_F16, 8, 32},
    {"8-bit 64 bf16", PM_FORMAT_AFFINE, PM_SCALE_BF16, 8, 64},
    {"8-bit 64 f32", PM_FORMAT_AFFINE, PM_SCALE_F32, 8, 64},
    {"8-bit 128 bf16", PM_FORMAT_AFFINE, PM_SCALE_BF16, 8, 128},
    {"8-bit 128 f16", PM_FORMAT_AFFINE, PM_SCALE_F16, 8, 128},
    {"8-bit 128 f32", PM_FORMAT_AFFINE, PM_SCALE_F32, 8, 128},
    {"2-bit 32 f16", PM_FORMAT_AFFINE, PM_SCALE_F16, 2, 32},
    {"3-bit 128 bf16", PM_FORMAT_AFFINE, PM_SCALE_BF16, 3, 128},
    {"5-bit 32 bf16", PM_FORMAT_AFFINE, PM_SCALE_BF16, 5, 32},
    {"6-bit 128 f16", PM_FORMAT_AFFINE, PM_SCALE_F16, 6, 128},
    {"mxfp4", PM_FORMAT_MXFP4, PM_SCALE_E8M0, 4, 32},
    {"nvfp4", PM_FORMAT_NVFP4, PM_SCALE_E4M3, 4, 16},
};
static const test_kind float_kinds[] = {{"f32", PM_FORMAT_F32, PM_SCALE_F32, 0, 0},
                                        {"f16", PM_FORMAT_F16, PM_SCALE_F16, 0, 0},
                                        {"bf16", PM_FORMAT_BF16, PM_SCALE_BF16, 0, 0},
                                        {"mxfp8", PM_FORMAT_MXFP8, PM_SCALE_E8M0, 8, 32},
                                        {"fp8, blocks of 32", PM_FORMAT_FP8, PM_SCALE_F32, 8, 32},
                                        {"fp8, blocks of 128", PM_FORMAT_FP8, PM_SCALE_F32, 8, 128},
                                        {"fp8, blocks of 20", PM_FORMAT_FP8, PM_SCALE_F32, 8, 20},
                                        {"fp8, blocks of 192", PM_FORMAT_FP8, PM_SCALE_F32, 8, 192},
                                        {"fp8, one block", PM_FORMAT_FP8, PM_SCALE_F32, 8, 1 << 15}};
static const int outs[] = {1, 7, 8, 9, 16, 33, 65};
static const int batches[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 15, 16, 17, 33, 67};
static const int float_ins[] = {1, 7, 8, 16, 17, 31, 33, 64, 100, 300};

/* The width nearest above `in` that the kind allows. */
static int width_for(const test_kind *kind, int in)
{
    return kind->format == PM_FORMAT_MXFP8 ? (in + 31) / 32 * 32 : in;
}

static float *random_rows(test_random *r, int rows, int in, float size)
{
    float *x = malloc((size_t)rows * (size_t)in * sizeof(*x));
    for (int i = 0; i < rows * in; i++)
        x[i] = random_float(r) * size;
    return x;
}

typedef struct call {
    const pm_weight *w;
    const float *x, *norm, *residual;
    int rows;
} call;

/* y [rows, out] by the linear operation of `backend`. */
static void linear(pm_backend *backend, const call *c, float *y)
{
    const pm_weight *w[] = {c->w};
    pm_tensor *x = tensor_new(backend, c->rows, c->w->in, c->x), *norm = NULL;
    pm_tensor *out = tensor_new(backend, c->rows, c->w->out, c->residual);
    if (c->norm)
        norm = tensor_new(backend, 1, c->w->in, c->norm);
    pm_linear_args args = {x, norm, 1e-6f, 1, w, &out, c->residual ? out : NULL};
    assert_int_equal(backend->ops->linear(backend, &(pm_batch){.n_tokens = c->rows}, &args, NULL), PM_OK);
    tensor_get(backend, out, c->rows, y);
    backend->ops->tensor_free(backend, x);
    backend->ops->tensor_free(backend, norm);
    backend->ops->tensor_free(backend, out);
}

/* ---- against double arithmetic ---- */

/* Rounding x is at most half of scale per element, times the weight; the rest is float rounding of the terms that are
 * added up. */
static void check_exact(const char *name, const call *c, pm_precision precision, const float *y)
{
    const pm_weight *w = c->w;
    for (int t = 0; t < c->rows; t++) {
        const float *x = c->x + (size_t)t * (size_t)w->in;
        double square = 0, r = 1;
        for (int k = 0; k < w->in; k++)
            square += (double)x[k] * x[k];
        if (c->norm)
            r = 1 / sqrt(square / w->in + 1e-6);
        for (int o = 0; o < w->out; o++) {
            double sum = 0, terms = 0, rounding = 0, largest = 0;
            for (int k = 0; k < w->in; k++) {
                if (pm_is_quantised(w) && k % w->group == 0) {
                    largest = 0;
                    for (int i = k; i < k + w->group; i++)
                        largest = fmax(largest, fabs(x[i] * r * (c->norm ? c->norm[i] : 1)));
                }
                double v = x[k] * r * (c->norm ? c->norm[k] : 1), weight = weight_at(w, o, k);
                sum += weight * v;
                terms += fabs(weight * v);
                if (pm_is_quantised(w)) {
                    terms += fabs(scale_at(w->scales, w, o, k) * integer_at(w, o, k) * largest);
                    terms += fabs(scale_at(w->biases, w, o, k) * largest);
                    rounding += fabs(weight) * (largest / (2 * pm_q_max(precision)) * 1.01 + 0x1p-96);
                }
            }
            if (c->residual) {
                sum += c->residual[(size_t)t * (size_t)w->out + (size_t)o];
                terms += fabs(sum);
            }
            if (w->bias) {
                sum += w->bias[o];
                terms += fabs(sum);
            }
            double got = y[(size_t)t * (size_t)w->out + (size_t)o], bound = rounding + 1e-6 * terms + 1e-36;
            if (!(fabs(got - sum) <= bound))
                fail_msg("%s, %d by %d, row %d of x, row %d: %.9g, but exactly it is %.9g (bound %.3g)", name, w->out,
                         w->in, t, o, got, sum, bound);
        }
    }
}

static void scalar_is_right(void **state)
{
    const pm_precision precision = precision_of(state);
    test_random r = {1};
    pm_backend *backend = backend_of(1, PM_SIMD_SCALAR, precision);
    float *y = malloc(MAX_ROWS * MAX_OUT * sizeof(*y));
    for (size_t i = 0; i < PM_COUNT(quantised_kinds) + PM_COUNT(float_kinds); i++) {
        bool quantised = i < PM_COUNT(quantised_kinds);
        const test_kind *kind = quantised ? &quantised_kinds[i] : &float_kinds[i - PM_COUNT(quantised_kinds)];
        for (int trial = 0; trial < 12; trial++) {
            static const test_contents contents[] = {CONTENTS_RANDOM, CONTENTS_ALL_ONES, CONTENTS_TINY,
                                                     CONTENTS_SIGNED};
            int in = quantised ? kind->group * (1 + trial % 6)
                               : width_for(kind, float_ins[trial % (int)PM_COUNT(float_ins)]);
            test_matrix m = matrix_new(&r, kind, contents[trial % 4], 9, in);
            float *x = random_rows(&r, 3, in, trial % 5 == 4 ? 1e-34f : 3), *norm = random_rows(&r, 1, in, 2);
            float *residual = random_rows(&r, 3, 9, 1), *bias = random_rows(&r, 1, 9, 2);
            m.w.bias = trial % 3 ? NULL : bias;
            call c = {&m.w, x, trial % 5 != 4 && trial & 1 ? norm : NULL, trial & 2 ? residual : NULL, 3};
            linear(backend, &c, y);
            check_exact(kind->name, &c, precision, y);
            free(x);
            free(norm);
            free(residual);
            free(bias);
            matrix_free(&m);
        }
    }
    free(y);
    backend->ops->free(backend);
}

/* ---- levels, batches, threads ---- */

/* x whose groups are hostile in turn: ordinary, zeros of both signs, subnormal, huge, one outlier, equal magnitudes. */
static void hostile_rows(test_random *r, float *x, int n)
{
    for (int i = 0; i < n; i++) {
        float v = random_float(r);
        switch (i / 32 % 6) {
        case 1: v = v < 0 ? -0.0f : 0.0f; break;
        case 2: v *= 1e-40f; break;
        case 3: v *= 1e37f; break;
        case 4: v = i % 32 ? v * 1e-6f : 1e4f; break;
        case 5: v = v < 0 ? -127.0f : 127.0f; break;
        default: break;
        }
        x[i] = v;
    }
}

static void compare_levels(const test_kind *kind, test_contents contents, int out, int in, test_random *r,
                           pm_backend *const *backends, int n_backends)
{
    char what[160];
    test_matrix m = matrix_new(r, kind, contents, out, in);
    float *x = random_rows(r, MAX_ROWS, in, 1), *residual = random_rows(r, MAX_ROWS, out, 1);
    float *y = malloc((size_t)MAX_ROWS * (size_t)out * sizeof(*y)),
          *other = malloc((size_t)MAX_ROWS * (size_t)out * sizeof(*y));
    float *bias = random_rows(r, 1, out, 2);
    hostile_rows(r, x + 5 * in, 12 * in);
    bool add = random_u32(r) & 1;
    m.w.bias = random_u32(r) & 1 ? bias : NULL;
    /* The reference: scalar, one row at a time. */
    for (int t = 0; t < MAX_ROWS; t++) {
        call c = {&m.w, x + t * in, NULL, add ? residual + t * out : NULL, 1};
        linear(backends[0], &c, y + t * out);
    }
    for (int b = 0; b < n_backends; b++)
        for (size_t i = 0; i < PM_COUNT(batches); i += EVERY) {
            call c = {&m.w, x, NULL, add ? residual : NULL, batches[i]};
            linear(backends[b], &c, other);
            snprintf(what, sizeof(what), "%s, contents %d, %d by %d, %d rows of x, backend %d", kind->name, contents,
                     out, in, batches[i], b);
            assert_same(what, y, other, (size_t)batches[i] * (size_t)out);
        }
    free(x);
    free(residual);
    free(bias);
    free(y);
    free(other);
    matrix_free(&m);
}

static void levels_are_equal(void **state)
{
    const pm_precision precision = precision_of(state);
    test_random r = {2};
    pm_backend *backends[1 + 2 * TEST_LEVELS] = {backend_of(1, PM_SIMD_SCALAR, precision)};
    int n = 1;
    for (int level = 1; level < TEST_LEVELS; level++)
        for (int threads = 1; threads <= MOST_THREADS; threads += 4)
            if ((backends[n] = level_backend(threads, level, precision)))
                n++;
    for (size_t i = 0; i < PM_COUNT(quantised_kinds); i++)
        for (int groups = 1; groups <= 9 + (quantised_kinds[i].group == 16); groups++)
            compare_levels(&quantised_kinds[i], (test_contents)(random_u32(&r) % CONTENTS),
                           outs[random_u32(&r) % PM_COUNT(outs)], groups * quantised_kinds[i].group, &r, backends, n);
    for (size_t i = 0; i < PM_COUNT(float_kinds); i++)
        for (size_t k = 0; k < PM_COUNT(float_ins); k++)
            compare_levels(&float_kinds[i], (test_contents)(random_u32(&r) % CONTENTS),
                           outs[random_u32(&r) % PM_COUNT(outs)], width_for(&float_kinds[i], float_ins[k]), &r,
                           backends, n);
    /* Large enough to be shared among threads. */
    compare_levels(&quantised_kinds[7], CONTENTS_RANDOM, 1001, 512, &r, backends, n);
    compare_levels(&float_kinds[2], CONTENTS_RANDOM, 501, 300, &r, backends, n);
    for (int b = 0; b < n; b++)
        backends[b]->ops->free(backends[b]);
}

/* So many columns that kernels take them in parts, and more elements than they unpack at once. */
static void many_columns_are_equal(void **state)
{
    enum { COLUMNS = 133, OUT = 161 };
    const pm_precision precision = precision_of(state);
    test_random r = {5};
    pm_backend *scalar = backend_of(1, PM_SIMD_SCALAR, precision);
    float *expected = malloc(sizeof(float) * COLUMNS * OUT), *y = malloc(sizeof(float) * COLUMNS * OUT);
    static const int bits[] = {2, 4, 8};
    for (size_t i = 0; i < PM_COUNT(bits); i++)
        for (int group = 64; group <= 128; group += 64) {
            const test_kind kind = {"many columns", PM_FORMAT_AFFINE, PM_SCALE_BF16, bits[i], group};
            const int in = 512 + group;
            test_matrix m = matrix_new(&r, &kind, CONTENTS_RANDOM, OUT, in);
            float *x = random_rows(&r, COLUMNS, in, 1);
            const call c = {&m.w, x, NULL, NULL, COLUMNS};
            linear(scalar, &c, expected);
            for (int level = 1; level < TEST_LEVELS; level++) {
                pm_backend *backend = level_backend(2, level, precision);
                if (!backend)
                    continue;
                char what[80];
                snprintf(what, sizeof(what), "%d-bit %d, %s", bits[i], group, levels[level].name);
                linear(backend, &c, y);
                assert_same(what, expected, y, (size_t)COLUMNS * OUT);
                backend->ops->free(backend);
            }
            free(x);
            matrix_free(&m);
        }
    free(expected);
    free(y);
    scalar->ops->free(scalar);
}

/* The largest integers there are: 255 * 32639 * 128 must not overflow, nor products of bytes saturate on the way. */
static void largest_integers(void **state)
{
    const pm_precision precision = precision_of(state);
    test_random r = {3};
    static const int bits[] = {4, 8};
    for (int level = 0; level < TEST_LEVELS; level++) {
        pm_backend *backend = level_backend(1, level, precision);
        if (!backend)
            continue;
        for (int sign = -1; sign <= 1; sign += 2)
            for (int i = 0; i < 2; i++) {
                test_kind kind = {"largest", PM_FORMAT_AFFINE, PM_SCALE_F32, bits[i], 128};
                test_matrix m = matrix_new(&r, &kind, CONTENTS_ALL_ONES, 16, 512);
                float *x = malloc(8 * 512 * sizeof(*x)), y[8 * 16], one = 1, zero = 0;
                for (int k = 0; k < 8 * 512; k++)
                    x[k] = (float)sign * pm_q_max(precision);
                for (int k = 0; k < 16 * 4; k++) {
                    memcpy(m.parts[1] + 1 + 4 * k, &one, 4);
                    memcpy(m.parts[2] + 1 + 4 * k, &zero, 4);
                }
                call c = {&m.w, x, NULL, NULL, 8};
                linear(backend, &c, y);
                float expected = (float)sign * (float)((1 << bits[i]) - 1) * pm_q_max(precision) * 128 * 4;
                for (int k = 0; k < 8 * 16; k++)
                    assert_true(fabsf(y[k] / expected - 1) < 1e-6f);
                free(x);
                matrix_free(&m);
            }
        backend->ops->free(backend);
    }
}

static void not_finite_stays_in_its_row(void **state)
{
    const pm_precision precision = precision_of(state);
    test_random r = {4};
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int level = 0; level < TEST_LEVELS; level++) {
        pm_backend *backend = level_backend(2, level, precision);
        if (!backend)
            continue;
        for (size_t i = 0; i < PM_COUNT(quantised_kinds); i++) {
            int in = 2 * quantised_kinds[i].group;
            test_matrix m = matrix_new(&r, &quantised_kinds[i], CONTENTS_RANDOM, 9, in);
            float *x = random_rows(&r, 9, in, 1), y[9 * 9], clean[9 * 9];
            call c = {&m.w, x, NULL, NULL, 9};
            linear(backend, &c, clean);
            for (int b = 0; b < 3; b++)
                x[(3 * b + 1) * in + (int)(random_u32(&r) % (uint32_t)in)] = bad[b];
            linear(backend, &c, y);
            for (int t = 0; t < 9; t++)
                for (int o = 0; o < 9; o++)
                    if (t % 3 == 1)
                        assert_true(isnan(y[t * 9 + o]));
                    else
                        assert_true(same_bits(y[t * 9 + o], clean[t * 9 + o]));
            free(x);
            matrix_free(&m);
        }
        backend->ops->free(backend);
    }
}

/* Matrices that need x in different forms share one call. */
static void mixed_matrices(void **state)
{
    const pm_precision precision = precision_of(state);
    test_random r = {5};
    enum { N = 20, IN = 256, ROWS = 5 };
    pm_backend *scalar = backend_of(1, PM_SIMD_SCALAR, precision), *fast = backend_of(3, PM_SIMD_BEST, precision);
    test_matrix m[N];
    const pm_weight *w[N];
    pm_tensor *y[N];
    float *x = random_rows(&r, ROWS, IN, 1), *norm = random_rows(&r, 1, IN, 1), a[ROWS * MAX_OUT], b[ROWS * MAX_OUT];
    for (int i = 0; i < N; i++) {
        const test_kind *kind = i < 3 ? &float_kinds[i] : &quantised_kinds[i];
        m[i] = matrix_new(&r, kind, CONTENTS_RANDOM, outs[i % (int)PM_COUNT(outs)], IN);
        w[i] = &m[i].w;
        y[i] = tensor_new(fast, ROWS, m[i].w.out, NULL);
    }
    pm_tensor *x_tensor = tensor_new(fast, ROWS, IN, x), *norm_tensor = tensor_new(fast, 1, IN, norm);
    pm_linear_args args = {x_tensor, norm_tensor, 1e-6f, N, w, y, NULL};
    assert_int_equal(fast->ops->linear(fast, &(pm_batch){.n_tokens = ROWS}, &args, NULL), PM_OK);
    for (int i = 0; i < N; i++) {
        call c = {w[i], x, norm, NULL, ROWS};
        linear(scalar, &c, a);
        tensor_get(fast, y[i], ROWS, b);
        assert_same("matrix of a mixed call", a, b, (size_t)(ROWS * w[i]->out));
        fast->ops->tensor_free(fast, y[i]);
        matrix_free(&m[i]);
    }
    fast->ops->tensor_free(fast, x_tensor);
    fast->ops->tensor_free(fast, norm_tensor);
    scalar->ops->free(scalar);
    fast->ops->free(fast);
    free(x);
    free(norm);
}

/* ---- the parts ---- */

/* The integer of element k. */
static int integer_of(const pm_quantised *x, pm_layout layout, pm_precision precision, int k, int n)
{
    const int8_t *bytes = (const int8_t *)x->q;
    int place = pm_place(layout, k);
    if (layout >= PM_LAYOUT_BYTES && precision == PM_PRECISION_FAST)
        return bytes[place];
    return layout >= PM_LAYOUT_BYTES ? 256 * bytes[place] + bytes[(int)pm_padded((size_t)n) + place] : x->q[place];
}

/* Which layouts kernels ask for. */
static bool uses_layout(const pm_quantised_kernels *kernels, pm_layout layout)
{
    bool uses = kernels->e2m1.layout == layout;
    for (int bits = 0; bits <= PM_MAX_BITS; bits++)
        uses = uses || (kernels->affine[bits].multiply && kernels->affine[bits].layout == layout);
    return uses;
}

static void quantised_inputs(void **state)
{
    const pm_precision precision = precision_of(state);
    test_random r = {6};
    for (int level = 0; level < TEST_LEVELS; level++) {
        pm_backend *backend = level_backend(1, level, precision);
        for (int trial = 0; backend && trial < 400; trial++) {
            const pm_matrix_kernels *kernels = ((pm_cpu *)backend)->matrix;
            static float x[MAX_IN], scale[2][256], sum[2][256];
            static int16_t q[2][MAX_IN];
            static int32_t excess[2][256];
            const pm_quantised a = {q[0], scale[0], sum[0], excess[0]}, b = {q[1], scale[1], sum[1], excess[1]};
            int group = 16 << trial % 4, n = group * (1 + (int)(random_u32(&r) % 9)), added = 0;
            pm_layout layout = (pm_layout)(random_u32(&r) % PM_LAYOUTS);
            if (!uses_layout(&kernels->quantised[precision], layout))
                continue;
            hostile_rows(&r, x, n);
            if (trial % 5 == 0)
                x[random_u32(&r) % (uint32_t)n] = trial % 10 ? NAN : INFINITY;
            pm_matrix_scalar.quantise(x, n, group, layout, precision, &a);
            kernels->quantise(x, n, group, layout, precision, &b);
            assert_same("scale", scale[0], scale[1], (size_t)(n / group));
            assert_same("sum", sum[0], sum[1], (size_t)(n / group));
            assert_memory_equal(excess[0], excess[1], (size_t)(n / group) * sizeof(int32_t));
            for (int k = 0; k < n; k++) {
                float s = scale[0][k / group];
                int v = integer_of(&a, layout, precision, k, n);
                assert_int_equal(v, integer_of(&b, layout, precision, k, n));
                assert_in_range(abs(v), 0, (uintmax_t)pm_q_max(precision));
                added = k % group ? added + v : v;
                if (k % group == group - 1)
                    assert_int_equal(PM_E2M1_ZERO * added, excess[0][k / group]);
                if (s == s && !(fabs((double)x[k] - (double)s * v) <= 0.505 * (double)s + 0x1p-96))
                    fail_msg("x[%d] = %a became %d times %a", k, (double)x[k], v, (double)s);
            }
        }
        if (backend)
            backend->ops->free(backend);
    }
}

static void norms_are_equal(void **state)
{
    (void)state;
    test_random r = {7};
    pm_backend *backend = backend_new(1, PM_SIMD_BEST);
    float x[300], w[300], a[300], b[300];
    for (int n = 1; n < 300; n++) {
        double square = 0;
        for (int k = 0; k < n; k++) {
            x[k] = random_float(&r) * 10;
            w[k] = random_float(&r);
            square += (double)x[k] * x[k];
        }
        pm_matrix_scalar.rms_norm(x, w, 1e-5f, n, a);
        ((pm_cpu *)backend)->matrix->rms_norm(x, w, 1e-5f, n, b);
        assert_same("norm", a, b, (size_t)n);
        for (int k = 0; k < n; k++)
            assert_true(fabs(a[k] - x[k] * w[k] / sqrt(square / n + 1e-5)) <= 1e-6 * fabs((double)a[k]) + 1e-12);
    }
    backend->ops->free(backend);
}

/* Packed by mlx.core.quantize of the integers beside it. */
static void packing_of_mlx(void **state)
{
    (void)state;
    static const struct {
        int bits;
        uint8_t bytes[12], integers[16];
    } cases[] = {
        {3, {0x87, 0x8f, 0x68, 0xac, 0x8f, 0x68}, {7, 0, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3}},
        {5,
         {0x1f, 0xb8, 0x03, 0xb2, 0x5c, 0xa4, 0xdb, 0x87, 0x82, 0x9e},
         {31, 0, 14, 7, 0, 25, 18, 11, 4, 29, 22, 15, 8, 1, 26, 19}},
        {6,
         {0x3f, 0xe0, 0x9e, 0x60, 0x26, 0x2d, 0x44, 0x6f, 0xbf, 0x68, 0xa8, 0x4d},
         {63, 0, 46, 39, 32, 25, 18, 11, 4, 61, 54, 47, 40, 33, 26, 19}},
        {4, {0x21, 0x43, 0x65, 0x87, 0xa9, 0xcb, 0xed, 0x0f}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0}},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        uint8_t out[16];
        pm_unpack(cases[i].bytes, cases[i].bits, 0, 16, out);
        assert_memory_equal(out, cases[i].integers, 16);
        pm_unpack(cases[i].bytes, cases[i].bits, 5, 11, out);
        assert_memory_equal(out, cases[i].integers + 5, 11);
    }
}

/* A row of codes, as floats. */
static void dequantised(pm_weight w, int row, float *y)
{
    pm_error err;
    pm_backend *backend = backend_new(1, PM_SIMD_SCALAR);
    if (backend->ops->weight_prepare(backend, &w, &err) != PM_OK)
        fail_msg("%s", err.message);
    pm_dequantise(&w, row, 0, w.in, y);
    backend->ops->free(backend);
}

/* What mlx.core.dequantize gives; the low nibble is the even element. */
static void values_of_mlx(void **state)
{
    (void)state;
    static const float e2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    static const struct {
        uint8_t code;
        float value;
    } e4m3[] = {{0x00, 0},
                {0x01, 0.001953125f},
                {0x07, 0.013671875f},
                {0x08, 0.015625f},
                {0x0f, 0.029296875f},
                {0x10, 0.03125f},
                {0x38, 1},
                {0x3f, 1.875f},
                {0x7e, 448},
                {0x81, -0.001953125f},
                {0xb4, -0.75f},
                {0xfe, -448}};
    static const struct {
        uint8_t code;
        float value;
    } e8m0[] = {{0, 0x1p-127f}, {1, 0x1p-126f}, {120, 0.0078125f}, {126, 0.5f}, {127, 1}, {130, 8}, {254, 0x1p127f}};
    uint8_t nibbles[16], bytes[32] = {0};
    float y[32];
    for (int i = 0; i < 16; i++)
        nibbles[i] = (uint8_t)((2 * i & 15) | (2 * i + 1) % 16 << 4);
    for (size_t s = 0; s < PM_COUNT(e8m0); s++) {
        pm_weight w = {.format = PM_FORMAT_MXFP4, .scale_type = PM_SCALE_E8M0, .group = 32, .out = 1, .in = 32};
        w.data = nibbles;
        w.scales = &e8m0[s].code;
        dequantised(w, 0, y);
        for (int k = 0; k < 32; k++)
            assert_true(y[k] == (k & 8 ? -1 : 1) * e2m1[k % 8] * e8m0[s].value);
        w.format = PM_FORMAT_MXFP8;
        w.data = bytes;
        for (size_t k = 0; k < PM_COUNT(e4m3); k++)
            bytes[k] = e4m3[k].code;
        if (e8m0[s].code < 247) /* where 256 times the scale is finite */
            dequantised(w, 0, y);
        for (size_t k = 0; k < PM_COUNT(e4m3) && e8m0[s].code < 247; k++)
            assert_true(y[k] == e4m3[k].value * e8m0[s].value);
    }
    for (size_t s = 0; s < PM_COUNT(e4m3); s++) {
        uint8_t scales[2] = {e4m3[s].code, 0x38};
        pm_weight w = {.format = PM_FORMAT_NVFP4, .scale_type = PM_SCALE_E4M3, .group = 16, .out = 1, .in = 32};
        w.data = nibbles;
        w.scales = scales;
        w.global = 2;
        dequantised(w, 0, y);
        for (int k = 0; k < 32; k++)
            assert_true(y[k] == (k & 8 ? -2 : 2) * e2m1[k % 8] * (k < 16 ? e4m3[s].value : 1));
    }
}

/* 576 by 300 in blocks of 128: row 127 has the scales of block row 0, row 128 of 1, row 575 of 4; the last column block
 * has 44 columns. */
static void fp8_partial_blocks(void **state)
{
    (void)state;
    enum { OUT = 576, IN = 300 };
    static const int rows[][2] = {{0, 0}, {127, 0}, {128, 1}, {511, 3}, {512, 4}, {575, 4}};
    uint8_t *data = malloc(OUT * IN);
    float scales[15], y[IN];
    memset(data, 0x38, OUT * IN); /* 1 */
    for (int i = 0; i < 15; i++)
        scales[i] = (float)i + 0.5f;
    pm_weight w = {.format = PM_FORMAT_FP8, .scale_type = PM_SCALE_F32, .block = {128, 128}, .out = OUT, .in = IN};
    w.data = data;
    w.scales = scales;
    for (size_t i = 0; i < PM_COUNT(rows); i++) {
        dequantised(w, rows[i][0], y);
        for (int k = 0; k < IN; k++)
            assert_true(y[k] == scales[rows[i][1] * 3 + k / 128]);
    }
    free(data);
}

/* A code that is NaN makes its row NaN and no other, whatever the level. */
static void nan_codes(void **state)
{
    (void)state;
    static const struct {
        test_kind kind;
        int part;
        uint8_t code;
    } cases[] = {{{"mxfp4", PM_FORMAT_MXFP4, PM_SCALE_E8M0, 4, 32}, 1, 255},
                 {{"mxfp8", PM_FORMAT_MXFP8, PM_SCALE_E8M0, 8, 32}, 1, 255},
                 {{"nvfp4", PM_FORMAT_NVFP4, PM_SCALE_E4M3, 4, 16}, 1, 0x7f},
                 {{"nvfp4", PM_FORMAT_NVFP4, PM_SCALE_E4M3, 4, 16}, 1, 0xff},
                 {{"mxfp8", PM_FORMAT_MXFP8, PM_SCALE_E8M0, 8, 32}, 0, 0xff},
                 {{"fp8", PM_FORMAT_FP8, PM_SCALE_F32, 8, 32}, 0, 0x7f},
                 {{"fp8", PM_FORMAT_FP8, PM_SCALE_F32, 8, 128}, 0, 0x7f},
                 {{"fp8", PM_FORMAT_FP8, PM_SCALE_F32, 8, 128}, 0, 0xff}};
    enum { IN = 160, OUT = 37, ROWS = 9 };
    test_random r = {12};
    for (size_t i = 0; i < PM_COUNT(cases); i++)
        for (int level = 0; level < TEST_LEVELS; level++) {
            pm_backend *backend = level_backend(1, level, PM_PRECISION_EXACT);
            test_matrix m = matrix_new(&r, &cases[i].kind, CONTENTS_RANDOM, OUT, IN);
            float *x = random_rows(&r, ROWS, IN, 1), y[ROWS * OUT];
            int bad = (int)(random_u32(&r) % OUT);
            size_t width = cases[i].part ? pm_weight_scale_bytes(&m.w) : pm_weight_row_bytes(&m.w);
            m.parts[cases[i].part][1 + (size_t)bad * width + random_u32(&r) % width] = cases[i].code;
            for (int rows = 1; backend && rows <= ROWS; rows += 4) {
                call c = {&m.w, x, NULL, NULL, rows};
                linear(backend, &c, y);
                for (int k = 0; k < rows * OUT; k++)
                    if (isnan(y[k]) != (k % OUT == bad))
                        fail_msg("%s, %s, row %d with code %d in row %d: %g", cases[i].kind.name, levels[level].name,
                                 k % OUT, cases[i].code, bad, (double)y[k]);
            }
            free(x);
            matrix_free(&m);
            if (backend)
                backend->ops->free(backend);
        }
}

static void embedding(void **state)
{
    (void)state;
    test_random r = {8};
    static const pm_token tokens[] = {3, 0, 8, 3};
    for (size_t i = 0; i < PM_COUNT(quantised_kinds) + PM_COUNT(float_kinds); i++) {
        bool quantised = i < PM_COUNT(quantised_kinds);
        const test_kind *kind = quantised ? &quantised_kinds[i] : &float_kinds[i - PM_COUNT(quantised_kinds)];
        pm_backend *backend = backend_new(2, i & 1 ? PM_SIMD_BEST : PM_SIMD_SCALAR);
        test_matrix m = matrix_new(&r, kind, CONTENTS_RANDOM, 9, 384);
        int copies = i % 3 ? (int)(i % 3) : 0, wide = copies ? copies * 384 : 384; /* 0 stands for 1 */
        pm_tensor *y = tensor_new(backend, 4, wide, NULL);
        float got[4 * 2 * 384];
        pm_embed_args args = {.weight = &m.w, .y = y, .copies = copies};
        assert_int_equal(backend->ops->embed(backend, &(pm_batch){.n_tokens = 4, .tokens = tokens}, &args, NULL),
                         PM_OK);
        tensor_get(backend, y, 4, got);
        for (int t = 0; t < 4; t++)
            for (int k = 0; k < wide; k++)
                if (got[t * wide + k] != (float)weight_at(&m.w, tokens[t], k % 384))
                    fail_msg("%s: element %d of token %d is %a, not %a", kind->name, k, (int)tokens[t],
                             (double)got[t * wide + k], weight_at(&m.w, tokens[t], k % 384));
        backend->ops->tensor_free(backend, y);
        backend->ops->free(backend);
        matrix_free(&m);
    }
}

static void logits_of_chosen_rows(void **state)
{
    (void)state;
    test_random r = {9};
    enum { IN = 128, VOCAB = 301, ROWS = 6 };
    static const int outputs[] = {1, 4, 5};
    pm_backend *scalar = backend_new(1, PM_SIMD_SCALAR), *fast = backend_new(2, PM_SIMD_BEST);
    test_kind kind = {"head", PM_FORMAT_AFFINE, PM_SCALE_BF16, 4, 64};
    test_matrix m = matrix_new(&r, &kind, CONTENTS_RANDOM, VOCAB, IN);
    float *x = random_rows(&r, ROWS, IN, 1), *norm = random_rows(&r, 1, IN, 1);
    float *logits = malloc(3 * VOCAB * sizeof(*logits)), *expected = malloc(VOCAB * sizeof(*expected));
    pm_tensor *x_tensor = tensor_new(fast, ROWS, IN, x), *norm_tensor = tensor_new(fast, 1, IN, norm);
    pm_batch batch = {.n_tokens = ROWS, .n_outputs = 3, .outputs = outputs};
    pm_logits_args args = {x_tensor, norm_tensor, 1e-6f, &m.w, logits};
    pm_error err;
    assert_int_equal(fast->ops->logits(fast, &batch, &args, &err), PM_OK);
    for (int i = 0; i < 3; i++) {
        call c = {&m.w, x + outputs[i] * IN, norm, NULL, 1};
        linear(scalar, &c, expected);
        assert_same("logits", expected, logits + i * VOCAB, VOCAB);
    }
    batch.n_outputs = 0;
    assert_int_equal(fast->ops->logits(fast, &batch, &args, &err), PM_OK);

    /* One value in one row that was asked for. */
    fast->ops->tensor_free(fast, x_tensor);
    x[4 * IN + 77] = INFINITY;
    args.x = x_tensor = tensor_new(fast, ROWS, IN, x);
    batch.n_outputs = 1;
    assert_int_equal(fast->ops->logits(fast, &batch, &args, &err), PM_OK);
    batch.n_outputs = 3;
    assert_int_equal(fast->ops->logits(fast, &batch, &args, &err), PM_ERR_NUMERIC);
    assert_non_null(strstr(err.message, "logits"));
    fast->ops->tensor_free(fast, x_tensor);
    fast->ops->tensor_free(fast, norm_tensor);
    scalar->ops->free(scalar);
    fast->ops->free(fast);
    matrix_free(&m);
    free(x);
    free(norm);
    free(logits);
    free(expected);
}

/* A step that is no larger than one before takes no memory. */
static void scratch_is_kept(void **state)
{
    (void)state;
    test_random r = {11};
    pm_backend *backend = backend_new(2, PM_SIMD_BEST);
    pm_cpu *cpu = (pm_cpu *)backend;
    test_matrix m = matrix_new(&r, &quantised_kinds[7], CONTENTS_RANDOM, 65, 256);
    float *x = random_rows(&r, MAX_ROWS, 256, 1), *norm = random_rows(&r, 1, 256, 1), y[MAX_ROWS * MAX_OUT];
    const void *before[PM_SCRATCHES];
    for (int rows = MAX_ROWS; rows > 0; rows -= 8) {
        call c = {&m.w, x, norm, NULL, rows};
        linear(backend, &c, y);
        for (int slot = 0; slot < PM_SCRATCHES; slot++) {
            if (rows < MAX_ROWS)
                assert_ptr_equal(cpu->scratch[slot].data, before[slot]);
            before[slot] = cpu->scratch[slot].data;
        }
    }
    assert_non_null(before[PM_SCRATCH_QUANT]);
    free(x);
    free(norm);
    matrix_free(&m);
    backend->ops->free(backend);
}

/* Without biases, integers are symmetric: the bits of biases that are -2^(bits - 1) times the scales, at every level,
 * of products and of rows as floats. */
static void symmetric_integers(void **state)
{
    const pm_precision precision = precision_of(state);
    test_random r = {12};
    for (int level = 0; level < TEST_LEVELS; level++) {
        pm_backend *backend = level_backend(1, level, precision);
        for (size_t k = 0; backend && k < PM_COUNT(quantised_kinds); k++) {
            static const int ns[] = {1, 5, 16};
            const test_kind *kind = &quantised_kinds[k];
            if (kind->format != PM_FORMAT_AFFINE)
                continue;
            const int out = 33, in = 3 * 128 + kind->group;
            test_matrix m = matrix_new(&r, kind, CONTENTS_RANDOM, out, in);
            pm_weight plain = m.w;
            plain.biases = NULL;
            for (size_t i = 0; i < (size_t)(out * in / kind->group); i++) {
                float scale = pm_read_scale(m.w.scales, kind->type, i);
                put_scale(m.parts[2] + 1 + i * scale_size(kind->type), kind->type,
                          -(float)(1 << (kind->bits - 1)) * scale);
            }
            assert_int_equal(backend->ops->weight_prepare(backend, &plain, NULL), PM_OK);
            float *x = random_rows(&r, 16, in, 1), a[16 * MAX_OUT], b[16 * MAX_OUT], row[2][512];
            for (size_t i = 0; i < PM_COUNT(ns); i++) {
                linear(backend, &(call){&m.w, x, NULL, NULL, ns[i]}, a);
                linear(backend, &(call){&plain, x, NULL, NULL, ns[i]}, b);
                assert_same(kind->name, a, b, (size_t)(ns[i] * out));
            }
            ((pm_cpu *)backend)->matrix->dequantise(&m.w, out - 1, 0, in, row[0]);
            ((pm_cpu *)backend)->matrix->dequantise(&plain, out - 1, 0, in, row[1]);
            assert_same(kind->name, row[0], row[1], (size_t)in);
            free(x);
            matrix_free(&m);
        }
        if (backend)
            backend->ops->free(backend);
    }
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        pm_weight w;
        const char *word;
    } cases[] = {
        {{.format = PM_FORMAT_AFFINE, .bits = 7, .group = 64, .in = 64, .out = 1, .scales = "", .biases = ""},
         "7 bits"},
        {{.format = PM_FORMAT_AFFINE, .bits = 1, .group = 64, .in = 64, .out = 1, .scales = "", .biases = ""},
         "1 bits"},
        {{.format = PM_FORMAT_AFFINE, .bits = 99, .group = 64, .in = 64, .out = 1, .scales = "", .biases = ""}, "99"},
        {{.format = PM_FORMAT_AFFINE, .bits = -4, .group = 64, .in = 64, .out = 1, .scales = "", .biases = ""}, "-4"},
        {{.format = PM_FORMAT_AFFINE, .bits = 4, .group = 16, .in = 64, .out = 1, .scales = "", .biases = ""}, "16"},
        {{.format = PM_FORMAT_AFFINE, .bits = 4, .group = 64, .in = 96, .out = 1, .scales = "", .biases = ""}, "96"},
        {{.format = PM_FORMAT_AFFINE, .bits = 4, .group = 64, .in = 64, .out = 1}, "scales"},
        {{.format = PM_FORMAT_MXFP4, .scale_type = PM_SCALE_E8M0, .group = 32, .in = 48, .out = 1, .scales = ""}, "48"},
        {{.format = PM_FORMAT_MXFP4, .scale_type = PM_SCALE_E8M0, .group = 64, .in = 64, .out = 1, .scales = ""}, "64"},
        {{.format = PM_FORMAT_MXFP8, .scale_type = PM_SCALE_F32, .group = 32, .in = 64, .out = 1, .scales = ""},
         "mxfp8"},
        {{.format = PM_FORMAT_NVFP4, .scale_type = PM_SCALE_E4M3, .group = 16, .in = 64, .out = 1}, "nvfp4"},
        {{.format = PM_FORMAT_FP8, .scale_type = PM_SCALE_F32, .block = {128, 0}, .in = 64, .out = 1, .scales = ""},
         "128 by 0"},
        {{.format = PM_FORMATS, .in = 64, .out = 1}, "format"},
        {{.format = PM_FORMAT_BF16, .in = 0, .out = 1}, "1 by 0"},
    };
    pm_backend *backend = backend_new(1, PM_SIMD_BEST);
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        pm_error err = {0};
        pm_weight w = cases[i].w;
        assert_int_equal(backend->ops->weight_prepare(backend, &w, &err), PM_ERR_UNSUPPORTED);
        if (!strstr(err.message, cases[i].word))
            fail_msg("the message \"%s\" does not name \"%s\"", err.message, cases[i].word);
    }
    test_random r = {10};
    for (size_t i = 0; i < PM_COUNT(quantised_kinds); i++) {
        test_matrix m = matrix_new(&r, &quantised_kinds[i], CONTENTS_RANDOM, 2, 256);
        assert_int_equal(backend->ops->weight_prepare(backend, &m.w, NULL), PM_OK);
        matrix_free(&m);
    }
    char text[64];
    backend->ops->describe(backend, text, sizeof(text));
    assert_non_null(strstr(text, "cpu ("));
    assert_non_null(strstr(text, "), 1 thread"));
    backend->ops->free(backend);
    pm_error err;
    backend = NULL;
    assert_int_equal(pm_backend_cpu_new(&backend, -1, PM_SIMD_BEST, PM_PRECISION_EXACT, &err), PM_ERR_INVALID);
    assert_null(backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_BOTH_PRECISIONS(scalar_is_right),
        IN_BOTH_PRECISIONS(levels_are_equal),
        IN_BOTH_PRECISIONS(many_columns_are_equal),
        IN_BOTH_PRECISIONS(largest_integers),
        IN_BOTH_PRECISIONS(not_finite_stays_in_its_row),
        IN_BOTH_PRECISIONS(mixed_matrices),
        IN_BOTH_PRECISIONS(quantised_inputs),
        cmocka_unit_test(norms_are_equal),
        cmocka_unit_test(packing_of_mlx),
        cmocka_unit_test(embedding),
        cmocka_unit_test(logits_of_chosen_rows),
        cmocka_unit_test(scratch_is_kept),
        cmocka_unit_test(refusals),
        cmocka_unit_test(values_of_mlx),
        cmocka_unit_test(fp8_partial_blocks),
        cmocka_unit_test(nan_codes),
        IN_BOTH_PRECISIONS(symmetric_integers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
