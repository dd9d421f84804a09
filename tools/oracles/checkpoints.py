"""The checkpoints: for each folder its transformers class and config, and the older spelling of it if it has one.

Each folder turns on what its name says, so that a wrong result points at its cause.
"""

from dataclasses import dataclass, field

from vocabulary import END_OF_TEXT, IM_END, VOCAB_SIZE

COMMON = {
    "vocab_size": VOCAB_SIZE,
    "bos_token_id": None,
    "eos_token_id": IM_END,
    "pad_token_id": END_OF_TEXT,
    "max_position_embeddings": 512,
}


def rope(theta, **more):
    return {"rope_type": "default", "rope_theta": theta, **more}


@dataclass
class Checkpoint:
    model: str  # transformers class
    config: dict  # its config, or the text part of it when `vision` is set
    vision: dict | None = None  # a vision tower, which a text model must skip
    float32: tuple = ()  # ends of the names of the tensors stored as f32
    without: dict = field(default_factory=dict)  # what is ignored -> the config that a program ignoring it would see
    old: dict = field(default_factory=dict)  # config_old.json: fields to set or REMOVED


REMOVED = object()  # in `old`: the field is left out

# Three query heads of 16 to one key head.
DENSE = COMMON | {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "tie_word_embeddings": True,
}

# Rows of 32, 64 and 128 values, so that every size of quantisation group has its tensors; make_mlx.py quantises these.
GROUPED = COMMON | {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}

# Heads wider than hidden_size / heads; keys and values of the delta rule differ in size.
HYBRID = COMMON | {
    "hidden_size": 40,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 8}
SHARED = {"shared_expert_intermediate_size": 16}
NARROW = {  # a fourth of the head is rotated; a text model ignores the sections, its three positions being equal
    "partial_rotary_factor": 0.25,
    "mrope_section": [2, 1, 1],
    "mrope_interleaved": True,
}
VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 40,
    "patch_size": 2,
    "spatial_merge_size": 1,
    "temporal_patch_size": 1,
    "num_position_embeddings": 4,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "attention_factor": 1.3,
    "beta_fast": 8.0,
    "beta_slow": 0.5,
    "truncate": False,
}
MSCALE = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "mscale": 1.0,
    "mscale_all_dim": 0.5,
}
LINEAR, FULL, CONV = "linear_attention", "full_attention", "conv"

# Convolutions and attention; the MLP's width is derived.
CONVOLUTIONAL = COMMON | {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1, "norm_eps": 1e-5}

# Two groups of two heads; no time step is too short for the reference, which bounds them in prefill only.
MAMBA = COMMON | {
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "mamba_num_heads": 4,
    "mamba_head_dim": 12,
    "ssm_state_size": 16,
    "n_groups": 2,
    "conv_kernel": 4,
    "time_step_min": 1e-9,
    "layer_norm_epsilon": 1e-5,
}
# Latents of 64 for keys and values, heads of 32 and 8 (rope) for queries, of 16 for values: every matrix has whole groups.
LATENT = COMMON | {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.7,
    "first_k_dense_replace": 1,
    "tie_word_embeddings": False,
    "rope_parameters": rope(1e4),
}
NARROW_LATENT = {"hidden_size": 40, "kv_lora_rank": 32, "moe_intermediate_size": 8}  # where nothing is quantised
INDEXED = LATENT | {"index_n_heads": 8, "index_head_dim": 32, "index_topk": 16}
YARN_DEEPSEEK = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.7,
    "mscale_all_dim": 1.0,
}
ROUTER = ("e_score_correction_bias",)

# Heads of 32 of which the last 8 turn; few tokens to a compressed row, so that a prompt has many.
WINDOW, HEAVY, SPARSE = "sliding_attention", "heavily_compressed_attention", "compressed_sparse_attention"
V4_YARN = {"factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8.0, "beta_slow": 1.0}
V4 = COMMON | {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "head_dim": 32,
    "partial_rotary_factor": 0.25,
    "q_lora_rank": 24,
    "o_lora_rank": 8,
    "o_groups": 2,
    "sliding_window": 9,
    "index_n_heads": 8,
    "index_head_dim": 16,
    "index_topk": 4,
    "hc_mult": 2,
    "hc_sinkhorn_iters": 3,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "num_nextn_predict_layers": 0,
    "tie_word_embeddings": False,
}
V4_FLOAT32 = ("sinks", "position_bias", "e_score_correction_bias", "fn", "base", "scale")


def v4_layers(*types, hashed=0, heavy=16, sparse=4):
    return {
        "num_hidden_layers": len(types),
        "layer_types": list(types),
        "mlp_layer_types": ["hash_moe"] * hashed + ["moe"] * (len(types) - hashed),
        "compress_rates": {SPARSE: sparse, HEAVY: heavy},
    }


CHECKPOINTS = {
    "qwen3_5": Checkpoint(
        "Qwen3_5ForConditionalGeneration",
        HYBRID
        | {
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "layer_types": [LINEAR, LINEAR, FULL],
            "rope_parameters": rope(1e5, **NARROW),
        },
        vision=VISION,
        float32=("A_log", "linear_attn.norm.weight"),
        without={"partial_rotary_factor": {"rope_parameters": rope(1e5, partial_rotary_factor=1.0)}},
    ),
    "qwen3_5-text": Checkpoint(
        "Qwen3_5ForCausalLM",
        HYBRID
        | {
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "layer_types": [FULL, LINEAR],
            "attention_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": rope(1e4, partial_rotary_factor=0.5),
        },
        float32=("A_log",),
    ),
    "qwen3_5_moe": Checkpoint(
        "Qwen3_5MoeForConditionalGeneration",
        HYBRID
        | EXPERTS
        | SHARED
        | {
            "num_hidden_layers": 2,
            "layer_types": [LINEAR, FULL],
            "rope_parameters": rope(1e5, **NARROW),
        },
        vision=VISION,
        float32=("A_log", "dt_bias", "linear_attn.norm.weight"),
    ),
    "qwen3_next": Checkpoint(
        "Qwen3NextForCausalLM",
        HYBRID
        | EXPERTS
        | SHARED
        | {
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "layer_types": [LINEAR, FULL],
            "norm_topk_prob": True,
            "rope_parameters": rope(1e5, partial_rotary_factor=0.25),
        },
        without={"norm_topk_prob": {"norm_topk_prob": False}},
        old={
            "rope_parameters": REMOVED,
            "rope_theta": 1e5,
            "rope_scaling": None,
            "partial_rotary_factor": 0.25,
            "layer_types": REMOVED,
            "full_attention_interval": 2,
        },
    ),
    "qwen3_next-sparse": Checkpoint(
        "Qwen3NextForCausalLM",
        HYBRID
        | EXPERTS
        | SHARED
        | {
            "intermediate_size": 32,
            "num_hidden_layers": 4,
            "head_dim": 16,
            "layer_types": [LINEAR, FULL, LINEAR, FULL],
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "norm_topk_prob": False,
            "attention_bias": True,
            "rope_parameters": rope(1e4, partial_rotary_factor=0.5),
        },
        float32=("A_log",),
        without={"norm_topk_prob false": {"norm_topk_prob": True}},
    ),
    "qwen3_moe": Checkpoint(
        "Qwen3MoeForCausalLM",
        GROUPED
        | {
            "head_dim": 16,
            "moe_intermediate_size": 32,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
            "rope_parameters": rope(1e6),
        },
        without={"norm_topk_prob": {"norm_topk_prob": False}},
    ),
    "qwen3_moe-sparse": Checkpoint(
        "Qwen3MoeForCausalLM",
        COMMON
        | EXPERTS
        | {
            "hidden_size": 40,
            "intermediate_size": 48,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "norm_topk_prob": False,
            "tie_word_embeddings": False,
            "rope_parameters": rope(1e4),
        },
        without={"norm_topk_prob false": {"norm_topk_prob": True}},
        old={
            "rope_parameters": REMOVED,
            "rope_theta": 1e4,
            "rope_scaling": None,
            "num_local_experts": REMOVED,
            "num_experts": 8,
        },
    ),
    "qwen3_moe-window": Checkpoint(
        "Qwen3MoeForCausalLM",
        COMMON
        | EXPERTS
        | {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "norm_topk_prob": True,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 20,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
            },
        },
        without={
            "sliding_window": {"sliding_window": None, "use_sliding_window": False},
            "yarn": {"rope_parameters": rope(1e4)},
        },
    ),
    "qwen3": Checkpoint(
        "Qwen3ForCausalLM",
        DENSE
        | {
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "use_sliding_window": True,
            "sliding_window": 16,
            "max_window_layers": 1,
            "rope_parameters": rope(1e6),
        },
        without={
            "sliding_window": {"layer_types": ["full_attention"] * 3},
            "max_window_layers": {"layer_types": ["sliding_attention"] * 3},
        },
    ),
    "qwen3-bias": Checkpoint(
        "Qwen3ForCausalLM",
        DENSE
        | {
            "head_dim": 32,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "rope_parameters": MSCALE,
        },
        without={
            "yarn": {"rope_parameters": rope(1e4)},
            "mscale": {"rope_parameters": {k: v for k, v in MSCALE.items() if k != "mscale"}},
        },
    ),
    "qwen2": Checkpoint(
        "Qwen2ForCausalLM",
        DENSE
        | {
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 16,
            "max_window_layers": 2,
            "rope_parameters": rope(1e6),
        },
        without={
            "sliding_window": {"layer_types": ["full_attention"] * 3},
            "max_window_layers": {"layer_types": ["sliding_attention"] * 3},
        },
    ),
    "qwen2-plain": Checkpoint(
        "Qwen2ForCausalLM",
        DENSE
        | {
            "tie_word_embeddings": False,
            "sliding_window": 16,
            "use_sliding_window": False,
            "rope_parameters": rope(1e6),
        },
        old={
            "rope_parameters": REMOVED,
            "rope_theta": 1e6,
            "rope_scaling": None,
            "layer_types": REMOVED,
            "sliding_window": 16,
        },
    ),
    "llama-llama3": Checkpoint(
        "LlamaForCausalLM",
        GROUPED
        | {
            "rope_parameters": {"rope_theta": 5e4, **LLAMA3},
        },
        without={"rope scaling": {"rope_parameters": rope(5e4)}},
        old={
            "rope_parameters": REMOVED,
            "rope_theta": 5e4,
            "rope_scaling": LLAMA3,
            "head_dim": REMOVED,
        },
    ),
    "llama-head_dim": Checkpoint(
        "LlamaForCausalLM",
        DENSE | {"head_dim": 32, "num_key_value_heads": 3, "tie_word_embeddings": False, "rope_parameters": rope(1e4)},
    ),
    "llama-bias": Checkpoint(
        "LlamaForCausalLM",
        DENSE | {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-2, "rope_parameters": rope(1e4)},
        without={"rms_norm_eps": {"rms_norm_eps": 1e-6}},
    ),
    "llama-linear": Checkpoint(
        "LlamaForCausalLM",
        DENSE | {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
        without={"rope scaling": {"rope_parameters": rope(1e4)}},
        # Llama 1 and 2 have no rope_theta.
        old={"rope_parameters": REMOVED, "rope_scaling": {"type": "linear", "factor": 4.0}},
    ),
    "llama-yarn": Checkpoint(
        "LlamaForCausalLM",
        DENSE
        | {
            "rope_parameters": YARN,
        },
        without={k: {"rope_parameters": {f: v for f, v in YARN.items() if f != k}} for k in list(YARN)[4:]},
    ),
    "lfm2": Checkpoint(
        "Lfm2ForCausalLM",
        CONVOLUTIONAL
        | {
            "intermediate_size": 60,  # 2 / 3 of it is 40, times 1.3 is 52, in steps of 16 is 64
            "block_auto_adjust_ff_dim": True,
            "block_ffn_dim_multiplier": 1.3,
            "block_multiple_of": 16,
            "num_hidden_layers": 3,
            "layer_types": [CONV, FULL, CONV],
            "conv_bias": True,
            "conv_L_cache": 4,
            "tie_word_embeddings": False,
            "rope_parameters": rope(1e6),
        },
        old={
            "rope_parameters": REMOVED,
            "rope_theta": 1e6,
            "layer_types": REMOVED,
            "full_attn_idxs": [1],
            "intermediate_size": 99,
            "block_ff_dim": 60,
            "tie_word_embeddings": REMOVED,
            "tie_embedding": False,
        },
    ),
    "lfm2_moe": Checkpoint(
        "Lfm2MoeForCausalLM",
        CONVOLUTIONAL
        | EXPERTS
        | {
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_dense_layers": 1,
            "layer_types": [FULL, CONV, CONV],
            "use_expert_bias": True,
            "routed_scaling_factor": 1.7,
            "tie_word_embeddings": True,
            "rope_parameters": rope(1e4),
        },
        float32=("expert_bias",),
        without={
            "norm_topk_prob": {"norm_topk_prob": False},
            "routed_scaling_factor": {"routed_scaling_factor": 1.0},
            "use_expert_bias": {"use_expert_bias": False},
        },
    ),
    "lfm2_moe-plain": Checkpoint(
        "Lfm2MoeForCausalLM",
        CONVOLUTIONAL
        | EXPERTS
        | {
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_dense_layers": 0,
            "layer_types": [CONV, FULL],
            "conv_bias": True,
            "conv_L_cache": 2,
            "use_expert_bias": False,
            "norm_topk_prob": False,
            "tie_word_embeddings": False,
            "rope_parameters": rope(1e4),
        },
        without={"norm_topk_prob false": {"norm_topk_prob": True}},
    ),
    "nemotron_h": Checkpoint(
        "NemotronHForCausalLM",
        MAMBA
        | {
            "layers_block_type": [LINEAR, "moe", FULL, "mlp", LINEAR],
            "use_bias": True,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 16,
            "moe_shared_expert_intermediate_size": 24,
            "moe_latent_size": 20,
            "n_group": 2,
            "topk_group": 1,
            "routed_scaling_factor": 1.7,
            "norm_topk_prob": True,
            "tie_word_embeddings": False,
        },
        float32=("A_log", "dt_bias", "mixer.D", "e_score_correction_bias"),
        without={"norm_topk_prob": {"norm_topk_prob": False}},
        old={
            "layers_block_type": REMOVED,
            "layer_types": REMOVED,
            "hybrid_override_pattern": "ME*-M",
            "num_hidden_layers": 5,
            "n_groups": REMOVED,
            "mamba_n_groups": 2,
            "conv_kernel": REMOVED,
            "mamba_d_conv": 4,
        },
    ),
    "nemotron_h-dense": Checkpoint(
        "NemotronHForCausalLM",
        MAMBA
        | {
            "layers_block_type": ["mlp", FULL, LINEAR, "mlp"],
            "mlp_bias": True,
            "use_conv_bias": False,
            "n_groups": 1,
            "conv_kernel": 3,
            "tie_word_embeddings": True,
        },
        float32=("A_log",),
    ),
    "deepseek_v3": Checkpoint(
        "DeepseekV3ForCausalLM",
        LATENT
        | NARROW_LATENT
        | {
            "q_lora_rank": None,
            "first_k_dense_replace": 0,
            "n_shared_experts": 2,
            "norm_topk_prob": False,
            "attention_bias": True,
            "rope_parameters": YARN_DEEPSEEK,
        },
        float32=ROUTER,
        without={
            "norm_topk_prob false": {"norm_topk_prob": True},
            "mscale": {"rope_parameters": YARN_DEEPSEEK | {"mscale": 1.0}},
            "mscale_all_dim": {"rope_parameters": YARN_DEEPSEEK | {"mscale_all_dim": 0.0}},
        },
        old={
            "rope_parameters": REMOVED,
            "rope_theta": 1e4,
            "rope_scaling": {"type": "yarn", **{k: v for k, v in list(YARN_DEEPSEEK.items())[2:]}},
        },
    ),
    "deepseek_v3-groups": Checkpoint(
        "DeepseekV3ForCausalLM",
        LATENT
        | NARROW_LATENT
        | {"num_hidden_layers": 3, "n_group": 4, "topk_group": 2, "attention_bias": True, "rope_interleave": False},
        float32=ROUTER,
        without={
            "n_group": {"n_group": 1, "topk_group": 1},
            "rope_interleave false": {"rope_interleave": True},
            "routed_scaling_factor": {"routed_scaling_factor": 1.0},
        },
    ),
    "deepseek_v3-single": Checkpoint(
        "DeepseekV3ForCausalLM",
        LATENT
        | NARROW_LATENT
        | {
            "num_experts_per_tok": 1,
            "norm_topk_prob": False,  # transformers would make the weight 1
            "tie_word_embeddings": True,
            "rope_parameters": YARN_DEEPSEEK | {"mscale": 1.0, "mscale_all_dim": 0.0},  # another mscale it would drop
        },
        float32=ROUTER,
        without={"yarn": {"rope_parameters": rope(1e4)}},
    ),
    "deepseek_v32": Checkpoint(
        "DeepseekV32ForCausalLM",
        INDEXED
        | NARROW_LATENT
        | {
            "num_hidden_layers": 3,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "n_group": 2,
            "topk_group": 1,
            "rope_parameters": YARN_DEEPSEEK | {"mscale": 1.0},
        },
        float32=ROUTER,
        without={"index_topk": {"index_topk": 512}},
    ),
    "deepseek_v32-4": Checkpoint(
        "DeepseekV32ForCausalLM",
        INDEXED | NARROW_LATENT
        | {"index_topk": 4, "index_head_dim": 16, "attention_bias": True, "n_shared_experts": 2},
        float32=ROUTER,
        without={"index_topk": {"index_topk": 512}},
        old={"rope_parameters": REMOVED, "rope_theta": 1e4, "rope_scaling": None, "mlp_layer_types": REMOVED},
    ),
    "glm_moe_dsa": Checkpoint(
        "GlmMoeDsaForCausalLM",
        INDEXED
        | {
            "num_hidden_layers": 5,
            "index_n_heads": 16,
            "index_topk": 8,
            "indexer_types": ["full", "full", "shared", "shared", "full"],
            "rms_norm_eps": 1e-2,
        },
        float32=ROUTER,
        without={
            "index_topk": {"index_topk": 512},
            "rms_norm_eps": {"rms_norm_eps": 1e-6},
        },
        old={"indexer_types": REMOVED, "index_topk_freq": 3, "index_skip_topk_offset": 2},
    ),
    "glm_moe_dsa-full": Checkpoint(
        "GlmMoeDsaForCausalLM",
        INDEXED | {"num_hidden_layers": 3, "attention_bias": True},
        float32=ROUTER,
        without={"index_topk": {"index_topk": 512}},
        old={"indexer_types": REMOVED, "index_topk_pattern": "FFF"},
    ),
    "mistral": Checkpoint(
        "MistralForCausalLM",
        DENSE
        | {
            "head_dim": 32,
            "num_key_value_heads": 1,
            "sliding_window": 24,
            "tie_word_embeddings": False,
            "rope_parameters": rope(1e6),
        },
        without={"sliding_window": {"sliding_window": None}},
    ),
    "deepseek_v4-window": Checkpoint(
        "DeepseekV4ForCausalLM",
        V4 | v4_layers(WINDOW, WINDOW, hashed=1) | {"swiglu_limit": 0.5, "routed_scaling_factor": 2.5},
        float32=V4_FLOAT32,
        without={
            "sliding_window": {"sliding_window": 512},
            "swiglu_limit": {"swiglu_limit": 10.0},
            "hc_sinkhorn_iters": {"hc_sinkhorn_iters": 1},
            "routed_scaling_factor": {"routed_scaling_factor": 1.5},
        },
    ),
    "deepseek_v4-heavy": Checkpoint(
        "DeepseekV4ForCausalLM",
        V4 | v4_layers(HEAVY, HEAVY, heavy=7) | {"hc_mult": 4, "hc_sinkhorn_iters": 20, "compress_rope_theta": 300.0},
        float32=V4_FLOAT32,
        without={"compression": {"layer_types": [WINDOW, WINDOW]}},
    ),
    "deepseek_v4-sparse": Checkpoint(
        "DeepseekV4ForCausalLM",
        V4
        | v4_layers(SPARSE, SPARSE, sparse=3)
        | {"compress_rope_theta": 1000.0, "rope_parameters": {"rope_type": "yarn", **V4_YARN}, "o_groups": 4},
        float32=V4_FLOAT32,
        without={"index_topk": {"index_topk": 512}, "compression": {"layer_types": [WINDOW, WINDOW]}},
    ),
    "deepseek_v4": Checkpoint(
        "DeepseekV4ForCausalLM",
        V4
        | v4_layers(WINDOW, HEAVY, SPARSE, HEAVY, SPARSE, hashed=2, sparse=2)
        | {"index_topk": 16, "compress_rope_theta": 1000.0, "rope_parameters": {"rope_type": "yarn", **V4_YARN}},
        float32=V4_FLOAT32,
        without={"index_topk": {"index_topk": 512}},
        old={
            "layer_types": REMOVED,
            "compress_ratios": [0, 128, 4, 128, 4],
            "compress_rates": REMOVED,
            "compress_rate_hca": 16,
            "compress_rate_csa": 2,
            "mlp_layer_types": REMOVED,
            "num_hash_layers": 2,
            "partial_rotary_factor": REMOVED,
            "qk_rope_head_dim": 8,
            "rope_parameters": REMOVED,
            "rope_theta": 10000.0,
            "rope_scaling": {"type": "yarn", **V4_YARN},
        },
    ),
}
