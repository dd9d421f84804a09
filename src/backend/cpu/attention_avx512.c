/* The kernels of attention for AVX-512, with the same bits: the 16 partial sums of a dot product are one vector. What
 * is not here is as for AVX2. */
#if defined(__x86_64__)

#include "backend/cpu/math_lanes.h"
#include "backend/cpu/mixer.h"

enum { ROWS = 8 /* of k side by side */ };

static inline __mmask16 first_lanes(int n)
{
    return (__mmask16)((1u << n) - 1);
}

static inline float reduce(__m512 p)
{
    return pm_reduce16_lanes(_mm512_castps512_ps256(p), _mm512_extractf32x8_ps(p, 1));
}

static inline __m512 exp16(__m512 x)
{
    /* min and max return their second operand when one is NaN, which keeps NaN. */
    x = _mm512_min_ps(_mm512_set1_ps(PM_EXP_MAX), _mm512_max_ps(_mm512_set1_ps(PM_EXP_MIN), x));
    const __m512 round = _mm512_set1_ps(PM_ROUND_F32), one = _mm512_set1_ps(1.0f);
    __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(x, _mm512_set1_ps(PM_LOG2E), round), round);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-PM_LN2_HIGH), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-PM_LN2_LOW), r);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(PM_EXP_Q4), r, _mm512_set1_ps(PM_EXP_Q3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(PM_EXP_Q2));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(PM_EXP_Q1));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(PM_EXP_Q0));
    p = _mm512_fmadd_ps(p, r, one);
    p = _mm512_fmadd_ps(p, r, one);
    return _mm512_scalef_ps(p, n); /* rounds once, as the two products of the other levels do */
}

static float softmax_avx512(float scores[PM_BLOCK_ROWS], float *max, float *sum)
{
    __m512 s[PM_BLOCK_ROWS / 16], most = _mm512_set1_ps(*max), total = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int j = 0; j < PM_BLOCK_ROWS / 16; j++) { /* the second operand where a score is NaN */
        s[j] = _mm512_loadu_ps(scores + 16 * j);
        most = _mm512_max_ps(s[j], most);
    }
    const float largest = _mm512_reduce_max_ps(most);
    const __m512 shift = _mm512_set1_ps(largest);
#pragma GCC unroll 4
    for (int j = 0; j < PM_BLOCK_ROWS / 16; j++) {
        s[j] = exp16(_mm512_sub_ps(s[j], shift));
        _mm512_storeu_ps(scores + 16 * j, s[j]);
        total = _mm512_add_ps(total, s[j]);
    }
    float correction = pm_exp(*max - largest);
    *sum = fmaf(*sum, correction, reduce(total));
    *max = largest;
    return correction;
}

/* The trees of eight sets of 16 partial sums, side by side. */
static inline __m256 reduce8(const __m512 p[ROWS])
{
    __m512 pair[4], four[2];
    for (int i = 0; i < 4; i++) /* p[i] + p[i + 8] of two */
        pair[i] = _mm512_add_ps(_mm512_shuffle_f32x4(p[2 * i], p[2 * i + 1], 0x44),
                                _mm512_shuffle_f32x4(p[2 * i], p[2 * i + 1], 0xee));
    for (int i = 0; i < 2; i++) /* + 4, of four, one in each 128 bits */
        four[i] = _mm512_add_ps(_mm512_shuffle_f32x4(pair[2 * i], pair[2 * i + 1], 0x88),
                                _mm512_shuffle_f32x4(pair[2 * i], pair[2 * i + 1], 0xdd));
    __m512 two = _mm512_add_ps(_mm512_shuffle_ps(four[0], four[1], 0x44), _mm512_shuffle_ps(four[0], four[1], 0xee));
    __m512 one = _mm512_add_ps(_mm512_shuffle_ps(two, two, 0x88), _mm512_shuffle_ps(two, two, 0xdd));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_castps512_ps256(_mm512_permutexvar_ps(order, one));
}

static void unpack_avx512(const void *from, float *to, int n)
{
    const char *scales = from;
    const int8_t *q = (const int8_t *)from + pm_kv_bytes(PM_KV_Q8, n) - (size_t)n;
    for (int at = 0; at < n; at += PM_KV_GROUP, scales += sizeof(float)) {
        int end = n - at < PM_KV_GROUP ? n : at + PM_KV_GROUP, i = at;
        float scale;
        memcpy(&scale, scales, sizeof scale);
        __m512 s = _mm512_set1_ps(scale);
        for (; i + 16 <= end; i += 16) {
            __m512i wide = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(q + i)));
            _mm512_storeu_ps(to + i, _mm512_mul_ps(s, _mm512_cvtepi32_ps(wide)));
        }
        if (i < end) {
            __mmask16 left = first_lanes(end - i);
            __m512i wide = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(left, q + i));
            _mm512_mask_storeu_ps(to + i, left, _mm512_mul_ps(s, _mm512_cvtepi32_ps(wide)));
        }
    }
}

static void widen_avx512(const uint16_t *from, float *to, size_t n)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(from + i))));
    if (i < n) {
        __mmask16 left = first_lanes((int)(n - i));
        _mm512_mask_storeu_ps(to + i, left, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(left, from + i)));
    }
}

static void add_positive_avx512(float *acc, const float *x, float weight, int n)
{
    __m512 factor = _mm512_set1_ps(weight), zero = _mm512_setzero_ps();
    for (int i = 0; i < n; i += 16) { /* max gives its second operand where x is NaN */
        __mmask16 left = n - i < 16 ? first_lanes(n - i) : (__mmask16)0xffff;
        __m512 positive = _mm512_max_ps(_mm512_maskz_loadu_ps(left, x + i), zero);
        _mm512_mask_storeu_ps(acc + i, left, _mm512_fmadd_ps(factor, positive, _mm512_maskz_loadu_ps(left, acc + i)));
    }
}

/* Without the empty asm compilers load again for every use, and loads are what there is least of. */
static inline __m512 load_once(const float *p)
{
    __m512 v = _mm512_loadu_ps(p);
    __asm__("" : "+v"(v));
    return v;
}

/* Products of `queries` (1 or 2) of q with `rows` rows; both are constants. Of two, a row is loaded once for both. */
static inline __attribute__((always_inline)) void dots(const float *q, size_t apart, const int queries, const float *k,
                                                       size_t stride, int dim, const int rows, float scale,
                                                       float *scores)
{
    __m512 sum[2][ROWS];
    int i = 0;
#pragma GCC unroll 2
    for (int c = 0; c < queries; c++)
#pragma GCC unroll 8
        for (int j = 0; j < rows; j++)
            sum[c][j] = _mm512_setzero_ps();
    for (; i + 16 <= dim; i += 16) {
        __m512 a[2];
#pragma GCC unroll 2
        for (int c = 0; c < queries; c++)
            a[c] = load_once(q + (size_t)c * apart + i);
#pragma GCC unroll 8
        for (int j = 0; j < rows; j++) {
            __m512 row = load_once(k + (size_t)j * stride + i);
#pragma GCC unroll 2
            for (int c = 0; c < queries; c++)
                sum[c][j] = _mm512_fmadd_ps(a[c], row, sum[c][j]);
        }
    }
#pragma GCC unroll 2
    for (int c = 0; i < dim && c < queries; c++) {
        __mmask16 left = first_lanes(dim - i);
        __m512 a = _mm512_maskz_loadu_ps(left, q + (size_t)c * apart + i);
#pragma GCC unroll 8
        for (int j = 0; j < rows; j++)
            sum[c][j] =
                _mm512_mask3_fmadd_ps(a, _mm512_maskz_loadu_ps(left, k + (size_t)j * stride + i), sum[c][j], left);
    }
#pragma GCC unroll 2
    for (int c = 0; c < queries; c++, scores += PM_BLOCK_ROWS) {
        if (rows == ROWS)
            _mm256_storeu_ps(scores, _mm256_mul_ps(_mm256_set1_ps(scale), reduce8(sum[c])));
#pragma GCC unroll 8
        for (int j = 0; rows < ROWS && j < rows; j++)
            scores[j] = scale * reduce(sum[c][j]);
    }
}

static void scores_avx512(const float *q, const float *k, size_t stride, int dim, int n, float scale, float *scores)
{
    int j = 0;
    for (; j + ROWS <= n; j += ROWS)
        dots(q, 0, 1, k + (size_t)j * stride, stride, dim, ROWS, scale, scores + j);
    for (; j < n; j++)
        dots(q, 0, 1, k + (size_t)j * stride, stride, dim, 1, scale, scores + j);
}

static void scores2_avx512(const float *q, size_t apart, const float *k, size_t stride, int dim, int n, float scale,
                           float *scores)
{
    int j = 0;
    for (; j + ROWS <= n; j += ROWS)
        dots(q, apart, 2, k + (size_t)j * stride, stride, dim, ROWS, scale, scores + j);
    for (; j < n; j++)
        dots(q, apart, 2, k + (size_t)j * stride, stride, dim, 1, scale, scores + j);
}

/* Columns [0, 16 * vectors) of `queries` (1 or 2) of acc and of v, kept in registers over all rows. */
static inline __attribute__((always_inline)) void mix_columns(float *acc, size_t apart, const int queries,
                                                              const float *correction, const float *p, const float *v,
                                                              size_t stride, int n, const int vectors)
{
    __m512 a[2][8];
#pragma GCC unroll 2
    for (int c = 0; c < queries; c++)
#pragma GCC unroll 8
        for (int i = 0; i < vectors; i++)
            a[c][i] = _mm512_mul_ps(_mm512_loadu_ps(acc + (size_t)c * apart + 16 * i), _mm512_set1_ps(correction[c]));
    for (int j = 0; j < n; j++, v += stride) {
        __m512 weight = _mm512_set1_ps(p[j]), second = queries > 1 ? _mm512_set1_ps(p[PM_BLOCK_ROWS + j]) : weight;
#pragma GCC unroll 8
        for (int i = 0; i < vectors; i++) {
            __m512 row = load_once(v + 16 * i);
            a[0][i] = _mm512_fmadd_ps(weight, row, a[0][i]);
            if (queries > 1)
                a[1][i] = _mm512_fmadd_ps(second, row, a[1][i]);
        }
    }
#pragma GCC unroll 2
    for (int c = 0; c < queries; c++)
#pragma GCC unroll 8
        for (int i = 0; i < vectors; i++)
            _mm512_storeu_ps(acc + (size_t)c * apart + 16 * i, a[c][i]);
}

static inline __attribute__((always_inline)) void mix_queries(float *acc, size_t apart, const int queries,
                                                              const float *correction, const float *p, const float *v,
                                                              size_t stride, int dim, int n)
{
    int d = 0;
    for (; d + 128 <= dim; d += 128)
        mix_columns(acc + d, apart, queries, correction, p, v + d, stride, n, 8);
    for (; d + 64 <= dim; d += 64)
        mix_columns(acc + d, apart, queries, correction, p, v + d, stride, n, 4);
    for (; d + 16 <= dim; d += 16)
        mix_columns(acc + d, apart, queries, correction, p, v + d, stride, n, 1);
    for (int c = 0; d < dim && c < queries; c++, acc += apart, p += PM_BLOCK_ROWS) {
        __mmask16 left = first_lanes(dim - d);
        __m512 a = _mm512_mul_ps(_mm512_maskz_loadu_ps(left, acc + d), _mm512_set1_ps(correction[c]));
        for (int j = 0; j < n; j++)
            a = _mm512_fmadd_ps(_mm512_set1_ps(p[j]), _mm512_maskz_loadu_ps(left, v + (size_t)j * stride + d), a);
        _mm512_mask_storeu_ps(acc + d, left, a);
    }
}

static void mix_avx512(float *acc, float correction, const float *p, const float *v, size_t stride, int dim, int n)
{
    mix_queries(acc, 0, 1, &correction, p, v, stride, dim, n);
}

static void mix2_avx512(float *acc, size_t apart, const float *correction, const float *p, const float *v,
                        size_t stride, int dim, int n)
{
    mix_queries(acc, apart, 2, correction, p, v, stride, dim, n);
}

const pm_mixer_kernels pm_mixer_avx512 = {
    .columns = 128,
    .dot = pm_dot_lanes,
    .widen = widen_avx512,
    .narrow = pm_lanes_narrow,
    .pack = pm_lanes_pack,
    .unpack = unpack_avx512,
    .scores = scores_avx512,
    .scores2 = scores2_avx512,
    .softmax = softmax_avx512,
    .mix = mix_avx512,
    .mix2 = mix2_avx512,
    .gate = pm_lanes_gate,
    .sqrt_softplus = pm_lanes_sqrt_softplus,
    .add_positive = add_positive_avx512,
    .conv = pm_lanes_conv,
    .delta_gates = pm_lanes_delta_gates,
    .delta = pm_lanes_delta,
    .ssm_gates = pm_lanes_ssm_gates,
    .ssm = pm_lanes_ssm,
    .gated_norm = pm_lanes_gated_norm,
    .compress = pm_lanes_compress,
};

#endif
