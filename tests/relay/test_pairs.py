"""What every front does with a client: paired at once or later, or told that the backend is away; and the end."""

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtimeproxy.relay import dial, drain, pairs
from runtimeproxy.relay.drain import Leaving, Unfinished
from runtimeproxy.relay.pair import Pair
from runtimeproxy.relay.pairs import Pairs
from runtimeproxy.telemetry import Recorder
from tests.fakes.descriptors import no_descriptors
from tests.relay.paired import Copy
from tests.relay.test_dial import fill_backlog

LONG_SECONDS = 60.0
"""How long an end may take; what does not wait for it is over long before."""
SOON = 20.0
"""For what happens at once, on a machine that has a lot to do."""


class Connection:
    """A connection that copies."""

    def __init__(self, front: "Front", client: socket.socket, backend: socket.socket) -> None:
        self.pair = Pair(front.loop, client, backend, Copy(), front.buffer)
        self._front = front

    def drain(self, refusing: bool) -> None:
        """Ask nobody."""

    def unfinished(self) -> Unfinished:
        return self._front.unfinished

    def part(self) -> None:
        self._front.parted += 1

    def close(self) -> None:
        self.pair.close()


class Front(Pairs):
    """A front that says one word where the backend is away."""

    def __init__(self, endpoint: str) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(endpoint, Recorder(loop.time), loop, set())
        self.unfinished = Unfinished()
        """What each connection has open."""
        self.parted = 0

    def paired(self, client: socket.socket, backend: socket.socket) -> Leaving:
        return Connection(self, client, backend)

    def unreachable(self, client: socket.socket) -> None:
        client.sendall(b"away")
        client.close()


class Rig:
    """A front, its backend's listener, and what to close behind a test."""

    def __init__(self, path: str) -> None:
        self.sockets: list[socket.socket] = []
        self.listen(path)
        self.front = Front(path)
        self._waiting: list[socket.socket] = []

    def listen(self, path: str) -> None:
        """Be the backend at a path."""
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(0)
        self.sockets.append(self.listener)

    def client(self) -> socket.socket:
        """Let the front take a client; return the client's end."""
        near, far = socket.socketpair()
        far.setblocking(False)
        self.sockets.append(far)
        self.front.accept(near)
        return far

    def backend(self) -> socket.socket:
        """Return the backend's end of the next connection."""
        sock, _ = self.listener.accept()
        sock.setblocking(False)
        self.sockets.append(sock)
        return sock

    def fill(self) -> None:
        """Fill the backend's backlog."""
        self._waiting = fill_backlog(self.front.backend_endpoint)
        self.sockets += self._waiting

    def empty(self) -> None:
        """Accept those that fill the backlog."""
        for _ in self._waiting:
            self.backend()

    async def paired(self) -> None:
        """Wait until a client is paired."""
        async with asyncio.timeout(20):
            while not self.front.recorder.total("connections"):
                await asyncio.sleep(0.001)

    @staticmethod
    async def read(sock: socket.socket) -> bytes:
        async with asyncio.timeout(20):
            return await asyncio.get_running_loop().sock_recv(sock, 100)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "NOTICE_SECONDS", 0.01)
    monkeypatch.setattr(drain, "PARTING_SECONDS", 0.01)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(str(tmp_path / "backend.sock"))
    yield made
    await made.front.drain(0)
    for sock in made.sockets:
        sock.close()


async def test_client_is_paired_at_once(rig: Rig) -> None:
    client, backend = rig.client(), rig.backend()
    assert len(rig.front.connections) == 1
    assert rig.front.recorder.total("connections") == 1
    client.sendall(b"question")
    assert await rig.read(backend) == b"question"
    backend.sendall(b"answer")
    assert await rig.read(client) == b"answer"


async def test_behind_a_full_backlog_a_client_waits(rig: Rig) -> None:
    rig.fill()
    client = rig.client()
    client.sendall(b"question")
    assert rig.front.recorder.total("connections") == 0
    rig.empty()
    await rig.paired()
    assert len(rig.front.connections) == 1
    assert await rig.read(rig.backend()) == b"question"


async def test_client_is_told_that_nobody_listens(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.listener.close()
    with caplog.at_level(logging.WARNING):
        client = rig.client()
    assert await rig.read(client) == b"away"
    assert rig.front.recorder.total("backend_dial_failures") == 1
    assert rig.front.recorder.total("connections") == 0
    [record] = caplog.records
    assert "--remote-runtime-service-endpoint" in record.getMessage()
    assert "Connection refused" in record.getMessage()


async def test_look_leaves_no_connection_and_nothing_to_tell(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.front.look()
    assert await rig.read(rig.backend()) == b""
    rig.fill()
    rig.front.look()
    with no_descriptors():
        rig.front.look()
    assert caplog.records == []


async def test_backend_that_is_back_is_told_of_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    path = rig.front.backend_endpoint
    rig.listener.close()
    rig.front.look()
    Path(path).unlink()
    rig.listen(path)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            rig.client(), rig.backend()
    away, back = (record.getMessage() for record in caplog.records)
    assert "is not reachable" in away
    assert back == f"container runtime at {path} is reachable again"


@pytest.mark.parametrize(
    ("scarce", "why"),
    [(True, "the proxy itself lacks what it needs: scarce"), (False, "it accepts nobody: its backlog stays full")],
)
async def test_client_is_told_in_time_and_who_is_to_blame(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, scarce: bool, why: str
) -> None:
    monkeypatch.setattr(pairs, "DIAL_SECONDS", 0.03)

    def lacking(path: str) -> socket.socket | None:
        raise OSError(errno.EMFILE, "scarce")

    if scarce:
        monkeypatch.setattr(pairs, "dial_now", lacking)
        monkeypatch.setattr(dial, "dial_now", lacking)
    else:
        rig.fill()
    assert await rig.read(rig.client()) == b"away"
    assert rig.front.recorder.total("backend_dial_failures") == 1
    assert f"is not reachable ({why}): check --remote-runtime-service-endpoint" in caplog.text


async def test_client_is_told_when_the_backend_goes_while_it_waits(rig: Rig) -> None:
    rig.fill()
    client = rig.client()
    await asyncio.sleep(0.01)
    rig.listener.close()
    assert await rig.read(client) == b"away"


@pytest.mark.parametrize("number", pairs.SCARCE)
async def test_want_of_descriptors_is_waited_for(rig: Rig, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(pairs, "SCARCE_RETRY_SECONDS", 0.01)
    failures = [OSError(number, "scarce")] * 3
    connect = dial.dial_now

    def scarce(path: str) -> socket.socket | None:
        if failures:
            raise failures.pop()
        return connect(path)

    monkeypatch.setattr(pairs, "dial_now", scarce)
    monkeypatch.setattr(dial, "dial_now", scarce)
    client = rig.client()
    client.sendall(b"question")
    await rig.paired()
    assert await rig.read(rig.backend()) == b"question"
    assert rig.front.recorder.total("backend_dial_failures") == 0


async def test_end_closes_every_connection(rig: Rig) -> None:
    client, backend = rig.client(), rig.backend()
    await rig.front.drain(LONG_SECONDS)
    assert rig.front.parted == 1
    assert await rig.read(client) == b""
    assert await rig.read(backend) == b""


async def test_end_serves_a_client_that_has_asked_while_it_waited_to_be_paired(rig: Rig) -> None:
    rig.fill()
    client = rig.client()
    client.sendall(b"question")
    stopping = asyncio.create_task(rig.front.drain(LONG_SECONDS))
    await asyncio.sleep(0.05)
    assert not stopping.done()
    rig.front.unfinished = Unfinished(calls=1)
    rig.empty()
    await rig.paired()
    backend = rig.backend()
    assert await rig.read(backend) == b"question"
    backend.sendall(b"answer")
    assert await rig.read(client) == b"answer"
    rig.front.unfinished = Unfinished()
    await asyncio.wait_for(stopping, SOON)


async def test_end_tells_a_client_that_has_asked_that_the_backend_has_gone(rig: Rig) -> None:
    rig.fill()
    client = rig.client()
    client.sendall(b"question")
    stopping = asyncio.create_task(rig.front.drain(LONG_SECONDS))
    await asyncio.sleep(0.05)
    rig.listener.close()
    assert await rig.read(client) == b"away"
    await asyncio.wait_for(stopping, SOON)


@pytest.mark.parametrize("leaves", [False, True])
async def test_end_does_not_wait_for_a_client_that_has_asked_nothing(rig: Rig, leaves: bool) -> None:
    """Neither a request on its way is lost: what it sends fails in its own hands."""
    rig.fill()
    client = rig.client()
    if leaves:
        client.close()
    await asyncio.wait_for(rig.front.drain(LONG_SECONDS), SOON)
    assert not rig.front.connections
    if not leaves:
        with pytest.raises(BrokenPipeError):
            client.send(b"question")
        assert await rig.read(client) == b""


async def test_what_cannot_be_cancelled_does_not_hold_up_the_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "CANCEL_SECONDS", 0.03)
    freed = asyncio.Event()

    async def stubborn() -> None:
        while not freed.is_set():
            try:
                await freed.wait()
            except asyncio.CancelledError:
                continue

    task = asyncio.create_task(stubborn())
    rig.front.keep(task)
    await asyncio.sleep(0)
    await asyncio.wait_for(rig.front.drain(0.02), SOON)
    freed.set()
    await task


async def test_end_cancels_what_does_not_finish(rig: Rig) -> None:
    rig.fill()
    client = rig.client()
    endless = asyncio.create_task(asyncio.sleep(LONG_SECONDS))
    rig.front.keep(endless)
    await rig.front.drain(0.02)
    assert endless.cancelled()
    assert not rig.front.tasks
    assert await rig.read(client) == b"", "the client that waited to be paired is closed"
