/* Float matrices for AVX-512: the 16 partial sums of a (row, column) are one vector. Several rows and columns run side
 * by side to hide the latency of fma; columns share the widened weights. */
#if defined(__x86_64__)

#include "backend/cpu/math_avx2.h"
#include "backend/cpu/matrix.h"

#define INLINE static inline __attribute__((always_inline))

enum { ROWS = 4, COLUMNS = 6 /* most of a tile */ };

INLINE size_t element_size(pm_format format)
{
    return format == PM_FORMAT_F32 ? 4 : format == PM_FORMAT_F16 || format == PM_FORMAT_BF16 ? 2 : 1;
}

/* 16 weights of e4m3 / 256: as f16 their bits are shifted, but for NaN. */
INLINE __m512 from_e4m3(__m128i codes)
{
    const __m256i magnitude = _mm256_set1_epi16(0x3f80);
    __m256i half =
        _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7), _mm256_set1_epi16((short)0xbf80));
    __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(half, magnitude), magnitude);
    return _mm512_cvtph_ps(_mm256_or_si256(half, nan));
}

/* The weights in `mask` from element k of a row on, zeros in the other lanes; nothing of those is read. */
INLINE __m512 load_weights(const char *row, pm_format format, size_t k, __mmask16 mask, __m512 factor)
{
    const char *p = row + k * element_size(format);
    if (format == PM_FORMAT_F32)
        return _mm512_maskz_loadu_ps(mask, p);
    if (element_size(format) == 1)
        return _mm512_mul_ps(from_e4m3(_mm_maskz_loadu_epi8(mask, p)), factor);
    __m256i half = _mm256_maskz_loadu_epi16(mask, p);
    if (format == PM_FORMAT_F16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* 256 times the scale of `row` for the weights from k on. */
INLINE __m512 load_factor(const pm_weight *w, pm_format format, size_t row, size_t k)
{
    if (format == PM_FORMAT_MXFP8) {
        size_t groups = (size_t)w->in / 32;
        return _mm512_set1_ps(256 * pm_from_e8m0(((const uint8_t *)w->scales)[row * groups + k / 32]));
    }
    if (format == PM_FORMAT_FP8) {
        size_t width = (size_t)w->block[1], blocks = ((size_t)w->in + width - 1) / width;
        float scale;
        memcpy(&scale,
               (const char *)w->scales +
                   4 * ((row + (size_t)w->block_first) / (size_t)w->block[0] * blocks + k / width),
               sizeof(scale));
        return _mm512_set1_ps(256 * scale);
    }
    return _mm512_setzero_ps(); /* not used */
}

/* Row `row` and the following of w times columns from .. from + n; rows and n are constants. One column waits for
 * memory, and so the next rows are fetched meanwhile; into the second cache, since the first holds x. */
INLINE void tile(const pm_weight *w, pm_format format, size_t row, int rows, const pm_columns *columns, int from, int n,
                 const pm_results *results)
{
    const size_t size = element_size(format), step = n > 1 ? 16 : format == PM_FORMAT_MXFP8 ? 32 : 64 / size;
    size_t in = (size_t)w->in, stride = in * size, ahead = (size_t)rows * stride;
    size_t width = format == PM_FORMAT_MXFP8 ? 32 : format == PM_FORMAT_FP8 ? (size_t)w->block[1] : in;
    const char *data = (const char *)w->data + row * stride;
    const float *x[COLUMNS];
    __m512 acc[ROWS][COLUMNS], factor[ROWS];
    for (int c = 0; c < n; c++) {
        x[c] = columns->x + (size_t)(columns->index ? columns->index[from + c] : from + c) * in;
        for (int r = 0; r < rows; r++)
            acc[r][c] = _mm512_setzero_ps();
    }
    for (size_t first = 0; first < in; first += width) { /* of one scale */
        size_t end = in - first < width ? in : first + width, k = first;
        for (int r = 0; r < rows; r++)
            factor[r] = load_factor(w, format, row + (size_t)r, first);
        for (; k + step <= end; k += step)
            for (int r = 0; r < rows; r++) {
                const char *p = data + (size_t)r * stride;
                if (n == 1)
                    _mm_prefetch(p + k * size + ahead, _MM_HINT_T1);
                for (size_t i = k; i < k + step; i += 16) {
                    __m512 weights = load_weights(p, format, i, 0xffff, factor[r]);
                    for (int c = 0; c < n; c++)
                        acc[r][c] = _mm512_fmadd_ps(weights, _mm512_loadu_ps(x[c] + i), acc[r][c]);
                }
            }
        for (; k < end; k += 16) {
            __mmask16 mask = end - k < 16 ? (__mmask16)((1u << (end - k)) - 1) : 0xffff;
            for (int r = 0; r < rows; r++) {
                __m512 weights = load_weights(data + (size_t)r * stride, format, k, mask, factor[r]);
                for (int c = 0; c < n; c++)
                    acc[r][c] = _mm512_mask3_fmadd_ps(weights, _mm512_maskz_loadu_ps(mask, x[c] + k), acc[r][c], mask);
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < n; c++) {
            size_t at = (size_t)(from + c) * (size_t)results->stride + row + (size_t)r;
            float y = pm_reduce16_avx2(_mm512_castps512_ps256(acc[r][c]), _mm512_extractf32x8_ps(acc[r][c], 1));
            results->y[at] = results->add ? y + results->add[at] : y;
        }
}

INLINE void multiply_columns(const pm_weight *w, pm_format format, int first, int last, const pm_columns *columns,
                             int from, int n, const pm_results *results)
{
    int row = first;
    for (; row + ROWS <= last; row += ROWS)
        tile(w, format, (size_t)row, ROWS, columns, from, n, results);
    for (; row < last; row++)
        tile(w, format, (size_t)row, 1, columns, from, n, results);
}

INLINE void multiply(const pm_weight *w, pm_format format, int first, int last, const pm_columns *columns,
                     const pm_results *results)
{
    int n = columns->n, i = 0;
    for (; i + 6 <= n; i += 6)
        multiply_columns(w, format, first, last, columns, i, 6, results);
    for (; i + 2 <= n; i += 2)
        multiply_columns(w, format, first, last, columns, i, 2, results);
    if (i < n)
        multiply_columns(w, format, first, last, columns, i, 1, results);
}

#define MULTIPLY(name, format)                                                                                         \
    void pm_multiply_##name##_avx512(const pm_weight *w, int first, int last, const pm_columns *columns,               \
                                     const pm_results *results)                                                        \
    {                                                                                                                  \
        multiply(w, format, first, last, columns, results);                                                            \
    }

MULTIPLY(bf16, PM_FORMAT_BF16)
MULTIPLY(f16, PM_FORMAT_F16)
MULTIPLY(f32, PM_FORMAT_F32)
MULTIPLY(mxfp8, PM_FORMAT_MXFP8)

/* Blocks that are not whole vectors wide are rare enough for the scalar kernel. */
void pm_multiply_fp8_avx512(const pm_weight *w, int first, int last, const pm_columns *columns,
                            const pm_results *results)
{
    if (w->block[1] % 16)
        pm_multiply_float_scalar(w, first, last, columns, results);
    else
        multiply(w, PM_FORMAT_FP8, first, last, columns, results);
}

#endif
