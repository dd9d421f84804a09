/* Loading of pre-norm decoders. */
#include "model/decoder.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define TOP(member) offsetof(pm_decoder, member)
#define IN(member)  offsetof(pm_decoder_layer, member)

static const pm_expect top_table[] = {
    {"model.embed_tokens", PM_EXPECT_MATRIX, PM_D_VOCAB, PM_D_HIDDEN, TOP(embed_tokens), 0, 0},
    {"model.norm.weight", PM_EXPECT_VECTOR, PM_D_ONE, PM_D_HIDDEN, TOP(norm), 0, PM_EXPECT_CENTRED},
    {"lm_head", PM_EXPECT_MATRIX, PM_D_VOCAB, PM_D_HIDDEN, TOP(lm_head), 0, PM_EXPECT_OPTIONAL},
};

/* clang-format off */
static const pm_expect layer_table[] = {
    {"input_layernorm.weight", PM_EXPECT_VECTOR, PM_D_ONE, PM_D_HIDDEN, IN(input_layernorm), 0, PM_EXPECT_CENTRED},
    {"post_attention_layernorm.weight", PM_EXPECT_VECTOR, PM_D_ONE, PM_D_HIDDEN, IN(post_attention_layernorm), PM_TWO_BLOCKS, PM_EXPECT_CENTRED},

    {"self_attn.q_proj.bias", PM_EXPECT_BIAS, PM_D_ONE, PM_D_Q_PROJ, IN(self_attn.q_proj.bias), PM_QKV_BIAS, 0},
    {"self_attn.k_proj.bias", PM_EXPECT_BIAS, PM_D_ONE, PM_D_KV, IN(self_attn.k_proj.bias), PM_QKV_BIAS, 0},
    {"self_attn.v_proj.bias", PM_EXPECT_BIAS, PM_D_ONE, PM_D_KV, IN(self_attn.v_proj.bias), PM_QKV_BIAS, 0},
    {"self_attn.o_proj.bias", PM_EXPECT_BIAS, PM_D_ONE, PM_D_HIDDEN, IN(self_attn.o_proj.bias), PM_O_BIAS, 0},
    {"self_attn.q_proj", PM_EXPECT_MATRIX, PM_D_Q_PROJ, PM_D_HIDDEN, IN(self_attn.q_proj), PM_ATTENTION, 0},
    {"self_attn.k_proj", PM_EXPECT_MATRIX, PM_D_KV, PM_D_HIDDEN, IN(self_attn.k_proj), PM_ATTENTION, 0},
    {"self_attn.v_proj", PM_EXPECT_MATRIX, PM_D_KV, PM_D_HIDDEN, IN(self_attn.v_proj), PM_ATTENTION, 0},
    {"self_attn.o_proj", PM_EXPECT_MATRIX, PM_D_HIDDEN, PM_D_QUERY, IN(self_attn.o_proj), PM_ATTENTION, 0},
    {"self_attn.q_norm.weight", PM_EXPECT_VECTOR, PM_D_ONE, PM_D_HEAD, IN(self_attn.q_norm), PM_HEAD_NORMS, PM_EXPECT_CENTRED},
    {"self_attn.k_norm.weight", PM_EXPECT_VECTOR, PM_D_ONE, PM_D_HEAD, IN(self_attn.k_norm), PM_HEAD_NORMS, PM_EXPECT_CENTRED},

    {"linear_attn.in_proj_qkv", PM_EXPECT_MATRIX, PM_D_CHANNELS, PM_D_HIDDEN, IN(linear_attn.in_proj_qkv), PM_DELTA_SEPARATE, 0},
    {"linear_attn.in_proj_z", PM_EXPECT_MATRIX, PM_D_VALUE, PM_D_HIDDEN, IN(linear_attn.in_proj_z), PM_DELTA_SEPARATE, 0},
    {"linear_attn.in_proj_a", PM_EXPECT_MATRIX, PM_D_VALUE_HEADS, PM_D_HIDDEN, IN(linear_attn.in_proj_a), PM_DELTA_SEPARATE, 0},
    {"linear_attn.in_proj_b", PM_EXPECT_MATRIX, PM_D_VALUE_HEADS, PM_D_HIDDEN, IN(linear_attn.in_proj_b), PM_DELTA_SEPARATE, 0},
    {"linear_attn.in_proj_qkvz", PM_EXPECT_MATRIX, PM_D_QKVZ, PM_D_HIDDEN, IN(linear_attn.in_proj_qkv), PM_DELTA_INTERLEAVED, 0},
    {"linear_attn.in_proj_ba", PM_EXPECT_MATRIX, PM_D_BA, PM_D_HIDDEN, IN(linear_attn.in_proj_b), PM_DELTA_INTERLEAVED, 0},
    {"linear_attn.conv1d.weight", PM_EXPECT_CONV, PM_D_CHANNELS, PM_D_KERNEL, IN(linear_attn.conv1d), PM_DELTA, 0},
    {"linear_attn.A_log", PM_EXPECT_VECTOR, PM_D_ONE, PM_D_VALUE_HEADS, IN(linear_attn.A_log), PM_DELTA, 0},
    {"linear_attn.dt_bias", PM_EXPECT_VECTOR, PM_D_ONE, PM_D_VALUE_HEADS, IN(linear_attn.dt_bias), PM_DELTA, 0},
    {"linear_attn.norm.weight", PM_EXPECT_VECTOR, PM_D_ONE, PM_D_VALUE_DIM, IN(linear_attn.norm), PM_DELTA, 0},
    {"linear_attn.out_proj", PM_EXPECT_MATRIX, PM_D_HIDDEN, PM_D_VALUE, IN(linear_attn.out_proj), PM_DELTA, 0},

    {"conv.in_proj.bias", PM_EXPECT_BIAS, PM_D_ONE, PM_D_BCX, IN(conv.in_proj.bias), PM_CONV_BIAS, 0},
    {"conv.out_proj.bias", PM_EXPECT_BIAS, PM_D_ONE, PM_D_HIDDEN, IN(conv.out_proj.bias), PM_CONV_BIAS, 0},
    {"conv.conv.bias", PM_EXPECT_VECTOR, PM_D_ONE, PM_D_HIDDEN, IN(conv.bias), PM_CONV_BIAS, 0},
    {"conv.in_proj", PM_EXPECT_MATRIX, PM_D_BCX, PM_D_HIDDEN, IN(conv.in_proj), PM_SHORT_CONV, 0},
    {"conv.conv.weight", PM_EXPECT_CONV, PM_D_HIDDEN, PM_D_KERNEL, IN(conv.conv), PM_SHORT_CONV, 0},
    {"conv.out_proj", PM_EXPECT_MATRIX, PM_D_HIDDEN, PM_D_HIDDEN, IN(conv.out_proj), PM_SHORT_CONV, 0},

    {"mlp.gate_proj.bias", PM_EXPECT_BIAS, PM_D_ONE, PM_D_MLP, IN(mlp.shared_gate_proj.bias), PM_MLP_BIAS, PM_EXPECT_GATE},
    {"mlp.up_proj.bias", PM_EXPECT_BIAS, PM_D_ONE, PM_D_MLP, IN(mlp.shared_up_proj.bias), PM_MLP_BIAS, 0},
    {"mlp.down_proj.bias", PM_EXPECT_BIAS, PM_D_ONE, PM_D_HIDDEN, IN(mlp.shared_down_proj.bias), PM_MLP_BIAS, 0},
    {"mlp.gate_proj", PM_EXPECT_MATRIX, PM_D_MLP, PM_D_HIDDEN, IN(mlp.shared_gate_proj), PM_MLP, PM_EXPECT_GATE},
    {"mlp.up_proj", PM_EXPECT_MATRIX, PM_D_MLP, PM_D_HIDDEN, IN(mlp.shared_up_proj), PM_MLP, 0},
    {"mlp.down_proj", PM_EXPECT_MATRIX, PM_D_HIDDEN, PM_D_MLP, IN(mlp.shared_down_proj), PM_MLP, 0},

    {"mlp.gate", PM_EXPECT_MATRIX, PM_D_EXPERTS, PM_D_HIDDEN, IN(mlp.router), PM_MOE, 0},
    {"mlp.gate.e_score_correction_bias", PM_EXPECT_VECTOR, PM_D_ONE, PM_D_EXPERTS, IN(mlp.e_score_correction_bias), PM_ROUTER_BIAS, 0},
    {"mlp.fc1_latent_proj", PM_EXPECT_MATRIX, PM_D_EXPERT, PM_D_HIDDEN, IN(mlp.fc1_latent_proj), PM_MOE_LATENT, 0},
    {"mlp.fc2_latent_proj", PM_EXPECT_MATRIX, PM_D_HIDDEN, PM_D_EXPERT, IN(mlp.fc2_latent_proj), PM_MOE_LATENT, 0},
    {"mlp.experts.gate_proj", PM_EXPECT_EXPERTS, PM_D_MOE, PM_D_EXPERT, IN(mlp.gate_proj), PM_MOE, PM_EXPECT_GATE},
    {"mlp.experts.up_proj", PM_EXPECT_EXPERTS, PM_D_MOE, PM_D_EXPERT, IN(mlp.up_proj), PM_MOE, 0},
    {"mlp.experts.down_proj", PM_EXPECT_EXPERTS, PM_D_EXPERT, PM_D_MOE, IN(mlp.down_proj), PM_MOE, 0},
    {"mlp.shared_expert.gate_proj", PM_EXPECT_MATRIX, PM_D_SHARED, PM_D_HIDDEN, IN(mlp.shared_gate_proj), PM_SHARED_EXPERT, PM_EXPECT_GATE},
    {"mlp.shared_expert.up_proj", PM_EXPECT_MATRIX, PM_D_SHARED, PM_D_HIDDEN, IN(mlp.shared_up_proj), PM_SHARED_EXPERT, 0},
    {"mlp.shared_expert.down_proj", PM_EXPECT_MATRIX, PM_D_HIDDEN, PM_D_SHARED, IN(mlp.shared_down_proj), PM_SHARED_EXPERT, 0},
    {"mlp.shared_experts.gate_proj", PM_EXPECT_MATRIX, PM_D_SHARED, PM_D_HIDDEN, IN(mlp.shared_gate_proj), PM_SHARED_EXPERTS, PM_EXPECT_GATE},
    {"mlp.shared_experts.up_proj", PM_EXPECT_MATRIX, PM_D_SHARED, PM_D_HIDDEN, IN(mlp.shared_up_proj), PM_SHARED_EXPERTS, 0},
    {"mlp.shared_experts.down_proj", PM_EXPECT_MATRIX, PM_D_HIDDEN, PM_D_SHARED, IN(mlp.shared_down_proj), PM_SHARED_EXPERTS, 0},
    {"mlp.shared_expert_gate", PM_EXPECT_MATRIX, PM_D_ONE, PM_D_HIDDEN, IN(mlp.shared_expert_gate), PM_SHARED_EXPERT, 0},
};
/* clang-format on */

const pm_stack pm_expert_stacks[] = {
    {"experts.gate_proj", "switch_mlp.gate_proj", 0, 1},
    {"experts.up_proj", "switch_mlp.up_proj", 0, 1},
    {"experts.down_proj", "switch_mlp.down_proj", 0, 1},
    {"experts.gate_proj", "experts.gate_up_proj", 0, 2},
    {"experts.up_proj", "experts.gate_up_proj", 1, 2},
    {"experts.down_proj", "experts.down_proj", 0, 1},
    {NULL, NULL, 0, 0},
};

/* ---- config ---- */

/* How an absent field is completed, where not by a number. */
enum { REQUIRED = 0, FROM_HEADS = -1, FROM_HIDDEN = -2 };

typedef struct int_field {
    const char *names; /* the first that is there counts, separated by '|' */
    size_t out;        /* offset of an int in pm_decoder */
    int max;
    unsigned when; /* kinds that need it; 0: all */
    int absent;
} int_field;

#define DIM(i) (offsetof(pm_decoder, dims) + (i) * sizeof(int))

enum { MAX_WIDTH = 1 << 20, DEFAULT_WINDOW = 4096 };

static const int_field int_fields[] = {
    {"vocab_size", DIM(PM_D_VOCAB), 1 << 24, 0, REQUIRED},
    {"hidden_size", DIM(PM_D_HIDDEN), MAX_WIDTH, 0, REQUIRED},
    {"num_attention_heads", TOP(heads), 1 << 12, PM_ATTENTION, REQUIRED},
    {"num_key_value_heads", TOP(kv_heads), 1 << 12, PM_ATTENTION, FROM_HEADS},
    {"head_dim", DIM(PM_D_HEAD), 1 << 12, PM_ATTENTION, FROM_HIDDEN},
    {"sliding_window", TOP(window), 1 << 24, PM_WINDOW, DEFAULT_WINDOW},
    {"linear_conv_kernel_dim", DIM(PM_D_KERNEL), INT_MAX, PM_DELTA, 4}, /* PM_CONV_WIDTHS */
    {"linear_num_key_heads", TOP(key_heads), 1 << 10, PM_DELTA, REQUIRED},
    {"linear_key_head_dim", TOP(key_dim), 1 << 10, PM_DELTA, REQUIRED},
    {"linear_num_value_heads", DIM(PM_D_VALUE_HEADS), 1 << 10, PM_DELTA, REQUIRED},
    {"linear_value_head_dim", DIM(PM_D_VALUE_DIM), 1 << 10, PM_DELTA, REQUIRED},
    {"conv_L_cache", DIM(PM_D_KERNEL), INT_MAX, PM_SHORT_CONV, 3}, /* the same */
    {"intermediate_size", DIM(PM_D_MLP), MAX_WIDTH, PM_MLP, REQUIRED},
    {NULL, DIM(PM_D_EXPERTS), 1 << 16, PM_MOE, REQUIRED}, /* experts_names() */
    {"num_experts_per_tok", TOP(route.top_k), 1 << 16, PM_MOE, REQUIRED},
    {"moe_intermediate_size", DIM(PM_D_MOE), MAX_WIDTH, PM_MOE, REQUIRED},
    {"moe_latent_size", DIM(PM_D_EXPERT), MAX_WIDTH, PM_MOE_LATENT, REQUIRED},
    {"n_shared_experts", TOP(shared_experts), 1 << 10, PM_SHARED_EXPERTS, REQUIRED},
    {"shared_expert_intermediate_size", DIM(PM_D_SHARED), MAX_WIDTH, PM_SHARED_EXPERT, REQUIRED},
};

/* The names of the number of experts, the family's own first. */
static const char *experts_names(const pm_decoder *d)
{
    return d->spec->routed_experts ? "n_routed_experts|num_experts|num_local_experts"
                                   : "num_experts|num_local_experts|n_routed_experts";
}

/* The size of heads where the config does not say it. */
static int derive_head(const pm_config *config, const pm_decoder *d, int *out, pm_error *err)
{
    int hidden = d->dims[PM_D_HIDDEN];
    if (hidden % d->heads)
        return pm_fail(err, PM_ERR_FORMAT, "%s: hidden_size %d is not a multiple of num_attention_heads %d",
                       config->path, hidden, d->heads);
    *out = hidden / d->heads;
    return PM_OK;
}

static int read_int(const pm_config *config, const int_field *f, pm_decoder *d, pm_error *err)
{
    int *out = (int *)((char *)d + f->out);
    char field[PM_FIELD_MAX];
    const char *names = f->names ? f->names : experts_names(d), *width = d->spec->mlp_width;
    if (f->out == DIM(PM_D_MLP) && width && pm_config_get(config, width))
        names = width;
    int status = pm_config_alias(config, names, field, err);
    if (status != PM_OK)
        return status;
    if (f->absent == FROM_HIDDEN && d->spec->derived_head_dim && !pm_config_get(config, field))
        return derive_head(config, d, out, err);
    int absent = f->absent == FROM_HEADS ? d->heads : f->absent;
    if (absent < 1)
        return pm_config_int(config, field, 1, f->max, out, err);
    return pm_config_int_or(config, field, 1, f->max, absent, out, err);
}

bool pm_decoder_window(const pm_config *config)
{
    return pm_config_get(config, "sliding_window") ||
           (!json_object_get(config->text, "sliding_window") && !json_object_get(config->root, "sliding_window"));
}

/* Relations between fields that the parts rely on. */
static int check_config(const pm_model *model, const pm_decoder *d, pm_error *err)
{
    const char *path = model->config->path;
    if ((d->kinds & PM_ATTENTION) && d->heads % d->kv_heads)
        return pm_fail(err, PM_ERR_FORMAT, "%s: num_attention_heads %d is not a multiple of num_key_value_heads %d",
                       path, d->heads, d->kv_heads);
    if ((d->kinds & PM_DELTA) && d->dims[PM_D_VALUE_HEADS] % d->key_heads)
        return pm_fail(err, PM_ERR_FORMAT, "%s: linear_num_value_heads %d is not a multiple of linear_num_key_heads %d",
                       path, d->dims[PM_D_VALUE_HEADS], d->key_heads);
    char experts[PM_FIELD_MAX];
    if (!(d->kinds & PM_MOE) || d->route.top_k <= d->dims[PM_D_EXPERTS])
        return PM_OK;
    int status = pm_config_alias(model->config, experts_names(d), experts, err);
    return status ? status
                  : pm_fail(err, PM_ERR_FORMAT, "%s: num_experts_per_tok %d is more than %s %d", path, d->route.top_k,
                            experts, d->dims[PM_D_EXPERTS]);
}

/* The numbers of the route; top_k has been read. */
static int read_route(const pm_config *config, pm_decoder *d, pm_error *err)
{
    pm_error why;
    char experts[PM_FIELD_MAX];
    pm_route *route = &d->route;
    route->experts = d->dims[PM_D_EXPERTS];
    int status = pm_config_bool_or(config, "norm_topk_prob", d->spec->normalise_top_k, &route->normalise, err);
    if (status == PM_OK)
        status = pm_config_float_or(config, "routed_scaling_factor", 0.0, 1e6, 1.0, &route->scale, err);
    if (status == PM_OK)
        status = pm_config_int_or(config, "n_group", 1, 1 << 16, 1, &route->groups, err);
    if (status == PM_OK && route->groups > 1)
        status = pm_config_int(config, "topk_group", 1, route->groups, &route->top_groups, err);
    if (status == PM_OK)
        status = pm_config_alias(config, experts_names(d), experts, err);
    if (status != PM_OK)
        return status;
    status = pm_route_check(route, &why);
    return status ? pm_fail(err, status, "%s: %s (%s, num_experts_per_tok, n_group, topk_group)", config->path,
                            why.message, experts)
                  : PM_OK;
}

/* The kind of each layer. */
static int read_layers(pm_model *model, pm_decoder *d, pm_error *err)
{
    d->layers = pm_arena_alloc(&model->arena, (size_t)model->layers, sizeof(*d->layers));
    if (!d->layers)
        return pm_fail_memory(err);
    for (int i = 0; i < model->layers; i++) {
        int status = d->spec->kind(model, i, &d->layers[i].kind, err);
        if (status != PM_OK)
            return status;
        d->layers[i].kind |= d->spec->one_block ? 0 : PM_TWO_BLOCKS;
        d->kinds |= d->layers[i].kind;
    }
    return PM_OK;
}

static int read_config(pm_model *model, pm_decoder *d, pm_error *err)
{
    const pm_config *config = model->config;
    int status = read_layers(model, d, err);
    for (size_t i = 0; status == PM_OK && i < PM_COUNT(int_fields); i++) {
        const int_field *f = &int_fields[i];
        if (!f->when || (f->when & d->kinds))
            status = read_int(config, f, d, err);
    }
    if (status == PM_OK)
        status = pm_config_int(config, "max_position_embeddings", 1, 1 << 24, &model->context, err);
    if (status == PM_OK)
        status =
            pm_config_float(config, d->spec->norm_eps ? d->spec->norm_eps : "rms_norm_eps", 0.0, 1.0, &d->eps, err);
    if (status == PM_OK)
        status = pm_config_bool_or(config, "tie_word_embeddings", d->spec->tied, &d->tied, err);
    if (status == PM_OK && (d->kinds & PM_ATTENTION) && !d->spec->one_block)
        status = pm_rope_read(config, d->dims[PM_D_HEAD], d->spec->partial_rotary > 0 ? d->spec->partial_rotary : 1.0,
                              d->spec->rope_theta, &model->arena, &d->rope, err);
    if (status == PM_OK && (d->kinds & PM_LATENT))
        status = pm_latent_config(model, d, err);
    if (status == PM_OK && (d->kinds & PM_MAMBA))
        status = pm_mamba_config(model, d, err);
    if (status == PM_OK && (d->kinds & PM_SHARED_EXPERTS))
        d->dims[PM_D_SHARED] = d->shared_experts * d->dims[PM_D_MOE];
    if (status == PM_OK)
        status = check_config(model, d, err);
    if (status == PM_OK && (d->kinds & PM_MOE))
        status = read_route(config, d, err);
    if (status == PM_OK && d->spec->complete)
        status = d->spec->complete(model, d, err);
    if (status != PM_OK)
        return status;
    d->dims[PM_D_ONE] = 1;
    d->dims[PM_D_QUERY] = d->heads * d->dims[PM_D_HEAD];
    d->dims[PM_D_Q_PROJ] = d->dims[PM_D_QUERY] * (d->spec->gated_attention ? 2 : 1);
    d->dims[PM_D_KV] = d->kv_heads * d->dims[PM_D_HEAD];
    d->dims[PM_D_VALUE] = d->dims[PM_D_VALUE_HEADS] * d->dims[PM_D_VALUE_DIM];
    d->dims[PM_D_CHANNELS] = 2 * d->key_heads * d->key_dim + d->dims[PM_D_VALUE];
    d->dims[PM_D_QKVZ] = d->dims[PM_D_CHANNELS] + d->dims[PM_D_VALUE];
    d->dims[PM_D_BA] = 2 * d->dims[PM_D_VALUE_HEADS];
    d->dims[PM_D_BCX] = 3 * d->dims[PM_D_HIDDEN];
    if (!(d->kinds & PM_MOE_LATENT))
        d->dims[PM_D_EXPERT] = d->dims[PM_D_HIDDEN];
    model->vocab = d->dims[PM_D_VOCAB];
    return PM_OK;
}

/* One rows slot per attention layer, one more for an index, two states per delta net or Mamba-2, one per
 * short convolution. */
static int plan_cache(pm_model *model, pm_decoder *d, pm_error *err)
{
    pm_rows_spec *rows = pm_arena_alloc(&model->arena, 2 * (size_t)model->layers, sizeof(*rows));
    pm_state_spec *states = pm_arena_alloc(&model->arena, 2 * (size_t)model->layers, sizeof(*states));
    if (!rows || !states)
        return pm_fail_memory(err);
    pm_cache_spec *cache = &model->cache;
    *cache = (pm_cache_spec){.rows = rows, .states = states};
    for (int i = 0; i < model->layers; i++) {
        pm_decoder_layer *l = &d->layers[i];
        if (l->kind & PM_ATTENTION) {
            l->rows = cache->n_rows++;
            rows[l->rows] = (pm_rows_spec){.ratio = 1, .planes = 2 * d->kv_heads, .width = d->dims[PM_D_HEAD]};
            rows[l->rows].window = l->kind & PM_WINDOW ? d->window : 0;
        }
        if (l->kind & PM_SHORT_CONV) {
            l->states = cache->n_states++;
            states[l->states].count = (int64_t)(d->dims[PM_D_KERNEL] - 1) * d->dims[PM_D_HIDDEN];
        }
        if (l->kind & PM_LATENT)
            pm_latent_plan(l, d, cache, rows);
        if (l->kind & PM_MAMBA)
            pm_mamba_plan(l, d, cache, states);
        if (l->kind & PM_DELTA) {
            l->states = cache->n_states;
            cache->n_states += 2;
            states[l->states].count = (int64_t)(d->dims[PM_D_KERNEL] - 1) * d->dims[PM_D_CHANNELS];
            states[l->states + 1].count = (int64_t)d->dims[PM_D_VALUE_HEADS] * d->key_dim * d->dims[PM_D_VALUE_DIM];
        }
    }
    return PM_OK;
}

/* ---- weights ---- */

/* PyTorch's layout of the convolution marks norms stored as w - 1, and all layers have the same; a model without one is
 * taken as it was published. */
static int find_centred(pm_model *model, const pm_decoder *d, pm_error *err)
{
    pm_loader *loader = &model->loader;
    const pm_stored *first = NULL;
    loader->centred = d->spec->centred_norms;
    for (int i = 0; !loader->plan && d->spec->centred_norms && i < model->layers; i++) {
        char name[64];
        snprintf(name, sizeof(name), "model.layers.%d.linear_attn.conv1d.weight", i);
        const pm_stored *conv = pm_loader_peek(loader, name);
        if (!conv)
            continue;
        bool centred = !(conv->rank == 3 && conv->shape[1] == d->dims[PM_D_KERNEL] && conv->shape[2] == 1);
        if (first && centred != loader->centred)
            return pm_fail(err, PM_ERR_FORMAT,
                           "%s: tensor %s is laid out otherwise than %s ([channels, 1, kernel] in one, [channels, "
                           "kernel, 1] in the other), so that it is not known whether norms are stored as w or w - 1",
                           pm_checkpoint_file(loader->checkpoint, conv), conv->name, first->name);
        first = first ? first : conv;
        loader->centred = centred;
    }
    return PM_OK;
}

static int load_weights(pm_model *model, pm_decoder *d, pm_error *err)
{
    pm_loader *loader = &model->loader;
    d->layout = (pm_layout){.renames = d->spec->renames,
                            .stacks = d->spec->stacks,
                            .dims = d->dims,
                            .experts = d->dims[PM_D_EXPERTS],
                            .ungated = d->spec->one_block,
                            .top_k = d->route.top_k,
                            .splits = pm_latent_splits,
                            .heads = d->heads,
                            .layers = model->layers,
                            .more_layers = model->more_layers};
    int status = pm_loader_open(loader, &d->layout, err);
    if (status != PM_OK)
        return status;
    status = find_centred(model, d, err);
    if (status != PM_OK)
        return status;
    size_t rows = PM_COUNT(top_table) - (loader->plan && d->tied); /* lm_head, the last one, need not be there */
    status = pm_load(loader, top_table, rows, -1, 0, d, err);
    for (int i = 0; status == PM_OK && i < model->layers; i++) {
        status = pm_load(loader, layer_table, PM_COUNT(layer_table), i, d->layers[i].kind, &d->layers[i], err);
        if (status == PM_OK && (d->layers[i].kind & PM_LATENT))
            status = pm_load(loader, pm_latent_table, pm_latent_rows, i, d->layers[i].kind, &d->layers[i], err);
        if (status == PM_OK && (d->layers[i].kind & PM_MAMBA))
            status = pm_load(loader, pm_mamba_table, pm_mamba_rows, i, d->layers[i].kind, &d->layers[i], err);
        if (model->progress)
            model->progress(model->user, (double)(i + 1) / model->layers);
    }
    if (status != PM_OK || loader->plan)
        return status;
    status = pm_model_head(model, &d->embed_tokens, d->tied, &d->lm_head, err);
    return status ? status : pm_loader_finish(loader, err);
}

static int make_activations(pm_model *model, pm_decoder *d, int step_tokens, pm_error *err)
{
    const struct {
        pm_tensor **tensor;
        int width;
        unsigned when;
    } list[] = {
        {&d->x, PM_D_HIDDEN, 0},
        {&d->q, d->kinds & PM_LATENT ? PM_D_QK : PM_D_Q_PROJ, PM_ATTENTION | PM_LATENT},
        {&d->k, PM_D_KV, PM_ATTENTION},
        {&d->v, PM_D_KV, PM_ATTENTION},
        {&d->attended, d->kinds & PM_LATENT ? PM_D_V : PM_D_QUERY, PM_ATTENTION | PM_LATENT},
        {&d->q_latent, PM_D_Q_LORA, PM_Q_LATENT},
        {&d->kv_row, PM_D_KV_ROW, PM_LATENT},
        {&d->latents, PM_D_LATENTS, PM_LATENT},
        {&d->mixed_latents, PM_D_LATENTS, PM_LATENT},
        {&d->index_q, PM_D_INDEX_Q, PM_INDEXER},
        {&d->index_k, PM_D_INDEX_HEAD, PM_INDEXER},
        {&d->index_weights, PM_D_INDEX_HEADS, PM_INDEXER},
        {&d->qkv, d->kinds & PM_DELTA_INTERLEAVED ? PM_D_QKVZ : PM_D_CHANNELS, PM_DELTA},
        {&d->z, PM_D_VALUE, PM_DELTA_SEPARATE},
        {&d->a, PM_D_VALUE_HEADS, PM_DELTA_SEPARATE},
        {&d->b, d->kinds & PM_DELTA_INTERLEAVED ? PM_D_BA : PM_D_VALUE_HEADS, PM_DELTA},
        {&d->mixed, PM_D_VALUE, PM_DELTA},
        {&d->bcx, PM_D_BCX, PM_SHORT_CONV},
        {&d->convolved, PM_D_HIDDEN, PM_SHORT_CONV},
        {&d->projected, PM_D_MAMBA_IN, PM_MAMBA},
        {&d->scanned, PM_D_INNER, PM_MAMBA},
    };
    int status = PM_OK;
    for (size_t i = 0; status == PM_OK && i < PM_COUNT(list); i++)
        if (!list[i].when || (list[i].when & d->kinds))
            status = pm_loader_tensor(&model->loader, step_tokens, d->dims[list[i].width], NULL, list[i].tensor, err);
    if (status == PM_OK && (d->kinds & PM_INDEXER))
        status = model->backend->ops->indices_new(model->backend, step_tokens, d->index_topk, &model->chosen, err);
    return status;
}

int pm_decoder_load(pm_model *model, int step_tokens, pm_error *err)
{
    pm_decoder *d = pm_arena_alloc(&model->arena, 1, sizeof(*d));
    if (!d)
        return pm_fail_memory(err);
    d->spec = model->family->spec;
    d->route = d->spec->route;
    model->impl = d;
    int status = read_config(model, d, err);
    if (status == PM_OK)
        status = plan_cache(model, d, err);
    if (status == PM_OK)
        status = load_weights(model, d, err);
    if (status == PM_OK && step_tokens)
        status = make_activations(model, d, step_tokens, err);
    return status;
}
