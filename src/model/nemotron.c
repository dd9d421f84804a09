/* Nemotron-H on the decoder skeleton: each layer is one block, Mamba-2, attention without rope, an MLP, or experts;
 * MLPs have no gates and square their ReLU.
 *
 * References: transformers, models/nemotron_h; mlx-lm, models/nemotron_h.py. */
#include "model/decoder.h"

#include <math.h>

#define LAYER "model.layers.*."

/* The modules of a block are told apart by their own names; `stored` is what the names of a layer begin with. */
#define BLOCK(stored)                                                                                                  \
    {stored "norm.", LAYER "input_layernorm."}, {stored "mixer.q_proj", LAYER "self_attn.q_proj"},                     \
        {stored "mixer.k_proj", LAYER "self_attn.k_proj"}, {stored "mixer.v_proj", LAYER "self_attn.v_proj"},          \
        {stored "mixer.o_proj", LAYER "self_attn.o_proj"}, {stored "mixer.up_proj", LAYER "mlp.up_proj"},              \
        {stored "mixer.down_proj", LAYER "mlp.down_proj"}, {stored "mixer.gate", LAYER "mlp.gate"},                    \
        {stored "mixer.experts.", LAYER "mlp.experts."}, {stored "mixer.switch_mlp.", LAYER "mlp.switch_mlp."},        \
        {stored "mixer.shared_experts.", LAYER "mlp.shared_experts."},                                                 \
        {stored "mixer.fc1_latent_proj", LAYER "mlp.fc1_latent_proj"},                                                 \
        {stored "mixer.fc2_latent_proj", LAYER "mlp.fc2_latent_proj"},                                                 \
    {                                                                                                                  \
        stored "mixer.", LAYER "mamba."                                                                                \
    }

static const pm_rename renames[] = {
    {"mtp.", NULL},
    {"backbone.embeddings", "model.embed_tokens"},
    {"backbone.norm_f", "model.norm"},
    BLOCK("backbone.layers.*."),
    {"model.embeddings", "model.embed_tokens"},
    {"model.norm_f", "model.norm"},
    BLOCK("model.layers.*."),
    {NULL, NULL},
};

static const pm_stack stacks[] = {
    {"experts.up_proj", "switch_mlp.fc1", 0, 1},
    {"experts.down_proj", "switch_mlp.fc2", 0, 1},
    {"experts.up_proj", "experts.up_proj", 0, 1},
    {"experts.down_proj", "experts.down_proj", 0, 1},
    {NULL, NULL, 0, 0},
};

/* ---- layers ---- */

/* A block by its letter in a pattern, and by its names in lists. */
static const pm_layer_kind blocks[] = {
    {'M', "linear_attention|mamba|conv", PM_MAMBA},
    {'*', "full_attention|attention", PM_ATTENTION},
    {'-', "mlp", PM_MLP},
    {'E', "moe", PM_MOE | PM_ROUTER_BIAS | PM_SHARED_EXPERTS},
    {0, NULL, 0},
};

/* Any of these says what all layers are. */
static const pm_layer_rule lists[] = {
    {"hybrid_override_pattern", PM_LAYER_LETTERS, blocks},
    {"layers_block_type", PM_LAYER_NAMES, blocks},
    {"layer_types", PM_LAYER_NAMES, blocks},
    {NULL, 0, NULL},
};

/* The block of layer i, by whatever says it. */
static unsigned block_of(const pm_config *config, int i)
{
    const pm_layer_kind *block = NULL;
    for (const pm_layer_rule *list = lists; list->field && !block; list++)
        block = pm_layer_listed(&pm_nemotron_h, config, list->field, i);
    return block ? block->kind : 0;
}

static int nemotron_kind(const pm_model *model, int i, unsigned *kind, pm_error *err)
{
    const pm_config *config = model->config;
    unsigned block = block_of(config, i);
    bool attention_bias, mlp_bias, use_bias, conv_bias;
    char conv_field[PM_FIELD_MAX];
    int status = pm_config_bool_or(config, "attention_bias", false, &attention_bias, err);
    if (status == PM_OK)
        status = pm_config_bool_or(config, "mlp_bias", false, &mlp_bias, err);
    if (status == PM_OK)
        status = pm_config_bool_or(config, "use_bias", false, &use_bias, err);
    if (status == PM_OK)
        status = pm_config_alias(config, "use_conv_bias|mamba_conv_bias", conv_field, err);
    if (status == PM_OK)
        status = pm_config_bool_or(config, conv_field, true, &conv_bias, err);
    if (status != PM_OK)
        return status;
    *kind = block;
    if (block & PM_MAMBA)
        *kind |= (use_bias ? PM_MAMBA_BIAS : 0) | (conv_bias ? PM_MAMBA_CONV_BIAS : 0);
    if ((block & PM_ATTENTION) && attention_bias)
        *kind |= PM_QKV_BIAS | PM_O_BIAS;
    if ((block & PM_MLP) && mlp_bias)
        *kind |= PM_MLP_BIAS;
    if ((block & PM_MOE) && pm_config_get(config, "moe_latent_size"))
        *kind |= PM_MOE_LATENT;
    return PM_OK;
}

/* The shared experts are one MLP of a width of its own. */
static int nemotron_complete(const pm_model *model, pm_decoder *d, pm_error *err)
{
    if (!(d->kinds & PM_MOE))
        return PM_OK;
    return pm_config_int(model->config, "moe_shared_expert_intermediate_size", 1, 1 << 20, &d->dims[PM_D_SHARED], err);
}

/* ---- the gate ---- */

/* Experts have no biases. */
static int check(const pm_admission *admission, const pm_config *config, pm_error *err)
{
    bool bias;
    int status = pm_config_bool_or(config, "mlp_bias", false, &bias, err);
    for (int i = 0; status == PM_OK && bias && i < admission->layers; i++)
        if (block_of(config, i) & PM_MOE)
            status = pm_fail(err, PM_ERR_UNSUPPORTED,
                             "%s: family '%s' with mlp_bias = true and experts (moe, E) in layer %d is not supported",
                             config->path, admission->model_type, i);
    return status;
}

static const pm_gate_rule gate[] = {
    {"conv_kernel", PM_CONV_WIDTHS},
    {"mamba_d_conv", PM_CONV_WIDTHS},
    {"hidden_act", NULL}, /* nothing reads it */
    {"mlp_hidden_act", "relu2"},
    {"mamba_hidden_act", "silu|swish"},
    {"mamba_ssm_cache_dtype", "float32"},
    {"attention_bias", "false|true"},
    {"mlp_bias", "false|true"},
    {"use_bias", "false|true"},
    {"routed_scaling_factor", NULL},
    {"n_group", NULL},
    {"topk_group", NULL},
    {"scoring_func", "sigmoid"},
    {"topk_method", "noaux_tc"},
    {"norm_topk_prob", "true|false"},
    {"n_shared_experts", NULL},
    {"moe_latent_size", NULL},
    {NULL, NULL},
};

static const pm_decoder_spec spec = {
    .renames = renames,
    .stacks = stacks,
    .one_block = true,
    .routed_experts = true,
    .norm_eps = "layer_norm_epsilon",
    .derived_head_dim = true,
    .normalise_top_k = true,
    .route = {.kind = PM_ROUTE_SIGMOID, .epsilon = 1e-20f, .group_best = 2, .masked = -INFINITY},
    .kind = nemotron_kind,
    .complete = nemotron_complete,
};

const pm_family pm_nemotron_h = {
    .name = "nemotron_h",
    .model_types = "nemotron_h",
    .checkpoints = "Nemotron-H-8B, Nemotron-Nano-9B-v2, Nemotron-3-Nano-30B-A3B",
    .gate = gate,
    .lists = lists,
    .listed = true,
    .check = check,
    .spec = &spec,
    .load = pm_decoder_load,
    .step = pm_decoder_step,
};
