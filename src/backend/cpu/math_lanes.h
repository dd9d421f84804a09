/* math.h eight lanes at a time, with the same bits. */
#ifndef PM_MATH_LANES_H
#define PM_MATH_LANES_H

#include "backend/cpu/lanes.h"
#include "backend/cpu/math.h"

static inline pm_floats pm_exp8(pm_floats x)
{
    /* min and max return their second operand when one is NaN, which keeps NaN. */
    x = pm_min8(pm_set8(PM_EXP_MAX), pm_max8(pm_set8(PM_EXP_MIN), x));
    const pm_floats round = pm_set8(PM_ROUND_F32), one = pm_set8(1.0f);
    pm_floats n = pm_sub8(pm_fma8(x, pm_set8(PM_LOG2E), round), round);
    pm_floats r = pm_fma8(n, pm_set8(-PM_LN2_HIGH), x);
    r = pm_fma8(n, pm_set8(-PM_LN2_LOW), r);
    pm_floats p = pm_fma8(pm_set8(PM_EXP_Q4), r, pm_set8(PM_EXP_Q3));
    p = pm_fma8(p, r, pm_set8(PM_EXP_Q2));
    p = pm_fma8(p, r, pm_set8(PM_EXP_Q1));
    p = pm_fma8(p, r, pm_set8(PM_EXP_Q0));
    p = pm_fma8(p, r, one);
    p = pm_fma8(p, r, one);
    const pm_ints bias = pm_set_ints8(127);
    pm_ints whole = pm_round8(n), part = pm_halve_ints8(whole);
    pm_ints first = pm_to_exponent8(pm_add_ints8(part, bias));
    pm_ints second = pm_to_exponent8(pm_add_ints8(pm_sub_ints8(whole, part), bias));
    return pm_mul8(pm_mul8(p, pm_as_floats8(first)), pm_as_floats8(second));
}

static inline pm_floats pm_neg8(pm_floats x)
{
    return pm_as_floats8(pm_xor_ints8(pm_as_ints8(x), pm_as_ints8(pm_set8(-0.0f))));
}

static inline pm_floats pm_sigmoid8(pm_floats x)
{
    const pm_floats one = pm_set8(1.0f);
    return pm_div8(one, pm_add8(one, pm_exp8(pm_neg8(x))));
}

static inline pm_floats pm_silu8(pm_floats x)
{
    return pm_div8(x, pm_add8(pm_set8(1.0f), pm_exp8(pm_neg8(x))));
}

/* The tree over 16 partial sums: low holds p[0..8), high p[8..16). */
static inline float pm_reduce16_lanes(pm_floats low, pm_floats high)
{
    return pm_tree8(pm_add8(low, high));
}

/* acc + a * b in the lanes of `mask`; the others keep acc, sign of zero included. */
static inline pm_floats pm_fma_masked(pm_floats a, pm_floats b, pm_floats acc, pm_mask mask)
{
    return pm_choose8(pm_mask_ints8(mask), pm_fma8(a, b, acc), acc);
}

static inline float pm_dot_lanes(const float *a, const float *b, int n)
{
    pm_floats low = pm_zero8(), high = low;
    int k = 0;
    for (; k + 16 <= n; k += 16) {
        low = pm_fma8(pm_load8(a + k), pm_load8(b + k), low);
        high = pm_fma8(pm_load8(a + k + 8), pm_load8(b + k + 8), high);
    }
    if (k < n) {
        pm_mask m = pm_mask8(n - k);
        low = pm_fma_masked(pm_load_part8(a + k, m), pm_load_part8(b + k, m), low, m);
        if (n - k > 8) {
            m = pm_mask8(n - k - 8);
            high = pm_fma_masked(pm_load_part8(a + k + 8, m), pm_load_part8(b + k + 8, m), high, m);
        }
    }
    return pm_reduce16_lanes(low, high);
}

static inline float pm_sum_lanes(const float *a, int n)
{
    pm_floats low = pm_zero8(), high = low;
    int k = 0;
    for (; k + 16 <= n; k += 16) {
        low = pm_add8(low, pm_load8(a + k));
        high = pm_add8(high, pm_load8(a + k + 8));
    }
    /* A partial sum is never -0 (it starts at +0, and only -0 + -0 gives -0), so adding +0 in masked lanes is exact. */
    if (k < n)
        low = pm_add8(low, pm_load_part8(a + k, pm_mask8(n - k)));
    if (k + 8 < n)
        high = pm_add8(high, pm_load_part8(a + k + 8, pm_mask8(n - k - 8)));
    return pm_reduce16_lanes(low, high);
}

#endif
