/* Affine matrices of 4 and 8 bits for AVX2, and the table of kernels of that level.
 *
 * A 256-bit load of packed weights is 16 words of 4 or 2 fields; field i of every word meets plane i of x (pm_layout)
 * in one multiplication of 16-bit pairs, which cannot overflow: 2 * 255 * 32639 < 2^31, and neither can a group's sum.
 * Unlike vpmaddubsw it does not saturate.
 *
 * One column: rows are streamed one at a time, since memory likes that best; four groups are reduced together into the
 * four lanes that are the four running sums. More columns: tiles of 8 rows, one a lane, so that a group's sum needs no
 * reduction at all, and unpacked weights serve up to 8 columns. */
#if defined(__x86_64__)

#include "backend/cpu/math_avx2.h"
#include "backend/cpu/matrix.h"

#define INLINE static inline __attribute__((always_inline))

enum { AHEAD = 4096 /* bytes that streaming prefetches ahead */, ROWS = 8 /* of a tile */ };

/* What the functions below are specialised for. */
typedef struct shape {
    int bits, group;
    pm_scale_type type;
} shape;

INLINE __m128 load_scales(const void *scales, pm_scale_type type, size_t i)
{
    if (type == PM_SCALE_F32)
        return _mm_loadu_ps((const float *)scales + i);
    __m128i half = _mm_loadl_epi64((const __m128i *)((const char *)scales + 2 * i));
    if (type == PM_SCALE_F16)
        return _mm_cvtph_ps(half);
    return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(half), 16));
}

/* Field `plane` of 16-bit words. */
INLINE __m256i field(__m256i words, int bits, int plane)
{
    if (plane)
        words = _mm256_srli_epi16(words, bits * plane);
    return (plane + 1) * bits == 16 ? words : _mm256_and_si256(words, _mm256_set1_epi16((short)((1 << bits) - 1)));
}

/* 32 bytes of weights times 256 / bits integers of x: 8 sums of neighbours. */
INLINE __m256i dot_block(int bits, const uint8_t *w, const int16_t *x)
{
    __m256i words = _mm256_loadu_si256((const __m256i *)w), sum = _mm256_setzero_si256();
    for (int i = 0; i < 16 / bits; i++)
        sum = _mm256_add_epi32(
            sum, _mm256_madd_epi16(field(words, bits, i), _mm256_loadu_si256((const __m256i *)(x + 16 * i))));
    return sum;
}

/* A group of one block or more: 8 partial sums. */
INLINE __m256i dot_group(shape s, const uint8_t *w, const int16_t *x)
{
    int block = 256 / s.bits;
    __m256i sum = dot_block(s.bits, w, x);
    for (int i = 1; i < s.group / block; i++)
        sum = _mm256_add_epi32(sum, dot_block(s.bits, w + 32 * i, x + block * i));
    return sum;
}

/* The integer sums of four groups, in order. */
INLINE __m128i dot_4_groups(shape s, const uint8_t *w, const int16_t *x)
{
    int bytes = s.group * s.bits / 8;
    for (int i = 0; i < 4 * bytes; i += 64)
        _mm_prefetch((const char *)w + i + AHEAD, _MM_HINT_T0);
    if (bytes == 16) { /* two groups in a block, one in each half */
        __m256i a = dot_block(s.bits, w, x), b = dot_block(s.bits, w + 32, x + 64);
        __m256i sums = _mm256_hadd_epi32(a, b); /* 0 0 2 2 | 1 1 3 3 */
        __m128i both = _mm_hadd_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1)); /* 0 2 1 3 */
        return _mm_shuffle_epi32(both, _MM_SHUFFLE(3, 1, 2, 0));
    }
    __m256i a = dot_group(s, w, x), b = dot_group(s, w + bytes, x + s.group);
    __m256i c = dot_group(s, w + 2 * bytes, x + 2 * s.group), d = dot_group(s, w + 3 * bytes, x + 3 * s.group);
    a = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    c = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    a = _mm256_add_epi32(_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c));
    return _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
}

INLINE int32_t sum_lanes(__m128i v)
{
    v = _mm_add_epi32(v, _mm_unpackhi_epi64(v, v));
    return _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32(v, 1)));
}

/* The integer sums of the `n` (1 to 3) groups that are left at the end of a row. */
INLINE void dot_last_groups(shape s, const uint8_t *w, const int16_t *x, int n, int32_t *isum)
{
    int bytes = s.group * s.bits / 8, i = 0;
    if (bytes == 16) {
        if (n >= 2) {
            __m256i a = dot_block(s.bits, w, x);
            isum[0] = sum_lanes(_mm256_castsi256_si128(a));
            isum[1] = sum_lanes(_mm256_extracti128_si256(a, 1));
            i = 2;
        }
        if (i < n) { /* half a block: 8 words, planes of 8 */
            __m256i words = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(w + 16 * i)));
            __m128i sum = _mm_setzero_si128();
            for (int p = 0; p < 16 / s.bits; p++)
                sum = _mm_add_epi32(sum, _mm_madd_epi16(_mm256_castsi256_si128(field(words, s.bits, p)),
                                                        _mm_loadu_si128((const __m128i *)(x + s.group * i + 8 * p))));
            isum[i] = sum_lanes(sum);
        }
        return;
    }
    for (; i < n; i++) {
        __m256i a = dot_group(s, w + bytes * i, x + s.group * i);
        isum[i] = sum_lanes(_mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)));
    }
}

/* One row times one column. */
INLINE float row_column(const pm_weight *w, shape s, size_t row, const int16_t *x, const float *scale, const float *sum)
{
    size_t groups = (size_t)w->in / (size_t)s.group, at = row * groups, g = 0;
    size_t bytes = (size_t)(s.group * s.bits / 8);
    const uint8_t *data = (const uint8_t *)w->data + at * bytes;
    __m128 acc = _mm_setzero_ps();
    for (; g + 4 <= groups; g += 4) {
        __m128 isum = _mm_cvtepi32_ps(dot_4_groups(s, data + g * bytes, x + g * (size_t)s.group));
        __m128 factor = _mm_mul_ps(load_scales(w->scales, s.type, at + g), _mm_loadu_ps(scale + g));
        acc = _mm_fmadd_ps(isum, factor, acc);
        acc = _mm_fmadd_ps(load_scales(w->biases, s.type, at + g), _mm_loadu_ps(sum + g), acc);
    }
    if (g < groups) {
        int32_t isum[4];
        float a[4];
        _mm_storeu_ps(a, acc);
        dot_last_groups(s, data + g * bytes, x + g * (size_t)s.group, (int)(groups - g), isum);
        for (size_t i = 0; g + i < groups; i++) {
            a[i] = fmaf((float)isum[i], pm_read_scale(w->scales, s.type, at + g + i) * scale[g + i], a[i]);
            a[i] = fmaf(pm_read_scale(w->biases, s.type, at + g + i), sum[g + i], a[i]);
        }
        acc = _mm_loadu_ps(a);
    }
    acc = _mm_add_ps(acc, _mm_movehl_ps(acc, acc));
    return _mm_cvtss_f32(_mm_add_ss(acc, _mm_shuffle_ps(acc, acc, 1)));
}

/* ---- tiles ---- */

/* The four dwords of each of 8 rows: out[d] has dword d of row r in lane r. */
INLINE void transpose(const uint8_t *p, size_t stride, __m256i out[4])
{
    __m256i a[4];
    for (int i = 0; i < 4; i++) {
        const uint8_t *q = p + (size_t)i * stride;
        a[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)q)),
                                       _mm_loadu_si128((const __m128i *)(q + 4 * stride)), 1);
    }
    __m256i low = _mm256_unpacklo_epi32(a[0], a[1]), low2 = _mm256_unpacklo_epi32(a[2], a[3]);
    __m256i high = _mm256_unpackhi_epi32(a[0], a[1]), high2 = _mm256_unpackhi_epi32(a[2], a[3]);
    out[0] = _mm256_unpacklo_epi64(low, low2);
    out[1] = _mm256_unpackhi_epi64(low, low2);
    out[2] = _mm256_unpacklo_epi64(high, high2);
    out[3] = _mm256_unpackhi_epi64(high, high2);
}

/* Scales (or biases) of groups g .. g + n, n <= 4, of 8 rows: out[i] has group g + i of row r in lane r. */
INLINE void tile_scales(const void *scales, shape s, size_t row, size_t groups, size_t g, size_t n, __m256 out[4])
{
    float rows[ROWS][4] = {{0}};
    for (size_t r = 0; r < ROWS; r++) {
        size_t at = (row + r) * groups + g;
        if (n == 4)
            _mm_storeu_ps(rows[r], load_scales(scales, s.type, at));
        for (size_t i = 0; n < 4 && i < n; i++)
            rows[r][i] = pm_read_scale(scales, s.type, at + i);
    }
    __m256i columns[4];
    transpose((const uint8_t *)rows, sizeof(rows[0]), columns);
    for (int i = 0; i < 4; i++)
        out[i] = _mm256_castsi256_ps(columns[i]);
}

/* Two neighbours of x in every lane. */
INLINE __m256i pair(const int16_t *x)
{
    int32_t v;
    memcpy(&v, x, sizeof(v));
    return _mm256_set1_epi32(v);
}

typedef struct tile_column {
    const int16_t *q;
    const float *scale, *sum;
} tile_column;

/* 8 rows times n columns (a constant), starting with column `from`. */
INLINE void tile(const pm_weight *w, shape s, size_t row, const pm_columns *columns, int from, int n,
                 const pm_results *results)
{
    size_t in = (size_t)w->in, groups = in / (size_t)s.group, stride = in * (size_t)s.bits / 8;
    const uint8_t *data = (const uint8_t *)w->data + row * stride;
    int planes = 16 / s.bits;
    size_t chunks = (size_t)(s.group * s.bits / 128); /* of 16 bytes, in a group */
    tile_column x[8];
    __m256 acc[8][4];
    for (int c = 0; c < n; c++) {
        size_t i = (size_t)(columns->index ? columns->index[from + c] : from + c);
        x[c] = (tile_column){columns->quantised.q + i * in, columns->quantised.scale + i * groups,
                             columns->quantised.sum + i * groups};
        for (int i4 = 0; i4 < 4; i4++)
            acc[c][i4] = _mm256_setzero_ps();
    }
    for (size_t g4 = 0; g4 < groups; g4 += 4) {
        size_t n4 = groups - g4 < 4 ? groups - g4 : 4;
        __m256 scale[4], bias[4];
        tile_scales(w->scales, s, row, groups, g4, n4, scale);
        tile_scales(w->biases, s, row, groups, g4, n4, bias);
        for (size_t i = 0; i < n4; i++) {
            size_t g = g4 + i;
            __m256i isum[8];
            for (int c = 0; c < n; c++)
                isum[c] = _mm256_setzero_si256();
            for (size_t chunk = g * chunks; chunk < (g + 1) * chunks; chunk++) {
                /* Two chunks make a block of 16 words; a last chunk without a second one is a block of 8. */
                bool alone = s.group * s.bits == 128 && chunk % 2 == 0 && g + 1 == groups;
                size_t place = chunk / 2 * (size_t)(256 / s.bits) + chunk % 2 * 8;
                int width = alone ? 8 : 16;
                __m256i dwords[4];
                transpose(data + 16 * chunk, stride, dwords);
                for (int d = 0; d < 4; d++)
                    for (int p = 0; p < planes; p++) {
                        __m256i v = field(dwords[d], s.bits, p);
                        size_t k = place + (size_t)(width * p + 2 * d);
                        for (int c = 0; c < n; c++)
                            isum[c] = _mm256_add_epi32(isum[c], _mm256_madd_epi16(v, pair(x[c].q + k)));
                    }
            }
            for (int c = 0; c < n; c++) {
                __m256 factor = _mm256_mul_ps(scale[i], _mm256_set1_ps(x[c].scale[g]));
                acc[c][i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum[c]), factor, acc[c][i]);
                acc[c][i] = _mm256_fmadd_ps(bias[i], _mm256_set1_ps(x[c].sum[g]), acc[c][i]);
            }
        }
    }
    for (int c = 0; c < n; c++) {
        size_t at = (size_t)(from + c) * (size_t)results->stride + row;
        __m256 y = _mm256_add_ps(_mm256_add_ps(acc[c][0], acc[c][2]), _mm256_add_ps(acc[c][1], acc[c][3]));
        if (results->add)
            y = _mm256_add_ps(y, _mm256_loadu_ps(results->add + at));
        _mm256_storeu_ps(results->y + at, y);
    }
}

/* ---- all rows and columns ---- */

/* Rows [first, last) times column i. */
INLINE void stream(const pm_weight *w, shape s, int first, int last, const pm_columns *columns, int i,
                   const pm_results *results)
{
    size_t x = (size_t)(columns->index ? columns->index[i] : i), in = (size_t)w->in, groups = in / (size_t)s.group;
    const pm_quantised *quantised = &columns->quantised;
    for (int row = first; row < last; row++) {
        size_t at = (size_t)i * (size_t)results->stride + (size_t)row;
        float y = row_column(w, s, (size_t)row, quantised->q + x * in, quantised->scale + x * groups,
                             quantised->sum + x * groups);
        results->y[at] = results->add ? y + results->add[at] : y;
    }
}

INLINE void multiply(const pm_weight *w, shape s, int first, int last, const pm_columns *columns,
                     const pm_results *results)
{
    int row = first, n = columns->n;
    for (; n > 1 && row + ROWS <= last; row += ROWS) {
        int i = 0;
        for (; i + 8 <= n; i += 8)
            tile(w, s, (size_t)row, columns, i, 8, results);
        if (i + 4 <= n) {
            tile(w, s, (size_t)row, columns, i, 4, results);
            i += 4;
        }
        if (i + 2 <= n) {
            tile(w, s, (size_t)row, columns, i, 2, results);
            i += 2;
        }
        if (i < n)
            stream(w, s, row, row + ROWS, columns, i, results);
    }
    for (int i = 0; row < last && i < n; i++)
        stream(w, s, row, last, columns, i, results);
}

#define SPECIALISE(name, bits, group, type)                                                                            \
    static void name(const pm_weight *w, int first, int last, const pm_columns *columns, const pm_results *results)    \
    {                                                                                                                  \
        multiply(w, (shape){bits, group, type}, first, last, columns, results);                                        \
    }
#define SPECIALISE_TYPES(bits, group)                                                                                  \
    SPECIALISE(affine_##bits##_##group##_bf16, bits, group, PM_SCALE_BF16)                                             \
    SPECIALISE(affine_##bits##_##group##_f16, bits, group, PM_SCALE_F16)                                               \
    SPECIALISE(affine_##bits##_##group##_f32, bits, group, PM_SCALE_F32)
#define TYPES(bits, group)                                                                                             \
    {                                                                                                                  \
        [PM_SCALE_BF16] = affine_##bits##_##group##_bf16, [PM_SCALE_F16] = affine_##bits##_##group##_f16,              \
        [PM_SCALE_F32] = affine_##bits##_##group##_f32                                                                 \
    }
/* One function for a bit width, which finds the one specialised for group and type of scales. */
#define BITS(name, bits)                                                                                               \
    SPECIALISE_TYPES(bits, 32)                                                                                         \
    SPECIALISE_TYPES(bits, 64)                                                                                         \
    SPECIALISE_TYPES(bits, 128)                                                                                        \
    static void name(const pm_weight *w, int first, int last, const pm_columns *columns, const pm_results *results)    \
    {                                                                                                                  \
        static pm_multiply_fn *const table[PM_GROUPS][3] = {TYPES(bits, 32), TYPES(bits, 64), TYPES(bits, 128)};       \
        table[pm_group_index(w->group)][w->scale_type](w, first, last, columns, results);                              \
    }

BITS(affine_4, 4)
BITS(affine_8, 8)

/* ---- between matrices ---- */

static void swiglu(const float *gate, const float *up, int64_t n, float *y)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(pm_silu8(_mm256_loadu_ps(gate + i)), _mm256_loadu_ps(up + i)));
    for (; i < n; i++)
        y[i] = pm_silu(gate[i]) * up[i];
}

static void add_scaled(float *acc, const float *y, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        acc[i] = fmaf(factor, y[i], acc[i]);
}

const pm_matrix_kernels pm_matrix_avx2 = {
    .multiply = {[PM_FORMAT_F32] = pm_multiply_f32_avx2,
                 [PM_FORMAT_F16] = pm_multiply_f16_avx2,
                 [PM_FORMAT_BF16] = pm_multiply_bf16_avx2},
    .affine = {[2] = {pm_multiply_affine_scalar, PM_LAYOUT_NATURAL},
               [3] = {pm_multiply_affine_scalar, PM_LAYOUT_NATURAL},
               [4] = {affine_4, PM_LAYOUT_PLANES4},
               [5] = {pm_multiply_affine_scalar, PM_LAYOUT_NATURAL},
               [6] = {pm_multiply_affine_scalar, PM_LAYOUT_NATURAL},
               [8] = {affine_8, PM_LAYOUT_PLANES2}},
    .rms_norm = pm_rms_norm_avx2,
    .quantise = pm_quantise_avx2,
    .swiglu = swiglu,
    .add_scaled = add_scaled,
};

#endif
