/* Gated delta net: a causal depthwise convolution, then the delta rule with decay, token by token.
 *
 * The state of a head is updated in the order of the tokens and nothing is regrouped, so any chunking of a prompt gives
 * the same bits. Formulas: Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks: Improving Mamba2 with Delta Rule";
 * details (where the scale, the activation and the gate apply) as the recurrent form of Qwen3.5 in transformers. */
#include "backend/cpu/mixer.h"

/* ---- scalar kernels ---- */

void pm_scalar_conv(const pm_conv_args *args, float *y)
{
    for (int t = 0; t < args->n; t++)
        for (int c = 0; c < args->width; c++) {
            float sum = args->bias ? args->bias[c] : 0;
            for (int i = 0; i < args->kernel; i++)
                sum = fmaf(args->w[(size_t)c * (size_t)args->kernel + (size_t)i], args->x[t + i][c], sum);
            y[(size_t)t * (size_t)args->width + (size_t)c] = args->linear ? sum : pm_silu(sum);
        }
}

/* One token: S = g S; S += k (beta (v - k^T S))^T; out = q^T S. Sums over the key dimension ascend. */
static void delta_token(const pm_delta_args *args, int t)
{
    size_t key_dim = (size_t)args->key_dim, value_dim = (size_t)args->value_dim;
    const float *q = args->q + (size_t)t * key_dim, *k = args->k + (size_t)t * key_dim;
    const float *v = args->v + (size_t)t * value_dim;
    float *out = args->out + (size_t)t * value_dim;
    for (size_t d = 0; d < value_dim; d++) {
        float *s = args->state + d, recalled = 0, read = 0;
        for (size_t i = 0; i < key_dim; i++)
            recalled = fmaf(k[i], args->decay[t] * s[i * value_dim], recalled);
        float change = args->beta[t] * (v[d] - recalled);
        for (size_t i = 0; i < key_dim; i++) {
            s[i * value_dim] = fmaf(k[i], change, args->decay[t] * s[i * value_dim]);
            read = fmaf(q[i], s[i * value_dim], read);
        }
        out[d] = read;
    }
}

void pm_scalar_delta(const pm_delta_args *args)
{
    for (int t = 0; t < args->n; t++)
        delta_token(args, t);
}

void pm_scalar_gated_norm(const float *x, const float *norm, const float *z, float eps, int n, float *out)
{
    float r = pm_rsqrt(pm_dot(x, x, n) / (float)n + eps);
    for (int i = 0; i < n; i++)
        out[i] = x[i] * r * norm[i] * pm_silu(z[i]);
}

/* ---- the operation ---- */

enum { CHUNK = 32 }; /* tokens between two passes over the state */

typedef struct delta_job {
    const pm_cpu *cpu;
    const pm_batch *batch;
    const pm_gated_delta_args *args;
    int parts;  /* the value heads of a key head are cut into this many parts */
    char *work; /* [workers] */
    size_t work_bytes;
} delta_job;

/* Where a worker keeps a chunk of a head. */
typedef struct bench {
    float *q, *k;        /* [CHUNK, key_dim] */
    float *v, *out;      /* [CHUNK, value_dim] */
    float *decay, *beta; /* [CHUNK] */
    float *room;         /* [key_dim, PM_DELTA_STRIP] */
    const float **x;     /* [CHUNK + kernel - 1] inputs of the convolution */
} bench;

/* Lays a bench out at `base` (NULL: nowhere); returns its bytes. */
static size_t bench_layout(const pm_gated_delta_args *args, char *base, bench *b)
{
    size_t at = 0, keys = CHUNK * (size_t)args->key_dim, values = CHUNK * (size_t)args->value_dim;
    b->q = pm_take(base, &at, keys * sizeof(float));
    b->k = pm_take(base, &at, keys * sizeof(float));
    b->v = pm_take(base, &at, values * sizeof(float));
    b->out = pm_take(base, &at, values * sizeof(float));
    b->decay = pm_take(base, &at, CHUNK * sizeof(float));
    b->beta = pm_take(base, &at, CHUNK * sizeof(float));
    b->room = pm_take(base, &at, (size_t)args->key_dim * PM_DELTA_STRIP * sizeof(float));
    b->x = pm_take(base, &at, (CHUNK + (size_t)args->kernel - 1) * sizeof(*b->x));
    return at;
}

static size_t channels_of(const pm_gated_delta_args *args)
{
    return 2 * (size_t)args->key_heads * (size_t)args->key_dim + (size_t)args->value_heads * (size_t)args->value_dim;
}

static pm_conv_input conv_input(const pm_gated_delta_args *args, const pm_segment *segment)
{
    size_t channels = channels_of(args);
    return (pm_conv_input){.state = segment->states[args->conv_state]->data,
                           .x = args->qkv->data + (size_t)segment->first * channels,
                           .channels = channels,
                           .stride = channels,
                           .kernel = args->kernel};
}

/* Convolved channels [channel, channel + width) of tokens [t, t + n) of the segment. */
static void convolve(const delta_job *job, bench *b, const pm_segment *segment, int t, int n, size_t channel, int width,
                     float *y)
{
    const pm_gated_delta_args *args = job->args;
    pm_conv_input in = conv_input(args, segment);
    for (int i = 0; i < n + args->kernel - 1; i++)
        b->x[i] = pm_conv_row(&in, (int64_t)t + i + 1 - args->kernel) + channel;
    const float *w = args->conv->data + channel * (size_t)args->kernel;
    job->cpu->mixer->conv(&(pm_conv_args){.x = b->x, .w = w, .width = width, .kernel = args->kernel, .n = n}, y);
}

/* Each of n heads divided by its length, then times `scale`. */
static void normalise(const delta_job *job, float *x, int n, float scale)
{
    int dim = job->args->key_dim;
    for (float *head = x; head < x + (size_t)n * (size_t)dim; head += dim) {
        float r = pm_rsqrt(job->cpu->mixer->dot(head, head, dim) + 1e-6f);
        for (int i = 0; i < dim; i++)
            head[i] = head[i] * r * scale;
    }
}

/* Value head `head` over tokens [t, t + n) of the segment; the bench has their queries and keys. */
static void value_head(const delta_job *job, bench *b, const pm_segment *segment, int t, int n, int head)
{
    const pm_gated_delta_args *args = job->args;
    const pm_mixer_kernels *kernels = job->cpu->mixer;
    size_t key_dim = (size_t)args->key_dim, value_dim = (size_t)args->value_dim, heads = (size_t)args->value_heads;
    convolve(job, b, segment, t, n, 2 * (size_t)args->key_heads * key_dim + (size_t)head * value_dim, args->value_dim,
             b->v);
    for (int i = 0; i < n; i++) {
        size_t at = (size_t)(segment->first + t + i) * heads + (size_t)head;
        kernels->delta_gates(args->A_log->data[head], args->a->data[at] + args->dt_bias->data[head], args->b->data[at],
                             b->decay + i, b->beta + i);
    }
    float *state = segment->states[args->delta_state]->data + (size_t)head * key_dim * value_dim;
    kernels->delta(&(pm_delta_args){.state = state,
                                    .q = b->q,
                                    .k = b->k,
                                    .v = b->v,
                                    .decay = b->decay,
                                    .beta = b->beta,
                                    .room = b->room,
                                    .out = b->out,
                                    .key_dim = args->key_dim,
                                    .value_dim = args->value_dim,
                                    .n = n});
    for (int i = 0; i < n; i++) {
        size_t at = ((size_t)(segment->first + t + i) * heads + (size_t)head) * value_dim;
        kernels->gated_norm(b->out + (size_t)i * value_dim, args->norm->data, args->z->data + at, args->eps,
                            args->value_dim, args->out->data + at);
    }
}

/* Items are (segment, key head, part). A part works out the queries and keys of its head for itself. */
static void delta_items(void *arg, int worker, int64_t first, int64_t last)
{
    const delta_job *job = arg;
    const pm_gated_delta_args *args = job->args;
    int group = args->value_heads / args->key_heads;
    size_t key_dim = (size_t)args->key_dim;
    bench b;
    bench_layout(args, job->work + (size_t)worker * job->work_bytes, &b);
    for (int64_t item = first; item < last; item++) {
        int64_t part = item % job->parts, rest = item / job->parts;
        size_t key_head = (size_t)(rest % args->key_heads);
        const pm_segment *segment = job->batch->segments + rest / args->key_heads;
        int from = (int)(part * group / job->parts), to = (int)((part + 1) * group / job->parts);
        for (int t = 0; t < segment->n; t += CHUNK) {
            int n = segment->n - t < CHUNK ? segment->n - t : CHUNK;
            convolve(job, &b, segment, t, n, key_head * key_dim, args->key_dim, b.q);
            convolve(job, &b, segment, t, n, ((size_t)args->key_heads + key_head) * key_dim, args->key_dim, b.k);
            normalise(job, b.q, n, pm_rsqrt((float)args->key_dim));
            normalise(job, b.k, n, 1.0f);
            for (int h = from; h < to; h++)
                value_head(job, &b, segment, t, n, (int)key_head * group + h);
        }
    }
}

static void shift_items(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    const delta_job *job = arg;
    for (int64_t s = first; s < last; s++) {
        const pm_segment *segment = job->batch->segments + s;
        pm_conv_input in = conv_input(job->args, segment);
        pm_conv_shift(&in, segment->n, segment->states[job->args->conv_state]->data);
    }
}

/* Interleaved inputs taken apart into tensors of the other layout. */
typedef struct separated {
    const pm_gated_delta_args *from;
    pm_tensor qkv, z, a, b;
} separated;

/* For each key head its query, its key, its values and its z; its b and its a. */
static void separate_tokens(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    const separated *to = arg;
    const pm_gated_delta_args *args = to->from;
    size_t heads = (size_t)args->key_heads, keys = (size_t)args->key_dim, group = (size_t)args->value_heads / heads;
    size_t values = group * (size_t)args->value_dim;
    for (int64_t t = first; t < last; t++) {
        const float *qkvz = args->qkv->data + t * args->qkv->cols, *ba = args->b->data + t * args->b->cols;
        float *qkv = to->qkv.data + t * to->qkv.cols, *z = to->z.data + t * to->z.cols;
        for (size_t h = 0; h < heads; h++, qkvz += 2 * (keys + values), ba += 2 * group) {
            memcpy(qkv + h * keys, qkvz, keys * sizeof(float));
            memcpy(qkv + (heads + h) * keys, qkvz + keys, keys * sizeof(float));
            memcpy(qkv + 2 * heads * keys + h * values, qkvz + 2 * keys, values * sizeof(float));
            memcpy(z + h * values, qkvz + 2 * keys + values, values * sizeof(float));
            memcpy(to->b.data + t * to->b.cols + (int64_t)(h * group), ba, group * sizeof(float));
            memcpy(to->a.data + t * to->a.cols + (int64_t)(h * group), ba + group, group * sizeof(float));
        }
    }
}

/* Fills `to`, and `args` with a copy of to->from that has its tensors; false when out of memory. */
static bool separate(pm_cpu *cpu, int tokens, separated *to, pm_gated_delta_args *args)
{
    int64_t channels = (int64_t)channels_of(to->from), heads = to->from->value_heads,
            values = heads * to->from->value_dim;
    pm_tensor *const parts[] = {&to->qkv, &to->z, &to->a, &to->b};
    const int64_t widths[] = {channels, values, heads, heads};
    float *data = pm_cpu_scratch(cpu, PM_SCRATCH_SEPARATE,
                                 (size_t)tokens * (size_t)(channels + values + 2 * heads) * sizeof(float));
    if (!data)
        return false;
    for (int i = 0; i < 4; i++) {
        *parts[i] = (pm_tensor){tokens, widths[i], data};
        data += tokens * widths[i];
    }
    pm_run(cpu, tokens, pm_mixer_grain(channels + values), separate_tokens, to);
    *args = *to->from;
    args->qkv = &to->qkv;
    args->z = &to->z;
    args->a = &to->a;
    args->b = &to->b;
    return true;
}

int pm_cpu_gated_delta(pm_backend *backend, const pm_batch *batch, const pm_gated_delta_args *args, pm_error *err)
{
    if (batch->n_tokens < 1)
        return PM_OK;
    pm_cpu *cpu = (pm_cpu *)backend;
    separated parts = {.from = args};
    pm_gated_delta_args apart;
    if (args->interleaved) {
        if (!separate(cpu, batch->n_tokens, &parts, &apart))
            return pm_fail_memory(err);
        args = &apart;
    }
    delta_job job = {.cpu = cpu, .batch = batch, .args = args};
    job.work_bytes = bench_layout(args, NULL, &(bench){0});
    job.work = pm_cpu_scratch(cpu, PM_SCRATCH_DELTA, (size_t)pm_workers(cpu) * job.work_bytes);
    if (!job.work)
        return pm_fail_memory(err);

    int64_t items = (int64_t)batch->n_segments * args->key_heads, state = (int64_t)args->key_dim * args->value_dim;
    int64_t cost = batch->n_tokens * (int64_t)args->value_heads * state * 4;
    job.parts = pm_group_parts(cpu, items, args->value_heads / args->key_heads, cost);
    items *= job.parts;
    pm_run(cpu, items, pm_mixer_grain(cost / items), delta_items, &job);
    pm_run(cpu, batch->n_segments, pm_mixer_grain((int64_t)channels_of(args) * args->kernel), shift_items, &job);
    return PM_OK;
}
