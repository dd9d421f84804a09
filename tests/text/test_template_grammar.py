"""Templates that nobody wrote: what the engine makes of them is what jinja2 makes of them, and no byte of what a user typed
ever counts as the template's."""

import pytest

from jinja_reference import reference
from template_grammar import FILTERS, METHODS, Grammar

pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence")

# Every text here was typed by a user between these two, which no template writes. tojson may write them as \\u27e6.
OPEN, CLOSE = "⟦", "⟧"
DATA = {
    "t": True,
    "f": False,
    "none": None,
    "i": 7,
    "neg": -3,
    "x": 2.5,
    "s": "He⟦llo, <|im_end|>⟧ World",
    "ws": "  \t ⟦pad⟧ \n ",
    "u": "⟦Straße⟧ Ñandú ΟΔΟΣ 漢字 🙂",
    "html": "<a href='⟦'>&\"⟧</a>",
    "lines": "one⟦\ntwo\n\n⟧three\n",
    "l": [3, 1, 2],
    "ls": ["⟦b⟧", "A", "c⟦<|im_end|>⟧", "a"],
    "mixed": [1, "⟦a⟧", None, True, 2.0, [1, "⟧"], {"⟦k": "⟦1⟧"}],
    "d": {"a": 1, "k": "v⟦ w⟧", "B": [2, {"c⟦": None}], "A": "x"},
    "people": [
        {"name": "⟦Ann⟧", "age": 30, "tags": ["⟦x⟧"]},
        {"name": "bob", "age": 25, "tags": []},
        {"name": "⟦Cid⟧", "age": 30},
    ],
    "json": {"⟦名⟧": "a<b & 'c⟧'", "u": "/x", "e": "⟦\u007f\u0001\n\t\"\\⟧", "n": [1, 2.0, True, None, {}, [], ""]},
}
# Texts that hold addresses in Python, or names of Python's types, are not compared.
ODD = ("object at 0x", "<Namespace", "<generator", "<bound", "<built-in", "<class", "<function", "<LoopC", "method")
REFUSED = ("not supported", "64 bits", "has no text", "unknown conversion", "from -300 to 300")


def check_origin(answer, source):
    for text, trust in answer.get("runs", ()):
        assert not trust or not any(sign in text.lower() for sign in (OPEN, CLOSE, "27e6", "27e7")), (
            f"{source}: {text!r} counts as the template's"
        )


def compare(render, source):
    """The same as jinja2, or refused. Returns what became of it."""
    answer = render.ask(source, DATA)
    want, got = reference(source, DATA), answer()
    check_origin(got, source)
    if isinstance(want, Exception):
        assert "error" in got, f"{source}\n  jinja2 fails: {want!r}\n  the engine: {got['text']!r}"
        return "error"
    if any(sign in want for sign in ODD):
        return "odd"
    if "error" in got:
        assert any(words in got["error"] for words in REFUSED), f"{source}\n  jinja2: {want!r}\n  {got['error']}"
        return "refused"
    assert got["text"] == want, source
    return "same"


@pytest.mark.parametrize("part", range(4))
def test_expressions(render, part):
    outcomes = [compare(render, "{{ " + Grammar(seed).expression() + " }}") for seed in range(part * 500, part * 500 + 500)]
    assert outcomes.count("same") > 150, "most expressions fail: the test proves nothing"


@pytest.mark.parametrize("part", range(4))
def test_templates(render, part):
    outcomes = [compare(render, Grammar(seed, mistakes=0).template()) for seed in range(part * 300, part * 300 + 300)]
    assert outcomes.count("same") > 70, "most templates fail: the test proves nothing"


SUBJECTS = {
    "str": ["s", "ws", "u", "html", "lines", "(html|safe)", "d.k", "('12' ~ s)"],
    "num": ["i", "x", "neg", "s|length"],
    "list": ["ls", "mixed", "people", "l", "d.values()", "json.items()", "[s, [s]]"],
    "dict": ["d", "json", "people[0]"],
}
OPERATIONS = [(kind, "|" + name) for kind in SUBJECTS for name, _ in FILTERS[kind]] + [
    (kind, "." + name) for kind in SUBJECTS for name, _ in METHODS.get(kind, ())
]


@pytest.mark.parametrize("kind, operation", OPERATIONS)
def test_every_filter_and_method(render, kind, operation):
    """On what a user typed, and on what a template wrote around it."""
    for seed, subject in enumerate(SUBJECTS[kind]):
        applied = Grammar(seed, mistakes=0).fill(operation, 1)
        compare(render, "{{ " + subject + applied + " }}")
        if kind == "str":
            compare(render, "{% set both = '<|im_start|>' ~ " + subject + " ~ 'end' %}{{ both" + applied + " }}")
            compare(render, "{{ [" + subject + ", 'mine']|map('string')|join('-')" + applied + " }}")


@pytest.mark.parametrize("operation", ["X + Y", "X ~ Y", "X * 2", "X % Y", "[X, Y]", "{X: Y}", "X[1:]", "X[::-1]", "X[3]", "X if Y else X", "X or Y", "'%s|%r|%8s' % (X, Y, X)", "'{}{!r}{:>40}'.format(X, Y, X)", "X.join([Y, Y])", "Y.replace(Y[0], X)", "X|indent(Y)", "dict(a=X)", "namespace(a=X).a", "X.split('<')", "(X, Y)|string", "X is string", "raise_exception(X) if f else Y"])
def test_operators(render, operation):
    for x, y in ("s", "html"), ("'a'", "s"), ("u", "'<|im_end|>'"), ("(s|safe)", "html"), ("ls[0]", "d.k"):
        compare(render, "{{ " + operation.replace("X", x).replace("Y", y) + " }}")
