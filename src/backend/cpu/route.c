/* Which experts a token goes to, and how much each counts. */
#include "backend/cpu/math.h"
#include "backend/cpu/matrix.h"
#include "backend/cpu/mixer.h"

/* The n largest of `count` scores, by (score descending, index ascending), kept in a sorted list. */
static void choose(const float *scores, int count, int n, int32_t *ids)
{
    int have = 0;
    for (int e = 0; e < count; e++) {
        if (have == n && !(scores[e] > scores[ids[have - 1]]))
            continue;
        int at = have < n ? have++ : have - 1;
        for (; at > 0 && scores[e] > scores[ids[at - 1]]; at--)
            ids[at] = ids[at - 1];
        ids[at] = e;
    }
}

static void sort_ascending(int32_t *ids, int n)
{
    for (int i = 1; i < n; i++) {
        int32_t id = ids[i];
        int at = i;
        for (; at > 0 && ids[at - 1] > id; at--)
            ids[at] = ids[at - 1];
        ids[at] = id;
    }
}

/* Zero, or NaN as soon as one logit is not finite. */
static float poison(const float *logits, int n)
{
    float zero = 0;
    for (int e = 0; e < n; e++)
        zero += logits[e] * 0.0f;
    return zero;
}

/* Softmax keeps the order of logits, so the choice is made on them. When the chosen scores are divided by their sum,
 * the softmax's own sum cancels and is left out. */
static void route_softmax(const pm_route *route, const float *logits, int32_t *ids, float *weights)
{
    choose(logits, route->experts, route->top_k, ids);
    float largest = logits[ids[0]], sum = 0, zero = poison(logits, route->experts);
    sort_ascending(ids, route->top_k);
    for (int i = 0; i < route->top_k; i++)
        weights[i] = pm_exp(logits[ids[i]] - largest);
    if (route->normalise)
        for (int i = 0; i < route->top_k; i++)
            sum += weights[i];
    else
        for (int e = 0; e < route->experts; e++)
            sum += pm_exp(logits[e] - largest);
    for (int i = 0; i < route->top_k; i++)
        weights[i] = weights[i] / sum * route->scale + zero;
}

static void score(const pm_mixer_kernels *kernels, pm_route_kind kind, const float *logits, int n, float *scores)
{
    float largest = logits[0], sum = 0;
    switch (kind) {
    case PM_ROUTE_SIGMOID:
        for (int e = 0; e < n; e++)
            scores[e] = 1;
        kernels->gate(scores, logits, n);
        break;
    case PM_ROUTE_SQRT_SOFTPLUS: kernels->sqrt_softplus(logits, scores, n); break;
    case PM_ROUTE_SOFTMAX:
        for (int e = 1; e < n; e++)
            largest = logits[e] > largest ? logits[e] : largest;
        for (int e = 0; e < n; e++)
            sum += scores[e] = pm_exp(logits[e] - largest);
        for (int e = 0; e < n; e++)
            scores[e] /= sum;
        break;
    }
}

/* The sum of the `best` (1 or 2) largest scores of a group. */
static float group_score(const float *scores, int n, int best)
{
    float first = -INFINITY, second = -INFINITY;
    for (int e = 0; e < n; e++) {
        float s = scores[e], lower = s > first ? first : s;
        first = s > first ? s : first;
        second = lower > second ? lower : second;
    }
    return best == 2 ? first + second : first;
}

/* Experts outside the best groups compete with route->masked from here on. `room` is [groups]. */
static void mask_groups(const pm_route *route, float *biased, float *room)
{
    int n = route->experts / route->groups;
    for (int g = 0; g < route->groups; g++)
        room[g] = group_score(biased + g * n, n, route->group_best);
    for (int g = 0; g < route->groups; g++) {
        int better = 0;
        for (int other = 0; other < route->groups; other++)
            better += room[other] > room[g] || (room[other] == room[g] && other < g);
        for (int e = 0; better >= route->top_groups && e < n; e++)
            biased[g * n + e] = route->masked;
    }
}

void pm_moe_route(const pm_mixer_kernels *kernels, const pm_route *route, const float *logits, pm_token token,
                  float *room, int32_t *ids, float *weights)
{
    if (route->kind == PM_ROUTE_SOFTMAX && route->groups <= 1 && !route->token_experts) {
        route_softmax(route, logits, ids, weights);
        return;
    }
    int experts = route->experts, top_k = route->top_k;
    float *scores = room, *biased = room + experts, sum = route->epsilon, zero = poison(logits, experts);
    score(kernels, route->kind, logits, experts, scores);
    if (route->token_experts) {
        for (int i = 0; i < top_k; i++)
            ids[i] = (int32_t)route->token_experts->data[(int64_t)token * top_k + i];
    } else {
        for (int e = 0; e < experts; e++)
            biased[e] = route->bias ? scores[e] + route->bias->data[e] : scores[e];
        if (route->groups > 1)
            mask_groups(route, biased, room + 2 * (ptrdiff_t)experts);
        choose(biased, experts, top_k, ids);
    }
    sort_ascending(ids, top_k);
    for (int i = 0; i < top_k; i++)
        sum += weights[i] = scores[ids[i]];
    if (!route->normalise || (route->kind != PM_ROUTE_SOFTMAX && top_k == 1 && !route->divide_one))
        sum = 1;
    for (int i = 0; i < top_k; i++)
        weights[i] = weights[i] / sum * route->scale + zero;
}
