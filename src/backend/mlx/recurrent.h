#ifndef PM_MLX_RECURRENT_H
#define PM_MLX_RECURRENT_H

#include "backend/mlx/mlx.h"

mx::array pm_mlx_silu(const mx::array &x);
mx::array pm_mlx_softplus(const mx::array &x);

/* A segment's inputs x [n, channels] convolved with weights [channels, kernel], plus a bias [1, channels] or NULL. The
 * state, [kernel - 1, channels], moves on. */
mx::array pm_mlx_convolve(pm_state *state, const mx::array &x, const pm_tensor *weights, const pm_tensor *bias,
                          int kernel);

#endif
