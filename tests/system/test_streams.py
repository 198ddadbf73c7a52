"""Streams are pipes: a line arrives when it is sent, a tunnel passes what it cannot read, and silence ends nothing.

That is promise 12, fault matrix S6 and S8. Ends, and clients that do not read: tests/relay/test_connection.py; the full
amounts: test_dockerd_streams.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from tests.amounts import Amount
from tests.docker.client import request
from tests.engines import cri
from tests.fakes import cri_pb2, dockerd_client
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.dockerd_client import Raw
from tests.fakes.runtime import FakeRuntime, Injection
from tests.fakes.server import StreamServer
from tests.system.clients import Client
from tests.system.docker_front import DOCKER, UPGRADE
from tests.system.docker_front import VERSION as API
from tests.system.fronts import Front, Runtime
from tests.system.hostile import Process
from tests.system.proxy import ProxyInside, ProxyProcess, until, wait_until
from tests.system.times import in_time

pytestmark = pytest.mark.slow

LINE_SECONDS, LINES, EVENTS = 0.050, Amount(20, 20), Amount(100, 100)
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


async def request_head(path: str, line: str, *fields: str) -> Raw:
    """Send a request's head; its answer is not read."""
    method, target = line.split(" ")
    raw = await Raw.connect(path)
    raw.send("\r\n".join([f"{method} {API}{target} HTTP/1.1", "Host: docker", *fields, "", ""]).encode())
    return raw


@dataclass(eq=False)
class Events:
    """The stream of events of networks."""

    path: str
    fake: FakeDockerd

    async def open(self) -> Raw:
        """Request the stream, and read the head of the answer."""
        watchers = self.fake.watchers
        raw = await request_head(self.path, 'GET /events?filters={"type":["network"]}', "Content-Length: 0")
        assert b" 200 OK\r\n" in await raw.head()
        await dockerd_client.until(lambda: self.fake.watchers > watchers)
        return raw

    def send(self, line: bytes) -> bytes:
        """Make the daemon send an event; return a part of it."""
        self.fake.state.events.emit("network", line.decode().strip(), "n1", {})
        return b'"Action":"%b"' % line.strip()


@asynccontextmanager
async def scripted(path: str | Path, line: str) -> AsyncIterator["asyncio.Queue[tuple[bytes, Raw]]"]:
    """Listen as a daemon that answers nothing; yield a queue of the requests that begin with ``line``.

    Each is its head, and the connection.
    """
    requests: asyncio.Queue[tuple[bytes, Raw]] = asyncio.Queue()
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(line.encode()):
                requests.put_nowait((head, Raw(reader, writer)))

    try:
        async with StreamServer(path, accept):
            yield requests
    finally:
        for writer in writers:
            writer.transport.abort()
        Path(path).unlink(missing_ok=True)  # from Python 3.13 on the server has removed it


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    with serving(tmp_path_factory.mktemp("streams")) as running:
        yield running


@pytest.fixture
def path(proxy: ProxyProcess) -> str:
    return str(proxy.socket)


@pytest.fixture
async def fake(proxy: ProxyProcess) -> AsyncIterator[FakeDockerd]:
    async with FakeDockerd(str(proxy.runtime)) as dockerd:
        yield dockerd


# ---- without delay


async def test_event_comes_when_it_is_sent_and_the_daemons_death_is_seen(path: str, fake: FakeDockerd) -> None:
    """The same holds for each answer in chunks: logs, pulls and builds (tests/docker/test_conversations.py)."""
    stream, numbers = Events(path, fake), count()

    async def one_line() -> Sequence[float]:
        began = time.monotonic()
        expected = stream.send(b"line-%d\n" % next(numbers))
        assert expected in await raw.chunk()
        return [time.monotonic() - began]

    async with await stream.open() as raw:
        await in_time(LINE_SECONDS, LINES, one_line)
        fake.drop_connections()
        assert await raw.rest() == b""


@pytest.mark.parametrize("version", cri.VERSIONS)
async def test_container_events_come_within_50_ms(tmp_path: Path, version: str) -> None:
    async with FakeRuntime(str(tmp_path / "runtime.sock")) as runtime, ProxyProcess(tmp_path) as proxy:

        async def on_a_new_stream() -> Sequence[float]:
            took = []
            async with Client(proxy.socket, version) as client:
                stream = client.stream("GetContainerEvents", cri_pb2.GetEventsRequest())
                await runtime.wait_for_subscriber()
                for number in range(EVENTS.now):
                    runtime.send_event(f"container-{number}")
                    event = cri_pb2.ContainerEventResponse.FromString(await asyncio.wait_for(stream.read(), 20))
                    took.append((time.time_ns() - event.created_at) / 1e9)
                    assert event.container_id == f"container-{number}"
                stream.cancel()
                await until(lambda: runtime.requests("GetContainerEvents")[-1].cancelled, "it has ended")
            return took

        await in_time(LINE_SECONDS, EVENTS, on_a_new_stream)


# ---- tunnels

TUNNELS: dict[str, tuple[str, Sequence[str], str]] = {
    "exec": (f"POST {API}/exec/e1/start", UPGRADE, "tcp"),
    "attach without Upgrade": (f"POST {API}/containers/c1/attach?stdin=1&stream=1", (), ""),
    "a protocol of tomorrow": ("GET /new", ("Connection: Upgrade", "Upgrade: new/2"), "new/2"),
}
"""Name -> request, its header lines, and the protocol that the daemon changes to."""
CALLS = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    request("GET", "/_ping"),
    request("POST", "/containers/create", b"{}"),
    b"GET / HTTP/9\n\r\0\xff",
)


@asynccontextmanager
async def tunnel(proxy: ProxyProcess, name: str, early: bytes) -> AsyncIterator[tuple[Raw, Raw]]:
    """Yield both ends of a tunnel; the client sends ``early`` right after its request."""
    line, headers, protocol = TUNNELS[name]
    body = b'{"Detach":false,"Tty":false}' if "exec" in name else b""
    async with scripted(proxy.runtime, line) as requests, await Raw.connect(str(proxy.socket)) as client:
        method, target = line.split(" ")
        asks = request(method, target, body, *headers)
        client.send(asks + early)
        head, daemon = await asyncio.wait_for(requests.get(), 20)
        assert head + await daemon.exactly(len(body)) == asks
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(daemon.reader.read(1), 0.05)
        answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.raw-stream\r\n\r\n"
        if protocol:
            answer = f"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n".encode()
        daemon.send(answer + b"right after it")
        assert await client.head() == answer
        assert await client.exactly(14) == b"right after it"
        yield client, daemon


@pytest.mark.parametrize("client_is_first", [True, False], ids=["client first", "daemon first"])
@pytest.mark.parametrize("name", TUNNELS)
async def test_tunnel_passes_what_it_cannot_read_and_each_side_ends_by_itself(
    proxy: ProxyProcess, name: str, client_is_first: bool
) -> None:
    """Bytes that came before the change of the protocol are its first; nothing in it is a request."""
    early = CALLS[0] + bytes(range(256)) * 4096  # more than is read ahead
    async with tunnel(proxy, name, early) as (client, daemon):
        assert await daemon.exactly(len(early)) == early
        for call in CALLS[1:]:
            client.send(call)
            assert await daemon.exactly(len(call)) == call
            daemon.send(call)
            assert await client.exactly(len(call)) == call
        first, second = (client, daemon) if client_is_first else (daemon, client)
        first.send(b"last words")
        first.end()
        assert await second.rest() == b"last words"
        second.send(b"the first one still reads")
        assert await first.exactly(25) == b"the first one still reads"
        second.end()
        assert await first.rest() == b""


# ---- nothing is cut for its silence, however long that lasts (S8)

Day = Callable[[], Awaitable[None]]


@pytest.fixture
def day(monkeypatch: pytest.MonkeyPatch) -> Day:
    """Return a function that lets more than a day pass; a timer that is set again each time fires in every hour."""
    real, passed = time.monotonic, 0.0

    async def pass_by() -> None:
        nonlocal passed
        hours, due = 25, list[bool]()
        asyncio.get_running_loop().call_later((hours - 0.5) * 3600, due.append, True)
        for _ in range(hours):
            passed += 3600
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
    """It has a connection of its own."""
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
        loading = await request_head(path, "POST /images/load", "Content-Length: 8")
        async with await stream.open() as events, loading as load:
            load.send(b"half")
            assert b" 200 OK\r\n" in await load.head()
            await day()
            assert stream.send(b"after\n") in await events.chunk()
            load.send(b"more")
            assert b"Loaded 8 bytes" in await load.chunk()
