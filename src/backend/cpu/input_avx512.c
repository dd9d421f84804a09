/* Quantising rows of x for AVX-512, in the layouts that its kernels take. */
#if defined(__x86_64__)

#include "backend/cpu/math.h"
#include "backend/cpu/matrix.h"

#include <immintrin.h>

/* The even or (odd: 1) odd bytes of both. */
static __m512i every_other(__m512i a, __m512i b, int odd)
{
    __m512i places = _mm512_add_epi8(_mm512_set1_epi64(0x0e0c0a0806040200 + 0x0101010101010101 * odd),
                                     _mm512_setr_epi64(0, 0x1010101010101010, 0x2020202020202020, 0x3030303030303030,
                                                       0x4040404040404040, 0x5050505050505050, 0x6060606060606060,
                                                       0x7070707070707070));
    return _mm512_permutex2var_epi8(a, places, b);
}

/* The even or (odd: 1) odd pieces of 16 bytes of both. */
static __m512i every_other_16(__m512i a, __m512i b, int odd)
{
    return odd ? _mm512_shuffle_i32x4(a, b, 0xdd) : _mm512_shuffle_i32x4(a, b, 0x88);
}

/* The bytes of a row in natural order, whole blocks of them, to planes, in place. */
static void to_planes(int8_t *bytes, int n, pm_layout layout)
{
    const int block = layout == PM_LAYOUT_BYTES4 ? 256 : 128;
    for (int8_t *p = bytes; p < bytes + n; p += block) {
        __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + 64);
        if (layout == PM_LAYOUT_BYTES16) {
            _mm512_storeu_si512(p, every_other_16(a, b, 0));
            _mm512_storeu_si512(p + 64, every_other_16(a, b, 1));
            continue;
        }
        __m512i even = every_other(a, b, 0), odd = every_other(a, b, 1);
        if (layout == PM_LAYOUT_BYTES2) {
            _mm512_storeu_si512(p, even);
            _mm512_storeu_si512(p + 64, odd);
            continue;
        }
        __m512i c = _mm512_loadu_si512(p + 128), d = _mm512_loadu_si512(p + 192);
        __m512i even2 = every_other(c, d, 0), odd2 = every_other(c, d, 1);
        _mm512_storeu_si512(p, every_other(even, even2, 0));
        _mm512_storeu_si512(p + 64, every_other(odd, odd2, 0));
        _mm512_storeu_si512(p + 128, every_other(even, even2, 1));
        _mm512_storeu_si512(p + 192, every_other(odd, odd2, 1));
    }
}

void pm_quantise_avx512(const float *x, int n, int group, pm_layout layout, pm_precision precision,
                        const pm_quantised *to)
{
    const float limit = pm_q_max(precision);
    const bool two = precision == PM_PRECISION_EXACT; /* bytes an integer */
    const int padded = (int)pm_padded((size_t)n);
    int8_t *high = (int8_t *)to->q, *low = high + padded;
    memset(high + n, 0, (size_t)(padded - n));
    if (two)
        memset(low + n, 0, (size_t)(padded - n));
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff), half = _mm512_set1_epi32(128);
    for (int first = 0, g = 0; first < n; first += group, g++) {
        __m512i most = _mm512_setzero_si512(), total = most;
        for (int k = first; k < first + group; k += 16)
            most = _mm512_max_epu32(most, _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x + k)), magnitude));
        uint32_t largest = _mm512_reduce_max_epu32(most);
        bool finite = largest < 0x7f800000;
        if (!finite || largest < pm_bits(PM_Q_FLOOR)) {
            memset(high + first, 0, (size_t)group);
            if (two)
                memset(low + first, 0, (size_t)group);
            to->scale[g] = to->sum[g] = finite ? 0 : NAN;
            to->excess[g] = 0;
            continue;
        }
        __m512 inv = _mm512_set1_ps(limit / pm_from_bits(largest));
        for (int k = first; k < first + group; k += 16) {
            __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + k), inv));
            __m512i upper = two ? _mm512_srai_epi32(_mm512_add_epi32(v, half), 8) : v;
            _mm_storeu_si128((__m128i *)(high + k), _mm512_cvtepi32_epi8(upper));
            if (two)
                _mm_storeu_si128((__m128i *)(low + k), _mm512_cvtepi32_epi8(v));
            total = _mm512_add_epi32(total, v);
        }
        to->scale[g] = pm_from_bits(largest) / limit;
        const int32_t integers = _mm512_reduce_add_epi32(total);
        to->sum[g] = to->scale[g] * (float)integers;
        to->excess[g] = PM_E2M1_ZERO * integers;
    }
    to_planes(high, padded, layout);
    if (two)
        to_planes(low, padded, layout);
}

#endif
