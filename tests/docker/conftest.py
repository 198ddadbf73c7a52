"""The fixture of most tests of Docker mode."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.docker.node import Node


@pytest.fixture
async def node(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    async with Node(tmp_path, **getattr(request, "param", {})) as node:
        yield node
