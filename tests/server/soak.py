#!/usr/bin/env python3
"""Runs `polymath serve` among clients that ask, stream, leave and send nonsense, and says whether it held.

Every answer must have its protocol's shape; the same question must get the same answer in every protocol, whole or
streamed, alone or among others, and after a restart from --cache-dir; /health must stay quick; memory and open files
must not grow. What the clients ask follows from the seed. Needs nothing beyond Python itself."""

import argparse
import collections
import http.client
import json
import os
import random
import shutil
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path

from daemon import Daemon

SOURCE = Path(__file__).resolve().parents[2]
HEALTH_SECONDS = 0.25  # in which 95 of 100 answers of /health must come
JUDGED_SECONDS = 60  # a shorter run does not tell growth from warming up
GROWTH = 0.03  # of memory, and at least so many MiB:
GROWTH_MIB = 4

SYSTEMS = ["", "You answer briefly.", "You are a patient teacher who explains how things work. " * 8]
QUESTIONS = ["What is a dog?", "What is the sun?", "Where do fish live?", "Why is the sky blue?", "What is a tree?"]
REPLIES = ["A dog is an animal.", "It is a star.", "They live in water."]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
              "required": ["city", "days"], "additionalProperties": False}  # fmt: skip
# Refused, with these statuses.
NONSENSE = [
    ("/v1/chat/completions", b"{", 400), ("/v1/completions", b"[" * 50_000, 400), ("/v1/responses", b'{"a":"\xff"}', 400),
    ("/v1/messages", b'{"messages":[]}', 400), ("/v1/chat/completions", b'{"messages":[],"colour":1}', 400),
    ("/v1/responses", b'{"input":[{"type":"?"}]}', 400), ("/v1/nothing", b"{}", 404), ("/health", b"{}", 405),
    ("/v1/completions", b'{"prompt":"a","model":"another"}', 404),
]  # fmt: skip

# What a client can compare between protocols; `calls` are pairs of a name and its arguments.
Answer = collections.namedtuple("Answer", "text reasoning calls finish")


class Wrong(Exception):
    """An answer that is not what it must be."""


def check(true, *what):
    if not true:
        raise Wrong(" ".join(map(str, what)))


# ---- what is asked ----


def draw(rng):
    """A question, apart from the protocol that it is asked in. One that is new fills the caches with what nobody asks
    for again."""
    turns = [("user", rng.choice(QUESTIONS))]
    while len(turns) < 5 and rng.random() < 0.3:
        turns += [("assistant", rng.choice(REPLIES)), ("user", rng.choice(QUESTIONS))]
    new = rng.random() < 0.2
    if new:
        turns[-1] = ("user", f"{turns[-1][1]} {rng.getrandbits(32)}")
    asked = {"system": rng.choice(SYSTEMS), "turns": turns, "max": rng.choice([1, 4, 12, 40]), "new": new}
    asked["tools"] = rng.choice([None] * 6 + ["auto", "required"])
    if not asked["tools"] and rng.random() < 0.15:
        name = f"field{rng.randrange(100)}"  # more of them than the server keeps
        asked["schema"] = {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name],
                           "additionalProperties": False}  # fmt: skip
    if asked["tools"] == "required" or asked.get("schema"):
        asked["max"] = 40
    if rng.random() < 0.2:
        asked["seed"] = rng.randrange(3)
    return asked


def common(asked, stream):
    sampling = {"temperature": 1, "seed": asked["seed"]} if "seed" in asked else {"temperature": 0}
    return {**sampling, "stream": stream}


def messages_of(asked, system):
    first = [{"role": "system", "content": asked["system"]}] if system and asked["system"] else []
    return first + [{"role": role, "content": text} for role, text in asked["turns"]]


TOOL = {"name": "weather", "description": "The weather of the next days"}


def chat_body(asked, stream):
    body = {**common(asked, stream), "messages": messages_of(asked, True), "max_tokens": asked["max"]}
    if stream:
        body["stream_options"] = {"include_usage": True}
    if asked["tools"]:
        body["tools"] = [{"type": "function", "function": {**TOOL, "parameters": PARAMETERS}}]
        body["tool_choice"] = asked["tools"]
    if "schema" in asked:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": asked["schema"]}}
    return body


def responses_body(asked, stream):
    body = {**common(asked, stream), "input": messages_of(asked, False), "max_output_tokens": asked["max"]}
    if asked["system"]:
        body["instructions"] = asked["system"]
    if asked["tools"]:
        body["tools"] = [{"type": "function", **TOOL, "parameters": PARAMETERS}]
        body["tool_choice"] = asked["tools"]
    if "schema" in asked:
        body["text"] = {"format": {"type": "json_schema", "name": "x", "schema": asked["schema"]}}
    return body


def messages_body(asked, stream):
    body = {**common(asked, stream), "messages": messages_of(asked, False), "max_tokens": asked["max"]}
    if asked["system"]:
        body["system"] = asked["system"]
    if asked["tools"]:
        body["tools"] = [{**TOOL, "input_schema": PARAMETERS}]
        body["tool_choice"] = {"type": {"auto": "auto", "required": "any"}[asked["tools"]]}
    if "schema" in asked:
        body["output_config"] = {"format": {"type": "json_schema", "schema": asked["schema"]}}
    return body


def completions_body(asked, stream):
    prompt = asked["system"] + "".join(f"\n{role}: {text}" for role, text in asked["turns"])
    return {**common(asked, stream), "prompt": prompt, "max_tokens": asked["max"]}


# ---- what is answered ----


def arguments(text):
    return json.dumps(json.loads(text), sort_keys=True)


def events(data):
    """The events of a stream, whose data is JSON but for [DONE]."""
    blocks = data.decode().split("\n\n")
    check(blocks.pop() == "", "the stream does not end with an event")
    for block in blocks:
        check(block.startswith(("data: ", "event: ")), "an event begins with", repr(block[:40]))
        data = block.rpartition("data: ")[2]
        yield data if data == "[DONE]" else json.loads(data)


def one_choice(object, kind):
    check(object["object"] == kind and object["id"] and len(object["choices"]) == 1, object)
    return object["choices"][0]


def pieces_of(data, kind):
    """The choices of an OpenAI stream; the last has the reason of its end, and no other does."""
    *chunks, done = events(data)
    check(done == "[DONE]", "the stream ends with", done)
    if chunks and not chunks[-1]["choices"]:
        check(chunks.pop()["usage"]["total_tokens"] > 0, "no usage")
    pieces = [one_choice(chunk, kind) for chunk in chunks]
    check([bool(p["finish_reason"]) for p in pieces] == [False] * (len(pieces) - 1) + [True], "reasons", pieces[-3:])
    return pieces


def chat_answer(data, stream):
    if not stream:
        choice = one_choice(json.loads(data), "chat.completion")
        message = choice["message"]
        calls = [(c["function"]["name"], arguments(c["function"]["arguments"])) for c in message.get("tool_calls", [])]
        text, reasoning = message["content"] or "", message.get("reasoning_content", "")
        return Answer(text, reasoning, calls, choice["finish_reason"])
    pieces = pieces_of(data, "chat.completion.chunk")
    calls = []
    for piece in pieces:
        for call in piece["delta"].get("tool_calls", []):
            if "id" in call:
                calls.append([call["function"]["name"], ""])
            calls[call["index"]][1] += call["function"]["arguments"]
    text, reasoning = ("".join(p["delta"].get(f, "") for p in pieces) for f in ("content", "reasoning_content"))
    return Answer(text, reasoning, [(name, arguments(a)) for name, a in calls], pieces[-1]["finish_reason"])


def completions_answer(data, stream):
    kind = "text_completion"
    choices = pieces_of(data, kind) if stream else [one_choice(json.loads(data), kind)]
    return Answer("".join(c["text"] for c in choices), "", [], choices[-1]["finish_reason"])


def responses_answer(data, stream):
    whole, deltas = None if stream else json.loads(data), ""
    for at, event in enumerate(events(data) if stream else []):
        check(event["sequence_number"] == at, "event", at, "has the number", event["sequence_number"])
        deltas += event["delta"] if event["type"] == "response.output_text.delta" else ""
        whole = event.get("response")
    check(whole and whole["object"] == "response", "the last event has no response")
    texts, reasoning, calls = "", "", []
    for item in whole["output"]:
        if item["type"] == "message":
            texts += "".join(part["text"] for part in item["content"])
        elif item["type"] == "reasoning":
            reasoning += "".join(part["text"] for part in item["content"])
        else:
            check(item["type"] == "function_call", "an item of type", item["type"])
            calls.append((item["name"], arguments(item["arguments"])))
    check(not stream or deltas == texts, "streamed", repr(deltas), "and then", repr(texts))
    finish = {"incomplete": "length", "completed": "tool_calls" if calls else "stop"}[whole["status"]]
    return Answer(texts, reasoning, calls, finish)


def whole_message(data):
    """A message put together from its stream."""
    message, blocks, kinds = None, [], []
    for event in events(data):
        kinds.append(event["type"])
        if event["type"] == "message_start":
            message = event["message"]
        elif event["type"] == "content_block_start":
            check(event["index"] == len(blocks), "block", event["index"], "after", len(blocks))
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], blocks[event["index"]]
            for name, target in ("text", "text"), ("thinking", "thinking"), ("partial_json", "json"):
                if name in delta:
                    block[target] += delta[name]
        elif event["type"] == "message_delta":
            message["stop_reason"] = event["delta"]["stop_reason"]
    check(kinds[:1] == ["message_start"] and kinds[-1:] == ["message_stop"], "events", kinds[:2], kinds[-2:])
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["json"] or "{}")
    return {**message, "content": blocks}


def messages_answer(data, stream):
    message = whole_message(data) if stream else json.loads(data)
    check(message["type"] == "message" and message["role"] == "assistant", message)
    text, reasoning, calls = "", "", []
    for block in message["content"]:
        if block["type"] == "tool_use":
            calls.append((block["name"], arguments(json.dumps(block["input"]))))
        text += block.get("text", "")
        reasoning += block.get("thinking", "")
    finish = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls"}[message["stop_reason"]]
    return Answer(text, reasoning, calls, finish)


def check_promise(asked, answer):
    """What a schema or a forced call promises of an answer that has not been cut."""
    if answer.finish == "length":
        return
    if "schema" in asked:
        value = json.loads(answer.text)
        check(list(value) == asked["schema"]["required"] and isinstance(*value.values(), int), "not of the schema:", value)
    if asked["tools"] == "required":
        check(answer.calls, "no call was made")
        for name, given in answer.calls:
            check(name == "weather" and set(json.loads(given)) == {"city", "days"}, "the call", name, given)


# Path, what makes a body, what reads an answer, and which questions are the same there.
PROTOCOLS = [
    ("/v1/chat/completions", chat_body, chat_answer, "chat"),
    ("/v1/responses", responses_body, responses_answer, "chat"),
    ("/v1/messages", messages_body, messages_answer, "chat"),
    ("/v1/completions", completions_body, completions_answer, "text"),
]


# ---- clients ----


def leave(connection, rng):
    """Goes away, half of the time without a word (RST)."""
    if rng.random() < 0.5:
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class Run:
    """What clients have found out together."""

    def __init__(self, seconds):
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.end = time.monotonic() + seconds
        self.answers, self.counts, self.wrong = {}, collections.Counter(), []
        self.health, self.memory = [], []

    def going(self):
        return not self.over.is_set() and time.monotonic() < self.end

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def fail(self, what):
        with self.lock:
            self.wrong.append(what)
        self.over.set()

    def compare(self, asked, kind, answer):
        """The first answer to a question is what all others must be."""
        if asked["new"]:
            return
        key = json.dumps([kind, asked])
        with self.lock:
            first = self.answers.setdefault(key, answer)
        check(first == answer, "the same question was answered by", first, "and by", answer)


class Client:
    def __init__(self, daemon, run, rng, leaves):
        host, port = daemon.url.removeprefix("http://").rsplit(":", 1)
        self.address, self.run, self.rng = (host, int(port)), run, rng
        self.connection, self.leaves = None, leaves

    def post(self, path, body):
        """Sends a request; connections are used again until somebody leaves."""
        self.connection = self.connection or http.client.HTTPConnection(*self.address, timeout=60)
        self.connection.request("POST", path, body, {"Content-Type": "application/json"})

    def gone(self):
        leave(self.connection, self.rng)
        self.connection = None

    def ask(self, asked, protocol, stream):
        path, make, read, kind = protocol
        self.post(path, json.dumps(make(asked, stream)))
        response = self.connection.getresponse()
        data = response.read()
        check(response.status == 200, "status", response.status, data[:500])
        answer = read(data, stream)
        if kind == "chat":
            check_promise(asked, answer)
        self.run.compare(asked, kind, answer)
        self.run.count("answers")

    def abandon(self, asked, protocol, stream):
        """Leaves in the middle of the request, after it, or in the middle of the answer."""
        path, make, _, _ = protocol
        body = json.dumps(make(asked, stream)).encode()
        where = self.rng.choice(["sending", "waiting", "reading"])
        if where == "sending":
            self.connection = self.connection or http.client.HTTPConnection(*self.address, timeout=60)
            self.connection.putrequest("POST", path)
            self.connection.putheader("Content-Length", len(body))
            self.connection.endheaders(body[: self.rng.randrange(len(body))])
        else:
            self.post(path, body)
        if where == "waiting":
            time.sleep(self.rng.random() * 0.1)
        elif where == "reading":
            response = self.connection.getresponse()
            check(response.status == 200, "status", response.status)
            response.read(self.rng.randrange(1, 2000))
        self.gone()
        self.run.count("left")

    def talk_nonsense(self):
        path, body, status = self.rng.choice(NONSENSE)
        self.post(path, body)
        response = self.connection.getresponse()
        data = response.read()
        check(response.status == status and json.loads(data)["error"]["message"], path, body[:60], response.status, data)
        self.run.count("refused")

    def once(self):
        asked, protocol, stream = draw(self.rng), self.rng.choice(PROTOCOLS), self.rng.random() < 0.5
        what = self.rng.random()
        try:
            if what < 0.05:
                self.talk_nonsense()
            elif what < 0.05 + self.leaves:
                self.abandon(asked, protocol, stream)
            else:
                self.ask(asked, protocol, stream)
        except Exception as error:  # whatever it is, it ends the run with what was asked
            self.run.fail(f"{protocol[0]} stream={stream} {json.dumps(asked)}: {type(error).__name__}: {error}")

    def live(self):
        while self.run.going():
            self.once()
        if self.connection:
            self.connection.close()


# ---- the server meanwhile ----


def memory_mib(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def watch(daemon, run, begun):
    """Asks for /health and measures memory, four times a second."""
    while run.going():
        start = time.monotonic()
        try:
            check(daemon.get("/health")[0] == 200, "/health is not 200")
            run.health.append(time.monotonic() - start)
            run.memory.append((start - begun, memory_mib(daemon.process.pid)))
        except Exception as error:
            run.fail(f"/health: {type(error).__name__}: {error}")
        run.over.wait(0.25)


def settled(daemon, files):
    """Nothing is left of those who have gone: no request, no connection."""
    end = time.monotonic() + 20
    while True:
        left = {name: daemon.metric(name) for name in ("live", "waiting")}
        left["open_requests"] = daemon.metric("open_requests") - 1  # this one
        left["files"] = max(0, open_files(daemon.process.pid) - files - 1)  # its connection may be there still
        if not any(left.values()):
            return
        check(time.monotonic() < end, "left over when all had gone:", left)
        time.sleep(0.05)


def curve(memory, parts=8):
    """The median in each part of the run."""
    n = max(1, len(memory) // parts)
    return [statistics.median(m for _, m in memory[i : i + n]) for i in range(0, n * parts, n) if memory[i : i + n]]


def judge_memory(memory):
    """What the last quarter takes beyond the second one; the first warms up."""
    if memory[-1][0] < JUDGED_SECONDS:
        return f"memory not judged in less than {JUDGED_SECONDS} s ({memory[-1][1]:.0f} MiB)"
    quarters = curve(memory, 4)
    text = f"memory {quarters[1]:.1f} MiB in the second quarter, {quarters[3]:.1f} in the last"
    check(quarters[3] - quarters[1] <= max(GROWTH_MIB, GROWTH * quarters[1]), text)
    return text


def judge_health(health):
    slow = sorted(health)[int(0.95 * (len(health) - 1))]
    check(slow <= HEALTH_SECONDS, f"/health takes {slow * 1000:.0f} ms")
    return f"/health {slow * 1000:.1f} ms (95 of 100)"


def with_calls(model, folder):
    """A copy of a model whose chat template shows tools, and by a sign that it never renders says how calls are written;
    the bundled model knows none, and is held to it where a call is required."""
    shutil.copytree(model, folder)
    template = folder / "chat_template.jinja"
    tools = "{% if tools %}{{ tools | tojson }}{% endif %}{% if false %}<tool_call>{% endif %}"
    template.write_text(tools + template.read_text())
    return folder


def main_run(args, model, options, run):
    with Daemon(args.polymath, model, *options) as daemon:
        settled(daemon, files := open_files(daemon.process.pid))
        begun = time.monotonic()
        clients = [Client(daemon, run, random.Random(f"{args.seed}-{i}"), args.leaves) for i in range(args.clients)]
        threads = [threading.Thread(target=client.live) for client in clients]
        threads.append(threading.Thread(target=watch, args=(daemon, run, begun)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if run.wrong:
            print(*daemon.lines()[-20:], sep="\n")
        check(not run.wrong, "; ".join(run.wrong[:3]))
        settled(daemon, files)


def second_run(args, model, options, run):
    """Another server goes on from what is on the disk, and answers as the first one did."""
    with Daemon(args.polymath, model, *options) as daemon:
        client = Client(daemon, run, random.Random(args.seed), 0)
        keys = sorted(run.answers)
        for key in client.rng.sample(keys, min(8, len(keys))):
            kind, asked = json.loads(key)
            asked["turns"] = [tuple(turn) for turn in asked["turns"]]
            protocol = client.rng.choice([p for p in PROTOCOLS if p[3] == kind])
            client.ask(asked, protocol, False)
        client.connection.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20, help="how long clients ask (default: 20)")
    parser.add_argument("--clients", type=int, default=4, help="how many do at a time (default: 4)")
    parser.add_argument("--leaves", type=float, default=0.2, help="share of requests that a client leaves (default: 0.2)")
    parser.add_argument("--seed", type=int, default=1, help="of what they ask (default: 1)")
    parser.add_argument("--polymath", default=SOURCE / "build/release/polymath", help="the program")
    parser.add_argument("--model", default=SOURCE / "models/default", help="directory of the checkpoint")
    args = parser.parse_args()
    print(f"soak: {args.minutes:g} minutes, {args.clients} clients, seed {args.seed}", flush=True)
    run = Run(args.minutes * 60)
    try:
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(folder) / "cache"
            options = ["--ctx", 512, "--cache-mem", "64M", "--cache-dir", cache, "--cache-disk", "64M"]
            model = with_calls(args.model, Path(folder) / "model")
            main_run(args, model, options, run)
            second_run(args, model, options, run)
        check(run.counts["answers"] and run.counts["left"], "too little was asked:", dict(run.counts))
        print("soak: MiB over time:", *(f"{m:.1f}" for m in curve(run.memory)))
        found = [judge_health(run.health), judge_memory(run.memory)]
    except (Wrong, AssertionError) as error:
        print(f"soak: FAILED: {error}")
        return 1
    counts = ", ".join(f"{n} {what}" for what, n in sorted(run.counts.items()))
    print(f"soak: PASSED: {counts}, {len(run.answers)} questions; {'; '.join(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
