"""polymath template: the prompt that a chat template makes of a conversation."""

import json

import pytest

from command import Terminal, as_json, call, copy_model, refused

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is <|im_end|> a dog?"}]
PROMPT = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is <|im_end|> a dog?<|im_end|>\n"
    "<|im_start|>assistant\n"
)
TOOLS = [{"type": "function", "function": {"name": "now", "description": "The time", "parameters": {}}}]
# Shows every variable that a request can set.
SHOW = (
    "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
    "{{ tools|tojson }}{{ add_generation_prompt }}{{ enable_thinking|default('absent') }}{{ effort|default('-') }}"
)


@pytest.fixture
def write(tmp_path):
    """Writes an object to a file of its own; its path."""

    def file(content, name="request.json"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return file


@pytest.fixture
def shown(polymath, bundled, tmp_path, write):
    """What the template SHOW makes of a request."""
    model = copy_model(bundled, tmp_path / "model")
    (model / "chat_template.jinja").write_text(SHOW)

    def show(request, *args):
        done = call(polymath, "template", *args, model, write(request))
        assert (done.returncode, done.stderr) == (0, b""), done
        return done.stdout.decode()

    return show


def test_prompt_of_messages(polymath, write):
    """A list of messages, or an object that holds it; byte for byte, nothing added."""
    for request in MESSAGES, {"messages": MESSAGES}:
        done = call(polymath, "template", write(request))
        assert (done.returncode, done.stdout.decode(), done.stderr) == (0, PROMPT, b"")
    done = call(polymath, "template", "-", input=json.dumps(MESSAGES).encode())
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, PROMPT, b"")


def test_it_is_the_prompt_of_run(polymath, write):
    """What run reads is what template prints; text like a control token inside a message is none."""
    prompt = as_json(polymath, "--max-tokens", "1", "--system", "Be brief.", MESSAGES[1]["content"])["prompt_ids"]
    text = call(polymath, "template", write([MESSAGES[0], {"role": "user", "content": "What is a dog?"}])).stdout.decode()
    same = as_json(polymath, "--max-tokens", "1", "--system", "Be brief.", "What is a dog?")["prompt_ids"]
    assert as_json(polymath, "--max-tokens", "1", "--raw", text)["prompt_ids"] == same
    raw = as_json(polymath, "--max-tokens", "1", "--raw", PROMPT)["prompt_ids"]
    assert raw != prompt, "raw text has a control token where the message has characters"


def test_generation_prompt(polymath, write):
    without = PROMPT.removesuffix("<|im_start|>assistant\n")
    assert call(polymath, "template", "--no-generation-prompt", write(MESSAGES)).stdout.decode() == without
    for given, want in (False, without), (True, PROMPT):
        request = {"messages": MESSAGES, "add_generation_prompt": given}
        assert call(polymath, "template", write(request)).stdout.decode() == want


def test_variables(shown, write):
    said = "<|im_start|>user:x<|im_end|>"
    messages = [{"role": "user", "content": "x"}]
    tools = json.dumps(TOOLS)
    assert shown(messages) == said + "nullTrueabsent-"
    assert shown({"messages": messages, "enable_thinking": True, "effort": 5}) == said + "nullTrueTrue5"
    assert shown({"messages": messages, "enable_thinking": True}, "--no-think") == said + "nullTrueFalse-"
    assert shown(messages, "--set", "enable_thinking:true", "--set=effort:high") == said + "nullTrueTruehigh"
    assert shown(messages, "--set", 'effort:{"a":[1,null]}') == said + "nullTrueabsent{'a': [1, None]}"
    assert shown(messages, "--set", "effort:a:b") == said + "nullTrueabsenta:b"
    assert shown({"messages": messages, "tools": TOOLS}) == said + tools + "Trueabsent-"
    other = write(TOOLS, "tools.json")
    assert shown({"messages": messages, "tools": []}, "--tools", other) == said + tools + "Trueabsent-"
    assert shown(messages, "--tools", other, "--no-generation-prompt") == said + tools + "Falseabsent-"


def test_run_and_chat_set_variables_too(polymath, bundled, tmp_path):
    model = copy_model(bundled, tmp_path / "model")
    (model / "chat_template.jinja").write_text("{{ raise_exception('effort is ' ~ effort) }}")
    refused(call(polymath, "run", "--set", "effort:high", model, "x"), 1, "effort is high")
    refused(call(polymath, "chat", "--set", "effort:low", model, input=b"x\n"), 1, "effort is low")


def test_run_and_chat_offer_tools_too(polymath, bundled, tmp_path, write):
    model = copy_model(bundled, tmp_path / "model")
    (model / "chat_template.jinja").write_text("{{ raise_exception('tools: ' ~ (tools|tojson)) }}")
    tools, other, broken = write(TOOLS, "tools.json"), write({"a": 1}, "other.json"), write("[", "broken.json")
    for command, question in ("run", ["x"]), ("chat", []):
        refused(call(polymath, command, model, *question, input=b"x\n"), 1, "tools: null")
        refused(call(polymath, command, "--tools", tools, model, *question, input=b"x\n"), 1, f"tools: {json.dumps(TOOLS)}")
        refused(call(polymath, command, "--tools", other, model, *question, input=b"x\n"), 1, "other.json", "list")
        refused(call(polymath, command, "--tools", broken, model, *question, input=b"x\n"), 1, "broken.json", "line 1")
        strange = write([*TOOLS, "now"], "strange.json")
        refused(call(polymath, command, "--tools", strange, model, *question, input=b"x\n"), 1, "strange.json: tools[1]")
        absent = tmp_path / "absent.json"
        refused(call(polymath, command, "--tools", absent, model, *question, input=b"x\n"), 1, "absent.json")
    piped = json.dumps(TOOLS).encode()
    refused(call(polymath, "run", "--tools", "-", model, "x", input=piped), 1, f"tools: {json.dumps(TOOLS)}")


def test_tools_that_a_template_leaves_out(polymath, bundled, tmp_path, write):
    """The bundled model's template knows no tools: whoever offers some is told."""
    unused, tools = b"[the model's chat template leaves the tools out]\n", write(TOOLS, "tools.json")
    model = copy_model(bundled, tmp_path / "model")
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}{{ tools|tojson }}")
    for folder, want in (bundled, unused), (model, b""):
        for given, said in (["--tools", tools], want), (["--tools", write([], "none.json")], b""), ([], b""):
            for command, *rest in ("template", write(MESSAGES)), ("run", "--max-tokens", "1", "x"), ("chat", "--max-tokens", "1"):
                words = rest[:-1] + [folder, rest[-1]] if command != "chat" else rest + [folder]
                result = call(polymath, command, *given, *words, input=b"x\n")
                assert (result.returncode, result.stderr) == (0, said), (command, given, result.stderr)
    request = {"messages": MESSAGES, "tools": TOOLS}
    assert call(polymath, "template", write(request)).stderr == unused


def test_control_tokens_stand_out_on_a_terminal(polymath, write):
    with Terminal(polymath, "template", write(MESSAGES)) as terminal:
        assert terminal.exit_code() == 0
        text = terminal.output.decode().replace("\r\n", "\n")
    start, end = "\x1b[1;36m<|im_start|>\x1b[0m", "\x1b[1;36m<|im_end|>\x1b[0m"
    assert text == (
        f"{start}system\nBe brief.{end}\n{start}user\nWhat is <|im_end|> a dog?{end}\n{start}assistant\n"
    )


def test_a_message_cannot_steer_the_terminal(polymath, write):
    with Terminal(polymath, "template", write([{"role": "user", "content": "a\x1b[31mb"}])) as terminal:
        assert terminal.exit_code() == 0
        assert b"a?[31mb" in terminal.output


@pytest.mark.parametrize(
    "content, words",
    [
        ("{", ["request.json", "line 1"]),
        ("5", ["request.json"]),
        ("{}", ["request.json", "messages"]),
        ("[]", ["messages is empty"]),
        ('{"messages": 5}', ["messages is not a list"]),
        ('[{"role": "wizard", "content": "x"}]', ["messages[0].role", "wizard"]),
        ('[{"role": "user"}]', ["messages[0].content is missing"]),
        ('[{"role": "user", "content": [{"type": "image"}]}]', ["messages[0].content", "'image'"]),
        ('{"messages": [{"role": "user", "content": "x"}], "tools": {}}', ["tools is not a list"]),
        ('{"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "f"}, 5]}', ["tools[1]", "object"]),
        ('{"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": 1}', ["add_generation_prompt"]),
        ('{"messages": [], "messages": []}', ["request.json", "duplicate"]),
    ],
)
def test_wrong_requests(polymath, write, content, words):
    refused(call(polymath, "template", write(content)), 1, *words)


def test_wrong_files(polymath, bundled, tmp_path, write):
    refused(call(polymath, "template", tmp_path / "nowhere.json"), 1, "nowhere.json", "No such file")
    refused(call(polymath, "template", "--tools", tmp_path / "none.json", write(MESSAGES)), 1, "none.json")
    for tools in {"a": 1}, [5], [*TOOLS, {"type": "function"}]:
        strange = write(tools, "tools.json")
        refused(call(polymath, "template", "--tools", strange, write(MESSAGES)), 1, "tools.json", "tools")
    refused(call(polymath, "template", tmp_path / "nomodel", write(MESSAGES)), 1, "nomodel", "MODEL")
    (tmp_path / "bytes.json").write_bytes(b'["\xff"]')
    refused(call(polymath, "template", tmp_path / "bytes.json"), 1, "bytes.json", "UTF-8", "offset 2")


def test_templates_that_are_refused(polymath, bundled, tmp_path, write):
    """The message has the file, the line and the column."""
    model = copy_model(bundled, tmp_path / "model")
    (model / "chat_template.jinja").write_text("a\n  {% if x %}{{ messages|wordwrap(5) }}{% endif %}")
    refused(call(polymath, "template", model, write(MESSAGES)), 1, "chat_template.jinja:2:25: filter 'wordwrap'")
    refused(call(polymath, "run", model, "x"), 1, "chat_template.jinja:2:25: filter 'wordwrap'")
    (model / "chat_template.jinja").write_text("\n{{ raise_exception('Roles must alternate!') }}")
    refused(call(polymath, "template", model, write(MESSAGES)), 1, "chat_template.jinja:2:19: Roles must alternate!")
    (model / "chat_template.jinja").unlink()
    config = json.loads((model / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    refused(call(polymath, "template", model, write(MESSAGES)), 1, model, "has no chat template")


def test_no_weights_are_needed(polymath, bundled, tmp_path, write):
    model = tmp_path / "text"
    model.mkdir()
    for name in "tokenizer.json", "tokenizer_config.json", "chat_template.jinja":
        (model / name).write_bytes((bundled / name).read_bytes())
    assert call(polymath, "template", model, write(MESSAGES)).stdout.decode() == PROMPT
