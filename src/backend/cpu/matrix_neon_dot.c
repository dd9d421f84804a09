/* The level of 64-bit ARM with SDOT. */
#include "backend/cpu/matrix_neon.h"

const pm_matrix_kernels pm_matrix_dot = PM_NEON_KERNELS;
