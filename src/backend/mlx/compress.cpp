/* The compressor of DeepSeek-V4: one row of the cache for every `ratio` tokens (backend.h).
 *
 * As on the CPU the state is what has been folded of a part-filled window, [3, width]: maximum, sum and weighted sum of
 * its softmax; with overlap those of the next row follow. Here the tokens of a step are folded window by window, and
 * what they make is merged with the state. */
#include "backend/mlx/mlx.h"

#include <algorithm>
#include <cmath>

/* Of windows: [windows, width] each. */
typedef struct folded {
    mx::array max, sum, acc;
} folded;

static folded merge(const folded &a, const folded &b)
{
    mx::array max = mx::maximum(a.max, b.max);
    mx::array of_a = mx::exp(mx::subtract(a.max, max)), of_b = mx::exp(mx::subtract(b.max, max));
    return {max, mx::add(mx::multiply(a.sum, of_a), mx::multiply(b.sum, of_b)),
            mx::add(mx::multiply(a.acc, of_a), mx::multiply(b.acc, of_b))};
}

static folded join(const std::vector<folded> &parts)
{
    std::vector<mx::array> max, sum, acc;
    for (const folded &part : parts) {
        max.push_back(part.max);
        sum.push_back(part.sum);
        acc.push_back(part.acc);
    }
    return {pm_mlx_concatenate(max, 0), pm_mlx_concatenate(sum, 0), pm_mlx_concatenate(acc, 0)};
}

static folded windows(const folded &all, int first, int n)
{
    return {pm_mlx_part(all.max, first, n), pm_mlx_part(all.sum, first, n), pm_mlx_part(all.acc, first, n)};
}

static folded nothing(int width)
{
    return {mx::full({1, width}, -INFINITY, mx::float32), mx::zeros({1, width}), mx::zeros({1, width})};
}

/* Tokens of whole windows, or of a part of one: kv and gate [windows, tokens, width]. */
static folded fold(const mx::array &kv, const mx::array &gate)
{
    mx::array max = mx::max(gate, 1, true), p = mx::exp(mx::subtract(gate, max));
    return {mx::squeeze(max, 1), mx::sum(p, 1), mx::sum(mx::multiply(p, kv), 1)};
}

/* One half (or the whole) of a segment's tokens, kv and gate [n, width], window by window. */
static folded fold_windows(const mx::array &kv, const mx::array &gate, int at, int ratio)
{
    int n = kv.shape(0), width = kv.shape(1);
    std::vector<folded> parts;
    for (int first = 0, take; first < n; first += take) {
        int into = (at + first) % ratio, whole = into ? 0 : (n - first) / ratio;
        take = whole ? whole * ratio : std::min(n - first, ratio - into);
        mx::Shape shape = {whole ? whole : 1, whole ? ratio : take, width};
        parts.push_back(
            fold(mx::reshape(pm_mlx_part(kv, first, take), shape), mx::reshape(pm_mlx_part(gate, first, take), shape)));
    }
    return join(parts);
}

/* Part `part` of the state: 0 the row at hand, 1 with overlap the next. */
static folded stored(const pm_state *state, int part, int width)
{
    mx::array values = mx::reshape(state->value, {-1, width});
    auto row = [&](int i) { return pm_mlx_part(values, 3 * part + i, 1); };
    return {row(0), row(1), row(2)};
}

/* Folds a segment's tokens; returns the weighted means of the windows that they complete, [completed, width]. */
static mx::array fold_segment(const pm_segment *segment, const pm_compress_args *args, const mx::array &kv,
                              const mx::array &gate)
{
    int width = args->width, at = (int)(segment->pos % args->ratio);
    pm_state *state = segment->states[args->state];
    auto half = [&](int first) {
        return fold_windows(pm_mlx_columns(kv, first, width), pm_mlx_columns(gate, first, width), at, args->ratio);
    };
    folded own = half(args->overlap ? width : 0), before = at ? stored(state, 0, width) : nothing(width);
    int n = own.max.shape(0);
    std::vector<mx::array> left;
    if (args->overlap) {
        folded next = half(0);
        if (at)
            next = join({merge(stored(state, 1, width), windows(next, 0, 1)), windows(next, 1, n - 1)});
        else if (segment->pos > 0)
            before = stored(state, 1, width);
        own = merge(join({before, windows(next, 0, n - 1)}), own);
        folded last = windows(next, n - 1, 1);
        left = {last.max, last.sum, last.acc};
    } else {
        own = join({merge(before, windows(own, 0, 1)), windows(own, 1, n - 1)});
    }
    folded last = windows(own, n - 1, 1);
    left.insert(left.begin(), {last.max, last.sum, last.acc});
    pm_mlx_state_set(state, mx::concatenate(left, 0));
    int completed = (at + segment->n) / args->ratio;
    return mx::divide(pm_mlx_part(own.acc, 0, completed), pm_mlx_part(own.sum, 0, completed));
}

/* The bias of each token's place in its window, added to its gate. */
static mx::array biased(const pm_batch *batch, const pm_compress_args *args)
{
    std::vector<int> places;
    for (int64_t position : pm_mlx_positions(batch))
        places.push_back((int)(position % args->ratio));
    mx::array bias = mx::take(args->position_bias->value, mx::array(places.data(), {batch->n_tokens}, mx::int32), 0);
    return mx::add(pm_mlx_part(args->gate->value, 0, batch->n_tokens), bias);
}

int pm_mlx_compress(pm_backend *backend, const pm_batch *batch, const pm_compress_args *args, pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *mlx) {
        int status = pm_mlx_check_rows(batch, args->rows, args->layer, err);
        if (status != PM_OK || batch->n_tokens < 1)
            return status;
        mx::array kv = pm_mlx_part(args->kv->value, 0, batch->n_tokens), gate = biased(batch, args);
        std::vector<mx::array> made;
        std::vector<int64_t> positions;
        for (int s = 0; s < batch->n_segments; s++) {
            const pm_segment *segment = &batch->segments[s];
            made.push_back(fold_segment(segment, args, pm_mlx_part(kv, segment->first, segment->n),
                                        pm_mlx_part(gate, segment->first, segment->n)));
            for (int i = 0; i < made.back().shape(0); i++)
                positions.push_back((segment->pos / args->ratio + i) * args->ratio);
        }
        if (positions.empty())
            return status;
        mx::array rows = mx::fast::rms_norm(pm_mlx_concatenate(made, 0), mx::flatten(args->norm->value), args->eps);
        const pm_mlx_turns &turns = pm_mlx_turns_of(mlx, args->rope, positions);
        rows = mx::transpose(pm_mlx_turn(mx::expand_dims(rows, 1), args->rope, turns, false), {1, 0, 2});
        for (int s = 0, first = 0; s < batch->n_segments; s++) {
            int n = made[(size_t)s].shape(0);
            pm_mlx_append(batch->segments[s].rows[args->rows],
                          mx::slice(rows, {0, first, 0}, {1, first + n, args->width}), args->layer);
            first += n;
        }
        return status;
    });
}
