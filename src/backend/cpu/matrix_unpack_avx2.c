/* Quantised matrices for AVX2 whose integers become words or bytes: 2, 3, 5 and 6 bits, e2m1, and 4 bits in the
 * precision `fast`.
 *
 * Integers become 16-bit words in natural order and meet x in multiplications of pairs, which cannot overflow
 * (matrix_avx2.c). One column: rows are streamed, and four groups reduced together. More columns: the words of 8 rows
 * are laid out with a row a lane, so that a group's sum needs no reduction, and serve all columns. In the precision
 * `fast` a panel has bytes, four of a row in a lane, for vpmaddubsw: twice as many products at once, which are added up
 * in 32 bits after every second, 2 * 2 * 63 * 127 < 2^15. The integers of e2m1 then have 12 added to be unsigned, and
 * 12 times the sum of x is taken away. */
#if defined(__x86_64__)

#include "backend/cpu/matrix_avx2.h"

enum {
    AHEAD = 4096, /* bytes that streaming prefetches ahead */
    ROWS = 8,     /* of a panel */
    DEPTH = 512,  /* elements of a row in a panel: four groups or more */
    COLUMNS = 64, /* that share the panels of 8 rows */
    TILE = 8,     /* most columns in registers */
};

/* What meets: 16-bit words; bytes; or bytes in planes (PM_LAYOUT_BYTES2), those of even elements and of odd ones. */
typedef enum products { WORDS, BYTES, PLANES } products;

/* What functions are specialised for. */
typedef struct shape {
    int bits;
    bool e2m1;
    products how;
} shape;

/* 16 integers as words. Up to 16 bytes are read, but none from `end` on (NULL: it is further away). */
INLINE __m256i unpack(shape s, const uint8_t *p, const uint8_t *end)
{
    __m128i bytes;
    if (!end || end - p >= 16) {
        bytes = _mm_loadu_si128((const __m128i *)p);
    } else {
        uint8_t copy[16] = {0};
        memcpy(copy, p, (size_t)(2 * s.bits));
        bytes = _mm_loadu_si128((const __m128i *)copy);
    }
    if (s.e2m1) {
        const __m128i integers = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
        __m128i codes = _mm_unpacklo_epi8(bytes, _mm_srli_epi16(bytes, 4));
        return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(integers, _mm_and_si128(codes, _mm_set1_epi8(15))));
    }
    /* The two bytes that hold an integer (it may end in the first), then its bits to the top, then down. */
#define FROM(i) (char)((i)*s.bits / 8), (char)((i)*s.bits / 8 + 1)
#define UP(i)   (short)(1 << (16 - s.bits - (i)*s.bits % 8))
    const __m256i spread =
        _mm256_setr_epi8(FROM(0), FROM(1), FROM(2), FROM(3), FROM(4), FROM(5), FROM(6), FROM(7), FROM(8), FROM(9),
                         FROM(10), FROM(11), FROM(12), FROM(13), FROM(14), FROM(15));
    const __m256i up = _mm256_setr_epi16(UP(0), UP(1), UP(2), UP(3), UP(4), UP(5), UP(6), UP(7), UP(8), UP(9), UP(10),
                                         UP(11), UP(12), UP(13), UP(14), UP(15));
#undef FROM
#undef UP
    __m256i words = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), spread);
    return _mm256_srli_epi16(_mm256_mullo_epi16(words, up), 16 - s.bits);
}

INLINE __m128 load_weight_scales(const pm_weight *w, shape s, size_t i, size_t n)
{
    return s.e2m1 ? pm_load_e2m1_scales4(w, i, n) : pm_load_scales4(w->scales, w->scale_type, i, n);
}

static const uint8_t *end_of(const pm_weight *w)
{
    return (const uint8_t *)w->data + (size_t)w->out * pm_weight_row_bytes(w);
}

static pm_quantised column_at(const pm_weight *w, const pm_columns *columns, int i)
{
    size_t row = (size_t)(columns->index ? columns->index[i] : i), in = (size_t)w->in;
    return pm_quantised_rows(&columns->quantised, row, in, in / (size_t)w->group);
}

/* ---- one row times one column ---- */

/* 16 integers of x as words, from element k on. */
INLINE __m256i load_x(shape s, const int16_t *x, size_t k)
{
    if (s.how == BYTES)
        return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)((const int8_t *)x + k)));
    return _mm256_loadu_si256((const __m256i *)(x + k));
}

/* Where the bytes of x for the even elements from the k-th on lie in planes; those for the odd ones are 64 behind. */
INLINE size_t plane_at(size_t k)
{
    return k / 128 * 128 + k % 128 / 2;
}

/* The low fields of 16 bytes of 4-bit integers in the lower half, the high ones in the upper. */
INLINE __m256i fields(const uint8_t *p)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes), _mm256_set1_epi8(15));
}

/* 4-bit integers, 64 (or 32: half), times x in planes. */
INLINE __m256i dot_planes(const uint8_t *w, const int8_t *x, bool half)
{
    const __m256i mask = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    if (half) {
        __m128i even = _mm_loadu_si128((const __m128i *)x), odd = _mm_loadu_si128((const __m128i *)(x + 64));
        return _mm256_madd_epi16(_mm256_maddubs_epi16(fields(w), _mm256_set_m128i(odd, even)), ones);
    }
    __m256i bytes = _mm256_loadu_si256((const __m256i *)w);
    __m256i low = _mm256_and_si256(bytes, mask), high = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask);
    __m256i sum = _mm256_add_epi16(_mm256_maddubs_epi16(low, _mm256_loadu_si256((const __m256i *)x)),
                                   _mm256_maddubs_epi16(high, _mm256_loadu_si256((const __m256i *)(x + 64))));
    return _mm256_madd_epi16(sum, ones);
}

/* The integer sums of n (1 to 4) groups, of x from element `from` (of four groups each) on, in order, then zeros. */
INLINE __m128i dot_groups(shape s, int group, const uint8_t *w, const uint8_t *end, const int16_t *x, size_t from,
                          int n)
{
    __m256i v[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_setzero_si256();
        for (int k = i * group; s.how == PLANES && i < n && k < (i + 1) * group; k += group < 64 ? 32 : 64)
            v[i] = _mm256_add_epi32(v[i],
                                    dot_planes(w + k / 2, (const int8_t *)x + from + plane_at((size_t)k), group < 64));
        for (int k = i * group; s.how != PLANES && i < n && k < (i + 1) * group; k += 16)
            v[i] = _mm256_add_epi32(
                v[i], _mm256_madd_epi16(unpack(s, w + k * s.bits / 8, end), load_x(s, x, from + (size_t)k)));
    }
    __m256i a = _mm256_add_epi32(_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
    __m256i b = _mm256_add_epi32(_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
    a = _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    return _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
}

/* Adds n (1 to 4) groups to the running sums; those without a group stay as they are, sign of zero included. */
INLINE __m128 add_groups(const pm_weight *w, shape s, int group, const uint8_t *p, const uint8_t *end, size_t at,
                         size_t g, int n, const pm_quantised *x, __m128 acc)
{
    const __m128i lanes = pm_first_lanes4((size_t)n);
    __m128 isum = _mm_cvtepi32_ps(dot_groups(s, group, p, end, x->q, g * (size_t)group, n));
    __m128 scale = n == 4 ? _mm_loadu_ps(x->scale + g) : _mm_maskload_ps(x->scale + g, lanes);
    __m128 more = _mm_fmadd_ps(isum, _mm_mul_ps(load_weight_scales(w, s, at + g, (size_t)n), scale), acc);
    if (!s.e2m1) {
        __m128 sum = n == 4 ? _mm_loadu_ps(x->sum + g) : _mm_maskload_ps(x->sum + g, lanes);
        more = _mm_fmadd_ps(pm_load_biases4(w, at + g, (size_t)n), sum, more);
    }
    return n == 4 ? more : _mm_blendv_ps(acc, more, _mm_castsi128_ps(lanes));
}

/* Rows [first, last) times column i; s and group are constants. */
INLINE void stream(const pm_weight *w, shape s, int group, int first, int last, const pm_columns *columns, int i,
                   const pm_results *results)
{
    size_t groups = (size_t)(w->in / group), bytes = (size_t)(group * s.bits / 8);
    const pm_quantised x = column_at(w, columns, i);
    const uint8_t *end = end_of(w);
    float *y = results->y + (size_t)i * (size_t)results->stride;
    const float *add = results->add ? results->add + (size_t)i * (size_t)results->stride : NULL;
    for (int row = first; row < last; row++) {
        size_t at = (size_t)row * groups, g = 0;
        const uint8_t *data = (const uint8_t *)w->data + at * bytes;
        __m128 acc = _mm_setzero_ps();
        for (; g + 4 <= groups && (size_t)(end - data) >= (g + 4) * bytes + 16; g += 4) {
            for (size_t k = 0; k < 4 * bytes; k += 64)
                _mm_prefetch((const char *)data + g * bytes + k + AHEAD, _MM_HINT_T0);
            acc = add_groups(w, s, group, data + g * bytes, NULL, at, g, 4, &x, acc);
        }
        for (; g < groups; g += 4)
            acc =
                add_groups(w, s, group, data + g * bytes, end, at, g, groups - g < 4 ? (int)(groups - g) : 4, &x, acc);
        acc = _mm_add_ps(acc, _mm_movehl_ps(acc, acc));
        float value = _mm_cvtss_f32(_mm_add_ss(acc, _mm_shuffle_ps(acc, acc, 1)));
        y[row] = add ? value + add[row] : value;
    }
}

/* ---- 8 rows times many columns ---- */

/* Elements [k, k + DEPTH), or fewer, of 8 rows. */
typedef struct panel {
    __m256i w[DEPTH / 2];                       /* two elements of every row; four bytes */
    __m256 scale[DEPTH / 16], bias[DEPTH / 16]; /* of a group of every row */
} panel;

/* 8 dwords of each of 8 rows: v[d] gets dword d of row r in lane r. */
INLINE void transpose(__m256i v[8])
{
    __m256i t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            v[i + 2 * j] = _mm256_unpacklo_epi64(t[i + j], t[i + 2 + j]);
            v[i + 2 * j + 1] = _mm256_unpackhi_epi64(t[i + j], t[i + 2 + j]);
        }
    for (int d = 0; d < 4; d++) {
        t[d] = _mm256_permute2x128_si256(v[d], v[d + 4], 0x20);
        t[d + 4] = _mm256_permute2x128_si256(v[d], v[d + 4], 0x31);
    }
    for (int d = 0; d < 8; d++)
        v[d] = t[d];
}

/* 16 and 16 words as bytes, unsigned. */
INLINE __m256i to_bytes(shape s, __m256i a, __m256i b)
{
    const __m256i zero = _mm256_set1_epi8(s.e2m1 ? PM_E2M1_ZERO : 0);
    return _mm256_add_epi8(_mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), _MM_SHUFFLE(3, 1, 2, 0)), zero);
}

/* Elements [k, k + n) of `rows` (up to 8) rows from `row` on; the other rows are zero. */
INLINE void fill(const pm_weight *w, shape s, int row, int rows, int k, int n, panel *out)
{
    size_t stride = pm_weight_row_bytes(w), groups = (size_t)(w->in / w->group), g = (size_t)(k / w->group);
    const uint8_t *data = (const uint8_t *)w->data + (size_t)row * stride + (size_t)(k * s.bits / 8), *end = end_of(w);
    const int step = s.how == WORDS ? 16 : 32;
    for (int i = 0; i < n; i += step, data += step * s.bits / 8) {
        __m256i v[ROWS];
        for (int r = 0; r < ROWS; r++) {
            const uint8_t *from = data + (size_t)r * stride;
            v[r] = _mm256_setzero_si256();
            if (r < rows)
                v[r] = s.how == PLANES ? fields(from) : unpack(s, from, end);
            if (s.how == BYTES)
                v[r] = to_bytes(s, v[r], r < rows && n - i > 16 ? unpack(s, from + 2 * s.bits, end) : v[r]);
        }
        transpose(v);
        for (int d = 0; d < 8; d++)
            out->w[i * 8 / step + (s.how == PLANES ? d / 4 + d % 4 * 2 : d)] = v[d]; /* planes in turn */
    }
    for (size_t j = 0, count = (size_t)(n / w->group); j < count; j += 4)
        for (int part = 0; part < (s.e2m1 ? 1 : 2); part++)
            for (int r = 0; r < ROWS; r += 4) {
                size_t left = count - j < 4 ? count - j : 4;
                __m128 v[4];
                for (int i = 0; i < 4; i++) {
                    size_t at = (size_t)(row + r + i) * groups + g + j;
                    v[i] = r + i >= rows ? _mm_setzero_ps()
                           : part        ? pm_load_biases4(w, at, left)
                                         : load_weight_scales(w, s, at, left);
                }
                _MM_TRANSPOSE4_PS(v[0], v[1], v[2], v[3]);
                for (size_t i = 0; i < left; i++)
                    _mm_storeu_ps((float *)((part ? out->bias : out->scale) + j + i) + r, v[i]);
            }
}

typedef void fill_fn(const pm_weight *w, int row, int rows, int k, int n, panel *out);

/* The running sums of a column for 8 rows. */
typedef struct running {
    __m256 acc[4];
} running;

/* Two neighbours of x, or four bytes, in every lane. */
INLINE __m256i broadcast(const void *x)
{
    int32_t v;
    memcpy(&v, x, sizeof(v));
    return _mm256_set1_epi32(v);
}

/* `groups` groups of a panel, from group g of a row on, times n columns (a constant, as is how). */
INLINE void add_panel(const panel *p, products how, int group, bool biased, size_t groups, size_t g,
                      const pm_quantised *columns, int n, running *out)
{
    const bool bytes = how != WORDS;
    const char *x[TILE]; /* 4 bytes meet a vector of the panel */
    const __m256i *w = p->w;
    for (int c = 0; c < n; c++)
        x[c] = (const char *)columns[c].q;
    for (size_t j = 0, k = g * (size_t)group; j < groups; j++) {
        __m256i isum[TILE];
        for (int c = 0; c < n; c++)
            isum[c] = bytes && !biased ? _mm256_set1_epi32(-columns[c].excess[g + j]) : _mm256_setzero_si256();
        for (const __m256i *end = w + group / (bytes ? 4 : 2); w < end; w += 2, k += bytes ? 8 : 4) {
            const size_t at = how == PLANES ? plane_at(k) : bytes ? k : 2 * k, next = how == PLANES ? 64 : 4;
            for (int c = 0; c < n; c++) {
                const __m256i a = broadcast(x[c] + at), b = broadcast(x[c] + at + next);
                if (bytes) {
                    __m256i sum = _mm256_add_epi16(_mm256_maddubs_epi16(w[0], a), _mm256_maddubs_epi16(w[1], b));
                    isum[c] = _mm256_add_epi32(isum[c], _mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
                    continue;
                }
                isum[c] = _mm256_add_epi32(isum[c], _mm256_madd_epi16(w[0], a));
                isum[c] = _mm256_add_epi32(isum[c], _mm256_madd_epi16(w[1], b));
            }
        }
        for (int c = 0; c < n; c++) {
            __m256 *acc = &out[c].acc[j % 4];
            __m256 factor = _mm256_mul_ps(p->scale[j], _mm256_set1_ps(columns[c].scale[g + j]));
            *acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum[c]), factor, *acc);
            if (biased)
                *acc = _mm256_fmadd_ps(p->bias[j], _mm256_set1_ps(columns[c].sum[g + j]), *acc);
        }
    }
}

typedef void add_panel_fn(const panel *p, int group, bool biased, size_t groups, size_t g, const pm_quantised *columns,
                          running *out);

#define ADD_PANEL(n, how)                                                                                              \
    NOINLINE void add_##n##_##how(const panel *p, int group, bool biased, size_t groups, size_t g,                     \
                                  const pm_quantised *columns, running *out)                                           \
    {                                                                                                                  \
        add_panel(p, how, group, biased, groups, g, columns, n, out);                                                  \
    }
#define ADD_PANELS(n)                                                                                                  \
    ADD_PANEL(n, WORDS)                                                                                                \
    ADD_PANEL(n, BYTES)                                                                                                \
    ADD_PANEL(n, PLANES)

ADD_PANELS(1)
ADD_PANELS(2)
ADD_PANELS(4)
ADD_PANELS(8)

#define TILE_OF(n)                                                                                                     \
    {                                                                                                                  \
        n,                                                                                                             \
        {                                                                                                              \
            [WORDS] = add_##n##_WORDS, [BYTES] = add_##n##_BYTES, [PLANES] = add_##n##_PLANES                          \
        }                                                                                                              \
    }
static const struct {
    int columns;
    add_panel_fn *add[3]; /* of `products` */
} tiles[] = {TILE_OF(8), TILE_OF(4), TILE_OF(2), TILE_OF(1)};

static void put_rows(const running *sums, int i, int row, int rows, const pm_results *results)
{
    float y[ROWS];
    size_t at = (size_t)i * (size_t)results->stride + (size_t)row;
    _mm256_storeu_ps(
        y, _mm256_add_ps(_mm256_add_ps(sums->acc[0], sums->acc[2]), _mm256_add_ps(sums->acc[1], sums->acc[3])));
    for (int r = 0; r < rows; r++)
        results->y[at + (size_t)r] = results->add ? y[r] + results->add[at + (size_t)r] : y[r];
}

typedef void stream_fn(const pm_weight *w, int first, int last, const pm_columns *columns, int i,
                       const pm_results *results);

/* What multiplies matrices of a shape. */
typedef struct functions {
    stream_fn *stream;
    fill_fn *fill;
    products how;
} functions;

/* `rows` (up to 8) rows times n (up to COLUMNS) columns from column `from` on. */
NOINLINE void multiply_panels(const functions *f, const pm_weight *w, int row, int rows, const pm_columns *columns,
                              int from, int n, const pm_results *results)
{
    panel p;
    running sums[COLUMNS];
    pm_quantised x[COLUMNS];
    memset(sums, 0, (size_t)n * sizeof(*sums));
    for (int c = 0; c < n; c++)
        x[c] = column_at(w, columns, from + c);
    for (int k = 0; k < w->in; k += DEPTH) {
        int depth = w->in - k < DEPTH ? w->in - k : DEPTH;
        f->fill(w, row, rows, k, depth, &p);
        for (int c = 0, i = 0; c < n; c += tiles[i].columns) {
            while (tiles[i].columns > n - c)
                i++;
            tiles[i].add[f->how](&p, w->group, w->format == PM_FORMAT_AFFINE, (size_t)(depth / w->group),
                                 (size_t)(k / w->group), x + c, sums + c);
        }
    }
    for (int c = 0; c < n; c++)
        put_rows(&sums[c], from + c, row, rows, results);
}

/* ---- all rows and columns ---- */

static void multiply(const functions *f, const pm_weight *w, int first, int last, const pm_columns *columns,
                     const pm_results *results)
{
    if (columns->n == 1) {
        f->stream(w, first, last, columns, 0, results);
        return;
    }
    for (int from = 0; from < columns->n; from += COLUMNS)
        for (int row = first; row < last; row += ROWS)
            multiply_panels(f, w, row, last - row < ROWS ? last - row : ROWS, columns, from,
                            columns->n - from < COLUMNS ? columns->n - from : COLUMNS, results);
}

#define STREAM(name, group, ...)                                                                                       \
    NOINLINE void stream_##name##_##group(const pm_weight *w, int first, int last, const pm_columns *columns, int i,   \
                                          const pm_results *results)                                                   \
    {                                                                                                                  \
        stream(w, (shape){__VA_ARGS__}, group, first, last, columns, i, results);                                      \
    }
#define FILL(name, ...)                                                                                                \
    NOINLINE void fill_##name(const pm_weight *w, int row, int rows, int k, int n, panel *out)                         \
    {                                                                                                                  \
        fill(w, (shape){__VA_ARGS__}, row, rows, k, n, out);                                                           \
    }
#define AFFINE(name, bits, how)                                                                                        \
    STREAM(name, 32, bits, false, how)                                                                                 \
    STREAM(name, 64, bits, false, how)                                                                                 \
    STREAM(name, 128, bits, false, how)                                                                                \
    FILL(name, bits, false, how)                                                                                       \
    void pm_multiply_##name##_avx2(const pm_weight *w, int first, int last, const pm_columns *columns,                 \
                                   const pm_results *results)                                                          \
    {                                                                                                                  \
        static const functions of[] = {{stream_##name##_32, fill_##name, how},                                         \
                                       {stream_##name##_64, fill_##name, how},                                         \
                                       {stream_##name##_128, fill_##name, how}};                                       \
        multiply(&of[w->group / 64], w, first, last, columns, results);                                                \
    }
#define E2M1(name, how)                                                                                                \
    STREAM(name, 16, 4, true, how)                                                                                     \
    STREAM(name, 32, 4, true, how)                                                                                     \
    FILL(name, 4, true, how)                                                                                           \
    void pm_multiply_##name##_avx2(const pm_weight *w, int first, int last, const pm_columns *columns,                 \
                                   const pm_results *results)                                                          \
    {                                                                                                                  \
        static const functions of[] = {{stream_##name##_16, fill_##name, how},                                         \
                                       {stream_##name##_32, fill_##name, how}};                                        \
        multiply(&of[w->group / 32], w, first, last, columns, results);                                                \
    }

AFFINE(2bit, 2, WORDS)
AFFINE(3bit, 3, WORDS)
AFFINE(5bit, 5, WORDS)
AFFINE(6bit, 6, WORDS)
E2M1(e2m1, WORDS)
AFFINE(2bit_bytes, 2, BYTES)
AFFINE(3bit_bytes, 3, BYTES)
AFFINE(4bit_bytes, 4, PLANES)
AFFINE(5bit_bytes, 5, BYTES)
AFFINE(6bit_bytes, 6, BYTES)
E2M1(e2m1_bytes, BYTES)

#endif
