"""Copies of checkpoints as mlx-lm 0.32 reads them: rope_theta and rope_scaling at the top level, fused experts."""

import json
import shutil
from pathlib import Path

import mlx.core as mx


def respell(config):
    """Puts the old names in place of the new ones."""
    text = config.get("text_config", config)
    types = text.get("layer_types", [])
    if "linear_attention" in types:
        interval = types.index("full_attention") + 1
        if [t == "full_attention" for t in types] != [(i + 1) % interval == 0 for i in range(len(types))]:
            raise ValueError("mlx-lm has full attention at regular intervals only")
        text["full_attention_interval"] = interval
    if config["model_type"] == "glm_moe_dsa":  # mlx-lm wants what published files have and transformers does not write
        config |= {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1}
    if text is not config or config["model_type"] == "glm_moe_dsa":
        return  # these read rope_parameters
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    if "num_local_experts" in config:
        config["num_experts"] = config.pop("num_local_experts")


def fuse(weights):
    """Stacks one-by-one experts into gate_up_proj and down_proj."""
    prefixes = {name.split(".experts.")[0] for name in weights if ".experts.0." in name}
    for prefix in prefixes:
        count = sum(n.startswith(prefix + ".experts.") and n.endswith(".up_proj.weight") for n in weights)
        gate, up, down = (
            mx.stack([weights.pop(f"{prefix}.experts.{e}.{part}_proj.weight") for e in range(count)])
            for part in ("gate", "up", "down")
        )
        weights[f"{prefix}.experts.gate_up_proj"] = mx.concatenate([gate, up], axis=1)
        weights[f"{prefix}.experts.down_proj"] = down


def copy_for_mlx(folder, to, widen=False):
    """Copies the checkpoint `folder` into the folder `to` and returns `to`; `widen`: with f32 weights."""
    for file in folder.iterdir():
        if not file.name.startswith(("oracle", "config", "model")):
            shutil.copy(file, to)
    config = json.loads((folder / "config.json").read_text())
    respell(config)
    (Path(to) / "config.json").write_text(json.dumps(config, indent=2))
    weights = mx.load(str(folder / "model.safetensors"))
    if config["model_type"] == "qwen3_5_moe":
        fuse(weights)
    if widen:
        weights = {name: value.astype(mx.float32) for name, value in weights.items()}
    mx.save_safetensors(str(Path(to) / "model.safetensors"), weights)
    return to
