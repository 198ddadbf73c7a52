"""Silence ends nothing, however long it lasts (promise 12, fault matrix B4 and S8).

Ends, tunnels, and clients that do not read: tests/relay/test_connection.py, test_dockerd_clients.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.docker import client as docker_client
from tests.system.fronts import Front, Runtime
from tests.system.proxy import until

pytestmark = pytest.mark.slow

DAY_SECONDS = 24 * 3600


async def test_calls_streams_and_idle_connections_outlive_a_day(
    front: Front, tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer that is set again each time fires in every hour."""
    real, passed, due = time.monotonic, 0.0, list[bool]()
    monkeypatch.setattr(time, "monotonic", lambda: real() + passed)
    monkeypatch.setattr(docker_client, "PATIENCE_SECONDS", 2 * DAY_SECONDS)
    inside: Any = front.inside(tmp_path)
    async with inside as proxy, front.caller(proxy.socket) as caller, front.caller(proxy.socket) as idle:
        await idle.act("ping")
        stream = await caller.open_stream()
        await stream.write(b"one")
        assert await stream.read() == b"one"
        pod_id = await caller.run_pod()
        for verb in ("list", "create"):
            runtime.set_fault(verb, delay_seconds=DAY_SECONDS)
        requests = {"list": caller.request("list"), "create": caller.create_request(pod_id)}
        calls = [asyncio.ensure_future(caller.send(*request, 2 * DAY_SECONDS)) for request in requests.items()]
        await until(lambda: all(runtime.arrived(verb) for verb in requests), "the calls have arrived")
        connections = set(proxy.app.front.connections)
        assert len(connections) >= 2
        asyncio.get_running_loop().call_later(DAY_SECONDS, due.append, True)
        for _ in range(25):
            passed += 3600
            await asyncio.sleep(0.02)  # of real time, for what is due in an hour
        assert due, "the loop has another clock"
        await asyncio.gather(*calls)
        await stream.write(b"two")
        assert await stream.read() == b"two"
        await idle.act("ping")
        assert proxy.app.front.connections == connections
