/* Quantised matrices for NEON, compiled for each level: a file of a few lines includes this one (matrix_neon.c and
 * those beside it).
 *
 * Four rows of weights become a panel of signed bytes in natural order, which serves all columns; a row is a lane of
 * what follows the exact sums. Bytes of x meet them in SDOT, sixteen products at once, or SMMLA, which multiplies two
 * rows with two columns; the baseline has neither and multiplies 16-bit words. With 16-bit activations the products
 * with their high bytes are summed first, then shifted, then those with the low bytes are added. Integers of 8 bits
 * have 128 taken away to be signed, and 128 times the sum of x is added again. No sum overflows: 128 * 32639 * 128 <
 * 2^31, and what is added again may wrap on the way to a sum that fits. */
#ifndef PM_MATRIX_NEON_H
#define PM_MATRIX_NEON_H

#include "backend/cpu/math.h"
#include "backend/cpu/matrix.h"

#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    ROWS = 4,     /* of a panel */
    DEPTH = 512,  /* elements of a row in a panel: four groups or more */
    COLUMNS = 64, /* that share the panels of 4 rows */
    TILE = 4      /* most columns in registers */
};

/* Elements [k, k + DEPTH), or fewer, of 4 rows. */
typedef struct panel {
    int8_t w[ROWS][DEPTH];
    float scale[DEPTH / 16][ROWS], bias[DEPTH / 16][ROWS]; /* of a group of every row */
} panel;

/* ---- filling a panel ---- */

/* 8 integers of 2, 3, 5 or 6 bits (a constant); just their bytes are read. */
INLINE int8x8_t unpack(const uint8_t *p, int bits)
{
    /* The two bytes that hold an integer (it may end in the first), then its bits to the top, then down. */
#define FROM(i) (i) * bits / 8, (i)*bits / 8 + 1
#define UP(i)   (int16_t)(16 - bits - (i)*bits % 8)
    const uint8_t spread[16] = {FROM(0), FROM(1), FROM(2), FROM(3), FROM(4), FROM(5), FROM(6), FROM(7)};
    const int16_t up[8] = {UP(0), UP(1), UP(2), UP(3), UP(4), UP(5), UP(6), UP(7)};
#undef FROM
#undef UP
    uint64_t bytes = 0;
    memcpy(&bytes, p, (size_t)bits);
    uint8x16_t pairs = vqtbl1q_u8(vcombine_u8(vcreate_u8(bytes), vdup_n_u8(0)), vld1q_u8(spread));
    uint16x8_t words = vshlq_u16(vreinterpretq_u16_u8(pairs), vld1q_s16(up));
    return vreinterpret_s8_u8(vmovn_u16(vshlq_u16(words, vdupq_n_s16((int16_t)(bits - 16)))));
}

/* n integers (a multiple of 16) of `bits` bits (a constant), or of e2m1, from a row of weights. */
INLINE void unpack_row(const uint8_t *p, int bits, bool e2m1, int n, int8_t *to)
{
    for (int i = 0; i < n; i += 16, p += 2 * bits, to += 16) {
        if (bits == 8) {
            vst1q_s8(to, vreinterpretq_s8_u8(veorq_u8(vld1q_u8(p), vdupq_n_u8(128))));
        } else if (bits == 4) {
            uint8x8_t bytes = vld1_u8(p), low = vand_u8(bytes, vdup_n_u8(15)), high = vshr_n_u8(bytes, 4);
            uint8x16_t codes = vcombine_u8(vzip1_u8(low, high), vzip2_u8(low, high));
            vst1q_s8(to, e2m1 ? vqtbl1q_s8(vld1q_s8(pm_e2m1_integers), codes) : vreinterpretq_s8_u8(codes));
        } else {
            vst1q_s8(to, vcombine_s8(unpack(p, bits), unpack(p + bits, bits)));
        }
    }
}

/* One scale or bias of an affine matrix. */
INLINE float read_scale(const void *scales, pm_scale_type type, size_t i)
{
    if (type == PM_SCALE_F16) {
        __fp16 half;
        memcpy(&half, (const char *)scales + 2 * i, sizeof(half));
        return (float)half;
    }
    return pm_read_scale(scales, type, i);
}

/* Scales and biases of n groups of a row, from the i-th on. */
static void fill_scales(const pm_weight *w, size_t i, int n, int row, panel *out)
{
    if (w->format != PM_FORMAT_AFFINE) {
        for (int j = 0; j < n; j++)
            out->scale[j][row] = pm_group_scale(w, i + (size_t)j);
        return;
    }
    for (int j = 0; j < n; j++) {
        float scale = read_scale(w->scales, w->scale_type, i + (size_t)j);
        out->scale[j][row] = scale;
        out->bias[j][row] =
            w->biases ? read_scale(w->biases, w->scale_type, i + (size_t)j) : pm_symmetric_bias(w) * scale;
    }
}

/* Elements [k, k + n) of `rows` (up to 4) rows from `row` on; the other rows are zero. */
static void fill(const pm_weight *w, int row, int rows, int k, int n, panel *out)
{
    const bool affine = w->format == PM_FORMAT_AFFINE;
    const int bits = affine ? w->bits : 4;
    const size_t stride = pm_weight_row_bytes(w), groups = (size_t)(w->in / w->group), g = (size_t)(k / w->group);
    if (rows < ROWS)
        memset(out, 0, sizeof(*out));
    for (int r = 0; r < rows; r++) {
        const uint8_t *p = (const uint8_t *)w->data + (size_t)(row + r) * stride + (size_t)k * (size_t)bits / 8;
        switch (bits) {
        case 2: unpack_row(p, 2, false, n, out->w[r]); break;
        case 3: unpack_row(p, 3, false, n, out->w[r]); break;
        case 4: unpack_row(p, 4, !affine, n, out->w[r]); break;
        case 5: unpack_row(p, 5, false, n, out->w[r]); break;
        case 6: unpack_row(p, 6, false, n, out->w[r]); break;
        default: unpack_row(p, 8, false, n, out->w[r]);
        }
        fill_scales(w, (size_t)(row + r) * groups + g, n / w->group, r, out);
    }
}

/* ---- integer sums of a group: 4 rows, a lane each, times n columns ---- */

#if defined(__ARM_FEATURE_DOTPROD)

enum { LAYOUT = PM_LAYOUT_BYTES };

INLINE void dot_sums(const int8_t *w, const int8_t *const *x, size_t low, int group, int n, bool two, int32x4_t *out)
{
    int32x4_t sum[ROWS][TILE];
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < n; c++)
            sum[r][c] = vdupq_n_s32(0);
    for (int pass = 0; pass <= two; pass++) {
        for (int i = 0; pass && i < ROWS * n; i++)
            sum[i / n][i % n] = vshlq_n_s32(sum[i / n][i % n], 8);
        for (int k = 0; k < group; k += 16) {
            int8x16_t weights[ROWS];
            for (int r = 0; r < ROWS; r++)
                weights[r] = vld1q_s8(w + r * DEPTH + k);
            for (int c = 0; c < n; c++) {
                int8x16_t column = vld1q_s8(x[c] + (pass ? low : 0) + k);
                for (int r = 0; r < ROWS; r++)
                    sum[r][c] = vdotq_s32(sum[r][c], weights[r], column);
            }
        }
    }
    for (int c = 0; c < n; c++)
        out[c] = vpaddq_s32(vpaddq_s32(sum[0][c], sum[1][c]), vpaddq_s32(sum[2][c], sum[3][c]));
}

#if defined(__ARM_FEATURE_MATMUL_INT8)

/* The lower (0) or upper (1) 8 bytes of two vectors. */
INLINE int8x16_t halves(int8x16_t a, int8x16_t b, int which)
{
    int64x2_t p = vreinterpretq_s64_s8(a), q = vreinterpretq_s64_s8(b);
    return vreinterpretq_s8_s64(which ? vzip2q_s64(p, q) : vzip1q_s64(p, q));
}

/* n is even: sum[i][j] has rows 2 i and 2 i + 1 times columns 2 j and 2 j + 1. */
INLINE void block_sums(const int8_t *w, const int8_t *const *x, size_t low, int group, int n, bool two, int32x4_t *out)
{
    int32x4_t sum[ROWS / 2][TILE / 2];
    for (int i = 0; i < ROWS / 2; i++)
        for (int j = 0; j < n / 2; j++)
            sum[i][j] = vdupq_n_s32(0);
    for (int pass = 0; pass <= two; pass++) {
        for (int i = 0; pass && i < n; i++)
            sum[i % 2][i / 2] = vshlq_n_s32(sum[i % 2][i / 2], 8);
        for (int k = 0; k < group; k += 16)
            for (int half = 0; half < 2; half++) {
                int8x16_t weights[ROWS / 2];
                for (int i = 0; i < ROWS / 2; i++)
                    weights[i] = halves(vld1q_s8(w + 2 * i * DEPTH + k), vld1q_s8(w + (2 * i + 1) * DEPTH + k), half);
                for (int j = 0; j < n / 2; j++) {
                    const int8_t *const *pair = x + 2 * j;
                    const size_t at = (pass ? low : 0) + (size_t)k;
                    int8x16_t columns = halves(vld1q_s8(pair[0] + at), vld1q_s8(pair[1] + at), half);
                    for (int i = 0; i < ROWS / 2; i++)
                        sum[i][j] = vmmlaq_s32(sum[i][j], weights[i], columns);
                }
            }
    }
    for (int c = 0; c < n; c++)
        out[c] = c % 2 ? vuzp2q_s32(sum[0][c / 2], sum[1][c / 2]) : vuzp1q_s32(sum[0][c / 2], sum[1][c / 2]);
}

#endif

INLINE void group_sums(const int8_t *w, const pm_quantised *columns, size_t k, size_t low, int group, int n, bool two,
                       int32x4_t *out)
{
    const int8_t *x[TILE];
    for (int c = 0; c < n; c++)
        x[c] = (const int8_t *)columns[c].q + k;
#if defined(__ARM_FEATURE_MATMUL_INT8)
    if (n > 1) {
        block_sums(w, x, low, group, n, two, out);
        return;
    }
#endif
    dot_sums(w, x, low, group, n, two, out);
}

#else

enum { LAYOUT = PM_LAYOUT_NATURAL };

INLINE void group_sums(const int8_t *w, const pm_quantised *columns, size_t first, size_t low, int group, int n,
                       bool two, int32x4_t *out)
{
    (void)low;
    (void)two;
    int32x4_t sum[ROWS][TILE];
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < n; c++)
            sum[r][c] = vdupq_n_s32(0);
    for (int k = 0; k < group; k += 8) {
        int16x8_t weights[ROWS];
        for (int r = 0; r < ROWS; r++)
            weights[r] = vmovl_s8(vld1_s8(w + r * DEPTH + k));
        for (int c = 0; c < n; c++) {
            int16x8_t x = vld1q_s16(columns[c].q + first + k);
            for (int r = 0; r < ROWS; r++) {
                sum[r][c] = vmlal_s16(sum[r][c], vget_low_s16(weights[r]), vget_low_s16(x));
                sum[r][c] = vmlal_high_s16(sum[r][c], weights[r], x);
            }
        }
    }
    for (int c = 0; c < n; c++)
        out[c] = vpaddq_s32(vpaddq_s32(sum[0][c], sum[1][c]), vpaddq_s32(sum[2][c], sum[3][c]));
}

#endif

/* ---- a panel times columns ---- */

/* What is multiplied: groups [g, g + groups) of rows, in one panel. */
typedef struct stretch {
    const panel *panel;
    int group, zero; /* elements of a group; what was taken away from each weight */
    bool biased, two;
    size_t g, groups, low; /* low: from the high byte of an integer of x to its low one */
} stretch;

/* The running sums of a column for 4 rows. */
typedef struct running {
    float32x4_t acc[4];
} running;

/* n columns and the number of bytes of an integer are constants. */
INLINE void add_columns(const stretch *s, const pm_quantised *columns, int n, bool two, running *out)
{
    for (size_t j = 0, g = s->g; j < s->groups; j++, g++) {
        int32x4_t isum[TILE];
        group_sums(s->panel->w[0] + j * (size_t)s->group, columns, g * (size_t)s->group, s->low, s->group, n, two,
                   isum);
        const float32x4_t scale = vld1q_f32(s->panel->scale[j]), bias = vld1q_f32(s->panel->bias[j]);
        for (int c = 0; c < n; c++) {
            float32x4_t *acc = &out[c].acc[g % 4];
            if (s->zero)
                isum[c] = vaddq_s32(isum[c], vdupq_n_s32(s->zero * (columns[c].excess[g] / PM_E2M1_ZERO)));
            *acc = vfmaq_f32(*acc, vcvtq_f32_s32(isum[c]), vmulq_n_f32(scale, columns[c].scale[g]));
            if (s->biased)
                *acc = vfmaq_n_f32(*acc, bias, columns[c].sum[g]);
        }
    }
}

/* n up to TILE: 4, 2 or 1 at a time. */
static int add_some(const stretch *s, const pm_quantised *columns, int n, running *out)
{
    if (n >= 4)
        s->two ? add_columns(s, columns, 4, true, out) : add_columns(s, columns, 4, false, out);
    else if (n >= 2)
        s->two ? add_columns(s, columns, 2, true, out) : add_columns(s, columns, 2, false, out);
    else
        s->two ? add_columns(s, columns, 1, true, out) : add_columns(s, columns, 1, false, out);
    return n >= 4 ? 4 : n >= 2 ? 2 : 1;
}

static void put_rows(const running *sums, int i, int row, int rows, const pm_results *results)
{
    float y[ROWS];
    size_t at = (size_t)i * (size_t)results->stride + (size_t)row;
    vst1q_f32(y, vaddq_f32(vaddq_f32(sums->acc[0], sums->acc[2]), vaddq_f32(sums->acc[1], sums->acc[3])));
    for (int r = 0; r < rows; r++)
        results->y[at + (size_t)r] = results->add ? y[r] + results->add[at + (size_t)r] : y[r];
}

/* `rows` (up to 4) rows times n (up to COLUMNS) columns from column `from` on. */
static void multiply_rows(const pm_weight *w, bool two, int row, int rows, const pm_columns *columns, int from, int n,
                          const pm_results *results)
{
    panel p;
    running sums[COLUMNS];
    pm_quantised x[COLUMNS];
    stretch s = {.panel = &p,
                 .group = w->group,
                 .biased = w->format == PM_FORMAT_AFFINE,
                 .zero = w->format == PM_FORMAT_AFFINE && w->bits == 8 ? 128 : 0,
                 .two = two,
                 .low = pm_padded((size_t)w->in)};
    memset(sums, 0, (size_t)n * sizeof(*sums));
    for (int c = 0; c < n; c++)
        x[c] = pm_quantised_rows(&columns->quantised, (size_t)(columns->index ? columns->index[from + c] : from + c),
                                 (size_t)w->in, (size_t)(w->in / w->group));
    for (int k = 0; k < w->in; k += DEPTH) {
        int depth = w->in - k < DEPTH ? w->in - k : DEPTH;
        fill(w, row, rows, k, depth, &p);
        s.g = (size_t)(k / w->group);
        s.groups = (size_t)(depth / w->group);
        for (int c = 0; c < n;)
            c += add_some(&s, x + c, n - c, sums + c);
    }
    for (int c = 0; c < n; c++)
        put_rows(&sums[c], from + c, row, rows, results);
}

static void multiply(const pm_weight *w, bool two, int first, int last, const pm_columns *columns,
                     const pm_results *results)
{
    for (int from = 0; from < columns->n; from += COLUMNS)
        for (int row = first; row < last; row += ROWS)
            multiply_rows(w, two, row, last - row < ROWS ? last - row : ROWS, columns, from,
                          columns->n - from < COLUMNS ? columns->n - from : COLUMNS, results);
}

static void multiply_exact(const pm_weight *w, int first, int last, const pm_columns *columns,
                           const pm_results *results)
{
    multiply(w, true, first, last, columns, results);
}

static void multiply_fast(const pm_weight *w, int first, int last, const pm_columns *columns, const pm_results *results)
{
    multiply(w, false, first, last, columns, results);
}

#define EXACT                                                                                                          \
    {                                                                                                                  \
        multiply_exact, (pm_layout)LAYOUT                                                                              \
    }
#define FAST                                                                                                           \
    {                                                                                                                  \
        multiply_fast, (pm_layout)LAYOUT                                                                               \
    }

/* The table of a level. */
#define PM_NEON_KERNELS                                                                                                \
    {                                                                                                                  \
        .multiply = {[PM_FORMAT_F32] = pm_multiply_f32_lanes,                                                          \
                     [PM_FORMAT_F16] = pm_multiply_f16_lanes,                                                          \
                     [PM_FORMAT_BF16] = pm_multiply_bf16_lanes,                                                        \
                     [PM_FORMAT_MXFP8] = pm_multiply_mxfp8_lanes,                                                      \
                     [PM_FORMAT_FP8] = pm_multiply_fp8_lanes},                                                         \
        .quantised = {[PM_PRECISION_EXACT] =                                                                           \
                          {.affine = {[2] = EXACT, [3] = EXACT, [4] = EXACT, [5] = EXACT, [6] = EXACT, [8] = EXACT},   \
                           .e2m1 = EXACT},                                                                             \
                      [PM_PRECISION_FAST] =                                                                            \
                          {.affine = {[2] = FAST, [3] = FAST, [4] = FAST, [5] = FAST, [6] = FAST, [8] = FAST},         \
                           .e2m1 = FAST}},                                                                             \
        .rms_norm = pm_rms_norm_lanes, .quantise = pm_quantise_neon, .swiglu = pm_swiglu_lanes,                        \
        .dequantise = pm_dequantise_lanes, .add_scaled = pm_add_scaled_lanes                                           \
    }

#endif
