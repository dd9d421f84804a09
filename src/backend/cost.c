#include "backend/cost.h"

/* Formats whose values are small integers times a scale; the others are multiplied as floats. */
static const bool integers[PM_FORMATS] = {
    [PM_FORMAT_AFFINE] = true, [PM_FORMAT_MXFP4] = true, [PM_FORMAT_NVFP4] = true};

static uint64_t weight_bytes(const pm_weight *w)
{
    uint64_t rows = (uint64_t)w->out, scale = pm_weight_scale_bytes(w);
    uint64_t scale_rows = w->format == PM_FORMAT_FP8
                              ? (rows + (uint64_t)w->block_first + (uint64_t)w->block[0] - 1) / (uint64_t)w->block[0]
                              : rows;
    return rows * (pm_weight_row_bytes(w) + (w->bias ? sizeof(float) : 0)) +
           scale_rows * ((w->scales ? scale : 0) + (w->biases ? scale : 0));
}

/* Adds the product of `w` with n rows; a matrix that meets none is not read. */
static void add_product(pm_cost *cost, const pm_weight *w, int64_t n)
{
    if (n == 0)
        return;
    *(integers[w->format] ? &cost->integer_ops : &cost->float_ops) +=
        2 * (uint64_t)n * (uint64_t)w->out * (uint64_t)w->in;
    cost->bytes += weight_bytes(w);
}

static uint64_t floats(int64_t n)
{
    return (uint64_t)n * sizeof(float);
}

/* The rows of the chosen tokens; a row chosen twice is counted twice. */
pm_cost pm_cost_embed(const pm_batch *batch, const pm_embed_args *args)
{
    const pm_weight *w = args->weight;
    uint64_t scale = pm_weight_scale_bytes(w);
    uint64_t row = pm_weight_row_bytes(w) + (w->scales ? scale : 0) + (w->biases ? scale : 0);
    return (pm_cost){.bytes = row * (uint64_t)batch->n_tokens};
}

pm_cost pm_cost_linear(const pm_batch *batch, const pm_linear_args *args)
{
    pm_cost cost = {.bytes = args->norm ? floats(args->w[0]->in) : 0};
    for (int i = 0; i < args->n; i++)
        add_product(&cost, args->w[i], batch->n_tokens);
    return cost;
}

/* A sequence's rows are read once for all its new tokens, and a row is a key and a value per key head. Each query head
 * meets the keys that it sees once for its score and the values once for the mixture. */
pm_cost pm_cost_attention(const pm_batch *batch, const pm_attention_args *args, pm_kv_type type)
{
    uint64_t rows = 0, seen = 0, row = 2 * (uint64_t)args->kv_heads * pm_kv_bytes(type, args->head_dim);
    for (int s = 0; s < batch->n_segments; s++) {
        int64_t pos = batch->segments[s].pos, n = batch->segments[s].n, window = args->window ? args->window : pos + n;
        rows += (uint64_t)((pos < window - 1 ? pos : window - 1) + n);
        for (int64_t end = pos + 1; end <= pos + n; end++)
            seen += (uint64_t)(end < window ? end : window);
    }
    uint64_t norms = (args->q_norm ? floats(args->head_dim) : 0) + (args->k_norm ? floats(args->head_dim) : 0);
    return (pm_cost){.bytes = rows * row + norms,
                     .float_ops = 4 * seen * (uint64_t)args->heads * (uint64_t)args->head_dim};
}

/* Every head's matrix meets its own part of every token. Transposed, the weights are multiplied as floats. */
pm_cost pm_cost_heads(const pm_batch *batch, const pm_heads_args *args)
{
    pm_cost cost = {0};
    for (int h = 0; h < args->heads; h++)
        add_product(&cost, &args->w[h], batch->n_tokens);
    if (args->transposed) {
        cost.float_ops += cost.integer_ops;
        cost.integer_ops = 0;
    }
    return cost;
}

/* A sequence's keys are read once for all the new tokens that have to choose, and new ones are written; each query head
 * meets each of them. */
pm_cost pm_cost_sparse_index(const pm_batch *batch, const pm_sparse_index_args *args, pm_kv_type type)
{
    uint64_t rows = 0, seen = 0, dim = (uint64_t)args->head_dim;
    int64_t ratio = args->k ? 1 : args->ratio;
    for (int s = 0; s < batch->n_segments; s++) {
        int64_t pos = batch->segments[s].pos, n = batch->segments[s].n, all = (pos + n) / ratio;
        rows += (uint64_t)(all > args->top_k ? all : args->k ? n : 0);
        for (int64_t end = pos + 1; end <= pos + n; end++)
            seen += (uint64_t)(end / ratio > args->top_k ? end / ratio : 0);
    }
    return (pm_cost){.bytes = rows * pm_kv_bytes(type, args->head_dim) + (args->k ? 2 * floats(args->head_dim) : 0),
                     .float_ops = 2 * seen * (uint64_t)args->heads * dim};
}

/* Rows of `ratio` tokens that a segment reads: each that some token attends to once; where rows were chosen, they are
 * counted for each token, up to all that there are. *seen counts them for each token. */
static uint64_t rows_attended(const pm_segment *segment, int ratio, int window, int top_k, uint64_t *seen)
{
    int64_t first = window && segment->pos >= window ? segment->pos - window + 1 : 0;
    int64_t all = (segment->pos + segment->n) / ratio - first, chosen = 0;
    for (int64_t end = segment->pos + 1; end <= segment->pos + segment->n; end++) {
        int64_t sees = window && window < end ? window : end / ratio;
        chosen += top_k && sees > top_k ? top_k : sees;
    }
    *seen += (uint64_t)chosen;
    return (uint64_t)(chosen < all ? chosen : all);
}

/* Each query head meets the keys once for its score and their values once. */
pm_cost pm_cost_latent_attention(const pm_batch *batch, const pm_latent_attention_args *args, pm_kv_type type)
{
    uint64_t rows = 0, seen = 0;
    int top_k = args->chosen ? args->top_k : 0;
    for (int s = 0; s < batch->n_segments; s++) {
        const pm_segment *segment = &batch->segments[s];
        rows += rows_attended(segment, 1, args->window, args->ratio ? 0 : top_k, &seen);
        if (args->ratio)
            rows += rows_attended(segment, args->ratio, 0, top_k, &seen);
    }
    return (pm_cost){.bytes = rows * pm_kv_bytes(type, args->width) + floats(args->value_width) +
                              (args->sinks ? floats(args->heads) : 0),
                     .float_ops = 2 * seen * (uint64_t)args->heads * (uint64_t)(args->width + args->value_width)};
}

/* Both states are read and written. An element of the delta state takes three multiply-adds per token: recalled,
 * changed and read out. */
pm_cost pm_cost_gated_delta(const pm_batch *batch, const pm_gated_delta_args *args)
{
    int64_t heads = args->value_heads, values = heads * args->value_dim, state = values * args->key_dim;
    int64_t channels = 2 * (int64_t)args->key_heads * args->key_dim + values;
    uint64_t states = floats(state + (args->kernel - 1) * channels);
    return (pm_cost){
        .bytes =
            floats(channels * args->kernel + 2 * heads + args->value_dim) + 2 * (uint64_t)batch->n_segments * states,
        .float_ops = (uint64_t)batch->n_tokens * (uint64_t)(2 * channels * args->kernel + 6 * state),
    };
}

/* The state is read and written. */
pm_cost pm_cost_short_conv(const pm_batch *batch, const pm_short_conv_args *args)
{
    int64_t width = args->width, state = (args->kernel - 1) * width;
    return (pm_cost){
        .bytes =
            floats(width * args->kernel + (args->bias ? width : 0)) + 2 * (uint64_t)batch->n_segments * floats(state),
        .float_ops = 2 * (uint64_t)batch->n_tokens * (uint64_t)(width * args->kernel),
    };
}

/* Both states are read and written. An element of the SSM state takes two multiply-adds per token: changed and read. */
pm_cost pm_cost_mamba2(const pm_batch *batch, const pm_mamba2_args *args)
{
    int64_t inner = (int64_t)args->heads * args->head_dim, state = inner * args->state_size;
    int64_t channels = inner + 2 * (int64_t)args->groups * args->state_size;
    uint64_t states = floats(state + (args->kernel - 1) * channels);
    uint64_t parameters = floats(channels * args->kernel + (args->conv_bias ? channels : 0) + 3 * args->heads + inner);
    return (pm_cost){
        .bytes = parameters + 2 * (uint64_t)batch->n_segments * states,
        .float_ops = (uint64_t)batch->n_tokens * (uint64_t)(2 * channels * args->kernel + 4 * state),
    };
}

/* States are read and written, finished rows written. An element of a token takes two multiply-adds, twice with
 * overlap; of the position bias the rows of as many tokens are read. */
pm_cost pm_cost_compress(const pm_batch *batch, const pm_compress_args *args, pm_kv_type type)
{
    int64_t folds = args->overlap ? 2 : 1, width = args->width, rows = 0, n = batch->n_tokens;
    for (int s = 0; s < batch->n_segments; s++) {
        const pm_segment *segment = &batch->segments[s];
        rows += (segment->pos + segment->n) / args->ratio - segment->pos / args->ratio;
    }
    uint64_t stored = (uint64_t)rows * pm_kv_bytes(type, args->width);
    return (pm_cost){
        .bytes = floats((n < args->ratio ? n : args->ratio) * folds * width + width) + stored +
                 2 * (uint64_t)batch->n_segments * floats(3 * folds * width),
        .float_ops = 4 * (uint64_t)(n * folds * width),
    };
}

pm_cost pm_cost_hyper_in(const pm_batch *batch, const pm_hyper_in_args *args)
{
    int64_t rows = args->iterations ? (2 + args->n) * args->n : args->n, cols = (int64_t)args->hidden * args->n;
    return (pm_cost){
        .bytes = floats(rows * cols + rows + (args->iterations ? 3 : 1)),
        .float_ops = 2 * (uint64_t)batch->n_tokens * (uint64_t)((rows + 1) * cols),
    };
}

pm_cost pm_cost_hyper_out(const pm_batch *batch, const pm_hyper_out_args *args)
{
    return (pm_cost){.float_ops =
                         2 * (uint64_t)batch->n_tokens * (uint64_t)((int64_t)args->hidden * args->n * (args->n + 1))};
}

pm_cost pm_cost_moe(const pm_batch *batch, const pm_moe_args *args)
{
    pm_cost cost = {0};
    int64_t n = batch->n_tokens;
    const pm_weight *always[] = {args->router,           args->shared_gate_proj,   args->shared_up_proj,
                                 args->shared_down_proj, args->shared_expert_gate, args->latent_in,
                                 args->latent_out};
    for (size_t i = 0; i < PM_COUNT(always); i++)
        if (always[i])
            add_product(&cost, always[i], n);
    for (int e = 0; args->router && e < args->route.experts; e++) {
        if (args->gate)
            add_product(&cost, &args->gate[e], args->expert_tokens[e]);
        add_product(&cost, &args->up[e], args->expert_tokens[e]);
        add_product(&cost, &args->down[e], args->expert_tokens[e]);
    }
    const pm_weight *first = args->router ? args->router : args->shared_up_proj;
    cost.bytes += floats(first->in); /* the norm */
    return cost;
}

pm_cost pm_cost_logits(const pm_batch *batch, const pm_logits_args *args)
{
    pm_cost cost = {.bytes = floats(args->head->in)};
    add_product(&cost, args->head, batch->n_outputs);
    return cost;
}
