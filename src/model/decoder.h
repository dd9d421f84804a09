/* Pre-norm decoders, the skeleton that most families share:
 *
 *     x = embed(tokens)
 *     for each layer: x += mixer(input_layernorm(x)); x += feed_forward(post_attention_layernorm(x))
 *     logits = lm_head(norm(x))
 *
 * or with one block a layer, x += block(norm(x)), where a block is either of the two.
 *
 * A family states its layers as a set of parts (a mixer and a feed-forward each), the rules for its names, and what the
 * parts are told apart by; the shapes, the tensors and the step are here once. */
#ifndef PM_DECODER_H
#define PM_DECODER_H

#include "model/family.h"

/* Parts of a layer; a layer's kind is a set of them. */
enum {
    PM_ATTENTION = 1,  /* self_attn: grouped-query attention */
    PM_HEAD_NORMS = 2, /* with RMS norms on query and key heads */
    PM_WINDOW = 4,     /* over the last sliding_window positions */
    PM_QKV_BIAS = 8,
    PM_O_BIAS = 16,
    PM_DELTA = 32,              /* linear_attn: gated delta net */
    PM_DELTA_SEPARATE = 64,     /* with projections in_proj_qkv, in_proj_z, in_proj_a, in_proj_b */
    PM_DELTA_INTERLEAVED = 128, /* with projections in_proj_qkvz, in_proj_ba */
    PM_MLP = 256,               /* mlp: gated MLP */
    PM_MLP_BIAS = 512,
    PM_MOE = 1024, /* mlp: routed experts */
    PM_SHARED_EXPERT = 2048,
    PM_ROUTER_BIAS = 4096, /* experts are chosen with e_score_correction_bias */
    PM_SHORT_CONV = 8192,  /* conv: gated short convolution */
    PM_CONV_BIAS = 16384,
    PM_MAMBA = 1 << 15, /* mamba: Mamba-2 */
    PM_MAMBA_BIAS = 1 << 16,
    PM_MAMBA_CONV_BIAS = 1 << 17,
    PM_MOE_LATENT = 1 << 18,     /* routed experts work on latents: mlp.fc1_latent_proj, fc2_latent_proj */
    PM_TWO_BLOCKS = 1 << 19,     /* not said by a family's kind: without pm_decoder_spec.one_block */
    PM_SHARED_EXPERTS = 1 << 20, /* mlp.shared_experts, in one and without a gate */
    PM_LATENT = 1 << 21,         /* self_attn: multi-head latent attention */
    PM_Q_LATENT = 1 << 22,       /* with latents of queries: q_a_proj, q_b_proj */
    PM_Q_WHOLE = 1 << 23,        /* without: q_proj */
    PM_LATENT_BIAS = 1 << 24,
    PM_Q_LATENT_BIAS = 1 << 25,
    PM_SPARSE = 1 << 26, /* attends to the rows that the last indexer chose */
    PM_INDEXER = 1 << 27 /* its own */
};

/* Indices into dims, the shapes of all tensors. */
enum {
    PM_D_ONE,
    PM_D_VOCAB,
    PM_D_HIDDEN,
    PM_D_HEAD,
    PM_D_QUERY,    /* heads * head_dim */
    PM_D_Q_PROJ,   /* that, twice when the query projection also makes a gate */
    PM_D_KV,       /* kv_heads * head_dim */
    PM_D_CHANNELS, /* of the delta net's convolution: queries, keys, values */
    PM_D_KERNEL,
    PM_D_QKVZ,  /* channels + value */
    PM_D_BA,    /* 2 * value_heads */
    PM_D_VALUE, /* value_heads * value_dim */
    PM_D_VALUE_HEADS,
    PM_D_VALUE_DIM,
    PM_D_BCX, /* of a short convolution: 3 * hidden */
    PM_D_MLP,
    PM_D_EXPERTS,
    PM_D_MOE,
    PM_D_SHARED,
    PM_D_EXPERT, /* what routed experts work on: hidden, or the latent's width */
    /* Mamba-2: */
    PM_D_INNER,          /* heads * head_dim */
    PM_D_MAMBA_CHANNELS, /* of the convolution: inner + 2 * groups * state */
    PM_D_MAMBA_IN,       /* inner + channels + heads */
    PM_D_MAMBA_HEADS,
    /* Latent attention: */
    PM_D_ZERO,
    PM_D_Q_LORA,
    PM_D_KV_LORA,
    PM_D_KV_ROW, /* kv_lora_rank + qk_rope_head_dim */
    PM_D_NOPE,
    PM_D_V_HEAD,
    PM_D_KV_HEAD, /* of kv_b_proj: nope + v_head */
    PM_D_PAIRS,   /* qk_rope_head_dim / 2 */
    PM_D_QK,      /* heads * (nope + rope) */
    PM_D_V,       /* heads * v_head */
    PM_D_LATENTS, /* heads * kv_lora */
    PM_D_INDEX_HEADS,
    PM_D_INDEX_HEAD,
    PM_D_INDEX_Q, /* index_n_heads * index_head_dim */
    PM_DIMS
};

/* Rows of a gate for families whose rope may be scaled. */
#define PM_ROPE_TYPES "default|linear|llama3|yarn"
#define PM_SCALED_ROPE                                                                                                 \
    {"rope_parameters.rope_type", PM_ROPE_TYPES}, {"rope_parameters.type", PM_ROPE_TYPES},                             \
        {"rope_scaling.rope_type", PM_ROPE_TYPES},                                                                     \
    {                                                                                                                  \
        "rope_scaling.type", PM_ROPE_TYPES                                                                             \
    }

typedef struct pm_decoder pm_decoder;

typedef struct pm_decoder_spec {
    const pm_rename *renames;
    const pm_stack *stacks;
    bool gated_attention;   /* q_proj makes a gate beside each query head */
    bool centred_norms;     /* norms are stored as w - 1, unless the convolution has MLX's layout */
    bool derived_head_dim;  /* without head_dim in the config it is hidden_size / num_attention_heads */
    bool one_block;         /* layers of one block and one norm; ungated MLPs (squared ReLU); no rope */
    bool normalise_top_k;   /* where the config does not say */
    double partial_rotary;  /* the same; 0: all of a head turns */
    double rope_theta;      /* the same; 0: 10,000 */
    bool tied;              /* the same */
    bool interleaved_index; /* the same: indexer_rope_interleave */
    bool routed_experts;    /* the number of experts is n_routed_experts before num_experts */
    const char *mlp_width;  /* a field that counts in place of intermediate_size where it is there, or NULL */
    const char *norm_eps;   /* another name of rms_norm_eps, or NULL */
    pm_route route;         /* kind and what the config says nothing of; zeros: softmax */
    /* The kind of layer i. */
    int (*kind)(const pm_model *model, int i, unsigned *kind, pm_error *err);
    /* NULL, or completes what has been read of the config by rules of the family's own. */
    int (*complete)(const pm_model *model, pm_decoder *d, pm_error *err);
} pm_decoder_spec;

/* Where stacks of experts are found, by transformers' and by mlx-lm's names. */
extern const pm_stack pm_expert_stacks[];

/* load and step of a pm_family whose spec is a pm_decoder_spec. */
int pm_decoder_load(pm_model *model, int step_tokens, pm_error *err);
int pm_decoder_step(pm_model *model, const pm_batch *batch, float *logits, pm_error *err);

/* True when layers that may have a window have one: sliding_window is a number or, as in transformers' classes, left
 * out altogether, which means 4096; null is none. */
bool pm_decoder_window(const pm_config *config);

/* Rows of a gate for families that turn a part of each head. */
#define PM_PARTIAL_ROPE                                                                                                \
    {"partial_rotary_factor", NULL},                                                                                   \
    {                                                                                                                  \
        "rope_parameters.partial_rotary_factor", NULL                                                                  \
    }

/* ---- private to decoder*.c ---- */

typedef struct pm_decoder_layer {
    unsigned kind;
    int rows;   /* cache slot of attention; of an indexer's keys the next one */
    int states; /* cache slots of a delta net or Mamba-2: convolution, delta or SSM; of a short convolution */
    pm_tensor *input_layernorm, *post_attention_layernorm;
    struct {
        pm_weight q_proj, k_proj, v_proj, o_proj;
        pm_tensor *q_norm, *k_norm;
        struct {
            pm_weight q_a_proj, q_b_proj, kv_a_proj_with_mqa; /* q_b_proj: or q_proj */
            pm_tensor *q_a_layernorm, *kv_a_layernorm;
            pm_head_weights embed_q, unembed_out;
            struct {
                pm_weight wq_b, wk, weights_proj;
                pm_tensor *k_norm, *k_norm_bias;
            } indexer;
        } latent;
    } self_attn;
    struct {
        pm_weight in_proj_qkv, in_proj_z, in_proj_a, in_proj_b, out_proj; /* interleaved: qkvz in qkv, ba in b */
        pm_tensor *conv1d, *A_log, *dt_bias, *norm;
    } linear_attn;
    struct {
        pm_weight in_proj, out_proj;
        pm_tensor *conv, *bias;
    } conv;
    struct {
        pm_weight in_proj, out_proj;
        pm_tensor *conv1d, *conv1d_bias, *A_log, *D, *dt_bias, *norm;
    } mamba;
    struct {
        pm_weight router, *gate_proj, *up_proj, *down_proj;
        pm_tensor *e_score_correction_bias;
        pm_weight fc1_latent_proj, fc2_latent_proj;
        pm_weight shared_gate_proj, shared_up_proj, shared_down_proj, shared_expert_gate; /* or the only MLP */
    } mlp;
} pm_decoder_layer;

struct pm_decoder {
    const pm_decoder_spec *spec;
    int dims[PM_DIMS];
    int heads, kv_heads, key_heads, key_dim, window;
    int rope_dim, index_topk, shared_experts;
    int mamba_head_dim, mamba_groups, mamba_state;
    float dt_min, dt_max;
    pm_route route; /* all but the bias */
    unsigned kinds; /* of all layers together */
    bool tied;
    float eps;
    float score_scale; /* of latent attention */
    pm_rope rope, index_rope;
    pm_weight embed_tokens, lm_head;
    pm_tensor *norm;
    pm_decoder_layer *layers;
    pm_layout layout;
    /* Activations, [step_tokens, ...]: the residual stream; a layer's projections; what a mixer hands to its output
     * projection. */
    pm_tensor *x, *q, *k, *v, *attended, *qkv, *z, *a, *b, *mixed, *bcx, *convolved;
    pm_tensor *projected, *scanned;
    pm_tensor *q_latent, *kv_row, *latents, *mixed_latents, *index_q, *index_k, *index_weights;
};

/* y[i] = w[i] input_layernorm(x), and x += w from: what a mixer begins and ends with. */
int pm_decoder_in(pm_model *model, const pm_batch *batch, const pm_decoder_layer *l, int n, const pm_weight *const *w,
                  pm_tensor *const *y, pm_error *err);
int pm_decoder_out(pm_model *model, const pm_batch *batch, const pm_weight *w, const pm_tensor *from, pm_error *err);

/* Latent attention, decoder_latent.c: its tensors, config fields (after the kinds of layers are known), cache slots of
 * a layer, and step. */
extern const pm_expect pm_latent_table[];
extern const size_t pm_latent_rows;
extern const pm_split pm_latent_splits[];
int pm_latent_config(pm_model *model, pm_decoder *d, pm_error *err);
void pm_latent_plan(pm_decoder_layer *l, const pm_decoder *d, pm_cache_spec *cache, pm_rows_spec *rows);
int pm_latent_step(pm_model *model, const pm_batch *batch, const pm_decoder_layer *l, pm_error *err);

/* Mamba-2, decoder_mamba.c; likewise. */
extern const pm_expect pm_mamba_table[];
extern const size_t pm_mamba_rows;
int pm_mamba_config(pm_model *model, pm_decoder *d, pm_error *err);
void pm_mamba_plan(pm_decoder_layer *l, const pm_decoder *d, pm_cache_spec *cache, pm_state_spec *states);
int pm_mamba_step(pm_model *model, const pm_batch *batch, const pm_decoder_layer *l, pm_error *err);

#endif
