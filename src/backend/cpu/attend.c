#include "backend/cpu/attend.h"

/* Keys are taken in parts of about this many elements, so that they stay in the first-level cache for all queries. */
enum { KEY_ELEMENTS = 4096, LEAST_KEYS = 8 };

/* ---- rope ---- */

void pm_rope_sines(const pm_rope *rope, int64_t position, float *sines)
{
    for (int i = 0; i < rope->pairs; i++) {
        float sine, cosine;
        pm_sincos((float)position * rope->inv_freq[i], &sine, &cosine);
        sines[i] = sine * rope->scale;
        sines[rope->pairs + i] = cosine * rope->scale;
    }
}

void pm_rope_turn(const pm_rope *rope, const float *sines, float *x)
{
    int pairs = rope->pairs, step = rope->interleaved ? 2 : 1, apart = rope->interleaved ? 1 : pairs;
    const float *cosines = sines + pairs;
    x += rope->first;
    for (int i = 0; i < pairs; i++) {
        float a = x[i * step], b = x[i * step + apart];
        x[i * step] = a * cosines[i] - b * sines[i];
        x[i * step + apart] = b * cosines[i] + a * sines[i];
    }
}

void pm_rope_turn_back(const pm_rope *rope, const float *sines, float *x)
{
    int pairs = rope->pairs, step = rope->interleaved ? 2 : 1, apart = rope->interleaved ? 1 : pairs;
    const float *cosines = sines + pairs;
    x += rope->first;
    for (int i = 0; i < pairs; i++) {
        float a = x[i * step], b = x[i * step + apart];
        x[i * step] = a * cosines[i] + b * sines[i];
        x[i * step + apart] = b * cosines[i] - a * sines[i];
    }
}

/* ---- appending ---- */

int pm_append_reserve(const pm_batch *batch, int slot, int layer, pm_error *err)
{
    for (int s = 0; s < batch->n_segments; s++) {
        const pm_segment *segment = batch->segments + s;
        pm_rows *rows = segment->rows[slot];
        if (segment->pos != rows->length)
            return pm_fail(err, PM_ERR_INVALID, "layer %d: the cache has %lld rows, but the next position is %lld",
                           layer, (long long)rows->length, (long long)segment->pos);
        int rc = pm_rows_reserve(rows, segment->n, err);
        if (rc != PM_OK)
            return rc;
    }
    return PM_OK;
}

void pm_append_store(const pm_cpu *cpu, const pm_rows *rows, int64_t row, int plane, const float *x)
{
    size_t dim = (size_t)rows->spec.width;
    void *to = pm_rows_vector(rows, row, plane);
    switch (rows->type) {
    case PM_KV_F16: cpu->mixer->narrow(x, to, dim); break;
    case PM_KV_F32: memcpy(to, x, dim * sizeof *x); break;
    case PM_KV_Q8: cpu->mixer->pack(x, to, rows->spec.width); break;
    }
}

void pm_vector_load(const pm_cpu *cpu, const pm_rows *rows, const void *from, float *x)
{
    size_t dim = (size_t)rows->spec.width;
    switch (rows->type) {
    case PM_KV_F16: cpu->mixer->widen(from, x, dim); break;
    case PM_KV_F32: memcpy(x, from, dim * sizeof *x); break;
    case PM_KV_Q8: cpu->mixer->unpack(from, x, rows->spec.width); break;
    }
}

int pm_check_stored(uint32_t largest, pm_kv_type type, int layer, pm_error *err)
{
    static const struct {
        uint32_t end; /* bits of the first magnitude that does not fit */
        const char *name;
    } types[] = {[PM_KV_F16] = {0x477ff000 /* 65520 */, "f16"},
                 [PM_KV_F32] = {0x7f800000, "f32"},
                 [PM_KV_Q8] = {PM_Q8_BITS_END, "q8"}};
    double value = (double)pm_from_bits(largest);
    if (largest >= 0x7f800000)
        return pm_fail(err, PM_ERR_NUMERIC, "layer %d: a key or value (%.3g) is not finite", layer, value);
    if (largest >= types[type].end)
        return pm_fail(err, PM_ERR_NUMERIC,
                       "layer %d: a key or value (%.3g) does not fit the %s cache; use --kv-type f32", layer, value,
                       types[type].name);
    return PM_OK;
}

int pm_append_finish(const pm_batch *batch, int slot, const uint32_t *largest, int layer, pm_error *err)
{
    for (int s = 0; s < batch->n_segments; s++) {
        const pm_segment *segment = batch->segments + s;
        for (int t = segment->first; t < segment->first + segment->n; t++) {
            int status = pm_check_stored(largest[t], segment->rows[slot]->type, layer, err);
            if (status != PM_OK)
                return status;
        }
    }
    for (int s = 0; s < batch->n_segments; s++)
        batch->segments[s].rows[slot]->length += batch->segments[s].n;
    return PM_OK;
}

/* ---- tiles and folding ---- */

int pm_make_tiles(const pm_batch *batch, int tokens, pm_tile *tiles)
{
    int n = 0;
    for (int s = 0; s < batch->n_segments; s++) {
        const pm_segment *segment = batch->segments + s;
        for (int done = 0; done < segment->n; done += tokens, n++) {
            int left = segment->n - done;
            tiles[n] = (pm_tile){segment, segment->first + done, left < tokens ? left : tokens};
        }
    }
    return n;
}

void pm_bench_layout(pm_bench *bench, int n, char *base, size_t *at)
{
    size_t queries = (size_t)n;
    bench->queries = pm_take(base, at, queries * sizeof(*bench->queries));
    bench->q = pm_take(base, at, queries * (size_t)bench->key_dim * sizeof(float));
    bench->acc = pm_take(base, at, queries * (size_t)bench->value_dim * sizeof(float));
    bench->scores = pm_take(base, at, queries * sizeof(*bench->scores));
}

void pm_bench_clear(pm_bench *bench, int n)
{
    for (int r = 0; r < n; r++)
        bench->queries[r] = (pm_query){.max = -INFINITY};
    memset(bench->acc, 0, (size_t)n * (size_t)bench->value_dim * sizeof(float));
}

size_t pm_block_bytes(int dim)
{
    return PM_BLOCK_ROWS * ((size_t)dim + PM_ROW_PAD) * sizeof(float);
}

const float *pm_block_rows(const pm_cpu *cpu, const pm_rows *rows, int64_t block, int plane, int n, float *room,
                           size_t *stride)
{
    const char *from = pm_rows_plane(rows, block, plane);
    size_t dim = (size_t)rows->spec.width, bytes = rows->plane_bytes / PM_BLOCK_ROWS;
    *stride = dim;
    if (rows->type == PM_KV_F32)
        return (const float *)(const void *)from;
    if (rows->type == PM_KV_F16 && dim <= PM_NARROW) {
        cpu->mixer->widen((const void *)from, room, (size_t)n * dim);
        return room;
    }
    *stride = dim <= PM_NARROW ? dim : dim + PM_ROW_PAD;
    for (size_t i = 0; i < (size_t)n; i++)
        pm_vector_load(cpu, rows, from + i * bytes, room + i * *stride);
    return room;
}

/* True when the r-th of n queries and the next see the same keys of a block. */
static bool are_twins(const pm_bench *bench, int r, int n)
{
    const pm_query *query = bench->queries + r;
    return r + 1 < n && query[0].from == query[1].from && query[0].to == query[1].to;
}

/* Scores of the rows [first, last) of a block, where they are seen. */
static void score_rows(const pm_mixer_kernels *kernels, const pm_bench *bench, int n, float scale, const float *k,
                       size_t stride, int first, int last)
{
    size_t dim = (size_t)bench->key_dim;
    for (int r = 0; r < n; r++) {
        const pm_query *query = bench->queries + r;
        const float *q = bench->q + (size_t)r * dim;
        int from = query->from > first ? query->from : first, to = query->to < last ? query->to : last;
        bool two = kernels->scores2 && are_twins(bench, r, n);
        if (from < to && two)
            kernels->scores2(q, dim, k + (size_t)from * stride, stride, (int)dim, to - from, scale,
                             bench->scores[r] + from);
        else if (from < to)
            kernels->scores(q, k + (size_t)from * stride, stride, (int)dim, to - from, scale, bench->scores[r] + from);
        r += two;
    }
}

/* Adds the values' columns [d, d + columns) to those of all queries. */
static void mix_columns(const pm_mixer_kernels *kernels, const pm_bench *bench, int n, const float *v, size_t stride,
                        int d, int columns)
{
    size_t dim = (size_t)bench->value_dim;
    for (int r = 0; r < n; r++) {
        const pm_query *query = bench->queries + r;
        float *acc = bench->acc + (size_t)r * dim + d;
        const float *p = bench->scores[r] + query->from, *rows = v + (size_t)query->from * stride + d;
        bool two = kernels->mix2 && are_twins(bench, r, n);
        if (query->from < query->to && two)
            kernels->mix2(acc, dim, (float[]){query[0].correction, query[1].correction}, p, rows, stride, columns,
                          query->to - query->from);
        else if (query->from < query->to)
            kernels->mix(acc, query->correction, p, rows, stride, columns, query->to - query->from);
        r += two;
    }
}

void pm_fold(const pm_cpu *cpu, const pm_bench *bench, int n, float scale, const float *k, const float *v,
             size_t stride)
{
    const pm_mixer_kernels *kernels = cpu->mixer;
    int value_dim = bench->value_dim, keys = KEY_ELEMENTS / bench->key_dim;
    keys = keys > PM_BLOCK_ROWS ? PM_BLOCK_ROWS : keys < LEAST_KEYS ? LEAST_KEYS : keys;
    for (int first = 0; first < PM_BLOCK_ROWS; first += keys)
        score_rows(kernels, bench, n, scale, k, stride, first, first + keys);
    for (int r = 0; r < n; r++) {
        pm_query *query = bench->queries + r;
        if (query->from >= query->to)
            continue;
        for (int j = 0; j < PM_BLOCK_ROWS; j++)
            if (j < query->from || j >= query->to)
                bench->scores[r][j] = -INFINITY;
        query->correction = kernels->softmax(bench->scores[r], &query->max, &query->sum);
    }
    /* Columns of the values that all queries use before the next ones are touched, so that these stay in the
     * first-level cache. */
    for (int d = 0; d < value_dim; d += kernels->columns)
        mix_columns(kernels, bench, n, v, stride, d,
                    value_dim - d < kernels->columns ? value_dim - d : kernels->columns);
}
