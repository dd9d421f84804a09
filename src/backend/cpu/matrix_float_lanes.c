/* Float matrices: 16 partial sums of a (row, column) are two vectors of eight lanes; several rows or columns run side
 * by side to hide the latency of fma, and columns share the widened weights. */
#include "backend/cpu/math_lanes.h"
#include "backend/cpu/matrix.h"

#define INLINE static inline __attribute__((always_inline))

enum { AHEAD = 4096 /* bytes that streaming prefetches ahead */ };

INLINE size_t element_size(pm_format format)
{
    return format == PM_FORMAT_F32 ? 4 : format == PM_FORMAT_F16 || format == PM_FORMAT_BF16 ? 2 : 1;
}

/* 8 weights of a row from element k on; those of FP8 without their factor. */
INLINE pm_floats load_weights(const char *row, pm_format format, size_t k, pm_floats factor)
{
    if (format == PM_FORMAT_F32)
        return pm_load8((const float *)(const void *)row + k);
    if (element_size(format) == 1) {
        pm_floats weights = pm_load_e4m3x8(row + k);
        return format == PM_FORMAT_FP8 ? weights : pm_mul8(weights, factor);
    }
    return format == PM_FORMAT_F16 ? pm_load_f16x8(row + 2 * k) : pm_load_bf16x8(row + 2 * k);
}

INLINE float weight_at(const char *row, pm_format format, size_t k)
{
    uint16_t half;
    float single;
    if (format == PM_FORMAT_F32) {
        memcpy(&single, row + 4 * k, sizeof(single));
        return single;
    }
    if (element_size(format) == 1) /* MXFP8 has no such ends of rows */
        return pm_from_e4m3_256th((uint8_t)row[k]);
    memcpy(&half, row + 2 * k, sizeof(half));
    return format == PM_FORMAT_F16 ? pm_from_f16(half) : pm_from_bf16(half);
}

/* 256 times the scale of `row` for the weights from k on. */
INLINE pm_floats load_factor(const pm_weight *w, pm_format format, size_t row, size_t k)
{
    if (format == PM_FORMAT_MXFP8)
        return pm_set8(256 * pm_from_e8m0(((const uint8_t *)w->scales)[row * (size_t)(w->in / 32) + k / 32]));
    if (format == PM_FORMAT_FP8) {
        size_t width = (size_t)w->block[1], blocks = ((size_t)w->in + width - 1) / width;
        float scale;
        memcpy(&scale,
               (const char *)w->scales +
                   4 * ((row + (size_t)w->block_first) / (size_t)w->block[0] * blocks + k / width),
               sizeof(scale));
        return pm_set8(256 * scale);
    }
    return pm_zero8(); /* not used */
}

/* 16 partial sums. */
typedef struct sums {
    pm_floats low, high;
} sums;

/* Adds the last products of rows whose length is not a multiple of 16, from element k on. */
INLINE void add_end(const char *row, pm_format format, const float *x, size_t k, size_t in, sums *to)
{
    float p[16];
    pm_store8(p, to->low);
    pm_store8(p + 8, to->high);
    for (size_t j = k; j < in; j++)
        p[j - k] = fmaf(weight_at(row, format, j), x[j], p[j - k]);
    *to = (sums){pm_load8(p), pm_load8(p + 8)};
}

/* Row `row` and the following of w times columns from .. from + n; rows and n are constants, rows * n <= 6. */
INLINE void tile(const pm_weight *w, pm_format format, size_t row, int rows, const pm_columns *columns, int from, int n,
                 const pm_results *results)
{
    const bool blocks = format == PM_FORMAT_FP8;
    size_t in = (size_t)w->in, stride = in * element_size(format);
    size_t width = format == PM_FORMAT_MXFP8 ? 32 : blocks ? (size_t)w->block[1] : in;
    const char *data = (const char *)w->data + row * stride;
    const float *x[6];
    const sums none = {pm_zero8(), pm_zero8()};
    sums acc[4][6], whole[4][6]; /* of a block, and of those before */
    pm_floats factor[4] = {pm_zero8()};
    for (int c = 0; c < n; c++) {
        x[c] = columns->x + (size_t)(columns->index ? columns->index[from + c] : from + c) * in;
        for (int r = 0; r < rows; r++)
            acc[r][c] = whole[r][c] = none;
    }
    for (size_t first = 0; first < in; first += width) { /* of one scale */
        size_t end = in - first < width ? in : first + width, k = first;
        for (int r = 0; r < rows; r++)
            factor[r] = load_factor(w, format, row + (size_t)r, first);
        for (; k + 16 <= end; k += 16)
            for (int r = 0; r < rows; r++) {
                const char *p = data + (size_t)r * stride;
                if (n == 1)
                    __builtin_prefetch(p + k * element_size(format) + AHEAD);
                pm_floats a = load_weights(p, format, k, factor[r]), b = load_weights(p, format, k + 8, factor[r]);
                for (int c = 0; c < n; c++) {
                    acc[r][c].low = pm_fma8(a, pm_load8(x[c] + k), acc[r][c].low);
                    acc[r][c].high = pm_fma8(b, pm_load8(x[c] + k + 8), acc[r][c].high);
                }
            }
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < n; c++) {
                if (k < end)
                    add_end(data + (size_t)r * stride, format, x[c], k, end, &acc[r][c]);
                if (!blocks)
                    continue;
                whole[r][c].low = pm_fma8(factor[r], acc[r][c].low, whole[r][c].low);
                whole[r][c].high = pm_fma8(factor[r], acc[r][c].high, whole[r][c].high);
                acc[r][c] = none;
            }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < n; c++) {
            const sums *sum = blocks ? &whole[r][c] : &acc[r][c];
            size_t at = (size_t)(from + c) * (size_t)results->stride + row + (size_t)r;
            float y = pm_reduce16_lanes(sum->low, sum->high);
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

void pm_multiply_bf16_lanes(const pm_weight *w, int first, int last, const pm_columns *columns,
                            const pm_results *results)
{
    multiply(w, PM_FORMAT_BF16, first, last, columns, results);
}

void pm_multiply_f16_lanes(const pm_weight *w, int first, int last, const pm_columns *columns,
                           const pm_results *results)
{
    multiply(w, PM_FORMAT_F16, first, last, columns, results);
}

void pm_multiply_f32_lanes(const pm_weight *w, int first, int last, const pm_columns *columns,
                           const pm_results *results)
{
    multiply(w, PM_FORMAT_F32, first, last, columns, results);
}

void pm_multiply_mxfp8_lanes(const pm_weight *w, int first, int last, const pm_columns *columns,
                             const pm_results *results)
{
    multiply(w, PM_FORMAT_MXFP8, first, last, columns, results);
}

/* Blocks that are not whole vectors wide are rare enough for the scalar kernel, but for those as wide as the matrix. */
void pm_multiply_fp8_lanes(const pm_weight *w, int first, int last, const pm_columns *columns,
                           const pm_results *results)
{
    if (w->block[1] % 16 && w->block[1] < w->in)
        pm_multiply_float_scalar(w, first, last, columns, results);
    else
        multiply(w, PM_FORMAT_FP8, first, last, columns, results);
}
