"""A client of the unary kind, the path at which its peer is to be, and pairs between two socket pairs."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtimeproxy.relay.unary import UnaryClient
from tests.relay.paired import Rig


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "peer.sock")


@pytest.fixture
async def client(path: str) -> AsyncIterator[UnaryClient]:
    made = UnaryClient(path)
    yield made
    await made.close()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    made.close()


@pytest.fixture
async def watching() -> AsyncIterator[Rig]:
    made = Rig(watches=True)
    yield made
    made.close()
