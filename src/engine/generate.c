/* pm_generate: a prompt, then one token after the other. */
#include "engine/generation.h"
#include "engine/session.h"

#include <stdlib.h>
#include <string.h>

/* What a call to pm_generate works with. */
typedef struct pm_run {
    pm_session *session;
    const pm_generate_options *options;
    pm_generation generation;
    bool refused;        /* on_text asked to end */
    double start, first; /* when the call began, when the first token was there */
    pm_sync_stats prompt;
    double prompt_seconds;
} pm_run;

/* Gives new text to the caller, who may have had enough of it. */
static void deliver(pm_run *run)
{
    size_t len;
    const char *text = pm_generation_take(&run->generation, &len);
    if (len && run->options->on_text && !run->refused)
        run->refused = run->options->on_text(run->options->user, text, len) != 0;
}

/* Samples until the answer is complete. PM_ERR_CANCELLED when the session was cancelled. */
static int decode(pm_run *run, pm_error *err)
{
    pm_session *session = run->session;
    pm_generation *generation = &run->generation;
    for (;;) {
        pm_token id;
        int status = pm_generation_next(generation, session->logits, &id, err);
        if (status != PM_OK)
            return status;
        if (generation->n == 1)
            run->first = pm_now();
        pm_generation_tell(generation, run->options);
        deliver(run);
        if (generation->done)
            return PM_OK;
        if (run->refused || pm_session_cancelled(session))
            return pm_fail(err, PM_ERR_CANCELLED, "cancelled");
        status = pm_step(session->engine, &(pm_work){.session = session, .tokens = &id, .n = 1}, 1, err);
        if (status != PM_OK)
            return status;
    }
}

/* Hands the answer over. */
static void fill_result(pm_run *run, pm_result *out)
{
    pm_generation_result(&run->generation, out);
    out->prompt = run->prompt;
    out->prompt_seconds = run->prompt_seconds;
    if (out->n) {
        out->first_token_seconds = run->first - run->start;
        out->decode_seconds = pm_now() - run->first;
    }
}

void pm_engine_answer_defaults(const pm_engine *engine, pm_generate_options *out)
{
    *out = (pm_generate_options){.sampling = engine->defaults.sampling, .max_tokens = engine->defaults.max_tokens};
}

int pm_engine_answer(const pm_engine *engine, const pm_prompt *prompt, const pm_generate_options *options, size_t room,
                     pm_generation *out, pm_error *err)
{
    pm_generation_model model = {.tokenizer = engine->tokenizer,
                                 .stops = engine->stops,
                                 .n_stops = engine->n_stops,
                                 .vocab = engine->vocab,
                                 .newline = engine->newline,
                                 .markers = engine->markers,
                                 .n_markers = options->markers ? engine->n_markers : 0};
    size_t limit = prompt->n < room ? room - prompt->n : 1;
    if (options->max_tokens && options->max_tokens < limit)
        limit = options->max_tokens;
    pm_generation made;
    int status = pm_generation_init(&made, &model, options, limit, err);
    if (status != PM_OK)
        return status;
    if (options->constraint)
        status = pm_generation_constrain(&made, options->constraint, prompt->reasoning, err);
    if (status != PM_OK) {
        pm_generation_free(&made);
        return status;
    }
    pm_generation_prompt(&made, prompt->ids, prompt->n);
    *out = made;
    return PM_OK;
}

int pm_generate(pm_session *session, const pm_prompt *prompt, const pm_generate_options *options, pm_result *out,
                pm_error *err)
{
    pm_engine *engine = session->engine;
    pm_generate_options defaults;
    pm_engine_answer_defaults(engine, &defaults);
    pm_run run = {.session = session, .options = options ? options : &defaults, .start = pm_now()};
    pm_error cause;
    int status = pm_engine_answer(engine, prompt, run.options, (size_t)engine->ctx, &run.generation, err);
    if (status != PM_OK)
        return status;
    pm_sync_options sync = {.mark = prompt->mark, .progress = run.options->on_prompt, .user = run.options->user};
    status = pm_session_sync(session, prompt->ids, prompt->n, &sync, &run.prompt, &cause);
    run.prompt_seconds = pm_now() - run.start;
    if (status == PM_OK)
        status = decode(&run, &cause);
    if (status == PM_ERR_CANCELLED) {
        status = pm_generation_end(&run.generation, PM_FINISH_CANCELLED, &cause);
        if (status == PM_OK)
            deliver(&run);
    }
    if (status == PM_OK) {
        pm_snapshot_take(session);
        fill_result(&run, out);
    } else if (err) {
        *err = cause;
    }
    pm_generation_free(&run.generation);
    return status;
}

void pm_result_free(pm_result *result)
{
    if (!result)
        return;
    free(result->text);
    free(result->ids);
    free(result->logprobs);
    free(result->top);
    *result = (pm_result){0};
}
