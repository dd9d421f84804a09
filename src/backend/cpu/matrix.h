/* Matrix times rows: the kernels, and what linear.c, moe.c and logits share.
 *
 * The arithmetic of a quantised matrix (affine, MXFP4, NVFP4), which every level repeats bit for bit:
 *   - A group of x (as wide as the weight's group) becomes integers q of at most `most`: 32639 in the precision
 * `exact`, so that a q is 256 * high + low in two signed bytes, 127 in `fast`, where it is one. With `largest` the
 * largest |x|, inv = most / largest, q = x * inv rounded to nearest even, scale = largest / most, so x = scale * q. A
 * group whose largest |x| is below 2^-96 becomes zeros with scale 0. A group with a value that is not finite becomes
 * zeros with scale NaN, and so NaN comes out.
 *   - sum = scale * (float)(sum of q): the group sum of x as it was quantised, so that it has no order, and the error
 * of rounding x is multiplied by the weight and not by the part of it above the bias.
 *   - For the groups g of a row in ascending order, a = acc[g mod 4], isum = the exact int32 sum of weight integer
 * times q: a = fmaf((float)isum, weight scale * scale, a); a = fmaf(weight bias, sum, a). Largest isum: 255 * 32639 *
 * 128 < 2^31.
 *   - The integers of MXFP4 and NVFP4 are 2 e2m1: 0 1 2 3 4 6 8 12 or their negatives. The weight scale is 0.5 * e8m0,
 * or (e4m3 / 256) * (128 * global), both products rounded; there is no weight bias and the second fmaf is left out.
 *   - y = (acc[0] + acc[2]) + (acc[1] + acc[3]).
 * A float matrix, in both precisions: sums over k as cpu.h says. One of MXFP8 is a float matrix of the weights
 * (e4m3 / 256) * (256 * scale), both products rounded.
 *   - FP8: for the blocks of a row in ascending order, the 16 partial sums p of e4m3 / 256 times x over the block, from
 * zeros; then those of the row a = fmaf(256 * scale, p, a).
 * An e8m0 scale of 255 and the e4m3 codes 0x7f and 0xff are NaN, and so NaN comes out.
 * A residual is added, then a bias. A column's result never depends on the others.
 */
#ifndef PM_MATRIX_H
#define PM_MATRIX_H

#include "backend/cpu/cpu.h"

enum { PM_GROUPS = 4 /* widths of a weight group: 16, 32, 64, 128 */, PM_MAX_GROUP = 128, PM_MAX_BITS = 8 };

enum { PM_PRECISIONS = 2 };

/* What makes the integers of e2m1 unsigned, where a kernel needs that; pm_quantised.excess is then taken away again. */
enum { PM_E2M1_ZERO = 12 };

#define PM_Q_FLOOR 0x1p-96f /* below this a group of x counts as zero */

/* The largest integer that x becomes. */
static inline float pm_q_max(pm_precision precision)
{
    return precision == PM_PRECISION_FAST ? 127.0f : 32639.0f; /* 127 * 256 + 127 */
}

static inline int pm_group_index(int group)
{
    return (group >= 32) + group / 64;
}

/* In which order a kernel wants the integers of x: as they come, or cut into blocks of several planes, each in one
 * piece (pm_place), so that what a load of packed weights holds meets what a load of x holds. A row is padded to whole
 * blocks. */
typedef enum pm_layout {
    PM_LAYOUT_NATURAL,
    PM_LAYOUT_PLANES2, /* 2 planes of 16 integers: element 2 j + i is at place j of plane i. AVX2, 8-bit weights */
    PM_LAYOUT_PLANES4, /* 4 of 16, likewise. AVX2, 4-bit weights */
    PM_LAYOUT_BYTES,  /* the high bytes of a row, then its low bytes, both signed, as they come; in the precision `fast`
                         one byte, where the high one would be. NEON; in `fast` AVX2 for 2, 3, 5, 6 bits and e2m1 */
    PM_LAYOUT_BYTES2, /* so, in 2 planes of 64: 4 bits */
    PM_LAYOUT_BYTES4, /* so, in 4 planes of 64: 2 bits */
    PM_LAYOUT_BYTES16, /* so, in 2 planes that take 16 elements each in turn: other widths */
    PM_LAYOUTS
} pm_layout;

enum { PM_MAX_BLOCK = 256 };

/* Integers in a row of n, padding included. */
static inline size_t pm_padded(size_t n)
{
    return (n + PM_MAX_BLOCK - 1) / PM_MAX_BLOCK * PM_MAX_BLOCK;
}

/* x, quantised for one width of group and in one layout. */
typedef struct pm_quantised {
    int16_t *q;         /* [rows, pm_padded(in)], whatever the precision; in layouts of bytes the padding of the last
                           block is zero */
    float *scale, *sum; /* [rows, in / group] */
    int32_t *excess;    /* [rows, in / group]: PM_E2M1_ZERO times the sum of the integers */
} pm_quantised;

/* From row `row` on. */
static inline pm_quantised pm_quantised_rows(const pm_quantised *from, size_t row, size_t in, size_t groups)
{
    size_t g = row * groups;
    return (pm_quantised){from->q + row * pm_padded(in), from->scale + g, from->sum + g, from->excess + g};
}

/* What a kernel multiplies with: n columns. Column i is row index[i] (NULL: row i) of x. */
typedef struct pm_columns {
    int n;
    const int32_t *index;
    const float *x; /* [rows, in], for float matrices */
    pm_quantised quantised;
} pm_columns;

/* Where the results go: y[i * stride + row] = result (+ add[i * stride + row] when add is not NULL; may be y). */
typedef struct pm_results {
    float *y;
    const float *add;
    int64_t stride;
} pm_results;

/* Rows [first, last) of w times all columns. */
typedef void pm_multiply_fn(const pm_weight *w, int first, int last, const pm_columns *columns,
                            const pm_results *results);

typedef struct pm_quantised_kernel {
    pm_multiply_fn *multiply; /* NULL: no such format */
    pm_layout layout;
} pm_quantised_kernel;

typedef struct pm_quantised_kernels {
    pm_quantised_kernel affine[PM_MAX_BITS + 1];
    pm_quantised_kernel e2m1; /* MXFP4, NVFP4 */
} pm_quantised_kernels;

typedef struct pm_matrix_kernels {
    pm_multiply_fn *multiply[PM_FORMATS]; /* float formats */
    pm_quantised_kernels quantised[PM_PRECISIONS];
    /* y = (x * (1 / sqrt(mean(x^2) + eps))) * w; y may be x. */
    void (*rms_norm)(const float *x, const float *w, float eps, int n, float *y);
    /* One row of x, [n]. */
    void (*quantise)(const float *x, int n, int group, pm_layout layout, pm_precision precision,
                     const pm_quantised *to);
    /* y = silu(min(gate, limit)) * clamp(up, -limit, limit), NaN staying NaN; y may be gate. */
    void (*swiglu)(const float *gate, const float *up, float limit, int64_t n, float *y);
    /* As pm_dequantise. */
    void (*dequantise)(const pm_weight *w, int row, int first, int count, float *y);
    /* acc = fmaf(factor, y, acc) */
    void (*add_scaled)(float *acc, const float *y, float factor, int64_t n);
} pm_matrix_kernels;

/* Columns [first, first + count) of row `row` of w as floats: integer * weight scale (+ bias) in one rounding (fma), or
 * the weights of a float matrix. Of a quantised matrix they are whole groups. */
void pm_dequantise(const pm_weight *w, int row, int first, int count, float *y);

/* For kernels: element i of w's scales or biases; the weight scale of group i, and its bias (0 where there is none);
 * what scales are multiplied by where there are no biases; `count` integers of a row of affine weights from element
 * `first`. */
float pm_read_scale(const void *scales, pm_scale_type type, size_t i);
float pm_group_scale(const pm_weight *w, size_t i);
float pm_group_bias(const pm_weight *w, size_t i);
static inline float pm_symmetric_bias(const pm_weight *w)
{
    return -(float)(1 << (w->bits - 1));
}
void pm_unpack(const uint8_t *row, int bits, int first, int count, uint8_t *out);

/* The place in a row of element k: in pm_quantised.q, or of its high byte; the low byte is pm_padded(in) bytes on. */
static inline int pm_place(pm_layout layout, int k)
{
    static const struct {
        uint8_t planes, width, run;
    } of[PM_LAYOUTS] = {{1, 16, 1}, {2, 16, 1}, {4, 16, 1}, {1, 16, 1}, {2, 64, 1}, {4, 64, 1}, {2, 64, 16}};
    const int planes = of[layout].planes, width = of[layout].width, run = of[layout].run;
    int i = k % (planes * width), plane = i / run % planes;
    return k - i + plane * width + i / (run * planes) * run + i % run;
}

extern const pm_matrix_kernels pm_matrix_scalar;
#if defined(__x86_64__)
extern const pm_matrix_kernels pm_matrix_avx2;
pm_multiply_fn pm_multiply_2bit_avx2, pm_multiply_3bit_avx2, pm_multiply_5bit_avx2, pm_multiply_6bit_avx2,
    pm_multiply_e2m1_avx2;
pm_multiply_fn pm_multiply_2bit_bytes_avx2, pm_multiply_3bit_bytes_avx2, pm_multiply_4bit_bytes_avx2,
    pm_multiply_5bit_bytes_avx2, pm_multiply_6bit_bytes_avx2, pm_multiply_e2m1_bytes_avx2;
void pm_quantise_avx2(const float *x, int n, int group, pm_layout layout, pm_precision precision,
                      const pm_quantised *to);
extern const pm_matrix_kernels pm_matrix_avx512, pm_matrix_amx;
pm_multiply_fn pm_multiply_bf16_avx512, pm_multiply_f16_avx512, pm_multiply_f32_avx512, pm_multiply_mxfp8_avx512,
    pm_multiply_fp8_avx512;
void pm_quantise_avx512(const float *x, int n, int group, pm_layout layout, pm_precision precision,
                        const pm_quantised *to);
#elif defined(__aarch64__)
extern const pm_matrix_kernels pm_matrix_neon, pm_matrix_dot, pm_matrix_i8mm;
void pm_quantise_neon(const float *x, int n, int group, pm_layout layout, pm_precision precision,
                      const pm_quantised *to);
#endif
/* Eight lanes at a time (lanes.h), for the levels of several processors. */
pm_multiply_fn pm_multiply_f32_lanes, pm_multiply_f16_lanes, pm_multiply_bf16_lanes, pm_multiply_mxfp8_lanes,
    pm_multiply_fp8_lanes;
void pm_rms_norm_lanes(const float *x, const float *w, float eps, int n, float *y);
void pm_swiglu_lanes(const float *gate, const float *up, float limit, int64_t n, float *y);
void pm_dequantise_lanes(const pm_weight *w, int row, int first, int count, float *y);
void pm_add_scaled_lanes(float *acc, const float *y, float factor, int64_t n);
/* The scalar kernels, for what has none of its own at some level. */
pm_multiply_fn pm_multiply_quantised_scalar, pm_multiply_float_scalar;
extern const int8_t pm_e2m1_integers[16]; /* 2 e2m1 by code */

static inline bool pm_is_quantised(const pm_weight *w)
{
    return w->format == PM_FORMAT_AFFINE || w->format == PM_FORMAT_MXFP4 || w->format == PM_FORMAT_NVFP4;
}

/* Of a quantised format. */
static inline const pm_quantised_kernel *pm_kernel_of(const pm_cpu *cpu, const pm_weight *w)
{
    const pm_quantised_kernels *kernels = &cpu->matrix->quantised[cpu->precision];
    return w->format == PM_FORMAT_AFFINE ? &kernels->affine[w->bits] : &kernels->e2m1;
}

/* ---- many matrices, one input (linear.c) ---- */

/* Rows of x, normalised and quantised as the matrices that will meet them need. Zero-initialised but for the first
 * part. */
typedef struct pm_input {
    const float *x; /* [rows, in]; after pm_input_prepare with a norm: the normalised rows */
    int rows, in;
    pm_scratch norm_slot, quant_slot;
    unsigned have; /* bit group index * PM_LAYOUTS + layout: which of `quantised` are ready */
    pm_quantised quantised[PM_GROUPS * PM_LAYOUTS];
} pm_input;

typedef struct pm_norm {
    const float *w; /* [in] */
    float eps;
    const int *rows; /* NULL, or which rows of x are taken */
} pm_norm;

/* Adds to `need` (bits as in pm_input.have) what w's kernel takes. */
void pm_input_need(const pm_cpu *cpu, const pm_weight *w, unsigned *need);

/* Normalises (unless norm is NULL) and quantises the rows; false when out of memory. */
bool pm_input_prepare(pm_cpu *cpu, pm_input *input, const pm_norm *norm, unsigned need);

/* y[i] of matrix w = rows `index` (NULL: all) of the input. */
pm_columns pm_input_columns(const pm_cpu *cpu, const pm_input *input, const pm_weight *w);
void pm_multiply(const pm_cpu *cpu, const pm_weight *w, int first, int last, const pm_columns *columns,
                 const pm_results *results);

typedef struct pm_product {
    const pm_weight *w;
    pm_results results;
} pm_product;

/* All products with the whole input in one region of the pool. */
void pm_products(pm_cpu *cpu, const pm_input *input, const pm_product *products, int n);

/* Pieces of matrices are multiples of as many rows as kernels take at once. */
enum { PM_ROW_TILE = 32 };

/* n rows, rounded up to whole tiles. */
static inline int64_t pm_row_tiles(int64_t n)
{
    return (n + PM_ROW_TILE - 1) / PM_ROW_TILE * PM_ROW_TILE;
}

/* Indices of a region that are worth giving to a worker when one costs about `ns`: small work stays on the calling
 * thread. */
int64_t pm_grain(double ns);
double pm_row_cost(const pm_weight *w, int columns); /* nanoseconds, roughly */

/* ---- routing (moe.c) ---- */

/* Chooses experts by the router logits of `token`: ids ascending and their weights, [top_k] each. Logits that are not
 * finite give NaN weights (and ids within bounds). `room` is [PM_ROUTE_ROOM * experts], for its use. */
enum { PM_ROUTE_ROOM = 3 };
void pm_moe_route(const struct pm_mixer_kernels *kernels, const pm_route *route, const float *logits, pm_token token,
                  float *room, int32_t *ids, float *weights);

#endif
