"""polymath chat with a pipe for stdin: one message a line."""

from command import call, refused


def chat(polymath, text, *args):
    done = call(polymath, "chat", *args, input=text.encode())
    assert (done.returncode, done.stderr) == (0, b""), done
    return done.stdout.decode().splitlines()


def test_it_remembers(polymath):
    assert chat(polymath, "My name is Victor.\nWhat is gravity?\nWhat is my name?\n") == [
        "I will remember that.",
        "Gravity is the force of attraction between all masses in the universe.",
        "Your name is Victor.",
    ]


def test_lines(polymath):
    """Empty lines are no messages; the last line may lack its newline, and lines may end as on Windows."""
    answers = chat(polymath, "\n\nWhat is 27 plus 15?\r\n\nWhat is 8 times 7?")
    assert answers == ["27 plus 15 is 42.", "8 times 7 is 56."]


def test_a_message_of_several_lines(polymath, tmp_path):
    file = tmp_path / "chat"
    text = "What is\\\n\\\r\na dog?\n/system Be\\\nbrief.\nWhat is a cow?\\\n"
    done = call(polymath, "chat", input=text.encode())
    assert (done.returncode, done.stderr) == (0, b""), done
    call(polymath, "chat", input=f"{text}\n/save {file}\n".encode())
    note = file.read_bytes()[:1000]
    for content in rb'"What is\n\na dog?"', rb'"Be\nbrief."', rb'"What is a cow?\n"':
        assert b'"content":' + content in note, (content, note)


def test_bad_input_is_told_by_its_first_line(polymath):
    refused(call(polymath, "chat", input=b"\n\\\nWhat\xff\n"), 1, "line 2: ", "UTF-8")


def test_nothing_to_say(polymath):
    assert chat(polymath, "") == []


def test_options_apply_to_every_answer(polymath):
    answers = chat(polymath, "What is a dog?\nWhat is a dog?\n", "--stop", " of", "--threads", "1")
    assert answers == ["A dog is a member"] * 2


def test_conversation_longer_than_the_context(polymath):
    done = call(polymath, "chat", "--ctx", "60", input=b"What is a dog?\n" * 5)
    text = done.stderr.decode()
    assert done.returncode == 1
    assert text.startswith("polymath: ") and text.count("\n") == 1 and "60" in text


def test_later_turns_reuse_the_earlier(polymath):
    done = call(polymath, "chat", "--verbose", input=b"My name is Victor.\nWhat is my name?\n")
    reports = [line for line in done.stderr.decode().splitlines() if "reused" in line]
    assert len(reports) == 2
    assert "(0 reused)" in reports[0] and "(0 reused)" not in reports[1]


# ---- commands ----


def commands(polymath, *lines, args=(), code=0):
    """A chat of these lines: its answers, and what its commands said."""
    done = call(polymath, "chat", *args, input="".join(f"{line}\n" for line in lines).encode())
    assert done.returncode == code, done
    return done.stdout.decode().splitlines(), done.stderr.decode().splitlines()


def test_help(polymath):
    answers, said = commands(polymath, "/help")
    assert answers == []
    assert [line.split()[0] for line in said] == ["/help", "/reset", "/save", "/load", "/system", "/stats", "/quit"]


def test_man_page_has_every_command(polymath, source):
    text = (source / "docs/polymath.1").read_text()
    for line in commands(polymath, "/help")[1]:
        assert f"\n.B {line.split()[0]}\n" in text or f"\n.BI {line.split()[0]} " in text


def test_reset(polymath):
    answers, said = commands(polymath, "My name is Victor.", "/reset", "What is my name?")
    assert said == [] and len(answers) == 2
    assert "Victor" not in answers[1]


def test_what_was_reset_is_not_saved(polymath, tmp_path):
    file, fresh = tmp_path / "chat", tmp_path / "fresh"
    _, said = commands(polymath, "My name is Victor.", "/reset", "/stats", f"/save {file}")
    assert said[:2] == ["messages      0", "context       0 of 2048 tokens"]
    commands(polymath, f"/save {fresh}")
    assert file.read_bytes() == fresh.read_bytes()


def test_save_and_load(polymath, tmp_path):
    file = tmp_path / "my chat"
    first, _ = commands(polymath, "My name is Victor.", f"/save {file}  ", "What is gravity?", "What is my name?")
    assert file.stat().st_mode & 0o777 == 0o600
    again, _ = commands(polymath, "What is a dog?", f"/load {file}", "What is gravity?", "What is my name?")
    assert again[1:] == first[1:]
    assert again[2] == "Your name is Victor."
    assert list(tmp_path.iterdir()) == [file]


def test_what_was_loaded_is_not_computed_again(polymath, tmp_path):
    file = tmp_path / "chat"
    _, before = commands(polymath, "My name is Victor.", f"/save {file}", "What is my name?", args=["--verbose"])
    _, after = commands(polymath, f"/load {file}", "What is my name?", args=["--verbose"])
    reused = [line.partition(" in ")[0] for line in before + after if "reused" in line]
    assert reused[1] == reused[2] and "(0 reused)" not in reused[2]


def test_failed_commands_keep_the_chat_alive(polymath, tmp_path):
    damaged, foreign, coarse, text = (tmp_path / name for name in ("damaged", "foreign", "coarse", "text"))
    commands(polymath, "My name is Tina.", f"/save {damaged}")
    content = bytearray(damaged.read_bytes())
    content[-100] ^= 4
    damaged.write_bytes(content)
    commands(polymath, "My name is Tina.", f"/save {foreign}", args=["--kv-type", "f32"])
    commands(polymath, "My name is Tina.", f"/save {coarse}", args=["--precision", "fast"])
    text.write_text("My name is Tina.")
    answers, said = commands(
        polymath,
        "My name is Victor.",
        f"/load {damaged}",
        f"/load {foreign}",
        f"/load {coarse}",
        f"/load {text}",
        f"/load {tmp_path}/none",
        "/load",
        f"/save {tmp_path}",
        f"/save {tmp_path}/none/chat",
        "/reset all",
        "/bogus",
        "/",
        "What is my name?",
        code=1,
    )
    assert answers == ["I will remember that.", "Your name is Victor."]
    words = [
        f"{damaged}: is damaged", f"{foreign}: was saved with the KV type f32",
        f"{coarse}: was computed in the precision fast", f"{text}: is not a saved session",
        f"{tmp_path}/none: cannot be opened", "/load needs a FILE", f"{tmp_path}: exists and is not a regular file",
        f"{tmp_path}/none/chat: cannot be written", "/reset takes nothing", "there is no /bogus", "there is no /;",
    ]  # fmt: skip
    assert len(said) == len(words)
    for line, word in zip(said, words):
        assert line.startswith("polymath: ") and word in line, (line, word)


def test_a_message_with_a_slash(polymath):
    answers, said = commands(polymath, "//help")
    assert len(answers) >= 1 and said == []


def test_system(polymath, tmp_path):
    """The system message of a command is that of the flag; it survives a reset and is saved."""
    file = tmp_path / "chat"
    flag = commands(polymath, "What is a dog?", f"/save {file}", args=["--system", "Be brief."])[0]
    note = file.read_bytes()
    assert b'"role":"system","content":"Be brief."' in note
    typed, _ = commands(polymath, "/system Be brief.", "What is a cow?", "/reset", "What is a dog?", f"/save {file}")
    assert typed[1:] == flag
    assert file.read_bytes()[:400] == note[:400]
    commands(polymath, "/system Be brief.", "/system", "What is a dog?", f"/save {file}")
    assert b"system" not in file.read_bytes()[:400]


def test_quit(polymath):
    """Nothing after it is read; the exit code is that of the commands before it."""
    answers, said = commands(polymath, "What is 27 plus 15?", "/quit", "What is 8 times 7?", "/bogus")
    assert (answers, said) == (["27 plus 15 is 42."], [])
    answers, said = commands(polymath, "/bogus", "/quit now", "/quit", "What is a dog?", code=1)
    assert answers == [] and len(said) == 2 and "/quit takes nothing" in said[1]


def test_stats(polymath):
    _, said = commands(polymath, "/stats", "What is a dog?", "What is a dog?", "/stats", args=["--ctx", "200"])
    assert said[:4] == [
        "messages      0",
        "context       0 of 200 tokens",
        "answers       0 with 0 tokens",
        "prompts       0 tokens computed, 0 reused",
    ]
    assert said[4] == "messages      4"
    assert said[5].endswith(" of 200 tokens") and said[6].startswith("answers       2 with ") and "tokens/s" in said[6]
    assert not said[7].endswith(" 0 reused")
