"""docs/precision.md says what this build measures, and what it measures is why the default is what it is."""

import math

import precision
import pytest

AGAIN = ["deepseek_v3-4bit (trained)", "lfm2-4bit (trained)"]  # the others take longer


def numbers(row):
    return [float(cell.rstrip("%")) for cell in precision.cells(row)[3:]]


@pytest.fixture(scope="module")
def documented(source):
    return precision.rows((source / "docs/precision.md").read_text())


def test_document_is_up_to_date(build_dir, documented):
    folders = dict(precision.checkpoints(None))
    assert {name for name, _ in documented} >= set(folders)
    for name in AGAIN:
        for key, row in precision.measure(build_dir, name, folders[name]).items():
            # The same but for the last digit, which the C library's exp and log may turn.
            same = all(math.isclose(a, b, rel_tol=0.1) for a, b in zip(numbers(documented[key]), numbers(row), strict=True))
            assert same, f"run: python3 tests/parity/precision.py build/release\n{documented[key]}\n{row}"


def test_the_default_is_the_fastest_within_a_twentieth_of_a_percent(documented):
    changes = {kind: [numbers(row)[2] for (_, p), row in documented.items() if p == kind] for kind in ("exact", "fast")}
    assert max(map(abs, changes["exact"])) <= 0.05
    assert max(map(abs, changes["fast"])) > 0.05, "fast has become good enough to be the default"
