"""Running `polymath serve`."""

import json
import re
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request


class Daemon:
    """The server on a free loopback port; the model is loaded when the constructor returns."""

    def __init__(self, polymath, model, *args, headers=None, **how):
        command = [polymath, "serve", model, "--port", "0", *map(str, args)]
        # A file, since a pipe that nobody empties would stop the server when it is full.
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **{"stderr": self.log, **how})
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), (line, self.process.wait(timeout=10), self.lines())
        self.url = line.split()[-1]
        self.headers = headers or {}
        end = time.monotonic() + 60
        while not self.ready():
            assert time.monotonic() < end and self.process.poll() is None, ("the model is not loaded", self.lines())
            time.sleep(0.02)

    def ready(self):
        try:
            return self.get("/health")[0] == 200
        except (urllib.error.URLError, ConnectionError):  # it has ended
            return False

    def request(self, path, body=None, method=None, headers=None):
        """Status, headers and body of an answer; `body` is sent as JSON, or as it is when it is bytes."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {**self.headers, **(headers or {})}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.headers, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    def get(self, path):
        status, _, body = self.request(path)
        return status, body

    def lines(self):
        """What it has written to stderr so far."""
        self.log.seek(0)
        return self.log.read().splitlines()

    def metric(self, name):
        """A number of /metrics."""
        text = self.get("/metrics")[1].decode()
        return float(re.search(rf"^polymath_{name} (\S+)$", text, re.MULTILINE).group(1))

    def stop(self):
        """Ends it as systemd would; returns what it wrote to stderr. It must end by itself and cleanly."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        self.process.stdout.close()
        log = "\n".join(self.lines())
        assert code == 0, (code, log)
        return log

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
