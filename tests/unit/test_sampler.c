/* The sampler against its definition written out plainly; its statistics, its stream, its speed. */
#include "engine/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t noise[4] = {1, 2, 3, 4};

static double uniform(void)
{
    return (double)(pm_random_next(noise) >> 11) * 0x1p-53;
}

#define PLAIN(t, k, p, m, s) ((pm_sampling){.temperature = (t), .top_k = (k), .top_p = (p), .min_p = (m), .seed = (s)})

static pm_sampler make_from(pm_sampling options, int vocab)
{
    pm_sampler sampler;
    pm_error err = {0};
    if (pm_sampler_init(&sampler, &options, vocab, &err) != PM_OK)
        fail_msg("%s", err.message);
    return sampler;
}

static pm_sampler make(float temperature, int top_k, float top_p, float min_p, uint64_t seed, int vocab)
{
    return make_from(PLAIN(temperature, top_k, top_p, min_p, seed), vocab);
}

static pm_token pick(pm_sampler *sampler, const float *logits)
{
    pm_token id = -1;
    pm_error err = {0};
    if (pm_sampler_pick(sampler, logits, &id, &err) != PM_OK)
        fail_msg("%s", err.message);
    return id;
}

/* ---- the definition, by sorting ---- */

typedef struct ranked {
    int id;
    float logit;
    double p;
} ranked;

static int by_rank(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit ? 1 : -1) : x->id - y->id;
}

/* XTC on p[0..n), which sums to 1: with this probability the tokens before the last of those above the threshold give
 * their share to the others. */
static void exclude(ranked *r, int n, double probability, double threshold)
{
    int top = 0;
    double left = 0;
    while (top < n && r[top].p >= threshold)
        top++;
    if (top < 2)
        return;
    for (int i = top - 1; i < n; i++)
        left += r[i].p;
    for (int i = 0; i < n; i++)
        r[i].p *= 1 - probability + (i < top - 1 ? 0 : probability / left);
}

/* The tokens that the filters leave, in order; p sums to 1. Gives their number. */
static int reference(const float *logits, int vocab, const pm_sampling *o, ranked *r)
{
    int n = vocab, kept;
    double sum = 0, before = 0;
    for (int i = 0; i < vocab; i++)
        r[i] = (ranked){i, logits[i], 0};
    qsort(r, (size_t)vocab, sizeof(*r), by_rank);
    if (o->top_k && o->top_k < n)
        n = o->top_k;
    for (int i = 0; i < n; i++)
        sum += r[i].p = exp(((double)r[i].logit - (double)r[0].logit) / (double)o->temperature);
    for (kept = 0; kept < n && (kept == 0 || before < (double)o->top_p * sum); kept++)
        before += r[kept].p;
    n = kept;
    while (n > 1 && r[n - 1].p < (double)o->min_p * r[0].p)
        n--;
    sum = 0;
    for (int i = 0; i < n; i++)
        sum += r[i].p;
    for (int i = 0; i < n; i++)
        r[i].p /= sum;
    exclude(r, n, (double)o->xtc_probability, (double)o->xtc_threshold);
    return n;
}

/* Many draws: each token that may come does so as often as it should (chi-square), and no other comes. */
static void check_distribution(const float *logits, int vocab, pm_sampling o)
{
    enum { DRAWS = 50000 };
    ranked *r = calloc((size_t)vocab, sizeof(*r));
    int *count = calloc((size_t)vocab, sizeof(*count)), n = reference(logits, vocab, &o, r), cells = 0;
    pm_sampler sampler = make_from(o, vocab);
    double chi = 0, rest_p = 0, rest_count = 0;
    for (int i = 0; i < DRAWS; i++)
        count[pick(&sampler, logits)]++;
    for (int i = 0; i < n; i++) {
        double expected = r[i].p * DRAWS;
        if (expected >= 10) {
            chi += (count[r[i].id] - expected) * (count[r[i].id] - expected) / expected;
            cells++;
        } else {
            rest_p += r[i].p;
            rest_count += count[r[i].id];
        }
        count[r[i].id] = 0;
    }
    if (rest_p * DRAWS >= 10) {
        chi += (rest_count - rest_p * DRAWS) * (rest_count - rest_p * DRAWS) / (rest_p * DRAWS);
        cells++;
    }
    for (int i = 0; i < vocab; i++)
        if (count[i])
            fail_msg("token %d was drawn, which the filters rule out", i);
    int freedom = cells > 1 ? cells - 1 : 1;
    if (chi > freedom + 5 * sqrt(2.0 * freedom) + 5)
        fail_msg("chi-square is %g with %d degrees of freedom", chi, freedom);
    pm_sampler_free(&sampler);
    free(r);
    free(count);
}

static void test_distribution(void **state)
{
    float logits[300];
    (void)state;
    for (int i = 0; i < 300; i++)
        logits[i] = (float)(uniform() * 8 - 4);
    logits[5] = logits[9] = logits[77];
    check_distribution(logits, 300, PLAIN(1, 0, 1, 0, 1));
    check_distribution(logits, 300, PLAIN(0.7f, 0, 1, 0, 2));
    check_distribution(logits, 300, PLAIN(1.5f, 40, 1, 0, 3));
    check_distribution(logits, 300, PLAIN(1, 0, 0.8f, 0, 4));
    check_distribution(logits, 300, PLAIN(1, 0, 1, 0.1f, 5));
    check_distribution(logits, 300, PLAIN(0.9f, 50, 0.9f, 0.05f, 6));
    check_distribution(logits, 1, PLAIN(1, 0, 0.5f, 0.5f, 7));
    pm_sampling xtc = PLAIN(0.9f, 50, 0.9f, 0.01f, 8);
    const float shares[][2] = {{1, 0.02f}, {0.5f, 0.02f}, {0.25f, 0.03f}, {1, 0.5f}, {1, 0}};
    for (size_t i = 0; i < PM_COUNT(shares); i++) {
        xtc.xtc_probability = shares[i][0];
        xtc.xtc_threshold = shares[i][1];
        check_distribution(logits, 300, xtc);
    }
}

/* Which tokens remain after each filter, read off by drawing often from a nearly flat distribution. */
static void assert_kept(const float *logits, int vocab, pm_sampling o, const char *want)
{
    char seen[32] = {0};
    pm_sampler sampler = make_from(o, vocab);
    for (int i = 0; i < vocab; i++)
        seen[i] = '.';
    for (int i = 0; i < 20000; i++)
        seen[pick(&sampler, logits)] = 'x';
    assert_string_equal(seen, want);
    pm_sampler_free(&sampler);
}

static void test_filters(void **state)
{
    const float thirds[] = {0, 1, 1, 0, 1, -1};
    /* probabilities .4 .3 .2 .1 */
    const float steps[] = {logf(.1f), logf(.4f), logf(.2f), logf(.3f)};
    (void)state;
    assert_kept(thirds, 6, PLAIN(1, 2, 1, 0, 0), ".xx..."); /* ties: the lower ids */
    assert_kept(thirds, 6, PLAIN(1, 4, 1, 0, 0), "xxx.x.");
    assert_kept(thirds, 6, PLAIN(1, 100, 1, 0, 0), "xxxxxx");
    assert_kept(steps, 4, PLAIN(1, 0, .39f, 0, 0), ".x..");
    assert_kept(steps, 4, PLAIN(1, 0, .41f, 0, 0), ".x.x");
    assert_kept(steps, 4, PLAIN(1, 0, .71f, 0, 0), ".xxx");
    assert_kept(steps, 4, PLAIN(1, 0, .91f, 0, 0), "xxxx");
    assert_kept(steps, 4, PLAIN(1, 0, 1e-9f, 0, 0), ".x..");
    assert_kept(steps, 4, PLAIN(1, 2, .6f, 0, 0), ".x.x"); /* shares of what top-k left: .57 .43 */
    assert_kept(steps, 4, PLAIN(1, 2, .5f, 0, 0), ".x..");
    assert_kept(steps, 4, PLAIN(1, 0, 1, .49f, 0), ".xxx");
    assert_kept(steps, 4, PLAIN(1, 0, 1, .51f, 0), ".x.x");
    assert_kept(steps, 4, PLAIN(1, 0, 1, 1, 0), ".x..");
    assert_kept(steps, 4, PLAIN(.5f, 0, 1, .3f, 0), ".x.x"); /* temperature comes first: 16 9 4 1 */
}

/* Exclude top choices: probabilities .4 .3 .2 .1. */
static void test_xtc(void **state)
{
    const float steps[] = {logf(.1f), logf(.4f), logf(.2f), logf(.3f)};
    static const struct {
        float threshold, top_p;
        pm_token guarded, newline;
        const char *want;
    } cases[] = {
        {.05f, 1, 9, -1, "x..."}, {.15f, 1, 9, -1, "x.x."},
        {.25f, 1, 9, -1, "x.xx"}, {.35f, 1, 9, -1, "xxxx"},   /* one top choice: it stays */
        {.6f, 1, 9, -1, "xxxx"},  {.35f, .6f, 9, -1, "...x"}, /* of what top-p left: .57 .43 */
        {.15f, 1, 1, -1, "xxxx"},                             /* a guarded token would go: nothing goes */
        {.15f, 1, 2, -1, "x.x."},                             /* it is the one that stays */
        {.15f, 1, 9, 3, "xxxx"},  {.15f, 1, 0, -1, "x.x."},
    };
    (void)state;
    for (size_t k = 0; k < PM_COUNT(cases); k++) {
        pm_sampling o = PLAIN(1, 0, cases[k].top_p, 0, 1);
        char seen[] = "....";
        o.xtc_probability = 1;
        o.xtc_threshold = cases[k].threshold;
        pm_sampler sampler = make_from(o, 4);
        sampler.guarded = &cases[k].guarded;
        sampler.n_guarded = 1;
        sampler.newline = cases[k].newline;
        for (int i = 0; i < 5000; i++)
            seen[pick(&sampler, steps)] = 'x';
        if (strcmp(seen, cases[k].want) != 0)
            fail_msg("case %zu leaves %s, not %s", k, seen, cases[k].want);
        pm_sampler_free(&sampler);
    }
}

/* Two numbers a token with XTC, whether it does anything or not, one without; none when greedy. */
static void test_draws(void **state)
{
    const float logits[] = {0, 0.5f, 0.25f};
    (void)state;
    for (int k = 0; k < 4; k++) {
        pm_sampling o = PLAIN(k == 3 ? 0 : 1, 0, 1, 0, 5);
        uint64_t stream[4];
        o.xtc_probability = k == 0 ? 0 : 0.5f;
        o.xtc_threshold = k == 2 ? 1 : 0.1f;
        pm_sampler sampler = make_from(o, 3);
        pm_random_seed(stream, 5);
        pick(&sampler, logits);
        for (int i = 0; i < (k == 0 ? 1 : k == 3 ? 0 : 2); i++)
            pm_random_next(stream);
        assert_memory_equal(stream, sampler.random, sizeof(stream));
        pm_sampler_free(&sampler);
    }
}

static void test_greedy(void **state)
{
    float logits[] = {-1, 3, 2, 3, -0.0f};
    pm_sampler sampler = make(0, 0, 0, 0, 0, 5);
    (void)state;
    assert_int_equal(pick(&sampler, logits), 1);
    logits[1] = 1;
    assert_int_equal(pick(&sampler, logits), 3);
    logits[3] = logits[2] = logits[1] = -INFINITY;
    assert_int_equal(pick(&sampler, logits), 4);
    pm_sampler_free(&sampler);
}

static void test_not_finite(void **state)
{
    const float bad[] = {NAN, INFINITY, -NAN};
    pm_token id = 42;
    (void)state;
    for (int t = 0; t < 2; t++) {
        pm_sampler sampler = make((float)t, 0, 1, 0, 0, 100);
        float logits[100] = {0};
        pm_error err = {0};
        for (size_t i = 0; i < 3; i++) {
            for (int at = 0; at < 100; at += 33) {
                logits[at] = bad[i];
                assert_int_equal(pm_sampler_pick(&sampler, logits, &id, &err), PM_ERR_NUMERIC);
                assert_non_null(strstr(err.message, "logits"));
                logits[at] = 0;
            }
        }
        for (int i = 0; i < 100; i++)
            logits[i] = -INFINITY;
        assert_int_equal(pm_sampler_pick(&sampler, logits, &id, &err), PM_ERR_NUMERIC);
        logits[17] = -1e30f; /* ruled-out tokens never come */
        assert_int_equal(pick(&sampler, logits), 17);
        pm_sampler_free(&sampler);
    }
    assert_int_equal(id, 42);
}

static void test_extreme_temperatures(void **state)
{
    float logits[50];
    (void)state;
    for (int i = 0; i < 50; i++)
        logits[i] = (float)i * 0.01f;
    pm_sampler cold = make(1e-42f, 0, 0.9f, 0.1f, 0, 50), hot = make(1e30f, 0, 1, 0, 0, 50);
    int seen[50] = {0};
    for (int i = 0; i < 5000; i++) {
        assert_int_equal(pick(&cold, logits), 49);
        seen[pick(&hot, logits)]++;
    }
    for (int i = 0; i < 50; i++)
        assert_in_range(seen[i], 40, 200);
    pm_sampler_free(&cold);
    pm_sampler_free(&hot);
}

/* ---- the stream ---- */

static void test_random_stream(void **state)
{
    uint64_t s[4];
    (void)state;
    /* Reference outputs of splitmix64 from seed 0, and of xoshiro256** from the state 1 2 3 4. */
    pm_random_seed(s, 0);
    assert_true(s[0] == 0xe220a8397b1dcdafu && s[1] == 0x6e789e6aa1b965f4u);
    assert_true(s[2] == 0x06c45d188009454fu && s[3] == 0xf88bb8a8724c81ecu);
    uint64_t t[4] = {1, 2, 3, 4};
    assert_true(pm_random_next(t) == 11520u);
    assert_true(pm_random_next(t) == 0u);
    assert_true(pm_random_next(t) == 1509978240u);
}

static void test_seeds(void **state)
{
    float logits[200] = {0};
    pm_token first[64], second[64], other[64];
    (void)state;
    for (int k = 0; k < 3; k++) {
        pm_sampler sampler = make(1, 0, 1, 0, k == 2 ? 8 : 7, 200);
        for (int i = 0; i < 64; i++)
            (k == 0 ? first : k == 1 ? second : other)[i] = pick(&sampler, logits);
        pm_sampler_free(&sampler);
    }
    assert_memory_equal(first, second, sizeof(first));
    assert_true(memcmp(first, other, sizeof(first)) != 0);
}

/* The draw is the one that the manual describes: the inverse of the distribution function in rank order. */
static void test_inverse_of_distribution(void **state)
{
    enum { VOCAB = 4096 };
    float *logits = malloc(VOCAB * sizeof(float));
    ranked *r = calloc(VOCAB, sizeof(*r));
    pm_sampling o = PLAIN(0.8f, 0, 0.98f, 0.0001f, 99);
    uint64_t stream[4];
    (void)state;
    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)(uniform() * 20 - 10);
    int n = reference(logits, VOCAB, &o, r), differ = 0;
    pm_sampler sampler = make(o.temperature, o.top_k, o.top_p, o.min_p, o.seed, VOCAB);
    pm_random_seed(stream, o.seed);
    for (int k = 0; k < 2000; k++) {
        double u = (double)(pm_random_next(stream) >> 11) * 0x1p-53, sum = 0;
        int i = 0;
        while (i < n - 1 && (sum += r[i].p) <= u)
            i++;
        differ += pick(&sampler, logits) != r[i].id;
    }
    assert_in_range(differ, 0, 2); /* u may fall on a border within rounding */
    pm_sampler_free(&sampler);
    free(logits);
    free(r);
}

/* ---- log-probabilities ---- */

static void test_logprobs(void **state)
{
    enum { VOCAB = 1000 };
    float logits[VOCAB], logprob;
    ranked r[VOCAB];
    pm_logprob top[VOCAB];
    pm_sampling plain = PLAIN(1, 0, 1, 0, 0);
    const int sizes[] = {1, 5, 999, VOCAB};
    (void)state;
    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)(int)(uniform() * 300) * 0.1f - 15; /* many ties */
    reference(logits, VOCAB, &plain, r);
    pm_sampler sampler = make(0, 0, 0, 0, 0, VOCAB);
    for (size_t s = 0; s < PM_COUNT(sizes); s++) {
        pm_sampler_logprobs(&sampler, logits, 321, &logprob, top, sizes[s]);
        for (int i = 0; i < sizes[s]; i++) {
            assert_int_equal(top[i].id, r[i].id);
            assert_true(fabs((double)top[i].logprob - log(r[i].p)) < 2e-6 * (1 + fabs(log(r[i].p))));
        }
        for (int i = 0; i < VOCAB; i++)
            if (r[i].id == 321)
                assert_true(fabs((double)logprob - log(r[i].p)) < 1e-5);
    }
    pm_sampler_logprobs(&sampler, logits, pick(&sampler, logits), &logprob, top, 3);
    assert_true(logprob == top[0].logprob); /* greedy is rank 1 */
    logits[0] = 1e30f;
    pm_sampler_logprobs(&sampler, logits, 1, &logprob, NULL, 0);
    assert_true(isfinite(logprob));
    pm_sampler_free(&sampler);
}

/* ---- options ---- */

static void assert_refused(pm_sampling options, const char *name)
{
    pm_error err = {0};
    pm_sampler sampler;
    assert_int_equal(pm_sampler_init(&sampler, &options, 10, &err), PM_ERR_INVALID);
    if (!strstr(err.message, name))
        fail_msg("'%s' does not name %s", err.message, name);
}

static void test_options(void **state)
{
    (void)state;
    assert_refused(PLAIN(-1, 0, 1, 0, 0), "temperature");
    assert_refused(PLAIN(NAN, 0, 1, 0, 0), "temperature");
    assert_refused(PLAIN(INFINITY, 0, 1, 0, 0), "temperature");
    assert_refused(PLAIN(1, -1, 1, 0, 0), "top_k");
    assert_refused(PLAIN(1, 0, 0, 0, 0), "top_p");
    assert_refused(PLAIN(0, 0, -1, 0, 0), "top_p");
    assert_refused(PLAIN(1, 0, 1.1f, 0, 0), "top_p");
    assert_refused(PLAIN(1, 0, NAN, 0, 0), "top_p");
    assert_refused(PLAIN(1, 0, 1, -0.1f, 0), "min_p");
    assert_refused(PLAIN(1, 0, 1, 1.1f, 0), "min_p");
    assert_refused(PLAIN(1, 0, 1, NAN, 0), "min_p");
    assert_refused((pm_sampling){.xtc_probability = 1.5f}, "xtc_probability");
    assert_refused((pm_sampling){.xtc_threshold = -0.1f}, "xtc_threshold");
    assert_refused((pm_sampling){.xtc_threshold = NAN}, "xtc_threshold");
    assert_int_equal(pm_sampling_check(&(pm_sampling){0}, NULL), PM_OK);
}

/* A large vocabulary costs little whatever the filters: no sorting of everything, no bad case. The bound is loose for
 * slow and busy machines. */
static void test_large_vocabulary(void **state)
{
    enum { VOCAB = 150000, DRAWS = 20 };
    static const pm_sampling options[] = {
        {.temperature = 1, .top_p = 1},
        {.temperature = 1, .top_k = 50, .top_p = 1},
        {.temperature = 1, .top_p = 0.95f},
        {.temperature = 1, .top_p = 1, .min_p = 0.05f},
        {.temperature = 1, .top_k = 20, .top_p = 0.9f},
        {.temperature = 5, .top_p = 0.5f},
        {.temperature = 1, .top_p = 1, .repetition_penalty = 1.1f, .xtc_probability = 1, .xtc_threshold = 0.1f}};
    float *logits = malloc(VOCAB * sizeof(float));
    (void)state;
    for (int shape = 0; shape < 4; shape++) {
        for (int i = 0; i < VOCAB; i++)
            logits[i] = shape == 0   ? (float)(sqrt(-2 * log(1 - uniform())) * cos(6.283185 * uniform()) * 3)
                        : shape == 1 ? 0.0f
                        : shape == 2 ? (float)i * 1e-4f
                                     : (float)-i * 1e-4f;
        for (size_t o = 0; o < PM_COUNT(options); o++) {
            pm_sampler sampler = make_from(options[o], VOCAB);
            double best = 1e9;
            for (int i = 0; i < DRAWS; i++) {
                double start = pm_now();
                pick(&sampler, logits);
                double took = pm_now() - start;
                best = took < best ? took : best;
            }
            if (best > 20e-3)
                fail_msg("a draw from %d tokens takes %.1f ms (shape %d, options %zu)", VOCAB, best * 1e3, shape, o);
            pm_sampler_free(&sampler);
        }
    }
    free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_filters),
        cmocka_unit_test(test_xtc),
        cmocka_unit_test(test_draws),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_extreme_temperatures),
        cmocka_unit_test(test_random_stream),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_inverse_of_distribution),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_large_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
