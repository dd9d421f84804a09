/* Kept timelines on disk, on checkpoints: a restart costs reading, and what is read says what was computed. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"

#define MODELS SOURCE_DIR "/tests/models/"

enum { PROMPT = 200, ANSWER = 24, MORE = 40 };

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/polymath-disk-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    DIR *dir = opendir(folder);
    for (struct dirent *item; dir && (item = readdir(dir));) {
        char path[400];
        snprintf(path, sizeof(path), "%s/%s", folder, item->d_name);
        if (item->d_name[0] != '.')
            unlink(path);
    }
    closedir(dir);
    return rmdir(folder);
}

typedef struct server {
    pm_engine *engine;
    pm_scheduler *scheduler;
} server;

static server start(const char *model, pm_kv_type kv, bool disk)
{
    server s;
    pm_error err;
    pm_engine_options options = {.threads = 1, .kv_type = kv};
    if (pm_engine_open(&s.engine, model, &options, &err) != PM_OK ||
        pm_scheduler_new(&s.scheduler, s.engine, &(pm_scheduler_options){.cache_dir = disk ? folder : NULL}, &err) !=
            PM_OK)
        fail_msg("%s: %s", model, err.message);
    return s;
}

static void stop(server *s)
{
    pm_scheduler_free(s->scheduler);
    pm_engine_close(s->engine);
}

static void on_end(void *user, int status, const pm_error *err, pm_result *result)
{
    if (status != PM_OK)
        fail_msg("%s", err->message);
    *(pm_result *)user = *result;
}

/* The greedy answer with its log-probabilities. */
static pm_result answer_to(server *s, const pm_token *ids, size_t n)
{
    pm_result result = {0};
    pm_request *request;
    pm_error err;
    pm_prompt prompt = {.ids = (pm_token *)ids, .n = n, .mark = n - 4};
    pm_generate_options options = {
        .sampling = {.top_p = 1}, .max_tokens = ANSWER, .logprobs = true, .ignore_eos = true, .user = &result};
    if (pm_request_new(&request, s->scheduler, &prompt, &options, on_end, &err) != PM_OK)
        fail_msg("%s", err.message);
    while (pm_scheduler_step(s->scheduler))
        ;
    assert_int_equal(result.n, ANSWER);
    return result;
}

static void same(const char *what, const pm_result *a, const pm_result *b)
{
    for (int i = 0; i < ANSWER; i++)
        if (a->ids[i] != b->ids[i] || a->logprobs[i] != b->logprobs[i])
            fail_msg("%s: token %d is %d (%.9g), without the disk %d (%.9g)", what, i, b->ids[i],
                     (double)b->logprobs[i], a->ids[i], (double)a->logprobs[i]);
}

static void check_model(const char *model, pm_kv_type kv, bool states)
{
    pm_token ids[PROMPT + ANSWER + MORE];
    pm_scheduler_info info;
    pm_result want[2], got[2];
    for (size_t i = 0; i < PROMPT; i++)
        ids[i] = (pm_token)((i * i * 37 + i * 11 + 5) % 3000);
    server s = start(model, kv, false);
    want[0] = answer_to(&s, ids, PROMPT);
    memcpy(ids + PROMPT, want[0].ids, ANSWER * sizeof(pm_token));
    for (size_t i = PROMPT + ANSWER; i < PROMPT + ANSWER + MORE; i++)
        ids[i] = (pm_token)(i % 1000);
    want[1] = answer_to(&s, ids, PROMPT + ANSWER + MORE);
    stop(&s);

    s = start(model, kv, true);
    got[0] = answer_to(&s, ids, PROMPT);
    same(model, &want[0], &got[0]);
    assert_int_equal(got[0].prompt.computed, PROMPT);
    pm_result_free(&got[0]);
    stop(&s);

    /* the history that has grown, after a restart: what is new, and the token that the answer ended with */
    s = start(model, kv, true);
    got[1] = answer_to(&s, ids, PROMPT + ANSWER + MORE);
    same(model, &want[1], &got[1]);
    assert_int_equal(got[1].prompt.computed, MORE + 1);
    pm_result_free(&got[1]);
    stop(&s);

    /* the same prompts again, after another */
    s = start(model, kv, true);
    for (int i = 0; i < 2; i++) {
        got[i] = answer_to(&s, ids, i ? PROMPT + ANSWER + MORE : PROMPT);
        same(model, &want[i], &got[i]);
        assert_int_equal(got[i].prompt.computed, states ? 0 : 1);
        pm_result_free(&got[i]);
    }
    pm_scheduler_describe(s.scheduler, &info);
    assert_int_equal(info.fetched, 1);
    assert_int_equal(info.disk_ignored, 0);
    assert_int_equal(info.disk_failed, 0);
    stop(&s);
    pm_result_free(&want[0]);
    pm_result_free(&want[1]);
}

static void test_bundled(void **state)
{
    (void)state;
    check_model(SOURCE_DIR "/models/default", PM_KV_F16, true);
}

static void test_short_convolutions(void **state)
{
    (void)state;
    check_model(MODELS "lfm2-4bit", PM_KV_F32, true);
}

static void test_mamba(void **state)
{
    (void)state;
    check_model(MODELS "nemotron_h-4bit", PM_KV_Q8, true);
}

static void test_compressed_rows(void **state)
{
    (void)state;
    check_model(MODELS "deepseek_v4-bf16", PM_KV_F16, true);
}

static void test_attention_alone(void **state)
{
    (void)state;
    check_model(MODELS "qwen3_moe-4bit", PM_KV_F16, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_bundled, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_short_convolutions, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_mamba, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_compressed_rows, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_attention_alone, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
