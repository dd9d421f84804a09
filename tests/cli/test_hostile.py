"""What a hostile or careless surrounding does to the command: files that change, closed streams, broken links."""

import os
import shutil
import subprocess

import pytest


@pytest.fixture
def copy(bundled, tmp_path):
    """A copy of the bundled model that a test may damage."""
    path = tmp_path / "model"
    shutil.copytree(bundled, path)
    return path


def test_weights_that_shrink_during_a_run(polymath, copy):
    """One sentence and exit 1, whenever it happens: between steps the library notices, in a step the command does."""
    weights, whole = copy / "model.safetensors", (copy / "model.safetensors").read_bytes()
    prompt = "dog " * 1000
    for delay in 0.0, 0.02, 0.05, 0.1, 0.2:
        weights.write_bytes(whole)
        command = [polymath, "run", "--raw", copy, "-"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        child.stdin.write(prompt)
        child.stdin.close()
        try:
            child.wait(timeout=delay)
        except subprocess.TimeoutExpired:
            pass
        os.truncate(weights, 1 << 20)
        error = child.stderr.read()
        assert child.wait(timeout=60) in (0, 1), f"exit {child.returncode}: {error}"
        if child.returncode:
            assert error.startswith("polymath: ") and error.count("\n") == 1, error


@pytest.mark.parametrize("stream, command", [("<&-", "chat"), ("<&-", "run - "), (">&-", "run hello"), ("2>&-", "run hello")])
def test_closed_streams(polymath, bundled, stream, command):
    """A closed stream is not taken by a file of the model."""
    word, *rest = command.split()
    done = subprocess.run(["bash", "-c", f'"$0" {word} "$1" {" ".join(rest)} {stream}', polymath, bundled],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)  # fmt: skip
    assert done.returncode in (0, 1)
    assert b"UTF-8" not in done.stderr and b"A_log" not in done.stdout


@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer_config.json", "chat_template.jinja"])
def test_links_that_lead_nowhere(polymath, copy, name):
    """A file that is there but cannot be read is an error that names it, not a missing one."""
    (copy / name).unlink()
    (copy / name).symlink_to("nowhere")
    done = subprocess.run([polymath, "run", copy, "hello"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1 and name in done.stderr, done.stderr


def test_control_characters_in_arguments(polymath):
    done = subprocess.run([polymath, "run", "--threads", "a\x1b[31m\nb"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "\x1b" not in done.stderr, done.stderr


def test_a_directory_without_a_name(polymath):
    done = subprocess.run([polymath, "inspect", ""], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode != 0 and "/config.json" not in done.stderr, done.stderr
