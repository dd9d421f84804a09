"""--device: what is in the build answers, what is not is refused with how to get it."""

import json

import pytest

from command import DOG, answer, as_json, call, refused


@pytest.fixture(scope="module")
def has_mlx(build_dir):
    """Whether the build has the MLX backend: then libmlx is what the command is linked with."""
    return b"libmlx" in (build_dir / "polymath").read_bytes()


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_the_processor(polymath, device):
    assert answer(polymath, "--device", device, "What is a dog?") == DOG


def test_mlx(polymath, bundled, has_mlx):
    if not has_mlx:
        for device in "mlx", "mlx:gpu":
            refused(call(polymath, "run", "--device", device, "x"), 1, "mlx", "make mlx")
        told = call(polymath, "inspect", "--json", "--device", "mlx", bundled)
        assert not json.loads(told.stdout)["supported"] and b"make mlx" in told.stdout
        return
    assert answer(polymath, "--device", "mlx", "What is a dog?") == DOG
    told = call(polymath, "inspect", "--json", "--device", "mlx", bundled)
    assert json.loads(told.stdout)["device"].startswith("mlx ")
    near = as_json(polymath, "--device", "mlx", "--top-logprobs", 0, "What is a dog?")["logprobs"]
    for ours, theirs in zip(near, as_json(polymath, "--top-logprobs", 0, "What is a dog?")["logprobs"], strict=True):
        assert abs(ours["logprob"] - theirs["logprob"]) < 1e-2
    refused(call(polymath, "run", "--device", "mlx", "--threads", 2, "x"), 1, "threads")
    refused(call(polymath, "run", "--device", "mlx", "--precision", "fast", "x"), 1, "precision fast")
    refused(call(polymath, "run", "--device", "mlx", "--kv-type", "q8", "x"), 1, "q8")
    refused(call(polymath, "bench", "--device", "mlx"), 1, "profile")
