/* pm_dequantise for AVX2, with the same bits: eight weights at a time. */
#if defined(__x86_64__)

#include "backend/cpu/matrix_avx2.h"

/* n codes of e4m3 times one factor. */
static void from_e4m3(const uint8_t *codes, float factor, int n, float *y)
{
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i eight = _mm_loadl_epi64((const __m128i *)(const void *)(codes + i));
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_cvtph_ps(pm_e4m3_halves(eight)), _mm256_set1_ps(factor)));
    }
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
    for (; i + 8 <= count; i += 8) {
        __m128i eight = _mm_loadu_si128((const __m128i *)(const void *)(from + 2 * i));
        __m256 wide =
            bf16 ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16)) : _mm256_cvtph_ps(eight);
        _mm256_storeu_ps(y + i, wide);
    }
    for (; i < count; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, sizeof(half));
        y[i] = bf16 ? pm_from_bf16(half) : pm_from_f16(half);
    }
}

/* Whole groups of affine weights. */
static void from_affine(const pm_weight *w, const uint8_t *row, int number, int first, int count, float *y)
{
    const __m256i nibbles = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28), low = _mm256_set1_epi32(15);
    uint8_t codes[PM_MAX_GROUP];
    for (int at = 0; at < count; at += w->group) {
        size_t i = (size_t)number * (size_t)(w->in / w->group) + (size_t)((first + at) / w->group);
        __m256 scale = _mm256_set1_ps(pm_read_scale(w->scales, w->scale_type, i));
        __m256 bias = _mm256_set1_ps(pm_group_bias(w, i));
        const uint8_t *bytes = row + (size_t)(first + at) * (size_t)w->bits / 8; /* 4 and 8 bits */
        if (w->bits != 4 && w->bits != 8) {
            pm_unpack(row, w->bits, first + at, w->group, codes);
            bytes = codes;
        }
        for (int k = 0; k < w->group; k += 8) {
            __m256i q;
            if (w->bits == 4) {
                uint32_t eight;
                memcpy(&eight, bytes + k / 2, sizeof(eight));
                q = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32((int)eight), nibbles), low);
            } else {
                q = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(bytes + k)));
            }
            _mm256_storeu_ps(y + at + k, _mm256_fmadd_ps(_mm256_cvtepi32_ps(q), scale, bias));
        }
    }
}

void pm_dequantise_avx2(const pm_weight *w, int row, int first, int count, float *y)
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

#endif
