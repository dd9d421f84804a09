/* Sessions of models that keep one row for several tokens, cut at every residue of their ratios: continued, forked,
 * saved and loaded, and rolled back, they give the bits of an unbroken run. */
#include "engine/session.h"
#include "oracle.h"

enum { LENGTH = 67, LAST_CUT = 40 };

/* What each keeps rows for: 2 and 16 tokens, 7, 3. */
static const char *const folders[] = {"deepseek_v4", "deepseek_v4-heavy", "deepseek_v4-sparse"};

typedef struct subject {
    const char *name;
    pm_engine *engine;
    pm_token *prompt;
    float *expected; /* [LENGTH, vocab] */
    size_t vocab;
} subject;

static pm_session *new_session(const subject *s)
{
    pm_session *session;
    assert_int_equal(pm_session_new(&session, s->engine, NULL), PM_OK);
    return session;
}

static void sync_to(const subject *s, pm_session *session, const pm_token *ids, size_t n, pm_sync_stats *stats)
{
    pm_error err = {0};
    if (pm_session_sync(session, ids, n, NULL, stats, &err) != PM_OK)
        fail_msg("%s: %s", s->name, err.message);
}

/* Logits of n tokens from `first` on. */
static void same(const subject *s, const float *logits, size_t first, size_t n, const char *what, size_t cut)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(logits + i * s->vocab, s->expected + (first + i) * s->vocab, s->vocab * sizeof(float)) != 0)
            fail_msg("%s, %s at %zu: logits after token %zu differ", s->name, what, cut, first + i);
}

/* The rest of the prompt in two pieces, and the logits after every token of it; the session is freed. */
static void finish(const subject *s, pm_session *session, size_t cut, const char *what)
{
    size_t rest = LENGTH - cut, half = rest / 2;
    float *logits = malloc(rest * s->vocab * sizeof(*logits));
    pm_error err = {0};
    assert_non_null(logits);
    pm_work pieces[] = {{session, s->prompt + cut, half, logits},
                        {session, s->prompt + cut + half, rest - half, logits + half * s->vocab}};
    for (int i = 0; i < 2; i++)
        if (pm_step(s->engine, &pieces[i], 1, &err) != PM_OK)
            fail_msg("%s: %s", s->name, err.message);
    same(s, logits, cut, rest, what, cut);
    free(logits);
    pm_session_free(session);
}

static void cut_at(const subject *s, size_t cut)
{
    char path[] = "/tmp/polymath-residues-XXXXXX";
    int fd = mkstemp(path);
    pm_session *session = new_session(s), *fork, *loaded;
    pm_token other[LENGTH];
    pm_sync_stats stats;
    pm_error err = {0};
    assert_true(fd >= 0);
    close(fd);
    sync_to(s, session, s->prompt, cut, NULL);
    same(s, pm_session_logits(session), cut - 1, 1, "computed", cut);
    assert_int_equal(pm_session_fork(&fork, session, NULL), PM_OK);
    if (pm_session_save(session, path, NULL, 0, &err) != PM_OK ||
        pm_session_load(&loaded, s->engine, path, NULL, NULL, &err) != PM_OK)
        fail_msg("%s: %s", s->name, err.message);
    unlink(path);

    memcpy(other, s->prompt, sizeof(other)); /* another continuation, which is given up */
    for (size_t i = cut; i < LENGTH; i++)
        other[i] = (s->prompt[i] + 1) % 200;
    sync_to(s, session, other, LENGTH - 3, NULL);
    sync_to(s, session, s->prompt, LENGTH, &stats);
    assert_int_equal(stats.reused, cut);
    same(s, pm_session_logits(session), LENGTH - 1, 1, "rolled back", cut);
    pm_session_free(session);
    finish(s, fork, cut, "forked");
    finish(s, loaded, cut, "saved and loaded");
}

static void test_every_residue(void **state)
{
    (void)state;
    for (size_t i = 0; i < PM_COUNT(folders); i++)
        for (int kv = 0; kv <= PM_KV_Q8; kv++) {
            char dir[4200];
            int64_t shape[2];
            pm_error err = {0};
            pm_info info;
            subject s = {.name = folders[i]};
            snprintf(dir, sizeof(dir), "%s/tests/oracles/%s", SOURCE_DIR, folders[i]);
            pm_checkpoint *oracle = oracle_open(dir, "oracle.safetensors");
            s.prompt = oracle_read(oracle, "long", "input_ids", PM_I32, shape);
            pm_checkpoint_close(oracle);
            assert_int_equal(shape[0], LENGTH);
            if (pm_engine_open(&s.engine, dir, &(pm_engine_options){.kv_type = (pm_kv_type)kv}, &err) != PM_OK)
                fail_msg("%s", err.message);
            pm_engine_info(s.engine, &info);
            s.vocab = (size_t)info.vocab;
            s.expected = malloc(LENGTH * s.vocab * sizeof(float));
            assert_non_null(s.expected);
            pm_session *whole = new_session(&s);
            assert_int_equal(pm_step(s.engine, &(pm_work){whole, s.prompt, LENGTH, s.expected}, 1, NULL), PM_OK);
            pm_session_free(whole);
            for (size_t cut = 1; cut <= LAST_CUT; cut++)
                cut_at(&s, cut);
            free(s.expected);
            free(s.prompt);
            pm_engine_close(s.engine);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_residue)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
