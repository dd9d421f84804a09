/* Mamba-2: a causal depthwise convolution, then a state-space recurrence with one decay per head and token, then a
 * gated norm over each group.
 *
 * The recurrence runs token by token and nothing is regrouped, so any chunking of a prompt gives the same bits.
 * Formulas: Dao and Gu 2024, "Transformers are SSMs", section 7; details (the gate before the norm, the norm per group)
 * as Nemotron-H in transformers. */
#include "backend/cpu/matrix.h"
#include "backend/cpu/mixer.h"

/* ---- scalar kernel ---- */

/* S = decay S + B (dt x)^T; y = C^T S + D x. Sums over the state ascend. */
void pm_scalar_ssm(const pm_ssm_args *args)
{
    size_t states = (size_t)args->state_size, dim = (size_t)args->head_dim;
    for (size_t t = 0; t < (size_t)args->n; t++) {
        const float *b = args->b + t * states, *c = args->c + t * states, *x = args->x + t * dim;
        for (size_t d = 0; d < dim; d++) {
            float *s = args->state + d, input = args->dt[t] * x[d], read = 0;
            for (size_t i = 0; i < states; i++) {
                s[i * dim] = fmaf(b[i], input, args->decay[t] * s[i * dim]);
                read = fmaf(c[i], s[i * dim], read);
            }
            args->out[t * dim + d] = fmaf(args->D, x[d], read);
        }
    }
}

/* ---- the operation ---- */

enum { CHUNK = 32 }; /* tokens between two passes over the state */

typedef struct mamba_job {
    const pm_cpu *cpu;
    const pm_batch *batch;
    const pm_mamba2_args *args;
    size_t inner, channels;
    int parts;  /* the heads of a group are cut into this many parts */
    char *work; /* [workers] */
    size_t work_bytes;
} mamba_job;

/* Where a worker keeps a chunk of a head. */
typedef struct bench {
    float *b, *c;      /* [CHUNK, state_size] */
    float *x, *y;      /* [CHUNK, head_dim] */
    float *decay, *dt; /* [CHUNK] */
    const float **row; /* [CHUNK + kernel - 1] inputs of the convolution */
} bench;

/* Lays a bench out at `base` (NULL: nowhere); returns its bytes. */
static size_t bench_layout(const pm_mamba2_args *args, char *base, bench *b)
{
    size_t at = 0, states = CHUNK * (size_t)args->state_size, dims = CHUNK * (size_t)args->head_dim;
    b->b = pm_take(base, &at, states * sizeof(float));
    b->c = pm_take(base, &at, states * sizeof(float));
    b->x = pm_take(base, &at, dims * sizeof(float));
    b->y = pm_take(base, &at, dims * sizeof(float));
    b->decay = pm_take(base, &at, CHUNK * sizeof(float));
    b->dt = pm_take(base, &at, CHUNK * sizeof(float));
    b->row = pm_take(base, &at, (CHUNK + (size_t)args->kernel - 1) * sizeof(*b->row));
    return at;
}

/* The segment's row `t` of the projection. */
static const float *projected_row(const mamba_job *job, const pm_segment *segment, int t)
{
    return job->args->projected->data + (size_t)(segment->first + t) * (size_t)job->args->projected->cols;
}

static pm_conv_input conv_input(const mamba_job *job, const pm_segment *segment)
{
    return (pm_conv_input){.state = segment->states[job->args->conv_state]->data,
                           .x = projected_row(job, segment, 0) + job->inner,
                           .channels = job->channels,
                           .stride = (size_t)job->args->projected->cols,
                           .kernel = job->args->kernel};
}

/* Convolved channels [channel, channel + width) of tokens [t, t + n) of the segment. */
static void convolve(const mamba_job *job, bench *b, const pm_segment *segment, int t, int n, size_t channel, int width,
                     float *y)
{
    const pm_mamba2_args *args = job->args;
    pm_conv_input in = conv_input(job, segment);
    for (int i = 0; i < n + args->kernel - 1; i++)
        b->row[i] = pm_conv_row(&in, (int64_t)t + i + 1 - args->kernel) + channel;
    job->cpu->mixer->conv(&(pm_conv_args){.x = b->row,
                                          .w = args->conv->data + channel * (size_t)args->kernel,
                                          .bias = args->conv_bias ? args->conv_bias->data + channel : NULL,
                                          .width = width,
                                          .kernel = args->kernel,
                                          .n = n},
                          y);
}

/* y * silu(z) of a head over tokens [t, t + n) of the segment; the bench has their B and C. */
static void head_tokens(const mamba_job *job, bench *b, const pm_segment *segment, int t, int n, int head)
{
    const pm_mamba2_args *args = job->args;
    const pm_mixer_kernels *kernels = job->cpu->mixer;
    size_t dim = (size_t)args->head_dim, first = (size_t)head * dim;
    convolve(job, b, segment, t, n, first, args->head_dim, b->x);
    for (int i = 0; i < n; i++) {
        float raw = projected_row(job, segment, t + i)[job->inner + job->channels + (size_t)head];
        kernels->ssm_gates(args->A_log->data[head], raw + args->dt_bias->data[head], args->dt_min, args->dt_max,
                           b->decay + i, b->dt + i);
    }
    kernels->ssm(
        &(pm_ssm_args){.state = segment->states[args->ssm_state]->data + (size_t)head * (size_t)args->state_size * dim,
                       .b = b->b,
                       .c = b->c,
                       .x = b->x,
                       .decay = b->decay,
                       .dt = b->dt,
                       .D = args->D->data[head],
                       .out = b->y,
                       .state_size = args->state_size,
                       .head_dim = args->head_dim,
                       .n = n});
    for (int i = 0; i < n; i++)
        job->cpu->matrix->swiglu(projected_row(job, segment, t + i) + first, b->y + (size_t)i * dim, INFINITY,
                                 args->head_dim,
                                 args->out->data + (size_t)(segment->first + t + i) * job->inner + first);
}

/* Items are (segment, group, part). A part works out the B and C of its group for itself. */
static void group_items(void *arg, int worker, int64_t first, int64_t last)
{
    const mamba_job *job = arg;
    const pm_mamba2_args *args = job->args;
    int heads = args->heads / args->groups;
    size_t states = (size_t)args->state_size, groups = (size_t)args->groups;
    bench b;
    bench_layout(args, job->work + (size_t)worker * job->work_bytes, &b);
    for (int64_t item = first; item < last; item++) {
        int64_t part = item % job->parts, rest = item / job->parts;
        size_t group = (size_t)(rest % args->groups);
        const pm_segment *segment = job->batch->segments + rest / args->groups;
        int from = (int)(part * heads / job->parts), to = (int)((part + 1) * heads / job->parts);
        for (int t = 0; t < segment->n; t += CHUNK) {
            int n = segment->n - t < CHUNK ? segment->n - t : CHUNK;
            convolve(job, &b, segment, t, n, job->inner + group * states, args->state_size, b.b);
            convolve(job, &b, segment, t, n, job->inner + (groups + group) * states, args->state_size, b.c);
            for (int h = from; h < to; h++)
                head_tokens(job, &b, segment, t, n, (int)group * heads + h);
        }
    }
}

static void shift_items(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    const mamba_job *job = arg;
    for (int64_t s = first; s < last; s++) {
        const pm_segment *segment = job->batch->segments + s;
        pm_conv_input in = conv_input(job, segment);
        pm_conv_shift(&in, segment->n, segment->states[job->args->conv_state]->data);
    }
}

/* Items are (token, group). */
static void norm_items(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    const mamba_job *job = arg;
    const pm_mamba2_args *args = job->args;
    int n = (int)job->inner / args->groups;
    for (int64_t i = first; i < last; i++) {
        float *x = args->out->data + i * n;
        job->cpu->matrix->rms_norm(x, args->norm->data + i % args->groups * n, args->eps, n, x);
    }
}

int pm_cpu_mamba2(pm_backend *backend, const pm_batch *batch, const pm_mamba2_args *args, pm_error *err)
{
    if (batch->n_tokens < 1)
        return PM_OK;
    pm_cpu *cpu = (pm_cpu *)backend;
    mamba_job job = {.cpu = cpu, .batch = batch, .args = args};
    job.inner = (size_t)args->heads * (size_t)args->head_dim;
    job.channels = job.inner + 2 * (size_t)args->groups * (size_t)args->state_size;
    job.work_bytes = bench_layout(args, NULL, &(bench){0});
    job.work = pm_cpu_scratch(cpu, PM_SCRATCH_MAMBA, (size_t)pm_workers(cpu) * job.work_bytes);
    if (!job.work)
        return pm_fail_memory(err);

    int64_t items = (int64_t)batch->n_segments * args->groups;
    int64_t cost = batch->n_tokens * (int64_t)job.inner * args->state_size * 3;
    job.parts = pm_group_parts(cpu, items, args->heads / args->groups, cost);
    items *= job.parts;
    pm_run(cpu, items, pm_mixer_grain(cost / items), group_items, &job);
    pm_run(cpu, batch->n_segments, pm_mixer_grain((int64_t)job.channels * args->kernel), shift_items, &job);
    pm_run(cpu, (int64_t)batch->n_tokens * args->groups, pm_mixer_grain((int64_t)job.inner / args->groups * 2),
           norm_items, &job);
    return PM_OK;
}
