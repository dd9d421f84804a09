"""Compares polymath with transformers and mlx-lm on the checkpoint that convert.py made, and writes the outcome into
docs/parity.md.

    python tools/real_model/compare.py BUILD_DIR CHECKPOINT TEXT WORK

Needs the packages of tools/oracles/requirements.txt and of requirements.txt here. WORK gets the quantised checkpoints.
"""

import copy
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from mlx.utils import tree_flatten
from mlx_lm.convert import convert as quantise
from mlx_lm.utils import dequantize_model, load_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from convert import packaged

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tools"))
import sections  # noqa: E402

CONTEXT = 1024  # tokens of a window of perplexity; each begins where the last one ended
HEAD = list(range(1000, 1024))  # tokens of which mlx-lm itself is asked
ANSWER = 100  # most tokens of an answer
PROMPTS = [
    "What is the capital of France?",
    "Why is the sky blue?",
    "Write a haiku about rain.",
    "Explain in two sentences how a bicycle stays upright.",
    "List five animals that live in the sea.",
    "Translate to French: The house is small.",
    "What is 12 plus 30?",
    "Write a C function that returns the larger of two integers.",
    "Tell a short story about a dragon who is afraid of mice.",
    "Was ist der Unterschied zwischen Wetter und Klima? 你好!",
]


def polymath(build, *args, **options):
    done = subprocess.run([build / "polymath", *map(str, args)], check=True, stdout=subprocess.PIPE, **options)
    return json.loads(done.stdout)


def weights_agree(model, path):
    """Asserts that every weight is the one which transformers' own reader makes of the GGUF file, rounded to bfloat16."""
    theirs = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model, torch_dtype=torch.float32)["tensors"]
    ours = dict(model.named_parameters())
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    for name, weight in ours.items():
        assert torch.equal(weight, theirs[name].bfloat16().float()), f"{name} is not what transformers reads from {path}"


def greedy(build, folder, model, tokenizer):
    """Rows of the table of answers. One pass over the prompt and our answer gives transformers' choice after each prefix of
    it: they are the same up to the first that is another."""
    yield "| prompt | tokens of the answer | f32 cache | f16 cache | smallest margin |"
    yield "| --- | --- | --- | --- | --- |"
    logits = by_torch(model)
    for prompt in PROMPTS:
        messages = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        cells, margins = [], []
        for cache in "f32", "f16":
            got = polymath(build, "run", "--json", "--kv-type", cache, "--max-tokens", ANSWER, folder, "--", prompt)
            assert got["prompt_ids"] == ids, f"{prompt!r}: the template's ids {got['prompt_ids']} are not {ids}"
            ours = got["output_ids"]
            if len(ours) < ANSWER and ours[-1:] != [tokenizer.eos_token_id]:
                ours.append(tokenizer.eos_token_id)  # what ended the answer
            rows = logits(ids + ours)[len(ids) - 1 : -1]
            same = rows.argmax(axis=1) == ours
            cells.append("the same" if same.all() else f"differs from token {same.argmin()} on")
            top = np.partition(rows, -2, axis=1)[:, -2:]
            margins.append((top[:, 1] - top[:, 0]).min())
        yield f"| {prompt} | {len(ours)} | {' | '.join(cells)} | {min(margins):.1e} |"


def perplexity(ids, logits):
    """That of the text by windows of CONTEXT tokens, of which each judges all but its first; logits: ids -> [n, vocab]."""
    loss, n = 0.0, 0
    for first in range(0, len(ids) - 1, CONTEXT):
        window = ids[first : first + CONTEXT]
        rows = logits(window)[:-1]
        top = rows.max(axis=1, keepdims=True)
        sums = np.exp(rows - top).sum(axis=1, dtype=np.float64)
        loss += float((top[:, 0] + np.log(sums) - rows[np.arange(len(rows)), window[1:]]).sum(dtype=np.float64))
        n += len(rows)
    return math.exp(loss / n)


def by_torch(model):
    def logits(ids):
        with torch.no_grad():
            return model(torch.tensor([ids])).logits[0].numpy()

    return logits


def by_mlx(folder, model):
    """Logits from the weights that mlx-lm stores in a folder, by transformers: mlx-lm's CPU backend would take hours. Asserts
    that it says the same of a few tokens."""
    theirs, _ = load_model(folder)
    theirs.set_dtype(mx.float32)
    direct = np.array(theirs(mx.array([HEAD]))[0])
    weights = tree_flatten(dequantize_model(theirs).parameters())
    mine = copy.deepcopy(model)
    left = mine.load_state_dict({name: torch.tensor(np.array(weight)) for name, weight in weights}, strict=False)
    assert (left.missing_keys, left.unexpected_keys) == (["lm_head.weight"], []), left  # tied
    logits = by_torch(mine)
    apart = np.abs(direct - logits(HEAD)).max()
    assert apart < 1e-3, f"{folder}: mlx-lm's logits are {apart} from those of its weights by transformers"
    return logits


def perplexities(build, folder, work, text, tokenizer, model):
    """Rows of the table of perplexities."""
    ids = tokenizer(text.read_text())["input_ids"]
    yield "| weights | polymath | reference | difference |"
    yield "| --- | --- | --- | --- |"
    for bits in None, 8, 4:
        name, checkpoint, logits = "bf16", folder, by_torch(model)
        if bits:
            name, checkpoint = f"{bits}-bit, groups of 64", work / f"{bits}bit"
            shutil.rmtree(checkpoint, ignore_errors=True)
            quantise(str(folder), str(checkpoint), quantize=True, q_bits=bits, q_group_size=64)
            logits = by_mlx(checkpoint, model)
        ours = polymath(build, "perplexity", "--json", "--ctx", CONTEXT, "--stride", CONTEXT, checkpoint, text)
        assert ours["text_tokens"] == len(ids), f"{text}: {ours['text_tokens']} tokens, {len(ids)} by transformers"
        theirs = perplexity(ids, logits)
        difference = ours["perplexity"] / theirs - 1
        assert abs(difference) < 0.01, f"{name}: {ours['perplexity']}, the reference says {theirs}"
        yield f"| {name} | {ours['perplexity']:.4f} | {theirs:.4f} | {100 * difference:+.4f} % |"


def main():
    build, folder, text, work = (Path(path).resolve() for path in sys.argv[1:])
    mx.set_default_device(mx.cpu)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    weights_agree(model, packaged())
    document = TOP / "docs" / "parity.md"
    answers = list(greedy(build, folder, model, tokenizer))
    print(*answers, sep="\n", flush=True)
    document.write_text(sections.replace(document.read_text(), "answers", answers))
    rows = list(perplexities(build, folder, work, text, tokenizer, model))
    print(*rows, sep="\n", flush=True)
    document.write_text(sections.replace(document.read_text(), "perplexity", rows))


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__.strip())
    main()
