/* Manifold-constrained hyper-connections: weights of a block from the streams, and the streams from its output
 * (backend.h has the formulas). */
#include "backend/mlx/mlx.h"

/* Row softmax of m [tokens, n, n] and Sinkhorn and Knopp's alternation towards row and column sums of 1. */
static mx::array sinkhorn(const mx::array &from, int iterations, float eps)
{
    mx::array e = mx::array(eps), m = mx::add(mx::softmax(from, -1, true), e);
    auto divide = [&](int axis) { m = mx::divide(m, mx::add(mx::sum(m, axis, true), e)); };
    for (int i = 0; i < iterations; i++) {
        if (i > 0)
            divide(-1);
        divide(-2);
    }
    return m;
}

int pm_mlx_hyper_in(pm_backend *backend, const pm_batch *batch, const pm_hyper_in_args *args, pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *) {
        int tokens = batch->n_tokens, n = args->n;
        mx::array streams = pm_mlx_part(args->streams->value, 0, tokens);
        mx::array size = mx::rsqrt(mx::add(mx::mean(mx::square(streams), -1, true), mx::array(args->norm_eps)));
        mx::array raw = mx::multiply(mx::matmul(streams, mx::transpose(args->fn->value)), size);
        auto part = [&](int index, int first, int width) {
            mx::array scale = pm_mlx_columns(args->scale->value, index, 1);
            return mx::add(mx::multiply(pm_mlx_columns(raw, first, width), scale),
                           pm_mlx_columns(args->base->value, first, width));
        };
        mx::array pre = mx::add(mx::sigmoid(part(0, 0, n)), mx::array(args->eps));
        if (args->mix) {
            mx::array post = mx::multiply(mx::array(2.0f), mx::sigmoid(part(1, n, n)));
            mx::array comb = sinkhorn(mx::reshape(part(2, 2 * n, n * n), {tokens, n, n}), args->iterations, args->eps);
            args->mix->value = mx::concatenate({post, mx::reshape(comb, {tokens, n * n})}, -1);
        }
        mx::array x = mx::matmul(mx::expand_dims(pre, 1), mx::reshape(streams, {tokens, n, args->hidden}));
        args->x->value = mx::squeeze(x, 1);
        return (int)PM_OK;
    });
}

int pm_mlx_hyper_out(pm_backend *backend, const pm_batch *batch, const pm_hyper_out_args *args, pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *) {
        int tokens = batch->n_tokens, n = args->n;
        mx::array mix = pm_mlx_part(args->mix->value, 0, tokens);
        mx::array post = mx::expand_dims(pm_mlx_columns(mix, 0, n), 2);
        mx::array comb = mx::reshape(pm_mlx_columns(mix, n, n * n), {tokens, n, n});
        mx::array streams = mx::reshape(pm_mlx_part(args->streams->value, 0, tokens), {tokens, n, args->hidden});
        mx::array y = mx::expand_dims(pm_mlx_part(args->y->value, 0, tokens), 1);
        streams = mx::add(mx::multiply(post, y), mx::matmul(mx::swapaxes(comb, 1, 2), streams));
        args->streams->value = mx::reshape(streams, {tokens, n * args->hidden});
        return (int)PM_OK;
    });
}
