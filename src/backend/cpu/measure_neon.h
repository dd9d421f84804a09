/* The loops of measure.c for NEON that do not depend on the level, and what they have in common with those that do. */
#ifndef PM_MEASURE_NEON_H
#define PM_MEASURE_NEON_H

#include "backend/cpu/cpu.h"

#include <arm_neon.h>

enum { CHAINS = 16 /* independent, so that none waits for another */ };

uint64_t pm_measure_read_neon(const void *data, size_t bytes);
uint64_t pm_measure_floats_neon(int rounds);

/* A loop of multiply-adds of bytes, each the instruction `multiply`. */
#define PM_MEASURE_BYTES(name, multiply)                                                                               \
    static uint64_t name(int rounds)                                                                                   \
    {                                                                                                                  \
        int32x4_t acc[CHAINS], sum = vdupq_n_s32(0);                                                                   \
        const int8x16_t factor = vdupq_n_s8((int8_t)(rounds | 1));                                                     \
        for (int j = 0; j < CHAINS; j++)                                                                               \
            acc[j] = vdupq_n_s32(j);                                                                                   \
        for (int i = 0; i < rounds; i++)                                                                               \
            for (int j = 0; j < CHAINS; j++)                                                                           \
                acc[j] = multiply(acc[j], vreinterpretq_s8_s32(acc[j]), factor);                                       \
        for (int j = 0; j < CHAINS; j++)                                                                               \
            sum = vaddq_s32(sum, acc[j]);                                                                              \
        return (uint32_t)vaddvq_s32(sum);                                                                              \
    }

#endif
