/* embed, linear and logits, and what they share with moe: preparing an input once, and many matrices in one region. */
#include "backend/cpu/math.h"
#include "backend/cpu/matrix.h"

#include <stdatomic.h>
#include <string.h>

static const double NS_PER_ELEMENT = 0.5; /* of normalising and quantising */
static const double PIECE_NS = 1000;      /* what a piece of work must cost, for handing it over to pay */
enum {
    ROW_BLOCK = 128 /* rows that stay in a cache while they meet many columns */
};

/* ---- pieces ---- */

int64_t pm_grain(double ns)
{
    return (int64_t)(PIECE_NS / ns) + 1;
}

double pm_row_cost(const pm_weight *w, int columns)
{
    double bytes = (double)(pm_weight_row_bytes(w) + 2 * pm_weight_scale_bytes(w));
    double read = bytes / 12, compute = (double)w->in * columns / 24;
    return 2 + (read > compute ? read : compute);
}

/* ---- preparing an input ---- */

static int kind_of(const pm_cpu *cpu, const pm_weight *w)
{
    return pm_group_index(w->group) * PM_LAYOUTS + (int)pm_kernel_of(cpu, w)->layout;
}

void pm_input_need(const pm_cpu *cpu, const pm_weight *w, unsigned *need)
{
    if (pm_is_quantised(w))
        *need |= 1u << kind_of(cpu, w);
}

typedef struct prepare_job {
    const pm_cpu *cpu;
    const pm_norm *norm;
    const float *x;
    float *normed;
    pm_input *input;
} prepare_job;

static void prepare_rows(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    const prepare_job *job = arg;
    const pm_matrix_kernels *kernels = job->cpu->matrix;
    int in = job->input->in;
    for (int64_t row = first; row < last; row++) {
        const float *x = job->x + row * in;
        if (job->norm) {
            float *y = job->normed + row * in;
            if (job->norm->rows)
                x = job->x + (int64_t)job->norm->rows[row] * in;
            kernels->rms_norm(x, job->norm->w, job->norm->eps, in, y);
            x = y;
        }
        for (int i = 0; i < PM_GROUPS; i++) {
            int group = 16 << i, groups = in / group;
            for (int layout = 0; layout < PM_LAYOUTS; layout++) {
                if (!(job->input->have & 1u << (i * PM_LAYOUTS + layout)))
                    continue;
                const pm_quantised to = pm_quantised_rows(&job->input->quantised[i * PM_LAYOUTS + layout], (size_t)row,
                                                          (size_t)in, (size_t)groups);
                kernels->quantise(x, in, group, (pm_layout)layout, job->cpu->precision, &to);
            }
        }
    }
}

bool pm_input_prepare(pm_cpu *cpu, pm_input *input, const pm_norm *norm, unsigned need)
{
    prepare_job job = {.cpu = cpu, .norm = norm, .x = input->x, .input = input};
    size_t rows = (size_t)input->rows, in = (size_t)input->in, bytes = 0;
    if (norm) {
        job.normed = pm_cpu_scratch(cpu, input->norm_slot, rows * in * sizeof(float));
        if (!job.normed)
            return false;
        input->x = job.normed;
    }
    /* Per kind: q, then scale, sum and excess, each part on a multiple of 64 bytes. */
    size_t q_bytes = rows * pm_padded(in) * sizeof(int16_t);
    for (int kind = 0; kind < PM_GROUPS * PM_LAYOUTS; kind++)
        if (need & 1u << kind)
            bytes += q_bytes + 3 * ((rows * (in / (16u << kind / PM_LAYOUTS)) * sizeof(float) + 63) / 64 * 64);
    char *p = need ? pm_cpu_scratch(cpu, input->quant_slot, bytes) : NULL;
    if (need && !p)
        return false;
    for (int kind = 0; kind < PM_GROUPS * PM_LAYOUTS; kind++) {
        if (!(need & 1u << kind))
            continue;
        size_t float_bytes = (rows * (in / (16u << kind / PM_LAYOUTS)) * sizeof(float) + 63) / 64 * 64;
        input->quantised[kind] =
            (pm_quantised){(int16_t *)p, (float *)(p + q_bytes), (float *)(p + q_bytes + float_bytes),
                           (int32_t *)(p + q_bytes + 2 * float_bytes)};
        p += q_bytes + 3 * float_bytes;
    }
    input->have = need;
    if (norm || need)
        pm_pool_run(cpu->pool, input->rows, pm_grain(NS_PER_ELEMENT * (double)in), prepare_rows, &job);
    return true;
}

pm_columns pm_input_columns(const pm_cpu *cpu, const pm_input *input, const pm_weight *w)
{
    pm_columns columns = {.n = input->rows, .x = input->x};
    if (pm_is_quantised(w))
        columns.quantised = input->quantised[kind_of(cpu, w)];
    return columns;
}

/* ---- products ---- */

void pm_multiply(const pm_cpu *cpu, const pm_weight *w, int first, int last, const pm_columns *columns,
                 const pm_results *results)
{
    pm_multiply_fn *multiply = pm_is_quantised(w) ? pm_kernel_of(cpu, w)->multiply : cpu->matrix->multiply[w->format];
    int step = columns->n == 1 ? last - first : ROW_BLOCK;
    for (int row = first; row < last; row += step)
        multiply(w, row, last - row < step ? last : row + step, columns, results);
    for (int i = 0; w->bias && i < columns->n; i++)
        for (int row = first; row < last; row++)
            results->y[i * results->stride + row] += w->bias[row];
}

typedef struct products_job {
    const pm_cpu *cpu;
    const pm_input *input;
    const pm_product *products;
    int n;
} products_job;

/* Indices count the rows of all matrices, each matrix rounded up to a whole number of tiles. */
static void multiply_rows(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    const products_job *job = arg;
    int64_t base = 0;
    for (int i = 0; i < job->n && base < last; i++) {
        const pm_weight *w = job->products[i].w;
        int64_t from = first - base, to = last - base;
        base += pm_row_tiles(w->out);
        from = from < 0 ? 0 : from;
        to = to > w->out ? w->out : to;
        if (from >= to)
            continue;
        pm_columns columns = pm_input_columns(job->cpu, job->input, w);
        pm_multiply(job->cpu, w, (int)from, (int)to, &columns, &job->products[i].results);
    }
}

void pm_products(pm_cpu *cpu, const pm_input *input, const pm_product *products, int n)
{
    products_job job = {cpu, input, products, n};
    int64_t rows = 0;
    double ns = 0;
    for (int i = 0; i < n; i++) {
        rows += pm_row_tiles(products[i].w->out);
        ns += pm_row_cost(products[i].w, input->rows) * products[i].w->out;
    }
    if (rows && input->rows)
        pm_pool_run(cpu->pool, rows, pm_row_tiles(pm_grain(ns / (double)rows)), multiply_rows, &job);
}

/* ---- operations ---- */

typedef struct embed_job {
    const pm_cpu *cpu;
    const pm_batch *batch;
    const pm_embed_args *args;
} embed_job;

static void embed_rows(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    const embed_job *job = arg;
    const pm_weight *w = job->args->weight;
    for (int64_t i = first; i < last; i++) {
        float *y = job->args->y->data + i * job->args->y->cols;
        job->cpu->matrix->dequantise(w, job->batch->tokens[i], 0, w->in, y);
        for (int copy = 1; copy < job->args->copies; copy++)
            memcpy(y + (size_t)copy * (size_t)w->in, y, (size_t)w->in * sizeof(float));
    }
}

int pm_cpu_embed(pm_backend *backend, const pm_batch *batch, const pm_embed_args *args, pm_error *err)
{
    (void)err;
    pm_cpu *cpu = (pm_cpu *)backend;
    embed_job job = {cpu, batch, args};
    pm_pool_run(cpu->pool, batch->n_tokens, pm_grain(args->weight->in), embed_rows, &job);
    return PM_OK;
}

int pm_cpu_linear(pm_backend *backend, const pm_batch *batch, const pm_linear_args *args, pm_error *err)
{
    enum { AT_ONCE = 16 }; /* products in a region */
    pm_cpu *cpu = (pm_cpu *)backend;
    pm_input input = {.x = args->x->data,
                      .rows = batch->n_tokens,
                      .in = (int)args->x->cols,
                      .norm_slot = PM_SCRATCH_NORM,
                      .quant_slot = PM_SCRATCH_QUANT};
    pm_norm norm = {.w = args->norm ? args->norm->data : NULL, .eps = args->eps};
    unsigned need = 0;
    for (int i = 0; i < args->n; i++)
        pm_input_need(cpu, args->w[i], &need);
    if (!pm_input_prepare(cpu, &input, args->norm ? &norm : NULL, need))
        return pm_fail_memory(err);
    for (int first = 0; first < args->n; first += AT_ONCE) {
        pm_product products[AT_ONCE];
        int n = 0;
        for (; n < AT_ONCE && first + n < args->n; n++) {
            const pm_tensor *y = args->y[first + n];
            bool add = first + n == 0 && args->residual;
            products[n] = (pm_product){args->w[first + n], {y->data, add ? args->residual->data : NULL, y->cols}};
        }
        pm_products(cpu, &input, products, n);
    }
    return PM_OK;
}

/* ---- logits ---- */

typedef struct finite_job {
    const float *data;
    atomic_bool bad;
} finite_job;

static void check_finite(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    finite_job *job = arg;
    uint32_t largest = 0;
    for (int64_t i = first; i < last; i++) {
        uint32_t magnitude = pm_bits(job->data[i]) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    if (largest >= 0x7f800000)
        atomic_store_explicit(&job->bad, true, memory_order_relaxed);
}

int pm_cpu_logits(pm_backend *backend, const pm_batch *batch, const pm_logits_args *args, pm_error *err)
{
    pm_cpu *cpu = (pm_cpu *)backend;
    pm_input input = {.x = args->x->data,
                      .rows = batch->n_outputs,
                      .in = (int)args->x->cols,
                      .norm_slot = PM_SCRATCH_NORM,
                      .quant_slot = PM_SCRATCH_QUANT};
    pm_norm norm = {.w = args->norm->data, .eps = args->eps, .rows = batch->outputs};
    unsigned need = 0;
    pm_input_need(cpu, args->head, &need);
    if (!pm_input_prepare(cpu, &input, &norm, need))
        return pm_fail_memory(err);
    pm_product product = {args->head, {args->logits, NULL, args->head->out}};
    pm_products(cpu, &input, &product, 1);
    finite_job job = {.data = args->logits};
    int64_t n = (int64_t)batch->n_outputs * args->head->out;
    pm_pool_run(cpu->pool, n, pm_grain(0.1), check_finite, &job);
    if (job.bad)
        return pm_fail(err, PM_ERR_NUMERIC, "logits are not finite");
    return PM_OK;
}
