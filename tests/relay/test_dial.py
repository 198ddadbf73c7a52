"""Connecting: a full backlog is waited for, an absent listener fails immediately (relay-rules A12).

Also which users may serve a hook server's socket (fault matrix X6), and the base of all fronts: pairing clients
immediately or later, reporting an unavailable backend, and the drain.
"""

import asyncio
import os
import re
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.relay import dial as dial_module
from runtimeproxy.relay import drain, front_base
from runtimeproxy.relay.dial import UntrustedSocket, dial_now, dial_trusted
from runtimeproxy.relay.drain import Drainable, Unfinished
from runtimeproxy.relay.front_base import FrontBase
from tests.fakes.descriptors import no_descriptors
from tests.observe.events import shown_of
from tests.patience import SECONDS, read, until
from tests.relay.test_connection import Copy

Patch = pytest.MonkeyPatch
Log = pytest.LogCaptureFixture
LONG_SECONDS = 60.0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "run" / "l.sock"
    path.parent.mkdir()
    path.parent.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen(0)
        yield path


def fill_backlog(path: str) -> list[socket.socket]:
    return list(iter(lambda: dial_now(path), None))


def scarce(number: int, times: int) -> Callable[[str], socket.socket | None]:
    failures = [OSError(number, "scarce")] * times

    def dialler(path: str) -> socket.socket | None:
        if failures:
            raise failures.pop()
        return dial_now(path)

    return dialler


NOBODY = 65534
as_root = pytest.mark.engine
NO_SOCKET = "{path} is a link or no socket: register the path of the hook server's own socket"
FAULTS = {
    "directory of all": ("chmod 1777 .", "{folder} can be written by everybody, who could"),
    "linked directory": ("cd ..; mv run real; ln -s real run", "{folder} is a link: register the socket by the path"),
    "link": ("mv l.sock real; ln -s real l.sock", NO_SOCKET),
    "file": ("rm l.sock; touch l.sock", NO_SOCKET),
    "another user": (f"chown {NOBODY}:{NOBODY} l.sock", f"{{path}} belongs to user {NOBODY}: run the hook"),
}


@pytest.mark.parametrize(
    ("spoil", "text"),
    [pytest.param(*row, id=fault, marks=as_root if fault == "another user" else ()) for fault, row in FAULTS.items()],
)
def test_socket_that_others_can_replace_is_not_dialled(served: Path, spoil: str, text: str) -> None:
    subprocess.run(["sh", "-ec", spoil], cwd=served.parent, check=True)
    with pytest.raises(UntrustedSocket, match=re.escape(text.format(folder=served.parent, path=served))):
        dial_trusted(str(served))


@as_root
def test_socket_of_root_with_another_listener_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hooks.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        os.seteuid(NOBODY)  # the user who calls listen(2) is the peer in unix(7)
        try:
            sock.listen(1)
        finally:
            os.seteuid(0)
        with pytest.raises(UntrustedSocket, match=f"user {NOBODY} listens on {path}: run the hook server as root"):
            dial_trusted(str(path))
        accepted, _ = sock.accept()
        with accepted:
            assert accepted.recv(1) == b""


@pytest.mark.parametrize("above", [0o755, 0o1777])
def test_own_socket_in_own_directory_is_trusted(served: Path, above: int) -> None:
    """The mode of the directory above does not count. A full backlog and a missing listener are reported."""
    served.parent.parent.chmod(above)
    made = dial_trusted(str(served))
    assert made is not None
    retained = [made, *fill_backlog(str(served))]
    assert made.getpeername() == str(served)
    assert dial_trusted(str(served)) is None
    for path in (served.with_name("other.sock"), served.parent / "none" / "hooks.sock"):
        with pytest.raises(FileNotFoundError):
            dial_trusted(str(path))
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        dial_trusted(str(served))
    for sock in retained:
        sock.close()


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
    """A front and its backend, whose backlog has room for one connection."""

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
        near, far = socket.socketpair()
        far.setblocking(False)
        far.send(sends)
        self.sockets.append(far)
        self.front.accept(near)
        return far

    def backend(self) -> socket.socket:
        self.sockets.append(self.listener.accept()[0])
        self.sockets[-1].setblocking(False)
        return self.sockets[-1]

    def fill(self) -> int:
        self.sockets += (queued := fill_backlog(self.front.backend_endpoint))
        return len(queued)

    async def backend_after(self, queued: int) -> socket.socket:
        """Accept the connections that fill the backlog; return the backend's end of the next pair."""
        for _ in range(queued):
            self.backend()
        await until(lambda: self.front.metrics.total("connections"))
        return self.backend()

    def events(self) -> list[tuple[str | None, ...]]:
        events = shown_of(self.front.metrics.events)
        return [(event["kind"], event.get("reason"), event.get("text")) for event in events]


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: Patch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(drain, "NOTICE_SECONDS", 0.01)
    monkeypatch.setattr(drain, "CLOSE_SECONDS", 0.01)
    made = Rig(str(tmp_path / "backend.sock"))
    yield made
    await made.front.drain(0)
    for sock in made.sockets:
        sock.close()


def fail_dials(monkeypatch: Patch, times: int) -> None:
    dialler = scarce(min(front_base.SCARCE), times)
    for module in (front_base, dial_module):
        monkeypatch.setattr(module, "dial_now", dialler)


@pytest.mark.parametrize("wait", ["", "full backlog", "no descriptors"])
async def test_client_is_paired_when_backlog_has_room(rig: Rig, wait: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(front_base, "SCARCE_RETRY_SECONDS", 0.01)
    queued = rig.fill() if wait == "full backlog" else 0
    if wait == "no descriptors":
        fail_dials(monkeypatch, 3)
    client = rig.client(b"request")
    assert rig.front.metrics.total("connections") == (not wait)
    backend = await rig.backend_after(queued)
    assert await read(backend) == b"request"
    backend.sendall(b"answer")
    assert await read(client) == b"answer"
    assert (len(rig.front.connections), rig.front.metrics.total("backend_dial_failures")) == (1, 0)


CAUSES = {
    "no listener": "Connection refused",
    "no descriptors": "the proxy itself lacks what it needs: scarce",
    "full backlog": "it accepts no connection: its backlog stays full",
}


@pytest.mark.parametrize("fault", CAUSES)
async def test_unreachable_backend_is_reported(rig: Rig, monkeypatch: Patch, caplog: Log, fault: str) -> None:
    monkeypatch.setattr(front_base, "DIAL_SECONDS", 0.03)
    if fault == "no listener":
        rig.listener.close()
    elif fault == "full backlog":
        rig.fill()
    else:
        fail_dials(monkeypatch, 1_000_000)
    assert await read(rig.client()) == b"unavailable"
    assert (rig.front.metrics.total("backend_dial_failures"), rig.front.metrics.total("connections")) == (1, 0)
    assert rig.events() == ([] if fault == "no descriptors" else [("runtime_lost", "unreachable", CAUSES[fault])])
    (line,) = caplog.messages
    assert f"is not reachable ({CAUSES[fault]}): check --remote-runtime-service-endpoint" in line


async def test_backend_checks_leave_no_connection_and_report(rig: Rig, caplog: Log) -> None:
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
    rig.front.inspect()
    Path(path).unlink()
    rig.listen(path)
    with caplog.at_level("INFO"):
        for _ in range(2):
            rig.client(), rig.backend()
    lost, back = caplog.messages
    assert "is not reachable" in lost
    assert back == f"container runtime at {path} is reachable again"
    assert rig.events() == [("runtime_lost", "unreachable", "Connection refused"), ("runtime_back", None, None)]


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


async def test_drain_cancels_unfinished_tasks(rig: Rig, monkeypatch: Patch) -> None:
    monkeypatch.setattr(front_base, "CANCEL_SECONDS", 0.03)
    rig.fill()
    client, freed = rig.client(), asyncio.Event()

    async def stubborn() -> None:
        while not freed.is_set():
            with suppress(asyncio.CancelledError):
                await freed.wait()

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
