/* Penalties and biases, against numbers from transformers' logits processors, and by hand. */
#include "engine/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 8 };

static const float logits[VOCAB] = {1.5f, -0.75f, 3.0f, 0.0f, -2.25f, 0.5f, 2.0f, -1.0f};
static const pm_token prompt[] = {0, 4, 6, 6}, answer[] = {3, 1, 6};

static pm_penalties make(pm_sampling options)
{
    pm_penalties penalties;
    pm_error err = {0};
    if (pm_penalties_check(&options, &err) != PM_OK || pm_penalties_init(&penalties, &options, VOCAB, &err) != PM_OK)
        fail_msg("%s", err.message);
    pm_penalties_see(&penalties, prompt, PM_COUNT(prompt), false);
    pm_penalties_see(&penalties, answer, PM_COUNT(answer), true);
    return penalties;
}

static void check(pm_sampling options, const float want[VOCAB])
{
    pm_penalties penalties = make(options);
    for (int round = 0; round < 2; round++) {
        const float *got = pm_penalties_apply(&penalties, logits);
        for (int i = 0; i < VOCAB; i++)
            if (fabsf(got[i] - want[i]) > 1e-6f)
                fail_msg("logit %d is %.8g, not %.8g", i, (double)got[i], (double)want[i]);
    }
    pm_penalties_free(&penalties);
}

/* RepetitionPenaltyLogitsProcessor over the same tokens. */
static void test_repetition(void **state)
{
    (void)state;
    check((pm_sampling){.repetition_penalty = 1.3f},
          (float[]){1.15384614f, -0.97499996f, 3, 0, -2.92499995f, 0.5f, 1.53846157f, -1});
    check((pm_sampling){.repetition_penalty = 0.8f},
          (float[]){1.875f, -0.60000002f, 3, 0, -1.80000007f, 0.5f, 2.5f, -1});
    check((pm_sampling){.repetition_penalty = 2}, (float[]){0.75f, -1.5f, 3, 0, -4.5f, 0.5f, 1, -1});
    check((pm_sampling){.repetition_penalty = 1}, logits);
    check((pm_sampling){.repetition_penalty = 0}, logits);
}

/* OpenAI: mu[j] - c[j] * alpha_frequency - float(c[j] > 0) * alpha_presence, c over the answer alone. */
static void test_presence_and_frequency(void **state)
{
    (void)state;
    check((pm_sampling){.presence_penalty = 0.5f}, (float[]){1.5f, -1.25f, 3, -0.5f, -2.25f, 0.5f, 1.5f, -1});
    check((pm_sampling){.frequency_penalty = -1.5f}, (float[]){1.5f, 0.75f, 3, 1.5f, -2.25f, 0.5f, 3.5f, -1});
    pm_penalties penalties = make((pm_sampling){.presence_penalty = 2, .frequency_penalty = 0.25f});
    pm_penalties_see(&penalties, (pm_token[]){6, 6}, 2, true);
    const float *got = pm_penalties_apply(&penalties, logits);
    assert_true(got[6] == 2 - 2 - 0.75f);
    assert_true(got[3] == -2.25f);
    assert_true(got[0] == 1.5f);
    pm_penalties_free(&penalties);
}

static void test_bias(void **state)
{
    const pm_bias bias[] = {{2, -100}, {7, 4}, {7, 0.5f}};
    (void)state;
    check((pm_sampling){.bias = bias, .n_bias = 3}, (float[]){1.5f, -0.75f, -97, 0, -2.25f, 0.5f, 2, 3.5f});
}

/* Repetition first, of the logit as it came; then presence and frequency; then bias. */
static void test_order(void **state)
{
    const pm_bias bias[] = {{1, 10}, {6, -1}};
    (void)state;
    check(
        (pm_sampling){
            .repetition_penalty = 2, .presence_penalty = 1, .frequency_penalty = 0.5f, .bias = bias, .n_bias = 2},
        (float[]){0.75f, -1.5f - 1.5f + 10, 3, -1.5f, -4.5f, 0.5f, 1 - 1.5f - 1, -1});
}

/* What the whole chain leaves of the distribution, against transformers: repetition 1.2 over the tokens 0 4 6 6 3 1,
 * then temperature, top-k, top-p, min-p. */
static void test_chain(void **state)
{
    enum { DRAWS = 200000 };
    static const struct {
        pm_sampling options;
        double p[VOCAB];
    } cases[] = {
        {{.temperature = 0.7f, .top_k = 5, .top_p = 0.9f, .min_p = 0.05f}, {0, 0, .8704295, 0, 0, 0, .1295705, 0}},
        {{.temperature = 1.5f, .top_p = 0.8f}, {.1629197, 0, .5231791, 0, 0, .0988158, .2150853, 0}},
        {{.temperature = 1, .top_k = 3, .top_p = 1, .min_p = 0.3f}, {0, 0, 1, 0, 0, 0, 0, 0}},
        {{.temperature = 2, .top_k = 6, .top_p = 0.95f, .min_p = 0.2f},
         {.1708511, 0, .4098505, .09145, 0, .1174241, .2104243, 0}},
    };
    static const pm_token before[] = {0, 4, 6, 6, 3, 1};
    (void)state;
    for (size_t k = 0; k < PM_COUNT(cases); k++) {
        pm_sampling options = cases[k].options;
        pm_sampler sampler;
        pm_error err = {0};
        int count[VOCAB] = {0};
        options.repetition_penalty = 1.2f;
        assert_int_equal(pm_sampler_init(&sampler, &options, VOCAB, &err), PM_OK);
        pm_penalties_see(&sampler.penalties, before, PM_COUNT(before), false);
        int seen = sampler.penalties.n_seen;
        for (int i = 0; i < DRAWS; i++) {
            pm_token id;
            assert_int_equal(pm_sampler_pick(&sampler, logits, &id, &err), PM_OK);
            count[id]++;
            if (sampler.penalties.n_seen > seen) /* every draw from the same distribution: forget what was drawn */
                sampler.penalties.count[sampler.penalties.seen[--sampler.penalties.n_seen]] = -1;
        }
        for (int i = 0; i < VOCAB; i++) {
            double expected = cases[k].p[i] * DRAWS, sigma = sqrt(expected * (1 - cases[k].p[i]));
            if (fabs(count[i] - expected) > 5 * sigma + 0.1)
                fail_msg("case %zu: token %d came %d times, not about %.1f", k, i, count[i], expected);
        }
        pm_sampler_free(&sampler);
    }
}

/* Greedy obeys them too, and takes note of its own choices. */
static void test_greedy(void **state)
{
    const pm_token want[] = {2, 6, 0, 2};
    pm_sampling options = {.frequency_penalty = 1.6f};
    pm_sampler sampler;
    (void)state;
    assert_int_equal(pm_sampler_init(&sampler, &options, VOCAB, NULL), PM_OK);
    for (size_t i = 0; i < PM_COUNT(want); i++) {
        pm_token id;
        assert_int_equal(pm_sampler_pick(&sampler, logits, &id, NULL), PM_OK);
        assert_int_equal(id, want[i]);
    }
    pm_sampler_free(&sampler);
}

/* Nothing asked for takes no memory; tokens outside the vocabulary are nobody's. */
static void test_idle(void **state)
{
    pm_penalties penalties = make((pm_sampling){.repetition_penalty = 1});
    (void)state;
    assert_null(penalties.logits);
    assert_null(penalties.count);
    assert_ptr_equal(pm_penalties_apply(&penalties, logits), logits);
    penalties = make((pm_sampling){.repetition_penalty = 2});
    pm_penalties_see(&penalties, (pm_token[]){-1, VOCAB, INT32_MAX}, 3, true);
    assert_int_equal(penalties.n_seen, 5);
    pm_penalties_free(&penalties);
}

static void refused(pm_sampling options, const char *name)
{
    pm_error err = {0};
    pm_sampler sampler;
    assert_int_equal(pm_sampler_init(&sampler, &options, VOCAB, &err), PM_ERR_INVALID);
    if (!strstr(err.message, name))
        fail_msg("'%s' does not name %s", err.message, name);
}

static void test_options(void **state)
{
    const float bad[] = {-3, 3, NAN, INFINITY, -INFINITY};
    (void)state;
    for (size_t i = 0; i < PM_COUNT(bad); i++) {
        refused((pm_sampling){.presence_penalty = bad[i]}, "presence_penalty");
        refused((pm_sampling){.frequency_penalty = bad[i]}, "frequency_penalty");
        refused((pm_sampling){.bias = &(pm_bias){3, bad[i] * 40}, .n_bias = 1}, "logit bias of token 3");
    }
    refused((pm_sampling){.repetition_penalty = -1}, "repetition_penalty");
    refused((pm_sampling){.repetition_penalty = NAN}, "repetition_penalty");
    refused((pm_sampling){.repetition_penalty = 1e-5f}, "repetition_penalty");
    refused((pm_sampling){.repetition_penalty = 0.0099f}, "between 0.01 and 100");
    refused((pm_sampling){.repetition_penalty = 100.1f}, "between 0.01 and 100");
    assert_int_equal(pm_penalties_check(&(pm_sampling){.repetition_penalty = 0.01f}, NULL), PM_OK);
    assert_int_equal(pm_penalties_check(&(pm_sampling){.repetition_penalty = 100}, NULL), PM_OK);
    refused((pm_sampling){.bias = &(pm_bias){VOCAB, 1}, .n_bias = 1}, "token 8, outside the vocabulary of 8");
    refused((pm_sampling){.bias = &(pm_bias){-1, 1}, .n_bias = 1}, "token -1");
    refused((pm_sampling){.n_bias = 1}, "biases");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_repetition), cmocka_unit_test(test_presence_and_frequency),
        cmocka_unit_test(test_bias),       cmocka_unit_test(test_order),
        cmocka_unit_test(test_chain),      cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_idle),       cmocka_unit_test(test_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
