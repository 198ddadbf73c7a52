"""One end of a connection: a non-blocking stream socket on the event loop.

Owns reading, writing, back-pressure and half-close of one socket.
Must not know: the other end, any protocol.
Invariant: a write error ends the writing direction only; what the peer sent before is still read and delivered. The
event loops' own transports drop it, so plain sockets are used (relay-rules C8).
"""

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

from runtimeproxy.relay.hangups import Hangups, has_hung_up

REQUEST_BYTES = 8 * 1024
"""Most bytes per read from a peer with short requests. Such a request costs more CPU than its bytes suggest, so the
other connections get their turn soon."""
HIGH_WATER = 256 * 1024
"""Bytes kept for a slow peer above which the other side is paused."""
LOW_WATER = 64 * 1024
SHARED_BYTES = 256 * 1000
"""Size of a read buffer in bytes, above the kernel's default buffer of a unix socket, so that one read empties it: each
further read wakes the peer, and its output the other one, which costs more than the bytes."""
COPIED_BYTES = 120 * 1024
"""Length in bytes of the pieces in which the shared buffer is copied if the socket does not take it all."""
DISCARDED_READS = 4
"""How many reads are discarded before a close: the socket's buffer, and what is sent meanwhile."""
PASSING_BYTES = 16 * 1024
"""Length in bytes from which on it pays to check whether data can pass unchanged."""
PIECE_BYTES = 512
"""Memory that a queued piece takes beside its bytes: a stream of short lines must not take more than a dense one."""


class ReadBuffer:
    """The buffer that all endpoints of a thread read into in turn: what passes unchanged needs no memory of its own."""

    def __init__(self, size: int = SHARED_BYTES) -> None:
        self.octets = bytearray(size)
        self.view = memoryview(self.octets)


Passes = Callable[["Endpoint", bytearray, int], bool]
"""Sends the first so many bytes of the buffer immediately and returns True, or returns False."""


class Handler(Protocol):
    """Interface of an endpoint's reader."""

    def received(self, endpoint: "Endpoint", data: bytes) -> None:
        """Called with bytes that were read."""

    def ended(self, endpoint: "Endpoint") -> None:
        """Called when the peer sends no more (EOF, or the connection broke)."""

    def drained(self, endpoint: "Endpoint") -> None:
        """Called when the queue for the peer has become short or empty."""


class Endpoint:
    """A connected socket whose bytes go to a handler, at most ``most`` at a time (0: as many as ``buffer`` holds). A
    large read is offered to ``passes`` first, if given.
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
        """Number of bytes queued for the peer."""
        self._reading = False
        self._ended = False
        self._finishing = False
        self.broken = False
        """True once the peer takes no more: what is written is dropped."""
        self._hangups: Hangups | None = None
        self.closed = False

    # Reading.

    def resume(self) -> None:
        """Start or continue reading."""
        if not self._reading and not self._ended and not self.closed:
            self._reading = True
            self._loop.add_reader(self._sock, self._readable)

    def pause(self) -> None:
        """Stop reading until ``resume``."""
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
        """Read and drop what has arrived: closing a socket with unread bytes sends the peer a reset instead of EOF."""
        try:
            for _ in range(DISCARDED_READS):
                if self.closed or not self._sock.recv_into(self._buffer.octets):
                    return
        except OSError:
            pass  # there is no more, or the peer has left

    def refuse(self) -> None:
        """Stop receiving: later writes of the peer fail with EPIPE, and its EOF is not reported."""
        if self._ended or self.closed:
            return
        self.pause()
        self._ended = True
        with contextlib.suppress(OSError):  # the peer has left
            self._sock.shutdown(socket.SHUT_RD)

    @property
    def hung_up(self) -> bool:
        """Return whether the peer has closed its socket, and not only shut down writing; meaningful after its EOF."""
        return not self.closed and has_hung_up(self._sock)

    def watch(self, hangups: Hangups, told: Callable[[], None]) -> None:
        """Call ``told`` once when the peer closes its socket."""
        if not self.closed and self._hangups is None:
            self._hangups = hangups
            hangups.watch(self._sock, told)

    # Writing.

    @property
    def slow(self) -> bool:
        """Return whether so much is queued that the other side should be paused."""
        return self.kept_bytes > HIGH_WATER

    @property
    def kept_bytes(self) -> int:
        """Return the memory that the queue takes: its bytes and the overhead of each piece."""
        return self.waiting + len(self._backlog) * PIECE_BYTES

    def write(self, data: bytes) -> None:
        """Send bytes, immediately as far as the socket takes them; the rest is queued."""
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
        """Send the first ``size`` bytes of the buffer; what the socket does not take is copied and queued."""
        view = self._buffer.view
        sent = 0 if self._backlog or self.broken or self.closed else self._send(view[:size])
        for at in range(sent, size, COPIED_BYTES):
            self.write(bytes(view[at : min(at + COPIED_BYTES, size)]))

    def _send(self, data: bytes | memoryview) -> int:
        try:
            return self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:  # writing has failed, reading goes on
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
        """Shut down writing once everything is sent, so that the peer sees EOF."""
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
        """Close at once; what is queued is lost."""
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
