/* Quantising rows of x for NEON. */
#include "backend/cpu/input_lanes.h"

/* 16 integers as bytes: in the precision `exact` the high ones and, `low` bytes on, the low ones. */
INLINE void put_bytes(const int16_t *from, bool two, size_t low, int8_t *to)
{
    const int16x8_t a = vld1q_s16(from), b = vld1q_s16(from + 8);
    const int8x16_t bytes = vcombine_s8(vmovn_s16(a), vmovn_s16(b));
    if (two)
        vst1q_s8(to + low, bytes);
    vst1q_s8(to, two ? vcombine_s8(vrshrn_n_s16(a, 8), vrshrn_n_s16(b, 8)) : bytes);
}

void pm_quantise_neon(const float *x, int n, int group, pm_layout layout, pm_precision precision,
                      const pm_quantised *to)
{
    const float limit = pm_q_max(precision);
    int16_t room[PM_MAX_GROUP];
    for (int first = 0, g = 0; first < n; first += group, g++) {
        int16_t *q = layout == PM_LAYOUT_NATURAL ? to->q + first : room;
        pm_quantise_group(x + first, group, limit, q, &to->scale[g], &to->sum[g], &to->excess[g]);
        for (int k = 0; layout != PM_LAYOUT_NATURAL && k < group; k += 16)
            put_bytes(q + k, precision == PM_PRECISION_EXACT, pm_padded((size_t)n), (int8_t *)to->q + first + k);
    }
}
