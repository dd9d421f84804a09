/* The support gate: for every family and every field of hybrid features what is let through and what is refused, by
 * field, value and the family as the config spells it. pm_family_check alone is asked, so that it is the gate that
 * refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "files/config.h"
#include "model/family.h"

enum { MOST = 8 }; /* layers of these configs, and more */

/* A fresh config of an oracle, with the fields of `without` (JSON) in place of its own. */
static pm_config *open_oracle(const char *oracle, const char *without)
{
    char dir[512];
    pm_config *config;
    pm_error err;
    json_t *change;
    snprintf(dir, sizeof(dir), "%s/tests/oracles/%s", SOURCE_DIR, oracle);
    if (pm_config_open(&config, dir, &err) != PM_OK ||
        pm_json_text("without", without, strlen(without), &change, &err) != PM_OK)
        fail_msg("%s: %s", oracle, err.message);
    assert_int_equal(json_object_update(config->text, change), 0);
    json_decref(change);
    return config;
}

/* The value is refused with a message that has all the words, or let through when there are none. Takes over `value`,
 * NULL: the field is left out. */
static void expect(pm_config *config, const char *field, json_t *value, int status, const char *first,
                   const char *second)
{
    pm_error err = {0};
    if (value)
        json_object_set_new(config->text, field, value);
    else
        json_object_del(config->text, field);
    char *text = json_dumps(pm_config_get(config, field), JSON_ENCODE_ANY);
    int got = pm_family_check(config, NULL, &err);
    if (got != status || !strstr(err.message, first) || !strstr(err.message, second))
        fail_msg("%s with %s = %s: status %d, \"%s\"; expected %d with \"%s\" and \"%s\"", config->path, field,
                 text ? text : "nothing", got, err.message, status, first, second);
    free(text);
}

/* ---- lists with an entry for each layer ---- */

typedef enum form { NAMES, NUMBERS, LETTERS } form;

static const struct list {
    const char *oracle, *field;
    form form;
    const char *names;   /* of the kinds, separated by '|' */
    const char *without; /* JSON object: other fields that say the same are left out */
} lists[] = {
    {"lfm2", "layer_types", NAMES, "conv|full_attention", "{}"},
    {"lfm2_moe", "layer_types", NAMES, "conv|full_attention", "{}"},
    {"nemotron_h", "hybrid_override_pattern", LETTERS, "M|*|-|E", "{\"layers_block_type\": null}"},
    {"nemotron_h", "layers_block_type", NAMES, "linear_attention|mamba|conv|full_attention|attention|mlp|moe", "{}"},
    {"nemotron_h", "layer_types", NAMES, "linear_attention|mamba|conv|full_attention|attention|mlp|moe",
     "{\"layers_block_type\": null}"},
    {"qwen2", "layer_types", NAMES, "full_attention|sliding_attention", "{}"},
    {"qwen3", "layer_types", NAMES, "full_attention|sliding_attention", "{}"},
    {"qwen3_moe", "layer_types", NAMES, "full_attention", "{}"},
    {"qwen3_next", "layer_types", NAMES, "linear_attention|full_attention", "{}"},
    {"qwen3_5", "layer_types", NAMES, "linear_attention|full_attention", "{}"},
    {"qwen3_5_moe", "layer_types", NAMES, "linear_attention|full_attention", "{}"},
    {"llama-yarn", "layer_types", NAMES, "full_attention", "{}"},
    {"mistral", "layer_types", NAMES, "full_attention", "{}"},
    {"deepseek_v3", "mlp_layer_types", NAMES, "dense|sparse", "{}"},
    {"deepseek_v32", "mlp_layer_types", NAMES, "dense|sparse", "{}"},
    {"deepseek_v32", "layer_types", NAMES, "indexed_attention", "{}"},
    {"deepseek_v32", "indexer_types", NAMES, "full", "{}"},
    {"glm_moe_dsa", "mlp_layer_types", NAMES, "dense|sparse", "{}"},
    {"glm_moe_dsa", "indexer_types", NAMES, "full|shared", "{}"},
    {"glm_moe_dsa", "index_topk_pattern", NAMES, "full|shared", "{\"indexer_types\": null}"},
    {"glm_moe_dsa", "index_topk_pattern", LETTERS, "F|S", "{\"indexer_types\": null}"},
    {"deepseek_v4", "layer_types", NAMES, "sliding_attention|compressed_sparse_attention|heavily_compressed_attention",
     "{}"},
    {"deepseek_v4", "compress_ratios", NUMBERS, "0|4|128", "{\"layer_types\": null, \"num_nextn_predict_layers\": 0}"},
    {"deepseek_v4", "mlp_layer_types", NAMES, "hash_moe|moe", "{}"},
};

/* A list, or a text, with n times the same entry, but `other` (may be NULL) at the last. */
static json_t *entries(const struct list *l, size_t n, const char *entry, const char *other)
{
    char text[MOST + 1] = "";
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        const char *name = other && i + 1 == n ? other : entry;
        int number = 0;
        text[i] = *name;
        text[i + 1] = 0;
        if (l->form == NUMBERS)
            assert_int_equal(sscanf(name, "%d", &number), 1);
        json_array_append_new(list, l->form == NUMBERS ? json_integer(number) : json_string(name));
    }
    if (l->form != LETTERS)
        return list;
    json_decref(list);
    return json_string(text);
}

/* The k-th of the names, false past the end. */
static bool nth(const char *names, size_t k, char out[64])
{
    for (; k > 0 && *names; k--) {
        names += strcspn(names, "|");
        names += *names == '|';
    }
    snprintf(out, 64, "%.*s", (int)strcspn(names, "|"), names);
    return *out != 0;
}

static void check_list(const struct list *l, const char *model_type)
{
    pm_config *config = open_oracle(l->oracle, l->without);
    char name[64], first[64], want[160], supported[160] = "supported: ";
    json_object_set_new(config->root, "model_type", json_string(model_type));
    if (config->text != config->root)
        json_object_del(config->text, "model_type");
    json_int_t given = json_integer_value(pm_config_get(config, "num_hidden_layers"));
    size_t n = given ? (size_t)given : 5, sum = strlen(supported);
    assert_in_range(n, 2, MOST - 1);
    for (const char *p = l->names; *p; p++)
        sum +=
            (size_t)snprintf(supported + sum, sizeof(supported) - sum, "%.*s", *p == '|' ? 2 : 1, *p == '|' ? ", " : p);
    for (size_t k = 0; nth(l->names, k, name); k++)
        expect(config, l->field, entries(l, n, name, NULL), PM_OK, "", "");
    nth(l->names, 0, first);

    /* a kind that the family does not have */
    const char *strange = l->form == NUMBERS ? "7" : l->form == LETTERS ? "x" : "mambo";
    snprintf(want, sizeof(want), "family '%s' with %s = %s in layer %zu is not supported", model_type, l->field,
             strange, n - 1);
    expect(config, l->field, entries(l, n, first, strange), PM_ERR_UNSUPPORTED, want, supported);
    /* a part of a name, and two names, are none */
    if (l->form == NAMES) {
        expect(config, l->field, entries(l, n, first, "a"), PM_ERR_UNSUPPORTED, " = a in layer", supported);
        snprintf(want, sizeof(want), "%s|%s", first, first);
        expect(config, l->field, entries(l, n, first, want), PM_ERR_UNSUPPORTED, want, supported);
    }
    /* lengths; without num_hidden_layers the list tells the number */
    for (size_t length = n - 1; length <= n + 1; length += 2) {
        int status = given ? PM_ERR_FORMAT : PM_OK;
        snprintf(want, sizeof(want), "%s has %zu entries, but num_hidden_layers is %zu", l->field, length, n);
        expect(config, l->field, entries(l, length, first, NULL), status, status ? want : "", "");
    }
    if (!given) {
        json_object_set_new(config->text, "num_hidden_layers", json_integer((json_int_t)n + 1));
        snprintf(want, sizeof(want), "%s has %zu entries, but num_hidden_layers is %zu", l->field, n, n + 1);
        expect(config, l->field, entries(l, n, first, NULL), PM_ERR_FORMAT, want, "config.json");
        json_object_del(config->text, "num_hidden_layers");
        snprintf(want, sizeof(want), "%s has 0 entries", l->field);
        expect(config, l->field, entries(l, 0, first, NULL), PM_ERR_FORMAT, want, "config.json");
    }
    /* of another type, whole or in part */
    snprintf(want, sizeof(want), "family '%s' with %s = true is not supported; supported: a list of ", model_type,
             l->field);
    expect(config, l->field, json_true(), PM_ERR_UNSUPPORTED, want, "config.json");
    if (l->form != LETTERS) {
        json_t *list = entries(l, n, first, NULL);
        json_array_set_new(list, 1, l->form == NUMBERS ? json_string("4") : json_integer(4));
        snprintf(want, sizeof(want), "entry 1 of %s is not a %s", l->field, l->form == NUMBERS ? "number" : "string");
        expect(config, l->field, list, PM_ERR_FORMAT, want, "config.json");
    }
    pm_config_close(config);
}

/* The model_types of the family that the oracle's config names. */
static const char *types_of(const char *oracle)
{
    const char *name, *model_types, *checkpoints, *family = NULL;
    pm_config *config = open_oracle(oracle, "{}");
    pm_family_check(config, &family, NULL);
    assert_non_null(family);
    pm_config_close(config);
    for (size_t i = 0; pm_family_at(i, &name, &model_types, &checkpoints); i++)
        if (name == family)
            return model_types;
    fail();
    return "";
}

static void test_lists(void **state)
{
    (void)state;
    for (size_t i = 0; i < PM_COUNT(lists); i++)
        for (const char *type = types_of(lists[i].oracle); *type; type += strcspn(type, " "), type += *type == ' ') {
            char model_type[64];
            snprintf(model_type, sizeof(model_type), "%.*s", (int)strcspn(type, " "), type);
            check_list(&lists[i], model_type);
        }
}

/* A family that has no list at all, or whose lists say different things. */
static void test_several_lists(void **state)
{
    (void)state;
    pm_config *config = open_oracle("nemotron_h", "{\"layers_block_type\": null}");
    expect(config, "num_hidden_layers", json_integer(5), PM_ERR_FORMAT, "family 'nemotron_h' has no layers",
           "hybrid_override_pattern");
    expect(config, "num_hidden_layers", NULL, PM_ERR_FORMAT, "has no layers", "hybrid_override_pattern");
    expect(config, "hybrid_override_pattern", json_string("M*"), PM_OK, "", "");
    expect(config, "layers_block_type", json_pack("[s,s]", "mamba", "attention"), PM_OK, "", "");
    expect(config, "layers_block_type", json_pack("[s,s]", "mamba", "mlp"), PM_ERR_FORMAT,
           "layer 1 is another one in layers_block_type", "than in hybrid_override_pattern");
    expect(config, "layers_block_type", json_pack("[s]", "mamba"), PM_ERR_FORMAT, "layers_block_type has 1 entries",
           "but hybrid_override_pattern has 2");
    expect(config, "layers_block_type", NULL, PM_OK, "", "");
    expect(config, "mlp_bias", json_true(), PM_OK, "", "");
    expect(config, "hybrid_override_pattern", json_string("M*E"), PM_ERR_UNSUPPORTED,
           "family 'nemotron_h' with mlp_bias = true", "layer 2");
    pm_config_close(config);
    /* layers that predict further tokens may have ratios */
    config = open_oracle("deepseek_v4", "{\"layer_types\": null, \"num_nextn_predict_layers\": null}");
    expect(config, "compress_ratios", json_pack("[i,i,i,i,i,i]", 0, 4, 4, 128, 4, 0), PM_OK, "", "");
    expect(config, "compress_ratios", json_pack("[i,i,i,i,i,i,i]", 0, 4, 4, 128, 4, 0, 0), PM_ERR_FORMAT,
           "compress_ratios has 7 entries", "num_hidden_layers is 5");
    expect(config, "compress_ratios", json_pack("[i,i,i,i,i,i]", 0, 4, 4, 128, 4, 5), PM_ERR_UNSUPPORTED,
           "compress_ratios = 5 in layer 5", "0, 4, 128");
    pm_config_close(config);
    config = open_oracle("qwen3_5", "{}");
    expect(config, "num_hidden_layers", NULL, PM_ERR_FORMAT, "lacks the field num_hidden_layers", "config.json");
    pm_config_close(config);
}

/* ---- numbers ---- */

static void test_widths(void **state)
{
    (void)state;
    static const struct {
        const char *oracle, *field;
        int low, high;
    } widths[] = {
        {"lfm2", "conv_L_cache", 2, 64},
        {"lfm2_moe", "conv_L_cache", 2, 64},
        {"nemotron_h", "conv_kernel", 2, 64},
        {"nemotron_h", "mamba_d_conv", 2, 64},
        {"qwen3_next", "linear_conv_kernel_dim", 2, 64},
        {"qwen3_5", "linear_conv_kernel_dim", 2, 64},
        {"qwen3_5_moe", "linear_conv_kernel_dim", 2, 64},
        {"deepseek_v4", "num_experts_per_tok", 1, 65536},
    };
    for (size_t i = 0; i < PM_COUNT(widths); i++) {
        pm_config *config = open_oracle(widths[i].oracle, "{}");
        const char *field = widths[i].field, *type = json_string_value(json_object_get(config->root, "model_type"));
        int low = widths[i].low, high = widths[i].high;
        char want[160], range[64], whole[96];
        snprintf(range, sizeof(range), "supported: leaving it out, %d..%d", low, high);
        snprintf(whole, sizeof(whole), "%s is not a whole number", field);
        expect(config, field, json_integer(low), PM_OK, "", "");
        expect(config, field, json_integer(high), PM_OK, "", "");
        expect(config, field, json_real((double)low + 1), PM_OK, "", "");
        for (int k = 0; k < 4; k++) {
            int bad[] = {low - 1, high + 1, 0, -1};
            snprintf(want, sizeof(want), "family '%s' with %s = %d is not supported", type, field, bad[k]);
            expect(config, field, json_integer(bad[k]), PM_ERR_UNSUPPORTED, want, range);
        }
        expect(config, field, json_real(low + 0.5), PM_ERR_FORMAT, whole, "config.json");
        expect(config, field, json_string("4"), PM_ERR_FORMAT, whole, "config.json");
        expect(config, field, json_pack("[i]", 4), PM_ERR_FORMAT, whole, "config.json");
        expect(config, field, json_integer(INT64_MAX), PM_ERR_UNSUPPORTED, field, "config.json");
        pm_config_close(config);
    }
}

static void test_numbers_of_layers(void **state)
{
    (void)state;
    static const struct {
        const char *oracle, *field, *without;
    } fields[] = {
        {"lfm2", "full_attn_idxs", "{\"layer_types\": null}"},
        {"lfm2_moe", "full_attn_idxs", "{}"},
        {"qwen3_moe", "mlp_only_layers", "{}"},
        {"qwen3_next", "mlp_only_layers", "{}"},
    };
    for (size_t i = 0; i < PM_COUNT(fields); i++) {
        pm_config *config = open_oracle(fields[i].oracle, fields[i].without);
        char want[96];
        snprintf(want, sizeof(want), "%s is not a list of numbers of layers", fields[i].field);
        expect(config, fields[i].field, json_array(), PM_OK, "", "");
        expect(config, fields[i].field, json_pack("[i,i]", 0, 99), PM_OK, "", "");
        expect(config, fields[i].field, json_pack("[i,f]", 0, 1.5), PM_ERR_FORMAT, want, "config.json");
        expect(config, fields[i].field, json_pack("[s]", "1"), PM_ERR_FORMAT, want, "config.json");
        expect(config, fields[i].field, json_integer(1), PM_ERR_FORMAT, want, "config.json");
        pm_config_close(config);
    }
}

/* ---- activations, gates, experts ---- */

static void test_values(void **state)
{
    (void)state;
    static const struct {
        const char *oracle, *field, *good, *bad; /* JSON */
    } values[] = {
        {"lfm2", "hidden_act", "\"silu\"", "\"gelu\""},
        {"lfm2", "block_use_swiglu", "true", "false"},
        {"lfm2_moe", "use_expert_bias", "false", "1"},
        {"lfm2_moe", "scoring_func", "\"sigmoid\"", "\"softmax\""},
        {"nemotron_h", "mlp_hidden_act", "\"relu2\"", "\"silu\""},
        {"nemotron_h", "mamba_hidden_act", "\"swish\"", "\"relu2\""},
        {"nemotron_h", "mamba_ssm_cache_dtype", "\"float32\"", "\"bfloat16\""},
        {"qwen3_5", "attn_output_gate", "true", "false"},
        {"qwen3_5_moe", "mamba_ssm_dtype", "\"float32\"", "\"bfloat16\""},
        {"qwen3_5_moe", "norm_topk_prob", "true", "false"},
        {"qwen3_next", "hidden_act", "\"swish\"", "\"relu\""},
        {"qwen3_moe", "moe_latent_size", "null", "32"},
        {"qwen3_moe", "conv_bias", "false", "true"},
        {"qwen3_moe", "mlp_hidden_act", "\"silu\"", "\"relu2\""},
        {"deepseek_v3", "topk_method", "\"noaux_tc\"", "\"greedy\""},
        {"glm_moe_dsa", "rope_interleave", "true", "false"},
        {"deepseek_v4", "n_shared_experts", "1", "2"},
        {"deepseek_v4", "hidden_act", "\"silu\"", "\"relu\""},
        {"deepseek_v4", "rope_interleave", "true", "false"},
        {"deepseek_v4", "indexer_rope_interleave", "true", "false"},
        {"qwen3_next", "attn_output_gate", "true", "false"},
        {"qwen3_next", "output_gate_type", "\"swish\"", "\"sigmoid\""},
        {"qwen3_5", "output_gate_type", "\"silu\"", "\"sigmoid\""},
        {"lfm2", "attn_output_gate", "false", "true"},
        {"lfm2_moe", "attn_output_gate", "false", "true"},
        {"nemotron_h", "attn_output_gate", "false", "true"},
        {"qwen3_next", "mamba_ssm_dtype", "\"float32\"", "\"bfloat16\""},
        {"nemotron_h", "mamba_ssm_dtype", "\"float32\"", "\"bfloat16\""},
        {"qwen3_next", "mamba_ssm_cache_dtype", "\"float32\"", "\"bfloat16\""},
        {"lfm2", "mamba_hidden_act", "\"silu\"", "\"gelu\""},
        {"nemotron_h", "topk_method", "\"noaux_tc\"", "\"greedy\""},
        {"lfm2_moe", "topk_method", "\"noaux_tc\"", "\"greedy\""},
        {"qwen3_moe", "topk_method", "\"greedy\"", "\"noaux_tc\""},
        {"nemotron_h", "use_expert_bias", "false", "true"},
        {"qwen3", "rope_interleave", "false", "true"},
        {"deepseek_v3", "indexer_rope_interleave", "false", "true"},
        {"qwen3_moe", "n_shared_experts", "0", "1"},
        {"llama-yarn", "norm_topk_prob", "false", "true"},
        {"lfm2_moe", "norm_topk_prob", "true", "1"},
        {"deepseek_v3", "index_topk_freq", "1", "2"},
        {"deepseek_v3", "index_topk_pattern", "null", "\"FSS\""},
        {"deepseek_v3", "expert_dtype", "null", "\"fp4\""},
        {"qwen3_next", "full_attn_idxs", "null", "3"},
    };
    for (size_t i = 0; i < PM_COUNT(values); i++) {
        pm_config *config = open_oracle(values[i].oracle, "{}");
        const char *type = json_string_value(json_object_get(config->root, "model_type"));
        char want[160];
        json_t *bad = json_loads(values[i].bad, JSON_DECODE_ANY, NULL);
        expect(config, values[i].field, json_loads(values[i].good, JSON_DECODE_ANY, NULL), PM_OK, "", "");
        snprintf(want, sizeof(want), "family '%s' with %s = %s is not supported; supported: leaving it out", type,
                 values[i].field, json_is_string(bad) ? json_string_value(bad) : values[i].bad);
        expect(config, values[i].field, bad, PM_ERR_UNSUPPORTED, want, "config.json");
        pm_config_close(config);
    }
}

/* ---- fields of other families ---- */

/* Fields in one family's tables that others may be given, and why that is no silent difference. */
static const struct {
    const char *field, *why;
} elsewhere[] = {
    {"conv_L_cache", "shape of tensors that others do not have"},
    {"conv_kernel", "the same"},
    {"mamba_d_conv", "the same"},
    {"linear_conv_kernel_dim", "the same"},
    {"num_experts_per_tok", "read by all families with experts"},
    {"num_key_value_heads", "read by all families, or latents stand in its place"},
};

static bool is_elsewhere(const char *field)
{
    for (size_t i = 0; i < PM_COUNT(elsewhere); i++)
        if (strcmp(elsewhere[i].field, field) == 0)
            return true;
    return false;
}

/* True when the family's tables have the field. */
static bool has_field(const pm_family *family, const char *field)
{
    for (const pm_gate_rule *rule = family->gate; rule->field; rule++)
        if (strcmp(rule->field, field) == 0)
            return true;
    for (const pm_layer_rule *rule = family->lists; rule && rule->field; rule++)
        if (strcmp(rule->field, field) == 0)
            return true;
    return false;
}

/* The family refuses a value of the field, "a.b.c", that no family knows. */
static void check_foreign(const pm_family *family, const char *field)
{
    pm_error err = {0};
    char oracle[64], parts[128];
    if (is_elsewhere(field) || has_field(family, field))
        return;
    snprintf(oracle, sizeof(oracle), "%s%s", family->name, strcmp(family->name, "llama") == 0 ? "-yarn" : "");
    pm_config *config = open_oracle(oracle, "{}");
    json_t *value = json_string("nobody's"), *wrapped;
    snprintf(parts, sizeof(parts), "%s", field);
    for (char *dot = strrchr(parts, '.'); dot; dot = strrchr(parts, '.')) {
        wrapped = json_object();
        json_object_set_new(wrapped, dot + 1, value);
        value = wrapped;
        *dot = 0;
    }
    json_object_set_new(config->text, parts, value);
    int status = pm_family_check(config, NULL, &err);
    if (status != PM_ERR_UNSUPPORTED || !strstr(err.message, parts))
        fail_msg("family %s with a foreign value of %s: status %d, \"%s\"", family->name, field, status, err.message);
    pm_config_close(config);
}

static void test_foreign_fields(void **state)
{
    (void)state;
    const pm_family *family, *other;
    for (size_t i = 0; (family = pm_family_number(i)); i++)
        for (size_t k = 0; (other = pm_family_number(k)); k++) {
            for (const pm_gate_rule *rule = other->gate; rule->field; rule++)
                check_foreign(family, rule->field);
            for (const pm_layer_rule *rule = other->lists; rule && rule->field; rule++)
                check_foreign(family, rule->field);
        }
}

static void test_model_type(void **state)
{
    (void)state;
    pm_config *config = open_oracle("qwen3_moe", "{}");
    expect(config, "model_type", json_string("qwen9"), PM_ERR_UNSUPPORTED,
           "model_type: family 'qwen9' is not supported", "qwen3_moe");
    expect(config, "model_type", json_integer(3), PM_ERR_FORMAT, "model_type is missing", "config.json");
    pm_config_close(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),          cmocka_unit_test(test_several_lists),
        cmocka_unit_test(test_widths),         cmocka_unit_test(test_numbers_of_layers),
        cmocka_unit_test(test_values),         cmocka_unit_test(test_model_type),
        cmocka_unit_test(test_foreign_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
