/* Quantising rows of x for AVX2. */
#if defined(__x86_64__)

#include "backend/cpu/input_lanes.h"

/* 32 integers in natural order to two planes of 16. */
INLINE void planes2(const int16_t *from, int16_t *to)
{
    const __m256i order =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    __m256i a = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)from), order);
    __m256i b = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)(from + 16)), order);
    __m256i even = _mm256_unpacklo_epi64(a, b), odd = _mm256_unpackhi_epi64(a, b);
    _mm256_storeu_si256((__m256i *)to, _mm256_permute4x64_epi64(even, _MM_SHUFFLE(3, 1, 2, 0)));
    _mm256_storeu_si256((__m256i *)(to + 16), _mm256_permute4x64_epi64(odd, _MM_SHUFFLE(3, 1, 2, 0)));
}

/* 64 integers in natural order to four planes of 16. */
INLINE void planes4(const int16_t *from, int16_t *to)
{
    const __m256i order =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    __m256i a[4];
    for (int i = 0; i < 4; i++) { /* pieces of 8 integers i and i + 4: a dword for each plane */
        __m128i low = _mm_loadu_si128((const __m128i *)(from + 8 * i));
        __m128i high = _mm_loadu_si128((const __m128i *)(from + 8 * i + 32));
        a[i] = _mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1), order);
    }
    __m256i low = _mm256_unpacklo_epi32(a[0], a[1]), low2 = _mm256_unpacklo_epi32(a[2], a[3]);
    __m256i high = _mm256_unpackhi_epi32(a[0], a[1]), high2 = _mm256_unpackhi_epi32(a[2], a[3]);
    _mm256_storeu_si256((__m256i *)to, _mm256_unpacklo_epi64(low, low2));
    _mm256_storeu_si256((__m256i *)(to + 16), _mm256_unpackhi_epi64(low, low2));
    _mm256_storeu_si256((__m256i *)(to + 32), _mm256_unpacklo_epi64(high, high2));
    _mm256_storeu_si256((__m256i *)(to + 48), _mm256_unpackhi_epi64(high, high2));
}

/* 128 integers of a byte each, in natural order, to bytes in natural order or in two planes of 64. */
INLINE void to_bytes(const int16_t *from, bool planes, int8_t *to)
{
    __m256i part[4]; /* 32 bytes */
    for (int i = 0; i < 4; i++) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(from + 32 * i));
        __m256i b = _mm256_loadu_si256((const __m256i *)(from + 32 * i + 16));
        part[i] = _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), _MM_SHUFFLE(3, 1, 2, 0));
    }
    for (int i = 0; planes && i < 4; i += 2) {
        const __m256i low = _mm256_set1_epi16(0xff);
        __m256i a = part[i], b = part[i + 1];
        part[i] = _mm256_packus_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low));
        part[i + 1] = _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
        part[i] = _mm256_permute4x64_epi64(part[i], _MM_SHUFFLE(3, 1, 2, 0));
        part[i + 1] = _mm256_permute4x64_epi64(part[i + 1], _MM_SHUFFLE(3, 1, 2, 0));
    }
    for (int i = 0; i < 4; i++) /* parts 0 and 2 are the first plane */
        _mm256_storeu_si256((__m256i *)(to + 32 * (planes ? i / 2 + i % 2 * 2 : i)), part[i]);
}

void pm_quantise_avx2(const float *x, int n, int group, pm_layout layout, pm_precision precision,
                      const pm_quantised *to)
{
    const float limit = pm_q_max(precision);
    int16_t *q = to->q;
    size_t g = 0;
    enum { STEP = PM_MAX_GROUP }; /* a whole number of groups and of blocks */
    for (int first = 0; first < n; first += STEP) {
        int16_t natural[STEP] = {0}, *place = layout == PM_LAYOUT_NATURAL ? q + first : natural;
        int count = n - first < STEP ? n - first : STEP, k = 0;
        for (int i = 0; i < count; i += group, g++)
            pm_quantise_group(x + first + i, group, limit, place + i, &to->scale[g], &to->sum[g], &to->excess[g]);
        if (layout >= PM_LAYOUT_BYTES) {
            to_bytes(natural, layout == PM_LAYOUT_BYTES2, (int8_t *)q + first);
            continue;
        }
        if (layout == PM_LAYOUT_PLANES2)
            for (; k + 32 <= count; k += 32)
                planes2(natural + k, q + first + k);
        if (layout == PM_LAYOUT_PLANES4)
            for (; k + 64 <= count; k += 64)
                planes4(natural + k, q + first + k);
        for (; layout != PM_LAYOUT_NATURAL && k < count; k++) /* half a block */
            q[pm_place(layout, first + k)] = natural[k];
    }
}

#endif
