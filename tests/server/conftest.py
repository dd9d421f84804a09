import sys
from pathlib import Path

import pytest
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
