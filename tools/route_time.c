/* Microseconds that routing takes for a token: 8 of 256 experts by sigmoid scores with a bias, in 8 groups of which 4
 * count, as in DeepSeek-V3, on one thread. The median over rounds of many tokens. */
#include "backend/cpu/matrix.h"
#include "backend/cpu/mixer.h"
#include "base/base.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { EXPERTS = 256, TOP_K = 8, TOKENS = 512, ROUNDS = 41 };

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(void)
{
    static float logits[TOKENS][EXPERTS], bias[EXPERTS], room[PM_ROUTE_ROOM * EXPERTS];
    double us[ROUNDS];
    float weights[TOP_K], sum = 0;
    int32_t ids[TOP_K];
    pm_backend *backend;
    pm_error err;
    if (pm_backend_cpu_new(&backend, 1, PM_SIMD_BEST, PM_PRECISION_EXACT, &err) != PM_OK) {
        fprintf(stderr, "route_time: %s\n", err.message);
        return 1;
    }
    uint64_t state = 1;
    for (int i = 0; i < (TOKENS + 1) * EXPERTS; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
        float x = (float)(int32_t)(state >> 32) * 0x1p-30f;
        *(i < EXPERTS ? &bias[i] : &logits[i / EXPERTS - 1][i % EXPERTS]) = i < EXPERTS ? 0.05f * x : x;
    }
    const pm_tensor table = {.rows = 1, .cols = EXPERTS, .data = bias};
    const pm_route route = {.kind = PM_ROUTE_SIGMOID,
                            .experts = EXPERTS,
                            .top_k = TOP_K,
                            .normalise = true,
                            .scale = 2.5f,
                            .epsilon = 1e-20f,
                            .groups = 8,
                            .top_groups = 4,
                            .group_best = 2,
                            .masked = -INFINITY,
                            .bias = &table};
    for (int r = 0; r < ROUNDS; r++) {
        double start = pm_now();
        for (int t = 0; t < TOKENS; t++) {
            pm_moe_route(((pm_cpu *)backend)->mixer, &route, logits[t], 0, room, ids, weights);
            sum += weights[t % TOP_K];
        }
        us[r] = (pm_now() - start) / TOKENS * 1e6;
    }
    qsort(us, ROUNDS, sizeof(*us), ascending);
    printf("%.2f\n", us[ROUNDS / 2]);
    backend->ops->free(backend);
    return sum > 0 ? 0 : 1;
}
