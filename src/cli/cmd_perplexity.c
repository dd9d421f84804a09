/* polymath perplexity: how well a model foresees a text.
 *
 * The text is cut into windows of --ctx tokens that begin --stride tokens apart, as in Hugging Face's guide
 * (https://huggingface.co/docs/transformers/perplexity). In each window the tokens that no window before it had are
 * judged, each after all that stands before it in the window. Every token counts the same; the guide's code weighs a
 * window by one token less than it judges, which differs in the third digit or later. */
#include "cli.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 2048, PIECE = 32 }; /* PIECE: tokens whose logits are held at a time */

struct judge {
    pm_opened opened;
    pm_prompt text;
    size_t window, stride, vocab;
    float *logits;  /* [PIECE, vocab] */
    double loss;    /* the sum of -log p */
    double squares; /* the sum of its squares */
    size_t judged;
    double start;
    pm_progress progress;
    char shown[96]; /* progress.what */
};

/* -log softmax(logits)[id] */
static double surprise(const float *logits, size_t vocab, pm_token id)
{
    double sum = 0;
    float highest = logits[0];
    for (size_t i = 1; i < vocab; i++)
        highest = logits[i] > highest ? logits[i] : highest;
    for (size_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - (double)highest);
    return log(sum) - ((double)logits[id] - (double)highest);
}

/* A bar and the value so far. */
static void show(struct judge *judge, size_t done)
{
    enum { WIDTH = 30 };
    char bar[WIDTH + 1];
    double fraction = (double)done / (double)judge->text.n;
    for (int i = 0; i < WIDTH; i++)
        bar[i] = i < (int)(fraction * WIDTH) ? '#' : '.';
    bar[WIDTH] = 0;
    double mean = judge->judged ? judge->loss / (double)judge->judged : 0;
    snprintf(judge->shown, sizeof(judge->shown), "[%s] perplexity %-10.6g", bar, judge->judged ? exp(mean) : 0.0);
    pm_progress_show(&judge->progress, fraction);
}

/* Judges the tokens [first, end) of the text, of which the window begins at `begin` < first. */
static int judge_window(struct judge *judge, size_t begin, size_t first, size_t end, pm_error *err)
{
    const pm_token *ids = judge->text.ids;
    pm_session *session;
    int status = pm_session_new(&session, judge->opened.engine, err);
    if (status != PM_OK)
        return status;
    if (first - 1 > begin)
        status = pm_session_sync(session, ids + begin, first - 1 - begin, NULL, NULL, err);
    for (size_t at = first - 1; status == PM_OK && at + 1 < end; at += PIECE) {
        size_t n = end - 1 - at < PIECE ? end - 1 - at : PIECE;
        pm_work work = {.session = session, .tokens = ids + at, .n = n, .logits = judge->logits};
        status = pm_step(judge->opened.engine, &work, 1, err);
        for (size_t i = 0; status == PM_OK && i < n; i++) {
            double loss = surprise(judge->logits + i * judge->vocab, judge->vocab, ids[at + i + 1]);
            judge->loss += loss;
            judge->squares += loss * loss;
        }
        judge->judged += status == PM_OK ? n : 0;
        show(judge, at + n);
    }
    pm_session_free(session);
    return status;
}

static int judge_text(struct judge *judge)
{
    size_t before = 0; /* end of the last window */
    pm_error err;
    int status = PM_OK;
    pm_progress_start(&judge->progress, judge->shown);
    judge->start = pm_seconds();
    for (size_t begin = 0; status == PM_OK && before < judge->text.n; begin += judge->stride) {
        size_t end = judge->text.n - begin < judge->window ? judge->text.n : begin + judge->window;
        size_t first = before > begin ? before : begin + 1; /* nothing stands before a window's first token */
        if (first < end)
            status = judge_window(judge, begin, first, end, &err);
        before = end;
    }
    pm_progress_clear(&judge->progress);
    return status == PM_OK ? PM_EXIT_OK : pm_cli_fail("%s", err.message);
}

/* Opens the model with windows as the flags ask; an exit code. */
static int open_model(struct judge *judge, const char *dir, const pm_args *args)
{
    int code = pm_open(&judge->opened, dir, args);
    if (code != PM_EXIT_OK)
        return code;
    pm_info info;
    pm_engine_info(judge->opened.engine, &info);
    judge->window = (size_t)info.ctx;
    if (!args->value[PM_OPT_CTX].given && judge->window > WINDOW)
        judge->window = WINDOW;
    judge->vocab = (size_t)info.vocab;
    int64_t stride = args->value[PM_OPT_STRIDE].integer;
    judge->stride = stride ? (size_t)stride : judge->window > 1 ? judge->window / 2 : 1;
    if (judge->window < 2)
        return pm_cli_usage("a --ctx of %zu is too short: a token is judged after one other at least", judge->window);
    if (judge->stride > judge->window)
        return pm_cli_usage(
            "a --stride of %zu is more than the %zu tokens of a window, so that tokens would be left out",
            judge->stride, judge->window);
    judge->logits = calloc(judge->vocab, PIECE * sizeof(*judge->logits));
    return judge->logits ? PM_EXIT_OK : pm_cli_fail("out of memory");
}

/* The file's text, malloc'ed; an exit code. `name` is what messages call it. */
static int read_file(const char *path, const char *name, char **text, size_t *len)
{
    int code = strcmp(path, "-") == 0 ? pm_read_stdin(text, len) : pm_read_text(path, text, len);
    if (code == PM_EXIT_OK && *len == 0)
        code = pm_cli_fail("%s: is empty", name);
    return code == PM_EXIT_OK ? pm_check_utf8(name, *text, *len) : code;
}

static int encode(struct judge *judge, const char *name, const char *text, size_t len)
{
    pm_error err;
    if (pm_text_prompt(judge->opened.engine, text, len, &judge->text, &err) != PM_OK)
        return pm_cli_fail("%s: %s", name, err.message);
    if (judge->text.n < 2)
        return pm_cli_fail("%s: has %zu token%s; perplexity needs two at least", name, judge->text.n,
                           judge->text.n == 1 ? "" : "s");
    return PM_EXIT_OK;
}

/* The standard error of the mean of n numbers with these sums; 0 of a single one. */
static double standard_error(double sum, double squares, size_t n)
{
    double variance = n > 1 ? (squares - sum * sum / (double)n) / (double)(n - 1) : 0;
    return sqrt(fmax(variance, 0) / (double)n);
}

static int print(const struct judge *judge, const pm_args *args)
{
    double mean = judge->loss / (double)judge->judged, seconds = pm_seconds() - judge->start;
    /* Of the perplexity, which is e to the mean: to first order. */
    double error = exp(mean) * standard_error(judge->loss, judge->squares, judge->judged);
    if (args->value[PM_OPT_VERBOSE].given)
        fprintf(stderr, "[windows of %zu tokens, %zu apart; %zu tokens judged in %.3f s]\n", judge->window,
                judge->stride, judge->judged, seconds);
    if (!args->value[PM_OPT_JSON].given) {
        printf("perplexity %.6g +/- %.4g over %zu token%s\n", exp(mean), error, judge->judged,
               judge->judged == 1 ? "" : "s");
        return PM_EXIT_OK;
    }
    json_t *object =
        json_pack("{s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:f}", "perplexity", exp(mean), "perplexity_error", error,
                  "mean_loss", mean, "tokens", (json_int_t)judge->judged, "text_tokens", (json_int_t)judge->text.n,
                  "ctx", (json_int_t)judge->window, "stride", (json_int_t)judge->stride, "seconds", seconds);
    char *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(12)) : NULL;
    json_decref(object);
    if (!text)
        return pm_cli_fail("out of memory");
    puts(text);
    free(text);
    return PM_EXIT_OK;
}

int pm_cmd_perplexity(const pm_args *args)
{
    if (args->n_words == 0)
        return pm_cli_usage("a FILE is missing: a text whose perplexity is asked for");
    const char *path = args->words[args->n_words - 1], *name = strcmp(path, "-") == 0 ? "stdin" : path;
    if (args->n_words == 1 && pm_is_directory(path))
        return pm_cli_usage("'%s' is a directory and so the MODEL; a FILE is missing", path);
    struct judge judge = {0};
    char *text = NULL;
    size_t len = 0;
    int code = args->n_words > 1 ? pm_check_model(args->words[0]) : PM_EXIT_OK;
    if (code == PM_EXIT_OK)
        code = read_file(path, name, &text, &len); /* before anything large is opened */
    if (code == PM_EXIT_OK)
        code = open_model(&judge, args->n_words > 1 ? args->words[0] : NULL, args);
    if (code == PM_EXIT_OK)
        code = encode(&judge, name, text, len);
    free(text);
    if (code == PM_EXIT_OK)
        code = judge_text(&judge);
    if (code == PM_EXIT_OK)
        code = print(&judge, args);
    free(judge.logits);
    pm_prompt_free(&judge.text);
    pm_close(&judge.opened);
    return code;
}
