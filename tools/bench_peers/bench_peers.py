"""Times polymath beside llama.cpp, mlx-lm and transformers, on models of the same shapes with random weights.

    python tools/bench_peers/bench_peers.py prepare|measure|forget|render|all [OPTIONS]

    --build DIR     polymath and random_checkpoint (default: build/release)
    --work DIR      models and results.json (default: build/peers; up to 14 GB a shape)
    --shape NAME    only that shape; may be repeated
    --entry NAME    only that engine and format, such as "llama.cpp Q4_0"; may be repeated
    --repeat N      rounds of `measure`, in each of which every entry has its turn (default: 1)
    --threads N     of each engine that can be told (default: one per processor)

`prepare` makes the models, `measure` adds to the results, `forget` takes results out, `render` writes their medians into
docs/performance.md and docs/peers.svg. `all` does one shape after another, 5 rounds unless told otherwise, and keeps no
models. Needs the packages of requirements.txt, a C++ compiler for the first of them, and a quiet machine.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import plot
from shapes import SHAPES, config

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
sys.path.insert(0, str(TOP / "tools"))
import sections  # noqa: E402

PROMPT, TOKENS = 512, 32  # what `polymath bench` measures
LIMIT = 300  # seconds that an entry may take

# Engine and what it is given. polymath and those that read its checkpoints: the format and options of `polymath bench`;
# llama.cpp: the type of the matrices. mlx-lm gets few tokens, since its CPU backend takes seconds for each.
ENTRIES = {
    "polymath 4-bit": ("polymath", "4bit", ["exact"]),
    "polymath 4-bit fast": ("polymath", "4bit", ["fast"]),
    "llama.cpp Q4_0": ("llama.cpp", "Q4_0", (PROMPT, TOKENS)),
    "polymath 8-bit": ("polymath", "8bit", ["exact"]),
    "polymath 8-bit fast": ("polymath", "8bit", ["fast"]),
    "llama.cpp Q8_0": ("llama.cpp", "Q8_0", (PROMPT, TOKENS)),
    "mlx-lm 4-bit": ("mlx-lm", "4bit", (4, 2)),
    "polymath bf16": ("polymath", "bf16", ["exact"]),
    "transformers bf16": ("transformers", "bf16", (PROMPT, TOKENS)),
}

# What is set beside what: a peer, and polymath with as many bits.
PAIRS = [
    ("llama.cpp Q4_0", "polymath 4-bit"),
    ("llama.cpp Q4_0", "polymath 4-bit fast"),
    ("llama.cpp Q8_0", "polymath 8-bit"),
    ("llama.cpp Q8_0", "polymath 8-bit fast"),
    ("mlx-lm 4-bit", "polymath 4-bit"),
    ("transformers bf16", "polymath bf16"),
]


def model(args, shape, entry):
    """Where the model of an entry lies."""
    engine, form, _ = ENTRIES[entry]
    return args.work / f"{shape}-{form}.gguf" if engine == "llama.cpp" else args.work / f"{shape}-{form}"


def has_precision(args):
    """Whether this polymath has modes of precision; one that does not is exact."""
    told = subprocess.run([args.build / "polymath", "bench", "--help"], stdout=subprocess.PIPE, text=True, check=True)
    return "--precision" in told.stdout


def entries(args):
    return [entry for entry in args.entry or ENTRIES if not entry.endswith("fast") or has_precision(args)]


def prepare(args):
    args.work.mkdir(parents=True, exist_ok=True)
    for shape in args.shape:
        layers = SHAPES[shape][0]
        described = args.work / f"{shape}.json"
        described.write_text(json.dumps(config(shape)))
        for entry in entries(args):
            engine, form, _ = ENTRIES[entry]
            path = model(args, shape, entry)
            if path.exists():
                continue
            part = path.with_name(path.name + ".part")  # a model that is there is whole
            if engine == "llama.cpp":
                command = [sys.executable, HERE / "random_gguf.py", shape, form, part]
            else:
                shutil.rmtree(part, ignore_errors=True)
                command = [args.build / "random_checkpoint", part, described, "--layers", str(layers), "--format", form]
            print("making", path, flush=True)
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            part.rename(path)


def reason(done):
    """Why a process failed: its exception, else its last line."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    raised = [i for i, line in enumerate(lines) if re.match(r"[\w.]*(Error|Exception)\b", line)]
    words = " ".join(lines[raised[-1] :] if raised else lines[-1:]) or f"ends with {done.returncode}"
    return words if len(words) <= 200 else words[:200] + " ..."


def timed(args, shape, entry):
    """One measurement: rates, or the reason why there are none."""
    engine, _, options = ENTRIES[entry]
    path, threads = model(args, shape, entry), str(args.threads)
    if engine == "polymath":
        precision = ["--precision", *options] if has_precision(args) else []
        command = [args.build / "polymath", "bench", "--json", "--contexts", "0", "--repeat", "1", "--threads", threads,
                   *precision, path]  # fmt: skip
    else:
        command = [sys.executable, HERE / "measure.py", engine, path, threads, *map(str, options)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return {"error": f"no end after {LIMIT} s"}
    if done.returncode:
        return {"error": reason(done)}
    told = json.loads(done.stdout.splitlines()[-1])
    if engine == "polymath":
        return {"decode": told["decode"][0]["tokens_per_s"], "prefill": told["prefill"][0]["tokens_per_s"]}
    return {"decode": told["decode"], "prefill": told["prefill"]}


def load(args):
    path = args.work / "results.json"
    return json.loads(path.read_text()) if path.exists() else []


def save(args, results):
    (args.work / "results.json").write_text(json.dumps(results, indent=1) + "\n")


def measure(args):
    for _ in range(args.repeat):
        for shape in args.shape:
            for entry in entries(args):
                result = {"shape": shape, "entry": entry, "threads": args.threads} | timed(args, shape, entry)
                save(args, load(args) + [result])
                print(result, flush=True)


def forget(args):
    chosen = args.entry or ENTRIES
    save(args, [r for r in load(args) if r["shape"] not in args.shape or r["entry"] not in chosen])


# ---- the document ----


def medians(results):
    """(shape, entry): rates, or the last error where nothing succeeded."""
    found = {}
    for shape, entry in dict.fromkeys((r["shape"], r["entry"]) for r in results):
        here = [r for r in results if (r["shape"], r["entry"]) == (shape, entry)]
        good = [r for r in here if "decode" in r]
        if good:
            found[shape, entry] = {what: statistics.median(r[what] for r in good) for what in ("decode", "prefill")}
        else:
            found[shape, entry] = {"error": here[-1]["error"]}
    return found


def number(x):
    return f"{x:.3g}" if x < 100 else f"{x:.0f}"


def times(ratio):
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def title(shape):
    layers = SHAPES[shape][0]
    experts = config(shape).get("n_routed_experts") if "n_routed_experts" in SHAPES[shape][1] else None
    return f"{shape}, {layers} layers" + (f", {experts} experts" if experts else "")


def table(found):
    yield "| shape | peer | polymath | decode, tokens/s | polymath | ratio | prefill, tokens/s | polymath | ratio |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for shape in SHAPES:
        for peer, own in PAIRS:
            if (shape, own) not in found or (shape, peer) not in found:
                continue
            theirs, ours = found[shape, peer], found[shape, own]
            cells = [title(shape), peer, own.removeprefix("polymath ")]
            for what in "decode", "prefill":
                if "error" in theirs:
                    cells += ["does not run", number(ours[what]), ""]
                else:
                    alike = what == "decode" or not peer.startswith("mlx-lm")  # which read a prompt of another length
                    ratio = times(ours[what] / theirs[what]) if alike else ""
                    cells += [number(theirs[what]), number(ours[what]), ratio]
            yield f"| {' | '.join(cells)} |"
    yield ""
    failed = [(shape, entry, r["error"]) for (shape, entry), r in found.items() if "error" in r]
    yield "What does not run, and what it says:" if failed else "Every peer runs every shape."
    if failed:
        yield ""
    for shape, entry, error in failed:
        yield f"- {entry}, {shape}: ``{error}``"


def render(args):
    results = load(args)
    found = medians(results)
    for (shape, entry), row in found.items():
        assert "error" not in row or not entry.startswith("polymath"), f"{entry} on {shape}: {row['error']}"
    document = TOP / "docs" / "performance.md"
    document.write_text(sections.replace(document.read_text(), "peers", table(found)))
    bars = [
        (title(shape), f"{own.removeprefix('polymath ')} : {peer}",
         *(found[shape, own][what] / found[shape, peer][what] for what in ("decode", "prefill")))
        for shape in SHAPES for peer, own in PAIRS
        if peer.startswith("llama.cpp") and (shape, own) in found and "decode" in found.get((shape, peer), {})
    ]  # fmt: skip
    (TOP / "docs" / "peers.svg").write_text(plot.svg(bars))


def everything(args):
    every = args.shape
    for shape in every:
        args.shape = [shape]
        prepare(args)
        measure(args)
        for entry in ENTRIES:
            path = model(args, shape, entry)
            path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)
    args.shape = every
    render(args)


COMMANDS = {"prepare": prepare, "measure": measure, "forget": forget, "render": render, "all": everything}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--build", type=Path, default=TOP / "build" / "release")
    parser.add_argument("--work", type=Path, default=TOP / "build" / "peers")
    parser.add_argument("--shape", action="append", choices=SHAPES)
    parser.add_argument("--entry", action="append", choices=ENTRIES)
    parser.add_argument("--repeat", type=int)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    args.shape = args.shape or list(SHAPES)
    args.repeat = args.repeat or (5 if args.command == "all" else 1)
    args.build, args.work = args.build.resolve(), args.work.resolve()
    COMMANDS[args.command](args)


if __name__ == "__main__":
    main()
