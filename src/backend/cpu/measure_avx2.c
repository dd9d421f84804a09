/* The loops of measure.c for AVX2: 256-bit loads, vpmaddwd (16-bit integers: one pass), vfmadd. vpmaddubsw, which
 * multiplies bytes, does twice as many in the same time. */
#if defined(__x86_64__)

#include "backend/cpu/cpu.h"

#include <immintrin.h>

enum {
    AHEAD = 8192, /* bytes that are prefetched ahead, into the second cache: of what was tried this reads most */
    CHAINS = 10   /* independent, so that none waits for another: two a cycle with a latency of five cycles */
};

static uint64_t fold(__m256i x)
{
    __m128i half = _mm_xor_si128(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    return (uint64_t)_mm_cvtsi128_si64(half) ^ (uint64_t)_mm_extract_epi64(half, 1);
}

static uint64_t read_avx2(const void *data, size_t bytes)
{
    const char *p = data;
    __m256i sum[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
    size_t i = 0;
    for (; i + sizeof(sum) <= bytes; i += sizeof(sum)) {
        _mm_prefetch(p + i + AHEAD, _MM_HINT_T1);
        _mm_prefetch(p + i + AHEAD + 64, _MM_HINT_T1);
        for (int j = 0; j < 4; j++)
            sum[j] = _mm256_xor_si256(sum[j], _mm256_loadu_si256((const __m256i *)(const void *)(p + i) + j));
    }
    uint64_t rest = 0;
    for (; i < bytes; i++)
        rest ^= (unsigned char)p[i];
    return rest ^ fold(_mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3])));
}

/* Each product's input is the one before in its chain. */
static uint64_t integers_avx2(int rounds)
{
    __m256i acc[CHAINS], factor = _mm256_set1_epi16((short)(rounds | 1)), sum = _mm256_setzero_si256();
    for (int j = 0; j < CHAINS; j++)
        acc[j] = _mm256_xor_si256(factor, _mm256_set1_epi16((short)j));
    for (int i = 0; i < rounds; i++)
        for (int j = 0; j < CHAINS; j++)
            acc[j] = _mm256_madd_epi16(acc[j], factor);
    for (int j = 0; j < CHAINS; j++)
        sum = _mm256_add_epi32(sum, acc[j]);
    return fold(sum);
}

static uint64_t floats_avx2(int rounds)
{
    __m256 acc[CHAINS], factor = _mm256_set1_ps(1.0f / (float)(rounds + 1)), one = _mm256_set1_ps(1);
    __m256 sum = _mm256_setzero_ps();
    for (int j = 0; j < CHAINS; j++)
        acc[j] = _mm256_set1_ps((float)j);
    for (int i = 0; i < rounds; i++)
        for (int j = 0; j < CHAINS; j++)
            acc[j] = _mm256_fmadd_ps(acc[j], factor, one);
    for (int j = 0; j < CHAINS; j++)
        sum = _mm256_add_ps(sum, acc[j]);
    return fold(_mm256_castps_si256(sum));
}

const pm_measure_kernels pm_measure_avx2 = {
    read_avx2, integers_avx2, floats_avx2, {2 * 16 * CHAINS, 2 * 32 * CHAINS}, 2 * 8 * CHAINS};

#endif
