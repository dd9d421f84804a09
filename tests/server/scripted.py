"""A stand-in for a server, on a loopback port: it answers what a test tells it to, well-formed or not."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def delta(finish=None, **fields):
    """An event of a chat completion."""
    choice = {"index": 0, "delta": fields, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}


def usage(prompt, completion, cached=0):
    """The event that ends a stream whose client asked for usage."""
    numbers = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [], "usage": numbers}


def text(*pieces, finish="stop"):
    """The events of an answer in these pieces."""
    return [*(delta(content=piece) for piece in pieces), delta(finish=finish), usage(12, len(pieces), 7), "[DONE]"]


class Scripted:
    """Each POST takes the next answer of `answers` (the last one again and again): a pair (status, object), or a list of
    events, in which bytes are sent as they are, a threading.Event is waited for, and the stream ends with the list. A
    GET is answered by `get(path)`: status, headers, bytes."""

    def __init__(self, get=None):
        self.answers, self.requests, self.left = [], [], threading.Event()
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def reply(self, status, headers, body):
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                if self.path.endswith("/v1/models"):
                    content = {"object": "list", "data": [{"id": "scripted-model", "object": "model"}]}
                    self.reply(200, {"Content-Type": "application/json"}, json.dumps(content).encode())
                else:
                    self.reply(*(get(self.path) if get else (404, {}, b"")))

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                scripted.requests.append((self.path, dict(self.headers), body))
                answer = scripted.answers[0]
                if len(scripted.answers) > 1:
                    scripted.answers.pop(0)
                if isinstance(answer, tuple):
                    status, content = answer
                    body = content if isinstance(content, bytes) else json.dumps(content).encode()
                    self.reply(status, {"Content-Type": "application/json"}, body)
                else:
                    self.stream(answer)

            def stream(self, events):
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                try:
                    for event in events:
                        if isinstance(event, threading.Event):
                            event.wait(30)
                        elif isinstance(event, bytes):
                            self.wfile.write(event)
                        else:
                            data = event if isinstance(event, str) else json.dumps(event)
                            self.wfile.write(f"data: {data}\n\n".encode())
                        self.wfile.flush()
                except (BrokenPipeError, ConnectionResetError):
                    scripted.left.set()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
