/* Llama and Mistral on the decoder skeleton.
 *
 * References: transformers, models/llama, models/mistral. */
#include "model/decoder.h"

static const pm_rename renames[] = {{NULL, NULL}};
static const pm_stack stacks[] = {{NULL, NULL, 0, 0}};

/* Biases as the config says, the same on every layer. */
static int llama_kind(const pm_model *model, int i, unsigned *kind, pm_error *err)
{
    bool attention_bias, mlp_bias;
    (void)i;
    int status = pm_config_bool_or(model->config, "attention_bias", false, &attention_bias, err);
    if (status == PM_OK)
        status = pm_config_bool_or(model->config, "mlp_bias", false, &mlp_bias, err);
    if (status != PM_OK)
        return status;
    *kind = PM_ATTENTION | PM_MLP | (attention_bias ? PM_QKV_BIAS | PM_O_BIAS : 0) | (mlp_bias ? PM_MLP_BIAS : 0);
    return PM_OK;
}

/* A window, where there is one, is on every layer. */
static int mistral_kind(const pm_model *model, int i, unsigned *kind, pm_error *err)
{
    (void)i, (void)err;
    *kind = PM_ATTENTION | PM_MLP | (pm_decoder_window(model->config) ? PM_WINDOW : 0);
    return PM_OK;
}

static const pm_gate_rule llama_gate[] = {
    {"attention_bias", "false|true"},
    {"mlp_bias", "false|true"},
    PM_SCALED_ROPE,
    {NULL, NULL},
};

static const pm_gate_rule mistral_gate[] = {
    {"sliding_window", NULL},
    PM_SCALED_ROPE,
    {NULL, NULL},
};

static const pm_decoder_spec llama_spec = {
    .renames = renames, .stacks = stacks, .kind = llama_kind, .derived_head_dim = true};
static const pm_decoder_spec mistral_spec = {
    .renames = renames, .stacks = stacks, .kind = mistral_kind, .derived_head_dim = true};

const pm_family pm_llama = {
    .name = "llama",
    .model_types = "llama",
    .checkpoints = "Llama-3.1-8B-Instruct, SmolLM2-1.7B-Instruct",
    .gate = llama_gate,
    .spec = &llama_spec,
    .load = pm_decoder_load,
    .step = pm_decoder_step,
};

const pm_family pm_mistral = {
    .name = "mistral",
    .model_types = "mistral",
    .checkpoints = "Mistral-7B-Instruct",
    .gate = mistral_gate,
    .spec = &mistral_spec,
    .load = pm_decoder_load,
    .step = pm_decoder_step,
};
