"""Streams are pipes: a tunnel passes any bytes, and silence ends nothing (promise 12, fault matrix B4, S6 and S8).

Ends, and clients that do not read: tests/relay/test_connection.py; what leaves immediately:
tests/docker/test_conversations.py; the full amounts: test_dockerd_streams.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docker import client as docker_client
from tests.docker.client import request
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.dockerd_client import Raw
from tests.fakes.runtime import FakeRuntime, Injection
from tests.fakes.server import StreamServer
from tests.system.clients import Client
from tests.system.docker_front import DOCKER, UPGRADE, VERSION
from tests.system.fronts import Front, Runtime
from tests.system.hostile import Process
from tests.system.proxy import ProxyInside, ProxyProcess, until, wait_until

pytestmark = pytest.mark.slow

DAY_SECONDS = 24 * 3600
OWN_CONNECTIONS = 4
"""Most connections that the proxy may have open to the daemon for itself."""


@contextmanager
def serving(folder: Path, runtime: str = "") -> Iterator[ProxyProcess]:
    """Run a proxy for the daemon at the socket ``runtime``, else at the folder's own, now or later."""
    endpoint = runtime or str(folder / "runtime.sock")
    with ProxyProcess(
        folder, backend_runtime_mode="Docker", remote_runtime_service_endpoint=endpoint, log_level="info"
    ) as proxy:
        process = Process(proxy.pid)
        before = process.descriptors()
        yield proxy
        wait_until(lambda: process.descriptors() <= before + OWN_CONNECTIONS, "every connection is closed")


CALLS = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    request("GET", "/_ping"),
    request("POST", "/containers/create", b"{}"),
    b"GET / HTTP/9\n\r\0\xff",
)


@pytest.mark.parametrize("client_is_first", [True, False], ids=["client first", "daemon first"])
async def test_tunnel_passes_any_bytes_and_each_side_ends_by_itself(tmp_path: Path, client_is_first: bool) -> None:
    """Bytes before the change of the protocol are its first; nothing in it is a request."""
    opening = request("POST", f"{VERSION}/exec/e1/start", b"", *UPGRADE)
    answer = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
    early = CALLS[0] + bytes(range(256)) * 4096  # more than is read ahead
    daemons, writers = asyncio.Queue[Raw](), list[asyncio.StreamWriter]()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if await reader.read(len(opening)) == opening:  # the proxy has requests of its own
            daemons.put_nowait(Raw(reader, writer))

    inside = DOCKER.inside(tmp_path)
    async with StreamServer(inside.runtime, accept), inside, await Raw.connect(str(inside.socket)) as client:
        client.send(opening + early)
        daemon = await asyncio.wait_for(daemons.get(), 20)
        daemon.send(answer)
        assert await client.head() == answer
        assert await daemon.exactly(len(early)) == early
        for call in CALLS[1:]:
            for sender, receiver in ((client, daemon), (daemon, client)):
                sender.send(call)
                assert await receiver.exactly(len(call)) == call
        first, second = (client, daemon) if client_is_first else (daemon, client)
        first.send(b"last words")
        first.end()
        assert await second.rest() == b"last words"
        second.send(b"the first one still reads")
        assert await first.exactly(25) == b"the first one still reads"
        second.end()
        assert await first.rest() == b""
        for writer in writers:
            writer.transport.abort()


# ---- nothing is cut for its silence, however long that lasts (B4, S8)

Day = Callable[[], Awaitable[None]]


@pytest.fixture
def day(monkeypatch: pytest.MonkeyPatch) -> Day:
    """Return a function that lets more than a day pass; a timer that is set again each time fires in every hour."""
    real, passed = time.monotonic, 0.0

    async def pass_a_day() -> None:
        nonlocal passed
        hours, due = 25, list[bool]()
        asyncio.get_running_loop().call_later((hours - 0.5) * 3600, due.append, True)
        for _ in range(hours):
            passed += 3600
            await asyncio.sleep(0.02)  # of real time, for what is due in an hour
        assert due, "the loop has another clock"

    monkeypatch.setattr(time, "monotonic", lambda: real() + passed)
    return pass_a_day


async def test_calls_streams_and_idle_connections_outlive_a_day(
    front: Front, tmp_path: Path, runtime: Runtime, day: Day, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_client, "PATIENCE_SECONDS", 2 * DAY_SECONDS)
    async with (
        front.inside(tmp_path) as proxy,
        front.caller(proxy.socket) as caller,
        front.caller(proxy.socket) as idle,
    ):
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
        connections = set(proxy.app.front.connections)  # type: ignore[attr-defined]
        assert len(connections) >= 2
        await day()
        await asyncio.gather(*calls)
        await stream.write(b"two")
        assert await stream.read() == b"two"
        await idle.act("ping")
        assert proxy.app.front.connections == connections  # type: ignore[attr-defined]


async def test_call_of_the_image_service_outlives_a_day(tmp_path: Path, day: Day) -> None:
    """It has a connection of its own."""
    images, pulled = FakeRuntime(str(tmp_path / "images.sock")), asyncio.Event()
    images.inject("PullImage", Injection(gate=pulled))
    async with (
        FakeRuntime(str(tmp_path / "runtime.sock")),
        images,
        ProxyInside(tmp_path, remote_image_service_endpoint=images.socket_path) as proxy,
        Client(proxy.socket) as client,
    ):
        pull = asyncio.ensure_future(client.call("PullImage", timeout=None))
        await until(lambda: bool(images.requests("PullImage")), "the request has arrived")
        await day()
        pulled.set()
        await pull


async def test_half_a_body_outlives_a_day(tmp_path: Path, day: Day) -> None:
    inside = DOCKER.inside(tmp_path)
    async with FakeDockerd(str(inside.runtime)), inside, await Raw.connect(str(inside.socket)) as load:
        load.send(request("POST", f"{VERSION}/images/load", b"halfmore")[: -len("more")])
        assert b" 200 OK\r\n" in await load.head()
        await day()
        load.send(b"more")
        assert b"Loaded 8 bytes" in await load.chunk()
