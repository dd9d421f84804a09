/* Answers in the making, over a toy tokenizer whose token i is a given piece of bytes; and stop strings. */
#include "engine/generation.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- the toy tokenizer, in the place of the text layer ---- */

enum { EOS = 0, VOCAB = 40 };

static const char *const pieces[] = {"",         "alpha b",  "eta",  " gamma", "a",    "b",  "c", "d",
                                     "\xf0\x9f", "\x98\x80", "\xc3", "\xa9",   "stop", "st", "x", "\xff"};

int pm_tokenizer_vocab(const pm_tokenizer *tokenizer)
{
    (void)tokenizer;
    return (int)PM_COUNT(pieces);
}

int pm_detok_init(pm_detok *detok, const pm_tokenizer *tokenizer, bool special, pm_error *err)
{
    (void)err;
    *detok = (pm_detok){.tokenizer = tokenizer, .special = special};
    return PM_OK;
}

void pm_detok_free(pm_detok *detok)
{
    *detok = (pm_detok){0};
}

/* Bytes that a character needs by its first one. */
static int need(uint8_t first)
{
    return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

int pm_detok_push(pm_detok *detok, pm_token id, pm_buf *out, pm_error *err)
{
    (void)err;
    for (const char *c = pieces[id]; *c; c++) {
        detok->held[detok->n_held++] = (uint8_t)*c;
        if (detok->n_held == need(detok->held[0])) {
            pm_buf_add(out, detok->held, (size_t)detok->n_held);
            detok->n_held = 0;
        }
    }
    return PM_OK;
}

int pm_detok_finish(pm_detok *detok, pm_buf *out, pm_error *err)
{
    (void)err;
    if (detok->n_held)
        pm_buf_add(out, "\xef\xbf\xbd", 3);
    detok->n_held = 0;
    return PM_OK;
}

/* ---- running one ---- */

typedef struct run {
    pm_generation generation;
    pm_buf streamed; /* what was given out, piece by piece, with | between */
} run;

static const pm_token stops[] = {EOS, 38};
static const pm_generation_model model = {.stops = stops, .n_stops = 2, .vocab = VOCAB, .newline = -1};

static void begin(run *r, const pm_generate_options *options, size_t limit)
{
    pm_error err = {0};
    *r = (run){0};
    if (pm_generation_init(&r->generation, &model, options, limit, &err) != PM_OK)
        fail_msg("%s", err.message);
}

static void take(run *r)
{
    size_t len;
    const char *text = pm_generation_take(&r->generation, &len);
    if (len) {
        if (r->streamed.len)
            pm_buf_add(&r->streamed, "|", 1);
        pm_buf_add(&r->streamed, text, len);
    }
}

/* Lets the model "say" the token. */
static void say(run *r, pm_token token)
{
    float logits[VOCAB] = {0};
    pm_token id;
    pm_error err = {0};
    logits[token] = 5;
    assert_false(r->generation.done);
    if (pm_generation_next(&r->generation, logits, &id, &err) != PM_OK)
        fail_msg("%s", err.message);
    assert_int_equal(id, token);
    take(r);
}

static void end(run *r, pm_finish finish)
{
    assert_int_equal(pm_generation_end(&r->generation, finish, NULL), PM_OK);
    take(r);
}

static void expect(run *r, pm_finish finish, const char *streamed, const char *text, size_t tokens)
{
    assert_true(r->generation.done);
    assert_int_equal(r->generation.finish, finish);
    assert_string_equal(r->streamed.data ? r->streamed.data : "", streamed);
    assert_string_equal(r->generation.text.data, text);
    assert_int_equal(r->generation.n, tokens);
    pm_buf_free(&r->streamed);
    pm_generation_free(&r->generation);
}

/* ---- ends ---- */

static void test_stop_token(void **state)
{
    run r;
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        begin(&r, &(pm_generate_options){0}, 100);
        say(&r, 4);
        say(&r, 5);
        say(&r, stops[i]);
        expect(&r, PM_FINISH_STOP, "a|b", "ab", 3); /* counted, not in the text */
    }
    begin(&r, &(pm_generate_options){.ignore_eos = true}, 3);
    say(&r, EOS);
    say(&r, 4);
    say(&r, 38); /* wider than the tokenizer: no text */
    expect(&r, PM_FINISH_LENGTH, "a", "a", 3);
}

static void test_limit(void **state)
{
    run r;
    (void)state;
    begin(&r, &(pm_generate_options){0}, 1);
    say(&r, 4);
    expect(&r, PM_FINISH_LENGTH, "a", "a", 1);
    begin(&r, &(pm_generate_options){0}, 1);
    say(&r, EOS); /* the last token allowed may still be the model's own end */
    expect(&r, PM_FINISH_STOP, "", "", 1);
    begin(&r, &(pm_generate_options){0}, 10);
    end(&r, PM_FINISH_CANCELLED);
    expect(&r, PM_FINISH_CANCELLED, "", "", 0);
}

static void test_half_characters(void **state)
{
    run r;
    (void)state;
    begin(&r, &(pm_generate_options){0}, 5);
    say(&r, 8);
    say(&r, 9);
    say(&r, 10);
    say(&r, 11);
    say(&r, 10); /* cut: one U+FFFD, and nothing lost before it */
    expect(&r, PM_FINISH_LENGTH, "\xf0\x9f\x98\x80|\xc3\xa9|\xef\xbf\xbd", "\xf0\x9f\x98\x80\xc3\xa9\xef\xbf\xbd", 5);
}

/* ---- stop strings ---- */

#define STOP(...)                                                                                                      \
    &(pm_generate_options)                                                                                             \
    {                                                                                                                  \
        .stop = (const char *const[]){__VA_ARGS__},                                                                    \
        .n_stop = sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)                                          \
    }

static void test_stop_string_over_tokens(void **state)
{
    run r;
    (void)state;
    begin(&r, STOP("eta ga"), 100);
    say(&r, 1);
    say(&r, 2);
    say(&r, 3);
    expect(&r, PM_FINISH_STOP, "alpha b", "alpha b", 3);
    begin(&r, STOP("eta ga"), 2); /* ends while text is held: it is released */
    say(&r, 1);
    say(&r, 2);
    expect(&r, PM_FINISH_LENGTH, "alpha b|eta", "alpha beta", 2);
    begin(&r, STOP("eta ga"), 100);
    say(&r, 1);
    say(&r, 2);
    say(&r, EOS);
    expect(&r, PM_FINISH_STOP, "alpha b|eta", "alpha beta", 3);
    begin(&r, STOP("eta ga"), 100);
    say(&r, 2);
    end(&r, PM_FINISH_CANCELLED);
    expect(&r, PM_FINISH_CANCELLED, "eta", "eta", 1);
}

static void test_stop_string_restarts(void **state)
{
    run r;
    (void)state;
    begin(&r, STOP("aab"), 100); /* a a a b: the match begins at the second a */
    say(&r, 4);
    say(&r, 4);
    say(&r, 4);
    say(&r, 5);
    expect(&r, PM_FINISH_STOP, "a", "a", 4);
    begin(&r, STOP("stop"), 100);
    say(&r, 13);
    say(&r, 12); /* st|stop */
    expect(&r, PM_FINISH_STOP, "st", "st", 2);
    begin(&r, STOP("abcd", "c"), 100); /* c is complete first */
    say(&r, 4);
    say(&r, 5);
    say(&r, 6);
    expect(&r, PM_FINISH_STOP, "ab", "ab", 3);
    begin(&r, STOP("c", "bc"), 100); /* both are complete at once: the longer one */
    say(&r, 4);
    say(&r, 5);
    say(&r, 6);
    expect(&r, PM_FINISH_STOP, "a", "a", 3);
    begin(&r, STOP("alpha b"), 100);
    say(&r, 1);
    expect(&r, PM_FINISH_STOP, "", "", 1);
    begin(&r, STOP("\xef\xbf\xbd"), 100); /* complete only through the end */
    say(&r, 4);
    say(&r, 10);
    end(&r, PM_FINISH_LENGTH);
    expect(&r, PM_FINISH_STOP, "a", "a", 2);
}

typedef struct told {
    pm_token id;
    float logprob;
    const pm_logprob *top;
    int times;
} told;

static void on_token(void *user, pm_token id, float logprob, const pm_logprob *top)
{
    told *t = user;
    *t = (told){id, logprob, top, t->times + 1};
}

/* What is told of tokens, and which stop string ended the answer. */
static void test_what_is_told(void **state)
{
    run r;
    told t = {0};
    pm_result result;
    (void)state;
    pm_generate_options options = *STOP("x", "b", "ab");
    options.on_token = on_token;
    options.user = &t;
    begin(&r, &options, 100);
    say(&r, 4);
    pm_generation_tell(&r.generation, &options);
    assert_int_equal(t.id, 4);
    assert_null(t.top);
    assert_true(t.logprob == 0);
    say(&r, 5);
    pm_generation_result(&r.generation, &result);
    assert_int_equal(result.stop, 2); /* of two that end there, the longer one */
    pm_result_free(&result);
    pm_buf_free(&r.streamed);
    pm_generation_free(&r.generation);

    options.n_stop = 0;
    options.logprobs = true;
    options.top_logprobs = 2;
    begin(&r, &options, 100);
    say(&r, 4);
    pm_generation_tell(&r.generation, &options);
    assert_int_equal(t.times, 2);
    assert_true(t.logprob < 0 && t.top[0].id == 4 && t.top[0].logprob == t.logprob && t.top[1].id == 0);
    end(&r, PM_FINISH_CANCELLED);
    pm_generation_result(&r.generation, &result);
    assert_int_equal(result.stop, -1);
    pm_result_free(&result);
    pm_buf_free(&r.streamed);
    pm_generation_free(&r.generation);
}

/* However a text is cut into pieces: the same end, and what was final stays. */
static void test_stop_scan_by_pieces(void **state)
{
    static const char *const sets[][3] = {
        {"aab", "ba", NULL}, {"abab", NULL}, {"bb", "abba", "aa"}, {"aaaa", "abaa", NULL}, {"b", "ab", NULL}};
    (void)state;
    for (size_t set = 0; set < PM_COUNT(sets); set++) {
        pm_stop stop;
        int n = 0;
        while (n < 3 && sets[set][n])
            n++;
        assert_int_equal(pm_stop_init(&stop, sets[set], n, NULL), PM_OK);
        for (unsigned bits = 0; bits < 256; bits++) {
            char text[9] = {0};
            size_t whole = 0, final = 0;
            for (int i = 0; i < 8; i++)
                text[i] = bits >> i & 1 ? 'b' : 'a';
            bool found = false;
            for (size_t len = 1; len <= 8 && !found; len++) { /* byte by byte */
                size_t before = whole;
                found = pm_stop_scan(&stop, text, len - 1, len, &whole);
                assert_true(whole >= before);
            }
            for (unsigned cuts = 0; cuts < 128; cuts++) {
                bool got = false;
                size_t seen = 0;
                for (size_t len = 1; len <= 8 && !got; len++) {
                    if (len < 8 && !(cuts >> (len - 1) & 1))
                        continue;
                    size_t before = seen ? final : 0;
                    got = pm_stop_scan(&stop, text, seen, len, &final);
                    assert_true(final >= before);
                    seen = len;
                }
                if (got != found || final != whole)
                    fail_msg("set %zu, %s: %d at %zu, byte by byte %d at %zu", set, text, got, final, found, whole);
            }
        }
        pm_stop_free(&stop);
    }
}

/* ---- log-probabilities ---- */

static void test_logprobs(void **state)
{
    pm_generate_options options = {.logprobs = true, .top_logprobs = 3};
    pm_generation *g;
    float logits[VOCAB] = {0};
    pm_token id;
    run r;
    (void)state;
    logits[7] = logits[3] = 2;
    logits[9] = 1;
    begin(&r, &options, 100);
    g = &r.generation;
    for (int i = 0; i < 5; i++)
        assert_int_equal(pm_generation_next(g, logits, &id, NULL), PM_OK);
    double sum = log(37 + 2 * exp(2) + exp(1));
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(g->ids[i], 3);
        assert_true(fabs((double)g->logprobs[i] - (2 - sum)) < 1e-6);
        assert_int_equal(g->top[3 * i].id, 3);
        assert_int_equal(g->top[3 * i + 1].id, 7);
        assert_int_equal(g->top[3 * i + 2].id, 9);
        assert_true(fabs((double)g->top[3 * i + 2].logprob - (1 - sum)) < 1e-6);
    }
    pm_buf_free(&r.streamed);
    pm_generation_free(g);
}

/* ---- bad input ---- */

static void refused(const pm_generate_options *options, const char *name)
{
    pm_generation generation;
    pm_error err = {0};
    assert_int_equal(pm_generation_init(&generation, &model, options, 10, &err), PM_ERR_INVALID);
    if (!strstr(err.message, name))
        fail_msg("'%s' does not name %s", err.message, name);
}

static void test_refusals(void **state)
{
    (void)state;
    refused(STOP("a", ""), "stop string 1 is empty");
    refused(STOP("\xc3"), "stop string 0 is not valid UTF-8");
    refused(&(pm_generate_options){.n_stop = 1}, "stop strings");
    refused(&(pm_generate_options){.top_logprobs = 1001}, "top_logprobs is 1001");
    refused(&(pm_generate_options){.top_logprobs = -1}, "top_logprobs");
    refused(&(pm_generate_options){.logprobs = true, .top_logprobs = VOCAB + 1}, "vocabulary of 40");
    refused(&(pm_generate_options){.sampling = {.temperature = -1}}, "temperature");
}

static void test_not_finite(void **state)
{
    float logits[VOCAB] = {0};
    pm_token id = 5;
    run r;
    (void)state;
    begin(&r, &(pm_generate_options){0}, 10);
    logits[20] = NAN;
    assert_int_equal(pm_generation_next(&r.generation, logits, &id, NULL), PM_ERR_NUMERIC);
    assert_int_equal(r.generation.n, 0);
    pm_generation_free(&r.generation);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop_token),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_half_characters),
        cmocka_unit_test(test_stop_string_over_tokens),
        cmocka_unit_test(test_stop_string_restarts),
        cmocka_unit_test(test_what_is_told),
        cmocka_unit_test(test_stop_scan_by_pieces),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
