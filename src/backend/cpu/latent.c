/* Attention in which all query heads share one key per row, whose first part is the value as well: multi-head latent
 * attention in its absorbed form, and DeepSeek-V4's attention over a window and compressed rows.
 *
 * Keys are folded as in attention.c, in blocks of 64: by absolute position, or, where an index has chosen rows, by
 * their rank in the ascending list, so that a list of all rows gives the same bits. The rows of the window come first,
 * then compressed ones, then the sink. */
#include "backend/cpu/attend.h"

/* Where a worker keeps what it is working on. */
typedef struct bench {
    pm_bench fold;
    float *k; /* [64, width + padding]: a block as f32; also holds a key while it is prepared */
} bench;

typedef struct latent_job {
    const pm_cpu *cpu;
    const pm_latent_attention_args *args;
    const pm_tile *tiles;
    int n_tiles, parts; /* the heads of a tile are cut into this many parts */
    float *sines;       /* [tokens, (sine, cosine), pairs] */
    uint32_t *largest;  /* [tokens]: bits of the largest magnitude that went into the cache */
    char *work;         /* [workers] */
    size_t work_bytes;
    int rows; /* of a bench */
} latent_job;

/* Lays a bench of `rows` queries out at `base` (NULL: nowhere); returns its bytes. */
static size_t bench_layout(const pm_latent_attention_args *args, int rows, char *base, bench *b)
{
    size_t at = 0;
    b->fold = (pm_bench){.key_dim = args->width, .value_dim = args->value_width};
    pm_bench_layout(&b->fold, rows, base, &at);
    b->k = pm_take(base, &at, pm_block_bytes(args->width));
    return at;
}

static bench bench_of(const latent_job *job, int worker)
{
    bench b;
    bench_layout(job->args, job->rows, job->work + (size_t)worker * job->work_bytes, &b);
    return b;
}

static const float *sines_of(const latent_job *job, int token)
{
    return job->sines + (size_t)token * 2 * (size_t)job->args->rope->pairs;
}

/* Sines of the tokens of tiles [first, last), and their keys into the cache. */
static void append_tiles(void *arg, int worker, int64_t first, int64_t last)
{
    const latent_job *job = arg;
    const pm_latent_attention_args *args = job->args;
    float *key = bench_of(job, worker).k;
    size_t width = (size_t)args->width, pairs = (size_t)args->rope->pairs;
    for (const pm_tile *tile = job->tiles + first; tile < job->tiles + last; tile++)
        for (int t = tile->first; t < tile->first + tile->n; t++) {
            int64_t position = tile->segment->pos + (t - tile->segment->first);
            pm_rope_sines(args->rope, position, job->sines + (size_t)t * 2 * pairs);
            memcpy(key, args->kv->data + (size_t)t * width, width * sizeof *key);
            float r =
                pm_rsqrt(job->cpu->mixer->dot(key, key, args->value_width) / (float)args->value_width + args->eps);
            for (int i = 0; i < args->value_width; i++)
                key[i] = key[i] * r * args->kv_norm->data[i];
            pm_rope_turn(args->rope, sines_of(job, t), key);
            pm_append_store(job->cpu, tile->segment->rows[args->rows], position, 0, key);
            job->largest[t] = pm_largest_bits(key, args->width, 0);
        }
}

/* The queries of a tile: heads [head, head + n_heads) of each token; nothing folded yet. */
static void start_queries(const latent_job *job, bench *b, const pm_tile *tile, int head, int n_heads)
{
    const pm_latent_attention_args *args = job->args;
    size_t width = (size_t)args->width, values = (size_t)args->value_width, heads = (size_t)args->heads;
    for (int r = 0; r < tile->n * n_heads; r++) {
        int t = tile->first + r / n_heads;
        size_t at = (size_t)t * heads + (size_t)(head + r % n_heads);
        float *q = b->fold.q + (size_t)r * width;
        memcpy(q, args->q->data + at * values, values * sizeof *q);
        if (args->q_rope)
            memcpy(q + values, args->q_rope->data + at * (size_t)args->q_rope_stride + args->q_rope_first,
                   (width - values) * sizeof *q);
        if (args->q_normed) {
            float norm = pm_rsqrt(job->cpu->mixer->dot(q, q, args->width) / (float)args->width + args->eps);
            for (size_t i = 0; i < width; i++)
                q[i] *= norm;
        }
        pm_rope_turn(args->rope, sines_of(job, t), q);
    }
    pm_bench_clear(&b->fold, tile->n * n_heads);
}

/* Their results: divided by the sum of weights, in which the sink takes part, and turned back. */
static void finish_queries(const latent_job *job, const bench *b, const pm_tile *tile, int head, int n_heads)
{
    const pm_latent_attention_args *args = job->args;
    size_t values = (size_t)args->value_width;
    for (int r = 0; r < tile->n * n_heads; r++) {
        int t = tile->first + r / n_heads, h = head + r % n_heads;
        size_t at = (size_t)t * (size_t)args->heads + (size_t)h;
        const float *acc = b->fold.acc + (size_t)r * values;
        const pm_query *query = b->fold.queries + r;
        float *out = args->out->data + at * values, sum = query->sum, factor = 1.0f;
        if (args->sinks) {
            float sink = args->sinks->data[h], most = sink > query->max ? sink : query->max;
            factor = pm_exp(query->max - most);
            sum = fmaf(sum, factor, pm_exp(sink - most));
        }
        factor = factor / sum;
        for (size_t d = 0; d < values; d++)
            out[d] = acc[d] * factor;
        if (args->unrotate)
            pm_rope_turn_back(args->rope, sines_of(job, t), out);
    }
}

/* Rows of `ratio` tokens that each token of the tile sees, but for those more than `window` back (0: none). */
static void fold_all(const latent_job *job, bench *b, const pm_tile *tile, int n_heads, const pm_rows *rows, int ratio,
                     int window)
{
    int64_t begin = tile->segment->pos + (tile->first - tile->segment->first), end = (begin + tile->n) / ratio;
    int64_t oldest = window > 0 && begin >= window ? begin - window + 1 : 0;
    for (int64_t base = oldest / PM_BLOCK_ROWS * PM_BLOCK_ROWS; base < end; base += PM_BLOCK_ROWS) {
        int filled = end - base < PM_BLOCK_ROWS ? (int)(end - base) : PM_BLOCK_ROWS;
        for (int r = 0; r < tile->n * n_heads; r++) {
            int64_t position = begin + r / n_heads, to = (position + 1) / ratio - base, from = 0;
            if (window > 0 && position - window + 1 > base)
                from = position - window + 1 - base;
            b->fold.queries[r].from = from < PM_BLOCK_ROWS ? (int)from : PM_BLOCK_ROWS;
            b->fold.queries[r].to = to < PM_BLOCK_ROWS ? (int)to : PM_BLOCK_ROWS;
        }
        size_t stride;
        const float *k = pm_block_rows(job->cpu, rows, base / PM_BLOCK_ROWS, 0, filled, b->k, &stride);
        pm_fold(job->cpu, &b->fold, tile->n * n_heads, job->args->scale, k, k, stride);
    }
}

/* Brings the n rows of a list into the second-level cache: they lie anywhere. */
static void fetch_rows(const pm_rows *rows, const int32_t *list, int n)
{
    const size_t bytes = rows->plane_bytes / PM_BLOCK_ROWS;
    for (int j = 0; j < n; j++) {
        const char *row =
            (const char *)pm_rows_plane(rows, list[j] / PM_BLOCK_ROWS, 0) + (size_t)(list[j] % PM_BLOCK_ROWS) * bytes;
        for (size_t i = 0; i < bytes; i += 64)
            __builtin_prefetch(row + i, 0, 2);
    }
}

/* The rows of a token's list, for its queries, the n_heads from `query` on. */
static void fold_chosen(const latent_job *job, const bench *b, const pm_rows *rows, int token, int query, int n_heads)
{
    const pm_latent_attention_args *args = job->args;
    const int32_t *list = args->chosen->rows + (size_t)token * (size_t)args->chosen->top_k;
    size_t width = (size_t)args->width, stride = width + PM_ROW_PAD;
    int n = args->chosen->count[token];
    pm_bench fold = b->fold;
    fold.queries += query;
    fold.q += (size_t)query * width;
    fold.acc += (size_t)query * (size_t)args->value_width;
    fold.scores += query;
    for (int base = 0; base < n; base += PM_BLOCK_ROWS) {
        int filled = n - base < PM_BLOCK_ROWS ? n - base : PM_BLOCK_ROWS;
        for (int j = 0; j < filled; j++) {
            const void *from = pm_rows_vector(rows, list[base + j], 0);
            pm_vector_load(job->cpu, rows, from, b->k + (size_t)j * stride);
        }
        fetch_rows(rows, list + base + filled, n - base - filled < PM_BLOCK_ROWS ? n - base - filled : PM_BLOCK_ROWS);
        for (int r = 0; r < n_heads; r++) {
            fold.queries[r].from = 0;
            fold.queries[r].to = filled;
        }
        pm_fold(job->cpu, &fold, n_heads, args->scale, b->k, b->k, stride);
    }
}

/* True when every token of the tile attends to all the rows of `ratio` tokens that it sees. */
static bool sees_all(const latent_job *job, const pm_tile *tile, int ratio)
{
    const pm_indices *chosen = job->args->chosen;
    int64_t begin = tile->segment->pos + (tile->first - tile->segment->first);
    for (int i = 0; chosen && i < tile->n; i++)
        if (chosen->count[tile->first + i] != (begin + i + 1) / ratio)
            return false;
    return true;
}

/* Heads [head, head + n_heads) of the tile's tokens. */
static void attend(const latent_job *job, bench *b, const pm_tile *tile, int head, int n_heads)
{
    const pm_latent_attention_args *args = job->args;
    bool blocks = args->ratio > 0;
    int ratio = blocks ? args->ratio : 1, window = blocks ? 0 : args->window;
    const pm_rows *rows = tile->segment->rows[blocks ? args->blocks : args->rows];
    start_queries(job, b, tile, head, n_heads);
    if (blocks)
        fold_all(job, b, tile, n_heads, tile->segment->rows[args->rows], 1, args->window);
    if (sees_all(job, tile, ratio))
        fold_all(job, b, tile, n_heads, rows, ratio, window);
    else
        for (int i = 0; i < tile->n; i++)
            fold_chosen(job, b, rows, tile->first + i, i * n_heads, n_heads);
    finish_queries(job, b, tile, head, n_heads);
}

/* Items are (tile, part). The longest come last in a segment; taken backwards they do not end the region. */
static void attend_items(void *arg, int worker, int64_t first, int64_t last)
{
    const latent_job *job = arg;
    const pm_latent_attention_args *args = job->args;
    int64_t items = (int64_t)job->n_tiles * job->parts;
    bench b = bench_of(job, worker);
    for (int64_t i = first; i < last; i++) {
        int64_t item = items - 1 - i, part = item % job->parts;
        const pm_tile *tile = job->tiles + item / job->parts;
        int from = (int)(part * args->heads / job->parts), to = (int)((part + 1) * args->heads / job->parts);
        attend(job, &b, tile, from, to - from);
    }
}

/* Rows that the batch's tokens attend to, all together. */
static int64_t attended_rows(const pm_batch *batch, const pm_latent_attention_args *args)
{
    int64_t rows = 0;
    for (int s = 0; s < batch->n_segments; s++) {
        const pm_segment *segment = batch->segments + s;
        for (int i = 0; i < segment->n; i++) {
            int64_t end = segment->pos + i + 1, chosen = args->chosen ? args->chosen->count[segment->first + i] : end;
            if (args->ratio)
                rows += args->chosen ? chosen : end / args->ratio;
            if (args->ratio || !args->chosen)
                rows += args->window > 0 && args->window < end ? args->window : end;
            else
                rows += chosen;
        }
    }
    return rows;
}

int pm_cpu_latent_attention(pm_backend *backend, const pm_batch *batch, const pm_latent_attention_args *args,
                            pm_error *err)
{
    if (batch->n_tokens < 1)
        return PM_OK;
    pm_cpu *cpu = (pm_cpu *)backend;
    int tokens = args->heads < PM_TILE_ROWS ? PM_TILE_ROWS / args->heads : 1;
    latent_job job = {.cpu = cpu, .args = args, .rows = tokens * args->heads};
    job.work_bytes = bench_layout(args, job.rows, NULL, &(bench){0});

    int rc = pm_append_reserve(batch, args->rows, args->layer, err);
    if (rc != PM_OK)
        return rc;
    size_t n = (size_t)batch->n_tokens, most_tiles = n / (size_t)tokens + (size_t)batch->n_segments;
    size_t tile_bytes = pm_line(most_tiles * sizeof(pm_tile)), largest_bytes = pm_line(n * sizeof(*job.largest));
    char *memory =
        pm_cpu_scratch(cpu, PM_SCRATCH_ATTEND, tile_bytes + largest_bytes + (size_t)pm_workers(cpu) * job.work_bytes);
    job.sines = pm_cpu_scratch(cpu, PM_SCRATCH_ROPE, n * 2 * (size_t)args->rope->pairs * sizeof(float));
    if (!memory || !job.sines)
        return pm_fail_memory(err);
    pm_tile *tiles = (pm_tile *)memory;
    job.tiles = tiles;
    job.largest = (uint32_t *)(memory + tile_bytes);
    job.work = memory + tile_bytes + largest_bytes;
    job.n_tiles = pm_make_tiles(batch, tokens, tiles);

    pm_run(cpu, job.n_tiles, pm_mixer_grain(tokens * (4 * args->width + 50 * args->rope->pairs)), append_tiles, &job);
    rc = pm_append_finish(batch, args->rows, job.largest, args->layer, err);
    if (rc != PM_OK)
        return rc;

    int64_t cost = attended_rows(batch, args) * args->heads * (args->width + args->value_width) / 2;
    job.parts = pm_group_parts(cpu, job.n_tiles, args->heads, cost);
    int64_t items = (int64_t)job.n_tiles * job.parts;
    pm_run(cpu, items, pm_mixer_grain(cost / items), attend_items, &job);
    return PM_OK;
}
