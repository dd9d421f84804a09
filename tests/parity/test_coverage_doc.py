"""docs/coverage.md names files, functions and tests that there are."""

import re

ROW = re.compile(r"^\| (?!requirement|---)(.*) \|$", re.MULTILINE)


def test_what_is_named_exists(source):
    rows = ROW.findall((source / "docs" / "coverage.md").read_text())
    assert len(rows) > 20
    for row in rows:
        requirement, file, function, test = (cell.strip().strip("`") for cell in row.split(" | "))
        assert (source / file).is_file(), f"{requirement}: there is no {file}"
        assert re.search(rf"\b{function}\(", (source / file).read_text()), f"{requirement}: no {function} in {file}"
        path, name = test.split(": ")
        assert (source / path).is_file(), f"{requirement}: there is no {path}"
        assert re.search(rf"\b{name}\(", (source / path).read_text()), f"{requirement}: no {name} in {path}"
