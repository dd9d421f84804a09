/* What the operations that attend to cached rows share: rope, appending to the cache, and folding blocks of keys into
 * queries by an online softmax (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"). */
#ifndef PM_ATTEND_H
#define PM_ATTEND_H

#include "backend/cpu/mixer.h"

enum {
    PM_TILE_ROWS = 32, /* queries (tokens times heads) that share the reading of a block */
    /* Elements between rows of a widened block wider than PM_NARROW: a power of two apart, rows would compete for the
     * same few lines of the cache. */
    PM_ROW_PAD = 16,
    PM_NARROW = 64
};

/* ---- rope ---- */

/* [sine, cosine][pairs] of a position. */
void pm_rope_sines(const pm_rope *rope, int64_t position, float *sines);

/* Turns the pairs of one head in place; every product and sum is rounded, as the references do. */
void pm_rope_turn(const pm_rope *rope, const float *sines, float *x);

/* Turns them the other way. */
void pm_rope_turn_back(const pm_rope *rope, const float *sines, float *x);

/* ---- appending ---- */

/* Room in slot `slot` of every segment, before anything is written. */
int pm_append_reserve(const pm_batch *batch, int slot, int layer, pm_error *err);

/* Writes one vector of the cache. */
void pm_append_store(const pm_cpu *cpu, const pm_rows *rows, int64_t row, int plane, const float *x);

/* Reads one: `from` is a pm_rows_vector. */
void pm_vector_load(const pm_cpu *cpu, const pm_rows *rows, const void *from, float *x);

/* Refuses bits of magnitudes when the cache's type cannot hold them: in f16 what rounds to infinity, in q8 from 2^127
 * on, in all what is not finite. */
int pm_check_stored(uint32_t largest, pm_kv_type type, int layer, pm_error *err);

/* Refuses what the cache's type cannot hold, as pm_check_stored. `largest`: [tokens] bits of the largest magnitude that
 * each appended. Otherwise the rows count from now on. */
int pm_append_finish(const pm_batch *batch, int slot, const uint32_t *largest, int layer, pm_error *err);

/* ---- chosen rows ---- */

struct pm_indices {
    int top_k;
    int32_t *count; /* [max_tokens] */
    int32_t *rows;  /* [max_tokens, top_k], ascending */
};

/* ---- tiles and folding ---- */

/* Neighbouring tokens of a segment. */
typedef struct pm_tile {
    const pm_segment *segment;
    int first, n; /* rows of the batch */
} pm_tile;

/* Cuts the batch into tiles of at most `tokens`; returns how many. At most n_tokens / tokens + n_segments. */
int pm_make_tiles(const pm_batch *batch, int tokens, pm_tile *tiles);

/* A query of a tile. */
typedef struct pm_query {
    float max, sum, correction; /* of the online softmax */
    int from, to;               /* the keys of the current block that it sees */
} pm_query;

/* Where a worker keeps what it is working on: n queries. */
typedef struct pm_bench {
    int key_dim, value_dim;
    pm_query *queries;              /* [n] */
    float *q;                       /* [n, key_dim] */
    float *acc;                     /* [n, value_dim] */
    float (*scores)[PM_BLOCK_ROWS]; /* [n] */
} pm_bench;

/* Lays a bench of n queries (dims set) out at `base` (NULL: nowhere) from *at on, which moves on. */
void pm_bench_layout(pm_bench *bench, int n, char *base, size_t *at);

/* Nothing folded yet into n queries. */
void pm_bench_clear(pm_bench *bench, int n);

/* Bytes of a block of rows of `dim` elements as f32, with the padding. */
size_t pm_block_bytes(int dim);

/* `n` rows of a plane as f32, *stride elements apart: in place, or widened into `room` (pm_block_bytes). */
const float *pm_block_rows(const pm_cpu *cpu, const pm_rows *rows, int64_t block, int plane, int n, float *room,
                           size_t *stride);

/* Folds a block of keys and values into n queries, each the rows [from, to) that it sees. */
void pm_fold(const pm_cpu *cpu, const pm_bench *bench, int n, float scale, const float *k, const float *v,
             size_t stride);

#endif
