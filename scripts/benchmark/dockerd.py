"""The bench's dockerd: the tests' fake one, which tells at its end how many measured calls it answered well.

Owns the counts, and the three places where the fake one would cost more than what is measured: the search for a name
among all containers, events that nobody asked for, and the reading of an import chunk by chunk.
Must not know: what is measured, limits.
Invariant: a create costs what the fake one's checks and records cost, no work is added: about the 120 to 200 us of the
one by which the limits of held creates were set.
Run: ``python -m scripts.benchmark.dockerd SOCKET CONTAINERS LIST_BYTES TRANSFER_BYTES``.
"""

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import uvloop

from scripts.benchmark.cases import IMPORT
from scripts.benchmark.docker import CLIENT
from scripts.benchmark.transfers import BUFFER_BYTES, LAST_CHUNK, imported
from tests.fakes.dockerd import DockerdState, FakeDockerd, Received
from tests.fakes.dockerd_events import Events
from tests.fakes.dockerd_received import Injection
from tests.fakes.dockerd_records import Container
from tests.fakes.dockerd_routes import Match
from tests.fakes.dockerd_service import Service
from tests.fakes.dockerd_wire import JSON, Exchange

KEPT = 1_000
"""So many requests are kept until it is looked whether they have their answer."""


class Quiet(Events):
    """Events that are told to nobody: the proxy follows none of a bench's, and in dockerd they cost next to nothing."""

    def emit(self, kind: str, action: str, subject: str, attributes: Mapping[str, str], image: str = "") -> None:
        """Leave an event untold."""


class IndexedState(DockerdState):
    """Containers that are found by name at once, however many there are; nothing is renamed in a bench."""

    def __init__(self) -> None:
        super().__init__()
        self.events = Quiet()
        self._by_name: dict[str, Container] = {}

    def named(self, name: str) -> Container | None:
        """Return the container with exactly this name, with or without the slash."""
        return self._by_name.get(name.removeprefix("/"))

    def create(self, name: str, request: bytes, body: dict[str, Any]) -> Container:
        """Create a container from the body of a create. Raises Refused."""
        container = super().create(name, request, body)
        self._by_name[container.name] = container
        return container


class LightService(Service):
    """Takes an import as it comes."""

    async def _answer(self, exchange: Exchange, found: Match, injection: Injection | None) -> None:
        if found.route.key == IMPORT.route:
            await _take_import(exchange)
        else:
            await super()._answer(exchange, found, injection)


async def _take_import(exchange: Exchange) -> None:
    """Read up to the last chunk; the data are zero bytes, so nothing else looks like it."""
    count, tail = 0, b""
    while tail != LAST_CHUNK:
        data = await exchange.reader.some(BUFFER_BYTES)
        if not data:
            raise asyncio.IncompleteReadError(b"", None)
        count += len(data)
        tail = (tail + data[-len(LAST_CHUNK) :])[-len(LAST_CHUNK) :]
    exchange.body_over.set()
    await exchange.begin(JSON)
    await exchange.send(imported(count))
    await exchange.finish()


class CountingDockerd(FakeDockerd):
    """A fake dockerd that counts its good answers to the bench's client by route: others may ask it, too."""

    def __init__(self, socket_path: str) -> None:
        super().__init__(socket_path, IndexedState(), keep_received=0, keep_body_bytes=0)
        self._service = LightService(self, self.api, self.minimum, self.server_version)
        self._open: list[Received] = []
        self._answered: Counter[str] = Counter()

    def record(self, received: Received) -> None:
        """Keep a request until it has its answer."""
        super().record(received)
        self._open.append(received)
        if len(self._open) > KEPT:
            self._tally()

    def _tally(self) -> None:
        for received in self._open:
            good = 200 <= received.status < 300
            self._answered[received.route] += good and received.head.get("User-Agent") == CLIENT
        self._open = [received for received in self._open if not received.status]

    @property
    def answered(self) -> dict[str, int]:
        """Return the counts."""
        self._tally()
        return {route: count for route, count in self._answered.items() if count}


async def serve(
    kind: Callable[[str], CountingDockerd], socket_path: str, containers: int, list_bytes: int, transfer_bytes: int
) -> None:
    """Serve until SIGTERM, then print the counts as one JSON line."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with kind(socket_path) as dockerd:
        dockerd.fill_list(containers, list_bytes)
        dockerd.big_list_for = CLIENT  # the proxy itself asks what is really there
        dockerd.export_bytes = transfer_bytes
        await stopped.wait()
    print(json.dumps(dockerd.answered))


if __name__ == "__main__":
    uvloop.run(serve(CountingDockerd, sys.argv[1], *map(int, sys.argv[2:])))
