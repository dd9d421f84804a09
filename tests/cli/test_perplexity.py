"""polymath perplexity against numbers from transformers, and against log-probabilities of polymath run."""

import json
import math
import os
import re
import statistics
import subprocess

import pytest

from command import Terminal, as_json, call, copy_model, refused

TEXT = ("The quick brown fox jumps over the lazy dog. " * 3 + "Sphinx of black quartz, judge my vow! 0123456789\n") * 4


def measure(polymath, *args, **kwargs):
    done = call(polymath, "perplexity", "--json", *args, **kwargs)
    assert (done.returncode, done.stderr) == (0, b""), done
    return json.loads(done.stdout)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text"
    path.write_text(TEXT)
    return path


# transformers 5 in float32, with the windows of its guide; the loss of each token weighed alike.
@pytest.mark.parametrize(
    "ctx, stride, perplexity, tokens",
    [(32, 16, 8534.06101611821, 735), (64, 64, 7226.455448038761, 724), (50, 7, 6357.197281754808, 735)],
)
def test_against_transformers(polymath, source, text, ctx, stride, perplexity, tokens):
    model = source / "tests/oracles/qwen3_moe"
    got = measure(polymath, "--kv-type", "f32", "--ctx", ctx, "--stride", stride, model, text)
    assert (got["tokens"], got["text_tokens"], got["ctx"], got["stride"]) == (tokens, 736, ctx, stride)
    assert got["perplexity"] == pytest.approx(perplexity, rel=1e-5)
    assert got["mean_loss"] == pytest.approx(math.log(perplexity), abs=1e-5)


def test_against_run(polymath, tmp_path):
    """One window: each token's loss is what polymath run says of it, which is told to continue the text before it."""
    path = tmp_path / "text"
    path.write_text("A dog is a member of the")
    losses = []
    ids = as_json(polymath, "--raw", "--max-tokens", "1", path.read_text())["prompt_ids"]
    for i in range(1, len(ids)):
        prefix = ",".join(map(str, ids[:i]))
        told = as_json(polymath, "--ids", prefix, "--max-tokens", "1", "--top-logprobs", "0", "--temperature", "0",
                       "--logit-bias", f"{ids[i]}:100")  # fmt: skip
        assert told["output_ids"] == [ids[i]]
        losses.append(-told["logprobs"][0]["logprob"])  # of the raw logits: the bias does not show
    got = measure(polymath, path)
    assert got["tokens"] == len(ids) - 1
    assert got["mean_loss"] == pytest.approx(statistics.mean(losses), abs=1e-5)
    error = statistics.stdev(losses) / math.sqrt(len(losses))
    assert got["perplexity_error"] == pytest.approx(got["perplexity"] * error, rel=1e-4)


def test_a_single_token_has_no_error(polymath, tmp_path):
    path = tmp_path / "text"
    path.write_text("A dog")
    assert measure(polymath, path)["perplexity_error"] == 0
    assert call(polymath, "perplexity", path).stdout.endswith(b" +/- 0 over 1 token\n")


def test_verbose(polymath, text):
    done = call(polymath, "perplexity", "--verbose", "--ctx", "64", "--stride", "48", text)
    model, *_, timing = done.stderr.decode().splitlines()
    assert done.returncode == 0 and model.startswith("model: ")
    assert re.fullmatch(r"\[windows of 64 tokens, 48 apart; \d+ tokens judged in \d+\.\d+ s\]", timing)


def test_a_window_left_out(polymath, source, tmp_path):
    """A Mistral config without sliding_window means 4096, as in transformers; null means none."""
    path = tmp_path / "text"
    path.write_text(TEXT * 7)

    def perplexity(**window):
        def edit(config):
            del config["sliding_window"]
            config.update(window, max_position_embeddings=8192)

        name = str(window.get("sliding_window", "left out"))
        model = copy_model(source / "tests/oracles/mistral", tmp_path / name, config=edit)
        got = measure(polymath, "--ctx", 8192, model, path)
        assert got["text_tokens"] > 4096 + 500
        return got["perplexity"]

    assert perplexity() == perplexity(sliding_window=4096) != perplexity(sliding_window=None)


def test_plain_output_and_stdin(polymath, text):
    want = measure(polymath, text)
    assert (want["ctx"], want["stride"]) == (2048, 1024)
    done = call(polymath, "perplexity", "-", input=TEXT.encode())
    assert (done.returncode, done.stderr) == (0, b"")
    value = f"{want['perplexity']:.6g} +/- {want['perplexity_error']:.4g}"
    assert done.stdout.decode() == f"perplexity {value} over {want['tokens']} tokens\n"
    again = measure(polymath, "--threads", "1", text)
    assert again["perplexity"] == want["perplexity"]


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", ["is empty"]),
        (b"a", ["has 1 token;"]),
        (b"good\xff\n", ["UTF-8", "offset 4"]),
    ],
)
def test_unusable_texts(polymath, tmp_path, content, words):
    path = tmp_path / "text"
    path.write_bytes(content)
    refused(call(polymath, "perplexity", path), 1, path, *words)
    refused(call(polymath, "perplexity", "-", input=content), 1, "stdin", *words)


def test_unreadable_files(polymath, bundled, tmp_path):
    refused(call(polymath, "perplexity", tmp_path / "none"), 1, tmp_path / "none", "No such file")
    refused(call(polymath, "perplexity", bundled, tmp_path), 1, tmp_path, "Is a directory")
    refused(call(polymath, "perplexity", bundled), 2, bundled, "FILE is missing")
    refused(call(polymath, "perplexity", __file__, bundled), 1, __file__, "cannot be the MODEL")
    refused(call(polymath, "perplexity", tmp_path / "none", __file__), 1, tmp_path / "none")


def test_windows_that_make_no_sense(polymath, text):
    refused(call(polymath, "perplexity", "--ctx", "64", "--stride", "65", text), 2, "65", "64")
    refused(call(polymath, "perplexity", "--ctx", "1", text), 2, "--ctx of 1")


def test_progress_on_a_terminal(polymath, tmp_path):
    path = tmp_path / "text"
    path.write_text(TEXT * 20)
    with Terminal(polymath, "perplexity", "--threads", "1", "--ctx", "128", "--stride", "8", path) as terminal:
        terminal.wait_for(b"#")
        terminal.wait_for(b"perplexity ")
        terminal.wait_for(b" %")
        terminal.type(b"\x03")
        assert terminal.exit_code() == -2
    reader, writer = os.pipe()
    primary, secondary = os.openpty()
    done = subprocess.run([polymath, "perplexity", "--ctx", "128", path], stdout=writer, stderr=secondary)
    os.close(writer)
    os.close(secondary)
    with os.fdopen(reader, "rb") as out:
        assert done.returncode == 0 and out.read().startswith(b"perplexity ")
    os.close(primary)
