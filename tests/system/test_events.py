"""Container events come through as they are sent (evented PLEG)."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.amounts import IDLE_SECONDS
from tests.engines import cri
from tests.fakes import cri_pb2
from tests.fakes.runtime import FakeRuntime
from tests.system.clients import Client
from tests.system.proxy import ProxyProcess

EVENTS = 100
LATEST_SECONDS = 0.050
TRIES = 20
"""The figure is the proxy's; a try that another program on the machine disturbed is repeated."""


@pytest.mark.slow
@pytest.mark.parametrize("version", cri.VERSIONS)
async def test_events_come_within_50_ms(tmp_path: Path, version: str) -> None:
    async with FakeRuntime(str(tmp_path / "runtime.sock")) as runtime, ProxyProcess(tmp_path) as proxy:
        latest = [await _slowest_event(runtime, proxy, version)]
        while latest[-1] >= LATEST_SECONDS and len(latest) < TRIES:
            latest.append(await _slowest_event(runtime, proxy, version))
    assert min(latest) < LATEST_SECONDS, latest


async def _slowest_event(runtime: FakeRuntime, proxy: ProxyProcess, version: str) -> float:
    """Send the events one by one over a new stream; return the longest way of one in seconds."""
    took = []
    async with Client(proxy.socket, version) as client:
        stream = client.stream("GetContainerEvents", cri_pb2.GetEventsRequest())
        await runtime.wait_for_subscribers()
        for number in range(EVENTS):
            runtime.send_event(f"container-{number}")
            event = cri_pb2.ContainerEventResponse.FromString(await asyncio.wait_for(stream.read(), 20))
            took.append((time.time_ns() - event.created_at) / 1e9)
            assert event.container_id == f"container-{number}"
        stream.cancel()
        while runtime.requests("GetContainerEvents")[-1].cancelled is False:
            await asyncio.sleep(0.01)
    return max(took)


@pytest.mark.slow
async def test_a_stream_that_was_silent_carries_the_next_event(tmp_path: Path) -> None:
    """Nothing is cut for its silence (fault matrix S8); that of Docker's streams is tested among them."""
    async with (
        FakeRuntime(str(tmp_path / "runtime.sock")) as runtime,
        ProxyProcess(tmp_path) as proxy,
        Client(proxy.socket) as client,
    ):
        stream = client.stream("GetContainerEvents", cri_pb2.GetEventsRequest())
        await runtime.wait_for_subscribers()
        for silence_seconds in (0, IDLE_SECONDS.now):
            await asyncio.sleep(silence_seconds)
            runtime.send_event(f"after-{silence_seconds}")
            event = cri_pb2.ContainerEventResponse.FromString(await asyncio.wait_for(stream.read(), 20))
            assert event.container_id == f"after-{silence_seconds}"
        stream.cancel()
