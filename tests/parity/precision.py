"""The table of docs/precision.md: what rounding activations costs, as the program `precision` (tools) measures it.

`python tests/parity/precision.py BUILD_DIR` measures the trained checkpoints of the repository and, with `MODELS=DIR`, those
of DIR; `... BUILD_DIR NAME=MODEL TEXT`, more than once if wanted, a further model over a text. Rows that are not measured
stay. test_precision_doc.py measures some of them again."""

import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tools"))
import sections  # noqa: E402

PART = "rounding"  # of the document
HEAD = [
    "| model | tokens | precision | perplexity, f32 | perplexity | change | KL, mean | KL, largest | same likeliest token |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
]
TRAINED = sorted(path.name for path in (TOP / "tests/models").glob("*-4bit"))


def prompts(model):
    """The ids of the oracle's prompts."""
    with open(model / "oracle_mlx.safetensors", "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        for name in "short", "mid", "long":
            first, last = header[f"{name}.input_ids"]["data_offsets"]
            file.seek(8 + size + first)
            yield struct.unpack(f"<{(last - first) // 4}i", file.read(last - first))


def marked(model):
    """The prompts as lines for `precision`, in which the tokens of the assistant's turns are judged: they are what a model
    has learned to foresee."""
    added = json.loads((model / "tokenizer.json").read_text())["added_tokens"]
    begin, end = (next(token["id"] for token in added if token["content"] == f"<|im_{word}|>") for word in ("start", "end"))
    lines = []
    for prompt in prompts(model):
        opening = prompt[len(prompt) - 1 - prompt[::-1].index(begin) :]  # a prompt ends where the assistant begins
        words, answer = [], False
        for i, token in enumerate(prompt):
            answer = answer or prompt[max(i - len(opening), 0) : i] == opening
            words.append(f"{'+' * answer}{token}")
            answer = answer and token != end
        lines.append(" ".join(words) + "\n")
    return "".join(lines)


def measure(build, name, model, text=None):
    """{(name, precision): row} of a model, over its oracle's prompts or a text."""
    with tempfile.NamedTemporaryFile("w", suffix=".ids") as file:
        if text is None:
            file.write(marked(model))
            file.flush()
        done = subprocess.run([build / "precision", model, text or file.name], stdout=subprocess.PIPE, check=True, text=True)
    (_, tokens, f32), *precisions = [line.split(",") for line in done.stdout.splitlines()]
    rows = {}
    for precision, _, perplexity, mean, largest, same in precisions:
        change = float(perplexity) / float(f32) - 1
        rows[name, precision] = (
            f"| {name} | {tokens} | {precision} | {float(f32):.7g} | {float(perplexity):.7g} | {change:+.4%} | "
            f"{float(mean):.1e} | {float(largest):.1e} | {float(same):.2%} |"
        )
    return rows


def cells(row):
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def rows(document):
    """{(model, precision): row} of the document's table."""
    return {(cells(row)[0], cells(row)[2]): row for row in sections.section(document, PART).splitlines()[2:]}


def checkpoints(models):
    """Names and folders of what is measured."""
    yield "bundled model (trained)", TOP / "models/default"
    for name in TRAINED:
        yield f"{name} (trained)", TOP / "tests/models" / name
    if models:
        yield "qwen3_5_moe-mxfp4 (trained)", Path(models) / "qwen3_5_moe-mxfp4"


def main(build, *further):
    path = TOP / "docs/precision.md"
    table = rows(path.read_text())
    if further:
        for named, text in zip(further[::2], further[1::2], strict=True):
            name, _, model = named.partition("=")
            table |= measure(build, name, Path(model), text)
    else:
        for name, model in checkpoints(os.environ.get("MODELS")):
            table |= measure(build, name, model)
    path.write_text(sections.replace(path.read_text(), PART, [*HEAD, *table.values()]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
