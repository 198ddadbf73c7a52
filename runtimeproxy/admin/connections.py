"""The clients' connections: how many there are, how much each may send, how long it may be silent.

Owns accept(2) on a handed-over socket, and the bounds that aiohttp has none for.
Must not know: requests and answers beyond that one is worked on.
Invariant: a client that stops, sends too much or never reads is closed and costs others nothing. Where there is no
room, a connection that has not asked loses its place.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import cast

CONNECTIONS = 32
"""Most connections of a socket that are open; others wait in its backlog."""
RECEIVED_BYTES = 12 * 1024
"""Most bytes that a client may send: a head of 8 KiB and a body of 4 KiB."""
SILENT_SECONDS = 10.0
"""How long a connection may bring no byte while nothing is worked on for it."""
ASKING_SECONDS = 0.1
"""How long a connection may take to bring a whole head where all places are taken, or all bytes sent."""
PAUSE_SECONDS = 0.5
"""Pause of accepting when no file descriptor is left."""
TICK_SECONDS = 1.0
_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Connection(asyncio.Protocol):
    """Counts and times what a client sends, and passes it on to aiohttp's protocol."""

    def __init__(self, http: asyncio.Protocol, room: "Room") -> None:
        self._http = http
        self._room = room
        self._left = RECEIVED_BYTES
        self.began = self.heard = room.loop.time()
        self.asked = False
        self.working = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._room.open[self] = None
        self._http.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.heard = self._room.loop.time()
        self._left -= len(data)
        if self._left < 0:
            data = data[: self._left]  # an error's traceback would keep the whole of it in memory
        self._http.data_received(data)
        if self._left < 0:
            self.transport.pause_reading()
            self._room.loop.call_later(ASKING_SECONDS, self._refuse)

    def _refuse(self) -> None:
        """Refuse a client that has sent all it may, unless that was a request with a body too long."""
        if not self.asked:
            self.transport.write(_TOO_LONG)
            self.transport.close()

    def eof_received(self) -> bool | None:
        return self._http.eof_received()

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._http.connection_lost(exc)
        del self._room.open[self]
        self._room.left.set()

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """While a request is worked on its client may be silent."""
        self.asked = self.working = True
        try:
            yield
        finally:
            self.working = False
            self.heard = self._room.loop.time()


class Room:
    """The connections of one listening socket; ``http`` makes aiohttp's protocol for each."""

    def __init__(self, listener: socket.socket, http: Callable[[], asyncio.Protocol]) -> None:
        self.loop = asyncio.get_running_loop()
        self.open: dict[Connection, None] = {}
        self.left = asyncio.Event()
        self._listener = listener
        self._http = http
        self._tick()

    def _tick(self) -> None:
        now = self.loop.time()
        self._close(lambda open: not open.working and now - open.heard > SILENT_SECONDS)
        self.loop.call_later(TICK_SECONDS, self._tick)

    def _close(self, which: Callable[[Connection], bool]) -> None:
        for connection in filter(which, tuple(self.open)):
            connection.transport.abort()

    async def accept(self) -> None:
        """Accept connections until this is cancelled."""
        while True:
            await self._place()
            try:
                client, _ = await self.loop.sock_accept(self._listener)
            except OSError:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            await self.loop.connect_accepted_socket(lambda: Connection(self._http(), self), client)

    async def _place(self) -> None:
        while len(self.open) >= CONNECTIONS:
            self.left.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.left.wait(), ASKING_SECONDS)
                continue
            self._close(lambda open: not open.asked and self.loop.time() - open.began >= ASKING_SECONDS)
