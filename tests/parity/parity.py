"""docs/parity.md is what the parity run measured, and the README's families say how near each is.

`python tests/parity/parity.py BUILD_DIR` takes the rows of the last run into the document; test_parity_doc.py fails while they
differ."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import sections  # noqa: E402

PART = "parity"  # of the document
ROW = re.compile(r"^\| (?!family|---).*\|$", re.MULTILINE)


def key(row):
    """What a row is about: family, checkpoint, oracle, cache."""
    return tuple(cell.strip() for cell in row.strip("|").split("|")[:4])


def rows(text):
    return {key(row): row for row in ROW.findall(text)}


def documented(document):
    return rows(sections.section(document, PART))


def update(document, measured):
    """The document with the measured rows in place of its own; rows that the run did not have stay."""
    merged = {**documented(document), **rows(measured)}
    return sections.replace(document, PART, [*sections.section(document, PART).splitlines()[:2], *merged.values()])


def nearest(document):
    """Per family the largest difference over its float checkpoints with an f32 cache."""
    worst = {}
    for (family, _, oracle, cache), row in documented(document).items():
        if oracle == "transformers" and cache == "f32":
            difference = row.strip("|").split("|")[5].strip()
            if float(difference) > float(worst.get(family, "0")):
                worst[family] = difference
    return worst


if __name__ == "__main__":
    top = Path(__file__).resolve().parents[2]
    path = top / "docs" / "parity.md"
    path.write_text(update(path.read_text(), (Path(sys.argv[1]) / "tests" / "parity.md").read_text()))
