"""What has been computed is not computed again, and what it takes stays within its bound."""

import json
import random
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from daemon import Daemon

CHAT = "/v1/chat/completions"
WORDS = "dog cat house river stone bread music winter paper light".split()


def text(seed, n):
    return " ".join(random.Random(str(seed)).choices(WORDS, k=n))


def chat(daemon, messages, **fields):
    """The answer's text, its usage, and how many of the prompt's tokens were computed."""
    status, _, body = daemon.request(CHAT, {"messages": messages, "max_tokens": 12, "temperature": 0, **fields})
    answer = json.loads(body)
    assert status == 200, answer
    usage = answer["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    choice = answer["choices"][0]
    said = choice["message"]["content"], usage, usage["prompt_tokens"] - cached
    return (*said, [e["token"] for e in choice["logprobs"]["content"]]) if choice["logprobs"] else said


def pieces(daemon, content):
    """The tokens of a text, each as text."""
    tokens = json.loads(daemon.request("/tokenize", {"content": content})[2])["tokens"]
    return [json.loads(daemon.request("/detokenize", {"tokens": [t]})[2])["content"] for t in tokens]


def user(content):
    return {"role": "user", "content": content}


@pytest.fixture
def fresh(polymath, bundled):
    with Daemon(polymath, bundled) as daemon:
        yield daemon


def test_exact_hits(fresh):
    """L1: the same request three times, of many tokens and of one."""
    first, usage, computed = chat(fresh, [user("What is a dog?")])
    assert computed == usage["prompt_tokens"]
    for _ in range(2):
        again, more, computed = chat(fresh, [user("What is a dog?")])
        assert (again, more["prompt_tokens"], more["completion_tokens"]) == (
            first, usage["prompt_tokens"], usage["completion_tokens"])  # fmt: skip
        assert computed == 0
    texts = [fresh.request("/v1/completions", {"prompt": [281], "max_tokens": 4, "temperature": 0})[2] for _ in range(3)]
    assert len({json.loads(t)["choices"][0]["text"] for t in texts}) == 1


def test_agents(fresh):
    """Two agents' histories that interleave and grow, on a model with states: only what is new is computed."""
    histories, before, same = {}, {}, 0
    for turn in range(5):
        for agent in "ab":
            history = histories.setdefault(agent, [{"role": "system", "content": f"Agent {agent}: {text(agent, 60)}"}])
            history.append(user(f"{turn}: {text((agent, turn), 25)}"))
            answer, usage, computed, wrote = chat(fresh, history, max_tokens=8, logprobs=True)
            if turn:
                # The answer's tokens are in the history now. The last of them is computed, since nothing asked what
                # follows it; and where the model wrote what the tokenizer would write otherwise, all of them are.
                as_written, known = before[agent]
                same += as_written
                assert computed <= usage["prompt_tokens"] - known, (agent, turn)
            as_written = pieces(fresh, answer) == wrote
            n = usage["completion_tokens"] - 1 if as_written else 0
            before[agent] = as_written, usage["prompt_tokens"] + n
            history.append({"role": "assistant", "content": answer})
    assert same >= 4


def test_edits_and_retries(polymath, bundled, fresh):
    """L3: what is cut off or changed is what a server says that never saw anything else."""
    long = text(1, 150)
    messages = [user(long), {"role": "assistant", "content": "Yes."}, user("And what is a cat?")]
    edited = [user(long + " indeed"), *messages[1:]]
    chat(fresh, messages)
    answers = [chat(fresh, m)[0] for m in (messages[:1], edited, messages, [*messages[:2], user("No, a dog?")])]
    for asked, answer in zip((messages[:1], edited, messages, [*messages[:2], user("No, a dog?")]), answers):
        with Daemon(polymath, bundled) as cold:
            assert chat(cold, asked)[0] == answer


def test_sixteen_at_once(polymath, bundled, fresh):
    """L5, K16: sixteen prompts that come and go, greedy and sampled, say what they say alone."""
    def ask(daemon, i):
        fields = {"max_tokens": 5 + i, "seed": i, "temperature": 0 if i % 2 else 2}
        return chat(daemon, [user(f"What is a {WORDS[i % 10]}? {text(i, i)}")], **fields)[0]

    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda i: ask(fresh, i), range(16)))
    with Daemon(polymath, bundled, "--parallel", "1") as daemon:
        assert [ask(daemon, i) for i in range(16)] == together
    assert fresh.metric("live") == 0


def test_memory_has_a_bound(polymath, bundled):
    """O1: whatever is asked; and what can never fit is refused before it is computed."""
    with Daemon(polymath, bundled, "--cache-mem", "40M", "--parallel", "4") as daemon:
        limit = daemon.metric("cache_limit_bytes")
        assert limit == 40 << 20
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(chat, daemon, [user(text(i, 60))], max_tokens=3) for i in range(50)]
            while not all(a.done() for a in asked):
                assert daemon.metric("cache_bytes") <= limit
                time.sleep(0.01)
            assert all(a.result()[0] for a in asked)
        assert daemon.metric("cache_bytes") <= limit and daemon.metric("evicted_total") > 0
        assert 0 < daemon.metric("kept") < 50
    with Daemon(polymath, bundled, "--cache-mem", "30M") as daemon:
        status, _, body = daemon.request("/v1/completions", {"prompt": [281] * 2040})
        assert (status, json.loads(body)["error"]["code"]) == (400, "prompt_too_large"), body
        assert daemon.metric("computed_tokens_total") == 0 and chat(daemon, [user("What is a dog?")])[0]


def test_rows_are_shared(polymath, bundled):
    """O2: a kept conversation that two go on with at once is not copied, and both are right."""
    kept, grown = [], []
    for n in 20, 1500:
        with Daemon(polymath, bundled) as daemon, ThreadPoolExecutor(2) as pool:
            start = text(1, n)
            chat(daemon, [user(start)])
            kept.append(daemon.metric("cache_bytes"))
            ends = [[user(start), {"role": "assistant", "content": "x"}, user(f"What is a {w}?")] for w in ("dog", "cat")]
            together = list(pool.map(lambda m: chat(daemon, m)[0], ends))
            grown.append(daemon.metric("cache_bytes") - kept[-1])
            assert together == [chat(daemon, m)[0] for m in ends]
    # States are of one size, and the long one may have a snapshot more. Copies of its rows would be twice what it has.
    assert kept[1] - kept[0] > 1 << 20 and grown[1] - grown[0] < (kept[1] - kept[0]) * 0.75, (kept, grown)


def test_bound_of_memory(build_dir):
    """O4: from what is free, not from what the machine has."""
    def budget(available, weights, timeline, parallel):
        words = [str(int(x)) for x in (available, weights, timeline, parallel)]
        return int(subprocess.run([build_dir / "tests" / "drive_memory", *words], check=True, stdout=subprocess.PIPE).stdout)

    G = 1 << 30
    assert budget(16 * G, 1 * G, 0.1 * G, 8) == int(0.1 * G) * 32  # a small model takes what is of use
    used = budget(68 * G, 40 * G, 10 * G, 8)
    assert 20 * G < used < 28 * G  # 68 of 128 are free
    assert budget(128 * G, 40 * G, 10 * G, 8) > used
    assert budget(16 * G, 40 * G, 10 * G, 8) == 4 * G  # weights that do not fit are paged; timelines are not
    assert budget(0, 40 * G, 10 * G, 8) == 0
    assert budget(2**64 - 1, 2**64 - 1, 2**63, 512) <= 2**64 - 1
