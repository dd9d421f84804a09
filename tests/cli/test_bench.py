"""polymath bench: what it prints, and that the bytes it counts are those of the checkpoint."""

import csv
import json
import math
import struct

import pytest

from command import call, refused

DECODED = 32  # tokens of a repetition
KEYS = {"context", "tokens", "tokens_per_s", "bytes_per_token", "ops_per_token", "fraction"}


def bench(polymath, *args):
    done = call(polymath, "bench", *args)
    assert (done.returncode, done.stderr) == (0, b""), done
    return done.stdout.decode()


def stored(folder):
    """The tensors of a checkpoint's header: {name: (elements, bytes, shape)}."""
    with open(folder / "model.safetensors", "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    tensors = {}
    for name, tensor in header.items():
        if name != "__metadata__":
            elements = 1
            for n in tensor["shape"]:
                elements *= n
            first, last = tensor["data_offsets"]
            tensors[name] = (elements, last - first, tensor["shape"])
    return tensors


def decode_bytes(folder, context, element):
    """What decoding DECODED tokens after `context` others must read, per token: an independent count."""
    config = json.loads((folder / "config.json").read_text())["text_config"]
    tensors = stored(folder)
    total = 0
    for name, (elements, size, shape) in tensors.items():
        if "embed_tokens" in name:
            total += size // shape[0]
        elif "switch_mlp" in name:
            total += size * config["num_experts_per_tok"] // config["num_experts"]
        elif name.removesuffix(".weight") + ".scales" in tensors or name.endswith((".scales", ".biases")):
            total += size
        else:  # norms and the like are kept in f32
            total += 4 * elements
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    tail = (config["linear_conv_kernel_dim"] - 1) * (2 * keys + values)
    row = 2 * config["num_key_value_heads"] * config["head_dim"] * element
    for kind in config["layer_types"]:
        if kind == "linear_attention":
            total += 2 * 4 * (values * config["linear_key_head_dim"] + tail)
        else:
            total += row * (context + (DECODED + 1) / 2)
    return total


def test_json(polymath, bundled):
    result = json.loads(bench(polymath, "--json", "--repeat", 2, "--contexts", "100,0,100", "--threads", 2, bundled))
    assert result["device"].startswith("cpu") and result["threads"] == 2
    assert result["read_gbs"] > 0 and result["integer_gops"] > 0 and result["float_gops"] > 0
    for phase, tokens in ("decode", DECODED), ("prefill", 512):
        assert [line["context"] for line in result[phase]] == [0, 100]
        for line in result[phase]:
            assert set(line) == KEYS and line["tokens"] == tokens
            # Of one run's own numbers: on a machine that others use, the bandwidth of a moment may be beaten in the next.
            reading = line["bytes_per_token"] * line["tokens_per_s"] / (1e9 * result["read_gbs"])
            assert 0.999 * reading <= line["fraction"] < math.inf, (phase, line)
            assert line["tokens_per_s"] > 0
    for line in result["decode"]:
        assert line["bytes_per_token"] == pytest.approx(decode_bytes(bundled, line["context"], 2), rel=1e-8)
    # Tokens of a prompt share what they read, if not all of it.
    assert result["prefill"][0]["bytes_per_token"] < result["decode"][0]["bytes_per_token"] / 50


def test_sequences_together(polymath, source):
    """Weights are read once for all of them, what each remembers for each; attention has both."""
    model = source / "tests/models/lfm2-4bit"
    one, five = (
        json.loads(bench(polymath, "--json", "--ops", "--repeat", 1, "--contexts", 3, "--concurrency", n, model))["decode"][0]
        for n in (1, 5)
    )
    assert (one["tokens"], five["tokens"]) == (DECODED, 5 * DECODED)
    alone, shared = ({op["name"]: op["bytes_per_token"] for op in line["ops"]} for line in (one, five))
    assert shared["logits"] == pytest.approx(alone["logits"] / 5, rel=1e-6)
    assert 0.8 * alone["attention"] < shared["attention"] < alone["attention"]
    assert five["ops_per_token"] == pytest.approx(one["ops_per_token"], rel=1e-6)


@pytest.mark.parametrize("kind, element", [("f32", 4), ("q8", 1 + 4 / 64)])
def test_kv_type_counts(polymath, bundled, kind, element):
    text = bench(polymath, "--json", "--repeat", 1, "--contexts", 9, "--kv-type", kind)
    line = json.loads(text)["decode"][0]
    assert line["bytes_per_token"] == pytest.approx(decode_bytes(bundled, 9, element), rel=1e-8)


def test_precision(polymath):
    """The work is the same in both."""
    exact, fast = (
        json.loads(bench(polymath, "--json", "--repeat", 3, "--contexts", 0, "--precision", p)) for p in ("exact", "fast")
    )
    assert (exact["precision"], fast["precision"]) == ("exact", "fast")
    assert exact["decode"][0]["ops_per_token"] == fast["decode"][0]["ops_per_token"]
    assert bench(polymath, "--repeat", 1, "--contexts", 0, "--precision", "fast").split(":")[0].endswith(", fast")


def test_operations_add_up(polymath):
    result = json.loads(bench(polymath, "--json", "--ops", "--repeat", 1, "--contexts", 0))
    for line in result["decode"] + result["prefill"]:
        parts = line["ops"]
        names = [part["name"] for part in parts]
        assert names == ["embed", "linear", "attention", "gated_delta", "moe", "logits", "other"]
        assert sum(part["seconds_per_token"] for part in parts) == pytest.approx(1 / line["tokens_per_s"], rel=1e-6)
        for key in "bytes_per_token", "ops_per_token":
            assert sum(part[key] for part in parts) == pytest.approx(line[key], rel=1e-6)


def test_csv(polymath):
    rows = list(csv.DictReader(bench(polymath, "--csv", "--repeat", 1, "--contexts", "0,5").splitlines()))
    assert [(row["phase"], row["context"], row["part"]) for row in rows] == [
        ("decode", "0", "step"), ("decode", "5", "step"), ("prefill", "0", "step"), ("prefill", "5", "step"),
    ]  # fmt: skip
    assert all(0 < float(row["seconds_per_token"]) < math.inf and 0 < float(row["fraction"]) < math.inf for row in rows)
    with_parts = list(csv.DictReader(bench(polymath, "--csv", "--ops", "--repeat", 1, "--contexts", "0").splitlines()))
    assert [row["part"] for row in with_parts].count("moe") == 2


def test_table(polymath):
    """Without --contexts they go as far as the model does: 2048 less the 512 tokens of the prompt."""
    text = bench(polymath, "--ops", "--repeat", 1)
    lines = [line.split() for line in text.splitlines()]
    shown = [(line[0], int(line[1])) for line in lines if line and line[0] in ("decode", "prefill")]
    assert shown == [(phase, n) for phase in ("decode", "prefill") for n in (0, 512, 1536)]
    assert sum(line[:1] == ["gated_delta"] for line in lines) == 6
    assert "nan" not in text and "from its cache" in text
    head = next(line for line in text.splitlines() if "context" in line)
    assert "GB/s   of limit  limited by" in head
    end = head.index("of limit") + len("of limit")
    assert all(line[end - 1] == "%" for line in text.splitlines() if line.startswith(("decode", "prefill")))


def test_long_names_keep_the_columns(polymath, source):
    text = bench(polymath, "--ops", "--repeat", 1, "--contexts", 0, source / "tests/models/deepseek_v32-4bit")
    lines = text.splitlines()
    end = next(line for line in lines if "context" in line).index("of limit") + len("of limit")
    shares = [line for line in lines if line.endswith(("reading", "arithmetic"))]
    assert sum("latent_attention" in line for line in shares) == 2
    assert all(line[end - 1] == "%" for line in shares), text


def test_a_small_context(polymath):
    result = json.loads(bench(polymath, "--json", "--repeat", 1, "--ctx", 20))
    assert [(line["context"], line["tokens"]) for line in result["decode"] + result["prefill"]] == [(0, 20), (0, 20)]


def test_refused(polymath, bundled, tmp_path):
    refused(call(polymath, "bench", "--contexts", "1537"), 1, 1537, 512, 2048)
    refused(call(polymath, "bench", "--contexts", "1,x"), 2, "--contexts", "'1,x'")
    refused(call(polymath, "bench", "--contexts", ",".join("0" * 65)), 2, 65, 64)
    refused(call(polymath, "bench", "--repeat", 0), 2, "--repeat", "'0'")
    refused(call(polymath, "bench", "--json", "--csv"), 2, "--json and --csv")
    refused(call(polymath, "bench", tmp_path / "none"), 1, tmp_path)
