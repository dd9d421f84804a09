/* Loading: what is refused, with the tensor or field named, and layouts that must give the same bits. */
#include "edit.h"
#include "model/model.h"
#include "polymath.h"

#include <math.h>

#include <sys/stat.h>

#define L0 "language_model.model.layers.0."
#define L3 "language_model.model.layers.3."

/* ---- edits ---- */

static void drop_tensor(edit *e)
{
    edit_drop(e, L0 "linear_attn.dt_bias");
}

static void drop_scales(edit *e)
{
    edit_drop(e, L3 "self_attn.q_proj.scales");
}

static void drop_biases(edit *e)
{
    edit_drop(e, L0 "mlp.switch_mlp.up_proj.biases");
}

static void drop_weight(edit *e)
{
    edit_drop(e, L3 "self_attn.q_proj.weight");
}

static void orphan_scales(edit *e)
{
    edit_add(e, L0 "input_layernorm.scales", PM_BF16, 2, (int64_t[]){256, 4}, NULL);
}

static void extra_tensor(edit *e)
{
    edit_add(e, L0 "self_attn.sinks", PM_F32, 1, (int64_t[]){4}, NULL);
}

static void two_names(edit *e)
{
    edit_add(e, "model.language_model.norm.weight", PM_BF16, 1, (int64_t[]){256}, NULL);
}

static void integer_norm(edit *e)
{
    edit_find(e, L0 "input_layernorm.weight")->dtype = PM_U16;
}

static void short_norm(edit *e)
{
    edit_drop(e, "language_model.model.norm.weight");
    edit_add(e, "language_model.model.norm.weight", PM_BF16, 1, (int64_t[]){255}, NULL);
}

static void norm_of_nan(edit *e)
{
    uint16_t values[256];
    memset(values, 0x7f, sizeof(values));
    values[7] = 0x7fc0; /* the others are large */
    edit_drop(e, "language_model.model.norm.weight");
    edit_add(e, "language_model.model.norm.weight", PM_BF16, 1, (int64_t[]){256}, values);
}

static void transposed_matrix(edit *e)
{
    edit_tensor *t = edit_find(e, L3 "self_attn.k_proj.weight");
    t->shape[0] = 32;
    t->shape[1] = 128;
}

static void wrong_bits(edit *e)
{
    json_t *q = json_object_get(e->config, "quantization");
    json_object_set_new(q, L3 "self_attn.v_proj", json_pack("{s:i, s:i}", "group_size", 64, "bits", 8));
}

static void wrong_group(edit *e)
{
    json_object_set_new(json_object_get(e->config, "quantization"), "group_size", json_integer(32));
}

static void said_unquantised(edit *e)
{
    json_object_set_new(json_object_get(e->config, "quantization"), L3 "self_attn.v_proj", json_false());
}

static void no_quantization(edit *e)
{
    json_object_del(e->config, "quantization");
    json_object_del(e->config, "quantization_config");
}

static void missing_head(edit *e)
{
    edit_drop(e, "language_model.lm_head.weight");
    edit_drop(e, "language_model.lm_head.scales");
    edit_drop(e, "language_model.lm_head.biases");
}

static void unknown_type(edit *e)
{
    json_object_set_new(e->config, "model_type", json_string("bert"));
}

static void no_type(edit *e)
{
    json_object_del(e->config, "model_type");
}

static json_t *text_config(edit *e)
{
    return json_object_get(e->config, "text_config");
}

static void gelu(edit *e)
{
    json_object_set_new(text_config(e), "hidden_act", json_string("gelu"));
}

static void list_for_scalar(edit *e)
{
    json_object_set_new(text_config(e), "attn_output_gate", json_array());
}

static void scalar_for_list(edit *e)
{
    json_object_set_new(text_config(e), "layer_types", json_string("full_attention"));
}

static void window(edit *e)
{
    json_object_set_new(text_config(e), "sliding_window", json_integer(128));
}

static void strange_layer(edit *e)
{
    json_array_set_new(json_object_get(text_config(e), "layer_types"), 2, json_string("mamba"));
}

static void few_layer_types(edit *e)
{
    json_array_remove(json_object_get(text_config(e), "layer_types"), 0);
}

static void yarn(edit *e)
{
    json_object_set_new(json_object_get(text_config(e), "rope_parameters"), "rope_type", json_string("yarn"));
}

static void theta_by_layer(edit *e)
{
    json_t *rope = json_object_get(text_config(e), "rope_parameters");
    json_object_set_new(rope, "full_attention", json_pack("{s:f}", "rope_theta", 1e6));
}

static void no_experts(edit *e)
{
    json_object_del(text_config(e), "num_experts");
}

static void many_chosen(edit *e)
{
    json_object_set_new(text_config(e), "num_experts_per_tok", json_integer(17));
}

static void odd_heads(edit *e)
{
    json_object_set_new(text_config(e), "num_key_value_heads", json_integer(3));
}

static const struct refusal {
    const char *name;
    void (*edit)(edit *e);
    pm_status status;
    const char *words[2]; /* in the message */
} refusals[] = {
    {"a missing tensor",
     drop_tensor,
     PM_ERR_FORMAT,
     {"tensor language_model.model.layers.0.linear_attn.dt_bias is missing", "config.json"}},
    {"a packed matrix without scales", drop_scales, PM_ERR_FORMAT, {"layers.3.self_attn.q_proj.weight", "no scales"}},
    {"a packed stack without biases",
     drop_biases,
     PM_ERR_FORMAT,
     {"layers.0.mlp.switch_mlp.up_proj.weight", "no biases"}},
    {"scales without their matrix",
     drop_weight,
     PM_ERR_FORMAT,
     {"tensor language_model.model.layers.3.self_attn.q_proj.weight is missing", "config.json"}},
    {"scales of something unquantised",
     orphan_scales,
     PM_ERR_FORMAT,
     {"input_layernorm.scales", "no quantised weight"}},
    {"a tensor nobody expects", extra_tensor, PM_ERR_FORMAT, {"layers.0.self_attn.sinks", "not part of this model"}},
    {"one tensor under two names", two_names, PM_ERR_FORMAT, {"model.language_model.norm.weight", "two names"}},
    {"a norm of integers", integer_norm, PM_ERR_FORMAT, {"layers.0.input_layernorm.weight", "dtype U16"}},
    {"a norm of another length", short_norm, PM_ERR_FORMAT, {"norm.weight has shape [255]", "[256]"}},
    {"a norm of what is no number", norm_of_nan, PM_ERR_FORMAT, {"model.norm.weight", "not a number"}},
    {"a matrix of another shape",
     transposed_matrix,
     PM_ERR_FORMAT,
     {"layers.3.self_attn.k_proj.weight", "words per row"}},
    {"bits that contradict the shape", wrong_bits, PM_ERR_FORMAT, {"layers.3.self_attn.v_proj.weight", "8 bits"}},
    {"a group size that contradicts the shape", wrong_group, PM_ERR_FORMAT, {"scales has shape", "asks for"}},
    {"packed, but said to be unquantised",
     said_unquantised,
     PM_ERR_FORMAT,
     {"layers.3.self_attn.v_proj.weight", "not quantised"}},
    {"packed without a quantization field", no_quantization, PM_ERR_FORMAT, {"packed (U32)", "not quantised"}},
    {"no head, and not tied", missing_head, PM_ERR_FORMAT, {"lm_head.weight", "tie_word_embeddings"}},
    {"an unknown family",
     unknown_type,
     PM_ERR_UNSUPPORTED,
     {"model_type: family 'bert' is not supported; supported: ", "qwen3_5_moe"}},
    {"no model_type", no_type, PM_ERR_FORMAT, {"config.json", "model_type is missing"}},
    {"another activation", gelu, PM_ERR_UNSUPPORTED, {"family 'qwen3_5_moe' with hidden_act = gelu", "silu, swish"}},
    {"a list where a value belongs", list_for_scalar, PM_ERR_UNSUPPORTED, {"attn_output_gate = a list", "true"}},
    {"a value where a list belongs",
     scalar_for_list,
     PM_ERR_UNSUPPORTED,
     {"layer_types = full_attention", "linear_attention"}},
    {"a sliding window", window, PM_ERR_UNSUPPORTED, {"sliding_window = 128", "leaving it out"}},
    {"an unknown layer type", strange_layer, PM_ERR_UNSUPPORTED, {"layer_types = mamba", "full_attention"}},
    {"too few layer types", few_layer_types, PM_ERR_FORMAT, {"layer_types has 7 entries", "num_hidden_layers is 8"}},
    {"scaled rope", yarn, PM_ERR_UNSUPPORTED, {"rope_parameters.rope_type = yarn", "default"}},
    {"a rope for some layers", theta_by_layer, PM_ERR_UNSUPPORTED, {"config.json", "rope_parameters.full_attention"}},
    {"a missing field", no_experts, PM_ERR_FORMAT, {"config.json", "num_experts"}},
    {"more experts chosen than there are", many_chosen, PM_ERR_FORMAT, {"config.json", "num_experts_per_tok"}},
    {"heads that do not divide", odd_heads, PM_ERR_FORMAT, {"num_attention_heads 4", "num_key_value_heads 3"}},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < PM_COUNT(refusals); i++) {
        const struct refusal *r = &refusals[i];
        edit e;
        pm_error err = {0};
        pm_engine *engine = (pm_engine *)&e; /* must stay untouched */
        edit_begin(&e);
        r->edit(&e);
        edit_write(&e);
        int status = pm_engine_open(&engine, e.dir, NULL, &err);
        bool named = strstr(err.message, r->words[0]) && strstr(err.message, r->words[1]);
        if (status != (int)r->status || err.code != r->status || !named || engine != (pm_engine *)&e)
            fail_msg("%s: status %d, message \"%s\"; expected %d with \"%s\" and \"%s\"", r->name, status, err.message,
                     r->status, r->words[0], r->words[1]);
        edit_end(&e);
    }
}

/* ---- layouts ---- */

enum { PROMPT = 9, VOCAB = 4096 };

/* Logits after each token of a fixed prompt. */
static void run_logits(const char *dir, float *out)
{
    static const pm_token ids[PROMPT] = {1, 512, 77, 900, 4000, 2, 333, 1, 42};
    pm_engine *engine;
    pm_session *session;
    pm_error err = {0};
    if (pm_engine_open(&engine, dir, NULL, &err) != PM_OK || pm_session_new(&session, engine, &err) != PM_OK ||
        pm_step(engine, &(pm_work){session, ids, PROMPT, out}, 1, &err) != PM_OK)
        fail_msg("%s: %s", dir, err.message);
    pm_session_free(session);
    pm_engine_close(engine);
}

static edit_tensor *layer_tensor(edit *e, int layer, const char *name)
{
    char full[256];
    snprintf(full, sizeof(full), "language_model.model.layers.%d.%s", layer, name);
    return edit_find(e, full);
}

/* One tensor for each expert in place of the stacks. */
static void single_experts(edit *e)
{
    static const char *const modules[] = {"gate_proj", "up_proj", "down_proj"}, *const parts[] = {"weight", "scales",
                                                                                                  "biases"};
    for (int l = 0; l < 8; l++)
        for (int k = 0; k < 9; k++) {
            char name[160];
            snprintf(name, sizeof(name), "mlp.switch_mlp.%s.%s", modules[k / 3], parts[k % 3]);
            edit_tensor stack = *layer_tensor(e, l, name);
            size_t bytes = stack.bytes / 16;
            edit_drop(e, stack.name);
            for (int x = 0; x < 16; x++) {
                snprintf(name, sizeof(name), "model.language_model.layers.%d.mlp.experts.%d.%s.%s", l, x,
                         modules[k / 3], parts[k % 3]);
                edit_add(e, name, stack.dtype, 2, stack.shape + 1, (const char *)stack.data + (size_t)x * bytes);
            }
        }
}

/* gate_up_proj in place of gate_proj and up_proj. */
static void fused_experts(edit *e)
{
    static const char *const parts[] = {"weight", "scales", "biases"};
    for (int l = 0; l < 8; l++)
        for (int k = 0; k < 3; k++) {
            char name[160];
            snprintf(name, sizeof(name), "mlp.switch_mlp.gate_proj.%s", parts[k]);
            edit_tensor gate = *layer_tensor(e, l, name);
            snprintf(name, sizeof(name), "mlp.switch_mlp.up_proj.%s", parts[k]);
            edit_tensor up = *layer_tensor(e, l, name);
            edit_drop(e, gate.name);
            edit_drop(e, up.name);
            snprintf(name, sizeof(name), "language_model.model.layers.%d.mlp.experts.gate_up_proj.%s", l, parts[k]);
            edit_tensor *t = edit_add(e, name, gate.dtype, 3, (int64_t[]){16, 256, gate.shape[2]}, NULL);
            size_t bytes = gate.bytes / 16;
            for (size_t x = 0; x < 16; x++) {
                memcpy((char *)t->owned + 2 * x * bytes, (const char *)gate.data + x * bytes, bytes);
                memcpy((char *)t->owned + (2 * x + 1) * bytes, (const char *)up.data + x * bytes, bytes);
            }
        }
}

/* PyTorch's layout: the convolution as [C, 1, K] and norms as w - 1. */
static void raw_layout(edit *e)
{
    static const char *const centred[] = {"input_layernorm.weight", "post_attention_layernorm.weight", "q_norm.weight",
                                          "k_norm.weight", "model.norm.weight"};
    size_t n = e->n;
    for (size_t i = 0; i < n; i++) {
        edit_tensor *t = &e->tensors[i];
        if (strstr(t->name, "conv1d.weight")) {
            t->shape[1] = 1;
            t->shape[2] = 4;
        }
        for (size_t k = 0; k < PM_COUNT(centred); k++) {
            if (!strstr(t->name, centred[k]))
                continue;
            size_t count = (size_t)t->shape[0];
            float *shifted = malloc(count * sizeof(*shifted));
            assert_non_null(shifted);
            for (size_t j = 0; j < count; j++) {
                uint16_t half;
                memcpy(&half, (const char *)t->data + 2 * j, 2);
                uint32_t bits = (uint32_t)half << 16;
                memcpy(&shifted[j], &bits, 4);
                shifted[j] -= 1.0f; /* exact: bf16 has 8 bits */
            }
            t->data = t->owned = shifted;
            t->dtype = PM_F32;
            t->bytes = 4 * count;
            break;
        }
    }
}

static void with_mtp(edit *e)
{
    edit_add(e, "mtp.fc.weight", PM_BF16, 2, (int64_t[]){256, 512}, NULL);
    edit_add(e, "language_model.mtp.norm.weight", PM_BF16, 1, (int64_t[]){256}, NULL);
}

static void raw_with_mtp(edit *e)
{
    raw_layout(e);
    with_mtp(e);
}

static void with_vision(edit *e)
{
    edit_add(e, "vision_tower.patch_embed.proj.weight", PM_BF16, 2, (int64_t[]){8, 8}, NULL);
    edit_add(e, "model.visual.blocks.0.norm1.weight", PM_BF16, 1, (int64_t[]){8}, NULL);
}

/* Names without any prefix, as a text-only checkpoint has them; overrides keep the old names. */
static void plain_names(edit *e)
{
    for (size_t i = 0; i < e->n; i++)
        memmove(e->tensors[i].name, e->tensors[i].name + strlen("language_model."),
                strlen(e->tensors[i].name) + 1 - strlen("language_model."));
}

/* Overrides under the names of the original repository. */
static void renamed_overrides(edit *e)
{
    static const char *const tables[] = {"quantization", "quantization_config"};
    for (size_t i = 0; i < PM_COUNT(tables); i++) {
        json_t *old = json_object_get(e->config, tables[i]), *new = json_object(), *value;
        const char *key, *prefix = "language_model.model.";
        char name[160];
        json_object_foreach(old, key, value)
        {
            bool module = strncmp(key, prefix, strlen(prefix)) == 0;
            snprintf(name, sizeof(name), "%s%s", module ? "model.language_model." : "",
                     module ? key + strlen(prefix) : key);
            json_object_set(new, name, value);
        }
        json_object_set_new(e->config, tables[i], new);
    }
}

/* The flat spelling of old configs: rope_theta at the top level, layers by interval, no text_config. */
static void old_config(edit *e)
{
    json_t *text = json_incref(text_config(e));
    json_object_del(e->config, "text_config");
    json_object_update_missing(e->config, text);
    json_object_del(e->config, "rope_parameters");
    json_object_del(e->config, "layer_types");
    json_object_set_new(e->config, "rope_theta", json_real(100000.0));
    json_object_set_new(e->config, "partial_rotary_factor", json_real(0.25));
    json_object_set_new(e->config, "rope_scaling", json_null());
    json_decref(text);
}

static void theta_twice(edit *e)
{
    json_object_set_new(e->config, "rope_theta", json_real(100000.0));
    json_object_set_new(e->config, "rope_scaling", json_pack("{s:s}", "type", "default"));
}

static void no_partial_factor(edit *e)
{
    json_object_del(json_object_get(text_config(e), "rope_parameters"), "partial_rotary_factor");
}

static const struct layout {
    const char *name;
    void (*edit)(edit *e);
} layouts[] = {
    {"one tensor per expert", single_experts},
    {"fused gate_up_proj", fused_experts},
    {"PyTorch's convolution and norms", raw_layout},
    {"MLX's layout with MTP tensors", with_mtp},
    {"PyTorch's layout with MTP tensors", raw_with_mtp},
    {"vision tensors", with_vision},
    {"plain names", plain_names},
    {"overrides under the original names", renamed_overrides},
    {"an old, flat config", old_config},
    {"rope_theta in two places", theta_twice},
    {"the usual partial_rotary_factor left out", no_partial_factor},
};

static void test_layouts(void **state)
{
    (void)state;
    float *want = calloc(2, (size_t)PROMPT * VOCAB * sizeof(*want)), *have = want + PROMPT * VOCAB;
    assert_non_null(want);
    run_logits(BUNDLED, want);
    for (size_t i = 0; i < PM_COUNT(layouts); i++) {
        edit e;
        edit_begin(&e);
        layouts[i].edit(&e);
        edit_write(&e);
        run_logits(e.dir, have);
        if (memcmp(want, have, (size_t)PROMPT * VOCAB * sizeof(*want)) != 0)
            fail_msg("%s: other logits than the bundled model", layouts[i].name);
        edit_end(&e);
    }
    free(want);
}

/* Replaces a matrix of 4 bits in groups of 64 by the f32 that it stands for. */
static void unpack(edit *e, const char *module)
{
    char name[160];
    snprintf(name, sizeof(name), "%s.scales", module);
    const edit_tensor scales = *edit_find(e, name);
    snprintf(name, sizeof(name), "%s.biases", module);
    const edit_tensor biases = *edit_find(e, name);
    snprintf(name, sizeof(name), "%s.weight", module);
    const edit_tensor packed = *edit_find(e, name);
    edit_drop(e, name);
    edit_tensor *t = edit_add(e, name, PM_F32, 2, (int64_t[]){packed.shape[0], packed.shape[1] * 8}, NULL);
    for (size_t k = 0; k < packed.bytes * 2; k++) {
        const edit_tensor *parts[] = {&scales, &biases};
        float value[2];
        for (int p = 0; p < 2; p++) {
            uint16_t half;
            assert_int_equal(parts[p]->dtype, PM_BF16);
            memcpy(&half, (const char *)parts[p]->data + k / 64 * 2, sizeof(half));
            uint32_t bits = (uint32_t)half << 16;
            memcpy(&value[p], &bits, sizeof(bits));
        }
        int q = ((const uint8_t *)packed.data)[k / 2] >> 4 * (k % 2) & 15;
        ((float *)t->owned)[k] = (float)q * value[0] + value[1];
    }
    snprintf(name, sizeof(name), "%s.scales", module);
    edit_drop(e, name);
    snprintf(name, sizeof(name), "%s.biases", module);
    edit_drop(e, name);
}

/* Under the names of the original repository the config gives matrices 8 bits, and says of one that it is not
 * quantised; the others have the 4 bits of all. The logits are those of the packed matrix, but for what its inputs lose
 * when they are rounded. */
static void test_mixed_overrides(void **state)
{
    static const char *const tables[] = {"quantization", "quantization_config"};
    (void)state;
    const size_t n = (size_t)PROMPT * VOCAB;
    float *want = calloc(2, n * sizeof(*want)), *have = want + n;
    assert_non_null(want);
    edit e;
    edit_begin(&e);
    renamed_overrides(&e);
    unpack(&e, "language_model.model.layers.3.self_attn.v_proj");
    for (size_t i = 0; i < PM_COUNT(tables); i++)
        json_object_set_new(json_object_get(e.config, tables[i]), "model.language_model.layers.3.self_attn.v_proj",
                            json_false());
    edit_write(&e);
    run_logits(BUNDLED, want);
    run_logits(e.dir, have);
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(have[i] - want[i]) <= 1e-2f))
            fail_msg("logit %zu after token %zu is %.9g, and %.9g when all is packed", i % VOCAB, i / VOCAB,
                     (double)have[i], (double)want[i]);
    edit_end(&e);
    free(want);
}

/* The embedding, scales and biases too, as the head. */
static void embedding_as_head(edit *e)
{
    static const char *const parts[] = {"weight", "scales", "biases"};
    missing_head(e);
    for (size_t i = 0; i < PM_COUNT(parts); i++) {
        char name[96];
        snprintf(name, sizeof(name), "language_model.model.embed_tokens.%s", parts[i]);
        const edit_tensor t = *edit_find(e, name);
        snprintf(name, sizeof(name), "language_model.lm_head.%s", parts[i]);
        edit_add(e, name, t.dtype, t.rank, t.shape, t.data);
    }
}

/* Whether the head is there or not, and is the embedding or not, a tied model loads: without one, or with a copy, the
 * quantised embedding is the head; a head that differs is used, as transformers does, and mentioned. */
static void test_tied(void **state)
{
    static const struct {
        const char *name;
        void (*edit)(edit *e);
        bool tied, copy, noted; /* copy: the logits are those of the embedding as head */
    } cases[] = {
        {"not tied, a copy of the embedding", embedding_as_head, false, true, false},
        {"tied, no head", missing_head, true, true, false},
        {"tied, a copy of the embedding", embedding_as_head, true, true, false},
        {"tied, another head", NULL, true, false, true},
    };
    (void)state;
    const size_t n = (size_t)PROMPT * VOCAB;
    float *own = calloc(3, n * sizeof(*own)), *copied = own + n, *have = copied + n;
    assert_non_null(own);
    run_logits(BUNDLED, own);
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        edit e;
        pm_info info;
        edit_begin(&e);
        json_object_set_new(e.config, "tie_word_embeddings", json_boolean(cases[i].tied));
        json_object_set_new(text_config(&e), "tie_word_embeddings", json_boolean(cases[i].tied));
        if (cases[i].edit)
            cases[i].edit(&e);
        edit_write(&e);
        run_logits(e.dir, i ? have : copied);
        assert_int_equal(pm_inspect(e.dir, NULL, &info, NULL), PM_OK);
        assert_int_equal(info.vocab, VOCAB);
        if (!strstr(info.notes, "lm_head") != !cases[i].noted)
            fail_msg("%s: the notes say \"%s\"", cases[i].name, info.notes);
        if (i && memcmp(have, cases[i].copy ? copied : own, n * sizeof(*have)) != 0)
            fail_msg("%s: other logits than those of the %s as head", cases[i].name,
                     cases[i].copy ? "embedding" : "file's own");
        edit_end(&e);
    }
    assert_true(memcmp(own, copied, n * sizeof(*own)) != 0);
    free(own);
}

/* Weights that the checkpoint does not name change nothing, wherever they lie, and are mentioned. */
static void test_stray_weights(void **state)
{
    (void)state;
    static const char *const names[] = {"model-00001-of-00002.safetensors", "sub/extra.safetensors"};
    float *logits = calloc(2, (size_t)PROMPT * VOCAB * sizeof(*logits));
    assert_non_null(logits);
    run_logits(BUNDLED, logits);
    edit e, stray;
    edit_begin(&e);
    edit_write(&e);
    edit_begin(&stray);
    stray.n = 0; /* nothing of the bundled model, but a name that would mean PyTorch's layout */
    edit_add(&stray, "mtp.layers.0.linear_attn.conv1d.weight", PM_BF16, 3, (int64_t[]){512, 1, 4}, NULL);
    char path[128];
    snprintf(path, sizeof(path), "%s/sub", e.dir);
    assert_int_equal(mkdir(path, 0777), 0);
    for (size_t i = 0; i < PM_COUNT(names); i++) {
        snprintf(path, sizeof(path), "%s/%s", e.dir, names[i]);
        edit_write_tensors(&stray, path);
    }
    run_logits(e.dir, logits + PROMPT * VOCAB);
    assert_memory_equal(logits, logits + PROMPT * VOCAB, (size_t)PROMPT * VOCAB * sizeof(*logits));
    pm_info info;
    pm_error err = {0};
    if (pm_inspect(e.dir, NULL, &info, &err) != PM_OK || !info.supported)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < PM_COUNT(names); i++)
        if (!strstr(info.notes, names[i]))
            fail_msg("%s is not mentioned in the notes \"%s\"", names[i], info.notes);
    edit_end(&stray);
    edit_end(&e);
    free(logits);
}

static void test_info(void **state)
{
    (void)state;
    pm_info info;
    pm_error err = {0};
    if (pm_inspect(BUNDLED, NULL, &info, &err) != PM_OK)
        fail_msg("%s", err.message);
    assert_true(info.supported);
    assert_string_equal(info.family, "qwen3_5_moe");
    assert_int_equal(info.layers, 8);
    assert_int_equal(info.vocab, VOCAB);
    assert_int_equal(info.ctx, 2048);
    assert_true(info.parameters > 17200000 && info.parameters < 17260000);
    assert_true(info.active < info.parameters / 2);
    assert_non_null(strstr(info.formats, "affine 4-bit group 64"));
    assert_non_null(strstr(info.formats, "affine 8-bit group 64 (16 matrices)"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),        cmocka_unit_test(test_layouts),       cmocka_unit_test(test_tied),
        cmocka_unit_test(test_mixed_overrides), cmocka_unit_test(test_stray_weights), cmocka_unit_test(test_info),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
