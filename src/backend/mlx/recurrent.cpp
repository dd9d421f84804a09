/* What layers with states share: causal depthwise convolutions over a segment, whose last inputs are a state. */
#include "backend/mlx/recurrent.h"
#include "backend/mlx/mlx.h"

mx::array pm_mlx_silu(const mx::array &x)
{
    return mx::multiply(x, mx::sigmoid(x));
}

mx::array pm_mlx_softplus(const mx::array &x)
{
    return mx::logaddexp(x, mx::array(0.0f));
}

mx::array pm_mlx_convolve(pm_state *state, const mx::array &x, const pm_tensor *weights, const pm_tensor *bias,
                          int kernel)
{
    int n = x.shape(0), channels = x.shape(1), before = kernel - 1;
    mx::array inputs = mx::concatenate({mx::reshape(state->value, {before, channels}), x}, 0);
    mx::array taps = mx::transpose(weights->value); /* [kernel, channels] */
    std::optional<mx::array> sum;
    if (bias)
        sum = bias->value;
    for (int i = 0; i < kernel; i++) {
        mx::array part = mx::multiply(pm_mlx_part(inputs, i, n), pm_mlx_part(taps, i, 1));
        sum = sum ? mx::add(*sum, part) : part;
    }
    pm_mlx_state_set(state, mx::contiguous(pm_mlx_part(inputs, n, before)));
    return *sum;
}
