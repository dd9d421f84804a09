/* Checkpoints of the hybrid families, stored in other ways that mean the same: the same bits. */
#include "edit.h"
#include "polymath.h"

#include <sys/stat.h>

#define MODELS SOURCE_DIR "/tests/models/"

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

/* Convolutions as [C, 1, K] where they were [C, K, 1], and the other way round: the same bytes. */
static void other_convolutions(edit *e)
{
    int found = 0;
    for (size_t i = 0; i < e->n; i++) {
        edit_tensor *t = &e->tensors[i];
        if (!ends_with(t->name, "conv.conv.weight") && !ends_with(t->name, "conv1d.weight"))
            continue;
        assert_int_equal(t->rank, 3);
        assert_true((t->shape[1] == 1) != (t->shape[2] == 1));
        int64_t kernel = t->shape[1];
        t->shape[1] = t->shape[2];
        t->shape[2] = kernel;
        found++;
    }
    assert_true(found > 0);
}

/* Layers for the prediction of further tokens, with a convolution in either layout. */
static void with_mtp(edit *e)
{
    edit_add(e, "mtp.layers.0.mixer.conv1d.weight", PM_BF16, 3, (int64_t[]){8, 1, 4}, NULL);
    edit_add(e, "mtp.layers.1.mixer.conv1d.weight", PM_BF16, 3, (int64_t[]){8, 4, 1}, NULL);
    edit_add(e, "mtp.layers.0.norm.weight", PM_BF16, 1, (int64_t[]){8}, NULL);
    json_object_set_new(e->config, "num_nextn_predict_layers", json_integer(1));
}

static void mtp_and_other_convolutions(edit *e)
{
    other_convolutions(e);
    with_mtp(e);
}

/* The family's own base of rope, which these checkpoints have. */
static void no_theta(edit *e)
{
    json_object_del(e->config, "rope_theta");
    json_object_del(json_object_get(e->config, "rope_parameters"), "rope_theta");
}

/* The layers as a list in place of a pattern, and their number left out. */
static void layers_as_list(edit *e)
{
    json_t *pattern = json_object_get(e->config, "hybrid_override_pattern"), *list = json_array();
    assert_true(json_is_string(pattern));
    for (const char *letter = json_string_value(pattern); *letter; letter++)
        json_array_append_new(list, json_string(*letter == 'M'   ? "linear_attention"
                                                : *letter == '*' ? "full_attention"
                                                : *letter == 'E' ? "moe"
                                                                 : "mlp"));
    json_object_del(e->config, "hybrid_override_pattern");
    json_object_del(e->config, "num_hidden_layers");
    json_object_set_new(e->config, "layers_block_type", list);
}

/* Fields that are about training, and no bound of time steps spelt in two ways. */
static void time_step_min(edit *e)
{
    json_object_set_new(e->config, "time_step_min", json_real(0.5));
    json_object_set_new(e->config, "time_step_max", json_real(0.6));
    json_object_set_new(e->config, "time_step_floor", json_real(0.55));
    json_object_set_new(e->config, "time_step_limit", json_pack("[f, {s:s}]", 0.0, "__float__", "Infinity"));
}

static void no_time_step_limit(edit *e)
{
    json_object_del(e->config, "time_step_limit");
}

static const struct layout {
    const char *name, *model;
    void (*edit)(edit *e);
} layouts[] = {
    {"PyTorch's convolutions", MODELS "lfm2-4bit", other_convolutions},
    {"PyTorch's convolutions", MODELS "lfm2_moe-4bit", other_convolutions},
    {"PyTorch's convolutions", MODELS "nemotron_h-4bit", other_convolutions},
    {"MTP tensors", MODELS "nemotron_h-4bit", with_mtp},
    {"PyTorch's convolutions and MTP tensors", MODELS "nemotron_h-4bit", mtp_and_other_convolutions},
    {"layers as a list", MODELS "nemotron_h-4bit", layers_as_list},
    {"another time_step_min", MODELS "nemotron_h-4bit", time_step_min},
    {"time_step_limit left out", MODELS "nemotron_h-4bit", no_time_step_limit},
    {"rope_theta left out", MODELS "lfm2-4bit", no_theta},
    {"rope_theta left out", MODELS "lfm2_moe-4bit", no_theta},
};

enum { PROMPT = 9, VOCAB = 4096 };

/* Logits after each token of a fixed prompt, given in two pieces. */
static void run_logits(const char *dir, float *out)
{
    static const pm_token ids[PROMPT] = {1, 512, 77, 900, 4000, 2, 333, 1, 42};
    pm_engine *engine;
    pm_session *session;
    pm_info info;
    pm_error err = {0};
    if (pm_engine_open(&engine, dir, NULL, &err) != PM_OK || pm_session_new(&session, engine, &err) != PM_OK)
        fail_msg("%s: %s", dir, err.message);
    pm_engine_info(engine, &info);
    assert_int_equal(info.vocab, VOCAB);
    if (pm_step(engine, &(pm_work){session, ids, 2, out}, 1, &err) != PM_OK ||
        pm_step(engine, &(pm_work){session, ids + 2, PROMPT - 2, out + 2 * VOCAB}, 1, &err) != PM_OK)
        fail_msg("%s: %s", dir, err.message);
    pm_session_free(session);
    pm_engine_close(engine);
}

static void test_layouts(void **state)
{
    (void)state;
    float *want = calloc(2, (size_t)PROMPT * VOCAB * sizeof(*want)), *have = want + PROMPT * VOCAB;
    assert_non_null(want);
    for (size_t i = 0; i < PM_COUNT(layouts); i++) {
        edit e;
        edit_open(&e, layouts[i].model);
        run_logits(layouts[i].model, want);
        layouts[i].edit(&e);
        edit_write(&e);
        run_logits(e.dir, have);
        if (memcmp(want, have, (size_t)PROMPT * VOCAB * sizeof(*want)) != 0)
            fail_msg("%s, %s: other logits than as it was", layouts[i].model, layouts[i].name);
        edit_end(&e);
    }
    free(want);
}

/* time_step_limit is what bounds the steps of Mamba-2. */
static void test_time_step_limit(void **state)
{
    float *want = calloc(2, (size_t)PROMPT * VOCAB * sizeof(*want)), *have = want + PROMPT * VOCAB;
    edit e;
    (void)state;
    assert_non_null(want);
    run_logits(MODELS "nemotron_h-4bit", want);
    edit_open(&e, MODELS "nemotron_h-4bit");
    json_object_set_new(e.config, "time_step_limit", json_pack("[f, f]", 0.0, 0.001));
    edit_write(&e);
    run_logits(e.dir, have);
    assert_memory_not_equal(want, have, (size_t)PROMPT * VOCAB * sizeof(*want));
    edit_end(&e);
    free(want);
}

/* Weights in a sub-folder change nothing, whatever their names, and are mentioned. */
static void test_stray_weights(void **state)
{
    static const char *const models[] = {MODELS "lfm2-4bit", MODELS "nemotron_h-4bit"};
    float *want = calloc(2, (size_t)PROMPT * VOCAB * sizeof(*want)), *have = want + PROMPT * VOCAB;
    (void)state;
    assert_non_null(want);
    for (size_t i = 0; i < PM_COUNT(models); i++) {
        edit e, stray;
        char path[128];
        pm_info info;
        pm_error err = {0};
        edit_open(&e, models[i]);
        edit_write(&e);
        edit_open(&stray, models[i]); /* all of the model's tensors, in the other layout */
        other_convolutions(&stray);
        with_mtp(&stray);
        snprintf(path, sizeof(path), "%s/sub", e.dir);
        assert_int_equal(mkdir(path, 0777), 0);
        snprintf(path, sizeof(path), "%s/sub/extra.safetensors", e.dir);
        edit_write_tensors(&stray, path);
        run_logits(models[i], want);
        run_logits(e.dir, have);
        if (memcmp(want, have, (size_t)PROMPT * VOCAB * sizeof(*want)) != 0)
            fail_msg("%s: a file in a sub-folder changes the logits", models[i]);
        if (pm_inspect(e.dir, NULL, &info, &err) != PM_OK)
            fail_msg("%s", err.message);
        if (!strstr(info.notes, "sub/extra.safetensors"))
            fail_msg("sub/extra.safetensors is not mentioned in the notes \"%s\"", info.notes);
        edit_end(&stray);
        edit_end(&e);
    }
    free(want);
}

/* ---- refusals ---- */

static void square_convolution(edit *e)
{
    edit_tensor *t = edit_find(e, "model.layers.0.conv.conv.weight");
    t->rank = 2;
    t->shape[0] *= t->shape[1];
    t->shape[1] = 1;
}

static void other_width(edit *e)
{
    json_object_set_new(e->config, "conv_L_cache", json_integer(4));
}

static void other_kernel(edit *e)
{
    json_object_set_new(e->config, "conv_kernel", json_integer(3));
}

/* The last layer's convolution in the other layout: nobody can tell how norms are stored. */
static void mixed_convolutions(edit *e)
{
    edit_tensor *last = NULL;
    for (size_t i = 0; i < e->n; i++)
        if (ends_with(e->tensors[i].name, "linear_attn.conv1d.weight"))
            last = &e->tensors[i];
    assert_non_null(last);
    int64_t kernel = last->shape[1];
    last->shape[1] = last->shape[2];
    last->shape[2] = kernel;
}

static void mtp_of_lfm2(edit *e)
{
    edit_add(e, "mtp.norm.weight", PM_BF16, 1, (int64_t[]){8}, NULL);
}

static void no_bias(edit *e)
{
    edit_drop(e, "backbone.layers.0.mixer.conv1d.bias");
}

static const struct refusal {
    const char *model;
    void (*edit)(edit *e);
    const char *words[2];
} refusals[] = {
    {MODELS "lfm2-4bit", square_convolution, {"model.layers.0.conv.conv", "shape"}},
    {MODELS "lfm2-4bit", other_width, {"conv.conv", "shape"}},
    {MODELS "nemotron_h-4bit", other_kernel, {"conv1d", "shape"}},
    {MODELS "lfm2-4bit", mtp_of_lfm2, {"mtp.norm.weight", "not part of this model"}},
    {MODELS "qwen3_5-4bit", mixed_convolutions, {"conv1d.weight is laid out otherwise than", "model.safetensors"}},
    {MODELS "qwen3_5-bf16", mixed_convolutions, {"layers.0.linear_attn.conv1d.weight", "w - 1"}},
    {MODELS "nemotron_h-4bit", no_bias, {"tensor backbone.layers.0.mixer.conv1d.bias is missing", "config.json"}},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < PM_COUNT(refusals); i++) {
        edit e;
        pm_engine *engine;
        pm_error err = {0};
        edit_open(&e, refusals[i].model);
        refusals[i].edit(&e);
        edit_write(&e);
        int status = pm_engine_open(&engine, e.dir, NULL, &err);
        if (status != PM_ERR_FORMAT || !strstr(err.message, refusals[i].words[0]) ||
            !strstr(err.message, refusals[i].words[1]))
            fail_msg("refusal %zu: status %d, \"%s\"; expected \"%s\" and \"%s\"", i, status, err.message,
                     refusals[i].words[0], refusals[i].words[1]);
        edit_end(&e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layouts), cmocka_unit_test(test_time_step_limit),
                                       cmocka_unit_test(test_stray_weights), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
