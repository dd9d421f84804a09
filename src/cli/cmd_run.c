/* polymath run: one answer. */
#include "cli.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the words of the command line say. */
struct request {
    const char *model; /* NULL: the bundled one */
    char *text;        /* NULL with --ids */
    size_t len;
};

/* Takes the prompt out of a word, or out of stdin for "-". The last newline of a piped message is the shell's, not the
 * user's; --raw keeps every byte. */
static int read_prompt(const char *word, bool raw, struct request *out)
{
    bool from_stdin = strcmp(word, "-") == 0;
    if (from_stdin) {
        int code = pm_read_stdin(&out->text, &out->len);
        if (code != PM_EXIT_OK)
            return code;
    } else if (!(out->text = strdup(word))) {
        return pm_cli_fail("out of memory");
    } else {
        out->len = strlen(word);
    }
    if (from_stdin && !raw && out->len > 0 && out->text[out->len - 1] == '\n')
        out->len -= out->len > 1 && out->text[out->len - 2] == '\r' ? 2 : 1;
    out->text[out->len] = '\0';
    if (out->len == 0)
        return pm_cli_fail("%s is empty", from_stdin ? "the prompt on stdin" : "the PROMPT");
    int (*check)(const char *, const char *, size_t) = raw ? pm_check_utf8 : pm_check_message;
    return check(from_stdin ? "the prompt on stdin" : "the PROMPT", out->text, out->len);
}

/* Sorts the words into MODEL and PROMPT. */
static int read_request(const pm_args *args, struct request *out)
{
    *out = (struct request){0};
    bool has_ids = args->value[PM_OPT_IDS].given;
    if (has_ids && args->n_words > 1)
        return pm_cli_usage("--ids stands in place of PROMPT, so '%s' is one word too many", args->words[1]);
    if (args->n_words == 2 || has_ids || (args->n_words == 1 && pm_is_directory(args->words[0])))
        out->model = args->n_words > 0 ? args->words[0] : NULL;
    if (has_ids)
        return PM_EXIT_OK;
    if (args->n_words == (out->model ? 1 : 0)) {
        if (out->model)
            return pm_cli_usage("'%s' is a directory and so the MODEL; a PROMPT is missing", out->model);
        return pm_cli_usage("a PROMPT is missing, such as: polymath run \"What is a dog?\"; - reads it from stdin");
    }
    int code = out->model ? pm_check_model(out->model) : PM_EXIT_OK; /* before stdin is read */
    if (code != PM_EXIT_OK)
        return code;
    return read_prompt(args->words[args->n_words - 1], args->value[PM_OPT_RAW].given, out);
}

/* The messages of a one-turn chat as JSON text (malloc'ed), or NULL. */
static char *one_turn(const char *system, const struct request *request)
{
    json_t *messages = json_array();
    if (system)
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "system", "content", system));
    json_array_append_new(messages, json_pack("{s:s, s:s%}", "role", "user", "content", request->text, request->len));
    bool whole = json_array_size(messages) == (system ? 2 : 1);
    char *text = whole ? json_dumps(messages, JSON_COMPACT) : NULL;
    json_decref(messages);
    return text;
}

/* Turns the request into tokens; an exit code. */
static int encode(const pm_engine *engine, const pm_args *args, const struct request *request, pm_prompt *out)
{
    const pm_value *value = args->value;
    pm_error err;
    int status;
    if (value[PM_OPT_IDS].given) {
        pm_token *ids;
        size_t n;
        if (!pm_parse_ids(value[PM_OPT_IDS].text, &ids, &n))
            return pm_cli_fail("out of memory");
        status = pm_ids_prompt(engine, ids, n, out, &err);
        free(ids);
    } else if (value[PM_OPT_RAW].given) {
        status = pm_text_prompt(engine, request->text, request->len, out, &err);
    } else {
        const char *system = value[PM_OPT_SYSTEM].text;
        if (system && pm_check_utf8("--system", system, strlen(system)) != PM_EXIT_OK)
            return PM_EXIT_FAILED;
        char *variables = NULL, *tools = NULL, *messages = one_turn(system, request);
        int code = messages ? pm_variable_text(args, &variables) : pm_cli_fail("out of memory");
        if (code == PM_EXIT_OK)
            code = pm_tools_text(args, &tools);
        pm_chat chat = {.messages = messages, .tools = tools, .variables = variables};
        status = code == PM_EXIT_OK ? pm_chat_prompt(engine, &chat, out, &err) : PM_OK;
        if (code == PM_EXIT_OK && status == PM_OK)
            pm_check_tools_used(engine, tools);
        free(messages);
        free(tools);
        free(variables);
        if (code != PM_EXIT_OK)
            return code;
    }
    return status == PM_OK ? PM_EXIT_OK : pm_cli_fail("%s", err.message);
}

/* A number as JSON has it: what is not finite becomes null. */
static json_t *json_finite(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *json_ids(const pm_token *ids, size_t n)
{
    json_t *array = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(array, json_integer(ids[i]));
    return array;
}

/* A token's id, its own text (U+FFFD where it holds part of a character) and its log-probability; NULL without memory.
 */
static json_t *json_token(const pm_engine *engine, pm_token id, float logprob)
{
    char *text;
    size_t len;
    if (pm_decode(engine, &id, 1, true, &text, &len, NULL) != PM_OK)
        return NULL;
    json_t *object = json_pack("{s:i, s:s%, s:o}", "id", (int)id, "token", text, len, "logprob", json_finite(logprob));
    pm_free(text);
    return object;
}

/* The chosen tokens, each with the likeliest in its place; NULL without memory. */
static json_t *json_logprobs(const pm_engine *engine, const pm_result *result, size_t n_top)
{
    json_t *array = json_array();
    bool whole = array != NULL;
    for (size_t i = 0; whole && i < result->n; i++) {
        json_t *token = json_token(engine, result->ids[i], result->logprobs[i]), *top = json_array();
        for (size_t k = 0; k < n_top && whole; k++) {
            const pm_logprob *entry = &result->top[i * n_top + k];
            whole = json_array_append_new(top, json_token(engine, entry->id, entry->logprob)) == 0;
        }
        whole = json_object_set_new(token, "top", top) == 0 && whole;
        whole = json_array_append_new(array, token) == 0 && whole;
    }
    if (whole)
        return array;
    json_decref(array);
    return NULL;
}

/* Puts an answer's own text, its reasoning and its calls into the object of --json; an exit code. */
static int add_message(json_t *object, const pm_opened *opened, const pm_prompt *prompt, const pm_result *result)
{
    static const char *const names[] = {"reasoning_content", "tool_calls"};
    json_t *message = NULL;
    int code = pm_answer_message(opened, prompt, result, &message);
    bool whole = code == PM_EXIT_OK && json_object_set(object, "text", json_object_get(message, "content")) == 0;
    for (size_t i = 0; whole && i < sizeof(names) / sizeof(*names); i++)
        if (json_object_get(message, names[i]))
            whole = json_object_set(object, names[i], json_object_get(message, names[i])) == 0;
    json_decref(message);
    return whole || code != PM_EXIT_OK ? code : pm_cli_fail("out of memory");
}

/* Prints the one object of --json; an exit code. */
static int print_json(const pm_opened *opened, const pm_args *args, const pm_prompt *prompt, const pm_result *result,
                      int64_t seed)
{
    static const char *const finish[] = {
        [PM_FINISH_STOP] = "stop", [PM_FINISH_LENGTH] = "length", [PM_FINISH_CANCELLED] = "cancelled"};
    json_t *object = json_pack("{s:s%, s:o, s:o, s:s, s:{s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I}}", "text",
                               result->text, result->len, "prompt_ids", json_ids(prompt->ids, prompt->n), "output_ids",
                               json_ids(result->ids, result->n), "finish_reason", finish[result->finish], "timings",
                               "load_s", opened->load_seconds, "prompt_s", result->prompt_seconds, "first_token_s",
                               result->first_token_seconds, "decode_s", result->decode_seconds, "tokens_per_s",
                               pm_decode_speed(result), "prompt_tokens", (json_int_t)prompt->n, "output_tokens",
                               (json_int_t)result->n, "reused", (json_int_t)result->prompt.reused);
    bool whole = object != NULL;
    if (whole && seed >= 0)
        whole = json_object_set_new(object, "seed", json_integer(seed)) == 0;
    if (whole && args->value[PM_OPT_TOP_LOGPROBS].given) {
        size_t n_top = (size_t)args->value[PM_OPT_TOP_LOGPROBS].integer;
        whole = json_object_set_new(object, "logprobs", json_logprobs(opened->engine, result, n_top)) == 0;
    }
    bool raw = args->value[PM_OPT_RAW].given || args->value[PM_OPT_IDS].given;
    int code = whole && !raw ? add_message(object, opened, prompt, result) : PM_EXIT_OK;
    if (code != PM_EXIT_OK) {
        json_decref(object);
        return code;
    }
    /* Nine digits give a float back exactly. */
    char *text = whole ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(object);
    if (!text)
        return pm_cli_fail("out of memory");
    puts(text); /* main reports what cannot be written */
    free(text);
    return PM_EXIT_OK;
}

int pm_cmd_run(const pm_args *args)
{
    struct request request;
    pm_opened opened = {0};
    pm_prompt prompt = {0};
    pm_result result = {0};
    bool json = args->value[PM_OPT_JSON].given;
    int64_t seed;
    int code = read_request(args, &request);
    if (code == PM_EXIT_OK)
        code = pm_open(&opened, request.model, args);
    if (code == PM_EXIT_OK)
        code = encode(opened.engine, args, &request, &prompt);
    if (code == PM_EXIT_OK)
        code = pm_answer(&opened, args, &prompt, !json, &result, &seed);
    if (code == PM_EXIT_OK && json)
        code = print_json(&opened, args, &prompt, &result, seed);
    pm_result_free(&result);
    pm_prompt_free(&prompt);
    pm_close(&opened);
    free(request.text);
    return code;
}
