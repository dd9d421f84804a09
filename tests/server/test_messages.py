"""/v1/messages and /v1/messages/count_tokens, through Anthropic's own client."""

import json

import anthropic
import pytest
from anthropic import Anthropic
from daemon import Daemon
from spoken import ARGUMENTS, PARAMETERS, REASONING, TEXT

TOOLS = [{"name": "add", "description": "Adds.", "input_schema": PARAMETERS}]


@pytest.fixture(scope="module")
def client(speaker):
    return Anthropic(base_url=speaker.url, api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def ask(client):
    """A request of the model that says what is written down."""

    def ask(content, **fields):
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        return client.messages.create(**{"model": "spoken", "max_tokens": 500, "messages": messages, **fields})

    return ask


def streamed(ask, content, **fields):
    """The message of a stream, whose events must come in the documented order."""
    start, *events, delta, stop = ask(content, stream=True, **fields)
    assert (start.type, delta.type, stop.type) == ("message_start", "message_delta", "message_stop")
    message = start.message.model_dump(exclude_none=True)
    assert (message["content"], message.get("stop_reason")) == ([], None) and message["usage"]["input_tokens"] > 0
    block, json_text = None, ""
    for event in events:
        if event.type == "content_block_start":
            assert block is None and event.index == len(message["content"])
            block, json_text = event.content_block.model_dump(exclude_none=True), ""
            message["content"].append(block)
        elif event.type == "content_block_delta":
            assert event.index == len(message["content"]) - 1
            kind = event.delta.type
            if kind == "input_json_delta":
                json_text += event.delta.partial_json
            else:
                name = {"text_delta": "text", "thinking_delta": "thinking"}[kind]
                block[name] += getattr(event.delta, name)
        else:
            assert event.type == "content_block_stop" and event.index == len(message["content"]) - 1
            if json_text:
                block["input"] = json.loads(json_text)
            block = None
    assert block is None
    message.update(delta.delta.model_dump(exclude_none=True))
    message["usage"] = delta.usage.model_dump(exclude_none=True)
    return message


def bare(message):
    content = dict(message, id=None)
    content["content"] = [{**block, "id": None} for block in content["content"]]
    usage = content["usage"]
    content["usage"] = (usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"])
    return content


def both_ways(ask, content, **fields):
    whole = ask(content, **fields)
    assert bare(streamed(ask, content, **fields)) == bare(whole.model_dump(exclude_none=True))
    return whole


def test_text(ask):
    answer = both_ways(ask, "hello", metadata={"user_id": "u"}, extra_body={"temperature": 0})
    assert [(b.type, b.text) for b in answer.content] == [("text", TEXT)]
    assert (answer.stop_reason, answer.stop_sequence, answer.role, answer.type) == ("end_turn", None, "assistant", "message")
    assert answer.id.startswith("msg_") and answer.model == "spoken"
    assert answer.usage.output_tokens == 5


def test_usage_tells_what_was_in_the_cache(ask, client):
    messages = [{"role": "user", "content": "a" * 300}, {"role": "user", "content": "hello"}]
    counted = client.messages.count_tokens(model="spoken", messages=messages).input_tokens
    first, second = ask(messages).usage, ask(messages).usage
    assert first.input_tokens + first.cache_read_input_tokens == counted > 300
    assert second.cache_read_input_tokens >= 300 and second.cache_creation_input_tokens == 0
    assert second.input_tokens + second.cache_read_input_tokens == counted


def test_the_helper_of_the_client(server):
    """Its own accumulator of events takes the stream."""
    client = Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60)
    messages = [{"role": "user", "content": "What is a dog?"}]
    with client.messages.stream(model="default", max_tokens=100, messages=messages) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].text == "".join(pieces) and len(pieces) > 5
    assert final.content[0].text.startswith("A dog is a member") and final.stop_reason == "end_turn"
    assert final.usage.output_tokens > 5


def test_the_beta_client(client):
    """Which asks /v1/messages?beta=true, with headers of its own."""
    answer = client.beta.messages.create(
        model="spoken", max_tokens=50, betas=["token-efficient-tools-2025-02-19"],
        messages=[{"role": "user", "content": "hello"}],
    )  # fmt: skip
    assert answer.content[0].text == TEXT


def test_thinking(ask):
    answer = both_ways(ask, "think one", thinking={"type": "enabled", "budget_tokens": 1024})
    thought, said = answer.content
    assert (thought.type, thought.thinking, said.text) == ("thinking", REASONING, "Done now.")
    off = ask("hello", thinking={"type": "disabled"}, output_config={"effort": "low"})
    assert [b.type for b in off.content] == ["text"]


def test_calls(ask):
    answer = both_ways(ask, "calls", tools=TOOLS)
    assert [b.type for b in answer.content] == ["text", "tool_use", "tool_use"] and answer.stop_reason == "tool_use"
    assert answer.content[0].text == "I add." and [b.input for b in answer.content[1:]] == ARGUMENTS
    assert len({b.id for b in answer.content[1:]}) == 2 and answer.content[1].name == "add"
    between = both_ways(ask, "calls between", tools=TOOLS)
    assert [getattr(b, "text", None) for b in between.content] == ["First.", None, "Then."]
    one = both_ways(ask, "calls", tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [b.type for b in one.content] == ["text", "tool_use"] and one.stop_reason == "tool_use"
    none = both_ways(ask, "calls", tools=TOOLS, tool_choice={"type": "none"})
    assert [b.type for b in none.content] == ["text"] and none.stop_reason == "end_turn"


def test_answers_held_to_a_form(ask):
    """A call that is made whatever the model would say; an answer of a schema."""
    unit = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}
    tools = [*TOOLS, {"name": "weather", "input_schema": unit}]
    for choice, names in ({"type": "any"}, {"add", "weather"}), ({"type": "tool", "name": "weather"}, {"weather"}):
        choice = {**choice, "disable_parallel_tool_use": True}
        answer = both_ways(ask, "hello", tools=tools, tool_choice=choice)
        (call,) = answer.content
        assert (call.type, answer.stop_reason) == ("tool_use", "tool_use") and call.name in names
        assert call.name == "add" or call.input["unit"] in ("C", "F")
    form = {"format": {"type": "json_schema", "schema": {**unit, "additionalProperties": False}}}
    assert json.loads(both_ways(ask, "hello", output_config=form).content[0].text)["unit"] in ("C", "F")


def test_endings(ask):
    cut = both_ways(ask, "endless", max_tokens=4)
    assert (cut.content[0].text, cut.stop_reason, cut.usage.output_tokens) == ("1231", "max_tokens", 4)
    stopped = both_ways(ask, "stops", stop_sequences=["never", "eta ga"])
    assert (stopped.content[0].text, stopped.stop_reason) == ("alpha b", "stop_sequence")
    assert stopped.stop_sequence == "eta ga"


def test_a_conversation_becomes_messages(ask, client, speaker):
    """Its length is that of the same conversation as a chat."""
    text = lambda words: {"type": "text", "text": words}
    conversation = [
        {"role": "user", "content": [text("Add"), {**text("them."), "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "redacted_thinking", "data": "x"},
            text("So."), {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
            {"type": "tool_use", "id": "c2", "name": "add", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": "1"},
            {"type": "tool_result", "tool_use_id": "c2", "content": [text("2")], "is_error": True}, text("Well?")]},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "hello"},
    ]  # fmt: skip
    call = lambda name, arguments: {"id": name, "type": "function", "function": {"name": "add", "arguments": arguments}}
    chat = [
        {"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": "Add\nthem."},
        {"role": "assistant", "content": "So.", "reasoning_content": "Hm.", "tool_calls": [call("c1", '{"a": 1}'), call("c2", "{}")]},
        {"role": "tool", "content": "1", "tool_call_id": "c1"},
        {"role": "tool", "content": "2", "tool_call_id": "c2"},
        {"role": "user", "content": "Well?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "hello"},
    ]  # fmt: skip
    fields = {"system": [text("Be brief."), text("Be kind.")], "tools": TOOLS}
    function = {"name": "add", "description": "Adds.", "parameters": PARAMETERS}
    body = {"messages": chat, "tools": [{"type": "function", "function": function}]}
    prompt = json.loads(speaker.request("/apply-template", body)[2])["prompt"]
    ids = json.loads(speaker.request("/tokenize", {"content": prompt})[2])["tokens"]
    counted = client.messages.count_tokens(model="spoken", messages=conversation, **fields).input_tokens
    answer = ask(conversation, **fields)
    assert answer.content[0].text == TEXT
    assert counted == len(ids) == answer.usage.input_tokens + answer.usage.cache_read_input_tokens


def test_an_agent(ask):
    """Calls and their results go back as the client has them."""
    messages = [{"role": "user", "content": "calls"}]
    first = ask(messages, tools=TOOLS)
    results = [{"type": "tool_result", "tool_use_id": b.id, "content": "3"} for b in first.content if b.type == "tool_use"]
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    second = ask([*messages, {"role": "user", "content": "hello"}], tools=TOOLS)
    assert second.content[0].text == TEXT and second.usage.cache_read_input_tokens > 0


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"max_tokens": None}, ["'max_tokens' is missing"]),
        ({"max_tokens": -1}, ["max_tokens"]),
        ({"tool_choice": {"type": "some"}}, ["tool_choice"]),
        ({"tool_choice": "auto"}, ["tool_choice"]),
        ({"tool_choice": {"type": "any"}}, ["tool_choice", "no tools"]),
        ({"tool_choice": {"type": "tool"}}, ["'tool_choice.name'"]),
        ({"tool_choice": {"type": "auto", "x": 1}}, ["'tool_choice.x'"]),
        ({"thinking": {"type": "enabled", "x": 1}}, ["'thinking.x'"]),
        ({"thinking": {"type": "deep"}}, ["thinking.type"]),
        ({"mcp_servers": []}, ["mcp_servers"]),
        ({"container": "c"}, ["container"]),
        ({"context_management": {}}, ["context_management"]),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, ["output_config.format.schema", "'not'"]),
        ({"output_config": {"format": {"type": "xml"}}}, ["output_config.format.type"]),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, ["tools[0].type"]),
        ({"tools": [{}]}, ["tools[0]", "name"]),
        ({"stop_sequences": [""]}, ["stop_sequences"]),
        ({"system": 5}, ["system"]),
        ({"system": [{"type": "image"}]}, ["'system[0].type' is 'image'"]),
        ({"mirostat": 1}, ["mirostat"]),
        ({"messages": []}, ["'messages'"]),
        ({"messages": "x"}, ["'messages'"]),
        ({"messages": [5]}, ["messages[0].role"]),
        ({"messages": [{"role": "tool", "content": "x"}]}, ["messages[0].role"]),
        ({"messages": [{"role": "user"}]}, ["messages[0].content"]),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, ["messages[0].content[0].type' is 'image'"]),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, ["messages[0].content[0].text"]),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, ["'tool_use'", "user"]),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f"}]}]}, ["input"]),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, ["tool_use_id"]),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}, ["messages[1]", "last"]),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(speaker, fields, words):
    """In Anthropic's envelope, also when a stream was asked for."""
    base = {"model": "spoken", "max_tokens": 10, "messages": [{"role": "user", "content": "hello"}]}
    for stream in False, True:
        status, _, body = speaker.request("/v1/messages", {**base, **fields, "stream": stream})
        answer = json.loads(body)
        assert (status, answer["type"], answer["error"]["type"]) == (400, "error", "invalid_request_error"), body
        assert all(word in answer["error"]["message"] for word in words), body


def test_models(client, speaker):
    """Asked by this client the list is in its protocol's shape, and so is what there is to complain about."""
    (model,) = client.models.list()
    assert (model.id, model.type, model.display_name, model.max_input_tokens) == ("spoken", "model", "spoken", 4096)
    assert client.models.retrieve("spoken").created_at.year == 1970
    with pytest.raises(anthropic.NotFoundError, match="no model 'other'"):
        client.models.retrieve("other")
    for path in "/v1/models/other", "/v1/nothing":
        _, _, body = speaker.request(path, headers={"anthropic-version": "2023-06-01"})
        assert json.loads(body)["error"]["type"] == "not_found_error" and json.loads(body)["type"] == "error"
    assert json.loads(speaker.request("/v1/models")[2])["object"] == "list"


def test_errors_of_the_client(ask, client, polymath, bundled, tmp_path):
    with pytest.raises(anthropic.NotFoundError, match="no model 'other'"):
        ask("hello", model="other")
    with pytest.raises(anthropic.BadRequestError, match="messages\\[0\\].content\\[0\\].type' is 'image'"):
        client.messages.count_tokens(model="spoken", messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}])
    (tmp_path / "keys").write_text("secret\n")
    with Daemon(polymath, bundled, "--api-key-file", tmp_path / "keys") as daemon:
        messages = {"model": "default", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
        with pytest.raises(anthropic.AuthenticationError):
            Anthropic(base_url=daemon.url, api_key="wrong", max_retries=0).messages.create(**messages)
        answer = Anthropic(base_url=daemon.url, api_key="secret", max_retries=0).messages.create(**messages)
        assert answer.content[0].type == "text"
