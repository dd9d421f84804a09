/* pm_dequantise eight weights at a time, with the same bits. */
#include "backend/cpu/math_lanes.h"
#include "backend/cpu/matrix.h"

/* n codes of e4m3 times one factor. */
static void from_e4m3(const uint8_t *codes, float factor, int n, float *y)
{
    int i = 0;
    for (; i + 8 <= n; i += 8)
        pm_store8(y + i, pm_mul8(pm_load_e4m3x8(codes + i), pm_set8(factor)));
    for (; i < n; i++)
        y[i] = pm_from_e4m3_256th(codes[i]) * factor;
}

/* Columns that share a scale, one stretch after the other. */
static void from_scaled_e4m3(const pm_weight *w, const uint8_t *row, int number, int first, int count, float *y)
{
    bool blocks = w->format == PM_FORMAT_FP8;
    int width = blocks ? w->block[1] : w->group, done = 0;
    size_t per_row = ((size_t)w->in + (size_t)width - 1) / (size_t)width;
    size_t scales = (size_t)(blocks ? (number + w->block_first) / w->block[0] : number) * per_row;
    while (done < count) {
        int at = first + done, n = width - at % width < count - done ? width - at % width : count - done;
        float scale = pm_read_scale(w->scales, w->scale_type, scales + (size_t)(at / width));
        from_e4m3(row + at, 256 * scale, n, y + done);
        done += n;
    }
}

static void from_halves(const uint8_t *row, bool bf16, int first, int count, float *y)
{
    const uint8_t *from = row + 2 * (size_t)first;
    int i = 0;
    for (; i + 8 <= count; i += 8)
        pm_store8(y + i, bf16 ? pm_load_bf16x8(from + 2 * i) : pm_load_f16x8(from + 2 * i));
    for (; i < count; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, sizeof(half));
        y[i] = bf16 ? pm_from_bf16(half) : pm_from_f16(half);
    }
}

/* Whole groups of affine weights. */
static void from_affine(const pm_weight *w, const uint8_t *row, int number, int first, int count, float *y)
{
    uint8_t codes[PM_MAX_GROUP];
    for (int at = 0; at < count; at += w->group) {
        size_t i = (size_t)number * (size_t)(w->in / w->group) + (size_t)((first + at) / w->group);
        pm_floats scale = pm_set8(pm_read_scale(w->scales, w->scale_type, i));
        pm_floats bias = pm_set8(pm_group_bias(w, i));
        const uint8_t *bytes = row + (size_t)(first + at) * (size_t)w->bits / 8; /* 4 and 8 bits */
        if (w->bits != 4 && w->bits != 8) {
            pm_unpack(row, w->bits, first + at, w->group, codes);
            bytes = codes;
        }
        for (int k = 0; k < w->group; k += 8) {
            pm_ints q = w->bits == 4 ? pm_load_u4x8(bytes + k / 2) : pm_load_u8x8(bytes + k);
            pm_store8(y + at + k, pm_fma8(pm_to_floats8(q), scale, bias));
        }
    }
}

void pm_dequantise_lanes(const pm_weight *w, int row, int first, int count, float *y)
{
    const uint8_t *data = (const uint8_t *)w->data + (size_t)row * pm_weight_row_bytes(w);
    switch (w->format) {
    case PM_FORMAT_F32: memcpy(y, data + 4 * (size_t)first, 4 * (size_t)count); break;
    case PM_FORMAT_F16:
    case PM_FORMAT_BF16: from_halves(data, w->format == PM_FORMAT_BF16, first, count, y); break;
    case PM_FORMAT_AFFINE: from_affine(w, data, row, first, count, y); break;
    case PM_FORMAT_MXFP8:
    case PM_FORMAT_FP8: from_scaled_e4m3(w, data, row, first, count, y); break;
    default: pm_dequantise(w, row, first, count, y);
    }
}
