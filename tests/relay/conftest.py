"""A client of the unary kind, and the path at which its peer is to be."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtimeproxy.relay.unary import UnaryClient


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "peer.sock")


@pytest.fixture
async def client(path: str) -> AsyncIterator[UnaryClient]:
    made = UnaryClient(path)
    yield made
    await made.close()
