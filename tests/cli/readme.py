"""What the README shows of the program: its console transcripts and its table of families. What it shows of the real model
is compared where `make real-model` has made that.

`python tests/cli/readme.py BUILD_DIR` writes them anew; test_readme.py fails while they differ."""

import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "parity"))
import parity  # noqa: E402

TRANSCRIPT = re.compile(r"(?<=```console\n).*?(?=```)", re.DOTALL)
REAL_MODEL = "build/real-model/SmolLM2-135M-Instruct"
EXTRA = {"family": "largest difference", "---": "---"}  # the last column's head
FAMILIES = re.compile(r"^\| family \|.*?(?=^$)", re.MULTILINE | re.DOTALL)


def replay(transcript, source, build_dir):
    """The transcript's commands (its lines with "$ ") with what they print now."""
    if REAL_MODEL in transcript and not (source / REAL_MODEL / "chat_template.jinja").is_file():
        return transcript
    env = {**os.environ, "PATH": f"{build_dir}:{os.environ['PATH']}"}
    lines = []
    for command in re.findall(r"^\$ (.*)$", transcript, re.MULTILINE):
        done = subprocess.run(
            command, shell=True, cwd=source, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=120
        )  # fmt: skip
        lines.append(f"$ {command}\n{done.stdout}")
    return "\n".join(lines)


def refresh(text, source, build_dir):
    """The README's text as it should be."""
    driver = build_dir / "tests" / "drive_families"
    families = subprocess.run([driver], stdout=subprocess.PIPE, text=True, check=True).stdout
    differences = parity.nearest((source / "docs" / "parity.md").read_text())
    families = "".join(
        f"{line} {differences.get(line.split()[1], EXTRA.get(line.split()[1], 'none'))} |\n" for line in families.splitlines()
    )
    text = FAMILIES.sub(lambda _: families, text)
    return TRANSCRIPT.sub(lambda match: replay(match.group(), source, build_dir), text)


if __name__ == "__main__":
    top = Path(__file__).resolve().parents[2]
    readme = top / "README.md"
    readme.write_text(refresh(readme.read_text(), top, Path(sys.argv[1]).resolve()))
