"""What every Python test needs: where the build, the binary and the checkpoints are."""

import signal
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent


def pytest_configure():
    """Processes in the background are started with these ignored, and what they start inherits that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser):
    parser.addoption("--thin", type=int, default=1, help="of a test's many parameters, take each N-th (default: 1, all)")
    parser.addoption("--build-dir", default="build/release", help="CMake build directory (default: build/release)")
    parser.addoption("--models", default="", help="directory of further checkpoints (default: none)")
    parser.addoption("--corpus-mb", type=int, default=1, help="megabytes of text that tokenizers are compared over")


def pytest_collection_modifyitems(config, items):
    """--thin: the cases of a test that has more than a few."""
    every, few = config.getoption("--thin"), 8
    cases = {}
    for item in items:
        cases.setdefault(item.nodeid.split("[")[0], []).append(item)
    left_out = [item for group in cases.values() if len(group) > few for i, item in enumerate(group) if i % every]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


@pytest.fixture(scope="session")
def source():
    return SOURCE


@pytest.fixture(scope="session")
def build_dir(request):
    path = (SOURCE / request.config.getoption("--build-dir")).resolve()
    assert path.is_dir(), f"{path} is not a directory: build first, or name another with --build-dir"
    return path


@pytest.fixture(scope="session")
def models_dir(request):
    """The directory given by --models, or None."""
    given = request.config.getoption("--models")
    if not given:
        return None
    path = Path(given).resolve()
    assert path.is_dir(), f"--models {given}: not a directory"
    return path


@pytest.fixture(scope="session")
def bundled():
    return SOURCE / "models" / "default"


@pytest.fixture(scope="session")
def polymath(build_dir):
    path = build_dir / "polymath"
    assert path.is_file(), f"{path} is not built"
    return path
