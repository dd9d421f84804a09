/* Routing: hand-made cases, and what mlx-lm and transformers choose. */
#include "backend/cpu/mixer.h"
#include "ops/matrices.h"
#include "ops/routes.h"

enum { MAX_EXPERTS = 256 };

/* pm_moe_route of one token, with this bias (or NULL). */
static void choose(pm_route route, const float *logits, const float *bias, int32_t *ids, float *weights)
{
    float room[PM_ROUTE_ROOM * MAX_EXPERTS], copy[MAX_EXPERTS];
    pm_tensor tensor = {1, route.experts, copy};
    if (bias) {
        memcpy(copy, bias, (size_t)route.experts * sizeof(*bias));
        route.bias = &tensor;
    }
    pm_moe_route(&pm_mixer_scalar, &route, logits, 0, room, ids, weights);
}

/* The logit whose sigmoid is `score`. */
static float logit(double score)
{
    return (float)log(score / (1 - score));
}

static void check(const char *what, int n, const int32_t *ids, const float *weights, const int32_t *want_ids,
                  const float *want)
{
    for (int i = 0; i < n; i++)
        if (ids[i] != want_ids[i] || !(fabs((double)(weights[i] - want[i])) <= 2e-6 * fabs((double)want[i])))
            fail_msg("%s, choice %d: expert %d with weight %.9g, but it is %d with %.9g", what, i, ids[i],
                     (double)weights[i], want_ids[i], (double)want[i]);
}

/* ---- softmax ---- */

static void choose_softmax(const float *logits, int experts, int top_k, bool normalise, float scale, int32_t *ids,
                           float *weights)
{
    choose((pm_route){.experts = experts, .top_k = top_k, .normalise = normalise, .scale = scale}, logits, NULL, ids,
           weights);
}

static void route_normalise_and_scale(void **state)
{
    (void)state;
    static const float logits[] = {0.5f, 2.0f, -1.0f, 1.0f};
    double all = 0, chosen = exp(2.0) + exp(1.0);
    for (int e = 0; e < 4; e++)
        all += exp((double)logits[e]);
    for (int normalise = 0; normalise < 2; normalise++)
        for (int scaled = 0; scaled < 2; scaled++) {
            float scale = scaled ? 2.5f : 1.0f, weights[2];
            int32_t ids[2];
            choose_softmax(logits, 4, 2, normalise, scale, ids, weights);
            assert_int_equal(ids[0], 1);
            assert_int_equal(ids[1], 3);
            double sum = normalise ? scale : chosen / all * (double)scale;
            assert_true(fabs((double)weights[0] + (double)weights[1] - sum) < 1e-6 * sum);
            assert_true(fabs((double)weights[0] / (double)weights[1] - exp(1.0)) < 1e-5);
        }
}

static void route_ties_and_order(void **state)
{
    (void)state;
    static const struct {
        float logits[8];
        int top_k;
        int32_t ids[8];
    } cases[] = {
        {{1, 1, 1, 1, 1, 1, 1, 1}, 3, {0, 1, 2}},
        {{0, 3, 1, 3, 2, 3, 2, 2}, 4, {1, 3, 4, 5}},
        {{0, 3, 1, 3, 2, 3, 2, 2}, 5, {1, 3, 4, 5, 6}},
        {{-5, -4, -3, -2, -1, 0, 1, 2}, 1, {7}},
        {{7, 6, 5, 4, 3, 2, 1, 0}, 8, {0, 1, 2, 3, 4, 5, 6, 7}},
        {{-0.0f, 0.0f, -0.0f, 0.0f, -1, -1, -1, -1}, 2, {0, 1}},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        int32_t ids[8];
        float weights[8];
        choose_softmax(cases[i].logits, 8, cases[i].top_k, true, 1, ids, weights);
        assert_memory_equal(ids, cases[i].ids, (size_t)cases[i].top_k * sizeof(*ids));
    }
}

static void route_extremes(void **state)
{
    (void)state;
    int32_t ids[3];
    float weights[3];
    static const float far[] = {3e38f, -3e38f, 0, -3e38f, 1e38f, 5};
    choose_softmax(far, 6, 3, true, 1, ids, weights);
    assert_true(weights[0] == 1 && weights[1] == 0 && weights[2] == 0);
    choose_softmax(far, 6, 3, false, 1, ids, weights);
    assert_true(weights[0] == 1 && weights[1] == 0 && weights[2] == 0);
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int b = 0; b < 3; b++)
        for (int at = 0; at < 6; at++) {
            float logits[6] = {1, 2, 3, 4, 5, 6};
            logits[at] = bad[b];
            choose_softmax(logits, 6, 3, true, 1, ids, weights);
            for (int i = 0; i < 3; i++) {
                assert_true(ids[i] >= 0 && ids[i] < 6 && (i == 0 || ids[i] > ids[i - 1]));
                assert_true(isnan(weights[i]));
            }
        }
}

/* ---- sigmoid ---- */

static void bias_chooses_and_does_not_weigh(void **state)
{
    (void)state;
    const float logits[] = {logit(.9), logit(.8), logit(.2), logit(.1)}, bias[] = {0, -1, 1, 0};
    pm_route route = {.kind = PM_ROUTE_SIGMOID, .experts = 4, .top_k = 2, .normalise = true, .scale = 2.5f};
    int32_t ids[2];
    float weights[2];
    choose(route, logits, bias, ids, weights);
    check("biased", 2, ids, weights, (int32_t[]){0, 2}, (float[]){2.5f * .9f / 1.1f, 2.5f * .2f / 1.1f});
}

static void dividing_and_scaling_are_independent(void **state)
{
    (void)state;
    const float logits[] = {logit(.5), logit(.3), logit(.25), logit(.1)};
    for (int normalise = 0; normalise < 2; normalise++)
        for (int scaled = 0; scaled < 2; scaled++) {
            float scale = scaled ? 2.5f : 1, sum = normalise ? 1 : .5f + .3f, weights[2];
            pm_route route = {PM_ROUTE_SIGMOID, .experts = 4, .top_k = 2, .normalise = normalise, .scale = scale};
            int32_t ids[2];
            choose(route, logits, NULL, ids, weights);
            assert_true(fabs((double)(weights[0] + weights[1] - scale * sum)) < 1e-6);
        }
}

/* By its own score, that is, unless the family does it. */
static void one_expert_is_not_divided(void **state)
{
    (void)state;
    const float logits[] = {logit(.5), logit(.75), logit(.25), logit(.1)};
    pm_route route = {.kind = PM_ROUTE_SIGMOID, .experts = 4, .top_k = 1, .normalise = true, .scale = 2};
    int32_t id;
    float weight;
    choose(route, logits, NULL, &id, &weight);
    check("one expert", 1, &id, &weight, (int32_t[]){1}, (float[]){1.5f});
    route.divide_one = true;
    choose(route, logits, NULL, &id, &weight);
    check("one expert, divided", 1, &id, &weight, (int32_t[]){1}, (float[]){2});
}

static void groups_are_chosen_by_their_two_best(void **state)
{
    (void)state;
    const float low = logit(1e-6), bias[] = {-.4f, -.5f, -2, -2};
    const float best[] = {logit(.9), low, logit(.6), logit(.5)}, negative[] = {logit(.1), logit(.1), low, low};
    pm_route route = {.kind = PM_ROUTE_SIGMOID,
                      .experts = 4,
                      .top_k = 2,
                      .scale = 1,
                      .groups = 2,
                      .top_groups = 1,
                      .group_best = 2,
                      .masked = -INFINITY};
    int32_t ids[2];
    float weights[2];
    choose(route, best, NULL, ids, weights); /* the best expert is in the other group */
    check("two best", 2, ids, weights, (int32_t[]){2, 3}, (float[]){.6f, .5f});
    choose(route, negative, bias, ids, weights); /* the kept group's biased scores are negative */
    check("negative scores", 2, ids, weights, (int32_t[]){0, 1}, (float[]){.1f, .1f});
    route.masked = 0; /* as mlx-lm: experts outside win */
    choose(route, negative, bias, ids, weights);
    assert_true(ids[0] == 2 && ids[1] == 3);
    route.group_best = 1; /* DeepSeek-V2's groups */
    route.masked = -INFINITY;
    choose(route, best, NULL, ids, weights);
    assert_true(ids[0] == 0 && ids[1] == 1);
}

static void softmax_in_groups(void **state)
{
    (void)state;
    const float logits[] = {2, 1, 3, -9, 2.5f, 2.5f, 0, 0};
    pm_route route = {.kind = PM_ROUTE_SOFTMAX,
                      .experts = 8,
                      .top_k = 3,
                      .scale = 1,
                      .groups = 4,
                      .top_groups = 2,
                      .group_best = 1,
                      .masked = -INFINITY};
    double sum = 0;
    int32_t ids[3];
    float weights[3];
    for (int e = 0; e < 8; e++)
        sum += exp((double)logits[e]);
    choose(route, logits, NULL, ids, weights);
    check("softmax in groups", 3, ids, weights, (int32_t[]){2, 4, 5},
          (float[]){(float)(exp(3) / sum), (float)(exp(2.5) / sum), (float)(exp(2.5) / sum)});
}

static void no_score_at_all_gives_zeros(void **state)
{
    (void)state;
    const float logits[] = {-200, -200, -200, -200};
    pm_route route = {.kind = PM_ROUTE_SIGMOID, .experts = 4, .top_k = 2, .normalise = true, .scale = 1};
    route.epsilon = 1e-20f;
    int32_t ids[2];
    float weights[2];
    choose(route, logits, NULL, ids, weights);
    check("no score", 2, ids, weights, (int32_t[]){0, 1}, (float[]){0, 0});
}

static void logits_that_are_not_finite_poison_the_weights(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static const pm_route_kind kinds[] = {PM_ROUTE_SOFTMAX, PM_ROUTE_SIGMOID, PM_ROUTE_SQRT_SOFTPLUS};
    for (int i = 0; i < 3 * 3 * 3 * 6; i++) {
        float logits[6] = {1, 2, 3, 4, 5, 6}, weights[3];
        int32_t ids[3];
        pm_route route = {.kind = kinds[i % 3],
                          .experts = 6,
                          .top_k = 3,
                          .normalise = i / 3 % 3 == 0,
                          .scale = 1,
                          .groups = i / 3 % 3,
                          .top_groups = 1,
                          .group_best = 2,
                          .masked = -INFINITY};
        logits[i / 27] = bad[i / 9 % 3];
        choose(route, logits, NULL, ids, weights);
        for (int k = 0; k < 3; k++)
            assert_true(isnan(weights[k]) && ids[k] >= 0 && ids[k] < 6 && (k == 0 || ids[k] > ids[k - 1]));
    }
}

/* ---- references ---- */

static void as_mlx_lm_and_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < PM_COUNT(goldens); i++) {
        const struct golden *g = &goldens[i];
        float table[GOLDEN_TOKENS * GOLDEN_TOP_K], room[PM_ROUTE_ROOM * GOLDEN_EXPERTS], bias[GOLDEN_EXPERTS];
        pm_tensor bias_tensor = {1, GOLDEN_EXPERTS, bias}, experts = {GOLDEN_TOKENS, g->top_k, table};
        pm_route route = {.kind = g->kind,
                          .experts = GOLDEN_EXPERTS,
                          .top_k = g->top_k,
                          .normalise = g->normalise,
                          .divide_one = g->divide_one,
                          .scale = g->scale,
                          .epsilon = g->epsilon,
                          .groups = g->groups,
                          .top_groups = g->kept,
                          .group_best = 2,
                          .masked = g->masked,
                          .bias = &bias_tensor,
                          .token_experts = g->by_token ? &experts : NULL};
        memcpy(bias, g->bias, sizeof(bias));
        for (int k = 0; k < GOLDEN_TOKENS * g->top_k; k++) /* in another order than they are given back */
        {
            int row = k - k % g->top_k;
            table[k] = (float)g->ids[row + (k + 1) % g->top_k];
        }
        for (int t = 0; t < GOLDEN_TOKENS; t++) {
            int32_t ids[GOLDEN_TOP_K];
            float weights[GOLDEN_TOP_K];
            pm_moe_route(&pm_mixer_scalar, &route, g->logits + t * GOLDEN_EXPERTS, t, room, ids, weights);
            check(g->name, g->top_k, ids, weights, g->ids + t * g->top_k, g->weights + t * g->top_k);
        }
    }
}

static void levels_agree(void **state)
{
    (void)state;
    test_random r = {5};
    for (int i = 0; i < 3000; i++) {
        static const int sizes[] = {4, 8, 60, 64, 66, 160, 256};
        float logits[MAX_EXPERTS], bias[MAX_EXPERTS], room[PM_ROUTE_ROOM * MAX_EXPERTS], want[3], weights[3];
        int32_t want_ids[3], ids[3];
        pm_tensor tensor = {1, MAX_EXPERTS, bias};
        pm_route route = {.kind = (pm_route_kind)(i % 3),
                          .experts = sizes[random_u32(&r) % PM_COUNT(sizes)],
                          .top_k = 3,
                          .normalise = i % 2,
                          .scale = 2.5f,
                          .groups = 1 + (int)(random_u32(&r) % 2),
                          .top_groups = 1,
                          .group_best = 2,
                          .masked = -INFINITY,
                          .bias = &tensor};
        for (int e = 0; e < route.experts; e++) {
            logits[e] = random_float(&r) * (i % 5 == 0 ? 100.0f : 5.0f);
            bias[e] = random_float(&r);
        }
        if (route.experts == 4)
            route.top_k = 2;
        size_t n = (size_t)route.top_k;
        pm_moe_route(&pm_mixer_scalar, &route, logits, 0, room, want_ids, want);
        for (int level = 1; level < TEST_LEVELS; level++) {
            pm_backend *backend = level_backend(1, level, PM_PRECISION_EXACT);
            if (!backend)
                continue;
            pm_moe_route(((pm_cpu *)backend)->mixer, &route, logits, 0, room, ids, weights);
            assert_memory_equal(ids, want_ids, n * sizeof(*ids));
            assert_memory_equal(weights, want, n * sizeof(*weights));
            backend->ops->free(backend);
        }
    }
}

/* ---- what cannot be routed by ---- */

static void impossible_numbers_are_refused(void **state)
{
    (void)state;
    static const struct {
        int experts, top_k, groups, top_groups, best;
        const char *message; /* NULL: allowed */
    } cases[] = {
        {8, 8, 0, 0, 0, NULL},
        {8, 2, 1, 9, 0, NULL}, /* one group: topk_group says nothing */
        {8, 4, 4, 2, 2, NULL},
        {8, 9, 0, 0, 0, "9 experts per token of 8"},
        {8, 0, 0, 0, 0, "0 experts per token of 8"},
        {8, 2, 3, 1, 2, "8 experts do not divide into 3 groups"},
        {8, 2, 8, 4, 2, "8 experts in 8 groups"},
        {8, 2, 4, 0, 2, "0 groups of 4"},
        {8, 2, 4, 5, 2, "5 groups of 4"},
        {8, 5, 4, 2, 2, "more than the 4 in the 2 groups"},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        pm_route route = {.experts = cases[i].experts,
                          .top_k = cases[i].top_k,
                          .groups = cases[i].groups,
                          .top_groups = cases[i].top_groups,
                          .group_best = cases[i].best};
        pm_error err = {0};
        int status = pm_route_check(&route, &err);
        if (!cases[i].message && status != PM_OK)
            fail_msg("case %zu is refused: %s", i, err.message);
        if (cases[i].message && (status != PM_ERR_FORMAT || !strstr(err.message, cases[i].message)))
            fail_msg("case %zu gives %d \"%s\", but it should name \"%s\"", i, status, err.message, cases[i].message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(route_normalise_and_scale),
        cmocka_unit_test(route_ties_and_order),
        cmocka_unit_test(route_extremes),
        cmocka_unit_test(bias_chooses_and_does_not_weigh),
        cmocka_unit_test(dividing_and_scaling_are_independent),
        cmocka_unit_test(one_expert_is_not_divided),
        cmocka_unit_test(groups_are_chosen_by_their_two_best),
        cmocka_unit_test(softmax_in_groups),
        cmocka_unit_test(no_score_at_all_gives_zeros),
        cmocka_unit_test(logits_that_are_not_finite_poison_the_weights),
        cmocka_unit_test(as_mlx_lm_and_transformers),
        cmocka_unit_test(levels_agree),
        cmocka_unit_test(impossible_numbers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
