"""polymath tokenize: tokens of a text, and the text of tokens."""

import json

import pytest
from tokenizers import Tokenizer

from command import call, refused

TEXT = "Hé 漢字 <|im_end|>\n\n  12"


@pytest.fixture(scope="module")
def library(bundled):
    return Tokenizer.from_file(str(bundled / "tokenizer.json"))


def tokenize(polymath, *args, **kwargs):
    done = call(polymath, "tokenize", *args, **kwargs)
    assert (done.returncode, done.stderr) == (0, b""), done
    return done.stdout.decode()


def lines(encoding):
    return "".join(f"{id}\t{token}\n" for id, token in zip(encoding.ids, encoding.tokens))


def test_a_line_a_token(polymath, bundled, library):
    want = lines(library.encode(TEXT))
    assert "2\t<|im_end|>" in want
    assert tokenize(polymath, TEXT) == want
    assert tokenize(polymath, bundled, TEXT) == want
    assert tokenize(polymath, input=TEXT.encode()) == want
    assert tokenize(polymath, bundled, input=TEXT.encode()) == want
    assert tokenize(polymath, bundled, "-", input=TEXT.encode()) == want


def test_nothing(polymath):
    assert tokenize(polymath, input=b"") == ""
    assert tokenize(polymath, "--decode", input=b" \n") == "\n"
    assert json.loads(tokenize(polymath, "--json", "")) == {"ids": [], "tokens": [], "text": ""}


def test_json(polymath, library):
    want = library.encode(TEXT)
    got = json.loads(tokenize(polymath, "--json", TEXT))
    assert got == {"ids": want.ids, "tokens": want.tokens, "text": TEXT}


def test_plain(polymath, library):
    ids = json.loads(tokenize(polymath, "--json", "--plain", "<|im_end|>"))["ids"]
    assert 2 not in ids and library.decode(ids) == "<|im_end|>"


def test_decode(polymath, library):
    ids = library.encode(TEXT).ids
    for text in (" ".join(map(str, ids)), ",".join(map(str, ids)), "\n".join(map(str, ids)) + "\n"):
        assert tokenize(polymath, "--decode", text) == TEXT + "\n"
    assert tokenize(polymath, "--decode", "--plain", "1 2") == "\n"
    assert json.loads(tokenize(polymath, "--decode", "--json", "1,2")) == {
        "ids": [1, 2],
        "tokens": ["<|im_start|>", "<|im_end|>"],
        "text": "<|im_start|><|im_end|>",
    }


@pytest.mark.parametrize(
    "args, words",
    [
        (["nowhere", "text"], ["'nowhere'", "MODEL"]),
        (["--decode", "1 x2"], ["TEXT", "'x2'"]),
        (["--decode", "1 -2"], ["'-2'"]),
        (["--decode", "4294967297"], ["'4294967297'"]),
        (["--decode", "1;2"], ["'1;2'"]),
        (["--decode", "4096"], ["TEXT", "4096", "vocabulary"]),
    ],
)
def test_what_is_refused(polymath, args, words):
    refused(call(polymath, "tokenize", *args), 1, *words)


def test_invalid_utf8(polymath):
    refused(call(polymath, "tokenize", input=b"ab\xff"), 1, "stdin", "UTF-8", "2")


def test_a_folder_without_a_tokenizer(polymath, tmp_path):
    refused(call(polymath, "tokenize", tmp_path, "text"), 1, "tokenizer.json")


def test_a_tokenizer_needs_no_model(polymath, bundled, tmp_path, library):
    (tmp_path / "tokenizer.json").write_bytes((bundled / "tokenizer.json").read_bytes())
    assert tokenize(polymath, tmp_path, TEXT) == lines(library.encode(TEXT))
