"""The tokeniser under test, the `tokenizers` library, and tokenizers and texts to compare them with."""

import functools
import json
import random
import re
import struct
import subprocess

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
QWEN2 = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"""
    r"""\s+(?!\S)|\s+"""
)
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
DEEPSEEK3 = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    r"""\s*[\r\n]+|\s+(?!\S)|\s+""",
]

CORPUS = [
    "The quick brown fox jumps over the lazy dog. I'LL don't we've they're it's I'm he'd " * 3,
    "Tiếng Việt Việt Việt, čaj, naïve, Ελληνικά, Русский текст, 漢字かな交じり文, 한국어 한국어, 12345 67890 2024",
    "for (int i = 0; i < n; i++) {\n\tx[i] += 1;\r\n}\n\n    return x;\n",
    "😀😀 👩‍👩‍👧 🏳️‍🌈 🇩🇪 e\u0301 \u1112\u1161\u11ab",
] * 4

TEXTS = [
    "",
    "1234567",
    "I'LL don't",
    "a\n\n\n  b",
    "   x",
    "\u2028 word",
    "한국어",
    "a\tb\t\tc",
    "trailing  ",
    "trailing\n",
    " \t\n ",
    "\r\n\r\n  \r\n",
    "Việt  Việt",
    " Việt",
    "e\u0301e\u0302\u0323 \u1112\u1161\u11ab \u212b \ufb01",
    "čaj 😀 漢字",
    "👩‍👩‍👧 🏳️‍🌈 🇩🇪👍🏽",
    "x\u180ey \u200b \u0085\u00a0\u3000\u000b\u000c",
    "'S 'ſ 'LL 'll 'Ve ʼs",
    "٣٤٥ ²³¼ Ⅷ 一二三 ๑๒",
    "<|endoftext|><|im_start|>user\nhi<|im_end|>\n",
    "a<|im_start|",
    "word" * 200,
]


def build(folder, *, pre=None, normalizer=None, post=None, decoder="byte-level", model=None, added=(), bytes=False):
    """A tokenizer.json in `folder`, trained on CORPUS; `model` changes fields of the model afterwards, and with `bytes` it
    has the tokens <0x00> to <0xFF> and falls back on them."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True) if bytes else models.BPE())
    if pre:
        tokenizer.pre_tokenizer = pre
    if normalizer:
        tokenizer.normalizer = normalizer
    if decoder:
        tokenizer.decoder = decoders.ByteLevel() if decoder == "byte-level" else decoder
    first = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)] if bytes else ["<s>"]
    alphabet = [] if bytes else pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=900, initial_alphabet=alphabet, special_tokens=first, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    if post:
        tokenizer.post_processor = post
    for token in added:
        tokenizer.add_tokens([token])
    folder.mkdir(exist_ok=True)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    content = json.loads(path.read_text())
    content["model"].update(model or {})
    content["added_tokens"] = [token for token in content["added_tokens"] if not token["content"].startswith("<0x")]
    path.write_text(json.dumps(content))
    return folder


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(**options):
    return pre_tokenizers.ByteLevel(**({"add_prefix_space": False, "use_regex": False} | options))


def sequence(*parts):
    return pre_tokenizers.Sequence(list(parts))


BOS = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A $B", special_tokens=[("<s>", 1), ("</s>", 2)])


def metaspace(folder, scheme, split=True):
    """As newer SentencePiece files are converted; an added token parts the text in two."""
    pre = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=split)
    decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace("▁", prepend_scheme=scheme)])
    added = [AddedToken("<sep>", normalized=False), AddedToken("mask", normalized=True)]
    return build(folder, pre=pre, decoder=decoder, added=added, bytes=True)


KINDS = {
    "gpt2": lambda f: build(f, pre=byte_level(use_regex=True)),
    "gpt2-prefix": lambda f: build(f, pre=byte_level(use_regex=True, add_prefix_space=True)),
    "qwen2": lambda f: build(f, pre=sequence(split(QWEN2), byte_level()), normalizer=normalizers.NFC()),
    "llama3": lambda f: build(
        f,
        pre=sequence(split(LLAMA3), byte_level()),
        post=processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=True),
                processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]),
            ]
        ),
        model={"ignore_merges": True},
    ),
    "deepseek3": lambda f: build(f, pre=sequence(*map(split, DEEPSEEK3), byte_level())),
    "digits": lambda f: build(f, pre=sequence(pre_tokenizers.Digits(True), byte_level(use_regex=True))),
    "digit-runs": lambda f: build(f, pre=sequence(pre_tokenizers.Digits(False), byte_level(add_prefix_space=True))),
    "none": lambda f: build(f, pre=byte_level()),
    "spelt-twice": lambda f: build(f, pre=sequence(byte_level(use_regex=True), pre_tokenizers.Digits(True), byte_level())),
    "spelling-normalizer": lambda f: build(f, normalizer=normalizers.ByteLevel(), pre=split(r"\d")),
    "sentencepiece": lambda f: build(
        f,
        normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        post=BOS,
        decoder=decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        ),
        bytes=True,
    ),
    "metaspace-always": lambda f: metaspace(f, "always"),
    "metaspace-first": lambda f: metaspace(f, "first"),
    "metaspace-never": lambda f: metaspace(f, "never"),
    "metaspace-whole": lambda f: metaspace(f, "always", split=False),
    "words": lambda f: build(
        f,
        normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()]),
        pre=sequence(pre_tokenizers.Whitespace(), pre_tokenizers.Digits(True)),
        decoder=decoders.WordPiece("##", True),
        bytes=True,
    ),
    "unmarked": lambda f: build(
        f,
        normalizer=normalizers.Sequence(
            [normalizers.NFD(), normalizers.StripAccents(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.NFKD()]
        ),
        pre=sequence(pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("merged_with_previous")),
        decoder=None,
        model={"byte_fallback": False, "fuse_unk": False},
        bytes=True,
    ),
}


class Ours:
    """The tokeniser under test, through the driver."""

    def __init__(self, build_dir, folder):
        self.program = build_dir / "tests" / "drive_tokenize"
        self.folder = folder

    def run(self, mode, flags, data):
        result = subprocess.run([self.program, self.folder, mode, flags], input=data, capture_output=True, timeout=300)
        assert result.returncode == 0, result.stderr.decode()
        return result.stdout

    def encode(self, texts, flags="c", masks=None):
        """The ids of each text; a string where there was an error. Texts are str or bytes."""
        texts = [t.encode() if isinstance(t, str) else t for t in texts]
        data = bytearray()
        for i, text in enumerate(texts):
            data += struct.pack("<I", len(text)) + text
            if masks:
                assert len(masks[i]) == len(text)
                data += masks[i]
        lines = self.run("encode", flags + "t" * bool(masks), bytes(data)).decode().split("\n")[:-1]
        assert len(lines) == len(texts)
        return [line if line.startswith("error") else [int(x) for x in line.split()] for line in lines]

    def timed(self, text):
        """The ids of one text, and the milliseconds of processor time that loading and encoding took."""
        data = struct.pack("<I", len(text.encode())) + text.encode()
        result = subprocess.run([self.program, self.folder, "encode", "c"], input=data, capture_output=True, check=True)
        times = dict(re.findall(r"(\w+) in ([\d.]+) ms", result.stderr.decode()))
        return [int(x) for x in result.stdout.split()], {what: float(time) for what, time in times.items()}

    def decode(self, lists, flags="-"):
        data = "".join(" ".join(map(str, ids)) + "\n" for ids in lists).encode()
        out, answers = self.run("decode", flags, data), []
        while out:
            (n,) = struct.unpack("<I", out[:4])
            answers.append(out[4 : 4 + n].decode())
            out = out[4 + n :]
        assert len(answers) == len(lists)
        return answers


def library(folder):
    return loaded((folder / "tokenizer.json").read_bytes())


@functools.lru_cache(maxsize=4)
def loaded(data):
    return Tokenizer.from_buffer(data)


def shortest(differ, text):
    """The shortest part of the text that this finds to differ: cut from both ends by halves, quarters and so on.
    `differ` says of each of a list of texts whether it does."""
    step = max(1, len(text) // 2)
    while step and len(text) > 1:
        parts = [part for part in (text[step:], text[:-step]) if part]
        wrong = [part for part, bad in zip(parts, differ(parts)) if bad]
        if wrong:
            text = wrong[0]
            step = min(step, len(text) // 2) or 1
        else:
            step //= 2
    return text


def compare(ours, folder, texts, post=False):
    """Asserts that all ids are those of the library."""
    reference = library(folder)

    def both(texts):
        got = ours(folder).encode(texts, "cp" if post else "c")
        wanted = reference.encode_batch_fast(texts, add_special_tokens=post)  # without places in the text
        return [(a, encoding.ids) for a, encoding in zip(got, wanted, strict=True)]

    wrong = [text for text, (got, expected) in zip(texts, both(texts)) if got != expected]
    if wrong:
        text = shortest(lambda parts: [a != b for a, b in both(parts)], wrong[0])
        ((got, expected),) = both([text])
        raise AssertionError(
            f"{len(wrong)} of {len(texts)} texts differ in {folder}; the first is shortened to\n  {text[:500]!r}\n"
            f"  ours    {got[:60]}\n  library {expected[:60]}"
        )


@functools.lru_cache(maxsize=32)
def characters(first, last):
    return [chr(c) for c in range(first, last + 1) if not 0xD800 <= c < 0xE000]


POOLS = [
    list("abcdefgXYZ  \n\t.,!?'0123456789"),
    ["'s", "'LL", "'re", "don't", " the", "\r\n", "\n\n", "  ", "   ", "\t", "://", "==", "```", "100", "3.14"],
    list("čajéèñüßøĳŉǆΐΣςЖйאבجد漢字かな한국어ไทยहिन्दी"),
    [chr(c) for c in [*range(0x300, 0x345), 0x3099, 0x309A, 0x0F71, 0x0F72, 0x0591, 0x05C1, 0x064B, 0x0651, 0x0DCA]],
    [chr(c) for c in [*range(0x1100, 0x1113), *range(0x1161, 0x1176), *range(0x11A8, 0x11C3), 0xAC00, 0xAC01, 0xD788]],
    ["😀", "👩‍👩‍👧", "🏳️‍🌈", "🇩🇪", "👍🏽", "\u200d", "\ufe0f", "\U0001f3fb", "⚙️", "1️⃣"],
    ["\u00a0", "\u1680", "\u180e", "\u2002", "\u200b", "\u2028", "\u2029", "\u202f", "\u3000", "\u0085", "\ufeff"],
    ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "<|im", "|>", "<"],
    ["\u0340", "\u0344", "\u0958", "\u2126", "\u212b", "\uf900", "\ufb1d", "\U0001d15e", "\u1e9b\u0323", "\u0390"],
]


@functools.lru_cache(maxsize=32)
def random_texts(seed, n):
    """Mixtures of a few pools each, so that a text is not uniformly exotic."""
    rng = random.Random(seed)
    anything = characters(1, 0x1FFFF)
    texts = []
    for _ in range(n):
        pools = rng.sample(POOLS, rng.randint(1, 4)) + ([anything] if rng.random() < 0.2 else [])
        texts.append("".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 60))))
    return texts
