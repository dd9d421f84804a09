"""Checkpoints that say what a test has written down: each token has one successor.

The layers add nothing to the embedding, and the head of a token points where its predecessor is embedded, so that the
last token alone decides about the next. A chat is answered by the script that its last message names."""

import json

import numpy as np
from safetensors.numpy import save_file

HIDDEN, HEADS = 256, 4
# What tells the library how this model writes reasoning and calls; never rendered.
SIGNS = "{% if false %}<think></think><tool_call>{% endif %}"


def alphabet():
    """The characters that stand for the bytes in byte-level vocabularies (GPT-2)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = {b: 256 + i for i, b in enumerate(b for b in range(256) if b not in plain)}
    return [chr(others.get(b, b)) for b in range(256)]


def spelt(piece):
    letters = alphabet()
    return "".join(letters[b] for b in (piece.encode() if isinstance(piece, str) else piece))


def write(folder, scripts, context=4096):
    """scripts: {name: [pieces]}; a piece (str or bytes) is a token and stands in one place only. A script whose name
    begins with "think" is an answer that begins inside of a reasoning block; one that ends with None never ends."""
    tokens = [*alphabet(), "<|end|>"]
    ids = {token: i for i, token in enumerate(tokens)}
    eos, special, follows, branches = ids["<|end|>"], ["<|end|>"], [], []

    taken = set()

    def add(token):
        assert token not in taken, f"{token!r} stands in two places"
        taken.add(token)
        if token not in ids:  # as bytes are
            ids[token] = len(tokens)
            tokens.append(token)
        return ids[token]

    for name, pieces in scripts.items():
        start = "<think>" if name.startswith("think") else f"<|{name}|>"
        special.append(start)
        chain = [add(start), *(add(spelt(p)) for p in pieces if p is not None)]
        follows += [*zip(chain, chain[1:]), (chain[-1], chain[1] if None in pieces else eos)]
        branches.append(f"{{% if messages[-1].content == '{name}' %}}{start}{{% endif %}}")
    template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}\n"
        "{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
        "{% if add_generation_prompt %}" + "".join(branches) + "{% endif %}" + SIGNS
    )
    folder.mkdir(exist_ok=True)
    tensors(folder, len(tokens), follows)
    tokenizer(folder, ids, special)
    files = {
        "config": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "head_dim": 64,
            "intermediate_size": 64, "num_attention_heads": HEADS, "num_key_value_heads": 1, "num_hidden_layers": 1,
            "max_position_embeddings": context, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
            "vocab_size": len(tokens), "eos_token_id": eos, "tie_word_embeddings": False, "dtype": "float32",
        },
        "generation_config": {"do_sample": False, "eos_token_id": eos},
        "tokenizer_config": {"eos_token": "<|end|>", "chat_template": template},
    }  # fmt: skip
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def tensors(folder, vocab, follows):
    embedding = np.random.default_rng(1).standard_normal((vocab, HIDDEN)).astype(np.float32)
    embedding /= np.sqrt((embedding**2).mean(axis=1, keepdims=True))
    head = np.zeros_like(embedding)
    for token, successor in follows:
        head[successor] += embedding[token] * (30 / HIDDEN)
    shapes = {
        "self_attn.q_proj": (HEADS * 64, HIDDEN), "self_attn.k_proj": (64, HIDDEN), "self_attn.v_proj": (64, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * 64), "mlp.gate_proj": (64, HIDDEN), "mlp.up_proj": (64, HIDDEN),
        "mlp.down_proj": (HIDDEN, 64),
    }  # fmt: skip
    layer = {f"model.layers.0.{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()}
    for name in "layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm":
        layer[f"model.{name}.weight"] = np.ones(HIDDEN, np.float32)
    save_file(
        {**layer, "model.embed_tokens.weight": embedding, "lm_head.weight": head}, folder / "model.safetensors",
        metadata={"format": "pt"},
    )  # fmt: skip


def tokenizer(folder, ids, special):
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    content = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": level,
        "added_tokens": [{"id": ids[token], "content": token, **flags} for token in special],
        "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "vocab": ids, "merges": [], "byte_fallback": False, "ignore_merges": False},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(content))
