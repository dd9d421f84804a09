/* Causal grouped-query attention over the cache.
 *
 * The keys a token sees are folded block by block, by absolute position, with a running maximum and sum (Milakov and
 * Gimelshein 2018, "Online normalizer calculation for softmax"), so that a token's result depends on its position and
 * the cache's content alone: not on the chunk or the batch it came in, nor on how the work was spread. */
#include "backend/cpu/mixer.h"

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

enum {
    TILE_ROWS = 32, /* queries (tokens times heads) that share the reading of a block */
    /* All queries of a tile use one part of a block before the next part is touched, so that it stays in the
     * first-level cache: keys of this many elements together, then this many columns of the values. */
    KEY_ELEMENTS = 4096,
    COLUMNS = 64,
    /* Elements between rows of a widened block beyond a head_dim greater than COLUMNS: a power of two apart, rows would
     * compete for the same few lines of the cache. */
    PAD = 16
};

/* Neighbouring tokens of a segment. */
typedef struct token_tile {
    const pm_segment *segment;
    int first, n; /* rows of the batch */
} token_tile;

/* A query of a tile. */
typedef struct tile_query {
    float max, sum, correction; /* of the online softmax */
    int from, to;               /* the keys of the current block that it sees */
} tile_query;

/* Where a worker keeps what it is working on; n is TILE_ROWS, or the heads of a token when those are more. */
typedef struct bench {
    tile_query *queries;            /* [n] */
    float *q, *acc;                 /* [n, head_dim] */
    float (*scores)[PM_BLOCK_ROWS]; /* [n] */
    float *k, *v;                   /* [64, head_dim + PAD]: a block as f32; k also holds a head while it is prepared */
} bench;

typedef struct attention_job {
    const pm_cpu *cpu;
    const pm_batch *batch;
    const pm_attention_args *args;
    const token_tile *tiles;
    int n_tiles, parts; /* the query heads of a key head are cut into this many parts */
    float *sines;       /* [tokens, (sine, cosine), pairs] */
    uint32_t *largest;  /* [tokens]: bits of the largest magnitude that went into the cache */
    char *work;         /* [workers] */
    size_t work_bytes;
    int rows; /* of a bench */
} attention_job;

/* Lays a bench of `rows` queries out at `base` (NULL: nowhere); returns its bytes. */
static size_t bench_layout(const pm_attention_args *args, int rows, char *base, bench *b)
{
    size_t at = 0, n = (size_t)rows, dim = (size_t)args->head_dim, block = PM_BLOCK_ROWS * (dim + PAD) * sizeof(float);
    b->queries = pm_take(base, &at, n * sizeof(*b->queries));
    b->q = pm_take(base, &at, n * dim * sizeof(float));
    b->acc = pm_take(base, &at, n * dim * sizeof(float));
    b->scores = pm_take(base, &at, n * sizeof(*b->scores));
    b->k = pm_take(base, &at, block);
    b->v = pm_take(base, &at, block);
    return at;
}

static bench bench_of(const attention_job *job, int worker)
{
    bench b;
    bench_layout(job->args, job->rows, job->work + (size_t)worker * job->work_bytes, &b);
    return b;
}

static void rope_sines(const pm_rope *rope, int64_t position, float *sines)
{
    for (int i = 0; i < rope->pairs; i++) {
        float sine, cosine;
        pm_sincos((float)position * rope->inv_freq[i], &sine, &cosine);
        sines[i] = sine * rope->scale;
        sines[rope->pairs + i] = cosine * rope->scale;
    }
}

/* Turns the pairs of one head in place; every product and sum is rounded, as the references do. */
static void rope_turn(const pm_rope *rope, const float *sines, float *x)
{
    int pairs = rope->pairs, step = rope->interleaved ? 2 : 1, apart = rope->interleaved ? 1 : pairs;
    const float *cosines = sines + pairs;
    for (int i = 0; i < pairs; i++) {
        float a = x[i * step], b = x[i * step + apart];
        x[i * step] = a * cosines[i] - b * sines[i];
        x[i * step + apart] = b * cosines[i] + a * sines[i];
    }
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
        rope_turn(args->rope, job->sines + (size_t)token * 2 * (size_t)args->rope->pairs, out);
}

/* Bits of the largest magnitude among x and `most`; for non-negative floats their order is that of their bits. */
static uint32_t largest_bits(const float *x, int n, uint32_t most)
{
    for (int i = 0; i < n; i++) {
        uint32_t u = pm_bits(x[i]) & 0x7fffffff;
        most = u > most ? u : most;
    }
    return most;
}

static void store(const attention_job *job, const pm_rows *rows, int64_t row, int plane, const float *x)
{
    size_t dim = (size_t)job->args->head_dim, at = (size_t)(row % PM_BLOCK_ROWS) * dim;
    void *to = pm_rows_plane(rows, row / PM_BLOCK_ROWS, plane);
    if (rows->type == PM_KV_F16)
        job->cpu->mixer->narrow(x, (uint16_t *)to + at, dim);
    else
        memcpy((float *)to + at, x, dim * sizeof *x);
}

/* Sines of the tokens of tiles [first, last), and their keys and values into the cache. */
static void append_tiles(void *arg, int worker, int64_t first, int64_t last)
{
    const attention_job *job = arg;
    const pm_attention_args *args = job->args;
    int dim = args->head_dim, heads = args->kv_heads;
    float *head = bench_of(job, worker).k;
    for (const token_tile *tile = job->tiles + first; tile < job->tiles + last; tile++) {
        const pm_rows *rows = tile->segment->rows[args->rows];
        for (int t = tile->first; t < tile->first + tile->n; t++) {
            int64_t position = tile->segment->pos + (t - tile->segment->first);
            uint32_t most = 0;
            if (args->rope)
                rope_sines(args->rope, position, job->sines + (size_t)t * 2 * (size_t)args->rope->pairs);
            for (int h = 0; h < heads; h++) {
                size_t at = ((size_t)t * (size_t)heads + (size_t)h) * (size_t)dim;
                prepare_head(job, t, args->k->data + at, args->k_norm, head);
                store(job, rows, position, h, head);
                store(job, rows, position, heads + h, args->v->data + at);
                most = largest_bits(args->v->data + at, dim, largest_bits(head, dim, most));
            }
            job->largest[t] = most;
        }
    }
}

/* `n` rows of a plane as f32, *stride elements apart: in place, or widened into `room`. */
static const float *block_rows(const attention_job *job, const pm_rows *rows, int64_t block, int plane, int n,
                               float *room, size_t *stride)
{
    const void *from = pm_rows_plane(rows, block, plane);
    size_t dim = (size_t)job->args->head_dim;
    *stride = dim;
    if (rows->type == PM_KV_F32)
        return from;
    if (dim <= COLUMNS) {
        job->cpu->mixer->widen(from, room, (size_t)n * dim);
        return room;
    }
    *stride = dim + PAD;
    for (size_t i = 0; i < (size_t)n; i++)
        job->cpu->mixer->widen((const uint16_t *)from + i * dim, room + i * *stride, dim);
    return room;
}

/* Folds a block into `n` queries, each the keys [from, to) that it sees. */
static void fold(const attention_job *job, bench *b, int n, const float *k, const float *v, size_t stride)
{
    const pm_mixer_kernels *kernels = job->cpu->mixer;
    int dim = job->args->head_dim, keys = KEY_ELEMENTS / dim;
    keys = keys > PM_BLOCK_ROWS ? PM_BLOCK_ROWS : keys < 4 ? 4 : keys;
    for (int first = 0; first < PM_BLOCK_ROWS; first += keys)
        for (int r = 0; r < n; r++) {
            const tile_query *query = b->queries + r;
            int from = query->from > first ? query->from : first;
            int to = query->to < first + keys ? query->to : first + keys;
            if (from < to)
                kernels->scores(b->q + (size_t)r * (size_t)dim, k + (size_t)from * stride, stride, dim, to - from,
                                job->args->scale, b->scores[r] + from);
        }
    for (int r = 0; r < n; r++) {
        tile_query *query = b->queries + r;
        if (query->from >= query->to)
            continue;
        for (int j = 0; j < PM_BLOCK_ROWS; j++)
            if (j < query->from || j >= query->to)
                b->scores[r][j] = -INFINITY;
        query->correction = kernels->softmax(b->scores[r], &query->max, &query->sum);
    }
    for (int d = 0; d < dim; d += COLUMNS)
        for (int r = 0; r < n; r++) {
            const tile_query *query = b->queries + r;
            if (query->from < query->to)
                kernels->mix(b->acc + (size_t)r * (size_t)dim + d, query->correction, b->scores[r] + query->from,
                             v + (size_t)query->from * stride + d, stride, dim - d < COLUMNS ? dim - d : COLUMNS,
                             query->to - query->from);
        }
}

/* The queries of a tile: heads [head, head + n_heads) of each token; nothing folded yet. */
static void start_queries(const attention_job *job, bench *b, const token_tile *tile, int head, int n_heads)
{
    const pm_attention_args *args = job->args;
    size_t dim = (size_t)args->head_dim, heads = (size_t)args->heads, stride = args->gated ? 2 * dim : dim;
    for (int r = 0; r < tile->n * n_heads; r++) {
        int t = tile->first + r / n_heads;
        const float *q = args->q->data + ((size_t)t * heads + (size_t)(head + r % n_heads)) * stride;
        prepare_head(job, t, q, args->q_norm, b->q + (size_t)r * dim);
        b->queries[r] = (tile_query){.max = -INFINITY};
    }
    memset(b->acc, 0, (size_t)(tile->n * n_heads) * dim * sizeof(float));
}

/* Their results: divided by the sum of weights, and gated. */
static void finish_queries(const attention_job *job, const bench *b, const token_tile *tile, int head, int n_heads)
{
    const pm_attention_args *args = job->args;
    size_t dim = (size_t)args->head_dim, heads = (size_t)args->heads;
    for (int r = 0; r < tile->n * n_heads; r++) {
        size_t at = (size_t)(tile->first + r / n_heads) * heads + (size_t)(head + r % n_heads);
        float *out = args->out->data + at * dim, inverse = 1.0f / b->queries[r].sum;
        for (size_t d = 0; d < dim; d++)
            out[d] = b->acc[(size_t)r * dim + d] * inverse;
        if (args->gated)
            job->cpu->mixer->gate(out, args->q->data + at * 2 * dim + dim, (int)dim);
    }
}

/* Query heads [head, head + n_heads), which share key head `kv_head`, of the tile's tokens. */
static void attend(const attention_job *job, bench *b, const token_tile *tile, int kv_head, int head, int n_heads)
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
            b->queries[r].from = from < PM_BLOCK_ROWS ? (int)from : PM_BLOCK_ROWS;
            b->queries[r].to = to < PM_BLOCK_ROWS ? (int)to : PM_BLOCK_ROWS;
        }
        size_t stride;
        const float *k = block_rows(job, rows, block, kv_head, filled, b->k, &stride);
        const float *v = block_rows(job, rows, block, args->kv_heads + kv_head, filled, b->v, &stride);
        fold(job, b, n, k, v, stride);
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

/* Room in every cache of the batch, before anything is written. */
static int reserve(const pm_batch *batch, const pm_attention_args *args, pm_error *err)
{
    for (int s = 0; s < batch->n_segments; s++) {
        const pm_segment *segment = batch->segments + s;
        pm_rows *rows = segment->rows[args->rows];
        if (segment->pos != rows->length)
            return pm_fail(err, PM_ERR_INVALID, "layer %d: the cache has %lld rows, but the next position is %lld",
                           args->layer, (long long)rows->length, (long long)segment->pos);
        int rc = pm_rows_reserve(rows, segment->n, err);
        if (rc != PM_OK)
            return rc;
    }
    return PM_OK;
}

/* Refuses what the cache's type cannot hold: in f16 what rounds to infinity, in both what is not finite. */
static int check_values(const attention_job *job, pm_error *err)
{
    for (int i = 0; i < job->n_tiles; i++) {
        const token_tile *tile = job->tiles + i;
        bool f16 = tile->segment->rows[job->args->rows]->type == PM_KV_F16;
        uint32_t limit = f16 ? 0x477ff000 /* 65520 */ : 0x7f800000;
        for (int t = tile->first; t < tile->first + tile->n; t++) {
            if (job->largest[t] < limit)
                continue;
            double value = (double)pm_from_bits(job->largest[t]);
            if (f16 && job->largest[t] < 0x7f800000)
                return pm_fail(err, PM_ERR_NUMERIC,
                               "layer %d: a key or value (%.3g) does not fit the f16 cache; use --kv-type f32",
                               job->args->layer, value);
            return pm_fail(err, PM_ERR_NUMERIC, "layer %d: a key or value (%.3g) is not finite", job->args->layer,
                           value);
        }
    }
    return PM_OK;
}

/* Cuts the batch into tiles; returns how many. */
static int make_tiles(const pm_batch *batch, int tokens, token_tile *tiles)
{
    int n = 0;
    for (int s = 0; s < batch->n_segments; s++) {
        const pm_segment *segment = batch->segments + s;
        for (int done = 0; done < segment->n; done += tokens, n++) {
            int left = segment->n - done;
            tiles[n] = (token_tile){segment, segment->first + done, left < tokens ? left : tokens};
        }
    }
    return n;
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
    int group = args->heads / args->kv_heads, tokens = group < TILE_ROWS ? TILE_ROWS / group : 1;
    attention_job job = {.cpu = cpu, .batch = batch, .args = args, .rows = tokens * group};
    job.work_bytes = bench_layout(args, job.rows, NULL, &(bench){0});

    int rc = reserve(batch, args, err);
    if (rc != PM_OK)
        return rc;
    size_t most_tiles = (size_t)batch->n_tokens / (size_t)tokens + (size_t)batch->n_segments;
    size_t tile_bytes = pm_line(most_tiles * sizeof(token_tile));
    size_t largest_bytes = pm_line((size_t)batch->n_tokens * sizeof(*job.largest));
    char *memory =
        pm_cpu_scratch(cpu, PM_SCRATCH_ATTEND, tile_bytes + largest_bytes + (size_t)pm_workers(cpu) * job.work_bytes);
    if (args->rope)
        job.sines = pm_cpu_scratch(cpu, PM_SCRATCH_ROPE,
                                   (size_t)batch->n_tokens * 2 * (size_t)args->rope->pairs * sizeof(float));
    if (!memory || (args->rope && !job.sines))
        return pm_fail_memory(err);
    token_tile *tiles = (token_tile *)memory;
    job.tiles = tiles;
    job.largest = (uint32_t *)(memory + tile_bytes);
    job.work = memory + tile_bytes + largest_bytes;
    job.n_tiles = make_tiles(batch, tokens, tiles);

    int64_t row = (int64_t)args->kv_heads * args->head_dim;
    pm_run(cpu, job.n_tiles, pm_mixer_grain(tokens * (row * 4 + (args->rope ? 50 * args->rope->pairs : 0))),
           append_tiles, &job);
    rc = check_values(&job, err);
    if (rc != PM_OK)
        return rc;
    for (int s = 0; s < batch->n_segments; s++)
        batch->segments[s].rows[args->rows]->length += batch->segments[s].n;

    int64_t items = (int64_t)job.n_tiles * args->kv_heads;
    int64_t cost = visible_keys(batch, args->window) * args->heads * args->head_dim;
    job.parts = pm_group_parts(cpu, items, group, cost);
    items *= job.parts;
    pm_run(cpu, items, pm_mixer_grain(cost / items), attend_items, &job);
    return PM_OK;
}
