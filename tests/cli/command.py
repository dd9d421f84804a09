"""Running the command and judging how it ended."""

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import time

DOG = "A dog is a member of the genus Canis that has been domesticated by man since prehistoric times."


def call(polymath, *args, **kwargs):
    """Runs the command with its output captured as bytes; stdin is empty unless `input` is given."""
    if "input" not in kwargs:
        kwargs.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run([polymath, *map(str, args)], capture_output=True, timeout=120, **kwargs)


def answer(polymath, *args, **kwargs):
    """The answer of a call that must succeed and say nothing on stderr, without its last newline."""
    done = call(polymath, "run", *args, **kwargs)
    assert (done.returncode, done.stderr) == (0, b""), done
    text = done.stdout.decode()
    assert text.endswith("\n")
    return text[:-1]


def as_json(polymath, *args, **kwargs):
    """The object of a call with --json that must succeed."""
    done = call(polymath, "run", "--json", *args, **kwargs)
    assert (done.returncode, done.stderr) == (0, b""), done
    assert done.stdout.count(b"\n") == 1 and done.stdout.endswith(b"\n")
    return json.loads(done.stdout)


def refused(done, code, *words):
    """Checks that a call ended with `code`, nothing on stdout, and one sentence on stderr with all of `words` in it."""
    text = done.stderr.decode()
    assert done.returncode == code, (done.returncode, text)
    assert done.stdout == b"", done.stdout
    assert text.startswith("polymath: ") and text.count("\n") == 1 and text.endswith("\n"), text
    for word in words:
        assert str(word) in text, f"{word!r} is not in {text!r}"


def copy_model(bundled, folder, **edits):
    """A copy of the bundled model in `folder`; edits maps a JSON file's stem to a function that changes its object."""
    shutil.copytree(bundled, folder)
    for stem, edit in edits.items():
        path = folder / f"{stem}.json"
        content = json.loads(path.read_text())
        edit(content)
        path.write_text(json.dumps(content))
    return folder


def endless(bundled, tmp_path):
    """A model whose stop token is one that it never says, with a context that no test fills before it interrupts."""

    def edit(config):
        config["eos_token_id"] = 4095
        config.get("text_config", {}).update(eos_token_id=4095, max_position_embeddings=1 << 18)

    model = copy_model(bundled, tmp_path / "endless", config=edit, generation_config=edit)
    text = (model / "tokenizer_config.json").read_text()
    (model / "tokenizer_config.json").write_text(text.replace('"eos_token"', '"no_eos_token"'))
    return model


class Terminal:
    """The command on a pseudo-terminal: stdin, stdout and stderr are one."""

    def __init__(self, polymath, *args):
        self.output = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            env = {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8"}
            os.execve(polymath, [str(polymath), *map(str, args)], env)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)

    def read(self, seconds):
        """Collects output for at most that long; False when nothing came."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # the other end is closed
            return False
        self.output += data
        return bool(data)

    def wait_for(self, words, seconds=60):
        """Waits until `words` are shown, and forgets everything up to and with them."""
        end = time.monotonic() + seconds
        while words not in self.output:
            assert time.monotonic() < end, f"{words!r} did not come; shown so far: {self.output!r}"
            self.read(0.1)
        before, _, self.output = self.output.partition(words)
        return before

    def type(self, data):
        os.write(self.fd, data)

    def exit_code(self, seconds=60):
        """Waits for the end; the exit code, negative for a signal."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while self.read(0):
                    pass
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(f"still running; shown: {self.output!r}")
