/* Float matrices for AVX2: 16 partial sums of a (row, column) are two vectors; several rows or columns run side by side
 * to hide the latency of fma, and columns share the widened weights. */
#if defined(__x86_64__)

#include "backend/cpu/math_avx2.h"
#include "backend/cpu/matrix.h"

#define INLINE static inline __attribute__((always_inline))

enum { AHEAD = 4096 /* bytes that streaming prefetches ahead */ };

INLINE __m256 load_weights(const char *row, pm_format format, size_t k)
{
    if (format == PM_FORMAT_F32)
        return _mm256_loadu_ps((const float *)(const void *)row + k);
    __m128i half = _mm_loadu_si128((const __m128i *)(row + 2 * k));
    if (format == PM_FORMAT_F16)
        return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

INLINE float weight_at(const char *row, pm_format format, size_t k)
{
    uint16_t half;
    float single;
    if (format == PM_FORMAT_F32) {
        memcpy(&single, row + 4 * k, sizeof(single));
        return single;
    }
    memcpy(&half, row + 2 * k, sizeof(half));
    return format == PM_FORMAT_F16 ? pm_from_f16(half) : pm_from_bf16(half);
}

/* Row `row` and the following of w times columns from .. from + n; rows and n are constants, rows * n <= 4. */
INLINE void tile(const pm_weight *w, pm_format format, size_t row, int rows, const pm_columns *columns, int from, int n,
                 const pm_results *results)
{
    size_t in = (size_t)w->in, stride = in * (format == PM_FORMAT_F32 ? 4 : 2), k = 0;
    const char *data = (const char *)w->data + row * stride;
    const float *x[6];
    __m256 low[4][6], high[4][6];
    for (int c = 0; c < n; c++) {
        x[c] = columns->x + (size_t)(columns->index ? columns->index[from + c] : from + c) * in;
        for (int r = 0; r < rows; r++)
            low[r][c] = high[r][c] = _mm256_setzero_ps();
    }
    for (; k + 16 <= in; k += 16)
        for (int r = 0; r < rows; r++) {
            const char *p = data + (size_t)r * stride;
            if (n == 1)
                _mm_prefetch(p + k * (format == PM_FORMAT_F32 ? 4 : 2) + AHEAD, _MM_HINT_T0);
            __m256 a = load_weights(p, format, k), b = load_weights(p, format, k + 8);
            for (int c = 0; c < n; c++) {
                low[r][c] = _mm256_fmadd_ps(a, _mm256_loadu_ps(x[c] + k), low[r][c]);
                high[r][c] = _mm256_fmadd_ps(b, _mm256_loadu_ps(x[c] + k + 8), high[r][c]);
            }
        }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < n; c++) {
            if (k < in) {
                float p[16];
                _mm256_storeu_ps(p, low[r][c]);
                _mm256_storeu_ps(p + 8, high[r][c]);
                for (size_t j = k; j < in; j++)
                    p[j - k] = fmaf(weight_at(data + (size_t)r * stride, format, j), x[c][j], p[j - k]);
                low[r][c] = _mm256_loadu_ps(p);
                high[r][c] = _mm256_loadu_ps(p + 8);
            }
            size_t at = (size_t)(from + c) * (size_t)results->stride + row + (size_t)r;
            float y = pm_reduce16_avx2(low[r][c], high[r][c]);
            results->y[at] = results->add ? y + results->add[at] : y;
        }
}

INLINE void multiply(const pm_weight *w, pm_format format, int first, int last, const pm_columns *columns,
                     const pm_results *results)
{
    int n = columns->n, i = 0;
    for (; i + 6 <= n; i += 6)
        for (int row = first; row < last; row++)
            tile(w, format, (size_t)row, 1, columns, i, 6, results);
    for (; i + 4 <= n; i += 4)
        for (int row = first; row < last; row++)
            tile(w, format, (size_t)row, 1, columns, i, 4, results);
    for (; i + 2 <= n; i += 2)
        for (int row = first; row < last; row++)
            tile(w, format, (size_t)row, 1, columns, i, 2, results);
    if (i < n) {
        int row = first;
        for (; row + 4 <= last; row += 4)
            tile(w, format, (size_t)row, 4, columns, i, 1, results);
        for (; row + 2 <= last; row += 2)
            tile(w, format, (size_t)row, 2, columns, i, 1, results);
        if (row < last)
            tile(w, format, (size_t)row, 1, columns, i, 1, results);
    }
}

void pm_multiply_bf16_avx2(const pm_weight *w, int first, int last, const pm_columns *columns,
                           const pm_results *results)
{
    multiply(w, PM_FORMAT_BF16, first, last, columns, results);
}

void pm_multiply_f16_avx2(const pm_weight *w, int first, int last, const pm_columns *columns, const pm_results *results)
{
    multiply(w, PM_FORMAT_F16, first, last, columns, results);
}

void pm_multiply_f32_avx2(const pm_weight *w, int first, int last, const pm_columns *columns, const pm_results *results)
{
    multiply(w, PM_FORMAT_F32, first, last, columns, results);
}

#endif
