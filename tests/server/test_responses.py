"""/v1/responses, through OpenAI's own client."""

import json

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel, Field
from spoken import ARGUMENTS, PARAMETERS, REASONING, TEXT

TOOLS = [{"type": "function", "name": "add", "description": "Adds.", "parameters": PARAMETERS, "strict": False}]


@pytest.fixture(scope="module")
def ask(speaker):
    """A request of the model that says what is written down."""
    client = OpenAI(base_url=speaker.url + "/v1", api_key="none", max_retries=0, timeout=60)
    return lambda input, **fields: client.responses.create(model="spoken", input=input, **fields)


def streamed(ask, question, **fields):
    """The last event's response; every other event must fit what came before it, and come in the documented order."""
    events = list(ask(question, stream=True, **fields))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[0].response.status == "in_progress" and events[0].response.output == []
    output, part = [], None
    for event in events[2:-1]:
        kind = event.type.removeprefix("response.")
        assert event.output_index == len(output) - (kind != "output_item.added")
        if kind == "output_item.added":
            output.append(event.item)
            said, item_id = "", event.item.id
        elif kind == "content_part.added":
            part = event.part
            assert part.text == ""
        elif kind.endswith(".delta"):
            said += event.delta
        elif kind in ("output_text.done", "reasoning_text.done"):
            assert event.text == said
        elif kind == "function_call_arguments.done":
            assert (event.arguments, event.name) == (said, output[-1].name)
        elif kind == "content_part.done":
            assert (event.part.text, event.part.type) == (said, part.type)
        else:
            assert kind == "output_item.done" and event.item.id == item_id
            output[-1] = event.item
        assert getattr(event, "item_id", item_id) == item_id
    last = events[-1]
    assert last.type == f"response.{last.response.status}"
    assert last.response.output == output
    return last.response


def bare(response):
    """What must not depend on how the answer was sent."""
    content = response.model_dump(exclude={"id", "created_at"})
    for item in content["output"]:
        del item["id"]
        item.pop("call_id", None)
    content["usage"]["input_tokens_details"] = None
    return content


def both_ways(ask, question, **fields):
    whole = ask(question, **fields)
    assert bare(streamed(ask, question, **fields)) == bare(whole)
    return whole


def test_text(ask):
    answer = both_ways(ask, "hello", metadata={"a": "b"}, store=False, user="u")
    assert (answer.output_text, answer.status, answer.object) == (TEXT, "completed", "response")
    assert answer.id.startswith("resp_") and answer.model == "spoken" and answer.metadata == {"a": "b"}
    (item,) = answer.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    usage = answer.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens and usage.output_tokens == 5
    assert ask("hello").usage.input_tokens_details.cached_tokens > 0


def test_the_helper_of_the_client(server):
    """Its own accumulator of events takes the stream."""
    client = OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)
    with client.responses.stream(model="default", input="What is a dog?") as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert final.output_text == "".join(pieces) and final.output_text.startswith("A dog is a member")
    assert len(pieces) > 5


def test_reasoning(ask):
    answer = both_ways(ask, "think one", reasoning={"effort": "high", "summary": "auto"})
    thought, said = answer.output
    assert (thought.type, thought.content[0].text, thought.summary) == ("reasoning", REASONING, [])
    assert (said.type, answer.output_text) == ("message", "Done now.")
    assert 0 < answer.usage.output_tokens_details.reasoning_tokens < answer.usage.output_tokens


def test_calls(ask):
    answer = both_ways(ask, "calls", tools=TOOLS)
    assert [item.type for item in answer.output] == ["message", "function_call", "function_call"]
    assert answer.output_text == "I add." and [json.loads(i.arguments) for i in answer.output[1:]] == ARGUMENTS
    assert len({item.call_id for item in answer.output[1:]}) == 2 and answer.output[1].name == "add"
    between = both_ways(ask, "calls between", tools=TOOLS)
    assert [item.type for item in between.output] == ["message", "function_call", "message"]
    assert between.output_text == "First.Then."
    one = both_ways(ask, "calls", tools=TOOLS, parallel_tool_calls=False)
    assert [item.type for item in one.output] == ["message", "function_call"]
    none = both_ways(ask, "calls", tools=TOOLS, tool_choice="none")
    assert [item.type for item in none.output] == ["message"] and "<tool_call>" in none.output_text


def test_limit(ask):
    answer = both_ways(ask, "endless", max_output_tokens=4)
    assert (answer.output_text, answer.status) == ("1231", "incomplete")
    assert (answer.incomplete_details.reason, answer.output[0].status) == ("max_output_tokens", "incomplete")
    assert answer.usage.output_tokens == 4


def length(speaker, **body):
    """Tokens of the prompt that a conversation in chat's shape has."""
    status, _, text = speaker.request("/apply-template", body)
    assert status == 200, text
    return len(json.loads(speaker.request("/tokenize", {"content": json.loads(text)["prompt"]})[2])["tokens"])


def test_a_conversation_becomes_messages(ask, speaker):
    """What it says is what the same chat says: its length is that of the chat's prompt."""
    items = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_text", "text": "Add "}, {"type": "input_text", "text": "them."}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So.", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": '{"a": 2}'},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
        {"role": "user", "content": "hello"},
    ]
    call = lambda name, n: {"id": name, "type": "function", "function": {"name": "add", "arguments": f'{{"a": {n}}}'}}
    messages = [
        {"role": "system", "content": "Be brief.\n\nBe kind."},
        {"role": "user", "content": "Add them."},
        {"role": "assistant", "content": "So.", "reasoning_content": "Hm.", "tool_calls": [call("c1", 1), call("c2", 2)]},
        {"role": "tool", "content": "1", "tool_call_id": "c1"},
        {"role": "tool", "content": "2", "tool_call_id": "c2"},
        {"role": "user", "content": "hello"},
    ]
    answer = ask(items, instructions="Be brief.", tools=TOOLS)
    assert answer.output_text == TEXT
    tools = [{"type": "function", "function": {k: v for k, v in TOOLS[0].items() if k != "type"}}]
    assert answer.usage.input_tokens == length(speaker, messages=messages, tools=tools)
    again = ask("hello", instructions="Be brief.")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    assert again.usage.input_tokens == length(speaker, messages=messages)


def test_an_agent(ask):
    """Calls and their results go back as the client has them."""
    items = [{"role": "user", "content": "calls"}]
    first = ask(items, tools=TOOLS)
    items += first.output
    for item in first.output:
        if item.type == "function_call":
            items.append({"type": "function_call_output", "call_id": item.call_id, "output": "3"})
    items.append({"role": "user", "content": "hello"})
    second = ask(items, tools=TOOLS)
    assert second.output_text == TEXT
    assert second.usage.input_tokens_details.cached_tokens > 0


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=99)


def test_answers_held_to_a_form(ask, server):
    """A model of pydantic's through the client's own helper; a call that is made whatever the model would say."""
    client = OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)
    bounds = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 1, "maximum": 9}},
              "required": ["age"], "additionalProperties": False}  # fmt: skip
    form = {"format": {"type": "json_schema", "name": "bounds", "schema": bounds, "strict": True}}
    assert 1 <= json.loads(both_ways(ask, "hello", text=form).output_text)["age"] <= 9
    parsed = client.responses.parse(model="default", input="What is a dog?", text_format=Person)
    assert isinstance(parsed.output_parsed, Person) and parsed.status == "completed"
    for choice in "required", {"type": "function", "name": "add"}:
        answer = both_ways(ask, "hello", tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, max_output_tokens=200)
        assert [(item.type, item.name) for item in answer.output] == [("function_call", "add")]


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"previous_response_id": "resp_1"}, ["previous_response_id", "not supported"]),
        ({"store": True}, ["store", "only as false"]),
        ({"conversation": "c"}, ["conversation"]),
        ({"background": True}, ["background"]),
        ({"include": ["message.output_text.logprobs"]}, ["include", "message.output_text.logprobs"]),
        ({"truncation": "auto"}, ["truncation"]),
        ({"tools": [{"type": "web_search"}]}, ["tools[0].type"]),
        ({"tools": [{"type": "function"}]}, ["tools[0]", "name"]),
        ({"max_output_tokens": -1}, ["max_output_tokens"]),
        ({"temperature": "warm"}, ["temperature"]),
        ({"extra_body": {"mirostat": 1}}, ["mirostat"]),
        ({"reasoning": {"mode": "pro"}}, ["'reasoning.mode'"]),
        ({"text": {"verbosity": "low"}}, ["'text.verbosity'"]),
        ({"text": {"format": {"type": "xml"}}}, ["'text.format.type'"]),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}}, ["text.format.schema", "'not'"]),
        ({"tool_choice": "required"}, ["tool_choice"]),
        ({"instructions": 5}, ["instructions"]),
    ],
)
def test_what_is_refused_is_named(ask, fields, words):
    for stream in False, True:
        with pytest.raises(openai.BadRequestError) as caught:
            ask("hello", stream=stream, **fields)
        assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    "items, words",
    [
        (None, "'input' must be"),
        ([], "'input' must be"),
        (5, "'input' must be"),
        ([5], "'input[0].type' is ''"),
        ([{"type": "item_reference", "id": "x"}], "'input[0].type' is 'item_reference'"),
        ([{"role": "user"}], "'input[0].content'"),
        ([{"content": "x"}], "'input[0].role'"),
        ([{"role": "tool", "content": "x"}], "'input[0].role' is 'tool'"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}], "'input[0].content[0].type' is 'input_image'"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "'input[0].content[0].text' must be"),
        ([{"type": "function_call", "name": "f", "arguments": "{}"}], "'input[0].call_id'"),
        ([{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}], "arguments is not valid JSON"),
        ([{"type": "function_call_output", "call_id": "c"}], "'input[0].output'"),
    ],
)  # fmt: skip
def test_bad_input_is_named(speaker, items, words):
    status, _, body = speaker.request("/v1/responses", {"model": "spoken", "input": items})
    error = json.loads(body)["error"]
    assert status == 400 and words in error["message"], (status, body)
    assert error["param"].startswith("input") and error["param"] in error["message"] + "input"


def test_missing_input(speaker):
    status, _, body = speaker.request("/v1/responses", {})
    assert status == 400 and "'input'" in json.loads(body)["error"]["message"]


def test_a_long_conversation(ask):
    """As agents send it again with every turn."""
    items = [{"role": ("user", "assistant")[i % 2], "content": "a"} for i in range(300)]
    assert ask([*items, {"role": "user", "content": "text"}], max_output_tokens=1).usage.input_tokens > 300
