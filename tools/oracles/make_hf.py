"""Makes tiny random checkpoints and their transformers oracles. usage: make_hf.py [NAME ...]

Writes tests/oracles/NAME for every name of checkpoints.py, or for those given.
"""

import copy
import json
import re
import shutil
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

from checkpoints import CHECKPOINTS, REMOVED
from drawing import KEEP, PROMPTS, Routes, draw, record, summary
from vocabulary import END_OF_TEXT, IM_END, write

OUT = Path(__file__).resolve().parents[2] / "tests" / "oracles"


def generator(*names):
    """A random stream that depends on the names only, so that one checkpoint does not move another."""
    return torch.Generator().manual_seed(zlib.crc32("/".join(names).encode()))


def spread(name, shape, tied):
    """Mean and standard deviation of a tensor's values; the values keep every branch of the network audible."""
    fan_in = shape[-1] ** -0.5
    if name.endswith("dt_bias"):
        return -1.0, 1.0
    if name.endswith("bias"):
        return 0.0, 0.3
    if name.endswith(("sinks", "base")):
        return 0.0, 1.0
    if name.endswith("scale"):
        return 1.0, 0.2
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return 1.3, 0.2
    if "norm" in name:
        return 1.0, 0.2
    if "embed_tokens" in name or "embeddings" in name:
        return 0.0, 3 * fan_in if tied else 1.0
    if "lm_head" in name:
        return 0.0, 3 * fan_in
    if name.endswith("kv_b_proj.weight"):
        return 0.0, 1.8 * fan_in
    if name.endswith(("mlp.gate.weight", "feed_forward.gate.weight", "mixer.gate.weight")):
        return 0.0, 1.5 * fan_in
    if re.search(r"\.(o_proj|out_proj|down_proj|w2)", name):
        return 0.0, 2 * fan_in
    return 0.0, 1.2 * fan_in


def fill(model, name, checkpoint, tied):
    """Draws every parameter and rounds it to the type in which it is stored."""
    zero_centred = type(model).__name__.startswith(("Qwen3Next", "Qwen3_5"))
    biases = [(key, buffer) for key, buffer in model.named_buffers() if key.endswith("bias")]  # of routers
    for key, parameter in [*model.named_parameters(), *biases]:
        random = generator(name, key)
        mean, deviation = spread(key, parameter.shape, tied)
        if "norm" in key and zero_centred and "linear_attn.norm" not in key and "visual" not in key:
            mean -= 1.0  # these families store w - 1
        if key.endswith("A_log"):
            value = torch.empty(parameter.shape).uniform_(0.05, 1.0, generator=random).log()
        else:
            value = torch.empty(parameter.shape).normal_(mean, deviation, generator=random)
        parameter.data = value if key.endswith(checkpoint.float32) else value.to(torch.bfloat16)
    for key, table in model.named_buffers():
        if key.endswith("tid2eid"):  # the experts of each token, all different
            chances = torch.rand(len(table), model.config.num_local_experts, generator=generator(name, key))
            table.copy_(chances.argsort(-1)[:, : table.shape[1]])


def save_config(folder, checkpoint):
    """Adds config_old.json: the same model in the spelling that checkpoints had before rope_parameters."""
    config = json.loads((folder / "config.json").read_text())
    for key, value in checkpoint.old.items():
        if value is REMOVED:
            config.pop(key, None)
        else:
            config[key] = value
    (folder / "config_old.json").write_text(json.dumps(config, indent=2) + "\n")


def make(name, folder):
    """Writes config, weights and tokenizer."""
    checkpoint = CHECKPOINTS[name]
    model_class = getattr(transformers, checkpoint.model)
    settings, tied = checkpoint.config, checkpoint.config["tie_word_embeddings"]
    if checkpoint.vision:
        settings = {"text_config": settings, "vision_config": checkpoint.vision, "tie_word_embeddings": tied}
    model = model_class(model_class.config_class(**settings)).eval()
    fill(model, name, checkpoint, tied)
    model.tie_weights()
    model.config.dtype = torch.bfloat16
    model.generation_config = transformers.GenerationConfig(
        do_sample=False, eos_token_id=[IM_END, END_OF_TEXT], pad_token_id=END_OF_TEXT
    )
    model.save_pretrained(folder)
    write(folder)
    if checkpoint.old:
        save_config(folder, checkpoint)


def watch(model, routes):
    """Tells `routes` about every choice of experts from now on, by what it is made on."""

    def see(path, router, given, out):
        scores = out[0].float()
        if type(router).__name__.startswith("DeepseekV4"):
            scores = torch.nn.functional.softplus(scores).sqrt() + router.e_score_correction_bias
        elif type(router).__name__.startswith("Lfm2"):
            scores = scores.sigmoid() + (given[1] if router.use_expert_bias else 0)
        elif hasattr(router, "e_score_correction_bias"):
            scores = scores.sigmoid() + router.e_score_correction_bias
        if getattr(router, "num_group", 1) > 1:  # a group counts by its two best
            grouped = scores.view(len(scores), router.num_group, -1)
            best = grouped.topk(2, dim=-1)[0].sum(-1)
            routes.see(path + " groups", best.numpy(), router.topk_group)
            kept = best >= best.topk(router.topk_group, dim=-1)[0][:, -1:]
            scores = grouped.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(1)
        routes.see(path, scores.numpy(), router.top_k)

    def see_index(path, scores, ratio, top_k):
        """Of the rows that a token sees; only tokens that see more than they attend to choose."""
        seen = (torch.arange(scores.shape[0]) + 1) // ratio
        hidden = torch.arange(scores.shape[1]) >= seen.unsqueeze(1)
        if (seen > top_k).any():
            routes.see(path, scores.masked_fill(hidden, float("-inf"))[seen > top_k].numpy(), top_k)

    for path, module in model.named_modules():
        if type(module).__name__ == "DeepseekV4Indexer":
            module.scorer.register_forward_hook(
                lambda _, given, out, path=path, of=module: see_index(path, out[0], of.compress_rate, of.index_topk)
                if out.shape[1] > 1
                else None
            )
        if type(module).__name__.lower().endswith("topkrouter"):
            module.register_forward_hook(lambda router, given, out, path=path: see(path, router, given, out))


def watch_indexers(model, routes):
    """Tells `routes` about every choice of rows by a sparse index: the only choices in three dimensions. Where a product
    is negative for all heads scores are equal, and which row is taken is nobody's business."""
    choose = torch.Tensor.topk

    def see(scores, k, *more, **named):
        if scores.dim() == 3 and k < scores.shape[-1]:
            rows = scores.reshape(-1, scores.shape[-1])
            routes.near(rows[(rows > -1e30).sum(-1) > k].numpy(), k)
        return choose(scores, k, *more, **named)

    if hasattr(model.config, "index_topk"):
        torch.Tensor.topk = see


def logits(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()


def cached_difference(model, prompt, ids):
    """Largest difference between decoding with the library's own cache and recomputing."""
    reference = logits(model, prompt + ids)
    out = model(torch.tensor([prompt]), use_cache=True)
    worst = np.abs(out.logits[0].numpy() - reference[: len(prompt)]).max()
    cache = out.cache
    for i, token in enumerate(ids[:-1]):
        out = model(torch.tensor([[token]]), cache=cache, use_cache=True)
        worst = max(worst, np.abs(out.logits[0, -1].numpy() - reference[len(prompt) + i]).max())
    return worst


def load(folder, changes=None):
    """The model in f32, with `changes` of its config; every tensor of it must come from the file."""
    config = transformers.AutoConfig.from_pretrained(folder)
    for key, value in (changes or {}).items():
        setattr(config.get_text_config(), key, copy.deepcopy(value))
    model, loaded = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        config=config,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    wrong = {k: v for k, v in loaded.items() if v and k != "unexpected_keys"}
    if wrong:
        raise SystemExit(f"{folder}: {wrong}")
    return model.eval()


def load_old(folder):
    """The model as config_old.json describes it."""
    with tempfile.TemporaryDirectory() as other:
        shutil.copy(folder / "config_old.json", Path(other, "config.json"))
        shutil.copy(folder / "model.safetensors", other)
        return load(other)


def oracle(name, folder):
    """Computes the oracle from the files just written."""
    routes, tensors, report = Routes(), {}, {}
    model = load(folder)
    watch(model, routes)
    watch_indexers(model, routes)
    for label, length in PROMPTS.items():
        prompt, ids, margins, draws = draw(name, label, lambda ids: logits(model, ids), routes)
        rows = logits(model, prompt)
        tensors |= record(label, prompt, rows, KEEP, ids, margins)
        report[label] = summary(prompt, rows, ids, margins, draws, cached_difference(model, prompt, ids), routes)
        without = {what: load(folder, changes) for what, changes in CHECKPOINTS[name].without.items()}
        if without:
            report[label]["difference_without"] = {
                what: round(float(np.abs(logits(other, prompt) - rows).max()), 4) for what, other in without.items()
            }
        if CHECKPOINTS[name].old and not np.array_equal(logits(load_old(folder), prompt), rows):
            raise SystemExit(f"{name}: config_old.json gives other logits")
    save_file(tensors, folder / "oracle.safetensors")
    about = {
        "library": "transformers",
        "version": transformers.__version__,
        "torch": torch.__version__.split("+")[0],
        "model_class": type(model).__name__,
        "arithmetic": "float32, CPU, eager attention, stored weights",
        "prompts": report,
    }
    (folder / "oracle.json").write_text(json.dumps(about, indent=1) + "\n")
    return report


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in sys.argv[1:] or CHECKPOINTS:
        folder = OUT / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(name, folder)
        report = oracle(name, folder)
        for file in folder.iterdir():
            file.chmod(0o644)
        size = sum(f.stat().st_size for f in folder.iterdir())
        print(f"{name}: {size / 1000:.0f} kB {json.dumps(report)}", flush=True)


if __name__ == "__main__":
    main()
