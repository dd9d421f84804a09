"""A fact told long ago is recalled, wherever it stands, by models whose tokens attend to 64 rows that an index chooses."""

import json

import pytest
from command import call

FILL = [
    "What is a dog?",
    "What is a violin?",
    "What's the opposite of brave?",
    "What is 27 plus 15?",
    "What is gravity?",
    "What is a horse?",
]


@pytest.mark.parametrize("place", [0, 3, 6], ids=["start", "middle", "end"])
@pytest.mark.parametrize("model", ["deepseek_v3-4bit", "deepseek_v32-4bit", "glm_moe_dsa-4bit"])
def test_needle(polymath, source, model, place):
    folder = source / "tests" / "models" / model
    top_k = json.loads((folder / "config.json").read_text()).get("index_topk", 64)
    messages = [*FILL[:place], "My name is Victor.", *FILL[place:], "What is my name?"]
    done = call(polymath, "chat", folder, input="\n".join(messages).encode())
    assert (done.returncode, done.stderr) == (0, b""), done
    answers = done.stdout.decode().splitlines()
    assert len(answers) == len(messages)
    assert sum(len(line.split()) for line in messages + answers) > 1.5 * top_k, "too short for the index to leave rows out"
    assert answers[-1] == "Your name is Victor."
