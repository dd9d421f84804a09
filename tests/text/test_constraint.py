"""Answers of real models that are held to a schema or to calls, sampled at a temperature where nothing else would be
valid: with and without reasoning, alone and together, with markers that are tokens and markers that are text."""

import json
import shutil
import subprocess
from contextlib import contextmanager

import jsonschema
import pytest
from test_schema import TOOLS, by_name, no_twins, validator

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 1, "maxItems": 5},
        "home": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]},
        "id": {"type": "string", "format": "uuid"},
        "score": {"type": "number"},
    },
    "required": ["name", "age", "home"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}, "in": {"$ref": "#/$defs/place"}}}},
}


@contextmanager
def asking(build_dir, model):
    process = subprocess.Popen([build_dir / "tests/drive_constraint", model], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)  # fmt: skip

    def ask(**question):
        base = {"prompt": "What is a dog?", "temperature": 2, "seed": 1, "max_tokens": 200, "answers": 5}
        process.stdin.write(json.dumps({**base, **question}).encode() + b"\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield ask
    process.stdin.close()
    assert process.wait() == 0


@pytest.fixture(scope="module")
def ask(build_dir, bundled):
    with asking(build_dir, bundled) as answer:
        yield answer


def whole(answers, least):
    """Those that were not cut short, of which there must be some."""
    assert isinstance(answers, list), answers
    ended = [answer for answer in answers if answer["finish"] == "stop"]
    assert len(ended) >= least, [answer["text"] for answer in answers]
    return ended


def content(answer):
    return json.loads(json.loads(answer["message"])["content"], object_pairs_hook=no_twins)


def test_schema(ask):
    for answer in whole(ask(schema=json.dumps(PERSON), answers=10), 6):
        error = jsonschema.exceptions.best_match(validator(PERSON).iter_errors(content(answer)))
        assert not error, (answer["text"], error.message)


def test_greedy(ask):
    answers = ask(schema=json.dumps(PERSON), temperature=0, answers=2)
    assert answers[0] == answers[1] and validator(PERSON).is_valid(content(whole(answers, 2)[0]))


def test_json_object(ask, bundled):
    quote = json.loads((bundled / "tokenizer.json").read_text())["model"]["vocab"]['"']
    for answer in whole(ask(json_object=True, answers=8, bias=[[quote, 20]]), 3):
        assert isinstance(content(answer), dict), answer["text"]


def test_together(ask):
    """A scheduler's answers are those that come alone."""
    question = {"schema": json.dumps(PERSON), "answers": 8}
    alone, together = ask(**question), ask(**question, together=True)
    key = str
    assert sorted(alone, key=key) == sorted(together, key=key) and len(alone) == 8


def test_end(ask):
    """The end comes where the value is complete and at no other place, whatever the model would rather say."""
    ends = [[0, -100], [2, -100]]
    for answer in whole(ask(schema='{"enum": [true]}', temperature=0, bias=ends, answers=1), 1):
        assert answer["text"] == "true"
    for answer in whole(ask(schema='{"const": "abc"}', bias=[[0, 100], [2, 100]]), 5):
        assert answer["text"] == '"abc"'
    long = ask(schema='{"type": "array", "items": {"const": 1}}', temperature=0, bias=ends, max_tokens=40, answers=1)
    assert long[0]["finish"] in ("length", "stop") and long[0]["text"].replace(" ", "").startswith("[")


def test_logprobs_are_raw(ask):
    """They are of what the model says of itself, so that a forced token is an unlikely one."""
    answer = ask(schema='{"const": "zzzz"}', temperature=0, answers=1)[0]
    assert len(answer["logprobs"]) == len(answer["ids"]) and min(answer["logprobs"]) < -3


@pytest.mark.parametrize(
    "question, code, said",
    [
        ({}, -1, "neither"),
        ({"schema": "{}", "json_object": True}, -1, "both"),
        ({"schema": "{"}, -1, "schema, line 1"),
        ({"schema": "3"}, -1, "neither an object nor true or false"),
        ({"schema": "false"}, -1, "nothing satisfies"),
        ({"schema": '{"function": 1}', "function": "f"}, -1, "no tools"),
        ({"tools": "[]"}, -1, "tools is not a list of tools"),
        ({"tools": '[{"name": "f"}]'}, -2, "no known format of calls"),
        ({"schema": '{"properties": {"a": {"items": {"not": {}}}}}'}, -2, "schema: #/properties/a/items: 'not'"),
    ],
)
def test_refused(ask, question, code, said):
    got = ask(**question)
    assert got.get("code") == code and said in got["error"], got


# ---- models with reasoning and calls ----

# What stands in the template's source, the format's markers, and the texts that are tokens.
KINDS = {
    "Hermes": ("<tool_call>", ["<tool_call>", "</tool_call>"]),
    "Qwen3-Coder": ("<tool_call> <function=", ["<tool_call>", "</tool_call>"]),
    "GLM": ("<tool_call> <arg_key>", ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]),
    "DeepSeek V3.1": ("<｜tool▁call▁begin｜>", ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"]),
    "DeepSeek V3.2": ("<｜DSML｜function_calls>", ["｜DSML｜"]),
    "LFM2": ("<|tool_call_start|>", ["<|tool_call_start|>", "<|tool_call_end|>"]),
    "Mistral": ("[TOOL_CALLS] [ARGS]", ["[TOOL_CALLS]", "[ARGS]"]),
}  # fmt: skip


def disguise(bundled, to, signs, tokens, special):
    """A copy of the model whose template has these signs, and whose last tokens are markers instead of words."""
    shutil.copytree(bundled, to)
    template = to / "chat_template.jinja"
    template.write_text(template.read_text() + "{# " + signs + " <think> #}")
    path = to / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocab, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    words = {number: word for word, number in vocab.items()}
    for i, text in enumerate(tokens):
        number = len(words) - 1 - i
        word = words[number]
        merges[:] = [m for m in merges if "".join(m.split(" ") if isinstance(m, str) else m) != word]
        assert not any(word in (m.split(" ") if isinstance(m, str) else m) for m in merges)
        del vocab[word]
        vocab[text] = number
        tokenizer["added_tokens"].append(
            {"id": number, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": special}
        )  # fmt: skip
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))
    return {text: len(words) - 1 - i for i, text in enumerate(tokens)}


def eager(bundled):
    """Biases for the characters that end values."""
    vocab = json.loads((bundled / "tokenizer.json").read_text())["model"]["vocab"]
    return [[vocab[character], 16] for character in '"}<']


@pytest.fixture(scope="module", params=[*KINDS, "spelt out"])
def disguised(request, build_dir, bundled, tmp_path_factory):
    name = "Hermes" if request.param == "spelt out" else request.param
    signs, tokens = KINDS[name]
    tokens = [] if request.param == "spelt out" else ["<think>", "</think>", *tokens]
    to = tmp_path_factory.mktemp("model") / "model"
    ids = disguise(bundled, to, signs, tokens, special=name not in ("Hermes", "GLM"))
    with asking(build_dir, to) as answer:
        yield answer, ids


def test_calls_of_models(disguised, bundled):
    ask, ids = disguised
    schemas = dict(map(by_name, TOOLS))
    called = 0
    bias = eager(bundled) + [[2, 20]] + [[number, -100 if text == "<think>" else 12] for text, number in ids.items()]
    question = {"tools": json.dumps(TOOLS), "bias": bias}
    answers = ask(**question, parallel=True, answers=6, max_tokens=300) + ask(**question, function="plain", answers=2)
    for answer in whole(answers, 2):
        message = json.loads(answer["message"])
        assert not message["content"] and message["tool_calls"], answer["text"]
        for call in message["tool_calls"]:
            function = call["function"]
            value = json.loads(function["arguments"])
            error = jsonschema.exceptions.best_match(validator(schemas[function["name"]]).iter_errors(value))
            assert not error, (answer["text"], error.message)
            called += 1
        for text in ids:  # what is a token is never spelt out
            assert answer["text"].count(text) == answer["ids"].count(ids[text]), answer
    assert called >= 2


def test_reasoning(disguised, bundled):
    """Text that is free before the schema, in a block that the prompt opened, and in one that the answer opens."""
    ask, ids = disguised
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    close = [[ids["</think>"], 14]] if ids else []
    answers = ask(schema=json.dumps(schema), reasoning=True, bias=close)
    for answer in whole(answers, 3) if ids else answers:
        message = json.loads(answer["message"])
        assert len(answer["ids"]) > 8 and message["reasoning_content"], answer["text"]
        if answer["finish"] == "stop":
            assert validator(schema).is_valid(json.loads(message["content"])), answer["text"]
        if ids:
            assert answer["ids"].count(ids["</think>"]) == 1 and "<think>" not in answer["text"], answer["text"]
    opened = [[ids["<think>"], 30]] if ids else []
    for answer in whole(ask(schema=json.dumps(schema), bias=opened + close), 3 if ids else 0):
        message = json.loads(answer["message"])
        assert validator(schema).is_valid(json.loads(message["content"])), answer["text"]
        assert answer["text"].startswith("<think>") or not ids


def test_schema_or_calls(disguised, bundled):
    """Tools beside a schema: the answer is one or the other, as the model likes."""
    ask, ids = disguised
    tools = [{"name": "f", "parameters": {"type": "object", "properties": {}}}]
    vocab = json.loads((bundled / "tokenizer.json").read_text())["model"]["vocab"]
    for likes, called in ((['"'], False), (["<", "[", *ids], True)):
        bias = [[ids.get(text, vocab.get(text)), 40] for text in likes if "think" not in text]
        bias += [[ids["<think>"], -100]] if ids else []
        for answer in whole(ask(schema='{"const": "plain"}', tools=json.dumps(tools), bias=bias), 2):
            message = json.loads(answer["message"])
            assert bool(message.get("tool_calls")) == called, answer["text"]
            assert called or message["content"] == '"plain"', answer["text"]
