/* What the AVX-512 and AMX kernels of quantised matrices share: rows of weights unpacked for many columns. */
#ifndef PM_MATRIX_AVX512_H
#define PM_MATRIX_AVX512_H

#include "backend/cpu/math.h"
#include "backend/cpu/matrix.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
/* What is specialised is compiled by itself, so that it has all the registers. */
#define NOINLINE static __attribute__((noinline))

enum {
    ROWS = 16,   /* of a panel */
    DEPTH = 512, /* elements of a row in a panel: four groups or more */
    SCALES = 32, /* most groups whose scales are there at once: those of DEPTH elements, or 16 */
    PANELS = 2   /* taken at once */
};

/* Elements [k, k + DEPTH), or fewer, of 16 rows. */
typedef struct pm_panel {
    __m512i w[DEPTH / 4];               /* 4 elements of every row */
    __m512 scale[SCALES], bias[SCALES]; /* of a group of every row: */
    size_t first;                       /* which of them is the first of these elements */
} pm_panel;

/* n elements, whole groups, from the k-th of `rows` (up to 16) rows from `row` on. Scales come with some calls for all
 * that follow: the panels of rows are filled from the first element on, DEPTH at a time. */
typedef void pm_fill_fn(const pm_weight *w, int row, int rows, int k, int n, pm_panel *out);

pm_fill_fn *pm_fill_of(const pm_weight *w);

/* Planes of a block of weights of so many bits: pm_layout. */
INLINE int pm_planes_of(int bits)
{
    return bits == 2 ? 4 : 2;
}

/* A row of x. With one pass `high` is all there is. */
typedef struct pm_column {
    const int8_t *high, *low;
    const float *scale, *sum;
    const int32_t *excess;
} pm_column;

INLINE pm_column pm_column_at(const pm_columns *columns, int i, size_t in, size_t groups)
{
    size_t row = (size_t)(columns->index ? columns->index[i] : i);
    pm_quantised x = pm_quantised_rows(&columns->quantised, row, in, groups);
    return (pm_column){(const int8_t *)x.q, (const int8_t *)x.q + pm_padded(in), x.scale, x.sum, x.excess};
}

/* The running sums of a column for 16 rows. */
typedef struct pm_running {
    __m512 acc[4];
} pm_running;

INLINE void pm_put_rows(const pm_running *sums, int i, int row, int rows, const pm_results *results)
{
    size_t at = (size_t)i * (size_t)results->stride + (size_t)row;
    const __mmask16 mask = (__mmask16)((1u << rows) - 1);
    __m512 y = _mm512_add_ps(_mm512_add_ps(sums->acc[0], sums->acc[2]), _mm512_add_ps(sums->acc[1], sums->acc[3]));
    if (results->add)
        y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(mask, results->add + at));
    _mm512_mask_storeu_ps(results->y + at, mask, y);
}

/* Rows of a panel, when `left` are left. */
INLINE int pm_rows_within(int left)
{
    return left < 0 ? 0 : left < ROWS ? left : ROWS;
}

#endif
