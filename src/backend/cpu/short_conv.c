/* Gated short convolution: a causal depthwise convolution between two elementwise gates. The state holds products, as
 * they go into the convolution. */
#include "backend/cpu/mixer.h"

enum { TOKENS = 32, CHANNELS = 64 }; /* of a tile */

typedef struct conv_job {
    const pm_cpu *cpu;
    const pm_batch *batch;
    const pm_short_conv_args *args;
    char *work; /* [workers] */
    size_t work_bytes;
} conv_job;

/* Where a worker keeps a tile. */
typedef struct bench {
    float *products; /* [kernel - 1 + TOKENS, CHANNELS]: the state first */
    float *y;        /* [TOKENS, CHANNELS] */
    const float **x; /* [kernel - 1 + TOKENS]: rows of products */
} bench;

/* Lays a bench out at `base` (NULL: nowhere); returns its bytes. */
static size_t bench_layout(const pm_short_conv_args *args, char *base, bench *b)
{
    size_t at = 0, rows = TOKENS + (size_t)args->kernel - 1;
    b->products = pm_take(base, &at, rows * CHANNELS * sizeof(float));
    b->y = pm_take(base, &at, (size_t)TOKENS * CHANNELS * sizeof(float));
    b->x = pm_take(base, &at, rows * sizeof(*b->x));
    return at;
}

/* Tokens [t, t + n) of the segment, channels [c, c + width). */
static void convolve_tile(const conv_job *job, bench *b, const pm_segment *segment, int t, int n, int c, int width)
{
    const pm_short_conv_args *args = job->args;
    size_t channels = (size_t)args->width, before = (size_t)args->kernel - 1;
    for (int i = 0; i < n; i++) {
        const float *B = args->bcx->data + (size_t)(segment->first + t + i) * 3 * channels + c, *x = B + 2 * channels;
        float *product = b->products + (before + (size_t)i) * CHANNELS;
        for (int k = 0; k < width; k++)
            product[k] = B[k] * x[k];
    }
    job->cpu->mixer->conv(&(pm_conv_args){.x = b->x,
                                          .w = args->conv->data + (size_t)c * (size_t)args->kernel,
                                          .bias = args->bias ? args->bias->data + c : NULL,
                                          .linear = true,
                                          .width = width,
                                          .kernel = args->kernel,
                                          .n = n},
                          b->y);
    for (int i = 0; i < n; i++) {
        size_t row = (size_t)(segment->first + t + i);
        const float *C = args->bcx->data + (row * 3 + 1) * channels + c, *y = b->y + (size_t)i * (size_t)width;
        float *out = args->out->data + row * channels + c;
        for (int k = 0; k < width; k++)
            out[k] = C[k] * y[k];
    }
}

/* Items are (segment, strip of channels). After each tile its last products move to the front. */
static void conv_items(void *arg, int worker, int64_t first, int64_t last)
{
    const conv_job *job = arg;
    const pm_short_conv_args *args = job->args;
    int strips = (args->width + CHANNELS - 1) / CHANNELS, before = args->kernel - 1;
    bench b;
    bench_layout(args, job->work + (size_t)worker * job->work_bytes, &b);
    for (int i = 0; i < before + TOKENS; i++)
        b.x[i] = b.products + (size_t)i * CHANNELS;
    for (int64_t item = first; item < last; item++) {
        const pm_segment *segment = job->batch->segments + item / strips;
        int c = (int)(item % strips) * CHANNELS, width = args->width - c < CHANNELS ? args->width - c : CHANNELS;
        float *state = segment->states[args->conv_state]->data + c;
        size_t row = (size_t)args->width, bytes = (size_t)width * sizeof(float);
        for (int i = 0; i < before; i++)
            memcpy(b.products + (size_t)i * CHANNELS, state + (size_t)i * row, bytes);
        for (int t = 0, n; t < segment->n; t += n) {
            n = segment->n - t < TOKENS ? segment->n - t : TOKENS;
            convolve_tile(job, &b, segment, t, n, c, width);
            memmove(b.products, b.products + (size_t)n * CHANNELS, (size_t)before * CHANNELS * sizeof(float));
        }
        for (int i = 0; i < before; i++)
            memcpy(state + (size_t)i * row, b.products + (size_t)i * CHANNELS, bytes);
    }
}

int pm_cpu_short_conv(pm_backend *backend, const pm_batch *batch, const pm_short_conv_args *args, pm_error *err)
{
    pm_cpu *cpu = (pm_cpu *)backend;
    conv_job job = {.cpu = cpu, .batch = batch, .args = args};
    job.work_bytes = bench_layout(args, NULL, &(bench){0});
    job.work = pm_cpu_scratch(cpu, PM_SCRATCH_CONV, (size_t)pm_workers(cpu) * job.work_bytes);
    if (!job.work)
        return pm_fail_memory(err);
    int64_t items = (int64_t)batch->n_segments * ((args->width + CHANNELS - 1) / CHANNELS);
    int64_t cost = (int64_t)batch->n_tokens * args->width * (args->kernel + 4);
    pm_run(cpu, items, pm_mixer_grain(cost / (items > 0 ? items : 1)), conv_items, &job);
    return PM_OK;
}
