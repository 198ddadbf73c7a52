"""Fixtures of the system tests."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.engines.dockerd import Dockerd
from tests.fakes.hookserver import HookServer
from tests.system.fronts import CRI, DOCKER, Front, Runtime


@pytest.fixture(params=[CRI, DOCKER], ids=lambda front: front.name)
def front(request: pytest.FixtureRequest) -> Front:
    chosen: Front = request.param
    return chosen


@pytest.fixture
async def runtime(front: Front, tmp_path: Path) -> AsyncIterator[Runtime]:
    async with front.runtime(str(tmp_path / "runtime.sock")) as fake:
        yield fake


@pytest.fixture
async def hooks(tmp_path: Path) -> AsyncIterator[HookServer]:
    async with HookServer(str(tmp_path / "hooks.sock")) as server:
        yield server


@pytest.fixture(scope="module")
def between(dockerd: Dockerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the socket of a proxy without a hook server in front of the private dockerd."""
    folder = tmp_path_factory.mktemp("between")
    with DOCKER.process(folder, remote_runtime_service_endpoint=dockerd.socket) as proxy:
        yield str(proxy.socket)
