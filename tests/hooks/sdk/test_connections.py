"""The sockets of a hook server, with clients that write frames by hand: broken ones, and such as do not read."""

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.errors import WireError
from runtimeproxy.hookapi import codec
from runtimeproxy.wire import grpc, headers, http2
from runtimeproxy_hooks.sdk import ContainerContext, Hook, connection, connections
from runtimeproxy_hooks.sdk.serving import HookServer
from tests.hooks.sdk.callers import CREATE, LONG_SECONDS, request
from tests.hooks.sdk.processes import eventually

Frame = tuple[int, int, int, bytes]
OPENING = http2.PREFACE + http2.settings({})
HEAD = headers.build(
    [(b":method", b"POST"), (b":path", codec.method_path(CREATE).encode()), (b"content-type", b"application/grpc")]
)


class Client:
    """A connection to the server; the methods that read raise TimeoutError if nothing comes."""

    def __init__(self, path: str, opening: bytes = OPENING + http2.SETTINGS_ACK) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(LONG_SECONDS)
        self.socket.connect(path)
        if opening:
            self.socket.sendall(opening)
        self._frames = http2.FrameBuffer(2**24)

    def send(self, frames: bytes) -> None:
        self.socket.sendall(frames)

    def call(self, stream: int, do: str = "", blob: str = "") -> None:
        message = grpc.message(codec.encode(CREATE, request(do, blob=blob)))
        cuts = range(0, len(message), http2.DEFAULT_FRAME_SIZE)
        parts = [message[at : at + http2.DEFAULT_FRAME_SIZE] for at in cuts]
        body = b"".join(http2.frame(http2.DATA, 0, stream, part) for part in parts)
        self.send(http2.header_frames(stream, HEAD, False) + body + http2.frame(http2.DATA, 1, stream, b""))

    def until(self, wanted: Callable[[Frame], bool]) -> list[Frame]:
        """Return the frames up to the one that is wanted. Raises EOFError at the end."""
        found: list[Frame] = []
        while True:
            data = self.socket.recv(2**16)
            if not data:
                raise EOFError
            for frame in self._frames.feed(data):
                found.append(frame)
                if wanted(frame):
                    return found

    def status(self, stream: int) -> bytes:
        """Wait for the end of a call and return its grpc-status."""
        end = self.until(lambda frame: frame[0] == http2.HEADERS and frame[1] & 1 == 1 and frame[2] == stream)[-1]
        return dict(headers.read(end[3]))[b"grpc-status"]

    def ended(self) -> bool:
        """Tell whether the server closes; what it still says is read."""
        try:
            self.until(lambda frame: False)
        except (EOFError, ConnectionError):
            return True
        return False


class Held(Hook):
    """Hangs if it is told to, until it is released."""

    def __init__(self) -> None:
        self.entered, self.release = threading.Semaphore(0), threading.Event()

    def pre_create_container(self, container: ContainerContext) -> None:
        container.annotations["blob"] = container.pod.annotations["blob"]
        if container.pod.annotations["do"] == "hang":
            self.entered.release()
            assert self.release.wait(LONG_SECONDS)


@pytest.fixture
def hook() -> Held:
    return Held()


@pytest.fixture
def server(hook: Held, tmp_path: Path) -> Iterator[HookServer]:
    made = HookServer([hook], "server")
    made.start(str(tmp_path / "a.sock"))
    yield made
    hook.release.set()
    assert made.stop(0) == 0


@pytest.fixture
def dial(server: HookServer, tmp_path: Path) -> Iterator[Callable[..., Client]]:
    """Connect to the server; closed in the end."""
    clients: list[Client] = []

    def connected(*opening: bytes) -> Client:
        clients.append(Client(str(tmp_path / "a.sock"), *opening))
        return clients[-1]

    yield connected
    for client in clients:
        client.socket.close()


Dial = Callable[..., Client]


def test_a_call_by_hand(dial: Dial) -> None:
    client = dial()
    for stream in (1, 3):
        client.call(stream)
        assert client.status(stream) == b"0"


def test_a_request_in_single_bytes(dial: Dial) -> None:
    client = dial(b"")
    for byte in OPENING + http2.header_frames(1, HEAD, True):
        client.send(bytes((byte,)))
    assert client.status(1) == str(grpc.INTERNAL).encode()


@pytest.mark.parametrize(
    "broken",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        http2.PREFACE + http2.frame(http2.PING, 0, 0, bytes(8)),
        OPENING + http2.frame(http2.DATA, 0, 1, b"x"),
        OPENING + http2.frame(http2.HEADERS, 0, 1, b"") + http2.frame(http2.CONTINUATION, 0, 1, b"") * 8000,
        OPENING + b"\xff\xff\xff" + bytes(6),
    ],
    ids=["http1", "no settings", "data of no stream", "continuations", "long frame"],
)
def test_a_broken_client_is_told_and_closed_and_the_others_live(dial: Dial, broken: bytes) -> None:
    client, other = dial(b""), dial()
    try:
        client.send(broken)
    except BrokenPipeError:
        pass  # it was closed while we wrote
    told = client.until(lambda frame: frame[0] == http2.GOAWAY)[-1]
    assert http2.read_u32(told[3], 4) == http2.PROTOCOL_ERROR
    assert client.ended()
    other.call(1)
    assert other.status(1) == b"0"


def test_a_flood_of_pings_that_reads_no_answers_is_not_read_from(dial: Dial, server: HookServer) -> None:
    client = dial()
    client.call(1)
    assert client.status(1) == b"0"
    [served] = server._connections._open
    client.socket.settimeout(0.2)

    def flood() -> None:
        for _ in range(1000):
            client.send(http2.frame(http2.PING, 0, 0, bytes(8)) * 4000)

    with pytest.raises(TimeoutError):
        flood()
    assert len(served._unsent) <= connection._HIGH_WATER + 2 * connection._READ_BYTES
    dial().call(1)

    def all_is_read() -> bool:
        with suppress(TimeoutError):
            while client.socket.recv(2**16):
                pass
        return not served._unsent

    eventually(all_is_read)  # the server forgets what it sent a moment after it is there


def test_a_flood_of_resets_runs_nothing_that_nobody_waits_for(dial: Dial, server: HookServer, hook: Held) -> None:
    client, last = dial(), 5001
    for stream in range(1, 33, 2):
        client.call(stream, "hang")
    for _ in range(16):
        assert hook.entered.acquire(timeout=LONG_SECONDS)
    for stream in range(33, last, 2):
        client.call(stream, "hang")
        client.send(http2.rst_stream(stream, http2.CANCEL))
    client.send(http2.frame(http2.PING, 0, 0, bytes(8)))
    client.until(lambda frame: frame[0] == http2.PING)
    eventually(lambda: not server._threads._waiting)
    hook.release.set()
    client.call(last)
    assert client.status(last) == b"0"
    assert not hook.entered.acquire(blocking=False)


def test_a_big_answer_waits_until_it_is_read(dial: Dial) -> None:
    blob = "x" * (3 << 20)
    client = dial(http2.PREFACE + http2.settings({http2.INITIAL_WINDOW_SIZE: 2**30}) + http2.SETTINGS_ACK)
    client.send(http2.window_update(0, 2**30))
    client.call(1, blob=blob)
    other = dial()
    other.call(1)
    assert other.status(1) == b"0"
    end = client.until(lambda frame: frame[0] == http2.HEADERS and frame[1] & 1 == 1)
    body = b"".join(frame[3] for frame in end if frame[0] == http2.DATA)
    assert codec.decode(CREATE, body[5:]).annotations == {"blob": blob}


def test_a_client_that_vanishes_costs_the_others_nothing(dial: Dial, server: HookServer, hook: Held) -> None:
    files = len(os.listdir("/proc/self/fd"))
    gone = dial()
    gone.call(1, "hang")
    assert hook.entered.acquire(timeout=LONG_SECONDS)
    gone.call(3, blob="x" * 500_000)
    gone.socket.close()
    eventually(lambda: not server._connections._open)
    hook.release.set()
    client = dial()
    client.call(1)
    assert client.status(1) == b"0"
    assert len(os.listdir("/proc/self/fd")) <= files + 2


def test_more_connections_than_may_be_open_wait(dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST", 3)
    clients = [dial() for _ in range(4)]
    for client in clients[:3]:
        client.call(1)
        assert client.status(1) == b"0"
    clients[3].socket.settimeout(0.2)
    clients[3].call(1)
    with pytest.raises(TimeoutError):
        clients[3].status(1)
    clients[0].socket.close()
    clients[3].socket.settimeout(LONG_SECONDS)
    assert clients[3].status(1) == b"0"


def test_an_accept_that_fails_is_tried_again(
    dial: Dial, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed = threading.Event()

    def fail(sock: socket.socket, *more: object) -> None:
        monkeypatch.undo()
        sock.close()
        failed.set()
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(connections, "Connection", fail)
    lost = dial(b"")
    assert failed.wait(LONG_SECONDS)
    assert lost.ended()
    client = dial()
    client.call(1)
    assert client.status(1) == b"0"
    assert "cannot accept a connection: Too many open files" in caplog.text


@pytest.mark.parametrize("error", [ZeroDivisionError, WireError])
def test_an_error_of_ours_ends_one_connection(
    dial: Dial, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    client, other = dial(), dial()
    for each in (client, other):
        each.call(1)
        assert each.status(1) == b"0"

    def fail(*arguments: object) -> None:
        monkeypatch.undo()
        raise error

    monkeypatch.setattr(connection.Served, "receive", fail)
    client.send(http2.frame(http2.PING, 0, 0, bytes(8)))
    assert client.ended()
    other.call(3)
    assert other.status(3) == b"0"


def test_a_client_that_half_closes_is_taken_as_gone(dial: Dial, server: HookServer) -> None:
    client = dial()
    client.socket.shutdown(socket.SHUT_WR)
    assert client.ended()
    eventually(lambda: not server._connections._open)


def test_a_client_that_has_left_before_it_is_known_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may read its end first; enough of them would keep everybody out."""

    class Left(connections.Connection):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            threading.Thread(target=self.close).start()
            eventually(lambda: self._sock.fileno() < 0)
            time.sleep(0.01)

    monkeypatch.setattr(connections, "Connection", Left)
    server, path = HookServer([], "server"), str(tmp_path / "a.sock")
    server.start(path)
    try:
        for _ in range(3):
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(LONG_SECONDS)
                client.connect(path)
                while client.recv(1 << 16):
                    pass
        eventually(lambda: not server._connections._open)
    finally:
        server.stop(LONG_SECONDS)
