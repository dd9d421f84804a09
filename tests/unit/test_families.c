/* What each family refuses of a config, and what it makes of one: the configs of tests/oracles with a few fields
 * changed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "files/config.h"
#include "model/model.h"
#include "model/weights.h"

/* Notes the shape of one module. */
typedef struct shape {
    const char *module;
    int rows, cols;
} shape;

static int note(void *user, const pm_planned *planned, pm_error *err)
{
    shape *wanted = user;
    (void)err;
    if (strcmp(planned->module, wanted->module) == 0) {
        wanted->rows = planned->rows;
        wanted->cols = planned->cols;
    }
    return PM_OK;
}

/* Plans the oracle's config with the fields of `changes` (JSON) in place of its own. */
static int plan(const char *oracle, const char *changes, shape *wanted, pm_error *err)
{
    char dir[512];
    pm_config *config;
    json_t *change;
    snprintf(dir, sizeof(dir), "%s/tests/oracles/%s", SOURCE_DIR, oracle);
    if (pm_config_open(&config, dir, err) != PM_OK || pm_json_text("changes", changes, strlen(changes), &change, err))
        fail_msg("%s: %s", oracle, err->message);
    assert_int_equal(json_object_update(config->text, change), 0);
    int status = pm_model_plan(config, note, wanted, err);
    json_decref(change);
    pm_config_close(config);
    return status;
}

#define V4 "../models/deepseek_v4-bf16"

static const struct refusal {
    const char *oracle, *changes;
    pm_status status;
    const char *words[2]; /* in the message */
} refusals[] = {
    {"lfm2",
     "{\"layer_types\": [\"conv\", \"mamba\", \"conv\"]}",
     PM_ERR_UNSUPPORTED,
     {"family 'lfm2' with layer_types = mamba", "conv, full_attention"}},
    {"lfm2", "{\"layer_types\": [\"conv\"]}", PM_ERR_FORMAT, {"layer_types has 1 entries", "num_hidden_layers is 3"}},
    {"lfm2", "{\"layer_types\": null, \"full_attn_idxs\": [\"1\"]}", PM_ERR_FORMAT, {"full_attn_idxs", "number"}},
    {"lfm2", "{\"conv_L_cache\": 1}", PM_ERR_UNSUPPORTED, {"conv_L_cache = 1", "not supported"}},
    {"lfm2", "{\"conv_L_cache\": 65}", PM_ERR_UNSUPPORTED, {"conv_L_cache", "64"}},
    {"lfm2", "{\"hidden_act\": \"gelu\"}", PM_ERR_UNSUPPORTED, {"family 'lfm2' with hidden_act = gelu", "silu"}},
    {"lfm2", "{\"use_pos_enc\": false}", PM_ERR_UNSUPPORTED, {"use_pos_enc = false", "true"}},
    {"lfm2", "{\"block_ffn_dim_multiplier\": -1}", PM_ERR_UNSUPPORTED, {"block_ffn_dim_multiplier", "config.json"}},
    {"lfm2", "{\"block_ff_dim\": 0}", PM_ERR_UNSUPPORTED, {"block_ff_dim", "config.json"}},
    {"lfm2_moe", "{\"num_experts_per_tok\": 9}", PM_ERR_FORMAT, {"num_experts_per_tok 9", "num_experts 8"}},
    {"lfm2_moe", "{\"num_dense_layers\": -1}", PM_ERR_UNSUPPORTED, {"num_dense_layers", "config.json"}},
    {"lfm2_moe", "{\"scoring_func\": \"softmax\"}", PM_ERR_UNSUPPORTED, {"scoring_func = softmax", "sigmoid"}},
    {"lfm2_moe", "{\"routed_scaling_factor\": \"2\"}", PM_ERR_FORMAT, {"routed_scaling_factor", "config.json"}},
    {"nemotron_h",
     "{\"hybrid_override_pattern\": \"MX*-M\"}",
     PM_ERR_UNSUPPORTED,
     {"family 'nemotron_h' with hybrid_override_pattern = X in layer 1", "M, *, -, E"}},
    {"nemotron_h",
     "{\"layers_block_type\": [\"mamba\", \"M\"]}",
     PM_ERR_UNSUPPORTED,
     {"layers_block_type = M in layer 1", "linear_attention"}},
    {"nemotron_h",
     "{\"hybrid_override_pattern\": \"MM*-M\"}",
     PM_ERR_FORMAT,
     {"layer 1 is another one in layers_block_type", "hybrid_override_pattern"}},
    {"nemotron_h",
     "{\"hybrid_override_pattern\": \"ME*-\"}",
     PM_ERR_FORMAT,
     {"layers_block_type has 5 entries", "hybrid_override_pattern has 4"}},
    {"nemotron_h",
     "{\"num_hidden_layers\": 4}",
     PM_ERR_FORMAT,
     {"num_hidden_layers is 4", "layers_block_type has 5 entries"}},
    {"nemotron_h", "{\"num_hidden_layers\": \"5\"}", PM_ERR_FORMAT, {"num_hidden_layers", "whole number"}},
    {"nemotron_h", "{\"layers_block_type\": null}", PM_ERR_FORMAT, {"hybrid_override_pattern", "no layers"}},
    {"nemotron_h", "{\"mlp_hidden_act\": \"gelu\"}", PM_ERR_UNSUPPORTED, {"mlp_hidden_act = gelu", "relu2"}},
    {"nemotron_h", "{\"mamba_hidden_act\": \"relu\"}", PM_ERR_UNSUPPORTED, {"mamba_hidden_act = relu", "silu"}},
    {"nemotron_h", "{\"mlp_bias\": true}", PM_ERR_UNSUPPORTED, {"family 'nemotron_h' with mlp_bias", "experts"}},
    {"nemotron_h", "{\"time_step_limit\": [0.1]}", PM_ERR_FORMAT, {"time_step_limit", "two numbers"}},
    {"nemotron_h", "{\"time_step_limit\": [0.2, 0.1]}", PM_ERR_FORMAT, {"time_step_limit", "two numbers"}},
    {"nemotron_h", "{\"n_groups\": 3}", PM_ERR_FORMAT, {"mamba_num_heads 4", "n_groups 3"}},
    {"nemotron_h", "{\"conv_kernel\": 1}", PM_ERR_UNSUPPORTED, {"conv_kernel = 1", "not supported"}},
    {"nemotron_h", "{\"conv_kernel\": 99}", PM_ERR_UNSUPPORTED, {"conv_kernel", "64"}},
    {"nemotron_h",
     "{\"moe_shared_expert_intermediate_size\": null}",
     PM_ERR_FORMAT,
     {"config.json", "moe_shared_expert"}},
    {"nemotron_h", "{\"n_group\": 3}", PM_ERR_FORMAT, {"8 experts", "3 groups"}},
    {"nemotron_h", "{\"n_group\": 3}", PM_ERR_FORMAT, {"n_routed_experts", "n_group"}},
    {"nemotron_h", "{\"num_experts_per_tok\": 9}", PM_ERR_FORMAT, {"num_experts_per_tok 9", "n_routed_experts 8"}},
    {"nemotron_h", "{\"n_routed_experts\": null}", PM_ERR_FORMAT, {"lacks the field n_routed_experts", "config"}},
    {"nemotron_h", "{\"num_experts\": 4}", PM_ERR_FORMAT, {"n_routed_experts and num_experts", "differ"}},
    {"nemotron_h", "{\"mamba_dt_limit\": [0.5, 1]}", PM_ERR_FORMAT, {"time_step_limit and mamba_dt_limit", "differ"}},
    {"nemotron_h", "{\"mamba_n_groups\": 1}", PM_ERR_FORMAT, {"n_groups and mamba_n_groups", "differ"}},
    {"nemotron_h", "{\"mamba_d_conv\": 3}", PM_ERR_FORMAT, {"conv_kernel and mamba_d_conv", "differ"}},
    {"nemotron_h",
     "{\"use_conv_bias\": true, \"mamba_conv_bias\": false}",
     PM_ERR_FORMAT,
     {"use_conv_bias and mamba_conv_bias", "differ"}},
    {"nemotron_h", "{\"time_step_limit\": [1e39, 1e40]}", PM_ERR_FORMAT, {"time_step_limit is [1e39, 1e40]", "f32"}},
    {"nemotron_h", "{\"time_step_limit\": [0, 1e40]}", PM_ERR_FORMAT, {"time_step_limit is [0, 1e40]", "f32"}},
    {"nemotron_h",
     "{\"time_step_limit\": [\"Infinity\", \"Infinity\"]}",
     PM_ERR_FORMAT,
     {"time_step_limit is [\"Infinity\", \"Infinity\"]", "the first finite"}},
    {"lfm2_moe", "{\"num_local_experts\": 4}", PM_ERR_FORMAT, {"num_experts and num_local_experts", "differ"}},
    {"deepseek_v3", "{\"num_experts\": 4}", PM_ERR_FORMAT, {"n_routed_experts and num_experts", "differ"}},
    {V4, "{\"num_local_experts\": 5}", PM_ERR_FORMAT, {"n_routed_experts and num_local_experts", "differ"}},
    {"lfm2",
     "{\"head_dim\": null, \"num_attention_heads\": 5}",
     PM_ERR_FORMAT,
     {"hidden_size 48 is not a multiple", "num_attention_heads 5"}},
    {"lfm2",
     "{\"head_dim\": null, \"hidden_size\": 1}",
     PM_ERR_FORMAT,
     {"hidden_size 1 is not", "num_attention_heads"}},
    {"qwen3_moe", "{\"mlp_only_layers\": 0}", PM_ERR_FORMAT, {"config.json", "mlp_only_layers is not a list"}},
    {"qwen3_moe", "{\"mlp_only_layers\": [0.5]}", PM_ERR_FORMAT, {"config.json", "mlp_only_layers"}},
    {"qwen3_moe", "{\"decoder_sparse_step\": 0}", PM_ERR_UNSUPPORTED, {"config.json", "decoder_sparse_step"}},
    {"qwen3", "{\"use_sliding_window\": false}", PM_ERR_FORMAT, {"entry 1 of layer_types", "use_sliding_window"}},
    {"qwen2", "{\"sliding_window\": null}", PM_ERR_FORMAT, {"entry 2 of layer_types", "sliding_window"}},
    {"qwen2", "{\"is_causal\": false}", PM_ERR_UNSUPPORTED, {"family 'qwen2' with is_causal = false", "true"}},
    {"llama-yarn",
     "{\"use_bidirectional_attention\": true}",
     PM_ERR_UNSUPPORTED,
     {"use_bidirectional_attention = true", "false"}},
    {"llama-yarn", "{\"no_rope_layers\": [1, 0]}", PM_ERR_UNSUPPORTED, {"no_rope_layers = 0", "leaving it out, 1"}},
    {"llama-yarn", "{\"rope_local_base_freq\": 1e4}", PM_ERR_UNSUPPORTED, {"rope_local_base_freq", "leaving it out"}},
    {"llama-yarn",
     "{\"original_max_position_embeddings\": 64}",
     PM_ERR_FORMAT,
     {"original_max_position_embeddings is 64", "128"}},
    {"qwen3",
     "{\"rope_scaling\": {\"factor\": 4}}",
     PM_ERR_FORMAT,
     {"rope_scaling.factor is not what", "rope_parameters"}},
    {"qwen3_5",
     "{\"model_type\": \"llama\"}",
     PM_ERR_UNSUPPORTED,
     {"family 'qwen3_5' with text_config.model_type = llama", "not supported"}},
    {"deepseek_v3", "{\"scoring_func\": \"softmax\"}", PM_ERR_UNSUPPORTED, {"scoring_func = softmax", "sigmoid"}},
    {"deepseek_v3",
     "{\"model_type\": \"kimi_k2\", \"topk_method\": \"greedy\"}",
     PM_ERR_UNSUPPORTED,
     {"family 'kimi_k2' with topk_method = greedy", "noaux_tc"}},
    {"deepseek_v3",
     "{\"rope_scaling\": {\"type\": \"linear\"}}",
     PM_ERR_UNSUPPORTED,
     {"rope_scaling.type = linear", "yarn"}},
    {"deepseek_v3", "{\"index_topk\": 64}", PM_ERR_UNSUPPORTED, {"family 'deepseek_v3' with index_topk = 64", ""}},
    {"deepseek_v3",
     "{\"num_key_value_heads\": 2}",
     PM_ERR_UNSUPPORTED,
     {"num_key_value_heads 2", "num_attention_heads 4"}},
    {"deepseek_v3", "{\"kv_lora_rank\": null}", PM_ERR_FORMAT, {"lacks the field kv_lora_rank", "config.json"}},
    {"deepseek_v3", "{\"qk_rope_head_dim\": 7}", PM_ERR_FORMAT, {"7 elements", "even"}},
    {"deepseek_v3", "{\"v_head_dim\": 0}", PM_ERR_UNSUPPORTED, {"v_head_dim", "config.json"}},
    {"deepseek_v3", "{\"n_shared_experts\": 0}", PM_ERR_UNSUPPORTED, {"n_shared_experts", "config.json"}},
    {"deepseek_v3-groups", "{\"topk_group\": 5}", PM_ERR_UNSUPPORTED, {"topk_group", "config.json"}},
    {"deepseek_v3-groups", "{\"n_group\": 3}", PM_ERR_FORMAT, {"8 experts", "3 groups"}},
    {"deepseek_v3-groups", "{\"topk_group\": 1}", PM_ERR_FORMAT, {"3 experts per token", "1 groups kept"}},
    {"deepseek_v32", "{\"q_lora_rank\": null}", PM_ERR_FORMAT, {"lacks the field q_lora_rank", "config.json"}},
    {"deepseek_v32", "{\"index_topk\": null}", PM_ERR_FORMAT, {"lacks the field index_topk", "config.json"}},
    {"deepseek_v32", "{\"index_head_dim\": 4}", PM_ERR_FORMAT, {"index_head_dim 4", "qk_rope_head_dim 8"}},
    {"deepseek_v32", "{\"rope_interleave\": false}", PM_ERR_UNSUPPORTED, {"rope_interleave = false", "true"}},
    {"deepseek_v32",
     "{\"model_type\": \"deepseek_v3_2\", \"indexer_types\": [\"full\", \"shared\"]}",
     PM_ERR_UNSUPPORTED,
     {"family 'deepseek_v3_2' with indexer_types = shared", "full"}},
    {"deepseek_v32",
     "{\"mlp_layer_types\": [\"dense\"]}",
     PM_ERR_FORMAT,
     {"mlp_layer_types has 1 entries", "num_hidden_layers is 3"}},
    {"deepseek_v32",
     "{\"mlp_layer_types\": [\"wide\"]}",
     PM_ERR_UNSUPPORTED,
     {"mlp_layer_types = wide", "dense, sparse"}},
    {"glm_moe_dsa",
     "{\"indexer_types\": [\"full\", \"none\", \"full\", \"full\", \"full\"]}",
     PM_ERR_UNSUPPORTED,
     {"family 'glm_moe_dsa' with indexer_types = none", "full, shared"}},
    {"glm_moe_dsa",
     "{\"indexer_types\": null, \"index_topk_pattern\": [\"full\", \"none\", \"full\", \"full\", \"full\"]}",
     PM_ERR_UNSUPPORTED,
     {"family 'glm_moe_dsa' with index_topk_pattern = none", "full, shared"}},
    {"glm_moe_dsa",
     "{\"indexer_types\": [\"full\"]}",
     PM_ERR_FORMAT,
     {"indexer_types has 1 entries", "num_hidden_layers is 5"}},
    {"glm_moe_dsa",
     "{\"indexer_types\": null, \"index_topk_pattern\": \"SFFFF\"}",
     PM_ERR_FORMAT,
     {"the first layer shares an index", "config.json"}},
    {"glm_moe_dsa",
     "{\"indexer_types\": null, \"index_topk_pattern\": \"FSx\"}",
     PM_ERR_UNSUPPORTED,
     {"index_topk_pattern = x in layer 2", "supported: F, S"}},
    {"glm_moe_dsa",
     "{\"indexer_types\": null, \"index_topk_pattern\": \"FSF\"}",
     PM_ERR_FORMAT,
     {"index_topk_pattern has 3 entries", "num_hidden_layers is 5"}},
    {"glm_moe_dsa",
     "{\"indexer_types\": [\"full\", \"full\", \"full\", \"full\", \"full\"], \"index_topk_pattern\": \"FFFFS\"}",
     PM_ERR_FORMAT,
     {"layer 4 is another one in index_topk_pattern", "indexer_types"}},
    {"glm_moe_dsa", "{\"index_topk\": 0}", PM_ERR_UNSUPPORTED, {"index_topk", "config.json"}},
    {"deepseek_v3", "{\"n_group\": null}", PM_ERR_FORMAT, {"lacks the field n_group", "config.json"}},
    {"deepseek_v32", "{\"routed_scaling_factor\": null}", PM_ERR_FORMAT, {"lacks the field routed_scaling", "config"}},
    {"glm_moe_dsa", "{\"routed_scaling_factor\": null}", PM_ERR_FORMAT, {"lacks the field routed_scaling", "config"}},
    {V4, "{\"rope_scaling\": \"x\"}", PM_ERR_FORMAT, {"rope_scaling is not an object", "config.json"}},
    {V4, "{\"rope_scaling\": null, \"rope_parameters\": [1]}", PM_ERR_FORMAT, {"rope_parameters", "not an object"}},
    {V4, "{\"rope_parameters\": {\"main\": {}}}", PM_ERR_UNSUPPORTED, {"rope_parameters.main", "some layers"}},
    {V4, "{\"rope_parameters\": {\"factor\": 2}}", PM_ERR_FORMAT, {"rope_scaling.type", "rope_parameters says"}},
    {V4,
     "{\"rope_scaling\": null, \"rope_parameters\": {\"main\": {}, \"compress\": 1}}",
     PM_ERR_FORMAT,
     {"rope_parameters.compress is not an object", "config.json"}},
    {V4, "{\"compress_rates\": [4]}", PM_ERR_FORMAT, {"compress_rates is not an object", "config.json"}},
    {V4,
     "{\"compress_ratios\": [0, \"128\", 4, 128, 4]}",
     PM_ERR_FORMAT,
     {"entry 1 of compress_ratios is not a number", "config.json"}},
    {"qwen3_moe", "{\"kv_lora_rank\": 64}", PM_ERR_UNSUPPORTED, {"family 'qwen3_moe' with kv_lora_rank = 64", ""}},
    {"qwen3_moe", "{\"conv_bias\": true}", PM_ERR_UNSUPPORTED, {"family 'qwen3_moe' with conv_bias = true", "false"}},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < PM_COUNT(refusals); i++) {
        const struct refusal *r = &refusals[i];
        pm_error err = {0};
        int status = plan(r->oracle, r->changes, &(shape){.module = ""}, &err);
        if (status != (int)r->status || !strstr(err.message, r->words[0]) || !strstr(err.message, r->words[1]))
            fail_msg("%s with %s: status %d, \"%s\"; expected %d with \"%s\" and \"%s\"", r->oracle, r->changes, status,
                     err.message, r->status, r->words[0], r->words[1]);
    }
}

static const struct reading {
    const char *oracle, *changes;
    shape wanted;
} readings[] = {
    {V4, "{\"compress_ratios\": [0.0, 4.0, 4, 128, 4]}", {"model.layers.1.self_attn.compressor.kv_proj", 128, 128}},
    {"lfm2", "{}", {"model.layers.0.mlp.gate_proj", 64, 48}},
    {"lfm2", "{\"block_auto_adjust_ff_dim\": false}", {"model.layers.0.mlp.gate_proj", 60, 48}},
    {"lfm2", "{\"block_ffn_dim_multiplier\": 1}", {"model.layers.0.mlp.gate_proj", 48, 48}},
    {"lfm2", "{\"block_ff_dim\": 90}", {"model.layers.0.mlp.gate_proj", 80, 48}},
    {"lfm2", "{\"block_ff_dim\": 90, \"intermediate_size\": null}", {"model.layers.0.mlp.gate_proj", 80, 48}},
    {"lfm2", "{\"layer_types\": null}", {"model.layers.0.self_attn.q_proj", 48, 48}},
    {"lfm2", "{\"layer_types\": null, \"full_attn_idxs\": [2]}", {"model.layers.2.self_attn.k_proj", 16, 48}},
    {"lfm2", "{\"layer_types\": null, \"full_attn_idxs\": [2]}", {"model.layers.1.conv.in_proj", 144, 48}},
    {"nemotron_h", "{}", {"model.layers.0.mamba.in_proj", 48 + (48 + 2 * 2 * 16) + 4, 48}},
    {"nemotron_h",
     "{\"layers_block_type\": null, \"hybrid_override_pattern\": \"*M\"}",
     {"model.layers.1.mamba.out_proj", 48, 48}},
    {"nemotron_h",
     "{\"hybrid_override_pattern\": \"ME*-M\", \"layer_types\": [\"mamba\", \"moe\", \"attention\", \"mlp\", "
     "\"conv\"]}",
     {"model.layers.3.mlp.up_proj", 40, 48}},
    {"nemotron_h", "{}", {"model.layers.1.mlp.switch_mlp.fc1", 16, 20}},
    {"nemotron_h", "{\"moe_latent_size\": null}", {"model.layers.1.mlp.switch_mlp.fc1", 16, 48}},
    {"nemotron_h", "{}", {"model.layers.1.mlp.shared_experts.up_proj", 24, 48}},
    {"nemotron_h", "{\"num_experts\": 8.0, \"mamba_n_groups\": 2}", {"model.layers.1.mlp.gate", 8, 48}},
    {"nemotron_h", "{\"n_routed_experts\": null, \"num_experts\": 16}", {"model.layers.1.mlp.gate", 16, 48}},
    {"nemotron_h", "{\"conv_kernel\": null}", {"model.layers.0.mamba.conv1d.weight", 112, 4}},
    {"lfm2", "{\"conv_L_cache\": null}", {"model.layers.0.conv.conv.weight", 48, 3}},
    {"qwen3_5", "{\"linear_conv_kernel_dim\": null}", {"model.layers.0.linear_attn.conv1d.weight", 192, 4}},
    {"deepseek_v3", "{}", {"model.layers.0.self_attn.q_proj", 160, 40}},
    {"deepseek_v3", "{\"q_lora_rank\": 24}", {"model.layers.1.self_attn.q_b_proj", 160, 24}},
    {"deepseek_v3", "{}", {"model.layers.1.mlp.shared_experts.up_proj", 16, 40}},
    {"deepseek_v3", "{\"model_type\": \"joyai_llm_flash\"}", {"model.layers.0.self_attn.embed_q", 32, 32}},
    {"deepseek_v3", "{\"n_shared_experts\": null}", {"model.layers.1.mlp.shared_experts.up_proj", 0, 0}},
    {"deepseek_v3", "{\"first_k_dense_replace\": 1}", {"model.layers.0.mlp.gate_proj", 64, 40}},
    {"deepseek_v3", "{\"moe_layer_freq\": 2}", {"model.layers.1.mlp.gate_proj", 64, 40}},
    {"deepseek_v3-groups", "{\"moe_layer_freq\": 2}", {"model.layers.2.mlp.gate", 8, 40}},
    {"deepseek_v32", "{}", {"model.layers.1.mlp.gate_proj", 64, 40}},
    {"deepseek_v32",
     "{\"mlp_layer_types\": null, \"first_k_dense_replace\": 2}",
     {"model.layers.1.mlp.down_proj", 40, 64}},
    {"deepseek_v32", "{}", {"model.layers.2.self_attn.indexer.wq_b", 256, 32}},
    {"glm_moe_dsa", "{}", {"model.layers.2.self_attn.indexer.wk", 0, 0}},
    {"glm_moe_dsa", "{\"indexer_types\": null}", {"model.layers.2.self_attn.indexer.wk", 32, 64}},
    {"glm_moe_dsa",
     "{\"indexer_types\": null, \"index_topk_freq\": 4, \"index_skip_topk_offset\": 1}",
     {"model.layers.3.self_attn.indexer.wk", 0, 0}},
    {"glm_moe_dsa",
     "{\"indexer_types\": null, \"index_topk_freq\": 4, \"index_skip_topk_offset\": 1}",
     {"model.layers.4.self_attn.indexer.wk", 32, 64}},
    {"glm_moe_dsa",
     "{\"indexer_types\": null, \"index_topk_pattern\": [\"full\", \"shared\", \"full\", \"full\", \"full\"]}",
     {"model.layers.1.self_attn.indexer.wk", 0, 0}},
    {"lfm2_moe", "{\"num_dense_layers\": 3}", {"model.layers.2.mlp.gate_proj", 64, 48}},
    {"lfm2_moe", "{\"num_experts_per_tok\": 1}", {"model.layers.2.mlp.gate", 8, 48}},
    {V4, "{\"num_experts_per_tok\": 1}", {"model.layers.2.mlp.gate", 8, 128}},
    {"llama-yarn",
     "{\"original_max_position_embeddings\": 128.0, \"no_rope_layers\": [1, 1], \"is_causal\": true}",
     {"model.layers.1.mlp.up_proj", 80, 48}},
    {"qwen3_5", "{\"model_type\": null}", {"model.layers.0.mlp.up_proj", 64, 40}},
};

/* What is planned for a module; no rows: the layer has no such module. */
static void test_readings(void **state)
{
    (void)state;
    for (size_t i = 0; i < PM_COUNT(readings); i++) {
        const struct reading *r = &readings[i];
        shape got = {.module = r->wanted.module};
        pm_error err = {0};
        if (plan(r->oracle, r->changes, &got, &err) != PM_OK)
            fail_msg("%s with %s: %s", r->oracle, r->changes, err.message);
        if (got.rows != r->wanted.rows || got.cols != r->wanted.cols)
            fail_msg("%s with %s: %s is [%d, %d], expected [%d, %d]", r->oracle, r->changes, got.module, got.rows,
                     got.cols, r->wanted.rows, r->wanted.cols);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refusals), cmocka_unit_test(test_readings)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
