/* Quantising rows of x for AVX-512, in the one layout that its kernels take. */
#if defined(__x86_64__)

#include "backend/cpu/math.h"
#include "backend/cpu/matrix.h"

#include <immintrin.h>

void pm_quantise_avx512(const float *x, int n, int group, pm_layout layout, const pm_quantised *to)
{
    (void)layout; /* PM_LAYOUT_BYTES */
    int8_t *high = (int8_t *)to->q, *low = high + n;
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff), half = _mm512_set1_epi32(128);
    for (int first = 0, g = 0; first < n; first += group, g++) {
        __m512i most = _mm512_setzero_si512(), total = most;
        for (int k = first; k < first + group; k += 16)
            most = _mm512_max_epu32(most, _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x + k)), magnitude));
        uint32_t largest = _mm512_reduce_max_epu32(most);
        bool finite = largest < 0x7f800000;
        if (!finite || largest < pm_bits(PM_Q_FLOOR)) {
            memset(high + first, 0, (size_t)group);
            memset(low + first, 0, (size_t)group);
            to->scale[g] = to->sum[g] = finite ? 0 : NAN;
            to->total[g] = 0;
            continue;
        }
        __m512 inv = _mm512_set1_ps(PM_Q_MAX / pm_from_bits(largest));
        for (int k = first; k < first + group; k += 16) {
            __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + k), inv));
            __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(v, half), 8);
            _mm_storeu_si128((__m128i *)(high + k), _mm512_cvtepi32_epi8(upper));
            _mm_storeu_si128((__m128i *)(low + k), _mm512_cvtepi32_epi8(v));
            total = _mm512_add_epi32(total, v);
        }
        to->scale[g] = pm_from_bits(largest) / PM_Q_MAX;
        to->total[g] = _mm512_reduce_add_epi32(total);
        to->sum[g] = to->scale[g] * (float)to->total[g];
    }
}

#endif
