"""Rewrites a DeepSeek-V4 checkpoint into the layouts in which such checkpoints are found.

usage: deepseek_v4_layouts.py CHECKPOINT LAYOUT OUT

CHECKPOINT has the names of the release and bfloat16 or float32 weights. OUT/LAYOUT gets the layout, OUT/plain the same weights
dequantised to float32 under the names of CHECKPOINT. Layouts:

release       fp8 in blocks of 128 x 128 with scales that are powers of two (E8M0), experts in fp4 (I8), multi-token prediction
release-f32   fp8 in such blocks with scales in float32, experts too
mlx-affine    conversion for MLX: affine in 4 bits, one kind of projection in 8, stacked switch_mlp, hyper-connections with a dot
mlx-mx        conversion for MLX: mxfp8, experts mxfp4 as experts.w1, wo_a in parts or stacked, hyper-connections with an underscore
transformers  unquantised, the names and the config that transformers' classes have
"""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np

BLOCK = 128
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E4M3 = np.array(
    [(c & 7) / 8 * 2.0**-6 if c < 8 else (1 + (c & 7) / 8) * 2.0 ** ((c >> 3) - 7) for c in range(127)], np.float32
)
TYPES = {"F32": np.float32, "I64": np.int64, "U32": np.uint32, "U8": np.uint8, "I8": np.int8, "BF16": np.uint16}


# ---- files: a tensor is its dtype, as safetensors spells it, and an array of the bits ----


def read(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    return {
        name: (t["dtype"], np.frombuffer(data, TYPES[t["dtype"]], np.prod(t["shape"], dtype=int), 8 + size + t["data_offsets"][0]).reshape(t["shape"]))
        for name, t in header.items()
    }  # fmt: skip


def write(path, tensors):
    header, at = {}, 0
    for name, (dtype, bits) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(bits.shape), "data_offsets": [at, at + bits.nbytes]}
        at += bits.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, bits in tensors.values():
            file.write(np.ascontiguousarray(bits).tobytes())


def widen(tensor):
    dtype, bits = tensor
    return (bits.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else bits


def to_bf16(values):
    """Rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


# ---- formats: each gives the tensors of a module and the values that they stand for ----


def nearest(values, table):
    """Codes of the nearest entries of a table of magnitudes; the sign is the bit above them."""
    magnitude = np.abs(values)
    codes = np.searchsorted((table[1:] + table[:-1]) / 2, magnitude)
    return codes, np.copysign(table[codes], values)


def powers(largest, top):
    """E8M0 codes of scales with which `top` reaches at least `largest`."""
    return np.clip(np.ceil(np.log2(np.maximum(largest, 1e-30) / top)) + 127, 0, 254).astype(np.uint8)


def exponents(codes):
    return np.exp2(codes.astype(np.float32) - 127)


def fp8(w, power):
    """Blocks of 128 x 128, the last of which may be partial."""
    rows, cols = (-(-n // BLOCK) for n in w.shape)
    padded = np.zeros((rows * BLOCK, cols * BLOCK), np.float32)
    padded[: w.shape[0], : w.shape[1]] = w
    largest = np.abs(padded).reshape(rows, BLOCK, cols, BLOCK).max((1, 3))
    codes = powers(largest, E4M3[-1])
    scale = exponents(codes) if power else np.maximum(largest, 1e-30).astype(np.float32) / E4M3[-1]
    each = scale.repeat(BLOCK, 0).repeat(BLOCK, 1)[: w.shape[0], : w.shape[1]]
    bits, values = nearest(w / each, E4M3)
    bits = (bits + 128 * np.signbit(values)).astype(np.uint8)
    stored = ("F8_E8M0", codes) if power else ("F32", scale)
    return {"weight": ("F8_E4M3", bits), "scale": stored}, values * each


def groups(w, size):
    return w.reshape(*w.shape[:-1], -1, size)


def fp4(w):
    """One E8M0 scale for 32 values, e2m1; two in a byte, the first in the low bits."""
    codes = powers(np.abs(groups(w, 32)).max(-1), E2M1[-1])
    bits, values = nearest(groups(w, 32) / exponents(codes)[..., None], E2M1)
    bits = (bits + 8 * np.signbit(values)).reshape(w.shape).astype(np.uint8)
    return bits[..., ::2] | bits[..., 1::2] << 4, codes, (values * exponents(codes)[..., None]).reshape(w.shape)


def fp4_release(w):
    packed, codes, values = fp4(w)
    return {"weight": ("I8", packed.view(np.int8)), "scale": ("F8_E8M0", codes)}, values


def mxfp4(w):
    packed, codes, values = fp4(w)
    return {"weight": ("U32", packed.view("<u4")), "scales": ("U8", codes)}, values


def mxfp8(w):
    codes = powers(np.abs(groups(w, 32)).max(-1), E4M3[-1])
    bits, values = nearest(groups(w, 32) / exponents(codes)[..., None], E4M3)
    bits = (bits + 128 * np.signbit(values)).reshape(w.shape).astype(np.uint8)
    values = (values * exponents(codes)[..., None]).reshape(w.shape)
    return {"weight": ("U32", bits.view("<u4")), "scales": ("U8", codes)}, values


def affine(w, bits, size=64):
    """w = scale * q + bias, both in bfloat16; q packed into words, the first in the low bits."""
    parts = groups(w, size)
    bias = to_bf16(parts.min(-1))
    scale = to_bf16((parts.max(-1) - parts.min(-1)) / (2**bits - 1))
    wide_scale, wide_bias = (widen(("BF16", x))[..., None] for x in (scale, bias))
    q = np.clip(np.rint((parts - wide_bias) / np.maximum(wide_scale, 1e-20)), 0, 2**bits - 1).astype(np.uint32)
    words = q.reshape(*w.shape[:-1], -1, 32 // bits) << np.arange(0, 32, bits, dtype=np.uint32)
    stored = {"weight": ("U32", np.bitwise_or.reduce(words, -1)), "scales": ("BF16", scale), "biases": ("BF16", bias)}
    return stored, (q * wide_scale + wide_bias).reshape(w.shape).astype(np.float32)


# ---- layouts ----

PROJECTION = re.compile(r"\.(wq_a|wq_b|wkv|wo_a|wo_b|w1|w2|w3)\.weight$")
EXPERT = re.compile(r"^(layers\.\d+\.ffn)\.experts\.(\d+)\.(w[123])\.weight$")
MLX_NAMES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def release(source, config, power):
    """Compressors, the router, the embedding and the head stay as they are."""
    stored, plain = {}, {}
    for name, tensor in source.items():
        plain[name] = tensor
        if PROJECTION.search(name) and ".compressor." not in name:
            small = EXPERT.match(name) and power
            parts, values = fp4_release(widen(tensor)) if small else fp8(widen(tensor), power)
            stored |= {name.removesuffix("weight") + part: t for part, t in parts.items()}
            plain[name] = ("F32", values)
        else:
            stored[name.replace(".attn.norm.", ".attn.kv_norm.")] = tensor
    if power:  # tensors of multi-token prediction, which are left out
        stored |= {name.replace("layers.0.", "mtp.0."): t for name, t in stored.items() if name.startswith("layers.0.")}
        config |= {"num_nextn_predict_layers": 1, "compress_ratios": [*config["compress_ratios"], 0]}
    config |= {
        "expert_dtype": "fp4" if power else "fp8",
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
        },
    }
    return stored, plain


def mlx_name(name, dot):
    """The module's name in a conversion."""
    name = name.replace(".attn.norm.", ".attn.kv_norm.")
    name = name.replace(".gate.bias", ".gate.e_score_correction_bias")
    name = re.sub(r"shared_experts\.(w[123])", lambda m: f"shared_experts.{MLX_NAMES[m[1]]}", name) if dot else name
    if dot:
        name = re.sub(r"hc_(attn|ffn)_(fn|base|scale)$", r"\1_hc.\2", name)
        name = re.sub(r"^hc_head_", "hc_head.", name)
    name = re.sub(r"^embed\.", "embed_tokens.", name)
    return re.sub(r"^head\.", "lm_head.", name) if name.startswith("head.") else "model." + name


def stacks(source):
    """The experts of each layer and projection together: {(prefix, projection): [expert, out, in]}."""
    found = {}
    for name, tensor in source.items():
        if match := EXPERT.match(name):
            found.setdefault((match[1], match[3]), []).append((int(match[2]), widen(tensor)))
    return {key: np.stack([w for _, w in sorted(parts, key=lambda p: p[0])]) for key, parts in found.items()}


def put(stored, module, parts):
    stored |= {f"{module}.{part}": tensor for part, tensor in parts.items()}


def mlx(source, config, mx):
    stored, plain = {}, dict(source)
    settings = {"group_size": 32, "bits": 8, "mode": "mxfp8"} if mx else {"group_size": 64, "bits": 4}
    for (prefix, projection), w in stacks(source).items():
        parts, values = mxfp4(w) if mx else affine(w, 4)
        module = f"model.{prefix}." + (f"experts.{projection}" if mx else f"switch_mlp.{MLX_NAMES[projection]}")
        put(stored, module, parts)
        if mx:
            settings[module] = {"group_size": 32, "bits": 4, "mode": "mxfp4"}
        for e, expert in enumerate(values):
            plain[f"{prefix}.experts.{e}.{projection}.weight"] = ("F32", expert)
    for name, tensor in source.items():
        if EXPERT.match(name):
            continue
        if not (PROJECTION.search(name) or name in ("embed.weight", "head.weight") or "wgate" in name):
            stored[mlx_name(name, not mx)] = tensor
            continue
        module, wide = mlx_name(name, not mx).removesuffix(".weight"), not mx and ".attn.wkv" in name
        parts, values = mxfp8(widen(tensor)) if mx else affine(widen(tensor), 8 if wide else 4)
        plain[name] = ("F32", values)
        if wide:
            settings[module] = {"group_size": 64, "bits": 8}
        if mx and module.endswith("wo_a"):  # one matrix for each group of heads: in turn one by one and as a stack
            n = config["o_groups"]
            cut = {part: (t[0], t[1].reshape(n, -1, t[1].shape[-1])) for part, t in parts.items()}
            if int(module.split(".")[2]) % 2:
                put(stored, module, cut)
            else:
                for g in range(n):
                    put(stored, f"{module}.{g}", {part: (t[0], t[1][g]) for part, t in cut.items()})
            continue
        put(stored, module, parts)
    config["quantization"] = settings
    return stored, plain


# From a name of the release to that of transformers' modules, in this order.
TRANSFORMERS = [
    (r"^layers\.", "model.layers."),
    (r"^embed\.", "model.embed_tokens."),
    (r"^head\.", "lm_head."),
    (r"^norm\.", "model.norm."),
    (r"^hc_head_", "model.hc_head.hc_"),
    (r"\.hc_(attn|ffn)_", r".\1_hc."),
    (r"\.attn_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
    (r"\.attn\.", ".self_attn."),
    (r"\.ffn\.", ".mlp."),
    (r"\.indexer\.compressor\.", ".compressor.indexer."),
    (r"\.self_attn\.indexer\.wq_b", ".self_attn.compressor.indexer.q_b_proj"),
    (r"\.self_attn\.indexer\.weights_proj", ".self_attn.compressor.indexer.scorer.weights_proj"),
    (r"\.attn_sink$", ".sinks"),
    (r"\.q_norm\.", ".q_a_norm."),
    (r"(?<!model)\.norm\.weight$", ".kv_norm.weight"),
    (r"\.ape$", ".position_bias"),
    (r"\.wq_a\.", ".q_a_proj."),
    (r"\.wq_b\.", ".q_b_proj."),
    (r"\.wkv\.", ".kv_proj."),
    (r"\.wgate\.", ".gate_proj."),
    (r"\.wo_a\.", ".o_a_proj."),
    (r"\.wo_b\.", ".o_b_proj."),
    (r"\.gate\.bias$", ".gate.e_score_correction_bias"),
    (r"\.w1\.", ".gate_proj."),
    (r"\.w2\.", ".down_proj."),
    (r"\.w3\.", ".up_proj."),
]


def transformers(source, config):
    stored, experts_of = {}, stacks(source)
    for (prefix, projection), w in experts_of.items():
        experts = f"model.{prefix.replace('.ffn', '.mlp')}.experts"
        if projection == "w1":
            w = np.concatenate([w, experts_of[prefix, "w3"]], 1)
        if projection != "w3":
            stored[f"{experts}.{'gate_up_proj' if projection == 'w1' else 'down_proj'}"] = ("BF16", to_bf16(w))
    for name, tensor in source.items():
        if EXPERT.match(name):
            continue
        for pattern, to in TRANSFORMERS:
            name = re.sub(pattern, to, name)
        stored[name] = tensor
    kinds = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    layers, hashed = config["num_hidden_layers"], config.pop("num_hash_layers")
    partial = config.pop("qk_rope_head_dim") / config["head_dim"]
    scaling = config.pop("rope_scaling")
    config |= {
        "layer_types": [kinds[r] for r in config.pop("compress_ratios")],
        "mlp_layer_types": ["hash_moe"] * hashed + ["moe"] * (layers - hashed),
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
        "partial_rotary_factor": partial,
        "rope_parameters": {
            "main": {"rope_type": "default", "rope_theta": config["rope_theta"], "partial_rotary_factor": partial},
            "compress": {
                **{k: v for k, v in scaling.items() if k != "type"},
                "rope_type": scaling["type"],
                "rope_theta": config["compress_rope_theta"],
                "partial_rotary_factor": partial,
                "attention_factor": 1.0,
            },
        },
    }
    return stored, dict(source)


LAYOUTS = {
    "release": lambda source, config: release(source, config, True),
    "release-f32": lambda source, config: release(source, config, False),
    "mlx-affine": lambda source, config: mlx(source, config, False),
    "mlx-mx": lambda source, config: mlx(source, config, True),
    "transformers": transformers,
}


def rewrite(checkpoint, layout, out):
    """Returns the two folders."""
    source = read(checkpoint / "model.safetensors")
    plain_config = json.loads((checkpoint / "config.json").read_text())
    config = json.loads(json.dumps(plain_config))
    stored, plain = LAYOUTS[layout](source, config)
    folders = out / layout, out / "plain"
    for folder, tensors, settings in zip(folders, (stored, plain), (config, plain_config), strict=True):
        folder.mkdir(parents=True)
        for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(checkpoint / name, folder)
        (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
        write(folder / "model.safetensors", tensors)
    return folders


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[2] not in LAYOUTS:
        sys.exit(__doc__)
    rewrite(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
