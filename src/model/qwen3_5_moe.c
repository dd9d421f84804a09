/* Qwen3.5-MoE, the text model: three of four layers mix tokens by a gated delta net, the fourth by gated attention with
 * normed heads; every layer has a mixture of experts with a gated shared one.
 *
 * Reference: transformers, models/qwen3_5_moe. */
#include "model/decoder.h"

#include <string.h>

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

/* layer_types says it, or every full_attention_interval-th layer has full attention. */
static int kind(const pm_model *model, int i, unsigned *out, pm_error *err)
{
    int interval;
    const json_t *types = pm_config_get(model->config, "layer_types");
    int status = pm_config_int_or(model->config, "full_attention_interval", 1, 1 << 16, 4, &interval, err);
    if (status != PM_OK)
        return status;
    if (types && (!json_is_array(types) || json_array_size(types) != (size_t)model->layers))
        return pm_fail(err, PM_ERR_FORMAT, "%s: layer_types has %zu entries, but num_hidden_layers is %d",
                       model->config->path, json_array_size(types), model->layers);
    const char *type = json_string_value(json_array_get(types, (size_t)i));
    bool full = types ? type && strcmp(type, "full_attention") == 0 : (i + 1) % interval == 0;
    *out = (full ? PM_ATTENTION | PM_HEAD_NORMS : PM_DELTA) | PM_MOE | PM_SHARED_EXPERT;
    return PM_OK;
}

static const pm_decoder_spec spec = {
    .renames = renames,
    .stacks = stacks,
    .gated_attention = true,
    .centred_norms = true,
    .normalise_top_k = true,
    .kind = kind,
};

static int load(pm_model *model, int step_tokens, pm_error *err)
{
    return pm_decoder_load(model, &spec, step_tokens, err);
}

const pm_family pm_qwen3_5_moe = {
    .name = "qwen3_5_moe",
    .model_types = "qwen3_5_moe qwen3_5_moe_text",
    .checkpoints = "Qwen3.5-35B-A3B, Qwen3.5-122B-A10B, Qwen3.5-397B-A17B",
    .gate = gate,
    .load = load,
    .step = pm_decoder_step,
};
