/* The step of DeepSeek-V4. Sections are those of its paper. */
#include "model/deepseek_v4.h"

#include <math.h>

/* What goes into a block, and the weights that hyper_out needs (2.2). */
static int hyper_in(pm_model *model, const pm_batch *batch, const pm_v4_hyper *hyper, pm_error *err)
{
    pm_v4 *v = model->impl;
    bool head = hyper == &v->hc_head;
    pm_hyper_in_args args = {
        .streams = v->streams,
        .fn = hyper->fn,
        .base = hyper->base,
        .scale = hyper->scale,
        .norm_eps = v->eps,
        .eps = v->hc_eps,
        .n = v->dims[PM_V4_MULT],
        .hidden = v->dims[PM_V4_HIDDEN],
        .iterations = head ? 0 : v->iterations,
        .x = v->x,
        .mix = head ? NULL : v->mix,
    };
    return model->backend->ops->hyper_in(model->backend, batch, &args, err);
}

/* What a block made goes back into the streams. */
static int hyper_out(pm_model *model, const pm_batch *batch, pm_error *err)
{
    pm_v4 *v = model->impl;
    pm_hyper_out_args args = {v->y, v->mix, v->dims[PM_V4_MULT], v->dims[PM_V4_HIDDEN], v->streams};
    return model->backend->ops->hyper_out(model->backend, batch, &args, err);
}

/* All projections of a layer: of the block's input, then of the query's latent. */
static int project(pm_model *model, const pm_batch *batch, const pm_v4_layer *l, pm_error *err)
{
    pm_v4 *v = model->impl;
    bool heavy = l->kind & PM_V4_HEAVY, sparse = l->kind & PM_V4_SPARSE;
    pm_linear_args in = {
        .x = v->x,
        .norm = l->input_layernorm,
        .eps = v->eps,
        .n = sparse  ? 7
             : heavy ? 4
                     : 2,
        .w = (const pm_weight *[]){&l->self_attn.q_a_proj, &l->self_attn.kv_proj, &l->self_attn.compressor.kv_proj,
                                   &l->self_attn.compressor.gate_proj, &l->self_attn.indexer.compressor.kv_proj,
                                   &l->self_attn.indexer.compressor.gate_proj, &l->self_attn.indexer.weights_proj},
        .y = (pm_tensor *[]){v->q_a, v->kv, sparse ? v->sparse_kv : v->heavy_kv,
                             sparse ? v->sparse_gate : v->heavy_gate, v->index_kv, v->index_gate, v->index_weights},
    };
    pm_linear_args queries = {
        .x = v->q_a,
        .norm = l->self_attn.q_a_norm,
        .eps = v->eps,
        .n = sparse ? 2 : 1,
        .w = (const pm_weight *[]){&l->self_attn.q_b_proj, &l->self_attn.indexer.q_b_proj},
        .y = (pm_tensor *[]){v->q, v->index_q},
    };
    const pm_backend_ops *op = model->backend->ops;
    int status = op->linear(model->backend, batch, &in, err);
    return status ? status : op->linear(model->backend, batch, &queries, err);
}

/* Rows of several tokens, of the layer or of its indexer (2.3.1, 2.3.2). */
static int compress(pm_model *model, const pm_batch *batch, const pm_v4_layer *l, const pm_v4_compressor *c,
                    pm_error *err)
{
    pm_v4 *v = model->impl;
    bool sparse = l->kind & PM_V4_SPARSE, index = c == &l->self_attn.indexer.compressor;
    pm_compress_args args = {
        .kv = index    ? v->index_kv
              : sparse ? v->sparse_kv
                       : v->heavy_kv,
        .gate = index    ? v->index_gate
                : sparse ? v->sparse_gate
                         : v->heavy_gate,
        .position_bias = c->position_bias,
        .norm = c->kv_norm,
        .rope = index ? &v->index : &v->compress,
        .eps = v->eps,
        .ratio = v->dims[sparse ? PM_V4_SPARSE_RATIO : PM_V4_HEAVY_RATIO],
        .width = v->dims[index ? PM_V4_INDEX_HEAD : PM_V4_HEAD],
        .overlap = sparse,
        .rows = c->rows,
        .state = c->state,
        .layer = (int)(l - v->layers),
    };
    return model->backend->ops->compress(model->backend, batch, &args, err);
}

/* Which of the compressed rows each token attends to (2.3.1). */
static int choose(pm_model *model, const pm_batch *batch, const pm_v4_layer *l, pm_error *err)
{
    pm_v4 *v = model->impl;
    pm_sparse_index_args args = {
        .q = v->index_q,
        .weights = v->index_weights,
        .rope = &v->index,
        .eps = v->eps,
        .scale = 1.0f / sqrtf((float)v->dims[PM_V4_INDEX_HEAD]),
        .weight_scale = 1.0f / sqrtf((float)v->dims[PM_V4_INDEX_HEADS]),
        .heads = v->dims[PM_V4_INDEX_HEADS],
        .head_dim = v->dims[PM_V4_INDEX_HEAD],
        .top_k = v->index_topk,
        .rows = l->self_attn.indexer.compressor.rows,
        .ratio = v->dims[PM_V4_SPARSE_RATIO],
        .layer = (int)(l - v->layers),
        .out = model->chosen,
    };
    return model->backend->ops->sparse_index(model->backend, batch, &args, err);
}

/* Over the window and the compressed rows, and through both output projections (2.3). */
static int attend(pm_model *model, const pm_batch *batch, const pm_v4_layer *l, pm_error *err)
{
    pm_v4 *v = model->impl;
    const pm_backend_ops *op = model->backend->ops;
    bool compressed = l->kind & PM_V4_COMPRESSED, sparse = l->kind & PM_V4_SPARSE;
    pm_latent_attention_args args = {
        .q = v->q,
        .q_normed = true,
        .kv = v->kv,
        .kv_norm = l->self_attn.kv_norm,
        .rope = compressed ? &v->compress : &v->main,
        .sinks = l->self_attn.sinks,
        .eps = v->eps,
        .scale = 1.0f / sqrtf((float)v->dims[PM_V4_HEAD]),
        .heads = v->dims[PM_V4_HEADS],
        .width = v->dims[PM_V4_HEAD],
        .value_width = v->dims[PM_V4_HEAD],
        .window = v->window,
        .rows = l->rows,
        .blocks = l->self_attn.compressor.rows,
        .ratio = compressed ? v->dims[sparse ? PM_V4_SPARSE_RATIO : PM_V4_HEAVY_RATIO] : 0,
        .chosen = sparse ? model->chosen : NULL,
        .top_k = v->index_topk,
        .unrotate = true,
        .layer = (int)(l - v->layers),
        .out = v->attended,
    };
    pm_heads_args groups = {.x = v->attended,
                            .x_stride = v->dims[PM_V4_GROUP],
                            .w = l->self_attn.o_a_proj.w,
                            .heads = v->groups,
                            .y = v->grouped};
    pm_linear_args out = {.x = v->grouped, .n = 1, .w = (const pm_weight *[]){&l->self_attn.o_b_proj}, .y = &v->y};
    int status = op->latent_attention(model->backend, batch, &args, err);
    if (status == PM_OK)
        status = op->heads(model->backend, batch, &groups, err);
    return status ? status : op->linear(model->backend, batch, &out, err);
}

/* The first half of a layer. Rows are compressed before anything attends: a token sees the window that it completes. */
static int attention(pm_model *model, const pm_batch *batch, const pm_v4_layer *l, pm_error *err)
{
    int status = hyper_in(model, batch, &l->attn_hc, err);
    if (status == PM_OK)
        status = project(model, batch, l, err);
    if (status == PM_OK && (l->kind & PM_V4_COMPRESSED))
        status = compress(model, batch, l, &l->self_attn.compressor, err);
    if (status == PM_OK && (l->kind & PM_V4_SPARSE))
        status = compress(model, batch, l, &l->self_attn.indexer.compressor, err);
    if (status == PM_OK && (l->kind & PM_V4_SPARSE))
        status = choose(model, batch, l, err);
    if (status == PM_OK)
        status = attend(model, batch, l, err);
    return status ? status : hyper_out(model, batch, err);
}

/* The second half (2.1). */
static int experts(pm_model *model, const pm_batch *batch, const pm_v4_layer *l, pm_error *err)
{
    pm_v4 *v = model->impl;
    pm_moe_args args = {
        .x = v->x,
        .out = v->y,
        .norm = l->post_attention_layernorm,
        .eps = v->eps,
        .limit = v->limit,
        .route = v->route,
        .router = &l->mlp.gate,
        .gate = l->mlp.gate_proj,
        .up = l->mlp.up_proj,
        .down = l->mlp.down_proj,
        .shared_gate_proj = &l->mlp.shared_gate_proj,
        .shared_up_proj = &l->mlp.shared_up_proj,
        .shared_down_proj = &l->mlp.shared_down_proj,
    };
    args.route.bias = l->mlp.e_score_correction_bias;
    args.route.token_experts = l->mlp.tid2eid;
    int status = hyper_in(model, batch, &l->ffn_hc, err);
    if (status == PM_OK)
        status = model->backend->ops->moe(model->backend, batch, &args, err);
    return status ? status : hyper_out(model, batch, err);
}

int pm_v4_step(pm_model *model, const pm_batch *batch, float *logits, pm_error *err)
{
    pm_v4 *v = model->impl;
    const pm_backend_ops *op = model->backend->ops;
    pm_embed_args embed = {&v->embed_tokens, v->streams, v->dims[PM_V4_MULT]};
    int status = op->embed(model->backend, batch, &embed, err);
    for (int i = 0; status == PM_OK && i < model->layers; i++) {
        status = attention(model, batch, &v->layers[i], err);
        if (status == PM_OK)
            status = experts(model, batch, &v->layers[i], err);
    }
    if (status != PM_OK || !batch->n_outputs)
        return status;
    status = hyper_in(model, batch, &v->hc_head, err);
    if (status != PM_OK)
        return status;
    return op->logits(model->backend, batch, &(pm_logits_args){v->x, v->norm, v->eps, &v->lm_head, logits}, err);
}
