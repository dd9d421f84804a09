"""/v1/chat/completions and /v1/completions, through OpenAI's own client: what is asked is done, and said in its shapes."""

import json
import re

import chain
import openai
import pytest
from command import copy_model
from daemon import Daemon
from openai import OpenAI

QUESTION = [{"role": "user", "content": "What is a dog?"}]
ANSWER = "A dog is a member of the genus Canis that has been domesticated by man since prehistoric times."

CALL = '<tool_call>\n{{"name": "add", "arguments": {{"a": 1, "b": "{}"}}}}\n</tool_call>'
CALLS = "I add." + CALL.format("x") + "\n" + CALL.format("y")
SCRIPTS = {
    "hello": ["Hel", "lo", " wor", "ld"],
    "emoji": [b"\xf0\x9f", b"\x98\x80", " t", b"\xc3", b"\xa9t"],
    "cut emoji": ["so ", b"\xf0\x9f\x98", None],
    "greek": ["alpha b", "eta", " gamma"],
    "held": ["iota k", "app"],
    "think one": ["let me", " see", "</th", "ink>\n\n", "Done", " now."],
    "literal": ["write `<th", "ink>` and", " `</think>`", " there"],
    "calls": [CALLS],
    "calls cut": [CALLS[i : i + 7] for i in range(0, len(CALLS), 7)],
    "endless": ["1", "2", "3", None],
}


def unique(scripts):
    """Pieces that stand in two places are cut differently the second time."""
    seen = set(chain.alphabet())

    def cut(piece):
        if piece is None or (chain.spelt(piece) not in seen and len(piece) > 0):
            return [piece]
        middle = next(i for i in range(1, len(piece)) if not {chain.spelt(piece[:i]), chain.spelt(piece[i:])} & seen)
        return [piece[:middle], piece[middle:]]

    made = {}
    for name, pieces in scripts.items():
        made[name] = []
        for piece in pieces:
            for part in cut(piece) if piece is None or len(piece) > 1 else [piece]:
                made[name].append(part)
                if part is not None:
                    seen.add(chain.spelt(part))
    return made


@pytest.fixture(scope="module")
def scripted(polymath, tmp_path_factory):
    """A server whose answers are the scripts above."""
    model = chain.write(tmp_path_factory.mktemp("chain") / "scripts", unique(SCRIPTS))
    with Daemon(polymath, model) as daemon:
        yield OpenAI(base_url=daemon.url + "/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def picky(polymath, bundled, tmp_path_factory):
    """A server whose template takes one message only."""
    model = copy_model(bundled, tmp_path_factory.mktemp("picky") / "model")
    template = "{% if messages | length > 1 %}{{ raise_exception('turns must alternate') }}{% endif %}"
    path = model / "chat_template.jinja"
    path.write_text(template + path.read_text())
    with Daemon(polymath, model, "--alias", "picky") as daemon:
        daemon.model = model
        yield daemon


def ask(client, content, **fields):
    return client.chat.completions.create(model="scripts", messages=[{"role": "user", "content": content}], **fields)


def whole(client, content, **fields):
    """The message and the reason of its end."""
    choice = ask(client, content, **fields).choices[0]
    return choice.message, choice.finish_reason


def gather(stream):
    """The choices of a stream, put together as clients do: {index: {content, reasoning, calls, finish, logprobs}}."""
    choices, usage = {}, []
    for chunk in stream:
        if chunk.usage:
            usage.append((chunk.usage, len(chunk.choices)))
        for choice in chunk.choices:
            got = choices.setdefault(
                choice.index, {"content": "", "reasoning": "", "calls": [], "finish": None, "logprobs": [], "roles": []}
            )
            assert got["finish"] is None, "something came after the end"
            delta = choice.delta
            got["roles"] += [delta.role] if delta.role else []
            got["content"] += delta.content or ""
            got["reasoning"] += getattr(delta, "reasoning_content", None) or ""
            for call in delta.tool_calls or []:
                if call.index == len(got["calls"]):
                    got["calls"].append({"id": call.id, "name": call.function.name, "arguments": ""})
                got["calls"][call.index]["arguments"] += call.function.arguments or ""
            got["logprobs"] += choice.logprobs.content if choice.logprobs else []
            got["finish"] = choice.finish_reason
    return choices, usage


def streamed(client, content, **fields):
    choices, _ = gather(ask(client, content, stream=True, **fields))
    assert list(choices) == [0] and choices[0]["roles"] == ["assistant"]
    return choices[0]


def both_ways(client, content, **fields):
    """An answer that must be the same streamed and not: (content, reasoning, calls without ids, finish)."""
    message, finish = whole(client, content, **fields)
    got = streamed(client, content, **fields)
    calls = [(c.function.name, c.function.arguments) for c in message.tool_calls or []]
    reasoning = getattr(message, "reasoning_content", None) or ""
    assert (got["content"], got["reasoning"], got["finish"]) == (message.content or "", reasoning, finish)
    assert [(c["name"], c["arguments"]) for c in got["calls"]] == calls
    assert all(c["id"] for c in got["calls"]) and len({c["id"] for c in got["calls"]}) == len(calls)
    return message.content, reasoning, calls, finish


# ---- answers ----


def test_an_answer(client, server):
    answer = client.chat.completions.create(model="default", messages=QUESTION)
    choice, usage = answer.choices[0], answer.usage
    assert (choice.message.content, choice.message.role, choice.finish_reason) == (ANSWER, "assistant", "stop")
    assert (answer.object, answer.model, choice.logprobs) == ("chat.completion", "default", None)
    assert answer.id.startswith("chatcmpl-") and answer.created > 1.7e9
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    got, _ = gather(client.chat.completions.create(model="default", messages=QUESTION, stream=True))
    assert (got[0]["content"], got[0]["finish"]) == (ANSWER, "stop")


def test_a_message_in_parts_is_one_text(client):
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "a dog?"}]
    answer = client.chat.completions.create(model="default", messages=[{"role": "user", "content": parts}])
    assert answer.choices[0].message.content == ANSWER
    image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    with pytest.raises(openai.BadRequestError, match="image_url"):
        client.chat.completions.create(model="default", messages=[{"role": "user", "content": image}])


def test_completions(client):
    one = client.completions.create(model="default", prompt="What is a", max_tokens=4)
    assert one.object == "text_completion" and one.usage.completion_tokens <= 4
    ids = [281, 262, 259]
    assert one.choices[0].text == client.completions.create(model="default", prompt=ids, max_tokens=4).choices[0].text
    many = client.completions.create(model="default", prompt=["What is a", "Dogs are"], max_tokens=4, n=2, seed=1)
    assert [c.index for c in many.choices] == [0, 1, 2, 3]
    assert many.choices[0].text == one.choices[0].text and many.usage.prompt_tokens == 3 + 4
    texts = {}
    for chunk in client.completions.create(model="default", prompt=["What is a", "Dogs are"], max_tokens=4, stream=True):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert texts == {0: many.choices[0].text, 1: many.choices[2].text}
    echo = client.completions.create(model="default", prompt="What is a", max_tokens=4, echo=True)
    assert echo.choices[0].text == "What is a" + one.choices[0].text


def test_usage_of_a_stream_only_where_asked_for(client):
    """K7."""
    fields = {"model": "default", "messages": QUESTION, "max_tokens": 6}
    want = client.chat.completions.create(**fields).usage
    _, usage = gather(client.chat.completions.create(stream=True, **fields))
    assert usage == []
    _, usage = gather(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **fields))
    (got, choices), = usage
    assert choices == 0 and (got.prompt_tokens, got.completion_tokens) == (want.prompt_tokens, want.completion_tokens)
    assert got.prompt_tokens_details.cached_tokens == got.prompt_tokens


def test_streams_end_with_done(server):
    body = {"messages": QUESTION, "stream": True, "max_tokens": 3}
    for path, more in ("/v1/chat/completions", body), ("/v1/completions", {"prompt": "a", "stream": True, "max_tokens": 3}):
        status, headers, data = server.request(path, more)
        assert status == 200 and headers["Content-Type"] == "text/event-stream"
        events = data.decode().split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""] and all(e.startswith("data: ") for e in events[:-1])


@pytest.mark.parametrize("kind", ["max_tokens", "max_completion_tokens"])
def test_max_tokens(client, server, kind):
    """K10."""
    for n, tokens, finish in (0, 0, "length"), (1, 1, "length"), (10**9, 23, "stop"), (None, 23, "stop"):
        answer = client.chat.completions.create(model="default", messages=QUESTION, extra_body={kind: n})
        assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (tokens, finish), n
    for bad in -1, "5", 1.5, True, []:
        status, _, body = server.request("/v1/chat/completions", {"messages": QUESTION, kind: bad})
        error = json.loads(body)["error"]
        assert (status, error["param"]) == (400, kind) and kind in error["message"]
    both = client.chat.completions.create(model="default", messages=QUESTION, max_tokens=5, max_completion_tokens=3)
    assert both.usage.completion_tokens == 3


def test_stop_strings(scripted):
    """K1."""
    assert both_ways(scripted, "greek") == ("alpha beta gamma", "", [], "stop")
    assert both_ways(scripted, "greek", stop="eta ga") == ("alpha b", "", [], "stop")
    assert both_ways(scripted, "greek", stop=["zeta", "pha", "beta"]) == ("al", "", [], "stop")
    assert both_ways(scripted, "held", stop="kappas") == ("iota kapp", "", [], "stop")
    assert both_ways(scripted, "greek", stop="beta", max_tokens=1) == ("alpha b", "", [], "length")
    assert both_ways(scripted, "think one", stop="see") == ("", "let me ", [], "stop")
    assert both_ways(scripted, "calls", stop='"b"', tools=TOOLS)[2] == []
    sixteen = [f"no {i}" for i in range(15)] + [" gam"]
    assert both_ways(scripted, "greek", stop=sixteen)[0] == "alpha beta"
    for bad in sixteen + ["x"], [""], "", 5, [5]:
        with pytest.raises(openai.BadRequestError, match="'stop'"):
            ask(scripted, "greek", stop=bad)


def test_characters_stay_whole(scripted):
    """I10 over HTTP."""
    assert both_ways(scripted, "emoji")[0] == "😀 tét"
    assert both_ways(scripted, "emoji", max_tokens=1)[0] == "\ufffd"
    assert both_ways(scripted, "cut emoji", max_tokens=2)[0] == "so \ufffd"


def test_reasoning(scripted):
    """K5, and what was reasoned is accepted back."""
    assert both_ways(scripted, "think one") == ("Done now.", "let me see", [], "stop")
    assert both_ways(scripted, "literal")[:2] == ("write `<think>` and `</think>` there", "")
    usage = ask(scripted, "think one").usage
    assert usage.completion_tokens == 7 and 2 <= usage.completion_tokens_details.reasoning_tokens <= 4
    for name in "reasoning_content", "reasoning":
        history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", name: "because"}]
        messages = [*history, {"role": "user", "content": "hello"}]
        answer = scripted.chat.completions.create(model="scripts", messages=messages)
        assert answer.choices[0].message.content == "Hello world"


# ---- tools ----

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}},
        },
    }
]
BOTH = [("add", '{"a": 1, "b": "x"}'), ("add", '{"a": 1, "b": "y"}')]


def test_calls(scripted):
    """K3: two calls of one function, however they are cut."""
    for script in "calls", "calls cut":
        content, _, calls, finish = both_ways(scripted, script, tools=TOOLS)
        assert (content, finish) == ("I add.", "tool_calls")
        assert [(name, json.loads(text)) for name, text in calls] == [(name, json.loads(text)) for name, text in BOTH]
        content, _, calls, finish = both_ways(scripted, script, tools=TOOLS, parallel_tool_calls=False)
        assert (content, len(calls), finish) == ("I add.", 1, "tool_calls")


def test_calls_need_tools(scripted):
    for fields in {}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}:
        content, _, calls, finish = both_ways(scripted, "calls", **fields)
        assert (content, calls, finish) == (CALLS, [], "stop")


def test_calls_go_back(scripted):
    message, _ = whole(scripted, "calls", tools=TOOLS)
    history = [{"role": "user", "content": "calls"}, message.model_dump(exclude_none=True)]
    results = [{"role": "tool", "tool_call_id": c.id, "content": "3"} for c in message.tool_calls]
    messages = [*history, *results, {"role": "user", "content": "hello"}]
    answer = scripted.chat.completions.create(model="scripts", messages=messages, tools=TOOLS)
    assert answer.choices[0].message.content == "Hello world"


def test_ids_of_calls(scripted):
    """The templates of some models take nine letters and digits, and those of the others anything."""
    ids = [call["id"] for _ in range(3) for call in streamed(scripted, "calls", tools=TOOLS)["calls"]]
    assert len(set(ids)) == 6 and all(re.fullmatch("[0-9A-Za-z]{9}", one) for one in ids), ids


NINE = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}[TOOL_CALLS]{% if c.id | length != 9 %}"
    "{{ raise_exception('nine!') }}{% endif %}{{ c.id }}{% endfor %}{% if m.role == 'tool' %}"
    "{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine!') }}{% endif %}={{ m.tool_call_id }}{% endif %}{{ '\n' }}"
    "{% endfor %}"
)


def test_ids_of_others(polymath, bundled, tmp_path):
    """A conversation that began with another server goes on with a template that wants nine letters and digits."""
    model = copy_model(bundled, tmp_path / "model")
    (model / "chat_template.jinja").write_text(NINE)
    theirs = ["call_0123456789abcdefghijklmn", "toolu_01A09q90qw90lq917835lq9", "functions.add:0", "AbCdEf123", "é" * 9]
    calls = [{"id": one, "type": "function", "function": {"name": "f", "arguments": "{}"}} for one in theirs]
    results = [{"role": "tool", "tool_call_id": one, "content": "3"} for one in reversed(theirs)]
    history = [*QUESTION, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    with Daemon(polymath, model, "--alias", "nine") as daemon:
        prompts = [json.loads(daemon.request("/apply-template", {"messages": history})[2])["prompt"] for _ in range(2)]
        assert prompts[0] == prompts[1]
        _, made, *answers, _ = prompts[0].split("\n")
        made = made.split("[TOOL_CALLS]")[1:]
        assert [f"={one}" for one in reversed(made)] == answers
        assert made[3] == theirs[3] and len(set(made)) == 5 and all(re.fullmatch("[0-9A-Za-z]{9}", one) for one in made)
        status, _, body = daemon.request("/v1/chat/completions", {"messages": history, "max_tokens": 1})
        assert status == 200, body
        blocks = [{"type": "tool_use", "id": theirs[1], "name": "f", "input": {}}]
        result = [{"type": "tool_result", "tool_use_id": theirs[1], "content": "3"}]
        messages = [*QUESTION, {"role": "assistant", "content": blocks}, {"role": "user", "content": result}]
        status, _, body = daemon.request("/v1/messages", {"messages": messages, "max_tokens": 1})
        assert status == 200, body
    (model / "chat_template.jinja").write_text(NINE.replace("[TOOL_CALLS]", " ").replace("!= 9", "== 9"))
    with Daemon(polymath, model, "--alias", "any") as daemon:  # whose template may take the function out of the id
        history[1]["tool_calls"], history[2:] = calls[:1], [{**results[-1]}]
        prompt = json.loads(daemon.request("/apply-template", {"messages": history})[2])["prompt"]
        assert prompt.split() == [theirs[0], "=" + theirs[0]]


def test_calls_that_are_cut(scripted):
    """At every token: what is whole is a call, what is not is no text either."""
    last = ask(scripted, "calls cut", tools=TOOLS).usage.completion_tokens
    seen = []
    for n in range(1, last):
        content, _, calls, finish = both_ways(scripted, "calls cut", tools=TOOLS, max_tokens=n)
        assert finish == "length" and [name for name, _ in calls] == ["add"] * len(calls)
        assert [json.loads(text) for _, text in calls] == [json.loads(text) for _, text in BOTH][: len(calls)]
        assert "I add.".startswith(content) or "I add.<tool_call>".startswith(content), content
        seen.append(len(calls))
    assert seen == sorted(seen) and set(seen) == {0, 1, 2}
    forced = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 4}
    assert both_ways(scripted, "hello", **forced) == ("", "", [], "length")


def test_tools_that_the_template_leaves_out(server):
    """The bundled model's template has no place for them: what cannot be done is refused, what is lost is said."""
    before = len(server.lines())
    body = {"messages": QUESTION, "tools": TOOLS}
    for choice in "required", {"type": "function", "function": {"name": "add"}}:
        status, _, answer = server.request("/v1/chat/completions", {**body, "tool_choice": choice})
        error = json.loads(answer)["error"]
        assert (status, error["param"]) == (400, "tools") and "template has no place" in error["message"]
    for choice in "auto", "none":
        status, headers, answer = server.request("/v1/chat/completions", {**body, "tool_choice": choice})
        assert status == 200 and json.loads(answer)["choices"][0]["message"]["content"] == ANSWER
        warned = [line for line in server.lines()[before:] if "warning" in line]
        assert len(warned) == 1 and ("'tools' are left out" in warned[0]) and (headers["X-Request-Id"] in warned[0]) == (choice == "auto")


@pytest.mark.parametrize("arguments", ["[1]", '"x"', "{bad", " ", 5])
def test_arguments_that_are_none(server, arguments):
    """J8."""
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": arguments}}
    messages = [*QUESTION, {"role": "assistant", "content": "", "tool_calls": [call]}, *QUESTION]
    status, _, body = server.request("/v1/chat/completions", {"messages": messages})
    error = json.loads(body)["error"]
    assert status == 400 and error["param"] == "messages[1].tool_calls[0].function.arguments"
    assert error["param"] in error["message"]


def test_a_call_without_arguments(speaker):
    """Some clients send no text at all."""
    call = lambda arguments: {"id": "c", "type": "function", "function": {"name": "add", "arguments": arguments}}
    prompts = [
        json.loads(speaker.request("/apply-template", {"messages": [
            *QUESTION, {"role": "assistant", "content": "", "tool_calls": [call(text)]}]})[2])["prompt"]
        for text in ("", "{}")
    ]  # fmt: skip
    assert prompts[0] == prompts[1] and '"arguments": {}' in prompts[0]
    items = [*QUESTION, {"type": "function_call", "call_id": "c", "name": "add", "arguments": ""}, {"role": "user", "content": "hello"}]
    assert speaker.request("/v1/responses", {"input": items})[0] == 200


def test_tools_that_are_allowed(scripted):
    """Of all tools these are the ones that the model hears of."""
    choice = lambda mode, *names: {"type": "allowed_tools", "allowed_tools": {
        "mode": mode, "tools": [{"type": "function", "function": {"name": name}} for name in names]}}  # fmt: skip
    forced = both_ways(scripted, "hello", tools=CHOICES, tool_choice=choice("required", "length"), parallel_tool_calls=False)
    ((name, arguments),) = forced[2]
    assert name == "length" and json.loads(arguments)["unit"] in ("m", "km")
    length = lambda **fields: ask(scripted, "hello", **fields).usage.prompt_tokens
    assert length(tools=CHOICES, tool_choice=choice("auto", "weather")) == length(tools=CHOICES[:1])
    flat = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "length"}]}
    tools = [{"type": "function", **tool["function"]} for tool in CHOICES]
    answer = scripted.responses.create(model="scripts", input="hello", tools=tools, tool_choice=flat, parallel_tool_calls=False)
    assert [item.name for item in answer.output] == ["length"]


@pytest.mark.parametrize("path, field, more", [
    ("/v1/chat/completions", "messages", {}),
    ("/v1/responses", "input", {}),
    ("/v1/messages", "messages", {"max_tokens": 3}),
    ("/v1/messages/count_tokens", "messages", {}),
    ("/apply-template", "messages", {}),
])  # fmt: skip
def test_complaints_say_nothing_of_the_server(picky, path, field, more):
    """The client reads the template's own words and the field, the log has the file."""
    history = [*QUESTION, {"role": "assistant", "content": "x"}, *QUESTION]
    status, headers, body = picky.request(path, {field: history, **more})
    error = json.loads(body)["error"]
    assert status == 400 and "turns must alternate" in error["message"] and f"'{field}'" in error["message"], body
    assert error.get("param", field) == field and str(picky.model) not in body.decode()
    request = headers["X-Request-Id"]
    place = f"{request}: {picky.model}/chat_template.jinja:1:"
    assert any(place in line and "turns" not in line for line in picky.lines()), picky.lines()


# ---- sampling ----


def sample(client, **fields):
    fields = {"temperature": 5, "max_tokens": 12, **fields}
    return client.chat.completions.create(model="default", messages=QUESTION, **fields).choices[0].message.content


def test_seeds(client):
    """K16."""
    assert sample(client, seed=7) == sample(client, seed=7)
    assert len({sample(client, seed=seed) for seed in range(6)}) > 1
    assert len({sample(client) for _ in range(6)}) > 1
    assert sample(client, temperature=0) == sample(client, temperature=0) == sample(client, top_p=0)


def test_many_choices(client):
    fields = {"model": "default", "messages": QUESTION, "n": 4, "temperature": 5, "seed": 3, "max_tokens": 12}
    answer = client.chat.completions.create(**fields)
    texts = [c.message.content for c in answer.choices]
    assert [c.index for c in answer.choices] == [0, 1, 2, 3] and len(set(texts)) > 1
    assert texts[0] == sample(client, seed=3)
    got, _ = gather(client.chat.completions.create(stream=True, **fields))
    assert [got[i]["content"] for i in range(4)] == texts
    one = client.chat.completions.create(**{**fields, "n": 1}).usage
    assert answer.usage.prompt_tokens == one.prompt_tokens


def test_extensions(client):
    plain = sample(client, seed=1)
    assert sample(client, seed=1, extra_body={"top_k": 1}) == sample(client, temperature=0)
    assert sample(client, seed=1, extra_body={"min_p": 1}) == sample(client, temperature=0)
    assert sample(client, seed=1, extra_body={"repetition_penalty": 5}) != plain
    unsure = {"model": "default", "prompt": "Dogs are", "temperature": 3, "seed": 1, "max_tokens": 60}
    texts = {client.completions.create(**unsure, **more, extra_body={"ignore_eos": True}).choices[0].text
             for more in ({}, {"presence_penalty": 2}, {"frequency_penalty": 2})}  # fmt: skip
    assert len(texts) == 3
    long = client.chat.completions.create(
        model="default", messages=QUESTION, max_tokens=40, temperature=0, extra_body={"ignore_eos": True}
    )
    assert (long.usage.completion_tokens, long.choices[0].finish_reason) == (40, "length")


def test_logit_bias(client, server):
    first = client.chat.completions.create(model="default", messages=QUESTION, max_tokens=1, logprobs=True)
    entry = first.choices[0].logprobs.content[0]
    token = json.loads(server.request("/tokenize", {"content": entry.token})[2])["tokens"][0]
    assert sample(client, temperature=0, max_tokens=1, logit_bias={token: -100}) != entry.token
    other = json.loads(server.request("/tokenize", {"content": " dog"})[2])["tokens"]
    assert len(other) == 1
    assert sample(client, temperature=0, max_tokens=1, logit_bias={other[0]: 100}) == " dog"
    for bad in {"x": 1}, {"1": 101}, {"1": "a"}, {"999999": 1}, [1]:
        status, _, body = server.request("/v1/chat/completions", {"messages": QUESTION, "logit_bias": bad})
        assert status == 400, (bad, body)


# ---- logprobs ----


def joined(entries):
    return b"".join(bytes(e.bytes or []) for e in entries).decode()


def check_entries(entries, n):
    for entry in entries:
        assert len(entry.top_logprobs) == n
        assert all(-10000 < e.logprob <= 0 for e in [entry, *entry.top_logprobs])
        assert entry.top_logprobs[0].logprob == entry.logprob and entry.top_logprobs[0].token == entry.token
        assert [e.logprob for e in entry.top_logprobs] == sorted((e.logprob for e in entry.top_logprobs), reverse=True)


def test_logprobs(scripted):
    """K14."""
    fields = {"logprobs": True, "top_logprobs": 5, "top_p": 0.3}
    answer = ask(scripted, "emoji", **fields)
    entries = answer.choices[0].logprobs.content
    assert joined(entries) == answer.choices[0].message.content == "😀 tét"
    assert len(entries) == answer.usage.completion_tokens == 6
    assert (entries[0].token, entries[0].bytes) == ("\ufffd", [0xF0, 0x9F])
    assert (entries[-1].token, entries[-1].bytes) == ("<|end|>", None)
    check_entries(entries, 5)
    assert streamed(scripted, "emoji", **fields)["logprobs"] == entries
    got = streamed(scripted, "greek", logprobs=True, stop="eta ga")
    assert joined(got["logprobs"]).startswith("alpha b") and len(got["logprobs"]) == 3
    assert ask(scripted, "emoji", logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def test_logprobs_of_completions(scripted):
    prompt, want = "<|emoji|>", "😀 tét"
    answer = scripted.completions.create(model="scripts", prompt=prompt, logprobs=3)
    lists = answer.choices[0].logprobs
    assert answer.choices[0].text == want
    assert lists.tokens == ["bytes:\\xf0\\x9f", "bytes:\\x98\\x80", " t", "bytes:\\xc3", "bytes:\\xa9\\x74", "<|end|>"]
    assert lists.text_offset == [0, 1, 1, 3, 4, 5] and len(lists.token_logprobs) == answer.usage.completion_tokens
    assert all(top[token] == value for top, token, value in zip(lists.top_logprobs, lists.tokens, lists.token_logprobs))
    parts = list(scripted.completions.create(model="scripts", prompt=prompt, logprobs=3, stream=True))
    columns = {
        name: [x for part in parts for x in getattr(part.choices[0].logprobs, name)]
        for name in ("tokens", "token_logprobs", "text_offset")
    }
    assert columns == {name: getattr(lists, name) for name in columns}
    assert "".join(part.choices[0].text for part in parts) == want


def test_logprobs_out_of_range(server):
    for fields, name in (
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
    ):
        status, _, body = server.request("/v1/chat/completions", {"messages": QUESTION, **fields})
        assert (status, json.loads(body)["error"]["param"]) == (400, name)
    for fields in {"logprobs": 21}, {"logprobs": True}, {"logprobs": 1, "echo": True}:
        assert server.request("/v1/completions", {"prompt": "a", **fields})[0] == 400


# ---- what is refused ----


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "messages",
    [[], None, 5, "x", [{}], [5], [{"role": "king", "content": "x"}], [{"role": "user"}], [{"role": "user", "content": 5}],
     [{"role": "user", "content": None}], [{"role": "user", "content": [{"type": "text"}]}]],
)  # fmt: skip
def test_malformed_messages(server, messages, stream):
    """K11."""
    status, headers, body = server.request("/v1/chat/completions", {"messages": messages, "stream": stream})
    error = json.loads(body)["error"]
    assert (status, headers["Content-Type"]) == (400, "application/json")
    assert error["type"] == "invalid_request_error" and "messages" in error["message"] and error["param"].startswith("messages")
    assert server.request("/v1/chat/completions", {"stream": stream})[0] == 400


def test_empty_content_and_no_tools(client):
    answer = client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": ""}], tools=[], max_tokens=1
    )
    assert answer.usage.completion_tokens == 1


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_longer_than_the_context(server, stream):
    """K13."""
    ids = [281] * 2049
    status, _, body = server.request("/v1/completions", {"prompt": ids, "stream": stream})
    error = json.loads(body)["error"]
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert "2049" in error["message"] and "2048" in error["message"]
    messages = [{"role": "user", "content": "dog " * 3000}]
    status, _, body = server.request("/v1/chat/completions", {"messages": messages, "stream": stream})
    assert (status, json.loads(body)["error"]["code"]) == (400, "context_length_exceeded")


def test_prompts_that_fill_the_context(client):
    for n in 2048, 2047:
        answer = client.completions.create(model="default", prompt=[281] * n, max_tokens=10, extra_body={"ignore_eos": True})
        assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (1, "length")


def test_models(client, server):
    assert [m.id for m in client.models.list()] == ["default"]
    assert client.models.retrieve("default").object == "model"
    with pytest.raises(openai.NotFoundError, match="gpt-4"):
        client.models.retrieve("gpt-4")
    with pytest.raises(openai.NotFoundError, match="gpt-4"):
        client.chat.completions.create(model="gpt-4", messages=QUESTION)
    for path, body in ("/tokenize", {"content": "x"}), ("/apply-template", {"messages": QUESTION}):
        assert server.request(path, {**body, "model": "gpt-4"})[0] == 404


def test_template_complaints(picky):
    """J5: a template's own complaint is the answer, and the server goes on."""
    client = OpenAI(base_url=picky.url + "/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.BadRequestError, match="turns must alternate"):
        client.chat.completions.create(model="picky", messages=QUESTION * 2)
    assert client.chat.completions.create(model="picky", messages=QUESTION).choices[0].message.content == ANSWER


# ---- tokens ----


def test_tokens_and_templates(server):
    def post(path, body):
        status, _, answer = server.request(path, body)
        return status, json.loads(answer)

    text = "What is a dög? 😀"
    _, tokens = post("/tokenize", {"content": text})
    assert post("/detokenize", tokens) == (200, {"content": text})
    assert post("/tokenize", {"content": ""}) == (200, {"tokens": []})
    status, prompt = post("/apply-template", {"messages": QUESTION})
    assert (status, prompt["prompt"]) == (200, "<|im_start|>user\nWhat is a dog?<|im_end|>\n<|im_start|>assistant\n")
    assert post("/apply-template", {"messages": QUESTION, "add_generation_prompt": False})[1]["prompt"].endswith("<|im_end|>\n")
    for path, body, name in (
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
        ("/detokenize", {}, "tokens"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": QUESTION, "bogus": 1}, "bogus"),
    ):
        status, answer = post(path, body)
        assert (status, answer["error"]["param"]) == (400, name), (path, body, answer)


# ---- answers that are held to a form ----

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_json_schema(client):
    fmt = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    fields = {"model": "default", "messages": QUESTION, "response_format": fmt}
    for more in {}, {"temperature": 2, "seed": 1}, {"temperature": 2, "seed": 2}:
        choice = client.chat.completions.create(**fields, **more).choices[0]
        person = json.loads(choice.message.content)
        assert list(person) == ["name", "age"] and len(person["name"]) <= 8 and 0 <= person["age"] <= 99
        assert choice.finish_reason == "stop"
        got, _ = gather(client.chat.completions.create(stream=True, **fields, **more))
        assert got[0]["content"] == choice.message.content
    many = client.chat.completions.create(**fields, n=3, temperature=2, seed=1)
    assert all(json.loads(c.message.content) for c in many.choices)
    cut = client.chat.completions.create(**fields, max_tokens=2).choices[0]
    assert cut.finish_reason == "length"


def test_json_object(client):
    fields = {"model": "default", "messages": QUESTION, "max_tokens": 200, "logit_bias": {}}
    choice = client.chat.completions.create(response_format={"type": "json_object"}, **fields).choices[0]
    assert choice.finish_reason == "length" or isinstance(json.loads(choice.message.content), dict)
    assert choice.message.content.startswith("{")
    text = client.chat.completions.create(response_format={"type": "text"}, **fields).choices[0].message.content
    assert text == ANSWER


CHOICES = [
    {"type": "function", "function": {"name": name, "parameters": {
        "type": "object", "properties": {"unit": {"enum": units}}, "required": ["unit"]}}}
    for name, units in (("weather", ["C", "F"]), ("length", ["m", "km"]))
]  # fmt: skip


def test_forced_calls(scripted):
    """The call is made whatever the model would say, in its own format."""
    for choice, names in (
        ("required", {"weather", "length"}),
        ({"type": "function", "function": {"name": "length"}}, {"length"}),
    ):
        content, _, calls, finish = both_ways(
            scripted, "hello", tools=CHOICES, tool_choice=choice, parallel_tool_calls=False
        )
        ((name, arguments),) = calls
        assert name in names and finish == "tool_calls" and not content
        assert json.loads(arguments)["unit"] in {"weather": ["C", "F"], "length": ["m", "km"]}[name]
    both = both_ways(
        scripted, "hello", tools=CHOICES, tool_choice="auto", parallel_tool_calls=False,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes"]}}},
    )  # fmt: skip
    assert both[2] or json.loads(both[0]) == "yes"
    # What was reasoned before stays free.
    content, reasoning, calls, _ = both_ways(
        scripted, "think one", tools=CHOICES, tool_choice="required", parallel_tool_calls=False
    )
    assert reasoning == "let me see" and len(calls) == 1


CALL_OF = lambda **function: [*QUESTION, {"role": "assistant", "tool_calls": [{"id": "a", "function": function}]}]
FORM = lambda schema: {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
FUNCTION = lambda **members: {"type": "function", "function": members}


@pytest.mark.parametrize(
    "fields, param, words",
    [
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]},
         "messages[0].content[1].type", "only text"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text", "missing"),
        ({"messages": [*QUESTION, {"content": "x"}]}, "messages[1].role", "missing"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", "king"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        ({"messages": CALL_OF(arguments="{}")}, "messages[1].tool_calls[0].function.name", "missing"),
        ({"messages": CALL_OF(name="f", arguments="[")}, "messages[1].tool_calls[0].function.arguments", "JSON"),
        ({"messages": []}, "messages", "empty"),
        ({"tools": [5]}, "tools[0].type", "function"),
        ({"tools": [*TOOLS, FUNCTION()]}, "tools[1].function.name", "missing"),
        ({"tools": [*TOOLS, FUNCTION(name="")]}, "tools[1].function.name", "missing"),
        ({"tools": [*TOOLS, {"type": "web_search"}]}, "tools[1].type", "function"),
        ({"tools": [FUNCTION(name="f"), FUNCTION(name="g", parameters={"properties": {"a": {"not": {}}}})],
          "tool_choice": "required"}, "tools[1].function.parameters", "#/properties/a: 'not'"),
        ({"tools": [FUNCTION(name="g", parameters={"not": {}})], "tool_choice": "required"},
         "tools[0].function.parameters", "tool 'g': 'not'"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tool_choice": "some"}, "tool_choice", "required"),
        ({"tool_choice": 5}, "tool_choice", "required"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name", "function"),
        ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name", "function"),
        ({"tools": TOOLS, "tool_choice": FUNCTION(name="none such")}, "tool_choice.function.name", "none of the tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
            FUNCTION(name="add"), FUNCTION(name="sub")]}}}, "tool_choice.allowed_tools.tools[1]", "none of the tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "all", "tools": []}}},
         "tool_choice.allowed_tools.mode", "auto"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools", "list"),
        ({"response_format": 5}, "response_format", "object"),
        ({"response_format": {}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "missing"),
        ({"response_format": {"type": "json_schema", "schema": {}}}, "response_format.schema", "no parameter"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema", "no parameter"),
        ({"response_format": FORM(5)}, "response_format.json_schema.schema", "object"),
        ({"response_format": FORM({"not": {}})}, "response_format.json_schema.schema", "'not'"),
        ({"response_format": FORM({"properties": {"a": {"not": {}}}})}, "response_format.json_schema.schema", "#/properties/a"),
        ({"response_format": {"type": "json_object", "schema": {"not": {}}}}, "response_format.schema", "'not'"),
        ({"stream_options": 5}, "stream_options", "object"),
        ({"stream_options": {"foo": 1}}, "stream_options.foo", "no parameter"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "true or false"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", "place of its own"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs", "object"),
        ({"logit_bias": {"999999": 1}}, "logit_bias", "999999"),
        ({"verbosity": "low"}, "verbosity", "medium"),
        ({"store": True}, "store", "false"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(speaker, fields, param, words):
    """By its whole path, in the message too where that quotes one."""
    status, _, body = speaker.request("/v1/chat/completions", {"messages": QUESTION, **fields})
    error = json.loads(body)["error"]
    assert (status, error["param"]) == (400, param), body
    assert words in error["message"] and "#:" not in error["message"] and "variables" not in error["message"]


def test_a_schema_beside_json_object(client):
    """As other servers have it."""
    form = {"type": "json_object", "schema": PERSON}
    fields = {"model": "default", "messages": QUESTION, "response_format": form}
    assert list(json.loads(client.chat.completions.create(**fields).choices[0].message.content)) == ["name", "age"]


def test_a_form_that_cannot_go_on(server):
    form = {"response_format": {"type": "json_object"}, "ignore_eos": True}
    assert server.request("/v1/chat/completions", {"messages": QUESTION, **form})[0] == 400
