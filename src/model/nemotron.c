/* Nemotron-H on the decoder skeleton: each layer is one block, Mamba-2, attention without rope, an MLP, or experts;
 * MLPs have no gates and square their ReLU.
 *
 * References: transformers, models/nemotron_h; mlx-lm, models/nemotron_h.py. */
#include "model/decoder.h"

#include <math.h>
#include <string.h>

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

/* A block's letter in a pattern, and its names in lists. */
static const struct block {
    char letter;
    const char *names; /* separated by '|' */
    unsigned kind;
} blocks[] = {
    {'M', "linear_attention|mamba|conv", PM_MAMBA},
    {'*', "full_attention|attention", PM_ATTENTION},
    {'-', "mlp", PM_MLP},
    {'E', "moe", PM_MOE | PM_ROUTER_BIAS | PM_SHARED_EXPERTS},
};

static const char pattern_field[] = "hybrid_override_pattern";
static const char *const list_fields[] = {"layers_block_type", "layer_types"};

/* The block that stands for `text`, a letter or a name; NULL: none. */
static const struct block *find_block(const char *text, size_t length)
{
    for (size_t i = 0; i < PM_COUNT(blocks); i++) {
        if (length == 1 && blocks[i].letter == *text)
            return &blocks[i];
        for (const char *name = blocks[i].names; *name; name += strcspn(name, "|"), name += *name == '|')
            if (strcspn(name, "|") == length && memcmp(name, text, length) == 0)
                return &blocks[i];
    }
    return NULL;
}

/* The number of layers: of the pattern, of the lists, and num_hidden_layers, which must be the same where given. */
static int count_layers(const pm_config *config, int *layers, pm_error *err)
{
    const json_t *pattern = pm_config_get(config, pattern_field), *given = pm_config_get(config, "num_hidden_layers");
    const char *from = pattern_field;
    size_t n = json_is_string(pattern) ? json_string_length(pattern) : 0;
    if (pattern && !json_is_string(pattern))
        return pm_fail(err, PM_ERR_FORMAT, "%s: %s is not a string", config->path, pattern_field);
    for (size_t i = 0; i < PM_COUNT(list_fields); i++) {
        const json_t *list = pm_config_get(config, list_fields[i]);
        if (list && n && json_array_size(list) != n)
            return pm_fail(err, PM_ERR_FORMAT, "%s: %s has %zu entries, but %s has %zu", config->path, list_fields[i],
                           json_array_size(list), from, n);
        if (list) {
            n = json_array_size(list);
            from = list_fields[i];
        }
    }
    if (n < 1 || n > PM_MAX_LAYERS)
        return pm_fail(err, PM_ERR_FORMAT, "%s: %s and layers_block_type give no layers, or more than %d", config->path,
                       pattern_field, PM_MAX_LAYERS);
    if (given && !json_is_integer(given))
        return pm_fail(err, PM_ERR_FORMAT, "%s: num_hidden_layers is not a whole number", config->path);
    if (given && json_integer_value(given) != (json_int_t)n)
        return pm_fail(err, PM_ERR_FORMAT, "%s: num_hidden_layers is %lld, but %s has %zu layers", config->path,
                       (long long)json_integer_value(given), from, n);
    *layers = (int)n;
    return PM_OK;
}

/* The block of layer i, by whatever says it. */
static int read_block(const pm_config *config, int i, const struct block **out, pm_error *err)
{
    const json_t *pattern = pm_config_get(config, pattern_field);
    const char *field = pattern_field, *text = pattern ? json_string_value(pattern) + i : NULL;
    *out = text ? find_block(text, 1) : NULL;
    for (size_t k = 0; k < PM_COUNT(list_fields) && (!text || *out); k++) {
        const json_t *list = pm_config_get(config, list_fields[k]);
        if (!list)
            continue;
        const char *name = json_string_value(json_array_get(list, (size_t)i));
        const struct block *block = name && strlen(name) > 1 ? find_block(name, strlen(name)) : NULL;
        if (*out && block && block != *out)
            return pm_fail(err, PM_ERR_FORMAT, "%s: layer %d is another one in %s than in %s", config->path, i,
                           list_fields[k], field);
        *out = block;
        field = list_fields[k];
        text = name ? name : "";
    }
    if (*out)
        return PM_OK;
    return pm_fail(err, PM_ERR_UNSUPPORTED,
                   "%s: family 'nemotron_h' with %s = %.*s in layer %d is not supported; supported: M, *, -, E, "
                   "linear_attention, full_attention, mlp, moe",
                   config->path, field, field == pattern_field ? 1 : 64, text, i);
}

static int nemotron_kind(const pm_model *model, int i, unsigned *kind, pm_error *err)
{
    const pm_config *config = model->config;
    const struct block *block;
    bool attention_bias, mlp_bias, use_bias, conv_bias;
    int status = read_block(config, i, &block, err);
    if (status == PM_OK)
        status = pm_config_bool_or(config, "attention_bias", false, &attention_bias, err);
    if (status == PM_OK)
        status = pm_config_bool_or(config, "mlp_bias", false, &mlp_bias, err);
    if (status == PM_OK)
        status = pm_config_bool_or(config, "use_bias", false, &use_bias, err);
    if (status == PM_OK)
        status = pm_config_bool_or(config, "use_conv_bias", true, &conv_bias, err);
    if (status == PM_OK)
        status = pm_config_bool_or(config, "mamba_conv_bias", conv_bias, &conv_bias, err);
    if (status != PM_OK)
        return status;
    *kind = block->kind;
    if (block->kind & PM_MAMBA)
        *kind |= (use_bias ? PM_MAMBA_BIAS : 0) | (conv_bias ? PM_MAMBA_CONV_BIAS : 0);
    if ((block->kind & PM_ATTENTION) && attention_bias)
        *kind |= PM_QKV_BIAS | PM_O_BIAS;
    if ((block->kind & PM_MLP) && mlp_bias)
        *kind |= PM_MLP_BIAS;
    if ((block->kind & PM_MOE) && mlp_bias)
        return pm_fail(err, PM_ERR_UNSUPPORTED, "%s: family 'nemotron_h' with mlp_bias and experts is not supported",
                       config->path);
    if ((block->kind & PM_MOE) && pm_config_get(config, "moe_latent_size"))
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

static const pm_gate_rule gate[] = {
    {"layer_types", NULL},
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
    {"moe_latent_size", NULL},
    {NULL, NULL},
};

static const pm_decoder_spec spec = {
    .renames = renames,
    .stacks = stacks,
    .one_block = true,
    .norm_eps = "layer_norm_epsilon",
    .derived_head_dim = true,
    .normalise_top_k = true,
    .route = {.kind = PM_ROUTE_SIGMOID, .epsilon = 1e-20f, .group_best = 2, .masked = -INFINITY},
    .layers = count_layers,
    .kind = nemotron_kind,
    .complete = nemotron_complete,
};

const pm_family pm_nemotron_h = {
    .name = "nemotron_h",
    .model_types = "nemotron_h",
    .checkpoints = "Nemotron-H-8B, Nemotron-Nano-9B-v2, Nemotron-3-Nano-30B-A3B",
    .gate = gate,
    .spec = &spec,
    .load = pm_decoder_load,
    .step = pm_decoder_step,
};
