/* Causal grouped-query attention. */
#include "backend/mlx/mlx.h"

#include <algorithm>

/* Which of `keys` rows, the first of them at position `first`, each of the n queries from `pos` on sees: [n, keys]. */
static mx::array window_mask(int64_t pos, int n, int64_t first, int keys, int window)
{
    mx::array query = mx::expand_dims(mx::arange((int)(pos - first), (int)(pos - first) + n), 1);
    mx::array key = mx::expand_dims(mx::arange(keys), 0);
    return mx::logical_and(mx::less_equal(key, query), mx::greater(key, mx::subtract(query, mx::array(window))));
}

/* The n new tokens of one sequence: q [n, heads, dim], result [n, heads * dim]. */
static mx::array attend(const pm_segment *segment, const pm_attention_args *args, const mx::array &q)
{
    const pm_rows *rows = segment->rows[args->rows];
    int window = args->window, n = segment->n;
    int64_t end = segment->pos + n, first = window > 0 && segment->pos >= window ? segment->pos - window + 1 : 0;
    auto planes = [&](int plane) {
        return mx::expand_dims(pm_mlx_rows_read(rows, plane, args->kv_heads, first, end), 0);
    };
    std::optional<mx::array> mask;
    bool cut = window > 0 && end - first > window; /* not every query sees all from the first on */
    if (cut)
        mask = window_mask(segment->pos, n, first, (int)(end - first), window);
    mx::array queries = mx::expand_dims(mx::transpose(q, {1, 0, 2}), 0);
    mx::array out = mx::fast::scaled_dot_product_attention(queries, planes(0), planes(args->kv_heads), args->scale,
                                                           cut || n == 1 ? "" : "causal", mask);
    return mx::reshape(mx::transpose(mx::squeeze(out, 0), {1, 0, 2}), {n, args->heads * args->head_dim});
}

int pm_mlx_attention(pm_backend *backend, const pm_batch *batch, const pm_attention_args *args, pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *mlx) {
        int n = batch->n_tokens, dim = args->head_dim, status = pm_mlx_check_rows(batch, args->rows, args->layer, err);
        if (status != PM_OK || n < 1)
            return status;
        auto heads_of = [&](const pm_tensor *x, int heads, int width) {
            return mx::reshape(pm_mlx_part(x->value, 0, n), {n, heads, width});
        };
        mx::array q = heads_of(args->q, args->heads, args->gated ? 2 * dim : dim);
        mx::array k = heads_of(args->k, args->kv_heads, dim), v = heads_of(args->v, args->kv_heads, dim);
        std::optional<mx::array> gate;
        if (args->gated) {
            gate = mx::reshape(pm_mlx_columns(q, dim, dim), {n, args->heads * dim});
            q = pm_mlx_columns(q, 0, dim);
        }
        if (args->q_norm)
            q = mx::fast::rms_norm(q, mx::flatten(args->q_norm->value), args->eps);
        if (args->k_norm)
            k = mx::fast::rms_norm(k, mx::flatten(args->k_norm->value), args->eps);
        if (args->rope) {
            const pm_mlx_turns &turns = pm_mlx_turns_of(mlx, args->rope, pm_mlx_positions(batch));
            q = pm_mlx_turn(q, args->rope, turns, false);
            k = pm_mlx_turn(k, args->rope, turns, false);
        }
        mx::array planes = mx::transpose(mx::concatenate({k, v}, 1), {1, 0, 2});
        std::vector<mx::array> parts;
        for (int s = 0; s < batch->n_segments; s++) {
            const pm_segment *segment = &batch->segments[s];
            mx::array own =
                mx::slice(planes, {0, segment->first, 0}, {2 * args->kv_heads, segment->first + segment->n, dim});
            pm_mlx_append(segment->rows[args->rows], own, args->layer);
            parts.push_back(attend(segment, args, pm_mlx_part(q, segment->first, segment->n)));
        }
        mx::array out = pm_mlx_concatenate(parts, 0);
        args->out->value = gate ? mx::multiply(out, mx::sigmoid(*gate)) : out;
        return status;
    });
}
