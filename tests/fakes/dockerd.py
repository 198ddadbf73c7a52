"""A fake dockerd, 20.10 by default, on a unix socket: the part of its HTTP API that runtimes' clients use.

Requests are recorded as they came; those of one connection are answered in order. It uses plain asyncio streams,
because aiohttp's server can neither answer after a half-close nor send an unframed reply.

Run alone: ``python -m tests.fakes.dockerd --socket PATH``.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import uvloop

from tests.fakes.dockerd_engines import ENGINE_20, Engine
from tests.fakes.dockerd_received import Injection, Received
from tests.fakes.dockerd_records import Container
from tests.fakes.dockerd_routes import ROUTES
from tests.fakes.dockerd_service import Service
from tests.fakes.dockerd_state import CGROUPFS, DockerdState
from tests.fakes.dockerd_streams import Feed
from tests.fakes.dockerd_structs import go_json
from tests.fakes.dockerd_wire import Reader
from tests.fakes.server import Listener, stay

KEPT_BODY_BYTES = 1 << 20

__all__ = ["DockerdState", "FakeDockerd", "Feed", "Injection", "Received"]


class FakeDockerd(Listener):
    """The server; ``state`` may be given to a later server on the same socket, as after a restart of dockerd.

    ``engine`` is the version of Docker Engine; ``api`` and ``minimum``, the range of API versions, default to the
    engine's. ``keep_received`` bounds the record of requests (None keeps all), ``keep_body_bytes`` what is kept of each
    body; ``counts`` counts them by route, without bound.
    """

    mangle: Callable[[Any], Any] | None = None
    """Replaces the answer of an inspect, for a daemon that answers what none should."""

    def __init__(
        self,
        socket_path: str,
        state: DockerdState | None = None,
        *,
        engine: Engine = ENGINE_20,
        api: str | None = None,
        minimum: str | None = None,
        cgroup_driver: str = CGROUPFS,
        keep_received: int | None = None,
        keep_body_bytes: int = KEPT_BODY_BYTES,
    ) -> None:
        super().__init__(socket_path)
        self.state = state or DockerdState(cgroup_driver)
        self.engine = engine
        self.api, self.minimum = api or engine.api, minimum or engine.minimum
        self.keep_body_bytes = keep_body_bytes
        self.received: deque[Received] = deque(maxlen=keep_received)
        self.counts: Counter[str] = Counter()
        self._accepted = 0
        self.watchers = 0
        """How many GET /events are open."""
        self.big_list: bytes | None = None
        """The answer of GET /containers/json in place of the containers; see ``fill_list``."""
        self.feeds: dict[str, Feed] = {}
        self.injections: dict[str, Injection] = {}
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter | socket.socket] = {}
        """The socket until it is a stream."""
        self._service = Service(self)

    # ---- start and stop

    async def end(self) -> None:
        self.drop_connections()
        await asyncio.gather(*self._connections, return_exceptions=True)

    @property
    def connections(self) -> int:
        return len(self._connections)

    def drop_connections(self) -> None:
        for task, connection in self._connections.items():
            if isinstance(connection, asyncio.StreamWriter):
                connection.transport.abort()
            task.cancel()

    # ---- interface for tests

    def requests(self, route: str) -> list[Received]:
        """Return the requests received on a route.

        It is given as in dockerd_routes.ROUTES ("POST /containers/{ref}/start").
        """
        self._known(route)
        return [received for received in self.received if received.route == route]

    def inject(self, route: str, injection: Injection) -> Injection:
        """Make a route's calls go wrong from now on, in place of what was injected before."""
        self._known(route)
        self.injections[route] = injection
        return injection

    def feed(self, route: str) -> Feed:
        """Return the feed of the next POST /images/create or POST /build, which is sent its lines."""
        self._known(route)
        return self.feeds.setdefault(route, Feed())

    def container(self, reference: str) -> Container:
        return self.state.find(reference)

    def fill_list(self, count: int, total_bytes: int) -> None:
        """Make GET /containers/json answer ``count`` containers in about ``total_bytes`` bytes, built once, here."""
        life = {"Command": "sleep", "State": "running", "Status": "Up 1 second"}
        padding = {**life, "HostConfig": {"NetworkMode": "host"}}
        listed = [{"Id": f"{n:064x}", "Names": [f"/fake_{n}"], "Labels": {}, **padding} for n in range(count)]
        rest = max(0, total_bytes - len(go_json(listed))) // max(1, count)
        for container in listed:
            container["Labels"] = {"padding": "x" * max(0, rest - len('"padding":""'))}
        self.big_list = go_json(listed)

    @staticmethod
    def _known(route: str) -> None:
        if route not in {row.key for row in ROUTES}:
            raise KeyError(f"no such route: {route!r}; dockerd_routes.ROUTES lists them")

    # ---- connections

    def accepted(self, client: socket.socket) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(client, self._accepted))
        self._accepted += 1
        self._connections[task] = client
        task.add_done_callback(self._ended)

    async def _serve(self, client: socket.socket, number: int) -> None:
        loop, reader = asyncio.get_running_loop(), Reader()
        transport, protocol = await loop.connect_accepted_socket(lambda: asyncio.StreamReaderProtocol(reader), client)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            await self._service.serve(reader, writer, number)
        except RuntimeError:
            if not transport.is_closing():
                raise
            # raised by uvloop for a connection that is closed

    def _ended(self, task: asyncio.Task[None]) -> None:
        connection = self._connections.pop(task)
        if isinstance(connection, socket.socket):
            connection.close()  # the task was cancelled before it had a stream

    def record(self, received: Received) -> None:
        self.received.append(received)
        self.counts[received.route] += 1


async def alone() -> None:
    parser = argparse.ArgumentParser(description="fake dockerd")
    parser.add_argument("--socket", required=True)
    async with FakeDockerd(parser.parse_args().socket, keep_received=0, keep_body_bytes=0) as dockerd:
        await stay(f"fake dockerd {{}} listens on {dockerd.socket_path}")


if __name__ == "__main__":
    uvloop.run(alone())
