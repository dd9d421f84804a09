/* DeepSeek-V4: its config, its tensors under their various names, and what a sequence keeps (docs/deepseek-v4.md).
 *
 * Reference: transformers, models/deepseek_v4. */
#include "model/deepseek_v4.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/* ---- names ---- */

/* The names of the release, those of conversions for MLX, which begin with "model." and have attn_hc.fn where the
 * release has hc_attn_fn, and the one that transformers gives back as attn.norm. */
static const pm_rename renames[] = {
    {"embed.", "model.embed_tokens."},
    {"head.", "lm_head."},
    {"norm.", "model.norm."},
    {"hc_head_", "model.hc_head.hc_"},
    {"hc_head.", "model.hc_head."},
    {"layers.", "model.layers."},
    {"model.embed.", "model.embed_tokens."},
    {"model.head.", "lm_head."},
    {"model.hc_head_", "model.hc_head.hc_"},
    {"model.hc_head.fn", "model.hc_head.hc_fn"},
    {"model.hc_head.base", "model.hc_head.hc_base"},
    {"model.hc_head.scale", "model.hc_head.hc_scale"},
    {"model.layers.*.hc_attn_", "model.layers.*.attn_hc."},
    {"model.layers.*.hc_ffn_", "model.layers.*.ffn_hc."},
    {"model.layers.*.attn_norm.", "model.layers.*.input_layernorm."},
    {"model.layers.*.ffn_norm.", "model.layers.*.post_attention_layernorm."},
    {"model.layers.*.attn.attn_sink", "model.layers.*.self_attn.sinks"},
    {"model.layers.*.attn.wq_a.", "model.layers.*.self_attn.q_a_proj."},
    {"model.layers.*.attn.wq_b.", "model.layers.*.self_attn.q_b_proj."},
    {"model.layers.*.attn.wkv.", "model.layers.*.self_attn.kv_proj."},
    {"model.layers.*.attn.wo_a.", "model.layers.*.self_attn.o_a_proj."},
    {"model.layers.*.attn.wo_b.", "model.layers.*.self_attn.o_b_proj."},
    {"model.layers.*.attn.q_norm.", "model.layers.*.self_attn.q_a_norm."},
    {"model.layers.*.attn.norm.", "model.layers.*.self_attn.kv_norm."},
    {"model.layers.*.attn.kv_norm.", "model.layers.*.self_attn.kv_norm."},
    {"model.layers.*.attn.compressor.", "model.layers.*.self_attn.compressor."},
    {"model.layers.*.attn.indexer.compressor.", "model.layers.*.self_attn.compressor.indexer."},
    {"model.layers.*.attn.indexer.wq_b.", "model.layers.*.self_attn.compressor.indexer.q_b_proj."},
    {"model.layers.*.attn.indexer.weights_proj.", "model.layers.*.self_attn.compressor.indexer.scorer.weights_proj."},
    {"model.layers.*.self_attn.compressor.ape", "model.layers.*.self_attn.compressor.position_bias"},
    {"model.layers.*.self_attn.compressor.norm.", "model.layers.*.self_attn.compressor.kv_norm."},
    {"model.layers.*.self_attn.compressor.wkv.", "model.layers.*.self_attn.compressor.kv_proj."},
    {"model.layers.*.self_attn.compressor.wgate.", "model.layers.*.self_attn.compressor.gate_proj."},
    {"model.layers.*.self_attn.compressor.indexer.ape", "model.layers.*.self_attn.compressor.indexer.position_bias"},
    {"model.layers.*.self_attn.compressor.indexer.norm.", "model.layers.*.self_attn.compressor.indexer.kv_norm."},
    {"model.layers.*.self_attn.compressor.indexer.wkv.", "model.layers.*.self_attn.compressor.indexer.kv_proj."},
    {"model.layers.*.self_attn.compressor.indexer.wgate.", "model.layers.*.self_attn.compressor.indexer.gate_proj."},
    {"model.layers.*.ffn.gate.bias", "model.layers.*.mlp.gate.e_score_correction_bias"},
    {"model.layers.*.ffn.experts.*.w1.", "model.layers.*.mlp.experts.*.gate_proj."},
    {"model.layers.*.ffn.experts.*.w2.", "model.layers.*.mlp.experts.*.down_proj."},
    {"model.layers.*.ffn.experts.*.w3.", "model.layers.*.mlp.experts.*.up_proj."},
    {"model.layers.*.ffn.experts.w1.", "model.layers.*.mlp.experts.gate_proj."},
    {"model.layers.*.ffn.experts.w2.", "model.layers.*.mlp.experts.down_proj."},
    {"model.layers.*.ffn.experts.w3.", "model.layers.*.mlp.experts.up_proj."},
    {"model.layers.*.ffn.shared_experts.w1.", "model.layers.*.mlp.shared_experts.gate_proj."},
    {"model.layers.*.ffn.shared_experts.w2.", "model.layers.*.mlp.shared_experts.down_proj."},
    {"model.layers.*.ffn.shared_experts.w3.", "model.layers.*.mlp.shared_experts.up_proj."},
    {"model.layers.*.ffn.", "model.layers.*.mlp."},
    {NULL, NULL},
};

static const pm_stack stacks[] = {
    {"experts.gate_proj", "switch_mlp.gate_proj", 0, 1},
    {"experts.up_proj", "switch_mlp.up_proj", 0, 1},
    {"experts.down_proj", "switch_mlp.down_proj", 0, 1},
    {"experts.gate_proj", "experts.gate_up_proj", 0, 2},
    {"experts.up_proj", "experts.gate_up_proj", 1, 2},
    {"experts.gate_proj", "experts.gate_proj", 0, 1},
    {"experts.up_proj", "experts.up_proj", 0, 1},
    {"experts.down_proj", "experts.down_proj", 0, 1},
    {NULL, NULL, 0, 0},
};

#define TOP(member) offsetof(pm_v4, member)
#define IN(member)  offsetof(pm_v4_layer, member)

/* clang-format off */
static const pm_expect top_table[] = {
    {"model.embed_tokens", PM_EXPECT_MATRIX, PM_V4_VOCAB, PM_V4_HIDDEN, TOP(embed_tokens), 0, 0},
    {"model.norm.weight", PM_EXPECT_VECTOR, PM_V4_ONE, PM_V4_HIDDEN, TOP(norm), 0, 0},
    {"model.hc_head.hc_fn", PM_EXPECT_TABLE, PM_V4_MULT, PM_V4_STREAMS, TOP(hc_head.fn), 0, 0},
    {"model.hc_head.hc_base", PM_EXPECT_VECTOR, PM_V4_ONE, PM_V4_MULT, TOP(hc_head.base), 0, 0},
    {"model.hc_head.hc_scale", PM_EXPECT_VECTOR, PM_V4_ONE, PM_V4_ONE, TOP(hc_head.scale), 0, 0},
    {"lm_head", PM_EXPECT_MATRIX, PM_V4_VOCAB, PM_V4_HIDDEN, TOP(lm_head), 0, PM_EXPECT_OPTIONAL},
};

static const pm_expect layer_table[] = {
    {"input_layernorm.weight", PM_EXPECT_VECTOR, PM_V4_ONE, PM_V4_HIDDEN, IN(input_layernorm), 0, 0},
    {"post_attention_layernorm.weight", PM_EXPECT_VECTOR, PM_V4_ONE, PM_V4_HIDDEN, IN(post_attention_layernorm), 0, 0},
    {"attn_hc.fn", PM_EXPECT_TABLE, PM_V4_MIX, PM_V4_STREAMS, IN(attn_hc.fn), 0, 0},
    {"attn_hc.base", PM_EXPECT_VECTOR, PM_V4_ONE, PM_V4_MIX, IN(attn_hc.base), 0, 0},
    {"attn_hc.scale", PM_EXPECT_VECTOR, PM_V4_ONE, PM_V4_THREE, IN(attn_hc.scale), 0, 0},
    {"ffn_hc.fn", PM_EXPECT_TABLE, PM_V4_MIX, PM_V4_STREAMS, IN(ffn_hc.fn), 0, 0},
    {"ffn_hc.base", PM_EXPECT_VECTOR, PM_V4_ONE, PM_V4_MIX, IN(ffn_hc.base), 0, 0},
    {"ffn_hc.scale", PM_EXPECT_VECTOR, PM_V4_ONE, PM_V4_THREE, IN(ffn_hc.scale), 0, 0},

    {"self_attn.q_a_proj", PM_EXPECT_MATRIX, PM_V4_Q_LORA, PM_V4_HIDDEN, IN(self_attn.q_a_proj), 0, 0},
    {"self_attn.q_a_norm.weight", PM_EXPECT_VECTOR, PM_V4_ONE, PM_V4_Q_LORA, IN(self_attn.q_a_norm), 0, 0},
    {"self_attn.q_b_proj", PM_EXPECT_MATRIX, PM_V4_QUERY, PM_V4_Q_LORA, IN(self_attn.q_b_proj), 0, 0},
    {"self_attn.kv_proj", PM_EXPECT_MATRIX, PM_V4_HEAD, PM_V4_HIDDEN, IN(self_attn.kv_proj), 0, 0},
    {"self_attn.kv_norm.weight", PM_EXPECT_VECTOR, PM_V4_ONE, PM_V4_HEAD, IN(self_attn.kv_norm), 0, 0},
    {"self_attn.sinks", PM_EXPECT_VECTOR, PM_V4_ONE, PM_V4_HEADS, IN(self_attn.sinks), 0, 0},
    {"self_attn.o_a_proj", PM_EXPECT_HEADS, PM_V4_O_LORA, PM_V4_GROUP, IN(self_attn.o_a_proj), 0, 0},
    {"self_attn.o_b_proj", PM_EXPECT_MATRIX, PM_V4_HIDDEN, PM_V4_GROUPED, IN(self_attn.o_b_proj), 0, 0},

    {"self_attn.compressor.kv_proj", PM_EXPECT_MATRIX, PM_V4_HEAD, PM_V4_HIDDEN, IN(self_attn.compressor.kv_proj), PM_V4_HEAVY, 0},
    {"self_attn.compressor.gate_proj", PM_EXPECT_MATRIX, PM_V4_HEAD, PM_V4_HIDDEN, IN(self_attn.compressor.gate_proj), PM_V4_HEAVY, 0},
    {"self_attn.compressor.position_bias", PM_EXPECT_TABLE, PM_V4_HEAVY_RATIO, PM_V4_HEAD, IN(self_attn.compressor.position_bias), PM_V4_HEAVY, 0},
    {"self_attn.compressor.kv_proj", PM_EXPECT_MATRIX, PM_V4_TWO_HEADS, PM_V4_HIDDEN, IN(self_attn.compressor.kv_proj), PM_V4_SPARSE, 0},
    {"self_attn.compressor.gate_proj", PM_EXPECT_MATRIX, PM_V4_TWO_HEADS, PM_V4_HIDDEN, IN(self_attn.compressor.gate_proj), PM_V4_SPARSE, 0},
    {"self_attn.compressor.position_bias", PM_EXPECT_TABLE, PM_V4_SPARSE_RATIO, PM_V4_TWO_HEADS, IN(self_attn.compressor.position_bias), PM_V4_SPARSE, 0},
    {"self_attn.compressor.kv_norm.weight", PM_EXPECT_VECTOR, PM_V4_ONE, PM_V4_HEAD, IN(self_attn.compressor.kv_norm), PM_V4_COMPRESSED, 0},

    {"self_attn.compressor.indexer.kv_proj", PM_EXPECT_MATRIX, PM_V4_TWO_INDEX_HEADS, PM_V4_HIDDEN, IN(self_attn.indexer.compressor.kv_proj), PM_V4_SPARSE, 0},
    {"self_attn.compressor.indexer.gate_proj", PM_EXPECT_MATRIX, PM_V4_TWO_INDEX_HEADS, PM_V4_HIDDEN, IN(self_attn.indexer.compressor.gate_proj), PM_V4_SPARSE, 0},
    {"self_attn.compressor.indexer.position_bias", PM_EXPECT_TABLE, PM_V4_SPARSE_RATIO, PM_V4_TWO_INDEX_HEADS, IN(self_attn.indexer.compressor.position_bias), PM_V4_SPARSE, 0},
    {"self_attn.compressor.indexer.kv_norm.weight", PM_EXPECT_VECTOR, PM_V4_ONE, PM_V4_INDEX_HEAD, IN(self_attn.indexer.compressor.kv_norm), PM_V4_SPARSE, 0},
    {"self_attn.compressor.indexer.q_b_proj", PM_EXPECT_MATRIX, PM_V4_INDEX_QUERY, PM_V4_Q_LORA, IN(self_attn.indexer.q_b_proj), PM_V4_SPARSE, 0},
    {"self_attn.compressor.indexer.scorer.weights_proj", PM_EXPECT_MATRIX, PM_V4_INDEX_HEADS, PM_V4_HIDDEN, IN(self_attn.indexer.weights_proj), PM_V4_SPARSE, 0},

    {"mlp.gate", PM_EXPECT_MATRIX, PM_V4_EXPERTS, PM_V4_HIDDEN, IN(mlp.gate), 0, 0},
    {"mlp.gate.e_score_correction_bias", PM_EXPECT_VECTOR, PM_V4_ONE, PM_V4_EXPERTS, IN(mlp.e_score_correction_bias), PM_V4_ROUTED, 0},
    {"mlp.gate.tid2eid", PM_EXPECT_CHOICES, PM_V4_VOCAB, PM_V4_TOP_K, IN(mlp.tid2eid), PM_V4_HASH, 0},
    {"mlp.experts.gate_proj", PM_EXPECT_EXPERTS, PM_V4_MOE, PM_V4_HIDDEN, IN(mlp.gate_proj), 0, 0},
    {"mlp.experts.up_proj", PM_EXPECT_EXPERTS, PM_V4_MOE, PM_V4_HIDDEN, IN(mlp.up_proj), 0, 0},
    {"mlp.experts.down_proj", PM_EXPECT_EXPERTS, PM_V4_HIDDEN, PM_V4_MOE, IN(mlp.down_proj), 0, 0},
    {"mlp.shared_experts.gate_proj", PM_EXPECT_MATRIX, PM_V4_MOE, PM_V4_HIDDEN, IN(mlp.shared_gate_proj), 0, 0},
    {"mlp.shared_experts.up_proj", PM_EXPECT_MATRIX, PM_V4_MOE, PM_V4_HIDDEN, IN(mlp.shared_up_proj), 0, 0},
    {"mlp.shared_experts.down_proj", PM_EXPECT_MATRIX, PM_V4_HIDDEN, PM_V4_MOE, IN(mlp.shared_down_proj), 0, 0},
};
/* clang-format on */

/* ---- config ---- */

#define DIM(i) (offsetof(pm_v4, dims) + (i) * sizeof(int))

enum { MAX_WIDTH = 1 << 20, MAX_HEADS = 1 << 12, MAX_HEAD = 1 << 12 };

/* absent 0: required. */
static const struct {
    const char *field;
    size_t out;
    int min, max, absent;
} int_fields[] = {
    {"vocab_size", DIM(PM_V4_VOCAB), 1, 1 << 24, 0},
    {"hidden_size", DIM(PM_V4_HIDDEN), 1, MAX_WIDTH, 0},
    {"num_attention_heads", DIM(PM_V4_HEADS), 1, MAX_HEADS, 0},
    {"head_dim", DIM(PM_V4_HEAD), 2, MAX_HEAD, 0},
    {"q_lora_rank", DIM(PM_V4_Q_LORA), 1, MAX_WIDTH, 0},
    {"o_lora_rank", DIM(PM_V4_O_LORA), 1, 1 << 16, 0},
    {"o_groups", TOP(groups), 1, MAX_HEADS, 0},
    {"sliding_window", TOP(window), 1, 1 << 24, 0},
    {"index_n_heads", DIM(PM_V4_INDEX_HEADS), 1, MAX_HEADS, 0},
    {"index_head_dim", DIM(PM_V4_INDEX_HEAD), 2, MAX_HEAD, 0},
    {"index_topk", TOP(index_topk), 1, 1 << 20, 0},
    {"hc_mult", DIM(PM_V4_MULT), 1, PM_HYPER_STREAMS, 4},
    {"hc_sinkhorn_iters", TOP(iterations), 1, 1000, 20},
    {"n_routed_experts|num_local_experts", DIM(PM_V4_EXPERTS), 2, 1 << 16, 0},
    {"num_experts_per_tok", DIM(PM_V4_TOP_K), INT_MIN, INT_MAX, 0}, /* the gate has its bounds */
    {"moe_intermediate_size", DIM(PM_V4_MOE), 1, MAX_WIDTH, 0},
    {"compress_rates.heavily_compressed_attention", DIM(PM_V4_HEAVY_RATIO), 1, 1 << 16, 128},
    {"compress_rates.compressed_sparse_attention", DIM(PM_V4_SPARSE_RATIO), 1, 1 << 16, 4},
};

/* What the attention of layer i is: layer_types or compress_ratios say it; without them the first two layers compress
 * heavily, and the others in turn. */
static unsigned attention_kind(const pm_model *model, int i)
{
    const pm_layer_kind *type = pm_layer_listed(model->family, model->config, "layer_types", i);
    if (!type)
        type = pm_layer_listed(model->family, model->config, "compress_ratios", i);
    return type ? type->kind : PM_V4_COMPRESSED | (i > 2 && i % 2 ? PM_V4_SPARSE : PM_V4_HEAVY);
}

/* The kind of each layer. */
static int read_layers(pm_model *model, pm_v4 *v, pm_error *err)
{
    int hashed;
    int status = pm_config_int_or(model->config, "num_hash_layers", 0, 1 << 12, 3, &hashed, err);
    if (status != PM_OK)
        return status;
    v->layers = pm_arena_alloc(&model->arena, (size_t)model->layers, sizeof(*v->layers));
    if (!v->layers)
        return pm_fail_memory(err);
    for (int i = 0; i < model->layers; i++) {
        const pm_layer_kind *experts = pm_layer_listed(model->family, model->config, "mlp_layer_types", i);
        v->layers[i].kind = attention_kind(model, i) | (experts      ? experts->kind
                                                        : i < hashed ? PM_V4_HASH
                                                                     : PM_V4_ROUTED);
        v->kinds |= v->layers[i].kind;
    }
    return PM_OK;
}

/* How many elements of a head turn: partial_rotary_factor of them, or qk_rope_head_dim. */
static int rotary_dims(const pm_config *config, const pm_v4 *v, int *out, pm_error *err)
{
    static const char *const fields[] = {"partial_rotary_factor", "rope_parameters.partial_rotary_factor",
                                         "rope_parameters.main.partial_rotary_factor",
                                         "rope_parameters.compress.partial_rotary_factor"};
    int head = v->dims[PM_V4_HEAD], found = 0;
    for (size_t i = 0; i < PM_COUNT(fields); i++) {
        float partial;
        int status = pm_config_float_or(config, fields[i], 0.0, 1.0, -1.0f, &partial, err), dims;
        if (status != PM_OK)
            return status;
        dims = (int)((double)partial * head + 1e-3);
        if (partial < 0)
            continue;
        if (found && dims != found)
            return pm_fail(err, PM_ERR_UNSUPPORTED, "%s: %s differs from the other partial_rotary_factor", config->path,
                           fields[i]);
        found = dims;
    }
    int status = pm_config_int_or(config, "qk_rope_head_dim", 1, MAX_HEAD, found ? found : head / 8, out, err);
    if (status != PM_OK)
        return status;
    if (found && *out != found)
        return pm_fail(err, PM_ERR_FORMAT, "%s: qk_rope_head_dim %d contradicts partial_rotary_factor", config->path,
                       *out);
    if (*out < 2 || *out % 2 || *out > head || *out > v->dims[PM_V4_INDEX_HEAD])
        return pm_fail(err, PM_ERR_FORMAT,
                       "%s: %d turned elements of a head (qk_rope_head_dim, partial_rotary_factor) "
                       "are not an even number within head_dim %d and index_head_dim %d",
                       config->path, *out, head, v->dims[PM_V4_INDEX_HEAD]);
    return PM_OK;
}

/* Layers without compression have one base, the others another, and these alone are scaled. Both are either described
 * apart, in rope_parameters, or by two fields and the scaling. Sine and cosine are not multiplied by what YaRN asks. */
static int read_ropes(pm_model *model, pm_v4 *v, pm_error *err)
{
    static const pm_rope_place apart[] = {
        {{"rope_parameters.main."}, "rope_parameters.main.rope_theta", 10000.0, 1.0},
        {{"rope_parameters.compress."}, "rope_parameters.compress.rope_theta", 160000.0, 1.0},
    };
    static const pm_rope_place together[] = {
        {{NULL}, "rope_theta", 10000.0, 1.0},
        {{"rope_parameters.", "rope_scaling."}, "compress_rope_theta", 160000.0, 1.0},
    };
    const pm_config *config = model->config;
    bool nested = pm_config_get(config, "rope_parameters.main") && pm_config_get(config, "rope_parameters.compress");
    const pm_rope_place *places = nested ? apart : together;
    int dims;
    int status = rotary_dims(config, v, &dims, err);
    if (status == PM_OK)
        status = pm_rope_read_at(config, &places[0], dims, &model->arena, &v->main, err);
    if (status == PM_OK)
        status = pm_rope_read_at(config, &places[1], dims, &model->arena, &v->compress, err);
    if (status != PM_OK)
        return status;
    v->main.first = v->compress.first = v->dims[PM_V4_HEAD] - dims;
    v->main.interleaved = v->compress.interleaved = true;
    v->index = v->compress;
    v->index.first = v->dims[PM_V4_INDEX_HEAD] - dims;
    return PM_OK;
}

/* Fields whose older name, when it is there, wins. */
static int read_old_rates(const pm_config *config, pm_v4 *v, pm_error *err)
{
    int *heavy = &v->dims[PM_V4_HEAVY_RATIO], *sparse = &v->dims[PM_V4_SPARSE_RATIO];
    int status = pm_config_int_or(config, "compress_rate_hca", 1, 1 << 16, *heavy, heavy, err);
    return status ? status : pm_config_int_or(config, "compress_rate_csa", 1, 1 << 16, *sparse, sparse, err);
}

static int read_ints(const pm_config *config, pm_v4 *v, pm_error *err)
{
    int status = PM_OK;
    for (size_t i = 0; status == PM_OK && i < PM_COUNT(int_fields); i++) {
        char field[PM_FIELD_MAX];
        status = pm_config_alias(config, int_fields[i].field, field, err);
        if (status != PM_OK)
            return status;
        int *out = (int *)((char *)v + int_fields[i].out), min = int_fields[i].min, max = int_fields[i].max;
        status = int_fields[i].absent ? pm_config_int_or(config, field, min, max, int_fields[i].absent, out, err)
                                      : pm_config_int(config, field, min, max, out, err);
    }
    return status;
}

static void derive_dims(pm_v4 *v)
{
    int *d = v->dims;
    d[PM_V4_ONE] = 1;
    d[PM_V4_THREE] = 3;
    d[PM_V4_STREAMS] = d[PM_V4_MULT] * d[PM_V4_HIDDEN];
    d[PM_V4_MIX] = (2 + d[PM_V4_MULT]) * d[PM_V4_MULT];
    d[PM_V4_MIXED] = d[PM_V4_MULT] + d[PM_V4_MULT] * d[PM_V4_MULT];
    d[PM_V4_TWO_HEADS] = 2 * d[PM_V4_HEAD];
    d[PM_V4_QUERY] = d[PM_V4_HEADS] * d[PM_V4_HEAD];
    d[PM_V4_GROUP] = d[PM_V4_QUERY] / v->groups;
    d[PM_V4_GROUPED] = v->groups * d[PM_V4_O_LORA];
    d[PM_V4_TWO_INDEX_HEADS] = 2 * d[PM_V4_INDEX_HEAD];
    d[PM_V4_INDEX_QUERY] = d[PM_V4_INDEX_HEADS] * d[PM_V4_INDEX_HEAD];
}

static int read_route(const pm_config *config, pm_v4 *v, pm_error *err)
{
    pm_error why;
    v->route = (pm_route){.kind = PM_ROUTE_SQRT_SOFTPLUS,
                          .experts = v->dims[PM_V4_EXPERTS],
                          .top_k = v->dims[PM_V4_TOP_K],
                          .normalise = true,
                          .divide_one = true,
                          .epsilon = 1e-20f,
                          .groups = 1};
    int status = pm_config_float_or(config, "routed_scaling_factor", 0.0, 1e6, 1.5f, &v->route.scale, err);
    if (status != PM_OK)
        return status;
    status = pm_route_check(&v->route, &why);
    return status ? pm_fail(err, status, "%s: %s", config->path, why.message) : PM_OK;
}

static int read_config(pm_model *model, pm_v4 *v, pm_error *err)
{
    const pm_config *config = model->config;
    const json_t *rates = pm_config_get(config, "compress_rates");
    int status = read_layers(model, v, err);
    if (status == PM_OK && rates && !json_is_object(rates))
        status = pm_fail(err, PM_ERR_FORMAT, "%s: compress_rates is not an object", config->path);
    if (status == PM_OK)
        status = read_ints(config, v, err);
    if (status == PM_OK)
        status = read_old_rates(config, v, err);
    if (status == PM_OK)
        status = pm_config_int(config, "max_position_embeddings", 1, 1 << 24, &model->context, err);
    if (status == PM_OK)
        status = pm_config_float(config, "rms_norm_eps", 0.0, 1.0, &v->eps, err);
    if (status == PM_OK)
        status = pm_config_float_or(config, "hc_eps", 0.0, 1.0, 1e-6f, &v->hc_eps, err);
    if (status == PM_OK)
        status = pm_config_float_or(config, "swiglu_limit", 1e-6, 1e30, 10.0f, &v->limit, err);
    if (status == PM_OK)
        status = pm_config_bool_or(config, "tie_word_embeddings", false, &v->tied, err);
    if (status == PM_OK)
        status = read_ropes(model, v, err);
    if (status == PM_OK)
        status = read_route(config, v, err);
    if (status != PM_OK)
        return status;
    if (v->dims[PM_V4_HEADS] * v->dims[PM_V4_HEAD] % v->groups)
        return pm_fail(err, PM_ERR_FORMAT, "%s: num_attention_heads %d of head_dim %d do not divide into o_groups %d",
                       config->path, v->dims[PM_V4_HEADS], v->dims[PM_V4_HEAD], v->groups);
    derive_dims(v);
    model->vocab = v->dims[PM_V4_VOCAB];
    return PM_OK;
}

/* ---- what a sequence keeps ---- */

static void plan_compressor(const pm_v4 *v, pm_cache_spec *cache, pm_rows_spec *rows, pm_state_spec *states,
                            pm_v4_compressor *c, bool overlap, int width)
{
    c->rows = cache->n_rows++;
    c->state = cache->n_states++;
    rows[c->rows] =
        (pm_rows_spec){.ratio = v->dims[overlap ? PM_V4_SPARSE_RATIO : PM_V4_HEAVY_RATIO], .planes = 1, .width = width};
    states[c->state].count = (int64_t)(overlap ? 6 : 3) * width;
}

static int plan_cache(pm_model *model, pm_v4 *v, pm_error *err)
{
    pm_rows_spec *rows = pm_arena_alloc(&model->arena, 3 * (size_t)model->layers, sizeof(*rows));
    pm_state_spec *states = pm_arena_alloc(&model->arena, 2 * (size_t)model->layers, sizeof(*states));
    if (!rows || !states)
        return pm_fail_memory(err);
    pm_cache_spec *cache = &model->cache;
    *cache = (pm_cache_spec){.rows = rows, .states = states};
    for (int i = 0; i < model->layers; i++) {
        pm_v4_layer *l = &v->layers[i];
        bool sparse = l->kind & PM_V4_SPARSE;
        l->rows = cache->n_rows++;
        rows[l->rows] = (pm_rows_spec){.ratio = 1, .planes = 1, .width = v->dims[PM_V4_HEAD], .window = v->window};
        if (l->kind & PM_V4_COMPRESSED)
            plan_compressor(v, cache, rows, states, &l->self_attn.compressor, sparse, v->dims[PM_V4_HEAD]);
        if (sparse)
            plan_compressor(v, cache, rows, states, &l->self_attn.indexer.compressor, true, v->dims[PM_V4_INDEX_HEAD]);
    }
    return PM_OK;
}

/* ---- weights ---- */

static int load_weights(pm_model *model, pm_v4 *v, pm_error *err)
{
    pm_loader *loader = &model->loader;
    v->layout = (pm_layout){.renames = renames,
                            .stacks = stacks,
                            .dims = v->dims,
                            .experts = v->dims[PM_V4_EXPERTS],
                            .top_k = v->dims[PM_V4_TOP_K],
                            .heads = v->groups,
                            .layers = model->layers,
                            .more_layers = model->more_layers};
    int status = pm_loader_open(loader, &v->layout, err);
    size_t rows = PM_COUNT(top_table) - (loader->plan && v->tied); /* lm_head, the last one, need not be there */
    if (status == PM_OK)
        status = pm_load(loader, top_table, rows, -1, 0, v, err);
    for (int i = 0; status == PM_OK && i < model->layers; i++) {
        status = pm_load(loader, layer_table, PM_COUNT(layer_table), i, v->layers[i].kind, &v->layers[i], err);
        if (model->progress)
            model->progress(model->user, (double)(i + 1) / model->layers);
    }
    if (status != PM_OK || loader->plan)
        return status;
    status = pm_model_head(model, &v->embed_tokens, v->tied, &v->lm_head, err);
    return status ? status : pm_loader_finish(loader, err);
}

static int make_activations(pm_model *model, pm_v4 *v, int step_tokens, pm_error *err)
{
    const struct {
        pm_tensor **tensor;
        int width;
        unsigned when;
    } list[] = {
        {&v->streams, PM_V4_STREAMS, 0},
        {&v->x, PM_V4_HIDDEN, 0},
        {&v->mix, PM_V4_MIXED, 0},
        {&v->q_a, PM_V4_Q_LORA, 0},
        {&v->q, PM_V4_QUERY, 0},
        {&v->kv, PM_V4_HEAD, 0},
        {&v->heavy_kv, PM_V4_HEAD, PM_V4_HEAVY},
        {&v->heavy_gate, PM_V4_HEAD, PM_V4_HEAVY},
        {&v->sparse_kv, PM_V4_TWO_HEADS, PM_V4_SPARSE},
        {&v->sparse_gate, PM_V4_TWO_HEADS, PM_V4_SPARSE},
        {&v->index_kv, PM_V4_TWO_INDEX_HEADS, PM_V4_SPARSE},
        {&v->index_gate, PM_V4_TWO_INDEX_HEADS, PM_V4_SPARSE},
        {&v->index_q, PM_V4_INDEX_QUERY, PM_V4_SPARSE},
        {&v->index_weights, PM_V4_INDEX_HEADS, PM_V4_SPARSE},
        {&v->attended, PM_V4_QUERY, 0},
        {&v->grouped, PM_V4_GROUPED, 0},
        {&v->y, PM_V4_HIDDEN, 0},
    };
    int status = PM_OK;
    for (size_t i = 0; status == PM_OK && i < PM_COUNT(list); i++)
        if (!list[i].when || (list[i].when & v->kinds))
            status = pm_loader_tensor(&model->loader, step_tokens, v->dims[list[i].width], NULL, list[i].tensor, err);
    if (status == PM_OK && (v->kinds & PM_V4_SPARSE))
        status = model->backend->ops->indices_new(model->backend, step_tokens, v->index_topk, &model->chosen, err);
    return status;
}

static int load(pm_model *model, int step_tokens, pm_error *err)
{
    pm_v4 *v = pm_arena_alloc(&model->arena, 1, sizeof(*v));
    if (!v)
        return pm_fail_memory(err);
    model->impl = v;
    int status = read_config(model, v, err);
    if (status == PM_OK)
        status = plan_cache(model, v, err);
    if (status == PM_OK)
        status = load_weights(model, v, err);
    if (status == PM_OK && step_tokens)
        status = make_activations(model, v, step_tokens, err);
    return status;
}

/* ---- the family ---- */

static const pm_layer_kind attentions[] = {
    {0, "sliding_attention", 0},
    {0, "compressed_sparse_attention", PM_V4_COMPRESSED | PM_V4_SPARSE},
    {0, "heavily_compressed_attention", PM_V4_COMPRESSED | PM_V4_HEAVY},
    {0, NULL, 0},
};
static const pm_layer_kind ratios[] = {
    {0, "0", 0},
    {0, "4", PM_V4_COMPRESSED | PM_V4_SPARSE},
    {0, "128", PM_V4_COMPRESSED | PM_V4_HEAVY},
    {0, NULL, 0},
};
static const pm_layer_kind mixtures[] = {{0, "hash_moe", PM_V4_HASH}, {0, "moe", PM_V4_ROUTED}, {0, NULL, 0}};

static const pm_layer_rule lists[] = {
    {"layer_types", PM_LAYER_NAMES, attentions},
    {"compress_ratios", PM_LAYER_NUMBERS, ratios},
    {"mlp_layer_types", PM_LAYER_NAMES, mixtures},
    {NULL, 0, NULL},
};

static const pm_gate_rule gate[] = {
    {"num_experts_per_tok", "1..65536"},
    {"rope_parameters.rope_type", "default|yarn"},
    {"rope_parameters.type", "default|yarn"},
    {"rope_parameters.main", NULL},
    {"rope_parameters.compress", NULL},
    {"rope_interleave", "true"}, /* of neighbouring elements, in both */
    {"indexer_rope_interleave", "true"},
    {"rope_parameters.main.rope_type", "default"},
    {"rope_parameters.main.type", "default"},
    {"rope_parameters.compress.rope_type", "default|yarn"},
    {"rope_parameters.compress.type", "default|yarn"},
    {"rope_scaling.rope_type", "default|yarn"},
    {"rope_scaling.type", "default|yarn"},
    {"partial_rotary_factor", NULL},
    {"rope_parameters.partial_rotary_factor", NULL},
    {"scoring_func", "sqrtsoftplus"},
    {"topk_method", "noaux_tc"},
    {"norm_topk_prob", "true"},
    {"n_shared_experts", "1"},
    {"num_key_value_heads", "1"},
    {"q_lora_rank", NULL},
    {"index_topk", NULL},
    {"sliding_window", NULL},
    {"routed_scaling_factor", NULL},
    {"swiglu_limit", NULL},
    {"expert_dtype", "fp4|fp8"},
    {"quantization_config.expert_dtype", "fp4|fp8"},
    {NULL, NULL},
};

const pm_family pm_deepseek_v4 = {
    .name = "deepseek_v4",
    .model_types = "deepseek_v4",
    .checkpoints = "DeepSeek-V4-Flash, DeepSeek-V4-Pro",
    .gate = gate,
    .lists = lists,
    .more_layers = 1,
    .load = load,
    .step = pm_v4_step,
};
