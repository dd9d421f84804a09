/* The scalar kernel of compress.c eight lanes at a time, with the same bits. */
#include "backend/cpu/math_lanes.h"
#include "backend/cpu/mixer.h"

void pm_lanes_compress(float *state, size_t stride, const float *kv, const float *gate, const float *bias, int n)
{
    float *max = state, *sum = state + stride, *acc = state + 2 * stride;
    const pm_floats one = pm_set8(1.0f);
    const pm_ints sign = pm_as_ints8(pm_set8(-0.0f));
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        pm_floats g = pm_add8(pm_load8(gate + i), pm_load8(bias + i));
        pm_floats most = pm_load8(max + i), step = pm_sub8(g, most);
        pm_floats e = pm_exp8(pm_as_floats8(pm_or_ints8(pm_as_ints8(step), sign)));
        pm_ints more = pm_greater8(step, pm_zero8());
        pm_floats correction = pm_choose8(more, e, one), p = pm_choose8(more, one, e);
        pm_store8(max + i, pm_choose8(more, g, most));
        pm_store8(sum + i, pm_fma8(pm_load8(sum + i), correction, p));
        pm_floats weighted = pm_mul8(pm_load8(acc + i), correction);
        pm_store8(acc + i, pm_fma8(p, pm_load8(kv + i), weighted));
    }
    if (i < n)
        pm_scalar_compress(state + i, stride, kv + i, gate + i, bias + i, n - i);
}
