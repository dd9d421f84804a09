/* Qwen families on the decoder skeleton: the dense and mixture models with attention in every layer (qwen2, qwen3,
 * qwen3_moe), and the hybrids in which most layers mix tokens by a gated delta net (qwen3_next, qwen3_5, qwen3_5_moe).
 *
 * References: transformers, models/qwen2, qwen3, qwen3_moe, qwen3_next, qwen3_5, qwen3_5_moe. */
#include "model/decoder.h"

/* transformers and mlx-lm prefix a text model beside a vision tower differently; towers and multi-token prediction are
 * not part of it. */
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

/* ---- kinds of layers ---- */

/* Experts, unless mlp_only_layers or decoder_sparse_step make it a plain MLP. */
static int sparse(const pm_model *model, int i, unsigned moe, unsigned *kind, pm_error *err)
{
    int every;
    int status = pm_config_int_or(model->config, "decoder_sparse_step", 1, 1 << 16, 1, &every, err);
    if (status != PM_OK)
        return status;
    bool plain = (i + 1) % every != 0 || pm_layer_numbered(model->config, "mlp_only_layers", i);
    *kind |= plain ? PM_MLP : moe;
    return PM_OK;
}

/* The window of dense models: on layers of type "sliding_attention", in old configs on those from max_window_layers on.
 */
static int window(const pm_model *model, int i, unsigned *kind, pm_error *err)
{
    bool windows;
    int first;
    const pm_layer_kind *type = pm_layer_listed(model->family, model->config, "layer_types", i);
    int status = pm_config_bool_or(model->config, "use_sliding_window", false, &windows, err);
    if (status == PM_OK)
        status = pm_config_int_or(model->config, "max_window_layers", 0, 1 << 16, 28, &first, err);
    if (status != PM_OK)
        return status;
    bool given = windows && pm_decoder_window(model->config), named = type && (type->kind & PM_WINDOW);
    if (named && !given)
        return pm_fail(err, PM_ERR_FORMAT,
                       "%s: entry %d of layer_types is sliding_attention, but use_sliding_window or sliding_window "
                       "says that there is no window",
                       model->config->path, i);
    if (given && (type ? named : i >= first))
        *kind |= PM_WINDOW;
    return PM_OK;
}

static int bias(const pm_model *model, unsigned *kind, pm_error *err)
{
    bool has;
    int status = pm_config_bool_or(model->config, "attention_bias", false, &has, err);
    if (status == PM_OK && has)
        *kind |= PM_QKV_BIAS | PM_O_BIAS;
    return status;
}

static int qwen2_kind(const pm_model *model, int i, unsigned *kind, pm_error *err)
{
    *kind = PM_ATTENTION | PM_QKV_BIAS | PM_MLP;
    return window(model, i, kind, err);
}

static int qwen3_kind(const pm_model *model, int i, unsigned *kind, pm_error *err)
{
    *kind = PM_ATTENTION | PM_HEAD_NORMS | PM_MLP;
    int status = window(model, i, kind, err);
    return status ? status : bias(model, kind, err);
}

/* Here a window, where there is one, is on every layer. */
static int qwen3_moe_kind(const pm_model *model, int i, unsigned *kind, pm_error *err)
{
    bool windows;
    *kind = PM_ATTENTION | PM_HEAD_NORMS;
    int status = pm_config_bool_or(model->config, "use_sliding_window", false, &windows, err);
    if (status == PM_OK && windows && pm_decoder_window(model->config))
        *kind |= PM_WINDOW;
    if (status == PM_OK)
        status = bias(model, kind, err);
    return status ? status : sparse(model, i, PM_MOE, kind, err);
}

/* layer_types says it, or every full_attention_interval-th layer has full attention. */
static int hybrid(const pm_model *model, int i, unsigned delta, unsigned *kind, pm_error *err)
{
    int interval;
    const pm_layer_kind *type = pm_layer_listed(model->family, model->config, "layer_types", i);
    int status = pm_config_int_or(model->config, "full_attention_interval", 1, 1 << 16, 4, &interval, err);
    if (status != PM_OK)
        return status;
    bool full = type ? type->kind & PM_ATTENTION : (i + 1) % interval == 0;
    *kind |= full ? PM_ATTENTION | PM_HEAD_NORMS : PM_DELTA | delta;
    return full ? bias(model, kind, err) : PM_OK;
}

static int qwen3_next_kind(const pm_model *model, int i, unsigned *kind, pm_error *err)
{
    *kind = 0;
    int status = hybrid(model, i, PM_DELTA_INTERLEAVED, kind, err);
    return status ? status : sparse(model, i, PM_MOE | PM_SHARED_EXPERT, kind, err);
}

static int qwen3_5_kind(const pm_model *model, int i, unsigned *kind, pm_error *err)
{
    *kind = PM_MLP;
    return hybrid(model, i, PM_DELTA_SEPARATE, kind, err);
}

static int qwen3_5_moe_kind(const pm_model *model, int i, unsigned *kind, pm_error *err)
{
    *kind = PM_MOE | PM_SHARED_EXPERT;
    return hybrid(model, i, PM_DELTA_SEPARATE, kind, err);
}

/* ---- gates ---- */

static const pm_layer_kind windows[] = {
    {0, "full_attention", PM_ATTENTION},
    {0, "sliding_attention", PM_ATTENTION | PM_WINDOW},
    {0, NULL, 0},
};

static const pm_layer_kind mixers[] = {
    {0, "linear_attention", PM_DELTA},
    {0, "full_attention", PM_ATTENTION},
    {0, NULL, 0},
};

static const pm_layer_rule dense_lists[] = {{"layer_types", PM_LAYER_NAMES, windows}, {NULL, 0, NULL}};
static const pm_layer_rule hybrid_lists[] = {{"layer_types", PM_LAYER_NAMES, mixers}, {NULL, 0, NULL}};

static const pm_gate_rule qwen2_gate[] = {
    {"use_sliding_window", "false|true"},
    {"sliding_window", NULL},
    PM_SCALED_ROPE,
    {NULL, NULL},
};

static const pm_gate_rule qwen3_gate[] = {
    {"use_sliding_window", "false|true"},
    {"sliding_window", NULL},
    {"attention_bias", "false|true"},
    PM_SCALED_ROPE,
    {NULL, NULL},
};

static const pm_gate_rule qwen3_moe_gate[] = {
    {"use_sliding_window", "false|true"},
    {"sliding_window", NULL},
    {"attention_bias", "false|true"},
    {"mlp_only_layers", "[#"},
    {"decoder_sparse_step", NULL},
    {"norm_topk_prob", "true|false"},
    PM_SCALED_ROPE,
    {NULL, NULL},
};

static const pm_gate_rule qwen3_next_gate[] = {
    {"linear_conv_kernel_dim", PM_CONV_WIDTHS},
    {"attention_bias", "false|true"},
    {"attn_output_gate", "true"},
    {"output_gate_type", "silu|swish"},
    {"mlp_only_layers", "[#"},
    {"decoder_sparse_step", NULL},
    {"norm_topk_prob", "true|false"},
    PM_PARTIAL_ROPE,
    {NULL, NULL},
};

static const pm_gate_rule qwen3_5_gate[] = {
    {"linear_conv_kernel_dim", PM_CONV_WIDTHS},
    {"attention_bias", "false|true"},
    {"attn_output_gate", "true"},
    {"output_gate_type", "silu|swish"},
    {"norm_topk_prob", "true"}, /* the reference always normalises */
    {"mamba_ssm_dtype", "float32"},
    PM_PARTIAL_ROPE,
    {NULL, NULL},
};

/* ---- families ---- */

static const pm_decoder_spec qwen2_spec = {
    .renames = renames, .stacks = pm_expert_stacks, .kind = qwen2_kind, .derived_head_dim = true};
static const pm_decoder_spec qwen3_spec = {.renames = renames, .stacks = pm_expert_stacks, .kind = qwen3_kind};
static const pm_decoder_spec qwen3_moe_spec = {
    .renames = renames, .stacks = pm_expert_stacks, .kind = qwen3_moe_kind, .derived_head_dim = true};
static const pm_decoder_spec qwen3_next_spec = {.renames = renames,
                                                .stacks = pm_expert_stacks,
                                                .kind = qwen3_next_kind,
                                                .gated_attention = true,
                                                .centred_norms = true,
                                                .normalise_top_k = true,
                                                .partial_rotary = 0.25};
static const pm_decoder_spec qwen3_5_spec = {.renames = renames,
                                             .stacks = pm_expert_stacks,
                                             .kind = qwen3_5_kind,
                                             .gated_attention = true,
                                             .centred_norms = true,
                                             .partial_rotary = 0.25};
static const pm_decoder_spec qwen3_5_moe_spec = {.renames = renames,
                                                 .stacks = pm_expert_stacks,
                                                 .kind = qwen3_5_moe_kind,
                                                 .gated_attention = true,
                                                 .centred_norms = true,
                                                 .normalise_top_k = true,
                                                 .partial_rotary = 0.25};

const pm_family pm_qwen2 = {
    .name = "qwen2",
    .model_types = "qwen2",
    .checkpoints = "Qwen2.5-7B-Instruct, DeepSeek-R1-Distill-Qwen-7B",
    .gate = qwen2_gate,
    .lists = dense_lists,
    .spec = &qwen2_spec,
    .load = pm_decoder_load,
    .step = pm_decoder_step,
};

const pm_family pm_qwen3 = {
    .name = "qwen3",
    .model_types = "qwen3",
    .checkpoints = "Qwen3-0.6B to Qwen3-32B",
    .gate = qwen3_gate,
    .lists = dense_lists,
    .spec = &qwen3_spec,
    .load = pm_decoder_load,
    .step = pm_decoder_step,
};

const pm_family pm_qwen3_moe = {
    .name = "qwen3_moe",
    .model_types = "qwen3_moe",
    .checkpoints = "Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder-30B-A3B",
    .gate = qwen3_moe_gate,
    .spec = &qwen3_moe_spec,
    .load = pm_decoder_load,
    .step = pm_decoder_step,
};

const pm_family pm_qwen3_next = {
    .name = "qwen3_next",
    .model_types = "qwen3_next",
    .checkpoints = "Qwen3-Next-80B-A3B",
    .gate = qwen3_next_gate,
    .lists = hybrid_lists,
    .spec = &qwen3_next_spec,
    .load = pm_decoder_load,
    .step = pm_decoder_step,
};

const pm_family pm_qwen3_5 = {
    .name = "qwen3_5",
    .model_types = "qwen3_5 qwen3_5_text",
    .checkpoints = "Qwen3.5-4B, Qwen3.5-27B",
    .gate = qwen3_5_gate,
    .lists = hybrid_lists,
    .spec = &qwen3_5_spec,
    .load = pm_decoder_load,
    .step = pm_decoder_step,
};

const pm_family pm_qwen3_5_moe = {
    .name = "qwen3_5_moe",
    .model_types = "qwen3_5_moe qwen3_5_moe_text",
    .checkpoints = "Qwen3.5-35B-A3B, Qwen3.5-122B-A10B, Qwen3.5-397B-A17B",
    .gate = qwen3_5_gate,
    .lists = hybrid_lists,
    .spec = &qwen3_5_moe_spec,
    .load = pm_decoder_load,
    .step = pm_decoder_step,
};
