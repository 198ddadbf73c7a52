"""The base of all fronts: pairing clients immediately or later, reporting an unavailable backend, and the drain."""

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
"""A drain's limit that no test reaches."""


class Front(FrontBase):
    """A front that sends "unavailable" to a client without a backend."""

    unfinished_of_each = Unfinished()

    def paired(self, client: socket.socket, backend: socket.socket) -> Drainable:
        made = Copy(client, backend, None)
        made.unfinished = lambda: self.unfinished_of_each  # type: ignore[method-assign]
        return made

    def unreachable(self, client: socket.socket) -> None:
        client.sendall(b"unavailable")
        client.close()


class Rig:
    def __init__(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        self.sockets: list[socket.socket] = []
        self.listen(path)
        self.front = Front(path, Metrics(loop.time), loop, set())

    def listen(self, path: str) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(0)
        self.sockets.append(self.listener)

    def client(self, sends: bytes = b"") -> socket.socket:
        """Return the far end of a client that the front accepts."""
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
        """Fill the backend's backlog; return its number of connections."""
        self.sockets += (queued := fill_backlog(self.front.backend_endpoint))
        return len(queued)

    async def backend_after(self, queued: int) -> socket.socket:
        """Accept the connections that fill the backlog; return the backend's end of the next pair."""
        for _ in range(queued):
            self.backend()
        await until(lambda: self.count("connections"))
        return self.backend()

    def events(self) -> list[tuple[str | None, ...]]:
        events = shown_of(self.front.metrics.events)
        return [(event["kind"], event.get("reason"), event.get("text")) for event in events]

    def count(self, name: str) -> float:
        return self.front.metrics.total(name)


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(drain, "NOTICE_SECONDS", 0.01)
    monkeypatch.setattr(drain, "CLOSE_SECONDS", 0.01)
    made = Rig(str(tmp_path / "backend.sock"))
    yield made
    await made.front.drain(0)
    for sock in made.sockets:
        sock.close()


def fail_dials(monkeypatch: pytest.MonkeyPatch, number: int, times: int) -> None:
    dialler = scarce(number, times)
    for module in (front_base, dial):
        monkeypatch.setattr(module, "dial_now", dialler)


@pytest.mark.parametrize("full", [False, True])
async def test_client_is_paired_when_backlog_has_room(rig: Rig, full: bool) -> None:
    queued = rig.fill() if full else 0
    client = rig.client(b"request")
    assert rig.count("connections") == (not full)
    backend = await rig.backend_after(queued)
    assert await read(backend) == b"request"
    backend.sendall(b"answer")
    assert await read(client) == b"answer"
    assert len(rig.front.connections) == 1


CAUSES = {
    "no listener": "Connection refused",
    "no descriptors": "the proxy itself lacks what it needs: scarce",
    "full backlog": "it accepts no connection: its backlog stays full",
}


@pytest.mark.parametrize(("fault", "why"), CAUSES.items())
async def test_unreachable_backend_is_reported_with_its_cause(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str, why: str
) -> None:
    monkeypatch.setattr(front_base, "DIAL_SECONDS", 0.03)
    if fault == "no listener":
        rig.listener.close()
    elif fault == "full backlog":
        rig.fill()
    else:
        fail_dials(monkeypatch, min(front_base.SCARCE), 1_000_000)
    assert await read(rig.client()) == b"unavailable"
    assert (rig.count("backend_dial_failures"), rig.count("connections")) == (1, 0)
    assert rig.events() == ([] if fault == "no descriptors" else [("runtime_lost", "unreachable", why)])
    (line,) = caplog.messages
    assert f"is not reachable ({why}): check --remote-runtime-service-endpoint" in line


async def test_backend_checks_leave_no_connection(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    path = rig.front.backend_endpoint
    assert rig.front.backend_fault() == ""
    assert await read(rig.backend()) == b""
    rig.front.inspect()
    assert await read(rig.backend()) == b""
    with no_descriptors():
        assert rig.front.backend_fault() == "", "the proxy itself lacks descriptors"
        rig.front.inspect()
    rig.fill()
    rig.front.inspect()
    assert rig.front.backend_fault() == f"{path}: its backlog is full"
    rig.listener.close()
    assert rig.front.backend_fault() == f"{path}: Connection refused"
    assert (caplog.records, rig.events()) == ([], [])


async def test_reachable_backend_is_reported_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    path = rig.front.backend_endpoint
    rig.listener.close()
    rig.front.inspect()
    Path(path).unlink()
    rig.listen(path)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            rig.client(), rig.backend()
    lost, back = caplog.messages
    assert "is not reachable" in lost
    assert back == f"container runtime at {path} is reachable again"
    assert rig.events() == [("runtime_lost", "unreachable", "Connection refused"), ("runtime_back", None, None)]


async def test_dial_waits_while_descriptors_are_short(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_base, "SCARCE_RETRY_SECONDS", 0.01)
    fail_dials(monkeypatch, min(front_base.SCARCE), 3)
    rig.client(b"request")
    assert await read(await rig.backend_after(0)) == b"request"
    assert rig.count("backend_dial_failures") == 0


@pytest.mark.parametrize("lost", [False, True])
async def test_drain_answers_request_of_unpaired_client(rig: Rig, lost: bool) -> None:
    queued = rig.fill()
    client = rig.client(b"request")
    draining = asyncio.create_task(rig.front.drain(LONG_SECONDS))
    await asyncio.sleep(0.05)
    assert not draining.done()
    if lost:
        rig.listener.close()
    else:
        rig.front.unfinished_of_each = Unfinished(calls=1)
        backend = await rig.backend_after(queued)
        assert await read(backend) == b"request"
        backend.sendall(b"answer")
    assert await read(client) == (b"unavailable" if lost else b"answer")
    rig.front.unfinished_of_each = Unfinished()
    await asyncio.wait_for(draining, SECONDS)


@pytest.mark.parametrize("disconnects", [False, True])
async def test_drain_does_not_wait_for_unpaired_client_without_request(rig: Rig, disconnects: bool) -> None:
    """No request is lost in flight: the client's send fails."""
    rig.client(), rig.backend()
    (paired,) = rig.front.connections
    rig.front.unfinished_of_each = Unfinished(calls=1)
    rig.fill()
    client = rig.client()
    (unpaired,) = rig.front.connections - {paired}
    if disconnects:
        client.close()
    draining = asyncio.create_task(rig.front.drain(LONG_SECONDS))
    await until(lambda: unpaired._shut)  # type: ignore[attr-defined]
    if not disconnects:
        with pytest.raises(BrokenPipeError):
            client.send(b"request")
    assert not draining.done()
    rig.front.unfinished_of_each = Unfinished()
    await asyncio.wait_for(draining, SECONDS)
    assert rig.front.connections == {paired}
    assert disconnects or await read(client) == b""


async def test_drain_cancels_unfinished_tasks(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
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
        rig.front.add_task(task)
    await asyncio.sleep(0)
    await asyncio.wait_for(rig.front.drain(0.02), SECONDS)
    assert endless.cancelled()
    assert rig.front.tasks == {uncancelled}
    assert await read(client) == b"", "the client that was not paired is closed"
    freed.set()
    await uncancelled
