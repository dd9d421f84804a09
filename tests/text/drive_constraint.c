/* Answers held to constraints, for pytest, by the public header only.
 *
 * Argument: the directory of a model. JSON lines on stdin: {"schema", "json_object", "tools", "function", "parallel"}
 * as in pm_constraint_options; {"prompt", "reasoning"}: a text, and whether it left a reasoning block open;
 * {"temperature", "seed", "max_tokens", "bias": [[id, bias], ...]}; "answers": how many, of seeds that count up;
 * "together": by a scheduler. For each an answer line [{"text", "finish", "ids", "logprobs", "message"}, ...], where
 * message is what pm_parse_message makes of the text, or {"error", "code"}. */
#include "polymath.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const finishes[] = {"stop", "length", "cancelled"};

typedef struct question {
    const json_t *line;
    pm_prompt prompt;
    pm_constraint *constraint;
    pm_bias *bias;
    int n_bias;
    json_t *answers;
    pm_engine *engine;
} question;

static const char *text_of(const json_t *line, const char *name)
{
    return json_string_value(json_object_get(line, name));
}

static double number_of(const json_t *line, const char *name)
{
    return json_number_value(json_object_get(line, name));
}

static pm_generate_options options_of(const question *q, int answer)
{
    pm_generate_options options = {.constraint = q->constraint, .markers = true, .logprobs = true};
    options.max_tokens = (size_t)number_of(q->line, "max_tokens");
    options.sampling = (pm_sampling){.temperature = (float)number_of(q->line, "temperature"), .top_p = 1};
    options.sampling.seed = (uint64_t)number_of(q->line, "seed") + (uint64_t)answer;
    options.sampling.bias = q->bias;
    options.sampling.n_bias = q->n_bias;
    return options;
}

static json_t *failure(const pm_error *err)
{
    return json_pack("{s:s, s:i}", "error", err->message, "code", (int)err->code);
}

static json_t *show(const question *q, const pm_result *result)
{
    pm_error err;
    char *message = NULL;
    pm_parser_options options = {.tools = text_of(q->line, "tools"),
                                 .no_calls = !text_of(q->line, "tools"),
                                 .reasoning = json_is_true(json_object_get(q->line, "reasoning"))};
    json_t *ids = json_array(), *logprobs = json_array();
    for (size_t i = 0; i < result->n; i++) {
        json_array_append_new(ids, json_integer(result->ids[i]));
        json_array_append_new(logprobs, json_real((double)result->logprobs[i]));
    }
    if (pm_parse_message(q->engine, &options, result->text, result->len, &message, &err) != PM_OK)
        return failure(&err);
    json_t *out = json_pack("{s:s%, s:s, s:o, s:o, s:s}", "text", result->text, result->len, "finish",
                            finishes[result->finish], "ids", ids, "logprobs", logprobs, "message", message);
    pm_free(message);
    return out;
}

static void on_end(void *user, int status, const pm_error *err, pm_result *result)
{
    question *q = user;
    json_array_append_new(q->answers, status == PM_OK ? show(q, result) : failure(err));
    pm_result_free(result);
}

static int one_by_one(question *q, int n, pm_error *err)
{
    for (int i = 0; i < n; i++) {
        pm_session *session;
        pm_result result;
        pm_generate_options options = options_of(q, i);
        int status = pm_session_new(&session, q->engine, err);
        if (status != PM_OK)
            return status;
        status = pm_generate(session, &q->prompt, &options, &result, err);
        pm_session_free(session);
        if (status != PM_OK)
            return status;
        on_end(q, status, err, &result);
    }
    return PM_OK;
}

static int together(question *q, int n, pm_error *err)
{
    pm_scheduler *scheduler;
    pm_request *request;
    pm_scheduler_options with = {.parallel = 4};
    int status = pm_scheduler_new(&scheduler, q->engine, &with, err);
    for (int i = 0; i < n && status == PM_OK; i++) {
        pm_generate_options options = options_of(q, i);
        options.user = q;
        status = pm_request_new(&request, scheduler, &q->prompt, &options, on_end, err);
    }
    while (status == PM_OK && pm_scheduler_step(scheduler))
        ;
    pm_scheduler_free(scheduler);
    return status;
}

static int ask(question *q, pm_error *err)
{
    const json_t *line = q->line, *bias = json_object_get(line, "bias"), *pair;
    const char *prompt = text_of(line, "prompt");
    pm_constraint_options options = {.schema = text_of(line, "schema"),
                                     .json_object = json_is_true(json_object_get(line, "json_object")),
                                     .tools = text_of(line, "tools"),
                                     .function = text_of(line, "function"),
                                     .parallel = json_is_true(json_object_get(line, "parallel"))};
    size_t i;
    q->bias = calloc(json_array_size(bias) + 1, sizeof(*q->bias));
    json_array_foreach((json_t *)bias, i, pair)
    {
        pm_token id = (pm_token)json_integer_value(json_array_get(pair, 0));
        q->bias[q->n_bias++] = (pm_bias){id, (float)json_number_value(json_array_get(pair, 1))};
    }
    int status = pm_constraint_new(&q->constraint, q->engine, &options, err);
    if (status == PM_OK)
        status = pm_text_prompt(q->engine, prompt, strlen(prompt), &q->prompt, err);
    q->prompt.reasoning = json_is_true(json_object_get(line, "reasoning"));
    int n = (int)number_of(line, "answers");
    if (status == PM_OK)
        status = (json_is_true(json_object_get(line, "together")) ? together : one_by_one)(q, n, err);
    pm_prompt_free(&q->prompt);
    pm_constraint_free(q->constraint);
    free(q->bias);
    return status;
}

int main(int argc, char **argv)
{
    char *line = NULL;
    size_t cap = 0;
    int failed = 0;
    pm_engine *engine;
    pm_error err;
    pm_engine_options options = {.threads = 1};
    if (argc < 2 || pm_engine_open(&engine, argv[1], &options, &err) != PM_OK) {
        fprintf(stderr, "%s\n", argc < 2 ? "no MODEL" : err.message);
        return 2;
    }
    for (ssize_t n; !failed && (n = getline(&line, &cap, stdin)) > 0;) {
        json_t *in = json_loadb(line, (size_t)n, 0, NULL);
        question q = {.line = in, .answers = json_array(), .engine = engine};
        json_t *out = ask(&q, &err) == PM_OK ? json_incref(q.answers) : failure(&err);
        failed = json_dumpf(out, stdout, JSON_COMPACT) != 0;
        putchar('\n');
        fflush(stdout);
        json_decref(q.answers);
        json_decref(out);
        json_decref(in);
    }
    free(line);
    pm_engine_close(engine);
    return failed;
}
