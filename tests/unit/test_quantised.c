/* Checkpoints quantised to 4 bits: what their numbers stand for, and what of other tools' files is refused. */
#include "edit.h"
#include "polymath.h"

#include <math.h>

#define AFFINE SOURCE_DIR "/tests/oracles/qwen3_moe-3_4_6bit"
#define MXFP4  SOURCE_DIR "/tests/oracles/qwen3_moe-mxfp4"
#define NVFP4  SOURCE_DIR "/tests/oracles/qwen3_moe-nvfp4"
#define Q_PROJ "model.layers.1.self_attn.q_proj"
#define EXPERT "model.layers.1.mlp.switch_mlp.up_proj"

enum { TOKENS = 9, VOCAB = 262, EXPERTS = 4, ONE = 2688 }; /* ONE: MLX's global scale that changes nothing */

/* Logits after each of a few tokens; the status of computing them. */
static int logits_of(const char *dir, float *logits, pm_error *err)
{
    static const pm_token ids[TOKENS] = {1, 200, 77, 90, 14, 2, 33, 1, 42};
    pm_engine *engine;
    pm_session *session;
    pm_info info;
    if (pm_engine_open(&engine, dir, &(pm_engine_options){.threads = 1, .kv_type = PM_KV_F32}, err) != PM_OK)
        fail_msg("%s", err->message);
    pm_engine_info(engine, &info);
    assert_int_equal(info.vocab, VOCAB);
    assert_int_equal(pm_session_new(&session, engine, err), PM_OK);
    int status = pm_step(engine, &(pm_work){session, ids, TOKENS, logits}, 1, err);
    pm_session_free(session);
    pm_engine_close(engine);
    return status;
}

/* The logits of the edited checkpoint, within `bound` (0: bit for bit), are those of another one. */
static void compare(edit *e, const char *other, float bound)
{
    static float have[TOKENS * VOCAB], want[TOKENS * VOCAB];
    pm_error err = {0};
    edit_write(e);
    if (logits_of(e->dir, have, &err) != PM_OK || logits_of(other, want, &err) != PM_OK)
        fail_msg("%s", err.message);
    for (int i = 0; i < TOKENS * VOCAB; i++)
        if (bound > 0 ? !(fabsf(have[i] - want[i]) <= bound) : memcmp(&have[i], &want[i], sizeof(float)) != 0)
            fail_msg("%s: logit %d after token %d is %.9g, and %.9g in %s", e->from, i % VOCAB, i / VOCAB,
                     (double)have[i], (double)want[i], other);
}

/* The part `part` of the module whose weight is `weight`; NULL when there is none. */
static edit_tensor *beside(edit *e, const edit_tensor *weight, const char *part)
{
    char name[256];
    snprintf(name, sizeof(name), "%.*s.%s", (int)(strlen(weight->name) - strlen(".weight")), weight->name, part);
    for (size_t i = 0; i < e->n; i++)
        if (strcmp(e->tensors[i].name, name) == 0)
            return &e->tensors[i];
    return NULL;
}

static float bf16(const void *data, size_t i)
{
    uint16_t half;
    float value;
    memcpy(&half, (const char *)data + 2 * i, sizeof(half));
    uint32_t bits = (uint32_t)half << 16;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* ---- values ---- */

static float e8m0(uint8_t code)
{
    return ldexpf(1, code - 127);
}

static float e4m3(uint8_t code)
{
    int exponent = code >> 3 & 15, fraction = code & 7;
    float value = exponent ? ldexpf((float)(8 + fraction), exponent - 10) : ldexpf((float)fraction, -9);
    return code & 128 ? -value : value;
}

/* Element k of packed rows: the lowest bits of a word come first. */
static unsigned element(const edit_tensor *weight, size_t k, int bits)
{
    unsigned value = 0;
    for (int b = 0; b < bits; b++) {
        size_t bit = k * (size_t)bits + (size_t)b;
        value |= (unsigned)(((const uint8_t *)weight->data)[bit / 8] >> bit % 8 & 1) << b;
    }
    return value;
}

/* How many elements share a scale. */
static int group_of(const edit *e, const edit_tensor *weight)
{
    char module[256];
    const json_t *table = json_object_get(e->config, "quantization");
    snprintf(module, sizeof(module), "%.*s", (int)(strlen(weight->name) - strlen(".weight")), weight->name);
    const json_t *own = json_object_get(table, module);
    return (int)json_integer_value(json_object_get(own ? own : table, "group_size"));
}

/* Puts f32 in place of a packed matrix, worked out by hand: affine has biases, the others do not; of these nvfp4 has a
 * scale in e4m3 for 16 elements, mxfp4 one in e8m0 for 32. */
static void dequantise(edit *e, edit_tensor *weight)
{
    static const float e2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    const edit_tensor *scales = beside(e, weight, "scales"), *biases = beside(e, weight, "biases");
    assert_non_null(scales);
    const int last = weight->rank - 1, group = group_of(e, weight);
    const int64_t cols = scales->shape[last] * group;
    const int bits = (int)(weight->shape[last] * 32 / cols);
    const size_t n = weight->bytes * 8 / (size_t)bits;
    float *values = malloc(n * sizeof(*values));
    assert_non_null(values);
    for (size_t k = 0; k < n; k++) {
        const size_t g = k / (size_t)group;
        const uint8_t code = ((const uint8_t *)scales->data)[g];
        const unsigned q = element(weight, k, bits);
        if (biases)
            values[k] = (float)q * bf16(scales->data, g) + bf16(biases->data, g);
        else
            values[k] = e2m1[q] * (group == 16 ? e4m3(code) : e8m0(code));
    }
    free(weight->owned);
    weight->data = weight->owned = values;
    weight->dtype = PM_F32;
    weight->bytes = n * sizeof(*values);
    weight->shape[last] = cols;
}

static void test_by_hand(void **state)
{
    static const char *const from[] = {AFFINE, MXFP4, NVFP4};
    (void)state;
    for (size_t i = 0; i < PM_COUNT(from); i++) {
        edit e;
        int packed = 0;
        edit_open(&e, from[i]);
        for (size_t k = 0; k < e.n; k++)
            if (e.tensors[k].dtype == PM_U32 && ++packed)
                dequantise(&e, &e.tensors[k]);
        assert_true(packed > 10);
        for (size_t k = e.n; k-- > 0;)
            if (strstr(e.tensors[k].name, ".scales") || strstr(e.tensors[k].name, ".biases"))
                edit_drop(&e, e.tensors[k].name);
        json_object_del(e.config, "quantization");
        json_object_del(e.config, "quantization_config");
        compare(&e, from[i], 5e-3f); /* inputs are rounded to 16 bits where weights are packed */
        edit_end(&e);
    }
}

/* ---- the scale of a whole matrix ---- */

/* MLX's nvfp4 may have a global_scale for each matrix or expert, which multiplies: with half of the one that changes
 * nothing, and twice the scale of each group, the values are the same. */
static void test_global_scale(void **state)
{
    (void)state;
    edit e;
    edit_open(&e, NVFP4);
    for (size_t i = 0, n = e.n; i < n; i++) {
        const edit_tensor *weight = &e.tensors[i];
        edit_tensor *scales = weight->dtype == PM_U32 ? beside(&e, weight, "scales") : NULL;
        if (!scales || scales->dtype != PM_U8)
            continue;
        const size_t parts = weight->rank == 3 ? EXPERTS : 1, each = scales->bytes / parts;
        float globals[EXPERTS];
        uint8_t *codes = malloc(scales->bytes);
        assert_non_null(codes);
        for (size_t k = 0; k < scales->bytes; k++) {
            uint8_t code = ((const uint8_t *)scales->data)[k];
            bool doubled = k / each % 2 == 0;
            assert_true(code < 0x70);
            codes[k] = (uint8_t)(!doubled ? code : code < 8 ? 2 * code : code + 8);
            globals[k / each] = doubled ? ONE / 2.0f : ONE;
        }
        free(scales->owned);
        scales->data = scales->owned = codes;
        char name[256];
        snprintf(name, sizeof(name), "%.*s.global_scale", (int)(strlen(weight->name) - strlen(".weight")),
                 weight->name);
        edit_add(&e, name, PM_F32, parts > 1 || i % 2 ? 1 : 0, (int64_t[]){(int64_t)parts}, globals);
    }
    compare(&e, NVFP4, 0);
    edit_end(&e);
}

/* ---- refused ---- */

/* A matrix as modelopt or compressed-tensors has NVFP4: bytes of two elements, scales in e4m3, `global` for all. */
static void foreign_nvfp4(edit *e, const char *weight, const char *global)
{
    char name[160];
    float scale = 1;
    edit_drop(e, Q_PROJ ".weight");
    edit_drop(e, Q_PROJ ".scales");
    snprintf(name, sizeof(name), Q_PROJ ".%s", weight);
    edit_add(e, name, PM_U8, 2, (int64_t[]){64, 32}, NULL);
    edit_add(e, Q_PROJ ".weight_scale", PM_F8_E4M3, 2, (int64_t[]){64, 4}, NULL);
    snprintf(name, sizeof(name), Q_PROJ ".%s", global);
    edit_add(e, name, PM_F32, 1, (int64_t[]){1}, &scale);
}

static void say(edit *e, json_t *quantization)
{
    json_object_del(e->config, "quantization");
    json_object_set_new(e->config, "quantization_config", quantization);
}

static void modelopt(edit *e)
{
    foreign_nvfp4(e, "weight", "weight_scale_2");
    say(e, json_pack("{s:s, s:s}", "quant_method", "modelopt", "quant_algo", "NVFP4"));
}

static void modelopt_unsaid(edit *e)
{
    foreign_nvfp4(e, "weight", "weight_scale_2");
}

static void compressed_tensors(edit *e)
{
    foreign_nvfp4(e, "weight_packed", "weight_global_scale");
    say(e, json_pack("{s:s, s:s}", "quant_method", "compressed-tensors", "format", "nvfp4-pack-quantized"));
}

static void compressed_tensors_unsaid(edit *e)
{
    foreign_nvfp4(e, "weight_packed", "weight_global_scale");
}

static void global_of_modelopt(edit *e)
{
    edit_add(e, Q_PROJ ".weight_scale_2", PM_F32, 1, (int64_t[]){1}, NULL);
}

static void global_of_compressed_tensors(edit *e)
{
    edit_add(e, Q_PROJ ".weight_global_scale", PM_F32, 1, (int64_t[]){1}, NULL);
}

static void global_of_another_length(edit *e)
{
    edit_add(e, EXPERT ".global_scale", PM_F32, 1, (int64_t[]){1}, NULL);
}

static void global_of_another_type(edit *e)
{
    edit_add(e, Q_PROJ ".global_scale", PM_BF16, 1, (int64_t[]){1}, NULL);
}

static void global_scale(edit *e)
{
    edit_add(e, Q_PROJ ".global_scale", PM_F32, 1, (int64_t[]){1}, NULL);
}

static void biases(edit *e)
{
    edit_add(e, Q_PROJ ".biases", PM_BF16, 2, (int64_t[]){64, 2}, NULL);
}

static void no_biases(edit *e)
{
    edit_drop(e, "model.layers.1.mlp.gate.biases");
}

static void no_scales(edit *e)
{
    edit_drop(e, Q_PROJ ".scales");
}

static void scales_of_e8m0(edit *e)
{
    edit_find(e, Q_PROJ ".scales")->dtype = PM_F8_E8M0;
}

static void awq(edit *e)
{
    edit_drop(e, Q_PROJ ".weight");
    edit_add(e, Q_PROJ ".qweight", PM_I32, 2, (int64_t[]){64, 8}, NULL);
    say(e, json_pack("{s:s, s:i}", "quant_method", "awq", "bits", 4));
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *from;
        void (*change)(edit *e);
        const char *file, *words;
    } cases[] = {
        {NVFP4, modelopt, "config.json", "quant_method 'modelopt' with quant_algo NVFP4 of quantization_config"},
        {NVFP4, modelopt_unsaid, "model.safetensors", Q_PROJ ".weight (U8, with weight_scale_2) is modelopt's NVFP4"},
        {NVFP4, compressed_tensors, "config.json", "format 'nvfp4-pack-quantized' of quantization_config"},
        {NVFP4, compressed_tensors_unsaid, "model.safetensors",
         Q_PROJ ".weight_packed (U8, with weight_global_scale) is compressed-tensors' nvfp4-pack-quantized"},
        {NVFP4, global_of_modelopt, "model.safetensors", Q_PROJ ".weight_scale_2 is not part of this model"},
        {NVFP4, global_of_compressed_tensors, "model.safetensors", Q_PROJ ".weight_global_scale is not part of this"},
        {NVFP4, global_of_another_length, "model.safetensors", EXPERT ".global_scale has shape [1]"},
        {NVFP4, global_of_another_type, "model.safetensors", Q_PROJ ".global_scale is not F32"},
        {MXFP4, global_scale, "model.safetensors", Q_PROJ ".global_scale is not part of this model"},
        {MXFP4, biases, "model.safetensors", Q_PROJ ".biases belongs to no quantised weight"},
        {MXFP4, no_biases, "model.safetensors", "model.layers.1.mlp.gate.weight has scales but no biases"},
        {MXFP4, no_scales, "model.safetensors", Q_PROJ ".weight is packed but has no scales"},
        {NVFP4, scales_of_e8m0, "model.safetensors", Q_PROJ ".scales has dtype F8_E8M0, which its mode does not use"},
        {MXFP4, awq, "config.json", "quant_method 'awq' of quantization_config is not supported"},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        edit e;
        pm_engine *engine = NULL;
        pm_error err = {0};
        edit_open(&e, cases[i].from);
        cases[i].change(&e);
        edit_write(&e);
        int status = pm_engine_open(&engine, e.dir, NULL, &err);
        if ((status != PM_ERR_UNSUPPORTED && status != PM_ERR_FORMAT) || engine ||
            !strstr(err.message, cases[i].file) || !strstr(err.message, cases[i].words))
            fail_msg("case %zu: status %d, \"%s\"; expected %s and \"%s\"", i, status, err.message, cases[i].file,
                     cases[i].words);
        edit_end(&e);
    }
}

/* ---- not a number ---- */

/* The scale 255 of e8m0 is not a number: nothing is said of a text that meets it. */
static void test_scale_that_is_no_number(void **state)
{
    static const char *const modules[] = {"model.embed_tokens", Q_PROJ};
    static float logits[TOKENS * VOCAB];
    (void)state;
    for (size_t i = 0; i < PM_COUNT(modules); i++) {
        edit e;
        pm_error err = {0};
        char name[160];
        edit_open(&e, MXFP4);
        snprintf(name, sizeof(name), "%s.scales", modules[i]);
        edit_tensor *scales = edit_find(&e, name);
        uint8_t *codes = malloc(scales->bytes);
        assert_non_null(codes);
        memcpy(codes, scales->data, scales->bytes);
        codes[7] = 255;
        scales->data = scales->owned = codes;
        edit_write(&e);
        int status = logits_of(e.dir, logits, &err);
        if (status != PM_ERR_NUMERIC || err.code != PM_ERR_NUMERIC || !strstr(err.message, "not finite"))
            fail_msg("%s with a scale of 255: status %d, \"%s\"", name, status, err.message);
        edit_end(&e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_global_scale),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_scale_that_is_no_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
