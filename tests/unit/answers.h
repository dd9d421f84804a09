/* Requests of a scheduler over the toy of toy.h, and what becomes of them. */
#ifndef ANSWERS_H
#define ANSWERS_H

#include "toy.h"

#include "engine/scheduler.h"

enum { MOST = 64 };

/* What became of a request. */
typedef struct answer {
    pm_request *request;
    bool ended;
    int status, texts;
    char message[sizeof(((pm_error *)0)->message)];
    pm_result result;
    int stop_after; /* on_text refuses the text of that number; 0: none */
    size_t read;    /* as on_prompt says */
} answer;

static pm_config config; /* tells the toy's checkpoints apart */
static pm_engine *engine;
static pm_scheduler *scheduler;
static pm_tokenizer *tokenizer;
static answer answers[MOST];

static void on_end(void *user, int status, const pm_error *err, pm_result *result)
{
    answer *a = user;
    assert_false(a->ended);
    a->ended = true;
    a->status = status;
    a->result = *result;
    snprintf(a->message, sizeof(a->message), "%s", status == PM_OK ? "" : err->message);
}

static int on_text(void *user, const char *text, size_t len)
{
    answer *a = user;
    assert_true(len > 0 && text);
    return ++a->texts == a->stop_after;
}

static void on_prompt(void *user, size_t done, size_t total)
{
    answer *a = user;
    assert_true(done > a->read && done <= total);
    a->read = done;
}

static pm_generate_options options_of(size_t max_tokens, uint64_t random)
{
    return (pm_generate_options){.sampling = {.temperature = random ? 1 : 0, .top_p = 1, .seed = random},
                                 .max_tokens = max_tokens,
                                 .on_text = on_text,
                                 .on_prompt = on_prompt};
}

static void begin(bool states, const pm_scheduler_options *options)
{
    pm_error err = {0};
    engine = new_engine(states);
    engine->config = &config;
    engine->tokenizer = tokenizer;
    engine->newline = -1;
    memset(answers, 0, sizeof(answers));
    if (pm_scheduler_new(&scheduler, engine, options, &err) != PM_OK)
        fail_msg("%s", err.message);
}

static void finish(void)
{
    pm_scheduler_free(scheduler);
    for (int i = 0; i < MOST; i++)
        pm_result_free(&answers[i].result);
    assert_int_equal(engine->logits_held, 0);
    assert_int_equal(world.bytes, 0);
    free_engine(engine);
}

static int submit(int i, const pm_token *ids, size_t n, size_t mark, pm_generate_options options)
{
    pm_prompt prompt = {.ids = (pm_token *)ids, .n = n, .mark = mark};
    pm_error err = {0};
    options.user = &answers[i];
    int status = pm_request_new(&answers[i].request, scheduler, &prompt, &options, on_end, &err);
    snprintf(answers[i].message, sizeof(answers[i].message), "%s", err.message);
    return status;
}

static void ask(int i, const pm_token *ids, size_t n, size_t mark, pm_generate_options options)
{
    if (submit(i, ids, n, mark, options) != PM_OK)
        fail_msg("request %d: %s", i, answers[i].message);
}

/* Steps until all requests have ended, within the bound of memory. */
static void run(void)
{
    pm_scheduler_info info;
    while (pm_scheduler_step(scheduler)) {
        pm_scheduler_describe(scheduler, &info);
        if (info.held_bytes > info.cache_bytes)
            fail_msg("%llu bytes are held, more than %llu", (unsigned long long)info.held_bytes,
                     (unsigned long long)info.cache_bytes);
    }
}

/* Compares an answer with that of pm_generate on a session of its own. */
static void same_alone(int i, const pm_token *ids, size_t n, pm_generate_options options)
{
    pm_prompt prompt = {.ids = (pm_token *)ids, .n = n};
    pm_session *session = new_session(engine);
    pm_result alone;
    const pm_result *got = &answers[i].result;
    options.on_text = NULL;
    options.on_prompt = NULL;
    assert_int_equal(pm_generate(session, &prompt, &options, &alone, NULL), PM_OK);
    if (!answers[i].ended || answers[i].status != PM_OK)
        fail_msg("request %d: %s", i, answers[i].ended ? answers[i].message : "has not ended");
    if (alone.n != got->n || memcmp(alone.ids, got->ids, got->n * sizeof(pm_token)) != 0 ||
        strcmp(alone.text, got->text) != 0 || alone.finish != got->finish)
        fail_msg("request %d: %zu tokens (%s), alone %zu (%s)", i, got->n, got->text, alone.n, alone.text);
    pm_result_free(&alone);
    pm_session_free(session);
}

static int open_tokenizer(void **state)
{
    (void)state;
    pm_error err;
    config.root = config.text = json_pack("{s:s}", "model_type", "toy");
    if (config.root && pm_tokenizer_open(&tokenizer, SOURCE_DIR "/models/default", &err) == PM_OK)
        return 0;
    fprintf(stderr, "%s\n", err.message);
    return 1;
}

static int close_tokenizer(void **state)
{
    (void)state;
    pm_tokenizer_close(tokenizer);
    json_decref(config.root);
    return 0;
}

#endif
