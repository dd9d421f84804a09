/* The operations that a model is made of, and the memory they work on, as a table that each device fills in.
 *
 * An operation is a step that the model's paper names; a backend fuses inside it as it likes. All take the ragged
 * batch: the new tokens of several sequences, concatenated, without padding. Activations are f32 tensors of [tokens,
 * width] that the model makes once, for the largest step; an operation uses the first batch->n_tokens rows. Inputs and
 * outputs of one operation do not overlap unless its comment allows it. Nothing above the backend sees a pointer into a
 * tensor or a cache.
 *
 * Operations return PM_OK or a negative pm_status; arguments are the model's and trusted, values are not: an operation
 * may fail with PM_ERR_NUMERIC (a value that does not fit the cache) or PM_ERR_MEMORY. A backend that computes later
 * than it is asked reports both at the latest where values reach the host: logits, tensor_read, rows_export. */
#ifndef PM_BACKEND_H
#define PM_BACKEND_H

#include "base/base.h"

/* ---- weights ---- */

typedef enum pm_format {
    PM_FORMAT_F32,
    PM_FORMAT_F16,
    PM_FORMAT_BF16,
    PM_FORMAT_AFFINE, /* MLX: w = scale * q + bias per group along `in`; q packed little-endian into u32 words */
    PM_FORMAT_MXFP4,  /* OCP microscaling: w = scale * e2m1, packed as 4-bit AFFINE; e8m0 scale per group of 32 */
    PM_FORMAT_MXFP8,  /* w = scale * e4m3; e8m0 scale per group of 32 */
    PM_FORMAT_NVFP4,  /* w = global * scale * e2m1; e4m3 scale per group of 16 */
    PM_FORMAT_FP8,    /* w = scale * e4m3; f32 scale per block of block[0] rows and block[1] columns, the last may be
                         partial */
    PM_FORMATS
} pm_format;

typedef enum pm_scale_type { PM_SCALE_BF16, PM_SCALE_F16, PM_SCALE_F32, PM_SCALE_E8M0, PM_SCALE_E4M3 } pm_scale_type;

/* A matrix [out, in] as it lies in the mapped file. Rows are contiguous. A stack of experts is an array of these. */
typedef struct pm_weight {
    pm_format format;
    pm_scale_type scale_type; /* of scales and biases */
    int bits, group; /* AFFINE: 2 3 4 5 6 8 and 32 64 128; MX and NV formats: theirs (in is a multiple of group) */
    int block[2];    /* FP8 */
    int block_first; /* FP8: rows of the first block of scales that come before the matrix, part of a larger one */
    float global;    /* NVFP4 */
    int out, in;
    const void *data;   /* this and the next two have no alignment at all (MLX does not pad its headers) */
    const void *scales; /* [out, in / group]; FP8: [out / block[0], in / block[1]] rounded up; NULL for float formats */
    const void *biases; /* AFFINE: likewise, or NULL: each is -2^(bits - 1) times its scale (symmetric integers) */
    const float *bias;  /* [out] added to W x, or NULL */
    const void *device; /* the backend's own, set by weights_load */
} pm_weight;

/* Bytes of a row of `data`, of a row of `scales` (or biases; 0 for float formats; FP8: of a row of blocks). */
size_t pm_weight_row_bytes(const pm_weight *weight);
size_t pm_weight_scale_bytes(const pm_weight *weight);

/* ---- memory ---- */

typedef struct pm_backend pm_backend;
typedef struct pm_tensor pm_tensor; /* [rows, cols] f32 */
typedef struct pm_rows
    pm_rows; /* one row per `ratio` tokens of a sequence, in one layer: keys and values, latents, index keys */
typedef struct pm_state
    pm_state; /* fixed-size f32 memory of a sequence in one layer: convolution tails, delta-rule matrices */

/* Elements that share a scale in a vector of PM_KV_Q8, which is its scales (f32) and then its elements (int8). */
enum { PM_KV_GROUP = 64 };

/* Bytes of a vector of `width` elements of the cache's type. */
size_t pm_kv_bytes(pm_kv_type type, int width);

/* A row is `planes` vectors of `width` elements of the cache's type (attention: key heads, then value heads). */
typedef struct pm_rows_spec {
    int ratio, planes, width;
    int window; /* rows further back than this from the end are not needed; 0: all are */
} pm_rows_spec;

typedef struct pm_state_spec {
    int64_t count; /* f32 elements */
} pm_state_spec;

/* What a sequence keeps: a family states it once, the engine makes it per session. */
typedef struct pm_cache_spec {
    int n_rows, n_states;
    const pm_rows_spec *rows;
    const pm_state_spec *states;
} pm_cache_spec;

/* ---- the batch ---- */

typedef struct pm_segment {
    int first, n;         /* rows of the batch */
    int64_t pos;          /* position of its first token in its sequence */
    pm_rows *const *rows; /* [cache_spec.n_rows], exclusively this segment's */
    pm_state *const *states;
} pm_segment;

typedef struct pm_batch {
    int n_tokens, n_segments, n_outputs;
    const pm_token *tokens;     /* [n_tokens] */
    const pm_segment *segments; /* ascending, covering all rows */
    const int *outputs;         /* [n_outputs] rows whose logits are wanted, ascending */
} pm_batch;

/* ---- operations ---- */

/* y = rows of `weight` chosen by the tokens, each `copies` times over. */
typedef struct pm_embed_args {
    const pm_weight *weight; /* [vocab, hidden] */
    pm_tensor *y;            /* [tokens, copies * hidden] */
    int copies;              /* 0: 1 */
} pm_embed_args;

/* y[i] = W[i] n(x) (+ residual), n an RMS norm or nothing: x * rsqrt(mean(x^2) + eps) * norm. */
typedef struct pm_linear_args {
    const pm_tensor *x;    /* [tokens, in] */
    const pm_tensor *norm; /* [1, in] or NULL */
    float eps;
    int n;
    const pm_weight *const *w; /* n matrices [out_i, in] */
    pm_tensor *const *y;       /* n of [tokens, out_i]; not x */
    const pm_tensor *residual; /* NULL, or added to y[0]; may be y[0] */
} pm_linear_args;

/* Rotary embedding of 2 * pairs elements of a head, from its element `first` on: of those the pair (i, i + pairs), or
 * (2i, 2i + 1) when interleaved, turns by f32(position) * inv_freq[i]; sine and cosine are multiplied by `scale`. */
typedef struct pm_rope {
    int first, pairs;
    bool interleaved;
    const float *inv_freq; /* [pairs] */
    float scale;
} pm_rope;

/* Causal grouped-query attention; appends keys and values to the cache first. Optional, in this order: RMS norms of
 * each query and key head, rope, softmax(scale q k) v, times sigmoid(gate). */
typedef struct pm_attention_args {
    const pm_tensor *q;     /* [tokens, heads * head_dim]; gated: [tokens, heads * (query head_dim, gate head_dim)] */
    const pm_tensor *k, *v; /* [tokens, kv_heads * head_dim] */
    const pm_tensor *q_norm, *k_norm; /* [1, head_dim] or NULL */
    const pm_rope *rope;              /* or NULL */
    float eps, scale;
    int heads, kv_heads, head_dim;
    bool gated;
    int window;     /* a query sees this many last keys, itself included; 0: all */
    int rows;       /* slot: planes 2 * kv_heads, width head_dim */
    int layer;      /* for messages */
    pm_tensor *out; /* [tokens, heads * head_dim] */
} pm_attention_args;

/* y[t, h] = W[h] x[t, h], or W[h]^T x[t, h]: one matrix for each head, or for each group of heads. */
typedef struct pm_heads_args {
    const pm_tensor *x; /* [tokens, heads * x_stride]: of each head `in` elements, from its element x_first on */
    int x_first, x_stride;
    const pm_weight *w; /* [heads] matrices [out, in], transposed: [in, out], all of one format */
    int heads;
    bool transposed;
    pm_tensor *y; /* [tokens, heads * out] */
} pm_heads_args;

/* Which rows each token of a step attends to, ascending: made once by the model, filled by sparse_index, read by
 * latent_attention of this and of later layers. */
typedef struct pm_indices pm_indices;

/* The lightning indexer of sparse attention (DeepSeek-V3.2, section 2.1; DeepSeek-V4, 2.3.1):
 *   score[s] = sum over heads, ascending, of (weights[h] * weight_scale) * relu(scale * q[h] . key[s])
 * and of the rows that a token sees the top_k best, ties to the lower row; all while there are no more. Queries are
 * roped. Appends the keys first: layer norm (biased variance, times k_norm plus k_norm_bias), then rope likewise. With
 * k NULL the rows are those that `compress` made, of `ratio` tokens each: at position p a token sees (p + 1) / ratio.
 */
typedef struct pm_sparse_index_args {
    const pm_tensor *q;                    /* [tokens, heads * head_dim] */
    const pm_tensor *k;                    /* [tokens, head_dim] or NULL */
    const pm_tensor *k_norm, *k_norm_bias; /* [1, head_dim] */
    const pm_tensor *weights;              /* [tokens, heads] */
    const pm_rope *rope;
    float eps, scale, weight_scale;
    int heads, head_dim, top_k;
    int rows;  /* slot: planes 1, width head_dim */
    int ratio; /* of those rows, with k NULL */
    int layer; /* for messages */
    pm_indices *out;
} pm_sparse_index_args;

/* Causal attention in which all query heads share one key per row, and a value is the first value_width elements of its
 * key: multi-head latent attention in its absorbed form (DeepSeek-V2, section 2.1). Appends the keys first: RMS norm of
 * the first value_width elements, then rope; queries are roped likewise. out = softmax(scale q k) v.
 *
 * DeepSeek-V4 (2.3) has, besides: an RMS norm without weight of each query head before rope; a window; rows of `ratio`
 * tokens each, made by `compress`, that a token sees (p + 1) / ratio of, or those chosen; a score per head without a
 * value, which joins the softmax's sum; rope of the outcome, backwards. */
typedef struct pm_latent_attention_args {
    const pm_tensor *q;      /* [tokens, heads * value_width] */
    const pm_tensor *q_rope; /* [tokens, heads * q_rope_stride]: the other width - value_width elements of a query, from
                                q_rope_first on; NULL when there are none */
    int q_rope_first, q_rope_stride;
    bool q_normed;
    const pm_tensor *kv;      /* [tokens, width] */
    const pm_tensor *kv_norm; /* [1, value_width] */
    const pm_rope *rope;      /* of the elements of a whole key or query */
    const pm_tensor *sinks;   /* [1, heads] or NULL */
    float eps, scale;
    int heads, width, value_width;
    int window;               /* a query sees this many last rows, itself included; 0: all */
    int rows;                 /* slot: planes 1 */
    int blocks, ratio;        /* slot of rows of `ratio` tokens: planes 1, same width; ratio 0: none */
    const pm_indices *chosen; /* which of the blocks, or without any of the rows, each token attends to, at most top_k;
                                 NULL: all */
    int top_k;
    bool unrotate;
    int layer;      /* for messages */
    pm_tensor *out; /* [tokens, heads * value_width] */
} pm_latent_attention_args;

/* Gated delta net (Yang et al. 2024, "Gated Delta Networks"; Qwen3-Next). Per token:
 *   qkv = silu(causal depthwise convolution of qkv over the last `kernel` inputs); the inputs before the first are the
 * conv state q, k = l2-normalised per head (x * rsqrt(sum(x^2) + 1e-6)), q also times key_dim^-0.5; each key head
 * serves value_heads / key_heads g = exp(-exp(A_log) * softplus(a + dt_bias)), beta = sigmoid(b) per value head S = g
 * S; S += k (beta (v - k^T S))^T; o = q^T S                                          S [key_dim, value_dim] per value
 * head out = rmsnorm(o) * norm * silu(z)                                                        over value_dim */
typedef struct pm_gated_delta_args {
    const pm_tensor *qkv; /* [tokens, 2 * key_heads * key_dim + value_heads * value_dim]: queries, keys, values */
    bool interleaved;   /* qkv and b hold, key head after key head, its query, key, values, z and its b, a; z and a are
                           NULL */
    const pm_tensor *z; /* [tokens, value_heads * value_dim] */
    const pm_tensor *a, *b;           /* [tokens, value_heads] */
    const pm_tensor *conv;            /* [channels, kernel], channels = width of qkv */
    const pm_tensor *A_log, *dt_bias; /* [1, value_heads] */
    const pm_tensor *norm;            /* [1, value_dim] */
    float eps;
    int key_heads, value_heads, key_dim, value_dim, kernel;
    int conv_state;  /* slot: (kernel - 1) * channels, the oldest input first */
    int delta_state; /* slot: value_heads * key_dim * value_dim */
    pm_tensor *out;  /* [tokens, value_heads * value_dim] */
} pm_gated_delta_args;

/* Gated short convolution (LFM2): out = C * (causal depthwise convolution of B * x over the last `kernel` tokens, +
 * bias). */
typedef struct pm_short_conv_args {
    const pm_tensor *bcx;  /* [tokens, 3 * width]: B, C, x */
    const pm_tensor *conv; /* [width, kernel] */
    const pm_tensor *bias; /* [1, width] or NULL */
    int width, kernel;
    int conv_state; /* slot: (kernel - 1) * width products B * x, the oldest first */
    pm_tensor *out; /* [tokens, width] */
} pm_short_conv_args;

/* Mamba-2 (Dao and Gu 2024, "Transformers are SSMs"; Nemotron-H). With inner = heads * head_dim, per token:
 *   x, B, C = silu(causal depthwise convolution of their projections over the last `kernel` inputs, + bias); each of
 * the groups' B and C serves heads / groups heads
 *   dt = clamp(softplus(dt + dt_bias), dt_min, dt_max) per head
 *   S = exp(-exp(A_log) dt) S + B (dt x)^T; y = C^T S + D x                     S [state_size, head_dim] per head
 *   out = rmsnorm(y * silu(z)) * norm, over the inner / groups elements of a group */
typedef struct pm_mamba2_args {
    const pm_tensor *projected; /* [tokens, inner + channels + heads]: z; x, B, C (the convolution's channels = inner +
                                   2 * groups * state_size); dt */
    const pm_tensor *conv;      /* [channels, kernel] */
    const pm_tensor *conv_bias; /* [1, channels] or NULL */
    const pm_tensor *A_log, *D, *dt_bias; /* [1, heads] */
    const pm_tensor *norm;                /* [1, inner] */
    float eps, dt_min, dt_max;
    int heads, head_dim, groups, state_size, kernel;
    int conv_state; /* slot: (kernel - 1) * channels, the oldest input first */
    int ssm_state;  /* slot: heads * state_size * head_dim */
    pm_tensor *out; /* [tokens, inner] */
} pm_mamba2_args;

/* The compressor of DeepSeek-V4 (2.3.1, 2.3.2): a row for every `ratio` tokens, of the tokens of window w
 *   row w = softmax(gate + position_bias) kv summed over the window, element by element; RMS norm; rope at position
 *     w * ratio; appended to the cache
 * With overlap kv and gate hold two halves, and a window is the first halves of the tokens before it and the second
 * halves of its own. Does not touch a row that no token completes. */
typedef struct pm_compress_args {
    const pm_tensor *kv, *gate;     /* [tokens, width], overlap: [tokens, 2 * width] */
    const pm_tensor *position_bias; /* [ratio, likewise] */
    const pm_tensor *norm;          /* [1, width] */
    const pm_rope *rope;
    float eps;
    int ratio, width;
    bool overlap;
    int rows;  /* slot: ratio, planes 1, width */
    int state; /* slot: 3 * width, overlap: 6 * width */
    int layer; /* for messages */
} pm_compress_args;

/* Manifold-constrained hyper-connections (Xie et al. 2026; DeepSeek-V4, 2.2): n parallel streams in place of a residual
 * one. hyper_in: the weights of a block from the streams, and what goes into it,
 *   pre | post | comb = fn (streams * rsqrt(mean(streams^2) + norm_eps))        over all n * hidden elements
 *   pre = sigmoid(scale[0] pre + base) + eps, post = 2 sigmoid(scale[1] post + base)             base likewise in parts
 *   comb = softmax of each row of (scale[2] comb + base), + eps; divided by (its column sums + eps);
 *     then iterations - 1 times by (its row sums + eps) and by (its column sums + eps)
 *   x = sum_j pre[j] streams[j]
 * With iterations 0 there is pre alone, as before a model's head. */
enum { PM_HYPER_STREAMS = 8 }; /* most n */

typedef struct pm_hyper_in_args {
    const pm_tensor *streams;      /* [tokens, n * hidden] */
    const pm_tensor *fn;           /* [(2 + n) n, n * hidden]; only pre: [n, n * hidden] */
    const pm_tensor *base, *scale; /* [1, (2 + n) n], [1, 3]; only pre: [1, n], [1, 1] */
    float norm_eps, eps;
    int n, hidden, iterations;
    pm_tensor *x;   /* [tokens, hidden] */
    pm_tensor *mix; /* [tokens, n + n * n]: post, comb; only pre: NULL */
} pm_hyper_in_args;

/* streams[k] = post[k] y + sum_j comb[j, k] streams[j] */
typedef struct pm_hyper_out_args {
    const pm_tensor *y;   /* [tokens, hidden] */
    const pm_tensor *mix; /* as hyper_in made it */
    int n, hidden;
    pm_tensor *streams; /* updated in place */
} pm_hyper_out_args;

/* Which experts a token goes to. A score is made of each expert's logit; the top_k best are chosen by score + bias,
 * ties to the lower index; their weights are the scores without the bias, divided by their sum when `normalise`, times
 * `scale`. Experts are combined in ascending index.
 *
 * With groups > 1 (DeepSeek-AI 2024, "DeepSeek-V3", 2.1.2) the experts are so many groups of neighbours, and those
 * outside the top_groups best compete with the score `masked`; a group's own is the sum of its group_best best biased
 * scores. */
typedef enum pm_route_kind {
    PM_ROUTE_SOFTMAX,      /* score = softmax over all experts */
    PM_ROUTE_SIGMOID,      /* sigmoid */
    PM_ROUTE_SQRT_SOFTPLUS /* sqrt(softplus) */
} pm_route_kind;

typedef struct pm_route {
    pm_route_kind kind;
    int experts, top_k;
    bool normalise;
    bool divide_one; /* one expert's weight too; softmax does so anyway */
    float scale;
    float epsilon; /* added to the sum that weights are divided by */
    int groups, top_groups, group_best;
    float masked;                   /* -INFINITY; mlx-lm has 0, which may win over a negative biased score */
    const pm_tensor *bias;          /* [1, experts] or NULL */
    const pm_tensor *token_experts; /* [vocab, top_k]: a token goes where its row says, whatever the scores; or NULL */
} pm_route;

/* Refuses numbers that cannot be routed by (PM_ERR_FORMAT, without a file's name). */
int pm_route_check(const pm_route *route, pm_error *err);

/* out = residual + sum_e weight_e mlp_e(n(x)) + sigmoid(shared_gate n(x)) * shared(n(x)), n the RMS norm, mlp(x) =
 * down(silu(min(gate x, limit)) * clamp(up x, -limit, limit)), without a gate down(max(up x, 0)^2). With latent_in and
 * latent_out the experts work on latent_in n(x), and their sum goes through latent_out (Nemotron-H). */
typedef struct pm_moe_args {
    const pm_tensor *x;        /* [tokens, hidden] */
    const pm_tensor *residual; /* NULL: 0 */
    pm_tensor *out;            /* may be x and residual */
    const pm_tensor *norm;     /* [1, hidden] */
    float eps;
    float limit; /* 0: none */
    pm_route route;
    const pm_weight *router;           /* [experts, hidden]; NULL: only the shared expert, a plain gated MLP */
    const pm_weight *gate, *up, *down; /* [experts] matrices [width, in], [width, in], [in, width]; in is hidden or
                                          latent; gate may be NULL */
    const pm_weight *latent_in, *latent_out; /* [latent, hidden], [hidden, latent]; or both NULL */
    const pm_weight *shared_gate_proj, *shared_up_proj, *shared_down_proj; /* NULL when there is no shared expert; the
                                                                              first also when it has no gate */
    const pm_weight *shared_expert_gate; /* [1, hidden]; NULL: the shared expert counts fully */
    int *expert_tokens;                  /* NULL, or [experts]: receives how many of the tokens went to each */
} pm_moe_args;

/* logits[i] = head norm(x[batch->outputs[i]]). Not finite: PM_ERR_NUMERIC. */
typedef struct pm_logits_args {
    const pm_tensor *x;    /* [tokens, hidden] */
    const pm_tensor *norm; /* [1, hidden] */
    float eps;
    const pm_weight *head; /* [vocab, hidden] */
    float *logits;         /* host memory, [n_outputs, vocab] */
} pm_logits_args;

/* ---- what a device can do ---- */

typedef struct pm_span {
    const void *data;
    size_t bytes;
} pm_span;

/* Multiply-adds times two a second of the instructions that matrices are multiplied with: those for integers,
 * divided by the passes that activations of the backend's precision take, and those for float weights. */
typedef struct pm_peak {
    int threads;
    double integer_ops, float_ops;
} pm_peak;

typedef struct pm_backend_ops {
    const char *name;
    void (*free)(pm_backend *backend);
    void (*describe)(const pm_backend *backend, char *out, size_t size); /* "cpu (avx2), 2 threads" */

    /* Makes a weight ready; refuses a format that this backend does not run (PM_ERR_UNSUPPORTED, message without a
     * tensor name: the caller adds it). */
    int (*weight_prepare)(pm_backend *backend, pm_weight *weight, pm_error *err);

    /* Brings n prepared weights to the device: one matrix, or all those of a module with one for each expert or head,
     * which operations take together. They stay until the backend is freed. NULL: there is nothing to bring. */
    int (*weights_load)(pm_backend *backend, pm_weight *weights, int n, pm_error *err);

    /* `init` (host, rows * cols) or NULL for zeros. */
    int (*tensor_new)(pm_backend *backend, int64_t rows, int64_t cols, const float *init, pm_tensor **out,
                      pm_error *err);
    void (*tensor_free)(pm_backend *backend, pm_tensor *tensor);
    int (*tensor_read)(pm_backend *backend, const pm_tensor *tensor, int64_t first_row, int64_t rows, float *out,
                       pm_error *err);

    /* Rows: attention and its kind append; fork gives a new handle with the first n rows, shared copy-on-write;
     * truncate cuts to n <= length. Freeing NULL is allowed. rows_bytes: memory of a cache with this many tokens, per
     * spec. */
    int (*rows_new)(pm_backend *backend, const pm_rows_spec *spec, pm_kv_type type, pm_rows **out, pm_error *err);
    int (*rows_fork)(pm_backend *backend, const pm_rows *rows, int64_t n, pm_rows **out, pm_error *err);
    void (*rows_truncate)(pm_backend *backend, pm_rows *rows, int64_t n);
    int64_t (*rows_length)(const pm_rows *rows);
    void (*rows_free)(pm_backend *backend, pm_rows *rows);
    uint64_t (*rows_bytes)(const pm_rows_spec *spec, pm_kv_type type, int64_t tokens);

    /* Bytes of all rows and states that there are, what forks share counted once. */
    uint64_t (*held)(const pm_backend *backend);

    /* Out of and into host memory, [n, planes] vectors of the cache's type, bit for bit: export copies the n rows from
     * `first` on, import appends n rows. */
    int (*rows_export)(pm_backend *backend, const pm_rows *rows, int64_t first, int64_t n, void *out, pm_error *err);
    int (*rows_import)(pm_backend *backend, pm_rows *rows, int64_t n, const void *data, pm_error *err);

    /* States: zero when new; copy overwrites `to` (same spec); export and import copy all [count] f32. */
    int (*state_new)(pm_backend *backend, const pm_state_spec *spec, pm_state **out, pm_error *err);
    void (*state_zero)(pm_backend *backend, pm_state *state);
    void (*state_copy)(pm_backend *backend, pm_state *to, const pm_state *from);
    void (*state_free)(pm_backend *backend, pm_state *state);
    int (*state_export)(pm_backend *backend, const pm_state *state, float *out, pm_error *err);
    int (*state_import)(pm_backend *backend, pm_state *state, const float *data, pm_error *err);

    /* Room for the choices of max_tokens tokens of a step, top_k rows each. indices_read: those of one token, [top_k];
     * returns how many there are. */
    int (*indices_new)(pm_backend *backend, int max_tokens, int top_k, pm_indices **out, pm_error *err);
    int (*indices_read)(const pm_indices *indices, int token, int32_t *out);
    void (*indices_free)(pm_backend *backend, pm_indices *indices);

    int (*embed)(pm_backend *backend, const pm_batch *batch, const pm_embed_args *args, pm_error *err);
    int (*linear)(pm_backend *backend, const pm_batch *batch, const pm_linear_args *args, pm_error *err);
    int (*attention)(pm_backend *backend, const pm_batch *batch, const pm_attention_args *args, pm_error *err);
    int (*heads)(pm_backend *backend, const pm_batch *batch, const pm_heads_args *args, pm_error *err);
    int (*sparse_index)(pm_backend *backend, const pm_batch *batch, const pm_sparse_index_args *args, pm_error *err);
    int (*latent_attention)(pm_backend *backend, const pm_batch *batch, const pm_latent_attention_args *args,
                            pm_error *err);
    int (*gated_delta)(pm_backend *backend, const pm_batch *batch, const pm_gated_delta_args *args, pm_error *err);
    int (*short_conv)(pm_backend *backend, const pm_batch *batch, const pm_short_conv_args *args, pm_error *err);
    int (*mamba2)(pm_backend *backend, const pm_batch *batch, const pm_mamba2_args *args, pm_error *err);
    int (*compress)(pm_backend *backend, const pm_batch *batch, const pm_compress_args *args, pm_error *err);
    int (*hyper_in)(pm_backend *backend, const pm_batch *batch, const pm_hyper_in_args *args, pm_error *err);
    int (*hyper_out)(pm_backend *backend, const pm_batch *batch, const pm_hyper_out_args *args, pm_error *err);
    int (*moe)(pm_backend *backend, const pm_batch *batch, const pm_moe_args *args, pm_error *err);
    int (*logits)(pm_backend *backend, const pm_batch *batch, const pm_logits_args *args, pm_error *err);

    /* Yardsticks, on all the threads that operations use. measure_read reads every byte once, as weights are read, and
     * does nothing else; measure_peak takes a few milliseconds. NULL: the backend has none. */
    void (*measure_read)(pm_backend *backend, const pm_span *spans, size_t n);
    void (*measure_peak)(pm_backend *backend, pm_peak *out);
} pm_backend_ops;

/* The first member of every backend. */
struct pm_backend {
    const pm_backend_ops *ops;
};

/* The CPU, with `threads` workers (0: physical cores) and the given instruction set (PM_ERR_UNSUPPORTED when the
 * processor lacks it). */
int pm_backend_cpu_new(pm_backend **out, int threads, pm_simd simd, pm_precision precision, pm_error *err);

/* MLX on the processor or on the GPU (PM_ERR_UNSUPPORTED when it finds none); only where it is built in. */
int pm_backend_mlx_new(pm_backend **out, bool gpu, pm_error *err);

/* The backend that the options ask for, by their device. Refuses those that it does not have. */
int pm_backend_open(pm_backend **out, const pm_engine_options *options, pm_error *err);

#endif
