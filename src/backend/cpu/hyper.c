/* Manifold-constrained hyper-connections: weights of a block from the streams, and the streams from its output
 * (backend.h has the formulas). The projection is a product with an f32 matrix; everything else is per token. */
#include "backend/cpu/mixer.h"

enum { STRIP = 256 }; /* columns of a stream that are mixed at once */

typedef struct hyper_job {
    const pm_cpu *cpu;
    const pm_hyper_in_args *in;
    const pm_hyper_out_args *out;
    pm_tensor projected; /* [tokens, rows of fn] */
    float *pre;          /* [tokens, n] */
} hyper_job;

/* ---- weights ---- */

/* Row softmax of m [n, n] and Sinkhorn and Knopp's alternation towards row and column sums of 1. */
static void sinkhorn(float *m, int n, int iterations, float eps)
{
    for (int r = 0; r < n; r++) {
        float most = m[r * n], sum = 0;
        for (int c = 1; c < n; c++)
            most = m[r * n + c] > most ? m[r * n + c] : most;
        for (int c = 0; c < n; c++)
            sum += m[r * n + c] = pm_exp(m[r * n + c] - most);
        for (int c = 0; c < n; c++)
            m[r * n + c] = m[r * n + c] / sum + eps;
    }
    for (int i = 0; i < iterations; i++) {
        for (int r = 0; i > 0 && r < n; r++) {
            float sum = 0;
            for (int c = 0; c < n; c++)
                sum += m[r * n + c];
            float inverse = 1.0f / (sum + eps);
            for (int c = 0; c < n; c++)
                m[r * n + c] *= inverse;
        }
        for (int c = 0; c < n; c++) {
            float sum = 0;
            for (int r = 0; r < n; r++)
                sum += m[r * n + c];
            float inverse = 1.0f / (sum + eps);
            for (int r = 0; r < n; r++)
                m[r * n + c] *= inverse;
        }
    }
}

/* pre, and post and comb where they are wanted, of tokens [first, last). */
static void weigh_tokens(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    const hyper_job *job = arg;
    const pm_hyper_in_args *args = job->in;
    const float *base = args->base->data, *scale = args->scale->data;
    int n = args->n, in = (int)args->fn->cols;
    for (int64_t t = first; t < last; t++) {
        const float *x = args->streams->data + t * in, *w = job->projected.data + t * job->projected.cols;
        float r = pm_rsqrt(job->cpu->mixer->dot(x, x, in) / (float)in + args->norm_eps);
        for (int j = 0; j < n; j++)
            job->pre[t * n + j] = pm_sigmoid(fmaf(w[j] * r, scale[0], base[j])) + args->eps;
        if (!args->mix)
            continue;
        float *post = args->mix->data + t * args->mix->cols, *comb = post + n;
        for (int j = 0; j < n; j++)
            post[j] = 2.0f * pm_sigmoid(fmaf(w[n + j] * r, scale[1], base[n + j]));
        for (int j = 0; j < n * n; j++)
            comb[j] = fmaf(w[2 * n + j] * r, scale[2], base[2 * n + j]);
        sinkhorn(comb, n, args->iterations, args->eps);
    }
}

/* ---- mixing; items are (token, strip) ---- */

static int strips(int hidden)
{
    return (hidden + STRIP - 1) / STRIP;
}

static void collapse_items(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    const hyper_job *job = arg;
    int n = job->in->n, hidden = job->in->hidden;
    for (int64_t i = first; i < last; i++) {
        int64_t t = i / strips(hidden);
        int column = (int)(i % strips(hidden)) * STRIP, width = hidden - column < STRIP ? hidden - column : STRIP;
        float *x = job->in->x->data + t * hidden + column;
        memset(x, 0, (size_t)width * sizeof(float));
        job->cpu->mixer->mix(x, 1.0f, job->pre + t * n, job->in->streams->data + t * n * hidden + column,
                             (size_t)hidden, width, n);
    }
}

static void expand_items(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    const hyper_job *job = arg;
    const pm_hyper_out_args *args = job->out;
    int n = args->n, hidden = args->hidden;
    for (int64_t i = first; i < last; i++) {
        int64_t t = i / strips(hidden);
        int column = (int)(i % strips(hidden)) * STRIP, width = hidden - column < STRIP ? hidden - column : STRIP;
        const float *y = args->y->data + t * hidden + column, *post = args->mix->data + t * args->mix->cols;
        float *streams = args->streams->data + t * n * hidden + column;
        float mixed[PM_HYPER_STREAMS][STRIP], weights[PM_HYPER_STREAMS];
        for (int k = 0; k < n; k++) {
            for (int j = 0; j < n; j++)
                weights[j] = post[n + j * n + k];
            memcpy(mixed[k], y, (size_t)width * sizeof(float));
            job->cpu->mixer->mix(mixed[k], post[k], weights, streams, (size_t)hidden, width, n);
        }
        for (int k = 0; k < n; k++)
            memcpy(streams + (size_t)k * (size_t)hidden, mixed[k], (size_t)width * sizeof(float));
    }
}

/* ---- the operations ---- */

int pm_cpu_hyper_in(pm_backend *backend, const pm_batch *batch, const pm_hyper_in_args *args, pm_error *err)
{
    pm_cpu *cpu = (pm_cpu *)backend;
    const pm_tensor *fn = args->fn;
    pm_weight w = {.format = PM_FORMAT_F32, .out = (int)fn->rows, .in = (int)fn->cols, .data = fn->data};
    hyper_job job = {.cpu = cpu, .in = args};
    size_t tokens = (size_t)batch->n_tokens, at = 0;
    size_t projected = tokens * (size_t)fn->rows * sizeof(float), pre = tokens * (size_t)args->n * sizeof(float);
    char *memory = pm_cpu_scratch(cpu, PM_SCRATCH_HYPER, pm_line(projected) + pm_line(pre));
    if (!memory)
        return pm_fail_memory(err);
    job.projected = (pm_tensor){batch->n_tokens, fn->rows, pm_take(memory, &at, projected)};
    job.pre = pm_take(memory, &at, pre);
    pm_linear_args project = {
        .x = args->streams, .n = 1, .w = (const pm_weight *[]){&w}, .y = (pm_tensor *[]){&job.projected}};
    int status = pm_cpu_linear(backend, batch, &project, err);
    if (status != PM_OK)
        return status;
    pm_run(cpu, batch->n_tokens, pm_mixer_grain(fn->cols + args->iterations * args->n * args->n * 8), weigh_tokens,
           &job);
    pm_run(cpu, (int64_t)batch->n_tokens * strips(args->hidden), pm_mixer_grain((int64_t)STRIP * args->n),
           collapse_items, &job);
    return PM_OK;
}

int pm_cpu_hyper_out(pm_backend *backend, const pm_batch *batch, const pm_hyper_out_args *args, pm_error *err)
{
    (void)err;
    pm_cpu *cpu = (pm_cpu *)backend;
    hyper_job job = {.cpu = cpu, .out = args};
    pm_run(cpu, (int64_t)batch->n_tokens * strips(args->hidden), pm_mixer_grain((int64_t)STRIP * args->n * args->n),
           expand_items, &job);
    return PM_OK;
}
