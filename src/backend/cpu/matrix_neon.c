/* The level of 64-bit ARM that every such processor has. */
#include "backend/cpu/matrix_neon.h"

const pm_matrix_kernels pm_matrix_neon = PM_NEON_KERNELS;
