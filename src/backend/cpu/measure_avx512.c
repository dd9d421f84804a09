/* The loops of measure.c for AVX-512: 512-bit loads, vpdpbusd (8-bit integers: two passes for 16-bit ones), vfmadd. */
#if defined(__x86_64__)

#include "backend/cpu/cpu.h"

#include <immintrin.h>

enum {
    AHEAD = 4096, /* bytes that are prefetched ahead, as the matrix kernels do */
    CHAINS = PM_AVX512_FLOAT_OPS /
             (2 * 16) /* independent, so that none waits for another: two a cycle with a latency of five cycles */
};

/* Something that depends on all of v, so that nothing of the loops is left out. */
static uint64_t digest(__m512i v)
{
    uint64_t words[8], all = 0;
    _mm512_storeu_si512(words, v);
    for (int i = 0; i < 8; i++)
        all ^= words[i];
    return all;
}

uint64_t pm_measure_read_avx512(const void *data, size_t bytes)
{
    const char *p = data;
    __m512i sum[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    uint64_t rest = 0;
    size_t i = 0;
    for (; i + sizeof(sum) <= bytes; i += sizeof(sum))
        for (size_t j = 0; j < sizeof(sum); j += 64) {
            _mm_prefetch(p + i + j + AHEAD, _MM_HINT_T0);
            sum[j / 64] = _mm512_xor_si512(sum[j / 64], _mm512_loadu_si512(p + i + j));
        }
    for (; i < bytes; i++)
        rest ^= (unsigned char)p[i];
    return rest ^ digest(_mm512_xor_si512(sum[0], sum[1]));
}

static uint64_t integers_avx512(int rounds)
{
    __m512i acc[CHAINS], factor = _mm512_set1_epi8((char)(rounds | 1)), sum = _mm512_setzero_si512();
    for (int j = 0; j < CHAINS; j++)
        acc[j] = _mm512_set1_epi32(j);
    for (int i = 0; i < rounds; i++)
        for (int j = 0; j < CHAINS; j++)
            acc[j] = _mm512_dpbusd_epi32(acc[j], factor, factor);
    for (int j = 0; j < CHAINS; j++)
        sum = _mm512_add_epi32(sum, acc[j]);
    return digest(sum);
}

uint64_t pm_measure_floats_avx512(int rounds)
{
    __m512 acc[CHAINS], factor = _mm512_set1_ps(1.0f / (float)(rounds + 1)), one = _mm512_set1_ps(1);
    __m512 sum = _mm512_setzero_ps();
    for (int j = 0; j < CHAINS; j++)
        acc[j] = _mm512_set1_ps((float)j);
    for (int i = 0; i < rounds; i++)
        for (int j = 0; j < CHAINS; j++)
            acc[j] = _mm512_fmadd_ps(acc[j], factor, one);
    for (int j = 0; j < CHAINS; j++)
        sum = _mm512_add_ps(sum, acc[j]);
    return digest(_mm512_castps_si512(sum));
}

const pm_measure_kernels pm_measure_avx512 = {pm_measure_read_avx512,
                                              integers_avx512,
                                              pm_measure_floats_avx512,
                                              {64 * CHAINS /* in two passes */, 2 * 64 * CHAINS},
                                              PM_AVX512_FLOAT_OPS};

#endif
