import sys
from pathlib import Path

import pytest
import spoken
from daemon import Daemon
from openai import OpenAI

sys.path.append(str(Path(__file__).resolve().parents[1] / "cli"))  # command.py


@pytest.fixture(scope="session")
def server(polymath, bundled):
    """The server with the bundled model, which tests share."""
    with Daemon(polymath, bundled) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def client(server):
    return OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="session")
def speaker(polymath, tmp_path_factory):
    """The server with a model that says what spoken.py has."""
    with Daemon(polymath, spoken.write(tmp_path_factory.mktemp("spoken") / "spoken")) as daemon:
        yield daemon
