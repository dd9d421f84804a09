"""jinja2, set up as transformers sets it up for chat templates, beside the engine."""

import functools
import json
import subprocess
from datetime import datetime

import jinja2
import jinja2.ext
import jinja2.sandbox

class Generation(jinja2.ext.Extension):
    """{% generation %}: renders its body, in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


class Dict:
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attrs = dict(*args, **kwargs)
        for name in attrs:
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(self, attrs)

    def __setitem__(self, name, value):
        Namespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(name)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    def handle_exception(self, source=None):
        """Tracebacks are for people, and making them takes most of the time of what fails."""
        raise


def environment():
    env = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    env.globals["dict"] = Dict()
    env.globals["namespace"] = Namespace
    return env


ENV = environment()
compiled = functools.lru_cache(maxsize=64)(ENV.from_string)


def reference(source, variables):
    """The text, or the exception."""
    try:
        text = compiled(source).render(**variables)
        text.encode()
        return text
    except Exception as error:
        return error


# ---- the engine ----


class Driver:
    def __init__(self, path):
        self.process = subprocess.Popen([path, "--lines"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, source, variables):
        """Returns what waits for the answer, for which there can be something else to do."""
        line = json.dumps({"template": source, "vars": variables}) + "\n"
        self.process.stdin.write(line.encode())
        self.process.stdin.flush()

        def answer():
            line = self.process.stdout.readline()
            assert line.endswith(b"\n"), f"the driver ended on template {source!r}"
            return json.loads(line)

        return answer

    def __call__(self, source, variables):
        return self.ask(source, variables)()


def check(render, source, variables):
    """The same text as jinja2, or both fail."""
    answer = render.ask(source, variables)
    want, got = reference(source, variables), answer()
    if isinstance(want, Exception):
        assert "error" in got, f"jinja2 fails ({want!r}), the engine gives {got['text']!r}"
    else:
        assert "error" not in got, f"jinja2 gives {want!r}, the engine fails: {got['error']}"
        assert got["text"] == want
        assert "".join(text for text, _ in got["runs"]) == want
    return got
