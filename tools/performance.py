"""Measures what docs/performance.md shows and writes its tables anew.

    python3 tools/performance.py [BUILD_DIR] [TABLE]...     (default: build/release, all tables: machine, models, together, lengths, far,
    formats)

On a quiet machine with 10 GB free in the temporary folder.

Checkpoints with random weights at real dimensions are made by random_checkpoint, measured by `polymath bench` and removed."""

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import sections

TOP = Path(__file__).resolve().parent.parent
MODELS = [
    ("Qwen3-30B-A3B", 6),
    ("Qwen3.5-35B-A3B", 8),
    ("Llama-3.2-1B", 16),
    ("LFM2-1.2B", 16),
    ("LFM2-8B-A1B", 8),
    ("Nemotron-H-8B", 13),
]
TOGETHER = [("Llama-3.2-1B", 16), ("Qwen3-30B-A3B", 6)]
FORMATS = ["4bit", "8bit", "bf16", "mxfp4", "2bit", "3bit", "5bit", "6bit", "mxfp8", "nvfp4", "fp8"]
LONG = 32768
MIXERS = ("short_conv", "mamba2")
HYBRIDS = [  # without their attention
    ("LFM2-1.2B", {"num_hidden_layers": 2, "full_attn_idxs": []}),
    ("Nemotron-H-8B", {"num_hidden_layers": 1, "hybrid_override_pattern": "M", "max_position_embeddings": 2 * LONG}),
]
GOALS = {"4bit": 80, "8bit": 85, "bf16": 85, "mxfp4": 85, "2bit": 70, "3bit": 70, "5bit": 70, "6bit": 70}


def bench(build, checkpoint, *options):
    command = [build / "polymath", "bench", *options, "--ops", "--json", *([checkpoint] if checkpoint else [])]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def with_checkpoint(build, preset, layers, form, *options):
    """The bench of a checkpoint that exists only meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([build / "random_checkpoint", folder, preset, "--layers", str(layers), "--format", form], check=True)
        return bench(build, folder, *options)


def inspect(build, folder):
    command = [build / "polymath", "inspect", "--json", folder]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def percent(fraction):
    return f"{100 * fraction:.0f} %"


def operation(row, name):
    return next((op["fraction"] for op in row["ops"] if op["name"] == name), None)


def models_table(build):
    yield "| model | decode, tokens/s | of limit | prefill of 512, tokens/s | of limit | reads, GB/s |"
    yield "| --- | --- | --- | --- | --- | --- |"
    runs = [("bundled model", bench(build, None, "--contexts", "0"))]
    for preset, layers in MODELS:
        runs.append((f"{preset}, {layers} layers, 4-bit", with_checkpoint(build, preset, layers, "4bit", "--contexts", "0")))
    for name, run in runs:
        decode, prefill = run["decode"][0], run["prefill"][0]
        cached = " (cache)" if run["from_cache"] else ""
        yield (f"| {name} | {decode['tokens_per_s']:.0f} | {percent(decode['fraction'])} | {prefill['tokens_per_s']:.0f} | "
               f"{percent(prefill['fraction'])} | {run['read_gbs']:.1f}{cached} |")  # fmt: skip


def together_table(build):
    yield "| model, 4-bit | sequences | tokens/s | times one | of limit |"
    yield "| --- | --- | --- | --- | --- |"
    for preset, layers in TOGETHER:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([build / "random_checkpoint", folder, preset, "--layers", str(layers), "--format", "4bit"], check=True)
            lines = [(n, bench(build, folder, "--contexts", "0", "--concurrency", str(n))["decode"][0]) for n in (1, 2, 4, 8, 16)]
        for n, line in lines:
            yield (f"| {preset}, {layers} layers | {n} | {line['tokens_per_s']:.0f} | "
                   f"{line['tokens_per_s'] / lines[0][1]['tokens_per_s']:.2f} | {percent(line['fraction'])} |")  # fmt: skip


def formats_table(build):
    yield "| format | goal | matrix x vector | gathered experts | matrix x 512 columns, of peak |"
    yield "| --- | --- | --- | --- | --- |"
    for form in FORMATS:
        dense = with_checkpoint(build, "Llama-3.2-1B", 16, form, "--contexts", "0", "--repeat", "3")
        sparse = with_checkpoint(build, "Qwen3-30B-A3B", 4, form, "--contexts", "0", "--repeat", "3")
        goal = f"{GOALS[form]} %" if form in GOALS else ""
        yield (f"| {form} | {goal} | {percent(operation(dense['decode'][0], 'moe'))} | "
               f"{percent(operation(sparse['decode'][0], 'moe'))} | {percent(operation(dense['prefill'][0], 'moe'))} |")  # fmt: skip


def lengths_table(build):
    yield f"| layers without attention of | ms per token after 0 | after {LONG:,} | ratio | that of the mixer alone | states, MB |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for preset, changes in HYBRIDS:
        with tempfile.TemporaryDirectory() as folder:
            config = json.loads((TOP / "tools" / "presets" / f"{preset}.json").read_text()) | changes
            (Path(folder) / "wanted.json").write_text(json.dumps(config))
            subprocess.run([build / "random_checkpoint", f"{folder}/model", f"{folder}/wanted.json", "--format", "4bit"],
                           check=True)  # fmt: skip
            first, last = bench(build, f"{folder}/model", "--contexts", f"0,{LONG}", "--repeat", "9")["prefill"]
            states = inspect(build, f"{folder}/model")["state_bytes"] / 1e6
        times = [1000 / line["tokens_per_s"] for line in (first, last)]
        mixer = [next(op["seconds_per_token"] for op in line["ops"] if op["name"] in MIXERS) for line in (first, last)]
        yield (f"| {preset}, {config['num_hidden_layers']} | {times[0]:.3f} | {times[1]:.3f} | {times[1] / times[0]:.2f} | "
               f"{mixer[1] / mixer[0]:.2f} | {states:.2f} |")  # fmt: skip


def far(build, preset, context):
    """The far_decode of three layers of a preset."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([build / "random_checkpoint", folder, preset, "--layers", "3", "--format", "4bit"], check=True)
        command = [build / "far_decode", folder, str(context), "7"]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def far_table(build):
    yield "| model, 3 layers, 4-bit | context | ms per token | of limit | latent_attention | sparse_index |"
    yield "| --- | --- | --- | --- | --- | --- |"
    runs = [("DeepSeek-V3", 32768), ("DeepSeek-V3", 131072), ("DeepSeek-V3.2", 131072)]
    for preset, context in runs:
        run = far(build, preset, context)
        cells = [operation(run, name) for name in ("latent_attention", "sparse_index")]
        cells = [percent(cell) if cell else "" for cell in cells]
        yield (f"| {preset} | {context} | {1e3 * run['seconds_per_token']:.0f} | {percent(run['fraction'])} | "
               f"{cells[0]} | {cells[1]} |")  # fmt: skip
    gate = float(subprocess.run([build / "route_time"], check=True, stdout=subprocess.PIPE).stdout)
    yield ""
    yield f"Routing, 8 of 256 experts by sigmoid scores in 8 groups: {gate:.1f} µs per token."


def machine(build):
    name = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    device = inspect(build, TOP / "models" / "default")["device"]
    yield f"{name}, {len(os.sched_getaffinity(0))} cores of a virtual machine, {platform.system()}; {device}."


TABLES = {
    "machine": machine,
    "models": models_table,
    "together": together_table,
    "lengths": lengths_table,
    "far": far_table,
    "formats": formats_table,
}


def main():
    build = Path(sys.argv[1] if len(sys.argv) > 1 else TOP / "build" / "release").resolve()
    path = TOP / "docs" / "performance.md"
    text = path.read_text()
    wanted = sys.argv[2:]
    for name, table in TABLES.items():
        if not wanted or name in wanted:
            text = sections.replace(text, name, table(build))
    path.write_text(text)


if __name__ == "__main__":
    main()
