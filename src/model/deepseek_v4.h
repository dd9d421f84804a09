/* DeepSeek-V4 (docs/deepseek-v4.md): what a step works with. Loading is in deepseek_v4.c, the step in
 * deepseek_v4_step.c; names are those of transformers. */
#ifndef PM_DEEPSEEK_V4_H
#define PM_DEEPSEEK_V4_H

#include "model/family.h"

/* A layer's kind: what its attention sees beside the window, and how its experts are chosen. */
enum {
    PM_V4_COMPRESSED = 1, /* rows of several tokens */
    PM_V4_HEAVY = 2,      /* all of them */
    PM_V4_SPARSE = 4,     /* those that an index chooses; windows overlap */
    PM_V4_HASH = 8,       /* experts by the token */
    PM_V4_ROUTED = 16     /* experts by scores and a bias */
};

enum {
    PM_V4_ONE,
    PM_V4_THREE,
    PM_V4_VOCAB,
    PM_V4_HIDDEN,
    PM_V4_STREAMS, /* hc_mult * hidden_size */
    PM_V4_MULT,    /* hc_mult */
    PM_V4_MIX,     /* (2 + hc_mult) * hc_mult */
    PM_V4_MIXED,   /* hc_mult + hc_mult^2 */
    PM_V4_HEADS,
    PM_V4_HEAD,
    PM_V4_TWO_HEADS, /* 2 * head_dim */
    PM_V4_QUERY,     /* heads * head_dim */
    PM_V4_Q_LORA,
    PM_V4_O_LORA,
    PM_V4_GROUP,   /* heads * head_dim / o_groups */
    PM_V4_GROUPED, /* o_groups * o_lora_rank */
    PM_V4_HEAVY_RATIO,
    PM_V4_SPARSE_RATIO,
    PM_V4_INDEX_HEADS,
    PM_V4_INDEX_HEAD,
    PM_V4_TWO_INDEX_HEADS, /* 2 * index_head_dim */
    PM_V4_INDEX_QUERY,     /* index_n_heads * index_head_dim */
    PM_V4_EXPERTS,
    PM_V4_TOP_K,
    PM_V4_MOE,
    PM_V4_DIMS
};

typedef struct pm_v4_hyper {
    pm_tensor *fn, *base, *scale;
} pm_v4_hyper;

typedef struct pm_v4_compressor {
    pm_weight kv_proj, gate_proj;
    pm_tensor *position_bias, *kv_norm;
    int rows, state; /* cache slots */
} pm_v4_compressor;

typedef struct pm_v4_layer {
    unsigned kind;
    int rows; /* cache slot of the window */
    pm_tensor *input_layernorm, *post_attention_layernorm;
    pm_v4_hyper attn_hc, ffn_hc;
    struct {
        pm_weight q_a_proj, q_b_proj, kv_proj, o_b_proj;
        pm_head_weights o_a_proj; /* one for each group of heads */
        pm_tensor *q_a_norm, *kv_norm, *sinks;
        pm_v4_compressor compressor;
        struct {
            pm_v4_compressor compressor;
            pm_weight q_b_proj, weights_proj;
        } indexer;
    } self_attn;
    struct {
        pm_weight gate, *gate_proj, *up_proj, *down_proj;
        pm_weight shared_gate_proj, shared_up_proj, shared_down_proj;
        pm_tensor *e_score_correction_bias, *tid2eid;
    } mlp;
} pm_v4_layer;

typedef struct pm_v4 {
    int dims[PM_V4_DIMS];
    int groups, window, index_topk, iterations;
    unsigned kinds; /* of all layers together */
    bool tied;
    float eps, hc_eps, limit;
    pm_route route;                /* all but the layer's own */
    pm_rope main, compress, index; /* of layers without and with compression; of an indexer */
    pm_weight embed_tokens, lm_head;
    pm_tensor *norm;
    pm_v4_hyper hc_head;
    pm_v4_layer *layers;
    pm_layout layout;
    /* Activations, [step_tokens, ...] */
    pm_tensor *streams, *x, *mix;     /* of hyper-connections */
    pm_tensor *q_a, *q, *kv;          /* projections of attention */
    pm_tensor *heavy_kv, *heavy_gate; /* of a compressor, heavily or sparsely compressed */
    pm_tensor *sparse_kv, *sparse_gate;
    pm_tensor *index_kv, *index_gate, *index_q, *index_weights; /* of an indexer */
    pm_tensor *attended, *grouped, *y;                          /* on the way out */
} pm_v4;

int pm_v4_step(pm_model *model, const pm_batch *batch, float *logits, pm_error *err);

#endif
