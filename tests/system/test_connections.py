"""Connections that come and go, as the docker CLI's do: what they leave behind is bounded, and small."""

import asyncio
from pathlib import Path

import pytest

from tests.amounts import Amount
from tests.fakes.dockerd_client import until
from tests.system.docker_front import DockerRuntime
from tests.system.docker_streams import open_files, resident_bytes
from tests.system.fronts import Front

pytestmark = pytest.mark.slow

CONNECTIONS = Amount(1_000, 100_000)
WARM_UP = 500
SETTLE_SECONDS = 3.0
"""A proxy takes a MiB for a moment about a second after its start, whatever it does."""
MIB = 1 << 20


async def test_connections_that_have_ended_take_no_memory(front: Front, tmp_path: Path) -> None:
    proxy = front.process(tmp_path)
    async with front.runtime(str(proxy.runtime)) as runtime, proxy:

        async def connect(count: int) -> None:
            for _ in range(count):
                async with front.caller(proxy.socket) as caller:
                    await caller.act("ping")

        await connect(WARM_UP)
        if isinstance(runtime, DockerRuntime):  # what it does for itself, it has done when the daemon is followed
            await until(lambda: runtime.watchers and runtime.requests("GET /info"))
        await asyncio.sleep(SETTLE_SECONDS)
        await connect(WARM_UP)
        before, files = resident_bytes(proxy.pid), open_files(proxy.pid)
        await connect(CONNECTIONS.now)
        assert resident_bytes(proxy.pid) - before < MIB
        await until(lambda: open_files(proxy.pid) <= files)  # the last connection is closed soon, not at once
