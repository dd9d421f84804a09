/* The same bits every time: the logits of a model do not depend on how a prompt is cut into pieces, on its company in a
 * batch, on the number of threads, on the instruction set, or on what a session did before. All comparisons are memcmp.
 */
#include "engine/session.h"
#include "model/model.h"
#include "oracle.h"

#include <unistd.h>

#if defined(__SANITIZE_THREAD__) /* slow, and only threads are compared */
enum { LONGEST = 140 };
#elif defined(__SANITIZE_ADDRESS__) /* slow; the longest that a test asks for */
enum { LONGEST = 300 };
#else
enum { LONGEST = 408 };
#endif

static char folder[4096];
static pm_token *prompt;   /* the oracle's long prompt */
static size_t length;      /* LONGEST, tokens of it */
static float *expected[3]; /* [length, vocab] by KV type: one thread, scalar, whole */
static int vocab;
static const char *const kv_names[] = {[PM_KV_F16] = "f16", [PM_KV_F32] = "f32", [PM_KV_Q8] = "q8"};

static pm_engine *open_engine(const pm_engine_options *options)
{
    pm_engine *engine;
    pm_error err = {0};
    if (pm_engine_open(&engine, folder, options, &err) != PM_OK)
        fail_msg("%s", err.message);
    return engine;
}

static pm_session *new_session(pm_engine *engine)
{
    pm_session *session;
    assert_int_equal(pm_session_new(&session, engine, NULL), PM_OK);
    return session;
}

static float *new_logits(size_t n)
{
    float *logits = malloc(n * (size_t)vocab * sizeof(float));
    assert_non_null(logits);
    return logits;
}

static void step(pm_engine *engine, const pm_work *work, int n)
{
    pm_error err = {0};
    if (pm_step(engine, work, n, &err) != PM_OK)
        fail_msg("%s", err.message);
}

/* Compares rows [first, first + n) with what the whole prompt gave. */
static void same(const float *logits, size_t first, size_t n, pm_kv_type kv, const char *what, int detail)
{
    for (size_t i = 0; i < n; i++) {
        const float *want = expected[kv] + (first + i) * (size_t)vocab, *got = logits + i * (size_t)vocab;
        if (memcmp(want, got, (size_t)vocab * sizeof(float)) == 0)
            continue;
        int at = 0, differ = 0;
        for (int k = 0; k < vocab; k++)
            if (memcmp(&want[k], &got[k], sizeof(float)) != 0 && !differ++)
                at = k;
        fail_msg("%s %d (kv %s): logits after token %zu: %d of %d differ, the first at %d: %.9g, wanted %.9g", what,
                 detail, kv_names[kv], first + i, differ, vocab, at, (double)got[at], (double)want[at]);
    }
}

static int setup(void **state)
{
    char path[4200];
    int64_t shape[2];
    pm_info info;
    (void)state;
    snprintf(path, sizeof(path), "%s/oracle_mlx.safetensors", folder);
    pm_checkpoint *oracle = oracle_open(folder, access(path, R_OK) ? "oracle.safetensors" : "oracle_mlx.safetensors");
    prompt = oracle_read(oracle, "long", "input_ids", PM_I32, shape);
    pm_checkpoint_close(oracle);
    length = LONGEST;
    assert_true(shape[0] >= LONGEST);
    for (int kv = 0; kv <= PM_KV_Q8; kv++) {
        pm_engine *engine =
            open_engine(&(pm_engine_options){.threads = 1, .simd = PM_SIMD_SCALAR, .kv_type = (pm_kv_type)kv});
        pm_session *session = new_session(engine);
        pm_engine_info(engine, &info);
        vocab = info.vocab;
        expected[kv] = new_logits(length);
        step(engine, &(pm_work){session, prompt, length, expected[kv]}, 1);
        pm_session_free(session);
        pm_engine_close(engine);
    }
    for (int kv = 1; kv <= PM_KV_Q8; kv++) /* the types differ */
        assert_true(memcmp(expected[0], expected[kv], length * (size_t)vocab * sizeof(float)) != 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(prompt);
    for (int kv = 0; kv <= PM_KV_Q8; kv++)
        free(expected[kv]);
    return 0;
}

/* The first n tokens of the prompt on an engine with these options. */
static void run_prompt(const pm_engine_options *options, size_t n, const char *what, int detail)
{
    pm_engine *engine = open_engine(options);
    pm_session *session = new_session(engine);
    float *logits = new_logits(n);
    step(engine, &(pm_work){session, prompt, n, logits}, 1);
    same(logits, 0, n, options->kv_type, what, detail);
    assert_memory_equal(pm_session_logits(session), logits + (n - 1) * (size_t)vocab, (size_t)vocab * sizeof(float));
    free(logits);
    pm_session_free(session);
    pm_engine_close(engine);
}

static void test_instruction_sets(void **state)
{
    (void)state;
    for (int kv = 0; kv <= PM_KV_Q8; kv++)
        run_prompt(&(pm_engine_options){.kv_type = (pm_kv_type)kv}, length, "best instruction set", PM_SIMD_BEST);
}

static void test_threads(void **state)
{
    const int threads[] = {1, 2, 5};
    (void)state;
    for (size_t i = 0; i < PM_COUNT(threads); i++) {
        pm_engine_options options = {.threads = threads[i], .kv_type = PM_KV_F32};
        run_prompt(&options, length, "threads", threads[i]);
        options.kv_type = PM_KV_F16;
        options.step_tokens = 1;
        run_prompt(&options, 140, "token by token, threads", threads[i]);
    }
}

static void test_pieces(void **state)
{
    const int pieces[] = {1, 3, 7, 64};
    (void)state;
    for (size_t i = 0; i < PM_COUNT(pieces); i++)
        for (int kv = 0; kv < PM_KV_Q8; kv++)
            run_prompt(&(pm_engine_options){.step_tokens = pieces[i], .kv_type = (pm_kv_type)kv}, 70 * (i + 1),
                       "pieces of", pieces[i]);
    run_prompt(&(pm_engine_options){.step_tokens = 5, .kv_type = PM_KV_Q8}, 200, "pieces of", 5);
}

/* In the precision `fast` as well: instruction sets, threads and pieces. */
static void test_fast(void **state)
{
    enum { N = 60 };
    const pm_engine_options options[] = {
        {.precision = PM_PRECISION_FAST, .threads = 1, .simd = PM_SIMD_SCALAR},
        {.precision = PM_PRECISION_FAST, .threads = 3},
        {.precision = PM_PRECISION_FAST, .step_tokens = 1},
        {.precision = PM_PRECISION_FAST, .step_tokens = 7},
    };
    float *want = new_logits(N), *logits = new_logits(N);
    size_t bytes = (size_t)N * (size_t)vocab * sizeof(float);
    (void)state;
    for (size_t i = 0; i < PM_COUNT(options); i++) {
        pm_engine *engine = open_engine(&options[i]);
        pm_session *session = new_session(engine);
        step(engine, &(pm_work){session, prompt, N, i ? logits : want}, 1);
        if (i && memcmp(want, logits, bytes) != 0)
            fail_msg("in the precision fast, logits with options %zu differ from those of one scalar thread", i);
        pm_session_free(session);
        pm_engine_close(engine);
    }
    /* Weights that are integers tell the precisions apart, others do not. */
    bool integers = !strstr(folder, "bf16");
    assert_int_equal(memcmp(want, expected[PM_KV_F16], bytes) != 0, integers);
    free(want);
    free(logits);
}

/* Prompts shorter than any kernel, then one more token. */
static void test_short_prompts(void **state)
{
    pm_engine *engine = open_engine(NULL);
    float *logits = new_logits(1);
    (void)state;
    for (size_t n = 1; n <= 9; n++) {
        pm_session *session = new_session(engine);
        step(engine, &(pm_work){session, prompt, n, NULL}, 1);
        same(pm_session_logits(session), n - 1, 1, PM_KV_F16, "prompt of", (int)n);
        step(engine, &(pm_work){session, prompt + n, 1, logits}, 1);
        same(logits, n, 1, PM_KV_F16, "one after", (int)n);
        pm_session_free(session);
    }
    free(logits);
    pm_engine_close(engine);
}

/* Sessions that start and end at different times, in steps of one to many tokens, each as if alone. */
static void keep_company(const pm_engine_options *options)
{
    enum { SESSIONS = 16, TURNS = 32, MOST = 30 };
    pm_engine *engine = open_engine(options);
    pm_session *sessions[SESSIONS] = {NULL};
    size_t done[SESSIONS] = {0};
    float *logits = new_logits(SESSIONS * MOST);
    for (int turn = 0; turn < TURNS; turn++) {
        pm_work work[SESSIONS];
        int who[SESSIONS], n = 0;
        for (int i = 0; i < SESSIONS; i++) {
            if (turn == i)
                sessions[i] = new_session(engine);
            if (turn == 2 * i + 8) {
                pm_session_free(sessions[i]);
                sessions[i] = NULL;
            }
            if (!sessions[i])
                continue;
            size_t take = (turn + i) % 6 == 0 ? (size_t)((turn * 7 + i * 3) % MOST + 1) : 1;
            work[n] = (pm_work){sessions[i], prompt + done[i], take, logits + (size_t)(n * MOST) * (size_t)vocab};
            who[n++] = i;
        }
        step(engine, work, n);
        for (int k = 0; k < n; k++) {
            same(work[k].logits, done[who[k]], work[k].n, options->kv_type, "in a batch, session", who[k]);
            done[who[k]] += work[k].n;
        }
    }
    for (int i = 0; i < SESSIONS; i++)
        pm_session_free(sessions[i]);
    free(logits);
    pm_engine_close(engine);
}

static void test_company(void **state)
{
    (void)state;
    keep_company(&(pm_engine_options){.kv_type = PM_KV_F16});
    keep_company(&(pm_engine_options){.kv_type = PM_KV_F32, .step_tokens = 5});
}

/* ---- history ---- */

static void sync_to(pm_session *session, const pm_token *ids, size_t n, size_t mark, pm_sync_stats *stats)
{
    pm_error err = {0};
    if (pm_session_sync(session, ids, n, &(pm_sync_options){.mark = mark}, stats, &err) != PM_OK)
        fail_msg("%s", err.message);
}

/* What a session may keep when `common` tokens are the same: all, or with states those up to the snapshot at
 * `snapshot`. One less when the last one's logits are wanted. */
static void check_reused(const pm_engine *engine, const pm_sync_stats *stats, size_t common, size_t snapshot)
{
    bool states = pm_model_cache(engine->model)->n_states > 0;
    size_t want = states ? snapshot : common;
    if (stats->reused != want && (states || stats->reused + 1 != want))
        fail_msg("%zu tokens are reused, expected %zu", stats->reused, want);
}

static void test_rollback(void **state)
{
    pm_token other[LONGEST];
    size_t common = 150;
    (void)state;
    memcpy(other, prompt, sizeof(other));
    for (size_t i = common; i < LONGEST; i++)
        other[i] = prompt[LONGEST - 1 - i];
    while (other[common] == prompt[common])
        common++;
    for (int kv = 0; kv <= PM_KV_Q8; kv++) {
        pm_engine *engine = open_engine(&(pm_engine_options){.kv_type = (pm_kv_type)kv});
        pm_session *session = new_session(engine);
        pm_sync_stats stats;
        sync_to(session, other, 300, 120, &stats);
        assert_int_equal(stats.reused, 0);
        sync_to(session, prompt, 200, 0, &stats); /* differs from 150 on: back to the mark */
        same(pm_session_logits(session), 199, 1, (pm_kv_type)kv, "after a change at", 150);
        check_reused(engine, &stats, common, 120);
        assert_int_equal(stats.computed, 200 - stats.reused);
        sync_to(session, prompt, length, 0, &stats);
        same(pm_session_logits(session), length - 1, 1, (pm_kv_type)kv, "continued to", (int)length);
        assert_int_equal(stats.reused, 200);
        sync_to(session, prompt, length, 0, &stats);
        same(pm_session_logits(session), length - 1, 1, (pm_kv_type)kv, "again", 2);
        assert_int_equal(stats.computed, 0);
        sync_to(session, prompt, 200, 0, &stats); /* a snapshot has its logits */
        same(pm_session_logits(session), 199, 1, (pm_kv_type)kv, "back to", 200);
        check_reused(engine, &stats, 200, 200);
        sync_to(session, prompt, 60, 0, &stats); /* before any snapshot */
        same(pm_session_logits(session), 59, 1, (pm_kv_type)kv, "back to", 60);
        check_reused(engine, &stats, 60, 0);
        sync_to(session, prompt, 1, 0, &stats);
        same(pm_session_logits(session), 0, 1, (pm_kv_type)kv, "back to", 1);
        pm_session_free(session);
        pm_engine_close(engine);
    }
}

static void test_fork(void **state)
{
    (void)state;
    for (int kv = 0; kv <= PM_KV_Q8; kv++) {
        pm_engine *engine = open_engine(&(pm_engine_options){.kv_type = (pm_kv_type)kv});
        pm_session *session = new_session(engine), *fork = NULL, *second = NULL;
        pm_token *changed = malloc(length * sizeof(*changed));
        float *logits = new_logits(length), *more = new_logits(length);
        assert_non_null(changed);
        for (size_t i = 0; i < length; i++)
            changed[i] = prompt[length - 1 - i];
        sync_to(session, prompt, 100, 0, NULL);
        assert_int_equal(pm_session_fork(&fork, session, NULL), PM_OK);
        assert_int_equal(pm_session_fork(&second, fork, NULL), PM_OK);
        same(pm_session_logits(fork), 99, 1, (pm_kv_type)kv, "fork at", 100);
        pm_work both[] = {{fork, changed, 50, NULL}, {session, prompt + 100, 77, logits}};
        step(engine, both, 2); /* writes to what the two share */
        same(logits, 100, 77, (pm_kv_type)kv, "beside a fork from", 100);
        pm_session_free(session);
        pm_work last = {second, prompt + 100, length - 100, more};
        step(engine, &last, 1);
        same(more, 100, length - 100, (pm_kv_type)kv, "second fork from", 100);
        sync_to(fork, prompt, 130, 0, NULL);
        same(pm_session_logits(fork), 129, 1, (pm_kv_type)kv, "fork rolled back to", 130);
        pm_session_free(fork);
        pm_session_free(second);
        pm_engine_close(engine);
        free(changed);
        free(logits);
        free(more);
    }
}

/* Saved and loaded, a session goes on, and goes back, as if it had not been. */
static void test_saved(void **state)
{
    (void)state;
    for (int kv = 0; kv < 2; kv++) {
        char path[] = "/tmp/polymath-invariance-XXXXXX";
        int fd = mkstemp(path);
        pm_engine *engine = open_engine(&(pm_engine_options){.kv_type = (pm_kv_type)kv});
        pm_session *session = new_session(engine), *loaded = NULL;
        pm_sync_stats stats;
        pm_error err = {0};
        assert_true(fd >= 0);
        close(fd);
        sync_to(session, prompt, 137, 120, NULL);
        if (pm_session_save(session, path, NULL, 0, &err) != PM_OK)
            fail_msg("%s", err.message);
        pm_session_free(session);
        if (pm_session_load(&loaded, engine, path, NULL, NULL, &err) != PM_OK)
            fail_msg("%s", err.message);
        unlink(path);
        same(pm_session_logits(loaded), 136, 1, (pm_kv_type)kv, "loaded at", 137);
        sync_to(loaded, prompt, 200, 0, &stats);
        assert_int_equal(stats.reused, 137);
        same(pm_session_logits(loaded), 199, 1, (pm_kv_type)kv, "loaded and continued to", 200);
        sync_to(loaded, prompt, 130, 0, &stats);
        check_reused(engine, &stats, 130, 120);
        same(pm_session_logits(loaded), 129, 1, (pm_kv_type)kv, "loaded and back to", 130);
        pm_session_free(loaded);
        pm_engine_close(engine);
    }
}

/* ---- answers ---- */

/* Greedy and seeded answers: again and again, after other turns, and from a session with a past. */
static void test_answers(void **state)
{
    pm_engine *engine = open_engine(NULL);
    pm_session *session = new_session(engine), *fresh = new_session(engine);
    pm_prompt whole = {.ids = prompt, .n = length}, part = {.ids = prompt, .n = 60};
    (void)state;
    for (int t = 0; t < 2; t++) {
        pm_generate_options options = {
            .sampling = {.temperature = (float)t * 4, .top_p = 1, .seed = 5}, .max_tokens = 40, .ignore_eos = true};
        pm_result first, again, other;
        assert_int_equal(pm_generate(session, &whole, &options, &first, NULL), PM_OK);
        assert_int_equal(pm_generate(session, &part, &options, &other, NULL), PM_OK);
        assert_int_equal(first.n, 40);
        for (int k = 0; k < 3; k++) {
            pm_session *from = k ? session : fresh;
            assert_int_equal(pm_generate(from, &whole, &options, &again, NULL), PM_OK);
            assert_int_equal(again.n, 40);
            assert_memory_equal(first.ids, again.ids, 40 * sizeof(pm_token));
            assert_string_equal(first.text, again.text);
            pm_result_free(&again);
        }
        options.sampling.seed = 6;
        assert_int_equal(pm_generate(session, &whole, &options, &again, NULL), PM_OK);
        assert_int_equal(memcmp(first.ids, again.ids, 40 * sizeof(pm_token)) == 0, t == 0);
        pm_result_free(&first);
        pm_result_free(&again);
        pm_result_free(&other);
    }
    pm_session_free(session);
    pm_session_free(fresh);
    pm_engine_close(engine);
}

static void take_result(void *user, int status, const pm_error *err, pm_result *result)
{
    if (status != PM_OK)
        fail_msg("%s", err->message);
    *(pm_result *)user = *result;
}

/* Sampled answers, each with its own seed and options, that come one after the other and are computed side by side are
 * those computed alone: sampling sees nothing of its company either. What prompts share is computed once. */
static void test_answers_in_company(void **state)
{
    enum { N = 6, TOKENS = 24 };
    static const pm_bias bias[] = {{11, 2.5f}, {12, -100}};
    static const pm_sampling samplings[N] = {
        {.temperature = 1, .top_p = 1, .seed = 1},
        {.temperature = 1.3f, .top_k = 40, .top_p = 0.95f, .seed = 2, .repetition_penalty = 1.2f},
        {.temperature = 0, .presence_penalty = 0.7f, .frequency_penalty = 0.3f},
        {.temperature = 1, .top_p = 1, .min_p = 0.02f, .seed = 2, .xtc_probability = 0.5f, .xtc_threshold = 0.1f},
        {.temperature = 0.8f, .top_p = 0.9f, .seed = 1, .bias = bias, .n_bias = 2},
        {.temperature = 0}};
    pm_engine *engine = open_engine(NULL);
    pm_scheduler *scheduler;
    pm_prompt parts[N];
    pm_generate_options options[N];
    pm_result results[N] = {{0}};
    pm_error err;
    (void)state;
    if (pm_scheduler_new(&scheduler, engine, &(pm_scheduler_options){.parallel = 4}, &err) != PM_OK)
        fail_msg("%s", err.message);
    for (int i = 0; i < N; i++) {
        pm_request *request;
        parts[i] = (pm_prompt){.ids = prompt + i, .n = 20 + 9 * (size_t)i};
        if (i == 3) /* begins as the first does */
            parts[i] = (pm_prompt){.ids = prompt, .n = 140, .mark = 137};
        options[i] = (pm_generate_options){
            .sampling = samplings[i], .max_tokens = TOKENS, .ignore_eos = true, .user = &results[i]};
        if (pm_request_new(&request, scheduler, &parts[i], &options[i], take_result, &err) != PM_OK)
            fail_msg("%s", err.message);
        for (int k = 0; k < i; k++)
            pm_scheduler_step(scheduler);
    }
    while (pm_scheduler_step(scheduler))
        ;
    assert_true(results[3].prompt.reused >= 19);
    for (int i = 0; i < N; i++) {
        pm_session *alone = new_session(engine);
        pm_result result;
        assert_int_equal(pm_generate(alone, &parts[i], &options[i], &result, NULL), PM_OK);
        assert_int_equal(result.n, TOKENS);
        assert_int_equal(results[i].n, TOKENS);
        for (int t = 0; t < TOKENS; t++)
            if (result.ids[t] != results[i].ids[t])
                fail_msg("answer %d, token %d is %d alone and %d in company", i, t, (int)result.ids[t],
                         (int)results[i].ids[t]);
        pm_result_free(&result);
        pm_result_free(&results[i]);
        pm_session_free(alone);
    }
    pm_scheduler_free(scheduler);
    pm_engine_close(engine);
}

/* Arguments: a model's folder in the repository, and which tests to run ("test_threads"); without the second all. */
int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL [TEST]\n", argv[0]);
        return 2;
    }
    snprintf(folder, sizeof(folder), "%s/%s", SOURCE_DIR, argv[1]);
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_instruction_sets),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_fast),
        cmocka_unit_test(test_short_prompts),
        cmocka_unit_test(test_company),
        cmocka_unit_test(test_rollback),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_saved),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_answers_in_company),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
