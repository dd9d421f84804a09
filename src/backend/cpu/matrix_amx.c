/* Quantised matrices for AMX, and the table of kernels of that level: those of AVX-512, but for affine matrices with
 * groups of 64 or more times many columns, whose exact int32 sums over a group come from tiles.
 *
 * A panel of weights (pm_panel) is a row of tiles as it is: 16 rows of 16 times 4 bytes, a row of the matrix a lane. x
 * becomes tiles of 64 elements of 16 columns. Those of a group, its high and its low bytes, stay in registers while
 * panel after panel meets them. The products are the least of it: tiles must be loaded and stored, and the 16 by 16
 * sums of a group become floats and are multiplied and added twice. So the sums of one panel are stored and folded
 * while the next are multiplied. Smaller groups, which fill tiles in part, are faster without. */
#if defined(__x86_64__)

#include "backend/cpu/matrix_avx512.h"

enum {
    BLOCK = 16,    /* columns of a tile */
    COLUMNS = 128, /* that share panels */
    MANY = 8,      /* panels that share x as tiles, an even number */
    FEWEST = 16,   /* columns that are worth tiles */
    STRIDE = 64,   /* of tiles in panels and of sums */
    WIDTH = 64,    /* of a tile of x */
    TILE = WIDTH * BLOCK,
    LANES = DEPTH / WIDTH
};

/* Elements [k, k + DEPTH), or fewer, of 16 columns. */
typedef struct block {
    _Alignas(64) int8_t x[2 * DEPTH * BLOCK]; /* for each group its tiles, each one of high and one of low bytes */
    float scale[BLOCK][LANES], sum[BLOCK][LANES];
} block;

/* The running sums of 16 columns for a panel. */
typedef struct totals {
    pm_running column[BLOCK];
} totals;

/* The sums of a group in a panel: of high and of low bytes, a row of the tile a column. */
typedef struct sums {
    _Alignas(64) int32_t tile[2][BLOCK][ROWS];
} sums;

/* ---- x as tiles ---- */

/* `groups` groups of the bytes of a column to its row of the tiles, in the order of panels: from plane to plane, `part`
 * bytes of each. Tiles are `step` apart. */
INLINE void pack_bytes(const int8_t *from, int planes, size_t part, size_t first, size_t groups, size_t step,
                       int8_t *to)
{
    const size_t group = part * (size_t)planes, across = (size_t)planes * 64;
    for (size_t j = 0; j < groups; j++) {
        const size_t k = (first + j) * group, place = k / across * across + k % across / (size_t)planes;
        for (size_t plane = 0; plane < (size_t)planes; plane++) {
            const size_t at = j * group + plane * part;
            memcpy(to + at / WIDTH * step + at % WIDTH, from + place + plane * 64, part);
        }
    }
}

/* The same of groups of 64 in 2 planes, from a whole block of 128 on. */
INLINE void pack_pairs(const int8_t *from, size_t first, size_t groups, size_t step, int8_t *to)
{
    for (size_t j = 0; j < groups; j += 2, to += 2 * step) {
        const __m512i a = _mm512_loadu_si512(from + (first + j) * 64);
        const __m512i b = _mm512_loadu_si512(from + (first + j) * 64 + 64);
        _mm512_store_si512(to, _mm512_shuffle_i64x2(a, b, 0x44));
        _mm512_store_si512(to + step, _mm512_shuffle_i64x2(a, b, 0xee));
    }
}

/* The groups [g, g + groups) of n columns from column `from` on. */
INLINE void pack_block(const pm_weight *w, int planes, size_t part, int passes, size_t g, size_t groups,
                       const pm_columns *columns, int from, int n, block *to)
{
    const size_t group = part * (size_t)planes, step = (size_t)passes * TILE;
    const __mmask8 lanes = (__mmask8)((1u << groups) - 1);
    for (int c = 0; c < n; c++) {
        const pm_column x = pm_column_at(columns, from + c, (size_t)w->in, (size_t)w->in / group);
        for (int pass = 0; pass < passes; pass++) {
            const int8_t *bytes = pass ? x.low : x.high;
            int8_t *out = to->x + c * WIDTH + pass * TILE;
            if (group == 64 && planes == 2)
                pack_pairs(bytes, g, groups, step, out);
            else
                pack_bytes(bytes, planes, part, g, groups, step, out);
        }
        _mm256_store_ps(to->scale[c], _mm256_maskz_loadu_ps(lanes, x.scale + g));
        _mm256_store_ps(to->sum[c], _mm256_maskz_loadu_ps(lanes, x.sum + g));
    }
}

NOINLINE void pack(const pm_weight *w, int passes, size_t g, size_t groups, const pm_columns *columns, int from, int n,
                   block *to)
{
    const int planes = pm_planes_of(w->bits), part = w->group / planes;
    if (part == 64)
        pack_block(w, 2, 64, passes, g, groups, columns, from, n, to);
    else if (part == 16)
        pack_block(w, 4, 16, passes, g, groups, columns, from, n, to);
    else if (planes == 2)
        pack_block(w, 2, 32, passes, g, groups, columns, from, n, to);
    else
        pack_block(w, 4, 32, passes, g, groups, columns, from, n, to);
}

/* ---- tiles ---- */

/* Tiles 0 and 1 of x, 2 and 3 of weights, 4 to 7 of sums. */
static const struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} config = {.palette = 1,
            .bytes = {WIDTH, WIDTH, STRIDE, STRIDE, STRIDE, STRIDE, STRIDE, STRIDE},
            .rows = {BLOCK, BLOCK, WIDTH / 4, WIDTH / 4, BLOCK, BLOCK, BLOCK, BLOCK}};

/* Adds sums of group j of n columns to the running ones. */
INLINE void add_sums(int passes, const pm_panel *p, const block *x, size_t j, const sums *from, int n, totals *to)
{
    const __m512 scale = p->scale[p->first + j], bias = p->bias[p->first + j];
#pragma GCC unroll 4
    for (int c = 0; c < n; c++) {
        __m512i whole = _mm512_load_si512(from->tile[0][c]);
        if (passes == 2)
            whole = _mm512_add_epi32(_mm512_slli_epi32(whole, 8), _mm512_load_si512(from->tile[1][c]));
        const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(x->scale[c][j]));
        __m512 *acc = &to->column[c].acc[j % 4];
        const __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), factor, *acc);
        *acc = _mm512_fmadd_ps(bias, _mm512_set1_ps(x->sum[c][j]), sum);
    }
}

/* The tiles of 64 elements of x. */
INLINE void load_x(int passes, const int8_t *tiles)
{
    _tile_loadd(0, tiles, WIDTH);
    if (passes == 2)
        _tile_loadd(1, tiles + TILE, WIDTH);
}

/* The sums of a group of 64 or 128 into the tiles `high` and `low`, from `panel` on and x, whose first tiles are
 * loaded. What `last_high` and `last_low` hold is stored on the way: zeroing, multiplying and storing in turn take half
 * as long as each for all tiles. */
#define MULTIPLY(weights, high, low, last_high, last_low)                                                              \
    do {                                                                                                               \
        _tile_loadd(weights, panel, STRIDE);                                                                           \
        _tile_zero(high);                                                                                              \
        _tile_dpbsud(high, 0, weights);                                                                                \
        _tile_stored(last_high, room.tile[0], STRIDE);                                                                 \
        if (passes == 2) {                                                                                             \
            _tile_zero(low);                                                                                           \
            _tile_dpbsud(low, 1, weights);                                                                             \
            _tile_stored(last_low, room.tile[1], STRIDE);                                                              \
        }                                                                                                              \
        if (group == 128) {                                                                                            \
            load_x(passes, tiles + step);                                                                              \
            _tile_loadd(weights, panel + WIDTH / 4, STRIDE);                                                           \
            _tile_dpbsud(high, 0, weights);                                                                            \
            if (passes == 2)                                                                                           \
                _tile_dpbsud(low, 1, weights);                                                                         \
            load_x(passes, tiles);                                                                                     \
        }                                                                                                              \
    } while (0)

/* `groups` groups of `panels` panels, an even number, times n columns. */
INLINE void add_block(int group, int passes, const pm_panel *p, int panels, const block *x, size_t groups, int n,
                      totals *to)
{
    const size_t step = (size_t)passes * TILE;
    const int last = panels - 1;
    sums room;
    for (size_t j = 0; j < groups; j++) {
        const int8_t *tiles = x->x + j * (size_t)(group / WIDTH) * step;
        load_x(passes, tiles);
        for (int h = 0; h < panels; h += 2) {
            const __m512i *panel = p[h].w + j * (size_t)group / 4;
            MULTIPLY(2, 4, 5, 6, 7);
            if (h)
                add_sums(passes, p + h - 1, x, j, &room, n, to + h - 1);
            else if (j)
                add_sums(passes, p + last, x, j - 1, &room, n, to + last);
            panel = p[h + 1].w + j * (size_t)group / 4;
            MULTIPLY(3, 6, 7, 4, 5);
            add_sums(passes, p + h, x, j, &room, n, to + h);
        }
    }
    _tile_stored(6, room.tile[0], STRIDE);
    if (passes == 2)
        _tile_stored(7, room.tile[1], STRIDE);
    add_sums(passes, p + last, x, groups - 1, &room, n, to + last);
}

typedef void add_block_fn(const pm_panel *p, int panels, const block *x, size_t groups, int n, totals *to);

#define ADD_BLOCK(group, passes)                                                                                       \
    NOINLINE void add_##group##_##passes(const pm_panel *p, int panels, const block *x, size_t groups, int n,          \
                                         totals *to)                                                                   \
    {                                                                                                                  \
        if (n == BLOCK)                                                                                                \
            add_block(group, passes, p, panels, x, groups, BLOCK, to);                                                 \
        else                                                                                                           \
            add_block(group, passes, p, panels, x, groups, n, to);                                                     \
    }
ADD_BLOCK(64, 1)
ADD_BLOCK(64, 2)
ADD_BLOCK(128, 1)
ADD_BLOCK(128, 2)

/* ---- all rows and columns ---- */

/* `rows` (up to MANY * ROWS) rows times n (up to COLUMNS) columns from column `from` on. */
NOINLINE void multiply_part(const pm_weight *w, int passes, int row, int rows, const pm_columns *columns, int from,
                            int n, const pm_results *results)
{
    totals sum[COLUMNS / BLOCK][MANY];
    pm_panel p[MANY];
    block x;
    pm_fill_fn *fill = pm_fill_of(w);
    add_block_fn *add = w->group == 64 ? passes == 1 ? add_64_1 : add_64_2 : passes == 1 ? add_128_1 : add_128_2;
    const int panels = (rows + 2 * ROWS - 1) / (2 * ROWS) * 2;
    for (int c = 0; c < n; c += BLOCK)
        memset(sum[c / BLOCK], 0, (size_t)panels * sizeof(**sum));
    for (int k = 0; k < w->in; k += DEPTH) {
        const int depth = w->in - k < DEPTH ? w->in - k : DEPTH;
        const size_t g = (size_t)(k / w->group), groups = (size_t)(depth / w->group);
        for (int h = 0; h < panels; h++)
            fill(w, row + h * ROWS, pm_rows_within(rows - h * ROWS), k, depth, &p[h]);
        for (int c = 0; c < n; c += BLOCK) {
            const int block_columns = n - c < BLOCK ? n - c : BLOCK;
            pack(w, passes, g, groups, columns, from + c, block_columns, &x);
            __asm__ volatile("" ::: "memory"); /* compilers do not know that loading a tile reads memory */
            add(p, panels, &x, groups, block_columns, sum[c / BLOCK]);
        }
    }
    for (int c = 0; c < n; c++)
        for (int h = 0; h * ROWS < rows; h++)
            pm_put_rows(&sum[c / BLOCK][h].column[c % BLOCK], from + c, row + h * ROWS, pm_rows_within(rows - h * ROWS),
                        results);
}

static void multiply(const pm_weight *w, pm_precision precision, int first, int last, const pm_columns *columns,
                     const pm_results *results)
{
    const int n = columns->n, parts = (n + COLUMNS - 1) / COLUMNS;
    if (n < FEWEST || w->format != PM_FORMAT_AFFINE || w->group < 64) {
        const pm_quantised_kernels *few = &pm_matrix_avx512.quantised[precision];
        (w->format == PM_FORMAT_AFFINE ? few->affine[w->bits] : few->e2m1).multiply(w, first, last, columns, results);
        return;
    }
    const int step = (n + parts * BLOCK - 1) / (parts * BLOCK) * BLOCK;
    _tile_loadconfig(&config);
    for (int row = first; row < last; row += MANY * ROWS)
        for (int from = 0; from < n; from += step)
            multiply_part(w, precision == PM_PRECISION_EXACT ? 2 : 1, row,
                          last - row < MANY * ROWS ? last - row : MANY * ROWS, columns, from,
                          n - from < step ? n - from : step, results);
    _tile_release();
}

static void multiply_exact(const pm_weight *w, int first, int last, const pm_columns *columns,
                           const pm_results *results)
{
    multiply(w, PM_PRECISION_EXACT, first, last, columns, results);
}

static void multiply_fast(const pm_weight *w, int first, int last, const pm_columns *columns, const pm_results *results)
{
    multiply(w, PM_PRECISION_FAST, first, last, columns, results);
}

#define QUANTISED(multiply)                                                                                            \
    {                                                                                                                  \
        .affine = {[2] = {multiply, PM_LAYOUT_BYTES4},  [3] = {multiply, PM_LAYOUT_BYTES16},                           \
                   [4] = {multiply, PM_LAYOUT_BYTES2},  [5] = {multiply, PM_LAYOUT_BYTES16},                           \
                   [6] = {multiply, PM_LAYOUT_BYTES16}, [8] = {multiply, PM_LAYOUT_BYTES16}},                          \
        .e2m1 = {                                                                                                      \
            multiply,                                                                                                  \
            PM_LAYOUT_BYTES2                                                                                           \
        }                                                                                                              \
    }

const pm_matrix_kernels pm_matrix_amx = {
    .multiply = {[PM_FORMAT_F32] = pm_multiply_f32_avx512,
                 [PM_FORMAT_F16] = pm_multiply_f16_avx512,
                 [PM_FORMAT_BF16] = pm_multiply_bf16_avx512,
                 [PM_FORMAT_MXFP8] = pm_multiply_mxfp8_avx512,
                 [PM_FORMAT_FP8] = pm_multiply_fp8_avx512},
    .quantised = {[PM_PRECISION_EXACT] = QUANTISED(multiply_exact), [PM_PRECISION_FAST] = QUANTISED(multiply_fast)},
    .rms_norm = pm_rms_norm_lanes,
    .quantise = pm_quantise_avx512,
    .swiglu = pm_swiglu_lanes,
    .dequantise = pm_dequantise_lanes,
    .add_scaled = pm_add_scaled_lanes,
};

#endif
