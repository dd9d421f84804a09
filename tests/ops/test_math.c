/* The scalar functions against the C library in double, and those of eight lanes against the scalar ones, bit for bit.
 */
#include "backend/cpu/math.h"
#include "ops.h"

#include <float.h>

#if defined(__x86_64__)
#include <immintrin.h> /* before the options of the compiler change */
#endif

/* Distance in units of the last place of `want` rounded to f32. */
static double ulps(float got, double want)
{
    if (isnan(want))
        return isnan(got) ? 0 : INFINITY;
    if ((double)got == want || (float)want == got)
        return 0;
    int exponent;
    frexp(want, &exponent);
    double ulp = ldexp(1, exponent < -125 ? -149 : exponent - 24);
    return fabs((double)got - want) / ulp;
}

static void check(const char *name, float x, float got, double want, double limit)
{
    if (!(ulps(got, want) <= limit))
        fail_msg("%s(%a) is %a, expected %a: %.2f ulp", name, (double)x, (double)got, want, ulps(got, want));
}

static const float special[] = {
    0.0f,     -0.0f,     1.0f,     -1.0f,    FLT_MIN,    -FLT_MIN, 0x1p-149f,    -0x1p-149f, FLT_MAX,     -FLT_MAX,
    INFINITY, -INFINITY, 88.72f,   88.73f,   -87.33f,    -103.97f, -103.98f,     20.0f,      20.0001f,    65504.0f,
    65519.9f, 65520.0f,  0x1p-24f, 0x1p-25f, 0x1.8p-25f, 0x1p-14f, 0x1.ffcp-15f, 0.6931472f, 0.34657359f, -0.34657359f};

static void test_exp(void **state)
{
    (void)state;
    for (double x = -110; x < 92; x += 0.0007)
        check("exp", (float)x, pm_exp((float)x), exp((double)(float)x) > FLT_MAX ? INFINITY : exp((double)(float)x),
              1.0);
    assert_true(pm_exp(0.0f) == 1.0f && pm_exp(-0.0f) == 1.0f);
    assert_true(pm_exp(INFINITY) == INFINITY && pm_exp(FLT_MAX) == INFINITY);
    assert_true(pm_exp(-INFINITY) == 0 && pm_exp(-FLT_MAX) == 0);
    assert_true(isnan(pm_exp(NAN)));
}

static void test_sigmoid_silu_softplus(void **state)
{
    (void)state;
    for (double d = -80; d < 120; d += 0.0013) {
        float x = (float)d;
        check("sigmoid", x, pm_sigmoid(x), 1 / (1 + exp(-(double)x)), 2.5);
        check("silu", x, pm_silu(x), x / (1 + exp(-(double)x)), 2.5);
        check("softplus", x, pm_softplus(x), x > 20 ? (double)x : log1p(exp((double)x)), 2);
    }
    for (float x = 0x1p-126f; x < 1e30f; x *= 1.037f)
        check("log1p", x, pm_log1p(x), log1p((double)x), 0.5001);
    assert_true(pm_sigmoid(INFINITY) == 1 && pm_sigmoid(-INFINITY) == 0);
    assert_true(pm_softplus(-INFINITY) == 0 && pm_softplus(INFINITY) == INFINITY);
    assert_true(isnan(pm_sigmoid(NAN)) && isnan(pm_silu(NAN)) && isnan(pm_softplus(NAN)) && isnan(pm_log1p(NAN)));
}

static void test_sincos(void **state)
{
    (void)state;
    uint64_t seed = 5;
    for (int i = 0; i < 400000; i++) {
        float x = random_f32(&seed) * powf(10, (float)random_int(&seed, -3, 8)), s, c;
        if (i < 300000)
            x = (float)i * (i % 3 ? 1.0f : 0.31622776f);
        pm_sincos(x, &s, &c);
        check("sin", x, s, sin((double)x), 0.5001);
        check("cos", x, c, cos((double)x), 0.5001);
    }
    float s, c;
    pm_sincos(0, &s, &c);
    assert_true(s == 0 && c == 1);
    pm_sincos(INFINITY, &s, &c);
    assert_true(isnan(s) && isnan(c));
}

static void test_f16(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float x = pm_from_f16((uint16_t)h);
        int exponent = (int)(h >> 10 & 31), mantissa = (int)(h & 0x3ff);
        if (exponent == 31) {
            assert_true(mantissa ? isnan(x) : isinf(x));
            continue;
        }
        float want = exponent ? ldexpf((float)(1024 + mantissa), exponent - 25) : ldexpf((float)mantissa, -24);
        assert_same_bits("from f16", &x, &(float){h & 0x8000 ? -want : want}, 1);
        assert_int_equal(pm_to_f16(x), h);
        if (exponent == 30 && mantissa == 0x3ff)
            continue;
        /* Halfway to the next larger magnitude goes to the even one; a little to either side to the nearer. */
        float next = pm_from_f16((uint16_t)(h + 1)), middle = x + (next - x) / 2;
        assert_int_equal(pm_to_f16(middle), h & 1 ? h + 1 : h);
        assert_int_equal(pm_to_f16(nextafterf(middle, x)), h);
        assert_int_equal(pm_to_f16(nextafterf(middle, next)), h + 1);
    }
    assert_int_equal(pm_to_f16(65519.0f), 0x7bff);
    assert_int_equal(pm_to_f16(65520.0f), 0x7c00);
    assert_int_equal(pm_to_f16(-INFINITY), 0xfc00);
    assert_true(isnan(pm_from_f16(pm_to_f16(NAN))));
    assert_true(pm_from_bf16(0xc049) == -3.140625f);
}

static void test_sums(void **state)
{
    (void)state;
    uint64_t seed = 9;
    for (int n = 0; n < 140; n++) {
        float *a = random_array(&seed, (size_t)n, 1), *b = random_array(&seed, (size_t)n, 1);
        double dot = 0, sum = 0;
        for (int k = 0; k < n; k++) {
            dot += (double)a[k] * b[k];
            sum += a[k];
        }
        assert_float_equal(pm_dot(a, b, n), dot, 1e-5);
        assert_float_equal(pm_sum(a, n), sum, 1e-5);
        free(a);
        free(b);
    }
    /* The order itself: 2^24 and the ones after it in the same chain are lost, those in another are not. */
    float x[33] = {[0] = 0x1p24f, [16] = 1, [32] = 1, [8] = 0, [1] = 2};
    assert_true(pm_sum(x, 33) == 0x1p24f + 2);
}

#if defined(__x86_64__) || defined(__aarch64__)

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#include "backend/cpu/math_lanes.h"

static const pm_simd LANES =
#if defined(__x86_64__)
    PM_SIMD_AVX2;
#else
    PM_SIMD_NEON;
#endif

static void compare8(const char *what, const float x[8], pm_floats got8, float (*reference)(float))
{
    float got[8];
    pm_store8(got, got8);
    for (int i = 0; i < 8; i++) {
        float want = reference(x[i]);
        if (memcmp(got + i, &want, sizeof want) != 0)
            fail_msg("%s(%a): lanes %a (%08x), scalar %a (%08x)", what, (double)x[i], (double)got[i], pm_bits(got[i]),
                     (double)want, pm_bits(want));
    }
}

static void compare_all(const float x[8])
{
    pm_floats v = pm_load8(x);
    compare8("exp", x, pm_exp8(v), pm_exp);
    compare8("sigmoid", x, pm_sigmoid8(v), pm_sigmoid);
    compare8("silu", x, pm_silu8(v), pm_silu);
    uint16_t half[8];
    float back[8];
    pm_store_f16x8(half, v);
    pm_store8(back, pm_load_f16x8(half));
    for (int i = 0; i < 8; i++) {
        assert_int_equal(half[i], pm_to_f16(x[i]));
        assert_int_equal(pm_bits(back[i]), pm_bits(pm_from_f16(half[i])));
    }
}

static void test_lanes_functions(void **state)
{
    (void)state;
    if (!have_level(LANES))
        return;
    float x[8];
    for (size_t i = 0; i < sizeof special / sizeof *special; i++) {
        for (size_t j = 0; j < 8; j++)
            x[j] = special[(i + j) % (sizeof special / sizeof *special)];
        compare_all(x);
    }
    for (int j = 0; j < 8; j++)
        x[j] = pm_from_bits(0x7fc00000 | (uint32_t)j | (j & 1 ? 0x80000000 : 0));
    compare_all(x);
    uint64_t seed = 3;
    for (int i = 0; i < 400000; i++) {
        for (int j = 0; j < 8; j++) /* any bit pattern, then the range that matters */
            x[j] = i & 1 ? 110 * random_f32(&seed) : pm_from_bits(random_u32(&seed));
        compare_all(x);
    }
    uint16_t half[8];
    float back[8];
    for (uint32_t h = 0; h < 0x10000; h += 8) {
        for (uint32_t j = 0; j < 8; j++)
            half[j] = (uint16_t)(h + j);
        pm_store8(back, pm_load_f16x8(half));
        for (int j = 0; j < 8; j++)
            assert_int_equal(pm_bits(back[j]), pm_bits(pm_from_f16(half[j])));
    }
}

static void test_lanes_sums(void **state)
{
    (void)state;
    if (!have_level(LANES))
        return;
    uint64_t seed = 4;
    for (int n = 0; n < 300; n++) {
        float *a = random_array(&seed, (size_t)n, n % 7 ? 1 : 1e-30f),
              *b = random_array(&seed, (size_t)n, n % 5 ? 1 : 1e-30f);
        assert_same_bits("dot", &(float){pm_dot_lanes(a, b, n)}, &(float){pm_dot(a, b, n)}, 1);
        assert_same_bits("sum", &(float){pm_sum_lanes(a, n)}, &(float){pm_sum(a, n)}, 1);
        free(a);
        free(b);
    }
    float a[17], b[17]; /* every partial sum -0 by underflow: the masked lanes must keep the sign */
    for (int i = 0; i < 17; i++) {
        a[i] = 1e-30f;
        b[i] = -1e-30f;
    }
    for (int n = 1; n <= 17; n++)
        assert_same_bits("dot", &(float){pm_dot_lanes(a, b, n)}, &(float){pm_dot(a, b, n)}, 1);
}

#if defined(__x86_64__)
#pragma GCC pop_options
#endif

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_sigmoid_silu_softplus),
        cmocka_unit_test(test_sincos),
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_sums),
#if defined(__x86_64__) || defined(__aarch64__)
        cmocka_unit_test(test_lanes_functions),
        cmocka_unit_test(test_lanes_sums),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
