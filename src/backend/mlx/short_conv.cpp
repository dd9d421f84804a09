/* Gated short convolution, and the causal convolution of all layers that have one. */
#include "backend/mlx/mlx.h"

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

int pm_mlx_short_conv(pm_backend *backend, const pm_batch *batch, const pm_short_conv_args *args, pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *) {
        mx::array bcx = pm_mlx_part(args->bcx->value, 0, batch->n_tokens);
        mx::array product =
            mx::multiply(pm_mlx_columns(bcx, 0, args->width), pm_mlx_columns(bcx, 2 * args->width, args->width));
        std::vector<mx::array> parts;
        for (int s = 0; s < batch->n_segments; s++) {
            const pm_segment *segment = &batch->segments[s];
            parts.push_back(pm_mlx_convolve(segment->states[args->conv_state],
                                            pm_mlx_part(product, segment->first, segment->n), args->conv, args->bias,
                                            args->kernel));
        }
        args->out->value = mx::multiply(pm_mlx_columns(bcx, args->width, args->width), pm_mlx_concatenate(parts, 0));
        return (int)PM_OK;
    });
}
