/* The MLX backend beside the scalar CPU kernels: every operation; and the memory, errors and refusals of the backend
 * itself. */
#include "ops/sides.h"

#include <pthread.h>

/* ---- weights ---- */

static const test_kind kinds[] = {
    {"f32", PM_FORMAT_F32, PM_SCALE_F32, 0, 0},        {"f16", PM_FORMAT_F16, PM_SCALE_F16, 0, 0},
    {"bf16", PM_FORMAT_BF16, PM_SCALE_BF16, 0, 0},     {"2-bit", PM_FORMAT_AFFINE, PM_SCALE_BF16, 2, 32},
    {"3-bit", PM_FORMAT_AFFINE, PM_SCALE_F16, 3, 64},  {"4-bit", PM_FORMAT_AFFINE, PM_SCALE_F32, 4, 64},
    {"5-bit", PM_FORMAT_AFFINE, PM_SCALE_BF16, 5, 32}, {"6-bit", PM_FORMAT_AFFINE, PM_SCALE_BF16, 6, 128},
    {"8-bit", PM_FORMAT_AFFINE, PM_SCALE_F16, 8, 32},  {"mxfp4", PM_FORMAT_MXFP4, PM_SCALE_E8M0, 4, 32},
    {"mxfp8", PM_FORMAT_MXFP8, PM_SCALE_E8M0, 8, 32},  {"nvfp4", PM_FORMAT_NVFP4, PM_SCALE_E4M3, 4, 16},
    {"fp8", PM_FORMAT_FP8, PM_SCALE_F32, 8, 48},
};
enum { F32, F16, BF16, BITS_4 = 5, BITS_8 = 8, MXFP4, MXFP8, NVFP4, FP8 };

/* y = W n(x) + bias + residual, a second matrix beside it, and rows of a third. */
static void run_linear(world *w, const pm_batch *batch, const void *how)
{
    const test_kind *kind = how;
    pm_backend *b = w->backend[w->side];
    pm_error err;
    float *bias = random_floats(5, 24, 1);
    pm_weight *one = matrices(w, kind, 1, 24, 128), *two = loaded(w, kind, 1, 33, 128);
    pm_weight *table = loaded(w, kind, 1, 19, 128);
    one->bias = bias;
    load(w, one, 1);
    pm_tensor *y[] = {output(w, TOKENS, 24), output(w, TOKENS, 33)};
    pm_linear_args args = {.x = input(w, TOKENS, 128, 1),
                           .norm = parameter(w, 1, 128, 0.5f, 1),
                           .eps = 1e-5f,
                           .n = 2,
                           .w = (const pm_weight *[]){one, two},
                           .y = y,
                           .residual = input(w, TOKENS, 24, 1)};
    must(w, b->ops->linear(b, batch, &args, &err), &err);
    pm_embed_args embed = {.weight = table, .y = output(w, TOKENS, 2 * 128), .copies = 2};
    must(w, b->ops->embed(b, batch, &embed, &err), &err);
    pm_linear_args plain = {.x = input(w, TOKENS, 128, 1), .n = 1, .w = (const pm_weight *[]){two}, .y = &y[1]};
    y[1] = output(w, TOKENS, 33);
    must(w, b->ops->linear(b, batch, &plain, &err), &err);
    free(bias);
}

static void test_linear(void **state)
{
    (void)state;
    for (size_t i = 0; i < PM_COUNT(kinds); i++)
        run_case(&(op_case){.name = kinds[i].name, .run = run_linear, .how = &kinds[i]});
}

/* Affine weights without biases are symmetric; part of an FP8 matrix may begin within a block. */
static void run_special(world *w, const pm_batch *batch, const void *how)
{
    pm_backend *b = w->backend[w->side];
    pm_error err;
    bool affine = how;
    pm_weight *m = matrices(w, &kinds[affine ? BITS_4 : FP8], 1, affine ? 24 : 96, 128);
    if (affine) {
        m->biases = NULL;
    } else {
        m->out = 60;
        m->block_first = 18;
    }
    load(w, m, 1);
    pm_tensor *y = output(w, TOKENS, m->out);
    pm_linear_args args = {.x = input(w, TOKENS, 128, 1), .n = 1, .w = (const pm_weight *[]){m}, .y = &y};
    must(w, b->ops->linear(b, batch, &args, &err), &err);
}

static void test_special_weights(void **state)
{
    (void)state;
    run_case(&(op_case){.name = "symmetric", .run = run_special, .how = ""});
    run_case(&(op_case){.name = "within a block", .run = run_special, .how = NULL});
}

static void run_heads(world *w, const pm_batch *batch, const void *how)
{
    const test_kind *kind = how;
    pm_backend *b = w->backend[w->side];
    pm_error err;
    for (int transposed = 0; transposed < 2; transposed++) {
        int in = 128, out = transposed ? 128 : 24;
        pm_heads_args args = {.x = input(w, TOKENS, 3 * 140, 1),
                              .x_first = 5,
                              .x_stride = 140,
                              .w = loaded(w, kind, 3, transposed ? in - 100 : out, transposed ? out : in),
                              .heads = 3,
                              .transposed = transposed,
                              .y = output(w, TOKENS, 3 * out)};
        must(w, b->ops->heads(b, batch, &args, &err), &err);
    }
}

static void test_heads(void **state)
{
    (void)state;
    static const int some[] = {F32, BF16, BITS_4, BITS_8, MXFP4, NVFP4, FP8};
    for (size_t i = 0; i < PM_COUNT(some); i++)
        run_case(&(op_case){.name = kinds[some[i]].name, .run = run_heads, .how = &kinds[some[i]]});
}

/* ---- attention ---- */

static const float frequencies[] = {1, 0.5f, 0.2f, 0.03f, 0.001f, 0.0001f};
static const pm_rope ropes[] = {{.pairs = 6, .inv_freq = frequencies, .scale = 1},
                                {.pairs = 5, .interleaved = true, .inv_freq = frequencies, .scale = 1.2f},
                                {.first = 4, .pairs = 3, .inv_freq = frequencies, .scale = 1},
                                {.first = 16, .pairs = 4, .interleaved = true, .inv_freq = frequencies, .scale = 1}};

typedef struct attention_how {
    int heads, kv_heads, head_dim, window;
    bool norms, gated;
    const pm_rope *rope;
} attention_how;

static void run_attention(world *w, const pm_batch *batch, const void *how)
{
    const attention_how *h = how;
    pm_backend *b = w->backend[w->side];
    pm_error err;
    pm_attention_args args = {.q = input(w, TOKENS, h->heads * h->head_dim * (h->gated ? 2 : 1), 1),
                              .k = input(w, TOKENS, h->kv_heads * h->head_dim, 2),
                              .v = input(w, TOKENS, h->kv_heads * h->head_dim, 1),
                              .q_norm = h->norms ? parameter(w, 1, h->head_dim, 0.5f, 1) : NULL,
                              .k_norm = h->norms ? parameter(w, 1, h->head_dim, 0.5f, 1) : NULL,
                              .rope = h->rope,
                              .eps = 1e-5f,
                              .scale = 0.3f,
                              .heads = h->heads,
                              .kv_heads = h->kv_heads,
                              .head_dim = h->head_dim,
                              .gated = h->gated,
                              .window = h->window,
                              .out = output(w, TOKENS, h->heads * h->head_dim)};
    must(w, b->ops->attention(b, batch, &args, &err), &err);
}

static void test_attention(void **state)
{
    (void)state;
    static const attention_how hows[] = {
        {4, 2, 16, 0, true, false, &ropes[0]},  {4, 4, 16, 0, false, true, &ropes[1]},
        {6, 1, 12, 5, false, false, &ropes[2]}, {2, 2, 20, 1, true, true, NULL},
        {4, 2, 16, 8, false, false, &ropes[0]},
    };
    for (size_t i = 0; i < PM_COUNT(hows); i++)
        for (int type = PM_KV_F16; type <= PM_KV_F32; type++) {
            op_case c = {.name = "attention", .run = run_attention, .how = &hows[i], .type = (pm_kv_type)type};
            c.rows[0] = (pm_rows_spec){1, 2 * hows[i].kv_heads, hows[i].head_dim, hows[i].window};
            c.tolerance = type == PM_KV_F16 ? 1e-3f : 2e-5f; /* rounding to f16 may fall on the other side */
            run_case(&c);
        }
}

typedef struct latent_how {
    int heads, width, value_width, top_k, ratio, window;
    bool q_rope, q_normed, sinks, unrotate, overlap, index;
    const pm_rope *rope;
} latent_how;

/* DeepSeek-V4's chain where there is a ratio: rows of blocks, those chosen, attention to a window and to them. Without,
 * an indexer of single rows where one is asked for, and attention. */
static void run_latent(world *w, const pm_batch *batch, const void *how)
{
    const latent_how *h = how;
    pm_backend *b = w->backend[w->side];
    pm_error err;
    int rope_width = h->width - h->value_width;
    if (h->top_k && !w->indices[w->side])
        assert_int_equal(b->ops->indices_new(b, TOKENS, h->top_k, &w->indices[w->side], NULL), PM_OK);
    if (h->ratio) {
        int cols = h->overlap ? 2 * h->width : h->width;
        pm_compress_args compress = {.kv = input(w, TOKENS, cols, 1),
                                     .gate = input(w, TOKENS, cols, 3),
                                     .position_bias = parameter(w, h->ratio, cols, 1, 0),
                                     .norm = parameter(w, 1, h->width, 0.5f, 1),
                                     .rope = h->rope,
                                     .eps = 1e-6f,
                                     .ratio = h->ratio,
                                     .width = h->width,
                                     .overlap = h->overlap,
                                     .rows = 1,
                                     .state = 0};
        must(w, b->ops->compress(b, batch, &compress, &err), &err);
    }
    if (h->index) {
        pm_sparse_index_args index = {.q = input(w, TOKENS, 3 * h->width, 1),
                                      .k = h->ratio ? NULL : input(w, TOKENS, h->width, 1),
                                      .k_norm = h->ratio ? NULL : parameter(w, 1, h->width, 0.5f, 1),
                                      .k_norm_bias = h->ratio ? NULL : parameter(w, 1, h->width, 0.5f, 0),
                                      .weights = input(w, TOKENS, 3, 1),
                                      .rope = h->rope,
                                      .eps = 1e-6f,
                                      .scale = 0.2f,
                                      .weight_scale = 0.5f,
                                      .heads = 3,
                                      .head_dim = h->width,
                                      .top_k = h->top_k,
                                      .rows = 1,
                                      .ratio = h->ratio,
                                      .out = w->indices[w->side]};
        must(w, b->ops->sparse_index(b, batch, &index, &err), &err);
    }
    pm_latent_attention_args args = {.q = input(w, TOKENS, h->heads * h->value_width, 1),
                                     .q_rope = h->q_rope ? input(w, TOKENS, h->heads * (rope_width + 3), 1) : NULL,
                                     .q_rope_first = 2,
                                     .q_rope_stride = rope_width + 3,
                                     .q_normed = h->q_normed,
                                     .kv = input(w, TOKENS, h->width, 1),
                                     .kv_norm = parameter(w, 1, h->value_width, 0.5f, 1),
                                     .rope = h->rope,
                                     .sinks = h->sinks ? parameter(w, 1, h->heads, 1, 0) : NULL,
                                     .eps = 1e-6f,
                                     .scale = 0.4f,
                                     .heads = h->heads,
                                     .width = h->width,
                                     .value_width = h->value_width,
                                     .window = h->window,
                                     .rows = 0,
                                     .blocks = 1,
                                     .ratio = h->ratio,
                                     .chosen = h->index ? w->indices[w->side] : NULL,
                                     .top_k = h->top_k,
                                     .unrotate = h->unrotate,
                                     .out = output(w, TOKENS, h->heads * h->value_width)};
    must(w, b->ops->latent_attention(b, batch, &args, &err), &err);
}

static void test_latent(void **state)
{
    (void)state;
    static const latent_how hows[] = {
        {.heads = 4, .width = 24, .value_width = 16, .q_rope = true, .rope = &ropes[3]},
        {.heads = 3, .width = 24, .value_width = 16, .q_rope = true, .index = true, .top_k = 5, .rope = &ropes[3]},
        {.heads = 3, .width = 24, .value_width = 16, .q_rope = true, .index = true, .top_k = 200, .rope = &ropes[3]},
        {.heads = 4,
         .width = 16,
         .value_width = 16,
         .q_normed = true,
         .sinks = true,
         .unrotate = true,
         .window = 6,
         .rope = &ropes[2]},
        {.heads = 4,
         .width = 16,
         .value_width = 16,
         .q_normed = true,
         .sinks = true,
         .unrotate = true,
         .window = 6,
         .ratio = 4,
         .overlap = true,
         .index = true,
         .top_k = 2,
         .rope = &ropes[2]},
        {.heads = 4,
         .width = 16,
         .value_width = 16,
         .sinks = true,
         .unrotate = true,
         .window = 4,
         .ratio = 3,
         .rope = &ropes[2]},
        {.heads = 4, .width = 16, .value_width = 16, .window = 3, .ratio = 2, .overlap = true, .rope = &ropes[2]},
    };
    for (size_t i = 0; i < PM_COUNT(hows); i++) {
        const latent_how *h = &hows[i];
        op_case c = {.name = "latent", .run = run_latent, .how = h, .type = PM_KV_F32};
        c.rows[0] = (pm_rows_spec){1, 1, h->width, h->window};
        if (h->ratio || h->index)
            c.rows[1] = (pm_rows_spec){h->ratio ? h->ratio : 1, 1, h->width, 0};
        if (h->ratio)
            c.n_states = 1, c.states[0].count = (h->overlap ? 6 : 3) * h->width;
        run_case(&c);
    }
}

/* ---- layers with states ---- */

static void run_delta(world *w, const pm_batch *batch, const void *how)
{
    bool interleaved = how;
    enum { KEYS = 2, VALUES = 4, KEY_DIM = 8, VALUE_DIM = 12, KERNEL = 4 };
    int channels = 2 * KEYS * KEY_DIM + VALUES * VALUE_DIM, values = VALUES * VALUE_DIM;
    pm_backend *b = w->backend[w->side];
    pm_error err;
    pm_gated_delta_args args = {.interleaved = interleaved,
                                .qkv = input(w, TOKENS, channels + (interleaved ? values : 0), 1),
                                .z = interleaved ? NULL : input(w, TOKENS, values, 1),
                                .a = interleaved ? NULL : input(w, TOKENS, VALUES, 1),
                                .b = input(w, TOKENS, VALUES * (interleaved ? 2 : 1), 1),
                                .conv = parameter(w, channels, KERNEL, 1, 0),
                                .A_log = parameter(w, 1, VALUES, 1, 0),
                                .dt_bias = parameter(w, 1, VALUES, 1, 0),
                                .norm = parameter(w, 1, VALUE_DIM, 0.5f, 1),
                                .eps = 1e-6f,
                                .key_heads = KEYS,
                                .value_heads = VALUES,
                                .key_dim = KEY_DIM,
                                .value_dim = VALUE_DIM,
                                .kernel = KERNEL,
                                .conv_state = 0,
                                .delta_state = 1,
                                .out = output(w, TOKENS, values)};
    must(w, b->ops->gated_delta(b, batch, &args, &err), &err);
}

typedef struct conv_how {
    int width, kernel;
    bool bias;
} conv_how;

static void run_conv(world *w, const pm_batch *batch, const void *how)
{
    const conv_how *h = how;
    pm_backend *b = w->backend[w->side];
    pm_error err;
    pm_short_conv_args args = {.bcx = input(w, TOKENS, 3 * h->width, 1),
                               .conv = parameter(w, h->width, h->kernel, 1, 0),
                               .bias = h->bias ? parameter(w, 1, h->width, 1, 0) : NULL,
                               .width = h->width,
                               .kernel = h->kernel,
                               .out = output(w, TOKENS, h->width)};
    must(w, b->ops->short_conv(b, batch, &args, &err), &err);
}

typedef struct mamba_how {
    int heads, head_dim, groups, state_size, kernel;
    bool bias;
    float dt_min, dt_max, dt; /* dt: what is added to the inputs of time steps */
} mamba_how;

static void run_mamba(world *w, const pm_batch *batch, const void *how)
{
    const mamba_how *h = how;
    int inner = h->heads * h->head_dim, channels = inner + 2 * h->groups * h->state_size;
    pm_backend *b = w->backend[w->side];
    pm_error err;
    pm_mamba2_args args = {.projected = input(w, TOKENS, inner + channels + h->heads, 1),
                           .conv = parameter(w, channels, h->kernel, 1, 0),
                           .conv_bias = h->bias ? parameter(w, 1, channels, 1, 0) : NULL,
                           .A_log = parameter(w, 1, h->heads, 2, 0),
                           .D = parameter(w, 1, h->heads, 1, 0),
                           .dt_bias = parameter(w, 1, h->heads, 1, h->dt),
                           .norm = parameter(w, 1, inner, 0.5f, 1),
                           .eps = 1e-5f,
                           .dt_min = h->dt_min,
                           .dt_max = h->dt_max,
                           .heads = h->heads,
                           .head_dim = h->head_dim,
                           .groups = h->groups,
                           .state_size = h->state_size,
                           .kernel = h->kernel,
                           .conv_state = 0,
                           .ssm_state = 1,
                           .out = output(w, TOKENS, inner)};
    must(w, b->ops->mamba2(b, batch, &args, &err), &err);
}

static void test_recurrent(void **state)
{
    (void)state;
    static const conv_how convs[] = {{33, 3, false}, {16, 4, true}, {5, 1, true}, {8, 11, false}};
    static const mamba_how mambas[] = {{4, 8, 2, 16, 4, true, 0, INFINITY, 0},
                                       {3, 5, 1, 7, 2, false, 0.3f, 0.6f, 0},
                                       {4, 6, 4, 8, 1, true, 0, INFINITY, 9}};
    run_case(&(op_case){.name = "delta", .run = run_delta, .n_states = 2, .states = {{3 * 80}, {4 * 8 * 12}}});
    run_case(&(op_case){
        .name = "delta interleaved", .run = run_delta, .how = "", .n_states = 2, .states = {{3 * 80}, {4 * 8 * 12}}});
    for (size_t i = 0; i < PM_COUNT(convs); i++)
        run_case(&(op_case){.name = "short_conv",
                            .run = run_conv,
                            .how = &convs[i],
                            .n_states = 1,
                            .states = {{(convs[i].kernel - 1) * convs[i].width}}});
    for (size_t i = 0; i < PM_COUNT(mambas); i++) {
        const mamba_how *h = &mambas[i];
        int inner = h->heads * h->head_dim;
        run_case(&(op_case){
            .name = "mamba2",
            .run = run_mamba,
            .how = h,
            .n_states = 2,
            .states = {{(h->kernel - 1) * (inner + 2 * h->groups * h->state_size)}, {inner * h->state_size}}});
    }
}

static void run_hyper(world *w, const pm_batch *batch, const void *how)
{
    enum { N = 4, HIDDEN = 24 };
    pm_backend *b = w->backend[w->side];
    pm_error err;
    pm_tensor *streams = output(w, TOKENS, N * HIDDEN), *x = output(w, TOKENS, HIDDEN);
    pm_tensor *only = output(w, TOKENS, HIDDEN), *mix = output(w, TOKENS, N + N * N);
    pm_weight *table = loaded(w, &kinds[F32], 1, 19, HIDDEN);
    (void)how;
    pm_embed_args embed = {.weight = table, .y = streams, .copies = N};
    must(w, b->ops->embed(b, batch, &embed, &err), &err);
    pm_hyper_in_args in = {.streams = streams,
                           .fn = parameter(w, (2 + N) * N, N * HIDDEN, 1, 0),
                           .base = parameter(w, 1, (2 + N) * N, 1, 0),
                           .scale = parameter(w, 1, 3, 1, 0),
                           .norm_eps = 1e-6f,
                           .eps = 1e-4f,
                           .n = N,
                           .hidden = HIDDEN,
                           .iterations = 5,
                           .x = x,
                           .mix = mix};
    must(w, b->ops->hyper_in(b, batch, &in, &err), &err);
    pm_hyper_out_args out = {
        .y = input(w, TOKENS, HIDDEN, 1), .mix = mix, .n = N, .hidden = HIDDEN, .streams = streams};
    must(w, b->ops->hyper_out(b, batch, &out, &err), &err);
    pm_hyper_in_args head = {.streams = streams,
                             .fn = parameter(w, N, N * HIDDEN, 1, 0),
                             .base = parameter(w, 1, N, 1, 0),
                             .scale = parameter(w, 1, 1, 1, 0),
                             .norm_eps = 1e-6f,
                             .eps = 1e-4f,
                             .n = N,
                             .hidden = HIDDEN,
                             .x = only};
    must(w, b->ops->hyper_in(b, batch, &head, &err), &err);
}

static void test_hyper(void **state)
{
    (void)state;
    run_case(&(op_case){.name = "hyper-connections", .run = run_hyper});
}

/* ---- experts ---- */

typedef struct moe_how {
    const char *name;
    int experts, top_k, kind; /* of kinds; experts 0: only the shared one */
    pm_route_kind route;
    bool normalise, divide_one, bias, by_token, ungated, latent, shared, shared_gate;
    int groups, top_groups, group_best;
    float limit;
} moe_how;

static void run_moe(world *w, const pm_batch *batch, const void *how)
{
    enum { HIDDEN = 128, LATENT = 64, WIDTH = 64 };
    const moe_how *h = how;
    const test_kind *kind = &kinds[h->kind];
    pm_backend *b = w->backend[w->side];
    pm_error err;
    int in = h->latent ? LATENT : HIDDEN, tokens[32] = {0};
    pm_tensor *choices = NULL, *x = input(w, TOKENS, HIDDEN, 1), *norm = parameter(w, 1, HIDDEN, 0.5f, 1);
    if (h->by_token) {
        float rows[19 * 3];
        for (int i = 0; i < 19 * 3; i++)
            rows[i] = (float)((i / 3 + i % 3 * 2) % h->experts);
        choices = keep(w, tensor_new(b, 19, 3, rows));
    }
    pm_moe_args args = {
        .x = x,
        .residual = x,
        .out = output(w, TOKENS, HIDDEN),
        .norm = norm,
        .eps = 1e-5f,
        .limit = h->limit,
        .route = {.kind = h->route,
                  .experts = h->experts,
                  .top_k = h->top_k,
                  .normalise = h->normalise,
                  .divide_one = h->divide_one,
                  .scale = 1.5f,
                  .epsilon = 1e-20f,
                  .groups = h->groups,
                  .top_groups = h->top_groups,
                  .group_best = h->group_best,
                  .masked = -INFINITY,
                  .bias = h->bias ? parameter(w, 1, h->experts, 0.2f, 0) : NULL,
                  .token_experts = choices},
        .router = h->experts ? loaded(w, &kinds[F32], 1, h->experts, HIDDEN) : NULL,
        .gate = h->experts && !h->ungated ? loaded(w, kind, h->experts, WIDTH, in) : NULL,
        .up = h->experts ? loaded(w, kind, h->experts, WIDTH, in) : NULL,
        .down = h->experts ? loaded(w, kind, h->experts, in, WIDTH) : NULL,
        .latent_in = h->latent ? loaded(w, &kinds[BITS_8], 1, LATENT, HIDDEN) : NULL,
        .latent_out = h->latent ? loaded(w, &kinds[BITS_8], 1, HIDDEN, LATENT) : NULL,
        .shared_gate_proj = h->shared && !h->ungated ? loaded(w, kind, 1, WIDTH, HIDDEN) : NULL,
        .shared_up_proj = h->shared ? loaded(w, kind, 1, WIDTH, HIDDEN) : NULL,
        .shared_down_proj = h->shared ? loaded(w, kind, 1, HIDDEN, WIDTH) : NULL,
        .shared_expert_gate = h->shared_gate ? loaded(w, &kinds[BF16], 1, 1, HIDDEN) : NULL,
        .expert_tokens = h->experts ? tokens : NULL,
    };
    must(w, b->ops->moe(b, batch, &args, &err), &err);
    int sum = 0;
    for (int e = 0; e < h->experts; e++)
        sum += tokens[e];
    assert_int_equal(sum, h->experts ? batch->n_tokens * h->top_k : 0);
}

static void test_moe(void **state)
{
    (void)state;
    static const moe_how hows[] = {
        {.name = "plain MLP", .kind = BITS_4, .shared = true},
        {.name = "softmax", .experts = 16, .top_k = 4, .kind = BITS_4, .normalise = true},
        {.name = "softmax, shared", .experts = 9, .top_k = 6, .kind = BF16, .shared = true, .shared_gate = true},
        {.name = "sigmoid, groups",
         .experts = 16,
         .top_k = 3,
         .kind = MXFP4,
         .route = PM_ROUTE_SIGMOID,
         .normalise = true,
         .bias = true,
         .groups = 4,
         .top_groups = 2,
         .group_best = 2,
         .shared = true},
        {.name = "groups, best of one",
         .experts = 12,
         .top_k = 2,
         .kind = MXFP8,
         .groups = 3,
         .top_groups = 1,
         .group_best = 1},
        {.name = "sqrt softplus, limit",
         .experts = 8,
         .top_k = 2,
         .kind = NVFP4,
         .route = PM_ROUTE_SQRT_SOFTPLUS,
         .normalise = true,
         .bias = true,
         .shared = true,
         .limit = 0.7f},
        {.name = "by token",
         .experts = 8,
         .top_k = 3,
         .kind = FP8,
         .route = PM_ROUTE_SQRT_SOFTPLUS,
         .normalise = true,
         .by_token = true},
        {.name = "latent, ungated",
         .experts = 8,
         .top_k = 6,
         .kind = BITS_8,
         .route = PM_ROUTE_SIGMOID,
         .ungated = true,
         .latent = true,
         .shared = true},
        {.name = "one expert a token",
         .experts = 4,
         .top_k = 1,
         .kind = F32,
         .route = PM_ROUTE_SIGMOID,
         .normalise = true},
        {.name = "one, divided",
         .experts = 4,
         .top_k = 1,
         .kind = F16,
         .route = PM_ROUTE_SIGMOID,
         .normalise = true,
         .divide_one = true},
        {.name = "one expert", .experts = 1, .top_k = 1, .kind = BITS_4, .normalise = true},
    };
    for (size_t i = 0; i < PM_COUNT(hows); i++)
        run_case(&(op_case){.name = hows[i].name, .run = run_moe, .how = &hows[i], .tolerance = 3e-4f});
}

/* ---- the backend itself ---- */

/* Rows that are forked, cut and gone on with do not change each other. */
static void test_forks(void **state)
{
    (void)state;
    world *w = world_new();
    w->side = MLX;
    pm_backend *b = w->backend[MLX];
    pm_rows_spec spec = {1, 2, 3, 0};
    pm_rows *rows, *fork;
    float data[600 * 6], back[600 * 6], other[6] = {-1, -2, -3, -4, -5, -6};
    for (int i = 0; i < 600 * 6; i++)
        data[i] = (float)i;
    assert_int_equal(b->ops->rows_new(b, &spec, PM_KV_F32, &rows, NULL), PM_OK);
    assert_int_equal(b->ops->held(b), 0);
    assert_int_equal(b->ops->rows_import(b, rows, 300, data, NULL), PM_OK);
    uint64_t held = b->ops->held(b);
    assert_int_equal(held, b->ops->rows_bytes(&spec, PM_KV_F32, 300));
    assert_int_equal(b->ops->rows_fork(b, rows, 100, &fork, NULL), PM_OK);
    assert_int_equal(b->ops->held(b), held);
    assert_int_equal(b->ops->rows_import(b, fork, 1, other, NULL), PM_OK);
    assert_int_equal(b->ops->held(b), 2 * held);
    assert_int_equal(b->ops->rows_import(b, rows, 300, data + 300 * 6, NULL), PM_OK);
    assert_int_equal(b->ops->rows_export(b, rows, 0, 600, back, NULL), PM_OK);
    assert_memory_equal(back, data, sizeof(data));
    assert_int_equal(b->ops->rows_export(b, fork, 99, 2, back, NULL), PM_OK);
    assert_memory_equal(back, data + 99 * 6, 6 * sizeof(float));
    assert_memory_equal(back + 6, other, sizeof(other));
    b->ops->rows_truncate(b, rows, 50);
    assert_int_equal(b->ops->rows_length(rows), 50);
    pm_error err;
    assert_int_equal(b->ops->rows_export(b, rows, 40, 11, back, &err), PM_ERR_INVALID);
    assert_non_null(strstr(err.message, "50"));
    assert_int_equal(b->ops->rows_fork(b, rows, 51, &fork, &err), PM_ERR_INVALID);
    b->ops->rows_free(b, rows);
    b->ops->rows_free(b, fork);
    assert_int_equal(b->ops->held(b), 0);
    world_free(w);
}

static void test_states(void **state)
{
    (void)state;
    world *w = world_new();
    pm_backend *b = w->backend[MLX];
    pm_state *one, *two;
    float data[] = {1, 2, 3}, zeros[3] = {0}, back[3];
    assert_int_equal(b->ops->state_new(b, &(pm_state_spec){3}, &one, NULL), PM_OK);
    assert_int_equal(b->ops->state_new(b, &(pm_state_spec){3}, &two, NULL), PM_OK);
    assert_int_equal(b->ops->state_import(b, one, data, NULL), PM_OK);
    b->ops->state_copy(b, two, one);
    b->ops->state_zero(b, one);
    assert_int_equal(b->ops->state_export(b, one, back, NULL), PM_OK);
    assert_memory_equal(back, zeros, sizeof(back));
    assert_int_equal(b->ops->state_export(b, two, back, NULL), PM_OK);
    assert_memory_equal(back, data, sizeof(back));
    b->ops->state_free(b, one);
    b->ops->state_free(b, two);
    world_free(w);
}

/* A value that does not fit the cache is refused with the logits, and names the layer; so are logits that are not
 * finite, and rows that do not belong to the position. */
static void test_numeric(void **state)
{
    (void)state;
    world *w = world_new();
    w->side = MLX;
    pm_backend *b = w->backend[MLX];
    pm_rows_spec spec = {1, 2, 4, 0};
    pm_error err;
    float big[] = {1, 2, 7e4f, 4}, small[] = {1, 2, 3, 4}, logits[19];
    pm_rows *rows;
    assert_int_equal(b->ops->rows_new(b, &spec, PM_KV_F16, &rows, NULL), PM_OK);
    pm_segment segment = {0, 1, 0, &rows, NULL};
    pm_batch batch = {1, 1, 1, (pm_token[]){3}, &segment, (int[]){0}};
    pm_tensor *x = keep(w, tensor_new(b, 1, 4, small)), *out = output(w, 1, 4);
    pm_attention_args args = {.q = x,
                              .k = keep(w, tensor_new(b, 1, 4, big)),
                              .v = x,
                              .scale = 1,
                              .heads = 1,
                              .kv_heads = 1,
                              .head_dim = 4,
                              .layer = 17,
                              .out = out};
    pm_weight *head = loaded(w, &kinds[F32], 1, 19, 4);
    pm_logits_args last = {.x = x, .norm = x, .eps = 1e-5f, .head = head, .logits = logits};
    must(w, b->ops->attention(b, &batch, &args, &err), &err);
    assert_int_equal(b->ops->logits(b, &batch, &last, &err), PM_ERR_NUMERIC);
    assert_non_null(strstr(err.message, "layer 17"));
    assert_non_null(strstr(err.message, "f16"));
    b->ops->rows_truncate(b, rows, 0);
    args.k = x;
    must(w, b->ops->attention(b, &batch, &args, &err), &err);
    must(w, b->ops->logits(b, &batch, &last, &err), &err);
    assert_int_equal(b->ops->attention(b, &batch, &args, &err), PM_ERR_INVALID);
    assert_non_null(strstr(err.message, "1 rows"));
    last.norm = keep(w, tensor_new(b, 1, 4, (float[]){1, NAN, 1, 1}));
    assert_int_equal(b->ops->logits(b, &batch, &last, &err), PM_ERR_NUMERIC);
    assert_non_null(strstr(err.message, "logits"));
    b->ops->rows_free(b, rows);
    forget(w);
    world_free(w);
}

static void test_refusals(void **state)
{
    (void)state;
    pm_backend *b;
    pm_error err;
    static const struct {
        pm_engine_options options;
        const char *word;
    } refused[] = {{{.device = PM_DEVICE_MLX, .threads = 2}, "threads"},
                   {{.device = PM_DEVICE_MLX, .simd = PM_SIMD_SCALAR}, "simd"},
                   {{.device = PM_DEVICE_MLX, .precision = PM_PRECISION_FAST}, "precision"},
                   {{.device = PM_DEVICE_MLX, .profile = true}, "profile"},
                   {{.device = PM_DEVICE_MLX, .kv_type = PM_KV_Q8}, "q8"}};
    for (size_t i = 0; i < PM_COUNT(refused); i++) {
        assert_int_equal(pm_backend_open(&b, &refused[i].options, &err), PM_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.message, refused[i].word));
    }
    world *w = world_new();
    pm_rows *rows;
    w->side = MLX;
    b = w->backend[MLX];
    assert_int_equal(b->ops->rows_new(b, &(pm_rows_spec){1, 1, 8, 0}, PM_KV_Q8, &rows, &err), PM_ERR_UNSUPPORTED);
    pm_weight *mixed = matrices(w, &kinds[BITS_4], 2, 8, 128);
    mixed[1].group = 32;
    assert_int_equal(b->ops->weights_load(b, mixed, 2, &err), PM_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "matrix 1"));
    mixed[0].bits = 7;
    assert_int_equal(b->ops->weight_prepare(b, mixed, &err), PM_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "7 bits"));
    forget(w);
    world_free(w);
}

/* What MLX throws becomes an error: here for a product of matrices that do not fit. */
static void test_exceptions(void **state)
{
    (void)state;
    world *w = world_new();
    w->side = MLX;
    pm_backend *b = w->backend[MLX];
    pm_error err;
    pm_weight *m = loaded(w, &kinds[F32], 1, 8, 64);
    pm_segment segment = {0, 1, 0, NULL, NULL};
    pm_batch batch = {1, 1, 0, (pm_token[]){0}, &segment, NULL};
    pm_tensor *y = output(w, 1, 8);
    pm_linear_args args = {.x = input(w, 1, 32, 1), .n = 1, .w = (const pm_weight *[]){m}, .y = &y};
    assert_int_equal(b->ops->linear(b, &batch, &args, &err), PM_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "MLX: "));
    forget(w);
    world_free(w);
}

typedef struct elsewhere {
    world *w;
    pm_weight *matrix;
    pm_tensor *x, *y;
    int status;
} elsewhere;

static void *multiply_elsewhere(void *arg)
{
    elsewhere *e = arg;
    pm_backend *b = e->w->backend[MLX];
    pm_segment segment = {0, 1, 0, NULL, NULL};
    pm_batch batch = {1, 1, 0, (pm_token[]){0}, &segment, NULL};
    pm_linear_args args = {.x = e->x, .n = 1, .w = (const pm_weight *[]){e->matrix}, .y = &e->y};
    e->status = b->ops->linear(b, &batch, &args, NULL);
    return NULL;
}

/* MLX's streams belong to threads; an engine may go from one to another, as in the server, and what one began another
 * may end. */
static void test_threads(void **state)
{
    (void)state;
    world *w = world_new();
    float one[64] = {0}, row[8];
    one[5] = 1;
    w->side = MLX;
    elsewhere e = {.w = w, .matrix = loaded(w, &kinds[F32], 1, 8, 64), .y = output(w, 1, 8)};
    e.x = keep(w, tensor_new(w->backend[MLX], 1, 64, one));
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, multiply_elsewhere, &e), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(e.status, PM_OK);
        tensor_get(w->backend[MLX], e.y, 1, row);
        for (int r = 0; r < 8; r++)
            assert_float_equal(row[r], weight_at(e.matrix, r, 5), 1e-6);
    }
    forget(w);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),     cmocka_unit_test(test_special_weights),
        cmocka_unit_test(test_heads),      cmocka_unit_test(test_attention),
        cmocka_unit_test(test_latent),     cmocka_unit_test(test_recurrent),
        cmocka_unit_test(test_hyper),      cmocka_unit_test(test_moe),
        cmocka_unit_test(test_forks),      cmocka_unit_test(test_states),
        cmocka_unit_test(test_numeric),    cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_exceptions), cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests_name("mlx", tests, NULL, NULL);
}
