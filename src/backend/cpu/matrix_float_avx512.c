/* Float matrices for AVX-512: the 16 partial sums of a (row, column) are one vector.
 *
 * One column: four rows side by side hide the latency of fma. More columns: the weights of 8 rows become floats once,
 * and serve all columns three at a time, while the 24 vectors of sums stay in registers. */
#if defined(__x86_64__)

#include "backend/cpu/math_lanes.h"
#include "backend/cpu/matrix.h"

#define INLINE static inline __attribute__((always_inline))

/* What is specialised is compiled by itself, so that it has all the registers. */
#define NOINLINE static __attribute__((noinline))

enum {
    ROWS = 4,     /* streamed side by side */
    AHEAD = 4096, /* bytes that streaming prefetches ahead */
    MANY = 65536, /* bytes of rows that are worth several stretches */
    PANEL = 8,    /* rows of a panel */
    PANELS = 4,   /* that meet a piece of the columns in turn */
    DEPTH = 512,  /* elements of a row in a panel */
    TILE = 3,     /* columns in registers */
    COLUMNS = 96, /* that share a panel: their sums stay in the second cache */
};

INLINE size_t element_size(pm_format format)
{
    return format == PM_FORMAT_F32 ? 4 : format == PM_FORMAT_F16 || format == PM_FORMAT_BF16 ? 2 : 1;
}

/* The first n of 16 lanes. */
INLINE __mmask16 lanes(size_t n)
{
    return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
}

/* 16 weights of e4m3 / 256: as f16 their bits are shifted, but for NaN. */
INLINE __m512 from_e4m3(__m128i codes)
{
    const __m256i magnitude = _mm256_set1_epi16(0x3f80);
    __m256i half =
        _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7), _mm256_set1_epi16((short)0xbf80));
    __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(half, magnitude), magnitude);
    return _mm512_cvtph_ps(_mm256_or_si256(half, nan));
}

/* The weights in `mask` from element k of a row on, those of FP8 without their factor; zeros in the other lanes, of
 * which nothing is read. */
INLINE __m512 load_weights(const char *row, pm_format format, size_t k, __mmask16 mask, __m512 factor)
{
    const char *p = row + k * element_size(format);
    if (format == PM_FORMAT_F32)
        return _mm512_maskz_loadu_ps(mask, p);
    if (element_size(format) == 1) {
        __m512 weights = from_e4m3(_mm_maskz_loadu_epi8(mask, p));
        return format == PM_FORMAT_FP8 ? weights : _mm512_mul_ps(weights, factor);
    }
    __m256i half = _mm256_maskz_loadu_epi16(mask, p);
    if (format == PM_FORMAT_F16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* 256 times the scale of `row` for the weights from k on. */
INLINE __m512 load_factor(const pm_weight *w, pm_format format, size_t row, size_t k)
{
    if (format == PM_FORMAT_MXFP8) {
        size_t groups = (size_t)w->in / 32;
        return _mm512_set1_ps(256 * pm_from_e8m0(((const uint8_t *)w->scales)[row * groups + k / 32]));
    }
    if (format == PM_FORMAT_FP8) {
        size_t width = (size_t)w->block[1], blocks = ((size_t)w->in + width - 1) / width;
        float scale;
        memcpy(&scale,
               (const char *)w->scales +
                   4 * ((row + (size_t)w->block_first) / (size_t)w->block[0] * blocks + k / width),
               sizeof(scale));
        return _mm512_set1_ps(256 * scale);
    }
    return _mm512_setzero_ps(); /* not used */
}

INLINE float reduce16(__m512 p)
{
    return pm_reduce16_lanes(_mm512_castps512_ps256(p), _mm512_extractf32x8_ps(p, 1));
}

/* ---- one column ---- */

/* `rows` rows of w, a constant, the first of them `row`, each `apart` behind the one before, times a column. Memory is
 * waited for, and so what lies `ahead` bytes behind is fetched meanwhile; into the second cache, since the first holds
 * x. */
INLINE void stream_rows(const pm_weight *w, pm_format format, size_t row, size_t apart, size_t ahead, int rows,
                        const float *x, float *y, const float *add)
{
    const size_t size = element_size(format), step = format == PM_FORMAT_MXFP8 ? 32 : 64 / size;
    const size_t in = (size_t)w->in, stride = apart * in * size;
    size_t width = format == PM_FORMAT_MXFP8 ? 32 : format == PM_FORMAT_FP8 ? (size_t)w->block[1] : in;
    const char *data = (const char *)w->data + row * in * size;
    __m512 acc[ROWS], factor[ROWS], whole[ROWS]; /* of FP8: acc of a block, whole of those before */
    for (int r = 0; r < rows; r++)
        acc[r] = whole[r] = _mm512_setzero_ps();
    for (size_t first = 0; first < in; first += width) { /* of one scale */
        size_t end = in - first < width ? in : first + width, k = first;
        for (int r = 0; r < rows; r++)
            factor[r] = load_factor(w, format, row + (size_t)r * apart, first);
        for (; k + step <= end; k += step)
            for (int r = 0; r < rows; r++) {
                const char *p = data + (size_t)r * stride;
                _mm_prefetch(p + k * size + ahead, _MM_HINT_T1);
                for (size_t i = k; i < k + step; i += 16)
                    acc[r] =
                        _mm512_fmadd_ps(load_weights(p, format, i, 0xffff, factor[r]), _mm512_loadu_ps(x + i), acc[r]);
            }
        for (; k < end; k += 16) {
            __mmask16 mask = lanes(end - k);
            for (int r = 0; r < rows; r++)
                acc[r] = _mm512_mask3_fmadd_ps(load_weights(data + (size_t)r * stride, format, k, mask, factor[r]),
                                               _mm512_maskz_loadu_ps(mask, x + k), acc[r], mask);
        }
        for (int r = 0; format == PM_FORMAT_FP8 && r < rows; r++) {
            whole[r] = _mm512_fmadd_ps(factor[r], acc[r], whole[r]);
            acc[r] = _mm512_setzero_ps();
        }
    }
    for (int r = 0; r < rows; r++, row += apart) {
        float sum = reduce16(format == PM_FORMAT_FP8 ? whole[r] : acc[r]);
        y[row] = add ? sum + add[row] : sum;
    }
}

/* ---- one column, e4m3 ---- */

enum { SPAN = 512 /* elements of a row whose factors are laid out at once, one for 32 */ };

/* Where to_halves keeps what it makes. */
typedef struct halves {
    __m512i v[2];
} halves;

/* 64 weights of e4m3 / 256 as f16, whose bits are those of the code, shifted: elements 0 .. 15, 32 .. 47, 16 .. 31 and
 * 48 .. 63. They go through memory, since a conversion from there needs no shuffle. Codes that are NaN become numbers,
 * and a byte of *worst 0xfe. */
INLINE void to_halves(const char *p, __m512i *worst, halves *out)
{
    const __m512i even = _mm512_cvtepu8_epi16(
        _mm256_setr_epi64x(0x0706050403020100, 0x0f0e0d0c0b0a0908, 0x2726252423222120, 0x2f2e2d2c2b2a2928));
    const __m512i order = _mm512_or_si512(even, _mm512_slli_epi16(_mm512_add_epi16(even, _mm512_set1_epi16(16)), 8));
    const __m512i keep = _mm512_set1_epi16((short)0xbf80);
    __m512i codes = _mm512_loadu_si512(p);
    __asm__("" : "+v"(codes)); /* or compilers load it twice, each across two lines of the cache */
    const __m512i pairs = _mm512_permutexvar_epi8(order, codes);
    *worst = _mm512_max_epu8(*worst, _mm512_add_epi8(codes, codes));
    out->v[0] = _mm512_and_si512(_mm512_maddubs_epi16(_mm512_set1_epi16(128), pairs), keep); /* the even bytes << 7 */
    out->v[1] = _mm512_and_si512(_mm512_srai_epi16(pairs, 1), keep);
    __asm__("" : "+m"(*out));
}

/* load_factor for the 16 pieces of 32 weights from k on, or those that there are, of a row of MXFP8 with these scales.
 */
INLINE __m512 load_factors(size_t in, const char *scales, size_t k, size_t ahead)
{
    const __mmask16 mask = lanes((in - k) / 32);
    _mm_prefetch(scales + k / 32 + ahead, _MM_HINT_T1);
    __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, scales + k / 32)), 23);
    bits = _mm512_mask_mov_epi32(_mm512_max_epu32(bits, _mm512_set1_epi32(0x00400000)),
                                 _mm512_cmpeq_epi32_mask(bits, _mm512_set1_epi32(0x7f800000)),
                                 _mm512_set1_epi32(0x7fc00000));
    return _mm512_maskz_mul_ps(mask, _mm512_castsi512_ps(bits), _mm512_set1_ps(256));
}

/* 16 of the weights. */
INLINE __m512 half_of(const halves *h, int i)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)h->v + i));
}

/* What a row comes to, NaN where one of its codes was. */
INLINE void put_row(__m512 acc, __m512i worst, size_t row, float *y, const float *add)
{
    float sum = reduce16(acc);
    if (_mm512_cmpeq_epi8_mask(worst, _mm512_set1_epi8((char)0xfe)))
        sum = NAN;
    y[row] = add ? sum + add[row] : sum;
}

/* stream_rows of MXFP8. */
INLINE void stream_mxfp8(const pm_weight *w, size_t row, size_t apart, size_t ahead, int rows, const float *x, float *y,
                         const float *add)
{
    const size_t in = (size_t)w->in, stride = apart * in;
    const char *data = (const char *)w->data + row * in, *scales = (const char *)w->scales + row * (in / 32);
    __m512 acc[ROWS], factors[ROWS];
    __m512i worst[ROWS];
    for (int r = 0; r < rows; r++) {
        acc[r] = _mm512_setzero_ps();
        worst[r] = _mm512_setzero_si512();
    }
    for (size_t first = 0; first < in; first += SPAN) {
        const size_t end = in - first < SPAN ? in : first + SPAN;
        size_t k = first;
        for (int r = 0; r < rows; r++)
            factors[r] = load_factors(in, scales + (size_t)r * apart * (in / 32), first, ahead / 32);
        for (; k + 64 <= end; k += 64)
            for (int r = 0; r < rows; r++) {
                const char *p = data + (size_t)r * stride + k;
                const float *factor = (const float *)&factors[r] + (k - first) / 32;
                halves h;
                _mm_prefetch(p + ahead, _MM_HINT_T1);
                to_halves(p, &worst[r], &h);
                for (int i = 0; i < 4; i++) { /* the order of halves */
                    const int at = i % 2 * 2 + i / 2;
                    __m512 weights = _mm512_mul_ps(half_of(&h, at), _mm512_set1_ps(factor[i / 2]));
                    acc[r] = _mm512_fmadd_ps(weights, _mm512_loadu_ps(x + k + 16 * i), acc[r]);
                }
            }
        for (; k < end; k += 16)
            for (int r = 0; r < rows; r++) {
                const __m512 factor = _mm512_set1_ps(((const float *)&factors[r])[(k - first) / 32]);
                acc[r] = _mm512_fmadd_ps(load_weights(data + (size_t)r * stride, PM_FORMAT_MXFP8, k, 0xffff, factor),
                                         _mm512_loadu_ps(x + k), acc[r]);
            }
    }
    for (int r = 0; r < rows; r++)
        put_row(acc[r], worst[r], row + (size_t)r * apart, y, add);
}

/* True when a row of an FP8 matrix is one block. */
INLINE bool is_one_block(const pm_weight *w)
{
    return w->block[1] >= w->in;
}

/* stream_rows of FP8 whose blocks begin at multiples of 64. */
INLINE void stream_fp8(const pm_weight *w, size_t row, size_t apart, size_t ahead, int rows, const float *x, float *y,
                       const float *add)
{
    const size_t in = (size_t)w->in, stride = apart * in, width = is_one_block(w) ? in : (size_t)w->block[1];
    const char *data = (const char *)w->data + row * in;
    __m512 whole[ROWS];
    __m512i worst[ROWS];
    for (int r = 0; r < rows; r++) {
        whole[r] = _mm512_setzero_ps();
        worst[r] = _mm512_setzero_si512();
    }
    for (size_t first = 0; first < in; first += width) {
        const size_t end = in - first < width ? in : first + width;
        size_t k = first;
        __m512 acc[ROWS];
        for (int r = 0; r < rows; r++)
            acc[r] = _mm512_setzero_ps();
        for (; k + 64 <= end; k += 64)
            for (int r = 0; r < rows; r++) {
                const char *p = data + (size_t)r * stride + k;
                halves h;
                _mm_prefetch(p + ahead, _MM_HINT_T1);
                to_halves(p, &worst[r], &h);
                for (int i = 0; i < 4; i++) /* the order of halves */
                    acc[r] = _mm512_fmadd_ps(half_of(&h, i % 2 * 2 + i / 2), _mm512_loadu_ps(x + k + 16 * i), acc[r]);
            }
        for (; k < end; k += 16) {
            const __mmask16 mask = lanes(end - k);
            for (int r = 0; r < rows; r++) {
                const __m512 weights =
                    load_weights(data + (size_t)r * stride, PM_FORMAT_FP8, k, mask, _mm512_setzero_ps());
                acc[r] = _mm512_mask3_fmadd_ps(weights, _mm512_maskz_loadu_ps(mask, x + k), acc[r], mask);
            }
        }
        for (int r = 0; r < rows; r++)
            whole[r] = _mm512_fmadd_ps(load_factor(w, PM_FORMAT_FP8, row + (size_t)r * apart, first), acc[r], whole[r]);
    }
    for (int r = 0; r < rows; r++)
        put_row(whole[r], worst[r], row + (size_t)r * apart, y, add);
}

INLINE void stream_tile(const pm_weight *w, pm_format format, size_t row, size_t apart, size_t ahead, int rows,
                        const float *x, float *y, const float *add)
{
    if (format == PM_FORMAT_MXFP8)
        stream_mxfp8(w, row, apart, ahead, rows, x, y, add);
    else if (format == PM_FORMAT_FP8 && (w->block[1] % 64 == 0 || is_one_block(w)))
        stream_fp8(w, row, apart, ahead, rows, x, y, add);
    else
        stream_rows(w, format, row, apart, ahead, rows, x, y, add);
}

/* Fetches `bytes` bytes from p on. */
INLINE void fetch(const char *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        _mm_prefetch(p + i, _MM_HINT_T1);
}

/* Rows [first, last) times a column. When they are many, ROWS stretches of them are read side by side: those lie so far
 * apart that the processor's own prefetcher, which follows one stream a page, brings them from memory too. */
INLINE void stream(const pm_weight *w, pm_format format, int first, int last, const float *x, float *y,
                   const float *add)
{
    const size_t bytes = (size_t)w->in * element_size(format), tiles = (size_t)(last - first) / ROWS;
    const bool many = ROWS * tiles * bytes >= MANY;
    const size_t apart = many ? tiles : 1, step = many ? 1 : ROWS, ahead = many ? AHEAD : ROWS * bytes;
    size_t row = (size_t)first;
    for (size_t r = 0; many && r < ROWS; r++)
        fetch((const char *)w->data + (row + r * apart) * bytes, AHEAD);
    for (size_t tile = 0; tile < tiles; tile++, row += step)
        stream_tile(w, format, row, apart, ahead, ROWS, x, y, add);
    for (row = (size_t)first + ROWS * tiles; row < (size_t)last; row++)
        stream_tile(w, format, row, 1, 0, 1, x, y, add);
}

/* ---- many columns ---- */

/* Elements [k, k + DEPTH), or fewer and then zeros up to a whole vector, of PANEL rows. */
typedef struct panel {
    __m512 w[DEPTH / 16][PANEL];
    float factor[DEPTH / 16][PANEL]; /* of FP8: for each block */
} panel;

/* n elements from the k-th of `rows` (up to PANEL) rows from `row` on; the other rows are zero. */
INLINE void fill(const pm_weight *w, pm_format format, int row, int rows, size_t k, size_t n, panel *out)
{
    const size_t in = (size_t)w->in, stride = in * element_size(format), end = k + n;
    const size_t width = format == PM_FORMAT_MXFP8 ? 32 : format == PM_FORMAT_FP8 ? (size_t)w->block[1] : in;
    for (int r = 0; r < PANEL; r++) {
        const char *data = (const char *)w->data + (size_t)(row + r) * stride;
        if (r >= rows) {
            for (size_t i = 0; i < n; i += 16)
                out->w[i / 16][r] = _mm512_setzero_ps();
            for (size_t i = 0; format == PM_FORMAT_FP8 && !is_one_block(w) && i < n; i += width)
                out->factor[i / width][r] = 0;
            continue;
        }
        for (size_t at = k, stop; at < end; at = stop) { /* of one scale */
            stop = at - at % width + width < end ? at - at % width + width : end;
            const __m512 factor = load_factor(w, format, (size_t)(row + r), at);
            if (format == PM_FORMAT_FP8 && !is_one_block(w))
                out->factor[(at - k) / width][r] = _mm512_cvtss_f32(factor);
            for (size_t i = at; i < stop; i += 16) {
                _mm_prefetch(data + (i + DEPTH) * element_size(format), _MM_HINT_T0);
                out->w[(i - k) / 16][r] = load_weights(data, format, i, lanes(stop - i), factor);
            }
        }
    }
}

/* The sums of a column for the rows of a panel. */
typedef struct running {
    __m512 acc[PANEL];
} running;

/* Adds to the sums, or makes them if `begin`, the products of n elements from the k-th on with those of `tile` columns,
 * a constant. What comes `tile` columns later is fetched. With `width`, as many elements are a block of FP8, i the
 * first of them. */
INLINE void add_block(const panel *p, size_t i, size_t end, size_t width, const float *const *columns, size_t k,
                      bool begin, int tile, running *sums)
{
    __m512 acc[TILE][PANEL];
    const float *x[TILE], *next[TILE];
    const float *factor = width ? p->factor[i / width] : NULL;
#pragma GCC unroll 3
    for (int c = 0; c < tile; c++) {
        x[c] = columns[c] + k;
        next[c] = columns[c + tile] + k;
#pragma GCC unroll 8
        for (int r = 0; r < PANEL; r++)
            acc[c][r] = begin || width ? _mm512_setzero_ps() : sums[c].acc[r];
    }
    for (; i + 16 <= end; i += 16) {
        __m512 v[TILE];
#pragma GCC unroll 3
        for (int c = 0; c < tile; c++) {
            _mm_prefetch(next[c] + i, _MM_HINT_T0);
            v[c] = _mm512_loadu_ps(x[c] + i);
        }
#pragma GCC unroll 8
        for (int r = 0; r < PANEL; r++) {
            __m512 weights = p->w[i / 16][r];
            __asm__("" : "+v"(weights)); /* or compilers load it again for every column */
#pragma GCC unroll 3
            for (int c = 0; c < tile; c++)
                acc[c][r] = _mm512_fmadd_ps(weights, v[c], acc[c][r]);
        }
    }
    if (i < end) {
        const __mmask16 mask = lanes(end - i);
#pragma GCC unroll 3
        for (int c = 0; c < tile; c++) {
            const __m512 v = _mm512_maskz_loadu_ps(mask, x[c] + i);
#pragma GCC unroll 8
            for (int r = 0; r < PANEL; r++)
                acc[c][r] = _mm512_mask3_fmadd_ps(p->w[i / 16][r], v, acc[c][r], mask);
        }
    }
#pragma GCC unroll 3
    for (int c = 0; c < tile; c++)
#pragma GCC unroll 8
        for (int r = 0; r < PANEL; r++)
            sums[c].acc[r] = width ? _mm512_fmadd_ps(_mm512_set1_ps(factor[r]), acc[c][r],
                                                     begin ? _mm512_setzero_ps() : sums[c].acc[r])
                                   : acc[c][r];
}

typedef void add_panel_fn(const panel *p, size_t n, size_t width, const float *const *columns, size_t k, bool begin,
                          running *sums);

#define ADD_PANEL(tile)                                                                                                \
    NOINLINE void add_##tile(const panel *p, size_t n, size_t width, const float *const *columns, size_t k,            \
                             bool begin, running *sums)                                                                \
    {                                                                                                                  \
        if (begin)                                                                                                     \
            add_block(p, 0, n, 0, columns, k, true, tile, sums);                                                       \
        else                                                                                                           \
            add_block(p, 0, n, 0, columns, k, false, tile, sums);                                                      \
        (void)width;                                                                                                   \
    }                                                                                                                  \
    NOINLINE void add_blocks_##tile(const panel *p, size_t n, size_t width, const float *const *columns, size_t k,     \
                                    bool begin, running *sums)                                                         \
    {                                                                                                                  \
        for (size_t i = 0; i < n; i += width)                                                                          \
            add_block(p, i, n - i < width ? n : i + width, width, columns, k, begin && i == 0, tile, sums);            \
    }

ADD_PANEL(1)
ADD_PANEL(2)
ADD_PANEL(3)

/* pm_reduce16 of eight vectors, in order. */
INLINE __m256 reduce(const __m512 v[PANEL])
{
    __m512 half[4], quarter[2];
    for (int i = 0; i < 4; i++)
        half[i] = _mm512_add_ps(_mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x44),
                                _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xee));
    for (int i = 0; i < 2; i++)
        quarter[i] = _mm512_add_ps(_mm512_shuffle_f32x4(half[2 * i], half[2 * i + 1], 0x88),
                                   _mm512_shuffle_f32x4(half[2 * i], half[2 * i + 1], 0xdd));
    __m512 pairs = _mm512_add_ps(_mm512_shuffle_ps(quarter[0], quarter[1], _MM_SHUFFLE(1, 0, 1, 0)),
                                 _mm512_shuffle_ps(quarter[0], quarter[1], _MM_SHUFFLE(3, 2, 3, 2)));
    __m512 sums = _mm512_add_ps(pairs, _mm512_movehdup_ps(pairs)); /* of v[q] and v[q + 4] in lanes 4 q and 4 q + 2 */
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 4, 8, 12, 2, 6, 10, 14);
    return _mm512_castps512_ps256(_mm512_permutexvar_ps(order, sums));
}

static void put_rows(const running *sums, int i, int row, int rows, const pm_results *results)
{
    size_t at = (size_t)i * (size_t)results->stride + (size_t)row;
    const __mmask8 mask = (__mmask8)lanes((size_t)rows);
    __m256 y = reduce(sums->acc);
    if (results->add)
        y = _mm256_add_ps(y, _mm256_maskz_loadu_ps(mask, results->add + at));
    _mm256_mask_storeu_ps(results->y + at, mask, y);
}

/* `rows` (up to PANELS * PANEL) rows times n (up to COLUMNS) columns from column `from` on. */
INLINE void multiply_panels(const pm_weight *w, pm_format format, int row, int rows, const pm_columns *columns,
                            int from, int n, const pm_results *results)
{
    static add_panel_fn *const of[2][TILE + 1] = {{NULL, add_1, add_2, add_3},
                                                  {NULL, add_blocks_1, add_blocks_2, add_blocks_3}};
    add_panel_fn *const *add = of[format == PM_FORMAT_FP8 && !is_one_block(w)];
    panel p;
    running sums[PANELS][COLUMNS];
    const float *x[COLUMNS + TILE];
    const size_t in = (size_t)w->in;
    for (int c = 0; c < n + TILE; c++) {
        int i = from + (c < n ? c : n - 1);
        x[c] = columns->x + (size_t)(columns->index ? columns->index[i] : i) * in;
    }
    for (size_t k = 0; k < in; k += DEPTH)
        for (int r = 0; r < rows; r += PANEL) {
            const size_t depth = in - k < DEPTH ? in - k : DEPTH;
            fill(w, format, row + r, rows - r < PANEL ? rows - r : PANEL, k, depth, &p);
            for (int c = 0; c < n; c += TILE)
                add[n - c < TILE ? n - c : TILE](&p, depth, (size_t)w->block[1], x + c, k, k == 0, sums[r / PANEL] + c);
        }
    for (int r = 0; format == PM_FORMAT_FP8 && is_one_block(w) && r < rows; r++) {
        const __m512 factor = load_factor(w, format, (size_t)(row + r), 0);
        for (int c = 0; c < n; c++) {
            __m512 *acc = &sums[r / PANEL][c].acc[r % PANEL];
            *acc = _mm512_fmadd_ps(factor, *acc, _mm512_setzero_ps());
        }
    }
    for (int c = 0; c < n; c++)
        for (int r = 0; r < rows; r += PANEL)
            put_rows(&sums[r / PANEL][c], from + c, row + r, rows - r < PANEL ? rows - r : PANEL, results);
}

INLINE void multiply(const pm_weight *w, pm_format format, int first, int last, const pm_columns *columns,
                     const pm_results *results)
{
    if (columns->n == 1) {
        const float *x = columns->x + (columns->index ? (size_t)columns->index[0] * (size_t)w->in : 0);
        stream(w, format, first, last, x, results->y, results->add);
        return;
    }
    for (int from = 0; from < columns->n; from += COLUMNS)
        for (int row = first; row < last; row += PANELS * PANEL)
            multiply_panels(w, format, row, last - row < PANELS * PANEL ? last - row : PANELS * PANEL, columns, from,
                            columns->n - from < COLUMNS ? columns->n - from : COLUMNS, results);
}

#define MULTIPLY(name, format)                                                                                         \
    void pm_multiply_##name##_avx512(const pm_weight *w, int first, int last, const pm_columns *columns,               \
                                     const pm_results *results)                                                        \
    {                                                                                                                  \
        multiply(w, format, first, last, columns, results);                                                            \
    }

MULTIPLY(bf16, PM_FORMAT_BF16)
MULTIPLY(f16, PM_FORMAT_F16)
MULTIPLY(f32, PM_FORMAT_F32)
MULTIPLY(mxfp8, PM_FORMAT_MXFP8)

/* Blocks that are not whole vectors wide, or do not fill a panel, are rare enough for the scalar kernel, but for those
 * as wide as the matrix. */
void pm_multiply_fp8_avx512(const pm_weight *w, int first, int last, const pm_columns *columns,
                            const pm_results *results)
{
    if (!is_one_block(w) && (w->block[1] % 16 || DEPTH % w->block[1]))
        pm_multiply_float_scalar(w, first, last, columns, results);
    else
        multiply(w, PM_FORMAT_FP8, first, last, columns, results);
}

#endif
