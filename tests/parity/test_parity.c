/* Logits and greedy ids of every checkpoint that this build runs against the oracles beside it, with both cache types.
 */
#include "oracle.h"
#include "polymath.h"

#include <math.h>

/* Where a checkpoint lies. */
typedef enum place {
    BUNDLED,
    TINY,    /* tests/oracles */
    TRAINED, /* tests/models */
    MODELS   /* MODELS_DIR, only with MODELS=DIR */
} place;

typedef struct subject {
    place place;
    const char *dir;
    const char *config; /* instead of config.json, or NULL */
    const char *oracle;
    double largest; /* difference of logits allowed; 0: quantised, distributions are compared */
} subject;

#define HF  "oracle.safetensors"
#define MLX "oracle_mlx.safetensors"

static const subject subjects[] = {
    {BUNDLED, "models/default", NULL, MLX, 0},
    {MODELS, "qwen3_5_moe-4bit", NULL, MLX, 0},
    {MODELS, "qwen3_5_moe-mxfp4", NULL, MLX, 0},
    {MODELS, "qwen3_5_moe-bf16", NULL, HF, 2e-3},
    {TRAINED, "deepseek_v4-bf16", NULL, HF, 2e-3},
    {TRAINED, "qwen3_5-4bit", NULL, MLX, 0},
    {TRAINED, "qwen3_5-bf16", NULL, HF, 2e-3},
    {TRAINED, "qwen3_moe-4bit", NULL, MLX, 0},
    {MODELS, "qwen3_moe-bf16", NULL, HF, 2e-3},
    {TRAINED, "lfm2-4bit", NULL, MLX, 0},
    {MODELS, "lfm2-bf16", NULL, HF, 2e-3},
    {TRAINED, "lfm2_moe-4bit", NULL, MLX, 0},
    {MODELS, "lfm2_moe-bf16", NULL, HF, 2e-3},
    {TRAINED, "nemotron_h-4bit", NULL, MLX, 0},
    {MODELS, "nemotron_h-bf16", NULL, HF, 2e-3},
    {TRAINED, "deepseek_v3-4bit", NULL, MLX, 0},
    {MODELS, "deepseek_v3-bf16", NULL, HF, 2e-3},
    {TRAINED, "deepseek_v32-4bit", NULL, MLX, 0},
    {MODELS, "deepseek_v32-bf16", NULL, HF, 2e-3},
    {TRAINED, "glm_moe_dsa-4bit", NULL, MLX, 0},
    {MODELS, "glm_moe_dsa-bf16", NULL, HF, 2e-3},
    {TINY, "deepseek_v4-window", NULL, HF, 1e-3},
    {TINY, "deepseek_v4-heavy", NULL, HF, 1e-3},
    {TINY, "deepseek_v4-sparse", NULL, HF, 1e-3},
    {TINY, "deepseek_v4", NULL, HF, 1e-3},
    {TINY, "deepseek_v4", "config_old.json", HF, 1e-3},
    {TINY, "qwen3_5", NULL, HF, 1e-3},
    {TINY, "qwen3_5-text", NULL, HF, 1e-3},
    {TINY, "qwen3_5_moe", NULL, HF, 1e-3},
    {TINY, "qwen3_next", NULL, HF, 1e-3},
    {TINY, "qwen3_next", "config_old.json", HF, 1e-3},
    {TINY, "qwen3_next-sparse", NULL, HF, 1e-3},
    {TINY, "qwen3_moe", NULL, HF, 1e-3},
    {TINY, "qwen3_moe-sparse", NULL, HF, 1e-3},
    {TINY, "qwen3_moe-sparse", "config_old.json", HF, 1e-3},
    {TINY, "qwen3_moe-window", NULL, HF, 1e-3},
    {TINY, "qwen3_moe-3_4_6bit", NULL, MLX, 0},
    {TINY, "qwen3", NULL, HF, 1e-3},
    {TINY, "qwen3-bias", NULL, HF, 1e-3},
    {TINY, "qwen2", NULL, HF, 1e-3},
    {TINY, "qwen2-plain", NULL, HF, 1e-3},
    {TINY, "qwen2-plain", "config_old.json", HF, 1e-3},
    {TINY, "llama-llama3", NULL, HF, 1e-3},
    {TINY, "llama-llama3", "config_old.json", HF, 1e-3},
    {TINY, "llama-head_dim", NULL, HF, 1e-3},
    {TINY, "llama-bias", NULL, HF, 1e-3},
    {TINY, "llama-linear", NULL, HF, 1e-3},
    {TINY, "llama-linear", "config_old.json", HF, 1e-3},
    {TINY, "llama-yarn", NULL, HF, 1e-3},
    {TINY, "glm_moe_dsa-3_4_6bit", NULL, MLX, 0},
    {TINY, "llama-2_5_8bit", NULL, MLX, 0},
    {TINY, "qwen3_moe-mxfp4", NULL, MLX, 0},
    {TINY, "qwen3_moe-nvfp4", NULL, MLX, 0},
    {TINY, "llama-mxfp8", NULL, MLX, 0},
    {TINY, "deepseek_v3", NULL, HF, 1e-3},
    {TINY, "deepseek_v3", "config_old.json", HF, 1e-3},
    {TINY, "deepseek_v3-groups", NULL, HF, 1e-3},
    {TINY, "deepseek_v3-single", NULL, HF, 1e-3},
    {TINY, "deepseek_v32", NULL, HF, 1e-3},
    {TINY, "deepseek_v32-4", NULL, HF, 1e-3},
    {TINY, "deepseek_v32-4", "config_old.json", HF, 1e-3},
    {TINY, "glm_moe_dsa", NULL, HF, 1e-3},
    {TINY, "glm_moe_dsa", "config_old.json", HF, 1e-3},
    {TINY, "glm_moe_dsa-full", NULL, HF, 1e-3},
    {TINY, "glm_moe_dsa-full", "config_old.json", HF, 1e-3},
    {TINY, "mistral", NULL, HF, 1e-3},
    {TINY, "nemotron_h", NULL, HF, 1e-3},
    {TINY, "nemotron_h", "config_old.json", HF, 1e-3},
    {TINY, "nemotron_h-dense", NULL, HF, 1e-3},
    {TINY, "lfm2", NULL, HF, 1e-3},
    {TINY, "lfm2", "config_old.json", HF, 1e-3},
    {TINY, "lfm2_moe", NULL, HF, 1e-3},
    {TINY, "lfm2_moe-plain", NULL, HF, 1e-3},
};

static const char *const prompts[] = {"short", "mid", "long"};

/* KL(reference || ours) of two rows of logits, in double. */
static double divergence(const float *reference, const float *ours, int n)
{
    double peak[2] = {reference[0], ours[0]}, sum[2] = {0}, kl = 0;
    for (int i = 1; i < n; i++) {
        peak[0] = fmax(peak[0], reference[i]);
        peak[1] = fmax(peak[1], ours[i]);
    }
    for (int i = 0; i < n; i++) {
        sum[0] += exp(reference[i] - peak[0]);
        sum[1] += exp(ours[i] - peak[1]);
    }
    for (int i = 0; i < n; i++) {
        double p = reference[i] - peak[0] - log(sum[0]), q = ours[i] - peak[1] - log(sum[1]);
        kl += exp(p) * (p - q);
    }
    return kl;
}

static pm_token argmax(const float *logits, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

static FILE *table; /* NULL: not asked for */
static pm_device device;

typedef struct measure {
    double max_diff, max_kl, sum_kl;
    int rows;
} measure;

/* Runs the prompt in one call and compares the rows that the oracle keeps, which are the last ones. */
static void compare_logits(pm_engine *engine, pm_session *session, const pm_checkpoint *oracle, const char *prompt,
                           measure *m)
{
    int64_t ids_shape[2], shape[2];
    pm_error err = {0};
    pm_token *ids = oracle_read(oracle, prompt, "input_ids", PM_I32, ids_shape);
    float *want = oracle_read(oracle, prompt, "logits", PM_F32, shape);
    int n = (int)ids_shape[0], rows = (int)shape[0], vocab = (int)shape[1];
    float *have = malloc((size_t)n * (size_t)vocab * sizeof(*have));
    assert_non_null(have);
    pm_work work = {session, ids, (size_t)n, have};
    if (pm_step(engine, &work, 1, &err) != PM_OK)
        fail_msg("prompt %s: %s", prompt, err.message);
    for (int r = 0; r < rows; r++) {
        const float *a = want + (size_t)r * (size_t)vocab, *b = have + (size_t)(n - rows + r) * (size_t)vocab;
        for (int i = 0; i < vocab; i++)
            m->max_diff = fmax(m->max_diff, fabs((double)a[i] - b[i]));
        double kl = divergence(a, b, vocab);
        m->max_kl = fmax(m->max_kl, kl);
        m->sum_kl += kl;
        m->rows++;
    }
    free(ids);
    free(want);
    free(have);
}

/* Greedy ids from the session's end, equal up to the first step whose margin is not clear. */
static void compare_greedy(pm_engine *engine, pm_session *session, const pm_checkpoint *oracle, const char *prompt,
                           double clear)
{
    int64_t shape[2];
    pm_error err = {0};
    pm_token *want = oracle_read(oracle, prompt, "greedy_ids", PM_I32, shape);
    float *margins = oracle_read(oracle, prompt, "greedy_margins", PM_F32, shape);
    pm_info info;
    pm_engine_info(engine, &info);
    for (int i = 0; i < (int)shape[0] && margins[i] > clear; i++) {
        pm_token id = argmax(pm_session_logits(session), info.vocab);
        if (id != want[i])
            fail_msg("prompt %s: greedy id %d is %d, the oracle has %d with a margin of %g", prompt, i, id, want[i],
                     margins[i]);
        if (pm_step(engine, &(pm_work){session, &id, 1, NULL}, 1, &err) != PM_OK)
            fail_msg("prompt %s: %s", prompt, err.message);
    }
    free(want);
    free(margins);
}

/* A directory of links to `dir` in which another file is config.json; remove it with rm -rf. */
static void link_with_config(const char *dir, const char *config, char *temp)
{
    char command[3 * 4096];
    assert_non_null(mkdtemp(temp));
    snprintf(command, sizeof(command), "ln -s '%s'/* '%s'/ && ln -sf '%s/%s' '%s/config.json'", dir, temp, dir, config,
             temp);
    assert_int_equal(system(command), 0);
}

static void compare_prompts(pm_engine *engine, const pm_checkpoint *oracle, double clear, measure *m)
{
    pm_error err = {0};
    for (size_t p = 0; p < PM_COUNT(prompts); p++) {
        pm_session *session;
        char name[64];
        snprintf(name, sizeof(name), "%s.logits", prompts[p]);
        if (!pm_checkpoint_find(oracle, name))
            continue; /* the tiny checkpoints have two prompts */
        if (pm_session_new(&session, engine, &err) != PM_OK)
            fail_msg("%s", err.message);
        compare_logits(engine, session, oracle, prompts[p], m);
        compare_greedy(engine, session, oracle, prompts[p], clear);
        pm_session_free(session);
    }
    assert_true(m->rows > 0);
}

static void run_subject(const subject *s, pm_kv_type kv_type)
{
    static const char *const roots[] = {SOURCE_DIR, SOURCE_DIR "/tests/oracles", SOURCE_DIR "/tests/models",
                                        MODELS_DIR};
    static const char *const places[] = {"", " (random)", " (trained)", " (trained)"};
    char dir[4096], temp[] = "/tmp/polymath-parity-XXXXXX", command[128];
    pm_engine *engine;
    pm_error err = {0};
    measure m = {0};
    static const char *const names[] = {[PM_KV_F16] = "f16", [PM_KV_F32] = "f32", [PM_KV_Q8] = "q8"};
    static const double most_kl[] = {[PM_KV_F16] = 1e-4, [PM_KV_Q8] = 2e-3}; /* mean */
    static const double clear[] = {[PM_KV_F16] = 0.1, [PM_KV_F32] = 1e-2, [PM_KV_Q8] = 2};
    bool f32 = kv_type == PM_KV_F32;
    snprintf(dir, sizeof(dir), "%s/%s", roots[s->place], s->dir);
    if (s->config)
        link_with_config(dir, s->config, temp);
    if (pm_engine_open(&engine, s->config ? temp : dir, &(pm_engine_options){.device = device, .kv_type = kv_type},
                       &err) != PM_OK)
        fail_msg("%s", err.message);
    pm_info info;
    pm_engine_info(engine, &info);
    pm_checkpoint *oracle = oracle_open(dir, s->oracle);
    compare_prompts(engine, oracle, clear[kv_type], &m);
    pm_checkpoint_close(oracle);
    pm_engine_close(engine);
    if (s->config) {
        snprintf(command, sizeof(command), "rm -rf %s", temp);
        assert_int_equal(system(command), 0);
    }
    if (table)
        fprintf(table, "| %s | %s%s%s | %s | %s | %d | %.1e | %.1e | %.1e |\n", info.family,
                s->place == BUNDLED ? "bundled model" : s->dir, s->config ? ", old config" : "", places[s->place],
                strcmp(s->oracle, HF) == 0 ? "transformers" : "mlx-lm", names[kv_type], m.rows, m.max_diff,
                m.sum_kl / m.rows, m.max_kl);
    if (f32 && s->largest > 0 && !(m.max_diff <= s->largest))
        fail_msg("logits differ by %g, more than %g", m.max_diff, s->largest);
    if (f32 && s->largest == 0 && !(m.max_kl <= 1e-5))
        fail_msg("KL %g, more than 1e-5", m.max_kl);
    if (!f32 && !(m.sum_kl / m.rows <= most_kl[kv_type]))
        fail_msg("mean KL %g, more than %g", m.sum_kl / m.rows, most_kl[kv_type]);
}

static void test_f32_cache(void **state)
{
    run_subject(*state, PM_KV_F32);
}

static void test_default_cache(void **state)
{
    run_subject(*state, PM_KV_F16);
}

static void test_q8_cache(void **state)
{
    run_subject(*state, PM_KV_Q8);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        CMUnitTestFunction run;
    } caches[] = {{"f32", test_f32_cache}, {"f16", test_default_cache}, {"q8", test_q8_cache}};
    struct CMUnitTest tests[PM_COUNT(caches) * PM_COUNT(subjects)];
    static char names[PM_COUNT(caches) * PM_COUNT(subjects)][96];
    size_t n = 0;
    if (argc > 1 && strcmp(argv[1], "--mlx") == 0) {
        device = PM_DEVICE_MLX;
        argc = 1;
    }
    for (size_t i = 0; i < PM_COUNT(caches) * PM_COUNT(subjects); i++) {
        const subject *s = &subjects[i / PM_COUNT(caches)];
        size_t cache = i % PM_COUNT(caches);
        if (s->place == MODELS && !*MODELS_DIR)
            continue;
        if (s->place == TINY && cache > 0)
            continue; /* random routers have near ties, which rounded keys may turn */
        if (device == PM_DEVICE_MLX && cache > 0)
            continue; /* its own arithmetic is what is tested */
        snprintf(names[n], sizeof(names[n]), "%s %s %s cache", s->dir, s->config ? s->config : "", caches[cache].name);
        tests[n] = (struct CMUnitTest){names[n], caches[cache].run, NULL, NULL, (void *)s};
        n++;
    }
    if (argc > 1 && !(table = fopen(argv[1], "w"))) {
        perror(argv[1]);
        return 1;
    }
    int failed = _cmocka_run_group_tests("parity", tests, n, NULL, NULL);
    if (table && fclose(table) != 0) {
        perror(argv[1]);
        return 1;
    }
    return failed;
}
