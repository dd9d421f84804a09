/* Gated delta net: convolution, the delta rule token by token, gated norm. */
#include "backend/mlx/mlx.h"

#include <cmath>

/* The inputs of the batch, apart. */
typedef struct inputs {
    mx::array qkv;  /* [tokens, channels] */
    mx::array z;    /* [tokens, value_heads, value_dim] */
    mx::array a, b; /* [tokens, value_heads] */
} inputs;

/* Interleaved: key head after key head its query, key, values and z; its b and a. */
static inputs separate(const pm_gated_delta_args *args, int n)
{
    int group = args->value_heads / args->key_heads, values = group * args->value_dim;
    mx::array qkv = pm_mlx_part(args->qkv->value, 0, n), b = pm_mlx_part(args->b->value, 0, n);
    mx::Shape z_shape = {n, args->value_heads, args->value_dim};
    if (!args->interleaved)
        return {qkv, mx::reshape(pm_mlx_part(args->z->value, 0, n), z_shape), pm_mlx_part(args->a->value, 0, n), b};
    qkv = mx::reshape(qkv, {n, args->key_heads, -1});
    b = mx::reshape(b, {n, args->key_heads, 2 * group});
    auto part = [&](int first, int width) { return mx::reshape(pm_mlx_columns(qkv, first, width), {n, -1}); };
    int key = args->key_dim;
    mx::array all = mx::concatenate({part(0, key), part(key, key), part(2 * key, values)}, -1);
    return {all, mx::reshape(part(2 * key + values, values), z_shape),
            mx::reshape(pm_mlx_columns(b, group, group), {n, -1}), mx::reshape(pm_mlx_columns(b, 0, group), {n, -1})};
}

/* Divided by its length. */
static mx::array normalise(const mx::array &x)
{
    return mx::multiply(x, mx::rsqrt(mx::add(mx::sum(mx::square(x), -1, true), mx::array(1e-6f))));
}

/* One segment: results [n, value_heads, value_dim] before the norm. q, k [n, value_heads, key_dim]; v; decay and beta
 * [n, value_heads, 1, 1]. */
static mx::array recur(pm_state *state, const pm_gated_delta_args *args, const mx::array &q, const mx::array &k,
                       const mx::array &v, const mx::array &decay, const mx::array &beta)
{
    mx::array s = mx::reshape(state->value, {args->value_heads, args->key_dim, args->value_dim});
    std::vector<mx::array> out;
    for (int t = 0; t < q.shape(0); t++) {
        mx::array key = mx::expand_dims(mx::take(k, t, 0), -1), query = mx::expand_dims(mx::take(q, t, 0), -2);
        s = mx::multiply(s, mx::take(decay, t, 0));
        mx::array recalled = mx::matmul(mx::swapaxes(key, -1, -2), s);
        mx::array change =
            mx::multiply(mx::subtract(mx::expand_dims(mx::take(v, t, 0), -2), recalled), mx::take(beta, t, 0));
        s = mx::add(s, mx::multiply(key, change));
        out.push_back(mx::matmul(query, s));
    }
    pm_mlx_state_set(state, s);
    return mx::squeeze(mx::stack(out, 0), -2);
}

static mx::array segment_delta(const pm_segment *segment, const pm_gated_delta_args *args, const inputs &in,
                               const mx::array &decay, const mx::array &beta)
{
    int n = segment->n, keys = args->key_heads * args->key_dim;
    mx::array x = pm_mlx_silu(pm_mlx_convolve(segment->states[args->conv_state], pm_mlx_part(in.qkv, segment->first, n),
                                              args->conv, nullptr, args->kernel));
    auto heads = [&](int first) {
        mx::array head = normalise(mx::reshape(pm_mlx_columns(x, first, keys), {n, args->key_heads, args->key_dim}));
        return mx::repeat(head, args->value_heads / args->key_heads, 1);
    };
    mx::array q = mx::multiply(heads(0), mx::array(1.0f / std::sqrt((float)args->key_dim)));
    mx::array v = mx::reshape(pm_mlx_columns(x, 2 * keys, args->value_heads * args->value_dim),
                              {n, args->value_heads, args->value_dim});
    return recur(segment->states[args->delta_state], args, q, heads(keys), v, pm_mlx_part(decay, segment->first, n),
                 pm_mlx_part(beta, segment->first, n));
}

int pm_mlx_gated_delta(pm_backend *backend, const pm_batch *batch, const pm_gated_delta_args *args, pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *) {
        int n = batch->n_tokens;
        if (n < 1)
            return (int)PM_OK;
        inputs in = separate(args, n);
        mx::array rate =
            mx::multiply(mx::exp(args->A_log->value), pm_mlx_softplus(mx::add(in.a, args->dt_bias->value)));
        mx::array decay = mx::expand_dims(mx::exp(mx::negative(rate)), {-1, -2});
        mx::array beta = mx::expand_dims(mx::sigmoid(in.b), {-1, -2});
        std::vector<mx::array> parts;
        for (int s = 0; s < batch->n_segments; s++)
            parts.push_back(segment_delta(&batch->segments[s], args, in, decay, beta));
        mx::array y = mx::fast::rms_norm(pm_mlx_concatenate(parts, 0), mx::flatten(args->norm->value), args->eps);
        args->out->value = mx::reshape(mx::multiply(y, pm_mlx_silu(in.z)), {n, -1});
        return (int)PM_OK;
    });
}
