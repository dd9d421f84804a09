/* The step of pre-norm decoders. */
#include "model/decoder.h"

#include <math.h>

int pm_decoder_in(pm_model *model, const pm_batch *batch, const pm_decoder_layer *l, int n, const pm_weight *const *w,
                  pm_tensor *const *y, pm_error *err)
{
    pm_decoder *d = model->impl;
    pm_linear_args args = {.x = d->x, .norm = l->input_layernorm, .eps = d->eps, .n = n, .w = w, .y = y};
    return model->backend->ops->linear(model->backend, batch, &args, err);
}

int pm_decoder_out(pm_model *model, const pm_batch *batch, const pm_weight *w, const pm_tensor *from, pm_error *err)
{
    pm_decoder *d = model->impl;
    pm_linear_args args = {.x = from, .n = 1, .w = &w, .y = &d->x, .residual = d->x};
    return model->backend->ops->linear(model->backend, batch, &args, err);
}

/* x += o_proj(attention(q_proj, k_proj, v_proj of input_layernorm(x))) */
static int attention(pm_model *model, const pm_batch *batch, const pm_decoder_layer *l, pm_error *err)
{
    pm_decoder *d = model->impl;
    const pm_backend_ops *op = model->backend->ops;
    const pm_weight *const in[] = {&l->self_attn.q_proj, &l->self_attn.k_proj, &l->self_attn.v_proj};
    pm_tensor *const to[] = {d->q, d->k, d->v};
    pm_attention_args attend = {
        .q = d->q,
        .k = d->k,
        .v = d->v,
        .q_norm = l->self_attn.q_norm,
        .k_norm = l->self_attn.k_norm,
        .rope = d->spec->one_block ? NULL : &d->rope,
        .eps = d->eps,
        .scale = 1.0f / sqrtf((float)d->dims[PM_D_HEAD]),
        .heads = d->heads,
        .kv_heads = d->kv_heads,
        .head_dim = d->dims[PM_D_HEAD],
        .gated = d->spec->gated_attention,
        .window = l->kind & PM_WINDOW ? d->window : 0,
        .rows = l->rows,
        .layer = (int)(l - d->layers),
        .out = d->attended,
    };
    int status = pm_decoder_in(model, batch, l, 3, in, to, err);
    if (status == PM_OK)
        status = op->attention(model->backend, batch, &attend, err);
    return status ? status : pm_decoder_out(model, batch, &l->self_attn.o_proj, d->attended, err);
}

/* x += out_proj(gated delta rule(in_proj_* of input_layernorm(x))) */
static int delta_net(pm_model *model, const pm_batch *batch, const pm_decoder_layer *l, pm_error *err)
{
    pm_decoder *d = model->impl;
    const pm_backend_ops *op = model->backend->ops;
    bool interleaved = l->kind & PM_DELTA_INTERLEAVED;
    const pm_weight *const in[] = {&l->linear_attn.in_proj_qkv, &l->linear_attn.in_proj_b, &l->linear_attn.in_proj_a,
                                   &l->linear_attn.in_proj_z};
    pm_tensor *const to[] = {d->qkv, d->b, d->a, d->z};
    pm_gated_delta_args delta = {
        .interleaved = interleaved,
        .qkv = d->qkv,
        .z = d->z,
        .a = d->a,
        .b = d->b,
        .conv = l->linear_attn.conv1d,
        .A_log = l->linear_attn.A_log,
        .dt_bias = l->linear_attn.dt_bias,
        .norm = l->linear_attn.norm,
        .eps = d->eps,
        .key_heads = d->key_heads,
        .value_heads = d->dims[PM_D_VALUE_HEADS],
        .key_dim = d->key_dim,
        .value_dim = d->dims[PM_D_VALUE_DIM],
        .kernel = d->dims[PM_D_KERNEL],
        .conv_state = l->states,
        .delta_state = l->states + 1,
        .out = d->mixed,
    };
    int status = pm_decoder_in(model, batch, l, interleaved ? 2 : 4, in, to, err);
    if (status == PM_OK)
        status = op->gated_delta(model->backend, batch, &delta, err);
    return status ? status : pm_decoder_out(model, batch, &l->linear_attn.out_proj, d->mixed, err);
}

/* x += out_proj(gated convolution(in_proj of input_layernorm(x))) */
static int short_conv(pm_model *model, const pm_batch *batch, const pm_decoder_layer *l, pm_error *err)
{
    pm_decoder *d = model->impl;
    const pm_backend_ops *op = model->backend->ops;
    const pm_weight *const in[] = {&l->conv.in_proj};
    pm_short_conv_args conv = {.bcx = d->bcx,
                               .conv = l->conv.conv,
                               .bias = l->conv.bias,
                               .width = d->dims[PM_D_HIDDEN],
                               .kernel = d->dims[PM_D_KERNEL],
                               .conv_state = l->states,
                               .out = d->convolved};
    int status = pm_decoder_in(model, batch, l, 1, in, &d->bcx, err);
    if (status == PM_OK)
        status = op->short_conv(model->backend, batch, &conv, err);
    return status ? status : pm_decoder_out(model, batch, &l->conv.out_proj, d->convolved, err);
}

/* x += experts(post_attention_layernorm(x)), in layers of one block of their norm; a plain MLP is a shared expert
 * without routed ones */
static int feed_forward(pm_model *model, const pm_batch *batch, const pm_decoder_layer *l, pm_error *err)
{
    pm_decoder *d = model->impl;
    bool gated = !d->spec->one_block, routed = l->kind & PM_MOE, latent = l->kind & PM_MOE_LATENT;
    bool shared = l->kind & (PM_SHARED_EXPERT | PM_SHARED_EXPERTS | PM_MLP);
    pm_moe_args args = {
        .x = d->x,
        .residual = d->x,
        .out = d->x,
        .norm = l->kind & PM_TWO_BLOCKS ? l->post_attention_layernorm : l->input_layernorm,
        .eps = d->eps,
        .route = d->route,
        .router = routed ? &l->mlp.router : NULL,
        .gate = gated ? l->mlp.gate_proj : NULL,
        .up = l->mlp.up_proj,
        .down = l->mlp.down_proj,
        .latent_in = latent ? &l->mlp.fc1_latent_proj : NULL,
        .latent_out = latent ? &l->mlp.fc2_latent_proj : NULL,
        .shared_gate_proj = shared && gated ? &l->mlp.shared_gate_proj : NULL,
        .shared_up_proj = shared ? &l->mlp.shared_up_proj : NULL,
        .shared_down_proj = shared ? &l->mlp.shared_down_proj : NULL,
        .shared_expert_gate = l->kind & PM_SHARED_EXPERT ? &l->mlp.shared_expert_gate : NULL,
    };
    args.route.bias = l->mlp.e_score_correction_bias;
    return model->backend->ops->moe(model->backend, batch, &args, err);
}

/* The blocks that a layer may have, in the order in which they come. */
static const struct {
    unsigned kind;
    int (*step)(pm_model *model, const pm_batch *batch, const pm_decoder_layer *l, pm_error *err);
} blocks[] = {
    {PM_ATTENTION, attention},   {PM_LATENT, pm_latent_step}, {PM_DELTA, delta_net},
    {PM_SHORT_CONV, short_conv}, {PM_MAMBA, pm_mamba_step},   {PM_MLP | PM_MOE, feed_forward},
};

int pm_decoder_step(pm_model *model, const pm_batch *batch, float *logits, pm_error *err)
{
    pm_decoder *d = model->impl;
    const pm_backend_ops *op = model->backend->ops;
    int status = op->embed(model->backend, batch, &(pm_embed_args){.weight = &d->embed_tokens, .y = d->x}, err);
    for (int i = 0; status == PM_OK && i < model->layers; i++) {
        const pm_decoder_layer *l = &d->layers[i];
        for (size_t k = 0; status == PM_OK && k < PM_COUNT(blocks); k++)
            if (l->kind & blocks[k].kind)
                status = blocks[k].step(model, batch, l, err);
    }
    if (status != PM_OK || !batch->n_outputs)
        return status;
    return op->logits(model->backend, batch, &(pm_logits_args){d->x, d->norm, d->eps, &d->lm_head, logits}, err);
}
