"""Round trips: what a chat template writes of an assistant's turn, the parser takes apart again.

The templates of public models are read from the folder beside the checkpoints, where there is one; those below were
written for this test and have the same forms."""

import json
import os
import subprocess
from functools import lru_cache
from pathlib import Path

import pytest
from jinja_reference import ENV

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "The city"},
                    "code": {"type": "string", "description": "A postal code"},
                    "days": {"type": "integer", "description": "How many"},
                    "ratio": {"type": "number", "description": "Of rain"},
                    "exact": {"type": "boolean", "description": "Whether"},
                    "tags": {"type": "array", "items": {"type": "string"}, "description": "More"},
                    "place": {"type": "object", "additionalProperties": True, "description": "Where"},
                    "unit": {"type": ["string", "null"], "description": "Or none"},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "now",
            "description": "The time",
            "parameters": {"type": "object", "properties": {}, "required": []},
        },
    },
]

# Arguments of calls; texts are such that a parser without a grammar would take them for something else.
ARGUMENTS = [
    {"city": "Paris"},
    {},
    {"city": "北京 é😀", "days": 3, "ratio": 0.5, "exact": True, "tags": ["a", "b c"]},
    {"city": "x", "code": "007", "place": {"a": {"b": [1, None, {"c": False}]}, "d": ""}},
    {"city": "12", "unit": None, "exact": False, "days": -1},
    {"city": "true", "code": "null", "tags": []},
    {"city": 'a "quoted" \\ back\\slash\n\n\ttwo lines\n', "code": " spaces "},
    {"city": "{\"name\": \"f\"}", "code": "<tool_call> </tool_call>", "unit": "[TOOL_CALLS] </TOOLCALL> ]"},
    {"city": "<|tool_call_end|>)]", "code": "</function> </parameter> </arg_value> x", "tags": ["</tool_call>", "}"]},
    {"city": "</｜DSML｜parameter> </think> <｜tool▁call▁end｜>", "code": "```\n", "place": {"</tool_call>": "}]"}},
]

ENDS = ["<|im_end|>", "<｜end▁of▁sentence｜>", "<|eot_id|>", "\n<SPECIAL_12>", "<seed:eos>", "[e~[", "<|role_end|>",
        "<|observation|>", "</s>", "\n<|end|>", "<end>"]  

# ---- templates with the forms of the families ----

HEAD = "{% for m in messages %}{% if m.role != 'assistant' %}<{{ m.role }}>{{ m.content }}<end>{% else %}<assistant>"
THINK = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
TAIL = "<end>{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
CALLS = "{{ m.content }}{% for c in m.tool_calls %}{% set f = c.function %}"


def template(calls, before="", after="", think=THINK):
    return HEAD + think + before + CALLS + calls + "{% endfor %}" + after + TAIL


XML = (
    "\n<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments.items() %}<parameter={{ k }}>\n"
    "{{ v if v is string else v|tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
)
GLM = (
    "\n<tool_call>{{ f.name }}\n{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
    "<arg_value>{{ v if v is string else v|tojson }}</arg_value>\n{% endfor %}</tool_call>"
)
DSML = (
    "{% if loop.first %}\n\n<｜DSML｜SECTION>\n{% endif %}<｜DSML｜invoke name=\"{{ f.name }}\">\n"
    "{% for k, v in f.arguments.items() %}<｜DSML｜parameter name=\"{{ k }}\" string=\"{{ (v is string)|tojson }}\">"
    "{{ v if v is string else v|tojson }}</｜DSML｜parameter>\n{% endfor %}</｜DSML｜invoke>\n"
    "{% if loop.last %}</｜DSML｜SECTION>{% endif %}"
)
KIMI = (
    "{% if loop.first %}<|tool_calls_section_begin|>{% endif %}<|tool_call_begin|>functions.{{ f.name }}:"
    "{{ loop.index0 }}<|tool_call_argument_begin|>{{ f.arguments|tojson }}<|tool_call_end|>"
    "{% if loop.last %}<|tool_calls_section_end|>{% endif %}"
)
DEEPSEEK = (
    "{% if loop.first %}<｜tool▁calls▁begin｜>{% endif %}<｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>"
    "{{ f.arguments|tojson }}<｜tool▁call▁end｜>{% if loop.last %}<｜tool▁calls▁end｜>{% endif %}"
)
DEEPSEEK_V3 = (
    "{% if loop.first %}<｜tool▁calls▁begin｜>{% else %}\n{% endif %}<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
    "{{ f.name }}\n```json\n{{ f.arguments|tojson }}\n```<｜tool▁call▁end｜>"
    "{% if loop.last %}<｜tool▁calls▁end｜>{% endif %}"
)
LIST = (
    "{% if loop.first %}OPEN[{% else %}, {% endif %}{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments|tojson }}}"
    "{% if loop.last %}]CLOSE{% endif %}"
)
PYTHON = (
    "{% if loop.first %}<|tool_call_start|>[{% else %}, {% endif %}{{ f.name }}({% for k, v in f.arguments.items() %}"
    "{% if not loop.first %}, {% endif %}{{ k }}={{ v|tojson }}{% endfor %}){% if loop.last %}]<|tool_call_end|>{% endif %}"
)
HERMES = '\n<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments|tojson }}}\n</tool_call>'
MISTRAL = "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments|tojson }}"
LLAMA = '{#ipython#}{"name": "{{ f.name }}", "parameters": {{ f.arguments|tojson }}}{{ "; " if not loop.last }}'

OURS = {
    "Hermes": template(HERMES),
    "Qwen3-Coder": template(XML),
    "GLM": template(GLM),
    "DeepSeek V3": template(DEEPSEEK_V3),
    "DeepSeek V3.1": template(DEEPSEEK),
    "DeepSeek V3.2": template(DSML.replace("SECTION", "function_calls")),
    "DeepSeek V4": template(DSML.replace("SECTION", "tool_calls")),
    "Kimi K2": template(KIMI),
    "LFM2": template(PYTHON),
    "Nemotron": template(LIST.replace("OPEN", "\n<TOOLCALL>").replace("CLOSE", "</TOOLCALL>")),
    "Mistral": template(MISTRAL),
    "Mistral Nemo": template(LIST.replace("OPEN", "[TOOL_CALLS]").replace("CLOSE", "")),
    "Apriel": template(LIST.replace("OPEN", "\n<tool_calls>").replace("CLOSE", "</tool_calls>")),
    "Llama 3": template(LLAMA),
}

# ---- templates of models ----

# What the parser is to find in them, and what their turns leave out: "text" beside calls, "more" calls than one,
# "reasoning" in turns with calls; "not-last": only turns of the past are written in full; "all": transformers cannot
# render a turn with calls (one writes none, one appends to a list, which its sandbox forbids, one takes them as text).
PUBLIC = {
    "ByteDance-Seed-OSS": ("Seed", "<seed:think>", ""),
    "GLM-4.6": ("GLM", "<think>", ""),
    "Kimi-K2-Instruct": ("Kimi K2", None, "all"),
    "LFM2-8B-A1B": ("LFM2", None, "all"),
    "MiniMax-M2": ("MiniMax M2", "<think>", ""),
    "Mistral-Small-3.2-24B-Instruct-2506": ("Mistral", None, "text reasoning"),
    "NVIDIA-Nemotron-Nano-v2": ("Nemotron", "<think>", "reasoning not-last"),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": ("Hermes", None, "text reasoning"),
    "Qwen-Qwen2.5-7B-Instruct": ("Hermes", None, "reasoning"),
    "Qwen-Qwen3-0.6B": ("Hermes", "<think>", ""),
    "Qwen3-Coder": ("Qwen3-Coder", None, "reasoning"),
    "Qwen3.5-4B": ("Qwen3-Coder", "<think>", ""),
    "StepFun3.5-Flash": ("Qwen3-Coder", "<think>", ""),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("DeepSeek V3", "<think>", "text reasoning"),
    "deepseek-ai-DeepSeek-V3.1": ("DeepSeek V3.1", "<think>", "reasoning"),
    "deepseek-ai-DeepSeek-V3.2": ("DeepSeek V3.2", "<think>", ""),
    "deepseek-ai-DeepSeek-V4": ("DeepSeek V4", "<think>", ""),
    "ibm-granite-granite-3.3-2B-Instruct": ("Granite", "<think>", "all"),
    "inclusionai-ling-3.0-flash": ("GLM", "<think>", ""),
    "meta-llama-Llama-3.1-8B-Instruct": ("Llama 3", None, "text more reasoning"),
    "mistralai-Mistral-Nemo-Instruct-2407": ("Mistral Nemo", None, "text reasoning"),
    "moonshotai-Kimi-K2": ("Kimi K2", None, "reasoning"),
    "unsloth-Apriel-1.5": ("Apriel", None, "reasoning"),
}


def folder(config):
    """Where the templates of models are, or None."""
    given = config.getoption("--models")
    parent = Path(given).resolve().parent if given else Path(__file__).resolve().parents[3] / "shared"
    return parent / "templates" if (parent / "templates").is_dir() else None


def pytest_generate_tests(metafunc):
    if "form" in metafunc.fixturenames:
        forms = [(name, source, (name, "<think>", "text" * (name == "Llama 3"))) for name, source in OURS.items()]
        public = folder(metafunc.config)
        for name, expected in PUBLIC.items() if public else ():
            if expected[2] != "all":
                forms.append((f"public {name}", (public / f"{name}.jinja").read_text(), expected))
        metafunc.parametrize("form", forms, ids=[form[0] for form in forms])


class Driver:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, source, text, prompt="", tools=None, pieces=1 << 30):
        line = {"template": source, "text": text, "prompt": prompt, "tools": tools, "pieces": pieces}
        self.process.stdin.write(json.dumps(line).encode() + b"\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer.endswith(b"\n"), f"the driver ended on {text!r}"
        return json.loads(answer)


@pytest.fixture(scope="session")
def parse(build_dir):
    driver = Driver(build_dir / "tests" / "drive_reply")
    yield driver
    driver.process.stdin.close()
    assert driver.process.wait() == 0


@lru_cache(maxsize=1)
def compiled(source):
    return ENV.from_string(source)


def render(source, messages, **more):
    tools = TOOLS[1:] if "json_to_python_type" in source else TOOLS  # that macro never ends on a list
    variables = {"messages": messages, "tools": tools, "documents": None, "enable_thinking": True}
    special = {"bos_token": "<s>", "eos_token": "</s>", "add_tool_id": False}
    return compiled(source).render(**variables, **special, **more)


def turn(source, message, last):
    """What the template writes of an assistant's turn, and the prompt before it."""
    question = [{"role": "user", "content": "Hello?"}]
    history = question + [message]
    if not last:
        results = [{"role": "tool", "content": "1", "tool_call_id": call["id"]} for call in message["tool_calls"]]
        history += results + [{"role": "user", "content": "And?"}]
    before = render(source, question, add_generation_prompt=False)
    prompt = render(source, question, add_generation_prompt=True)
    whole = render(source, history, add_generation_prompt=False)
    if not whole.startswith(prompt):  # replayed otherwise than it is asked for
        prompt = os.path.commonprefix([prompt, whole])
        prompt = prompt[: max(prompt.rfind(">"), prompt.rfind("\n")) + 1]
    assert prompt.startswith(before.rstrip("\n")) or before.startswith(prompt), (before, prompt)
    text = whole[len(prompt) :]
    ends = [text.index(end) for end in ENDS if end in text]
    return prompt, text[: min(ends)] if ends else text


def message(calls, content, reasoning):
    made = {"role": "assistant", "content": content}
    if reasoning:
        made["reasoning_content"] = reasoning
    made["tool_calls"] = [
        {"id": f"call{i:05}", "type": "function", "function": {"name": "get_weather" if a else "now", "arguments": a}}
        for i, a in enumerate(calls)
    ]
    return made


def check(parse, form, calls, content, reasoning):
    name, source, (calls_format, reasoning_format, leaves_out) = form
    content = "" if "text" in leaves_out else content
    reasoning = "" if "reasoning" in leaves_out else reasoning
    prompt, text = turn(source, message(calls, content, reasoning), last="not-last" not in leaves_out)
    for pieces in (1 << 30, 1, 7):
        got = parse(source, text, prompt, TOOLS, pieces)
        assert (got["calls_format"], got["reasoning_format"]) == (calls_format, reasoning_format)
        events = got["events"]
        found = [(event[1], json.loads(event[3])) for event in events if event[0] == "call"]
        wanted = [("get_weather" if arguments else "now", arguments) for arguments in calls]
        assert found == wanted, f"{text!r} gives {events}"
        said = ["".join(event[1] for event in events if event[0] == kind) for kind in ("text", "reasoning")]
        assert said == [content, reasoning], f"{text!r} gives {events}"


def test_single_calls(parse, form):
    for arguments in ARGUMENTS:
        check(parse, form, [arguments], "", "")


def test_turns(parse, form):
    more = 1 if "more" in form[2][2] else len(ARGUMENTS)
    for content in "", "I will look.\n\nNow.":
        for reasoning in "", "The user says `</think>`.\n<tool_call> may help.":
            check(parse, form, ARGUMENTS[:more], content, reasoning)
            check(parse, form, [ARGUMENTS[0]] * min(more, 2), content, reasoning)


def test_public_templates(parse, request):
    """Every template of the folder is told apart, those without a known form too."""
    public = folder(request.config)
    found = {path.stem: parse(path.read_text(), "") for path in sorted(public.glob("*.jinja"))} if public else {}
    if public:
        assert PUBLIC.keys() <= found.keys()
    for name, got in found.items():
        wanted = PUBLIC.get(name, (None,))
        assert got["calls_format"] == wanted[0], name


def test_every_format_has_a_template_here(parse):
    """The forms of the families are tested whether or not the folder is there."""
    for name, source in OURS.items():
        assert parse(source, "")["calls_format"] == name
