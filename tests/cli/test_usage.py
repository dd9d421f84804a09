"""The command line itself: what is refused before a model is opened, and that --help, man page and README agree."""

import re
import subprocess

import pytest

from command import call, refused

COMMANDS = ["run", "chat", "serve", "inspect", "bench", "perplexity", "tokenize", "template"]


def options(text):
    """The options of a --help: {"--top-k K": "what it does"}."""
    return dict(re.findall(r"^  (--\S+(?: [^ ]+)?) +(.+)$", text, re.MULTILINE))


@pytest.fixture(scope="module")
def every_option(polymath):
    found = {}
    for command in COMMANDS:
        found |= options(call(polymath, command, "--help").stdout.decode())
    assert len(found) >= 19
    return found


@pytest.mark.parametrize(
    "args, words",
    [
        ([], ["run"]),
        (["walk"], ["walk", "run, chat, serve, inspect, bench, perplexity, tokenize and template"]),
        (["--json"], ["run, chat, serve, inspect, bench, perplexity, tokenize or template"]),
        (["run"], ["PROMPT is missing"]),
        (["run", "a", "b", "c"], ["'c'", "quotes"]),
        (["chat", "a", "b"], ["'b' is one word too many for 'polymath chat [MODEL]' (see"]),
        (["serve", "a", "b"], ["'b' is one word too many for 'polymath serve [MODEL]' (see"]),
        (["serve", "--seed", "1"], ["--seed", "polymath serve"]),
        (["run", "--port", "1", "x"], ["--port", "polymath run"]),
        (["inspect", "a", "b"], ["'b' is one word too many for 'polymath inspect [MODEL]' (see"]),
        (["help", "walk"], ["walk"]),
        (["help", "run", "chat"], ["help"]),
        (["run", "--bogus", "x"], ["'--bogus'"]),
        (["run", "-x", "x"], ["'-x'"]),
        (["run", "--max-token=3", "x"], ["'--max-token'; is --max-tokens meant? (see"]),
        (["run", "--temp", "1", "x"], ["'--temp'; is --temperature meant? (see"]),
        (["run", "--top", "1", "x"], ["'--top' (see"]),
        (["run", "--str", "1", "x"], ["'--str' (see"]),
        (["chat", "--raw"], ["--raw", "polymath chat"]),
        (["inspect", "--seed", "1", "m"], ["--seed", "polymath inspect"]),
        (["run", "x", "--seed"], ["--seed needs a value"]),
        (["run", "--raw=1", "x"], ["--raw takes no value"]),
        (["run", "--raw", "--system", "s", "x"], ["--raw and --system"]),
        (["run", "--ids", "1", "--no-think"], ["--ids and --no-think"]),
        (["run", "--ids", "1", "m", "prompt"], ["'prompt'"]),
        (["run", "--top-logprobs", "1", "x"], ["--top-logprobs needs --json"]),
        (["run", "--stop", "", "x"], ["--stop"]),
        (["run", "--xtc-threshold", "0.1", "x"], ["--xtc-threshold needs --xtc-probability"]),
        (["perplexity"], ["FILE is missing"]),
        (["perplexity", "a", "b", "c"], ["'c'"]),
        (["template"], ["FILE is missing"]),
        (["template", "a", "b", "c"], ["'c'"]),
        (["template", "--tools", "-", "-"], ["FILE and --tools", "stdin"]),
        (["run", "--tools", "-", "-"], ["PROMPT and --tools", "stdin"]),
        (["chat", "--tools", "-"], ["the conversation and --tools", "stdin"]),
        (["run", "--raw", "--tools", "f", "x"], ["--raw and --tools"]),
        (["run", "--ids", "1", "--tools", "f"], ["--ids and --tools"]),
        (["template", "--ctx", "5", "x"], ["--ctx", "polymath template"]),
        (["run", "--raw", "--set", "a:1", "x"], ["--raw and --set"]),
        (["perplexity", "--seed", "1", "x"], ["--seed", "polymath perplexity"]),
        (["tokenize", "a", "b", "c"], ["'c'", "quotes"]),
        (["tokenize", "--ctx", "5", "x"], ["--ctx", "polymath tokenize"]),
        (["run", "--kv-type", "f64", "x"], ["f16|f32|q8", "'f64'"]),
        (["run", "--kv-type", "f1", "x"], ["'f1'"]),
        (["run", "--kv-type", "q", "x"], ["'q'"]),
        (["run", "--precision", "f32", "x"], ["exact|fast", "'f32'"]),
        (["run", "--device", "tpu", "x"], ["auto|cpu|mlx|mlx:gpu", "'tpu'"]),
        (["inspect", "--precision", "fast"], ["--precision", "polymath inspect"]),
    ],
)
def test_usage_errors(polymath, args, words):
    refused(call(polymath, *args), 2, *words)


def test_usage_errors_name_the_help_that_helps(polymath):
    refused(call(polymath, "walk"), 2, "(see 'polymath --help')")
    for command in COMMANDS:
        refused(call(polymath, command, "--bogus", "x"), 2, f"(see 'polymath {command} --help')")


def test_ways_to_ask_for_help(polymath):
    for command in [], *([command] for command in COMMANDS):
        want = call(polymath, *command, "--help")
        assert want.returncode == 0 and want.stdout and not want.stderr
        for args in [*command, "-h"], ["help", *command]:
            done = call(polymath, *args)
            assert (done.returncode, done.stdout, done.stderr) == (0, want.stdout, b""), args
    want = call(polymath, "run", "--help").stdout
    assert call(polymath, "run", "--seed", "1", "model", "prompt", "-h").stdout == want


@pytest.mark.parametrize(
    "option, bad",
    [("--max-tokens", v) for v in ["0", "-1", "1.5", "5x", "", " 5", "0x10", "1e3", "99999999999999999999"]]
    + [("--top-k", v) for v in ["-1", "2147483648", "many"]]
    + [("--ctx", "0"), ("--threads", "0"), ("--threads", "1025"), ("--top-logprobs", "1001"), ("--top-logprobs", "-1")]
    + [("--seed", v) for v in ["-1", "9223372036854775808", "1.0"]]
    + [("--temperature", v) for v in ["-0.1", "nan", "inf", "0x1", "1e999", "", "1,5", " 1", "hot", "."]]
    + [("--logit-bias", v) for v in ["", "1", ":1", "1:", "1:101", "-1:1", "1:1:1", "a:1", "2147483648:1", "1:nan"]]
    + [("--set", v) for v in ["", "a", ":1"]]
    + [("--repetition-penalty", v) for v in ["0", "-1", "101"]]
    + [("--presence-penalty", "2.1"), ("--frequency-penalty", "-2.1"), ("--frequency-penalty", "x")]
    + [("--xtc-probability", "1.1"), ("--xtc-threshold", "-0.1")]
    + [("--top-p", "1.01"), ("--top-p", "-1"), ("--min-p", "2")]
    + [("--ids", v) for v in ["", ",", "1,", "1,,2", "a", "-1", "1 2", "2147483648", "1;2"]],
)
def test_values_out_of_range(polymath, option, bad):
    prompt = [] if option == "--ids" else ["x"]
    refused(call(polymath, "run", "--json", f"{option}={bad}", *prompt), 2, option, f"'{bad}'")


@pytest.mark.parametrize(
    "option, bad",
    [("--cache-mem", v) for v in ["", "0", "-1", "G", "1.5G", "1X", "8GB", "99999999999999999999", "9999999999G"]]
    + [("--cache-disk", v) for v in ["", "0", "10GB"]]
    + [("--max-body", v) for v in ["0", "2G", "k"]]
    + [("--port", v) for v in ["-1", "65536", "http"]]
    + [("--parallel", "0"), ("--parallel", "513"), ("--queue", "0"), ("--timeout", "0"), ("--log-format", "xml")],
)
def test_values_of_serve_out_of_range(polymath, option, bad):
    refused(call(polymath, "serve", f"{option}={bad}"), 2, option, f"'{bad}'")


def test_a_lone_directory_is_the_model(polymath, bundled):
    refused(call(polymath, "run", bundled), 2, bundled, "PROMPT is missing")


def test_version(polymath, source):
    version = re.search(r'PM_VERSION "(.*)"', (source / "include/polymath.h").read_text()).group(1)
    for args in (["--version"], ["run", "--version"]):
        done = call(polymath, *args)
        assert (done.returncode, done.stdout.decode()) == (0, f"polymath {version}\n")


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["run", "--help"]])
def test_full_disk(polymath, args):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([polymath, *args], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert b"cannot write to stdout: No space left on device" in done.stderr


def test_help_of_the_whole(polymath):
    text = call(polymath, "--help").stdout.decode()
    for command in COMMANDS:
        assert f"polymath {command}" in text


def test_options_fit_their_command(polymath):
    inspect = options(call(polymath, "inspect", "--help").stdout.decode())
    assert list(inspect) == [
        "--json",
        "--ctx N",
        "--kv-type f16|f32|q8",
        "--device auto|cpu|mlx|mlx:gpu",
        "--version",
        "--help",
    ]
    chat = options(call(polymath, "chat", "--help").stdout.decode())
    assert "--json" not in chat and "--system TEXT" in chat


def test_man_page_has_every_option(source, every_option):
    text = (source / "docs/polymath.1").read_text().replace("\\-", "-")
    text = re.sub(r"\\f.", "", text).replace("\\(aq", "'")
    entries = dict(re.findall(r"^\.TP\n(--.+)\n(.+)$", text, re.MULTILINE))
    assert entries == every_option


def test_man_page_is_of_this_version(source, polymath):
    version = call(polymath, "--version").stdout.decode().split()[1]
    assert f'"polymath {version}"' in (source / "docs/polymath.1").read_text().splitlines()[1]
