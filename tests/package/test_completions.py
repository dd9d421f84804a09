"""Completion in bash and zsh: what is offered is what --help says, for every command."""

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time

import pytest


def help_of(polymath, *command):
    return subprocess.run([polymath, *command, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.fixture(scope="module")
def commands(polymath):
    found = re.findall(r"^  polymath ([a-z]+) ", help_of(polymath), re.MULTILINE)
    assert {"run", "chat", "inspect", "bench"} <= set(found)
    return found


def options_of(polymath, command):
    return re.findall(r"^  (--[a-z-]+)", help_of(polymath, command), re.MULTILINE)


@pytest.fixture
def folder(tmp_path):
    """A working directory with a folder and a file."""
    (tmp_path / "one model").mkdir()
    (tmp_path / "one.txt").write_text("")
    return tmp_path


def bash(source, polymath, folder, *words):
    """What bash would offer for the last of the words."""
    script = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _polymath; '
        '((${#COMPREPLY[@]} == 0)) || printf "%s\\n" "${COMPREPLY[@]}"'
    )
    file = source / "packaging/completions/polymath"
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", file, polymath, *words],
        cwd=folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.splitlines()


def test_bash_offers_commands_and_their_options(source, polymath, folder, commands):
    assert bash(source, polymath, folder, "") == [*commands, "help", "--help", "--version"]
    assert bash(source, polymath, folder, "help", "") == commands
    assert bash(source, polymath, folder, "help", "be") == ["bench"]
    assert bash(source, polymath, folder, "help", "run", "") == []
    assert bash(source, polymath, folder, "cha") == ["chat"]
    for command in commands:
        assert bash(source, polymath, folder, command, "--") == options_of(polymath, command)
    assert bash(source, polymath, folder, "run", "--raw", "--see") == ["--seed"]
    assert bash(source, polymath, folder, "nonsense", "--") == []


def test_bash_offers_values_and_files(source, polymath, folder):
    for words in ["--kv-type", ""], ["--kv-type", "="]:
        assert bash(source, polymath, folder, "run", *words) == ["f16", "f32", "q8"]
    assert bash(source, polymath, folder, "run", "--kv-type", "=", "f") == ["f16", "f32"]
    assert bash(source, polymath, folder, "run", "--seed", "") == []
    assert bash(source, polymath, folder, "run", "o") == ["one model"]
    assert bash(source, polymath, folder, "inspect", "--kv-type", "f16", "") == ["one model"]
    assert sorted(bash(source, polymath, folder, "perplexity", "o")) == ["one model", "one.txt"]


def zsh(source, polymath, folder, line):
    """The list that a zsh on a terminal shows when tab is pressed after a line: its entries without what they mean."""
    assert shutil.which("zsh"), "tools/setup.sh test installs zsh"
    setup = (
        f"stty cols 250 rows 100; path=({polymath.parent} $path); fpath=({source}/packaging/completions $fpath); "
        "autoload -U compinit; compinit -D -u; bindkey '^I' list-choices; PS1='> '; print REA''DY\n"
    )
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "TERM": "dumb", "LC_ALL": "C.UTF-8", "HOME": str(folder)})
    shown = b""

    def read_until(words):
        """What is shown before `words`."""
        nonlocal shown
        end = time.monotonic() + 60
        while words not in shown:
            assert time.monotonic() < end, f"{words!r} did not come; shown so far: {shown!r}"
            if select.select([fd], [], [], 0.1)[0]:
                shown += os.read(fd, 65536)
        before, _, shown = shown.partition(words)
        return before.decode()

    try:
        os.write(fd, setup.encode())
        read_until(b"READY\r\n")
        read_until(b"> ")
        os.write(fd, line.encode() + b"\t")
        read_until(b"\n")
        entries = read_until(b"\r\n> " + line.encode()).splitlines()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(fd)
    return [word for entry in entries for word in re.split(r"  +", re.sub(" +-- .*", "", entry).strip())]


def test_zsh_offers_commands_and_their_options(source, polymath, folder, commands):
    assert zsh(source, polymath, folder, "polymath ") == sorted([*commands, "help", "--help", "--version"])
    assert zsh(source, polymath, folder, "polymath help ") == sorted(commands)
    for command in commands:
        assert zsh(source, polymath, folder, f"polymath {command} --") == sorted(options_of(polymath, command))


def test_zsh_offers_values_and_files(source, polymath, folder):
    for line in "polymath run --kv-type ", "polymath run --raw --kv-type=":
        assert zsh(source, polymath, folder, line) == ["f16", "f32", "q8"]
    assert zsh(source, polymath, folder, "polymath inspect --kv-type f16 o") == ["one\\ model/"]
    assert zsh(source, polymath, folder, "polymath perplexity one") == ["one\\ model/", "one.txt"]
