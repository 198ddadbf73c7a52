"""The engines that system tests share: started once a session, each with a root of its own."""

from collections.abc import Iterator

import pytest

from tests.engines.containerd import Containerd
from tests.engines.dockerd import Dockerd


@pytest.fixture(scope="session")
def containerd() -> Iterator[Containerd]:
    """Return a private containerd with the test images."""
    with Containerd() as engine:
        yield engine


@pytest.fixture(scope="session")
def dockerd() -> Iterator[Dockerd]:
    """Return a private dockerd with the test images."""
    with Dockerd() as engine:
        yield engine
