"""What bad input gets: exit 1, nothing on stdout, one sentence that names the file, field or tensor."""

import json
import os
import re
import struct

import pytest

from command import DOG, call, copy_model, refused


def test_missing_directory(polymath, tmp_path):
    for command in (["run", tmp_path / "none", "x"], ["chat", tmp_path / "none"], ["inspect", tmp_path / "none"]):
        refused(call(polymath, *command), 1, tmp_path / "none")


def test_a_file_is_no_model(polymath, tmp_path):
    (tmp_path / "file").write_text("x")
    refused(call(polymath, "run", tmp_path / "file", "x"), 1, tmp_path / "file")


@pytest.mark.parametrize("args", [["chat"], ["run", "--ids", "1,2"], ["inspect"], ["bench"]])
def test_a_text_is_no_model(polymath, args):
    refused(call(polymath, *args, "hello"), 1, "'hello' is not a directory, so it cannot be the MODEL")


def test_the_model_is_looked_for_before_stdin_is_read(polymath):
    refused(call(polymath, "run", "hello", "-", input=b""), 1, "'hello' is not a directory")


def test_no_config(polymath, tmp_path):
    refused(call(polymath, "run", tmp_path, "x"), 1, "config.json")
    refused(call(polymath, "inspect", tmp_path), 1, "config.json")


def test_broken_config(polymath, bundled, tmp_path):
    model = copy_model(bundled, tmp_path / "model")
    (model / "config.json").write_text("{")
    refused(call(polymath, "run", model, "x"), 1, "config.json")


def unknown_type(config):
    config["model_type"] = config["text_config"]["model_type"] = "gpt_oss"


def outside_gate(config):
    config["text_config"]["hidden_act"] = "gelu"


def test_unknown_model_type(polymath, bundled, tmp_path):
    model = copy_model(bundled, tmp_path / "model", config=unknown_type)
    refused(call(polymath, "run", model, "x"), 1, "family 'gpt_oss' is not supported; supported: ", "qwen3_5_moe")


def test_value_outside_the_gate(polymath, bundled, tmp_path):
    model = copy_model(bundled, tmp_path / "model", config=outside_gate)
    refused(call(polymath, "run", model, "x"), 1, "qwen3_5_moe", "hidden_act", "gelu")


@pytest.mark.parametrize("edit, word", [(unknown_type, "gpt_oss"), (outside_gate, "hidden_act")])
def test_inspect_gives_the_verdict(polymath, bundled, tmp_path, edit, word):
    done = call(polymath, "inspect", copy_model(bundled, tmp_path / "model", config=edit))
    verdict = next(line for line in done.stdout.decode().splitlines() if line.startswith("verdict"))
    assert (done.returncode, done.stderr) == (1, b"")
    assert word in verdict


def test_inspect_without_a_model(polymath, bundled):
    for flags in [], ["--json"]:
        done = call(polymath, "inspect", *flags)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout == call(polymath, "inspect", *flags, bundled).stdout


def test_a_long_list_of_formats_is_cut_at_an_entry(polymath, source):
    done = call(polymath, "inspect", "--json", source / "tests/oracles/llama-2_5_8bit")
    *formats, last = json.loads(done.stdout)["formats"].split(", ")
    assert last == "..." and len(formats) >= 5
    assert all(re.fullmatch(r"affine \d-bit group \d+ \((1 matrix|\d+ matrices)\)", entry) for entry in formats)


def test_inspect_as_json(polymath, bundled, tmp_path):
    done = call(polymath, "inspect", "--json", "--ctx", "100", bundled)
    assert (done.returncode, done.stderr, done.stdout.count(b"\n")) == (0, b"", 1)
    info = json.loads(done.stdout)
    text = call(polymath, "inspect", "--ctx", "100", bundled).stdout.decode()
    assert info["supported"] is True and info["verdict"] == "supported"
    assert f"family        {info['family']}\n" in text and f"formats       {info['formats']}\n" in text
    assert f"layers        {info['layers']}\n" in text and f"vocabulary    {info['vocab']}\n" in text
    assert info["ctx"] == 100 and info["model_type"] == "qwen3_5_moe" and "cpu" in info["device"]
    assert info["cache_bytes"] - info["state_bytes"] >= 100 * info["row_bytes"] > 0
    assert info["parameters"] > info["active"] > info["weight_bytes"] / 2 > 0
    assert set(info) >= {"notes", "device"} and len(info) == 16

    refused_model = copy_model(bundled, tmp_path / "model", config=unknown_type)
    done = call(polymath, "inspect", "--json", refused_model)
    info = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (1, b"")
    assert info["supported"] is False and "gpt_oss" in info["verdict"] and info["layers"] == 0


def test_shard_that_is_not_there(polymath, bundled, tmp_path):
    def edit(index):
        name = sorted(index["weight_map"])[0]
        index["weight_map"][name] = "model-00002-of-00002.safetensors"

    model = copy_model(bundled, tmp_path / "model", **{"model.safetensors.index": edit})
    refused(call(polymath, "run", model, "x"), 1, "model-00002-of-00002.safetensors")


def test_index_that_names_a_tensor_too_many(polymath, bundled, tmp_path):
    def edit(index):
        index["weight_map"]["ghost.weight"] = "model.safetensors"

    model = copy_model(bundled, tmp_path / "model", **{"model.safetensors.index": edit})
    refused(call(polymath, "run", model, "x"), 1, "ghost.weight")


def test_truncated_weights(polymath, bundled, tmp_path):
    model = copy_model(bundled, tmp_path / "model")
    os.truncate(model / "model.safetensors", 1_000_000)
    refused(call(polymath, "run", model, "x"), 1, "model.safetensors")


def test_header_longer_than_the_file(polymath, bundled, tmp_path):
    model = copy_model(bundled, tmp_path / "model")
    with open(model / "model.safetensors", "r+b") as file:
        file.write(struct.pack("<Q", 1 << 62))
    refused(call(polymath, "run", model, "x"), 1, "model.safetensors")


def test_unknown_tokenizer_component(polymath, bundled, tmp_path):
    def edit(tokenizer):
        tokenizer["pre_tokenizer"] = {"type": "Telepathy"}

    model = copy_model(bundled, tmp_path / "model", tokenizer=edit)
    refused(call(polymath, "run", model, "x"), 1, "tokenizer.json", "Telepathy")


def test_broken_template(polymath, bundled, tmp_path):
    model = copy_model(bundled, tmp_path / "model")
    (model / "chat_template.jinja").write_text("{% if %}")
    refused(call(polymath, "run", model, "x"), 1, "chat_template")


def test_template_that_complains(polymath, bundled, tmp_path):
    model = copy_model(bundled, tmp_path / "model")
    (model / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    refused(call(polymath, "run", model, "x"), 1, "roles must alternate")


def test_prompt_longer_than_ctx(polymath):
    done = call(polymath, "run", "--ctx", "8", "What is a dog?")
    prompt = json.loads(call(polymath, "run", "--json", "--max-tokens", "1", "What is a dog?").stdout)["prompt_ids"]
    refused(done, 1, len(prompt), 8)


def test_prompt_longer_than_the_model_allows(polymath):
    refused(call(polymath, "run", "--ids", ",".join(["5"] * 3000)), 1, 3000, 2048)


def test_ctx_longer_than_the_model_allows(polymath):
    refused(call(polymath, "run", "--ctx", "4096", "x"), 1, 4096, 2048)


def test_id_outside_the_vocabulary(polymath):
    refused(call(polymath, "run", "--ids", "1,4096"), 1, 4096)


@pytest.mark.parametrize(
    "text, offset",
    [(b"abc\xffdef", 3), (b"\xc3", 0), (b"ok \xed\xa0\x80", 3), (b"\xc0\xaf", 0), ("é".encode() + b"\xf5", 2)],
)
def test_stdin_that_is_not_utf8(polymath, text, offset):
    for flags in [], ["--raw"]:
        refused(call(polymath, "run", *flags, "-", input=text), 1, "stdin", f"offset {offset}")
    if offset == 3:
        done = call(polymath, "chat", input=text + b"\n")
        refused(done, 1, f"offset {offset}")


def test_line_that_is_not_utf8(polymath):
    done = call(polymath, "chat", input=b"What is a dog?\n\nWhat\xff\n")
    assert (done.returncode, done.stdout.decode()) == (1, DOG + "\n")
    assert done.stderr == b"polymath: line 3: not UTF-8 at byte offset 4\n"


def test_prompt_with_a_nul_byte(polymath):
    refused(call(polymath, "run", "-", input=b"ab\0c"), 1, "the prompt on stdin: has a NUL byte at offset 2")
    refused(call(polymath, "chat", input=b"\nabc\0\n"), 1, "line 2: has a NUL byte at offset 3")
    assert call(polymath, "run", "--raw", "-", input=b"ab\0c").returncode == 0


def test_words_that_are_not_utf8(polymath):
    refused(call(polymath, "run", b"a\xff".decode(errors="surrogateescape")), 1, "PROMPT", "offset 1")
    refused(call(polymath, "run", "--system", b"\xff".decode(errors="surrogateescape"), "x"), 1, "--system", "offset 0")


def test_empty_prompt(polymath):
    refused(call(polymath, "run", ""), 1, "PROMPT is empty")
    refused(call(polymath, "run", "-", input=b""), 1, "stdin is empty")
    refused(call(polymath, "run", "-", input=b"\n"), 1, "stdin is empty")


def test_stdin_that_is_a_directory(polymath):
    fd = os.open("/", os.O_RDONLY)
    try:
        refused(call(polymath, "run", "-", stdin=fd), 1, "stdin", "directory")
    finally:
        os.close(fd)


def test_out_of_memory(polymath, build_dir):
    """Whatever the address space allowed, there is the whole answer or one sentence."""
    if "-fsanitize" in (build_dir / "CMakeCache.txt").read_text():
        pytest.skip("sanitizers reserve address space that the limit would take away")
    codes = []
    for megabytes in [*range(6, 40, 2), 512]:
        script = f'ulimit -v {megabytes << 10}; exec "$0" run --threads 1 "What is a dog?"'
        done = call("sh", "-c", script, polymath)
        if done.returncode == 127:
            continue  # not even the shared libraries fit
        codes.append(done.returncode)
        if done.returncode == 0:
            assert (done.stdout.decode(), done.stderr) == (DOG + "\n", b"")
        else:
            refused(done, 1)
    assert codes[0] == 1 and codes[-1] == 0
