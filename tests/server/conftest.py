import pytest
from daemon import Daemon


@pytest.fixture(scope="session")
def server(polymath, bundled):
    """The server with the bundled model, which tests share."""
    with Daemon(polymath, bundled) as daemon:
        yield daemon
