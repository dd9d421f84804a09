/* Mixture of experts: routing, the chosen experts' products, the shared expert. */
#include "backend/mlx/mlx.h"

#include <algorithm>

enum { SORT_PAIRS = 64 }; /* from so many pairs of token and expert on, those of an expert are brought together */

/* ---- routing ---- */

/* The n largest of the last axis, by (value descending, index ascending): their indices. */
static mx::array best(const mx::array &scores, int n)
{
    return pm_mlx_columns(mx::argsort(mx::negative(scores), -1), 0, n); /* stable */
}

/* Experts outside the best groups get route->masked. */
static mx::array mask_groups(const pm_route *route, const mx::array &biased)
{
    int size = route->experts / route->groups, tokens = biased.shape(0);
    mx::array grouped = mx::reshape(biased, {tokens, route->groups, size});
    mx::array of_group =
        mx::sum(pm_mlx_columns(mx::sort(grouped, -1), size - route->group_best, route->group_best), -1);
    mx::array rank = mx::argsort(mx::argsort(mx::negative(of_group), -1), -1);
    mx::array kept = mx::expand_dims(mx::less(rank, mx::array((uint32_t)route->top_groups, mx::uint32)), -1);
    return mx::reshape(mx::where(kept, grouped, mx::array(route->masked)), {tokens, route->experts});
}

static mx::array scores_of(pm_route_kind kind, const mx::array &logits)
{
    switch (kind) {
    case PM_ROUTE_SIGMOID: return mx::sigmoid(logits);
    case PM_ROUTE_SQRT_SOFTPLUS: return mx::sqrt(pm_mlx_softplus(logits));
    case PM_ROUTE_SOFTMAX: break;
    }
    return mx::softmax(logits, -1, true);
}

typedef struct routed {
    mx::array ids;     /* [tokens, top_k] ascending uint32 */
    mx::array weights; /* [tokens, top_k] */
} routed;

static routed route_tokens(const pm_batch *batch, const pm_route *route, const mx::array &logits)
{
    mx::array scores = scores_of(route->kind, logits), ids = scores;
    if (route->token_experts) {
        mx::array tokens = mx::array(batch->tokens, {batch->n_tokens}, mx::int32);
        ids = mx::take(route->token_experts->value, tokens, 0);
    } else {
        /* Softmax keeps the order of the logits, and they have no ties that it makes. */
        bool plain = route->kind == PM_ROUTE_SOFTMAX && route->groups <= 1;
        mx::array biased = plain ? logits : scores;
        if (route->bias && !plain)
            biased = mx::add(biased, route->bias->value);
        if (route->groups > 1)
            biased = mask_groups(route, biased);
        ids = best(biased, route->top_k);
    }
    ids = mx::sort(mx::astype(ids, mx::uint32), -1);
    mx::array weights = mx::take_along_axis(scores, ids, -1);
    if (route->normalise && (route->kind == PM_ROUTE_SOFTMAX || route->top_k > 1 || route->divide_one))
        weights = mx::divide(weights, mx::add(mx::sum(weights, -1, true), mx::array(route->epsilon)));
    /* Not a number as soon as one logit is none: it would not show in the choice. */
    mx::array poison = mx::sum(mx::multiply(logits, mx::array(0.0f)), -1, true);
    return {ids, mx::add(mx::multiply(weights, mx::array(route->scale)), poison)};
}

/* ---- experts ---- */

/* silu(min(gate, limit)) * clamp(up, -limit, limit), without a gate max(up, 0)^2. */
static mx::array activate(const std::optional<mx::array> &gate, const mx::array &up, float limit)
{
    if (!gate)
        return mx::square(mx::maximum(up, mx::array(0.0f)));
    if (!(limit > 0))
        return mx::multiply(pm_mlx_silu(*gate), up);
    mx::array most = mx::array(limit);
    return mx::multiply(pm_mlx_silu(mx::minimum(*gate, most)), mx::clip(up, mx::array(-limit), most));
}

/* The weighted sum of the chosen experts' outputs for x [tokens, in]. */
static mx::array experts(const pm_moe_args *args, const mx::array &x, const routed &choice)
{
    int top_k = choice.ids.shape(1), tokens = x.shape(0), pairs = tokens * top_k;
    mx::array ids = mx::flatten(choice.ids), k = mx::array((uint32_t)top_k, mx::uint32);
    bool sorted = pairs >= SORT_PAIRS;
    std::optional<mx::array> order;
    mx::array pair = mx::arange(pairs, mx::uint32);
    if (sorted) {
        order = mx::argsort(ids);
        ids = mx::take(ids, *order, 0);
        pair = *order;
    }
    mx::array rows = mx::expand_dims(mx::take(x, mx::floor_divide(pair, k), 0), 1);
    std::optional<mx::array> gate;
    if (args->gate)
        gate = pm_mlx_multiply_chosen(args->gate, rows, ids, false, sorted);
    mx::array up = pm_mlx_multiply_chosen(args->up, rows, ids, false, sorted);
    mx::array y = pm_mlx_multiply_chosen(args->down, activate(gate, up, args->limit), ids, false, sorted);
    y = mx::squeeze(y, 1);
    if (sorted)
        y = mx::take(y, mx::argsort(*order), 0);
    y = mx::reshape(y, {tokens, top_k, -1});
    return mx::sum(mx::multiply(y, mx::expand_dims(choice.weights, -1)), 1);
}

static mx::array shared_expert(const pm_moe_args *args, const mx::array &x)
{
    std::optional<mx::array> gate;
    if (args->shared_gate_proj)
        gate = pm_mlx_multiply(args->shared_gate_proj, x);
    mx::array y =
        pm_mlx_multiply(args->shared_down_proj, activate(gate, pm_mlx_multiply(args->shared_up_proj, x), args->limit));
    if (args->shared_expert_gate)
        y = mx::multiply(y, mx::sigmoid(pm_mlx_multiply(args->shared_expert_gate, x)));
    return y;
}

/* How many tokens go to each expert, for those who ask; that takes an evaluation. */
static int count(pm_mlx *mlx, const pm_moe_args *args, const routed &choice, pm_error *err)
{
    int status = pm_mlx_evaluate(mlx, {choice.ids}, err);
    if (status != PM_OK)
        return status;
    std::vector<uint32_t> ids(choice.ids.size());
    pm_mlx_copy_out(choice.ids, ids.data());
    std::fill_n(args->expert_tokens, args->route.experts, 0);
    for (uint32_t id : ids)
        args->expert_tokens[id]++;
    return PM_OK;
}

int pm_mlx_moe(pm_backend *backend, const pm_batch *batch, const pm_moe_args *args, pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *mlx) {
        int n = batch->n_tokens, status = PM_OK;
        mx::array x = mx::fast::rms_norm(pm_mlx_part(args->x->value, 0, n), mx::flatten(args->norm->value), args->eps);
        std::optional<mx::array> sum;
        auto add = [&](const mx::array &part) { sum = sum ? mx::add(*sum, part) : part; };
        if (args->router) {
            routed choice = route_tokens(batch, &args->route, pm_mlx_multiply(args->router, x));
            mx::array in = args->latent_in ? pm_mlx_multiply(args->latent_in, x) : x;
            mx::array y = experts(args, in, choice);
            add(args->latent_out ? pm_mlx_multiply(args->latent_out, y) : y);
            if (args->expert_tokens)
                status = count(mlx, args, choice, err);
        }
        if (args->shared_up_proj)
            add(shared_expert(args, x));
        if (args->residual)
            add(pm_mlx_part(args->residual->value, 0, n));
        if (status == PM_OK && sum)
            args->out->value = *sum;
        return status;
    });
}
