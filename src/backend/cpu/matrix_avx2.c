/* Affine matrices of 4 and 8 bits for AVX2, and the table of kernels of that level. Those of 4 bits have kernels of
 * their own in the precision `fast` (matrix_unpack_avx2.c).
 *
 * A 256-bit load of packed weights is 16 words of 4 or 2 fields; field i of every word meets plane i of x (pm_layout)
 * in one multiplication of 16-bit pairs, which cannot overflow: 2 * 255 * 32639 < 2^31, and neither can a group's sum.
 * Unlike vpmaddubsw it does not saturate.
 *
 * One column: rows are streamed one at a time, since memory likes that best; four groups are reduced together into the
 * four lanes that are the four running sums. More columns: tiles of 8 or 16 rows, one a lane, so that a group's sum
 * needs no reduction at all, and unpacked weights serve up to 4 columns. */
#if defined(__x86_64__)

#include "backend/cpu/matrix_avx2.h"

enum {
    AHEAD = 4096, /* bytes that streaming prefetches ahead */
    COLUMNS = 4   /* most of a tile */
};

/* What the functions below are specialised for. */
typedef struct shape {
    int bits, group;
} shape;

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

/* Half a block, the last group of an odd number of small ones: 8 words. */
INLINE __m256i dot_half_block(int bits, const uint8_t *w, const int16_t *x)
{
    __m256i words = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)w));
    __m128i sum = _mm_setzero_si128();
    for (int i = 0; i < 16 / bits; i++)
        sum = _mm_add_epi32(sum, _mm_madd_epi16(_mm256_castsi256_si128(field(words, bits, i)),
                                                _mm_loadu_si128((const __m128i *)(x + 16 * i))));
    return _mm256_inserti128_si256(_mm256_setzero_si256(), sum, 0);
}

/* The integer sums of n (1 to 4) groups, in order, then zeros. */
INLINE __m128i dot_groups(shape s, const uint8_t *w, const int16_t *x, size_t n)
{
    const __m256i zero = _mm256_setzero_si256();
    int bytes = s.group * s.bits / 8;
    if (bytes == 16) { /* two groups in a block, one in each half */
        __m256i a = n >= 2 ? dot_block(s.bits, w, x) : dot_half_block(s.bits, w, x);
        __m256i b = n >= 4 ? dot_block(s.bits, w + 32, x + 64) : n == 3 ? dot_half_block(s.bits, w + 32, x + 64) : zero;
        __m256i sums = _mm256_hadd_epi32(a, b); /* 0 0 2 2 | 1 1 3 3 */
        __m128i both = _mm_hadd_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1)); /* 0 2 1 3 */
        return _mm_shuffle_epi32(both, _MM_SHUFFLE(3, 1, 2, 0));
    }
    __m256i a = dot_group(s, w, x), b = n > 1 ? dot_group(s, w + bytes, x + s.group) : zero;
    __m256i c = n > 2 ? dot_group(s, w + 2 * bytes, x + 2 * s.group) : zero;
    __m256i d = n > 3 ? dot_group(s, w + 3 * bytes, x + 3 * s.group) : zero;
    a = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    c = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    a = _mm256_add_epi32(_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c));
    return _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
}

/* One row times one column. */
INLINE float row_column(const pm_weight *w, shape s, size_t row, const int16_t *x, const float *scale, const float *sum)
{
    size_t groups = (size_t)w->in / (size_t)s.group, at = row * groups, g = 0;
    size_t bytes = (size_t)(s.group * s.bits / 8);
    const uint8_t *data = (const uint8_t *)w->data + at * bytes;
    __m128 acc = _mm_setzero_ps();
    for (; g + 4 <= groups; g += 4) {
        const uint8_t *p = data + g * bytes;
        for (size_t i = 0; i < 4 * bytes; i += 64)
            _mm_prefetch((const char *)p + i + AHEAD, _MM_HINT_T0);
        __m128 isum = _mm_cvtepi32_ps(dot_groups(s, p, x + g * (size_t)s.group, 4));
        __m128 factor = _mm_mul_ps(pm_load_scales4(w->scales, w->scale_type, at + g, 4), _mm_loadu_ps(scale + g));
        acc = _mm_fmadd_ps(isum, factor, acc);
        acc = _mm_fmadd_ps(pm_load_biases4(w, at + g, 4), _mm_loadu_ps(sum + g), acc);
    }
    if (g < groups) { /* the sums without a group stay as they are, sign of zero included */
        size_t n = groups - g;
        __m128i lanes = pm_first_lanes4(n);
        __m128 isum = _mm_cvtepi32_ps(dot_groups(s, data + g * bytes, x + g * (size_t)s.group, n));
        __m128 factor =
            _mm_mul_ps(pm_load_scales4(w->scales, w->scale_type, at + g, n), _mm_maskload_ps(scale + g, lanes));
        __m128 more = _mm_fmadd_ps(isum, factor, acc);
        more = _mm_fmadd_ps(pm_load_biases4(w, at + g, n), _mm_maskload_ps(sum + g, lanes), more);
        acc = _mm_blendv_ps(acc, more, _mm_castsi128_ps(lanes));
    }
    acc = _mm_add_ps(acc, _mm_movehl_ps(acc, acc));
    return _mm_cvtss_f32(_mm_add_ss(acc, _mm_shuffle_ps(acc, acc, 1)));
}

/* ---- tiles ---- */

/* Four dwords of each of 8 rows, given as pairs of rows r and r + 4: out[d] has dword d of row r in lane r. */
INLINE void transpose(const __m256i rows[4], __m256i out[4])
{
    __m256i low = _mm256_unpacklo_epi32(rows[0], rows[1]), low2 = _mm256_unpacklo_epi32(rows[2], rows[3]);
    __m256i high = _mm256_unpackhi_epi32(rows[0], rows[1]), high2 = _mm256_unpackhi_epi32(rows[2], rows[3]);
    out[0] = _mm256_unpacklo_epi64(low, low2);
    out[1] = _mm256_unpackhi_epi64(low, low2);
    out[2] = _mm256_unpacklo_epi64(high, high2);
    out[3] = _mm256_unpackhi_epi64(high, high2);
}

/* 16 bytes of each of 8 rows. */
INLINE void load_dwords(const uint8_t *p, size_t stride, __m256i out[4])
{
    __m256i rows[4];
    for (size_t i = 0; i < 4; i++)
        rows[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(p + i * stride))),
                                          _mm_loadu_si128((const __m128i *)(p + (i + 4) * stride)), 1);
    transpose(rows, out);
}

/* Scales (or biases) of n groups from the i-th of 8 rows: out[g] has row r in lane r. */
INLINE void gather_scales(const void *scales, pm_scale_type type, size_t i, size_t groups, size_t n, __m256 out[4])
{
    __m256i rows[4], columns[4];
    for (size_t r = 0; r < 4; r++)
        rows[r] = _mm256_castps_si256(
            _mm256_insertf128_ps(_mm256_castps128_ps256(pm_load_scales4(scales, type, i + r * groups, n)),
                                 pm_load_scales4(scales, type, i + (r + 4) * groups, n), 1));
    transpose(rows, columns);
    for (int g = 0; g < 4; g++)
        out[g] = _mm256_castsi256_ps(columns[g]);
}

NOINLINE void tile_scales(const void *scales, pm_scale_type type, size_t i, size_t groups, size_t n, __m256 out[4])
{
    if (type == PM_SCALE_BF16 && n == 4)
        gather_scales(scales, PM_SCALE_BF16, i, groups, 4, out);
    else if (type == PM_SCALE_F16 && n == 4)
        gather_scales(scales, PM_SCALE_F16, i, groups, 4, out);
    else
        gather_scales(scales, type, i, groups, n, out);
}

/* Two neighbours of x in every lane. */
INLINE __m256i pair(const int16_t *x)
{
    int32_t v;
    memcpy(&v, x, sizeof(v));
    return _mm256_set1_epi32(v);
}

/* Adds 16 bytes of each of 8 * v rows times n columns. The bytes are words [word, word + 8) of a block. */
INLINE void add_chunk(int bits, const uint8_t *w, size_t stride, const int16_t *const *x, size_t block, int word, int v,
                      int n, __m256i isum[][COLUMNS])
{
    __m256i dwords[2][4];
    for (int i = 0; i < v; i++)
        load_dwords(w + (size_t)(8 * i) * stride, stride, dwords[i]);
    for (int d = 0; d < 4; d++)
        for (int p = 0; p < 16 / bits; p++) {
            __m256i weights[2];
            for (int i = 0; i < v; i++)
                weights[i] = field(dwords[i][d], bits, p);
            for (int c = 0; c < n; c++) {
                __m256i two = pair(x[c] + block + (word + 16 * p + 2 * d));
                for (int i = 0; i < v; i++) {
                    isum[i][c] = _mm256_add_epi32(isum[i][c], _mm256_madd_epi16(weights[i], two));
                    /* Otherwise compilers add the products in trees, for which there are not registers enough. */
                    __asm__("" : "+x"(isum[i][c]));
                }
            }
        }
}

/* What a tile multiplies: the place of the first row's weights, bytes from row to row, the columns. */
typedef struct tile_input {
    const uint8_t *data;
    size_t stride;
    const int16_t *x[COLUMNS];
} tile_input;

/* Integer sums of up to four groups of 8 * v rows, v <= 2, times up to COLUMNS columns. */
typedef struct tile_sums {
    __m256i group[4][2][COLUMNS];
} tile_sums;

/* The sums of groups [g, g + left) of 8 * v rows times n columns (constants). A group of 16 bytes is half a block. */
INLINE void group_sums(shape s, const tile_input *in, size_t g, size_t left, int v, int n, tile_sums *out)
{
    const int block = 256 / s.bits, bytes = s.group * s.bits / 8;
    const size_t stride = in->stride;
    const int16_t *x[COLUMNS];
    for (int c = 0; c < n; c++)
        x[c] = in->x[c];
    for (size_t last = g + left, j = 0; g < last; g++, j++) {
        const uint8_t *p = in->data + g * (size_t)bytes;
        size_t first = g * (size_t)s.group;
        __m256i isum[2][COLUMNS];
        for (int i = 0; i < v; i++)
            for (int c = 0; c < n; c++)
                isum[i][c] = _mm256_setzero_si256();
        if (s.group >= block) {
            for (int k = 0; k < s.group; k += block) {
                add_chunk(s.bits, p + k * s.bits / 8, stride, x, first + (size_t)k, 0, v, n, isum);
                add_chunk(s.bits, p + k * s.bits / 8 + 16, stride, x, first + (size_t)k, 8, v, n, isum);
            }
        } else {
            add_chunk(s.bits, p, stride, x, first - g % 2 * (size_t)(s.group - 8), 0, v, n, isum);
        }
        for (int i = 0; i < v; i++)
            for (int c = 0; c < n; c++)
                out->group[j][i][c] = isum[i][c];
    }
}

typedef void group_sums_fn(const tile_input *in, size_t g, size_t left, tile_sums *out);

/* 8 * v rows times n columns (constants), starting with column `from`. */
INLINE void tile(const pm_weight *w, group_sums_fn *sums, size_t row, int v, const pm_columns *columns, int from, int n,
                 const pm_results *results)
{
    size_t in = (size_t)w->in, groups = in / (size_t)w->group, stride = in * (size_t)w->bits / 8;
    tile_input input = {.data = (const uint8_t *)w->data + row * stride, .stride = stride};
    const float *x_scale[COLUMNS], *x_sum[COLUMNS];
    __m256 acc[4][2][COLUMNS];
    for (int c = 0; c < n; c++) {
        size_t i = (size_t)(columns->index ? columns->index[from + c] : from + c);
        pm_quantised x = pm_quantised_rows(&columns->quantised, i, in, groups);
        input.x[c] = x.q;
        x_scale[c] = x.scale;
        x_sum[c] = x.sum;
        for (int k = 0; k < 4 * v; k++)
            acc[k % 4][k / 4][c] = _mm256_setzero_ps();
    }
    for (size_t g = 0; g < groups; g += 4) {
        size_t left = groups - g < 4 ? groups - g : 4;
        tile_sums isum;
        __m256 scale[2][4], bias[2][4];
        sums(&input, g, left, &isum);
        for (int i = 0; i < v; i++) {
            size_t at = (row + 8 * (size_t)i) * groups + g;
            tile_scales(w->scales, w->scale_type, at, groups, left, scale[i]);
            if (w->biases)
                tile_scales(w->biases, w->scale_type, at, groups, left, bias[i]);
            for (int j = 0; !w->biases && j < 4; j++)
                bias[i][j] = _mm256_mul_ps(scale[i][j], _mm256_set1_ps(pm_symmetric_bias(w)));
        }
        for (size_t j = 0; j < left; j++)
            for (int i = 0; i < v; i++)
                for (int c = 0; c < n; c++) {
                    __m256 factor = _mm256_mul_ps(scale[i][j], _mm256_set1_ps(x_scale[c][g + j]));
                    __m256 sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum.group[j][i][c]), factor, acc[j][i][c]);
                    acc[j][i][c] = _mm256_fmadd_ps(bias[i][j], _mm256_set1_ps(x_sum[c][g + j]), sum);
                }
    }
    for (int i = 0; i < v; i++)
        for (int c = 0; c < n; c++) {
            size_t at = (size_t)(from + c) * (size_t)results->stride + row + 8 * (size_t)i;
            __m256 y =
                _mm256_add_ps(_mm256_add_ps(acc[0][i][c], acc[2][i][c]), _mm256_add_ps(acc[1][i][c], acc[3][i][c]));
            if (results->add)
                y = _mm256_add_ps(y, _mm256_loadu_ps(results->add + at));
            _mm256_storeu_ps(results->y + at, y);
        }
}

typedef void tile_fn(const pm_weight *w, group_sums_fn *sums, size_t row, const pm_columns *columns, int from,
                     const pm_results *results);

#define TILE(v, n)                                                                                                     \
    NOINLINE void tile_##v##_##n(const pm_weight *w, group_sums_fn *sums, size_t row, const pm_columns *columns,       \
                                 int from, const pm_results *results)                                                  \
    {                                                                                                                  \
        tile(w, sums, row, v, columns, from, n, results);                                                              \
    }

TILE(1, 2)
TILE(1, 4)
TILE(2, 2)
TILE(2, 4)

static tile_fn *const tiles[2][2] = {{tile_1_2, tile_1_4}, {tile_2_2, tile_2_4}}; /* [v - 1][n / 4] */

/* ---- all rows and columns ---- */

/* Rows [first, last) times column i. */
INLINE void stream(const pm_weight *w, shape s, int first, int last, const pm_columns *columns, int i,
                   const pm_results *results)
{
    size_t in = (size_t)w->in, groups = in / (size_t)s.group;
    const pm_quantised x =
        pm_quantised_rows(&columns->quantised, (size_t)(columns->index ? columns->index[i] : i), in, groups);
    float *y = results->y + (size_t)i * (size_t)results->stride;
    const float *add = results->add ? results->add + (size_t)i * (size_t)results->stride : NULL;
    for (int row = first; row < last; row++) {
        float value = row_column(w, s, (size_t)row, x.q, x.scale, x.sum);
        y[row] = add ? value + add[row] : value;
    }
}

/* The functions above for one width of integers and of groups. */
typedef struct affine_functions {
    void (*stream)(const pm_weight *w, int first, int last, const pm_columns *columns, int i,
                   const pm_results *results);
    group_sums_fn *sums[2][2]; /* as tiles */
} affine_functions;

#define SUMS(bits, group, v, n)                                                                                        \
    NOINLINE void sums_##bits##_##group##_##v##_##n(const tile_input *in, size_t g, size_t left, tile_sums *out)       \
    {                                                                                                                  \
        group_sums((shape){bits, group}, in, g, left, v, n, out);                                                      \
    }
#define FUNCTIONS(bits, group)                                                                                         \
    NOINLINE void stream_##bits##_##group(const pm_weight *w, int first, int last, const pm_columns *columns, int i,   \
                                          const pm_results *results)                                                   \
    {                                                                                                                  \
        stream(w, (shape){bits, group}, first, last, columns, i, results);                                             \
    }                                                                                                                  \
    SUMS(bits, group, 1, 2)                                                                                            \
    SUMS(bits, group, 1, 4)                                                                                            \
    SUMS(bits, group, 2, 2)                                                                                            \
    SUMS(bits, group, 2, 4)                                                                                            \
    static const affine_functions functions_##bits##_##group = {                                                       \
        stream_##bits##_##group,                                                                                       \
        {{sums_##bits##_##group##_1_2, sums_##bits##_##group##_1_4},                                                   \
         {sums_##bits##_##group##_2_2, sums_##bits##_##group##_2_4}}};

FUNCTIONS(4, 32)
FUNCTIONS(4, 64)
FUNCTIONS(4, 128)
FUNCTIONS(8, 32)
FUNCTIONS(8, 64)
FUNCTIONS(8, 128)

static void multiply(const affine_functions *f, const pm_weight *w, int first, int last, const pm_columns *columns,
                     const pm_results *results)
{
    int row = first, n = columns->n;
    while (n > 1 && last - row >= 8) {
        int v = last - row >= 16 ? 2 : 1, i = 0;
        for (; i + 4 <= n; i += 4)
            tiles[v - 1][1](w, f->sums[v - 1][1], (size_t)row, columns, i, results);
        for (; i + 2 <= n; i += 2)
            tiles[v - 1][0](w, f->sums[v - 1][0], (size_t)row, columns, i, results);
        if (i < n)
            f->stream(w, row, row + 8 * v, columns, i, results);
        row += 8 * v;
    }
    for (int i = 0; row < last && i < n; i++)
        f->stream(w, row, last, columns, i, results);
}

static void affine_4(const pm_weight *w, int first, int last, const pm_columns *columns, const pm_results *results)
{
    static const affine_functions *const table[] = {&functions_4_32, &functions_4_64, &functions_4_128};
    multiply(table[pm_group_index(w->group) - 1], w, first, last, columns, results);
}

static void affine_8(const pm_weight *w, int first, int last, const pm_columns *columns, const pm_results *results)
{
    static const affine_functions *const table[] = {&functions_8_32, &functions_8_64, &functions_8_128};
    multiply(table[pm_group_index(w->group) - 1], w, first, last, columns, results);
}

const pm_matrix_kernels pm_matrix_avx2 = {
    .multiply = {[PM_FORMAT_F32] = pm_multiply_f32_lanes,
                 [PM_FORMAT_F16] = pm_multiply_f16_lanes,
                 [PM_FORMAT_BF16] = pm_multiply_bf16_lanes,
                 [PM_FORMAT_MXFP8] = pm_multiply_mxfp8_lanes,
                 [PM_FORMAT_FP8] = pm_multiply_fp8_lanes},
    .quantised = {[PM_PRECISION_EXACT] = {.affine = {[2] = {pm_multiply_2bit_avx2, PM_LAYOUT_NATURAL},
                                                     [3] = {pm_multiply_3bit_avx2, PM_LAYOUT_NATURAL},
                                                     [4] = {affine_4, PM_LAYOUT_PLANES4},
                                                     [5] = {pm_multiply_5bit_avx2, PM_LAYOUT_NATURAL},
                                                     [6] = {pm_multiply_6bit_avx2, PM_LAYOUT_NATURAL},
                                                     [8] = {affine_8, PM_LAYOUT_PLANES2}},
                                          .e2m1 = {pm_multiply_e2m1_avx2, PM_LAYOUT_NATURAL}},
                  [PM_PRECISION_FAST] = {.affine = {[2] = {pm_multiply_2bit_bytes_avx2, PM_LAYOUT_BYTES},
                                                    [3] = {pm_multiply_3bit_bytes_avx2, PM_LAYOUT_BYTES},
                                                    [4] = {pm_multiply_4bit_bytes_avx2, PM_LAYOUT_BYTES2},
                                                    [5] = {pm_multiply_5bit_bytes_avx2, PM_LAYOUT_BYTES},
                                                    [6] = {pm_multiply_6bit_bytes_avx2, PM_LAYOUT_BYTES},
                                                    [8] = {affine_8, PM_LAYOUT_PLANES2}},
                                         .e2m1 = {pm_multiply_e2m1_bytes_avx2, PM_LAYOUT_BYTES}}},
    .rms_norm = pm_rms_norm_lanes,
    .quantise = pm_quantise_avx2,
    .swiglu = pm_swiglu_lanes,
    .dequantise = pm_dequantise_lanes,
    .add_scaled = pm_add_scaled_lanes,
};

#endif
