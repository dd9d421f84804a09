"""docs/api.md has every field that the server's tables have, and says of each what they say."""

import re

import pytest

# The section of a table, and where the program has it.
TABLES = {
    "POST /v1/chat/completions": ("chat.c", "fields"),
    "POST /v1/completions": ("completions.c", "fields"),
    "POST /v1/responses": ("responses_read.c", "pm_responses_fields"),
    "POST /v1/messages": ("messages_read.c", "pm_messages_fields"),
}


def in_the_program(source, file, name):
    """{field: what becomes of it}, in the order of the table."""
    text = (source / "src/server" / file).read_text()
    table = re.search(rf"\b{name}\[\] = {{(.*?)PM_LAST", text, re.DOTALL).group(1)
    words = {}
    for kind, field, rest in re.findall(r"PM_([A-Z]+)\(\"(\w+)\"(?:, ((?:\"(?:\\.|[^\"])*\"|[^\")])*))?\)", table):
        only = re.sub(r"\\(.)", r"\1", rest[1:-1]) if kind == "ONLY" else ""
        words[field] = {"VOID": "no effect", "REFUSED": "refused", "ONLY": f"only `{only}`"}.get(kind, "taken")
    assert words
    return words


def in_the_document(source, section):
    text = (source / "docs/api.md").read_text()
    part = re.search(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE).group(1)
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", part, re.MULTILINE))


@pytest.mark.parametrize("section", TABLES)
def test_fields(source, section):
    program = in_the_program(source, *TABLES[section])
    assert list(in_the_document(source, section).items()) == list(program.items())
