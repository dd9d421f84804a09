"""Runs mlx-lm on the unquantised checkpoints and prints how far it is from the transformers oracles.

usage: cross_check.py [NAME ...]

The weights are widened to f32 first, because mlx-lm adds the 1 of zero-centred norms in the type of the file.
"""

import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model
from safetensors.numpy import load_file

from respell import copy_for_mlx

OUT = Path(__file__).resolve().parents[2] / "tests" / "oracles"


def load(folder):
    with tempfile.TemporaryDirectory() as temporary:
        model, _ = load_model(Path(copy_for_mlx(folder, temporary, widen=True)))
        mx.eval(model.parameters())
    model.set_dtype(mx.float32)
    return model


def main():
    mx.set_default_device(mx.cpu)
    print("| checkpoint | short | long |\n| --- | --- | --- |")
    for name in sys.argv[1:] or sorted(f.parent.name for f in OUT.glob("*/oracle.safetensors")):
        oracle = load_file(OUT / name / "oracle.safetensors")
        try:
            model = load(OUT / name)
        except Exception as error:
            print(f"| {name} | not run: {str(error).splitlines()[0]} | |", flush=True)
            continue
        worst = []
        for prompt in ("short", "long"):
            have = np.array(model(mx.array(oracle[f"{prompt}.input_ids"])[None])[0])
            worst.append(np.abs(have - oracle[f"{prompt}.logits"]).max())
        print(f"| {name} | {worst[0]:.1e} | {worst[1]:.1e} |", flush=True)


if __name__ == "__main__":
    main()
