"""A Plugins Manager on a real directory, with clients that only remember."""

import asyncio
import time
from pathlib import Path

from runtimeproxy.hookpoints import BY_NAME, HookPoint
from runtimeproxy.model import HookAnswer, HookRequest
from runtimeproxy.plugins.manager import Manager
from runtimeproxy.relay.unary import Peer
from runtimeproxy.telemetry import Recorder
from tests.fakes import registration
from tests.patience import until

CREATE = BY_NAME["PreCreateContainer"]


class FakeClient:
    """A client that remembers what it was made for and whether it was closed."""

    def __init__(self, plugin: str, endpoint: str) -> None:
        self.plugin = plugin
        self.endpoint = endpoint
        self.closed = 0
        self.busy = asyncio.Event()
        self.busy.set()

    def peer(self) -> Peer:
        return Peer(self.endpoint, 1)

    async def call(
        self, point: HookPoint, request: HookRequest, timeout_seconds: float, peer: Peer | None = None
    ) -> HookAnswer:
        return HookAnswer()

    async def close(self) -> None:
        await self.busy.wait()
        self.closed += 1


class Rig:
    """A manager on a directory, and what it made and counted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.recorder = Recorder(time.monotonic)
        self.clients: list[FakeClient] = []
        self.poll(1000)

    def poll(self, seconds: float) -> None:
        """Make the manager anew, with another poll."""
        self.manager = Manager(
            str(self.folder),
            timeout_seconds=2.0,
            recorder=self.recorder,
            client_factory=self._client,
            poll_seconds=seconds,
        )

    def _client(self, plugin: str, endpoint: str) -> FakeClient:
        self.clients.append(FakeClient(plugin, endpoint))
        return self.clients[-1]

    def put(
        self, name: str, endpoint: str = "/run/a.sock", points: tuple[str, ...] = (CREATE.name,), **more: str
    ) -> None:
        """Rename a registration into place."""
        registration.write(self.folder, name, registration.text(endpoint, points, **more))

    def names(self, point: HookPoint = CREATE) -> list[str]:
        return [plugin.name for plugin in self.manager.plugins_for(point)]

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()

    async def until_asked(self, *names: str, point: HookPoint = CREATE) -> None:
        await until(lambda: self.names(point) == list(names))

    async def until_at(self, *endpoints: str) -> None:
        await until(lambda: [plugin.endpoint for plugin in self.manager.plugins_for(CREATE)] == list(endpoints))

    @property
    def invalid(self) -> float:
        return self.recorder.gauges["config_invalid_files", ()]
