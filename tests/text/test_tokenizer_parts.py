"""Each kind of component alone, against the one of the `tokenizers` library; and what public bug reports were about."""

import json
import random

import pytest
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizer_cases import TEXTS, Ours, build, byte_level, characters, compare, library, metaspace, random_texts, sequence
from tokenizer_cases import split


@pytest.fixture(scope="session")
def ours(build_dir):
    return lambda folder: Ours(build_dir, folder)


EVERY = characters(1, 0x33FF) + characters(0xA000, 0xABFF) + characters(0xD7B0, 0xD7FF) + characters(0xF8FF, 0x16FFF)
EVERY += characters(0x1AFF0, 0x1FFFF) + characters(0x2F800, 0x2FA1F) + ["\u4e00", "\uac00", "\U000e0041", "\U00031350"]


def marks(database=EVERY):
    """Characters in pairs and threes with marks around, so that order and composition count."""
    rng = random.Random(4)
    some = ["\u0301", "\u0327", "\u0334", "\u0345", "\u05b0", "\u3099", "\u1161", "\u11a8", "\u094d", "\u0f71"]
    return ["".join(c + rng.choice(some) + rng.choice(some) for c in database[i : i + 64]) for i in range(0, len(database), 64)]


# ---- normalisers: the text that comes out is seen through a vocabulary of every byte ----

# Left out is what ends the library with a panic: to prepend nothing, and to replace what may be empty.

NORMALIZERS = {
    "NFC": normalizers.NFC(),
    "NFD": normalizers.NFD(),
    "NFKC": normalizers.NFKC(),
    "NFKD": normalizers.NFKD(),
    "Lowercase": normalizers.Lowercase(),
    "StripAccents": normalizers.StripAccents(),
    "Strip": normalizers.Strip(),
    "Strip left": normalizers.Strip(left=True, right=False),
    "Strip right": normalizers.Strip(left=False, right=True),
    "Prepend": normalizers.Prepend("▁x"),
    "ByteLevel": normalizers.ByteLevel(),
    "Replace": normalizers.Replace(" ", "▁"),
    "Replace by nothing": normalizers.Replace("a", ""),
    "Replace a pattern": normalizers.Replace(Regex(r"\s+|\d"), "$0"),
    "Sequence": normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]),
    "Sequence in Sequence": normalizers.Sequence(
        [normalizers.Sequence([normalizers.Strip(), normalizers.NFC()]), normalizers.Prepend("\u0301")]
    ),
}


@pytest.mark.parametrize("name", NORMALIZERS)
def test_normalizer(ours, tmp_path, name):
    texts = TEXTS + ["".join(EVERY[i : i + 64]) for i in range(0, len(EVERY), 64)] + marks() + random_texts(8, 300)
    texts += [f"{c}x y{c}" for c in (" ", "\u3000", "\u200b", "\u0085", "\n", "\u180e", "\ufeff", "İ", "ẞ")]
    compare(ours, build(tmp_path / "model", pre=byte_level(), normalizer=NORMALIZERS[name]), texts)


def test_table_of_differences_is_of_this_version(source):
    """tools/unicode.py was run with the version of the package that everything here is compared with."""
    head = (source / "src/text/tokenizer_unicode.c").read_text()[:200]
    assert f"How tokenizers {tokenizers.__version__} sees characters" in head


# ---- pre-tokenisers: pieces are told apart by a token for every pair that could be joined ----

PRE_TOKENIZERS = {
    "Digits": pre_tokenizers.Digits(False),
    "Digits alone": pre_tokenizers.Digits(True),
    "Whitespace": pre_tokenizers.Whitespace(),
    "WhitespaceSplit": pre_tokenizers.WhitespaceSplit(),
    "Metaspace": pre_tokenizers.Metaspace("▁"),
    "Metaspace of another": pre_tokenizers.Metaspace("_", prepend_scheme="never"),
    "Metaspace whole": pre_tokenizers.Metaspace("▁", split=False),
    "Metaspace behind words": sequence(pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", prepend_scheme="first")),
    "Metaspace twice": sequence(pre_tokenizers.Metaspace("_"), pre_tokenizers.Metaspace("▁")),
    "ByteLevel and Split": sequence(byte_level(), split("Ġ|Ã")),
    "ByteLevel, prefix, Punctuation": sequence(byte_level(add_prefix_space=True), pre_tokenizers.Punctuation()),
} | {
    f"Punctuation {behavior}": pre_tokenizers.Punctuation(behavior)
    for behavior in ("isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous")
}


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_pre_tokenizer(ours, tmp_path, name):
    """The merges join any two letters a, so that an a on both sides of a character tells whether it parts them."""
    pre = PRE_TOKENIZERS[name]
    texts = ["a" + "a".join(EVERY[i : i + 64]) + "a" for i in range(0, len(EVERY), 64)] + TEXTS + random_texts(9, 300)
    folder = build(tmp_path / "model", pre=pre, bytes=True)
    reference = library(folder)
    pieces = {piece for text in texts[:400] for piece, _ in reference.pre_tokenizer.pre_tokenize_str(text)}
    content = json.loads((folder / "tokenizer.json").read_text())
    vocab = content["model"]["vocab"]
    for piece in sorted(pieces):  # a piece that is one token shows where it ends
        vocab.setdefault(piece, len(vocab))
    content["model"]["ignore_merges"] = True
    (folder / "tokenizer.json").write_text(json.dumps(content))
    compare(ours, folder, texts)


@pytest.mark.parametrize(
    "name",
    "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs C Cc Cf Cn Alphabetic Uppercase "
    "Lowercase White_Space Han Latin Greek Cyrillic Arabic Hiragana Katakana Common Emoji Math Dash letter".split(),
)
def test_property(ours, tmp_path, name):
    r"""\p{..}, \P{..}, both between brackets, and the complements of these, over every code point that may be assigned."""
    texts = ["".join(EVERY[i : i + 256]) for i in range(0, len(EVERY), 256)]
    patterns = [rf"\p{{{name}}}+", rf"[\p{{{name}}}_]+", rf"[^\P{{{name}}}_]+", rf"(?:[\P{{{name}}}\n]|a)+"]
    for i, pattern in enumerate(patterns):
        compare(ours, build(tmp_path / str(i), pre=sequence(split(pattern, "removed"), byte_level())), texts)


@pytest.mark.parametrize("name", [r"\s", r"\S", r"\w", r"\W", r"\d", r"\D", r"\h", r"\b", r"\B"])
def test_shorthand(ours, tmp_path, name):
    texts = ["".join(f"{c}a" for c in EVERY[i : i + 256]) for i in range(0, len(EVERY), 256)]
    patterns = [name] if name[1] in "bB" else [name, rf"[{name}]", rf"[^{name}]", rf"[x{name}y]+"]
    for i, pattern in enumerate(patterns):
        behavior = "isolated" if name[1] in "bB" else "removed"
        compare(ours, build(tmp_path / str(i), pre=sequence(split(pattern, behavior), byte_level())), texts)


# ---- decoders ----

DECODERS = {
    "none": None,
    "ByteLevel": decoders.ByteLevel(),
    "ByteFallback": decoders.ByteFallback(),
    "Fuse": decoders.Fuse(),
    "Metaspace": decoders.Metaspace("▁"),
    "Metaspace first": decoders.Metaspace("▁", prepend_scheme="first"),
    "Metaspace never": decoders.Metaspace("▁", prepend_scheme="never"),
    "Replace": decoders.Replace("▁", " "),
    "Replace a pattern": decoders.Replace(Regex(r"▁|\d+"), "-$1"),
    "Replace what may be empty": decoders.Replace(Regex("a*"), "."),
    "Strip": decoders.Strip("▁", 1, 1),
    "Strip more": decoders.Strip("a", 2, 3),
    "BPEDecoder": decoders.BPEDecoder("a"),
    "WordPiece": decoders.WordPiece("##"),
    "WordPiece as it is": decoders.WordPiece("a", cleanup=False),
    "CTC": decoders.CTC("a", "▁", True),
    "CTC as it is": decoders.CTC("b", "a", False),
    "Sequence of none": decoders.Sequence([]),
    "Llama": decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
    "fused": decoders.Sequence(
        [decoders.ByteLevel(), decoders.Replace("aba", "a"), decoders.Strip("a", 2, 2), decoders.Metaspace("▁")]
    ),
    "fused, overlapping": decoders.Sequence([decoders.Fuse(), decoders.Replace("aabaa", ""), decoders.Strip(" ", 0, 1)]),
    "fallback and words": decoders.Sequence(
        [decoders.ByteFallback(), decoders.WordPiece("##"), decoders.BPEDecoder("b"), decoders.Metaspace("▁")]
    ),
}


@pytest.mark.parametrize("name", DECODERS)
def test_decoder(ours, tmp_path, name):
    """Of any tokens; the driver gives them to the detokeniser one by one."""
    tokens = ["a", "b", "ab", "aba", "aab", "▁", "▁▁", "▁a▁", "##a", "##", ".", " .", "n't", " do not", "a</w>", "Ġ", "Ã", "©"]
    tokens += ["ĠÃ", "漢", "<s>", "1", "<0x4>", "<0xGG>", "<0x+F>", "<0xé>", " ", "  ", "b▁"]
    tokens += [f"<0x{i:02X}>" for i in [*range(0x40, 0x50), 0xC3, 0xA9, 0xE6, 0xBC, 0xA2, 0xF0, 0x9F, 0x98, 0x80, 0xFF]]
    tokens += ["<0xc3>", "<0xa9>"]
    reference = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    reference.add_special_tokens([AddedToken("<s>")])
    if DECODERS[name]:
        reference.decoder = DECODERS[name]
    reference.save(str(tmp_path / "tokenizer.json"))
    rng, lists = random.Random(5), [[], *([i] for i in range(len(tokens)))]
    lists += [[rng.randrange(len(tokens)) for _ in range(rng.randint(2, 12))] for _ in range(2000)]
    lists += [[rng.randrange(6) for _ in range(rng.randint(2, 12))] for _ in range(2000)]
    for flags, skip in (("-", True), ("s", False)):
        compared = 0
        for ids, text in zip(lists, ours(tmp_path).decode(lists, flags), strict=True):
            try:
                expected = reference.decode(ids, skip_special_tokens=skip)
            except BaseException as error:  # Strip panics where both ends want the same character
                assert "Panic" in type(error).__name__ and "trip" in str(DECODERS[name])
                continue
            assert text == expected, [tokens[i] for i in ids]
            compared += 1
        assert compared > 1000


# ---- post-processors ----


def test_post_processors(ours, tmp_path):
    """A template before or behind the text, and ByteLevel, which does nothing to ids."""
    one = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    two = processors.TemplateProcessing(single="$A <s> <s>", special_tokens=[("<s>", 0)])
    posts = [one, two, processors.ByteLevel(), processors.Sequence([one, processors.ByteLevel()])]
    posts += [processors.Sequence([processors.ByteLevel(), two]), processors.Sequence([])]
    for i, post in enumerate(posts):
        compare(ours, build(tmp_path / str(i), pre=byte_level(), post=post), ["", "a", "<s>", "Hi there"], post=True)


# ---- public bug reports ----


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_leading_space(ours, tmp_path, scheme):
    """Metaspace before the first word, after several spaces, in nothing, and right after an added token."""
    folder = metaspace(tmp_path / "model", scheme)
    texts = ["Hi", " Hi", "  Hi", "", " ", "<sep>Hi", "<sep> Hi", "Hi<sep>Hi", " <sep>", "a mask b", "mask", "maskmask a"]
    compare(ours, folder, texts)
    for text in ("Hi", "Hi  there", "<sep>Hi"):
        (ids,) = ours(folder).encode([text])
        assert ours(folder).decode([ids], "s") == [library(folder).decode(ids, skip_special_tokens=False)]


def test_byte_fallback(ours, tmp_path):
    """What the vocabulary lacks becomes bytes, and they come back as they were, alone and together."""
    folder = metaspace(tmp_path / "model", "never")
    text = "🜁\u0b83 \U00010348\x01"
    (ids,) = ours(folder).encode([text])
    spelt = [library(folder).id_to_token(i) for i in ids]
    assert spelt[:4] == ["<0xF0>", "<0x9F>", "<0x9C>", "<0x81>"]
    assert ours(folder).decode([ids]) == [text]
    compare(ours, folder, [text, "<0x41>", "a\u0b83b"])


def test_unknown_beside_fallback(ours, tmp_path):
    """Where some bytes have no token, the unknown token comes out of order, as in the library."""
    for fuse in (False, True):
        vocab = {"a": 0, "<unk>": 1, "<0xC3>": 2, "<0xA9>": 3}
        model = models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=fuse)
        Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
        compare(ours, tmp_path, ["a一éa", "一一é一", "é一一", "一é", "一", "ééa一一aé"])


def test_first_of_all(ours, tmp_path):
    """What "first" means behind a normaliser that takes spaces away."""
    pre = pre_tokenizers.Metaspace("▁", prepend_scheme="first")
    added = [AddedToken("<sep>", normalized=False)]
    folder = build(tmp_path / "model", pre=pre, normalizer=normalizers.Strip(), added=added, bytes=True)
    compare(ours, folder, [" Hi", "Hi", "<sep> Hi", " <sep>Hi", "\n\nHi there "])
