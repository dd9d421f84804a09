/* Mamba-2: convolution, the state-space recurrence, gated norm over groups.
 *
 * The recurrence is taken in pieces: within one, in its parallel form (Dao and Gu 2024, section 6), a token's result is
 * what the state at the piece's beginning gives, and a product of lower triangular matrices for the piece's own tokens.
 */
#include "backend/mlx/mlx.h"

#include <algorithm>
#include <cmath>

enum { PIECE = 64 };

/* What a piece of n tokens has, heads first. */
typedef struct piece {
    mx::array x;      /* [heads, n, head_dim], times dt */
    mx::array b, c;   /* [heads, n, state_size] */
    mx::array decays; /* [heads, n] logarithms */
} piece;

/* Results [heads, n, head_dim]; s [heads, state_size, head_dim] moves on. */
static mx::array scan(const piece &p, mx::array &s)
{
    int n = p.x.shape(1);
    mx::array token = mx::arange(n), later = mx::expand_dims(token, 1), earlier = mx::expand_dims(token, 0);
    /* [later, earlier]: the logarithms after the earlier token up to and with the later one, added up without the
     * others, since differences of long sums would lose the small ones. */
    mx::array each = mx::where(mx::less(earlier, later), mx::expand_dims(p.decays, 2), mx::array(0.0f));
    mx::array sums = mx::where(mx::less_equal(earlier, later), mx::cumsum(each, 1), mx::array(-INFINITY));
    mx::array between = mx::exp(sums), all = mx::expand_dims(mx::cumsum(p.decays, 1), 2);
    mx::array scores = mx::multiply(mx::matmul(p.c, mx::swapaxes(p.b, 1, 2)), between);
    mx::array y = mx::add(mx::matmul(scores, p.x), mx::multiply(mx::matmul(p.c, s), mx::exp(all)));
    mx::array to_end = mx::swapaxes(mx::slice(between, {0, n - 1, 0}, between.shape()), 1, 2);
    mx::array whole = mx::slice(all, {0, n - 1, 0}, all.shape());
    s = mx::add(mx::multiply(s, mx::exp(whole)), mx::matmul(mx::swapaxes(mx::multiply(p.b, to_end), 1, 2), p.x));
    return y;
}

/* One segment: y [n, heads, head_dim]. */
static mx::array recur(const pm_segment *segment, const pm_mamba2_args *args, const mx::array &inputs,
                       const mx::array &dt)
{
    int n = segment->n, inner = args->heads * args->head_dim, width = args->groups * args->state_size;
    mx::array convolved =
        pm_mlx_silu(pm_mlx_convolve(segment->states[args->conv_state], pm_mlx_part(inputs, segment->first, n),
                                    args->conv, args->conv_bias, args->kernel));
    mx::array x = mx::reshape(pm_mlx_columns(convolved, 0, inner), {n, args->heads, args->head_dim});
    auto of_groups = [&](int first) {
        mx::array part = mx::reshape(pm_mlx_columns(convolved, first, width), {n, args->groups, args->state_size});
        return mx::transpose(mx::repeat(part, args->heads / args->groups, 1), {1, 0, 2});
    };
    mx::array b = of_groups(inner), c = of_groups(inner + width), own = pm_mlx_part(dt, segment->first, n);
    mx::array scaled = mx::transpose(mx::multiply(x, mx::expand_dims(own, 2)), {1, 0, 2});
    mx::array decays = mx::transpose(mx::negative(mx::multiply(mx::exp(args->A_log->value), own)));
    pm_state *state = segment->states[args->ssm_state];
    mx::array s = mx::reshape(state->value, {args->heads, args->state_size, args->head_dim});
    std::vector<mx::array> pieces;
    for (int first = 0; first < n; first += PIECE) {
        int last = std::min(n, first + PIECE);
        auto tokens = [&](const mx::array &all) {
            return mx::slice(all, {0, first, 0}, {all.shape(0), last, all.shape(2)});
        };
        pieces.push_back(scan({tokens(scaled), tokens(b), tokens(c), pm_mlx_columns(decays, first, last - first)}, s));
    }
    pm_mlx_state_set(state, s);
    mx::array y = mx::transpose(pm_mlx_concatenate(pieces, 1), {1, 0, 2});
    return mx::add(y, mx::multiply(x, mx::reshape(args->D->value, {args->heads, 1})));
}

int pm_mlx_mamba2(pm_backend *backend, const pm_batch *batch, const pm_mamba2_args *args, pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *) {
        int n = batch->n_tokens, inner = args->heads * args->head_dim;
        int channels = inner + 2 * args->groups * args->state_size, group = inner / args->groups;
        if (n < 1)
            return (int)PM_OK;
        mx::array projected = pm_mlx_part(args->projected->value, 0, n);
        mx::array raw = pm_mlx_columns(projected, inner + channels, args->heads);
        mx::array dt = mx::clip(pm_mlx_softplus(mx::add(raw, args->dt_bias->value)), mx::array(args->dt_min),
                                mx::array(args->dt_max));
        mx::array inputs = pm_mlx_columns(projected, inner, channels);
        std::vector<mx::array> parts;
        for (int s = 0; s < batch->n_segments; s++)
            parts.push_back(recur(&batch->segments[s], args, inputs, dt));
        mx::array y = mx::reshape(pm_mlx_concatenate(parts, 0), {n, inner});
        y = mx::multiply(y, pm_mlx_silu(pm_mlx_columns(projected, 0, inner)));
        y = mx::reshape(mx::fast::rms_norm(mx::reshape(y, {n, args->groups, group}), std::nullopt, args->eps),
                        {n, inner});
        args->out->value = mx::multiply(y, args->norm->value);
        return (int)PM_OK;
    });
}
