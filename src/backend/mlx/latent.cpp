/* Attention in which all query heads share one key per row, whose first part is the value as well: multi-head latent
 * attention in its absorbed form, and DeepSeek-V4's attention over a window and compressed rows. */
#include "backend/mlx/mlx.h"

/* Keys [1, rows, width], and which of them each query sees: [queries, rows], or all where there is no mask. */
typedef struct keys {
    mx::array rows;
    std::optional<mx::array> seen;
} keys;

/* Those that a token sees are the first (position + 1) / ratio, but for what lies `window` back (0: nothing); a list
 * leaves the others out. The first of the rows is row `first`. */
static mx::array mask_of(const pm_segment *segment, int ratio, int window, int64_t first, int rows,
                         const pm_mlx_choice *choice)
{
    mx::array end =
        mx::floor_divide(mx::arange((int)segment->pos + 1, (int)segment->pos + 1 + segment->n), mx::array(ratio));
    end = mx::expand_dims(end, 1);
    mx::array row = mx::expand_dims(mx::arange((int)first, (int)first + rows), 0);
    mx::array seen = mx::less(row, end);
    if (window > 0)
        seen = mx::logical_and(seen, mx::greater_equal(row, mx::subtract(end, mx::array(window))));
    if (choice && !choice->all) {
        mx::array none = mx::zeros({segment->n, rows}, mx::bool_);
        seen = mx::logical_and(seen, mx::put_along_axis(none, choice->rows, mx::array(true), 1));
    }
    return seen;
}

static keys keys_of(const pm_segment *segment, const pm_rows *rows, int ratio, int window, const pm_mlx_choice *choice)
{
    int64_t end = (segment->pos + segment->n) / ratio;
    int64_t first = window > 0 && segment->pos >= window ? segment->pos - window + 1 : 0;
    mx::array all = pm_mlx_rows_read(rows, 0, 1, first, end);
    bool listed = choice && !choice->all;
    if (segment->n == 1 && listed) /* its list is full */
        return {mx::take(all, mx::flatten(choice->rows), 1), {}};
    if (segment->n == 1)
        return {all, {}};
    return {all, mask_of(segment, ratio, window, first, (int)(end - first), choice)};
}

/* What the segment's queries attend to. */
static keys gather(const pm_segment *segment, const pm_latent_attention_args *args, const pm_mlx_choice *choice)
{
    keys near = keys_of(segment, segment->rows[args->rows], 1, args->window, args->ratio ? nullptr : choice);
    if (!args->ratio || (segment->pos + segment->n) / args->ratio == 0)
        return near;
    keys far = keys_of(segment, segment->rows[args->blocks], args->ratio, 0, choice);
    std::optional<mx::array> seen;
    if (near.seen)
        seen = mx::concatenate({*near.seen, *far.seen}, 1);
    return {mx::concatenate({near.rows, far.rows}, 1), seen};
}

static const pm_mlx_choice *choice_of(const pm_indices *chosen, const pm_segment *segment)
{
    for (size_t i = 0; chosen && i < chosen->choices.size(); i++)
        if (chosen->choices[i].first == segment->first)
            return &chosen->choices[i];
    return nullptr;
}

/* One segment: q [n, heads, width], result [n, heads, value_width]. */
static mx::array attend(const pm_segment *segment, const pm_latent_attention_args *args, const mx::array &q)
{
    keys k = gather(segment, args, choice_of(args->chosen, segment));
    std::optional<mx::array> sinks;
    if (args->sinks)
        sinks = mx::flatten(args->sinks->value);
    mx::array rows = mx::expand_dims(k.rows, 0), queries = mx::expand_dims(mx::transpose(q, {1, 0, 2}), 0);
    mx::array out = mx::fast::scaled_dot_product_attention(queries, rows, pm_mlx_columns(rows, 0, args->value_width),
                                                           args->scale, "", k.seen, sinks);
    return mx::transpose(mx::squeeze(out, 0), {1, 0, 2});
}

/* RMS norm of the latent part, then rope: [tokens, 1, width]. */
static mx::array make_keys(const pm_latent_attention_args *args, int n, const pm_mlx_turns &turns)
{
    mx::array kv = pm_mlx_part(args->kv->value, 0, n);
    mx::array latent =
        mx::fast::rms_norm(pm_mlx_columns(kv, 0, args->value_width), mx::flatten(args->kv_norm->value), args->eps);
    if (args->width > args->value_width)
        latent = mx::concatenate({latent, pm_mlx_columns(kv, args->value_width, args->width - args->value_width)}, -1);
    return pm_mlx_turn(mx::expand_dims(latent, 1), args->rope, turns, false);
}

static mx::array make_queries(const pm_latent_attention_args *args, int n, const pm_mlx_turns &turns)
{
    mx::array q = mx::reshape(pm_mlx_part(args->q->value, 0, n), {n, args->heads, args->value_width});
    if (args->q_rope) {
        mx::array more = mx::reshape(pm_mlx_part(args->q_rope->value, 0, n), {n, args->heads, args->q_rope_stride});
        more = pm_mlx_columns(more, args->q_rope_first, args->width - args->value_width);
        q = mx::concatenate({q, more}, -1);
    }
    if (args->q_normed)
        q = mx::fast::rms_norm(q, std::nullopt, args->eps);
    return pm_mlx_turn(q, args->rope, turns, false);
}

int pm_mlx_latent_attention(pm_backend *backend, const pm_batch *batch, const pm_latent_attention_args *args,
                            pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *mlx) {
        int n = batch->n_tokens, status = pm_mlx_check_rows(batch, args->rows, args->layer, err);
        if (status != PM_OK || n < 1)
            return status;
        const pm_mlx_turns &turns = pm_mlx_turns_of(mlx, args->rope, pm_mlx_positions(batch));
        mx::array made = mx::transpose(make_keys(args, n, turns), {1, 0, 2}), q = make_queries(args, n, turns);
        std::vector<mx::array> parts;
        for (int s = 0; s < batch->n_segments; s++) {
            const pm_segment *segment = &batch->segments[s];
            pm_mlx_append(segment->rows[args->rows],
                          mx::slice(made, {0, segment->first, 0}, {1, segment->first + segment->n, args->width}),
                          args->layer);
            parts.push_back(attend(segment, args, pm_mlx_part(q, segment->first, segment->n)));
        }
        mx::array out = pm_mlx_concatenate(parts, 0);
        if (args->unrotate)
            out = pm_mlx_turn(out, args->rope, turns, true);
        args->out->value = mx::reshape(out, {n, args->heads * args->value_width});
        return status;
    });
}
