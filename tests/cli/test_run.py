"""polymath run, with the bundled model."""

import shutil
import subprocess

import pytest

from command import DOG, answer, as_json, call, copy_model, endless, refused

HOT = ["--temperature", "3", "--max-tokens", "40", "Tell me."]


def test_answer(polymath):
    assert answer(polymath, "What is a dog?") == DOG


def test_model_and_prompt(polymath, bundled):
    assert answer(polymath, bundled, "What is a dog?") == DOG


def test_words_and_options_in_any_order(polymath, bundled):
    assert answer(polymath, "--top-k", "3", bundled, "--temperature=0", "--", "What is a dog?") == DOG


def test_prompt_that_looks_like_an_option(polymath):
    assert answer(polymath, "--max-tokens", "3", "--", "--help")


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_prompt_from_stdin(polymath, end):
    assert answer(polymath, "-", input=b"What is a dog?" + end) == DOG


def test_a_dash_can_come_after_the_model(polymath, bundled):
    assert answer(polymath, bundled, "-", input=b"What is a dog?") == DOG


def test_threads_and_simd_do_not_change_the_answer(polymath):
    for threads in "1", "2", "5":
        assert answer(polymath, "--threads", threads, "What is a dog?") == DOG


def test_kv_type(polymath):
    for kind in "f32", "q8":
        assert answer(polymath, "--kv-type", kind, "What is a dog?") == DOG


def test_precision(polymath):
    """Eight bits change the logits, and not what a trained model says."""
    assert answer(polymath, "--precision", "fast", "What is a dog?") == DOG
    logprobs = {}
    for precision in "exact", "fast":
        told = as_json(polymath, "--precision", precision, "--top-logprobs", 0, "What is a dog?")
        logprobs[precision] = [token["logprob"] for token in told["logprobs"]]
    assert logprobs["exact"] == [t["logprob"] for t in as_json(polymath, "--top-logprobs", 0, "What is a dog?")["logprobs"]]
    assert logprobs["exact"] != logprobs["fast"] == pytest.approx(logprobs["exact"], abs=0.05)


def test_same_text_with_and_without_json(polymath):
    result = as_json(polymath, "What is a dog?")
    assert result["text"] == DOG
    assert result["finish_reason"] == "stop"
    assert result["output_ids"][-1] == 2


def test_json_schema(polymath):
    result = as_json(polymath, "--top-logprobs", "3", "--max-tokens", "5", "What is a dog?")
    assert list(result) == ["text", "prompt_ids", "output_ids", "finish_reason", "timings", "logprobs"]
    assert result["finish_reason"] == "length"
    assert len(result["output_ids"]) == len(result["logprobs"]) == 5
    assert "".join(entry["token"] for entry in result["logprobs"]) == result["text"]
    for id, entry in zip(result["output_ids"], result["logprobs"]):
        assert list(entry) == ["id", "token", "logprob", "top"]
        assert entry["id"] == id
        assert len(entry["top"]) == 3
        assert entry["top"][0] == {key: entry[key] for key in ("id", "token", "logprob")}  # greedy: the likeliest
        likely = [top["logprob"] for top in entry["top"]]
        assert likely == sorted(likely, reverse=True) and likely[0] <= 0
    timings = result["timings"]
    assert list(timings) == ["load_s", "prompt_s", "first_token_s", "decode_s", "tokens_per_s", "prompt_tokens",
                             "output_tokens", "reused"]  # fmt: skip
    assert timings["prompt_tokens"] == len(result["prompt_ids"])
    assert timings["output_tokens"] == 5 and timings["reused"] == 0
    assert all(timings[key] > 0 for key in ("load_s", "prompt_s", "first_token_s", "decode_s", "tokens_per_s"))


def test_logprobs_are_absent_unless_asked_for(polymath):
    assert "logprobs" not in as_json(polymath, "--max-tokens", "1", "x")


def test_logprobs_at_the_edges(polymath):
    assert as_json(polymath, "--top-logprobs", "0", "--max-tokens", "1", "x")["logprobs"][0]["top"] == []
    top = as_json(polymath, "--top-logprobs", "1000", "--max-tokens", "2", "x")["logprobs"][1]["top"]
    assert len({entry["id"] for entry in top}) == 1000


def test_ids_give_the_same_as_their_text(polymath):
    first = as_json(polymath, "What is a dog?")
    again = as_json(polymath, "--ids", ", ".join(map(str, first["prompt_ids"])))
    assert again["prompt_ids"] == first["prompt_ids"]
    assert (again["text"], again["output_ids"]) == (first["text"], first["output_ids"])


def test_raw_keeps_the_prompt_as_it_is(polymath):
    raw = as_json(polymath, "--raw", "<|im_start|>user\nWhat is a dog?<|im_end|>\n<|im_start|>assistant\n")
    assert raw["text"] == DOG
    assert raw["prompt_ids"] == as_json(polymath, "What is a dog?")["prompt_ids"]


def test_control_strings_in_a_message_stay_text(polymath):
    plain = as_json(polymath, "--max-tokens", "1", "hi")["prompt_ids"]
    typed = as_json(polymath, "--max-tokens", "1", "hi<|im_end|>")["prompt_ids"]
    assert typed.count(2) == plain.count(2)


def test_system_message(polymath):
    plain = as_json(polymath, "--max-tokens", "1", "hi")["prompt_ids"]
    told = as_json(polymath, "--max-tokens", "1", "--system", "Be kind.", "hi")["prompt_ids"]
    assert len(told) > len(plain) and told[-3:] == plain[-3:]


def test_no_think_reaches_the_template(polymath, bundled, tmp_path):
    model = copy_model(bundled, tmp_path / "model")
    (model / "chat_template.jinja").write_text("{{ 'no' if enable_thinking is false else 'yes' }}")
    think, quiet = (as_json(polymath, *flags, "--max-tokens", "1", model, "x") for flags in ([], ["--no-think"]))
    no, yes = (as_json(polymath, "--raw", "--max-tokens", "1", model, word)["prompt_ids"] for word in ("no", "yes"))
    assert (think["prompt_ids"], quiet["prompt_ids"]) == (yes, no)


def test_max_tokens(polymath):
    for n in 1, 4:
        result = as_json(polymath, "--max-tokens", n, "What is a dog?")
        assert len(result["output_ids"]) == n and result["finish_reason"] == "length"
    assert as_json(polymath, "--max-tokens", "1000000", "What is a dog?")["finish_reason"] == "stop"


def test_stop_strings(polymath):
    assert answer(polymath, "--stop", " genus", "What is a dog?") == "A dog is a member of the"
    assert answer(polymath, "--stop", "nowhere", "--stop", "mber of the ge", "What is a dog?") == "A dog is a me"
    result = as_json(polymath, "--stop", "dog", "What is a dog?")
    assert (result["text"], result["finish_reason"]) == ("A ", "stop")


def test_context_ends_an_answer(polymath):
    result = as_json(polymath, "--ctx", "20", "What is a dog?")
    assert result["finish_reason"] == "length"
    assert DOG.startswith(result["text"])
    assert 19 <= len(result["prompt_ids"]) + len(result["output_ids"]) <= 21


def test_seed(polymath):
    one, again, other = (as_json(polymath, "--seed", seed, *HOT) for seed in (1, 1, 2))
    assert one["seed"] == 1
    assert one["output_ids"] == again["output_ids"] != other["output_ids"]


def test_a_random_seed_differs_and_can_be_repeated(polymath):
    one, other = (as_json(polymath, *HOT) for _ in range(2))
    assert one["seed"] != other["seed"] and one["output_ids"] != other["output_ids"]
    assert as_json(polymath, "--seed", one["seed"], *HOT)["output_ids"] == one["output_ids"]


def test_greedy_has_no_seed(polymath):
    assert "seed" not in as_json(polymath, "--max-tokens", "1", "x")


def test_top_k_of_one_is_greedy(polymath):
    assert answer(polymath, "--temperature", "5", "--top-k", "1", "What is a dog?") == DOG
    assert answer(polymath, "--temperature", "5", "--top-p", "0.0001", "What is a dog?") == DOG
    assert answer(polymath, "--temperature", "5", "--min-p", "1", "What is a dog?") == DOG


def test_logit_bias(polymath):
    """Bans, forces, adds up; log-probabilities stay those of the raw logits."""
    plain = as_json(polymath, "--max-tokens", "3", "--top-logprobs", "2", "What is a dog?")
    first = plain["output_ids"][0]
    second = plain["logprobs"][0]["top"][1]["id"]
    banned = as_json(polymath, "--max-tokens", "1", "--top-logprobs", "2", "--logit-bias", f"{first}:-100",
                     "What is a dog?")  # fmt: skip
    assert banned["output_ids"] == [second]
    assert banned["logprobs"][0]["top"] == plain["logprobs"][0]["top"]
    forced = as_json(polymath, "--max-tokens", "1", "--logit-bias", "77:60", "--logit-bias=77:40", "What is a dog?")
    assert forced["output_ids"] == [77]
    refused(call(polymath, "run", "--logit-bias", "4096:1", "x"), 1, "token 4096", "4096")


def test_penalties(polymath):
    """Each changes what is said; without effect they do not."""
    args = ["--ids", "1,5,9", "--max-tokens", "60", "--logit-bias", "2:-100"]  # no end
    want = as_json(polymath, *args)["output_ids"]
    for flag, off, on in [
        ("--repetition-penalty", "1", "1.5"),
        ("--presence-penalty", "0", "2"),
        ("--frequency-penalty", "0", "2"),
    ]:
        got = [as_json(polymath, *args, flag, x)["output_ids"] for x in (off, on)]
        assert got[0] == want and got[1] != want, flag


def test_repetition_penalty_of_the_model(polymath, bundled, tmp_path):
    def edit(config):
        config["repetition_penalty"] = 1.5

    model = copy_model(bundled, tmp_path / "model", generation_config=edit)
    args = ["--ids", "1,5,9", "--max-tokens", "60", "--logit-bias", "2:-100"]  # no end
    off = as_json(polymath, *args)["output_ids"]
    flag = as_json(polymath, *args, "--repetition-penalty", "1.5")["output_ids"]
    assert off != flag
    assert as_json(polymath, *args, model)["output_ids"] == flag
    assert as_json(polymath, *args, "--repetition-penalty", "1", model)["output_ids"] == off


def test_xtc(polymath):
    hot = ["--temperature", "1", "--seed", "1", "--max-tokens", "30", "--raw"]
    plain = as_json(polymath, *hot, "The")["output_ids"]
    never = as_json(polymath, *hot, "--xtc-probability", "0", "--xtc-threshold", "0.01", "The")["output_ids"]
    always = as_json(polymath, *hot, "--xtc-probability", "1", "--xtc-threshold", "0.01", "The")["output_ids"]
    assert never == plain and always != plain
    greedy = as_json(polymath, "--max-tokens", "5", "--xtc-probability", "1", "x")["output_ids"]
    assert greedy == as_json(polymath, "--max-tokens", "5", "x")["output_ids"]


def test_defaults_come_from_generation_config(polymath, bundled, tmp_path):
    hot = copy_model(
        bundled, tmp_path / "hot", generation_config=lambda c: c.update(do_sample=True, temperature=3.0, top_k=5)
    )
    assert "seed" in as_json(polymath, "--max-tokens", "1", hot, "x")
    assert answer(polymath, "--temperature", "0", hot, "What is a dog?") == DOG  # flags win


def test_max_new_tokens_of_the_model(polymath, bundled, tmp_path):
    model = copy_model(bundled, tmp_path / "model", generation_config=lambda c: c.update(max_new_tokens=3))
    result = as_json(polymath, model, "What is a dog?")
    assert len(result["output_ids"]) == 3 and result["finish_reason"] == "length"
    assert len(as_json(polymath, "--max-tokens", "5", model, "What is a dog?")["output_ids"]) == 5  # flags win


def test_settings_that_are_not_applied_are_told(polymath, bundled, tmp_path):
    settings = {"num_beams": 4, "typical_p": 1.0, "penalty_alpha": None, "no_repeat_ngram_size": 3}
    model = copy_model(bundled, tmp_path / "model", generation_config=lambda c: c.update(settings))
    told = "generation_config.json asks for what is not applied: num_beams = 4, no_repeat_ngram_size = 3"
    assert told in call(polymath, "run", "--verbose", model, "x").stderr.decode()
    assert told in call(polymath, "inspect", model).stdout.decode()
    assert call(polymath, "run", model, "x").stderr == b""


def test_json_survives_ill_formed_output(polymath):
    result = as_json(polymath, "--seed", "3", "--temperature", "100", "--max-tokens", "400", "--top-logprobs", "0", "x")
    assert len(result["output_ids"]) >= 1
    assert len(result["logprobs"]) == len(result["output_ids"])


def test_verbose(polymath):
    done = call(polymath, "run", "--verbose", "--temperature", "1", "--seed", "7", "--top-k", "1", "What is a dog?")
    assert done.stdout.decode() == DOG + "\n"
    text = done.stderr.decode()
    assert "qwen3_5_moe" in text and "seed 7" in text and "tokens/s" in text and "cpu" in text


def test_reader_that_leaves(polymath, bundled, tmp_path):
    """A reader that goes away ends the command without a word, even when its parent ignores SIGPIPE."""
    flags = ["--temperature", "100", "--top-k", "0", "--seed", "1"]
    command = [polymath, "run", *flags, endless(bundled, tmp_path), "x"]
    for restore in True, False:
        process = subprocess.Popen(
            command, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE, restore_signals=restore
        )
        process.stdout.read(1)
        process.stdout.close()
        stderr = process.stderr.read()
        assert process.wait(timeout=60) == -13
        assert stderr == b""


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_full_disk(polymath, flags):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([polymath, "run", *flags, "What is a dog?"], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr == b"polymath: cannot write to stdout: No space left on device\n"


def test_closed_stdout(polymath):
    done = subprocess.run(["sh", "-c", '"$0" run "What is a dog?" >&-', polymath], stderr=subprocess.PIPE)
    assert done.returncode == 1 and done.stderr.startswith(b"polymath: cannot write to stdout")


@pytest.mark.parametrize("layout", ["bin/models/default", "share/polymath/models/default"])
def test_bundled_model_is_found_beside_the_program_and_in_the_prefix(polymath, bundled, tmp_path, layout):
    program = tmp_path / "bin/polymath"
    program.parent.mkdir()
    shutil.copy(polymath, program)
    done = call(program, "run", "x")
    refused(done, 1, "bundled model was not found; looked for models/default,", "share/polymath", program.parent)
    shutil.copytree(bundled, tmp_path / layout)
    assert answer(program, "What is a dog?", cwd="/") == DOG
