"""Reasoning and calls in what run and chat show, with a copy of the bundled model whose tokens spell markers."""

import json
import subprocess

import pytest
from command import Terminal, as_json, call, copy_model

QUESTION = "What is a dog?"
CALL = '<tool_call>{"name":"now","arguments":{"a":[1]}}</tool_call>'

# Of "A dog is a member of the genus Canis that has been domesticated by man since prehistoric times."
SPELLED = {"A": "<think>", "Ġmember": "</think>", "Ġtimes": CALL}
REASONING = " dog is a"
TEXT = " of the genus Canis that has been domesticated by man since prehistoric"


@pytest.fixture(scope="module")
def model(bundled, tmp_path_factory):
    """Says "<think>", "</think>" (control tokens) and a call where the bundled model says three words."""

    def edit(tokenizer):
        bpe, added = tokenizer["model"], tokenizer["added_tokens"]
        bpe["merges"] = [pair for pair in bpe["merges"] if not {*pair, "".join(pair)} & SPELLED.keys()]
        bpe["vocab"] = {SPELLED.get(token, token): id for token, id in bpe["vocab"].items()}
        added += [dict(added[0], id=bpe["vocab"][token], content=token) for token in ("<think>", "</think>")]

    folder = copy_model(bundled, tmp_path_factory.mktemp("spelled") / "model", tokenizer=edit)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "{# <think> </think> <tool_call> #}")
    return folder


def test_a_pipe_gets_the_answer(polymath, model):
    done = call(polymath, "run", model, QUESTION)
    assert (done.returncode, done.stderr) == (0, b""), done
    assert done.stdout.decode() == TEXT + '\n[call: now {"a":[1]}]\n.\n'


def test_a_terminal_shows_all(polymath, model):
    with Terminal(polymath, "run", model, QUESTION) as terminal:
        shown = terminal.wait_for(b"[prompt: ").decode().replace("\r\n", "\n")
        assert terminal.exit_code() == 0
    assert shown == f'\033[2m{REASONING}\033[0m\n\n{TEXT}\n[call: now {{"a":[1]}}]\n.\n'


def test_reasoning_that_is_cut(polymath, model):
    with Terminal(polymath, "run", "--max-tokens", "3", model, QUESTION) as terminal:
        shown = terminal.wait_for(b"[prompt: ").decode().replace("\r\n", "\n")
    assert shown == "\033[2m dog is\033[0m\n"
    done = call(polymath, "run", "--max-tokens", "3", model, QUESTION)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\n", b"")


def test_json(polymath, model):
    result = as_json(polymath, model, QUESTION)
    assert (result["text"], result["reasoning_content"]) == (TEXT + ".", REASONING)
    function = {"name": "now", "arguments": '{"a":[1]}'}
    assert result["tool_calls"] == [{"id": "call00000", "type": "function", "function": function}]


def test_raw_is_as_it_comes(polymath, model):
    """Control tokens are no text then, and what looks like a call is text."""
    ids = ",".join(map(str, as_json(polymath, model, QUESTION)["prompt_ids"]))
    whole = REASONING + TEXT + CALL + "."
    assert as_json(polymath, "--ids", ids, model)["text"] == whole
    assert call(polymath, "run", "--ids", ids, model).stdout.decode() == whole + "\n"
    assert "reasoning_content" not in as_json(polymath, "--ids", ids, model)


def test_reasoning_that_the_prompt_opens(polymath, model, tmp_path):
    opened = tmp_path / "opened"
    subprocess.run(["cp", "-r", model, opened], check=True)
    template = opened / "chat_template.jinja"
    template.write_text(template.read_text().replace("assistant\n' }}{% endif %}{#", "assistant\n<think>\n' }}{% endif %}{#"))
    plain, result = (as_json(polymath, "--max-tokens", "4", folder, QUESTION) for folder in (model, opened))
    assert len(result["prompt_ids"]) > len(plain["prompt_ids"])
    assert result["text"] == "" and result["reasoning_content"]


def test_chat_keeps_the_parts(polymath, model, tmp_path):
    """What the next prompt is rendered from is a message with its parts in their places; so it is saved and loaded."""
    saved = tmp_path / "saved"
    done = call(polymath, "chat", model, input=f"{QUESTION}\n/save {saved}\n/load {saved}\n".encode())
    assert (done.returncode, done.stderr) == (0, b""), done
    assert done.stdout.decode() == TEXT + '\n[call: now {"a":[1]}]\n.\n'
    content = saved.read_bytes().decode(errors="replace")
    note, _ = json.JSONDecoder().raw_decode(content[content.index('{"messages"') :])
    assert note["messages"][1] == {
        "role": "assistant",
        "content": TEXT + ".",
        "reasoning_content": REASONING,
        "tool_calls": [{"id": "call00000", "type": "function", "function": {"name": "now", "arguments": '{"a":[1]}'}}],
    }
