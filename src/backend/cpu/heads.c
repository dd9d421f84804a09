/* One small matrix per head, as it is or transposed.
 *
 * As it is: the kernels of matrix.h. Transposed: weights become floats (integer * weight scale + bias in one rounding),
 * and y[j] is one chain of fmaf over the rows of the matrix, ascending. */
#include "backend/cpu/matrix.h"
#include "backend/cpu/mixer.h"

enum { STRIP = PM_MAX_GROUP };

typedef struct heads_job {
    const pm_cpu *cpu;
    const pm_heads_args *args;
    int tokens, in, out;
    int pieces;      /* transposed: of a head, strips of columns; otherwise rows, rounded up */
    pm_input input;  /* [heads, tokens, in] */
    float *gathered; /* likewise */
    char *work;      /* [workers]: a strip of a matrix as floats, [in, STRIP] */
    size_t work_bytes;
} heads_job;

static const float *slice_of(const heads_job *job, int64_t head, int64_t token)
{
    const pm_heads_args *args = job->args;
    return args->x->data + (token * args->heads + head) * args->x_stride + args->x_first;
}

/* Items are (head, token). */
static void gather(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    const heads_job *job = arg;
    size_t in = (size_t)job->in;
    for (int64_t i = first; i < last; i++)
        memcpy(job->gathered + (size_t)i * in, slice_of(job, i / job->tokens, i % job->tokens), in * sizeof(float));
}

/* Items are (head, row), rows rounded up to whole tiles. */
static void multiply_rows(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    const heads_job *job = arg;
    while (first < last) {
        int64_t head = first / job->pieces, base = head * job->pieces;
        const pm_weight *w = job->args->w + head;
        int from = (int)(first - base), to = (int)(last - base < job->out ? last - base : job->out);
        pm_columns columns = pm_input_columns(job->cpu, &job->input, w);
        size_t row = (size_t)head * (size_t)job->tokens, in = (size_t)job->in;
        columns.n = job->tokens;
        columns.x += row * in;
        if (pm_is_quantised(w))
            columns.quantised = pm_quantised_rows(&columns.quantised, row, in, in / (size_t)w->group);
        pm_results results = {job->args->y->data + head * job->out, NULL, (int64_t)job->args->heads * job->out};
        if (from < to)
            pm_multiply(job->cpu, w, from, to, &columns, &results);
        first = base + job->pieces;
    }
}

static int multiply(heads_job *job, pm_cpu *cpu, pm_error *err)
{
    const pm_heads_args *args = job->args;
    int rows = args->heads * job->tokens;
    unsigned need = 0;
    bool in_place = job->tokens == 1 && args->x_stride == job->in;
    if (!in_place) {
        job->gathered = pm_cpu_scratch(cpu, PM_SCRATCH_HEADS, (size_t)rows * (size_t)job->in * sizeof(float));
        if (!job->gathered)
            return pm_fail_memory(err);
        pm_run(cpu, rows, pm_grain(0.1 * job->in), gather, job);
    }
    job->input = (pm_input){.x = in_place ? args->x->data : job->gathered,
                            .rows = rows,
                            .in = job->in,
                            .norm_slot = PM_SCRATCH_NORM,
                            .quant_slot = PM_SCRATCH_QUANT};
    pm_input_need(cpu, args->w, &need);
    if (!pm_input_prepare(cpu, &job->input, NULL, need))
        return pm_fail_memory(err);
    job->pieces = pm_row_tiles(job->out);
    int64_t items = (int64_t)args->heads * job->pieces;
    int64_t grain = pm_grain(pm_row_cost(args->w, job->tokens));
    pm_run(cpu, items, pm_row_tiles(grain), multiply_rows, job);
    return PM_OK;
}

/* Items are (head, strip of columns). */
static void multiply_strips(void *arg, int worker, int64_t first, int64_t last)
{
    const heads_job *job = arg;
    const pm_heads_args *args = job->args;
    float *strip = (float *)(job->work + (size_t)worker * job->work_bytes);
    for (int64_t item = first; item < last; item++) {
        int64_t head = item / job->pieces;
        int from = (int)(item % job->pieces) * STRIP, n = job->out - from < STRIP ? job->out - from : STRIP;
        for (int i = 0; i < job->in; i++)
            job->cpu->matrix->dequantise(args->w + head, i, from, n, strip + (size_t)i * STRIP);
        for (int64_t t = 0; t < job->tokens; t++) {
            float *y = args->y->data + (t * args->heads + head) * job->out + from;
            memset(y, 0, (size_t)n * sizeof *y);
            job->cpu->mixer->mix(y, 1.0f, slice_of(job, head, t), strip, STRIP, n, job->in);
        }
    }
}

static int multiply_transposed(heads_job *job, pm_cpu *cpu, pm_error *err)
{
    job->work_bytes = (size_t)job->in * STRIP * sizeof(float);
    job->work = pm_cpu_scratch(cpu, PM_SCRATCH_HEADS, (size_t)pm_workers(cpu) * job->work_bytes);
    if (!job->work)
        return pm_fail_memory(err);
    job->pieces = (job->out + STRIP - 1) / STRIP;
    int64_t items = (int64_t)job->args->heads * job->pieces;
    pm_run(cpu, items, pm_grain(0.1 * job->in * STRIP * (job->tokens + 2)), multiply_strips, job);
    return PM_OK;
}

int pm_cpu_heads(pm_backend *backend, const pm_batch *batch, const pm_heads_args *args, pm_error *err)
{
    if (batch->n_tokens < 1)
        return PM_OK;
    pm_cpu *cpu = (pm_cpu *)backend;
    heads_job job = {.cpu = cpu, .args = args, .tokens = batch->n_tokens};
    job.in = args->transposed ? args->w->out : args->w->in;
    job.out = args->transposed ? args->w->in : args->w->out;
    return args->transposed ? multiply_transposed(&job, cpu, err) : multiply(&job, cpu, err);
}
