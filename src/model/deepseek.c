/* DeepSeek-V3 and what descends from it, on the decoder skeleton: latent attention, experts chosen by sigmoid scores
 * with a selection bias in groups, shared experts; V3.2 with a sparse index in every layer; GLM-5 with one in some
 * layers, whose choice the layers after it share.
 *
 * References: transformers, models/deepseek_v3, deepseek_v32, glm_moe_dsa; mlx-lm, models/deepseek_v3.py,
 * deepseek_v32.py. */
#include "model/decoder.h"

#include <math.h>

static const pm_rename renames[] = {{NULL, NULL}};

/* ---- kinds of layers ---- */

/* mlp_layer_types says which layers have experts; without it all from first_k_dense_replace on, or of these every
 * moe_layer_freq-th. */
static int feed_forward(const pm_model *model, int i, unsigned *kind, pm_error *err)
{
    const pm_config *config = model->config;
    const pm_layer_kind *type = pm_layer_listed(model->family, config, "mlp_layer_types", i);
    int dense, every;
    int status = pm_config_int_or(config, "first_k_dense_replace", 0, 1 << 16, 0, &dense, err);
    if (status == PM_OK)
        status = pm_config_int_or(config, "moe_layer_freq", 1, 1 << 16, 1, &every, err);
    if (status != PM_OK)
        return status;
    bool sparse = type ? type->kind & PM_MOE : i >= dense && i % every == 0;
    if (!sparse)
        *kind |= PM_MLP;
    else
        *kind |= PM_MOE | PM_ROUTER_BIAS | (pm_config_get(config, "n_shared_experts") ? PM_SHARED_EXPERTS : 0);
    return PM_OK;
}

static int v3_kind(const pm_model *model, int i, unsigned *kind, pm_error *err)
{
    bool biases, latent = pm_config_get(model->config, "q_lora_rank");
    int status = pm_config_bool_or(model->config, "attention_bias", false, &biases, err);
    if (status != PM_OK)
        return status;
    *kind = PM_LATENT | (latent ? PM_Q_LATENT : PM_Q_WHOLE);
    if (biases)
        *kind |= PM_LATENT_BIAS | (latent ? PM_Q_LATENT_BIAS : 0);
    return feed_forward(model, i, kind, err);
}

/* The index works on the latents of queries, so these are required. */
static int v32_kind(const pm_model *model, int i, unsigned *kind, pm_error *err)
{
    if (!pm_config_get(model->config, "q_lora_rank"))
        return pm_fail(err, PM_ERR_FORMAT, "%s lacks the field q_lora_rank", model->config->path);
    int status = v3_kind(model, i, kind, err);
    *kind |= PM_SPARSE | PM_INDEXER;
    return status;
}

/* Whether layer i has an index of its own: indexer_types says it, or index_topk_pattern ("FSS": full, shared, shared,
 * or a list like the former), or all up to index_skip_topk_offset and then every index_topk_freq-th have. */
static int has_indexer(const pm_model *model, int i, bool *has, pm_error *err)
{
    const pm_config *config = model->config;
    const pm_layer_kind *type = pm_layer_listed(model->family, config, "indexer_types", i);
    int freq, offset;
    int status = pm_config_int_or(config, "index_topk_freq", 0, 1 << 16, 1, &freq, err);
    if (status == PM_OK)
        status = pm_config_int_or(config, "index_skip_topk_offset", -(1 << 16), 1 << 16, 2, &offset, err);
    if (status != PM_OK)
        return status;
    if (!type)
        type = pm_layer_listed(model->family, config, "index_topk_pattern", i);
    int after = i - offset + 1 > 0 ? i - offset + 1 : 0;
    *has = type ? type->kind & PM_INDEXER : after % (freq > 1 ? freq : 1) == 0;
    if (i == 0 && !*has)
        return pm_fail(err, PM_ERR_FORMAT, "%s: the first layer shares an index, but there is none before it",
                       config->path);
    return PM_OK;
}

static int glm_kind(const pm_model *model, int i, unsigned *kind, pm_error *err)
{
    bool has = false;
    int status = v32_kind(model, i, kind, err);
    if (status == PM_OK)
        status = has_indexer(model, i, &has, err);
    if (!has)
        *kind &= ~(unsigned)PM_INDEXER;
    return status;
}

/* ---- what has to be said ---- */

/* Where these are absent transformers and mlx-lm take different values. */
static int check_said(const pm_model *model, const char *const *fields, size_t n, pm_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (!pm_config_get(model->config, fields[i]))
            return pm_fail(err, PM_ERR_FORMAT, "%s lacks the field %s", model->config->path, fields[i]);
    return PM_OK;
}

static int v3_complete(const pm_model *model, pm_decoder *d, pm_error *err)
{
    static const char *const fields[] = {"routed_scaling_factor", "n_group"};
    return d->kinds & PM_MOE ? check_said(model, fields, PM_COUNT(fields), err) : PM_OK;
}

static int glm_complete(const pm_model *model, pm_decoder *d, pm_error *err)
{
    static const char *const fields[] = {"routed_scaling_factor"};
    return d->kinds & PM_MOE ? check_said(model, fields, PM_COUNT(fields), err) : PM_OK;
}

/* ---- gates ---- */

static const pm_layer_kind mixtures[] = {{0, "dense", PM_MLP}, {0, "sparse", PM_MOE}, {0, NULL, 0}};
static const pm_layer_kind indexed[] = {{0, "indexed_attention", PM_SPARSE}, {0, NULL, 0}};
static const pm_layer_kind own_indexer[] = {{'F', "full", PM_INDEXER}, {0, NULL, 0}};
static const pm_layer_kind indexers[] = {{'F', "full", PM_INDEXER}, {'S', "shared", 0}, {0, NULL, 0}};

static const pm_layer_rule v3_lists[] = {{"mlp_layer_types", PM_LAYER_NAMES, mixtures}, {NULL, 0, NULL}};

static const pm_layer_rule v32_lists[] = {
    {"mlp_layer_types", PM_LAYER_NAMES, mixtures},
    {"layer_types", PM_LAYER_NAMES, indexed},
    {"indexer_types", PM_LAYER_NAMES, own_indexer},
    {NULL, 0, NULL},
};

static const pm_layer_rule glm_lists[] = {
    {"mlp_layer_types", PM_LAYER_NAMES, mixtures},
    {"layer_types", PM_LAYER_NAMES, indexed},
    {"indexer_types", PM_LAYER_NAMES, indexers},
    {"index_topk_pattern", PM_LAYER_LETTERS, indexers},
    {NULL, 0, NULL},
};

#define COMMON_RULES                                                                                                   \
    {"rope_parameters.rope_type", "default|yarn"}, {"rope_parameters.type", "default|yarn"},                           \
        {"rope_scaling.rope_type", "default|yarn"}, {"rope_scaling.type", "default|yarn"},                             \
        {"attention_bias", "false|true"}, {"q_lora_rank", NULL}, {"kv_lora_rank", NULL}, {"n_group", NULL},            \
        {"topk_group", NULL}, {"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"},                                \
        {"routed_scaling_factor", NULL}, {"first_k_dense_replace", NULL}, {"norm_topk_prob", "true|false"},            \
        {"n_shared_experts", NULL},                                                                                    \
    {                                                                                                                  \
        "moe_layer_freq", NULL                                                                                         \
    }

static const pm_gate_rule v3_gate[] = {
    COMMON_RULES,
    {"rope_interleave", "true|false"},
    {NULL, NULL},
};

/* In these the references always turn neighbouring elements of queries and keys. */
static const pm_gate_rule v32_gate[] = {
    COMMON_RULES,         {"rope_interleave", "true"}, {"indexer_rope_interleave", "true|false"},
    {"index_topk", NULL}, {"index_topk_freq", "1"},    {"index_topk_pattern", ""},
    {NULL, NULL},
};

static const pm_gate_rule glm_gate[] = {
    COMMON_RULES,         {"rope_interleave", "true"}, {"indexer_rope_interleave", "true|false"},
    {"index_topk", NULL}, {"index_topk_freq", NULL},   {NULL, NULL},
};

/* ---- families ---- */

/* Of a group's experts the two best count, as in DeepSeek's own code; masked groups are out of the question. */
#define ROUTE                                                                                                          \
    {                                                                                                                  \
        .kind = PM_ROUTE_SIGMOID, .epsilon = 1e-20f, .group_best = 2, .masked = -INFINITY                              \
    }

static const pm_decoder_spec v3_spec = {.renames = renames,
                                        .stacks = pm_expert_stacks,
                                        .kind = v3_kind,
                                        .complete = v3_complete,
                                        .normalise_top_k = true,
                                        .routed_experts = true,
                                        .route = ROUTE};
static const pm_decoder_spec v32_spec = {.renames = renames,
                                         .stacks = pm_expert_stacks,
                                         .kind = v32_kind,
                                         .complete = v3_complete,
                                         .normalise_top_k = true,
                                         .routed_experts = true,
                                         .route = ROUTE};
static const pm_decoder_spec glm_spec = {.renames = renames,
                                         .stacks = pm_expert_stacks,
                                         .kind = glm_kind,
                                         .complete = glm_complete,
                                         .normalise_top_k = true,
                                         .routed_experts = true,
                                         .interleaved_index = true,
                                         .route = ROUTE};

const pm_family pm_deepseek_v3 = {
    .name = "deepseek_v3",
    .model_types = "deepseek_v3 kimi_k2 joyai_llm_flash",
    .checkpoints = "DeepSeek-V3.1, DeepSeek-R1, Kimi-K2-Instruct, Kimi-K2-Thinking, JoyAI-LLM-Flash",
    .gate = v3_gate,
    .lists = v3_lists,
    .spec = &v3_spec,
    .load = pm_decoder_load,
    .step = pm_decoder_step,
};

const pm_family pm_deepseek_v32 = {
    .name = "deepseek_v32",
    .model_types = "deepseek_v32 deepseek_v3_2",
    .checkpoints = "DeepSeek-V3.2-Exp, DeepSeek-V3.2",
    .gate = v32_gate,
    .lists = v32_lists,
    .spec = &v32_spec,
    .load = pm_decoder_load,
    .step = pm_decoder_step,
};

const pm_family pm_glm_moe_dsa = {
    .name = "glm_moe_dsa",
    .model_types = "glm_moe_dsa",
    .checkpoints = "GLM-5, GLM-5.2",
    .gate = glm_gate,
    .lists = glm_lists,
    .spec = &glm_spec,
    .load = pm_decoder_load,
    .step = pm_decoder_step,
};
