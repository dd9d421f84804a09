/* The compressor of DeepSeek-V4: one row of the cache for every `ratio` tokens (backend.h).
 *
 * The softmax over a window is taken as its tokens come, element by element, with a running maximum and sum (Milakov
 * and Gimelshein 2018), so the state is not a part-filled window but what has been folded of it: [3, width], the
 * maximum, the sum, and the sum of weighted values. With overlap every token is folded into two rows, the one of its
 * own window by its second half and the next one by its first half: [6, width]. Tokens are folded in their order, one
 * by one, so any chunking of a prompt gives the same bits. */
#include "backend/cpu/attend.h"

/* ---- scalar kernel ---- */

void pm_scalar_compress(float *state, size_t stride, const float *kv, const float *gate, const float *bias, int n)
{
    float *max = state, *sum = state + stride, *acc = state + 2 * stride;
    for (int i = 0; i < n; i++) {
        float g = gate[i] + bias[i], step = g - max[i], e = pm_exp(-fabsf(step));
        bool more = step > 0.0f;
        float correction = more ? e : 1.0f, p = more ? 1.0f : e;
        max[i] = more ? g : max[i];
        sum[i] = fmaf(sum[i], correction, p);
        acc[i] = fmaf(p, kv[i], acc[i] * correction);
    }
}

/* ---- the operation ---- */

enum { STRIP = 64 }; /* columns that a worker folds over all tokens */

typedef struct compress_job {
    const pm_cpu *cpu;
    const pm_batch *batch;
    const pm_compress_args *args;
    float *made; /* [rows, width]: weighted means, those of a segment together */
    float *sines;
    uint32_t *largest; /* [rows] */
    int *first;        /* [segments + 1]: a segment's rows in `made` */
} compress_job;

/* Nothing folded yet. */
static void start(float *state, size_t stride, int n)
{
    for (int i = 0; i < n; i++) {
        state[i] = -INFINITY;
        state[stride + (size_t)i] = 0;
        state[2 * stride + (size_t)i] = 0;
    }
}

/* Columns [column, column + n) of one segment. */
static void fold_strip(const compress_job *job, int s, size_t column, int n)
{
    const pm_compress_args *args = job->args;
    const pm_segment *segment = job->batch->segments + s;
    size_t width = (size_t)args->width, row = args->overlap ? 2 * width : width, own = row - width + column;
    float *state = segment->states[args->state]->data + column, *next = state + 3 * width;
    float *made = job->made + (size_t)job->first[s] * width + column;
    for (int i = 0; i < segment->n; i++) {
        int64_t position = segment->pos + i;
        size_t at = (size_t)(position % args->ratio) * row, t = (size_t)(segment->first + i) * row;
        const float *kv = args->kv->data + t, *gate = args->gate->data + t, *bias = args->position_bias->data + at;
        if (at == 0 && args->overlap && position > 0)
            for (size_t part = 0; part < 3; part++)
                memcpy(state + part * width, next + part * width, (size_t)n * sizeof(float));
        else if (at == 0)
            start(state, width, n);
        if (at == 0 && args->overlap)
            start(next, width, n);
        job->cpu->mixer->compress(state, width, kv + own, gate + own, bias + own, n);
        if (args->overlap)
            job->cpu->mixer->compress(next, width, kv + column, gate + column, bias + column, n);
        if ((position + 1) % args->ratio)
            continue;
        for (int c = 0; c < n; c++)
            made[c] = state[2 * width + (size_t)c] / state[width + (size_t)c];
        made += width;
    }
}

/* Items are (segment, strip). */
static void fold_items(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    const compress_job *job = arg;
    int strips = (job->args->width + STRIP - 1) / STRIP;
    for (int64_t i = first; i < last; i++) {
        int column = (int)(i % strips) * STRIP, left = job->args->width - column;
        fold_strip(job, (int)(i / strips), (size_t)column, left < STRIP ? left : STRIP);
    }
}

/* Finished rows: norm, rope, into the cache. */
static void store_rows(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    const compress_job *job = arg;
    const pm_compress_args *args = job->args;
    int width = args->width, s = 0;
    for (int64_t i = first; i < last; i++) {
        while (i >= job->first[s + 1])
            s++;
        const pm_segment *segment = job->batch->segments + s;
        int64_t row = segment->pos / args->ratio + (i - job->first[s]);
        float *x = job->made + i * width;
        float r = pm_rsqrt(job->cpu->mixer->dot(x, x, width) / (float)width + args->eps);
        for (int c = 0; c < width; c++)
            x[c] = x[c] * r * args->norm->data[c];
        float *sines = job->sines + i * 2 * args->rope->pairs;
        pm_rope_sines(args->rope, row * args->ratio, sines);
        pm_rope_turn(args->rope, sines, x);
        pm_append_store(job->cpu, segment->rows[args->rows], row, 0, x);
        job->largest[i] = pm_largest_bits(x, width, 0);
    }
}

/* Rows that the segment completes. */
static int64_t completed(const pm_compress_args *args, const pm_segment *segment)
{
    return (segment->pos + segment->n) / args->ratio - segment->pos / args->ratio;
}

/* Room in every cache of the batch, before anything is written. */
static int reserve(const pm_batch *batch, const pm_compress_args *args, pm_error *err)
{
    for (int s = 0; s < batch->n_segments; s++) {
        const pm_segment *segment = batch->segments + s;
        pm_rows *rows = segment->rows[args->rows];
        if (segment->pos / args->ratio != rows->length)
            return pm_fail(err, PM_ERR_INVALID,
                           "layer %d: the cache has %lld rows of %d tokens, but the next position is %lld", args->layer,
                           (long long)rows->length, args->ratio, (long long)segment->pos);
        int status = pm_rows_reserve(rows, completed(args, segment), err);
        if (status != PM_OK)
            return status;
    }
    return PM_OK;
}

/* Checks what was stored; then it counts. */
static int finish(const compress_job *job, pm_error *err)
{
    int slot = job->args->rows;
    for (int s = 0; s < job->batch->n_segments; s++) {
        pm_rows *rows = job->batch->segments[s].rows[slot];
        for (int i = job->first[s]; i < job->first[s + 1]; i++) {
            int status = pm_check_stored(job->largest[i], rows->type, job->args->layer, err);
            if (status != PM_OK)
                return status;
        }
        rows->length += job->first[s + 1] - job->first[s];
    }
    return PM_OK;
}

int pm_cpu_compress(pm_backend *backend, const pm_batch *batch, const pm_compress_args *args, pm_error *err)
{
    if (batch->n_tokens < 1)
        return PM_OK;
    pm_cpu *cpu = (pm_cpu *)backend;
    compress_job job = {.cpu = cpu, .batch = batch, .args = args};
    int status = reserve(batch, args, err);
    if (status != PM_OK)
        return status;
    int64_t n = 0;
    for (int s = 0; s < batch->n_segments; s++)
        n += completed(args, batch->segments + s);
    size_t rows = (size_t)n, at = 0, floats = rows * sizeof(float);
    for (int pass = 0; pass < 2; pass++) {
        char *base = pass ? pm_cpu_scratch(cpu, PM_SCRATCH_COMPRESS, at) : NULL;
        if (pass && !base)
            return pm_fail_memory(err);
        at = 0;
        job.made = pm_take(base, &at, floats * (size_t)args->width);
        job.sines = pm_take(base, &at, floats * 2 * (size_t)args->rope->pairs);
        job.largest = pm_take(base, &at, rows * sizeof(*job.largest));
        job.first = pm_take(base, &at, ((size_t)batch->n_segments + 1) * sizeof(*job.first));
    }
    job.first[0] = 0;
    for (int s = 0; s < batch->n_segments; s++)
        job.first[s + 1] = job.first[s] + (int)completed(args, batch->segments + s);

    int64_t strips = (args->width + STRIP - 1) / STRIP, folds = args->overlap ? 2 : 1;
    int64_t cost = (int64_t)batch->n_tokens * args->width * folds * 8;
    pm_run(cpu, batch->n_segments * strips, pm_mixer_grain(cost / (batch->n_segments * strips)), fold_items, &job);
    pm_run(cpu, n, pm_mixer_grain((int64_t)args->width * 4 + 50 * args->rope->pairs), store_rows, &job);
    return finish(&job, err);
}
