"""Nothing is cut for its silence, however long that is (fault matrix S8), and a runtime that hangs is found in time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest

from runtimeproxy.cri.direction import ALIVE_SECONDS
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.faults import FaultRelay
from tests.fakes.runtime import FakeRuntime, Injection
from tests.system.clients import Client
from tests.system.docker_front import DOCKER
from tests.system.docker_streams import Events, asked
from tests.system.fronts import Front, Runtime
from tests.system.proxy import ProxyInside, until

pytestmark = pytest.mark.slow

HOURS, HOUR_SECONDS = 25, 3600.0

Day = Callable[[], Awaitable[None]]


@pytest.fixture
def day(monkeypatch: pytest.MonkeyPatch) -> Day:
    """Return what lets more than a day pass; a timer that is set anew each time has its turn in every hour."""
    real, passed = time.monotonic, 0.0

    async def pass_by() -> None:
        nonlocal passed
        due: list[bool] = []
        asyncio.get_running_loop().call_later((HOURS - 0.5) * HOUR_SECONDS, due.append, True)
        for _ in range(HOURS):
            passed += HOUR_SECONDS
            await asyncio.sleep(0.02)  # of real time, for what is due in an hour
        assert due, "the loop has another clock"

    monkeypatch.setattr(time, "monotonic", lambda: real() + passed)
    return pass_by


async def test_pipe_and_kept_connection_outlive_a_day(front: Front, tmp_path: Path, runtime: Runtime, day: Day) -> None:
    async with (
        front.inside(tmp_path) as proxy,
        front.caller(proxy.socket) as caller,
        front.caller(proxy.socket) as idle,
    ):
        await idle.act("ping")
        stream = await caller.chat()
        await stream.say(b"one")
        assert await stream.hear() == b"one"
        connections = set(proxy.app.front.connections)  # type: ignore[attr-defined]
        assert len(connections) >= 2
        await day()
        await stream.say(b"two")
        assert await stream.hear() == b"two"
        await idle.act("ping")
        assert proxy.app.front.connections == connections  # type: ignore[attr-defined]


async def test_call_of_the_image_service_outlives_a_day(tmp_path: Path, day: Day) -> None:
    """That has a connection of its own."""
    images = FakeRuntime(str(tmp_path / "images.sock"))
    pulled = asyncio.Event()
    images.inject("PullImage", Injection(gate=pulled))
    async with (
        FakeRuntime(str(tmp_path / "runtime.sock")),
        images,
        ProxyInside(tmp_path, remote_image_service_endpoint=images.socket_path) as proxy,
        Client(proxy.socket) as client,
    ):
        pull = asyncio.ensure_future(client.call("PullImage", timeout=None))
        await until(lambda: bool(images.requests("PullImage")), "the image is asked for")
        await day()
        pulled.set()
        await pull


async def test_answer_in_chunks_and_half_a_body_outlive_a_day(tmp_path: Path, day: Day) -> None:
    inside = DOCKER.inside(tmp_path)
    async with FakeDockerd(str(inside.runtime)) as fake, inside as proxy:
        path = str(proxy.socket)
        stream = Events(path, fake)
        loading = await asked(path, "POST /images/load", "Content-Length: 8")
        async with await stream.open() as events, loading as load:
            load.send(b"half")
            assert b" 200 OK\r\n" in await load.head()
            await day()
            assert stream.say(b"after\n") in await events.chunk()
            load.send(b"more")
            assert b"Loaded 8 bytes" in await load.chunk()


# ---- who is silent because it hangs

PING_SECONDS = 0.5
"""How long a client's keepalive waits for an answer."""


async def seconds_to_find(socket: Path | str, relay: FaultRelay, keepalive_seconds: float) -> float:
    """Let the runtime hang behind an answer; return how long a client with keepalive waits for the next one."""
    options = {
        "grpc.keepalive_time_ms": int(keepalive_seconds * 1000),
        "grpc.http2.ping_timeout_ms": int(PING_SECONDS * 1000),
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
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        for side in (relay.to_backend, relay.to_client):
            side.resume_reading()
        return time.monotonic() - began


@pytest.mark.parametrize("keepalive_seconds", [ALIVE_SECONDS / 2, ALIVE_SECONDS * 1.5])
async def test_hanging_runtime_is_found_by_a_clients_keepalive(tmp_path: Path, keepalive_seconds: float) -> None:
    """Who asks more often finds it as much later as the proxy still takes the runtime to be alive."""
    proxy, real = ProxyInside(tmp_path), str(tmp_path / "real.sock")
    async with FakeRuntime(real), FaultRelay(str(proxy.runtime), real) as relay:
        directly = await seconds_to_find(proxy.runtime, relay, keepalive_seconds)
        async with proxy:
            found = await seconds_to_find(proxy.socket, relay, keepalive_seconds)
    assert directly > keepalive_seconds / 2, "keepalive found it"
    late, spare_seconds = ALIVE_SECONDS if keepalive_seconds < ALIVE_SECONDS else 0, 0.5
    assert found < directly + late + spare_seconds
