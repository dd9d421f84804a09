/* Quantised matrices for AVX-512 with VNNI and VBMI, and the table of kernels of that level.
 *
 * Weights become bytes in blocks of planes of 64 (pm_layout), such that a quarter of each plane holds the same 32
 * elements of a row (64 where there are 4 planes). A 16-bit integer of x is 256 * high + low, two signed bytes, so 64
 * products take two passes of vpdpbusd, which adds exactly in 32 bits: 128 * 255 * 127 * 256 < 2^31; one of 8 bits
 * takes one pass. The integers of e2m1 have PM_E2M1_ZERO added to be unsigned.
 *
 * One column: four stretches of rows are streamed side by side; the sums of four groups of each are reduced together
 * and added to a vector of all their running sums. More columns: the bytes of 16 rows are laid out with a row a lane,
 * so that a group's sum needs no reduction, and serve all columns. Two such panels are taken at once, so that what is
 * loaded of x, four bytes in every lane, is used twice: loads are what there is least of. */
#if defined(__x86_64__)

#include "backend/cpu/matrix_avx512.h"

enum {
    STREAMS = 4,       /* rows streamed side by side */
    AHEAD = 4096,      /* bytes that streaming prefetches ahead, at least */
    MANY = 65536,      /* bytes of rows that are worth several streams */
    COLUMNS = 128,     /* that share them */
    FEW = 3,           /* columns for which weights are streamed again sooner than laid out, since they are at hand */
    TILE = 4,          /* most columns in registers */
    PLAIN_SCALES = 253 /* codes of e8m0, less 2, that are not */
};

/* ---- unpacking ---- */

/* The first n of 64 lanes. */
INLINE __mmask64 first_lanes(int n)
{
    return n >= 64 ? ~(__mmask64)0 : n <= 0 ? 0 : ((__mmask64)1 << n) - 1;
}

/* The first n bytes, or 64, then zeros. Without the empty asm compilers load again for every plane, and loads across
 * two lines of the cache, as nearly all are, cost double. */
INLINE __m512i load_bytes(const uint8_t *p, int n)
{
    __m512i bytes = n >= 64 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi8(first_lanes(n), p);
    __asm__("" : "+v"(bytes));
    return bytes;
}

/* Row r of some that begin at p. Without the empty asm compilers keep offsets from row to row, more of them than there
 * are registers. */
INLINE const uint8_t *row_at(const uint8_t *p, size_t r, size_t stride)
{
    p += r * stride;
    __asm__("" : "+r"(p));
    return p;
}

/* Of a block of 3, 5 or 6 bits, whose first n bytes may be read: 8 elements of a plane in every quadword, from bit 0
 * on, or for plane 1 of 3 bits from bit 24 on. */
INLINE __m512i load_eights(int bits, const uint8_t *p, int n, int plane)
{
    const uint64_t ascending = 0x0706050403020100u, ones = 0x0101010101010101u;
    if (bits == 3) { /* of the 12 bytes of a quarter 0-2 and 6-8, then 3-5 and 9-11 */
#define BOTH_PLANES(i) (long long)(0x080706020100u + 0x010101010101u * (uint64_t)(i))
        const __m512i order = _mm512_setr_epi64(BOTH_PLANES(0), BOTH_PLANES(3), BOTH_PLANES(12), BOTH_PLANES(15),
                                                BOTH_PLANES(24), BOTH_PLANES(27), BOTH_PLANES(36), BOTH_PLANES(39));
#undef BOTH_PLANES
        return _mm512_permutexvar_epi8(order, load_bytes(p, n < 48 ? n : 48));
    }
    /* 16 bytes of every quarter that hold its 10 or 12 of the plane, from byte `skip` on. */
    __m512i quarters;
    uint64_t skip = 0;
    if (bits == 5) {
        const __m512i order = _mm512_setr_epi32(0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13, 15, 28, 29, 30);
        const __m512i order1 = _mm512_setr_epi32(2, 3, 4, 5, 7, 8, 9, 10, 12, 13, 14, 15, 29, 30, 31, 31);
        quarters = _mm512_permutex2var_epi32(load_bytes(p, n), plane ? order1 : order, load_bytes(p + 16, n - 16));
        skip = plane ? 2 : 0;
    } else {
        const __m512i order = _mm512_setr_epi64(0, 1, 3, 4, 6, 7, 13, 14);
        const __m512i order1 = _mm512_setr_epi64(1, 2, 4, 5, 7, 12, 14, 15);
        quarters = _mm512_permutex2var_epi64(load_bytes(p, n), plane ? order1 : order, load_bytes(p + 32, n - 32));
        skip = plane ? 4 : 0;
    }
    const __m128i order =
        _mm_set_epi64x((long long)(ascending + ones * (skip + (uint64_t)bits)), (long long)(ascending + ones * skip));
    return _mm512_shuffle_epi8(quarters, _mm512_broadcast_i32x4(order));
}

/* A plane of 64 bytes of a block of 4 or 2 bits. */
INLINE __m512i fields(int bits, bool e2m1, __m512i bytes, int plane)
{
    bytes = _mm512_srli_epi16(bytes, (unsigned)(plane * bits));
    if (!e2m1)
        return _mm512_and_si512(bytes, _mm512_set1_epi8((char)((1 << bits) - 1)));
    /* The index is six bits of a byte, of which the upper two do not count in a table of sixteen, four times. */
    const __m128i integers = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm512_permutexvar_epi8(bytes, _mm512_broadcast_i32x4(integers));
}

/* A plane of a block as bytes. Only the first n elements of the block (a multiple of 16) are read; there is an n-th
 * only where the row ends, and what would come after is zero. */
INLINE __m512i unpack(int bits, bool e2m1, const uint8_t *p, int n, int plane)
{
    const int block = 64 * pm_planes_of(bits), bytes = (n < block ? n : block) * bits / 8;
    if (bits == 8) {
        __m512i a = load_bytes(p, bytes), b = load_bytes(p + 64, bytes - 64);
        return plane ? _mm512_shuffle_i32x4(a, b, 0xdd) : _mm512_shuffle_i32x4(a, b, 0x88);
    }
    if (bits == 4 || bits == 2)
        return fields(bits, e2m1, load_bytes(p, bytes), plane);
    const __m512i mask = _mm512_set1_epi8((char)((1 << bits) - 1));
    const uint64_t first = bits == 3 && plane ? 24 : 0;
    const __m512i shifts =
        _mm512_set1_epi64((long long)(0x0706050403020100u * (uint64_t)bits + 0x0101010101010101u * first));
    return _mm512_and_si512(_mm512_multishift_epi64_epi8(shifts, load_eights(bits, p, bytes, plane)), mask);
}

/* ---- scales ---- */

/* n (1 to 16) scales from the i-th, then zeros; nothing behind them is read. */
INLINE __m512 load_scales(const void *scales, pm_scale_type type, size_t i, int n)
{
    const __mmask16 mask = (__mmask16)first_lanes(n);
    if (type == PM_SCALE_F32)
        return _mm512_maskz_loadu_ps(mask, (const char *)scales + 4 * i);
    const char *p = (const char *)scales + 2 * i;
    __m256i half = n >= 16 ? _mm256_loadu_si256((const __m256i *)p) : _mm256_maskz_loadu_epi16(mask, p);
    if (type == PM_SCALE_F16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* Biases likewise, of an affine matrix. */
INLINE __m512 load_biases(const pm_weight *w, size_t i, int n)
{
    if (w->biases)
        return load_scales(w->biases, w->scale_type, i, n);
    return _mm512_mul_ps(load_scales(w->scales, w->scale_type, i, n), _mm512_set1_ps(pm_symmetric_bias(w)));
}

/* Weight scales (pm_group_scale) of 16 codes, of which those in `lanes` are asked for. */
INLINE __m512 decode_scales(const pm_weight *w, __m128i codes, __mmask16 lanes)
{
    if (w->format == PM_FORMAT_MXFP4) {
        __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(codes), 23);
        bits = _mm512_mask_mov_epi32(_mm512_max_epu32(bits, _mm512_set1_epi32(0x00400000)),
                                     _mm512_cmpeq_epi32_mask(bits, _mm512_set1_epi32(0x7f800000)),
                                     _mm512_set1_epi32(0x7fc00000));
        /* Masked, since the code 0 is a denormal number, and those take long. */
        return _mm512_maskz_mul_ps(lanes, _mm512_castsi512_ps(bits), _mm512_set1_ps(0.5f));
    }
    const __m256i magnitude = _mm256_set1_epi16(0x3f80);
    __m256i half =
        _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7), _mm256_set1_epi16((short)0xbf80));
    half = _mm256_or_si256(half, _mm256_cmpeq_epi16(_mm256_and_si256(half, magnitude), magnitude));
    return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(128 * w->global));
}

/* n (1 to 16) weight scales from the i-th, then zeros. */
INLINE __m512 load_weight_scales(const pm_weight *w, bool e2m1, size_t i, int n)
{
    const __mmask16 lanes = (__mmask16)first_lanes(n);
    if (e2m1)
        return decode_scales(w, _mm_maskz_loadu_epi8(lanes, (const char *)w->scales + i), lanes);
    return load_scales(w->scales, w->scale_type, i, n);
}

/* n (up to 4) scales or biases of each of four rows, from the i-th, i + step .. i + 3 * step, then zeros. */
INLINE __m512 load_fours(const void *scales, pm_scale_type type, size_t i, size_t step, int n)
{
    const char *p = (const char *)scales + (type == PM_SCALE_F32 ? 4 : 2) * i;
    const __mmask8 lanes = (__mmask8)first_lanes(n);
    step *= type == PM_SCALE_F32 ? 4 : 2;
    if (type == PM_SCALE_F32) {
        __m512 v = _mm512_castps128_ps512(_mm_maskz_loadu_ps(lanes, p));
        v = _mm512_insertf32x4(v, _mm_maskz_loadu_ps(lanes, p + step), 1);
        v = _mm512_insertf32x4(v, _mm_maskz_loadu_ps(lanes, p + 2 * step), 2);
        return _mm512_insertf32x4(v, _mm_maskz_loadu_ps(lanes, p + 3 * step), 3);
    }
    __m128i v[4];
    for (size_t r = 0; r < 4; r++)
        v[r] = n >= 4 ? _mm_loadl_epi64((const __m128i *)(const void *)(p + r * step))
                      : _mm_maskz_loadu_epi16(lanes, p + r * step);
    __m256i half = _mm256_set_m128i(_mm_unpacklo_epi64(v[2], v[3]), _mm_unpacklo_epi64(v[0], v[1]));
    if (type == PM_SCALE_F16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* The same of weight scales. With `worst` (for MXFP4) they are decoded as if none were denormal or NaN, and a byte of
 * *worst becomes PLAIN_SCALES or more when one is. */
INLINE __m512 load_weight_fours(const pm_weight *w, bool e2m1, size_t i, size_t step, int n, __m128i *worst)
{
    if (!e2m1)
        return load_fours(w->scales, w->scale_type, i, step, n);
    const __mmask16 lanes = (__mmask16)first_lanes(n);
    const char *p = (const char *)w->scales + i;
    __m128i v[4];
    for (size_t r = 0; r < 4; r++)
        v[r] = n >= 4 ? _mm_loadu_si32(p + r * step) : _mm_maskz_loadu_epi8(lanes, p + r * step);
    __m128i codes = _mm_unpacklo_epi64(_mm_unpacklo_epi32(v[0], v[1]), _mm_unpacklo_epi32(v[2], v[3]));
    if (!worst || n < 4)
        return decode_scales(w, codes, (__mmask16)((lanes & 15) * 0x1111));
    *worst = _mm_max_epu8(*worst, _mm_sub_epi8(codes, _mm_set1_epi8(2)));
    codes = _mm_sub_epi8(codes, _mm_set1_epi8(1)); /* half of it */
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(codes), 23));
}

/* ---- four rows times one column ---- */

/* What functions are specialised for. */
typedef struct shape {
    int bits, group;
    bool e2m1;
    int passes;
} shape;

/* Of four vectors the sums of each 128 bits, in the lanes of those. A blend and a shuffle are cheaper than two
 * shuffles, for which there is one port. */
INLINE __m512i fold(__m512i a, __m512i b, __m512i c, __m512i d)
{
    const __m512 fa = _mm512_castsi512_ps(a), fb = _mm512_castsi512_ps(b);
    const __m512 fc = _mm512_castsi512_ps(c), fd = _mm512_castsi512_ps(d);
    __m512i ab = _mm512_add_epi32(_mm512_mask_blend_epi32(0xcccc, a, b),
                                  _mm512_castps_si512(_mm512_shuffle_ps(fa, fb, _MM_SHUFFLE(1, 0, 3, 2))));
    __m512i cd = _mm512_add_epi32(_mm512_mask_blend_epi32(0xcccc, c, d),
                                  _mm512_castps_si512(_mm512_shuffle_ps(fc, fd, _MM_SHUFFLE(1, 0, 3, 2))));
    const __m512 x = _mm512_castsi512_ps(ab), y = _mm512_castsi512_ps(cd);
    return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(x, y, _MM_SHUFFLE(2, 0, 2, 0))),
                            _mm512_castps_si512(_mm512_shuffle_ps(x, y, _MM_SHUFFLE(3, 1, 3, 1))));
}

/* The sums of the halves of both. */
INLINE __m512i fold_quarters(__m512i a, __m512i b)
{
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

/* The sums of neighbours of four vectors: 0 + 1 and 2 + 3 of a, of b, in each quarter of the first, of c and d in the
 * second. */
INLINE void fold_pairs(const __m512i v[4], __m512i out[2])
{
    for (int i = 0; i < 2; i++) {
        const __m512 a = _mm512_castsi512_ps(v[2 * i]), b = _mm512_castsi512_ps(v[2 * i + 1]);
        out[i] = _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(a, b, _MM_SHUFFLE(2, 0, 2, 0))),
                                  _mm512_castps_si512(_mm512_shuffle_ps(a, b, _MM_SHUFFLE(3, 1, 3, 1))));
    }
}

/* Groups that are taken at once: four, or eight where a quarter of a block has two. */
INLINE int unit_of(shape s)
{
    return s.group * 2 == 16 * pm_planes_of(s.bits) ? 8 : 4;
}

/* Products of a block, whose first n elements are there, with x in planes. */
INLINE __m512i dot(shape s, const uint8_t *w, int n, const __m512i high[4], const __m512i low[4])
{
    __m512i weights[4], sum = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int i = 0; i < pm_planes_of(s.bits); i++) {
        weights[i] = unpack(s.bits, s.e2m1, w, n, i);
        sum = _mm512_dpbusd_epi32(sum, weights[i], high[i]);
    }
    if (s.passes == 1)
        return sum;
    sum = _mm512_slli_epi32(sum, 8);
#pragma GCC unroll 4
    for (int i = 0; i < pm_planes_of(s.bits); i++)
        sum = _mm512_dpbusd_epi32(sum, weights[i], low[i]);
    return sum;
}

/* The integer sums of a unit of each of four rows, `stride` bytes apart, whose first n elements are there: four groups
 * of each row in turn, for eight in two vectors. */
INLINE void dot_unit(shape s, const uint8_t *w, size_t stride, const int8_t *x_high, const int8_t *x_low, int n,
                     __m512i out[2])
{
    const int planes = pm_planes_of(s.bits), block = 64 * planes, unit = unit_of(s), blocks = unit * s.group / block;
    __m512i sums[4];
#pragma GCC unroll 4
    for (int i = 0; i < blocks; i++) {
        __m512i high[4], low[4], rows[STREAMS];
        sums[i] = _mm512_setzero_si512();
        if (n <= i * block)
            continue;
        for (int plane = 0; plane < planes; plane++) {
            high[plane] = _mm512_loadu_si512(x_high + (i * planes + plane) * 64);
            if (s.passes == 2)
                low[plane] = _mm512_loadu_si512(x_low + (i * planes + plane) * 64);
        }
#pragma GCC unroll 4
        for (size_t r = 0; r < STREAMS; r++)
            rows[r] = dot(s, row_at(w, r, stride) + i * block * s.bits / 8, n - i * block, high, low);
        if (unit == 8) {
            __m512i pairs[2];
            fold_pairs(rows, pairs);
            const __m512i order = _mm512_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7, 16, 17, 20, 21, 18, 19, 22, 23);
            out[0] = _mm512_permutex2var_epi32(pairs[0], order, pairs[1]);
            out[1] = _mm512_permutex2var_epi32(pairs[0], _mm512_add_epi32(order, _mm512_set1_epi32(8)), pairs[1]);
            return;
        }
        sums[i] = fold(rows[0], rows[1], rows[2], rows[3]); /* quarters of a block, a row a lane */
    }
    __m512i sum = sums[0];
    if (blocks == 2)
        sum = fold_quarters(sums[0], sums[1]);
    if (blocks == 4)
        sum = fold_quarters(fold_quarters(sums[0], sums[1]), fold_quarters(sums[2], sums[3]));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    out[0] = _mm512_permutexvar_epi32(order, sum);
}

/* Adds groups g to g + n (up to 4) of four rows to their running sums, those without a group staying as they are, sign
 * of zero included. The rows' scales are `step` apart, the first row's from the at-th on; `worst` as above. */
INLINE __m512 add_fours(const pm_weight *w, bool e2m1, size_t at, size_t step, size_t g, int n, __m512i total,
                        const pm_column *x, __m128i *worst, __m512 acc)
{
    if (n <= 0)
        return acc;
    const __mmask8 four = (__mmask8)(first_lanes(n) & 15);
    const __mmask16 lanes = (__mmask16)(four * 0x1111);
    if (e2m1) {
        total = _mm512_sub_epi32(total, _mm512_broadcast_i32x4(_mm_maskz_loadu_epi32(four, x->excess + g)));
    }
    const __m512 scale = load_weight_fours(w, e2m1, at + g, step, n, worst);
    const __m512 factor = _mm512_mul_ps(scale, _mm512_broadcast_f32x4(_mm_maskz_loadu_ps(four, x->scale + g)));
    acc = _mm512_mask3_fmadd_ps(_mm512_cvtepi32_ps(total), factor, acc, lanes);
    if (e2m1)
        return acc;
    const __m512 bias = w->biases ? load_fours(w->biases, w->scale_type, at + g, step, n)
                                  : _mm512_mul_ps(scale, _mm512_set1_ps(pm_symmetric_bias(w)));
    return _mm512_mask3_fmadd_ps(bias, _mm512_broadcast_f32x4(_mm_maskz_loadu_ps(four, x->sum + g)), acc, lanes);
}

/* Row `row` and STREAMS - 1 more, each `apart` rows behind the one before (0: all are the same row), times a column.
 * What lies `ahead` bytes behind the weights is fetched, into the second cache, since the first is small and holds x.
 * With `plain` scales, those of MXFP4 are taken to be neither denormal nor NaN; false when they are, and nothing is
 * written then. */
INLINE bool stream_rows(const pm_weight *w, shape s, bool plain, size_t row, size_t apart, size_t ahead,
                        const pm_column *x, float *y, const float *add)
{
    const int unit = unit_of(s), unit_bytes = unit * s.group * s.bits / 8;
    const size_t groups = (size_t)(w->in / s.group), row_bytes = groups * (size_t)s.group * (size_t)s.bits / 8;
    const size_t stride = apart * row_bytes, step = apart * groups, at = row * groups;
    const uint8_t *data = (const uint8_t *)w->data + row * row_bytes;
    __m512 acc = _mm512_setzero_ps();
    __m512i sums[2];
    __m128i worst = _mm_setzero_si128(), *scales = plain ? &worst : NULL;
    size_t g = 0;
    for (; g + (size_t)unit <= groups; g += (size_t)unit) {
        const size_t k = g * (size_t)s.group;
        const uint8_t *p = data + k * (size_t)s.bits / 8;
        for (size_t r = 0; r < STREAMS; r++)
            for (int i = 0; i < unit_bytes; i += 64)
                _mm_prefetch((const char *)row_at(p + ahead, r, stride) + i, _MM_HINT_T1);
        dot_unit(s, p, stride, x->high + k, x->low + k, unit * s.group, sums);
        for (int i = 0; i < unit; i += 4)
            acc = add_fours(w, s.e2m1, at, step, g + (size_t)i, 4, sums[i / 4], x, scales, acc);
    }
    if (g < groups) {
        const size_t k = g * (size_t)s.group;
        const int left = (int)(groups - g);
        dot_unit(s, data + k * (size_t)s.bits / 8, stride, x->high + k, x->low + k, left * s.group, sums);
        for (int i = 0; i < unit; i += 4)
            acc =
                add_fours(w, s.e2m1, at, step, g + (size_t)i, left - i < 4 ? left - i : 4, sums[i / 4], x, scales, acc);
    }
    if (plain && _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(worst, _mm_set1_epi8((char)PLAIN_SCALES)), worst)))
        return false;
    acc = _mm512_add_ps(acc, _mm512_shuffle_ps(acc, acc, _MM_SHUFFLE(1, 0, 3, 2)));
    acc = _mm512_add_ps(acc, _mm512_shuffle_ps(acc, acc, _MM_SHUFFLE(2, 3, 0, 1)));
    float value[STREAMS];
    _mm_storeu_ps(value, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, acc)));
    for (size_t r = 0; r < (apart ? STREAMS : 1); r++, row += apart)
        y[row] = add ? value[r] + add[row] : value[r];
    return true;
}

NOINLINE void stream_rows_mxfp4_2(const pm_weight *w, size_t row, size_t apart, const pm_column *x, float *y,
                                  const float *add)
{
    stream_rows(w, (shape){4, 32, true, 2}, false, row, apart, 0, x, y, add);
}

NOINLINE void stream_rows_mxfp4_1(const pm_weight *w, size_t row, size_t apart, const pm_column *x, float *y,
                                  const float *add)
{
    stream_rows(w, (shape){4, 32, true, 1}, false, row, apart, 0, x, y, add);
}

/* stream_rows, first as if scales were plain where that is worth while. */
INLINE void stream_tile(const pm_weight *w, shape s, size_t row, size_t apart, size_t ahead, const pm_column *x,
                        float *y, const float *add)
{
    const bool mxfp4 = s.e2m1 && s.group == 32;
    if (!stream_rows(w, s, mxfp4, row, apart, ahead, x, y, add))
        (s.passes == 1 ? stream_rows_mxfp4_1 : stream_rows_mxfp4_2)(w, row, apart, x, y, add);
}

/* Fetches `bytes` bytes from p on. */
INLINE void fetch(const void *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)p + i, _MM_HINT_T1);
}

/* Fetches the scales and biases of rows [row, row + n), if there are any. */
INLINE void fetch_scales(const pm_weight *w, bool e2m1, size_t groups, size_t row, size_t n)
{
    const size_t bytes = groups * (e2m1 ? 1 : w->scale_type == PM_SCALE_F32 ? 4 : 2);
    fetch((const char *)w->scales + row * bytes, n * bytes);
    if (!e2m1 && w->biases)
        fetch((const char *)w->biases + row * bytes, n * bytes);
}

/* Rows [first, last) times column i. When they are many, STREAMS stretches of them are read side by side: those lie so
 * far apart that the processor's own prefetcher, which follows one stream a page, brings them from memory too. */
INLINE void stream(const pm_weight *w, shape s, int first, int last, const pm_columns *columns, int i,
                   const pm_results *results)
{
    const size_t groups = (size_t)(w->in / s.group), bytes = groups * (size_t)(s.group * s.bits / 8);
    const size_t rows = (size_t)(last - first), tiles = rows / STREAMS;
    const bool many = rows * bytes >= MANY;
    const size_t apart = many ? tiles : 1, step = many ? 1 : STREAMS, ahead = AHEAD / (step * bytes) * step + step;
    const pm_column x = pm_column_at(columns, i, (size_t)w->in, groups);
    float *y = results->y + (size_t)i * (size_t)results->stride;
    const float *add = results->add ? results->add + (size_t)i * (size_t)results->stride : NULL;
    size_t row = (size_t)first;
    for (size_t r = 0; many && r < STREAMS; r++) {
        fetch((const char *)w->data + (row + r * apart) * bytes, ahead * bytes);
        fetch_scales(w, s.e2m1, groups, row + r * apart, ahead);
    }
    for (size_t tile = 0; tile < tiles; tile++, row += step) {
        for (size_t r = 0; r < STREAMS; r++)
            fetch_scales(w, s.e2m1, groups, row + r * apart + ahead, 1);
        stream_tile(w, s, row, apart, ahead * bytes, &x, y, add);
    }
    for (row = (size_t)first + STREAMS * tiles; row < (size_t)last; row++)
        stream_tile(w, s, row, 0, 0, &x, y, add);
}

/* ---- 16 rows times many columns ---- */

/* 16 dwords of each of 16 rows: v[d] gets dword d of row r in lane r. */
INLINE void transpose(__m512i v[16])
{
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) { /* rows i .. i + 3, dwords 2j and 2j + 1 of each 128 bits */
            v[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + 2 + j]);
            v[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + 2 + j]);
        }
    for (int d = 0; d < 4; d++) { /* dword d of each 128 bits, of four rows in each of v[d + 4 i] */
        __m512i a = _mm512_shuffle_i32x4(v[d], v[d + 4], 0x88), b = _mm512_shuffle_i32x4(v[d], v[d + 4], 0xdd);
        __m512i e = _mm512_shuffle_i32x4(v[d + 8], v[d + 12], 0x88),
                f = _mm512_shuffle_i32x4(v[d + 8], v[d + 12], 0xdd);
        t[d] = _mm512_shuffle_i32x4(a, e, 0x88);
        t[d + 8] = _mm512_shuffle_i32x4(a, e, 0xdd);
        t[d + 4] = _mm512_shuffle_i32x4(b, f, 0x88);
        t[d + 12] = _mm512_shuffle_i32x4(b, f, 0xdd);
    }
    for (int d = 0; d < 16; d++)
        v[d] = t[d];
}

/* n elements from the k-th of `rows` (up to 16) rows from `row` on; the other rows are anything. The panel has a
 * group's part of every plane, then the next group. What 4 and 2 bits fill of 64 bytes is transposed before it is
 * unpacked: four bytes are four elements of every plane. What the next panels need of memory is fetched, which comes
 * just in time even for two columns. */
INLINE void fill_weights(const pm_weight *w, int bits, int group, bool e2m1, int row, int rows, int k, int n,
                         pm_panel *out)
{
    const bool packed = bits == 4 || bits == 2;
    const int planes = pm_planes_of(bits), block = 64 * planes, bytes = block * bits / 8;
    const int part = group / planes / 4, shift = __builtin_ctz((unsigned)part);
    size_t stride = (size_t)w->in * (size_t)bits / 8;
    const uint8_t *data = (const uint8_t *)w->data + (size_t)row * stride + (size_t)k * (size_t)bits / 8;
    for (int i = 0; i < n; i += block, data += bytes) {
        const int left = n - i < block ? n - i : block; /* elements */
        __m512i v[16];
        for (int r = 0; r < rows; r++)
            for (int b = 0; b < bytes; b += 64)
                _mm_prefetch((const char *)data + ((size_t)r + PANELS * ROWS) * stride + b, _MM_HINT_T1);
        for (int plane = 0; plane < planes; plane++) {
            for (int r = 0; r < 16 && (plane == 0 || !packed); r++)
                v[r] = r >= rows ? _mm512_setzero_si512()
                       : packed  ? load_bytes(data + (size_t)r * stride, left * bits / 8)
                                 : unpack(bits, e2m1, data + (size_t)r * stride, left, plane);
            if (plane == 0 || !packed)
                transpose(v);
            for (int d = 0; d < 16; d++)
                out->w[i / 4 + ((((d >> shift) * planes + plane) << shift) | (d & (part - 1)))] =
                    packed ? fields(bits, e2m1, v[d], plane) : v[d];
        }
    }
}

/* Weight scales and biases of the groups from element k on, where the panel has not got them. */
INLINE void fill_scales(const pm_weight *w, bool e2m1, int row, int rows, int k, pm_panel *out)
{
    const size_t groups = (size_t)(w->in / w->group), g = (size_t)(k / w->group);
    const size_t most = w->group == 16 ? SCALES : 16, n = groups - g < most ? groups - g : most;
    out->first = g % most;
    for (size_t j = 0; j < n && out->first == 0; j += 16)
        for (int part = 0; part < (e2m1 ? 1 : 2); part++) {
            const int left = n - j < 16 ? (int)(n - j) : 16;
            __m512i v[16];
            for (int r = 0; r < ROWS; r++) {
                size_t at = (size_t)(row + r) * groups + g + j;
                v[r] = _mm512_castps_si512(r >= rows ? _mm512_setzero_ps()
                                           : part    ? load_biases(w, at, left)
                                                     : load_weight_scales(w, e2m1, at, left));
            }
            transpose(v);
            for (int i = 0; i < left; i++)
                (part ? out->bias : out->scale)[j + (size_t)i] = _mm512_castsi512_ps(v[i]);
        }
}

INLINE __m512i four(const int8_t *x)
{
    int32_t v;
    memcpy(&v, x, sizeof(v));
    return _mm512_set1_epi32(v);
}

/* `groups` groups of the panels, from element k and group g of a row on, times n columns (a constant, as is passes). A
 * column's sums for the next panel are COLUMNS behind. */
INLINE void add_panels(const pm_panel *p, int planes, int group, bool e2m1, int passes, size_t groups, size_t k,
                       size_t g, const pm_column *columns, int n, pm_running *out)
{
    const size_t padded = (size_t)(columns[0].low - columns[0].high), part = (size_t)(group / planes);
    const size_t block = (size_t)(64 * planes);
    const int8_t *x[TILE];
    size_t i = 0; /* in the panels' weights */
    for (int c = 0; c < n; c++)
        x[c] = columns[c].high;
    for (size_t j = 0; j < groups; j++) {
        __m512i upper[PANELS][TILE], lower[PANELS][TILE];
        const size_t first = k + j * (size_t)group, start = first / block * block;
        const size_t place = start + (first - start) / (size_t)planes;
        for (int h = 0; h < PANELS; h++)
            for (int c = 0; c < n; c++) {
                lower[h][c] = e2m1 ? _mm512_set1_epi32(-columns[c].excess[g + j]) : _mm512_setzero_si512();
                upper[h][c] = passes == 1 ? lower[h][c] : _mm512_setzero_si512();
            }
        for (int plane = 0; plane < planes; plane++) {
            size_t at = place + (size_t)plane * 64, low = at + padded;
            for (const size_t end = i + part / 4; i < end; i++, at += 4, low += 4) {
                const __m512i w0 = p[0].w[i], w1 = p[1].w[i];
                for (int c = 0; c < n; c++) {
                    const __m512i a = four(x[c] + at);
                    upper[0][c] = _mm512_dpbusd_epi32(upper[0][c], w0, a);
                    upper[1][c] = _mm512_dpbusd_epi32(upper[1][c], w1, a);
                    if (passes == 1)
                        continue;
                    const __m512i b = four(x[c] + low);
                    lower[0][c] = _mm512_dpbusd_epi32(lower[0][c], w0, b);
                    lower[1][c] = _mm512_dpbusd_epi32(lower[1][c], w1, b);
                }
            }
        }
        for (int h = 0; h < PANELS; h++)
            for (int c = 0; c < n; c++) {
                __m512 *acc = &out[h * COLUMNS + c].acc[j % 4];
                __m512i whole = upper[h][c];
                if (passes == 2)
                    whole = _mm512_add_epi32(_mm512_slli_epi32(whole, 8), lower[h][c]);
                __m512 isum = _mm512_cvtepi32_ps(whole);
                __m512 factor = _mm512_mul_ps(p[h].scale[p[h].first + j], _mm512_set1_ps(columns[c].scale[g + j]));
                __m512 sum = _mm512_fmadd_ps(isum, factor, *acc);
                *acc =
                    e2m1 ? sum : _mm512_fmadd_ps(p[h].bias[p[h].first + j], _mm512_set1_ps(columns[c].sum[g + j]), sum);
            }
    }
}

typedef void add_panels_fn(const pm_panel *p, int planes, int group, size_t groups, size_t k, size_t g,
                           const pm_column *columns, pm_running *out);

/* The commonest shapes have their loops unrolled. */
#define ADD_PANEL(n, passes)                                                                                           \
    NOINLINE void add_affine_##n##_##passes(const pm_panel *p, int planes, int group, size_t groups, size_t k,         \
                                            size_t g, const pm_column *columns, pm_running *out)                       \
    {                                                                                                                  \
        if (planes == 2 && group == 64)                                                                                \
            add_panels(p, 2, 64, false, passes, groups, k, g, columns, n, out);                                        \
        else                                                                                                           \
            add_panels(p, planes, group, false, passes, groups, k, g, columns, n, out);                                \
    }                                                                                                                  \
    NOINLINE void add_e2m1_##n##_##passes(const pm_panel *p, int planes, int group, size_t groups, size_t k, size_t g, \
                                          const pm_column *columns, pm_running *out)                                   \
    {                                                                                                                  \
        (void)planes;                                                                                                  \
        if (group == 32)                                                                                               \
            add_panels(p, 2, 32, true, passes, groups, k, g, columns, n, out);                                         \
        else                                                                                                           \
            add_panels(p, 2, 16, true, passes, groups, k, g, columns, n, out);                                         \
    }
#define ADD_PANELS(n)                                                                                                  \
    ADD_PANEL(n, 1)                                                                                                    \
    ADD_PANEL(n, 2)

ADD_PANELS(1)
ADD_PANELS(2)
ADD_PANELS(4)

#define TILE_OF(n)                                                                                                     \
    {                                                                                                                  \
        n,                                                                                                             \
        {                                                                                                              \
            {add_affine_##n##_1, add_e2m1_##n##_1},                                                                    \
            {                                                                                                          \
                add_affine_##n##_2, add_e2m1_##n##_2                                                                   \
            }                                                                                                          \
        }                                                                                                              \
    }
static const struct {
    int columns;
    add_panels_fn *add[2][2]; /* [passes - 1][e2m1] */
} tiles[] = {TILE_OF(4), TILE_OF(2), TILE_OF(1)};

typedef void stream_fn(const pm_weight *w, int first, int last, const pm_columns *columns, int i,
                       const pm_results *results);

/* What multiplies matrices of a shape. */
typedef struct functions {
    stream_fn *stream;
    int passes;
} functions;

/* `rows` (up to PANELS * ROWS) rows times n (up to COLUMNS) columns from column `from` on. */
NOINLINE void multiply_panels(const functions *f, const pm_weight *w, int row, int rows, const pm_columns *columns,
                              int from, int n, const pm_results *results)
{
    pm_panel p[PANELS];
    pm_running sums[PANELS][COLUMNS];
    pm_column x[COLUMNS];
    pm_fill_fn *fill = pm_fill_of(w);
    bool e2m1 = w->format != PM_FORMAT_AFFINE;
    size_t in = (size_t)w->in, group = (size_t)w->group, groups = in / group;
    for (int h = 0; h < PANELS; h++)
        memset(sums[h], 0, (size_t)n * sizeof(*sums[h]));
    for (int c = 0; c < n; c++)
        x[c] = pm_column_at(columns, from + c, in, groups);
    for (size_t k = 0; k < in; k += DEPTH) {
        size_t depth = in - k < DEPTH ? in - k : DEPTH;
        for (int h = 0; h < PANELS; h++)
            fill(w, row + h * ROWS, pm_rows_within(rows - h * ROWS), (int)k, (int)depth, &p[h]);
        for (int c = 0, i = 0; c < n; c += tiles[i].columns) {
            while (tiles[i].columns > n - c)
                i++;
            tiles[i].add[f->passes - 1][e2m1](p, pm_planes_of(e2m1 ? 4 : w->bits), w->group, depth / group, k,
                                              k / group, x + c, sums[0] + c);
        }
    }
    for (int h = 0; h * ROWS < rows; h++)
        for (int c = 0; c < n; c++)
            pm_put_rows(&sums[h][c], from + c, row + h * ROWS, pm_rows_within(rows - h * ROWS), results);
}

/* ---- all rows and columns ---- */

static void multiply(const functions *f, const pm_weight *w, int first, int last, const pm_columns *columns,
                     const pm_results *results)
{
    if (columns->n <= FEW) {
        for (int i = 0; i < columns->n; i++)
            f->stream(w, first, last, columns, i, results);
        return;
    }
    for (int from = 0; from < columns->n; from += COLUMNS)
        for (int row = first; row < last; row += PANELS * ROWS)
            multiply_panels(f, w, row, last - row < PANELS * ROWS ? last - row : PANELS * ROWS, columns, from,
                            columns->n - from < COLUMNS ? columns->n - from : COLUMNS, results);
}

#define FILL(name, bits, e2m1)                                                                                         \
    NOINLINE void fill_##name(const pm_weight *w, int row, int rows, int k, int n, pm_panel *out)                      \
    {                                                                                                                  \
        if ((bits) == 4 && w->group == 64) /* the commonest */                                                         \
            fill_weights(w, bits, 64, e2m1, row, rows, k, n, out);                                                     \
        else                                                                                                           \
            fill_weights(w, bits, w->group, e2m1, row, rows, k, n, out);                                               \
        fill_scales(w, e2m1, row, rows, k, out);                                                                       \
    }
#define STREAM(name, bits, group, e2m1, passes)                                                                        \
    NOINLINE void stream_##name##_##group##_##passes(const pm_weight *w, int first, int last,                          \
                                                     const pm_columns *columns, int i, const pm_results *results)      \
    {                                                                                                                  \
        stream(w, (shape){bits, group, e2m1, passes}, first, last, columns, i, results);                               \
    }
#define AFFINE_PASSES(bits, passes)                                                                                    \
    STREAM(bits, bits, 32, false, passes)                                                                              \
    STREAM(bits, bits, 64, false, passes)                                                                              \
    STREAM(bits, bits, 128, false, passes)                                                                             \
    static void affine_##bits##_##passes(const pm_weight *w, int first, int last, const pm_columns *columns,           \
                                         const pm_results *results)                                                    \
    {                                                                                                                  \
        static const functions of[] = {{stream_##bits##_32_##passes, passes},                                          \
                                       {stream_##bits##_64_##passes, passes},                                          \
                                       {stream_##bits##_128_##passes, passes}};                                        \
        multiply(&of[w->group / 64], w, first, last, columns, results);                                                \
    }
#define AFFINE(bits)                                                                                                   \
    FILL(bits, bits, false)                                                                                            \
    AFFINE_PASSES(bits, 1)                                                                                             \
    AFFINE_PASSES(bits, 2)
#define E2M1(passes)                                                                                                   \
    STREAM(e2m1, 4, 16, true, passes)                                                                                  \
    STREAM(e2m1, 4, 32, true, passes)                                                                                  \
    static void e2m1_##passes(const pm_weight *w, int first, int last, const pm_columns *columns,                      \
                              const pm_results *results)                                                               \
    {                                                                                                                  \
        static const functions of[] = {{stream_e2m1_16_##passes, passes}, {stream_e2m1_32_##passes, passes}};          \
        multiply(&of[w->group / 32], w, first, last, columns, results);                                                \
    }

AFFINE(2)
AFFINE(3)
AFFINE(4)
AFFINE(5)
AFFINE(6)
AFFINE(8)
FILL(e2m1, 4, true)
E2M1(1)
E2M1(2)

pm_fill_fn *pm_fill_of(const pm_weight *w)
{
    static pm_fill_fn *const affine[PM_MAX_BITS + 1] = {
        [2] = fill_2, [3] = fill_3, [4] = fill_4, [5] = fill_5, [6] = fill_6, [8] = fill_8};
    return w->format == PM_FORMAT_AFFINE ? affine[w->bits] : fill_e2m1;
}

#define QUANTISED(passes)                                                                                              \
    {                                                                                                                  \
        .affine = {[2] = {affine_2_##passes, PM_LAYOUT_BYTES4},  [3] = {affine_3_##passes, PM_LAYOUT_BYTES16},         \
                   [4] = {affine_4_##passes, PM_LAYOUT_BYTES2},  [5] = {affine_5_##passes, PM_LAYOUT_BYTES16},         \
                   [6] = {affine_6_##passes, PM_LAYOUT_BYTES16}, [8] = {affine_8_##passes, PM_LAYOUT_BYTES16}},        \
        .e2m1 = {                                                                                                      \
            e2m1_##passes,                                                                                             \
            PM_LAYOUT_BYTES2                                                                                           \
        }                                                                                                              \
    }

const pm_matrix_kernels pm_matrix_avx512 = {
    .multiply = {[PM_FORMAT_F32] = pm_multiply_f32_avx512,
                 [PM_FORMAT_F16] = pm_multiply_f16_avx512,
                 [PM_FORMAT_BF16] = pm_multiply_bf16_avx512,
                 [PM_FORMAT_MXFP8] = pm_multiply_mxfp8_avx512,
                 [PM_FORMAT_FP8] = pm_multiply_fp8_avx512},
    .quantised = {[PM_PRECISION_EXACT] = QUANTISED(2), [PM_PRECISION_FAST] = QUANTISED(1)},
    .rms_norm = pm_rms_norm_lanes,
    .quantise = pm_quantise_avx512,
    .swiglu = pm_swiglu_lanes,
    .dequantise = pm_dequantise_lanes,
    .add_scaled = pm_add_scaled_lanes,
};

#endif
