"""How streams through Docker mode end, and what a tunnel is: each side's end, a leaving client, a dying daemon.

One proxy serves all tests, on the socket of a daemon that each test starts anew.
Figures in milliseconds are taken by ``timely``, which says how a busy machine is allowed for.

That is fault matrix S6.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from tests.docker.client import request
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.dockerd_client import Raw, until
from tests.fakes.dockerd_received import Received
from tests.system.docker_lines import Build, Events, Lines, Pull, asked, exec_started, run_container, serving
from tests.system.docker_script import Scripted
from tests.system.docker_streams import API, MIB, UPGRADE, resident_bytes, timely
from tests.system.proxy import ProxyProcess

pytestmark = pytest.mark.slow

LEAVE_SECONDS = 0.1
QUIET_SECONDS = 0.05
"""How long a test looks for bytes that must not come."""
PATIENCE_SECONDS = 10.0


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    with serving(tmp_path_factory.mktemp("tunnels")) as running:
        yield running


@pytest.fixture
def path(proxy: ProxyProcess) -> str:
    return str(proxy.socket)


@pytest.fixture
async def fake(proxy: ProxyProcess) -> AsyncIterator[FakeDockerd]:
    """A daemon behind the proxy, on which the container c1 runs."""
    async with FakeDockerd(str(proxy.runtime)) as dockerd:
        run_container(dockerd)
        yield dockerd


@pytest.fixture
async def scripted(proxy: ProxyProcess) -> AsyncIterator[Scripted]:
    async with Scripted(proxy.runtime) as daemon:
        yield daemon


LEAVING: dict[str, tuple[str, str, bytes]] = {
    "logs": ("GET /containers/c1/logs?stdout=1&follow=1", "", b""),
    "events": ("GET /events", "", b""),
    "wait": ("POST /containers/c1/wait", "Content-Length: 0", b""),
    "pull": ("POST /images/create?fromImage=web", "Content-Length: 0", b""),
    "stats": ("GET /containers/c1/stats", "", b""),
    "attach": ("POST /containers/c1/attach?stream=1&stdin=1&stdout=1", "Content-Length: 0", b""),
    "a sized body": ("POST /images/load", "Content-Length: 1000", b"half"),
    "a chunked body": ("POST /images/load", "Transfer-Encoding: chunked", b"5\r\nha"),
    "an archive": ("PUT /containers/c1/archive?path=/", "Content-Length: 1000", b"half"),
}
"""Name -> request, its framing, and what comes of its body."""


@pytest.mark.parametrize("name", LEAVING)
async def test_a_client_that_leaves_ends_the_daemons_side(path: str, fake: FakeDockerd, name: str) -> None:
    line, framing, rest = LEAVING[name]
    fake.feed("POST /images/create")

    async def leave() -> float:
        before = len(fake.received)
        async with await asked(path, line, *filter(None, [framing]), rest=rest):
            await until(lambda: mine(before))
            [received] = mine(before)
            await until(lambda: received.status == 200 or received.body)
        began = time.monotonic()
        await until(lambda: received.client_ended)
        return time.monotonic() - began

    def mine(before: int) -> list[Received]:
        return [got for got in list(fake.received)[before:] if got.target == API + line.partition(" ")[2]]

    await timely(LEAVE_SECONDS, leave)


async def test_a_client_that_leaves_an_exec_ends_its_stdin(path: str, fake: FakeDockerd) -> None:
    async def leave() -> float:
        async with await exec_started(path, "cat"):
            [made] = [made for made in fake.state.execs.values() if made.running]
        began = time.monotonic()
        await until(lambda: not made.running)
        return time.monotonic() - began

    await timely(LEAVE_SECONDS, leave)


async def test_a_client_that_leaves_inside_a_held_body_asked_nothing(path: str, scripted: Scripted) -> None:
    """The daemon gets no byte of what was held, although no hook server is there to ask."""

    async def leave() -> float:
        before = len(scripted.unused)
        async with await asked(path, "POST /containers/create", "Content-Length: 1000", rest=b'{"Image":'):
            pass
        began = time.monotonic()
        await until(lambda: len(scripted.unused) > before)
        assert scripted.unused[before:] == [b""]
        return time.monotonic() - began

    await timely(LEAVE_SECONDS, leave)


async def test_what_a_client_sent_before_it_left_reaches_a_slow_daemon(
    path: str, proxy: ProxyProcess, scripted: Scripted
) -> None:
    """Back-pressure has paused the reading of the client: its end comes behind all its bytes."""
    before = resident_bytes(proxy.pid)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.send(request("POST", "/images/load", b"", "Transfer-Encoding: chunked"))
        _, daemon = await scripted.asked("POST /images/load")
        client.setblocking(False)
        part, sent = b"%x\r\n%b\r\n" % (MIB, bytes(MIB)), 0
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout(0.3):
                    await asyncio.get_running_loop().sock_sendall(client, part)
                sent += len(part)
        assert resident_bytes(proxy.pid) - before <= MIB
    got = await daemon.rest()
    assert sent <= len(got) < sent + len(part)


TUNNELS: dict[str, tuple[str, Sequence[str], str]] = {
    "exec": (f"POST {API}/exec/e1/start", UPGRADE, "tcp"),
    "exec without Upgrade": (f"POST {API}/exec/e1/start", (), ""),
    "attach": (f"POST {API}/containers/c1/attach?stdin=1&stream=1", UPGRADE, "tcp"),
    "attach without Upgrade": (f"POST {API}/containers/c1/attach?stdin=1&stream=1", (), ""),
    "build session": (
        "POST /session",
        ("Connection: Upgrade", "Upgrade: h2c", "X-Docker-Expose-Session-Uuid: 1"),
        "h2c",
    ),
    "gRPC": ("POST /grpc", ("Connection: Upgrade", "Upgrade: h2c"), "h2c"),
    "WebSocket": (
        f"GET {API}/containers/c1/attach/ws?stream=1",
        ("Connection: Upgrade", "Upgrade: websocket"),
        "websocket",
    ),
    "a protocol of tomorrow": ("GET /new", ("Connection: Upgrade", "Upgrade: new/2"), "new/2"),
}
"""Name -> request, its header lines, and the protocol that the daemon changes to."""


@contextlib.asynccontextmanager
async def tunnel(path: str, scripted: Scripted, name: str, early: bytes = b"") -> AsyncIterator[tuple[Raw, Raw]]:
    """Yield both ends of a tunnel; the client sends ``early`` right behind its request."""
    line, headers, protocol = TUNNELS[name]
    body = b'{"Detach":false,"Tty":false}' if "exec" in name else b""
    async with await Raw.connect(path) as client:
        method, target = line.split(" ")
        asks = request(method, target, body, *headers)
        client.send(asks + early)
        head, daemon = await scripted.asked(line)
        assert head + await daemon.exactly(len(body)) == asks
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(daemon.reader.read(1), QUIET_SECONDS)
        answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.raw-stream\r\n\r\n"
        if protocol:
            answer = f"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n".encode()
        daemon.send(answer + b"right behind it")
        assert await client.head() == answer
        assert await client.exactly(15) == b"right behind it"
        yield client, daemon


@pytest.mark.parametrize("name", TUNNELS)
async def test_a_tunnel_passes_what_it_cannot_read(path: str, scripted: Scripted, name: str) -> None:
    """Bytes that came before the change of the protocol are its first; nothing in it is a request."""
    calls = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        request("GET", "/_ping"),
        request("POST", "/containers/create", b"{}"),
        b"GET / HTTP/9\n\r\0\xff",
    ]
    async with tunnel(path, scripted, name, early=calls[0]) as (client, daemon):
        assert await daemon.exactly(len(calls[0])) == calls[0]
        for call in calls[1:]:
            client.send(call)
            assert await daemon.exactly(len(call)) == call
            daemon.send(call)
            assert await client.exactly(len(call)) == call


@pytest.mark.parametrize("name", ["exec", "exec without Upgrade", "build session"])
async def test_more_than_is_read_ahead_waits_for_the_change_of_protocol(
    path: str, scripted: Scripted, name: str
) -> None:
    early = bytes(range(256)) * 4096
    async with tunnel(path, scripted, name, early=early) as (client, daemon):
        client.end()
        assert await daemon.rest() == early
        daemon.send(b"all of it")
        assert await client.exactly(9) == b"all of it"


@pytest.mark.parametrize("name", TUNNELS)
async def test_each_side_of_a_tunnel_ends_by_itself(path: str, scripted: Scripted, name: str) -> None:
    async with tunnel(path, scripted, name) as (client, daemon):
        client.end()
        assert await daemon.rest() == b""
        daemon.send(b"the client still reads")
        assert await client.exactly(22) == b"the client still reads"
        daemon.end()
        assert await client.rest() == b""
    async with tunnel(path, scripted, name) as (client, daemon):
        daemon.send(b"last words")
        daemon.end()
        assert await client.rest() == b"last words"
        client.send(b"the daemon still reads")
        assert await daemon.exactly(22) == b"the daemon still reads"
        client.end()
        assert await daemon.rest() == b""


async def test_bytes_behind_a_refused_change_of_protocol_are_the_next_request(path: str, scripted: Scripted) -> None:
    line, headers, _ = TUNNELS["exec"]
    method, target = line.split(" ")
    async with await Raw.connect(path) as client:
        client.send(request(method, target, b"{}", *headers) + request("GET", "/_ping"))
        _, daemon = await scripted.asked(line)
        assert await daemon.exactly(2) == b"{}"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(daemon.reader.read(1), QUIET_SECONDS)
        refusal = b'HTTP/1.1 409 Conflict\r\nContent-Length: 16\r\n\r\n{"message":"no"}'
        daemon.send(refusal)
        assert await client.exactly(len(refusal)) == refusal
        assert await daemon.head() == request("GET", "/_ping")


@pytest.mark.parametrize("name", ["exec", "exec without Upgrade", "build session"])
async def test_a_reset_ends_both_sides(path: str, scripted: Scripted, name: str) -> None:
    """A side that closes altogether, with bytes unread or without, takes nothing more: the other one must learn it."""
    for unread in (b"", b"unread"):
        async with tunnel(path, scripted, name) as (client, daemon):
            daemon.send(unread)
            await asyncio.sleep(QUIET_SECONDS)
            client.writer.transport.abort()
            assert await daemon.rest() == b""
            await writes_fail(daemon)
        async with tunnel(path, scripted, name) as (client, daemon):
            client.send(unread)
            await asyncio.sleep(QUIET_SECONDS)
            daemon.writer.transport.abort()
            assert await client.rest() == b""
            await writes_fail(client)


@pytest.mark.parametrize("name", TUNNELS)
async def test_a_process_that_reads_nothing_writes_to_no_client_that_left(
    path: str, scripted: Scripted, name: str
) -> None:
    """Behind what it does not read nobody sees the client's end; the daemon is to see it by its own next bytes."""
    async with tunnel(path, scripted, name) as (client, daemon):
        client.send(bytes(8 * MIB))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.writer.drain(), 0.3)
        client.writer.transport.abort()
        await writes_fail(daemon)


async def writes_fail(raw: Raw) -> None:
    """Write until the other side is known to be gone."""

    async def write() -> None:
        while True:
            raw.send(b"x")
            await raw.writer.drain()
            await asyncio.sleep(0.01)

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(write(), PATIENCE_SECONDS)


@pytest.mark.parametrize("kind", [Lines, Events, Pull, Build])
async def test_a_daemon_that_dies_in_mid_stream_looks_dead(path: str, fake: FakeDockerd, kind: type[Lines]) -> None:
    stream = kind(path, fake)
    async with await stream.open() as raw:
        line = stream.say(b"one\n")
        assert line in await raw.chunk()
        fake.drop_connections()
        assert await raw.rest() == b""


async def test_a_daemon_that_dies_ends_an_exec_and_an_upload(path: str, fake: FakeDockerd) -> None:
    async with (
        await exec_started(path, "cat") as pipe,
        await asked(path, "PUT /containers/c1/archive?path=/", "Transfer-Encoding: chunked") as upload,
    ):
        upload.send(b"5\r\nhalf ")
        [received] = await fake.wait_for_requests("PUT /containers/{ref}/archive")
        await until(lambda: received.body)
        fake.drop_connections()
        assert await pipe.rest() == b""
        assert await upload.rest() == b""
        await writes_fail(pipe)
        await writes_fail(upload)
