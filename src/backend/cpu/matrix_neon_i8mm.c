/* The level of 64-bit ARM with SDOT, for one column, and SMMLA. */
#include "backend/cpu/matrix_neon.h"

const pm_matrix_kernels pm_matrix_i8mm = PM_NEON_KERNELS;
