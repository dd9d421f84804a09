/* The lightning indexer: scores of all rows that a token sees, and the best of them. */
#include "backend/cpu/attend.h"

#include <stdlib.h>

enum {
    TILE_TOKENS = 8,      /* tokens that share the widening of a block */
    CHUNK_BLOCKS = 16,    /* blocks of keys in a piece of work */
    SCORES_MOST = 1 << 22 /* scores kept at a time: tokens are taken in slices of about so many */
};

/* ---- the choice ---- */

int pm_cpu_indices_new(pm_backend *backend, int max_tokens, int top_k, pm_indices **out, pm_error *err)
{
    (void)backend;
    size_t rows;
    if (max_tokens < 1 || top_k < 1)
        return pm_fail(err, PM_ERR_INVALID, "indices of %d rows for %d tokens are not possible", top_k, max_tokens);
    if (!pm_mul((size_t)max_tokens, (size_t)top_k, &rows))
        return pm_fail_memory(err);
    pm_indices *indices = calloc(1, sizeof *indices);
    if (!indices)
        return pm_fail_memory(err);
    indices->top_k = top_k;
    indices->count = calloc((size_t)max_tokens, sizeof *indices->count);
    indices->rows = calloc(rows, sizeof *indices->rows);
    if (!indices->count || !indices->rows) {
        pm_cpu_indices_free(backend, indices);
        return pm_fail_memory(err);
    }
    *out = indices;
    return PM_OK;
}

int pm_cpu_indices_read(const pm_indices *indices, int token, int32_t *out)
{
    int n = indices->count[token];
    memcpy(out, indices->rows + (size_t)token * (size_t)indices->top_k, (size_t)n * sizeof *out);
    return n;
}

void pm_cpu_indices_free(pm_backend *backend, pm_indices *indices)
{
    (void)backend;
    if (!indices)
        return;
    free(indices->count);
    free(indices->rows);
    free(indices);
}

/* A number whose order is that of scores; NaN comes first, and zeros are equal. */
static inline uint32_t order(float score)
{
    uint32_t u = pm_bits(score + 0.0f);
    if ((u & 0x7fffffff) > 0x7f800000)
        return 0;
    return u & 0x80000000 ? ~u : u | 0x80000000;
}

/* The top_k best of n > top_k scores, ascending; ties go to the lower row. The place of the last one taken is found by
 * its leading bits, then those that follow. */
static void choose(const float *scores, int n, int top_k, int32_t *out)
{
    enum { BITS = 11, BINS = 1 << BITS };
    uint32_t bins[BINS], limit = 0;
    int left = top_k; /* of those that share limit's bits so far, how many are taken */
    for (int shift = 32 - BITS, done = 0; done<32; done += BITS, shift = shift> BITS ? shift - BITS : 0) {
        int width = 32 - done < BITS ? 32 - done : BITS;
        memset(bins, 0, sizeof bins);
        for (int i = 0; i < n; i++) {
            uint32_t u = order(scores[i]);
            if (done == 0 || (u ^ limit) >> (shift + width) == 0)
                bins[u >> shift & ((1u << width) - 1)]++;
        }
        int bin = (1 << width) - 1;
        while (bin > 0 && bins[bin] < (uint32_t)left)
            left -= (int)bins[bin--];
        limit |= (uint32_t)bin << shift;
    }
    for (int i = 0; i < n; i++) {
        uint32_t u = order(scores[i]);
        if (u > limit || (u == limit && left-- > 0))
            *out++ = i;
    }
}

/* ---- scalar kernel ---- */

void pm_scalar_add_positive(float *acc, const float *x, float weight, int n)
{
    for (int i = 0; i < n; i++)
        acc[i] = fmaf(weight, x[i] > 0.0f ? x[i] : 0.0f, acc[i]);
}

/* ---- the operation ---- */

typedef struct index_tile {
    pm_tile tokens;
    int rows;  /* that its last token sees */
    size_t at; /* of its scores: [tokens, rows rounded up to blocks]; unused when nothing has to be chosen */
} index_tile;

typedef struct index_job {
    const pm_cpu *cpu;
    const pm_sparse_index_args *args;
    index_tile *tiles;
    int n_tiles, first_tile;     /* first: of the slice at hand */
    int chunks;                  /* of the longest tile of the slice */
    float *sines, *q;            /* [tokens, heads * head_dim] */
    uint32_t *largest, *queries; /* [tokens] bits of the largest magnitude of a key, and of queries and weights */
    float *scores;
    char *work; /* [workers]: a block as f32, scores of two heads */
    size_t work_bytes;
} index_job;

static int position_of(const pm_tile *tile, int token)
{
    return (int)(tile->segment->pos + (token - tile->segment->first));
}

/* Rows that the token sees. */
static int seen(const pm_sparse_index_args *args, const pm_tile *tile, int token)
{
    return (position_of(tile, token) + 1) / (args->k ? 1 : args->ratio);
}

static size_t padded(int rows)
{
    return ((size_t)rows + PM_BLOCK_ROWS - 1) / PM_BLOCK_ROWS * PM_BLOCK_ROWS;
}

/* Layer norm (Ba et al. 2016). */
static void layer_norm(const pm_cpu *cpu, const pm_sparse_index_args *args, const float *x, float *y)
{
    int n = args->head_dim;
    float mean = pm_sum(x, n) / (float)n;
    for (int i = 0; i < n; i++)
        y[i] = x[i] - mean;
    float r = pm_rsqrt(cpu->mixer->dot(y, y, n) / (float)n + args->eps);
    for (int i = 0; i < n; i++)
        y[i] = fmaf(y[i] * r, args->k_norm->data[i], args->k_norm_bias->data[i]);
}

static void append_key(const index_job *job, const pm_tile *tile, int t, const float *sines, float *key)
{
    const pm_sparse_index_args *args = job->args;
    layer_norm(job->cpu, args, args->k->data + (size_t)t * (size_t)args->head_dim, key);
    pm_rope_turn(args->rope, sines, key);
    pm_append_store(job->cpu, tile->segment->rows[args->rows], position_of(tile, t), 0, key);
    job->largest[t] = pm_largest_bits(key, args->head_dim, 0);
}

/* Keys of the tokens of tiles [first, last) into the cache, and their queries. */
static void prepare_tiles(void *arg, int worker, int64_t first, int64_t last)
{
    const index_job *job = arg;
    const pm_sparse_index_args *args = job->args;
    size_t dim = (size_t)args->head_dim, all = dim * (size_t)args->heads, pairs = (size_t)args->rope->pairs;
    float *key = (float *)(job->work + (size_t)worker * job->work_bytes);
    for (int64_t i = first; i < last; i++) {
        const pm_tile *tile = &job->tiles[i].tokens;
        for (int t = tile->first; t < tile->first + tile->n; t++) {
            float *sines = job->sines + (size_t)t * 2 * pairs, *q = job->q + (size_t)t * all;
            pm_rope_sines(args->rope, position_of(tile, t), sines);
            if (args->k)
                append_key(job, tile, t, sines, key);
            memcpy(q, args->q->data + (size_t)t * all, all * sizeof *q);
            for (int h = 0; h < args->heads; h++)
                pm_rope_turn(args->rope, sines, q + (size_t)h * dim);
            job->queries[t] = pm_largest_bits(args->weights->data + (size_t)t * (size_t)args->heads, args->heads,
                                              pm_largest_bits(q, (int)all, 0));
        }
    }
}

/* Scores of one block of keys for a token. */
static void score_block(const index_job *job, int t, const float *k, size_t stride, int n, float *of_heads, float *out)
{
    const pm_sparse_index_args *args = job->args;
    const pm_mixer_kernels *kernels = job->cpu->mixer;
    size_t dim = (size_t)args->head_dim, heads = (size_t)args->heads;
    memset(out, 0, (size_t)n * sizeof *out);
    for (size_t h = 0, step; h < heads; h += step) {
        const float *q = job->q + ((size_t)t * heads + h) * dim;
        const float *weights = args->weights->data + (size_t)t * heads + h;
        step = kernels->scores2 && h + 1 < heads ? 2 : 1;
        if (step == 2)
            kernels->scores2(q, dim, k, stride, args->head_dim, n, args->scale, of_heads);
        else
            kernels->scores(q, k, stride, args->head_dim, n, args->scale, of_heads);
        for (size_t i = 0; i < step; i++)
            kernels->add_positive(out, of_heads + i * PM_BLOCK_ROWS, weights[i] * args->weight_scale, n);
    }
}

/* Items are (tile of the slice, chunk of its blocks). */
static void score_items(void *arg, int worker, int64_t first, int64_t last)
{
    const index_job *job = arg;
    const pm_sparse_index_args *args = job->args;
    float *room = (float *)(job->work + (size_t)worker * job->work_bytes);
    float *of_heads = room + pm_block_bytes(args->head_dim) / sizeof(float);
    for (int64_t item = first; item < last; item++) {
        const index_tile *tile = job->tiles + job->first_tile + item / job->chunks;
        const pm_rows *rows = tile->tokens.segment->rows[args->rows];
        int64_t chunk = item % job->chunks, begin = chunk * CHUNK_BLOCKS * PM_BLOCK_ROWS;
        int64_t end =
            begin + CHUNK_BLOCKS * PM_BLOCK_ROWS < tile->rows ? begin + CHUNK_BLOCKS * PM_BLOCK_ROWS : tile->rows;
        if (tile->rows <= args->top_k)
            continue;
        for (int64_t base = begin; base < end; base += PM_BLOCK_ROWS) {
            int filled = end - base < PM_BLOCK_ROWS ? (int)(end - base) : PM_BLOCK_ROWS;
            size_t stride;
            const float *k = pm_block_rows(job->cpu, rows, base / PM_BLOCK_ROWS, 0, filled, room, &stride);
            for (int i = 0; i < tile->tokens.n; i++)
                score_block(job, tile->tokens.first + i, k, stride, filled, of_heads,
                            job->scores + tile->at + (size_t)i * padded(tile->rows) + (size_t)base);
        }
    }
}

static void choose_tiles(void *arg, int worker, int64_t first, int64_t last)
{
    const index_job *job = arg;
    (void)worker;
    const pm_sparse_index_args *args = job->args;
    pm_indices *out = args->out;
    for (int64_t item = first; item < last; item++) {
        const index_tile *tile = job->tiles + job->first_tile + item;
        for (int i = 0; i < tile->tokens.n; i++) {
            int t = tile->tokens.first + i, rows = seen(args, &tile->tokens, t);
            int32_t *list = out->rows + (size_t)t * (size_t)out->top_k;
            out->count[t] = rows < args->top_k ? rows : args->top_k;
            if (rows > args->top_k)
                choose(job->scores + tile->at + (size_t)i * padded(tile->rows), rows, args->top_k, list);
            else
                for (int row = 0; row < rows; row++)
                    list[row] = row;
        }
    }
}

/* Tiles of the batch, in slices: *end is the first tile after the slice that begins at `first`; returns its scores. */
static size_t slice(index_job *job, int first, int *end)
{
    size_t scores = 0;
    int last = first, longest = 0;
    for (; last < job->n_tiles; last++) {
        index_tile *tile = job->tiles + last;
        size_t more = tile->rows > job->args->top_k ? (size_t)tile->tokens.n * padded(tile->rows) : 0;
        if (last > first && scores + more > SCORES_MOST)
            break;
        tile->at = scores;
        scores += more;
        longest = tile->rows > longest ? tile->rows : longest;
    }
    job->first_tile = first;
    job->chunks = (longest + CHUNK_BLOCKS * PM_BLOCK_ROWS - 1) / (CHUNK_BLOCKS * PM_BLOCK_ROWS);
    *end = last;
    return scores;
}

static void make_tiles(const pm_batch *batch, index_job *job)
{
    for (int s = 0; s < batch->n_segments; s++) {
        const pm_segment *segment = batch->segments + s;
        for (int done = 0; done < segment->n; done += TILE_TOKENS) {
            int n = segment->n - done < TILE_TOKENS ? segment->n - done : TILE_TOKENS;
            index_tile *tile = &job->tiles[job->n_tiles++];
            tile->tokens = (pm_tile){segment, segment->first + done, n};
            tile->rows = seen(job->args, &tile->tokens, segment->first + done + n - 1);
        }
    }
}

/* Scratch memory for everything but the scores. */
static bool allocate(pm_cpu *cpu, const pm_batch *batch, index_job *job)
{
    const pm_sparse_index_args *args = job->args;
    size_t n = (size_t)batch->n_tokens, at = 0, tiles = n / TILE_TOKENS + (size_t)batch->n_segments;
    size_t all = n * (size_t)args->heads * (size_t)args->head_dim * sizeof(float);
    job->work_bytes = pm_line(pm_block_bytes(args->head_dim)) + 2 * PM_BLOCK_ROWS * sizeof(float);
    size_t bytes = pm_line(tiles * sizeof *job->tiles) + pm_line(all) + 2 * pm_line(n * sizeof *job->largest) +
                   (size_t)pm_workers(cpu) * job->work_bytes;
    char *memory = pm_cpu_scratch(cpu, PM_SCRATCH_ATTEND, bytes);
    job->sines = pm_cpu_scratch(cpu, PM_SCRATCH_ROPE, n * 2 * (size_t)args->rope->pairs * sizeof(float));
    if (!memory || !job->sines)
        return false;
    job->tiles = pm_take(memory, &at, tiles * sizeof *job->tiles);
    job->q = pm_take(memory, &at, all);
    job->largest = pm_take(memory, &at, n * sizeof *job->largest);
    job->queries = pm_take(memory, &at, n * sizeof *job->queries);
    job->work = memory + at;
    return true;
}

int pm_cpu_sparse_index(pm_backend *backend, const pm_batch *batch, const pm_sparse_index_args *args, pm_error *err)
{
    if (batch->n_tokens < 1)
        return PM_OK;
    pm_cpu *cpu = (pm_cpu *)backend;
    index_job job = {.cpu = cpu, .args = args};
    int rc = args->k ? pm_append_reserve(batch, args->rows, args->layer, err) : PM_OK;
    if (rc != PM_OK)
        return rc;
    for (int s = 0; s < batch->n_segments; s++)
        if (batch->segments[s].pos + batch->segments[s].n > INT32_MAX)
            return pm_fail(err, PM_ERR_LIMIT, "layer %d: more than %d rows cannot be indexed", args->layer, INT32_MAX);
    if (!allocate(cpu, batch, &job))
        return pm_fail_memory(err);
    make_tiles(batch, &job);
    int64_t query = (int64_t)args->heads * args->head_dim;
    pm_run(cpu, job.n_tiles, pm_mixer_grain(TILE_TOKENS * (2 * query + 50 * args->rope->pairs)), prepare_tiles, &job);
    for (int t = 0; t < batch->n_tokens; t++) /* a choice by scores that are NaN would not show in the logits */
        if (job.queries[t] >= 0x7f800000)
            return pm_fail(err, PM_ERR_NUMERIC, "layer %d: a query of the index is not finite", args->layer);
    rc = args->k ? pm_append_finish(batch, args->rows, job.largest, args->layer, err) : PM_OK;
    if (rc != PM_OK)
        return rc;
    for (int first = 0, end; first < job.n_tiles; first = end) {
        size_t scores = slice(&job, first, &end);
        job.scores = pm_cpu_scratch(cpu, PM_SCRATCH_INDEX, scores * sizeof(float));
        if (!job.scores)
            return pm_fail_memory(err);
        int64_t chunk = query * TILE_TOKENS * CHUNK_BLOCKS * PM_BLOCK_ROWS;
        if (scores)
            pm_run(cpu, (int64_t)(end - first) * job.chunks, pm_mixer_grain(chunk), score_items, &job);
        pm_run(cpu, end - first, scores ? 1 : pm_mixer_grain(TILE_TOKENS * (int64_t)args->top_k), choose_tiles, &job);
    }
    return PM_OK;
}
