/* Sessions of models with a sliding window, in every layer or in some, cut when the window has gone round several times
 * over: continued after going back, forked, saved and loaded, they give the bits of a fresh run. */
#include "edit.h"
#include "polymath.h"

enum { WINDOW = 8, WRITTEN = 20, MORE = 2, VOCAB = 262 };

/* A window beside full attention (qwen3, qwen2), in every layer, over latents, and beside compressed rows. */
static const char *const models[] = {"qwen3",      "qwen2", "mistral", "qwen3_moe-window", "deepseek_v4-window",
                                     "deepseek_v4"};

typedef struct subject {
    const char *name;
    pm_engine *engine;
    pm_token ids[WRITTEN + MORE];
} subject;

static pm_session *new_session(const subject *s)
{
    pm_session *session;
    assert_int_equal(pm_session_new(&session, s->engine, NULL), PM_OK);
    return session;
}

static void sync_to(const subject *s, pm_session *session, size_t n, pm_sync_stats *stats)
{
    pm_error err = {0};
    if (pm_session_sync(session, s->ids, n, NULL, stats, &err) != PM_OK)
        fail_msg("%s: %s", s->name, err.message);
}

/* Other tokens than before, from place `from` on. */
static void change(subject *s, size_t from)
{
    for (size_t i = from; i < PM_COUNT(s->ids); i++)
        s->ids[i] = (s->ids[i] * 7 + 3 + (pm_token)i) % VOCAB;
}

/* Two more tokens on the session, which has `n`, against a fresh run of all of them; the session is freed. */
static void check_more(const subject *s, pm_session *session, size_t n, const char *what)
{
    pm_session *fresh = new_session(s);
    float *want = calloc(2, (size_t)MORE * VOCAB * sizeof(*want)), *have = want + MORE * VOCAB;
    pm_error err = {0};
    assert_non_null(want);
    sync_to(s, fresh, n, NULL);
    pm_work work[] = {{session, s->ids + n, MORE, have}, {fresh, s->ids + n, MORE, want}};
    for (int i = 0; i < 2; i++)
        if (pm_step(s->engine, &work[i], 1, &err) != PM_OK)
            fail_msg("%s: %s", s->name, err.message);
    for (size_t i = 0; i < MORE; i++)
        if (memcmp(have + i * VOCAB, want + i * VOCAB, VOCAB * sizeof(*want)) != 0)
            fail_msg("%s, %s from %d to %zu tokens: other logits after token %zu than in a fresh run", s->name, what,
                     WRITTEN, n, n + i);
    free(want);
    pm_session_free(fresh);
    pm_session_free(session);
}

/* A session of all tokens, cut by `cut` of them in three ways. */
static void check_cut(subject *s, size_t cut)
{
    char path[] = "/tmp/polymath-windows-XXXXXX";
    size_t left = WRITTEN - cut;
    pm_session *session = new_session(s), *fork, *loaded;
    pm_sync_stats stats;
    pm_info info;
    pm_error err = {0};
    int fd = mkstemp(path);
    assert_true(fd >= 0 && close(fd) == 0);
    pm_engine_info(s->engine, &info);
    sync_to(s, session, WRITTEN, NULL);
    assert_int_equal(pm_session_fork(&fork, session, NULL), PM_OK);
    if (pm_session_save(session, path, NULL, 0, &err) != PM_OK ||
        pm_session_load(&loaded, s->engine, path, NULL, NULL, &err) != PM_OK)
        fail_msg("%s: %s", s->name, err.message);
    unlink(path);
    change(s, left);
    pm_session *const three[] = {session, fork, loaded};
    static const char *const what[] = {"going back", "a fork going back", "a loaded session going back"};
    for (int i = 0; i < 3; i++) {
        sync_to(s, three[i], left, &stats);
        /* Without states all is kept, but that the last token's logits may have to be computed again; with states, as
         * there is no snapshot but at the end, all or nothing. */
        size_t least = info.state_bytes ? cut ? 0 : left : left - 1, most = info.state_bytes ? least : left;
        if (stats.reused < least || stats.reused > most || stats.reused + stats.computed != left)
            fail_msg("%s, %s to %zu tokens: reused %zu, computed %zu", s->name, what[i], left, stats.reused,
                     stats.computed);
        check_more(s, three[i], left, what[i]);
    }
}

static void test_going_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < PM_COUNT(models); i++) {
        char dir[256];
        edit e;
        snprintf(dir, sizeof(dir), "%s/tests/oracles/%s", SOURCE_DIR, models[i]);
        edit_open(&e, dir);
        json_object_set_new(e.config, "sliding_window", json_integer(WINDOW));
        edit_write(&e);
        for (int kv = 0; kv <= PM_KV_Q8; kv++) {
            subject s = {.name = models[i]};
            pm_info info;
            pm_error err = {0};
            if (pm_engine_open(&s.engine, e.dir, &(pm_engine_options){.kv_type = (pm_kv_type)kv}, &err) != PM_OK)
                fail_msg("%s", err.message);
            pm_engine_info(s.engine, &info);
            assert_int_equal(info.vocab, VOCAB);
            change(&s, 0);
            for (size_t cut = 0; cut < WRITTEN; cut++)
                check_cut(&s, cut);
            pm_engine_close(s.engine);
        }
        edit_end(&e);
    }
}

/* The window is what the config says: with another one the logits differ once there are more tokens than it has. */
static void test_window_counts(void **state)
{
    (void)state;
    for (size_t i = 0; i < PM_COUNT(models); i++) {
        float last[2][2][VOCAB];
        for (int k = 0; k < 2; k++) {
            char dir[256];
            edit e;
            subject s = {.name = models[i]};
            pm_error err = {0};
            snprintf(dir, sizeof(dir), "%s/tests/oracles/%s", SOURCE_DIR, models[i]);
            edit_open(&e, dir);
            json_object_set_new(e.config, "sliding_window", json_integer(WINDOW + k));
            edit_write(&e);
            if (pm_engine_open(&s.engine, e.dir, NULL, &err) != PM_OK)
                fail_msg("%s", err.message);
            change(&s, 0);
            pm_session *session = new_session(&s);
            for (int n = 0; n < 2; n++) {
                sync_to(&s, session, n ? WRITTEN : WINDOW, NULL);
                memcpy(last[k][n], pm_session_logits(session), sizeof(last[k][n]));
            }
            pm_session_free(session);
            pm_engine_close(s.engine);
            edit_end(&e);
        }
        if (memcmp(last[0][0], last[1][0], sizeof(last[0][0])) != 0)
            fail_msg("%s: the window counts before it is full", models[i]);
        if (memcmp(last[0][1], last[1][1], sizeof(last[0][1])) == 0)
            fail_msg("%s: the window does not count", models[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_going_back), cmocka_unit_test(test_window_counts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
