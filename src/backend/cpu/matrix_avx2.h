/* What the AVX2 kernels of matrices share. */
#ifndef PM_MATRIX_AVX2_H
#define PM_MATRIX_AVX2_H

#include "backend/cpu/math_lanes.h"
#include "backend/cpu/matrix.h"

#define INLINE static inline __attribute__((always_inline))
/* What is specialised is compiled by itself, so that it has all the registers. */
#define NOINLINE static __attribute__((noinline))

/* All ones in the first n of 4 lanes. */
INLINE __m128i pm_first_lanes4(size_t n)
{
    return _mm_cmpgt_epi32(_mm_set1_epi32((int)n), _mm_setr_epi32(0, 1, 2, 3));
}

/* n (1 to 4) scales from the i-th, then zeros; nothing behind them is read. */
INLINE __m128 pm_load_scales4(const void *scales, pm_scale_type type, size_t i, size_t n)
{
    const char *p = (const char *)scales + (type == PM_SCALE_F32 ? 4 : 2) * i;
    if (type == PM_SCALE_F32)
        return n == 4 ? _mm_loadu_ps((const float *)(const void *)p)
                      : _mm_maskload_ps((const float *)(const void *)p, pm_first_lanes4(n));
    uint64_t halves = 0;
    if (n == 4) {
        memcpy(&halves, p, 8);
    } else {
        uint32_t two = 0;
        uint16_t one = 0;
        if (n & 2)
            memcpy(&two, p, 4);
        if (n & 1)
            memcpy(&one, p + 2 * (n - 1), 2);
        halves = two | (uint64_t)one << 16 * (n - 1);
    }
    __m128i half = _mm_cvtsi64_si128((int64_t)halves);
    if (type == PM_SCALE_F16)
        return _mm_cvtph_ps(half);
    return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(half), 16));
}

/* Biases likewise, of an affine matrix. */
INLINE __m128 pm_load_biases4(const pm_weight *w, size_t i, size_t n)
{
    if (w->biases)
        return pm_load_scales4(w->biases, w->scale_type, i, n);
    return _mm_mul_ps(pm_load_scales4(w->scales, w->scale_type, i, n), _mm_set1_ps(pm_symmetric_bias(w)));
}

/* As pm_load_scales4, of the weight scales of MXFP4 and NVFP4 (pm_group_scale). */
INLINE __m128 pm_load_e2m1_scales4(const pm_weight *w, size_t i, size_t n)
{
    uint32_t codes = 0;
    const uint8_t *p = (const uint8_t *)w->scales + i;
    if (n == 4)
        memcpy(&codes, p, 4);
    else
        for (size_t j = 0; j < n; j++)
            codes |= (uint32_t)p[j] << 8 * j;
    __m128i bytes = _mm_cvtsi32_si128((int)codes);
    if (w->format == PM_FORMAT_NVFP4)
        return _mm_mul_ps(_mm_cvtph_ps(pm_e4m3_halves(bytes)), _mm_set1_ps(128 * w->global));
    __m128i bits = _mm_slli_epi32(_mm_cvtepu8_epi32(bytes), 23);
    __m128i nan = _mm_cmpeq_epi32(bits, _mm_set1_epi32(0x7f800000));
    bits = _mm_or_si128(_mm_max_epu32(bits, _mm_set1_epi32(0x00400000)), nan);
    return _mm_mul_ps(_mm_castsi128_ps(bits), _mm_set1_ps(0.5f));
}

#endif
