/* The lightning indexer: scores of all rows that a token sees, and the best of them. */
#include "backend/mlx/mlx.h"

#include <algorithm>
#include <cmath>
#include <limits>

/* ---- the choice ---- */

int pm_mlx_indices_new(pm_backend *backend, int max_tokens, int top_k, pm_indices **out, pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *mlx) {
        if (max_tokens < 1 || top_k < 1)
            return pm_fail(err, PM_ERR_INVALID, "indices of %d rows for %d tokens are not possible", top_k, max_tokens);
        *out = new pm_indices{mlx, top_k, std::vector<int>((size_t)max_tokens), {}};
        return (int)PM_OK;
    });
}

int pm_mlx_indices_read(const pm_indices *indices, int token, int32_t *out)
{
    int n = indices->count[(size_t)token];
    pm_mlx_guard(&indices->backend->base, nullptr, [&](pm_mlx *mlx) {
        for (const pm_mlx_choice &choice : indices->choices) {
            if (token < choice.first || token >= choice.first + choice.n)
                continue;
            for (int i = 0; choice.all && i < n; i++)
                out[i] = i;
            if (choice.all)
                break;
            std::vector<int32_t> rows((size_t)indices->top_k);
            int status = pm_mlx_evaluate(mlx, {choice.rows}, nullptr);
            if (status != PM_OK)
                return status;
            pm_mlx_copy_out(mx::take(choice.rows, token - choice.first, 0), rows.data());
            std::copy_n(rows.begin(), n, out);
        }
        return (int)PM_OK;
    });
    return n;
}

void pm_mlx_indices_free(pm_backend *backend, pm_indices *indices)
{
    (void)backend;
    delete indices;
}

/* ---- the operation ---- */

/* Scores [n, rows] of a segment: q [n, heads, dim], weights [n, heads]. Heads are taken so many at a time that their
 * own scores stay small. */
static mx::array score(const pm_sparse_index_args *args, const mx::array &q, const mx::array &weights,
                       const mx::array &keys)
{
    enum { SCORES_MOST = 1 << 26 };
    int n = q.shape(0), rows = keys.shape(0);
    int step = (int)std::clamp<int64_t>(SCORES_MOST / ((int64_t)n * rows), 1, args->heads);
    mx::array by_head = mx::transpose(q, {1, 0, 2}), columns = mx::transpose(keys);
    mx::array factors = mx::expand_dims(mx::transpose(mx::multiply(weights, mx::array(args->weight_scale))), 2);
    std::optional<mx::array> sum;
    for (int head = 0; head < args->heads; head += step) {
        int heads = std::min(step, args->heads - head);
        mx::array products =
            mx::multiply(mx::matmul(pm_mlx_part(by_head, head, heads), columns), mx::array(args->scale));
        mx::array part =
            mx::sum(mx::multiply(mx::maximum(products, mx::array(0.0f)), pm_mlx_part(factors, head, heads)), 0);
        sum = sum ? mx::add(*sum, part) : part;
    }
    return *sum;
}

/* The choices of a segment's tokens, of whose rows there are more than top_k at its end. */
static mx::array choose(const pm_segment *segment, const pm_sparse_index_args *args, const mx::array &scores)
{
    int ratio = args->k ? 1 : args->ratio, first = (int)segment->pos + 1, rows = scores.shape(1);
    mx::array end = mx::expand_dims(mx::floor_divide(mx::arange(first, first + segment->n), mx::array(ratio)), 1);
    mx::array unseen = mx::greater_equal(mx::expand_dims(mx::arange(rows), 0), end);
    /* A stable sort: ties go to the lower row, and rows that are not seen come after all others, in order. */
    mx::array order =
        mx::argsort(mx::where(unseen, mx::array(std::numeric_limits<float>::infinity()), mx::negative(scores)), -1);
    return mx::sort(mx::astype(pm_mlx_columns(order, 0, args->top_k), mx::int32), -1);
}

static void index_segment(const pm_segment *segment, const pm_sparse_index_args *args, const mx::array &q,
                          const mx::array &weights)
{
    const pm_rows *cache = segment->rows[args->rows];
    int64_t ratio = args->k ? 1 : args->ratio, rows = (segment->pos + segment->n) / ratio;
    pm_indices *out = args->out;
    for (int i = 0; i < segment->n; i++)
        out->count[(size_t)(segment->first + i)] = (int)std::min<int64_t>((segment->pos + i + 1) / ratio, args->top_k);
    pm_mlx_choice choice = {segment->first, segment->n, rows <= args->top_k, weights};
    if (!choice.all) {
        mx::array keys = mx::squeeze(pm_mlx_rows_read(cache, 0, 1, 0, rows), 0);
        choice.rows = choose(segment, args, score(args, q, weights, keys));
    }
    out->choices.push_back(choice);
}

int pm_mlx_sparse_index(pm_backend *backend, const pm_batch *batch, const pm_sparse_index_args *args, pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *mlx) {
        int n = batch->n_tokens, dim = args->head_dim;
        int status = args->k ? pm_mlx_check_rows(batch, args->rows, args->layer, err) : (int)PM_OK;
        if (status != PM_OK || n < 1)
            return status;
        for (int s = 0; s < batch->n_segments; s++)
            if (batch->segments[s].pos + batch->segments[s].n > INT32_MAX)
                return pm_fail(err, PM_ERR_LIMIT, "layer %d: more than %d rows cannot be indexed", args->layer,
                               INT32_MAX);
        const pm_mlx_turns &turns = pm_mlx_turns_of(mlx, args->rope, pm_mlx_positions(batch));
        mx::array q = pm_mlx_turn(mx::reshape(pm_mlx_part(args->q->value, 0, n), {n, args->heads, dim}), args->rope,
                                  turns, false);
        mx::array weights = pm_mlx_part(args->weights->value, 0, n);
        mx::array largest = mx::maximum(mx::max(mx::abs(q)), mx::max(mx::abs(weights)));
        mlx->checks.push_back({largest, INFINITY, args->layer, "a query of the index", nullptr});
        std::optional<mx::array> keys;
        if (args->k) {
            mx::array normed = mx::fast::layer_norm(pm_mlx_part(args->k->value, 0, n), mx::flatten(args->k_norm->value),
                                                    mx::flatten(args->k_norm_bias->value), args->eps);
            keys = mx::transpose(pm_mlx_turn(mx::expand_dims(normed, 1), args->rope, turns, false), {1, 0, 2});
        }
        args->out->choices.clear();
        for (int s = 0; s < batch->n_segments; s++) {
            const pm_segment *segment = &batch->segments[s];
            int first = segment->first, end = first + segment->n;
            if (keys)
                pm_mlx_append(segment->rows[args->rows], mx::slice(*keys, {0, first, 0}, {1, end, dim}), args->layer);
            index_segment(segment, args, pm_mlx_part(q, first, segment->n), pm_mlx_part(weights, first, segment->n));
        }
        return status;
    });
}
