/* embed, linear and logits. */
#include "backend/mlx/mlx.h"

#include <cmath>

int pm_mlx_embed(pm_backend *backend, const pm_batch *batch, const pm_embed_args *args, pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *mlx) {
        mlx->checks.clear(); /* of a step that ended early, and so what it wrote */
        int status = pm_mlx_evaluate(mlx, {}, err);
        if (status != PM_OK)
            return status;
        mx::array rows = pm_mlx_look_up(args->weight, mx::array(batch->tokens, {batch->n_tokens}, mx::int32));
        args->y->value = args->copies > 1 ? mx::tile(rows, {1, args->copies}) : rows;
        return (int)PM_OK;
    });
}

int pm_mlx_linear(pm_backend *backend, const pm_batch *batch, const pm_linear_args *args, pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *) {
        mx::array x = pm_mlx_part(args->x->value, 0, batch->n_tokens);
        if (args->norm)
            x = mx::fast::rms_norm(x, mx::flatten(args->norm->value), args->eps);
        std::vector<mx::array> results;
        for (int i = 0; i < args->n; i++)
            results.push_back(pm_mlx_multiply(args->w[i], x));
        if (args->residual)
            results[0] = mx::add(pm_mlx_part(args->residual->value, 0, batch->n_tokens), results[0]);
        for (int i = 0; i < args->n; i++)
            args->y[i]->value = results[(size_t)i];
        return (int)PM_OK;
    });
}

int pm_mlx_logits(pm_backend *backend, const pm_batch *batch, const pm_logits_args *args, pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *mlx) {
        mx::array rows = mx::take(args->x->value, mx::array(batch->outputs, {batch->n_outputs}, mx::int32), 0);
        rows = mx::fast::rms_norm(rows, mx::flatten(args->norm->value), args->eps);
        mx::array logits = mx::contiguous(pm_mlx_multiply(args->head, rows));
        int status = pm_mlx_evaluate(mlx, {logits}, err);
        if (status != PM_OK)
            return status;
        pm_mlx_copy_out(logits, args->logits);
        for (size_t i = 0, n = logits.size(); i < n; i++)
            if (!std::isfinite(args->logits[i]))
                return pm_fail(err, PM_ERR_NUMERIC, "logits are not finite");
        return (int)PM_OK;
    });
}
