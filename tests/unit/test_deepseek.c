/* Checkpoints of the DeepSeek line in every layout that they come in: the same logits, and what is refused. */
#include "backend/cpu/math.h"
#include "edit.h"
#include "model/family.h"
#include "oracle.h"
#include "polymath.h"

#include <math.h>

#define V4   SOURCE_DIR "/tests/oracles/deepseek_v4"
#define TINY SOURCE_DIR "/tests/oracles/glm_moe_dsa" /* five layers, of which 2 and 3 share an index */

enum { LAYERS = 5, HEADS = 4, NOPE = 32, VALUE = 16, KV_LORA = 64, PER = NOPE + VALUE, TOKENS = 67, EXPERTS = 8 };

/* ---- logits ---- */

static float *logits_of(const char *dir, int *vocab)
{
    pm_engine *engine;
    pm_session *session;
    pm_error err = {0};
    pm_info info;
    int64_t shape[2];
    pm_checkpoint *oracle = oracle_open(TINY, "oracle.safetensors");
    pm_token *ids = oracle_read(oracle, "long", "input_ids", PM_I32, shape);
    pm_checkpoint_close(oracle);
    if (pm_engine_open(&engine, dir, &(pm_engine_options){.kv_type = PM_KV_F32, .threads = 1}, &err) != PM_OK)
        fail_msg("%s", err.message);
    pm_engine_info(engine, &info);
    float *logits = malloc((size_t)shape[0] * (size_t)info.vocab * sizeof(*logits));
    assert_non_null(logits);
    assert_int_equal(pm_session_new(&session, engine, &err), PM_OK);
    if (pm_step(engine, &(pm_work){session, ids, (size_t)shape[0], logits}, 1, &err) != PM_OK)
        fail_msg("%s", err.message);
    pm_session_free(session);
    pm_engine_close(engine);
    free(ids);
    *vocab = info.vocab;
    return logits;
}

/* Logits of the edited checkpoint against those of another; within `bound`, 0: the same bits. */
static void compare(edit *a, const char *b, float bound)
{
    int vocab;
    edit_write(a);
    float *x = logits_of(a->dir, &vocab), *y = logits_of(b, &vocab);
    for (int i = 0; i < TOKENS * vocab; i++)
        if (bound > 0 ? !(fabsf(x[i] - y[i]) <= bound) : pm_bits(x[i]) != pm_bits(y[i]))
            fail_msg("logit %d after token %d is %.9g, and %.9g in the other layout", i % vocab, i / vocab,
                     (double)x[i], (double)y[i]);
    free(x);
    free(y);
}

/* ---- tensors ---- */

static const char *name_of(const char *format, int layer, int expert)
{
    static char name[160];
    snprintf(name, sizeof(name), format, layer, expert);
    return name;
}

static float value_of(const edit_tensor *t, size_t i)
{
    uint16_t half;
    float value;
    if (t->dtype == PM_F32) {
        memcpy(&value, (const char *)t->data + 4 * i, 4);
        return value;
    }
    assert_int_equal(t->dtype, PM_BF16);
    memcpy(&half, (const char *)t->data + 2 * i, 2);
    return pm_from_bf16(half);
}

/* Replaces a tensor's contents by f32 values, which it takes over. */
static void become_f32(edit_tensor *t, float *values, size_t n)
{
    free(t->owned);
    t->owned = values;
    t->data = values;
    t->dtype = PM_F32;
    t->bytes = n * sizeof(*values);
}

static bool is_matrix(const edit_tensor *t)
{
    return t->rank == 2 && strstr(t->name, "model.layers.") && !strstr(t->name, "mlp.gate.");
}

/* ---- layouts ---- */

/* embed_q and unembed_out as mlx-lm stores them. */
static void split_stored(void **state)
{
    (void)state;
    edit e;
    edit_open(&e, TINY);
    for (int layer = 0; layer < LAYERS; layer++) {
        const edit_tensor *kv = edit_find(&e, name_of("model.layers.%d.self_attn.kv_b_proj.weight", layer, 0));
        static float embed[HEADS][KV_LORA][NOPE], unembed[HEADS][VALUE][KV_LORA];
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < PER; i++)
                for (int k = 0; k < KV_LORA; k++) {
                    float v = value_of(kv, (size_t)((h * PER + i) * KV_LORA + k));
                    *(i < NOPE ? &embed[h][k][i] : &unembed[h][i - NOPE][k]) = v;
                }
        edit_drop(&e, name_of("model.layers.%d.self_attn.kv_b_proj.weight", layer, 0));
        edit_add(&e, name_of("model.layers.%d.self_attn.embed_q.weight", layer, 0), PM_F32, 3,
                 (int64_t[]){HEADS, KV_LORA, NOPE}, embed);
        edit_add(&e, name_of("model.layers.%d.self_attn.unembed_out.weight", layer, 0), PM_F32, 3,
                 (int64_t[]){HEADS, VALUE, KV_LORA}, unembed);
    }
    compare(&e, TINY, 1e-3f); /* sums in another order */
    edit_end(&e);
}

/* Experts stacked, and with gate and up fused. */
static void stacked_experts(edit *e, bool fused)
{
    for (int layer = 1; layer < LAYERS; layer++) {
        static const char *const parts[] = {"gate", "up", "down"};
        uint16_t *stack[3];
        size_t n = 0;
        for (int p = 0; p < 3; p++) {
            stack[p] = malloc(EXPERTS * 64 * 32 * sizeof(**stack));
            assert_non_null(stack[p]);
            for (int x = 0; x < EXPERTS; x++) {
                char name[256];
                snprintf(name, sizeof(name), "model.layers.%d.mlp.experts.%d.%s_proj.weight", layer, x, parts[p]);
                const edit_tensor *t = edit_find(e, name);
                n = t->bytes / sizeof(**stack);
                assert_int_equal(n, 64 * 32);
                memcpy(stack[p] + (size_t)x * n, t->data, t->bytes);
                edit_drop(e, name);
            }
        }
        for (int p = 0; p < 3 && !fused; p++) {
            char name[256];
            snprintf(name, sizeof(name), "model.layers.%d.mlp.switch_mlp.%s_proj.weight", layer, parts[p]);
            edit_add(e, name, PM_BF16, 3, p < 2 ? (int64_t[]){EXPERTS, 32, 64} : (int64_t[]){EXPERTS, 64, 32},
                     stack[p]);
        }
        if (fused) {
            uint16_t *both = malloc(2 * EXPERTS * n * sizeof(*both));
            assert_non_null(both);
            for (size_t x = 0; x < EXPERTS; x++)
                for (size_t p = 0; p < 2; p++)
                    memcpy(both + (2 * x + p) * n, stack[p] + x * n, n * sizeof(*both));
            edit_add(e, name_of("model.layers.%d.mlp.experts.gate_up_proj", layer, 0), PM_BF16, 3,
                     (int64_t[]){EXPERTS, 64, 64}, both);
            edit_add(e, name_of("model.layers.%d.mlp.experts.down_proj", layer, 0), PM_BF16, 3,
                     (int64_t[]){EXPERTS, 64, 32}, stack[2]);
            free(both);
        }
        for (int p = 0; p < 3; p++)
            free(stack[p]);
    }
}

static void experts_in_stacks(void **state)
{
    (void)state;
    for (int fused = 0; fused < 2; fused++) {
        edit e;
        edit_open(&e, TINY);
        stacked_experts(&e, fused);
        compare(&e, TINY, 0);
        edit_end(&e);
    }
}

/* Layers that predict further tokens, as many as the config counts, and old checkpoints' frequencies are left out. */
static void left_out(void **state)
{
    (void)state;
    edit e;
    float freq[4] = {1, 0.1f, 0.01f, 0.001f};
    edit_open(&e, TINY);
    edit_add(&e, "model.layers.5.eh_proj.weight", PM_BF16, 2, (int64_t[]){64, 128}, NULL);
    edit_add(&e, "model.layers.5.self_attn.q_a_proj.weight", PM_BF16, 2, (int64_t[]){1, 1}, NULL);
    edit_add(&e, "model.layers.6.enorm.weight", PM_BF16, 1, (int64_t[]){64}, NULL);
    for (int layer = 0; layer < LAYERS; layer++)
        edit_add(&e, name_of("model.layers.%d.self_attn.rotary_emb.inv_freq", layer, 0), PM_F32, 1, (int64_t[]){4},
                 freq);
    json_object_set_new(e.config, "num_nextn_predict_layers", json_integer(2));
    compare(&e, TINY, 0);
    edit_end(&e);
}

/* ---- config ---- */

/* True when the logits of the oracle's checkpoint with `value` for the field (NULL: left out) are those without a
 * change. */
static bool same_with(const char *from, const char *field, json_t *value)
{
    int vocab;
    edit e;
    edit_open(&e, from);
    json_object_del(e.config, field);
    if (value)
        json_object_set_new(e.config, field, value);
    edit_write(&e);
    float *x = logits_of(e.dir, &vocab), *y = logits_of(from, &vocab);
    bool same = true;
    for (int i = 0; i < TOKENS * vocab; i++)
        same = same && pm_bits(x[i]) == pm_bits(y[i]);
    free(x);
    free(y);
    edit_end(&e);
    return same;
}

/* Elements of the index's heads turn in neighbouring pairs in GLM and in halves in V3.2, unless the config says
 * otherwise (cases.md, C2); parity with transformers says that these are the right ones. */
static void index_pairing(void **state)
{
    (void)state;
    static const struct {
        const char *from;
        bool interleaved;
    } families[] = {{TINY, true}, {SOURCE_DIR "/tests/oracles/deepseek_v32", false}};
    for (size_t i = 0; i < PM_COUNT(families); i++) {
        assert_true(same_with(families[i].from, "indexer_rope_interleave", NULL));
        assert_true(same_with(families[i].from, "indexer_rope_interleave", json_boolean(families[i].interleaved)));
        assert_false(same_with(families[i].from, "indexer_rope_interleave", json_boolean(!families[i].interleaved)));
    }
}

/* The softmax's scale is multiplied by (0.1 mscale_all_dim ln(factor) + 1)^2, sine and cosine by the quotient of what
 * mscale and mscale_all_dim make (cases.md, B1). */
static void yarn_scale(void **state)
{
    (void)state;
    static const struct {
        const char *rope;
        float of_rope, of_scores;
    } cases[] = {
        {"{'type': 'yarn', 'factor': 40, 'mscale_all_dim': 0.707, 'mscale': 0.707}", 1, 1.5896f},
        {"{'type': 'yarn', 'factor': 40, 'mscale_all_dim': 1.0, 'mscale': 1.0}", 1, 1.8739f},
        {"{'type': 'yarn', 'factor': 40, 'mscale_all_dim': 1.0}", 1, 1.8739f},
        {"{'type': 'yarn', 'factor': 40, 'mscale': 0.707}", 1.2608f, 1}, /* as the authors' code, not dropped */
        {"{'type': 'yarn', 'factor': 40}", 1.3689f, 1},
        {"{'type': 'yarn', 'factor': 40, 'mscale': 0.5, 'mscale_all_dim': 1}", 0.8652f, 1.8739f},
        {"{'type': 'default', 'mscale_all_dim': 1}", 5, 7},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        char text[256];
        json_error_t where;
        snprintf(text, sizeof(text), "{'rope_scaling': %s}", cases[i].rope);
        for (char *c = text; *c; c++)
            *c = *c == '\'' ? '"' : *c;
        json_t *root = json_loads(text, 0, &where);
        assert_non_null(root);
        pm_config config = {.path = (char[]){"config.json"}, .root = root, .text = root};
        float of_rope = 5, of_scores = 7;
        assert_int_equal(pm_rope_mscale(&config, &of_rope, &of_scores, NULL), PM_OK);
        assert_float_equal(of_rope, cases[i].of_rope, 1e-3);
        assert_float_equal(of_scores, cases[i].of_scores, 1e-3);
        json_decref(root);
    }
}

/* ---- head ---- */

/* DeepSeek-V4's head under its own name: without one only a tied model loads, and then has the logits of the embedding
 * as head. */
static void head_of_v4(void **state)
{
    (void)state;
    edit copy, tied, none;
    edit_open(&copy, V4);
    edit_open(&tied, V4);
    edit_open(&none, V4);
    const edit_tensor embedding = *edit_find(&copy, "model.embed_tokens.weight");
    edit_drop(&copy, "head.weight");
    edit_add(&copy, "head.weight", embedding.dtype, embedding.rank, embedding.shape, embedding.data);
    edit_write(&copy);
    edit_drop(&tied, "head.weight");
    json_object_set_new(tied.config, "tie_word_embeddings", json_true());
    compare(&tied, copy.dir, 0);
    edit_drop(&none, "head.weight");
    edit_write(&none);
    pm_engine *engine;
    pm_error err = {0};
    assert_int_equal(pm_engine_open(&engine, none.dir, NULL, &err), PM_ERR_FORMAT);
    if (!strstr(err.message, "lm_head.weight is missing, and tie_word_embeddings is not true"))
        fail_msg("\"%s\"", err.message);
    edit_end(&copy);
    edit_end(&tied);
    edit_end(&none);
}

/* ---- quantised ---- */

/* Packs the matrix with `bits` in groups of 64, as MLX does but with scales in f32, and puts it in the place of the
 * weight; `plain` receives what the packed integers stand for. */
static void pack(edit *e, edit *plain, const char *module, int bits)
{
    enum { GROUP = 64 };
    char name[256], scales_name[256], biases_name[256];
    snprintf(name, sizeof(name), "%s.weight", module);
    snprintf(scales_name, sizeof(scales_name), "%s.scales", module);
    snprintf(biases_name, sizeof(biases_name), "%s.biases", module);
    edit_tensor *t = edit_find(e, name);
    int64_t rows = t->shape[0], cols = t->shape[1];
    size_t n = (size_t)(rows * cols), words = n * (size_t)bits / 32;
    uint32_t *packed = calloc(words, sizeof(*packed));
    float *scales = malloc(n / GROUP * sizeof(*scales)), *biases = malloc(n / GROUP * sizeof(*biases));
    float *values = malloc(n * sizeof(*values));
    assert_true(packed && scales && biases && values);
    for (size_t g = 0; g < n / GROUP; g++) {
        float low = INFINITY, high = -INFINITY;
        for (size_t i = g * GROUP; i < (g + 1) * GROUP; i++) {
            low = fminf(low, value_of(t, i));
            high = fmaxf(high, value_of(t, i));
        }
        scales[g] = (high - low) / (float)((1 << bits) - 1);
        biases[g] = low;
        for (size_t i = g * GROUP; i < (g + 1) * GROUP; i++) {
            uint64_t q = (uint64_t)lrintf((value_of(t, i) - low) / scales[g]);
            size_t bit = i * (size_t)bits; /* rows are whole words */
            uint64_t shifted = q << (bit % 32);
            packed[bit / 32] |= (uint32_t)shifted;
            if (shifted >> 32)
                packed[bit / 32 + 1] |= (uint32_t)(shifted >> 32);
            values[i] = fmaf((float)q, scales[g], biases[g]);
        }
    }
    become_f32(edit_find(plain, name), values, n);
    edit_drop(e, name);
    edit_add(e, name, PM_U32, 2, (int64_t[]){rows, cols * bits / 32}, packed);
    edit_add(e, scales_name, PM_F32, 2, (int64_t[]){rows, cols / GROUP}, scales);
    edit_add(e, biases_name, PM_F32, 2, (int64_t[]){rows, cols / GROUP}, biases);
    free(packed);
    free(scales);
    free(biases);
}

/* kv_b_proj alone is quantised, with 4 bits and, by an override of its own, 6 on odd layers (cases.md, G2): the logits
 * of the dequantised model. */
static void quantised_kv_b(void **state)
{
    (void)state;
    edit e, plain;
    edit_open(&e, TINY);
    edit_open(&plain, TINY);
    json_t *table = json_pack("{s:i, s:i}", "group_size", 64, "bits", 4);
    for (int layer = 0; layer < LAYERS; layer++) {
        char module[200];
        snprintf(module, sizeof(module), "model.layers.%d.self_attn.kv_b_proj", layer);
        if (layer % 2)
            json_object_set_new(table, module, json_pack("{s:i, s:i}", "group_size", 64, "bits", 6));
        pack(&e, &plain, module, layer % 2 ? 6 : 4);
    }
    json_object_set_new(e.config, "quantization", table);
    edit_write(&plain);
    compare(&e, plain.dir, 2e-3f); /* outputs are rounded to 16 bits before the second half */
    edit_end(&e);
    edit_end(&plain);
}

/* The e4m3 number nearest to x. */
static uint8_t to_e4m3(float x)
{
    uint8_t best = 0;
    float nearest = INFINITY;
    for (int code = 0; code < 256; code++) {
        float off = fabsf(256 * pm_from_e4m3_256th((uint8_t)code) - x);
        if (off < nearest) {
            nearest = off;
            best = (uint8_t)code;
        }
    }
    return best;
}

/* Replaces a matrix by e4m3 with one scale per block of rows x cols, 0: for the whole of it. */
static void to_fp8(edit *e, edit *plain, const char *name, int block_rows, int block_cols)
{
    edit_tensor *t = edit_find(e, name);
    char scale_name[256], kept[240];
    snprintf(kept, sizeof(kept), "%.200s", name);
    int64_t rows = t->shape[0], cols = t->shape[1];
    int64_t high = block_rows ? (rows + block_rows - 1) / block_rows : 1;
    int64_t wide = block_rows ? (cols + block_cols - 1) / block_cols : 1;
    uint8_t *codes = malloc((size_t)(rows * cols));
    float *scales = malloc((size_t)(high * wide) * sizeof(*scales)),
          *values = malloc((size_t)(rows * cols) * sizeof(*values));
    assert_true(codes && scales && values);
    for (int64_t i = 0; i < high * wide; i++)
        scales[i] = 0.0007f * (float)(1 + i % 5);
    for (int64_t i = 0; i < rows * cols; i++) {
        float scale = block_rows ? scales[i / cols / block_rows * wide + i % cols / block_cols] : scales[0];
        codes[i] = to_e4m3(value_of(t, (size_t)i) / scale);
        values[i] = pm_from_e4m3_256th(codes[i]) * (256 * scale);
    }
    become_f32(edit_find(plain, name), values, (size_t)(rows * cols));
    snprintf(scale_name, sizeof(scale_name), "%s_scale_inv", kept);
    edit_drop(e, kept);
    edit_add(e, kept, PM_F8_E4M3, 2, (int64_t[]){rows, cols}, codes);
    edit_add(e, scale_name, PM_F32, block_rows ? 2 : 0, (int64_t[]){high, wide}, scales);
    free(codes);
    free(scales);
}

/* Every matrix of the layers in fp8: what the dequantised model says, but for the order of sums. Blocks are partial at
 * the ends, and heads of kv_b_proj begin inside them; the last round has one scale for each matrix (cases.md, G4). */
static void fp8_blocks(void **state)
{
    (void)state;
    static const int blocks[][2] = {{32, 32}, {128, 128}, {20, 24}, {0, 0}};
    for (size_t b = 0; b < PM_COUNT(blocks); b++) {
        edit e, plain;
        edit_open(&e, TINY);
        edit_open(&plain, TINY);
        for (size_t i = 0; i < plain.n; i++)
            if (is_matrix(&plain.tensors[i])) {
                char name[256];
                snprintf(name, sizeof(name), "%s", plain.tensors[i].name);
                to_fp8(&e, &plain, name, blocks[b][0], blocks[b][1]);
            }
        json_t *quant = json_pack("{s:s, s:s}", "quant_method", "fp8", "fmt", "e4m3");
        if (blocks[b][0])
            json_object_set_new(quant, "weight_block_size", json_pack("[i, i]", blocks[b][0], blocks[b][1]));
        json_object_set_new(e.config, "quantization_config", quant);
        edit_write(&plain);
        compare(&e, plain.dir, 2e-5f);
        edit_end(&e);
        edit_end(&plain);
    }
}

/* Experts in fp8 one by one and in stacks, scales stacked too: the same bits, also where the last blocks are partial.
 */
static void fp8_stacks(void **state)
{
    static const char *const projections[] = {"gate", "up", "down"}, *const parts[] = {"weight", "weight_scale_inv"};
    (void)state;
    edit single, plain, e;
    edit_open(&single, TINY);
    edit_open(&plain, TINY);
    for (size_t i = 0; i < plain.n; i++)
        if (strstr(plain.tensors[i].name, ".mlp.experts.")) {
            char name[256];
            snprintf(name, sizeof(name), "%s", plain.tensors[i].name);
            to_fp8(&single, &plain, name, 20, 24);
        }
    edit_end(&plain);
    json_object_set_new(single.config, "quantization_config",
                        json_pack("{s:s, s:[i, i]}", "quant_method", "fp8", "weight_block_size", 20, 24));
    edit_write(&single);
    edit_open(&e, single.dir);
    for (int layer = 1; layer < LAYERS; layer++)
        for (int p = 0; p < 6; p++) {
            char name[256], *stack = NULL;
            edit_tensor one = {0};
            for (int x = 0; x < EXPERTS; x++) {
                snprintf(name, sizeof(name), "model.layers.%d.mlp.experts.%d.%s_proj.%s", layer, x, projections[p / 2],
                         parts[p % 2]);
                one = *edit_find(&e, name);
                stack = stack ? stack : malloc(EXPERTS * one.bytes);
                assert_non_null(stack);
                memcpy(stack + (size_t)x * one.bytes, one.data, one.bytes);
                edit_drop(&e, name);
            }
            snprintf(name, sizeof(name), "model.layers.%d.mlp.switch_mlp.%s_proj.%s", layer, projections[p / 2],
                     parts[p % 2]);
            edit_add(&e, name, one.dtype, 3, (int64_t[]){EXPERTS, one.shape[0], one.shape[1]}, stack);
            free(stack);
        }
    compare(&e, single.dir, 0);
    edit_end(&e);
    edit_end(&single);
}

/* ---- packed integers ---- */

#define TRAINED SOURCE_DIR "/tests/models/deepseek_v3-4bit" /* four layers, of which the first is dense; for MLX */

enum { TRAINED_LAYERS = 4, STACK = 16, PACK_GROUP = 32 };

/* Every matrix of a checkpoint for MLX (4 bits, groups of 64) as f32. */
static void dequantise_all(edit *e)
{
    for (size_t i = 0; i < e->n; i++) {
        char name[280];
        edit_tensor *t = &e->tensors[i];
        int length = (int)(strlen(t->name) - strlen(".weight"));
        if (t->dtype != PM_U32)
            continue;
        snprintf(name, sizeof(name), "%.*s.scales", length, t->name);
        const uint16_t *scales = edit_find(e, name)->data;
        snprintf(name, sizeof(name), "%.*s.biases", length, t->name);
        const uint16_t *biases = edit_find(e, name)->data;
        size_t n = t->bytes * 2;
        float *values = malloc(n * sizeof(*values));
        assert_non_null(values);
        for (size_t k = 0; k < n; k++) {
            uint16_t scale, bias;
            memcpy(&scale, scales + k / 64, sizeof(scale));
            memcpy(&bias, biases + k / 64, sizeof(bias));
            int q = ((const uint8_t *)t->data)[k / 2] >> 4 * (k % 2) & 15;
            values[k] = fmaf((float)q, pm_from_bf16(scale), pm_from_bf16(bias));
        }
        become_f32(t, values, n);
        t->shape[t->rank - 1] *= 8;
    }
    for (size_t i = e->n; i-- > 0;)
        if (strstr(e->tensors[i].name, ".scales") || strstr(e->tensors[i].name, ".biases"))
            edit_drop(e, e->tensors[i].name);
    json_object_del(e->config, "quantization");
    json_object_del(e->config, "quantization_config");
}

/* The stack of experts `module` as Kimi K2 Thinking stores it: of each expert signed integers of `bits`, plus
 * 2^(bits - 1), element k of a row from bit bits * k on; scales in bf16; the shape. `plain` receives what they stand
 * for, `mlx` the same integers with scales and biases. */
static void to_packed(edit *e, edit *plain, edit *mlx, int layer, const char *part, int bits)
{
    char name[200];
    snprintf(name, sizeof(name), "model.layers.%d.mlp.switch_mlp.%s.weight", layer, part);
    edit_tensor *t = edit_find(plain, name), *stack = edit_find(mlx, name);
    const int64_t rows = t->shape[1], cols = t->shape[2], words = cols * bits / 32, groups = cols / PACK_GROUP;
    const float zero = (float)(1 << (bits - 1));
    const size_t n = (size_t)(STACK * rows * cols);
    float *values = malloc(n * sizeof(*values));
    uint32_t *packed = calloc((size_t)(STACK * rows * words), sizeof(*packed));
    uint16_t *scales = malloc(n / PACK_GROUP * sizeof(*scales)), *biases = malloc(n / PACK_GROUP * sizeof(*biases));
    assert_true(values && packed && scales && biases);
    for (size_t g = 0; g < n / PACK_GROUP; g++) {
        float most = 0;
        for (size_t i = g * PACK_GROUP; i < (g + 1) * PACK_GROUP; i++)
            most = fmaxf(most, fabsf(value_of(t, i)));
        scales[g] = (uint16_t)(pm_bits(most / (zero - 1)) >> 16);
        float scale = pm_from_bf16(scales[g]);
        biases[g] = (uint16_t)(pm_bits(-zero * scale) >> 16);
        for (size_t i = g * PACK_GROUP; i < (g + 1) * PACK_GROUP; i++) {
            float q = scale > 0 ? fminf(fmaxf(rintf(value_of(t, i) / scale), -zero), zero - 1) : 0;
            values[i] = q * scale;
            packed[i * (size_t)bits / 32] |= (uint32_t)(q + zero) << (i * (size_t)bits % 32);
        }
    }
    edit_drop(e, name);
    for (int x = 0; x < STACK; x++) {
        snprintf(name, sizeof(name), "model.layers.%d.mlp.experts.%d.%s.weight_packed", layer, x, part);
        edit_add(e, name, PM_I32, 2, (int64_t[]){rows, words}, packed + x * rows * words);
        snprintf(name, sizeof(name), "model.layers.%d.mlp.experts.%d.%s.weight_scale", layer, x, part);
        edit_add(e, name, PM_BF16, 2, (int64_t[]){rows, groups}, scales + x * rows * groups);
        snprintf(name, sizeof(name), "model.layers.%d.mlp.experts.%d.%s.weight_shape", layer, x, part);
        edit_add(e, name, PM_I64, 1, (int64_t[]){2}, (int64_t[]){rows, cols});
    }
    become_f32(t, values, n);
    free(stack->owned);
    stack->data = stack->owned = packed;
    stack->dtype = PM_U32;
    stack->shape[2] = words;
    stack->bytes = (size_t)(STACK * rows * words) * sizeof(*packed);
    snprintf(name, sizeof(name), "model.layers.%d.mlp.switch_mlp.%s.scales", layer, part);
    edit_add(mlx, name, PM_BF16, 3, (int64_t[]){STACK, rows, groups}, scales);
    snprintf(name, sizeof(name), "model.layers.%d.mlp.switch_mlp.%s.biases", layer, part);
    edit_add(mlx, name, PM_BF16, 3, (int64_t[]){STACK, rows, groups}, biases);
    free(scales);
    free(biases);
}

/* quantization_config as Kimi K2 Thinking has it. */
static json_t *packed_config(int bits)
{
    json_t *weights = json_pack("{s:n, s:n, s:b, s:i, s:i, s:s, s:s, s:b, s:s}", "actorder", "block_structure",
                                "dynamic", 0, "group_size", PACK_GROUP, "num_bits", bits, "observer", "minmax",
                                "strategy", "group", "symmetric", 1, "type", "int");
    json_t *group = json_pack("{s:n, s:n, s:[s], s:o}", "input_activations", "output_activations", "targets", "Linear",
                              "weights", weights);
    return json_pack("{s:{s:o}, s:s, s:[s, s], s:n, s:s, s:s}", "config_groups", "group_0", group, "format",
                     "pack-quantized", "ignore", "lm_head", "re:.*self_attn.*", "kv_cache_scheme", "quant_method",
                     "compressed-tensors", "quantization_status", "compressed");
}

/* The trained checkpoint with its experts packed (`e`), as MLX would have the same integers, and dequantised. */
static void packed_open(edit *e, edit *plain, edit *mlx, int bits)
{
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    edit *all[] = {e, plain, mlx};
    for (size_t i = 0; i < PM_COUNT(all); i++) {
        edit_open(all[i], TRAINED);
        dequantise_all(all[i]);
        json_object_set_new(all[i]->config, "model_type", json_string("kimi_k2"));
    }
    for (int layer = 1; layer < TRAINED_LAYERS; layer++)
        for (size_t p = 0; p < PM_COUNT(parts); p++)
            to_packed(e, plain, mlx, layer, parts[p], bits);
    json_object_set_new(e->config, "quantization_config", packed_config(bits));
    json_object_set_new(mlx->config, "quantization", json_pack("{s:i, s:i}", "group_size", PACK_GROUP, "bits", bits));
}

/* Experts in symmetric integers: the bits of the same integers with biases, and the logits of the dequantised model. */
static void packed_experts(void **state)
{
    (void)state;
    for (int bits = 4; bits <= 8; bits += 4) {
        edit e, plain, mlx;
        packed_open(&e, &plain, &mlx, bits);
        edit_write(&plain);
        edit_write(&mlx);
        compare(&e, mlx.dir, 0);
        edit_end(&e);
        edit_open(&e, mlx.dir);
        compare(&e, plain.dir, 5e-3f); /* inputs are rounded to 16 bits */
        edit_end(&e);
        edit_end(&mlx);
        edit_end(&plain);
    }
}

/* What a packed checkpoint may not be: a change of one expert's tensors, or of the config. */
static void packed_refused(void **state)
{
    (void)state;
#define EXPERT "model.layers.2.mlp.experts.5.up_proj."
    static const struct {
        const char *drop, *add; /* tensors */
        pm_dtype dtype;
        int rank;
        int64_t shape[2];
        bool plain; /* the config says nothing of packing */
        const char *message;
    } cases[] = {
        {EXPERT "weight_scale", NULL, 0, 0, {0}, false, EXPERT "weight_packed is packed but has no scales"},
        {EXPERT "weight_packed", NULL, 0, 0, {0}, false, "tensor " EXPERT "weight_packed is missing"},
        {EXPERT "weight_packed", EXPERT "weight_packed", PM_I32, 2, {64, 15}, false, "15 words per row"},
        {EXPERT "weight_packed", EXPERT "weight_packed", PM_I32, 2, {63, 16}, false, "has shape [63, 16]"},
        {EXPERT "weight_packed", EXPERT "weight_packed", PM_BF16, 2, {64, 128}, false, "weight_packed has dtype BF16"},
        {EXPERT "weight_packed", EXPERT "weight", PM_I32, 2, {64, 16}, false, "up_proj.weight has dtype I32"},
        {EXPERT "weight_scale", EXPERT "weight_scale", PM_BF16, 2, {64, 2}, false, "weight_scale has shape [64, 2]"},
        {EXPERT "weight_scale", EXPERT "weight_scale", PM_U8, 2, {64, 4}, false, "weight_scale has dtype U8"},
        {EXPERT "weight_shape", EXPERT "weight_shape", PM_I64, 1, {2}, false, "weight_shape says [0, 0]"},
        {EXPERT "weight_shape", EXPERT "weight_shape", PM_BF16, 1, {2}, false, "weight_shape has dtype BF16"},
        {EXPERT "weight_shape", EXPERT "weight_shape", PM_I64, 1, {3}, false, "weight_shape has shape [3]"},
        {NULL, EXPERT "weight_zero_point", PM_I32, 2, {8, 4}, false, "weight_zero_point is not part of this model"},
        {NULL, EXPERT "weight_g_idx", PM_I32, 1, {128}, false, "weight_g_idx is not part of this model"},
        {NULL, EXPERT "weight", PM_BF16, 2, {64, 128}, false, "weight_packed is not part of this model"},
        {NULL, NULL, 0, 0, {0}, true, "weight_packed is packed (I32), but the config's quantization says that"},
    };
    edit kept, plain, mlx;
    packed_open(&kept, &plain, &mlx, 4);
    edit_write(&kept);
    edit_end(&plain);
    edit_end(&mlx);
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        edit e;
        pm_engine *engine;
        pm_error err = {0};
        edit_open(&e, kept.dir);
        if (cases[i].drop)
            edit_drop(&e, cases[i].drop);
        if (cases[i].add)
            edit_add(&e, cases[i].add, cases[i].dtype, cases[i].rank, cases[i].shape, NULL);
        if (cases[i].plain)
            json_object_del(e.config, "quantization_config");
        edit_write(&e);
        int status = pm_engine_open(&engine, e.dir, NULL, &err);
        if (status == PM_OK || !strstr(err.message, cases[i].message))
            fail_msg("case %zu: status %d, \"%s\"; expected \"%s\"", i, status, err.message, cases[i].message);
        edit_end(&e);
    }
    edit_end(&kept);
}

/* ---- refused ---- */

static void drop_router_bias(edit *e)
{
    edit_drop(e, "model.layers.2.mlp.gate.e_score_correction_bias");
}

static void long_router_bias(edit *e)
{
    edit_drop(e, "model.layers.2.mlp.gate.e_score_correction_bias");
    edit_add(e, "model.layers.2.mlp.gate.e_score_correction_bias", PM_F32, 2, (int64_t[]){1, EXPERTS}, NULL);
}

static void drop_index_bias(edit *e)
{
    edit_drop(e, "model.layers.1.self_attn.indexer.k_norm.bias");
}

static void index_where_shared(edit *e)
{
    edit_add(e, "model.layers.2.self_attn.indexer.wk.weight", PM_BF16, 2, (int64_t[]){32, 64}, NULL);
}

static void uncounted_layer(edit *e)
{
    edit_add(e, "model.layers.6.eh_proj.weight", PM_BF16, 2, (int64_t[]){64, 128}, NULL);
    json_object_set_new(e->config, "num_nextn_predict_layers", json_integer(1));
}

static void orphan_kv_b_scales(edit *e)
{
    edit_add(e, "model.layers.0.self_attn.kv_b_proj.scales", PM_BF16, 2, (int64_t[]){HEADS * PER, 1}, NULL);
}

static void short_kv_b(edit *e)
{
    edit_drop(e, "model.layers.0.self_attn.kv_b_proj.weight");
    edit_add(e, "model.layers.0.self_attn.kv_b_proj.weight", PM_BF16, 2, (int64_t[]){HEADS * PER - 1, KV_LORA}, NULL);
}

static void drop_kv_b(edit *e)
{
    edit_drop(e, "model.layers.3.self_attn.kv_b_proj.weight");
}

static void integer_frequencies(edit *e)
{
    edit_add(e, "model.layers.0.self_attn.rotary_emb.inv_freq", PM_I32, 1, (int64_t[]){4}, NULL);
}

static void refused(void **state)
{
    (void)state;
    static const struct {
        void (*change)(edit *e);
        const char *message; /* a part of it */
    } cases[] = {
        {drop_router_bias, "tensor model.layers.2.mlp.gate.e_score_correction_bias is missing"},
        {long_router_bias,
         "model.layers.2.mlp.gate.e_score_correction_bias has shape [1, 8], but the config asks for [8]"},
        {drop_index_bias, "tensor model.layers.1.self_attn.indexer.k_norm.bias is missing"},
        {index_where_shared, "tensor model.layers.2.self_attn.indexer.wk.weight is not part of this model"},
        {uncounted_layer, "tensor model.layers.6.eh_proj.weight is not part of this model"},
        {orphan_kv_b_scales, "tensor model.layers.0.self_attn.kv_b_proj.scales belongs to no quantised weight"},
        {short_kv_b,
         "model.layers.0.self_attn.kv_b_proj.weight has shape [191, 64], but the config asks for [192, 64]"},
        {drop_kv_b, "tensor model.layers.3.self_attn.kv_b_proj.weight is missing"},
        {integer_frequencies, "model.layers.0.self_attn.rotary_emb.inv_freq is not of a float dtype"},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        edit e;
        pm_engine *engine;
        pm_error err = {0};
        edit_open(&e, TINY);
        cases[i].change(&e);
        edit_write(&e);
        int status = pm_engine_open(&engine, e.dir, NULL, &err);
        if (status != PM_ERR_FORMAT || !strstr(err.message, cases[i].message))
            fail_msg("case %zu: status %d, \"%s\"; expected \"%s\"", i, status, err.message, cases[i].message);
        edit_end(&e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_stored),  cmocka_unit_test(experts_in_stacks), cmocka_unit_test(left_out),
        cmocka_unit_test(index_pairing), cmocka_unit_test(yarn_scale),        cmocka_unit_test(quantised_kv_b),
        cmocka_unit_test(fp8_blocks),    cmocka_unit_test(packed_experts),    cmocka_unit_test(packed_refused),
        cmocka_unit_test(refused),       cmocka_unit_test(head_of_v4),        cmocka_unit_test(fp8_stacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
