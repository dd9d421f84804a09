"""What a hostile or careless surrounding does to the command: files that change, closed streams, broken links."""

import json
import os
import shutil
import signal
import subprocess
import time

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


def test_a_save_that_does_not_fit(polymath, tmp_path):
    """A file that may not grow, as on a full disk: the old one stays, nothing else does, and the chat goes on."""
    (tmp_path / "chat").write_text("old")
    lines = "My name is Victor.\n/save chat\nWhat is my name?\n"
    done = subprocess.run(["bash", "-c", 'ulimit -f 64; exec "$0" chat', polymath], input=lines, capture_output=True, text=True,
                          cwd=tmp_path, timeout=60)  # fmt: skip
    assert done.returncode == 1 and done.stdout.splitlines()[-1] == "Your name is Victor.", done
    assert done.stderr.startswith("polymath: chat: cannot be written: ") and done.stderr.count("\n") == 1, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["chat"] and (tmp_path / "chat").read_text() == "old"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_a_save(polymath, tmp_path, number):
    """The file that is being written is finished first; nothing half-written is left beside it."""
    child = subprocess.Popen([polymath, "chat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=tmp_path)
    child.stdin.write(b"My name is Victor.\n" + b"/save chat\n" * 1000)
    child.stdin.flush()
    end = time.monotonic() + 60
    while not (tmp_path / "chat").exists():
        assert time.monotonic() < end and child.poll() is None, child.stderr.read()
        time.sleep(0.001)
    child.send_signal(number)
    child.communicate(timeout=60)
    assert child.returncode == -number
    assert [path.name for path in tmp_path.iterdir()] == ["chat"]
    done = subprocess.run([polymath, "chat"], input="/load chat\nWhat is my name?\n", capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "Your name is Victor.\n"), done


def test_a_model_that_says_nul(polymath, bundled):
    """No chat template takes a NUL byte in a message: the answer is kept without it, and the chat goes on."""
    nul = json.loads((bundled / "tokenizer.json").read_text())["model"]["vocab"]["\u0100"]  # byte 0 as ByteLevel spells it
    bias = ["--logit-bias", f"{nul}:100"] * 2
    done = subprocess.run([polymath, "chat", "--max-tokens", "2", *bias], input="hello\nhello\n", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "\0\0\n" * 2)


def test_inspect_with_little_memory(polymath, build_dir):
    """What this process lacks is not the checkpoint's verdict."""
    if build_dir.name in ("asan", "tsan"):
        pytest.skip("sanitizers reserve more address space than the limit")

    def limited(kilobytes, *args):
        command = ["bash", "-c", f'ulimit -v {kilobytes}; exec "$0" "$@"', polymath, *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    # What the program itself takes, with its libraries, and a little more.
    needed = next(kilobytes for kilobytes in range(10000, 200000, 1000) if not limited(kilobytes, "--version").returncode)
    done = limited(needed + 1500, "inspect", "--json")
    assert (done.returncode, done.stdout) == (1, ""), done
    assert done.stderr.startswith("polymath: ") and "memory" in done.stderr, done.stderr
