"""serve --cache-dir: a server that is started again reads what it has computed before, whoever ended it how."""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from command import call, refused
from daemon import Daemon

HISTORY = [{"role": "user", "content": "Tell me what a dog is, and a cat, and what they have in common. " * 20}]


def ask(daemon, messages, max_tokens=40):
    """The answer, tokens of its prompt, and those of them that were not computed."""
    body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0}
    status, _, text = daemon.request("/v1/chat/completions", body)
    assert status == 200, text
    answer = json.loads(text)
    usage = answer["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["message"]["content"], usage["prompt_tokens"], cached


def test_restart(polymath, bundled, tmp_path):
    folder = tmp_path / "cache"
    with Daemon(polymath, bundled, "--cache-dir", folder) as daemon:
        first, n, cached = ask(daemon, HISTORY)
        assert n > 200 and cached == 0
        assert daemon.metric("stored") in (0, 1) and daemon.metric("disk_limit_bytes") == 10 * 2**30
    grown = HISTORY + [{"role": "assistant", "content": first}, {"role": "user", "content": "And a horse?"}]
    with Daemon(polymath, bundled, "--cache-dir", folder) as daemon:
        assert daemon.metric("stored") == 1
        assert ask(daemon, HISTORY) == (first, n, n)
        assert daemon.metric("computed_tokens_total") == 0 and daemon.metric("fetched_total") == 1
        second, more, cached = ask(daemon, grown)
        assert cached >= n and more > n
    log = daemon.lines()
    assert any(f"{folder}: 1 timelines of this model, 0 other files" in line for line in log), log
    with Daemon(polymath, bundled) as daemon:
        assert ask(daemon, grown) == (second, more, 0)


def test_killed(polymath, bundled, tmp_path):
    """What was answered a moment ago is there already; what was being written is not in the way."""
    with Daemon(polymath, bundled, "--cache-dir", tmp_path, "--cache-disk", "20M") as daemon:
        first, n, _ = ask(daemon, HISTORY)
        for _ in range(500):
            if daemon.metric("stored") == 1:
                break
            ask(daemon, [{"role": "user", "content": "Hi"}])
        daemon.process.kill()
        daemon.process.wait()
        daemon.stop = lambda: None
    (written,) = tmp_path.glob("*.timeline")
    (tmp_path / (written.name + ".abcdef")).write_bytes(written.read_bytes()[:1000])
    cut = tmp_path / ("0" * 16 + "-" + "0" * 16 + ".timeline")
    cut.write_bytes(written.read_bytes()[:1000])
    with Daemon(polymath, bundled, "--cache-dir", tmp_path, "--cache-disk", "20M") as daemon:
        assert daemon.metric("disk_limit_bytes") == 20 * 2**20
        assert daemon.metric("disk_ignored_total") == 1
        assert ask(daemon, HISTORY) == (first, n, n)
    assert not list(tmp_path.glob("*.abcdef")) and cut.exists()


@pytest.mark.parametrize("kind", ["file", "nothing to make it in"])
def test_folders_that_are_none(polymath, bundled, tmp_path, kind):
    (tmp_path / "file").write_text("x")
    folder = tmp_path / "file" if kind == "file" else tmp_path / "absent" / "cache"
    done = call(polymath, "serve", bundled, "--port", "0", "--cache-dir", folder)
    assert done.returncode == 1 and str(folder) in done.stderr.decode(), done


def test_size_without_folder(polymath, bundled):
    refused(call(polymath, "serve", bundled, "--cache-disk", "1G"), 2, "--cache-disk", "--cache-dir")


def question(i):
    return [{"role": "user", "content": f"{i}. " + "A dog and a cat. " * 15}]


def test_damage(polymath, bundled, tmp_path):
    """Whatever lies in the folder or becomes of it: answers are those without one."""
    with Daemon(polymath, bundled) as daemon:
        answers = [ask(daemon, question(i), 8)[0] for i in range(6)]
    folder = tmp_path / "cache"
    with Daemon(polymath, bundled, "--cache-dir", folder) as daemon:
        assert [ask(daemon, question(i), 8)[0] for i in range(6)] == answers
    files = sorted(folder.glob("*.timeline"))
    assert len(files) == 6
    whole = [file.read_bytes() for file in files]
    n = len(whole[0])
    cuts, flips = (0, 131, n - 1), (90, 116, n // 2)  # in the header, the tokens, the rows
    for cut, flip in zip(cuts, flips):
        damaged = bytearray(whole[1])
        damaged[flip] ^= 1 << flip % 8
        for file, data in zip(files, (whole[0][:cut], damaged, whole[2] + b"x" * (cut + 1))):
            file.write_bytes(data)
        files[3].write_bytes(whole[4])  # another's content
        owner = files[0].name[:17]
        for i, make in enumerate((os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path))):
            path = folder / f"{owner}{i:016x}.timeline"
            if not os.path.lexists(path):
                make(path)
        (folder / os.fsdecode(b"\xff\n%s")).touch()
        with Daemon(polymath, bundled, "--cache-dir", folder) as daemon:
            assert [ask(daemon, question(i), 8)[0] for i in range(6)] == answers, (cut, flip)
            assert daemon.metric("fetched_total") >= 2
            # while it runs: cut, removed, and all of the folder
            os.truncate(files[4], 100)
            files[5].unlink()
            assert [ask(daemon, question(i), 8)[0] for i in range(6)] == answers, (cut, flip)
        for file, data in zip(files, whole):
            file.write_bytes(data)
    with Daemon(polymath, bundled, "--cache-dir", folder) as daemon:
        shutil.rmtree(folder)
        assert [ask(daemon, question(i), 8)[0] for i in range(6)] == answers


def test_two_servers(polymath, bundled, tmp_path):
    """On one folder, with bounds of their own: answers are right, and the lower bound holds in the end."""
    with Daemon(polymath, bundled) as daemon:
        answers = [ask(daemon, question(i), 8)[0] for i in range(4)]
    small = Daemon(polymath, bundled, "--cache-dir", tmp_path, "--cache-disk", "4M")
    large = Daemon(polymath, bundled, "--cache-dir", tmp_path, "--cache-disk", "9M")
    with small, large, ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, (small, large)[i % 2], question(i % 4), 8) for i in range(24)]
        assert [one.result()[0] for one in asked] == answers * 6
        large.stop()
    assert 0 < sum(file.stat().st_size for file in tmp_path.iterdir()) <= 4 << 20
