/* The support gate: one table from model_type to family to the values of every config field that changes the maths. */
#include "model/family.h"

#include <stdio.h>
#include <string.h>

static const pm_family *const families[] = {
    &pm_deepseek_v3, &pm_deepseek_v32, &pm_deepseek_v4, &pm_glm_moe_dsa, &pm_qwen3_5_moe,
    &pm_qwen3_5,     &pm_qwen3_next,   &pm_qwen3_moe,   &pm_qwen3,       &pm_qwen2,
    &pm_llama,       &pm_mistral,      &pm_lfm2,        &pm_lfm2_moe,    &pm_nemotron_h,
};

/* Fields of other families' maths: a config that sets one to anything else asks for something that a family here which
 * does not list the field itself would silently leave out. */
static const pm_gate_rule common[] = {
    {"rope_parameters.rope_type", "default"},
    {"rope_parameters.type", "default"},
    {"rope_scaling.rope_type", "default"},
    {"rope_scaling.type", "default"},
    {"rope_local_base_freq", ""},
    {"no_rope_layers", "[1"},
    {"is_causal", "true"},
    {"use_bidirectional_attention", "false"},
    {"partial_rotary_factor", "1"},
    {"rope_parameters.partial_rotary_factor", "1"},
    {"layer_types", "[full_attention"},
    {"hidden_act", "silu|swish"},
    {"hidden_activation", "silu|swish"},
    {"attention_bias", "false"},
    {"mlp_bias", "false"},
    {"qkv_bias", "false"},
    {"use_bias", "false"},
    {"use_sliding_window", "false"},
    {"sliding_window", ""},
    {"attention_chunk_size", ""},
    {"attn_logit_softcapping", "0"},
    {"final_logit_softcapping", "0"},
    {"query_pre_attn_scalar", ""},
    {"attention_multiplier", ""},
    {"embedding_multiplier", "1"},
    {"residual_multiplier", "1"},
    {"logits_scaling", "1"},
    {"logit_scale", "1"},
    {"clip_qkv", ""},
    {"alibi", "false"},
    {"q_lora_rank", ""},
    {"kv_lora_rank", ""},
    {"index_topk", ""},
    {"n_group", "1"},
    {"topk_group", "1"},
    {"scoring_func", "softmax"},
    {"routed_scaling_factor", "1"},
    {"first_k_dense_replace", "0"},
    {"mlp_only_layers", "["},
    {"decoder_sparse_step", "1"},
    {"swiglu_limit", ""},
    {"conv_bias", "false"},
    {"use_pos_enc", "true"},
    {"block_use_swiglu", "true"},
    {"moe_latent_size", ""},
    {"mlp_hidden_act", "silu|swish"},
    {"num_zero_experts", "0"},
    {"zero_expert_num", "0"},
    {NULL, NULL},
};

bool pm_family_at(size_t i, const char **name, const char **model_types, const char **checkpoints)
{
    if (i >= PM_COUNT(families))
        return false;
    *name = families[i]->name;
    *model_types = families[i]->model_types;
    *checkpoints = families[i]->checkpoints;
    return true;
}

/* True when `item` is one of the parts of `list`, which `separator` divides. */
static bool listed(const char *list, char separator, const char *item)
{
    size_t n = strlen(item);
    for (const char *p = list, *end; *p; p = *end ? end + 1 : end) {
        end = strchr(p, separator);
        end = end ? end : p + strlen(p);
        if ((size_t)(end - p) == n && memcmp(p, item, n) == 0)
            return true;
    }
    return false;
}

const pm_family *pm_family_find(const pm_config *config, const char **model_type)
{
    *model_type = json_string_value(json_object_get(config->root, "model_type"));
    for (size_t i = 0; *model_type && i < PM_COUNT(families); i++)
        if (listed(families[i]->model_types, ' ', *model_type))
            return families[i];
    return NULL;
}

/* A JSON value as the tables spell it: a string as it is, other values as JSON, whole numbers without a fraction. */
static void spell(const json_t *value, char *out, size_t size)
{
    if (json_is_string(value))
        snprintf(out, size, "%s", json_string_value(value));
    else if (json_is_number(value))
        snprintf(out, size, "%.9g", json_number_value(value));
    else if (json_is_boolean(value))
        snprintf(out, size, "%s", json_is_true(value) ? "true" : "false");
    else
        snprintf(out, size, "%s", json_is_object(value) ? "an object" : "a list");
}

/* `spelt` receives the value, or the first entry of a list, that is not allowed. */
static bool allowed(const pm_gate_rule *rule, const json_t *value, char *spelt, size_t size)
{
    size_t i;
    const json_t *item;
    bool list = *rule->allowed == '[';
    spell(value, spelt, size);
    if (!list)
        return !json_is_array(value) && listed(rule->allowed, '|', spelt);
    if (!json_is_array(value))
        return false;
    json_array_foreach(value, i, item)
    {
        spell(item, spelt, size);
        if (!listed(rule->allowed + 1, '|', spelt))
            return false;
    }
    return true;
}

static int check_rule(const pm_config *config, const char *model_type, const pm_gate_rule *rule, pm_error *err)
{
    char spelt[128], values[256] = "leaving it out";
    const json_t *value = pm_config_get(config, rule->field);
    if (!value || !rule->allowed || allowed(rule, value, spelt, sizeof(spelt)))
        return PM_OK;
    size_t n = strlen(values);
    const char *first = rule->allowed + (*rule->allowed == '[');
    for (const char *p = first; *p && n < sizeof(values) - 1; p++)
        n += (size_t)snprintf(values + n, sizeof(values) - n, "%s%.*s", p == first ? ", " : "", *p == '|' ? 2 : 1,
                              *p == '|' ? ", " : p);
    return pm_fail(err, PM_ERR_UNSUPPORTED, "%s: family '%s' with %s = %s is not supported; supported: %s",
                   config->path, model_type, rule->field, spelt, values);
}

/* The text model inside a larger one has its own model_type, which must be of the same family. */
static int check_text(const pm_config *config, const pm_family *family, const char *model_type, pm_error *err)
{
    const char *text = json_string_value(json_object_get(config->text, "model_type"));
    if (!text || listed(family->model_types, ' ', text))
        return PM_OK;
    return pm_fail(err, PM_ERR_UNSUPPORTED, "%s: family '%s' with text_config.model_type = %s is not supported",
                   config->path, model_type, text);
}

int pm_family_check(const pm_config *config, const char **family, pm_error *err)
{
    const char *model_type;
    const pm_family *f = pm_family_find(config, &model_type);
    if (family)
        *family = f ? f->name : NULL;
    if (!model_type)
        return pm_fail(err, PM_ERR_FORMAT, "%s: model_type is missing", config->path);
    if (!f) {
        char names[512] = "";
        for (size_t i = 0, n = 0; i < PM_COUNT(families) && n < sizeof(names); i++)
            n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", i ? ", " : "", families[i]->name);
        return pm_fail(err, PM_ERR_UNSUPPORTED, "%s: family '%s' is not supported; supported: %s", config->path,
                       model_type, names);
    }
    for (const pm_gate_rule *rule = f->gate; rule->field; rule++) {
        int status = check_rule(config, model_type, rule, err);
        if (status != PM_OK)
            return status;
    }
    for (const pm_gate_rule *rule = common; rule->field; rule++) {
        const pm_gate_rule *own = f->gate;
        while (own->field && strcmp(own->field, rule->field) != 0)
            own++;
        int status = own->field ? PM_OK : check_rule(config, model_type, rule, err);
        if (status != PM_OK)
            return status;
    }
    return check_text(config, f, model_type, err);
}
