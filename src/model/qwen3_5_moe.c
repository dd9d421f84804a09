/* Qwen3.5-MoE, the text model: three of four layers mix tokens by a gated delta net, the fourth by gated attention;
 * every layer has a mixture of experts with a shared one.
 *
 * Reference: transformers, models/qwen3_5_moe. Norms are stored as w - 1 in PyTorch's layout (except linear_attn.norm)
 * and as w in MLX's; the layout of the convolution tells which. */
#include "model/family.h"

#include <math.h>
#include <string.h>

enum { LINEAR = 1, FULL = 2 }; /* kinds of layers */

typedef struct delta_net {
    pm_weight in_proj_qkv, in_proj_z, in_proj_a, in_proj_b, out_proj;
    pm_tensor *conv1d, *A_log, *dt_bias, *norm;
} delta_net;

typedef struct attention {
    pm_weight q_proj, k_proj, v_proj, o_proj;
    pm_tensor *q_norm, *k_norm;
} attention;

typedef struct layer {
    unsigned kind;
    int rows, states; /* cache slots of a FULL, a LINEAR layer (states: convolution, then delta) */
    pm_tensor *input_layernorm, *post_attention_layernorm;
    delta_net linear_attn;
    attention self_attn;
    pm_weight router, *gate_proj, *up_proj, *down_proj;
    pm_weight shared_gate_proj, shared_up_proj, shared_down_proj, shared_expert_gate;
} layer;

/* Indices into dims, the shapes of all tensors. */
enum {
    ONE,
    VOCAB,
    HIDDEN,
    HEAD,
    QUERY2,
    QUERY,
    KV,
    CHANNELS,
    KERNEL,
    VALUE,
    VALUE_HEADS,
    VALUE_DIM,
    EXPERTS,
    MOE,
    SHARED,
    N_DIMS
};

typedef struct qwen3_5_moe {
    int dims[N_DIMS];
    int heads, kv_heads, key_heads, key_dim, top_k;
    bool tied;
    float eps;
    pm_rope rope;
    pm_weight embed_tokens, lm_head;
    pm_tensor *norm;
    layer *layers;
    pm_layout layout;
    /* activations, [step_tokens, ...]: the residual stream; a layer's projections; what the mixer hands to the output
     * projection */
    pm_tensor *x, *qkv, *z, *a, *b, *q, *k, *v, *mixed, *attended;
} qwen3_5_moe;

#define TOP(member) offsetof(qwen3_5_moe, member)
#define IN(member)  offsetof(layer, member)

static const pm_expect top_table[] = {
    {"model.embed_tokens", PM_EXPECT_MATRIX, VOCAB, HIDDEN, TOP(embed_tokens), 0, 0},
    {"model.norm.weight", PM_EXPECT_VECTOR, ONE, HIDDEN, TOP(norm), 0, PM_EXPECT_CENTRED},
    {"lm_head", PM_EXPECT_MATRIX, VOCAB, HIDDEN, TOP(lm_head), 0, PM_EXPECT_OPTIONAL},
};

static const pm_expect layer_table[] = {
    {"input_layernorm.weight", PM_EXPECT_VECTOR, ONE, HIDDEN, IN(input_layernorm), 0, PM_EXPECT_CENTRED},
    {"linear_attn.in_proj_qkv", PM_EXPECT_MATRIX, CHANNELS, HIDDEN, IN(linear_attn.in_proj_qkv), LINEAR, 0},
    {"linear_attn.in_proj_z", PM_EXPECT_MATRIX, VALUE, HIDDEN, IN(linear_attn.in_proj_z), LINEAR, 0},
    {"linear_attn.in_proj_a", PM_EXPECT_MATRIX, VALUE_HEADS, HIDDEN, IN(linear_attn.in_proj_a), LINEAR, 0},
    {"linear_attn.in_proj_b", PM_EXPECT_MATRIX, VALUE_HEADS, HIDDEN, IN(linear_attn.in_proj_b), LINEAR, 0},
    {"linear_attn.conv1d.weight", PM_EXPECT_CONV, CHANNELS, KERNEL, IN(linear_attn.conv1d), LINEAR, 0},
    {"linear_attn.A_log", PM_EXPECT_VECTOR, ONE, VALUE_HEADS, IN(linear_attn.A_log), LINEAR, 0},
    {"linear_attn.dt_bias", PM_EXPECT_VECTOR, ONE, VALUE_HEADS, IN(linear_attn.dt_bias), LINEAR, 0},
    {"linear_attn.norm.weight", PM_EXPECT_VECTOR, ONE, VALUE_DIM, IN(linear_attn.norm), LINEAR, 0},
    {"linear_attn.out_proj", PM_EXPECT_MATRIX, HIDDEN, VALUE, IN(linear_attn.out_proj), LINEAR, 0},
    {"self_attn.q_proj", PM_EXPECT_MATRIX, QUERY2, HIDDEN, IN(self_attn.q_proj), FULL, 0},
    {"self_attn.k_proj", PM_EXPECT_MATRIX, KV, HIDDEN, IN(self_attn.k_proj), FULL, 0},
    {"self_attn.v_proj", PM_EXPECT_MATRIX, KV, HIDDEN, IN(self_attn.v_proj), FULL, 0},
    {"self_attn.o_proj", PM_EXPECT_MATRIX, HIDDEN, QUERY, IN(self_attn.o_proj), FULL, 0},
    {"self_attn.q_norm.weight", PM_EXPECT_VECTOR, ONE, HEAD, IN(self_attn.q_norm), FULL, PM_EXPECT_CENTRED},
    {"self_attn.k_norm.weight", PM_EXPECT_VECTOR, ONE, HEAD, IN(self_attn.k_norm), FULL, PM_EXPECT_CENTRED},
    {"post_attention_layernorm.weight", PM_EXPECT_VECTOR, ONE, HIDDEN, IN(post_attention_layernorm), 0,
     PM_EXPECT_CENTRED},
    {"mlp.gate", PM_EXPECT_MATRIX, EXPERTS, HIDDEN, IN(router), 0, 0},
    {"mlp.experts.gate_proj", PM_EXPECT_EXPERTS, MOE, HIDDEN, IN(gate_proj), 0, 0},
    {"mlp.experts.up_proj", PM_EXPECT_EXPERTS, MOE, HIDDEN, IN(up_proj), 0, 0},
    {"mlp.experts.down_proj", PM_EXPECT_EXPERTS, HIDDEN, MOE, IN(down_proj), 0, 0},
    {"mlp.shared_expert.gate_proj", PM_EXPECT_MATRIX, SHARED, HIDDEN, IN(shared_gate_proj), 0, 0},
    {"mlp.shared_expert.up_proj", PM_EXPECT_MATRIX, SHARED, HIDDEN, IN(shared_up_proj), 0, 0},
    {"mlp.shared_expert.down_proj", PM_EXPECT_MATRIX, HIDDEN, SHARED, IN(shared_down_proj), 0, 0},
    {"mlp.shared_expert_gate", PM_EXPECT_MATRIX, ONE, HIDDEN, IN(shared_expert_gate), 0, 0},
};

/* transformers and mlx-lm prefix the text model differently; vision towers and multi-token prediction are not part of
 * it. */
static const pm_rename renames[] = {
    {"model.language_model.mtp.", NULL},
    {"language_model.mtp.", NULL},
    {"model.mtp.", NULL},
    {"mtp.", NULL},
    {"model.visual.", NULL},
    {"vision_tower.", NULL},
    {"model.language_model.", "model."},
    {"language_model.model.", "model."},
    {"language_model.lm_head", "lm_head"},
    {NULL, NULL},
};

static const pm_stack stacks[] = {
    {"experts.gate_proj", "switch_mlp.gate_proj", 0, 1},
    {"experts.up_proj", "switch_mlp.up_proj", 0, 1},
    {"experts.down_proj", "switch_mlp.down_proj", 0, 1},
    {"experts.gate_proj", "experts.gate_up_proj", 0, 2},
    {"experts.up_proj", "experts.gate_up_proj", 1, 2},
    {"experts.gate_proj", "switch_mlp.gate_up_proj", 0, 2},
    {"experts.up_proj", "switch_mlp.gate_up_proj", 1, 2},
    {"experts.gate_proj", "experts.gate_proj", 0, 1},
    {"experts.up_proj", "experts.up_proj", 0, 1},
    {"experts.down_proj", "experts.down_proj", 0, 1},
    {NULL, NULL, 0, 0},
};

static const pm_gate_rule gate[] = {
    {"layer_types", "linear_attention|full_attention"},
    {"attn_output_gate", "true"},
    {"norm_topk_prob", "true"}, /* the reference always normalises */
    {"mamba_ssm_dtype", "float32"},
    {NULL, NULL},
};

/* ---- loading ---- */

/* layer_types, or every full_attention_interval-th layer has full attention. */
static int read_layer_kinds(pm_model *model, qwen3_5_moe *m, pm_error *err)
{
    int interval;
    const json_t *types = pm_config_get(model->config, "layer_types");
    int status = pm_config_int_or(model->config, "full_attention_interval", 1, 1 << 16, 4, &interval, err);
    if (status != PM_OK)
        return status;
    if (types && (!json_is_array(types) || json_array_size(types) != (size_t)model->layers))
        return pm_fail(err, PM_ERR_FORMAT, "%s: layer_types has %zu entries, but num_hidden_layers is %d",
                       model->config->path, json_array_size(types), model->layers);
    for (int i = 0; i < model->layers; i++) {
        const char *type = types ? json_string_value(json_array_get(types, (size_t)i)) : NULL;
        bool full = types ? type && strcmp(type, "full_attention") == 0 : (i + 1) % interval == 0;
        m->layers[i].kind = full ? FULL : LINEAR;
    }
    return PM_OK;
}

static int read_config(pm_model *model, qwen3_5_moe *m, pm_error *err)
{
    enum { MAX = 1 << 20 };
    const struct {
        const char *field;
        int *out, max;
    } ints[] = {
        {"vocab_size", &m->dims[VOCAB], 1 << 24},
        {"hidden_size", &m->dims[HIDDEN], MAX},
        {"head_dim", &m->dims[HEAD], 1 << 12},
        {"num_attention_heads", &m->heads, 1 << 12},
        {"num_key_value_heads", &m->kv_heads, 1 << 12},
        {"linear_conv_kernel_dim", &m->dims[KERNEL], 64},
        {"linear_num_key_heads", &m->key_heads, 1 << 10},
        {"linear_key_head_dim", &m->key_dim, 1 << 10},
        {"linear_num_value_heads", &m->dims[VALUE_HEADS], 1 << 10},
        {"linear_value_head_dim", &m->dims[VALUE_DIM], 1 << 10},
        {"num_experts", &m->dims[EXPERTS], 1 << 16},
        {"moe_intermediate_size", &m->dims[MOE], MAX},
        {"shared_expert_intermediate_size", &m->dims[SHARED], MAX},
        {"num_hidden_layers", &model->layers, 1 << 12},
        {"max_position_embeddings", &model->context, 1 << 24},
    };
    const pm_config *config = model->config;
    for (size_t i = 0; i < PM_COUNT(ints); i++) {
        int status = pm_config_int(config, ints[i].field, 1, ints[i].max, ints[i].out, err);
        if (status != PM_OK)
            return status;
    }
    int status = pm_config_int(config, "num_experts_per_tok", 1, m->dims[EXPERTS], &m->top_k, err);
    if (status == PM_OK)
        status = pm_config_float(config, "rms_norm_eps", 0.0, 1.0, &m->eps, err);
    if (status == PM_OK)
        status = pm_config_bool_or(config, "tie_word_embeddings", false, &m->tied, err);
    if (status == PM_OK)
        status = pm_rope_read(config, m->dims[HEAD], &model->arena, &m->rope, err);
    if (status != PM_OK)
        return status;
    if (m->heads % m->kv_heads)
        return pm_fail(err, PM_ERR_FORMAT, "%s: num_attention_heads %d is not a multiple of num_key_value_heads %d",
                       config->path, m->heads, m->kv_heads);
    if (m->dims[VALUE_HEADS] % m->key_heads)
        return pm_fail(err, PM_ERR_FORMAT, "%s: linear_num_value_heads %d is not a multiple of linear_num_key_heads %d",
                       config->path, m->dims[VALUE_HEADS], m->key_heads);
    if (m->dims[KERNEL] < 2)
        return pm_fail(err, PM_ERR_UNSUPPORTED, "%s: linear_conv_kernel_dim 1 is not supported", config->path);
    m->dims[ONE] = 1;
    m->dims[QUERY] = m->heads * m->dims[HEAD];
    m->dims[QUERY2] = 2 * m->dims[QUERY];
    m->dims[KV] = m->kv_heads * m->dims[HEAD];
    m->dims[VALUE] = m->dims[VALUE_HEADS] * m->dims[VALUE_DIM];
    m->dims[CHANNELS] = 2 * m->key_heads * m->key_dim + m->dims[VALUE];
    model->vocab = m->dims[VOCAB];
    return PM_OK;
}

/* One rows slot per full layer, two states per linear layer. */
static int plan_cache(pm_model *model, qwen3_5_moe *m, pm_error *err)
{
    pm_rows_spec *rows = pm_arena_alloc(&model->arena, (size_t)model->layers, sizeof(*rows));
    pm_state_spec *states = pm_arena_alloc(&model->arena, 2 * (size_t)model->layers, sizeof(*states));
    if (!rows || !states)
        return pm_fail_memory(err);
    model->cache = (pm_cache_spec){.rows = rows, .states = states};
    for (int i = 0; i < model->layers; i++) {
        layer *l = &m->layers[i];
        if (l->kind == FULL) {
            l->rows = model->cache.n_rows++;
            rows[l->rows] = (pm_rows_spec){.ratio = 1, .planes = 2 * m->kv_heads, .width = m->dims[HEAD]};
        } else {
            l->states = model->cache.n_states;
            model->cache.n_states += 2;
            states[l->states].count = (int64_t)(m->dims[KERNEL] - 1) * m->dims[CHANNELS];
            states[l->states + 1].count = (int64_t)m->dims[VALUE_HEADS] * m->key_dim * m->dims[VALUE_DIM];
        }
    }
    return PM_OK;
}

/* PyTorch's layout of the convolution marks norms stored as w - 1; a model without one is taken as it was published. */
static bool norms_are_centred(const pm_loader *loader, const qwen3_5_moe *m, int layers)
{
    char name[64];
    for (int i = 0; i < layers; i++) {
        snprintf(name, sizeof(name), "model.layers.%d.linear_attn.conv1d.weight", i);
        const pm_stored *conv = pm_loader_peek(loader, name);
        if (conv)
            return !(conv->rank == 3 && conv->shape[1] == m->dims[KERNEL] && conv->shape[2] == 1);
    }
    return true;
}

static int load_weights(pm_model *model, qwen3_5_moe *m, pm_error *err)
{
    pm_loader *loader = &model->loader;
    m->layout = (pm_layout){renames, stacks, m->dims, m->dims[EXPERTS], m->top_k};
    int status = pm_loader_open(loader, &m->layout, err);
    if (status != PM_OK)
        return status;
    loader->centred = norms_are_centred(loader, m, model->layers);
    status = pm_load(loader, top_table, PM_COUNT(top_table), -1, 0, m, err);
    for (int i = 0; status == PM_OK && i < model->layers; i++) {
        status = pm_load(loader, layer_table, PM_COUNT(layer_table), i, m->layers[i].kind, &m->layers[i], err);
        if (model->progress)
            model->progress(model->user, (double)(i + 1) / model->layers);
    }
    if (status != PM_OK)
        return status;
    if (!m->lm_head.data && !m->tied)
        return pm_fail(err, PM_ERR_FORMAT, "%s: tensor lm_head.weight is missing, and tie_word_embeddings is not true",
                       model->config->path);
    if (!m->lm_head.data)
        m->lm_head = m->embed_tokens;
    else
        loader->active -= (int64_t)(m->dims[VOCAB] - 1) * m->dims[HIDDEN]; /* of the embedding one row is read */
    return pm_loader_finish(loader, err);
}

static int make_activations(pm_model *model, qwen3_5_moe *m, int step_tokens, pm_error *err)
{
    const struct {
        pm_tensor **tensor;
        int width;
    } list[] = {
        {&m->x, HIDDEN}, {&m->qkv, CHANNELS}, {&m->z, VALUE}, {&m->a, VALUE_HEADS}, {&m->b, VALUE_HEADS},
        {&m->q, QUERY2}, {&m->k, KV},         {&m->v, KV},    {&m->mixed, VALUE},   {&m->attended, QUERY},
    };
    for (size_t i = 0; i < PM_COUNT(list); i++) {
        int status = pm_loader_tensor(&model->loader, step_tokens, m->dims[list[i].width], NULL, list[i].tensor, err);
        if (status != PM_OK)
            return status;
    }
    return PM_OK;
}

static int load(pm_model *model, int step_tokens, pm_error *err)
{
    qwen3_5_moe *m = pm_arena_alloc(&model->arena, 1, sizeof(*m));
    if (!m)
        return pm_fail_memory(err);
    model->impl = m;
    int status = read_config(model, m, err);
    if (status != PM_OK)
        return status;
    m->layers = pm_arena_alloc(&model->arena, (size_t)model->layers, sizeof(*m->layers));
    if (!m->layers)
        return pm_fail_memory(err);
    status = read_layer_kinds(model, m, err);
    if (status == PM_OK)
        status = plan_cache(model, m, err);
    if (status == PM_OK)
        status = load_weights(model, m, err);
    return status ? status : make_activations(model, m, step_tokens, err);
}

/* ---- the step ---- */

static int gated_delta_net(pm_model *model, const pm_batch *batch, const layer *l, pm_error *err)
{
    qwen3_5_moe *m = model->impl;
    const delta_net *d = &l->linear_attn;
    const pm_backend_ops *op = model->backend->ops;
    pm_linear_args in = {.x = m->x,
                         .norm = l->input_layernorm,
                         .eps = m->eps,
                         .n = 4,
                         .w = (const pm_weight *[]){&d->in_proj_qkv, &d->in_proj_z, &d->in_proj_a, &d->in_proj_b},
                         .y = (pm_tensor *[]){m->qkv, m->z, m->a, m->b}};
    pm_gated_delta_args delta = {.qkv = m->qkv,
                                 .z = m->z,
                                 .a = m->a,
                                 .b = m->b,
                                 .conv = d->conv1d,
                                 .A_log = d->A_log,
                                 .dt_bias = d->dt_bias,
                                 .norm = d->norm,
                                 .eps = m->eps,
                                 .key_heads = m->key_heads,
                                 .value_heads = m->dims[VALUE_HEADS],
                                 .key_dim = m->key_dim,
                                 .value_dim = m->dims[VALUE_DIM],
                                 .kernel = m->dims[KERNEL],
                                 .conv_state = l->states,
                                 .delta_state = l->states + 1,
                                 .out = m->mixed};
    pm_linear_args out = {
        .x = m->mixed, .n = 1, .w = (const pm_weight *[]){&d->out_proj}, .y = &m->x, .residual = m->x};
    int status = op->linear(model->backend, batch, &in, err);
    if (status == PM_OK)
        status = op->gated_delta(model->backend, batch, &delta, err);
    return status ? status : op->linear(model->backend, batch, &out, err);
}

static int full_attention(pm_model *model, const pm_batch *batch, const layer *l, pm_error *err)
{
    qwen3_5_moe *m = model->impl;
    const attention *a = &l->self_attn;
    const pm_backend_ops *op = model->backend->ops;
    pm_linear_args in = {.x = m->x,
                         .norm = l->input_layernorm,
                         .eps = m->eps,
                         .n = 3,
                         .w = (const pm_weight *[]){&a->q_proj, &a->k_proj, &a->v_proj},
                         .y = (pm_tensor *[]){m->q, m->k, m->v}};
    pm_attention_args attend = {.q = m->q,
                                .k = m->k,
                                .v = m->v,
                                .q_norm = a->q_norm,
                                .k_norm = a->k_norm,
                                .rope = &m->rope,
                                .eps = m->eps,
                                .scale = 1.0f / sqrtf((float)m->dims[HEAD]),
                                .heads = m->heads,
                                .kv_heads = m->kv_heads,
                                .head_dim = m->dims[HEAD],
                                .gated = true,
                                .rows = l->rows,
                                .layer = (int)(l - m->layers),
                                .out = m->attended};
    pm_linear_args out = {
        .x = m->attended, .n = 1, .w = (const pm_weight *[]){&a->o_proj}, .y = &m->x, .residual = m->x};
    int status = op->linear(model->backend, batch, &in, err);
    if (status == PM_OK)
        status = op->attention(model->backend, batch, &attend, err);
    return status ? status : op->linear(model->backend, batch, &out, err);
}

static int mixture_of_experts(pm_model *model, const pm_batch *batch, const layer *l, pm_error *err)
{
    qwen3_5_moe *m = model->impl;
    pm_moe_args args = {.x = m->x,
                        .norm = l->post_attention_layernorm,
                        .eps = m->eps,
                        .route = {PM_ROUTE_SOFTMAX, m->dims[EXPERTS], m->top_k, .normalise = true, .scale = 1.0f},
                        .router = &l->router,
                        .gate = l->gate_proj,
                        .up = l->up_proj,
                        .down = l->down_proj,
                        .shared_gate_proj = &l->shared_gate_proj,
                        .shared_up_proj = &l->shared_up_proj,
                        .shared_down_proj = &l->shared_down_proj,
                        .shared_expert_gate = &l->shared_expert_gate};
    return model->backend->ops->moe(model->backend, batch, &args, err);
}

static int step(pm_model *model, const pm_batch *batch, float *logits, pm_error *err)
{
    qwen3_5_moe *m = model->impl;
    const pm_backend_ops *op = model->backend->ops;
    int status = op->embed(model->backend, batch, &(pm_embed_args){&m->embed_tokens, m->x}, err);
    for (int i = 0; status == PM_OK && i < model->layers; i++) {
        const layer *l = &m->layers[i];
        status = l->kind == FULL ? full_attention(model, batch, l, err) : gated_delta_net(model, batch, l, err);
        if (status == PM_OK)
            status = mixture_of_experts(model, batch, l, err);
    }
    if (status != PM_OK || !batch->n_outputs)
        return status;
    return op->logits(model->backend, batch, &(pm_logits_args){m->x, m->norm, m->eps, &m->lm_head, logits}, err);
}

const pm_family pm_qwen3_5_moe = {
    .name = "qwen3_5_moe",
    .model_types = "qwen3_5_moe qwen3_5_moe_text",
    .checkpoints = "Qwen3.5-35B-A3B, Qwen3.5-122B-A10B, Qwen3.5-397B-A17B",
    .gate = gate,
    .load = load,
    .step = step,
};
