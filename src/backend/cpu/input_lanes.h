/* Quantising a group of x, eight lanes at a time. */
#ifndef PM_INPUT_LANES_H
#define PM_INPUT_LANES_H

#include "backend/cpu/math_lanes.h"
#include "backend/cpu/matrix.h"

#define INLINE static inline __attribute__((always_inline))

/* One group in natural order; integers are at most `limit`. */
INLINE void pm_quantise_group(const float *x, int group, float limit, int16_t *q, float *scale, float *sum,
                              int32_t *excess)
{
    const pm_ints magnitude = pm_set_ints8(0x7fffffff);
    pm_ints most = pm_zero_ints8(), total = most;
    for (int k = 0; k < group; k += 8)
        most = pm_max_ints8(most, pm_and_ints8(pm_as_ints8(pm_load8(x + k)), magnitude));
    uint32_t largest = (uint32_t)pm_largest_int8(most);
    if (largest >= 0x7f800000 || largest < pm_bits(PM_Q_FLOOR)) {
        memset(q, 0, (size_t)group * sizeof(*q));
        *scale = *sum = largest >= 0x7f800000 ? NAN : 0;
        *excess = 0;
        return;
    }
    pm_floats inv = pm_set8(limit / pm_from_bits(largest));
    for (int k = 0; k < group; k += 16) {
        pm_ints a = pm_round8(pm_mul8(pm_load8(x + k), inv));
        pm_ints b = pm_round8(pm_mul8(pm_load8(x + k + 8), inv));
        total = pm_add_ints8(total, pm_add_ints8(a, b));
        pm_store_s16x8(q + k, a);
        pm_store_s16x8(q + k + 8, b);
    }
    *scale = pm_from_bits(largest) / limit;
    const int32_t integers = pm_sum_ints8(total);
    *sum = *scale * (float)integers;
    *excess = PM_E2M1_ZERO * integers;
}

#endif
