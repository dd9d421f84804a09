/* The loops of measure.c for NEON: 128-bit loads, SMLAL (16-bit integers: one pass), FMLA. */
#include "backend/cpu/measure_neon.h"

uint64_t pm_measure_read_neon(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    uint8x16_t sum[4] = {vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0)};
    size_t i = 0;
    for (; i + sizeof(sum) <= bytes; i += sizeof(sum))
        for (int j = 0; j < 4; j++)
            sum[j] = veorq_u8(sum[j], vld1q_u8(p + i + 16 * j));
    uint64x2_t all = vreinterpretq_u64_u8(veorq_u8(veorq_u8(sum[0], sum[1]), veorq_u8(sum[2], sum[3])));
    uint64_t rest = 0;
    for (; i < bytes; i++)
        rest ^= p[i];
    return rest ^ vgetq_lane_u64(all, 0) ^ vgetq_lane_u64(all, 1);
}

uint64_t pm_measure_floats_neon(int rounds)
{
    const float32x4_t factor = vdupq_n_f32(1.0f / (float)(rounds + 1)), one = vdupq_n_f32(1);
    float32x4_t acc[CHAINS], sum = vdupq_n_f32(0);
    for (int j = 0; j < CHAINS; j++)
        acc[j] = vdupq_n_f32((float)j);
    for (int i = 0; i < rounds; i++)
        for (int j = 0; j < CHAINS; j++)
            acc[j] = vfmaq_f32(one, acc[j], factor);
    for (int j = 0; j < CHAINS; j++)
        sum = vaddq_f32(sum, acc[j]);
    return (uint64_t)vaddvq_f32(sum);
}

static uint64_t integers(int rounds)
{
    const int16x4_t factor = vdup_n_s16((int16_t)(rounds | 1));
    int32x4_t acc[CHAINS], sum = vdupq_n_s32(0);
    for (int j = 0; j < CHAINS; j++)
        acc[j] = vdupq_n_s32(j);
    for (int i = 0; i < rounds; i++)
        for (int j = 0; j < CHAINS; j++)
            acc[j] = vmlal_s16(acc[j], vget_low_s16(vreinterpretq_s16_s32(acc[j])), factor);
    for (int j = 0; j < CHAINS; j++)
        sum = vaddq_s32(sum, acc[j]);
    return (uint32_t)vaddvq_s32(sum);
}

const pm_measure_kernels pm_measure_neon = {
    pm_measure_read_neon, integers, pm_measure_floats_neon, {2 * 4 * CHAINS, 2 * 4 * CHAINS}, 2 * 4 * CHAINS};
