"""A model that says what is written here (chain.py), for the protocols whose answers are lists of blocks."""

import chain

CALL = '<tool_call>\n{{"name": "add", "arguments": {{"a": 1, "b": "{}"}}}}\n</tool_call>'
CALLS = "I add." + CALL.format("x") + "\n" + CALL.format("y")
SCRIPTS = {
    "hello": ["Hel", "lo", " wor", "ld"],
    "think one": ["let me", " see", "</th", "ink>\n\n", "Done", " now."],
    "calls": [CALLS[i : i + 7] for i in range(0, len(CALLS), 7)],
    "calls between": ["First." + CALL.format("z") + "\nThen."],
    "endless": ["1", "2", "3", None],
    "stops": ["alpha b", "eta", " gamma", " delta"],
}
TEXT, REASONING, ARGUMENTS = "Hello world", "let me see", [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}


def unique(scripts):
    """Each piece stands in one place only: one that would stand in two is cut until it does not."""
    seen, made = set(chain.alphabet()), {}
    for name, pieces in scripts.items():
        made[name] = []
        for piece in pieces:
            parts = [piece] if piece is None or len(piece) == 1 or chain.spelt(piece) not in seen else cut(piece, seen)
            seen |= {chain.spelt(part) for part in parts if part is not None}
            made[name] += parts
    return made


def cut(piece, seen):
    for middle in range(1, len(piece)):
        parts = [piece[:middle], piece[middle:]]
        if not {chain.spelt(part) for part in parts} & seen:
            return parts
    raise AssertionError(f"{piece!r} cannot be cut")


def write(folder):
    return chain.write(folder, unique(SCRIPTS))
