/* Rotary embedding. The angle is f32(position) * f32(inverse frequency), as the references have it: fast::rope takes
 * periods, whose reciprocals are not the frequencies, and turns neither part of a head nor backwards. */
#include "backend/mlx/mlx.h"

#include <cmath>

std::vector<int64_t> pm_mlx_positions(const pm_batch *batch)
{
    std::vector<int64_t> positions;
    for (int s = 0; s < batch->n_segments; s++)
        for (int i = 0; i < batch->segments[s].n; i++)
            positions.push_back(batch->segments[s].pos + i);
    return positions;
}

/* Layers that share a rope share its sines; a model has few ropes. */
const pm_mlx_turns &pm_mlx_turns_of(pm_mlx *mlx, const pm_rope *rope, const std::vector<int64_t> &positions)
{
    enum { KEPT = 4 };
    size_t n = positions.size(), pairs = (size_t)rope->pairs;
    std::vector<float> frequencies(rope->inv_freq, rope->inv_freq + pairs), sine(n * pairs), cosine(n * pairs);
    for (const pm_mlx_turns &turns : mlx->turns)
        if (turns.scale == rope->scale && turns.inv_freq == frequencies && turns.positions == positions)
            return turns;
    for (size_t i = 0; i < n * pairs; i++) {
        float angle = (float)positions[i / pairs] * frequencies[i % pairs];
        sine[i] = std::sin(angle) * rope->scale;
        cosine[i] = std::cos(angle) * rope->scale;
    }
    if (mlx->turns.size() == KEPT)
        mlx->turns.erase(mlx->turns.begin());
    mx::Shape shape = {(int)n, 1, rope->pairs};
    mlx->turns.push_back({positions, frequencies, rope->scale, mx::array(sine.data(), shape, mx::float32),
                          mx::array(cosine.data(), shape, mx::float32)});
    return mlx->turns.back();
}

mx::array pm_mlx_turn(const mx::array &x, const pm_rope *rope, const pm_mlx_turns &turns, bool back)
{
    int heads = x.shape(1), dim = x.shape(2), pairs = rope->pairs, end = rope->first + 2 * pairs;
    mx::array turned = pm_mlx_columns(x, rope->first, 2 * pairs);
    mx::array sine = back ? mx::negative(turns.sine) : turns.sine;
    if (rope->interleaved)
        turned = mx::swapaxes(mx::reshape(turned, {-1, heads, pairs, 2}), -1, -2);
    else
        turned = mx::reshape(turned, {-1, heads, 2, pairs});
    mx::array a = mx::take(turned, 0, 2), b = mx::take(turned, 1, 2);
    std::vector<mx::array> both = {
        mx::subtract(mx::multiply(a, turns.cosine), mx::multiply(b, sine)),
        mx::add(mx::multiply(b, turns.cosine), mx::multiply(a, sine)),
    };
    turned = mx::reshape(mx::stack(both, rope->interleaved ? -1 : -2), {-1, heads, 2 * pairs});
    std::vector<mx::array> parts;
    if (rope->first)
        parts.push_back(pm_mlx_columns(x, 0, rope->first));
    parts.push_back(turned);
    if (end < dim)
        parts.push_back(pm_mlx_columns(x, end, dim - end));
    return pm_mlx_concatenate(parts, -1);
}
