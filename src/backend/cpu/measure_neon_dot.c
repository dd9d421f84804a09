/* The loops of measure.c for NEON with SDOT: 16 products of bytes, of which 16-bit integers need two passes. */
#include "backend/cpu/measure_neon.h"

PM_MEASURE_BYTES(integers, vdotq_s32)

const pm_measure_kernels pm_measure_dot = {
    pm_measure_read_neon, integers, pm_measure_floats_neon, {16 * CHAINS, 2 * 16 * CHAINS}, 2 * 4 * CHAINS};
