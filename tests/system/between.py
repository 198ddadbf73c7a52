"""The proxy in front of a dockerd, where a client must see no difference.

Owns what stands in between, in one place.
Must not know: the client, what is sent.
Invariant: no hook server is registered.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engines.dockerd import Dockerd
from tests.system.proxy import ProxyProcess


@contextmanager
def before(engine: Dockerd, folder: Path) -> Iterator[str]:
    """Serve in front of an engine; return the socket."""
    with ProxyProcess(folder, backend_runtime_mode="Docker", remote_runtime_service_endpoint=engine.socket) as proxy:
        yield str(proxy.socket)


@pytest.fixture(scope="module")
def between(dockerd: Dockerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return a socket in front of the private dockerd."""
    with before(dockerd, tmp_path_factory.mktemp("between")) as socket:
        yield socket
