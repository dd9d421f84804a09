/* Causal grouped-query attention over the cache.
 *
 * The keys a token sees are folded block by block, by absolute position, with a running maximum and sum (Milakov and
 * Gimelshein 2018, "Online normalizer calculation for softmax"), so that a token's result depends on its position and
 * the cache's content alone: not on the chunk or the batch it came in, nor on how the work was spread. */
#include "backend/cpu/attend.h"

/* ---- scalar kernels ---- */

void pm_scalar_widen(const uint16_t *from, float *to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = pm_from_f16(from[i]);
}

void pm_scalar_narrow(const float *from, uint16_t *to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = pm_to_f16(from[i]);
}

void pm_scalar_pack(const float *from, void *to, int n)
{
    int groups = (n + PM_KV_GROUP - 1) / PM_KV_GROUP;
    int8_t *q = (int8_t *)to + (size_t)groups * sizeof(float);
    for (int g = 0; g < groups; g++, from += PM_KV_GROUP, q += PM_KV_GROUP, n -= PM_KV_GROUP) {
        int count = n < PM_KV_GROUP ? n : PM_KV_GROUP;
        float scale, factor;
        bool fits = pm_q8_group(pm_largest_bits(from, count, 0), &scale, &factor);
        memcpy((char *)to + (size_t)g * sizeof scale, &scale, sizeof scale);
        for (int i = 0; i < count; i++)
            q[i] = fits ? (int8_t)lrintf(from[i] * factor) : 0;
    }
}

void pm_scalar_unpack(const void *from, float *to, int n)
{
    const int8_t *q = (const int8_t *)from + pm_kv_bytes(PM_KV_Q8, n) - (size_t)n;
    for (int i = 0; i < n; i++) {
        float scale;
        memcpy(&scale, (const char *)from + (size_t)(i / PM_KV_GROUP) * sizeof scale, sizeof scale);
        to[i] = scale * (float)q[i];
    }
}

void pm_scalar_scores(const float *q, const float *k, size_t stride, int dim, int n, float scale, float *scores)
{
    for (int j = 0; j < n; j++)
        scores[j] = scale * pm_dot(q, k + (size_t)j * stride, dim);
}

float pm_scalar_softmax(float scores[PM_BLOCK_ROWS], float *max, float *sum)
{
    float largest = *max;
    for (int j = 0; j < PM_BLOCK_ROWS; j++)
        largest = scores[j] > largest ? scores[j] : largest;
    for (int j = 0; j < PM_BLOCK_ROWS; j++)
        scores[j] = pm_exp(scores[j] - largest);
    float correction = pm_exp(*max - largest);
    *sum = fmaf(*sum, correction, pm_sum(scores, PM_BLOCK_ROWS));
    *max = largest;
    return correction;
}

void pm_scalar_mix(float *acc, float correction, const float *p, const float *v, size_t stride, int dim, int n)
{
    for (int d = 0; d < dim; d++) {
        float a = acc[d] * correction;
        for (int j = 0; j < n; j++)
            a = fmaf(p[j], v[(size_t)j * stride + (size_t)d], a);
        acc[d] = a;
    }
}

void pm_scalar_gate(float *x, const float *gate, int n)
{
    for (int i = 0; i < n; i++)
        x[i] *= pm_sigmoid(gate[i]);
}

/* ---- the operation ---- */

/* Where a worker keeps what it is working on. */
typedef struct bench {
    pm_bench fold;
    float *k, *v; /* [64, head_dim + padding]: a block as f32; k also holds a head while it is prepared */
} bench;

typedef struct attention_job {
    const pm_cpu *cpu;
    const pm_batch *batch;
    const pm_attention_args *args;
    const pm_tile *tiles;
    int n_tiles, parts; /* the query heads of a key head are cut into this many parts */
    float *sines;       /* [tokens, (sine, cosine), pairs] */
    uint32_t *largest;  /* [tokens]: bits of the largest magnitude that went into the cache */
    char *work;         /* [workers] */
    size_t work_bytes;
    int rows; /* of a bench: PM_TILE_ROWS, or the heads of a token when those are more */
} attention_job;

/* Lays a bench of `rows` queries out at `base` (NULL: nowhere); returns its bytes. */
static size_t bench_layout(const pm_attention_args *args, int rows, char *base, bench *b)
{
    size_t at = 0;
    b->fold = (pm_bench){.key_dim = args->head_dim, .value_dim = args->head_dim};
    pm_bench_layout(&b->fold, rows, base, &at);
    b->k = pm_take(base, &at, pm_block_bytes(args->head_dim));
    b->v = pm_take(base, &at, pm_block_bytes(args->head_dim));
    return at;
}

static bench bench_of(const attention_job *job, int worker)
{
    bench b;
    bench_layout(job->args, job->rows, job->work + (size_t)worker * job->work_bytes, &b);
    return b;
}

/* One query or key head of batch row `token`: norm, then rope. */
static void prepare_head(const attention_job *job, int token, const float *x, const pm_tensor *norm, float *out)
{
    const pm_attention_args *args = job->args;
    int dim = args->head_dim;
    if (norm) {
        float r = pm_rsqrt(job->cpu->mixer->dot(x, x, dim) / (float)dim + args->eps);
        for (int i = 0; i < dim; i++)
            out[i] = x[i] * r * norm->data[i];
    } else {
        memcpy(out, x, (size_t)dim * sizeof *out);
    }
    if (args->rope)
        pm_rope_turn(args->rope, job->sines + (size_t)token * 2 * (size_t)args->rope->pairs, out);
}

/* Sines of the tokens of tiles [first, last), and their keys and values into the cache. */
static void append_tiles(void *arg, int worker, int64_t first, int64_t last)
{
    const attention_job *job = arg;
    const pm_attention_args *args = job->args;
    int dim = args->head_dim, heads = args->kv_heads;
    float *head = bench_of(job, worker).k;
    for (const pm_tile *tile = job->tiles + first; tile < job->tiles + last; tile++) {
        const pm_rows *rows = tile->segment->rows[args->rows];
        for (int t = tile->first; t < tile->first + tile->n; t++) {
            int64_t position = tile->segment->pos + (t - tile->segment->first);
            uint32_t most = 0;
            if (args->rope)
                pm_rope_sines(args->rope, position, job->sines + (size_t)t * 2 * (size_t)args->rope->pairs);
            for (int h = 0; h < heads; h++) {
                size_t at = ((size_t)t * (size_t)heads + (size_t)h) * (size_t)dim;
                prepare_head(job, t, args->k->data + at, args->k_norm, head);
                pm_append_store(job->cpu, rows, position, h, head);
                pm_append_store(job->cpu, rows, position, heads + h, args->v->data + at);
                most = pm_largest_bits(args->v->data + at, dim, pm_largest_bits(head, dim, most));
            }
            job->largest[t] = most;
        }
    }
}

/* The queries of a tile: heads [head, head + n_heads) of each token; nothing folded yet. */
static void start_queries(const attention_job *job, bench *b, const pm_tile *tile, int head, int n_heads)
{
    const pm_attention_args *args = job->args;
    size_t dim = (size_t)args->head_dim, heads = (size_t)args->heads, stride = args->gated ? 2 * dim : dim;
    for (int r = 0; r < tile->n * n_heads; r++) {
        int t = tile->first + r / n_heads;
        const float *q = args->q->data + ((size_t)t * heads + (size_t)(head + r % n_heads)) * stride;
        prepare_head(job, t, q, args->q_norm, b->fold.q + (size_t)r * dim);
    }
    pm_bench_clear(&b->fold, tile->n * n_heads);
}

/* Their results: divided by the sum of weights, and gated. */
static void finish_queries(const attention_job *job, const bench *b, const pm_tile *tile, int head, int n_heads)
{
    const pm_attention_args *args = job->args;
    size_t dim = (size_t)args->head_dim, heads = (size_t)args->heads;
    for (int r = 0; r < tile->n * n_heads; r++) {
        size_t at = (size_t)(tile->first + r / n_heads) * heads + (size_t)(head + r % n_heads);
        float *out = args->out->data + at * dim, inverse = 1.0f / b->fold.queries[r].sum;
        for (size_t d = 0; d < dim; d++)
            out[d] = b->fold.acc[(size_t)r * dim + d] * inverse;
        if (args->gated)
            job->cpu->mixer->gate(out, args->q->data + at * 2 * dim + dim, (int)dim);
    }
}

/* Query heads [head, head + n_heads), which share key head `kv_head`, of the tile's tokens. */
static void attend(const attention_job *job, bench *b, const pm_tile *tile, int kv_head, int head, int n_heads)
{
    const pm_attention_args *args = job->args;
    const pm_rows *rows = tile->segment->rows[args->rows];
    int64_t begin = tile->segment->pos + (tile->first - tile->segment->first), end = begin + tile->n;
    int64_t oldest = args->window > 0 && begin >= args->window ? begin - args->window + 1 : 0;
    int n = tile->n * n_heads;

    start_queries(job, b, tile, head, n_heads);
    for (int64_t block = oldest / PM_BLOCK_ROWS; block * PM_BLOCK_ROWS < end; block++) {
        int64_t base = block * PM_BLOCK_ROWS;
        int filled = end - base < PM_BLOCK_ROWS ? (int)(end - base) : PM_BLOCK_ROWS;
        for (int r = 0; r < n; r++) {
            int64_t position = begin + r / n_heads, from = 0, to = position + 1 - base;
            if (args->window > 0 && position - args->window + 1 > base)
                from = position - args->window + 1 - base;
            b->fold.queries[r].from = from < PM_BLOCK_ROWS ? (int)from : PM_BLOCK_ROWS;
            b->fold.queries[r].to = to < PM_BLOCK_ROWS ? (int)to : PM_BLOCK_ROWS;
        }
        size_t stride;
        const float *k = pm_block_rows(job->cpu, rows, block, kv_head, filled, b->k, &stride);
        const float *v = pm_block_rows(job->cpu, rows, block, args->kv_heads + kv_head, filled, b->v, &stride);
        pm_fold(job->cpu, &b->fold, n, args->scale, k, v, stride);
    }
    finish_queries(job, b, tile, head, n_heads);
}

/* Items are (tile, key head, part). The longest come last in a segment; taken backwards they do not end the region. */
static void attend_items(void *arg, int worker, int64_t first, int64_t last)
{
    const attention_job *job = arg;
    const pm_attention_args *args = job->args;
    int64_t items = (int64_t)job->n_tiles * args->kv_heads * job->parts;
    int group = args->heads / args->kv_heads;
    bench b = bench_of(job, worker);
    for (int64_t i = first; i < last; i++) {
        int64_t item = items - 1 - i, part = item % job->parts, rest = item / job->parts;
        int kv_head = (int)(rest % args->kv_heads);
        int from = (int)(part * group / job->parts), to = (int)((part + 1) * group / job->parts);
        attend(job, &b, job->tiles + rest / args->kv_heads, kv_head, kv_head * group + from, to - from);
    }
}

/* Keys that the batch's tokens see, all together. */
static int64_t visible_keys(const pm_batch *batch, int window)
{
    int64_t keys = 0;
    for (int s = 0; s < batch->n_segments; s++) {
        int64_t end = batch->segments[s].pos + batch->segments[s].n;
        keys += batch->segments[s].n * (window > 0 && window < end ? window : end);
    }
    return keys;
}

int pm_cpu_attention(pm_backend *backend, const pm_batch *batch, const pm_attention_args *args, pm_error *err)
{
    if (batch->n_tokens < 1)
        return PM_OK;
    pm_cpu *cpu = (pm_cpu *)backend;
    int group = args->heads / args->kv_heads, tokens = group < PM_TILE_ROWS ? PM_TILE_ROWS / group : 1;
    attention_job job = {.cpu = cpu, .batch = batch, .args = args, .rows = tokens * group};
    job.work_bytes = bench_layout(args, job.rows, NULL, &(bench){0});

    int rc = pm_append_reserve(batch, args->rows, args->layer, err);
    if (rc != PM_OK)
        return rc;
    size_t most_tiles = (size_t)batch->n_tokens / (size_t)tokens + (size_t)batch->n_segments;
    size_t tile_bytes = pm_line(most_tiles * sizeof(pm_tile));
    size_t largest_bytes = pm_line((size_t)batch->n_tokens * sizeof(*job.largest));
    char *memory =
        pm_cpu_scratch(cpu, PM_SCRATCH_ATTEND, tile_bytes + largest_bytes + (size_t)pm_workers(cpu) * job.work_bytes);
    if (args->rope)
        job.sines = pm_cpu_scratch(cpu, PM_SCRATCH_ROPE,
                                   (size_t)batch->n_tokens * 2 * (size_t)args->rope->pairs * sizeof(float));
    if (!memory || (args->rope && !job.sines))
        return pm_fail_memory(err);
    pm_tile *tiles = (pm_tile *)memory;
    job.tiles = tiles;
    job.largest = (uint32_t *)(memory + tile_bytes);
    job.work = memory + tile_bytes + largest_bytes;
    job.n_tiles = pm_make_tiles(batch, tokens, tiles);

    int64_t row = (int64_t)args->kv_heads * args->head_dim;
    pm_run(cpu, job.n_tiles, pm_mixer_grain(tokens * (row * 4 + (args->rope ? 50 * args->rope->pairs : 0))),
           append_tiles, &job);
    rc = pm_append_finish(batch, args->rows, job.largest, args->layer, err);
    if (rc != PM_OK)
        return rc;

    int64_t items = (int64_t)job.n_tiles * args->kv_heads;
    int64_t cost = visible_keys(batch, args->window) * args->heads * args->head_dim;
    job.parts = pm_group_parts(cpu, items, group, cost);
    items *= job.parts;
    pm_run(cpu, items, pm_mixer_grain(cost / items), attend_items, &job);
    return PM_OK;
}
