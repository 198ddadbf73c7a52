"""The front's connection to the image endpoint ends with its client, also while it is being dialled."""

import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from runtimeproxy.cri.front import ImageConnection
from runtimeproxy.cri.image import ImageLink
from runtimeproxy.wire.flow import Outlet
from tests.relay.test_dial import fill_backlog


class FakeConnection:
    """A client's connection with nothing but an image link."""

    def __init__(self, endpoint: str) -> None:
        loop = asyncio.get_running_loop()
        self.tasks: list[asyncio.Task[None]] = []
        self.front: Any = SimpleNamespace(loop=loop, image_endpoint=endpoint, keep=self.tasks.append)
        self.image = ImageConnection(self, ImageLink(self, {}))  # type: ignore[arg-type]
        self.client_out = Outlet()

    def retire(self, stream: int) -> None:
        """Forget nothing."""

    def forget_image(self, image: ImageConnection) -> None:
        """Forget nothing."""

    def wake(self) -> None:
        """Write nothing."""


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
        await asyncio.wait_for(connection.tasks[0], 5)
        late, _ = listener.accept()
        assert await asyncio.wait_for(asyncio.to_thread(late.recv, 1), 5) == b""
        for sock in [*kept, *accepted, late]:
            sock.close()
