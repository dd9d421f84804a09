/* What an operation costs at the least: a pure function of its batch and arguments.
 *
 * Bytes are those that have to come from memory: parameters as they are stored (scales and biases included; norms and
 * the like as the f32 tensors that they became), rows of the cache in their type, states. Rows and states that are
 * written count once for that. Activations do not count: they are small and stay in the processor's caches. What
 * several tokens of a batch share (a matrix, an expert, the rows of a sequence) counts once.
 *
 * Arithmetic is multiply-adds times two, of matrices, convolutions, attention and the delta rule; norms, activations,
 * exponentials and the quantising of inputs do not count. It is told apart by the instructions that carry it out:
 * integers for weights that are small integers times a scale (affine, mxfp4, nvfp4), floats for the rest. */
#ifndef PM_COST_H
#define PM_COST_H

#include "backend/backend.h"

typedef struct pm_cost {
    uint64_t bytes, integer_ops, float_ops;
} pm_cost;

pm_cost pm_cost_embed(const pm_batch *batch, const pm_embed_args *args);
pm_cost pm_cost_linear(const pm_batch *batch, const pm_linear_args *args);
pm_cost pm_cost_attention(const pm_batch *batch, const pm_attention_args *args, pm_kv_type type);
pm_cost pm_cost_heads(const pm_batch *batch, const pm_heads_args *args);
pm_cost pm_cost_sparse_index(const pm_batch *batch, const pm_sparse_index_args *args, pm_kv_type type);
pm_cost pm_cost_latent_attention(const pm_batch *batch, const pm_latent_attention_args *args, pm_kv_type type);
pm_cost pm_cost_gated_delta(const pm_batch *batch, const pm_gated_delta_args *args);
pm_cost pm_cost_short_conv(const pm_batch *batch, const pm_short_conv_args *args);
pm_cost pm_cost_mamba2(const pm_batch *batch, const pm_mamba2_args *args);
pm_cost pm_cost_compress(const pm_batch *batch, const pm_compress_args *args, pm_kv_type type);
pm_cost pm_cost_hyper_in(const pm_batch *batch, const pm_hyper_in_args *args);
pm_cost pm_cost_hyper_out(const pm_batch *batch, const pm_hyper_out_args *args);
pm_cost pm_cost_moe(const pm_batch *batch, const pm_moe_args *args); /* after the operation: args->expert_tokens */
pm_cost pm_cost_logits(const pm_batch *batch, const pm_logits_args *args);

#endif
