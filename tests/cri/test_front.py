"""The front's connection to the image endpoint ends with its client, also while it is being dialled."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtimeproxy.cri.front import ImageConnection
from runtimeproxy.cri.image import ImageLink
from runtimeproxy.relay.endpoint import HIGH_WATER, Endpoint, ReadBuffer
from runtimeproxy.telemetry import Recorder
from runtimeproxy.wire.flow import Outlet
from tests.cri.peer import PREFACE, Ping, Settings, split
from tests.relay.test_dial import fill_backlog


class FakeConnection:
    """A client's connection with nothing but an image link."""

    def __init__(self, endpoint: str) -> None:
        loop = asyncio.get_running_loop()
        self.tasks: list[asyncio.Task[None]] = []
        self.recorder = Recorder(loop.time)
        self.front: Any = SimpleNamespace(
            buffer=ReadBuffer(), loop=loop, image_endpoint=endpoint, keep=self.tasks.append, recorder=self.recorder
        )
        self.pair = SimpleNamespace(attach=Endpoint.resume, read_on=Endpoint.resume, detach=lambda endpoint: None)
        self.image = ImageConnection(self, ImageLink(self, {}))  # type: ignore[arg-type]
        self.client_out = Outlet()

    def retire(self, stream: int) -> None:
        """Forget nothing."""

    def forget_image(self, image: ImageConnection) -> None:
        """Forget nothing."""

    def wake(self) -> None:
        """Write to the image service only."""
        self.image.write()


async def test_a_client_that_leaves_while_the_image_endpoint_is_dialled_leaves_no_connection(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "images.sock"))
        listener.listen(0)
        kept = fill_backlog(listener.getsockname())
        connection = FakeConnection(listener.getsockname())
        connection.image.connect()
        await asyncio.sleep(0.01)
        connection.image.close()
        accepted = [listener.accept()[0] for _ in kept]
        await asyncio.wait_for(connection.tasks[0], 20)
        late, _ = listener.accept()
        assert await asyncio.wait_for(asyncio.to_thread(late.recv, 1), 20) == b""
        for sock in [*kept, *accepted, late]:
            sock.close()


async def test_an_image_endpoint_that_is_away_is_told_with_the_cause(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    connection = FakeConnection(str(tmp_path / "away.sock"))
    connection.image.connect()
    await asyncio.wait_for(connection.tasks[0], 20)
    away = f"image endpoint {tmp_path}/away.sock is not reachable (No such file or directory)"
    assert caplog.messages == [f"{away}: its calls get UNAVAILABLE"]
    assert connection.recorder.total("image_dial_failures") == 1


@contextmanager
def image_service(folder: Path) -> Iterator[tuple[FakeConnection, Callable[[], socket.socket]]]:
    """Return a client's connection, and what accepts its link at the image service."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "images.sock"))
        listener.listen()
        connection = FakeConnection(listener.getsockname())
        connection.image.connect()
        yield connection, lambda: listener.accept()[0]
        connection.image.close()


async def test_an_image_service_that_asks_and_reads_nothing_is_not_read_any_more(tmp_path: Path) -> None:
    count = 100_000
    with image_service(tmp_path) as (connection, accept):
        await asyncio.wait_for(connection.tasks[0], 20)
        with accept() as service:
            pings = Settings().wire() + Ping(b"12345678").wire() * count
            sending = asyncio.ensure_future(asyncio.to_thread(service.sendall, pings))
            await asyncio.sleep(0.5)
            endpoint = connection.image._endpoint
            assert endpoint is not None
            assert endpoint.waiting < 2 * HIGH_WATER
            assert not sending.done()
            got = b""
            while got.count(b"12345678") < count:
                got += await asyncio.wait_for(asyncio.to_thread(service.recv, 1 << 20), 20)
            await sending
            assert {frame.flags for frame in split(got.removeprefix(PREFACE)) if frame.kind == 6} == {1}


async def test_an_image_service_that_breaks_the_protocol_is_counted_and_closed(tmp_path: Path) -> None:
    with image_service(tmp_path) as (connection, accept):
        await asyncio.wait_for(connection.tasks[0], 20)
        with accept() as service:
            service.sendall(Ping(b"12345678").wire())
            while await asyncio.wait_for(asyncio.to_thread(service.recv, 1 << 16), 20):
                pass
        assert connection.recorder.counted("connections_broken", side="image", kind="protocol") == 1
