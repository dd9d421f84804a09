/* A profiler takes the place of the backend's table of operations with a copy in which those that compute are replaced
 * by measured ones. The backend stays the same object, so everything else, memory above all, is as it was. */
#include "backend/profile.h"
#include "backend/cost.h"

#include <stdlib.h>

typedef enum operation {
    EMBED,
    LINEAR,
    ATTENTION,
    HEADS,
    SPARSE_INDEX,
    LATENT_ATTENTION,
    GATED_DELTA,
    SHORT_CONV,
    MAMBA2,
    COMPRESS,
    HYPER_IN,
    HYPER_OUT,
    MOE,
    LOGITS,
    OPERATIONS
} operation;

static const char *const names[OPERATIONS] = {
    [EMBED] = "embed",
    [LINEAR] = "linear",
    [ATTENTION] = "attention",
    [HEADS] = "heads",
    [SPARSE_INDEX] = "sparse_index",
    [LATENT_ATTENTION] = "latent_attention",
    [GATED_DELTA] = "gated_delta",
    [SHORT_CONV] = "short_conv",
    [MAMBA2] = "mamba2",
    [COMPRESS] = "compress",
    [HYPER_IN] = "hyper_in",
    [HYPER_OUT] = "hyper_out",
    [MOE] = "moe",
    [LOGITS] = "logits",
};
_Static_assert((int)OPERATIONS <= (int)PM_PROFILE_OPS, "pm_profile has room for every operation");

struct pm_profiler {
    pm_backend_ops ops; /* first: a backend leads to its profiler */
    const pm_backend_ops *inner;
    pm_kv_type type;
    pm_op_profile total[OPERATIONS];
    int *expert_tokens; /* [cap_experts] */
    size_t cap_experts;
};

static pm_profiler *profiler_of(const pm_backend *backend)
{
    return (pm_profiler *)backend->ops;
}

/* Adds a call that took `seconds`. */
static int add(pm_profiler *p, operation op, double seconds, pm_cost cost)
{
    pm_op_profile *total = &p->total[op];
    total->calls++;
    total->seconds += seconds;
    total->bytes += cost.bytes;
    total->integer_ops += cost.integer_ops;
    total->float_ops += cost.float_ops;
    return PM_OK;
}

/* ---- the operations ---- */

static int timed_embed(pm_backend *backend, const pm_batch *batch, const pm_embed_args *args, pm_error *err)
{
    pm_profiler *p = profiler_of(backend);
    double start = pm_now();
    int status = p->inner->embed(backend, batch, args, err);
    double seconds = pm_now() - start;
    return status ? status : add(p, EMBED, seconds, pm_cost_embed(batch, args));
}

static int timed_linear(pm_backend *backend, const pm_batch *batch, const pm_linear_args *args, pm_error *err)
{
    pm_profiler *p = profiler_of(backend);
    double start = pm_now();
    int status = p->inner->linear(backend, batch, args, err);
    double seconds = pm_now() - start;
    return status ? status : add(p, LINEAR, seconds, pm_cost_linear(batch, args));
}

static int timed_attention(pm_backend *backend, const pm_batch *batch, const pm_attention_args *args, pm_error *err)
{
    pm_profiler *p = profiler_of(backend);
    double start = pm_now();
    int status = p->inner->attention(backend, batch, args, err);
    double seconds = pm_now() - start;
    return status ? status : add(p, ATTENTION, seconds, pm_cost_attention(batch, args, p->type));
}

static int timed_heads(pm_backend *backend, const pm_batch *batch, const pm_heads_args *args, pm_error *err)
{
    pm_profiler *p = profiler_of(backend);
    double start = pm_now();
    int status = p->inner->heads(backend, batch, args, err);
    double seconds = pm_now() - start;
    return status ? status : add(p, HEADS, seconds, pm_cost_heads(batch, args));
}

static int timed_sparse_index(pm_backend *backend, const pm_batch *batch, const pm_sparse_index_args *args,
                              pm_error *err)
{
    pm_profiler *p = profiler_of(backend);
    double start = pm_now();
    int status = p->inner->sparse_index(backend, batch, args, err);
    double seconds = pm_now() - start;
    return status ? status : add(p, SPARSE_INDEX, seconds, pm_cost_sparse_index(batch, args, p->type));
}

static int timed_latent_attention(pm_backend *backend, const pm_batch *batch, const pm_latent_attention_args *args,
                                  pm_error *err)
{
    pm_profiler *p = profiler_of(backend);
    double start = pm_now();
    int status = p->inner->latent_attention(backend, batch, args, err);
    double seconds = pm_now() - start;
    return status ? status : add(p, LATENT_ATTENTION, seconds, pm_cost_latent_attention(batch, args, p->type));
}

static int timed_gated_delta(pm_backend *backend, const pm_batch *batch, const pm_gated_delta_args *args, pm_error *err)
{
    pm_profiler *p = profiler_of(backend);
    double start = pm_now();
    int status = p->inner->gated_delta(backend, batch, args, err);
    double seconds = pm_now() - start;
    return status ? status : add(p, GATED_DELTA, seconds, pm_cost_gated_delta(batch, args));
}

static int timed_short_conv(pm_backend *backend, const pm_batch *batch, const pm_short_conv_args *args, pm_error *err)
{
    pm_profiler *p = profiler_of(backend);
    double start = pm_now();
    int status = p->inner->short_conv(backend, batch, args, err);
    double seconds = pm_now() - start;
    return status ? status : add(p, SHORT_CONV, seconds, pm_cost_short_conv(batch, args));
}

static int timed_mamba2(pm_backend *backend, const pm_batch *batch, const pm_mamba2_args *args, pm_error *err)
{
    pm_profiler *p = profiler_of(backend);
    double start = pm_now();
    int status = p->inner->mamba2(backend, batch, args, err);
    double seconds = pm_now() - start;
    return status ? status : add(p, MAMBA2, seconds, pm_cost_mamba2(batch, args));
}

static int timed_compress(pm_backend *backend, const pm_batch *batch, const pm_compress_args *args, pm_error *err)
{
    pm_profiler *p = profiler_of(backend);
    double start = pm_now();
    int status = p->inner->compress(backend, batch, args, err);
    double seconds = pm_now() - start;
    return status ? status : add(p, COMPRESS, seconds, pm_cost_compress(batch, args, p->type));
}

static int timed_hyper_in(pm_backend *backend, const pm_batch *batch, const pm_hyper_in_args *args, pm_error *err)
{
    pm_profiler *p = profiler_of(backend);
    double start = pm_now();
    int status = p->inner->hyper_in(backend, batch, args, err);
    double seconds = pm_now() - start;
    return status ? status : add(p, HYPER_IN, seconds, pm_cost_hyper_in(batch, args));
}

static int timed_hyper_out(pm_backend *backend, const pm_batch *batch, const pm_hyper_out_args *args, pm_error *err)
{
    pm_profiler *p = profiler_of(backend);
    double start = pm_now();
    int status = p->inner->hyper_out(backend, batch, args, err);
    double seconds = pm_now() - start;
    return status ? status : add(p, HYPER_OUT, seconds, pm_cost_hyper_out(batch, args));
}

/* What it costs depends on the experts that it chooses. */
static int timed_moe(pm_backend *backend, const pm_batch *batch, const pm_moe_args *args, pm_error *err)
{
    pm_profiler *p = profiler_of(backend);
    pm_moe_args counted = *args;
    if (args->router && !args->expert_tokens) {
        void *counts = p->expert_tokens;
        int grown = pm_grow(&counts, &p->cap_experts, (size_t)args->route.experts, sizeof(*p->expert_tokens));
        p->expert_tokens = counts;
        if (grown != PM_OK)
            return pm_fail_memory(err);
        counted.expert_tokens = p->expert_tokens;
    }
    double start = pm_now();
    int status = p->inner->moe(backend, batch, &counted, err);
    double seconds = pm_now() - start;
    return status ? status : add(p, MOE, seconds, pm_cost_moe(batch, &counted));
}

static int timed_logits(pm_backend *backend, const pm_batch *batch, const pm_logits_args *args, pm_error *err)
{
    pm_profiler *p = profiler_of(backend);
    double start = pm_now();
    int status = p->inner->logits(backend, batch, args, err);
    double seconds = pm_now() - start;
    return status ? status : add(p, LOGITS, seconds, pm_cost_logits(batch, args));
}

/* ---- the profiler ---- */

static void free_both(pm_backend *backend)
{
    pm_profiler *p = profiler_of(backend);
    backend->ops = p->inner;
    free(p->expert_tokens);
    free(p);
    backend->ops->free(backend);
}

int pm_profiler_new(pm_profiler **out, pm_backend *backend, pm_kv_type type, pm_error *err)
{
    pm_profiler *p = calloc(1, sizeof(*p));
    if (!p)
        return pm_fail_memory(err);
    p->inner = backend->ops;
    p->type = type;
    p->ops = *backend->ops;
    p->ops.free = free_both;
    p->ops.embed = timed_embed;
    p->ops.linear = timed_linear;
    p->ops.attention = timed_attention;
    p->ops.heads = timed_heads;
    p->ops.sparse_index = timed_sparse_index;
    p->ops.latent_attention = timed_latent_attention;
    p->ops.gated_delta = timed_gated_delta;
    p->ops.short_conv = timed_short_conv;
    p->ops.mamba2 = timed_mamba2;
    p->ops.compress = timed_compress;
    p->ops.hyper_in = timed_hyper_in;
    p->ops.hyper_out = timed_hyper_out;
    p->ops.moe = timed_moe;
    p->ops.logits = timed_logits;
    pm_profiler_reset(p);
    backend->ops = &p->ops;
    *out = p;
    return PM_OK;
}

void pm_profiler_read(const pm_profiler *profiler, pm_profile *out)
{
    *out = (pm_profile){0};
    for (int i = 0; i < OPERATIONS; i++)
        if (profiler->total[i].calls)
            out->op[out->n++] = profiler->total[i];
}

void pm_profiler_reset(pm_profiler *profiler)
{
    for (int i = 0; i < OPERATIONS; i++)
        profiler->total[i] = (pm_op_profile){.name = names[i]};
}
