"""On a terminal: line editing, Ctrl-C, Ctrl-D, the report after an answer."""

import fcntl
import os
import signal
import struct
import subprocess
import termios
import time

from command import DOG, Terminal, endless


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
    """What was generated stays and ends with a newline; JSON says so."""
    model = endless(bundled, tmp_path)
    for flags in [], ["--json"]:
        command = [polymath, "run", *flags, "--threads", "1", "--verbose", model, "What is a dog?"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stderr.readline().startswith(b"model: ")
        start = process.stdout.read(len(DOG)) if not flags else time.sleep(0.3) or b""
        process.send_signal(signal.SIGINT)
        rest, report = process.communicate(timeout=60)
        assert process.returncode == 0
        assert rest.endswith(b"\n")
        assert b"cancelled" in report
        assert start == DOG.encode() if not flags else b'"finish_reason":"cancelled"' in rest


def test_second_interrupt(polymath, bundled, tmp_path):
    """A command that cannot end, since nobody reads what it writes, ends at the second Ctrl-C."""
    flags = ["--temperature", "100", "--top-k", "0", "--seed", "1"]
    command = [polymath, "run", *flags, endless(bundled, tmp_path), "x"]
    reader, writer = os.pipe()
    fcntl.fcntl(writer, 1031, 4096)  # F_SETPIPE_SZ
    process = subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    waiting, end = 0, time.monotonic() + 60
    while waiting < 4096 - 64 and time.monotonic() < end:
        time.sleep(0.05)
        waiting = struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, b"\0" * 4))[0]
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None, f"it ended although only {waiting} bytes were written"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert process.stderr.read() == b""
    os.close(reader)


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
        terminal.wait_for(b"feline")
        terminal.type(b"\x03")
        terminal.wait_for(b"cancelled]")
        terminal.wait_for(b"> ")
        terminal.type(b"\x04")
        assert terminal.exit_code() == 0


def test_ctrl_c_as_soon_as_a_prompt_shows(polymath):
    with Terminal(polymath, "chat") as terminal:
        for _ in range(100):
            terminal.wait_for(b"> ")
            terminal.type(b"What is\\\n")
            terminal.wait_for(b"\n. ")
            terminal.type(b"\x03")
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


def test_a_message_of_several_lines(polymath):
    """It has a prompt of its own; Ctrl-C drops all of it, Ctrl-D on an empty line ends it."""
    with Terminal(polymath, "chat") as terminal:
        for last in b"\x03", b"a dog?\n", b"a dog?\\\n\x04":
            terminal.wait_for(b"> ")
            terminal.type(b"What is\\\n")
            terminal.wait_for(b"\n. ")
            terminal.type(last)
            if last != b"\x03":
                terminal.wait_for(b"tokens/s]")
        terminal.wait_for(b"> ")
        terminal.type(b"What is a dog?\n")
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


def test_chat_commands(polymath, tmp_path):
    with Terminal(polymath, "chat") as terminal:
        for line, shown in [
            (b"/help", b"/stats "),
            (b"My name is Victor.", b"I will remember that."),
            (f"/save {tmp_path}/chat".encode(), b"[saved: 2 messages, 20 tokens]"),
            (b"/reset", b"[a new conversation]"),
            (b"/load /nowhere", b"polymath: /nowhere: cannot be opened"),
            (f"/load {tmp_path}/chat".encode(), b"[loaded: 2 messages, 20 tokens]"),
            (b"What is my name?", b"Your name is Victor."),
            (b"/system Be brief.", b"[the system message is set]"),
            (b"/stats", b"messages      5"),
        ]:
            terminal.wait_for(b"> ")
            terminal.type(line + b"\n")
            terminal.wait_for(shown)
        terminal.wait_for(b"> ")
        terminal.type(b"\x04")
        assert terminal.exit_code() == 0


def test_prompt_from_a_terminal(polymath):
    """One Ctrl-D ends it."""
    for flags in [], ["--raw"]:
        with Terminal(polymath, "run", *flags, "--max-tokens", "3", "-") as terminal:
            terminal.type(b"What is a dog?\n")
            terminal.wait_for(b"What is a dog?\r\n")  # the echo
            time.sleep(0.2)
            terminal.type(b"\x04")
            terminal.wait_for(b"tokens/s", 20)
            assert terminal.exit_code() == 0


def test_greeting_and_blank_lines(polymath):
    with Terminal(polymath, "chat") as terminal:
        terminal.wait_for(b": /help lists commands, Ctrl-D ends]\r\n")
        for line in b"\n", b"  \t \n":
            terminal.wait_for(b"> ")
            terminal.type(line)
        terminal.wait_for(b"> ")
        terminal.type(b"/stats\n")
        terminal.wait_for(b"messages      0")
        terminal.wait_for(b"> ")
        terminal.type(b"\x04")
        assert terminal.exit_code() == 0


def test_a_full_chat_can_go_on(polymath):
    with Terminal(polymath, "chat", "--ctx", "40") as terminal:
        terminal.wait_for(b"> ")
        terminal.type(b"What is a dog?\n")
        terminal.wait_for(b"tokens/s")
        for _ in range(2):
            terminal.wait_for(b"> ")
            terminal.type(b"What is a dog and what is a cat and what is a bird?\n")
            terminal.wait_for(b"more than the context of 40; /reset begins anew, and --ctx sets the limit")
        terminal.wait_for(b"> ")
        terminal.type(b"/reset\n")
        terminal.wait_for(b"> ")
        terminal.type(b"What is a dog?\n")
        terminal.wait_for(DOG.encode())
        terminal.wait_for(b"> ")
        terminal.type(b"\x04")
        assert terminal.exit_code() == 0


def test_an_answer_that_fills_the_context(polymath):
    with Terminal(polymath, "chat", "--ctx", "20") as terminal:
        terminal.wait_for(b"> ")
        terminal.type(b"What is a dog?\n")
        terminal.wait_for(b"cut: the context is full, /reset begins anew]")
    with Terminal(polymath, "run", "--max-tokens", "2", "What is a dog?") as terminal:
        terminal.wait_for(b"cut at the limit of tokens]")
        assert terminal.exit_code() == 0


def test_sampling_options_without_sampling(polymath):
    told = b"[sampling options have no effect at temperature 0]"
    for flags, wanted in [
        (["--top-k", "3"], True),
        (["--temperature", "0", "--seed", "1"], True),
        (["--temperature", "1", "--top-k", "1"], False),
        (["--presence-penalty", "1"], False),
    ]:
        with Terminal(polymath, "run", *flags, "What is a dog?") as terminal:
            assert terminal.exit_code() == 0
            assert (told in terminal.output) == wanted, flags
    assert subprocess.run([polymath, "run", "--top-k", "3", "x"], capture_output=True).stderr == b""
