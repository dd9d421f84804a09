/* Sessions over the toy of toy.h. */
#include "toy.h"

/* The logits that ids[0..n) must give. */
static void expected_logits(const pm_token *ids, size_t n, float *out)
{
    uint64_t rows = 0;
    for (size_t i = 0; i < n; i++)
        rows = mix(rows, (int64_t)i, ids[i]);
    logits_of(rows, has_states ? rows : 0, out);
}

static void assert_session(const pm_session *session, const pm_token *ids, size_t n)
{
    const pm_token *got;
    float want[VOCAB];
    assert_int_equal(pm_session_tokens(session, &got), n);
    if (n)
        assert_memory_equal(got, ids, n * sizeof(*ids));
    if (!pm_session_logits(session))
        fail_msg("no logits after %zu tokens", n);
    expected_logits(ids, n, want);
    assert_memory_equal(pm_session_logits(session), want, sizeof(want));
}

/* ---- sync ---- */

static void sync_ok(pm_session *session, const pm_token *ids, size_t n, size_t mark, size_t reused)
{
    pm_sync_stats stats;
    pm_error err = {0};
    int before = world.tokens;
    int status = pm_session_sync(session, ids, n, &(pm_sync_options){.mark = mark}, &stats, &err);
    if (status != PM_OK)
        fail_msg("sync of %zu tokens: %s", n, err.message);
    assert_session(session, ids, n);
    assert_int_equal(stats.reused, reused);
    assert_int_equal(stats.computed, n - reused);
    assert_int_equal(world.tokens - before, stats.computed);
}

static void test_sync_in_pieces(void **state)
{
    pm_engine *engine = new_engine(true);
    pm_token ids[5000];
    (void)state;
    random_ids(ids, 5000);
    for (size_t n = 1; n <= 5000; n = n * 3 + 1) {
        pm_session *session = new_session(engine);
        assert_null(pm_session_logits(session));
        sync_ok(session, ids, n, 0, 0);
        pm_session_free(session);
    }
    free_engine(engine);
}

/* The same prompt again computes nothing and has its logits, one token included. */
static void test_exact_hit(void **state)
{
    pm_token ids[100];
    (void)state;
    random_ids(ids, 100);
    for (int states = 0; states < 2; states++) {
        pm_engine *engine = new_engine(states);
        pm_session *session = new_session(engine);
        sync_ok(session, ids, 1, 0, 0);
        sync_ok(session, ids, 1, 0, 1);
        sync_ok(session, ids, 1, 0, 1);
        sync_ok(session, ids, 100, 0, 1);
        sync_ok(session, ids, 100, 0, 100);
        pm_session_free(session);
        free_engine(engine);
    }
}

/* Rows are cut anywhere; only a cut that needs logits replays the last token. */
static void test_rollback_without_states(void **state)
{
    pm_engine *engine = new_engine(false);
    pm_session *session = new_session(engine);
    pm_token ids[300];
    (void)state;
    random_ids(ids, 300);
    sync_ok(session, ids, 300, 250, 0);
    sync_ok(session, ids, 200, 0, 199);
    ids[150] = (ids[150] + 1) % VOCAB;
    sync_ok(session, ids, 300, 0, 150);
    ids[0] = (ids[0] + 1) % VOCAB;
    sync_ok(session, ids, 300, 0, 0);
    sync_ok(session, ids, 1, 0, 0);
    pm_session_free(session);
    free_engine(engine);
}

/* States go back to the newest snapshot at or before the change: the mark, an end, the stride, or the beginning. */
static void test_rollback_with_states(void **state)
{
    pm_engine *engine = new_engine(true);
    pm_session *session = new_session(engine);
    pm_token ids[4000];
    (void)state;
    random_ids(ids, 4000);
    sync_ok(session, ids, 3000, 2500, 0);
    sync_ok(session, ids, 2500, 0, 2500); /* exactly the mark: nothing to compute */
    ids[2600] ^= 1;
    sync_ok(session, ids, 3000, 2500, 2500);
    ids[2499] ^= 1;
    sync_ok(session, ids, 3000, 2500, 2048);
    sync_ok(session, ids, 3500, 0, 3000);
    ids[3400] ^= 1;
    sync_ok(session, ids, 3500, 0, 3072);
    ids[1500] ^= 1;
    sync_ok(session, ids, 1501, 0, 1024);
    ids[1023] ^= 1;
    sync_ok(session, ids, 2000, 0, 0);
    pm_session_free(session);
    free_engine(engine);
}

/* The caller may pass the session's own tokens. */
static void test_own_tokens(void **state)
{
    pm_engine *engine = new_engine(true);
    pm_session *session = new_session(engine);
    pm_token ids[500];
    const pm_token *own;
    (void)state;
    random_ids(ids, 500);
    sync_ok(session, ids, 500, 100, 0);
    pm_session_tokens(session, &own);
    assert_int_equal(pm_session_sync(session, own, 300, NULL, NULL, NULL), PM_OK);
    assert_session(session, ids, 300);
    pm_session_free(session);
    free_engine(engine);
}

static void test_sync_refusals(void **state)
{
    pm_engine *engine = new_engine(true);
    pm_session *session = new_session(engine);
    pm_token *ids = calloc(CTX + 1, sizeof(*ids));
    pm_error err = {0};
    (void)state;
    sync_ok(session, ids, 10, 0, 0);
    assert_int_equal(pm_session_sync(session, ids, 0, NULL, NULL, &err), PM_ERR_INVALID);
    assert_non_null(strstr(err.message, "prompt is empty"));
    assert_int_equal(pm_session_sync(session, ids, CTX + 1, NULL, NULL, &err), PM_ERR_LIMIT);
    assert_non_null(strstr(err.message, "6001"));
    assert_non_null(strstr(err.message, "6000"));
    ids[7] = VOCAB;
    assert_int_equal(pm_session_sync(session, ids, 20, NULL, NULL, &err), PM_ERR_INVALID);
    assert_non_null(strstr(err.message, "token 7 is 16, outside the vocabulary of 16"));
    ids[7] = -1;
    assert_int_equal(pm_session_sync(session, ids, 20, NULL, NULL, &err), PM_ERR_INVALID);
    ids[7] = 0;
    assert_session(session, ids, 10);
    sync_ok(session, ids, CTX, 0, 10);
    pm_session_free(session);
    free_engine(engine);
    free(ids);
}

static void on_progress(void *user, size_t done, size_t total)
{
    size_t *last = user;
    assert_true(done > *last && done <= total);
    *last = done;
}

static void test_progress(void **state)
{
    pm_engine *engine = new_engine(true);
    pm_session *session = new_session(engine);
    pm_token ids[1000] = {0};
    size_t last = 0;
    pm_sync_options options = {.progress = on_progress, .user = &last};
    (void)state;
    assert_int_equal(pm_session_sync(session, ids, 1000, &options, NULL, NULL), PM_OK);
    assert_int_equal(last, 1000);
    assert_int_equal(world.steps, (1000 + STEP - 1) / STEP);
    pm_session_free(session);
    free_engine(engine);
}

/* ---- failures and cancelling ---- */

static void assert_prefix(const pm_session *session, const pm_token *ids, size_t most)
{
    const pm_token *got;
    size_t n = pm_session_tokens(session, &got);
    assert_true(n <= most);
    if (n && pm_session_logits(session))
        assert_session(session, ids, n);
    if (n)
        assert_memory_equal(got, ids, n * sizeof(*ids));
}

static void test_failed_step(void **state)
{
    pm_token ids[2000];
    (void)state;
    random_ids(ids, 2000);
    for (int states = 0; states < 2; states++) {
        for (int at = 1; at < 30; at++) {
            pm_engine *engine = new_engine(states);
            pm_session *session = new_session(engine);
            pm_error err = {0};
            sync_ok(session, ids, 100, 50, 0);
            ids[70] ^= 1;
            world.fail = world.steps + at;
            assert_int_equal(pm_session_sync(session, ids, 2000, NULL, NULL, &err), PM_ERR_NUMERIC);
            assert_prefix(session, ids, 2000);
            world.fail = 0;
            assert_int_equal(pm_session_sync(session, ids, 2000, NULL, NULL, NULL), PM_OK);
            assert_session(session, ids, 2000);
            pm_session_free(session);
            free_engine(engine);
        }
    }
}

static void test_failed_decode_keeps_logits(void **state)
{
    pm_token ids[101];
    (void)state;
    random_ids(ids, 101);
    for (int states = 0; states < 2; states++) {
        pm_engine *engine = new_engine(states);
        pm_session *session = new_session(engine);
        sync_ok(session, ids, 100, 0, 0);
        world.fail = world.steps + 1;
        pm_work work = {.session = session, .tokens = ids + 100, .n = 1};
        assert_int_equal(pm_step(engine, &work, 1, NULL), PM_ERR_NUMERIC);
        assert_session(session, ids, 100);
        assert_int_equal(pm_step(engine, &work, 1, NULL), PM_OK);
        assert_session(session, ids, 101);
        pm_session_free(session);
        free_engine(engine);
    }
}

static void test_cancel(void **state)
{
    pm_token ids[2000];
    (void)state;
    random_ids(ids, 2000);
    for (int states = 0; states < 2; states++) {
        pm_engine *engine = new_engine(states);
        pm_session *session = new_session(engine);
        pm_error err = {0};
        pm_session_cancel(session);
        assert_int_equal(pm_session_sync(session, ids, 2000, NULL, NULL, &err), PM_ERR_CANCELLED);
        assert_int_equal(pm_session_tokens(session, NULL), 0);
        world.cancel = session; /* during the first piece */
        assert_int_equal(pm_session_sync(session, ids, 2000, NULL, NULL, &err), PM_ERR_CANCELLED);
        world.cancel = NULL;
        assert_session(session, ids, STEP);
        sync_ok(session, ids, 2000, 0, STEP); /* the flag was cleared by the call that obeyed it */
        pm_session_free(session);
        free_engine(engine);
    }
}

/* ---- many sessions ---- */

static void test_step_many(void **state)
{
    enum { SESSIONS = 100, N = 700 };
    pm_engine *engine = new_engine(true);
    pm_session *sessions[SESSIONS];
    static pm_token ids[SESSIONS][N];
    pm_work work[SESSIONS];
    (void)state;
    for (int i = 0; i < SESSIONS; i++) {
        sessions[i] = new_session(engine);
        random_ids(ids[i], N);
        work[i] = (pm_work){.session = sessions[i], .tokens = ids[i], .n = i % 3 ? 1 : (size_t)(i * 5 + 1)};
    }
    assert_int_equal(pm_step(engine, work, SESSIONS, NULL), PM_OK);
    assert_true(world.most <= STEP);
    for (int i = 0; i < SESSIONS; i++) {
        assert_session(sessions[i], ids[i], work[i].n);
        work[i].tokens += work[i].n;
        work[i].n = 1;
    }
    int steps = world.steps;
    assert_int_equal(pm_step(engine, work, SESSIONS, NULL), PM_OK);
    assert_int_equal(world.steps - steps, (SESSIONS + STEP - 1) / STEP);
    for (int i = 0; i < SESSIONS; i++) {
        assert_session(sessions[i], ids[i], (i % 3 ? 1 : (size_t)(i * 5 + 1)) + 1);
        pm_session_free(sessions[i]);
    }
    free_engine(engine);
}

/* Sessions that decode ride along with the pieces of a long prompt and are done after the first step. */
static void test_decode_rides_along(void **state)
{
    pm_engine *engine = new_engine(true);
    pm_session *prompt = new_session(engine), *decode = new_session(engine);
    pm_token ids[500];
    (void)state;
    random_ids(ids, 500);
    sync_ok(decode, ids, 10, 0, 0);
    world.steps = 0;
    world.fail = 2; /* the second step holds the prompt alone */
    pm_work work[] = {{.session = prompt, .tokens = ids, .n = 500}, {.session = decode, .tokens = ids + 10, .n = 1}};
    assert_int_equal(pm_step(engine, work, 2, NULL), PM_ERR_NUMERIC);
    assert_session(decode, ids, 11);
    assert_prefix(prompt, ids, 500);
    pm_session_free(prompt);
    pm_session_free(decode);
    free_engine(engine);
}

static void test_step_logits(void **state)
{
    pm_engine *engine = new_engine(true);
    pm_session *a = new_session(engine), *b = new_session(engine);
    pm_token ids[300];
    static float logits[300][VOCAB], more[200][VOCAB];
    float want[VOCAB];
    (void)state;
    random_ids(ids, 300);
    sync_ok(b, ids, 100, 0, 0);
    pm_work work[] = {{.session = a, .tokens = ids, .n = 300, .logits = logits[0]},
                      {.session = b, .tokens = ids + 100, .n = 200, .logits = more[0]}};
    assert_int_equal(pm_step(engine, work, 2, NULL), PM_OK);
    for (size_t i = 0; i < 300; i++) {
        expected_logits(ids, i + 1, want);
        assert_memory_equal(logits[i], want, sizeof(want));
        if (i >= 100)
            assert_memory_equal(more[i - 100], want, sizeof(want));
    }
    assert_session(a, ids, 300);
    assert_session(b, ids, 300);
    pm_session_free(a);
    pm_session_free(b);
    free_engine(engine);
}

static void test_step_refusals(void **state)
{
    pm_engine *engine = new_engine(true), *other = new_engine(true);
    pm_session *a = new_session(engine), *b = new_session(other);
    pm_token *ids = calloc(CTX, sizeof(*ids)), bad = 99;
    pm_error err = {0};
    (void)state;
    sync_ok(a, ids, CTX - 1, 0, 0);
    int steps = world.steps;
    pm_work twice[] = {{.session = a, .tokens = ids, .n = 1}, {.session = a, .tokens = ids, .n = 1}};
    assert_int_equal(pm_step(engine, twice, 2, &err), PM_ERR_INVALID);
    assert_non_null(strstr(err.message, "twice"));
    pm_work foreign = {.session = b, .tokens = ids, .n = 1};
    assert_int_equal(pm_step(engine, &foreign, 1, &err), PM_ERR_INVALID);
    assert_non_null(strstr(err.message, "another engine"));
    pm_work nothing = {.session = a, .tokens = ids, .n = 0};
    assert_int_equal(pm_step(engine, &nothing, 1, &err), PM_ERR_INVALID);
    assert_non_null(strstr(err.message, "no tokens"));
    pm_work outside = {.session = a, .tokens = &bad, .n = 1};
    assert_int_equal(pm_step(engine, &outside, 1, &err), PM_ERR_INVALID);
    assert_non_null(strstr(err.message, "99"));
    pm_work long_one = {.session = a, .tokens = ids, .n = 2};
    assert_int_equal(pm_step(engine, &long_one, 1, &err), PM_ERR_LIMIT);
    assert_non_null(strstr(err.message, "5999"));
    assert_non_null(strstr(err.message, "6000"));
    assert_int_equal(world.steps, steps);
    assert_int_equal(pm_step(engine, NULL, 0, &err), PM_OK);
    assert_session(a, ids, CTX - 1);
    assert_int_equal(pm_step(engine, twice, 1, &err), PM_OK);
    assert_session(a, ids, CTX);
    pm_session_free(a);
    pm_session_free(b);
    free_engine(engine);
    free_engine(other);
    free(ids);
}

/* ---- forks ---- */

static void test_fork(void **state)
{
    pm_token ids[1500], changed[1500];
    (void)state;
    random_ids(ids, 1500);
    memcpy(changed, ids, sizeof(ids));
    changed[1300] ^= 1;
    for (int states = 0; states < 2; states++) {
        pm_engine *engine = new_engine(states);
        pm_session *session = new_session(engine), *fork = NULL, *empty = NULL, *nothing = new_session(engine);
        sync_ok(session, ids, 1400, 1200, 0);
        assert_int_equal(pm_session_fork(&fork, session, NULL), PM_OK);
        assert_session(fork, ids, 1400);
        sync_ok(fork, changed, 1500, 0, states ? 1200 : 1300); /* shares the snapshots */
        sync_ok(session, ids, 1500, 0, 1400);
        pm_session_free(session);
        sync_ok(fork, changed, 1200, 0, states ? 1200 : 1199);
        assert_int_equal(pm_session_fork(&empty, nothing, NULL), PM_OK);
        sync_ok(empty, ids, 5, 0, 0);
        pm_session_free(fork);
        pm_session_free(empty);
        pm_session_free(nothing);
        free_engine(engine);
    }
}

/* ---- snapshots ---- */

static void test_victims(void **state)
{
    enum { KEPT = 16, TAKEN = 4000 };
    size_t positions[KEPT + 1];
    int n = 0;
    (void)state;
    for (size_t i = 1; i <= TAKEN; i++) {
        positions[n++] = i * 100;
        if (n > KEPT) {
            int victim = pm_snapshot_victim(positions, n, (pm_turn){0});
            assert_in_range(victim, 0, n - 2);
            memmove(&positions[victim], &positions[victim + 1], (size_t)(n - victim - 1) * sizeof(*positions));
            n--;
        }
    }
    /* Going back d tokens from the end costs a replay of the order of d, wherever that is. */
    for (size_t d = 200; d < TAKEN * 100; d += 100) {
        size_t target = TAKEN * 100 - d, from = 0;
        for (int i = 0; i < n; i++)
            if (positions[i] <= target)
                from = positions[i];
        if (target - from > 2 * d)
            fail_msg("going back %zu tokens replays %zu", d, target - from);
    }
    assert_int_equal(positions[n - 1], TAKEN * 100);
}

/* However long an answer is and however few snapshots fit, the next prompt finds those of the turn: before the
 * generation prompt, where a template that writes the last answer anew goes back to, and after it. */
static void test_turns(void **state)
{
    enum { QUESTION = 900, ANSWER = 4000 };
    pm_state_spec large = {64 << 20};
    pm_cache_spec cache = {1, 1, &rows_spec, &large};
    pm_engine *engine = new_engine(true);
    pm_token ids[CTX];
    (void)state;
    engine->cache = &cache; /* the toy's states are small whatever this says */
    assert_int_equal(pm_snapshot_limit(engine), PM_SNAPSHOTS_MIN);
    for (int rewrite = 0; rewrite < 3; rewrite++) { /* nothing, the answer, the generation prompt too */
        pm_session *session = new_session(engine);
        size_t n = 0, kept = 0;
        random_ids(ids, CTX);
        for (int turn = 0; turn < (rewrite ? 2 : 1); turn++) {
            size_t mark = n + QUESTION, prompt = mark + 4, end = prompt + ANSWER;
            sync_ok(session, ids, prompt, mark, kept);
            for (size_t i = prompt; i < end; i++)
                assert_int_equal(pm_step(engine, &(pm_work){.session = session, .tokens = ids + i, .n = 1}, 1, NULL),
                                 PM_OK);
            assert_session(session, ids, end);
            assert_int_equal(session->n_snapshots, PM_SNAPSHOTS_MIN);
            n = rewrite ? prompt + 20 : end;
            kept = rewrite == 0 ? end : rewrite == 1 ? prompt : mark;
            if (rewrite)
                ids[kept] = (ids[kept] + 1) % VOCAB;
        }
        sync_ok(session, ids, n + 50, 0, kept);
        pm_session_free(session);
    }
    free_engine(engine);
}

/* A prompt given in two steps marks the place between them. */
static void test_turn_in_steps(void **state)
{
    pm_engine *engine = new_engine(true);
    pm_session *session = new_session(engine);
    pm_token ids[100];
    (void)state;
    random_ids(ids, 100);
    pm_work work[] = {{.session = session, .tokens = ids, .n = 90}, {.session = session, .tokens = ids + 90, .n = 10}};
    assert_int_equal(pm_step(engine, &work[0], 1, NULL), PM_OK);
    assert_int_equal(pm_step(engine, &work[1], 1, NULL), PM_OK);
    assert_int_equal(session->turn.mark, 90);
    assert_int_equal(session->turn.prompt, 100);
    ids[90] ^= 1;
    sync_ok(session, ids, 100, 0, 90);
    pm_session_free(session);
    free_engine(engine);
}

/* Snapshots at the engine's stride, whatever the steps are; one larger than the context is none. */
static void test_stride(void **state)
{
    static const struct {
        int stride;
        size_t kept; /* of 1400 tokens when the 1250th changes */
    } cases[] = {{100, 1200}, {30, 1230}, {1249, 1249}, {1250, 0}, {1 << 30, 0}};
    pm_token ids[1400];
    (void)state;
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        pm_engine *engine = new_engine(true);
        pm_session *session = new_session(engine);
        engine->snapshot_stride = cases[i].stride;
        random_ids(ids, 1400);
        sync_ok(session, ids, 1400, 0, 0);
        ids[1249] ^= 1;
        sync_ok(session, ids, 1400, 0, cases[i].kept);
        pm_session_free(session);
        free_engine(engine);
    }
}

static void test_snapshots_are_bounded(void **state)
{
    pm_engine *engine = new_engine(true);
    pm_session *session = new_session(engine);
    pm_token ids[2000];
    (void)state;
    random_ids(ids, 2000);
    for (size_t n = 1; n <= 2000; n++) {
        sync_ok(session, ids, n, 0, n - 1);
        assert_true(session->n_snapshots <= PM_SNAPSHOTS_MAX);
        assert_int_equal(session->snapshots[session->n_snapshots - 1]->pos, n);
    }
    ids[1000] ^= 1;
    assert_int_equal(pm_session_sync(session, ids, 2000, NULL, NULL, NULL), PM_OK);
    assert_session(session, ids, 2000);
    pm_session_free(session);

    pm_state_spec large = {64 << 20};
    pm_cache_spec cache = {1, 1, &rows_spec, &large};
    engine->cache = &cache;
    assert_int_equal(pm_snapshot_limit(engine), PM_SNAPSHOTS_MIN);
    large.count = 1 << 20;
    assert_int_equal(pm_snapshot_limit(engine), 7);
    free_engine(engine);
}

/* ---- everything at once ---- */

static void test_random_walk(void **state)
{
    enum { SESSIONS = 4, LENGTH = 2500 };
    static pm_token ids[SESSIONS][LENGTH];
    (void)state;
    for (int round = 0; round < 4; round++) {
        pm_engine *engine = new_engine(round % 2);
        pm_session *sessions[SESSIONS];
        for (int i = 0; i < SESSIONS; i++) {
            sessions[i] = new_session(engine);
            random_ids(ids[i], LENGTH);
        }
        for (int turn = 0; turn < 300; turn++) {
            int i = rnd(SESSIONS), j = rnd(SESSIONS);
            size_t n = (size_t)rnd(LENGTH) + 1, length = pm_session_tokens(sessions[i], NULL);
            world.fail = rnd(4) ? 0 : world.steps + 1 + rnd(20);
            if (rnd(8) == 0)
                pm_session_cancel(sessions[i]);
            if (rnd(3) == 0)
                ids[i][rnd(LENGTH)] ^= 1;
            if (rnd(6) == 0 && i != j) {
                pm_session_free(sessions[j]);
                assert_int_equal(pm_session_fork(&sessions[j], sessions[i], NULL), PM_OK);
                memcpy(ids[j], ids[i], sizeof(ids[i]));
            }
            pm_sync_options options = {.mark = (size_t)rnd((int)n)};
            int status = pm_session_sync(sessions[i], ids[i], n, &options, NULL, NULL);
            if (status == PM_OK)
                assert_session(sessions[i], ids[i], n);
            else
                assert_true(status == PM_ERR_NUMERIC || status == PM_ERR_CANCELLED);
            /* On failure: a prefix of what was asked or of what was there (which differs only past the change). */
            assert_true(pm_session_tokens(sessions[i], NULL) <= (n > length ? n : length));
            status = pm_session_sync(sessions[i], ids[i], n, NULL, NULL, NULL);
            world.fail = 0;
            if (status == PM_OK && n < LENGTH) {
                size_t more = (size_t)rnd((int)(LENGTH - n)) + 1;
                pm_work work = {.session = sessions[i], .tokens = ids[i] + n, .n = more};
                assert_int_equal(pm_step(engine, &work, 1, NULL), PM_OK);
                assert_session(sessions[i], ids[i], n + more);
            }
        }
        for (int i = 0; i < SESSIONS; i++)
            pm_session_free(sessions[i]);
        free_engine(engine);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sync_in_pieces),
        cmocka_unit_test(test_exact_hit),
        cmocka_unit_test(test_rollback_without_states),
        cmocka_unit_test(test_rollback_with_states),
        cmocka_unit_test(test_own_tokens),
        cmocka_unit_test(test_sync_refusals),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_failed_step),
        cmocka_unit_test(test_failed_decode_keeps_logits),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_step_many),
        cmocka_unit_test(test_decode_rides_along),
        cmocka_unit_test(test_step_logits),
        cmocka_unit_test(test_step_refusals),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_victims),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_turn_in_steps),
        cmocka_unit_test(test_stride),
        cmocka_unit_test(test_snapshots_are_bounded),
        cmocka_unit_test(test_random_walk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
