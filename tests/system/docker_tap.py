"""A tap between the proxy and a daemon: when the daemon sent what, and how much later it came to the client.

Owns the tap, the marks of both ends, and their comparison.
Must not know: what the bytes mean, but for the last chunk of an answer.
Invariant: a mark is set before the bytes go on, so that the tap's own time counts as the proxy's.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.fakes.dockerd_client import Raw
from tests.system.docker_streams import LAST_CHUNK, MIB, SECONDS

KEPT_BYTES = 4096
"""So much of what the client asked is kept."""


@dataclass(frozen=True, slots=True)
class Mark:
    """At ``at`` (time.monotonic, in seconds) ``count`` bytes of a connection had passed a place."""

    at: float
    count: int


@dataclass(slots=True, eq=False)
class Tapped:
    """A connection through the tap: how it began, and when the daemon sent what."""

    asked: bytearray = field(default_factory=bytearray)
    marks: list[Mark] = field(default_factory=list)


class Tap:
    """Stands between the proxy and a daemon, and knows when the daemon sent what."""

    def __init__(self, listen: Path, daemon: str) -> None:
        self.path = str(listen)
        self._daemon = daemon
        self._connections: list[Tapped] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._accept, self.path)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def newest(self, line: str) -> Tapped:
        """Return the newest connection that began so."""
        return next(found for found in reversed(self._connections) if found.asked.startswith(line.encode()))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        tapped = Tapped()
        self._connections.append(tapped)
        daemon_reader, daemon_writer = await asyncio.open_unix_connection(self._daemon)

        def asks(data: bytes) -> None:
            if len(tapped.asked) < KEPT_BYTES:
                tapped.asked.extend(data)

        def tells(data: bytes) -> None:
            count = tapped.marks[-1].count if tapped.marks else 0
            tapped.marks.append(Mark(time.monotonic(), count + len(data)))

        try:
            await asyncio.gather(_pass(reader, daemon_writer, asks), _pass(daemon_reader, writer, tells))
        except ConnectionError:
            pass  # one side has gone, and so does the other
        finally:
            writer.close()
            daemon_writer.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Callable[[bytes], None]) -> None:
    while data := await reader.read(MIB):
        seen(data)
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def arrivals(raw: Raw) -> list[Mark]:
    """Read a chunked answer to its end; return when it came."""
    marks: list[Mark] = []
    tail, count = b"", 0
    while not tail.endswith(LAST_CHUNK):
        data = await asyncio.wait_for(raw.reader.read(MIB), SECONDS)
        assert data, "the answer ends without its last chunk"
        count += len(data)
        marks.append(Mark(time.monotonic(), count))
        tail = (tail + data)[-len(LAST_CHUNK) :]
    return marks


def latest(sent: Sequence[Mark], came: Sequence[Mark]) -> float:
    """Return how long after its sending the latest byte came, in seconds. The bytes must be the same number."""
    assert sent[-1].count == came[-1].count
    late, arrived = 0.0, iter(came)
    mark = next(arrived)
    for piece in sent:
        while mark.count < piece.count:
            mark = next(arrived)
        late = max(late, mark.at - piece.at)
    return late
