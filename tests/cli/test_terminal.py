"""On a terminal: line editing, Ctrl-C, Ctrl-D, the report after an answer."""

import os
import signal
import subprocess
import time

from command import DOG, Terminal, copy_model


def endless(bundled, tmp_path):
    """A model whose stop token is one that it never says."""

    def edit(config):
        config["eos_token_id"] = 4095
        config.get("text_config", {})["eos_token_id"] = 4095

    model = copy_model(bundled, tmp_path / "endless", config=edit, generation_config=edit)
    text = (model / "tokenizer_config.json").read_text()
    (model / "tokenizer_config.json").write_text(text.replace('"eos_token"', '"no_eos_token"'))
    return model


def test_run_reports_its_speed(polymath):
    with Terminal(polymath, "run", "What is a dog?") as terminal:
        terminal.wait_for(DOG.encode() + b"\r\n")
        terminal.wait_for(b"tokens/s]")
        assert terminal.exit_code() == 0


def test_stdout_in_a_pipe_has_only_the_answer(polymath):
    """Nothing is reported when only stderr is a terminal."""
    primary, secondary = os.openpty()
    done = subprocess.run([polymath, "run", "What is a dog?"], stdout=subprocess.PIPE, stderr=secondary)
    os.close(secondary)
    os.set_blocking(primary, False)
    try:
        shown = os.read(primary, 4096)
    except OSError:
        shown = b""
    os.close(primary)
    assert (done.returncode, done.stdout.decode()) == (0, DOG + "\n")
    assert b"tokens/s" not in shown


def test_control_characters_are_not_obeyed(polymath):
    """--raw makes no difference: what goes to the terminal has no control characters but line ends."""
    with Terminal(polymath, "run", "--temperature", "100", "--seed", "1", "--max-tokens", "300", "x") as terminal:
        assert terminal.exit_code() == 0
        answer = terminal.output.rpartition(b"[prompt: ")[0]
        assert not any(byte < 32 and byte not in b"\r\n\t" for byte in answer.replace(b"\r\x1b[K", b""))


def test_interrupting_run(polymath, bundled, tmp_path):
    with Terminal(polymath, "run", endless(bundled, tmp_path), "What is a dog?") as terminal:
        terminal.wait_for(b"A dog")
        terminal.type(b"\x03")
        terminal.wait_for(b"cancelled]")
        assert terminal.exit_code() == 0


def test_interrupting_a_pipe(polymath, bundled, tmp_path):
    """What was generated stays, ends with a newline, and JSON says so."""
    model = endless(bundled, tmp_path)
    for flags in [], ["--json"]:
        command = [polymath, "run", *flags, "--threads", "1", model, "What is a dog?"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        first = process.stdout.read(5) if not flags else time.sleep(0.4) or b""
        process.send_signal(signal.SIGINT)
        rest, stderr = process.communicate(timeout=60)
        text = (first + rest).decode()
        if process.returncode == -signal.SIGINT and flags:
            continue  # it had not begun to generate
        assert (process.returncode, stderr) == (0, b"")
        assert text.endswith("\n")
        assert text.startswith("A dog") or '"finish_reason":"' in text


def test_interrupting_chat(polymath, bundled, tmp_path):
    with Terminal(polymath, "chat", endless(bundled, tmp_path)) as terminal:
        terminal.wait_for(b"> ")
        terminal.type(b"What is a dog?\n")
        terminal.wait_for(b"A dog")
        terminal.type(b"\x03")
        terminal.wait_for(b"cancelled]")
        terminal.wait_for(b"> ")
        terminal.type(b"half a line")
        terminal.wait_for(b"half a line")
        terminal.type(b"\x03")  # drops the line
        terminal.wait_for(b"> ")
        terminal.type(b"What is a cat?\n")
        terminal.wait_for(b"A cat")
        terminal.type(b"\x03")
        terminal.wait_for(b"cancelled]")
        terminal.wait_for(b"> ")
        terminal.type(b"\x04")
        assert terminal.exit_code() == 0


def test_history_and_ctrl_d(polymath):
    with Terminal(polymath, "chat") as terminal:
        terminal.wait_for(b"> ")
        terminal.type(b"What is a dog?\n")
        terminal.wait_for(DOG.encode())
        terminal.wait_for(b"> ")
        terminal.type(b"\x1b[A")  # up: the line again
        terminal.wait_for(b"What is a dog?")
        terminal.type(b"\n")
        terminal.wait_for(DOG.encode())
        terminal.wait_for(b"> ")
        terminal.type(b"\x04")
        assert terminal.exit_code() == 0


def test_editing_a_line(polymath):
    with Terminal(polymath, "chat") as terminal:
        terminal.wait_for(b"> ")
        terminal.type(b"What is a dogg\x7f?\n")  # backspace
        terminal.wait_for(DOG.encode())
        terminal.wait_for(b"> ")
        terminal.type(b"\x04")
        assert terminal.exit_code() == 0


def test_a_failed_turn_is_taken_back(polymath):
    with Terminal(polymath, "chat", "--ctx", "40") as terminal:
        terminal.wait_for(b"> ")
        terminal.type(b"why " * 60 + b"\n")
        terminal.wait_for(b"polymath: ")
        terminal.wait_for(b"> ")
        terminal.type(b"What is a dog?\n")
        terminal.wait_for(b"A dog")
        terminal.wait_for(b"> ")
        terminal.type(b"\x04")
        assert terminal.exit_code() == 0
