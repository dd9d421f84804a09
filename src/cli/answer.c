/* Opening a model and generating one answer, as run and chat do. */
#include "cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

pm_engine_options pm_engine_flags(const pm_args *args)
{
    return (pm_engine_options){
        .device = (pm_device)args->value[PM_OPT_DEVICE].integer,
        .threads = (int)args->value[PM_OPT_THREADS].integer,
        .ctx = (int)args->value[PM_OPT_CTX].integer,
        .kv_type = (pm_kv_type)args->value[PM_OPT_KV_TYPE].integer,
        .precision = args->value[PM_OPT_PRECISION].integer == 1 ? PM_PRECISION_FAST : PM_PRECISION_EXACT,
        .profile = args->command == PM_BENCH,
    };
}

static void on_load(void *user, double fraction)
{
    pm_progress_show(user, fraction);
}

/* Tells a person who asks for sampling of a model that does none. */
static void say_without_effect(const pm_engine *engine, const pm_args *args)
{
    static const pm_option sampled[] = {PM_OPT_TOP_K,           PM_OPT_TOP_P,         PM_OPT_MIN_P,
                                        PM_OPT_XTC_PROBABILITY, PM_OPT_XTC_THRESHOLD, PM_OPT_SEED};
    pm_sampling sampling;
    pm_engine_sampling(engine, &sampling);
    const pm_value *temperature = &args->value[PM_OPT_TEMPERATURE];
    bool greedy = temperature->given ? temperature->number == 0 : sampling.temperature == 0;
    for (size_t i = 0; greedy && pm_on_terminal() && i < sizeof(sampled) / sizeof(*sampled); i++) {
        if (args->value[sampled[i]].given) {
            fprintf(stderr, "[sampling options have no effect at temperature 0]\n");
            return;
        }
    }
}

/* Makes the constraint of --schema; an exit code. */
static int open_schema(pm_opened *opened, const pm_args *args)
{
    char *schema;
    pm_error err;
    int code = pm_schema_text(args, &schema);
    if (code != PM_EXIT_OK || !schema)
        return code;
    pm_constraint_options options = {.schema = schema};
    int status = pm_constraint_new(&opened->constraint, opened->engine, &options, &err);
    free(schema);
    return status == PM_OK ? PM_EXIT_OK : pm_cli_fail("%s: %s", args->value[PM_OPT_SCHEMA].text, err.message);
}

int pm_open(pm_opened *opened, const char *dir, const pm_args *args)
{
    *opened = (pm_opened){0};
    int code = pm_find_model(dir, opened->bundled, sizeof(opened->bundled), &opened->dir);
    if (code != PM_EXIT_OK)
        return code;
    pm_progress progress;
    pm_progress_start(&progress, "loading");
    pm_engine_options options = pm_engine_flags(args);
    options.progress = on_load;
    options.user = &progress;
    pm_error err;
    int status = pm_engine_open(&opened->engine, opened->dir, &options, &err);
    if (status == PM_OK)
        status = pm_session_new(&opened->session, opened->engine, &err);
    pm_progress_clear(&progress);
    opened->load_seconds = pm_seconds() - progress.start;
    if (status != PM_OK) {
        pm_close(opened);
        return pm_cli_fail("%s", err.message);
    }
    if (args->value[PM_OPT_VERBOSE].given) {
        pm_info info;
        pm_engine_info(opened->engine, &info);
        fprintf(stderr, "model: %s, %s, %s, context %d; %s; loaded in %.3f s\n", opened->dir, info.family, info.formats,
                info.ctx, info.device, opened->load_seconds);
        if (*info.notes)
            fprintf(stderr, "notes: %s\n", info.notes);
    }
    say_without_effect(opened->engine, args);
    code = open_schema(opened, args);
    if (code != PM_EXIT_OK)
        pm_close(opened);
    return code;
}

void pm_close(pm_opened *opened)
{
    if (opened->session)
        pm_session_free(opened->session);
    pm_constraint_free(opened->constraint);
    pm_engine_close(opened->engine);
    opened->constraint = NULL;
    opened->session = NULL;
    opened->engine = NULL;
}

/* What the callbacks of one answer share. */
typedef struct answer {
    pm_show show;
    pm_parser *parser; /* NULL: everything is the answer */
    pm_error err;      /* the parser's; code PM_OK: none */
} answer;

static void on_prompt(void *user, size_t done, size_t total)
{
    answer *a = user;
    pm_progress_show(&a->show.progress, total ? (double)done / (double)total : 1);
}

static void on_event(void *user, const pm_event *event)
{
    answer *a = user;
    pm_show_event(&a->show, event);
}

static int on_text(void *user, const char *text, size_t len)
{
    answer *a = user;
    if (!a->parser)
        pm_show_text(&a->show, text, len);
    else if (a->err.code == PM_OK)
        pm_parser_feed(a->parser, text, len, &a->err);
    pm_progress_clear(&a->show.progress);
    return a->show.write_error != 0 || a->err.code != PM_OK;
}

/* The model's sampling with the flags over it. A random seed keeps to 53 bits, which every JSON reader holds. */
static int choose_sampling(pm_sampling *out, const pm_engine *engine, const pm_args *args)
{
    const pm_value *value = args->value;
    pm_engine_sampling(engine, out);
    if (value[PM_OPT_TEMPERATURE].given)
        out->temperature = (float)value[PM_OPT_TEMPERATURE].number;
    if (value[PM_OPT_TOP_K].given)
        out->top_k = (int)value[PM_OPT_TOP_K].integer;
    if (value[PM_OPT_TOP_P].given)
        out->top_p = (float)value[PM_OPT_TOP_P].number;
    if (value[PM_OPT_MIN_P].given)
        out->min_p = (float)value[PM_OPT_MIN_P].number;
    if (value[PM_OPT_XTC_PROBABILITY].given)
        out->xtc_probability = (float)value[PM_OPT_XTC_PROBABILITY].number;
    if (value[PM_OPT_XTC_THRESHOLD].given)
        out->xtc_threshold = (float)value[PM_OPT_XTC_THRESHOLD].number;
    if (value[PM_OPT_REPETITION].given)
        out->repetition_penalty = (float)value[PM_OPT_REPETITION].number;
    out->presence_penalty = (float)value[PM_OPT_PRESENCE].number;
    out->frequency_penalty = (float)value[PM_OPT_FREQUENCY].number;
    out->bias = args->bias;
    out->n_bias = args->n_bias;
    if (value[PM_OPT_SEED].given) {
        out->seed = (uint64_t)value[PM_OPT_SEED].integer;
    } else if (out->temperature > 0) {
        if (getentropy(&out->seed, sizeof(out->seed)) != 0)
            return pm_cli_fail("cannot draw a random seed: %s", strerror(errno));
        out->seed >>= 11;
    }
    return PM_EXIT_OK;
}

/* Why an answer ended before the model ended it, and in a full chat what to do. */
static const char *ending(const pm_opened *opened, const pm_args *args, const pm_result *result)
{
    if (result->finish != PM_FINISH_LENGTH)
        return result->finish == PM_FINISH_CANCELLED ? "; cancelled" : "";
    pm_info info;
    pm_engine_info(opened->engine, &info);
    if (result->prompt.reused + result->prompt.computed + result->n < (size_t)info.ctx)
        return "; cut at the limit of tokens";
    return args->command == PM_CHAT ? "; cut: the context is full, /reset begins anew" : "; cut: the context is full";
}

/* The speed of an answer, on stderr. */
static void report(const pm_opened *opened, const pm_args *args, const pm_result *result)
{
    fprintf(stderr, "[prompt: %zu tokens (%zu reused) in %.3f s; answer: %zu tokens, %.0f tokens/s%s]\n",
            result->prompt.reused + result->prompt.computed, result->prompt.reused, result->prompt_seconds, result->n,
            pm_decode_speed(result), ending(opened, args, result));
}

int pm_answer(pm_opened *opened, const pm_args *args, const pm_prompt *prompt, bool stream, pm_result *result,
              int64_t *seed)
{
    const pm_value *value = args->value;
    answer a = {.show.stream = stream};
    pm_generate_options options = {
        .max_tokens = value[PM_OPT_MAX_TOKENS].given ? (size_t)value[PM_OPT_MAX_TOKENS].integer
                                                     : pm_engine_max_tokens(opened->engine),
        .stop = args->stop,
        .n_stop = args->n_stop,
        .logprobs = value[PM_OPT_TOP_LOGPROBS].given,
        .top_logprobs = (int)value[PM_OPT_TOP_LOGPROBS].integer,
        .markers = !value[PM_OPT_RAW].given && !value[PM_OPT_IDS].given,
        .constraint = opened->constraint,
        .on_text = on_text,
        .on_prompt = on_prompt,
        .user = &a,
    };
    int code = choose_sampling(&options.sampling, opened->engine, args);
    if (code != PM_EXIT_OK)
        return code;
    *seed = options.sampling.temperature > 0 ? (int64_t)options.sampling.seed : -1;
    bool verbose = value[PM_OPT_VERBOSE].given;
    if (verbose && *seed >= 0)
        fprintf(stderr, "temperature %g, seed %lld\n", (double)options.sampling.temperature, (long long)*seed);

    pm_error err;
    pm_parser_options parser = {
        .no_calls = opened->constraint, .reasoning = prompt->reasoning, .on_event = on_event, .user = &a};
    if (options.markers && pm_parser_new(&a.parser, opened->engine, &parser, &err) != PM_OK)
        return pm_cli_fail("%s", err.message);
    pm_progress_start(&a.show.progress, "reading the prompt");
    pm_interrupt_begin(opened->session);
    int status = pm_generate(opened->session, prompt, &options, result, &err);
    pm_interrupt_end(args->command == PM_CHAT && isatty(STDIN_FILENO));
    pm_progress_clear(&a.show.progress);
    if (status == PM_OK && a.parser && a.err.code == PM_OK)
        pm_parser_end(a.parser, &a.err);
    pm_parser_free(a.parser);
    pm_show_dim(&a.show, false);
    if (status == PM_ERR_LIMIT && args->command == PM_CHAT)
        return pm_cli_fail("%s; /reset begins anew, and --ctx sets the limit", err.message);
    if (status != PM_OK)
        return pm_cli_fail("%s", err.message);
    if (a.err.code != PM_OK) {
        pm_result_free(result);
        return pm_cli_fail("%s", a.err.message);
    }
    code = pm_show_end(&a.show);
    if (code != PM_EXIT_OK) {
        pm_result_free(result);
        return code;
    }
    if (verbose || (stream && pm_on_terminal()))
        report(opened, args, result);
    return PM_EXIT_OK;
}

int pm_answer_message(const pm_opened *opened, const pm_prompt *prompt, const pm_result *result, json_t **message)
{
    pm_error err;
    char *text;
    pm_parser_options options = {.no_calls = opened->constraint, .reasoning = prompt->reasoning};
    if (pm_parse_message(opened->engine, &options, result->text, result->len, &text, &err) != PM_OK)
        return pm_cli_fail("%s", err.message);
    *message = json_loads(text, JSON_ALLOW_NUL, NULL);
    pm_free(text);
    return *message ? PM_EXIT_OK : pm_cli_fail("out of memory");
}

double pm_decode_speed(const pm_result *result)
{
    /* The first token comes out of the prompt; what follows is decoding. */
    return result->n > 1 && result->decode_seconds > 0 ? (double)(result->n - 1) / result->decode_seconds : 0;
}
