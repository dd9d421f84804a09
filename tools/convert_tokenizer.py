"""Makes tokenizer.json out of other files of tokenizers.

    tools/convert_tokenizer.py tiktoken RANKS FOLDER    a tiktoken file, with Qwen's pattern and control tokens
    tools/convert_tokenizer.py gguf MODEL.gguf FOLDER   the byte-level BPE of a GGUF file
"""

import base64
import json
import struct
import sys
from pathlib import Path

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def byte_characters():
    """The byte-level alphabet of GPT-2: printable Latin-1 as itself, other bytes as U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


def last_merge(token, ranks):
    """The two parts that BPE with the ranks below its own makes of a token's bytes; None where it gets stuck before."""
    parts, own, none = [token[i : i + 1] for i in range(len(token))], ranks[token], len(ranks)
    pairs = [ranks.get(a + b, none) for a, b in zip(parts, parts[1:])]
    while len(parts) > 2:
        best = min(pairs)
        if best >= own:
            return None
        i = pairs.index(best)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
        del pairs[i]
        if i > 0:
            pairs[i - 1] = ranks.get(parts[i - 1] + parts[i], none)
        if i < len(pairs):
            pairs[i] = ranks.get(parts[i] + parts[i + 1], none)
    return parts


def added_token(id, content):
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": id, "content": content} | flags


def content(vocab, merges, added, normalizer, pre):
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added_token(id, text) for id, text in added],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre},
        "post_processor": BYTE_LEVEL,
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": merges,
        },
    }


def from_tiktoken(path, pattern, added):
    """The tokenizer of a tiktoken file: one line a token, its bytes in base64 and its rank."""
    lines = [line.split() for line in Path(path).read_bytes().splitlines() if line]
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    spell = byte_characters()
    text = {token: "".join(spell[byte] for byte in token) for token in ranks}
    parts = [last_merge(token, ranks) for token in sorted(ranks, key=ranks.get) if len(token) > 1]
    merges = [[text[left], text[right]] for left, right in filter(None, parts)]
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return content({text[token]: rank for token, rank in ranks.items()}, merges, added, {"type": "NFC"}, [split, BYTE_LEVEL])


def qwen(path):
    """Qwen's; which of its two patterns is told by the number of tokens (https://huggingface.co/Qwen)."""
    n = sum(1 for line in Path(path).read_bytes().splitlines() if line)
    letters, marks = (r"\p{L}", r"\p{L}") if n < 200000 else (r"[\p{L}\p{M}]", r"\p{L}\p{M}")
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?" + letters + r"+|\p{N}| ?[^\s" + marks + r"\p{N}]+[\r\n]*|"
        r"\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return from_tiktoken(path, pattern, list(enumerate(names, n)))


# ---- GGUF (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) ----

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


def read_metadata(path):
    """The key-value pairs of a GGUF file."""
    with open(path, "rb") as file:

        def number(format):
            return struct.unpack("<" + format, file.read(struct.calcsize("<" + format)))[0]

        def value(type):
            if type == STRING:
                return file.read(number("Q")).decode()
            if type == ARRAY:
                inner, n = number("I"), number("Q")
                return [value(inner) for _ in range(n)]
            return number(SCALARS[type])

        assert file.read(4) == b"GGUF" and number("I") in (2, 3), f"{path} is not GGUF 2 or 3"
        number("Q")
        pairs = number("Q")
        return {value(STRING): value(number("I")) for _ in range(pairs)}


# The pre-tokenisers that GGUF gives by name; "smollm" is https://huggingface.co/HuggingFaceTB/SmolLM2-135M.
PRE = {"smollm": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL | {"use_regex": True}]}
CONTROL = 3


def from_gguf(path):
    data = read_metadata(path)
    assert data["tokenizer.ggml.model"] == "gpt2", "the tokenizer of the file is not a byte-level BPE"
    tokens, kinds = data["tokenizer.ggml.tokens"], data["tokenizer.ggml.token_type"]
    merges = [merge.split(" ") for merge in data["tokenizer.ggml.merges"]]
    added = [(id, text) for id, (text, kind) in enumerate(zip(tokens, kinds)) if kind == CONTROL]
    vocab = {text: id for id, text in enumerate(tokens)}
    return content(vocab, merges, added, None, PRE[data["tokenizer.ggml.pre"]])


def write(folder, data):
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    return Path(folder)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ("tiktoken", "gguf"):
        sys.exit(__doc__.strip())
    write(sys.argv[3], qwen(sys.argv[2]) if sys.argv[1] == "tiktoken" else from_gguf(sys.argv[2]))
