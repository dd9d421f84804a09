/* The reference kernels of matrix.h: they define the bits. */
#include "backend/cpu/math.h"
#include "backend/cpu/matrix.h"

#include <string.h>

enum { BLOCK = 8 }; /* columns that share an unpacked piece of a row */

/* ---- reading weights ---- */

static inline uint16_t read_u16(const void *p, size_t i)
{
    uint16_t v;
    memcpy(&v, (const char *)p + i * sizeof(v), sizeof(v));
    return v;
}

static inline float read_f32(const void *p, size_t i)
{
    float v;
    memcpy(&v, (const char *)p + i * sizeof(v), sizeof(v));
    return v;
}

float pm_read_scale(const void *scales, pm_scale_type type, size_t i)
{
    switch (type) {
    case PM_SCALE_BF16: return pm_from_bf16(read_u16(scales, i));
    case PM_SCALE_F16: return pm_from_f16(read_u16(scales, i));
    case PM_SCALE_F32: return read_f32(scales, i);
    case PM_SCALE_E8M0: return pm_from_e8m0(((const uint8_t *)scales)[i]);
    case PM_SCALE_E4M3: break;
    }
    return pm_from_e4m3_256th(((const uint8_t *)scales)[i]) * 256;
}

float pm_group_scale(const pm_weight *w, size_t i)
{
    if (w->format == PM_FORMAT_NVFP4)
        return pm_from_e4m3_256th(((const uint8_t *)w->scales)[i]) * (128 * w->global);
    float scale = pm_read_scale(w->scales, w->scale_type, i);
    return w->format == PM_FORMAT_MXFP4 ? scale * 0.5f : scale;
}

float pm_group_bias(const pm_weight *w, size_t i)
{
    if (w->format != PM_FORMAT_AFFINE)
        return 0;
    return w->biases ? pm_read_scale(w->biases, w->scale_type, i)
                     : pm_symmetric_bias(w) * pm_read_scale(w->scales, w->scale_type, i);
}

/* Where the scales of a row of an FP8 matrix begin. */
static size_t block_scales(const pm_weight *w, int row)
{
    size_t width = (size_t)w->block[1], blocks = ((size_t)w->in + width - 1) / width;
    return (size_t)((row + w->block_first) / w->block[0]) * blocks;
}

/* `count` weights of a row of a float matrix from element k on. */
static void read_weights(const pm_weight *w, int row, int k, int count, float *out)
{
    const uint8_t *data = (const uint8_t *)w->data + (size_t)row * pm_weight_row_bytes(w);
    bool blocks = w->format == PM_FORMAT_FP8;
    int width = blocks ? w->block[1] : w->group;
    size_t scales = 0; /* of the row */
    if (blocks)
        scales = block_scales(w, row);
    else if (w->format == PM_FORMAT_MXFP8)
        scales = (size_t)row * (size_t)(w->in / width);
    for (int i = 0; i < count; i++) {
        size_t at = (size_t)(k + i);
        switch (w->format) {
        case PM_FORMAT_BF16: out[i] = pm_from_bf16(read_u16(data, at)); break;
        case PM_FORMAT_F16: out[i] = pm_from_f16(read_u16(data, at)); break;
        case PM_FORMAT_MXFP8:
        case PM_FORMAT_FP8:
            out[i] = pm_from_e4m3_256th(data[at]) *
                     (256 * pm_read_scale(w->scales, w->scale_type, scales + at / (size_t)width));
            break;
        default: out[i] = read_f32(data, at);
        }
    }
}

const int8_t pm_e2m1_integers[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* The integers of group g of a row of a quantised matrix. */
static void read_integers(const pm_weight *w, const uint8_t *row, int g, int16_t *out)
{
    uint8_t codes[PM_MAX_GROUP];
    bool affine = w->format == PM_FORMAT_AFFINE;
    pm_unpack(row, affine ? w->bits : 4, g * w->group, w->group, codes);
    for (int k = 0; k < w->group; k++)
        out[k] = affine ? codes[k] : pm_e2m1_integers[codes[k]];
}

/* MLX packs a row as one stream of bits, the lowest first: element k is bits [k * bits, (k + 1) * bits). */
void pm_unpack(const uint8_t *row, int bits, int first, int count, uint8_t *out)
{
    for (int i = 0; i < count; i++) {
        size_t bit = (size_t)(first + i) * (size_t)bits, byte = bit / 8, shift = bit % 8;
        unsigned v = row[byte] >> shift;
        if (shift + (size_t)bits > 8)
            v |= (unsigned)row[byte + 1] << (8 - shift);
        out[i] = (uint8_t)(v & ((1u << bits) - 1));
    }
}

void pm_dequantise(const pm_weight *w, int row, int first, int count, float *y)
{
    const uint8_t *data = (const uint8_t *)w->data + (size_t)row * pm_weight_row_bytes(w);
    if (!pm_is_quantised(w)) {
        read_weights(w, row, first, count, y);
        return;
    }
    size_t groups = (size_t)(w->in / w->group);
    int16_t q[PM_MAX_GROUP];
    for (int at = 0; at < count; at += w->group) {
        size_t g = (size_t)((first + at) / w->group), i = (size_t)row * groups + g;
        float scale = pm_group_scale(w, i), bias = pm_group_bias(w, i);
        read_integers(w, data, (int)g, q);
        for (int k = 0; k < w->group; k++)
            y[at + k] = fmaf((float)q[k], scale, bias);
    }
}

/* ---- multiplying ---- */

static inline size_t column_row(const pm_columns *columns, int i)
{
    return (size_t)(columns->index ? columns->index[i] : i);
}

static inline void put(const pm_results *results, int column, int row, float value)
{
    size_t i = (size_t)column * (size_t)results->stride + (size_t)row;
    results->y[i] = results->add ? value + results->add[i] : value;
}

/* One row of w times columns [from, from + n), n <= BLOCK. */
static void quantised_row(const pm_weight *w, int row, const pm_columns *columns, int from, int n,
                          const pm_results *results)
{
    const uint8_t *data = (const uint8_t *)w->data + (size_t)row * pm_weight_row_bytes(w);
    size_t groups = (size_t)(w->in / w->group);
    float acc[BLOCK][4] = {{0}};
    int16_t weights[PM_MAX_GROUP];
    for (size_t g = 0; g < groups; g++) {
        float scale = pm_group_scale(w, (size_t)row * groups + g);
        float bias = pm_group_bias(w, (size_t)row * groups + g);
        read_integers(w, data, (int)g, weights);
        for (int i = 0; i < n; i++) {
            const pm_quantised x =
                pm_quantised_rows(&columns->quantised, column_row(columns, from + i), (size_t)w->in, groups);
            const int16_t *q = x.q + g * (size_t)w->group;
            int32_t isum = 0;
            for (int k = 0; k < w->group; k++)
                isum += weights[k] * q[k];
            float *a = &acc[i][g % 4];
            *a = fmaf((float)isum, scale * x.scale[g], *a);
            if (w->format == PM_FORMAT_AFFINE)
                *a = fmaf(bias, x.sum[g], *a);
        }
    }
    for (int i = 0; i < n; i++)
        put(results, from + i, row, (acc[i][0] + acc[i][2]) + (acc[i][1] + acc[i][3]));
}

void pm_multiply_quantised_scalar(const pm_weight *w, int first, int last, const pm_columns *columns,
                                  const pm_results *results)
{
    for (int from = 0; from < columns->n; from += BLOCK)
        for (int row = first; row < last; row++)
            quantised_row(w, row, columns, from, columns->n - from < BLOCK ? columns->n - from : BLOCK, results);
}

/* One row of w, as floats, times columns [from, from + n), n <= BLOCK; 16 weights at a time. */
static void float_row(const pm_weight *w, int row, const pm_columns *columns, int from, int n,
                      const pm_results *results)
{
    size_t in = (size_t)w->in;
    float acc[BLOCK][16] = {{0}}, weights[16];
    for (size_t k = 0; k < in; k += 16) {
        size_t count = in - k < 16 ? in - k : 16;
        read_weights(w, row, (int)k, (int)count, weights);
        for (int i = 0; i < n; i++) {
            const float *x = columns->x + column_row(columns, from + i) * in + k;
            for (size_t j = 0; j < count; j++)
                acc[i][j] = fmaf(weights[j], x[j], acc[i][j]);
        }
    }
    for (int i = 0; i < n; i++)
        put(results, from + i, row, pm_reduce16(acc[i]));
}

/* The same of an FP8 matrix. */
static void fp8_row(const pm_weight *w, int row, const pm_columns *columns, int from, int n, const pm_results *results)
{
    const size_t in = (size_t)w->in, width = (size_t)w->block[1], scales = block_scales(w, row);
    const uint8_t *codes = (const uint8_t *)w->data + (size_t)row * in;
    float acc[BLOCK][16] = {{0}};
    for (size_t first = 0; first < in; first += width) {
        const size_t end = in - first < width ? in : first + width;
        const float factor = 256 * pm_read_scale(w->scales, w->scale_type, scales + first / width);
        for (int i = 0; i < n; i++) {
            const float *x = columns->x + column_row(columns, from + i) * in;
            float p[16] = {0};
            for (size_t k = first; k < end; k++)
                p[k % 16] = fmaf(pm_from_e4m3_256th(codes[k]), x[k], p[k % 16]);
            for (int j = 0; j < 16; j++)
                acc[i][j] = fmaf(factor, p[j], acc[i][j]);
        }
    }
    for (int i = 0; i < n; i++)
        put(results, from + i, row, pm_reduce16(acc[i]));
}

void pm_multiply_float_scalar(const pm_weight *w, int first, int last, const pm_columns *columns,
                              const pm_results *results)
{
    for (int from = 0; from < columns->n; from += BLOCK)
        for (int row = first; row < last; row++)
            (w->format == PM_FORMAT_FP8 ? fp8_row : float_row)(
                w, row, columns, from, columns->n - from < BLOCK ? columns->n - from : BLOCK, results);
}

/* ---- inputs ---- */

static void rms_norm(const float *x, const float *w, float eps, int n, float *y)
{
    float r = pm_rsqrt(pm_dot(x, x, n) / (float)n + eps);
    for (int k = 0; k < n; k++)
        y[k] = x[k] * r * w[k];
}

static void quantise(const float *x, int n, int group, pm_layout layout, pm_precision precision, const pm_quantised *to)
{
    const float most = pm_q_max(precision);
    const bool two = precision == PM_PRECISION_EXACT; /* bytes an integer */
    int8_t *bytes = (int8_t *)to->q;
    memset(bytes, 0, pm_padded((size_t)n) * sizeof(*to->q));
    for (int first = 0, g = 0; first < n; first += group, g++) {
        uint32_t largest = 0; /* as bits, which order finite magnitudes, then infinity, then NaN */
        for (int k = first; k < first + group; k++) {
            uint32_t magnitude = pm_bits(x[k]) & 0x7fffffff;
            largest = magnitude > largest ? magnitude : largest;
        }
        bool finite = largest < 0x7f800000, zero = largest < pm_bits(PM_Q_FLOOR);
        float inv = finite && !zero ? most / pm_from_bits(largest) : 0;
        int32_t total = 0;
        for (int k = first; k < first + group; k++) {
            int32_t v = finite ? (int32_t)(x[k] * inv + PM_ROUND_F32 - PM_ROUND_F32) : 0;
            int place = pm_place(layout, k);
            if (layout >= PM_LAYOUT_BYTES) {
                bytes[place] = (int8_t)(two ? (v + 128) >> 8 : v);
                if (two)
                    bytes[pm_padded((size_t)n) + (size_t)place] = (int8_t)(v - 256 * bytes[place]);
            } else {
                to->q[place] = (int16_t)v;
            }
            total += v;
        }
        to->scale[g] = !finite ? NAN : zero ? 0 : pm_from_bits(largest) / most;
        to->sum[g] = to->scale[g] * (float)total;
        to->excess[g] = PM_E2M1_ZERO * total;
    }
}

static void swiglu(const float *gate, const float *up, float limit, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = pm_swiglu(gate[i], up[i], limit);
}

static void add_scaled(float *acc, const float *y, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        acc[i] = fmaf(factor, y[i], acc[i]);
}

#define SCALAR                                                                                                         \
    {                                                                                                                  \
        pm_multiply_quantised_scalar, PM_LAYOUT_NATURAL                                                                \
    }
#define QUANTISED                                                                                                      \
    {                                                                                                                  \
        .affine = {[2] = SCALAR, [3] = SCALAR, [4] = SCALAR, [5] = SCALAR, [6] = SCALAR, [8] = SCALAR}, .e2m1 = SCALAR \
    }

const pm_matrix_kernels pm_matrix_scalar = {
    .multiply = {[PM_FORMAT_F32] = pm_multiply_float_scalar,
                 [PM_FORMAT_F16] = pm_multiply_float_scalar,
                 [PM_FORMAT_BF16] = pm_multiply_float_scalar,
                 [PM_FORMAT_MXFP8] = pm_multiply_float_scalar,
                 [PM_FORMAT_FP8] = pm_multiply_float_scalar},
    .quantised = {QUANTISED, QUANTISED},
    .rms_norm = rms_norm,
    .quantise = quantise,
    .swiglu = swiglu,
    .dequantise = pm_dequantise,
    .add_scaled = add_scaled,
};
