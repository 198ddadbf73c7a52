"""Fixtures for most tests of Docker mode: a node with the front, the scripted daemon, and a backend for it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtimeproxy.docker.backend import Backend
from tests.docker.daemon import Daemon
from tests.docker.node import Node


@pytest.fixture
async def node(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    """Run a node; ``on_node`` sets its options."""
    async with Node(tmp_path, **getattr(request, "param", {})) as node:
        yield node


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    """Run a scripted daemon, and check at the end that all its clients have left."""
    async with Daemon(str(tmp_path / "docker.sock")) as daemon:
        yield daemon
        await daemon.left()


@pytest.fixture
async def backend(daemon: Daemon) -> AsyncIterator[Backend]:
    backend = Backend(daemon.path)
    yield backend
    await backend.close()
