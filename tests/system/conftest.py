"""What system tests share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.hookserver import HookServer
from tests.system.between import between
from tests.system.cri_front import CRI
from tests.system.docker_front import DOCKER
from tests.system.fronts import Front, Runtime
from tests.system.real import client, engine, lent, shared

__all__ = ["between", "client", "engine", "lent", "shared"]


@pytest.fixture(params=[CRI, DOCKER], ids=lambda front: front.name)
def front(request: pytest.FixtureRequest) -> Front:
    """Return each front in turn."""
    made: Front = request.param
    return made


@pytest.fixture
async def runtime(front: Front, tmp_path: Path) -> AsyncIterator[Runtime]:
    """Run the front's fake runtime."""
    async with front.runtime(str(tmp_path / "runtime.sock")) as fake:
        yield fake


@pytest.fixture
async def hooks(tmp_path: Path) -> AsyncIterator[HookServer]:
    """Run a hook server that changes nothing."""
    async with HookServer(str(tmp_path / "hooks.sock")) as server:
        yield server
