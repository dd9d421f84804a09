/* The loops of measure.c for NEON with SMMLA: 32 products of bytes, of which 16-bit integers need two passes. */
#include "backend/cpu/measure_neon.h"

PM_MEASURE_BYTES(integers, vmmlaq_s32)

const pm_measure_kernels pm_measure_i8mm = {
    pm_measure_read_neon, integers, pm_measure_floats_neon, {32 * CHAINS, 2 * 32 * CHAINS}, 2 * 4 * CHAINS};
