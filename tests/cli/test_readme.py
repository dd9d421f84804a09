"""The README shows what the program does now."""

import re

from readme import FAMILIES, TRANSCRIPT, refresh


def test_readme_is_up_to_date(source, build_dir):
    text = (source / "README.md").read_text()
    assert len(TRANSCRIPT.findall(text)) >= 2 and len(FAMILIES.findall(text)) == 1
    fresh = refresh(text, source, build_dir)
    assert text == fresh, "run: .venv/bin/python tests/cli/readme.py build/release"


def test_files_that_the_documents_name_exist(source):
    for document in "README.md", "docs/architecture.md":
        text = (source / document).read_text()
        for name in re.findall(r"\]\(([^)#:]+)\)", text):
            assert ((source / document).parent / name).exists(), f"{document} links to {name}"
        for name in re.findall(r"`((?:src|tests|include|docs|tools|models)/[\w./-]+)`", text):
            assert (source / name).exists(), f"{document} names {name}"
