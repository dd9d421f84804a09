/* The support gate: one table from model_type to family to the values of every config field that changes the maths, to
 * the kinds of layers, and to the fields that list them. Families read what has been let through here. */
#include "model/family.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
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
    {"attn_output_gate", "false"},
    {"output_gate_type", ""},
    {"mamba_ssm_dtype", "float32"},
    {"mamba_ssm_cache_dtype", "float32"},
    {"mamba_hidden_act", "silu|swish"},
    {"topk_method", "greedy"},
    {"use_expert_bias", "false"},
    {"norm_topk_prob", "false"},
    {"n_shared_experts", "0"},
    {"moe_layer_freq", "1"},
    {"expert_dtype", ""},
    {"quantization_config.expert_dtype", ""},
    {"rope_interleave", "false"},
    {"indexer_rope_interleave", "false"},
    {"index_topk_freq", "1"},
    {"index_topk_pattern", ""},
    {"indexer_types", ""},
    {"rope_parameters.main", ""},
    {"rope_parameters.compress", ""},
    {"full_attn_idxs", ""},
    {"hybrid_override_pattern", ""},
    {"layers_block_type", ""},
    {"mlp_layer_types", ""},
    {"compress_ratios", ""},
    {"num_zero_experts", "0"},
    {"zero_expert_num", "0"},
    {NULL, NULL},
};

static const pm_layer_kind full_attention[] = {{0, "full_attention", 0}, {0, NULL, 0}};
static const pm_layer_rule common_lists[] = {{"layer_types", PM_LAYER_NAMES, full_attention}, {NULL, 0, NULL}};

bool pm_family_at(size_t i, const char **name, const char **model_types, const char **checkpoints)
{
    if (i >= PM_COUNT(families))
        return false;
    *name = families[i]->name;
    *model_types = families[i]->model_types;
    *checkpoints = families[i]->checkpoints;
    return true;
}

const pm_family *pm_family_number(size_t i)
{
    return i < PM_COUNT(families) ? families[i] : NULL;
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
        snprintf(out, size, "%s", json_is_null(value) ? "null" : json_is_object(value) ? "an object" : "a list");
}

/* ---- values ---- */

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

static int check_numbers(const pm_config *config, const char *field, const json_t *value, pm_error *err)
{
    size_t i;
    const json_t *item;
    bool right = json_is_array(value);
    json_array_foreach(value, i, item) right = right && json_is_integer(item);
    return right ? PM_OK
                 : pm_fail(err, PM_ERR_FORMAT, "%s: %s is not a list of numbers of layers", config->path, field);
}

/* Takes a range such as "2..64" apart; false when it is none. */
static bool read_range(const char *text, int *low, int *high)
{
    char *end;
    long first = strtol(text, &end, 10);
    if (end == text || strncmp(end, "..", 2) != 0)
        return false;
    *low = (int)first;
    *high = (int)strtol(end + 2, NULL, 10);
    return true;
}

static int check_value(const pm_config *config, const char *model_type, const pm_gate_rule *rule, pm_error *err)
{
    char spelt[128], values[256] = "leaving it out";
    int low, high, number;
    const json_t *value = pm_config_get(config, rule->field);
    if (!value || !rule->allowed)
        return PM_OK;
    if (strcmp(rule->allowed, "[#") == 0)
        return check_numbers(config, rule->field, value, err);
    if (read_range(rule->allowed, &low, &high)) {
        int status = pm_config_int(config, rule->field, INT_MIN, INT_MAX, &number, err);
        if (status != PM_OK || (number >= low && number <= high))
            return status;
        spell(value, spelt, sizeof(spelt));
    } else if (allowed(rule, value, spelt, sizeof(spelt))) {
        return PM_OK;
    }
    size_t n = strlen(values);
    const char *first = rule->allowed + (*rule->allowed == '[');
    for (const char *p = first; *p && n < sizeof(values) - 1; p++)
        n += (size_t)snprintf(values + n, sizeof(values) - n, "%s%.*s", p == first ? ", " : "", *p == '|' ? 2 : 1,
                              *p == '|' ? ", " : p);
    return pm_fail(err, PM_ERR_UNSUPPORTED, "%s: family '%s' with %s = %s is not supported; supported: %s",
                   config->path, model_type, rule->field, spelt, values);
}

/* The family's own tables have the field, as a value or as a list of layers. */
static bool has_rule(const pm_family *family, const char *field)
{
    for (const pm_layer_rule *rule = family->lists; rule && rule->field; rule++)
        if (strcmp(rule->field, field) == 0)
            return true;
    for (const pm_gate_rule *rule = family->gate; rule->field; rule++)
        if (strcmp(rule->field, field) == 0)
            return true;
    return false;
}

static int check_values(const pm_config *config, const pm_admission *a, pm_error *err)
{
    int status = PM_OK;
    for (const pm_gate_rule *rule = a->family->gate; status == PM_OK && rule->field; rule++)
        status = check_value(config, a->model_type, rule, err);
    for (const pm_gate_rule *rule = common; status == PM_OK && rule->field; rule++)
        if (!has_rule(a->family, rule->field))
            status = check_value(config, a->model_type, rule, err);
    return status;
}

/* ---- layers ---- */

static const pm_layer_rule *find_list(const pm_layer_rule *rule, const char *field)
{
    while (rule && rule->field && strcmp(rule->field, field) != 0)
        rule++;
    return rule && rule->field ? rule : NULL;
}

/* How many entries the value of a rule has; *text: they are letters. */
static size_t count_entries(const pm_layer_rule *rule, const json_t *value, bool *text)
{
    *text = rule->form == PM_LAYER_LETTERS && json_is_string(value);
    return *text ? json_string_length(value) : json_array_size(value);
}

/* The kind of entry i, NULL when it is none of the rule's. `spelt` receives the entry. */
static const pm_layer_kind *find_kind(const pm_layer_rule *rule, const json_t *value, size_t i, char *spelt,
                                      size_t size)
{
    bool text;
    (void)count_entries(rule, value, &text);
    if (text)
        snprintf(spelt, size, "%c", json_string_value(value)[i] < 0 ? '?' : json_string_value(value)[i]);
    else
        spell(json_array_get(value, i), spelt, size);
    for (const pm_layer_kind *kind = rule->kinds; kind->names; kind++)
        if (text ? kind->letter && kind->letter == *spelt : listed(kind->names, '|', spelt))
            return kind;
    return NULL;
}

/* The kinds of a rule, as letters or as names. */
static void list_kinds(const pm_layer_rule *rule, bool text, char *out, size_t size)
{
    size_t n = 0;
    *out = 0;
    for (const pm_layer_kind *kind = rule->kinds; kind->names && n < size; kind++) {
        const char letter[] = {kind->letter, 0}, *names = text ? letter : kind->names;
        for (const char *p = names; *p && n < size; p++)
            n += (size_t)snprintf(out + n, size - n, "%s%.*s", n && p == names ? ", " : "", *p == '|' ? 2 : 1,
                                  *p == '|' ? ", " : p);
    }
}

/* Every entry is of a kind that the family computes. */
static int check_entries(const pm_config *config, const pm_admission *a, const pm_layer_rule *rule, const json_t *value,
                         pm_error *err)
{
    char spelt[128], kinds[256];
    bool text, numbers = rule->form == PM_LAYER_NUMBERS;
    size_t n = count_entries(rule, value, &text);
    list_kinds(rule, text, kinds, sizeof(kinds));
    if (!text && !json_is_array(value)) {
        spell(value, spelt, sizeof(spelt));
        return pm_fail(err, PM_ERR_UNSUPPORTED,
                       "%s: family '%s' with %s = %s is not supported; supported: a list of %s", config->path,
                       a->model_type, rule->field, spelt, kinds);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(value, i);
        if (!text && !(numbers ? json_is_number(item) : json_is_string(item)))
            return pm_fail(err, PM_ERR_FORMAT, "%s: entry %zu of %s is not a %s", config->path, i, rule->field,
                           numbers ? "number" : "string");
        if (!find_kind(rule, value, i, spelt, sizeof(spelt)))
            return pm_fail(err, PM_ERR_UNSUPPORTED,
                           "%s: family '%s' with %s = %s in layer %zu is not supported; supported: %s", config->path,
                           a->model_type, rule->field, spelt, i, kinds);
    }
    return PM_OK;
}

/* What the list says of the layers is what an earlier one with the same kinds says of them. */
static int check_agreement(const pm_config *config, const pm_admission *a, const pm_layer_rule *rule,
                           const json_t *value, pm_error *err)
{
    char spelt[128];
    for (const pm_layer_rule *other = a->family->lists; other && other != rule && other->field; other++) {
        const json_t *first = other->kinds == rule->kinds ? pm_config_get(config, other->field) : NULL;
        for (size_t i = 0; first && i < (size_t)a->layers; i++)
            if (find_kind(other, first, i, spelt, sizeof(spelt)) != find_kind(rule, value, i, spelt, sizeof(spelt)))
                return pm_fail(err, PM_ERR_FORMAT, "%s: layer %zu is another one in %s than in %s", config->path, i,
                               rule->field, other->field);
    }
    return PM_OK;
}

/* The entries and their number, which becomes that of the layers where nothing before has told it: `from` is the field
 * that did. */
static int check_list(const pm_config *config, pm_admission *a, const pm_layer_rule *rule, const char **from,
                      pm_error *err)
{
    const json_t *value = pm_config_get(config, rule->field);
    bool text;
    if (!value)
        return PM_OK;
    int status = check_entries(config, a, rule, value, err);
    if (status != PM_OK)
        return status;
    size_t n = count_entries(rule, value, &text), more = rule->form == PM_LAYER_NUMBERS ? (size_t)a->more_layers : 0;
    if (!*from && (n < 1 || n > PM_MAX_LAYERS))
        return pm_fail(err, PM_ERR_FORMAT, "%s: %s has %zu entries, not 1 to %d", config->path, rule->field, n,
                       PM_MAX_LAYERS);
    if (!*from) {
        a->layers = (int)n;
        *from = rule->field;
    }
    if (n < (size_t)a->layers || n > (size_t)a->layers + more)
        return pm_fail(err, PM_ERR_FORMAT, "%s: %s has %zu entries, but %s %s %d", config->path, rule->field, n, *from,
                       strcmp(*from, "num_hidden_layers") == 0 ? "is" : "has", a->layers);
    return check_agreement(config, a, rule, value, err);
}

/* The number of layers, and the lists that have an entry for each. */
static int check_layers(const pm_config *config, pm_admission *a, pm_error *err)
{
    const pm_family *f = a->family;
    const char *from = NULL, *field = "num_hidden_layers";
    bool any = false;
    int status = pm_config_int_or(config, "num_nextn_predict_layers", 0, 1 << 10, f->more_layers, &a->more_layers, err);
    if (status == PM_OK && (!f->listed || pm_config_get(config, field))) {
        status = pm_config_int(config, field, 1, PM_MAX_LAYERS, &a->layers, err);
        from = field;
    }
    for (const pm_layer_rule *rule = f->lists; status == PM_OK && rule && rule->field; rule++) {
        status = check_list(config, a, rule, &from, err);
        any = any || pm_config_get(config, rule->field);
    }
    for (const pm_layer_rule *rule = common_lists; status == PM_OK && rule->field; rule++)
        if (!find_list(f->lists, rule->field))
            status = check_list(config, a, rule, &from, err);
    if (status == PM_OK && f->listed && !any)
        return pm_fail(err, PM_ERR_FORMAT,
                       "%s: family '%s' has no layers: neither %s nor another list of them is there", config->path,
                       a->model_type, f->lists->field);
    return status;
}

const pm_layer_kind *pm_layer_listed(const pm_family *family, const pm_config *config, const char *field, int i)
{
    char spelt[128];
    const pm_layer_rule *rule = find_list(family->lists, field);
    const json_t *value = rule ? pm_config_get(config, field) : NULL;
    return value ? find_kind(rule, value, (size_t)i, spelt, sizeof(spelt)) : NULL;
}

bool pm_layer_numbered(const pm_config *config, const char *field, int i)
{
    size_t k;
    const json_t *list = pm_config_get(config, field), *item;
    json_array_foreach(list, k, item) if (json_integer_value(item) == i) return true;
    return false;
}

/* ---- the gate ---- */

static const pm_family *find_family(const char *model_type)
{
    for (size_t i = 0; model_type && i < PM_COUNT(families); i++)
        if (listed(families[i]->model_types, ' ', model_type))
            return families[i];
    return NULL;
}

static int fail_unknown(const pm_config *config, const char *model_type, pm_error *err)
{
    char names[512] = "";
    for (size_t i = 0, n = 0; i < PM_COUNT(families) && n < sizeof(names); i++)
        n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", i ? ", " : "", families[i]->name);
    return pm_fail(err, PM_ERR_UNSUPPORTED, "%s: model_type: family '%s' is not supported; supported: %s", config->path,
                   model_type, names);
}

/* The text model inside a larger one has its own model_type, which must be of the same family. */
static int check_text(const pm_config *config, const pm_admission *a, pm_error *err)
{
    const char *text = json_string_value(json_object_get(config->text, "model_type"));
    if (!text || listed(a->family->model_types, ' ', text))
        return PM_OK;
    return pm_fail(err, PM_ERR_UNSUPPORTED, "%s: family '%s' with text_config.model_type = %s is not supported",
                   config->path, a->model_type, text);
}

int pm_family_admit(const pm_config *config, pm_admission *out, pm_error *err)
{
    pm_admission a = {.model_type = json_string_value(json_object_get(config->root, "model_type"))};
    a.family = find_family(a.model_type);
    if (!a.model_type)
        return pm_fail(err, PM_ERR_FORMAT, "%s: model_type is missing", config->path);
    if (!a.family)
        return fail_unknown(config, a.model_type, err);
    int status = check_values(config, &a, err);
    if (status == PM_OK)
        status = check_layers(config, &a, err);
    if (status == PM_OK && a.family->check)
        status = a.family->check(&a, config, err);
    if (status == PM_OK)
        status = check_text(config, &a, err);
    if (status == PM_OK)
        *out = a;
    return status;
}

int pm_family_check(const pm_config *config, const char **family, pm_error *err)
{
    pm_admission admission;
    const pm_family *f = find_family(json_string_value(json_object_get(config->root, "model_type")));
    if (family)
        *family = f ? f->name : NULL;
    return pm_family_admit(config, &admission, err);
}
