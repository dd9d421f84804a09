"""polymath chat with a pipe for stdin: one message a line."""

from command import call


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
