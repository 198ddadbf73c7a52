"""One end of a connection: a non-blocking stream socket on the event loop.

Owns reading, writing, back-pressure and half-close of one socket.
Must not know: the other end, any protocol.
Invariant: a write error ends the writing direction only; what the peer sent before is still read and delivered
(relay-rules C8: the event loops' own transports drop it, so this stands on plain sockets).
"""

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

from runtimeproxy.relay.hangups import Hangups, has_hung_up

REQUEST_BYTES = 8 * 1024
"""Read at a time of a peer that sends short requests, each of which costs more than its bytes: so the other connections
have their turn soon."""
HIGH_WATER = 256 * 1024
"""Bytes kept for a slow peer at which its other side is to be paused."""
LOW_WATER = 64 * 1024
SHARED_BYTES = 256 * 1000
"""Above what the kernel keeps for one unix socket by default, so that one read takes it all: each one wakes the peer,
and what it becomes the other one, which costs more than the bytes."""
COPIED_BYTES = 120 * 1024
"""A piece of the buffer that is copied because its socket does not take it."""
DISCARDED_READS = 4
"""So much of what nobody takes any more is read at the end: what a socket keeps, and what is sent meanwhile."""
PASSING_BYTES = 16 * 1024
"""From how many bytes on it pays to ask whether they pass as they are."""
PIECE_BYTES = 512
"""What a waiting piece costs beside its bytes: a stream of short lines must not take more memory than a dense one."""


class ReadBuffer:
    """What endpoints of one thread read into by turns: what passes as it is needs no memory of its own."""

    def __init__(self, size: int = SHARED_BYTES) -> None:
        self.octets = bytearray(size)
        self.view = memoryview(self.octets)


Passes = Callable[["Endpoint", bytearray, int], bool]
"""Writes the first so many bytes of the buffer at once, or returns False."""


class Handler(Protocol):
    """Whoever reads an endpoint."""

    def received(self, endpoint: "Endpoint", data: bytes) -> None:
        """Take bytes."""

    def ended(self, endpoint: "Endpoint") -> None:
        """Take the end of what the peer sends (EOF, or the connection broke)."""

    def drained(self, endpoint: "Endpoint") -> None:
        """Take that few enough bytes wait again, or none."""


class Endpoint:
    """A connected socket whose bytes go to a handler, at most ``most`` at a time (0: as many as ``buffer`` holds).

    Those of a big read are given to ``passes`` before, if there is one.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        handler: Handler,
        buffer: ReadBuffer,
        passes: Passes | None = None,
        most: int = 0,
    ) -> None:
        sock.setblocking(False)
        self._loop = loop
        self._sock = sock
        self._handler = handler
        self._buffer = buffer
        self._passes = passes
        self._most = most
        self._backlog: deque[bytes | memoryview] = deque()
        self.waiting = 0
        """Bytes that wait for the peer."""
        self._reading = False
        self._ended = False
        self._finishing = False
        self.broken = False
        """True once the peer takes nothing more: what is written is dropped."""
        self._hangups: Hangups | None = None
        self.closed = False

    # Reading.

    def resume(self) -> None:
        """Read from now on."""
        if not self._reading and not self._ended and not self.closed:
            self._reading = True
            self._loop.add_reader(self._sock, self._readable)

    def pause(self) -> None:
        """Read no more until ``resume``."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._sock)

    def _readable(self) -> None:
        octets = self._buffer.octets
        try:
            size = self._sock.recv_into(octets, self._most)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0
        if not size:
            self.pause()
            self._ended = True
            self._handler.ended(self)
        elif size < PASSING_BYTES or self._passes is None or not self._passes(self, octets, size):
            self._handler.received(self, bytes(self._buffer.view[:size]))

    def discard(self) -> None:
        """Drop what has come and was not read: the peer of a socket that is closed over it gets a reset for its EOF."""
        try:
            for _ in range(DISCARDED_READS):
                if self.closed or not self._sock.recv_into(self._buffer.octets):
                    return
        except OSError:
            pass  # there is no more, or the peer has left

    def refuse(self) -> None:
        """Take nothing more: what the peer sends from now on fails in its own hands (EPIPE); its EOF is not told."""
        if self._ended or self.closed:
            return
        self.pause()
        self._ended = True
        with contextlib.suppress(OSError):  # the peer has left
            self._sock.shutdown(socket.SHUT_RD)

    @property
    def hung_up(self) -> bool:
        """Tell whether the peer has closed its socket altogether; to be asked behind its EOF."""
        return not self.closed and has_hung_up(self._sock)

    def watch(self, hangups: Hangups, told: Callable[[], None]) -> None:
        """Call ``told`` when the peer closes its socket altogether."""
        if not self.closed and self._hangups is None:
            self._hangups = hangups
            hangups.watch(self._sock, told)

    # Writing.

    @property
    def slow(self) -> bool:
        """Tell whether so much waits that the other side should be paused."""
        return self.kept_bytes > HIGH_WATER

    @property
    def kept_bytes(self) -> int:
        """Return what is kept for the peer: what waits, and what keeping each piece of it costs."""
        return self.waiting + len(self._backlog) * PIECE_BYTES

    def write(self, data: bytes) -> None:
        """Send bytes, now as far as the socket takes them and later what is left."""
        if self.broken or self.closed:
            return
        if self._backlog:
            self._keep(data)
            return
        sent = self._send(data)
        if sent < len(data) and not self.broken:
            self._keep(memoryview(data)[sent:])
            self._loop.add_writer(self._sock, self._writable)

    def write_shared(self, size: int) -> None:
        """Send the first bytes of the buffer: what the socket does not take is copied."""
        view = self._buffer.view
        sent = 0 if self._backlog or self.broken or self.closed else self._send(view[:size])
        for at in range(sent, size, COPIED_BYTES):
            self.write(bytes(view[at : min(at + COPIED_BYTES, size)]))

    def _send(self, data: bytes | memoryview) -> int:
        try:
            return self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:  # writing is given up, reading goes on
            self.broken = True
            if self._backlog:
                self._backlog.clear()
                self.waiting = 0
                self._loop.remove_writer(self._sock)
                self._handler.drained(self)
            return 0

    def _keep(self, data: bytes | memoryview) -> None:
        self._backlog.append(data)
        self.waiting += len(data)

    def _writable(self) -> None:
        was_slow = self.kept_bytes > LOW_WATER
        while self._backlog:
            data = self._backlog[0]
            sent = self._send(data)
            if self.broken:
                return
            self.waiting -= sent
            if sent < len(data):
                self._backlog[0] = memoryview(data)[sent:]
                break
            self._backlog.popleft()
        if not self._backlog:
            self._loop.remove_writer(self._sock)
            self._finish_now()
        if (was_slow and self.kept_bytes <= LOW_WATER) or not self._backlog:
            self._handler.drained(self)

    # Ending.

    def finish(self) -> None:
        """Half-close once everything is written: the peer sees EOF."""
        self._finishing = True
        if not self._backlog:
            self._finish_now()

    def _finish_now(self) -> None:
        if self._finishing and not self.closed and not self.broken:
            try:
                self._sock.shutdown(socket.SHUT_WR)
            except OSError:
                self.broken = True

    def close(self) -> None:
        """Close at once; what waits is lost."""
        if self.closed:
            return
        self.pause()
        if self._backlog:
            self._loop.remove_writer(self._sock)
            self._backlog.clear()
            self.waiting = 0
        self.closed = True
        if self._hangups is not None:
            self._hangups.forget(self._sock)
        self._sock.close()
