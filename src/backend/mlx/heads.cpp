/* One small matrix per head, as it is or transposed. */
#include "backend/mlx/mlx.h"

int pm_mlx_heads(pm_backend *backend, const pm_batch *batch, const pm_heads_args *args, pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *) {
        int n = batch->n_tokens, in = args->transposed ? args->w->out : args->w->in;
        mx::array x = mx::reshape(pm_mlx_part(args->x->value, 0, n), {n, args->heads, args->x_stride});
        x = mx::transpose(pm_mlx_columns(x, args->x_first, in), {1, 0, 2});
        mx::array y = pm_mlx_multiply_chosen(args->w, x, mx::arange(args->heads, mx::uint32), args->transposed, true);
        args->y->value = mx::reshape(mx::transpose(y, {1, 0, 2}), {n, -1});
        return (int)PM_OK;
    });
}
