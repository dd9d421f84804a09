"""Quantises some of the checkpoints with mlx-lm, on the CPU. usage: make_mlx.py [NAME ...]

Run it after make_hf.py. Writes tests/oracles/NAME, with oracle_mlx.safetensors: f32 activations, prompts drawn anew.
"""

import json
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
from mlx_lm.convert import convert
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
from safetensors.numpy import save_file

from drawing import PROMPTS, Routes, draw, record, summary
from respell import copy_for_mlx
from vocabulary import write

OUT = Path(__file__).resolve().parents[2] / "tests" / "oracles"
ROWS = {"short": 9, "long": 16}  # last rows of logits that are stored


@dataclass
class Quantised:
    base: str  # folder of the unquantised checkpoint
    mode: str = "affine"
    bits: int | None = None
    group: int | None = None
    table: tuple = ()  # (end of the path, layer or None, bits or 0 for unquantised, group); the first that fits counts


CHECKPOINTS = {
    "qwen3_moe-mxfp4": Quantised("qwen3_moe", "mxfp4"),
    "qwen3_moe-3_4_6bit": Quantised(
        "qwen3_moe",
        bits=4,
        group=32,
        table=(
            ("q_proj", 1, 0, 0),
            ("mlp.gate", None, 6, 64),
            ("down_proj", 0, 6, 32),
            ("down_proj", 1, 3, 32),
            ("gate_proj", None, 3, 64),
            ("up_proj", 0, 3, 32),
            ("o_proj", None, 6, 64),
            ("v_proj", 0, 6, 32),
            ("embed_tokens", None, 6, 64),
        ),
    ),
    "qwen3_moe-nvfp4": Quantised("qwen3_moe", "nvfp4"),
    "llama-mxfp8": Quantised("llama-llama3", "mxfp8"),
    "glm_moe_dsa-3_4_6bit": Quantised(
        "glm_moe_dsa-full",
        bits=4,
        group=32,
        table=(
            ("embed_q", 1, 6, 32),
            ("embed_q", 2, 3, 32),
            ("unembed_out", 0, 6, 64),
            ("unembed_out", 2, 3, 32),
            ("kv_a_proj_with_mqa", None, 6, 64),
            ("q_b_proj", 1, 0, 0),
            ("wq_b", None, 3, 32),
            ("weights_proj", 0, 0, 0),
            ("down_proj", 1, 6, 32),
            ("down_proj", 2, 3, 32),
            ("gate_proj", None, 3, 64),
            ("embed_tokens", None, 6, 64),
        ),
    ),
    "llama-2_5_8bit": Quantised(
        "llama-llama3",
        bits=8,
        group=32,
        table=(
            ("down_proj", 0, 2, 128),
            ("down_proj", 1, 8, 128),
            ("gate_proj", 0, 2, 32),
            ("gate_proj", 1, 5, 32),
            ("up_proj", 0, 5, 64),
            ("up_proj", 1, 2, 64),
            ("q_proj", 0, 8, 64),
            ("k_proj", 0, 5, 32),
            ("v_proj", 0, 2, 32),
        ),
    ),
}


def quantise(name, folder):
    """Converts the base checkpoint as `mlx_lm.convert` does, with the table's bits where it says so."""
    kind = CHECKPOINTS[name]

    def choose(path, module):
        layer = next((int(part) for part in path.split(".") if part.isdigit()), None)
        for end, only, bits, group in kind.table:
            if path.endswith(end) and only in (None, layer):
                return {"group_size": group, "bits": bits} if bits else False
        return True

    with tempfile.TemporaryDirectory() as temporary:
        convert(
            copy_for_mlx(OUT / kind.base, temporary),
            str(folder),
            quantize=True,
            q_group_size=kind.group,
            q_bits=kind.bits,
            q_mode=kind.mode,
            quant_predicate=choose if kind.table else None,
        )
    keep = {"config.json", "generation_config.json", "model.safetensors"}
    for file in folder.iterdir():
        if file.name not in keep:
            file.unlink()
    write(folder)


class Watched:
    """A router that tells `routes` about every choice of experts."""

    def __init__(self, gate, top_k, layer, routes):
        self.gate, self.top_k, self.layer, self.routes = gate, top_k, layer, routes

    def __call__(self, x):
        logits = self.gate(x)
        self.routes.see(self.layer, np.array(logits.astype(mx.float32)).reshape(-1, logits.shape[-1]), self.top_k)
        return logits


class WatchedScores(Watched):
    """The same for a router that chooses by itself, by scores with a bias."""

    def __call__(self, x):
        scores = mx.sigmoid((x @ self.gate.weight.T).astype(mx.float32)) + self.gate.e_score_correction_bias
        self.routes.see(self.layer, np.array(scores).reshape(-1, scores.shape[-1]), self.top_k)
        return self.gate(x)


def watch(model, routes):
    for index, layer in enumerate(model.layers):
        if hasattr(layer.mlp, "gate") and hasattr(layer.mlp.gate, "e_score_correction_bias"):
            layer.mlp.gate = WatchedScores(layer.mlp.gate, layer.mlp.gate.top_k, index, routes)
        elif hasattr(layer.mlp, "gate"):
            layer.mlp.gate = Watched(layer.mlp.gate, layer.mlp.top_k, index, routes)


def logits(model, ids, cache=None):
    return np.array(model(mx.array([ids]), cache=cache)[0].astype(mx.float32))


def cached_difference(model, prompt, ids):
    """Largest difference between decoding with the library's own cache and recomputing."""
    reference, cache = logits(model, prompt + ids), make_prompt_cache(model)
    worst = np.abs(logits(model, prompt, cache) - reference[: len(prompt)]).max()
    for i, token in enumerate(ids[:-1]):
        worst = max(worst, np.abs(logits(model, [token], cache)[-1] - reference[len(prompt) + i]).max())
    return float(worst)


def oracle(name, folder):
    """Computes the oracle from the files just written."""
    routes, tensors, report = Routes(), {}, {}
    model, _ = load_model(folder)
    model.set_dtype(mx.float32)
    watch(model, routes)
    for label in PROMPTS:
        prompt, ids, margins, draws = draw(name, label, lambda ids: logits(model, ids), routes)
        rows = logits(model, prompt)
        tensors |= record(label, prompt, rows, ROWS[label], ids, margins)
        report[label] = summary(prompt, rows, ids, margins, draws, cached_difference(model, prompt, ids), routes)
    save_file(tensors, folder / "oracle_mlx.safetensors")
    about = {
        "library": "mlx-lm",
        "version": mlx_lm.__version__,
        "mlx": mx.__version__,
        "base": CHECKPOINTS[name].base,
        "arithmetic": "float32 activations, CPU, stored weights",
        "prompts": report,
    }
    (folder / "oracle_mlx.json").write_text(json.dumps(about, indent=1) + "\n")
    return report


def main():
    mx.set_default_device(mx.cpu)
    for name in sys.argv[1:] or CHECKPOINTS:
        folder = OUT / name
        shutil.rmtree(folder, ignore_errors=True)
        quantise(name, folder)
        report = oracle(name, folder)
        for file in folder.iterdir():
            file.chmod(0o644)
        size = sum(f.stat().st_size for f in folder.iterdir())
        print(f"{name}: {size / 1000:.0f} kB {json.dumps(report)}", flush=True)


if __name__ == "__main__":
    main()
