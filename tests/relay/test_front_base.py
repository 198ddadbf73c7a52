"""What all fronts do with a client: pair it at once or later, or tell it that the backend is away; and the drain."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.relay import dial, drain, front_base
from runtimeproxy.relay.drain import Drainable, Unfinished
from runtimeproxy.relay.front_base import FrontBase
from tests.fakes.descriptors import no_descriptors
from tests.observe.events import shown_of
from tests.patience import SECONDS, read, until
from tests.relay.test_connection import Copy
from tests.relay.test_dial import fill_backlog, scarce

LONG_SECONDS = 60.0
"""Most seconds that a drain may take; what does not wait for it ends long before."""


class Connection(Copy):
    front: "Front"

    def drain(self, refusing: bool) -> None:
        """Do nothing."""

    def unfinished(self) -> Unfinished:
        return self.front.unfinished

    def part(self) -> None:
        self.front.parted += 1


class Front(FrontBase):
    """A front that sends one word if the backend is away."""

    unfinished = Unfinished()
    """The unfinished work of each connection."""
    parted = 0

    def paired(self, client: socket.socket, backend: socket.socket) -> Drainable:
        made = Connection(client, backend, None)
        made.front = self
        return made

    def unreachable(self, client: socket.socket) -> None:
        client.sendall(b"away")
        client.close()


class Rig:
    """A front, its backend's listener, and what to close after a test."""

    def __init__(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        self.sockets: list[socket.socket] = []
        self.listen(path)
        self.front = Front(path, Metrics(loop.time), loop, set())

    def listen(self, path: str) -> None:
        """Listen as the backend at a path."""
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(0)
        self.sockets.append(self.listener)

    def client(self, sends: bytes = b"") -> socket.socket:
        """Connect a client that sends something to the front; return the client's end."""
        near, far = socket.socketpair()
        far.setblocking(False)
        far.send(sends)
        self.sockets.append(far)
        self.front.accept(near)
        return far

    def backend(self) -> socket.socket:
        """Return the backend's end of the next connection."""
        sock, _ = self.listener.accept()
        sock.setblocking(False)
        self.sockets.append(sock)
        return sock

    def fill(self) -> int:
        """Fill the backend's backlog; return how many connections wait in it."""
        waiting = fill_backlog(self.front.backend_endpoint)
        self.sockets += waiting
        return len(waiting)

    async def backend_behind(self, waiting: int) -> socket.socket:
        """Accept those that fill the backlog; return the backend's end of the client that is paired then."""
        for _ in range(waiting):
            self.backend()
        await until(lambda: self.count("connections"))
        return self.backend()

    def events(self) -> list[tuple[str | None, ...]]:
        """Return kind, reason and text of each event."""
        found = shown_of(self.front.metrics.events)
        return [(event["kind"], event.get("reason"), event.get("text")) for event in found]

    def count(self, what: str) -> float:
        return self.front.metrics.total(what)


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


def lack(monkeypatch: pytest.MonkeyPatch, number: int, times: int) -> None:
    """Make connecting fail so many times for want of a resource."""
    dialler = scarce(number, times)
    for module in (front_base, dial):
        monkeypatch.setattr(module, "dial_now", dialler)


async def test_client_is_paired_at_once(rig: Rig) -> None:
    client, backend = rig.client(b"question"), rig.backend()
    assert (len(rig.front.connections), rig.count("connections")) == (1, 1)
    assert await read(backend) == b"question"
    backend.sendall(b"answer")
    assert await read(client) == b"answer"


async def test_client_waits_for_a_full_backlog(rig: Rig) -> None:
    waiting = rig.fill()
    rig.client(b"question")
    assert rig.count("connections") == 0
    assert await read(await rig.backend_behind(waiting)) == b"question"
    assert len(rig.front.connections) == 1


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("nobody listens", "Connection refused"),
        ("descriptors are short", "the proxy itself lacks what it needs: scarce"),
        ("backlog is full", "it accepts no connection: its backlog stays full"),
    ],
)
async def test_unreachable_backend_is_reported_with_its_cause(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str, why: str
) -> None:
    monkeypatch.setattr(front_base, "DIAL_SECONDS", 0.03)
    if fault == "nobody listens":
        rig.listener.close()
    elif fault == "backlog is full":
        rig.fill()
    else:
        lack(monkeypatch, min(front_base.SCARCE), 1_000_000)
    assert await read(rig.client()) == b"away"
    assert (rig.count("backend_dial_failures"), rig.count("connections")) == (1, 0)
    assert rig.events() == ([] if fault == "descriptors are short" else [("runtime_lost", "unreachable", why)])
    (line,) = caplog.messages
    assert f"is not reachable ({why}): check --remote-runtime-service-endpoint" in line


async def test_checks_of_the_backend_leave_no_connection(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    path = rig.front.backend_endpoint
    assert rig.front.backend_fault() == ""
    assert await read(rig.backend()) == b""
    rig.front.look()
    assert await read(rig.backend()) == b""
    with no_descriptors():
        assert rig.front.backend_fault() == "", "the proxy itself lacks descriptors"
        rig.front.look()
    rig.fill()
    rig.front.look()
    assert rig.front.backend_fault() == f"{path}: its backlog is full"
    rig.listener.close()
    assert rig.front.backend_fault() == f"{path}: Connection refused"
    assert (caplog.records, rig.events()) == ([], [])


async def test_backend_that_is_back_is_reported_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    path = rig.front.backend_endpoint
    rig.listener.close()
    rig.front.look()
    Path(path).unlink()
    rig.listen(path)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            rig.client(), rig.backend()
    away, back = caplog.messages
    assert "is not reachable" in away
    assert back == f"container runtime at {path} is reachable again"
    assert rig.events() == [("runtime_lost", "unreachable", "Connection refused"), ("runtime_back", None, None)]


@pytest.mark.parametrize("number", front_base.SCARCE)
async def test_want_of_descriptors_is_waited_for(rig: Rig, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(front_base, "SCARCE_RETRY_SECONDS", 0.01)
    lack(monkeypatch, number, 3)
    rig.client(b"question")
    assert await read(await rig.backend_behind(0)) == b"question"
    assert rig.count("backend_dial_failures") == 0


async def test_end_closes_every_connection(rig: Rig) -> None:
    client, backend = rig.client(), rig.backend()
    await rig.front.drain(LONG_SECONDS)
    assert rig.front.parted == 1
    assert await read(client) == await read(backend) == b""
    assert rig.events() == [("drain", "begun", None), ("drain", "ended", "every call is answered")]


async def test_end_serves_a_request_that_waited_to_be_paired(rig: Rig) -> None:
    waiting = rig.fill()
    client = rig.client(b"question")
    stopping = asyncio.create_task(rig.front.drain(LONG_SECONDS))
    await asyncio.sleep(0.05)
    assert not stopping.done()
    rig.front.unfinished = Unfinished(calls=1)
    backend = await rig.backend_behind(waiting)
    assert await read(backend) == b"question"
    backend.sendall(b"answer")
    assert await read(client) == b"answer"
    rig.front.unfinished = Unfinished()
    await asyncio.wait_for(stopping, SECONDS)


@pytest.mark.parametrize("ending", [False, True])
async def test_waiting_client_is_answered_when_the_backend_goes(rig: Rig, ending: bool) -> None:
    rig.fill()
    client = rig.client(b"question")
    stopping = asyncio.create_task(rig.front.drain(LONG_SECONDS)) if ending else None
    await asyncio.sleep(0.05)
    rig.listener.close()
    assert await read(client) == b"away"
    if stopping:
        await asyncio.wait_for(stopping, SECONDS)


@pytest.mark.parametrize("leaves", [False, True])
async def test_end_does_not_wait_for_a_client_without_requests(rig: Rig, leaves: bool) -> None:
    """No request is lost on its way either: the client's send fails."""
    rig.client(), rig.backend()
    rig.front.unfinished = Unfinished(calls=1)
    rig.fill()
    client = rig.client()
    if leaves:
        client.close()
    stopping = asyncio.create_task(rig.front.drain(LONG_SECONDS))
    await asyncio.sleep(0.05)
    if not leaves:
        with pytest.raises(BrokenPipeError):
            client.send(b"question")
    assert not stopping.done()
    rig.front.unfinished = Unfinished()
    await asyncio.wait_for(stopping, SECONDS)
    assert len(rig.front.connections) == 1, "the one that was paired"
    assert leaves or await read(client) == b""


async def test_end_cancels_what_does_not_finish(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_base, "CANCEL_SECONDS", 0.03)
    rig.fill()
    client, freed = rig.client(), asyncio.Event()

    async def stubborn() -> None:
        while not freed.is_set():
            try:
                await freed.wait()
            except asyncio.CancelledError:
                continue

    endless, uncancelled = asyncio.create_task(asyncio.sleep(LONG_SECONDS)), asyncio.create_task(stubborn())
    for task in (endless, uncancelled):
        rig.front.keep(task)
    await asyncio.sleep(0)
    await asyncio.wait_for(rig.front.drain(0.02), SECONDS)
    assert endless.cancelled()
    assert rig.front.tasks == {uncancelled}
    assert await read(client) == b"", "the client that waited to be paired is closed"
    freed.set()
    await uncancelled
