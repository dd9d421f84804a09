"""The layouts in which DeepSeek-V4 checkpoints are found give the logits of the same weights dequantised."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from command import as_json, call, refused

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import deepseek_v4_layouts as layouts  # noqa: E402

PROMPT, STEPS = "long", 6

# Activations are quantised in 16 bits where weights are integers times a scale, and blocks of FP8 are summed before they are
# scaled; elsewhere the same numbers are multiplied.
NEAR = {"release": 2e-3, "release-f32": 1e-4, "mlx-affine": 5e-3, "mlx-mx": 2e-3, "transformers": 0}


@pytest.fixture(scope="session")
def trained(source):
    return source / "tests/models/deepseek_v4-bf16"


def top(polymath, trained, model):
    """Ids, and the log-probabilities of the 1,000 likeliest tokens of each step."""
    ids = load_file(trained / "oracle.safetensors")[f"{PROMPT}.input_ids"]
    options = ["--kv-type", "f32", "--top-logprobs", 1000, "--max-tokens", STEPS]
    out = as_json(polymath, *options, "--ids", ",".join(map(str, ids)), model)
    return out["output_ids"], [{t["id"]: t["logprob"] for t in step["top"]} for step in out["logprobs"]]


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_layout(polymath, trained, tmp_path, layout):
    rewritten, plain = layouts.rewrite(trained, layout, tmp_path)
    ids, got = top(polymath, trained, rewritten)
    want_ids, want = top(polymath, trained, plain)
    assert ids == want_ids
    for step, (a, b) in enumerate(zip(got, want, strict=True)):
        common = a.keys() & b.keys()
        assert len(common) >= 990
        worst = max(common, key=lambda token: abs(a[token] - b[token]))
        assert abs(a[worst] - b[worst]) <= NEAR[layout], (step, worst, a[worst], b[worst])


def edited(trained, tmp_path, layout, edit):
    """A checkpoint in a layout after edit(tensors, config)."""
    folder, _ = layouts.rewrite(trained, layout, tmp_path)
    path, config = folder / "model.safetensors", json.loads((folder / "config.json").read_text())
    source = layouts.read(trained / "model.safetensors")
    tensors, _ = layouts.LAYOUTS[layout](source, json.loads((trained / "config.json").read_text()))
    edit(tensors, config)
    layouts.write(path, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


EXPERT = "layers.1.ffn.experts.3.w2."


def further_prediction(tensors, _):
    tensors["mtp.1.attn.wkv.weight"] = tensors["mtp.0.attn.wkv.weight"]


def fp4_unsaid(_, config):
    del config["expert_dtype"]


def fp4_as_fp8(_, config):
    config["expert_dtype"] = "fp8"


def no_scale(tensors, _):
    del tensors[EXPERT + "scale"]


def orphan_scale(tensors, _):
    tensors["layers.1.ffn.gate.scale"] = ("F32", np.ones((1, 1), np.float32))


def scale_not_a_number(tensors, _):
    tensors["layers.0.attn.wkv.scale"] = ("F8_E8M0", np.full((1, 1), 255, np.uint8))


def scale_of_other_type(tensors, _):
    tensors[EXPERT + "scale"] = ("U8", tensors[EXPERT + "scale"][1])


def narrow_expert(tensors, _):
    dtype, bits = tensors[EXPERT + "weight"]
    tensors[EXPERT + "weight"] = (dtype, bits[:, ::2])


def unknown_expert(tensors, _):
    table = tensors["layers.0.ffn.gate.tid2eid"][1].copy()
    table[7, 2] = 8
    tensors["layers.0.ffn.gate.tid2eid"] = ("I64", table)


def float_table(tensors, _):
    table = tensors["layers.0.ffn.gate.tid2eid"][1]
    tensors["layers.0.ffn.gate.tid2eid"] = ("F32", table.astype(np.float32))


def no_indexer(tensors, _):
    del tensors["layers.2.attn.indexer.wq_b.weight"]


def bias_and_table(tensors, _):
    tensors["layers.0.ffn.gate.bias"] = tensors["layers.1.ffn.gate.bias"]


@pytest.mark.parametrize(
    "edit, words",
    [
        (further_prediction, ["mtp.1.attn.wkv.weight", "is not part of this model"]),
        (fp4_unsaid, ["layers.0.ffn.experts.0.w1.weight", "expert_dtype is not fp4"]),
        (fp4_as_fp8, ["layers.0.ffn.experts.0.w1.weight", "expert_dtype is not fp4"]),
        (no_scale, [EXPERT + "weight", "has no scales"]),
        (orphan_scale, ["layers.1.ffn.gate.scale", "is not part of this model"]),
        (scale_not_a_number, ["layers.0.attn.wkv.scale", "not a number"]),
        (scale_of_other_type, [EXPERT + "scale", "U8"]),
        (narrow_expert, [EXPERT + "weight", "[128, 16]", "[128, 32]"]),
        (unknown_expert, ["layers.0.ffn.gate.tid2eid", "token 7", "an expert that there is not"]),
        (float_table, ["layers.0.ffn.gate.tid2eid", "F32", "I64"]),
        (no_indexer, ["tensor layers.2.attn.indexer.wq_b.weight is missing"]),
        (bias_and_table, ["layers.0.ffn.gate.bias", "is not part of this model"]),
    ],
)
def test_what_is_refused(polymath, trained, tmp_path, edit, words):
    model = edited(trained, tmp_path, "release", edit)
    refused(call(polymath, "run", model, "What is a dog?"), 1, *words)


def field(name, value):
    def edit(config):
        if value is None:
            config.pop(name)
        else:
            config[name] = value

    return edit


@pytest.mark.parametrize(
    "edit, words",
    [
        (field("scoring_func", "softmax"), ["scoring_func = softmax", "sqrtsoftplus"]),
        (field("compress_ratios", [0, 128, 4, 128, 8]), ["compress_ratios = 8"]),
        (field("compress_ratios", [0, 128, 4, 128]), ["compress_ratios has 4 entries", "num_hidden_layers is 5"]),
        (field("compress_ratios", [0, 128, 4, 128, 4, 4]), ["compress_ratios has 6 entries"]),
        (field("layer_types", ["full_attention"] * 5), ["layer_types = full_attention"]),
        (field("mlp_layer_types", ["dense"] * 5), ["mlp_layer_types = dense"]),
        (field("num_experts_per_tok", 9), ["9 experts per token of 8"]),
        (field("num_experts_per_tok", 0), ["num_experts_per_tok = 0"]),
        (field("norm_topk_prob", False), ["norm_topk_prob = false"]),
        (field("n_shared_experts", 2), ["n_shared_experts = 2"]),
        (field("num_key_value_heads", 2), ["num_key_value_heads = 2"]),
        (field("o_groups", 3), ["num_attention_heads 4", "o_groups 3"]),
        (field("hc_mult", 9), ["hc_mult"]),
        (field("qk_rope_head_dim", 31), ["31 turned elements", "head_dim 64"]),
        (field("partial_rotary_factor", 0.25), ["qk_rope_head_dim 32 contradicts partial_rotary_factor"]),
        (field("rope_scaling", {"type": "llama3", "factor": 2}), ["rope_scaling.type = llama3"]),
        (field("index_topk", 0), ["index_topk"]),
        (field("sliding_window", None), ["lacks the field sliding_window"]),
        (field("attention_bias", True), ["attention_bias = true"]),
        (field("expert_dtype", "fp6"), ["expert_dtype = fp6"]),
    ],
)
def test_configs_that_are_refused(polymath, trained, tmp_path, edit, words):
    config = json.loads((trained / "config.json").read_text())
    edit(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(trained / "model.safetensors")
    for file in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).symlink_to(trained / file)
    refused(call(polymath, "run", tmp_path, "What is a dog?"), 1, "config.json", *words)
