/* Chats of several turns on every checkpoint of tests/models and tests/oracles: a turn computes the tokens that differ
 * from the last one and nothing else, and gives the logits of a fresh session. */
#include "engine/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TURNS = 3, QUESTION = 13, OPENING = 3, ANSWER = 9, MOST = 256 };

/* What a chat template makes of the last answer when it writes it into the next prompt. */
typedef enum template_kind {
    AS_IT_WAS,  /* the same tokens */
    CHANGED,    /* another text after the same opening, as where reasoning is dropped */
    ALL_CHANGED /* the opening is another one too */
} template_kind;

typedef struct chat {
    const char *name;
    pm_engine *engine;
    int vocab;
    pm_token ids[MOST];
    size_t n;
    uint64_t seed;
} chat;

static pm_token random_token(chat *c)
{
    c->seed = c->seed * 6364136223846793005u + 1442695040888963407u;
    return (pm_token)((c->seed >> 33) % (uint64_t)c->vocab);
}

/* Appends n tokens; the first is not `other`. */
static void add_random(chat *c, size_t n, pm_token other)
{
    for (size_t i = 0; i < n; i++) {
        pm_token id = random_token(c);
        c->ids[c->n++] = i == 0 && id == other ? (id + 1) % c->vocab : id;
    }
}

static pm_session *new_session(const chat *c)
{
    pm_session *session;
    pm_error err = {0};
    if (pm_session_new(&session, c->engine, &err) != PM_OK)
        fail_msg("%s: %s", c->name, err.message);
    return session;
}

/* The session's logits are those of a session without a past. */
static void check_logits(const chat *c, const pm_session *session)
{
    const pm_token *ids;
    size_t n = pm_session_tokens(session, &ids);
    pm_session *fresh = new_session(c);
    pm_sync_stats stats;
    assert_int_equal(pm_session_sync(fresh, ids, n, NULL, &stats, NULL), PM_OK);
    assert_int_equal(stats.computed, n);
    assert_non_null(pm_session_logits(session));
    if (memcmp(pm_session_logits(session), pm_session_logits(fresh), (size_t)c->vocab * sizeof(float)) != 0)
        fail_msg("%s: after %zu tokens the logits are not those of a session without a past", c->name, n);
    pm_session_free(fresh);
}

/* One turn: a question, the opening of the answer, the answer. `same` tokens are those of the turn before; returns how
 * many will be the same in the next turn, whose history is then in c->ids. */
static size_t turn(chat *c, pm_session *session, template_kind kind, size_t same)
{
    pm_result result;
    pm_error err = {0};
    add_random(c, QUESTION, -1);
    size_t mark = c->n;
    add_random(c, OPENING, -1);
    pm_prompt prompt = {.ids = c->ids, .n = c->n, .mark = mark};
    pm_generate_options options = {.max_tokens = ANSWER, .ignore_eos = true};
    if (pm_generate(session, &prompt, &options, &result, &err) != PM_OK)
        fail_msg("%s: %s", c->name, err.message);
    if (result.prompt.computed != c->n - same || result.prompt.reused != same)
        fail_msg(
            "%s, template %d: a prompt of %zu tokens, the first %zu of them as before, computed %zu and reused %zu",
            c->name, (int)kind, c->n, same, result.prompt.computed, result.prompt.reused);
    check_logits(c, session);
    assert_int_equal(result.n, ANSWER);
    if (kind == AS_IT_WAS) {
        memcpy(c->ids + c->n, result.ids, ANSWER * sizeof(pm_token));
        c->n += ANSWER;
        same = c->n - 1; /* the last one of an answer is not computed */
    } else if (kind == CHANGED) {
        same = c->n;
        add_random(c, 4, result.ids[0]);
    } else {
        c->n = same = mark;
        add_random(c, 6, c->ids[mark]);
    }
    pm_result_free(&result);
    return same;
}

static void check_chats(const char *dir, const char *name)
{
    pm_info info;
    pm_error err = {0};
    chat c = {.name = name};
    if (pm_engine_open(&c.engine, dir, NULL, &err) != PM_OK)
        fail_msg("%s: %s", name, err.message);
    pm_engine_info(c.engine, &info);
    c.vocab = info.vocab;
    for (template_kind kind = AS_IT_WAS; kind <= ALL_CHANGED; kind++) {
        pm_session *session = new_session(&c);
        size_t same = 0;
        c.n = 0;
        for (int t = 0; t < TURNS; t++)
            same = turn(&c, session, kind, same);
        pm_session_free(session);
    }
    pm_engine_close(c.engine);
}

/* Every checkpoint in a folder of tests. */
static void check_folder(const char *folder)
{
    char path[512];
    int found = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        snprintf(path, sizeof(path), "%s/%s/config.json", folder, entry->d_name);
        if (entry->d_name[0] == '.' || !pm_is_file(path))
            continue;
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        check_chats(path, entry->d_name);
        found++;
    }
    closedir(dir);
    assert_true(found > 0);
}

static void test_trained(void **state)
{
    (void)state;
    check_folder(SOURCE_DIR "/tests/models");
    check_folder(SOURCE_DIR "/models");
}

static void test_random(void **state)
{
    (void)state;
    check_folder(SOURCE_DIR "/tests/oracles");
}

/* Bytes of a saved session of n tokens: all that the layers remember of them. */
static long saved_bytes(const char *dir, size_t n)
{
    chat c = {.name = dir};
    char path[] = "/tmp/polymath-turns-XXXXXX";
    pm_info info;
    pm_error err = {0};
    struct stat file;
    int fd = mkstemp(path);
    assert_true(fd >= 0 && close(fd) == 0);
    if (pm_engine_open(&c.engine, dir, NULL, &err) != PM_OK)
        fail_msg("%s: %s", dir, err.message);
    pm_engine_info(c.engine, &info);
    c.vocab = info.vocab;
    pm_session *session = new_session(&c);
    pm_token *ids = calloc(n, sizeof(*ids));
    assert_non_null(ids);
    if (pm_session_sync(session, ids, n, NULL, NULL, &err) != PM_OK ||
        pm_session_save(session, path, NULL, 0, &err) != PM_OK)
        fail_msg("%s: %s", dir, err.message);
    assert_int_equal(stat(path, &file), 0);
    unlink(path);
    free(ids);
    pm_session_free(session);
    pm_engine_close(c.engine);
    return (long)file.st_size;
}

/* The memory of states is the same whatever the length; what a token adds is its rows (and its id). */
static void test_state_memory(void **state)
{
    static const char *const hybrids[] = {"lfm2-4bit", "lfm2_moe-4bit", "nemotron_h-4bit", "qwen3_5-4bit"};
    (void)state;
    for (size_t i = 0; i < PM_COUNT(hybrids); i++) {
        char path[512];
        pm_info small, large;
        pm_error err = {0};
        snprintf(path, sizeof(path), SOURCE_DIR "/tests/models/%s", hybrids[i]);
        if (pm_inspect(path, &(pm_engine_options){.ctx = 64}, &small, &err) != PM_OK ||
            pm_inspect(path, &(pm_engine_options){.ctx = 2048}, &large, &err) != PM_OK)
            fail_msg("%s: %s", hybrids[i], err.message);
        assert_true(small.state_bytes > 0);
        assert_int_equal(small.state_bytes, large.state_bytes);
        assert_int_equal(large.cache_bytes, large.state_bytes + 2048 * large.row_bytes);
        long more = saved_bytes(path, 500) - saved_bytes(path, 300);
        assert_int_equal(saved_bytes(path, 300) - saved_bytes(path, 100), more);
        assert_in_range(more, 200 * sizeof(pm_token), 200 * (large.row_bytes + sizeof(pm_token)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trained),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_state_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
