"""docs/parity.md says what the last parity run of this build measured."""

import math

import parity


def agree(documented, measured):
    """The same but for the last digit, which the C library's exp and log may turn."""
    if documented is None:
        return False
    a, b = ([float(cell) for cell in row.strip("|").split("|")[4:]] for row in (documented, measured))
    return all(math.isclose(x, y, rel_tol=0.1) for x, y in zip(a, b, strict=True))


def test_document_is_up_to_date(source, build_dir, models_dir):
    run = build_dir / "tests" / "parity.md"
    assert run.is_file(), f"{run} is missing: run ctest first"
    measured = parity.rows(run.read_text())
    documented = parity.documented((source / "docs" / "parity.md").read_text())
    stale = {k: row for k, row in measured.items() if not agree(documented.get(k), row)}
    missing = [k for k in documented if k not in measured and (models_dir or "(trained)" not in k[1])]
    hint = "run: .venv/bin/python tests/parity/parity.py build/release"
    assert not stale, f"{hint}\n" + "\n".join(f"{documented.get(k)}\n{row}" for k, row in stale.items())
    assert not missing, f"the run did not measure {missing}; {hint}"
