"""The unary client on real sockets, against a scripted peer with every fault (no descriptors: fault matrix P8)."""

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.relay.connection import Endpoint
from runtimeproxy.relay.dial import SCARCE, UntrustedSocket
from runtimeproxy.relay.eventloop import Fiber, Pending, batch
from runtimeproxy.relay.rpc import connection as unary
from runtimeproxy.relay.rpc.connection import CallFailed, Kind, Peer, Shortage, UnaryClient, Unprocessed
from runtimeproxy.wire import http2
from tests.fakes.descriptors import no_descriptors
from tests.fakes.faults import full_backlog
from tests.fakes.server import StreamServer
from tests.relay.rpc.test_framing import Frame, answer
from tests.relay.test_dial import scarce

Patch = pytest.MonkeyPatch
METHOD = "/package.Service/Method"
LONG_SECONDS = 10.0
SHORT_SECONDS = 0.05
ONE_AT_A_TIME = {http2.MAX_CONCURRENT_STREAMS: 1}
PING = http2.frame(http2.PING, 0, 0, bytes(8))


class Connection:
    """A scripted peer's side of a connection, which a test controls frame by frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.send, self.close = writer.write, writer.transport.abort
        self.writer, self._reader = writer, reader
        self._frames, self._pending = http2.FrameBuffer(2**24), deque[Frame]()

    async def begin(self, settings: dict[int, int]) -> None:
        assert await self._reader.readexactly(len(http2.PREFACE)) == http2.PREFACE
        self.send(http2.settings(settings) + http2.SETTINGS_ACK)

    async def next(self, kind: int) -> Frame:
        """Return the next frame of a type; those before it are dropped. Raises EOFError at the end."""
        while True:
            while self._pending:
                frame = self._pending.popleft()
                if frame[0] == kind:
                    return frame
            data = b""
            with suppress(ConnectionResetError):  # closed with unread bytes of ours
                data = await self._reader.read(2**16)
            if not data:
                raise EOFError
            self._pending += self._frames.feed(data)

    async def request(self) -> int:
        return (await self.next(http2.HEADERS))[2]

    async def notified(self) -> None:
        """Wait until the client has read all sent bytes."""
        self.send(PING)
        await self.next(http2.PING)

    async def ended(self) -> None:
        with pytest.raises(EOFError):
            await self.request()


class Server(StreamServer):
    """A scripted HTTP/2 server, which sends nothing by itself unless it ``begins`` with SETTINGS."""

    def __init__(self, path: str, settings: dict[int, int] | None = None, *, begins: bool = True) -> None:
        super().__init__(path, self.accept)
        self.open: list[Connection] = []
        self._settings, self._begins = settings or {}, begins
        self._connections: asyncio.Queue[Connection] = asyncio.Queue()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.append(connection := Connection(reader, writer))
        with suppress(EOFError):  # it closed immediately
            if self._begins:
                await connection.begin(self._settings)
            self._connections.put_nowait(connection)

    async def connection(self) -> Connection:
        async with asyncio.timeout(20):
            return await self._connections.get()

    async def stop(self) -> None:
        await super().stop()
        for connection in self.open:
            connection.close()
        Path(self._path).unlink(missing_ok=True)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "peer.sock")


@pytest.fixture
async def client(path: str) -> AsyncIterator[UnaryClient]:
    made = UnaryClient(path)
    yield made
    await made.close()


@pytest.fixture
async def server(path: str) -> AsyncIterator[Server]:
    async with Server(path) as made:
        yield made


async def failing(awaitable: Awaitable[bytes]) -> CallFailed:
    with pytest.raises(CallFailed) as raised:
        await awaitable
    return raised.value


async def failing_soon(client: UnaryClient) -> CallFailed:
    return await failing(client.call(METHOD, b"", SHORT_SECONDS))


def start(client: UnaryClient, seconds: float = LONG_SECONDS, message: bytes = b"") -> asyncio.Task[bytes]:
    return asyncio.create_task(client.call(METHOD, message, seconds))


async def answered(client: UnaryClient, server: Server, connection: Connection | None = None) -> Connection:
    """Make a call that is answered, on a new connection unless one is given; return the connection."""
    call = start(client)
    connection = connection or await server.connection()
    connection.send(answer(await connection.request(), b"x"))
    assert await call == b"x"
    return connection


async def queried(client: UnaryClient, server: Server) -> tuple[asyncio.Task[bytes], Connection, int]:
    """Make a call on a new connection; once it is received, return it with the connection and its stream."""
    call = start(client)
    connection = await server.connection()
    return call, connection, await connection.request()


async def test_requests_of_one_read_are_one_write(client: UnaryClient, server: Server, monkeypatch: Patch) -> None:
    connection = await answered(client, server)
    write, requests = Endpoint.write, list[int]()

    def count(end: Endpoint, data: bytes) -> None:
        requests.append(data.count(METHOD.encode()))
        write(end, data)

    async def call_twice() -> None:
        for _ in range(2):
            await client.call(METHOD, b"", LONG_SECONDS)

    monkeypatch.setattr(Endpoint, "write", count)
    fibers: list[Fiber[None]] = [Fiber(loop=asyncio.get_running_loop()) for _ in range(3)]
    for fiber in batch.iterate(deque(fibers)):
        fiber.start(call_twice())
    for _ in range(2):
        connection.send(b"".join([answer(await connection.request(), b"") for _ in fibers]))
    await asyncio.gather(*fibers)
    assert requests == [len(fibers), len(fibers)]


async def test_missing_peer_fails_immediately(path: str, client: UnaryClient) -> None:
    undialled = UnaryClient(path, dialler=lambda path: pytest.fail("it was dialled without remaining time"))
    assert (await failing(undialled.call(METHOD, b"", 0.0))).kind is Kind.DEADLINE
    for reason in ("No such file or directory", "Connection refused"):
        failed = await asyncio.wait_for(failing(client.call(METHOD, b"", LONG_SECONDS)), LONG_SECONDS / 2)
        assert (failed.code, failed.kind, failed.text) == (14, Kind.UNREACHABLE, f"{path}: {reason}")
        assert client.absence() == f"{path}: {reason}"
        assert client.peer() == client.peer() == Peer(None, 0)
        with socket.socket(socket.AF_UNIX) as dead, suppress(OSError):
            dead.bind(path)


async def test_peer_changes_with_socket_and_connection(path: str, client: UnaryClient) -> None:
    """A replaced socket is dialled, and calls on the earlier one end."""
    async with Server(path) as old:
        first = client.peer()
        assert first.connection == 1
        await answered(client, old)
        assert client.peer() == first
        await client.close()
        assert client.peer() == Peer(first.socket, 0)
        await answered(client, old)
        assert client.peer() == Peer(first.socket, 2)
        assert (await failing_soon(client)).kind is Kind.DEADLINE
        assert client.peer() == Peer(first.socket, 0)
        earlier, before, stream = await queried(client, old)
        os.rename(path, f"{path}.old")
        async with Server(path) as new:
            second = client.peer()
            assert second.socket not in (None, first.socket)
            assert second.connection == 4
            connection = await answered(client, new)
            before.send(answer(stream, b"old"))
            assert await earlier == b"old"
            await before.ended()
            call = start(client)
            await connection.request()
            connection.close()
            assert (await failing(call)).kind is Kind.BROKEN
            assert client.peer() == Peer(second.socket, 0)
            call, connection, _ = await queried(client, new)
            await client.close()
            assert (await failing(call)).kind is Kind.UNREACHABLE, "and a later call dials again"
            await connection.ended()
            await answered(client, new)
    os.unlink(f"{path}.old")


async def test_absence_of_server_is_reported_without_call(path: str, client: UnaryClient) -> None:
    def dialler(path: str) -> socket.socket:
        raise UntrustedSocket("user 7 listens there")

    silent = f"{path}: listens, but has not answered as a gRPC server"
    async with full_backlog(path):
        assert client.absence() == silent
        assert (await failing_soon(client)).kind is Kind.DEADLINE
        assert UnaryClient(path, dialler=dialler).absence() == "user 7 listens there"
        with no_descriptors():
            assert client.absence() == "", "the proxy itself lacks descriptors"
    Path(path).unlink(missing_ok=True)
    async with Server(path) as server:
        assert client.absence() == silent
        assert client.peer().connection == 1, "the check has left no connection"
        connection = await answered(client, server)
        assert client.absence() == ""
        connection.send(PING)
        await answered(client, server, connection)  # the ACK precedes the request
        await asyncio.sleep(unary.ACK_SECONDS)
        call = start(client)
        await connection.request()
        connection.close()
        await failing(call)
        assert client.absence() == "", "the server answered an earlier connection"
        os.rename(path, f"{path}.away")
        assert client.absence() == f"{path}: No such file or directory"
        os.rename(f"{path}.away", path)


async def test_shortage_is_waited_for(path: str, client: UnaryClient, server: Server, monkeypatch: Patch) -> None:
    with no_descriptors():
        there = client.peer()
        assert there.socket is not None
        assert (client.peer(), there.connection) == (there, 0)
        failed = await failing_soon(client)
    assert isinstance(failed, Shortage)
    assert failed.kind is Kind.UNREACHABLE, "the peer never saw it"
    assert failed.text == "the proxy itself lacks what it needs: Too many open files"
    assert (await failing_soon(client)).kind is Kind.DEADLINE
    assert client.peer() == Peer((there.socket[0], True), 0)  # type: ignore[index]
    await server.connection()
    monkeypatch.setattr(unary, "SCARCE_RETRY_SECONDS", 0.01)
    for number in SCARCE:
        patient = UnaryClient(path, dialler=scarce(number, 3))
        await answered(patient, server)
        await patient.close()


async def test_deadline_ends_connection_unlike_cancel(client: UnaryClient, server: Server, monkeypatch: Patch) -> None:
    """A reset at the deadline is one, as from a server whose own timer fires first."""
    call, connection, stream = await queried(client, server)
    call.cancel()
    assert (await connection.next(http2.RST_STREAM))[2:] == (stream, b"\0\0\0\x08")
    assert call.cancelled()
    (link,) = client.links
    done: Pending[bytes] = Pending()
    done.set_result(b"")
    link.expire(done)
    await answered(client, server, connection)
    assert (await failing_soon(client)).kind is Kind.DEADLINE
    assert (await connection.next(http2.RST_STREAM))[2:] == (5, b"\0\0\0\x08")
    await connection.ended()
    monkeypatch.setattr(unary, "_AT_THE_DEADLINE_SECONDS", LONG_SECONDS)
    call, connection, stream = await queried(client, server)
    connection.send(http2.rst_stream(stream, http2.CANCEL))
    assert (await failing(call)).kind is Kind.DEADLINE


async def test_calls_end_at_deadline_when_peer_does_not_read(path: str, client: UnaryClient) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(10)
        begun = time.monotonic()
        calls = [start(client, 0.3, b"x" * 60_000) for _ in range(100)]
        assert {(await failing(call)).kind for call in calls} == {Kind.DEADLINE}
        assert time.monotonic() - begun < LONG_SECONDS, "each waits for its own deadline alone"


async def test_reading_pauses_when_pinging_peer_does_not_read(client: UnaryClient, server: Server) -> None:
    pings = 100_000
    call = start(client)
    connection = await server.connection()
    transport: Any = connection.writer.transport
    transport.pause_reading()
    connection.send(PING * pings)
    stuck = 0
    async with asyncio.timeout(20):
        while transport.get_write_buffer_size() != stuck:
            stuck = transport.get_write_buffer_size()
            await asyncio.sleep(0.1)
    assert stuck > 500_000
    transport.resume_reading()
    for _ in range(pings):
        await connection.next(http2.PING)
    connection.send(answer(1, b"x"))
    assert await call == b"x"


@pytest.mark.parametrize("by", ["reset", "goaway"])
async def test_unprocessed_call_is_sent_again(client: UnaryClient, server: Server, by: str, monkeypatch: Patch) -> None:
    """RFC 9113, 8.7. It fails when the peer refuses it until its deadline."""
    call, connection, stream = await queried(client, server)
    if by == "reset":
        connection.send(http2.rst_stream(stream, http2.REFUSED_STREAM))
    else:
        connection.send(http2.goaway(0, 0))
        connection = await server.connection()
    again = await connection.request()
    connection.send(answer(again, b"x"))
    assert await call == b"x"
    assert (again, len(server.open)) == ((3, 1) if by == "reset" else (1, 2))
    monkeypatch.setattr(unary, "RETRY_SECONDS", LONG_SECONDS)
    call = start(client)
    connection.send(http2.rst_stream(await connection.request(), http2.REFUSED_STREAM))
    assert isinstance(await failing(call), Unprocessed)


async def test_waiting_calls_run_in_order_without_spurious_wakeup(client: UnaryClient, path: str) -> None:
    """If the peer accepts few at a time (RFC 9113, 5.1.2); they continue after the end of a connection."""
    async with Server(path, ONE_AT_A_TIME) as server:
        broken, connection, _ = await queried(client, server)
        await connection.notified()
        calls = [start(client) for _ in range(6)]
        assert (await failing_soon(client)).kind is Kind.DEADLINE
        connection.close()
        assert (await failing(broken)).kind is Kind.BROKEN
        connection = await server.connection()
        stream = await connection.request()
        await connection.notified()
        (link,) = client.links
        link.room = None  # type: ignore[assignment,method-assign]  # a call that waits again would fail
        for number, done in enumerate(calls):
            connection.send(answer(stream, b"x"))
            assert await done == b"x"
            assert [call.done() for call in calls].count(True) == number + 1
            if done is not calls[-1]:
                stream = await connection.request()
        assert (stream, len(server.open)) == (11, 2)


async def test_cancelled_call_passes_its_position_on(client: UnaryClient, path: str) -> None:
    async with Server(path, ONE_AT_A_TIME) as server:
        first, connection, stream = await queried(client, server)
        await connection.notified()
        second, third = start(client), start(client)
        await asyncio.sleep(0.02)
        (link,) = client.links
        woken, wake = link.waiting[0], link._wake

        def woken_and_cancelled() -> None:
            wake()
            if woken.done():
                second.cancel()

        link._wake = woken_and_cancelled  # type: ignore[method-assign]
        connection.send(answer(stream, b"x"))
        assert await first == b"x"
        connection.send(answer(await connection.request(), b"y"))
        assert await third == b"y"
        with pytest.raises(asyncio.CancelledError):
            await second
        assert link.calls.granted == 0


Misbehaviour = Callable[[Connection], object]
MISBEHAVIOUR: dict[str, Misbehaviour] = {
    "HTTP/1.1": lambda peer: peer.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
    "immediate end": lambda peer: peer.close(),
    "half-close": lambda peer: peer.writer.write_eof(),
    "garbage": lambda peer: peer.send(http2.settings({}) + http2.SETTINGS_ACK + http2.rst_stream(1, 2) + b"\xff" * 20),
}


@pytest.mark.parametrize("fault", MISBEHAVIOUR.values(), ids=MISBEHAVIOUR)
async def test_broken_peer_fails_call_once_then_redials(path: str, client: UnaryClient, fault: Misbehaviour) -> None:
    async with Server(path, begins=False) as server:
        call = start(client)
        fault(await server.connection())
        assert (await failing(call)).kind is Kind.BROKEN
        assert len(server.open) == 1, "it was not tried again"
        later = start(client)
        second = await server.connection()
        await second.begin({})
        second.send(answer(await second.request(), b"x"))
        assert await later == b"x"
