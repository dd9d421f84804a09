/* Multi-head latent attention (DeepSeek-V2, section 2.1) and its sparse index (DeepSeek-V3.2, section 2.1), a mixer of
 * pre-norm decoders.
 *
 * A row of the cache is a token's latent with the rope part of its key. Queries are turned into the latents' space by
 * the first rows of each head of kv_b_proj, outputs back by the rest of them, in prefill as in decoding, so that any
 * chunking gives the same bits. */
#include "model/decoder.h"

#include <math.h>

#define TOP(member) offsetof(pm_decoder, member)
#define IN(member)  offsetof(pm_decoder_layer, self_attn.latent.member)
#define DIM(i)      (offsetof(pm_decoder, dims) + (i) * sizeof(int))

static const float LATENT_EPS = 1e-6f; /* of the norms here, whatever rms_norm_eps says, in both references */

/* clang-format off */
const pm_expect pm_latent_table[] = {
    {"self_attn.q_a_proj.bias", PM_EXPECT_BIAS, PM_D_ONE, PM_D_Q_LORA, IN(q_a_proj.bias), PM_Q_LATENT_BIAS, 0},
    {"self_attn.kv_a_proj_with_mqa.bias", PM_EXPECT_BIAS, PM_D_ONE, PM_D_KV_ROW, IN(kv_a_proj_with_mqa.bias), PM_LATENT_BIAS, 0},
    {"self_attn.o_proj.bias", PM_EXPECT_BIAS, PM_D_ONE, PM_D_HIDDEN, offsetof(pm_decoder_layer, self_attn.o_proj.bias), PM_LATENT_BIAS, 0},
    {"self_attn.q_proj", PM_EXPECT_MATRIX, PM_D_QK, PM_D_HIDDEN, IN(q_b_proj), PM_Q_WHOLE, 0},
    {"self_attn.q_a_proj", PM_EXPECT_MATRIX, PM_D_Q_LORA, PM_D_HIDDEN, IN(q_a_proj), PM_Q_LATENT, 0},
    {"self_attn.q_a_layernorm.weight", PM_EXPECT_VECTOR, PM_D_ONE, PM_D_Q_LORA, IN(q_a_layernorm), PM_Q_LATENT, 0},
    {"self_attn.q_b_proj", PM_EXPECT_MATRIX, PM_D_QK, PM_D_Q_LORA, IN(q_b_proj), PM_Q_LATENT, 0},
    {"self_attn.kv_a_proj_with_mqa", PM_EXPECT_MATRIX, PM_D_KV_ROW, PM_D_HIDDEN, IN(kv_a_proj_with_mqa), PM_LATENT, 0},
    {"self_attn.kv_a_layernorm.weight", PM_EXPECT_VECTOR, PM_D_ONE, PM_D_KV_LORA, IN(kv_a_layernorm), PM_LATENT, 0},
    {"self_attn.embed_q", PM_EXPECT_HEADS, PM_D_KV_LORA, PM_D_NOPE, IN(embed_q), PM_LATENT, 0},
    {"self_attn.unembed_out", PM_EXPECT_HEADS, PM_D_V_HEAD, PM_D_KV_LORA, IN(unembed_out), PM_LATENT, 0},
    {"self_attn.o_proj", PM_EXPECT_MATRIX, PM_D_HIDDEN, PM_D_V, offsetof(pm_decoder_layer, self_attn.o_proj), PM_LATENT, 0},
    {"self_attn.rotary_emb.inv_freq", PM_EXPECT_IGNORED, PM_D_ONE, PM_D_PAIRS, 0, PM_LATENT, PM_EXPECT_OPTIONAL},

    {"self_attn.indexer.wq_b", PM_EXPECT_MATRIX, PM_D_INDEX_Q, PM_D_Q_LORA, IN(indexer.wq_b), PM_INDEXER, 0},
    {"self_attn.indexer.wk", PM_EXPECT_MATRIX, PM_D_INDEX_HEAD, PM_D_HIDDEN, IN(indexer.wk), PM_INDEXER, 0},
    {"self_attn.indexer.k_norm.weight", PM_EXPECT_VECTOR, PM_D_ONE, PM_D_INDEX_HEAD, IN(indexer.k_norm), PM_INDEXER, 0},
    {"self_attn.indexer.k_norm.bias", PM_EXPECT_VECTOR, PM_D_ONE, PM_D_INDEX_HEAD, IN(indexer.k_norm_bias), PM_INDEXER, 0},
    {"self_attn.indexer.weights_proj", PM_EXPECT_MATRIX, PM_D_INDEX_HEADS, PM_D_HIDDEN, IN(indexer.weights_proj), PM_INDEXER, 0},
};
/* clang-format on */
const size_t pm_latent_rows = PM_COUNT(pm_latent_table);

const pm_split pm_latent_splits[] = {
    {"self_attn.embed_q", "self_attn.kv_b_proj", PM_D_ZERO, PM_D_KV_HEAD, true},
    {"self_attn.unembed_out", "self_attn.kv_b_proj", PM_D_NOPE, PM_D_KV_HEAD, false},
    {NULL, NULL, 0, 0, false},
};

int pm_latent_config(pm_model *model, pm_decoder *d, pm_error *err)
{
    enum { MOST = 1 << 16, MOST_HEADS = 1 << 12 };
    static const struct {
        const char *field;
        size_t out;
        int max;
        unsigned when;
    } fields[] = {
        {"num_attention_heads", TOP(heads), MOST_HEADS, PM_LATENT},
        {"q_lora_rank", DIM(PM_D_Q_LORA), MOST, PM_Q_LATENT},
        {"kv_lora_rank", DIM(PM_D_KV_LORA), MOST, PM_LATENT},
        {"qk_nope_head_dim", DIM(PM_D_NOPE), MOST_HEADS, PM_LATENT},
        {"qk_rope_head_dim", TOP(rope_dim), MOST_HEADS, PM_LATENT},
        {"v_head_dim", DIM(PM_D_V_HEAD), MOST_HEADS, PM_LATENT},
        {"index_n_heads", DIM(PM_D_INDEX_HEADS), MOST_HEADS, PM_INDEXER},
        {"index_head_dim", DIM(PM_D_INDEX_HEAD), MOST_HEADS, PM_INDEXER},
        {"index_topk", TOP(index_topk), 1 << 20, PM_INDEXER},
    };
    const pm_config *config = model->config;
    int status = PM_OK, kv_heads;
    float of_scores = 1.0f;
    for (size_t i = 0; status == PM_OK && i < PM_COUNT(fields); i++)
        if (fields[i].when & d->kinds)
            status = pm_config_int(config, fields[i].field, 1, fields[i].max, (int *)((char *)d + fields[i].out), err);
    if (status == PM_OK)
        status = pm_config_int_or(config, "num_key_value_heads", 1, MOST_HEADS, d->heads, &kv_heads, err);
    if (status == PM_OK && kv_heads != d->heads)
        status =
            pm_fail(err, PM_ERR_UNSUPPORTED,
                    "%s: family '%s' with num_key_value_heads %d that is not num_attention_heads %d is not supported",
                    config->path, model->model_type, kv_heads, d->heads);
    if (status == PM_OK && (d->kinds & PM_INDEXER) && d->dims[PM_D_INDEX_HEAD] < d->rope_dim)
        status = pm_fail(err, PM_ERR_FORMAT, "%s: index_head_dim %d is less than qk_rope_head_dim %d", config->path,
                         d->dims[PM_D_INDEX_HEAD], d->rope_dim);
    if (status == PM_OK)
        status = pm_rope_read(config, d->rope_dim, 1.0, d->spec->rope_theta, &model->arena, &d->rope, err);
    if (status == PM_OK)
        status = pm_rope_mscale(config, &d->rope.scale, &of_scores, err);
    if (status == PM_OK)
        status = pm_config_bool_or(config, "rope_interleave", true, &d->rope.interleaved, err);
    d->index_rope = d->rope;
    if (status == PM_OK)
        status = pm_config_bool_or(config, "indexer_rope_interleave", d->spec->interleaved_index,
                                   &d->index_rope.interleaved, err);
    if (status != PM_OK)
        return status;
    int *dims = d->dims, query = dims[PM_D_NOPE] + d->rope_dim;
    d->rope.first = dims[PM_D_KV_LORA];
    d->score_scale = of_scores / sqrtf((float)query);
    dims[PM_D_PAIRS] = d->rope.pairs;
    dims[PM_D_QK] = d->heads * query;
    dims[PM_D_KV_ROW] = dims[PM_D_KV_LORA] + d->rope_dim;
    dims[PM_D_KV_HEAD] = dims[PM_D_NOPE] + dims[PM_D_V_HEAD];
    dims[PM_D_V] = d->heads * dims[PM_D_V_HEAD];
    dims[PM_D_LATENTS] = d->heads * dims[PM_D_KV_LORA];
    dims[PM_D_INDEX_Q] = dims[PM_D_INDEX_HEADS] * dims[PM_D_INDEX_HEAD];
    return PM_OK;
}

void pm_latent_plan(pm_decoder_layer *l, const pm_decoder *d, pm_cache_spec *cache, pm_rows_spec *rows)
{
    l->rows = cache->n_rows++;
    rows[l->rows] = (pm_rows_spec){.ratio = 1, .planes = 1, .width = d->dims[PM_D_KV_ROW]};
    if (l->kind & PM_INDEXER)
        rows[cache->n_rows++] = (pm_rows_spec){.ratio = 1, .planes = 1, .width = d->dims[PM_D_INDEX_HEAD]};
}

/* What the projections make of input_layernorm(x): query latents (or queries), the cache's row, and the index's keys
 * and weights; then what the query latents give. */
static int project(pm_model *model, const pm_batch *batch, const pm_decoder_layer *l, pm_error *err)
{
    pm_decoder *d = model->impl;
    const pm_backend_ops *op = model->backend->ops;
    bool latent = l->kind & PM_Q_LATENT, index = l->kind & PM_INDEXER;
    const pm_weight *const in[] = {latent ? &l->self_attn.latent.q_a_proj : &l->self_attn.latent.q_b_proj,
                                   &l->self_attn.latent.kv_a_proj_with_mqa, &l->self_attn.latent.indexer.wk,
                                   &l->self_attn.latent.indexer.weights_proj};
    pm_tensor *const to[] = {latent ? d->q_latent : d->q, d->kv_row, d->index_k, d->index_weights};
    pm_linear_args second = {
        .x = d->q_latent,
        .norm = l->self_attn.latent.q_a_layernorm,
        .eps = LATENT_EPS,
        .n = index ? 2 : 1,
        .w = (const pm_weight *[]){&l->self_attn.latent.q_b_proj, &l->self_attn.latent.indexer.wq_b},
        .y = (pm_tensor *[]){d->q, d->index_q},
    };
    int status = pm_decoder_in(model, batch, l, index ? 4 : 2, in, to, err);
    return status || !latent ? status : op->linear(model->backend, batch, &second, err);
}

/* The rows that this layer's tokens attend to, which later layers may share. */
static int choose(pm_model *model, const pm_batch *batch, const pm_decoder_layer *l, pm_error *err)
{
    pm_decoder *d = model->impl;
    pm_sparse_index_args args = {
        .q = d->index_q,
        .k = d->index_k,
        .k_norm = l->self_attn.latent.indexer.k_norm,
        .k_norm_bias = l->self_attn.latent.indexer.k_norm_bias,
        .weights = d->index_weights,
        .rope = &d->index_rope,
        .eps = LATENT_EPS,
        .scale = 1.0f / sqrtf((float)d->dims[PM_D_INDEX_HEAD]),
        .weight_scale = 1.0f / sqrtf((float)d->dims[PM_D_INDEX_HEADS]),
        .heads = d->dims[PM_D_INDEX_HEADS],
        .head_dim = d->dims[PM_D_INDEX_HEAD],
        .top_k = d->index_topk,
        .rows = l->rows + 1,
        .layer = (int)(l - d->layers),
        .out = model->chosen,
    };
    return model->backend->ops->sparse_index(model->backend, batch, &args, err);
}

int pm_latent_step(pm_model *model, const pm_batch *batch, const pm_decoder_layer *l, pm_error *err)
{
    pm_decoder *d = model->impl;
    const pm_backend_ops *op = model->backend->ops;
    int query = d->dims[PM_D_NOPE] + d->rope_dim;
    pm_heads_args embed = {
        .x = d->q,
        .x_stride = query,
        .w = l->self_attn.latent.embed_q.w,
        .heads = d->heads,
        .transposed = l->self_attn.latent.embed_q.transposed,
        .y = d->latents,
    };
    pm_latent_attention_args attend = {
        .q = d->latents,
        .q_rope = d->q,
        .q_rope_first = d->dims[PM_D_NOPE],
        .q_rope_stride = query,
        .kv = d->kv_row,
        .kv_norm = l->self_attn.latent.kv_a_layernorm,
        .rope = &d->rope,
        .eps = LATENT_EPS,
        .scale = d->score_scale,
        .heads = d->heads,
        .width = d->dims[PM_D_KV_ROW],
        .value_width = d->dims[PM_D_KV_LORA],
        .rows = l->rows,
        .chosen = l->kind & PM_SPARSE ? model->chosen : NULL,
        .top_k = d->index_topk,
        .layer = (int)(l - d->layers),
        .out = d->mixed_latents,
    };
    pm_heads_args unembed = {
        .x = d->mixed_latents,
        .x_stride = d->dims[PM_D_KV_LORA],
        .w = l->self_attn.latent.unembed_out.w,
        .heads = d->heads,
        .transposed = l->self_attn.latent.unembed_out.transposed,
        .y = d->attended,
    };
    int status = project(model, batch, l, err);
    if (status == PM_OK)
        status = op->heads(model->backend, batch, &embed, err);
    if (status == PM_OK && (l->kind & PM_INDEXER))
        status = choose(model, batch, l, err);
    if (status == PM_OK)
        status = op->latent_attention(model->backend, batch, &attend, err);
    if (status == PM_OK)
        status = op->heads(model->backend, batch, &unembed, err);
    return status ? status : pm_decoder_out(model, batch, &l->self_attn.o_proj, d->attended, err);
}
