"""polymath chat --url and bench --url, with a stand-in that behaves well or badly."""

import json
import resource
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from scripted import Scripted, delta, text, usage

sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))
from command import Terminal, call, refused  # noqa: E402


@pytest.fixture
def scripted():
    with Scripted() as scripted:
        yield scripted


@contextmanager
def raw(*answers):
    """A server that takes one connection after the other, reads a request and sends these bytes (or what an iterator
    gives) whatever was asked."""
    listener = socket.create_server(("127.0.0.1", 0))
    left = threading.Event()

    def serve():
        for answer in answers:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                read_request(connection)
                try:
                    for piece in [answer] if isinstance(answer, bytes) else answer:
                        connection.sendall(piece)
                except OSError:
                    left.set()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", left
    finally:
        listener.close()
        thread.join(10)


def read_request(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(1 << 16)
    head, _, body = data.partition(b"\r\n\r\n")
    length = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    while length and len(body) < int(length[0]):
        body += connection.recv(1 << 16)


def chat(polymath, url, lines, *args):
    done = call(polymath, "chat", "--url", url, *args, input=lines.encode())
    assert (done.returncode, done.stderr) == (0, b""), done
    return done.stdout.decode()


# ---- chat ----


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/"])
def test_a_conversation(polymath, scripted, tail):
    """Each request has the whole conversation; reasoning is left out in a pipe."""
    scripted.answers = [[delta(reasoning_content="Hm."), *text("One", " and", " a half.")], text("Two.\n")]
    assert chat(polymath, scripted.url + tail, "First\nSecond\n", "--system", "Be brief.") == "One and a half.\nTwo.\n"
    path, headers, body = scripted.requests[1]
    assert path == "/v1/chat/completions" and "Authorization" not in headers
    assert body == {
        "model": "scripted-model",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "First"},
            {"role": "assistant", "content": "One and a half.", "reasoning_content": "Hm."},
            {"role": "user", "content": "Second"},
        ],
    }


def test_options_are_fields(polymath, scripted, tmp_path):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    (tmp_path / "tools").write_text(json.dumps(tools))
    (tmp_path / "key").write_text("secret-key\nanother\n")
    scripted.answers = [text("Yes")]
    options = ["--max-tokens", "5", "--temperature", "0.5", "--top-k", "3", "--top-p", "0.9", "--min-p", "0.1",
               "--repetition-penalty", "1.5", "--presence-penalty", "1", "--frequency-penalty", "-1", "--seed", "7",
               "--stop", "a", "--stop", "b", "--logit-bias", "4:1.5", "--logit-bias", "4:1", "--no-think", "--set",
               "effort:high", "--tools", tmp_path / "tools", "--api-key-file", tmp_path / "key", "--model", "other",
               "--xtc-probability", "0.5", "--xtc-threshold", "0.25"]  # fmt: skip
    chat(polymath, scripted.url, "Hi\n", *options)
    (_, headers, body), *more = scripted.requests
    assert not more and headers["Authorization"] == "Bearer secret-key"
    del body["messages"], body["stream"], body["stream_options"]
    assert body == {
        "model": "other", "max_tokens": 5, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1,
        "repetition_penalty": 1.5, "presence_penalty": 1, "frequency_penalty": -1, "seed": 7, "stop": ["a", "b"],
        "logit_bias": {"4": 2.5}, "chat_template_kwargs": {"enable_thinking": False, "effort": "high"}, "tools": tools,
        "xtc_probability": 0.5, "xtc_threshold": 0.25,
    }  # fmt: skip


def test_calls(polymath, scripted):
    """Pieces of two calls, one within the other, become lines, and go back as they came."""
    piece = lambda index, **function: {"index": index, "function": function}
    scripted.answers = [
        [delta(content="Let me see."), delta(tool_calls=[{**piece(0, name="rain"), "id": "x1"}, piece(1, name="wi")]),
         delta(tool_calls=[piece(1, name="nd", arguments='{"a"')]), delta(tool_calls=[piece(0, arguments="{}")]),
         delta("tool_calls", tool_calls=[piece(1, arguments=": 1}")]), "[DONE]"],
        text("Yes"),
    ]  # fmt: skip
    assert chat(polymath, scripted.url, "Go\nOn\n") == 'Let me see.\n[call: rain {}]\n[call: wind {"a": 1}]\nYes\n'
    calls = scripted.requests[1][2]["messages"][1]["tool_calls"]
    assert [(c["id"], c["function"]) for c in calls] == [
        ("x1", {"name": "rain", "arguments": "{}"}),
        ("call00001", {"name": "wind", "arguments": '{"a": 1}'}),
    ]


def test_commands(polymath, scripted):
    """What needs the model itself is refused; the rest works as with one."""
    scripted.answers = [text("Yes")]
    lines = "Hi\n/stats\n/save x\n/load x\n/reset\n/system Be kind.\nHi\n"
    done = call(polymath, "chat", "--url", scripted.url, input=lines.encode())
    said = done.stderr.decode().splitlines()
    assert done.returncode == 1 and done.stdout == b"Yes\nYes\n"
    assert said[:2] == ["messages      2", f"server        {scripted.url}, scripted-model"]
    assert said[3] == "prompts       5 tokens computed, 7 reused"
    assert [("needs the model itself" in line) for line in said[4:]] == [True, True]
    assert [m["content"] for m in scripted.requests[1][2]["messages"]] == ["Be kind.", "Hi"]


def test_ctrl_c_ends_an_answer(polymath, scripted):
    """It closes the connection; what was said stays in the conversation, which goes on."""
    scripted.answers = [endless(), text("Two")]
    with Terminal(polymath, "chat", "--url", scripted.url) as terminal:
        terminal.wait_for(b"> ")
        terminal.type(b"First\r")
        terminal.wait_for(b"more more")
        terminal.type(b"\x03")
        terminal.wait_for(b"cancelled]")
        assert scripted.left.wait(10), "the connection is still open"
        terminal.wait_for(b"> ")
        terminal.type(b"Second\r")
        terminal.wait_for(b"Two")
        terminal.wait_for(b"[prompt: 12 tokens (7 reused) in ")
        terminal.wait_for(b"> ")
        terminal.type(b"\x04")
        assert terminal.exit_code() == 0
    assert scripted.requests[1][2]["messages"][1]["content"].startswith("Begun more")


def test_reasoning_and_control_characters_on_a_terminal(polymath, scripted):
    scripted.answers = [[delta(reasoning="Hm\x1b[31m."), *text("Fine\x1b]0;x\x07")]]
    with Terminal(polymath, "chat", "--url", scripted.url) as terminal:
        terminal.wait_for(b"> ")
        terminal.type(b"First\r")
        terminal.wait_for(b"\x1b[2mHm?[31m.\x1b[0m\r\n\r\nFine?]0;x?\r\n[prompt: ")


def endless():
    yield delta(content="Begun")
    while True:
        pause = threading.Event()
        threading.Timer(0.01, pause.set).start()
        yield pause
        yield delta(content=" more")


# ---- polymath's own server ----


def test_a_server_answers_as_the_model_does(polymath, bundled, server):
    lines = "My name is Victor.\nWhat is gravity?\nWhat is my name?\n"
    here = call(polymath, "chat", bundled, "--verbose", input=lines.encode())
    there = call(polymath, "chat", "--url", server.url, "--verbose", input=lines.encode())
    assert (here.returncode, there.returncode) == (0, 0) and there.stdout == here.stdout
    reports = [line for line in there.stderr.decode().splitlines() if "reused" in line]
    assert len(reports) == 3 and all(" (0 reused)" not in line for line in reports[1:]), there.stderr


def test_bench_of_the_server(polymath, server):
    options = ["--concurrency", "4", "--requests", "8", "--answer-tokens", "5", "--ignore-eos", "--json"]
    result = json.loads(bench(polymath, server.url, *options))
    assert (result["requests"], result["failed"], result["answer_tokens"]) == (8, 0, 40)


def test_what_the_server_refuses_is_told(polymath, server):
    done = call(polymath, "chat", "--url", server.url, "--model", "other", input=b"Hi\n")
    refused(done, 1, "answers 404: there is no model 'other' here")


# ---- servers that misbehave ----

MODELS = b'HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 23\r\n\r\n{"data": [{"id": "m"}]}'
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def forever(start, piece):
    yield start
    while True:
        yield piece


HALF = b'data: {"choices": [{"delta": {"content": "half"}}]}\n\n'
BAD = {
    "status in OpenAI's words": (b'HTTP/1.1 400 x\r\n\r\n{"error": {"message": "no \\u001b[1m tokens"}}', b"",
                                 "answers 400: no ?[1m tokens"),
    "status alone": (b"HTTP/1.1 500 x\r\n\r\n<html>", b"", "answers 500, and says nothing more"),
    "no key": (b"HTTP/1.1 401 x\r\n\r\n{}", b"", "answers 401, and says nothing more (--api-key-file"),
    "redirect": (b"HTTP/1.1 302 x\r\nLocation: http://other.example/\r\n\r\n", b"", "is at http://other.example/ now"),
    "nothing": (b"", b"", "Empty reply"),
    "not HTTP": (b"SSH-2.0-x\r\n", b"", "HTTP/0.9"),
    "no events": (STREAM + b'{"choices": [{"message": {"content": "x"}}]}', b"", "with no stream of events"),
    "half": (STREAM + HALF, b"half\n", "the connection ended before the answer did"),
    "half of a chunk": (STREAM[:-2] + b"Transfer-Encoding: chunked\r\n\r\nff\r\n" + HALF, b"half\n", "outstanding"),
    "an error on the way": (STREAM + HALF + b'data: {"error": {"message": "broken"}}\n\n', b"half\n", ": broken"),
    "not JSON": (STREAM + b"data: {nonsense\n\n", b"", "sends an event that is not JSON"),
    "not UTF-8": (STREAM + b'data: {"choices": "\xff"}\n\n', b"", "sends an event that is not JSON"),
    "nesting": (STREAM + b"data: " + b"[" * 100000 + b"\n\n", b"", "sends an event that is not JSON"),
    "a far call": (STREAM + b'data: {"choices": [{"delta": {"tool_calls": [{"index": 4000000000}]}}]}\n\n', b"",
                   "a call of a tool with the number 4000000000"),
    "a line without end": (forever(STREAM + b"data: ", b"x" * 65536), b"", "sends more than 4 MB at once"),
    "an event without end": (forever(STREAM, b"data: " + b"x" * 65536 + b"\n"), b"", "sends more than 4 MB at once"),
    "comments without end": (forever(STREAM, b": x\n" * 65536), b"", "sends more than 256 MB in one answer"),
    "headers without end": (forever(STREAM[:-2], b"A: " + b"x" * 8000 + b"\r\n"), b"", "more than 256 kB of headers"),
    "an error without end": (forever(b"HTTP/1.1 400 x\r\n\r\n", b"x" * 65536), b"", "sends more than 4 MB at once"),
    "silence": (forever(STREAM, b""), b"", "has sent nothing for 1 seconds"),
}  # fmt: skip


def little_memory():
    resource.setrlimit(resource.RLIMIT_DATA, (128 << 20, 128 << 20))


@pytest.mark.parametrize("name", BAD)
def test_bad_answers(polymath, build_dir, name):
    """One sentence with the address in it, in bounded memory."""
    answer, shown, words = BAD[name]
    if name == "silence":
        answer = wait_a_while()
    limit = None if "san" in build_dir.name else little_memory
    with raw(MODELS, answer) as (url, _):
        done = call(polymath, "chat", "--url", url, "--timeout", "1", input=b"Hi\nAgain\n", preexec_fn=limit)
    said = done.stderr.decode()
    assert (done.returncode, done.stdout) == (1, shown), done
    assert said.startswith(f"polymath: {url}/v1/chat/completions: ") and words in said and said.count("\n") == 1, said


def wait_a_while():
    yield STREAM
    threading.Event().wait(1.5)


def test_bad_lists_of_models(polymath, scripted):
    for answer, words in {
        b"HTTP/1.1 200 OK\r\n\r\n[]": "does not list a model; --model names one",
        b"HTTP/1.1 200 OK\r\n\r\nx": "does not list a model",
        b'HTTP/1.1 401 x\r\n\r\n{"error": "closed"}': "answers 401: closed (--api-key-file",
    }.items():
        with raw(answer) as (url, _):
            refused(call(polymath, "chat", "--url", url), 1, f"{url}/v1/models: ", words)


def test_addresses(polymath, tmp_path, scripted):
    refused(call(polymath, "chat", "--url", "http://127.0.0.1:1"), 1, "http://127.0.0.1:1/v1/models: ", "connect")
    for url, words in {
        "ftp://x": "http:// or https://", "file:///etc/passwd": "http:// or https://", "x": "such as http://",
        "http://a b": "such as http://", "http://": "such as http://", "http://x?y": "without '?'", "": "such as http://",
        "http://x#y": "without '?'",
    }.items():  # fmt: skip
        refused(call(polymath, "chat", "--url", url), 2, "--url takes an address", words)
    for content, words in {b"": "does not begin with a key", b"a\xff": "printable", b"a\0b\n": "printable"}.items():
        (tmp_path / "key").write_bytes(content)
        refused(call(polymath, "chat", "--url", scripted.url, "--api-key-file", tmp_path / "key"), 1, words, "/key: ")
    refused(call(polymath, "chat", "--url", scripted.url, "--api-key-file", tmp_path / "none"), 1, "cannot be opened")


# ---- bench ----


def bench(polymath, url, *args):
    done = call(polymath, "bench", "--url", url, *args)
    assert (done.returncode, done.stderr) == (0, b""), done
    return done.stdout.decode()


def paced():
    """Three pieces, after 30, 20 and 20 ms."""
    for seconds, event in (0.03, delta(content="a")), (0.02, delta(content="b")), (0.02, delta(reasoning="c")):
        pause = threading.Event()
        threading.Timer(seconds, pause.set).start()
        yield pause
        yield event
    yield from (delta("length"), usage(100, 3, 40), "[DONE]")


class Again:
    """An answer that can be given many times."""

    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return self.make()


def test_bench(polymath, scripted):
    scripted.answers = [Again(paced)]
    options = ["--concurrency", "4", "--requests", "10", "--prompt-words", "30", "--answer-tokens", "9"]
    result = json.loads(bench(polymath, scripted.url, "--json", "--ignore-eos", *options))
    assert (result["requests"], result["failed"], result["concurrency"]) == (10, 0, 4)
    assert (result["prompt_tokens"], result["cached_tokens"], result["answer_tokens"]) == (1000, 400, 30)
    assert result["answer_tokens_per_s"] == pytest.approx(30 / result["seconds"])
    assert [result[key]["count"] for key in ("first_token", "between_tokens", "request")] == [10, 20, 10]
    for key, least in {"first_token": 0.03, "between_tokens": 0.015, "request": 0.065}.items():
        line = result[key]
        assert least < line["p50"] <= line["p90"] <= line["p99"] <= line["max"] < 2, (key, line)
    assert len(scripted.requests) == 10
    bodies = [body for _, _, body in scripted.requests]
    assert all(body["max_tokens"] == 9 and body["ignore_eos"] is True for body in bodies)
    prompts = {body["messages"][0]["content"] for body in bodies}
    assert len(prompts) == 10 and all(len(prompt.split()) == 30 for prompt in prompts)


def test_bench_forms(polymath, scripted):
    scripted.answers = [text("a", "b")]
    table = bench(polymath, scripted.url, "--requests", "3").splitlines()
    assert table[0].startswith(f"{scripted.url}, scripted-model: 3 requests, 1 at once, in ")
    assert "requests/s" in table[1] and "(12.0 tokens each, of which 7.0 cached)" in table[1]
    assert table[3].split() == ["ms", "mean", "p50", "p90", "p99", "max"]
    assert [line[:19] for line in table[4:]] == ["time to first token", "time between tokens", "time of a request  "]
    rows = [line.split(",") for line in bench(polymath, scripted.url, "--requests", "3", "--csv").splitlines()]
    assert rows[0] == ["time", "count", "mean", "p50", "p90", "p99", "max"]
    assert [row[:2] for row in rows[1:]] == [["first_token", "3"], ["between_tokens", "3"], ["request", "3"]]


def test_bench_counts_failures(polymath, scripted):
    scripted.answers = [text("a"), (503, {"error": {"message": "too busy"}}), [delta(content="a")], text("a")]
    done = call(polymath, "bench", "--url", scripted.url, "--requests", "5", "--json")
    assert done.returncode == 1 and b"2 of 5 requests failed, the first: " in done.stderr and b"too busy" in done.stderr
    result = json.loads(done.stdout)
    assert (result["requests"], result["failed"]) == (3, 2)
    scripted.answers = [(503, {"error": {"message": "too busy"}})]
    refused(call(polymath, "bench", "--url", scripted.url), 1, "16 of 16 requests failed", "too busy")
    refused(call(polymath, "bench", "--url", scripted.url, "--requests", "2", "--concurrency", "3"), 2, "--requests 2")


def test_ctrl_c_ends_a_bench(polymath, scripted):
    """With what has been measured."""
    scripted.answers = [text("a"), Again(endless)]
    with Terminal(polymath, "bench", "--url", scripted.url, "--concurrency", "2", "--requests", "9") as terminal:
        while len(scripted.requests) < 3:
            terminal.read(0.05)
        terminal.type(b"\x03")
        terminal.wait_for(b"1 requests, 2 at once")
        assert terminal.exit_code() == 130
    assert scripted.left.wait(10)
