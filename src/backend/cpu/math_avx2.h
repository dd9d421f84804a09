/* math.h eight lanes at a time, with the same bits; for files built for AVX2. */
#ifndef PM_MATH_AVX2_H
#define PM_MATH_AVX2_H

#include "backend/cpu/math.h"

#include <immintrin.h>

/* All ones in the first n lanes, 0 <= n <= 8 (more counts as 8). */
static inline __m256i pm_mask8(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline __m256 pm_exp8(__m256 x)
{
    /* min and max return their second operand when one is NaN, which keeps NaN. */
    x = _mm256_min_ps(_mm256_set1_ps(PM_EXP_MAX), _mm256_max_ps(_mm256_set1_ps(PM_EXP_MIN), x));
    const __m256 round = _mm256_set1_ps(PM_ROUND_F32), one = _mm256_set1_ps(1.0f);
    __m256 n = _mm256_sub_ps(_mm256_fmadd_ps(x, _mm256_set1_ps(PM_LOG2E), round), round);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-PM_LN2_HIGH), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-PM_LN2_LOW), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(PM_EXP_Q4), r, _mm256_set1_ps(PM_EXP_Q3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(PM_EXP_Q2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(PM_EXP_Q1));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(PM_EXP_Q0));
    p = _mm256_fmadd_ps(p, r, one);
    p = _mm256_fmadd_ps(p, r, one);
    const __m256i bias = _mm256_set1_epi32(127);
    __m256i whole = _mm256_cvtps_epi32(n), part = _mm256_srai_epi32(whole, 1);
    __m256i first = _mm256_slli_epi32(_mm256_add_epi32(part, bias), 23);
    __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, part), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}

static inline __m256 pm_neg8(__m256 x)
{
    return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
}

static inline __m256 pm_sigmoid8(__m256 x)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    return _mm256_div_ps(one, _mm256_add_ps(one, pm_exp8(pm_neg8(x))));
}

static inline __m256 pm_silu8(__m256 x)
{
    return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), pm_exp8(pm_neg8(x))));
}

/* The tree over 16 partial sums: low holds p[0..8), high p[8..16). */
static inline float pm_reduce16_avx2(__m256 low, __m256 high)
{
    __m256 p = _mm256_add_ps(low, high);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(p), _mm256_extractf128_ps(p, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}

/* acc + a * b in the lanes of `mask`; the others keep acc, sign of zero included. */
static inline __m256 pm_fma_masked(__m256 a, __m256 b, __m256 acc, __m256i mask)
{
    return _mm256_blendv_ps(acc, _mm256_fmadd_ps(a, b, acc), _mm256_castsi256_ps(mask));
}

static inline float pm_dot_avx2(const float *a, const float *b, int n)
{
    __m256 low = _mm256_setzero_ps(), high = low;
    int k = 0;
    for (; k + 16 <= n; k += 16) {
        low = _mm256_fmadd_ps(_mm256_loadu_ps(a + k), _mm256_loadu_ps(b + k), low);
        high = _mm256_fmadd_ps(_mm256_loadu_ps(a + k + 8), _mm256_loadu_ps(b + k + 8), high);
    }
    if (k < n) {
        __m256i m = pm_mask8(n - k);
        low = pm_fma_masked(_mm256_maskload_ps(a + k, m), _mm256_maskload_ps(b + k, m), low, m);
        if (n - k > 8) {
            m = pm_mask8(n - k - 8);
            high = pm_fma_masked(_mm256_maskload_ps(a + k + 8, m), _mm256_maskload_ps(b + k + 8, m), high, m);
        }
    }
    return pm_reduce16_avx2(low, high);
}

static inline float pm_sum_avx2(const float *a, int n)
{
    __m256 low = _mm256_setzero_ps(), high = low;
    int k = 0;
    for (; k + 16 <= n; k += 16) {
        low = _mm256_add_ps(low, _mm256_loadu_ps(a + k));
        high = _mm256_add_ps(high, _mm256_loadu_ps(a + k + 8));
    }
    /* A partial sum is never -0 (it starts at +0, and only -0 + -0 gives -0), so adding +0 in masked lanes is exact. */
    if (k < n)
        low = _mm256_add_ps(low, _mm256_maskload_ps(a + k, pm_mask8(n - k)));
    if (k + 8 < n)
        high = _mm256_add_ps(high, _mm256_maskload_ps(a + k + 8, pm_mask8(n - k - 8)));
    return pm_reduce16_avx2(low, high);
}

#endif
