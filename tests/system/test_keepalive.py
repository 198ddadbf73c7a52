"""A runtime that hangs is found by a client's keepalive as without a proxy, though the proxy acknowledges PINGs."""

import time
from pathlib import Path

import grpc
import pytest

from runtimeproxy.cri.direction import ALIVE_SECONDS
from tests.fakes.faults import FaultRelay
from tests.fakes.runtime import FakeRuntime
from tests.system.clients import Client
from tests.system.proxy import ProxyInside

pytestmark = pytest.mark.slow

TIMEOUT_SECONDS = 0.5
SPARE_SECONDS = 0.5
"""On a machine that has a lot to do."""


async def found_after(socket: Path | str, relay: FaultRelay, keepalive_seconds: float) -> float:
    """Let the runtime hang behind an answer, and return how long a client with keepalive waits for the next one."""
    options = {
        "grpc.keepalive_time_ms": int(keepalive_seconds * 1000),
        "grpc.http2.ping_timeout_ms": int(TIMEOUT_SECONDS * 1000),
        "grpc.http2.bdp_probe": 0,  # such a PING would have that time limit, too
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.max_pings_without_data": 0,
    }
    async with Client(socket, **options) as client:
        await client.call("Version")
        for side in (relay.to_backend, relay.to_client):
            side.stop_reading()
        began = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await client.call("Version")
        waited = time.monotonic() - began
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        for side in (relay.to_backend, relay.to_client):
            side.resume_reading()
        return waited


@pytest.mark.parametrize("keepalive_seconds", [ALIVE_SECONDS / 2, ALIVE_SECONDS * 1.5])
async def test_hanging_runtime_is_found_in_time(tmp_path: Path, keepalive_seconds: float) -> None:
    proxy = ProxyInside(tmp_path)
    real = str(tmp_path / "real.sock")
    async with FakeRuntime(real), FaultRelay(str(proxy.runtime), real) as relay:
        directly = await found_after(proxy.runtime, relay, keepalive_seconds)
        async with proxy:
            found = await found_after(proxy.socket, relay, keepalive_seconds)
    assert directly > keepalive_seconds / 2, "keepalive found it"
    # Who asks more often than that finds it as much later as the proxy still takes the runtime to be alive.
    late = ALIVE_SECONDS if keepalive_seconds < ALIVE_SECONDS else 0
    assert found < directly + late + SPARE_SECONDS
