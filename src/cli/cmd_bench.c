/* polymath bench: how fast a model decodes and takes in prompts at several contexts, beside what the machine could do.
 *
 * Every repetition measures the machine and then both phases at every context in turn, so that all of them meet the
 * same weather; a figure is the median over the repetitions. */
#include "bench_url.h"
#include "cli.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PREFILL_TOKENS = 512,
    DECODE_TOKENS = 32, /* of each sequence */
    MAX_CONTEXTS = 64,
    MAX_TOGETHER = 512,
    DEFAULT_REPEAT = 5
};

typedef struct repetition {
    double seconds;
    pm_profile profile;
} repetition;

/* One phase at one context. */
typedef struct measured {
    bool decode;
    size_t context;   /* tokens before */
    size_t together;  /* sequences in a step */
    size_t tokens;    /* computed in a repetition, of all of them */
    repetition *runs; /* [repeats] */
} measured;

typedef struct bench {
    pm_opened model;
    pm_info info;
    int repeats;
    size_t together; /* sequences that are decoded in a step */
    size_t contexts[MAX_CONTEXTS];
    int n_contexts;
    measured lines[2 * MAX_CONTEXTS]; /* decode, then prefill */
    int n_lines;
    double *read, *integer, *floats; /* [n_limits] every measurement of the machine */
    int n_limits;
    pm_limits limits;                   /* medians */
    pm_token *tokens;                   /* [ctx] what is computed: any tokens, the same every time */
    pm_session *sessions[MAX_CONTEXTS]; /* that have come to each context */
} bench;

/* ---- what to measure ---- */

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static int ascending_sizes(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* The contexts asked for, or some that fit; ascending, each once. An exit code. */
static int choose_contexts(bench *b, const pm_args *args)
{
    static const size_t defaults[] = {0, 512, 2048};
    size_t ctx = (size_t)b->info.ctx, room = ctx - smaller(ctx, PREFILL_TOKENS);
    int n = 0;
    if (args->value[PM_OPT_CONTEXTS].given) {
        pm_token *list;
        size_t count;
        if (!pm_parse_ids(args->value[PM_OPT_CONTEXTS].text, &list, &count))
            return pm_cli_fail("out of memory");
        for (size_t i = 0; i < count && i < MAX_CONTEXTS; i++)
            b->contexts[n++] = (size_t)list[i];
        free(list);
        if (count > MAX_CONTEXTS)
            return pm_cli_usage("--contexts takes at most %d numbers, not %zu", MAX_CONTEXTS, count);
    } else {
        for (size_t i = 0; i < sizeof(defaults) / sizeof(*defaults); i++)
            b->contexts[n++] = smaller(defaults[i], room);
    }
    qsort(b->contexts, (size_t)n, sizeof(*b->contexts), ascending_sizes);
    b->n_contexts = 0;
    for (int i = 0; i < n; i++)
        if (i == 0 || b->contexts[i] != b->contexts[i - 1])
            b->contexts[b->n_contexts++] = b->contexts[i];
    size_t last = b->contexts[b->n_contexts - 1];
    if (last > room)
        return pm_cli_fail("a context of %zu and the %zu tokens after it are more than the limit of %zu", last,
                           ctx - room, ctx);
    return PM_EXIT_OK;
}

static bool make_lines(bench *b)
{
    size_t repeats = (size_t)b->repeats, limits = 1 + repeats * (size_t)b->n_contexts;
    b->n_lines = 2 * b->n_contexts;
    b->read = calloc(limits, sizeof(double));
    b->integer = calloc(limits, sizeof(double));
    b->floats = calloc(limits, sizeof(double));
    b->tokens = calloc((size_t)b->info.ctx, sizeof(*b->tokens));
    if (!b->read || !b->integer || !b->floats || !b->tokens)
        return false;
    for (int i = 0; i < b->n_lines; i++) {
        measured *line = &b->lines[i];
        line->decode = i < b->n_contexts;
        line->context = b->contexts[i % b->n_contexts];
        line->together = line->decode ? b->together : 1;
        line->tokens = smaller(line->decode ? DECODE_TOKENS : PREFILL_TOKENS, (size_t)b->info.ctx) * line->together;
        line->runs = calloc(repeats, sizeof(*line->runs));
        if (!line->runs)
            return false;
    }
    for (uint64_t i = 0, x = 1; i < (uint64_t)b->info.ctx; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
        b->tokens[i] = (pm_token)((x >> 33) % (uint64_t)b->info.vocab);
    }
    return true;
}

/* ---- measuring ---- */

/* Computes a line's tokens on copies of the session that has come to its context; a status. Each copy goes on with
 * other tokens, which are taken from anywhere. */
static int run_line(bench *b, const measured *line, const pm_session *from, repetition *run, pm_error *err)
{
    pm_engine *engine = b->model.engine;
    pm_work work[MAX_TOGETHER] = {0};
    pm_session *sessions[MAX_TOGETHER] = {0};
    const size_t together = line->together, each = line->tokens / together, step = line->decode ? 1 : each;
    int status = PM_OK;
    for (size_t i = 0; status == PM_OK && i < together; i++) {
        size_t first = (line->context + i * each) % ((size_t)b->info.ctx - each + 1);
        status = pm_session_fork(&sessions[i], from, err);
        work[i] = (pm_work){.session = sessions[i], .tokens = b->tokens + first, .n = step};
    }
    pm_engine_profile_reset(engine);
    double start = pm_seconds();
    for (size_t done = 0; status == PM_OK && done < each; done += step) {
        status = pm_step(engine, work, (int)together, err);
        for (size_t i = 0; i < together; i++)
            work[i].tokens += step;
    }
    run->seconds = pm_seconds() - start;
    if (status == PM_OK)
        status = pm_engine_profile(engine, &run->profile, err);
    for (size_t i = 0; i < together; i++)
        pm_session_free(sessions[i]);
    return status;
}

static int measure_limits(bench *b, pm_error *err)
{
    int status = pm_engine_measure(b->model.engine, &b->limits, err);
    b->read[b->n_limits] = b->limits.read_bytes_per_second;
    b->integer[b->n_limits] = b->limits.integer_ops_per_second;
    b->floats[b->n_limits++] = b->limits.float_ops_per_second;
    return status;
}

/* The i-th repetition at one context; a status. */
static int repeat(bench *b, int context, int i, pm_error *err)
{
    const measured *decode = &b->lines[context], *prefill = &b->lines[b->n_contexts + context];
    int status = measure_limits(b, err);
    if (status == PM_OK)
        status = run_line(b, decode, b->sessions[context], &decode->runs[i], err);
    return status ? status : run_line(b, prefill, b->sessions[context], &prefill->runs[i], err);
}

/* Computes the tokens of the contexts, once for all of them: each goes on where the one before it ends. A status. */
static int reach_contexts(bench *b, pm_error *err)
{
    int status = PM_OK;
    for (int c = 0; status == PM_OK && c < b->n_contexts; c++) {
        if (b->contexts[c])
            status = pm_session_sync(b->model.session, b->tokens, b->contexts[c], NULL, NULL, err);
        if (status == PM_OK)
            status = pm_session_fork(&b->sessions[c], b->model.session, err);
    }
    return status;
}

static int ascending_runs(const void *a, const void *b)
{
    double x = ((const repetition *)a)->seconds, y = ((const repetition *)b)->seconds;
    return (x > y) - (x < y);
}

static int ascending_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the numbers. */
static double median(double *numbers, int n)
{
    qsort(numbers, (size_t)n, sizeof(*numbers), ascending_numbers);
    return n % 2 ? numbers[n / 2] : (numbers[n / 2 - 1] + numbers[n / 2]) / 2;
}

/* All of it; a status. One run of both phases goes first and does not count: it maps pages and grows buffers. */
static int measure(bench *b, pm_error *err)
{
    pm_progress progress;
    int status = reach_contexts(b, err);
    pm_progress_start(&progress, "measuring");
    if (status == PM_OK)
        status = repeat(b, 0, 0, err);
    for (int k = 0; status == PM_OK && k < b->repeats * b->n_contexts; k++) {
        pm_progress_show(&progress, (double)k / (b->repeats * b->n_contexts));
        status = repeat(b, k % b->n_contexts, k / b->n_contexts, err);
    }
    pm_progress_clear(&progress);
    if (status != PM_OK)
        return status;
    for (int i = 0; i < b->n_lines; i++)
        qsort(b->lines[i].runs, (size_t)b->repeats, sizeof(repetition), ascending_runs);
    b->limits.read_bytes_per_second = median(b->read, b->n_limits);
    b->limits.integer_ops_per_second = median(b->integer, b->n_limits);
    b->limits.float_ops_per_second = median(b->floats, b->n_limits);
    return PM_OK;
}

/* ---- results ---- */

/* Costs of one token, of a whole step ("step") or of one operation. */
typedef struct result {
    const char *name;
    double seconds, bytes, ops;
    double reading, computing; /* seconds that these would take at the machine's limits */
    double fraction;           /* the longer of the two, of `seconds` */
} result;

static result result_of(const bench *b, const char *name, double seconds, const pm_op_profile *sum, size_t tokens)
{
    double n = (double)tokens;
    result r = {.name = name, .seconds = seconds / n, .bytes = (double)sum->bytes / n};
    r.ops = ((double)sum->integer_ops + (double)sum->float_ops) / n;
    r.reading = r.bytes / b->limits.read_bytes_per_second;
    r.computing = ((double)sum->integer_ops / b->limits.integer_ops_per_second +
                   (double)sum->float_ops / b->limits.float_ops_per_second) /
                  n;
    r.fraction = (r.reading > r.computing ? r.reading : r.computing) / r.seconds;
    return r;
}

/* The whole step, each operation, and what is left of the time as "other", in the median repetition; returns how many
 * they are. */
static int results_of(const bench *b, const measured *line, result out[PM_PROFILE_OPS + 2])
{
    const repetition *run = &line->runs[(b->repeats - 1) / 2];
    pm_op_profile sum = {0}, none = {0};
    double rest = run->seconds;
    int n = 1;
    for (int i = 0; i < run->profile.n; i++) {
        const pm_op_profile *op = &run->profile.op[i];
        sum.bytes += op->bytes;
        sum.integer_ops += op->integer_ops;
        sum.float_ops += op->float_ops;
        rest -= op->seconds;
        out[n++] = result_of(b, op->name, op->seconds, op, line->tokens);
    }
    out[0] = result_of(b, "step", run->seconds, &sum, line->tokens);
    out[n++] = result_of(b, "other", rest, &none, line->tokens);
    return n;
}

static const char *phase_of(const measured *line)
{
    return line->decode ? "decode" : "prefill";
}

static const char *precision_of(const bench *b)
{
    return b->info.precision == PM_PRECISION_FAST ? "fast" : "exact";
}

static void print_table(const bench *b, bool ops)
{
    const pm_limits *l = &b->limits;
    printf("%s, %s: %s, %s\n", b->info.device, precision_of(b), b->info.family, b->info.formats);
    printf("The machine, measured in between: reads weights at %.1f GB/s%s; multiply-adds at %.0f G/s (integers) and "
           "%.0f G/s (floats).\n\n",
           l->read_bytes_per_second / 1e9, l->from_cache ? " (from its cache, which holds all of them)" : "",
           l->integer_ops_per_second / 2e9, l->float_ops_per_second / 2e9);
    printf("%-18s %8s %10s %10s %10s %8s %10s  %s\n", "", "context", "tokens/s", "ms/token", "MB/token", "GB/s",
           "of limit", "limited by");
    for (int i = 0; i < b->n_lines; i++) {
        const measured *line = &b->lines[i];
        result r[PM_PROFILE_OPS + 2];
        int n = results_of(b, line, r);
        for (int k = 0; k < (ops ? n : 1); k++) {
            if (k == 0)
                printf("%-18s %8zu %10.1f", phase_of(line), line->context, 1 / r[k].seconds);
            else
                printf("  %-16s %8s %10s", r[k].name, "", "");
            printf(" %10.4f", r[k].seconds * 1e3);
            if (r[k].bytes > 0)
                printf(" %10.4f %8.2f %8.1f %%  %s", r[k].bytes / 1e6, r[k].bytes / r[k].seconds / 1e9,
                       r[k].fraction * 100, r[k].reading > r[k].computing ? "reading" : "arithmetic");
            printf("\n");
        }
    }
}

static void print_csv(const bench *b, bool ops)
{
    printf("phase,context,part,seconds_per_token,bytes_per_token,ops_per_token,fraction\n");
    for (int i = 0; i < b->n_lines; i++) {
        const measured *line = &b->lines[i];
        result r[PM_PROFILE_OPS + 2];
        int n = results_of(b, line, r);
        for (int k = 0; k < (ops ? n : 1); k++)
            printf("%s,%zu,%s,%.6g,%.10g,%.10g,%.4f\n", phase_of(line), line->context, r[k].name, r[k].seconds,
                   r[k].bytes, r[k].ops, r[k].fraction);
    }
}

/* One line as an object. */
static json_t *line_json(const bench *b, const measured *line, bool ops)
{
    result r[PM_PROFILE_OPS + 2];
    int n = results_of(b, line, r);
    json_t *object = json_pack("{s:I, s:I, s:f, s:f, s:f, s:f}", "context", (json_int_t)line->context, "tokens",
                               (json_int_t)line->tokens, "tokens_per_s", 1 / r[0].seconds, "bytes_per_token",
                               r[0].bytes, "ops_per_token", r[0].ops, "fraction", r[0].fraction);
    json_t *list = ops ? json_array() : NULL;
    for (int k = 1; ops && k < n; k++)
        json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:f, s:f}", "name", r[k].name, "seconds_per_token",
                                              r[k].seconds, "bytes_per_token", r[k].bytes, "ops_per_token", r[k].ops,
                                              "fraction", r[k].fraction));
    if (ops)
        json_object_set_new(object, "ops", list);
    return object;
}

/* An exit code. */
static int print_json(const bench *b, bool ops)
{
    const pm_limits *l = &b->limits;
    json_t *object =
        json_pack("{s:s, s:s, s:i, s:s, s:s, s:f, s:b, s:f, s:f}", "device", b->info.device, "precision",
                  precision_of(b), "threads", l->threads, "family", b->info.family, "formats", b->info.formats,
                  "read_gbs", l->read_bytes_per_second / 1e9, "from_cache", l->from_cache, "integer_gops",
                  l->integer_ops_per_second / 1e9, "float_gops", l->float_ops_per_second / 1e9);
    json_t *decode = json_array(), *prefill = json_array();
    for (int i = 0; i < b->n_lines; i++)
        json_array_append_new(b->lines[i].decode ? decode : prefill, line_json(b, &b->lines[i], ops));
    json_object_set_new(object, "decode", decode);
    json_object_set_new(object, "prefill", prefill);
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(10));
    json_decref(object);
    if (!text)
        return pm_cli_fail("out of memory");
    printf("%s\n", text);
    free(text);
    return PM_EXIT_OK;
}

static void release(bench *b)
{
    for (int i = 0; i < b->n_lines; i++)
        free(b->lines[i].runs);
    free(b->read);
    free(b->integer);
    free(b->floats);
    free(b->tokens);
    for (int c = 0; c < b->n_contexts; c++)
        pm_session_free(b->sessions[c]);
    pm_close(&b->model);
}

int pm_cmd_bench(const pm_args *args)
{
    const pm_value *value = args->value;
    if (value[PM_OPT_URL].given)
        return pm_bench_url(args);
    bench b = {.repeats = value[PM_OPT_REPEAT].given ? (int)value[PM_OPT_REPEAT].integer : DEFAULT_REPEAT,
               .together = value[PM_OPT_CONCURRENCY].given ? (size_t)value[PM_OPT_CONCURRENCY].integer : 1};
    pm_error err;
    int code = pm_open(&b.model, args->n_words ? args->words[0] : NULL, args);
    if (code != PM_EXIT_OK)
        return code;
    pm_engine_info(b.model.engine, &b.info);
    code = choose_contexts(&b, args);
    if (code == PM_EXIT_OK && !make_lines(&b))
        code = pm_cli_fail("out of memory");
    if (code == PM_EXIT_OK && measure(&b, &err) != PM_OK)
        code = pm_cli_fail("%s", err.message);
    if (code == PM_EXIT_OK && value[PM_OPT_JSON].given)
        code = print_json(&b, value[PM_OPT_OPS].given);
    else if (code == PM_EXIT_OK && value[PM_OPT_CSV].given)
        print_csv(&b, value[PM_OPT_OPS].given);
    else if (code == PM_EXIT_OK)
        print_table(&b, value[PM_OPT_OPS].given);
    release(&b);
    return code;
}
