"""Constrained answers against the jsonschema package.

What a random walk over the allowed tokens says must satisfy the schema; and documents that satisfy it, spelt in the ways
that docs/schema.md allows, must be in the language."""

import datetime
import ipaddress
import json
import random
import re
import subprocess
import time
import uuid

import jsonschema
import pytest

SCHEMAS, WALKS, TEXTS = 300, 5, 4

# Patterns with texts that match.
PATTERNS = {
    "^[a-z]{2,5}$": ["ab", "abcde"],
    "^(foo|bar)+$": ["foo", "barfoobar"],
    "^[A-Z]\\d{3}-[^\"\\\\ ]+$": ["A123-x", "Z000-é😀'"],
    "[a-m]+[n-z]": ["xxbcx", "bz", "\nbbbz\t"],
    "^a.c|x$": ["abc tail", "head x"],
    "^(?:\\w+\\.)*\\w+$": ["a.b.c", "_"],
    "^[αβγ]{1,3}[\\u0400-\\u04ff]?$": ["αγ", "βЖ"],
    "^\\s*\\S{2,}\\/$": ["ab/", " \t\u00e9\u00e9/"],
    "^[^a-z]{0,4}?$": ["", "AB\"\\", "<12>"],
    "^(a|b(c|d{2})){2}$": ["aa", "bcbdd"],
}

FORMATS = {
    "date": ["2024-02-28", "1999-12-31"],
    "time": ["23:59:59Z", "00:00:00.5+02:00"],
    "date-time": ["2024-01-31T08:30:00Z", "2024-04-30T23:59:59.123-11:30"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "ipv4": ["0.0.0.0", "255.10.99.100"],
    "email": ["a.b+c@d-e.example"],
    "hostname": ["a.example"],
    "uri": ["https://example.org/a?b=c#d"],
    "duration": ["P3D", "PT5H30M", "P2W"],
}

CHECKER = jsonschema.FormatChecker(formats=())


@CHECKER.checks("date", raises=ValueError)
def is_date(text):
    return bool(datetime.date.fromisoformat(text)) or True if text[:4] != "0000" else True


@CHECKER.checks("time", raises=ValueError)
def is_time(text):
    return datetime.time.fromisoformat(text.replace("Z", "+00:00")).tzinfo is not None


@CHECKER.checks("date-time", raises=ValueError)
def is_date_time(text):
    return is_date(text[:10]) and text[10] == "T" and is_time(text[11:])


CHECKER.checks("uuid", raises=ValueError)(lambda text: bool(uuid.UUID(text)) or True)
CHECKER.checks("ipv4", raises=ValueError)(lambda text: bool(ipaddress.IPv4Address(text)) or True)


# ---- random schemas ----

NAMES = ["a", "b", "ab", "abc", "name", "x-y", "é", "日本", "a\"b", "c\\d", "", "<t>", "new\nline", "😀"]
STRINGS = ["", "a", "ab", "yes", "no", "é\"\\\n", "</parameter>", "日本語", "😀"]
LITERALS = [0, 1, 12, 123, -5, 2.5, 0.125, True, False, None, [], {}, [1, "a"], {"a": {"b": []}}, *STRINGS]


def a_number_schema(rng, kind):
    schema = {"type": kind}
    low = rng.choice([-1000, -12, -1, 0, 1, 7, 99, 100, 12345, -0.5, 0.25, 1.5, 1e3])
    high = low + rng.choice([1, 2, 9, 10, 99, 1000, 123456, 10**12])
    if rng.random() < 0.6:
        schema[rng.choice(["minimum", "exclusiveMinimum"])] = low
    if rng.random() < 0.6:
        schema[rng.choice(["maximum", "exclusiveMaximum"])] = high
    return schema


def a_string_schema(rng):
    schema = {"type": "string"}
    choice = rng.random()
    if choice < 0.3:
        least = rng.choice([0, 0, 1, 3])
        schema["minLength"] = least
        if rng.random() < 0.7:
            schema["maxLength"] = least + rng.choice([0, 1, 5, 40])
    elif choice < 0.5:
        schema["pattern"] = rng.choice(list(PATTERNS))
        if rng.random() < 0.3:
            schema["maxLength"] = 12
    elif choice < 0.6:
        schema["format"] = rng.choice(list(FORMATS))
    return schema


def an_object_schema(rng, depth, defs):
    schema = {"type": "object"}
    names = rng.sample(NAMES, rng.randint(0, 4))
    if names or rng.random() < 0.5:
        schema["properties"] = {name: a_schema(rng, depth + 1, defs) for name in names}
    required = [name for name in names if rng.random() < 0.5]
    if rng.random() < 0.1:
        required.append("other")
    if required:
        schema["required"] = rng.sample(required, len(required))
    choice = rng.random()
    if choice < 0.3 and "other" not in required:
        schema["additionalProperties"] = False
    elif choice < 0.45:
        schema["additionalProperties"] = True
    elif choice < 0.6:
        schema["additionalProperties"] = a_schema(rng, depth + 1, defs)
    return schema


def an_array_schema(rng, depth, defs):
    schema = {"type": "array"}
    if rng.random() < 0.8:
        schema["items"] = a_schema(rng, depth + 1, defs)
    if rng.random() < 0.25:
        schema["prefixItems"] = [a_schema(rng, depth + 1, defs) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.4:
        schema["minItems"] = rng.randint(0, 4)
    if rng.random() < 0.4:
        schema["maxItems"] = schema.get("minItems", 0) + rng.randint(0, 4)
    return schema


def a_schema(rng, depth, defs):
    kinds = ["string", "integer", "number", "boolean", "null", "literals", "any"]
    if depth < 4:
        kinds += ["object"] * 4 + ["array"] * 3 + ["alternatives", "types"] + ["ref"] * defs
    kind = rng.choice(kinds)
    if kind == "object":
        schema = an_object_schema(rng, depth, defs)
    elif kind == "array":
        schema = an_array_schema(rng, depth, defs)
    elif kind == "string":
        schema = a_string_schema(rng)
    elif kind in ("integer", "number"):
        schema = a_number_schema(rng, kind)
    elif kind == "literals":
        values = rng.sample(LITERALS, rng.randint(1, 6))
        schema = {"const": values[0]} if rng.random() < 0.3 else {"enum": values}
    elif kind == "any":
        schema = rng.choice([{}, True])
    elif kind == "alternatives":
        schema = {rng.choice(["anyOf", "anyOf", "oneOf"]): [a_schema(rng, depth + 1, defs) for _ in range(rng.randint(1, 3))]}
    elif kind == "types":
        schema = {"type": rng.sample(["string", "integer", "boolean", "null", "array", "object"], 2)}
    elif kind == "ref":
        schema = {"$ref": f"#/$defs/{rng.choice(['x', 'y~1z', 'list'])}"}
    else:
        schema = {"type": kind}
    if isinstance(schema, dict) and rng.random() < 0.1:
        schema["description"] = "Something"
    return schema


def a_document_schema(seed):
    """A schema with definitions, one of which refers to itself."""
    rng = random.Random(seed)
    schema = a_schema(rng, 0, True)
    schema = dict(schema) if isinstance(schema, dict) else {}
    schema["$defs"] = {
        "x": a_schema(rng, 3, False),
        "y/z": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
        "list": {"type": "object", "properties": {"value": {"type": "boolean"}, "next": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]}}, "required": ["value", "next"]},
    }
    return schema


# oneOf is read as anyOf, which docs/schema.md says.
def as_read(schema):
    if isinstance(schema, dict):
        return {"anyOf" if key == "oneOf" else key: as_read(value) if key not in ("enum", "const") else value
                for key, value in schema.items()}
    return [as_read(item) for item in schema] if isinstance(schema, list) else schema


def validator(schema):
    return jsonschema.Draft202012Validator(as_read(schema), format_checker=CHECKER)


# ---- documents that satisfy a schema ----


class Impossible(Exception):
    """The schema has no value that this generator finds."""


def canonical(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def a_string_text(rng, text):
    return json.dumps(text, ensure_ascii=rng.random() < 0.5)


def a_number_text(rng, schema, integer):
    low = schema.get("minimum", schema.get("exclusiveMinimum", -50))
    high = schema.get("maximum", schema.get("exclusiveMaximum", max(low, 0) + 50))
    low = min(low, high)
    for _ in range(50):
        value = rng.choice([rng.uniform(low, high), low, high])
        value = round(value) if integer else round(value, rng.choice([0, 1, 3]) if high < 1e9 else 0) or 0
        if validator(schema).is_valid(value):
            return canonical(int(value) if integer or rng.random() < 0.5 and value == int(value) else value)
    raise Impossible


def a_length_text(rng, schema):
    least, most = schema.get("minLength", 0), schema.get("maxLength", schema.get("minLength", 0) + 5)
    return a_string_text(rng, "".join(rng.choice("ab \"\\\n\té日😀<") for _ in range(rng.randint(least, most))))


class Writer:
    """Texts of one document in one style of white space."""

    def __init__(self, schema, rng):
        self.root, self.rng = schema, rng
        self.after_colon = rng.choice(["", " "])
        self.indented = rng.random() < 0.4
        self.after_comma = rng.choice(["", " "])

    def space(self, depth, inner):
        if self.indented:
            return "\n" + "  " * depth
        return "" if inner == "bracket" else self.after_comma

    def join(self, opening, parts, closing, depth):
        if not parts:
            return opening + closing
        inside = ("," + self.space(depth + 1, "comma")).join(parts)
        return opening + self.space(depth + 1, "bracket") + inside + self.space(depth, "bracket") + closing

    def object(self, schema, depth):
        rng, properties = self.rng, schema.get("properties", {})
        required, members = schema.get("required", []), []
        for name, value in properties.items():
            if name in required or (depth < 4 and rng.random() < 0.5):
                members.append((name, value))
        additional = schema.get("additionalProperties", "properties" not in schema)
        for name in required:
            if name not in properties:
                members.append((name, schema.get("additionalProperties", True)))
        if additional is not False and depth < 4 and rng.random() < 0.5:
            members.append((rng.choice(["zz", "ac", "nam", "ü", "é1", "with space", "q\"q"]), additional))
        parts = [canonical(name) + ":" + self.after_colon + self.value(value, depth + 1) for name, value in members]
        return self.join("{", parts, "}", depth)

    def array(self, schema, depth):
        rng, prefix = self.rng, schema.get("prefixItems", [])
        least, most = schema.get("minItems", 0), schema.get("maxItems", schema.get("minItems", 0) + 3)
        if prefix and "items" not in schema and "maxItems" not in schema:
            most = max(least, len(prefix))
        n = rng.randint(least, most) if depth < 4 else least
        items = [prefix[i] if i < len(prefix) else schema.get("items", True) for i in range(n)]
        return self.join("[", [self.value(item, depth + 1) for item in items], "]", depth)

    def value(self, schema, depth=0):
        rng = self.rng
        if depth > 12 or schema is False:
            raise Impossible
        if schema is True:
            schema = {}
        if "$ref" in schema:
            return self.value(self.root["$defs"][schema["$ref"].split("/")[-1].replace("~1", "/")], depth)
        for name in ("anyOf", "oneOf"):
            if name in schema:
                choices = schema[name]
                return self.value(choices[-1] if depth > 6 else rng.choice(choices), depth)
        if "enum" in schema or "const" in schema:
            return canonical(rng.choice(schema.get("enum", [schema.get("const")])))
        kind = schema.get("type", ["null", "boolean", "integer", "string", "array", "object"])
        kind = rng.choice(kind) if isinstance(kind, list) else kind
        if kind == "object":
            return self.object(schema, depth)
        if kind == "array":
            return self.array(schema, depth)
        if kind == "string":
            known = PATTERNS.get(schema.get("pattern")) or FORMATS.get(schema.get("format"))
            if known:  # a pattern is spelt in one way
                texts = [text for text in known if len(text) <= schema.get("maxLength", 99)]
                return canonical(rng.choice(texts)) if texts else self.value(False)
            return a_length_text(rng, schema)
        if kind in ("integer", "number"):
            return a_number_text(rng, schema, kind == "integer")
        return {"null": "null", "boolean": rng.choice(["true", "false"])}[kind]


def documents(schema, rng):
    texts = []
    for _ in range(TEXTS * 3):
        try:
            texts.append(Writer(schema, rng).value(schema))
        except Impossible:
            pass
    return [text for text in texts[:TEXTS] if validator(schema).is_valid(json.loads(text))]


# ---- tests ----


@pytest.fixture(scope="module")
def ask(build_dir, bundled):
    process = subprocess.Popen([build_dir / "tests/drive_schema", bundled], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)

    def answer(**question):
        process.stdin.write(json.dumps(question).encode() + b"\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield answer
    process.stdin.close()
    assert process.wait() == 0


@pytest.mark.parametrize("block", range(10))
def test_random_schemas(ask, block):
    accepted = 0
    for seed in range(block * SCHEMAS // 10, (block + 1) * SCHEMAS // 10):
        schema = a_document_schema(seed)
        texts = documents(schema, random.Random(seed))
        got = ask(schema=json.dumps(schema), seed=seed, walks=WALKS, texts=texts)
        if got.get("code") == -1:
            assert not texts, (seed, schema, got)
            continue
        assert "error" not in got, (seed, schema, got)
        for text in got["answers"]:
            value = json.loads(text, object_pairs_hook=no_twins)
            error = jsonschema.exceptions.best_match(validator(schema).iter_errors(value))
            assert not error, (seed, json.dumps(schema), text, error.message)
        for text, is_in in zip(texts, got["accepted"], strict=True):
            assert is_in, (seed, json.dumps(schema), text)
        accepted += len(texts)
    assert accepted > SCHEMAS // 10


def no_twins(pairs):
    assert len({key for key, _ in pairs}) == len(pairs), pairs
    return dict(pairs)


def test_documented_keywords(ask, source):
    """docs/schema.md lists the keywords and formats that the tables in the code have."""
    tables, text = ask(keywords=True), (source / "docs/schema.md").read_text()
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    read = sections["Keywords that are read"]
    cells = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", read, re.MULTILINE)
    refused = sections["Keywords that are refused"].split(". Of these")[0]
    listed = {
        "read": set(re.findall(r"`([^`]+)`", " ".join(cells))),
        "note": set(re.findall(r"`([^`]+)`", sections["Keywords that say nothing about which values are valid"])),
        "refused": set(re.findall(r"`([^`]+)`", refused)),
    }
    for kind, names in listed.items():
        assert names == {name for name, its in tables["keywords"] if its == kind}, kind
    formats = re.findall(r"`([^`]+)`", read[read.index("Formats:"):])
    assert set(formats) - {"://"} == set(tables["formats"])
    assert set(FORMATS) <= set(tables["formats"])


# ---- calls ----

CALL_FORMATS = {
    "DeepSeek V3.2": "</｜DSML｜parameter>",
    "DeepSeek V4": "</｜DSML｜parameter>",
    "DeepSeek V3": "",
    "DeepSeek V3.1": "",
    "Kimi K2": "",
    "Seed": "</parameter>",
    "MiniMax M2": "</parameter>",
    "Qwen3-Coder": "\n</parameter>",
    "GLM": "</arg_value>",
    "Apriel": "",
    "Hermes": "",
    "Nemotron": "",
    "LFM2": "",
    "Mistral": "",
    "Mistral Nemo": "",
    "Granite": "",
    "Llama 3": "",
}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer", "minimum": 1, "maximum": 14},
                    "unit": {"type": "string", "enum": ["C", "F", "K </x>", "tr\"ue"]},
                    "ratio": {"type": "number", "exclusiveMinimum": 0},
                    "exact": {"type": "boolean"},
                    "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                    "options": {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
                    "short": {"type": "string", "minLength": 2, "maxLength": 4},
                    "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"},
                    "maybe": {"type": ["string", "null"]},
                    "either": {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 3}]},
                    "color": {"$ref": "#/$defs/color"},
                    "inner": {"$ref": "#/$defs/inner"},
                    "free": {"description": "Anything"},
                    "only": {"const": 7},
                },
                "required": ["city", "unit", "color"],
                "$defs": {
                    "color": {"enum": ["red", "blue", "12"]},
                    "inner": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
    {"name": "plain", "parameters": {"type": "object", "properties": {"x": {"type": "null"}}, "required": ["x"]}},
    {"type": "function", "function": {"name": "nothing"}},
]


def by_name(tool):
    function = tool.get("function", tool)
    return function["name"], function.get("parameters", {"type": "object", "maxProperties": 0})


def test_formats_are_all_here(source):
    rows = (source / "src/text/reply_formats.c").read_text()
    assert set(re.findall(r'\.name = "([^"]*)"', rows)) == set(CALL_FORMATS)


@pytest.mark.parametrize("name", CALL_FORMATS)
@pytest.mark.parametrize("parallel", [False, True])
def test_calls(ask, name, parallel):
    """What a random walk says the parser takes out as calls whose arguments satisfy the tool's schema, all of it."""
    schemas, seen = dict(map(by_name, TOOLS)), {}
    tools = json.dumps(TOOLS)
    got = ask(format=name, tools=tools, parallel=parallel, seed=7, walks=60, hint=CALL_FORMATS[name])
    assert "error" not in got, got
    numbers = set()
    for text, events in zip(got["answers"], got["calls"], strict=True):
        assert [kind for kind, _ in events] == ["call", "arguments", "end"] * (len(events) // 3), (text, events)
        numbers.add(len(events) // 3)
        for (_, function), (_, arguments), _ in zip(events[::3], events[1::3], events[2::3], strict=True):
            value = json.loads(arguments, object_pairs_hook=no_twins)
            error = jsonschema.exceptions.best_match(validator(schemas[function]).iter_errors(value))
            assert not error, (text, arguments, error.message)
            seen.setdefault(function, set()).update(value)
    bare = name == "Llama 3"  # calls without markers come alone
    assert min(numbers) == 1 and (max(numbers) > 1) == (parallel and not bare)
    assert set(seen) == set(schemas) and len(seen["get_weather"]) > 8


def test_named_call(ask):
    for name, hint in CALL_FORMATS.items():
        got = ask(format=name, tools=json.dumps(TOOLS), function="plain", parallel=False, seed=1, walks=3, hint=hint)
        for events in got["calls"]:
            assert events[0] == ["call", "plain"] and json.loads(events[1][1]) == {"x": None}, (name, got)


def one_tool(name="f", **properties):
    return json.dumps([{"function": {"name": name, "parameters": {"type": "object", "properties": properties}}}])


@pytest.mark.parametrize(
    "question, said",
    [
        ({"format": "none", "tools": one_tool()}, ["no known format"]),
        ({"format": "Hermes", "tools": one_tool(), "function": "g"}, ["no tool 'g'"]),
        ({"format": "Hermes", "tools": '[{"function": {}}]'}, ["no name"]),
        ({"format": "Hermes", "tools": one_tool(a={"not": {}})}, ["tool 'f': #/properties/a: 'not'"]),
        ({"format": "Mistral", "tools": one_tool("a b")}, ["'a b'", "Mistral"]),
        ({"format": "GLM", "tools": one_tool(**{"a<b": {}})}, ["'a<b'", "GLM"]),
        ({"format": "GLM", "tools": one_tool(a={"enum": ["x</arg_value>"]})}, ["'a'", "ends a value"]),
        ({"format": "GLM", "tools": one_tool(a={"type": "string", "not": {}})}, ["#/properties/a: 'not'"]),
        ({"format": "GLM", "tools": '[{"name": "f", "parameters": {"anyOf": [{}]}}]'}, ["tool 'f': 'anyOf'"]),
    ],
)
def test_refused_tools(ask, question, said):
    got = ask(**question)
    for part in said:
        assert part in got.get("error", ""), got


def test_names_that_python_cannot_write(ask):
    """Then the calls of LFM2 are JSON, which its parser takes too."""
    got = ask(format="LFM2", tools=one_tool("a-b", **{"c d": {"type": "null"}}), seed=1, walks=5)
    for text, events in zip(got["answers"], got["calls"], strict=True):
        assert events[0] == ["call", "a-b"] and '"name"' in text, (text, events)


# ---- hostile schemas ----


def nested(kind, depth):
    schema = {"type": "null"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema, "minItems": 1} if kind == "array" else {"anyOf": [schema]}
    return schema


def chain(n, width):
    """Definitions that each refer to the next, many times."""
    defs = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * width} for i in range(n)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{n}": {"type": "null"}}}


def doubled(n):
    """Lists that can be read in a number of ways that doubles with each bracket."""
    return {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [
        {"type": "array", "items": {"$ref": "#/$defs/a"}, "title": str(i)} for i in range(n)]}}}  # fmt: skip


MANY = {f"property number {i}": {"type": "string"} for i in range(10000)}

HOSTILE = {
    "no end": {"$ref": "#"},
    "no end in a list": {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    "no end of two": {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"oneOf": [{"$ref": "#/$defs/a"}]}}},
    "deep lists": nested("array", 190),
    "deeper lists": nested("array", 300),
    "deep alternatives": nested("anyOf", 250),
    "deeper alternatives": nested("anyOf", 300),
    "many references": chain(200, 8),
    "more references": chain(3000, 2),
    "doubled": doubled(2),
    "many times doubled": doubled(40),
    "many properties": {"type": "object", "properties": MANY},
    "many required": {"type": "object", "properties": MANY, "required": list(MANY), "additionalProperties": True},
    "large enum": {"enum": [f"value {i}" for i in range(30000)]},
    "enum beyond all": {"enum": ["x" * 700 + str(i) * 20 for i in range(3000)]},
    "many items": {"type": "array", "items": {"type": "null"}, "minItems": 10**9, "maxItems": 10**15},
    "long string": {"type": "string", "minLength": 10**9},
    "long pattern": {"type": "string", "pattern": "a{1000}" * 2000},
    "pattern of patterns": {"type": "string", "pattern": "((((a{1000}){1000}){1000}){1000}){1000}"},
    "stars of stars": {"type": "string", "pattern": "^(((a*)*)*)*$"},
    "nested pattern": {"type": "string", "pattern": "(" * 5000},
    "wide pattern": {"type": "string", "pattern": "|".join("ab"[i % 2] + str(i) for i in range(3000)), "maxLength": 100},
    "large number": {"type": "number", "minimum": 1e300},
    "small number": {"type": "number", "minimum": 5e-324, "maximum": 1e-320},
    "wide numbers": {"anyOf": [{"type": "number", "minimum": i / 7, "exclusiveMaximum": i + 0.3} for i in range(300)]},
    "additional of itself": {"type": "object", "additionalProperties": {"$ref": "#"}},
    "recursive beside": {"anyOf": [{"$ref": "#"}, {"type": "integer"}, {"$ref": "#"}]},
    "not even close": {"type": "string", "minLength": 5, "maxLength": 4},
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(ask, name):
    """They end in bounded time and memory, with an answer that satisfies them or with an error that says why."""
    schema = HOSTILE[name]
    start = time.monotonic()
    got = ask(schema=json.dumps(schema), seed=3, walks=1)
    assert time.monotonic() - start < 60
    if "error" in got:
        assert got["code"] in (-1, -2, -6) or got["error"] == "no end", got
        return
    for text in got["answers"]:
        json.loads(text)


def test_no_end(ask):
    for name in ("no end", "no end in a list", "no end of two", "large number", "not even close"):
        assert ask(schema=json.dumps(HOSTILE[name])) == {"error": "nothing satisfies the schema", "code": -1}, name
    assert ask(schema=json.dumps(HOSTILE["deep lists"]), texts=["[" * 190 + "null" + "]" * 190])["accepted"] == [True]


def test_depth(ask):
    """A recursive schema goes as deep as docs/schema.md says, and no deeper."""
    schema = {"type": "array", "items": {"$ref": "#"}}
    texts = ["[" * n + "]" * n for n in (1, 200, 201)]
    assert ask(schema=json.dumps(schema), texts=texts)["accepted"] == [True, True, False]
