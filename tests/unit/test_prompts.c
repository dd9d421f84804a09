/* Prompts of models with latent, sparse or compressed attention, in pieces and side by side: where a prompt is a little
 * shorter or longer than what is computed at once, and where a short one is computed beside a long one, the logits have
 * the bits of a run in one piece and alone. A later token changes none. */
#include "oracle.h"
#include "polymath.h"

enum { LENGTH = 67 };

/* Prompts are long enough for every sparse index to leave rows out. */
static const char *const folders[] = {"deepseek_v3", "deepseek_v32", "deepseek_v32-4",
                                      "glm_moe_dsa", "deepseek_v4",  "deepseek_v4-sparse"};

typedef struct subject {
    const char *name;
    char dir[512];
    pm_token *prompt;
    size_t vocab;
    float *whole; /* [LENGTH, vocab], all computed at once on the scalar level */
} subject;

/* NULL when the machine has no such instructions. */
static pm_engine *open_engine(const subject *s, pm_simd simd, int step_tokens)
{
    pm_engine *engine = NULL;
    pm_error err = {0};
    int status = pm_engine_open(&engine, s->dir,
                                &(pm_engine_options){.threads = 1, .simd = simd, .step_tokens = step_tokens}, &err);
    if (status != PM_OK && !(status == PM_ERR_UNSUPPORTED && simd > PM_SIMD_SCALAR))
        fail_msg("%s: %s", s->name, err.message);
    return engine;
}

static pm_session *new_session(pm_engine *engine)
{
    pm_session *session;
    assert_int_equal(pm_session_new(&session, engine, NULL), PM_OK);
    return session;
}

static float *new_logits(const subject *s, size_t n)
{
    float *logits = malloc(n * s->vocab * sizeof(*logits));
    assert_non_null(logits);
    return logits;
}

static void step(const subject *s, pm_engine *engine, const pm_work *work, int n)
{
    pm_error err = {0};
    if (pm_step(engine, work, n, &err) != PM_OK)
        fail_msg("%s: %s", s->name, err.message);
}

static subject subject_new(const char *name)
{
    subject s = {.name = name};
    int64_t shape[2];
    pm_info info;
    snprintf(s.dir, sizeof(s.dir), "%s/tests/oracles/%s", SOURCE_DIR, name);
    pm_checkpoint *oracle = oracle_open(s.dir, "oracle.safetensors");
    s.prompt = oracle_read(oracle, "long", "input_ids", PM_I32, shape);
    pm_checkpoint_close(oracle);
    assert_int_equal(shape[0], LENGTH);
    pm_engine *engine = open_engine(&s, PM_SIMD_SCALAR, 0);
    pm_session *session = new_session(engine);
    pm_engine_info(engine, &info);
    s.vocab = (size_t)info.vocab;
    s.whole = new_logits(&s, LENGTH);
    step(&s, engine, &(pm_work){session, s.prompt, LENGTH, s.whole}, 1);
    pm_session_free(session);
    pm_engine_close(engine);
    return s;
}

static void subject_free(subject *s)
{
    free(s->prompt);
    free(s->whole);
}

/* Logits after tokens first .. first + n of the prompt. */
static void same(const subject *s, const float *logits, size_t first, size_t n, const char *what, int detail)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(logits + i * s->vocab, s->whole + (first + i) * s->vocab, s->vocab * sizeof(*logits)) != 0)
            fail_msg("%s, %s %d: the logits after token %zu differ", s->name, what, detail, first + i);
}

/* One prompt of n tokens, all logits and then, in a session of its own, only the last. */
static void run_prompt(const subject *s, pm_engine *engine, size_t n, int step_tokens)
{
    pm_session *session = new_session(engine), *other = new_session(engine);
    float *logits = new_logits(s, n);
    pm_error err = {0};
    step(s, engine, &(pm_work){session, s->prompt, n, logits}, 1);
    same(s, logits, 0, n, "in steps of", step_tokens);
    if (pm_session_sync(other, s->prompt, n, NULL, NULL, &err) != PM_OK)
        fail_msg("%s: %s", s->name, err.message);
    same(s, pm_session_logits(other), n - 1, 1, "synced in steps of", step_tokens);
    step(s, engine, &(pm_work){other, s->prompt + n, 1, logits}, 1);
    same(s, logits, n, 1, "decoded after steps of", step_tokens);
    free(logits);
    pm_session_free(session);
    pm_session_free(other);
}

/* Prompts of one token less than a step, of a step, of one more, and of two steps and one, at every level. */
static void test_lengths_about_a_step(void **state)
{
    static const int steps[] = {8, 32};
    (void)state;
    for (size_t f = 0; f < PM_COUNT(folders); f++) {
        subject s = subject_new(folders[f]);
        for (int simd = PM_SIMD_SCALAR; simd <= PM_SIMD_I8MM; simd++)
            for (size_t i = 0; i < PM_COUNT(steps); i++) {
                const int n = steps[i], lengths[] = {n - 1, n, n + 1, 2 * n + 1};
                pm_engine *engine = open_engine(&s, (pm_simd)simd, n);
                for (size_t k = 0; engine && k < PM_COUNT(lengths); k++)
                    run_prompt(&s, engine, (size_t)lengths[k], n);
                pm_engine_close(engine);
            }
        subject_free(&s);
    }
}

/* Prompts of 12 and of 3 tokens (and of 40) that are computed together, and go on together. */
static void test_short_beside_long(void **state)
{
    static const size_t lengths[][3] = {{12, 3, 40}, {3, 12, 1}, {40, 3, 12}};
    enum { MOST = 40, MORE = 2 };
    (void)state;
    for (size_t f = 0; f < PM_COUNT(folders); f++) {
        subject s = subject_new(folders[f]);
        pm_engine *engine = open_engine(&s, PM_SIMD_BEST, 0);
        float *logits = new_logits(&s, 3 * MOST);
        for (size_t i = 0; i < PM_COUNT(lengths); i++) {
            pm_work work[3], more[3];
            for (int k = 0; k < 3; k++) {
                float *own = logits + (size_t)k * MOST * s.vocab;
                work[k] = (pm_work){new_session(engine), s.prompt, lengths[i][k], own};
                more[k] = (pm_work){work[k].session, s.prompt + lengths[i][k], MORE, own};
            }
            step(&s, engine, work, 3);
            for (int k = 0; k < 3; k++)
                same(&s, work[k].logits, 0, work[k].n, "beside others, a prompt of", (int)lengths[i][k]);
            step(&s, engine, more, 3);
            for (int k = 0; k < 3; k++) {
                same(&s, more[k].logits, lengths[i][k], MORE, "beside others, after", (int)lengths[i][k]);
                pm_session_free(work[k].session);
            }
        }
        free(logits);
        pm_engine_close(engine);
        subject_free(&s);
    }
}

/* Another last token changes the logits after it and none before. */
static void test_causal(void **state)
{
    (void)state;
    for (size_t f = 0; f < PM_COUNT(folders); f++) {
        subject s = subject_new(folders[f]);
        pm_engine *engine = open_engine(&s, PM_SIMD_BEST, 0);
        pm_session *session = new_session(engine);
        float *logits = new_logits(&s, LENGTH);
        s.prompt[LENGTH - 1] = (s.prompt[LENGTH - 1] + 1) % 200;
        step(&s, engine, &(pm_work){session, s.prompt, LENGTH, logits}, 1);
        same(&s, logits, 0, LENGTH - 1, "with another token at", LENGTH - 1);
        assert_memory_not_equal(logits + (LENGTH - 1) * s.vocab, s.whole + (LENGTH - 1) * s.vocab,
                                s.vocab * sizeof(*logits));
        free(logits);
        pm_session_free(session);
        pm_engine_close(engine);
        subject_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lengths_about_a_step),
        cmocka_unit_test(test_short_beside_long),
        cmocka_unit_test(test_causal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
