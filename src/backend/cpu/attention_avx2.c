/* The scalar kernels of attention.c for AVX2, with the same bits. */
#include "backend/cpu/math_avx2.h"
#include "backend/cpu/mixer.h"

void pm_avx2_widen(const uint16_t *from, float *to, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
    for (; i < n; i++)
        to[i] = pm_from_f16(from[i]);
}

void pm_avx2_narrow(const float *from, uint16_t *to, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++)
        to[i] = pm_to_f16(from[i]);
}

/* Eight elements of a group, of which `mask` says which exist: x * factor as integers. */
static inline __m256i pack8(const float *from, __m256i mask, __m256 factor)
{
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_maskload_ps(from, mask), factor));
}

/* One group of n elements. */
static inline void pack_group(const float *from, float *scale, int8_t *to, int n)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i most = _mm256_setzero_si256();
    for (int i = 0; i < n; i += 8)
        most = _mm256_max_epi32(
            most, _mm256_and_si256(_mm256_castps_si256(_mm256_maskload_ps(from + i, pm_mask8(n - i))), magnitude));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    m = _mm_max_epi32(m, _mm_unpackhi_epi64(m, m));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 1));
    float factor;
    if (!pm_q8_group((uint32_t)_mm_cvtsi128_si32(m), scale, &factor)) {
        memset(to, 0, (size_t)n);
        return;
    }
    __m256 f = _mm256_set1_ps(factor);
    for (int i = 0; i < n; i += 8) {
        __m256i q = pack8(from + i, pm_mask8(n - i), f);
        __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
        int8_t bytes[16];
        _mm_storeu_si128((__m128i *)bytes, _mm_packs_epi16(words, words));
        memcpy(to + i, bytes, n - i < 8 ? (size_t)(n - i) : 8);
    }
}

void pm_avx2_pack(const float *from, void *to, int n)
{
    int groups = (n + PM_KV_GROUP - 1) / PM_KV_GROUP;
    int8_t *q = (int8_t *)to + (size_t)groups * sizeof(float);
    for (int g = 0; g < groups; g++) {
        int at = g * PM_KV_GROUP;
        float scale;
        pack_group(from + at, &scale, q + at, n - at < PM_KV_GROUP ? n - at : PM_KV_GROUP);
        memcpy((char *)to + (size_t)g * sizeof scale, &scale, sizeof scale);
    }
}

void pm_avx2_unpack(const void *from, float *to, int n)
{
    const char *scales = from;
    const int8_t *q = (const int8_t *)from + pm_kv_bytes(PM_KV_Q8, n) - (size_t)n;
    for (int at = 0; at < n; at += PM_KV_GROUP, scales += sizeof(float)) {
        int end = n - at < PM_KV_GROUP ? n : at + PM_KV_GROUP, i = at;
        float scale;
        memcpy(&scale, scales, sizeof scale);
        __m256 s = _mm256_set1_ps(scale);
        for (; i + 8 <= end; i += 8) {
            __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(q + i)));
            _mm256_storeu_ps(to + i, _mm256_mul_ps(s, _mm256_cvtepi32_ps(wide)));
        }
        for (; i < end; i++)
            to[i] = scale * (float)q[i];
    }
}

/* Adds elements [k, k + 16) of the products of q with 4 rows; in the tail only the first `left` of them. */
static inline void dot4_step(const float *q, const float *const row[4], int k, int left, __m256 low[4], __m256 high[4])
{
    if (left >= 16) {
        __m256 a = _mm256_loadu_ps(q + k), b = _mm256_loadu_ps(q + k + 8);
        for (int j = 0; j < 4; j++) {
            low[j] = _mm256_fmadd_ps(a, _mm256_loadu_ps(row[j] + k), low[j]);
            high[j] = _mm256_fmadd_ps(b, _mm256_loadu_ps(row[j] + k + 8), high[j]);
        }
        return;
    }
    __m256i first = pm_mask8(left), second = pm_mask8(left - 8);
    __m256 a = _mm256_maskload_ps(q + k, first), b = _mm256_maskload_ps(q + k + 8, second);
    for (int j = 0; j < 4; j++) {
        low[j] = pm_fma_masked(a, _mm256_maskload_ps(row[j] + k, first), low[j], first);
        high[j] = pm_fma_masked(b, _mm256_maskload_ps(row[j] + k + 8, second), high[j], second);
    }
}

/* The trees of four sets of 16 partial sums, side by side. */
static inline __m128 reduce4(const __m256 low[4], const __m256 high[4])
{
    __m128 p[4];
    for (int j = 0; j < 4; j++) {
        __m256 sum = _mm256_add_ps(low[j], high[j]);
        p[j] = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
    }
    __m128 a = _mm_add_ps(_mm_movelh_ps(p[0], p[1]), _mm_movehl_ps(p[1], p[0])); /* p[i] + p[i + 2] */
    __m128 b = _mm_add_ps(_mm_movelh_ps(p[2], p[3]), _mm_movehl_ps(p[3], p[2]));
    return _mm_add_ps(_mm_shuffle_ps(a, b, 0x88), _mm_shuffle_ps(a, b, 0xdd));
}

void pm_avx2_scores(const float *q, const float *k, size_t stride, int dim, int n, float scale, float *scores)
{
    int j = 0;
    for (; j + 4 <= n; j += 4) {
        const float *row = k + (size_t)j * stride;
        const float *const rows[4] = {row, row + stride, row + 2 * stride, row + 3 * stride};
        __m256 low[4], high[4];
        for (int i = 0; i < 4; i++)
            low[i] = high[i] = _mm256_setzero_ps();
        int i = 0;
        for (; i + 16 <= dim; i += 16)
            dot4_step(q, rows, i, 16, low, high);
        if (i < dim)
            dot4_step(q, rows, i, dim - i, low, high);
        _mm_storeu_ps(scores + j, _mm_mul_ps(_mm_set1_ps(scale), reduce4(low, high)));
    }
    for (; j < n; j++)
        scores[j] = scale * pm_dot_avx2(q, k + (size_t)j * stride, dim);
}

float pm_avx2_softmax(float scores[PM_BLOCK_ROWS], float *max, float *sum)
{
    __m256 most = _mm256_set1_ps(*max);
    for (int j = 0; j < PM_BLOCK_ROWS; j += 8) /* the second operand where a score is NaN */
        most = _mm256_max_ps(_mm256_loadu_ps(scores + j), most);
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    float largest = _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
    __m256 low = _mm256_setzero_ps(), high = low, shift = _mm256_set1_ps(largest);
    for (int j = 0; j < PM_BLOCK_ROWS; j += 16) {
        __m256 a = pm_exp8(_mm256_sub_ps(_mm256_loadu_ps(scores + j), shift));
        __m256 b = pm_exp8(_mm256_sub_ps(_mm256_loadu_ps(scores + j + 8), shift));
        _mm256_storeu_ps(scores + j, a);
        _mm256_storeu_ps(scores + j + 8, b);
        low = _mm256_add_ps(low, a);
        high = _mm256_add_ps(high, b);
    }
    float correction = pm_exp(*max - largest);
    *sum = fmaf(*sum, correction, pm_reduce16_avx2(low, high));
    *max = largest;
    return correction;
}

/* Columns [0, 8 * vectors) of acc and v, kept in registers over all rows. */
static inline __attribute__((always_inline)) void mix_columns(float *acc, __m256 correction, const float *p,
                                                              const float *v, size_t stride, int n, const int vectors)
{
    __m256 a[8];
    for (int i = 0; i < vectors; i++)
        a[i] = _mm256_mul_ps(_mm256_loadu_ps(acc + 8 * i), correction);
    for (int j = 0; j < n; j++, v += stride) {
        __m256 weight = _mm256_broadcast_ss(p + j);
        for (int i = 0; i < vectors; i++)
            a[i] = _mm256_fmadd_ps(weight, _mm256_loadu_ps(v + 8 * i), a[i]);
    }
    for (int i = 0; i < vectors; i++)
        _mm256_storeu_ps(acc + 8 * i, a[i]);
}

void pm_avx2_mix(float *acc, float correction, const float *p, const float *v, size_t stride, int dim, int n)
{
    __m256 factor = _mm256_set1_ps(correction);
    int d = 0;
    for (; d + 64 <= dim; d += 64)
        mix_columns(acc + d, factor, p, v + d, stride, n, 8);
    for (; d + 8 <= dim; d += 8)
        mix_columns(acc + d, factor, p, v + d, stride, n, 1);
    if (d < dim) {
        __m256i mask = pm_mask8(dim - d);
        __m256 a = _mm256_mul_ps(_mm256_maskload_ps(acc + d, mask), factor);
        for (int j = 0; j < n; j++)
            a = _mm256_fmadd_ps(_mm256_broadcast_ss(p + j), _mm256_maskload_ps(v + (size_t)j * stride + d, mask), a);
        _mm256_maskstore_ps(acc + d, mask, a);
    }
}

void pm_avx2_gate(float *x, const float *gate, int n)
{
    int i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), pm_sigmoid8(_mm256_loadu_ps(gate + i))));
    for (; i < n; i++)
        x[i] *= pm_sigmoid(gate[i]);
}

void pm_avx2_add_positive(float *acc, const float *x, float weight, int n)
{
    __m256 factor = _mm256_set1_ps(weight), zero = _mm256_setzero_ps();
    int i = 0;
    for (; i + 8 <= n; i += 8) /* max gives its second operand where x is NaN */
        _mm256_storeu_ps(
            acc + i, _mm256_fmadd_ps(factor, _mm256_max_ps(_mm256_loadu_ps(x + i), zero), _mm256_loadu_ps(acc + i)));
    for (; i < n; i++)
        acc[i] = fmaf(weight, x[i] > 0.0f ? x[i] : 0.0f, acc[i]);
}
