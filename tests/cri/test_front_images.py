"""A connection whose image calls go to a service of their own: what each of the three takes holds the others."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtimeproxy.cri.front import Connection
from runtimeproxy.heldbytes import HeldBytes
from runtimeproxy.relay.endpoint import HIGH_WATER, ReadBuffer
from runtimeproxy.telemetry import Recorder
from runtimeproxy.wire import flow
from runtimeproxy.wire.flow import CREDIT_STEP
from tests.cri.peer import (
    PREFACE,
    PULL,
    REPLY,
    VERSION,
    Ack,
    Credit,
    Data,
    Headers,
    Ping,
    Reset,
    Settings,
    block,
    raw_headers,
    split,
)

WIDE = 2**30
FIRST_WINDOW = 65_535
SHORT_SECONDS = 0.05
PIECE = b"x" * 16_384


class Scene:
    """A client with an image call, the runtime, and the image service."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.get_running_loop()
        self.client, near = socket.socketpair()
        self.runtime, far = socket.socketpair()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(folder / "images.sock"))
        self.listener.listen()
        self.images: socket.socket
        self.tasks: list[asyncio.Task[None]] = []
        front: Any = SimpleNamespace(
            buffer=ReadBuffer(),
            loop=self.loop,
            held_bytes=HeldBytes(),
            image_apart=True,
            image_endpoint=str(folder / "images.sock"),
            connections=set(),
            keep=self.tasks.append,
            recorder=Recorder(self.loop.time),
            sync=SimpleNamespace(soon=lambda: None),
        )
        self.connection = Connection(front, near, far)
        for sock in (self.client, self.runtime, self.listener):
            sock.setblocking(False)

    async def begin(self) -> None:
        """Ask for an image and for the version."""
        window = Settings(((4, WIDE),))
        first = (window, Ack(), Credit(0, WIDE), Headers(1, PULL, end=True), Headers(3, VERSION, end=True))
        self.client.send(PREFACE + b"".join(frame.wire() for frame in first))
        self.images, _ = await asyncio.wait_for(self.loop.sock_accept(self.listener), 20)
        self.images.setblocking(False)
        self.images.send(Settings().wire() + Headers(1, REPLY).wire())
        self.runtime.send(Settings().wire() + Ack().wire())
        await asyncio.sleep(SHORT_SECONDS)

    async def answer(self, pieces: int) -> None:
        """Let the image service send so many pieces, as it is given credit for them."""
        heard, sent = b"", 0
        for _ in range(pieces):
            while FIRST_WINDOW + credit(heard, 0) < sent + len(PIECE):
                heard += await self.loop.sock_recv(self.images, 1 << 16)
            await self.loop.sock_sendall(self.images, Data(1, PIECE).wire())
            sent += len(PIECE)

    def close(self) -> None:
        self.connection.close()
        for sock in (self.client, self.runtime, self.listener, self.images):
            sock.close()


def credit(heard: bytes, stream: int) -> int:
    """Add up what was given of a stream."""
    frames = split(heard.removeprefix(PREFACE))
    return sum(int.from_bytes(frame.body, "big") for frame in frames if (frame.kind, frame.stream) == (8, stream))


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path)
    await made.begin()
    yield made
    made.close()


async def test_an_image_service_is_not_read_for_a_client_that_does_not_read(scene: Scene) -> None:
    pieces = 512
    answering = asyncio.ensure_future(scene.answer(pieces))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(answering), 1)
    assert scene.connection.pair._client.waiting < 2 * HIGH_WATER + 256 * 1024
    got = 0
    while got < pieces * len(PIECE):
        got += len(await asyncio.wait_for(scene.loop.sock_recv(scene.client, 1 << 20), 20))
    await asyncio.wait_for(answering, 20)


async def test_an_image_service_gets_its_credit_when_the_runtime_lets_its_answer_go(scene: Scene) -> None:
    long = Data(3, b"y" * 16_000).wire()
    scene.runtime.send(Headers(3, REPLY).wire() + long[:-1_000])
    await asyncio.sleep(SHORT_SECONDS)
    for _ in range(CREDIT_STEP // len(PIECE)):
        scene.images.send(Data(1, PIECE).wire())
        await asyncio.sleep(0)
    await asyncio.sleep(SHORT_SECONDS)
    heard = heard_so_far(scene.images)
    assert credit(heard, 0) < CREDIT_STEP + 2**20, "all of it waits for the end of the runtime's frame"
    before = credit(heard, 0)
    scene.runtime.send(long[-1_000:])
    await asyncio.sleep(SHORT_SECONDS)
    assert credit(heard + heard_so_far(scene.images), 0) == before + CREDIT_STEP


def heard_so_far(sock: socket.socket) -> bytes:
    """Read what has come."""
    heard = b""
    with contextlib.suppress(BlockingIOError):
        while piece := sock.recv(1 << 16):
            heard += piece
    return heard


# ---- a service that reads nothing


async def pulls(scene: Scene, streams: range) -> None:
    """Open image calls with long headers, and reset each."""
    head = block((*PULL, (b"x", b"v" * 16_000)))
    with contextlib.suppress(BrokenPipeError):
        for stream in streams:
            await scene.loop.sock_sendall(scene.client, raw_headers(stream, head, end=True) + Reset(stream, 8).wire())
    await asyncio.sleep(SHORT_SECONDS)


@pytest.mark.parametrize("there", [True, False], ids=["there", "not yet"])
async def test_what_waits_for_an_image_service_is_bounded(
    scene: Scene, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers need no credit, so that nothing else bounds them."""
    [image] = scene.connection._images
    if not there:
        monkeypatch.setattr(image, "_endpoint", None)
    await pulls(scene, range(5, 405, 2))
    assert scene.connection._images
    await pulls(scene, range(405, 1_005, 2))
    assert not scene.connection._images
    assert scene.connection.front.recorder.counted("connections_broken", side="client", kind="image_queue") == 1


async def test_trailers_that_wait_for_an_image_service_are_bounded(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those behind DATA of their stream, which wait for its credit."""
    monkeypatch.setattr(flow, "QUEUED_BYTES", 1 << 16)
    head, trailers = Headers(5, PULL).wire(), raw_headers(5, block(((b"x", b"v" * 16_000),)))
    await scene.loop.sock_sendall(scene.client, head + Data(5, bytes(16_384)).wire() * 5 + trailers * 5)
    await asyncio.sleep(SHORT_SECONDS)
    with contextlib.suppress(BrokenPipeError):
        await scene.loop.sock_sendall(scene.client, Ping(b"12345678").wire())
    await asyncio.sleep(SHORT_SECONDS)
    assert not scene.connection._images


async def test_what_was_asked_before_an_image_service_is_there_reaches_it_in_order(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    asks = b"".join(Headers(stream, PULL, end=True).wire() for stream in (1, 3, 5))
    scene.client.send(PREFACE + Settings().wire() + asks)
    await asyncio.sleep(0)
    scene.client.send(Headers(7, PULL, end=True).wire())
    scene.images, _ = await asyncio.wait_for(scene.loop.sock_accept(scene.listener), 20)
    scene.images.setblocking(False)
    scene.images.send(Settings().wire())
    await asyncio.sleep(SHORT_SECONDS)
    heard = heard_so_far(scene.images)
    assert heard.startswith(PREFACE)
    assert [frame.stream for frame in split(heard.removeprefix(PREFACE)) if frame.stream] == [1, 3, 5, 7]
    scene.close()
