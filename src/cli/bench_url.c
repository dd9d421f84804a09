/* polymath bench --url: how a server answers so many requests at once. What is measured is what a client sees: the time
 * to the first token, the times between pieces of the stream, and tokens per second as the server counts them. */
#include "bench_url.h"

#include "remote.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_REQUESTS = 16, DEFAULT_WORDS = 64, DEFAULT_TOKENS = 64, MAX_PIECES = 4 << 20 };

typedef struct numbers {
    double *at; /* [n] */
    size_t n, cap;
} numbers;

typedef struct load load;

/* A place in which one request after the other is under way. */
typedef struct lane {
    pm_stream stream;
    load *load;
    double start, last; /* when it was asked, and when the last piece came, 0: none has */
    size_t pieces;
    size_t prompt, cached, tokens; /* as the server counts them */
    bool counted, ended;           /* usage and a finish reason came */
} lane;

struct load {
    const pm_args *args;
    pm_remote remote;
    lane *lanes; /* [concurrency] */
    int concurrency;
    int64_t requests, words, tokens;
    int64_t started, answered, failed;
    uint64_t random;
    double seconds;                /* from the first request to the end of the last */
    numbers first, between, whole; /* seconds: to the first token, between pieces, to the end */
    uint64_t prompt, cached, said; /* tokens, as the server counts them */
    bool counted;                  /* it did so every time */
    bool no_memory, interrupted;
    char failure[1024]; /* the first one */
};

static void add_number(load *l, numbers *list, double x)
{
    if (list->n == list->cap) {
        size_t cap = list->cap ? 2 * list->cap : 256;
        double *longer = realloc(list->at, cap * sizeof(*longer));
        if (!longer) {
            l->no_memory = true;
            return;
        }
        list->at = longer;
        list->cap = cap;
    }
    list->at[list->n++] = x;
}

/* ---- a request ---- */

static size_t count_of(const json_t *object, const char *name)
{
    json_int_t n = json_integer_value(json_object_get(object, name));
    return n > 0 ? (size_t)n : 0;
}

/* Whether a delta has something of the answer: text, reasoning or a call. */
static bool has_text(const json_t *delta)
{
    static const char *const names[] = {"content", "reasoning_content", "reasoning"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (json_string_length(json_object_get(delta, names[i])) > 0)
            return true;
    return json_array_size(json_object_get(delta, "tool_calls")) > 0;
}

static int on_event(void *user, json_t *event)
{
    lane *one = user;
    const json_t *usage = json_object_get(event, "usage"), *error = json_object_get(event, "error");
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    double now = pm_seconds();
    if (json_is_object(error)) {
        const char *message = json_string_value(json_object_get(error, "message"));
        pm_stream_fail(&one->stream, "%s: %s", one->stream.url, message ? message : "reports an error");
        return 1;
    }
    if (json_is_object(usage)) {
        one->counted = true;
        one->prompt = count_of(usage, "prompt_tokens");
        one->tokens = count_of(usage, "completion_tokens");
        one->cached = count_of(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
    }
    one->ended |= json_is_string(json_object_get(choice, "finish_reason"));
    if (!has_text(json_object_get(choice, "delta")))
        return 0;
    add_number(one->load, one->pieces ? &one->load->between : &one->load->first,
               now - (one->pieces ? one->last : one->start));
    one->last = now;
    if (++one->pieces < MAX_PIECES)
        return 0;
    pm_stream_fail(&one->stream, "%s: sends an answer without end", one->stream.url);
    return 1;
}

/* Words that hardly any vocabulary cuts, in an order of their own, so that no cache helps. NULL when out
 * of memory. */
static json_t *make_prompt(load *l)
{
    static const char *const words[] = {"time", "water", "people", "house", "day",   "light", "work",  "world",
                                        "name", "place", "life",   "hand",  "night", "book",  "music", "year"};
    size_t cap = (size_t)l->words * 8 + 1, len = 0;
    char *text = malloc(cap);
    if (!text)
        return NULL;
    text[0] = '\0';
    for (int64_t i = 0; i < l->words; i++) {
        l->random = l->random * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
        len += (size_t)snprintf(text + len, cap - len, "%s%s", i ? " " : "", words[l->random >> 60]);
    }
    json_t *messages = json_pack("[{s:s, s:s#}]", "role", "user", "content", text, (int)len);
    free(text);
    return messages;
}

/* Starts the next request in a lane; false when out of memory. */
static bool start(load *l, lane *one)
{
    json_t *messages = make_prompt(l);
    json_t *request = messages ? pm_remote_request(&l->remote, l->args, messages, NULL) : NULL;
    bool fine = request && json_object_set_new(request, "max_tokens", json_integer(l->tokens)) == 0;
    if (fine && l->args->value[PM_OPT_IGNORE_EOS].given)
        fine = json_object_set_new(request, "ignore_eos", json_true()) == 0;
    *one = (lane){.load = l, .stream = {.on_event = on_event, .user = one}, .start = pm_seconds()};
    fine = fine && pm_stream_start(&one->stream, &l->remote, "chat/completions", request);
    l->started += fine;
    json_decref(request);
    json_decref(messages);
    return fine;
}

/* Counts a request that has ended. */
static void finish(load *l, lane *one)
{
    pm_stream *stream = &one->stream;
    if (!stream->failed && !stream->done && !one->ended)
        pm_stream_fail(stream, "%s: the connection ended before the answer did", stream->url);
    if (stream->failed) {
        if (l->failed++ == 0)
            snprintf(l->failure, sizeof(l->failure), "%s", stream->error);
    } else {
        l->answered++;
        l->counted &= one->counted;
        l->prompt += one->prompt;
        l->cached += one->cached;
        l->said += one->tokens;
        add_number(l, &l->whole, pm_seconds() - one->start);
    }
    pm_stream_close(stream);
}

/* Keeps all lanes busy until every request has ended, or Ctrl-C; false when out of memory. */
static bool run(load *l)
{
    pm_progress progress;
    bool fine = true;
    double begin = pm_seconds();
    pm_progress_start(&progress, "measuring");
    for (int i = 0; fine && i < l->concurrency; i++)
        fine = start(l, &l->lanes[i]);
    while (fine && l->answered + l->failed < l->requests) {
        pm_stream *ended = pm_remote_wait(&l->remote);
        if (!ended)
            break;
        lane *one = ended->user;
        finish(l, one);
        pm_progress_show(&progress, (double)(l->answered + l->failed) / (double)l->requests);
        if (l->started < l->requests)
            fine = start(l, one);
    }
    l->seconds = pm_seconds() - begin;
    pm_progress_clear(&progress);
    return fine && !l->no_memory;
}

/* ---- results ---- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The smallest number that no more than 1 - p of them are above (nearest rank); 0 of none. */
static double percentile(const numbers *list, double p)
{
    double rank = ceil(p * (double)list->n);
    return list->n ? list->at[(size_t)(rank < 1 ? 1 : rank) - 1] : 0;
}

static double mean(const numbers *list)
{
    double sum = 0;
    for (size_t i = 0; i < list->n; i++)
        sum += list->at[i];
    return list->n ? sum / (double)list->n : 0;
}

/* Lines of times, and what stands in each. */
enum { TIMES = 3, COLUMNS = 5 };

static const struct time_line {
    const char *name, *key;
    size_t offset; /* of its numbers */
} times[TIMES] = {
    {"time to first token", "first_token", offsetof(load, first)},
    {"time between tokens", "between_tokens", offsetof(load, between)},
    {"time of a request", "request", offsetof(load, whole)},
};

static const char *const columns[COLUMNS] = {"mean", "p50", "p90", "p99", "max"};

static const numbers *numbers_of(const load *l, int line)
{
    return (const numbers *)((const char *)l + times[line].offset);
}

static void fill(const numbers *list, double out[COLUMNS])
{
    out[0] = mean(list);
    out[1] = percentile(list, 0.5);
    out[2] = percentile(list, 0.9);
    out[3] = percentile(list, 0.99);
    out[4] = percentile(list, 1);
}

static void print_table(const load *l)
{
    printf("%s, %s: %lld requests, %d at once, in %.3f s\n", l->remote.base, l->remote.model, (long long)l->answered,
           l->concurrency, l->seconds);
    printf("%.2f requests/s", (double)l->answered / l->seconds);
    if (l->counted)
        printf(", %.1f tokens/s of answers, %.1f tokens/s of prompts (%.1f tokens each, of which %.1f cached)",
               (double)l->said / l->seconds, (double)l->prompt / l->seconds, (double)l->prompt / (double)l->answered,
               (double)l->cached / (double)l->answered);
    printf("\n\n%-22s", "ms");
    for (int c = 0; c < COLUMNS; c++)
        printf(" %10s", columns[c]);
    printf("\n");
    for (int i = 0; i < TIMES; i++) {
        double row[COLUMNS];
        fill(numbers_of(l, i), row);
        printf("%-22s", times[i].name);
        for (int c = 0; c < COLUMNS; c++)
            printf(" %10.3f", row[c] * 1e3);
        printf("\n");
    }
}

static void print_csv(const load *l)
{
    printf("time,count");
    for (int c = 0; c < COLUMNS; c++)
        printf(",%s", columns[c]);
    printf("\n");
    for (int i = 0; i < TIMES; i++) {
        double row[COLUMNS];
        fill(numbers_of(l, i), row);
        printf("%s,%zu", times[i].key, numbers_of(l, i)->n);
        for (int c = 0; c < COLUMNS; c++)
            printf(",%.6g", row[c]);
        printf("\n");
    }
}

/* An exit code. */
static int print_json(const load *l)
{
    json_t *object =
        json_pack("{s:s, s:s, s:i, s:I, s:I, s:f, s:f}", "url", l->remote.base, "model", l->remote.model, "concurrency",
                  l->concurrency, "requests", (json_int_t)l->answered, "failed", (json_int_t)l->failed, "seconds",
                  l->seconds, "requests_per_s", (double)l->answered / l->seconds);
    if (l->counted)
        json_object_update_new(
            object, json_pack("{s:I, s:I, s:I, s:f, s:f}", "prompt_tokens", (json_int_t)l->prompt, "cached_tokens",
                              (json_int_t)l->cached, "answer_tokens", (json_int_t)l->said, "prompt_tokens_per_s",
                              (double)l->prompt / l->seconds, "answer_tokens_per_s", (double)l->said / l->seconds));
    for (int i = 0; i < TIMES; i++) {
        double row[COLUMNS];
        json_t *line = json_pack("{s:I}", "count", (json_int_t)numbers_of(l, i)->n);
        fill(numbers_of(l, i), row);
        for (int c = 0; c < COLUMNS; c++)
            json_object_set_new(line, columns[c], json_real(row[c]));
        json_object_set_new(object, times[i].key, line);
    }
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(10));
    json_decref(object);
    if (!text)
        return pm_cli_fail("out of memory");
    printf("%s\n", text);
    free(text);
    return PM_EXIT_OK;
}

static int print_results(load *l)
{
    const pm_value *value = l->args->value;
    for (int i = 0; i < TIMES; i++) {
        const numbers *list = numbers_of(l, i);
        if (list->n)
            qsort(list->at, list->n, sizeof(*list->at), ascending);
    }
    if (value[PM_OPT_JSON].given)
        return print_json(l);
    if (value[PM_OPT_CSV].given)
        print_csv(l);
    else
        print_table(l);
    return PM_EXIT_OK;
}

/* ---- the whole ---- */

static int64_t option_or(const pm_args *args, pm_option option, int64_t otherwise)
{
    return args->value[option].given ? args->value[option].integer : otherwise;
}

static void release(load *l)
{
    for (int i = 0; l->lanes && i < l->concurrency; i++)
        pm_stream_close(&l->lanes[i].stream);
    free(l->lanes);
    free(l->first.at);
    free(l->between.at);
    free(l->whole.at);
    pm_remote_close(&l->remote);
}

int pm_bench_url(const pm_args *args)
{
    load l = {.args = args, .counted = true};
    l.concurrency = (int)option_or(args, PM_OPT_CONCURRENCY, 1);
    l.requests = option_or(args, PM_OPT_REQUESTS, l.concurrency > DEFAULT_REQUESTS ? l.concurrency : DEFAULT_REQUESTS);
    l.words = option_or(args, PM_OPT_PROMPT_WORDS, DEFAULT_WORDS);
    l.tokens = option_or(args, PM_OPT_ANSWER_TOKENS, DEFAULT_TOKENS);
    if (l.requests < l.concurrency)
        return pm_cli_usage("--requests %lld are fewer than the %d that --concurrency has under way at once",
                            (long long)l.requests, l.concurrency);
    l.random = (uint64_t)(pm_seconds() * 1e9);
    int code = pm_remote_open(&l.remote, args);
    if (code != PM_EXIT_OK)
        return code;
    l.lanes = calloc((size_t)l.concurrency, sizeof(*l.lanes));
    pm_interrupt_begin(NULL);
    bool fine = l.lanes && run(&l);
    l.interrupted = pm_interrupted();
    pm_interrupt_end(false);
    if (!fine || (!l.interrupted && l.answered + l.failed < l.requests))
        code = pm_cli_fail("out of memory");
    else if (l.answered > 0)
        code = print_results(&l);
    if (code == PM_EXIT_OK && l.failed > 0)
        code = pm_cli_fail("%lld of %lld requests failed, the first: %s", (long long)l.failed,
                           (long long)(l.failed + l.answered), l.failure);
    if (code == PM_EXIT_OK && l.interrupted)
        code = PM_EXIT_INTERRUPTED;
    release(&l);
    return code;
}
