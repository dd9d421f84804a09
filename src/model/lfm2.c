/* Liquid Foundation Models 2 on the decoder skeleton: most layers mix tokens by a gated short convolution, the others
 * by attention.
 *
 * References: transformers, models/lfm2, models/lfm2_moe. */
#include "model/decoder.h"

#define LAYER "model.layers.*."

/* w1, w3, w2 are gate, up and down; mlx-lm renames them in the mixtures. */
static const pm_rename renames[] = {
    {"model.embedding_norm", "model.norm"},
    {LAYER "operator_norm", LAYER "input_layernorm"},
    {LAYER "ffn_norm", LAYER "post_attention_layernorm"},
    {LAYER "self_attn.out_proj", LAYER "self_attn.o_proj"},
    {LAYER "self_attn.q_layernorm", LAYER "self_attn.q_norm"},
    {LAYER "self_attn.k_layernorm", LAYER "self_attn.k_norm"},
    {LAYER "feed_forward.w1", LAYER "mlp.gate_proj"},
    {LAYER "feed_forward.w3", LAYER "mlp.up_proj"},
    {LAYER "feed_forward.w2", LAYER "mlp.down_proj"},
    {LAYER "feed_forward.experts.*.w1", LAYER "mlp.experts.*.gate_proj"},
    {LAYER "feed_forward.experts.*.w3", LAYER "mlp.experts.*.up_proj"},
    {LAYER "feed_forward.experts.*.w2", LAYER "mlp.experts.*.down_proj"},
    {LAYER "feed_forward.expert_bias", LAYER "mlp.gate.e_score_correction_bias"},
    {LAYER "feed_forward.", LAYER "mlp."},
    {NULL, NULL},
};

/* layer_types says what a layer mixes by; in old configs full_attn_idxs lists those with attention, and without it all
 * have it. */
static int mixer(const pm_model *model, int i, unsigned *kind, pm_error *err)
{
    bool bias;
    const pm_layer_kind *type = pm_layer_listed(model->family, model->config, "layer_types", i);
    bool full =
        !pm_config_get(model->config, "full_attn_idxs") || pm_layer_numbered(model->config, "full_attn_idxs", i);
    int status = pm_config_bool_or(model->config, "conv_bias", false, &bias, err);
    if (status != PM_OK)
        return status;
    *kind = type ? type->kind : full ? PM_ATTENTION | PM_HEAD_NORMS : PM_SHORT_CONV;
    if (*kind & PM_SHORT_CONV)
        *kind |= bias ? PM_CONV_BIAS : 0;
    return PM_OK;
}

static int lfm2_kind(const pm_model *model, int i, unsigned *kind, pm_error *err)
{
    int status = mixer(model, i, kind, err);
    *kind |= PM_MLP;
    return status;
}

/* The first num_dense_layers have a plain MLP. */
static int lfm2_moe_kind(const pm_model *model, int i, unsigned *kind, pm_error *err)
{
    int dense;
    bool bias;
    int status = mixer(model, i, kind, err);
    if (status == PM_OK)
        status = pm_config_int_or(model->config, "num_dense_layers", 0, 1 << 12, 2, &dense, err);
    if (status == PM_OK)
        status = pm_config_bool_or(model->config, "use_expert_bias", true, &bias, err);
    if (status == PM_OK)
        *kind |= i < dense ? PM_MLP : PM_MOE | (bias ? PM_ROUTER_BIAS : 0);
    return status;
}

/* Old configs say tie_embedding. */
static int complete(const pm_model *model, pm_decoder *d, pm_error *err)
{
    return pm_config_bool_or(model->config, "tie_embedding", d->tied, &d->tied, err);
}

/* The width of the MLP: block_ff_dim where there is one, else intermediate_size; with block_auto_adjust_ff_dim two
 * thirds of it, times block_ffn_dim_multiplier, rounded up to a multiple of block_multiple_of. */
static int lfm2_complete(const pm_model *model, pm_decoder *d, pm_error *err)
{
    enum { MOST = 1 << 20 };
    const pm_config *config = model->config;
    int *width = &d->dims[PM_D_MLP], multiple;
    float multiplier;
    bool adjust;
    int status = complete(model, d, err);
    if (status == PM_OK)
        status = pm_config_bool_or(config, "block_auto_adjust_ff_dim", true, &adjust, err);
    if (status == PM_OK)
        status = pm_config_int_or(config, "block_multiple_of", 1, MOST, 256, &multiple, err);
    if (status == PM_OK)
        status = pm_config_float_or(config, "block_ffn_dim_multiplier", 0.0, 64.0, 1.0f, &multiplier, err);
    if (status != PM_OK || !adjust)
        return status;
    int two_thirds = 2 * *width / 3;
    int64_t wide = (int64_t)((double)multiplier * two_thirds);
    wide = (wide + multiple - 1) / multiple * multiple;
    if (wide < 1 || wide > MOST)
        return pm_fail(err, PM_ERR_FORMAT, "%s: block_ffn_dim_multiplier makes an MLP %lld wide", config->path,
                       (long long)wide);
    *width = (int)wide;
    return PM_OK;
}

/* ---- gates ---- */

static const pm_layer_kind mixers[] = {
    {0, "conv", PM_SHORT_CONV},
    {0, "full_attention", PM_ATTENTION | PM_HEAD_NORMS},
    {0, NULL, 0},
};

static const pm_layer_rule lists[] = {{"layer_types", PM_LAYER_NAMES, mixers}, {NULL, 0, NULL}};

static const pm_gate_rule lfm2_gate[] = {
    {"full_attn_idxs", "[#"},
    {"conv_L_cache", PM_CONV_WIDTHS},
    {"conv_bias", "false|true"},
    {NULL, NULL},
};

static const pm_gate_rule lfm2_moe_gate[] = {
    {"full_attn_idxs", "[#"},          {"conv_L_cache", PM_CONV_WIDTHS}, {"conv_bias", "false|true"},
    {"use_expert_bias", "false|true"}, {"topk_method", "noaux_tc"},      {"norm_topk_prob", "true|false"},
    {"routed_scaling_factor", NULL},   {"scoring_func", "sigmoid"},      {NULL, NULL},
};

/* ---- families ---- */

static const pm_decoder_spec lfm2_spec = {.renames = renames,
                                          .stacks = pm_expert_stacks,
                                          .kind = lfm2_kind,
                                          .complete = lfm2_complete,
                                          .mlp_width = "block_ff_dim",
                                          .norm_eps = "norm_eps",
                                          .derived_head_dim = true,
                                          .rope_theta = 1e6,
                                          .tied = true};
static const pm_decoder_spec lfm2_moe_spec = {
    .renames = renames,
    .stacks = pm_expert_stacks,
    .kind = lfm2_moe_kind,
    .complete = complete,
    .norm_eps = "norm_eps",
    .derived_head_dim = true,
    .rope_theta = 1e6,
    .tied = true,
    .normalise_top_k = true,
    .route = {.kind = PM_ROUTE_SIGMOID, .divide_one = true, .epsilon = 1e-6f}};

const pm_family pm_lfm2 = {
    .name = "lfm2",
    .model_types = "lfm2",
    .checkpoints = "LFM2-350M to LFM2-2.6B",
    .gate = lfm2_gate,
    .lists = lists,
    .spec = &lfm2_spec,
    .load = pm_decoder_load,
    .step = pm_decoder_step,
};

const pm_family pm_lfm2_moe = {
    .name = "lfm2_moe",
    .model_types = "lfm2_moe",
    .checkpoints = "LFM2-8B-A1B",
    .gate = lfm2_moe_gate,
    .lists = lists,
    .spec = &lfm2_moe_spec,
    .load = pm_decoder_load,
    .step = pm_decoder_step,
};
