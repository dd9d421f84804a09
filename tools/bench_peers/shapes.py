"""The models that are timed: configs of tools/presets, cut to what a small machine holds, and the same as GGUF."""

import json
from pathlib import Path

PRESETS = Path(__file__).resolve().parents[1] / "presets"
VOCABULARY = 32000  # of all: the head of a model cut to few layers would outweigh them with its own

# preset: (layers, fields of the config that are changed)
SHAPES = {
    "Llama-3.2-1B": (16, {}),
    "Qwen3-30B-A3B": (4, {}),
    "LFM2-1.2B": (16, {"block_dim": 2048}),  # which mlx-lm asks for
    "Nemotron-H-8B": (13, {}),
    "DeepSeek-V3": (2, {"first_k_dense_replace": 1, "n_routed_experts": 32, "num_nextn_predict_layers": 0}),
}


def config(name):
    """The config of all layers; random_checkpoint cuts it."""
    return json.loads((PRESETS / f"{name}.json").read_text()) | SHAPES[name][1] | {"vocab_size": VOCABULARY}


# ---- the same in GGUF ----
# Names of fields and tensors are those of https://github.com/ggml-org/llama.cpp/blob/master/src/llama-arch.cpp; shapes are
# rows first. A tensor is a matrix, which is quantised, or floats: ONES, or NOISE around 0.

MATRIX, ONES, NOISE, MINUS = "matrix", "ones", "noise", "minus"


def fields(c, layers, **more):
    """The fields that every architecture has."""
    heads = c["num_attention_heads"]
    return {
        "block_count": layers,
        "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"],
        "feed_forward_length": c.get("intermediate_size"),
        "attention.head_count": heads,
        "attention.head_count_kv": c["num_key_value_heads"],
        "attention.key_length": c.get("head_dim", c["hidden_size"] // heads),
        "attention.value_length": c.get("head_dim", c["hidden_size"] // heads),
        "attention.layer_norm_rms_epsilon": c.get("rms_norm_eps", 1e-5),
        "rope.dimension_count": c.get("head_dim", c["hidden_size"] // heads),
        "rope.freq_base": float(c.get("rope_theta", 10000)),
        "vocab_size": c["vocab_size"],
    } | more


def ends(c, norm="output_norm"):
    """Embedding, last norm and, unless tied, head."""
    yield "token_embd.weight", (c["vocab_size"], c["hidden_size"]), MATRIX
    yield f"{norm}.weight", (c["hidden_size"],), ONES
    if not c.get("tie_word_embeddings", c.get("tie_embedding", False)):
        yield "output.weight", (c["vocab_size"], c["hidden_size"]), MATRIX


def attention(c, layer, head_norms=False):
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    dim = c.get("head_dim", hidden // heads)
    yield f"{layer}.attn_q.weight", (heads * dim, hidden), MATRIX
    yield f"{layer}.attn_k.weight", (c["num_key_value_heads"] * dim, hidden), MATRIX
    yield f"{layer}.attn_v.weight", (c["num_key_value_heads"] * dim, hidden), MATRIX
    yield f"{layer}.attn_output.weight", (hidden, heads * dim), MATRIX
    if head_norms:
        yield f"{layer}.attn_q_norm.weight", (dim,), ONES
        yield f"{layer}.attn_k_norm.weight", (dim,), ONES


def norm(c, layer, name):
    yield f"{layer}.{name}.weight", (c["hidden_size"],), ONES


def feed_forward(c, layer, width, gate=True, suffix="", experts=()):
    hidden = c["hidden_size"]
    if gate:
        yield f"{layer}.ffn_gate{suffix}.weight", (*experts, width, hidden), MATRIX
    yield f"{layer}.ffn_up{suffix}.weight", (*experts, width, hidden), MATRIX
    yield f"{layer}.ffn_down{suffix}.weight", (*experts, hidden, width), MATRIX


def experts(c, layer, n):
    yield f"{layer}.ffn_gate_inp.weight", (n, c["hidden_size"]), NOISE
    yield from feed_forward(c, layer, c["moe_intermediate_size"], suffix="_exps", experts=(n,))


def llama(c, layers):
    def tensors():
        yield from ends(c)
        for layer in (f"blk.{i}" for i in range(layers)):
            yield from norm(c, layer, "attn_norm")
            yield from attention(c, layer)
            yield from norm(c, layer, "ffn_norm")
            yield from feed_forward(c, layer, c["intermediate_size"])

    return "llama", fields(c, layers), tensors()


def qwen3_moe(c, layers):
    def tensors():
        yield from ends(c)
        for layer in (f"blk.{i}" for i in range(layers)):
            yield from norm(c, layer, "attn_norm")
            yield from attention(c, layer, head_norms=True)
            yield from norm(c, layer, "ffn_norm")
            yield from experts(c, layer, c["num_experts"])

    more = {
        "expert_count": c["num_experts"],
        "expert_used_count": c["num_experts_per_tok"],
        "expert_feed_forward_length": c["moe_intermediate_size"],
    }
    return "qwen3moe", fields(c, layers, **more), tensors()


def lfm2(c, layers):
    width = c["block_multiple_of"] * -(-(c["block_ff_dim"] * 2 // 3) // c["block_multiple_of"])
    hidden, attentive = c["hidden_size"], c["full_attn_idxs"]

    def tensors():
        yield from ends(c, "token_embd_norm")
        for i in range(layers):
            layer = f"blk.{i}"
            yield from norm(c, layer, "attn_norm")
            if i in attentive:
                yield from attention(c, layer, head_norms=True)
            else:
                yield f"{layer}.shortconv.conv.weight", (hidden, c["conv_L_cache"]), NOISE
                yield f"{layer}.shortconv.in_proj.weight", (3 * hidden, hidden), MATRIX
                yield f"{layer}.shortconv.out_proj.weight", (hidden, hidden), MATRIX
            yield from norm(c, layer, "ffn_norm")
            yield from feed_forward(c, layer, width)

    more = {
        "feed_forward_length": width,
        "attention.head_count_kv": [c["num_key_value_heads"] * (i in attentive) for i in range(layers)],
        "shortconv.l_cache": c["conv_L_cache"],
    }
    return "lfm2", fields(c, layers, **more), tensors()


def mamba2(c, layer):
    inner, groups = c["mamba_num_heads"] * c["mamba_head_dim"], c["n_groups"]
    mixed = inner + 2 * groups * c["ssm_state_size"]
    yield f"{layer}.ssm_in.weight", (inner + mixed + c["mamba_num_heads"], c["hidden_size"]), MATRIX
    yield f"{layer}.ssm_conv1d.weight", (mixed, c["conv_kernel"]), NOISE
    yield f"{layer}.ssm_conv1d.bias", (mixed,), NOISE
    yield f"{layer}.ssm_dt.bias", (c["mamba_num_heads"],), NOISE
    yield f"{layer}.ssm_a", (c["mamba_num_heads"], 1), MINUS
    yield f"{layer}.ssm_d", (c["mamba_num_heads"], 1), ONES
    yield f"{layer}.ssm_norm.weight", (groups, inner // groups), ONES
    yield f"{layer}.ssm_out.weight", (c["hidden_size"], inner), MATRIX


def nemotron_h(c, layers):
    pattern = c["hybrid_override_pattern"][:layers]

    def tensors():
        yield from ends(c)
        for i, kind in enumerate(pattern):
            layer = f"blk.{i}"
            yield from norm(c, layer, "attn_norm")
            if kind == "M":
                yield from mamba2(c, layer)
            elif kind == "*":
                yield from attention(c, layer)
            else:
                yield from feed_forward(c, layer, c["intermediate_size"], gate=False)

    more = {
        "feed_forward_length": [c["intermediate_size"] * (kind == "-") for kind in pattern],
        "attention.head_count_kv": [c["num_key_value_heads"] * (kind == "*") for kind in pattern],
        "attention.layer_norm_epsilon": c["layer_norm_epsilon"],
        "ssm.conv_kernel": c["conv_kernel"],
        "ssm.inner_size": c["mamba_num_heads"] * c["mamba_head_dim"],
        "ssm.state_size": c["ssm_state_size"],
        "ssm.time_step_rank": c["mamba_num_heads"],
        "ssm.group_count": c["n_groups"],
    }
    return "nemotron_h", fields(c, layers, **more), tensors()


def latent_attention(c, layer):
    hidden, heads, queries, latents = c["hidden_size"], c["num_attention_heads"], c["q_lora_rank"], c["kv_lora_rank"]
    nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    yield f"{layer}.attn_q_a.weight", (queries, hidden), MATRIX
    yield f"{layer}.attn_q_a_norm.weight", (queries,), ONES
    yield f"{layer}.attn_q_b.weight", (heads * (nope + rope), queries), MATRIX
    yield f"{layer}.attn_kv_a_mqa.weight", (latents + rope, hidden), MATRIX
    yield f"{layer}.attn_kv_a_norm.weight", (latents,), ONES
    yield f"{layer}.attn_k_b.weight", (heads, latents, nope), MATRIX
    yield f"{layer}.attn_v_b.weight", (heads, value, latents), MATRIX
    yield f"{layer}.attn_output.weight", (hidden, heads * value), MATRIX


def deepseek_v3(c, layers):
    def tensors():
        yield from ends(c)
        for i in range(layers):
            layer = f"blk.{i}"
            yield from norm(c, layer, "attn_norm")
            yield from latent_attention(c, layer)
            yield from norm(c, layer, "ffn_norm")
            if i < c["first_k_dense_replace"]:
                yield from feed_forward(c, layer, c["intermediate_size"])
            else:
                yield from experts(c, layer, c["n_routed_experts"])
                yield f"{layer}.exp_probs_b.bias", (c["n_routed_experts"],), NOISE
                yield from feed_forward(c, layer, c["moe_intermediate_size"] * c["n_shared_experts"], suffix="_shexp")

    more = {
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": c["q_lora_rank"],
        "attention.kv_lora_rank": c["kv_lora_rank"],
        "attention.key_length": c["kv_lora_rank"] + c["qk_rope_head_dim"],
        "attention.value_length": c["kv_lora_rank"],
        "attention.key_length_mla": c["qk_nope_head_dim"] + c["qk_rope_head_dim"],
        "attention.value_length_mla": c["v_head_dim"],
        "rope.dimension_count": c["qk_rope_head_dim"],
        "leading_dense_block_count": c["first_k_dense_replace"],
        "expert_count": c["n_routed_experts"],
        "expert_used_count": c["num_experts_per_tok"],
        "expert_shared_count": c["n_shared_experts"],
        "expert_feed_forward_length": c["moe_intermediate_size"],
        "expert_group_count": c["n_group"],
        "expert_group_used_count": c["topk_group"],
        "expert_weights_scale": c["routed_scaling_factor"],
        "expert_weights_norm": c["norm_topk_prob"],
        "expert_gating_func": 2,  # sigmoid
    }
    return "deepseek2", fields(c, layers, **more), tensors()


ARCHITECTURES = {f.__name__: f for f in (llama, qwen3_moe, lfm2, nemotron_h, deepseek_v3)}


def as_gguf(name):
    """The name of a shape's architecture, its fields, and its tensors: name, shape, what they hold."""
    c = config(name)
    return ARCHITECTURES[c["model_type"]](c, SHAPES[name][0])
