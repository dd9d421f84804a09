"""What the tests of text share."""

import pytest

from jinja_reference import Driver


@pytest.fixture(scope="session")
def render(build_dir):
    driver = Driver(build_dir / "tests" / "drive_template")
    yield driver
    driver.process.stdin.close()
    assert driver.process.wait() == 0
