/* Saved sessions: what comes back is what went in, bit for bit, and nothing else comes back. */
#include "base/base.h"

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define BUNDLED SOURCE_DIR "/models/default"
#define ORACLES SOURCE_DIR "/tests/oracles/"

enum { LENGTH = 90, MORE = 20, NAME = 20 /* where a file has the model_type */ };

static char folder[64], file[96];

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/polymath-saved-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof(file), "%s/session", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(file);
    return rmdir(folder); /* fails when something was left behind */
}

static pm_engine *open_engine(const char *dir, pm_kv_type kv, int ctx)
{
    pm_engine *engine;
    pm_error err = {0};
    if (pm_engine_open(&engine, dir, &(pm_engine_options){.threads = 1, .kv_type = kv, .ctx = ctx}, &err) != PM_OK)
        fail_msg("%s", err.message);
    return engine;
}

static int vocab_of(const pm_engine *engine)
{
    pm_info info;
    pm_engine_info(engine, &info);
    return info.vocab;
}

static void fill(pm_token *ids, size_t n, int vocab)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = (pm_token)((i * i * 37 + i * 11 + 5) % (size_t)vocab);
}

static void sync_to(pm_session *session, const pm_token *ids, size_t n, size_t mark, size_t *computed)
{
    pm_sync_stats stats;
    pm_error err = {0};
    if (pm_session_sync(session, ids, n, &(pm_sync_options){.mark = mark}, &stats, &err) != PM_OK)
        fail_msg("%s", err.message);
    if (computed)
        *computed = stats.computed;
}

static void save(const pm_session *session, const char *note)
{
    pm_error err = {0};
    if (pm_session_save(session, file, note, note ? strlen(note) : 0, &err) != PM_OK)
        fail_msg("%s", err.message);
}

static pm_session *load(pm_engine *engine, char **note, size_t *len)
{
    pm_session *session;
    pm_error err = {0};
    if (pm_session_load(&session, engine, file, note, len, &err) != PM_OK)
        fail_msg("%s", err.message);
    return session;
}

static void same_logits(const pm_session *a, const pm_session *b, int vocab, const char *what)
{
    const float *x = pm_session_logits(a), *y = pm_session_logits(b);
    assert_non_null(x);
    assert_non_null(y);
    if (memcmp(x, y, (size_t)vocab * sizeof(float)) != 0)
        fail_msg("%s: other logits", what);
}

/* A session and its copy, loaded by an engine of its own, go on alike: the next tokens, the way back to a snapshot, and
 * what that costs. */
static void check_round_trip(const char *dir, pm_kv_type kv)
{
    pm_engine *one = open_engine(dir, kv, 0), *two = open_engine(dir, kv, 0);
    pm_session *session, *copy;
    pm_token ids[LENGTH + MORE];
    const pm_token *tokens;
    char *note = NULL;
    size_t len = 42, cost[2];
    int vocab = vocab_of(one);
    fill(ids, LENGTH + MORE, vocab);
    assert_int_equal(pm_session_new(&session, one, NULL), PM_OK);
    sync_to(session, ids, 40, 0, NULL);
    sync_to(session, ids, LENGTH, 64, NULL);
    save(session, "a note");
    copy = load(two, &note, &len);
    assert_int_equal(len, 6);
    assert_string_equal(note, "a note");
    pm_free(note);
    assert_int_equal(pm_session_tokens(copy, &tokens), LENGTH);
    assert_memory_equal(tokens, ids, LENGTH * sizeof(*ids));
    same_logits(session, copy, vocab, dir);
    sync_to(session, ids, LENGTH + MORE, 0, &cost[0]);
    sync_to(copy, ids, LENGTH + MORE, 0, &cost[1]);
    assert_int_equal(cost[0], MORE);
    assert_int_equal(cost[1], MORE);
    same_logits(session, copy, vocab, dir);
    for (size_t back = 70; back >= 30; back -= 20) {
        sync_to(session, ids, back, 0, &cost[0]);
        sync_to(copy, ids, back, 0, &cost[1]);
        assert_int_equal(cost[0], cost[1]);
        same_logits(session, copy, vocab, "rolled back");
    }
    pm_session_free(session);
    pm_session_free(copy);
    pm_engine_close(one);
    pm_engine_close(two);
}

static void test_round_trips(void **state)
{
    static const char *const models[] = {BUNDLED,           ORACLES "qwen3_next", ORACLES "qwen3_5",   ORACLES "qwen3",
                                         ORACLES "mistral", ORACLES "lfm2_moe",   ORACLES "nemotron_h"};
    (void)state;
    for (size_t i = 0; i < PM_COUNT(models); i++)
        for (int kv = 0; kv <= PM_KV_Q8; kv++)
            check_round_trip(models[i], (pm_kv_type)kv);
}

/* Empty timelines and no note; a second save replaces the first; a session at the context's end. */
static void test_edges(void **state)
{
    pm_engine *engine = open_engine(ORACLES "qwen3", PM_KV_F16, LENGTH);
    pm_session *session, *copy;
    pm_token ids[LENGTH];
    struct stat status;
    char *note = NULL;
    size_t len = 42;
    (void)state;
    assert_int_equal(pm_session_new(&session, engine, NULL), PM_OK);
    save(session, NULL);
    assert_int_equal(stat(file, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
    copy = load(engine, &note, &len);
    assert_int_equal(len, 0);
    assert_string_equal(note, "");
    pm_free(note);
    assert_int_equal(pm_session_tokens(copy, NULL), 0);
    assert_null(pm_session_logits(copy));
    pm_session_free(copy);

    fill(ids, LENGTH, vocab_of(engine));
    sync_to(session, ids, LENGTH, 0, NULL);
    save(session, "x");
    copy = load(engine, NULL, NULL);
    same_logits(session, copy, vocab_of(engine), "full context");
    save(copy, "x"); /* over the file that it came from */
    pm_session_free(session);
    session = load(engine, NULL, &len);
    assert_int_equal(len, 1);
    same_logits(session, copy, vocab_of(engine), "twice");
    pm_session_free(session);
    pm_session_free(copy);
    pm_engine_close(engine);
}

static void refused(pm_engine *engine, const char *path, int code, const char *part)
{
    pm_session *session = (pm_session *)&folder;
    char *note = folder;
    size_t len = 42;
    pm_error err = {0};
    int status = pm_session_load(&session, engine, path, &note, &len, &err);
    if (status != code || !strstr(err.message, part) || !strstr(err.message, path))
        fail_msg("status %d, '%s', which should be %d and name %s and '%s'", status, err.message, code, path, part);
    assert_ptr_equal(session, &folder);
    assert_ptr_equal(note, folder);
    assert_int_equal(len, 42);
}

static void write_file(const char *data, size_t n)
{
    FILE *out = fopen(file, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, n, out), n);
    fclose(out);
}

/* Writes data[0..n), whose last 8 bytes become the right checksum of the others. */
static void write_sealed(char *data, size_t n)
{
    pm_hash hash;
    pm_hash_start(&hash);
    pm_hash_add(&hash, data, n - 8);
    uint64_t value = pm_hash_value(&hash);
    memcpy(data + n - 8, &value, 8);
    write_file(data, n);
}

/* A saved session of a tiny hybrid as bytes. */
static void make_saved(pm_engine *engine, size_t n, pm_buf *out)
{
    pm_session *session;
    pm_token ids[LENGTH];
    fill(ids, n, vocab_of(engine));
    assert_int_equal(pm_session_new(&session, engine, NULL), PM_OK);
    sync_to(session, ids, n, 0, NULL);
    save(session, "note");
    pm_session_free(session);
    assert_int_equal(pm_read_file(file, 1 << 24, out, NULL), PM_OK);
}

static void test_foreign(void **state)
{
    pm_engine *own = open_engine(ORACLES "qwen3_next", PM_KV_F16, 0),
              *wide = open_engine(ORACLES "qwen3_next", PM_KV_F32, 0),
              *eight = open_engine(ORACLES "qwen3_next", PM_KV_Q8, 0),
              *narrow = open_engine(ORACLES "qwen3_next", PM_KV_F16, 10),
              *other = open_engine(ORACLES "qwen3_next-sparse", PM_KV_F16, 0),
              *stranger = open_engine(ORACLES "qwen3", PM_KV_F16, 0);
    pm_engine *quick = NULL;
    pm_buf saved = {0};
    pm_error err = {0};
    (void)state;
    if (pm_engine_open(&quick, ORACLES "qwen3_next", &(pm_engine_options){.precision = PM_PRECISION_FAST}, &err))
        fail_msg("%s", err.message);
    make_saved(quick, 30, &saved);
    refused(own, file, PM_ERR_INVALID, "in the precision fast; this engine's is exact");
    pm_buf_free(&saved);
    make_saved(own, 30, &saved);
    refused(quick, file, PM_ERR_INVALID, "in the precision exact; this engine's is fast");
    refused(stranger, file, PM_ERR_INVALID, "'qwen3_next'; this model's type is 'qwen3'");
    refused(other, file, PM_ERR_INVALID, "another 'qwen3_next' checkpoint");
    refused(wide, file, PM_ERR_INVALID, "KV type f16; this engine's is f32");
    refused(eight, file, PM_ERR_INVALID, "KV type f16; this engine's is q8");
    refused(narrow, file, PM_ERR_LIMIT, "30 tokens, more than the context of 10");
    refused(own, folder, PM_ERR_IO, "not a regular file");
    refused(own, "/nowhere/session", PM_ERR_IO, "cannot be opened");
    saved.data[8] = 1;
    write_file(saved.data, saved.len);
    refused(own, file, PM_ERR_UNSUPPORTED, "version 1; this build reads version 2");
    saved.data[8] = 2;
    /* A name that would spoil the message: no UTF-8, a control character, something after its end. */
    static const struct {
        size_t at;
        char byte;
    } spoilt[] = {{NAME + 2, '\x87'}, {NAME + 2, '\033'}, {NAME + 60, 'x'}, {NAME + 63, 'x'}};
    for (size_t i = 0; i < PM_COUNT(spoilt); i++) {
        char was = saved.data[spoilt[i].at];
        saved.data[spoilt[i].at] = spoilt[i].byte;
        write_file(saved.data, saved.len);
        refused(own, file, PM_ERR_FORMAT, "its model_type is not a name");
        saved.data[spoilt[i].at] = was;
    }
    saved.data[0] ^= 1;
    write_file(saved.data, saved.len);
    refused(own, file, PM_ERR_FORMAT, "not a saved session");
    write_file("{\"model_type\":\"qwen3_next\"}", 27);
    refused(own, file, PM_ERR_FORMAT, "not a saved session");
    pm_buf_free(&saved);
    pm_engine *all[] = {own, wide, eight, narrow, other, stranger, quick};
    for (size_t i = 0; i < PM_COUNT(all); i++)
        pm_engine_close(all[i]);
}

/* Any cut, anything appended, any changed bit. */
static void test_damaged(void **state)
{
    pm_engine *engine = open_engine(ORACLES "qwen3_next", PM_KV_F16, 0);
    pm_session *session;
    pm_error err;
    pm_buf saved = {0};
    uint64_t random = 1;
    (void)state;
    make_saved(engine, 30, &saved);
    for (size_t n = 0; n < saved.len; n += n < 200 ? 1 : saved.len / 37) {
        write_file(saved.data, n);
        refused(engine, file, PM_ERR_FORMAT, n < 16 ? "not a saved session" : n < 140 ? "ends" : "bytes long");
    }
    assert_int_equal(pm_buf_add(&saved, "x", 1), PM_OK);
    write_file(saved.data, saved.len);
    refused(engine, file, PM_ERR_FORMAT, "bytes long");
    saved.len--;
    for (int i = 0; i < 300; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t at = i < 136 ? (size_t)i : (size_t)(random >> 20) % saved.len;
        char bit = (char)(1 << (random >> 10) % 8);
        saved.data[at] ^= bit;
        write_file(saved.data, saved.len);
        if (pm_session_load(&session, engine, file, NULL, NULL, &err) == PM_OK)
            fail_msg("byte %zu was changed, and the file was taken", at);
        if (!strstr(err.message, file))
            fail_msg("'%s' does not name the file", err.message);
        if (i >= 136)
            assert_int_equal(err.code, PM_ERR_FORMAT);
        saved.data[at] ^= bit;
    }
    write_file(saved.data, saved.len);
    assert_int_equal(pm_session_load(&session, engine, file, NULL, NULL, &err), PM_OK);
    pm_session_free(session);
    pm_buf_free(&saved);
    pm_engine_close(engine);
}

/* Files with a right checksum but any content: a load fails or gives a session that can be worked with. */
static void test_forged(void **state)
{
    static const uint64_t values[] = {0,      1,          2,          7,          64,         65,
                                      0xffff, 0x7fffffff, 0xffffffff, 1ull << 40, 1ull << 63, ~0ull};
    pm_engine *engine = open_engine(ORACLES "qwen3_next", PM_KV_F16, 0);
    pm_buf saved = {0};
    pm_token ids[3] = {1, 2, 3};
    uint64_t random = 7;
    int taken = 0;
    (void)state;
    make_saved(engine, 30, &saved);
    char *data = malloc(saved.len);
    assert_non_null(data);
    for (int i = 0; i < 1500; i++) {
        memcpy(data, saved.data, saved.len);
        for (int k = 0; k < 1 + i % 3; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            /* the numbers of the header, or anywhere in the note, the tokens and beyond */
            size_t at = i % 4 ? 84 + (size_t)(random >> 40) % 14 * 4 : (size_t)(random >> 30) % (saved.len - 16);
            memcpy(data + at, &values[(random >> 20) % PM_COUNT(values)], i % 2 ? 4 : 8);
        }
        write_sealed(data, saved.len);
        pm_session *session = NULL;
        pm_error err = {0};
        if (pm_session_load(&session, engine, file, NULL, NULL, &err) != PM_OK) {
            assert_non_null(strstr(err.message, file));
            continue;
        }
        taken++;
        (void)pm_session_sync(session, ids, 3, NULL, NULL, &err); /* values that are not finite may fail it */
        pm_session_free(session);
    }
    assert_in_range(taken, 1, 1499);
    free(data);
    pm_buf_free(&saved);
    pm_engine_close(engine);
}

/* A save that fails leaves the old file and nothing else; what is no regular file stays. */
static void test_save_refusals(void **state)
{
    pm_engine *engine = open_engine(ORACLES "qwen3", PM_KV_F16, 0);
    pm_session *session;
    pm_error err = {0};
    char path[160];
    (void)state;
    assert_int_equal(pm_session_new(&session, engine, NULL), PM_OK);
    snprintf(path, sizeof(path), "%s/missing/session", folder);
    assert_int_equal(pm_session_save(session, path, NULL, 0, &err), PM_ERR_IO);
    assert_non_null(strstr(err.message, path));
    assert_int_equal(pm_session_save(session, folder, NULL, 0, &err), PM_ERR_IO);
    assert_non_null(strstr(err.message, "not a regular file"));
    assert_int_equal(pm_session_save(session, "/dev/null", NULL, 0, &err), PM_ERR_IO);
    assert_non_null(strstr(err.message, "/dev/null"));
    assert_int_equal(pm_session_save(session, "", NULL, 0, &err), PM_ERR_IO);

    struct stat before, after;
    struct rlimit limit, small;
    pm_token ids[50];
    fill(ids, 50, vocab_of(engine));
    save(session, "old");
    sync_to(session, ids, 50, 0, NULL);
    assert_int_equal(stat(file, &before), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit;
    small.rlim_cur = 1000; /* bytes: as if the disk were full */
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int status = pm_session_save(session, file, NULL, 0, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(status, PM_ERR_IO);
    assert_non_null(strstr(err.message, file));
    assert_int_equal(stat(file, &after), 0);
    assert_true(before.st_ino == after.st_ino && before.st_size == after.st_size);
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        if (entry->d_name[0] != '.' && strcmp(entry->d_name, "session") != 0)
            fail_msg("%s was left behind", entry->d_name);
    closedir(dir);
    pm_session_free(session);
    pm_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips), cmocka_unit_test(test_edges),  cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_damaged),     cmocka_unit_test(test_forged), cmocka_unit_test(test_save_refusals),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
