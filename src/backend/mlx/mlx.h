/* The MLX backend's own: what its operations share.
 *
 * MLX is lazy: an operation here adds nodes to a graph, and the tensors, rows and states that it writes hold their
 * results. One evaluation a step, in `logits`, computes all of it: the logits, every cache written and the checks of
 * what went into them, which is why a value that does not fit the cache is reported there. What a step leaves behind
 * when it ends without logits is computed when the next one begins, so that no graph outlives a step.
 *
 * Activations are f32. MLX's sums have an order of their own, so results are near those of the CPU backend, not equal.
 *
 * MLX throws; nothing thrown leaves this folder (pm_mlx_guard). */
#ifndef PM_MLX_H
#define PM_MLX_H

extern "C" {
#include "backend/backend.h"
}

#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <mlx/array.h>
#include <mlx/fast.h>
#include <mlx/ops.h>
#include <mlx/stream.h>
#include <mlx/transforms.h>

namespace mx = mlx::core;

/* ---- what the handles of backend.h are ---- */

struct pm_tensor {
    int64_t rows, cols;
    mx::array value; /* [rows that the last operation made, cols] f32 */
};

struct pm_rows {
    struct pm_mlx *backend;
    pm_rows_spec spec;
    mx::Dtype type;
    int64_t length;
    bool written;                   /* since the last evaluation */
    std::optional<mx::array> value; /* [planes, room for rows, width]; none while there is no row */
};

struct pm_state {
    struct pm_mlx *backend;
    int64_t count;
    bool written;    /* since the last evaluation */
    mx::array value; /* [count] */
};

/* Which rows the tokens of a segment attend to. */
struct pm_mlx_choice {
    int first, n;   /* rows of the batch */
    bool all;       /* every token: all that it sees */
    mx::array rows; /* [n, top_k] ascending int32; where a token has fewer, the rest is beyond what it sees */
};

struct pm_indices {
    struct pm_mlx *backend;
    int top_k;
    std::vector<int> count; /* [max_tokens] */
    std::vector<pm_mlx_choice> choices;
};

/* Matrices of one shape and format as MLX holds them: [out, in] when there is one, else [n, out, in]. */
struct pm_mlx_matrices {
    pm_weight like;
    int n;
    std::string mode; /* of MLX's quantised operations; empty for float formats and FP8 */
    mx::array data;
    std::optional<mx::array> scales, biases; /* of the mode; FP8: f32 scale of each block */
    std::optional<mx::array> globals;        /* [n]: factors of whole matrices */
    std::optional<mx::array> bias;           /* [out] or [n, out] */
};

/* Sines and cosines of a step's positions. */
struct pm_mlx_turns {
    std::vector<int64_t> positions;
    std::vector<float> inv_freq;
    float scale;
    mx::array sine, cosine; /* [positions, 1, pairs] */
};

/* A magnitude that has to be below `end`. */
struct pm_mlx_check {
    mx::array largest; /* a scalar, NaN where there is one */
    float end;
    int layer;
    const char *what; /* "a key or value", ... */
    const char *type; /* of the cache; or NULL */
};

struct pm_mlx {
    pm_backend base; /* first */
    mx::Stream stream;
    bool gpu;
    std::string failure; /* why an evaluation failed; caches are unknown from then on */
    std::vector<pm_mlx_matrices *> matrices;
    std::vector<pm_rows *> rows;      /* all that there are */
    std::vector<pm_state *> states;   /* likewise */
    std::vector<pm_mlx_check> checks; /* since the last evaluation */
    std::vector<pm_mlx_turns> turns;
    int steps; /* since MLX's cache of buffers was cleared */
};

/* ---- mlx.cpp ---- */

/* Makes the backend's stream the calling thread's default, which MLX wants set in each thread, and its device that of
 * the process, which costs a program that uses MLX itself nothing but its own choice. */
void pm_mlx_enter(const pm_mlx *mlx);

/* Turns what is being thrown into an error. */
int pm_mlx_caught(pm_error *err);

/* Runs `body`, which returns a status, on the backend's stream. */
template <typename F> int pm_mlx_guard(pm_backend *backend, pm_error *err, F body)
{
    pm_mlx *mlx = (pm_mlx *)backend;
    try {
        if (!mlx->failure.empty())
            return pm_fail(err, PM_ERR_MEMORY, "MLX failed before, the model has to be opened again: %s",
                           mlx->failure.c_str());
        pm_mlx_enter(mlx);
        return body(mlx);
    } catch (...) {
        return pm_mlx_caught(err);
    }
}

/* Computes the arrays and everything that was written since the last evaluation, and refuses what does not fit a
 * cache. */
int pm_mlx_evaluate(pm_mlx *mlx, std::vector<mx::array> arrays, pm_error *err);

/* n elements of an evaluated array, in its order, to `out`. */
void pm_mlx_copy_out(const mx::array &array, void *out);

/* Rows [first, first + n) of the array. */
mx::array pm_mlx_part(const mx::array &array, int64_t first, int64_t n);

/* Elements [first, first + n) of the last axis. */
mx::array pm_mlx_columns(const mx::array &array, int64_t first, int64_t n);

mx::array pm_mlx_concatenate(const std::vector<mx::array> &parts, int axis);

/* ---- functions that several operations share ---- */

inline mx::array pm_mlx_silu(const mx::array &x)
{
    return mx::multiply(x, mx::sigmoid(x));
}

inline mx::array pm_mlx_softplus(const mx::array &x)
{
    return mx::logaddexp(x, mx::array(0.0f));
}

/* The causal depthwise convolution of a segment's inputs x [n, channels] with weights [channels, kernel], plus a bias
 * [1, channels] or NULL. The state, [kernel - 1, channels], moves on. In short_conv.cpp. */
mx::array pm_mlx_convolve(pm_state *state, const mx::array &x, const pm_tensor *weights, const pm_tensor *bias,
                          int kernel);

/* A function of the table of operations, to be declared: what backend.h says of it holds. */
template <typename Pointer> using pm_mlx_fn = std::remove_pointer_t<Pointer>;

/* ---- memory.cpp ---- */

pm_mlx_fn<decltype(pm_backend_ops::rows_new)> pm_mlx_rows_new;
pm_mlx_fn<decltype(pm_backend_ops::rows_fork)> pm_mlx_rows_fork;
pm_mlx_fn<decltype(pm_backend_ops::rows_truncate)> pm_mlx_rows_truncate;
pm_mlx_fn<decltype(pm_backend_ops::rows_length)> pm_mlx_rows_length;
pm_mlx_fn<decltype(pm_backend_ops::rows_free)> pm_mlx_rows_free;
pm_mlx_fn<decltype(pm_backend_ops::rows_bytes)> pm_mlx_rows_bytes;
pm_mlx_fn<decltype(pm_backend_ops::held)> pm_mlx_held;
pm_mlx_fn<decltype(pm_backend_ops::rows_export)> pm_mlx_rows_export;
pm_mlx_fn<decltype(pm_backend_ops::rows_import)> pm_mlx_rows_import;
pm_mlx_fn<decltype(pm_backend_ops::state_new)> pm_mlx_state_new;
pm_mlx_fn<decltype(pm_backend_ops::state_zero)> pm_mlx_state_zero;
pm_mlx_fn<decltype(pm_backend_ops::state_copy)> pm_mlx_state_copy;
pm_mlx_fn<decltype(pm_backend_ops::state_free)> pm_mlx_state_free;
pm_mlx_fn<decltype(pm_backend_ops::state_export)> pm_mlx_state_export;
pm_mlx_fn<decltype(pm_backend_ops::state_import)> pm_mlx_state_import;

/* Appends [planes, n, width] of any float type; the layer is for messages. */
void pm_mlx_append(pm_rows *rows, const mx::array &values, int layer);

/* Everything in the array has to be below `end` in magnitude, which is seen at the next evaluation. */

/* Planes [first, first + n) of rows [from, to): [n, to - from, width] in f32. */
mx::array pm_mlx_rows_read(const pm_rows *rows, int first, int n, int64_t from, int64_t to);

void pm_mlx_state_set(pm_state *state, const mx::array &value);

/* Refuses a segment whose rows in `slot` are not those of the tokens before it. */
int pm_mlx_check_rows(const pm_batch *batch, int slot, int layer, pm_error *err);

/* ---- weights.cpp ---- */

pm_mlx_fn<decltype(pm_backend_ops::weight_prepare)> pm_mlx_weight_prepare;
pm_mlx_fn<decltype(pm_backend_ops::weights_load)> pm_mlx_weights_load;

/* x [..., in] times the matrix, plus its bias: [..., out] f32. */
mx::array pm_mlx_multiply(const pm_weight *weight, const mx::array &x);

/* x [rows, m, in] times matrix ids[row] of the stack (int32 [rows]), plus its bias: [rows, m, out]; transposed:
 * x [rows, m, out] times its transpose. sorted: ids ascend. */
mx::array pm_mlx_multiply_chosen(const pm_weight *stack, const mx::array &x, const mx::array &ids, bool transposed,
                                 bool sorted);

/* Rows of the matrix chosen by ids [n], as f32: [n, in]. */
mx::array pm_mlx_look_up(const pm_weight *weight, const mx::array &ids);

/* ---- rope.cpp ---- */

/* Sines and cosines of the positions, made once a step; valid until the next call. */
const pm_mlx_turns &pm_mlx_turns_of(pm_mlx *mlx, const pm_rope *rope, const std::vector<int64_t> &positions);

/* The positions of the batch's tokens. */
std::vector<int64_t> pm_mlx_positions(const pm_batch *batch);

/* Turns the heads of x [positions, heads, dim]; back: the other way. */
mx::array pm_mlx_turn(const mx::array &x, const pm_rope *rope, const pm_mlx_turns &turns, bool back);

/* ---- operations, one file each ---- */
pm_mlx_fn<decltype(pm_backend_ops::embed)> pm_mlx_embed;
pm_mlx_fn<decltype(pm_backend_ops::linear)> pm_mlx_linear;
pm_mlx_fn<decltype(pm_backend_ops::attention)> pm_mlx_attention;
pm_mlx_fn<decltype(pm_backend_ops::heads)> pm_mlx_heads;
pm_mlx_fn<decltype(pm_backend_ops::indices_new)> pm_mlx_indices_new;
pm_mlx_fn<decltype(pm_backend_ops::indices_read)> pm_mlx_indices_read;
pm_mlx_fn<decltype(pm_backend_ops::indices_free)> pm_mlx_indices_free;
pm_mlx_fn<decltype(pm_backend_ops::sparse_index)> pm_mlx_sparse_index;
pm_mlx_fn<decltype(pm_backend_ops::latent_attention)> pm_mlx_latent_attention;
pm_mlx_fn<decltype(pm_backend_ops::gated_delta)> pm_mlx_gated_delta;
pm_mlx_fn<decltype(pm_backend_ops::short_conv)> pm_mlx_short_conv;
pm_mlx_fn<decltype(pm_backend_ops::mamba2)> pm_mlx_mamba2;
pm_mlx_fn<decltype(pm_backend_ops::compress)> pm_mlx_compress;
pm_mlx_fn<decltype(pm_backend_ops::hyper_in)> pm_mlx_hyper_in;
pm_mlx_fn<decltype(pm_backend_ops::hyper_out)> pm_mlx_hyper_out;
pm_mlx_fn<decltype(pm_backend_ops::moe)> pm_mlx_moe;
pm_mlx_fn<decltype(pm_backend_ops::logits)> pm_mlx_logits;

#endif
