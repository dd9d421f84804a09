"""The server among clients that are slow, silent, wrong, many or gone, and its start and end."""

import fcntl
import json
import os
import re
import resource
import signal
import socket
import stat
import struct
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import chain
import pytest
from command import call, copy_model, endless, refused
from daemon import Daemon

QUESTION = [{"role": "user", "content": "What is a dog?"}]
CHAT = "/v1/chat/completions"


def address(daemon):
    host, port = daemon.url.removeprefix("http://").rsplit(":", 1)
    return host, int(port)


def connect(daemon):
    return socket.create_connection(address(daemon), timeout=30)


def head(path, *headers, method="POST"):
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


def post(body, path=CHAT, *headers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(path, f"Content-Length: {len(data)}", *headers) + data


def read_all(sock):
    """What comes until the server closes; an abrupt end is an end, too."""
    data = b""
    try:
        while piece := sock.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


def read_answer(sock):
    """Status and body of one answer that has a length or is chunked, and what came behind it."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        assert piece, f"the connection ended after {data!r}"
        data += piece
    top, _, rest = data.partition(b"\r\n\r\n")
    length = re.search(rb"\r\nContent-Length: (\d+)", top, re.IGNORECASE)
    while (len(rest) < int(length.group(1))) if length else (b"\r\n0\r\n\r\n" not in rest and rest != b"0\r\n\r\n"):
        piece = sock.recv(65536)
        assert piece, f"the connection ended after {data!r}"
        rest += piece
    n = int(length.group(1)) if length else len(rest)
    return int(top.split()[1]), rest[:n], rest[n:]


def ask_raw(daemon, data):
    with connect(daemon) as sock:
        sock.sendall(data)
        status, body, _ = read_answer(sock)
        return status, body


def alive(daemon):
    status, _, body = daemon.request(CHAT, {"messages": QUESTION, "max_tokens": 3})
    assert status == 200 and json.loads(body)["choices"][0]["message"]["content"] == "A dog is", body
    return True


def wait_until(true, seconds=60, what="it did not happen"):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def idle(daemon):
    return daemon.metric("live") == 0 and daemon.metric("waiting") == 0 and daemon.metric("open_requests") <= 1


# ---- framing ----


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"5", b'"x"', b"null", b"[" * 100_000, b'{"messages":' * 100_000, b'{"a":"\xff"}', b'{"a":"\\ud800"}',
     b'{"a":"\\udc00\\ud800"}', b'{"a":"\\u0000"}', b'{"a":1e999}', b"\xef\xbb\xbf{}", b"\0" * 100, b'{"n":99999999999999999999}',
     b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}'],
    ids=lambda body: repr(body[:20]),
)  # fmt: skip
def test_bodies_that_are_no_request(server, body):
    """K12."""
    status, headers, answer = server.request(CHAT, body)
    assert (status, headers["Content-Type"]) == (400, "application/json")
    assert json.loads(answer)["error"]["message"]


def test_chunked_bodies(server):
    data = json.dumps({"messages": QUESTION, "max_tokens": 3}).encode()
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(data[i : i + 9]), data[i : i + 9]) for i in range(0, len(data), 9))
    status, body = ask_raw(server, head(CHAT, "Transfer-Encoding: chunked") + pieces + b"0\r\n\r\n")
    assert status == 200 and b"A dog is" in body


@pytest.mark.parametrize("length", ["abc", "-1", "1 2", "0x10", "99999999999999999999999", ""])
def test_lengths_that_are_none(server, length):
    with connect(server) as sock:
        sock.sendall(head(CHAT, f"Content-Length: {length}") + b"{}")
        sock.shutdown(socket.SHUT_WR)
        answer = read_all(sock)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 413")), answer[:200]
    assert alive(server)


def test_a_length_that_is_too_small(server):
    with connect(server) as sock:
        sock.sendall(head(CHAT, "Content-Length: 5") + json.dumps({"messages": QUESTION}).encode() + b"\r\n\r\n")
        assert read_answer(sock)[0] == 400
        sock.settimeout(5)
        assert b" 200 " not in read_all(sock)
    assert alive(server)


def test_heads_that_are_none(server):
    for data, want in (
        (head(CHAT, "X: " + "x" * 100_000), b" 431 "),
        (head("/" + "x" * 100_000, method="GET"), b" 414 "),
        (head("/health", *(f"H{i}: 1" for i in range(20_000)), method="GET"), b" 431 "),
        (b"\r\n\r\n\r\n\r\nGET\r\n\r\n", b" 400 "),
    ):
        with connect(server) as sock:
            sock.settimeout(5)
            try:
                sock.sendall(data)
            except (ConnectionResetError, BrokenPipeError):
                pass
            answer = read_all(sock)
            assert want in answer[:20] or answer == b"", answer[:100]
    assert alive(server)


def test_requests_on_one_connection(server):
    with connect(server) as sock:
        sock.sendall(post({"messages": QUESTION, "max_tokens": 1}) + head("/health", method="GET") + post({}))
        data = b""
        while len(statuses := re.findall(rb"HTTP/1.1 (\d+)", data)) < 3:
            data += sock.recv(65536)
        assert statuses == [b"200", b"200", b"400"] and b'"A"' in data


def test_old_clients(server):
    with connect(server) as sock:
        data = json.dumps({"messages": QUESTION, "max_tokens": 3, "stream": True}).encode()
        sock.sendall(f"POST {CHAT} HTTP/1.0\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        answer = read_all(sock)
    assert b"200 OK" in answer[:20] and answer.endswith(b"data: [DONE]\n\n")


def test_paths_and_methods(server):
    for method, path, status, allow in (
        ("GET", CHAT, 405, "POST"),
        ("POST", "/health", 405, "GET"),
        ("DELETE", "/v1/models", 405, "GET"),
        ("GET", "/v1", 404, None),
        ("POST", "/v1/chat/completionsx", 404, None),
        ("GET", "/..%2f..%2fetc/passwd", 404, None),
        ("HEAD", "/health", 200, None),
    ):
        got, headers, body = server.request(path, b"{}" if method == "POST" else None, method=method)
        assert (got, headers["Allow"]) == (status, allow), (method, path)
        assert method == "HEAD" or "error" in json.loads(body)
        assert re.fullmatch("[0-9a-f]{16}", headers["X-Request-Id"])


# ---- limits ----


@pytest.fixture(scope="module")
def guarded(polymath, bundled, tmp_path_factory):
    """A server with keys, a small limit of bodies and little patience, for pages of one origin."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("# mine\nfirst-key\n\n  \nsecond-key\r\n")
    options = ["--api-key-file", keys, "--max-body", "2000", "--timeout", "1", "--cors", "https://page.example"]
    with Daemon(polymath, bundled, *options, headers={"Authorization": "Bearer first-key"}) as daemon:
        yield daemon


def test_keys(guarded):
    body = {"messages": QUESTION, "max_tokens": 3}
    for headers in (
        {"Authorization": "Bearer first-key"},
        {"Authorization": "bearer second-key"},
        {"X-Api-Key": "second-key", "Authorization": ""},
    ):
        assert guarded.request(CHAT, body, headers=headers)[0] == 200
    for key in "", "first-ke", "first-keyx", "# mine", "first-key\tx":
        status, headers, answer = guarded.request(CHAT, body, headers={"Authorization": f"Bearer {key}"})
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
        assert json.loads(answer)["error"]["type"] == "authentication_error"
    for path in "/v1/models", "/metrics", "/version":
        assert guarded.request(path, headers={"Authorization": "x"})[0] == 401
    assert guarded.request("/health", headers={"Authorization": "x"})[0] == 200


def test_bodies_over_the_limit(guarded):
    key = "Authorization: Bearer first-key"
    big = json.dumps({"messages": [{"role": "user", "content": "x" * 3000}]}).encode()
    status, _, answer = guarded.request(CHAT, big)
    assert (status, json.loads(answer)["error"]["code"]) == (413, "body_too_large")
    status, answer = ask_raw(guarded, head(CHAT, key, "Expect: 100-continue", f"Content-Length: {len(big)}"))
    assert status == 413
    chunks = b"".join(b"%x\r\n%s\r\n" % (1000, big[i * 1000 : i * 1000 + 1000].ljust(1000)) for i in range(4))
    status, answer = ask_raw(guarded, head(CHAT, key, "Transfer-Encoding: chunked") + chunks + b"0\r\n\r\n")
    assert status == 413 and b"2000" in answer


@pytest.mark.parametrize("abruptly", [False, True])
def test_clients_that_leave_while_they_send(server, abruptly):
    """Half a body is not kept until --timeout, even when the end of the connection comes together with it."""
    data = post({"messages": QUESTION, "user": "x" * 1000})
    for i in range(20):
        sock = connect(server)
        sock.sendall(data[: len(data) - 1 - 50 * i])
        leave(sock, abruptly)
    wait_until(lambda: idle(server))


def test_slow_and_silent_clients(guarded):
    """They are closed after --timeout, whether they say nothing or a byte now and then."""
    start = time.monotonic()
    silent, half = connect(guarded), connect(guarded)
    half.sendall(post(b"{}", CHAT, "Authorization: Bearer first-key")[:-1])
    slow = connect(guarded)
    data, sent = head(CHAT, "X: " + "x" * 2000), 0
    slow.setblocking(False)
    closed = False
    while not closed and time.monotonic() - start < 8:
        try:
            sent += slow.send(data[sent : sent + 1])
            closed = slow.recv(1) == b""
        except BlockingIOError:
            pass
        except (ConnectionResetError, BrokenPipeError):
            closed = True
        time.sleep(0.1)
    assert closed and 0.5 < time.monotonic() - start < 5
    for sock in silent, half, slow:
        sock.settimeout(5)
        assert read_all(sock) == b""
        sock.close()


def test_pages_of_other_origins(guarded, server):
    """CORS, preflight included; a page that is not allowed to ask is not answered either."""
    body = {"messages": QUESTION, "max_tokens": 3}
    asking = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST",
              "Access-Control-Request-Headers": "authorization,content-type"}  # fmt: skip
    status, headers, answer = guarded.request(CHAT, method="OPTIONS", headers=asking)
    assert (status, answer, headers["Content-Length"]) == (204, b"", None)
    assert headers["Access-Control-Allow-Origin"] == "https://page.example"
    assert headers["Access-Control-Allow-Methods"] == "POST" and "authorization" in headers["Access-Control-Allow-Headers"]
    status, headers, _ = guarded.request(CHAT, body, headers={"Origin": "https://page.example"})
    assert (status, headers["Access-Control-Allow-Origin"]) == (200, "https://page.example")
    for daemon in guarded, server:
        status, headers, answer = daemon.request(CHAT, body, headers={"Origin": "https://evil.example"})
        assert (status, headers["Access-Control-Allow-Origin"]) == (403, None), answer
        assert daemon.request(CHAT, body, headers={"Origin": "null"})[0] == 403
        assert daemon.request(CHAT, body, headers={"Origin": daemon.url})[0] == 200


def test_names_of_others(guarded, server):
    """A page whose name leads here is told from one that comes from here; a key lets anybody in."""
    body = {"messages": QUESTION, "max_tokens": 1}
    port = server.url.rsplit(":", 1)[1]
    for host in "evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "[::2]", "1.2.3.4":
        status, _, answer = server.request(CHAT, body, headers={"Host": host, "Origin": f"http://{host}"})
        assert (status, json.loads(answer)["error"]["code"]) == (403, "host_not_allowed"), host
        assert server.request("/v1/models", headers={"Host": host})[0] == 403
    for host in "localhost", f"LOCALHOST:{port}", "127.0.0.1", "127.1.2.3:1", "[::1]:80":
        assert server.request(CHAT, body, headers={"Host": host})[0] == 200, host
    assert server.request(CHAT, body, headers={"Origin": "x://" + server.url[7:]})[0] == 403
    assert guarded.request(CHAT, body, headers={"Host": "gateway.example"})[0] == 200


def test_more_answers_than_may_wait(server):
    status, _, answer = server.request(CHAT, {"messages": QUESTION, "max_tokens": 1, "n": 128})
    assert (status, json.loads(answer)["error"]["param"]) == (400, "n") and b"64" in answer


def test_calls_without_content(polymath, bundled, tmp_path):
    """An answer that only calls comes back with a content of null, also to a template that needs one."""
    model = copy_model(bundled, tmp_path / "model")
    template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    (model / "chat_template.jinja").write_text(template)
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    with Daemon(polymath, model, "--alias", "default") as daemon:
        for content in {"content": None}, {}, {"content": ""}:
            history = [*QUESTION, {"role": "assistant", **content, "tool_calls": calls},
                       {"role": "tool", "tool_call_id": "a", "content": "3"}]  # fmt: skip
            status, _, answer = daemon.request("/apply-template", {"messages": history})
            assert status == 200 and "assistant: \ntool: 3" in json.loads(answer)["prompt"], answer
            status, _, answer = daemon.request(CHAT, {"messages": history, "max_tokens": 1})
            assert status == 200, answer


MANY = 20_000


@pytest.mark.parametrize(
    "path, body",
    [
        ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * MANY}]}),
        ("/v1/messages", {"max_tokens": 1, "messages": QUESTION, "system": [{"type": "text", "text": "a"}] * MANY}),
        ("/v1/responses", {"input": [{"role": "assistant", "content": "a"}] * MANY}),
        ("/v1/responses", {"input": [{"role": "system", "content": "a"}] * MANY}),
    ],
    ids=["user", "system", "assistant-items", "system-items"],
)
def test_many_pieces(server, path, body):
    """They do not fit the context, which is said before long."""
    start = time.monotonic()
    status, _, answer = server.request(path, body)
    assert status == 400 and b"context" in answer
    assert time.monotonic() - start < 5


def memory(daemon):
    """Resident bytes."""
    text = open(f"/proc/{daemon.process.pid}/status").read()
    return int(re.search(r"VmRSS:\s+(\d+) kB", text).group(1)) * 1024


def test_many_connections(polymath, bundled):
    """10,000 where the system allows as many: those who ask are answered, and memory stays bounded."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    n = min(10_000, hard - 500)
    assert n > 1000, f"only {hard} files may be open"
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, n + 500), hard))
    sockets = []
    try:
        with Daemon(polymath, bundled, "--timeout", "60") as daemon:
            before = memory(daemon)
            for i in range(n - 100):
                sock = socket.socket()
                sock.connect(address(daemon))
                sock.sendall(b"GET /health HTTP/1.1\r\nHo"[: 1 + i % 24])
                sockets.append(sock)
            assert alive(daemon)
            assert memory(daemon) - before < 600 << 20
            for sock in sockets:
                sock.close()
            wait_until(lambda: idle(daemon))
            assert alive(daemon)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- clients that leave ----


@pytest.fixture(scope="module")
def tireless(polymath, bundled, tmp_path_factory):
    """A server whose answers end only when they are cancelled; two at once, and three may wait."""
    model = endless(bundled, tmp_path_factory.mktemp("endless"))
    with Daemon(polymath, model, "--parallel", "2", "--queue", "3", "--alias", "default", "--cache-mem", "1G") as daemon:
        yield daemon


def leave(sock, abruptly):
    if abruptly:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


LONG_PROMPT = 8_000  # tokens


def long_prompt():
    """Takes a second or more to read, and begins as none before."""
    return [{"role": "user", "content": f"{time.monotonic_ns()} " + "dog " * LONG_PROMPT}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("abruptly", [False, True])
@pytest.mark.parametrize("stage", ["prefill", "decode"])
def test_clients_that_leave(tireless, stage, stream, abruptly):
    """K8: the place is free again within a step, every time."""
    for i in range(4):
        computed, sampled = tireless.metric("computed_tokens_total"), tireless.metric("sampled_tokens_total")
        sock = connect(tireless)
        sock.sendall(post({"messages": long_prompt() if stage == "prefill" else QUESTION, "stream": stream}))
        wait_until(lambda: tireless.metric("live") == 1)
        if stage == "decode":
            wait_until(lambda: tireless.metric("sampled_tokens_total") > sampled + 3)
        leave(sock, abruptly)
        wait_until(lambda: idle(tireless))
        # Most of the prompt is left unread, unless the machine has kept this test waiting: then again.
        if stage == "prefill" and tireless.metric("computed_tokens_total") - computed < LONG_PROMPT / 2:
            break
        assert stage == "decode" or i < 3
    assert alive(tireless)


def test_whoever_has_an_answer_finds_it_counted(server):
    def counted():
        return server.metric("sampled_tokens_total"), server.metric("live"), server.metric("kept") > 0

    sampled = server.metric("sampled_tokens_total")
    for i in range(1, 30):
        assert alive(server)
        assert counted() == (sampled + 3 * i, 0, True)


def test_clients_that_leave_the_queue_and_a_full_queue(tireless):
    body = {"messages": QUESTION, "stream": True}
    socks = [connect(tireless) for _ in range(5)]
    for i, sock in enumerate(socks):
        sock.sendall(post(body))
        wait_until(lambda: tireless.metric("live") + tireless.metric("waiting") == i + 1)
    assert (tireless.metric("live"), tireless.metric("waiting")) == (2, 3)
    status, headers, answer = tireless.request(CHAT, body)
    assert (status, json.loads(answer)["error"]["code"]) == (429, "queue_full") and int(headers["Retry-After"]) > 0
    status, _, _ = tireless.request(CHAT, {"messages": QUESTION, "n": 2})
    assert status == 429
    for sock in socks[2:]:
        sock.close()
    wait_until(lambda: tireless.metric("waiting") == 0)
    assert tireless.metric("live") == 2
    for sock in socks[:2]:
        sock.close()
    wait_until(lambda: idle(tireless))
    assert alive(tireless)
    wait_until(lambda: sum(" 499 " in line for line in tireless.lines()) >= 5)


def test_what_has_been_read_is_forgotten(tireless, build_dir):
    """As JSON a request takes many times its size: no longer than it takes to read it."""
    if "-fsanitize" in (build_dir / "CMakeCache.txt").read_text():
        pytest.skip("sanitizers keep memory that has been freed")
    numbers = ",".join(["0"] * 700_000)
    question = '{"stream": true, "messages": [{"role": "user", "content": "x", "unused": [%s]}], "metadata": {"a": [%s]}}'
    body = post((question % (numbers, numbers)).encode())
    before = memory(tireless)
    socks = [connect(tireless) for _ in range(5)]
    for i, sock in enumerate(socks):
        sock.sendall(body)
        wait_until(lambda: tireless.metric("live") + tireless.metric("waiting") == i + 1)
    grown = memory(tireless) - before
    for sock in socks:
        sock.close()
    wait_until(lambda: idle(tireless))
    assert grown < 180 << 20, f"{grown >> 20} MiB for five requests"


def test_long_stop_strings(server):
    """They are compared with the end of an answer for every token."""
    for path, body in (CHAT, {"messages": QUESTION}), ("/v1/completions", {"prompt": "A dog"}):
        status, _, answer = server.request(path, {**body, "stop": ["x", "y" * 1025]})
        error = json.loads(answer)["error"]
        assert (status, error["param"]) == (400, "stop") and "1025" in error["message"] and "1024" in error["message"]
        assert server.request(path, {**body, "stop": ["y" * 1024] * 16, "max_tokens": 3})[0] == 200


def test_large_schemas(server):
    """What takes long to make is refused, and by its name; what others allow (120,000 characters) is not."""
    for n, expected in (2400, 200), (6000, 400):
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [f"{i:04}" + "x" * 44 for i in range(n)]}}}
        start = time.monotonic()
        status, _, answer = server.request(CHAT, {"messages": QUESTION, "max_tokens": 3, "response_format": form})
        assert status == expected, answer
        assert time.monotonic() - start < 10
    assert "262144 nodes" in json.loads(answer)["error"]["message"]


def test_a_reader_that_stops_reading(polymath, bundled, tmp_path):
    """It stalls nobody, and is closed after --timeout."""
    model = chain.write(tmp_path / "model", {"endless": ["one ", "two ", "three ", None]}, context=1 << 20)
    body = {"messages": [{"role": "user", "content": "endless"}]}
    with Daemon(polymath, model, "--timeout", "1") as daemon:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(address(daemon))
        sock.sendall(post({**body, "stream": True, "logprobs": True, "top_logprobs": 20}))
        wait_until(lambda: daemon.metric("live") == 1)
        before = memory(daemon)
        assert daemon.request(CHAT, {**body, "max_tokens": 3})[0] == 200
        wait_until(lambda: daemon.metric("live") == 0)
        assert memory(daemon) - before < 200 << 20
        sock.close()
        wait_until(lambda: sum(" 499 " in line for line in daemon.lines()) == 1)
        assert daemon.request(CHAT, {**body, "max_tokens": 3})[0] == 200


@pytest.mark.parametrize("path, body, ping", [
    (CHAT, {"messages": [{"role": "user", "content": "last"}]}, b": at work\n\n"),
    ("/v1/completions", {"prompt": "<|last|>"}, b": at work\n\n"),
    ("/v1/responses", {"input": "last"}, b": at work\n\n"),
    ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "last"}]},
     b'event: ping\ndata: {"type": "ping"}\n\n'),
])  # fmt: skip
def test_streams_that_wait(busy, path, body, ping):
    """They say so now and then, a sixth of --timeout apart, and then what they have to say."""
    first = connect(busy)
    first.sendall(post({"messages": [{"role": "user", "content": "endless"}]}))
    wait_until(lambda: busy.metric("live") == 1)
    with connect(busy) as sock:
        sock.sendall(post({**body, "stream": True}, path))
        data, start = b"", time.monotonic()
        while data.count(ping) < 3:
            data += sock.recv(65536)
        assert data.startswith(b"HTTP/1.1 200 ") and 0.3 < time.monotonic() - start < 10 and b"done" not in data
        first.close()
        while b"\r\n0\r\n\r\n" not in data:
            data += sock.recv(65536)
        assert b"done" in data
    wait_until(lambda: idle(busy))


@pytest.fixture(scope="module")
def busy(polymath, tmp_path_factory):
    """A server that answers one at a time, and one of them for ever."""
    scripts = {"endless": ["one ", "two ", None], "last": ["done"]}
    model = chain.write(tmp_path_factory.mktemp("busy") / "model", scripts, context=1 << 20)
    with Daemon(polymath, model, "--parallel", "1", "--timeout", "1") as daemon:
        yield daemon


# ---- start and end ----


def test_requests_while_the_model_is_loaded(polymath, bundled, tmp_path):
    """A vocabulary that takes a while to read."""
    more = {f"unused {i}": 4096 + i for i in range(250_000)}
    model = copy_model(bundled, tmp_path / "model", tokenizer=lambda t: t["model"]["vocab"].update(more))
    with socket.create_server(("127.0.0.1", 0)) as listener, with_socket(polymath, model, listener) as process:
        daemon = Daemon.__new__(Daemon)
        daemon.url, daemon.headers = "http://127.0.0.1:%d" % listener.getsockname()[1], {}
        status, headers, body = daemon.request("/health")
        assert (status, json.loads(body)) == (503, {"status": "loading"}) and int(headers["Retry-After"]) > 0
        status, headers, body = daemon.request(CHAT, {"messages": QUESTION})
        assert (status, json.loads(body)["error"]["code"]) == (503, "not_ready") and int(headers["Retry-After"]) > 0
        assert process.stdout.readline() == f"listening on {daemon.url}\n"
        assert daemon.get("/health")[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def with_socket(polymath, model, listener):
    """The server with a socket as systemd hands it over, sd_listen_fds(3): it is descriptor 3, and who it is for is said
    by two variables."""
    script = 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" serve "$1" --port 1 3<&"$2"'
    fd = listener.fileno()
    return subprocess.Popen(
        ["bash", "-c", script, polymath, model, str(fd)], stdout=subprocess.PIPE, text=True, pass_fds=[fd]
    )


def test_options_are_checked_first(polymath, tmp_path):
    """Nothing says that it listens."""
    (tmp_path / "file").write_text("")
    for options, code, words in (
        (["--ctx", "1000000"], 1, "context of 1000000"),
        (["--cache-mem", "1"], 1, "cache_bytes"),
        (["--cache-dir", tmp_path / "file"], 1, "not a folder"),
        (["--parallel", "100000"], 2, "parallel"),
        (["--cors", "foo"], 2, "--cors"),
        (["--cors", "https://page.example/"], 2, "without a path"),
        (["--cors", "null"], 2, "origin"),
    ):
        done = call(polymath, "serve", "--port", "0", *options)
        assert (done.returncode, done.stdout) == (code, b"") and words in done.stderr.decode(), (options, done)
    for origin in "*", "http://localhost:3000", "chrome-extension://abcdef", "http://[::1]:8080":
        done = call(polymath, "serve", tmp_path / "none", "--cors", origin)
        assert done.returncode == 1 and "none" in done.stderr.decode(), done


def test_models_that_cannot_be_loaded(polymath, bundled, tmp_path):
    model = copy_model(bundled, tmp_path / "model", config=lambda c: c["text_config"].update(hidden_act="tanh"))
    refused(call(polymath, "serve", model, "--port", "0"), 1, "hidden_act")
    refused(call(polymath, "serve", tmp_path / "none"), 1, "none")


def test_addresses_that_others_reach(polymath, tmp_path):
    refused(call(polymath, "serve", "--host", "0.0.0.0", "--port", "0"), 1, "--api-key-file", "--no-auth")
    refused(call(polymath, "serve", "--host", "::", "--port", "0"), 1, "--no-auth")
    refused(call(polymath, "serve", "--host", "no.such.host.invalid"), 1, "no.such.host.invalid")
    refused(call(polymath, "serve", "--api-key-file", tmp_path / "none"), 1, tmp_path / "none")
    (tmp_path / "empty").write_text("\n# no key\n")
    refused(call(polymath, "serve", "--api-key-file", tmp_path / "empty"), 1, "has no key")
    refused(call(polymath, "serve", "--log-file", tmp_path / "no" / "log"), 1, "no/log")


def test_a_port_that_is_taken(polymath, server):
    refused(call(polymath, "serve", "--port", address(server)[1]), 1, "Address already in use")


def test_an_address_that_others_reach_with_a_key(polymath, bundled, tmp_path):
    (tmp_path / "keys").write_text("k\n")
    with Daemon(polymath, bundled, "--host", "0.0.0.0", "--api-key-file", tmp_path / "keys") as daemon:
        assert daemon.request("/v1/models")[0] == 401


def test_sigterm_lets_answers_end(polymath, bundled, tmp_path):
    """What is being answered goes on to its end; what comes then is refused."""
    with Daemon(polymath, endless(bundled, tmp_path), "--alias", "default") as daemon, ThreadPoolExecutor() as pool:
        kept = connect(daemon)
        kept.sendall(head("/health", method="GET"))
        assert read_answer(kept)[0] == 200
        body = {"prompt": "Dogs are", "max_tokens": 800}
        answer = pool.submit(daemon.request, "/v1/completions", body)
        wait_until(lambda: daemon.metric("live") == 1)
        daemon.process.send_signal(signal.SIGTERM)
        wait_until(lambda: refuses(daemon))
        kept.sendall(post({"messages": QUESTION}))
        assert read_answer(kept)[0] == 503
        status, _, text = answer.result(30)
        assert status == 200 and json.loads(text)["usage"]["completion_tokens"] == 800
        assert daemon.process.wait(30) == 0


def refuses(daemon):
    try:
        connect(daemon).close()
    except (ConnectionRefusedError, ConnectionResetError):
        return True
    return False


def test_a_second_signal_ends_at_once(polymath, bundled, tmp_path):
    with Daemon(polymath, endless(bundled, tmp_path), "--alias", "default") as daemon:
        sock = connect(daemon)
        sock.sendall(post({"messages": QUESTION, "stream": True}))
        wait_until(lambda: daemon.metric("live") == 1)
        daemon.process.send_signal(signal.SIGTERM)
        wait_until(lambda: refuses(daemon))
        assert daemon.process.poll() is None
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(10) == -signal.SIGTERM
        daemon.stop = lambda: None


def test_a_socket_of_systemd(polymath, bundled):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with with_socket(polymath, bundled, listener) as process:
            url = process.stdout.readline().split()[-1]
            assert url == "http://127.0.0.1:%d" % listener.getsockname()[1]
            daemon = Daemon.__new__(Daemon)
            daemon.url, daemon.headers = url, {}
            wait_until(lambda: daemon.get("/health")[0] == 200)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


# ---- the log ----


def test_the_log(polymath, bundled, tmp_path):
    """A line a request, in both formats, without a word of what was said; opened again at SIGHUP."""
    log = tmp_path / "log"
    secret = "What is a xylophone?"
    body = {"messages": [{"role": "user", "content": secret}], "max_tokens": 5}
    with Daemon(polymath, bundled, "--log-file", log, "--log-format", "json") as daemon:
        _, headers, answer = daemon.request(CHAT, body)
        daemon.request("/v1/%0a%22evil%22", b"{}")
        said = json.loads(answer)
        wait_until(lambda: "evil" in log.read_text())
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        line = next(line for line in lines if line.get("path") == CHAT)
        assert line["id"] == headers["X-Request-Id"] and said["id"].endswith(line["id"])
        assert (line["status"], line["method"], line["finish"]) == (200, "POST", said["choices"][0]["finish_reason"])
        assert line["prompt_tokens"] == said["usage"]["prompt_tokens"] and line["answer_tokens"] == 5
        assert line["cached_tokens"] == 0 and line["queue_seconds"] >= 0 and line["prefill_seconds"] > 0
        log.rename(tmp_path / "old")
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(log.exists)
        daemon.request("/version")
        wait_until(lambda: "/version" in log.read_text())
        text = (tmp_path / "old").read_text() + log.read_text()
        assert stat.S_IMODE(log.stat().st_mode) == 0o640
    for words in secret, "xylophone", said["choices"][0]["message"]["content"]:
        assert words not in text
    with Daemon(polymath, bundled) as daemon:
        daemon.request(CHAT, body)
        lines = daemon.stop().splitlines()
        (line,) = [line for line in lines if CHAT in line]
        assert re.fullmatch(
            r"\S+Z [0-9a-f]{16} POST /v1/chat/completions 200 [\d.]+ ms, prompt \d+ \(0 cached\), answer 5, "
            r"queue [\d.]+ ms, prefill [\d.]+ ms, decode [\d.]+ ms, length", line)  # fmt: skip


def test_a_log_that_nobody_reads(polymath, bundled, tmp_path):
    """A full pipe keeps nobody from being answered; what was lost is counted, and told when there is room."""
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, 8192)
    with open(tmp_path / "pipe", "w") as stderr, Daemon(polymath, bundled, stderr=stderr) as daemon:
        for _ in range(150):
            assert daemon.get("/version")[0] == 200
        lost = daemon.metric("log_lines_lost_total")
        assert lost > 20
        text = os.read(reading, 65536).decode()
        assert text.endswith("ms\n")
        for _ in range(3):
            assert daemon.get("/version")[0] == 200
        time.sleep(0.1)
        report, *lines = os.read(reading, 65536).decode().splitlines()
        told = re.fullmatch(r"\S+Z (\d+) lines could not be written", report)
        assert told and int(told.group(1)) >= lost, report
        assert lines and all(" 200 " in line for line in lines), lines  # that of /metrics may be among them
    os.close(reading)


def test_a_log_on_a_full_disk(polymath, bundled, tmp_path):
    with Daemon(polymath, bundled, "--log-file", "/dev/full") as daemon:
        assert daemon.get("/version")[0] == 200 and alive(daemon)
        assert daemon.metric("log_lines_lost_total") >= 3
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    with Daemon(polymath, bundled, "--log-file", tmp_path / "log", preexec_fn=limit) as daemon:
        for _ in range(30):
            assert daemon.get("/version")[0] == 200
        assert daemon.metric("log_lines_lost_total") > 10
        (tmp_path / "log").rename(tmp_path / "full")
        daemon.process.send_signal(signal.SIGHUP)
        wait_until((tmp_path / "log").exists)
        daemon.get("/version")
        wait_until(lambda: "/version" in (tmp_path / "log").read_text())
        assert "lines could not be written\n" in (tmp_path / "log").read_text()
    os.mkfifo(tmp_path / "pipe")  # which nobody reads
    refused(call(polymath, "serve", bundled, "--log-file", tmp_path / "pipe"), 1, tmp_path / "pipe")


def test_logs_that_are_moved_under_load(polymath, bundled, tmp_path):
    """Every request has one whole line in one of the files."""
    with Daemon(polymath, bundled, "--log-file", tmp_path / "log", "--log-format", "json") as daemon:
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(daemon.get, "/version") for _ in range(400)]
            for i in range(20):
                (tmp_path / "log").rename(tmp_path / f"log.{i}")
                daemon.process.send_signal(signal.SIGHUP)
                wait_until((tmp_path / "log").exists)
            assert all(answer.result()[0] == 200 for answer in answers)
    lines = [json.loads(line) for file in tmp_path.iterdir() for line in file.read_text().splitlines()]
    assert sum(line.get("path") == "/version" for line in lines) == 400


# ---- figures ----


def test_metrics(server):
    before = {name: server.metric(name) for name in ("answers_total", "prompt_tokens_total", "answer_tokens_total")}
    _, _, body = server.request(CHAT, {"messages": QUESTION, "max_tokens": 7})
    usage = json.loads(body)["usage"]
    wait_until(lambda: server.metric("answers_total") == before["answers_total"] + 1)
    assert server.metric("prompt_tokens_total") - before["prompt_tokens_total"] == usage["prompt_tokens"]
    assert server.metric("answer_tokens_total") - before["answer_tokens_total"] == 7
    text = server.get("/metrics")[1].decode()
    names = re.findall(r"^(polymath_\w+)(?:\{.*?\})? \S+$", text, re.MULTILINE)
    assert len(names) > 15 and all(f"# TYPE {name} " in text and f"# HELP {name} " in text for name in names)


def test_health_is_quick(server):
    """500 a second and more, on one connection."""
    with connect(server) as sock:
        start, n = time.monotonic(), 500
        for _ in range(n):
            sock.sendall(head("/health", method="GET"))
            assert read_answer(sock)[0] == 200
        assert time.monotonic() - start < 1


def test_health_beside_a_long_prompt(tireless):
    """HTTP does not wait for the engine."""
    sock = connect(tireless)
    sock.sendall(post({"messages": long_prompt()}))
    wait_until(lambda: tireless.metric("live") == 1)
    slowest = 0
    for _ in range(20):
        start = time.monotonic()
        assert tireless.get("/health")[0] == 200
        slowest = max(slowest, time.monotonic() - start)
    sock.close()
    assert slowest < 0.5
    wait_until(lambda: idle(tireless))


def test_a_long_text_beside_an_answer(tireless):
    """Making tokens of it takes longer than a step, and keeps nobody's tokens waiting."""
    sock = connect(tireless)
    sock.sendall(post({"messages": QUESTION}))
    wait_until(lambda: tireless.metric("live") == 1)
    text = {"content": " ".join(str(i) for i in range(400_000))}
    with ThreadPoolExecutor() as pool:
        start = time.monotonic()
        long = pool.submit(tireless.request, "/tokenize", text)
        sampled, seen, longest = 0, start, 0
        while not long.done():
            now, before = time.monotonic(), sampled
            sampled = tireless.metric("sampled_tokens_total")
            seen = now if sampled > before else seen
            longest = max(longest, now - seen)
        took = time.monotonic() - start
    sock.close()
    assert long.result()[0] == 200
    assert longest < took / 2, f"no token for {longest:.2f} s of {took:.2f} s"
    wait_until(lambda: idle(tireless))


def test_many_threads(server):
    """Requests of all kinds at once: each gets its own answer."""
    def one(i):
        if i % 4 == 0:
            return server.get("/health")[0] == 200
        if i % 4 == 1:
            return server.request(CHAT, {"messages": []})[0] == 400
        n = 1 + i % 7
        _, _, body = server.request(CHAT, {"messages": QUESTION, "max_tokens": n})
        return json.loads(body)["usage"]["completion_tokens"] == n

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(one, range(200)))
