/* The arithmetic that every operation shares, as scalar code: it defines the bits that math_avx2.h repeats lane by
 * lane. Only operations that IEEE 754 specifies exactly are used (+ - * / sqrt fma and bit patterns), never a library
 * function whose last bit depends on the processor. */
#ifndef PM_MATH_H
#define PM_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* ---- bit patterns ---- */

static inline uint32_t pm_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float pm_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float pm_from_bf16(uint16_t h)
{
    return pm_from_bits((uint32_t)h << 16);
}

/* Exact; a signalling NaN becomes quiet, as in hardware. */
static inline float pm_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ff;
    if (exponent == 31)
        return pm_from_bits(sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0));
    if (exponent == 0) /* a multiple of 2^-24 */
        return pm_from_bits(sign | pm_bits((float)mantissa * 0x1p-24f));
    return pm_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* OCP e4m3 / 256, exact: its bits are those of the f16 that is 256 times smaller, but for 0x7f and 0xff, NaN. */
static inline float pm_from_e4m3_256th(uint8_t c)
{
    uint16_t sign = (uint16_t)((c & 0x80) << 8), magnitude = c & 0x7f;
    return pm_from_f16(magnitude == 0x7f ? 0x7fff : (uint16_t)(sign | magnitude << 7));
}

/* OCP e8m0: 2^(c - 127), or NaN for 255. */
static inline float pm_from_e8m0(uint8_t c)
{
    return pm_from_bits(c == 255 ? 0x7fc00000 : c ? (uint32_t)c << 23 : 0x00400000);
}

/* Rounds to nearest even; too large becomes infinity. */
static inline uint16_t pm_to_f16(float x)
{
    uint32_t u = pm_bits(x), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) /* 65520, halfway between the largest value and the next that there would be */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) /* below 2^-14: adding 1/2 leaves a multiple of 2^-24, rounded, in the low bits */
        return (uint16_t)(sign | (pm_bits(pm_from_bits(magnitude) + 0.5f) - 0x3f000000));
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | ((magnitude >> 13) - (112 << 10)));
}

/* ---- sums over k: 16 partial sums, then a tree (cpu.h) ---- */

static inline float pm_reduce16(float p[16])
{
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            p[i] += p[i + half];
    return p[0];
}

static inline float pm_dot(const float *a, const float *b, int n)
{
    float p[16] = {0};
    for (int k = 0; k < n; k++)
        p[k & 15] = fmaf(a[k], b[k], p[k & 15]);
    return pm_reduce16(p);
}

static inline float pm_sum(const float *a, int n)
{
    float p[16] = {0};
    for (int k = 0; k < n; k++)
        p[k & 15] += a[k];
    return pm_reduce16(p);
}

/* ---- functions ---- */

static inline float pm_rsqrt(float x)
{
    return 1.0f / sqrtf(x);
}

/* Below PM_EXP_MIN the result rounds to 0, above PM_EXP_MAX to infinity. */
#define PM_EXP_MIN   (-104.0f)
#define PM_EXP_MAX   89.0f
#define PM_LOG2E     0x1.715476p+0f
#define PM_LN2_HIGH  0x1.62e43p-1f /* ln 2 to f32; with fma x - n * PM_LN2_HIGH is exact */
#define PM_LN2_LOW   (-0x1.05c61p-29f)
#define PM_ROUND_F32 12582912.0f /* 1.5 * 2^23: adding and taking it away rounds to an integer, ties to even */

/* exp(r) = 1 + r (1 + r q(r)) for |r| <= ln(2) / 2; q fitted for the least relative error of exp, 5.3e-9. */
#define PM_EXP_Q0 0x1p-1f
#define PM_EXP_Q1 0x1.55548ep-3f
#define PM_EXP_Q2 0x1.55545ep-5f
#define PM_EXP_Q3 0x1.123b94p-7f
#define PM_EXP_Q4 0x1.6db470p-10f

/* Within 1 unit in the last place, subnormal results included. */
static inline float pm_exp(float x)
{
    if (x != x)
        return x + x;
    x = x < PM_EXP_MIN ? PM_EXP_MIN : x > PM_EXP_MAX ? PM_EXP_MAX : x;
    float n = fmaf(x, PM_LOG2E, PM_ROUND_F32) - PM_ROUND_F32;
    float r = fmaf(n, -PM_LN2_LOW, fmaf(n, -PM_LN2_HIGH, x));
    float p = fmaf(PM_EXP_Q4, r, PM_EXP_Q3);
    p = fmaf(p, r, PM_EXP_Q2);
    p = fmaf(p, r, PM_EXP_Q1);
    p = fmaf(p, r, PM_EXP_Q0);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    /* 2^n in two factors, since n passes the exponent's range at both ends; only the second one rounds. */
    int whole = (int)n, part = whole >> 1;
    return p * pm_from_bits((uint32_t)(part + 127) << 23) * pm_from_bits((uint32_t)(whole - part + 127) << 23);
}

static inline float pm_sigmoid(float x)
{
    return 1.0f / (1.0f + pm_exp(-x));
}

static inline float pm_silu(float x)
{
    return x / (1.0f + pm_exp(-x));
}

/* silu(gate) * up, the gate bounded above and up on both sides; NaN stays NaN. */
static inline float pm_swiglu(float gate, float up, float limit)
{
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
    return pm_silu(gate) * up;
}

/* log(1 + x) for x >= 0, through double: log(m 2^e) = e ln 2 + 2 atanh((m - 1) / (m + 1)), m in [sqrt(1/2), sqrt(2)).
 * There is no vector form. */
static inline float pm_log1p(float x)
{
    if (!(x < INFINITY))
        return x;
    double e = 0, s;
    if (x < 0.414f) { /* 1 + x would lose low bits of x */
        s = (double)x / (2.0 + (double)x);
    } else {
        double m = 1.0 + (double)x;
        uint64_t u;
        memcpy(&u, &m, sizeof u);
        int64_t exponent = (int64_t)((u - 0x3fe6a09e667f3bcd) >> 52); /* m >= 1 > sqrt(1/2), so nothing wraps */
        u -= (uint64_t)exponent << 52;
        memcpy(&m, &u, sizeof m);
        e = (double)exponent;
        s = (m - 1.0) / (m + 1.0);
    }
    double z = s * s, p = 1.0 / 17;
    for (int k = 15; k >= 1; k -= 2)
        p = p * z + 1.0 / k;
    return (float)(e * 0x1.62e42fefa39efp-1 + 2.0 * s * p);
}

/* log(1 + exp(x)); beyond 20 it is x, as in PyTorch. */
static inline float pm_softplus(float x)
{
    return x > 20.0f ? x : pm_log1p(pm_exp(x));
}

/* Sine and cosine, through double, correctly rounded but for rare ties; NaN unless |angle| < 2^30. The reduction is
 * Cody and Waite's: pi / 2 in three parts, the first two so short that n times either is exact. There is no vector
 * form. */
static inline void pm_sincos(float angle, float *sine, float *cosine)
{
    if (!(angle < 0x1p30f && angle > -0x1p30f)) {
        *sine = *cosine = NAN;
        return;
    }
    const double round = 0x1.8p52;
    double n = ((double)angle * 0x1.45f306dc9c883p-1 + round) - round;
    double r = (angle - n * 0x1.921fb4p+0) - n * 0x1.4442dp-24 - n * 0x1.8469898cc517p-48, z = r * r;
    double s = 0, c = 0; /* Taylor series to r^17 and r^16: the rest is below 1e-17 for |r| <= pi / 4 */
    for (int k = 16; k >= 2; k -= 2) {
        s = (1.0 - s) * z * (1.0 / (k * (k + 1)));
        c = (1.0 - c) * z * (1.0 / (k * (k - 1)));
    }
    s = r - r * s;
    c = 1.0 - c;
    int64_t quarter = (int64_t)n & 3;
    double turned_s = quarter & 1 ? c : s, turned_c = quarter & 1 ? s : c;
    *sine = (float)(quarter & 2 ? -turned_s : turned_s);
    *cosine = (float)(quarter == 1 || quarter == 2 ? -turned_c : turned_c);
}

#endif
