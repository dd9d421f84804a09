"""The parts of documents that programs write: what stands between <!-- NAME --> and <!-- end -->."""

import re


def _pattern(name):
    return re.compile(f"(?<=<!-- {re.escape(name)} -->\n).*?(?=<!-- end -->)", re.DOTALL)


def section(document, name):
    """The text of a part."""
    found = _pattern(name).search(document)
    assert found, f"the document has no part <!-- {name} -->"
    return found.group()


def replace(document, name, lines):
    """The document with these lines as its part of that name."""
    section(document, name)
    fresh = "".join(f"{line}\n" for line in lines)
    return _pattern(name).sub(lambda _: fresh, document, count=1)
