"""A client's connection and the proxy's own connection to the backend for it: their bytes flow into each other.

Invariants: a side that does not read stops reading from the other side; EOF is passed on after everything before it. A
write error ends the writing direction only: what the peer sent before is still read and delivered. The event loops' own
transports drop it, so plain sockets are used (relay-rules C8).
"""

import asyncio
import contextlib
import logging
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Protocol

from runtimeproxy.errors import WireError
from runtimeproxy.relay.drain import Unfinished
from runtimeproxy.relay.eventloop import batch
from runtimeproxy.relay.hangups import Hangups, has_hung_up
from runtimeproxy.wire.http1 import Send

log = logging.getLogger(__name__)

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
"""Bytes of memory that a queued piece needs in addition to its data: a stream of short lines must not take more than a
dense one."""
KEPT_BYTES = 208 * 1024
"""Send buffer in bytes that is requested of the kernel for a client. The kernel doubles it (socket(7)), so that the
data of one read from the backend is written immediately. It is the kernel's default, and the most that an unprivileged
process may request."""

LINGER_SECONDS = 1.0
"""How many seconds a client may still send after its last answer, so that it reads that before it sees the end."""


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
        if size and self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._loop.call_soon(self._read_on)
        if not size:
            self.pause()
            self._ended = True
            self._handler.ended(self)
        elif size < PASSING_BYTES or self._passes is None or not self._passes(self, octets, size):
            self._handler.received(self, bytes(self._buffer.view[:size]))

    def _read_on(self) -> None:
        """Register for reading again. The peer closed with unread bytes, which is POLLERR: uvloop calls the reader once
        more and then polls no longer (its UVPoll._fatal_error), though more data and EOF wait. getsockopt(2) has
        cleared the error."""
        if self._reading:
            self.pause()
            self.resume()

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

    def watch(self, hangups: Hangups, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when the peer closes its socket."""
        if not self.closed and self._hangups is None:
            self._hangups = hangups
            hangups.watch(self._sock, callback)

    # Writing.

    @property
    def slow(self) -> bool:
        """Return whether so much is queued that the other side should be paused."""
        return self.retained_bytes > HIGH_WATER

    @property
    def retained_bytes(self) -> int:
        """Return the memory that the queue takes: its bytes and the overhead of each piece."""
        return self.waiting + len(self._backlog) * PIECE_BYTES

    def write(self, data: bytes) -> None:
        """Send bytes, immediately as far as the socket takes them; the rest is queued."""
        if self.broken or self.closed:
            return
        left: bytes | memoryview = data
        if not self._backlog:
            sent = 0
            try:
                sent = self._sock.send(data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:  # writing has failed, reading continues
                self.broken = True
                return
            if sent == len(data):
                return
            left = memoryview(data)[sent:]
            self._loop.add_writer(self._sock, self._writable)
        self._backlog.append(left)
        self.waiting += len(left)

    def write_shared(self, size: int) -> None:
        """Send the first ``size`` bytes of the buffer; what the socket does not take is copied and queued."""
        view, sent = self._buffer.view, 0
        if not (self._backlog or self.broken or self.closed):
            try:
                sent = self._sock.send(view[:size])
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                self.broken = True
        for at in range(sent, size, COPIED_BYTES):
            self.write(bytes(view[at : min(at + COPIED_BYTES, size)]))

    def _writable(self) -> None:
        was_slow = self.retained_bytes > LOW_WATER
        while self._backlog:
            data, sent = self._backlog[0], 0
            try:
                sent = self._sock.send(data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                self.broken = True
                self._drop_backlog()
                self._handler.drained(self)
                return
            self.waiting -= sent
            if sent < len(data):
                self._backlog[0] = memoryview(data)[sent:]
                break
            self._backlog.popleft()
        if not self._backlog:
            self._loop.remove_writer(self._sock)
            self._finish_now()
        if (was_slow and self.retained_bytes <= LOW_WATER) or not self._backlog:
            self._handler.drained(self)

    def _drop_backlog(self) -> None:
        self._loop.remove_writer(self._sock)
        self._backlog.clear()
        self.waiting = 0

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
        """Close immediately; what is queued is lost."""
        if self.closed:
            return
        self.pause()
        if self._backlog:
            self._drop_backlog()
        self.closed = True
        if self._hangups is not None:
            self._hangups.forget(self._sock)
        self._sock.close()


class Connection(ABC):
    """A client and the backend for it. A subclass reads their bytes into ``outputs``, the lists of what goes to the
    client and to the backend, and lists in ``ready`` what ``act`` has to do after the read. The output of both leaves
    in the same write.
    """

    client_bytes: Callable[[bytes], None]
    """Called with bytes from the client. Raises WireError."""
    backend_bytes: Callable[[bytes], None]
    """Called with bytes from the backend. Raises WireError."""
    client_passes: Callable[[bytearray, int, Send], bool]
    """Called with a large read from the client, the first so many bytes of a reused buffer, if ``bulk``: send all of it
    by ``Send`` if it passes unchanged, or do nothing. Return whether it was sent."""
    backend_passes: Callable[[bytearray, int, Send], bool]
    """Called with a large read from the backend, in the same way."""
    bulk = False

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        client: socket.socket,
        backend: socket.socket,
        buffer: ReadBuffer,
        outputs: tuple[list[bytes], list[bytes]],
        ready: deque[object],
        hangups: Hangups | None = None,
    ) -> None:
        self._loop = loop
        self._buffer = buffer
        self._client_socket = client
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KEPT_BYTES)
        self._client = self._endpoint(client, 0 if self.bulk else REQUEST_BYTES)
        self._backend = self._endpoint(backend)  # its answers are long
        self._to_client, self._to_backend = outputs
        self._ready = ready
        self._hangups = hangups
        self._others: list[Endpoint] = []
        self._backend_ended = False
        self._half_closed = False
        self.client_ended = False
        """True once the client's EOF was read."""
        self._client_gone = False
        self._client_held = False
        self._parted = False
        self._closed = False
        self._acting = False
        self._reading = False
        """True while a subclass reads bytes; both sides are written after that."""
        self._client.resume()
        self._backend.resume()

    # What a subclass does.

    @abstractmethod
    def act(self, event: object) -> None:
        """Called after the read with what it found, in order."""

    @abstractmethod
    def client_eof(self) -> bool:
        """Called at the client's EOF. Return True if bytes for the backend are still to come; ``pass_client_eof`` must
        follow.
        """

    def client_gone(self) -> None:  # noqa: B027
        """Called if hang-ups are watched: the client closed its socket, perhaps before ``client_eof``."""

    @abstractmethod
    def backend_eof(self) -> bool:
        """Called at the backend's EOF. Return True if the connection continues; ``pass_backend_eof`` ends it."""

    @abstractmethod
    def on_closed(self) -> None:
        """Called after both connections were closed."""

    @abstractmethod
    def drain(self, refusing: bool) -> None:
        """Called repeatedly, see ``relay.drain.Drainable``."""

    @abstractmethod
    def unfinished(self) -> Unfinished:
        """Called repeatedly: return what the client still waits for."""

    # Reading and writing.

    def _endpoint(self, sock: socket.socket, most: int = 0) -> Endpoint:
        return Endpoint(self._loop, sock, self, self._buffer, self._passes if self.bulk else None, most)

    def _passes(self, endpoint: Endpoint, buffer: bytearray, size: int) -> bool:
        """Send bytes that pass unchanged, unless others are queued before them."""
        if endpoint is self._client:
            other, waiting, passes = self._backend, self._to_backend, self.client_passes
        else:
            other, waiting, passes = self._client, self._to_client, self.backend_passes
        if waiting or not passes(buffer, size, other.write_shared):
            return False
        if other.slow:
            endpoint.pause()
        if self._ready:
            self.act_on_ready()
        self.flush()
        return True

    def received(self, endpoint: Endpoint, data: bytes) -> None:
        """Read bytes, act on what was found, and write the output of both."""
        self._reading = True
        try:
            (self.client_bytes if endpoint is self._client else self.backend_bytes)(data)
        except WireError as error:
            side = "client" if endpoint is self._client else "runtime"
            log.warning("connection closed: the %s broke the protocol: %s", side, error)
            self.flush()
            self.close()
        finally:
            self._reading = False
        if self._ready:
            self.act_on_ready()
        self.flush()

    def wake(self) -> None:
        """Act on what was read and write what waits; during a read that is done after it."""
        if not self._reading:
            self.act_on_ready()
            self.flush()

    def act_on_ready(self) -> None:
        """Act on what was read, in order. What is found while acting follows; it is not acted on inside of that, or
        thousands of pipelined requests would run nested in one another."""
        if self._acting:
            return
        self._acting = True
        try:
            while self._ready:
                for event in batch.each(self._ready):
                    self.act(event)
        finally:
            self._acting = False

    def flush(self) -> None:
        """Write what waits for both sides."""
        if self._to_client:
            self._client.write(b"".join(self._to_client) if len(self._to_client) > 1 else self._to_client[0])
            self._to_client.clear()
            if self._client.waiting and self._client.slow:
                self._backend.pause()
                for other in self._others:
                    other.pause()
        if self._to_backend:
            self._backend.write(b"".join(self._to_backend) if len(self._to_backend) > 1 else self._to_backend[0])
            self._to_backend.clear()
            if self._backend.waiting and self._backend.slow:
                self._client.pause()
        if self._client.broken:
            self._refuse_backend()

    def _refuse_backend(self) -> None:
        """Shut down reading from the backend because the client takes no more.

        Without a proxy the backend's next write would fail, too. The client may have closed after sending bytes that
        the backend does not take yet, and its EOF has to follow them. Until then nothing else would notify the backend
        that nobody reads its answers. What the client has sent still goes to it.
        """
        if self._hangups is not None:
            self._backend.refuse()
            self._backend.watch(self._hangups, self._backend_hung_up)

    def drained(self, endpoint: Endpoint) -> None:
        """Continue reading the other side, as an endpoint's queue is short again."""
        if self._closed:
            return
        if endpoint is self._client:
            if endpoint.broken:
                self._refuse_backend()
            self._backend.resume()
            for other in self._others:
                self.read_on(other)
        elif not self._client_held:
            self._client.resume()
        self._close_if_done()

    # Further connections whose answers go to the client.

    def attach(self, other: Endpoint) -> None:
        """Read another connection, whose answers go to the client, only while the client takes them."""
        self._others.append(other)
        self.read_on(other)

    def detach(self, other: Endpoint) -> None:
        self._others.remove(other)

    def read_on(self, other: Endpoint) -> None:
        """Continue reading an attached connection, unless its own peer or the client is slow."""
        if not other.slow and not self._client.slow:
            other.resume()

    def hold_client(self, hold: bool) -> None:
        """Stop reading from the client, or continue."""
        self._client_held = hold
        if hold:
            self._client.pause()
        elif not self._backend.slow:
            self._client.resume()

    def ended(self, endpoint: Endpoint) -> None:
        """Pass EOF on in order; the EOF of a client that has closed its socket is no half-close (relay-rules B1)."""
        if endpoint is self._client:
            self.client_ended = True
            if self._hangups is not None and self._client.hung_up:
                self._hung_up()
                return
            if not self.client_eof():
                self.pass_client_eof()
            if self._hangups is not None and not self._closed:
                self._client.watch(self._hangups, self._hung_up)
        elif endpoint is self._backend and not self.backend_eof():
            self.pass_backend_eof()

    def _hung_up(self) -> None:
        self._client_gone = True
        self.client_gone()
        self._close_if_done()

    def pass_client_eof(self) -> None:
        """Pass the client's EOF on, after everything for the backend was given."""
        self.flush()
        self._backend.finish()
        self._close_if_done()

    def half_close(self) -> None:
        """Pass the backend's EOF on and let the client send until its own EOF, as in a tunnel."""
        self._half_closed = True
        self.flush()
        self._client.finish()
        if self._hangups is not None:
            self._backend.watch(self._hangups, self._backend_hung_up)
        self._close_if_done()

    def _backend_hung_up(self) -> None:
        """End the backend's side, as it has closed its socket: what the client still sends is lost."""
        self._backend_ended = True
        self._close_if_done()

    def pass_backend_eof(self) -> None:
        """Pass the backend's EOF on and end the connection, after everything for the client was given."""
        self._backend_ended = True
        self.flush()
        self._client.finish()
        self._backend.close()
        self._close_if_done()

    def _close_if_done(self) -> None:
        """Close both sides if nothing can flow any more. That is so if the backend has ended and everything was sent to
        the client, if both sides have ended, or if the client is gone and everything was sent to the backend.
        """
        sent, delivered = not self._backend.waiting, not self._client.waiting
        both_ended = self._half_closed and self.client_ended and sent
        if (self._client_gone and sent) or (delivered and (self._backend_ended or both_ended)):
            self._client.discard()
            self.close()

    def replace_backend(self, backend: socket.socket) -> None:
        """Continue with another connection to the backend, after the first one has ended."""
        self._backend.close()
        self._backend = self._endpoint(backend)
        self._backend.resume()
        self.hold_client(self._client_held)  # the client may have been paused because the first backend was slow

    def shut_client(self) -> None:
        """Shut down reading from the client; what it has sent is still read, followed by EOF.

        Its later writes fail with EPIPE: on a unix socket no byte is lost in between (tried). This is the only safe way
        to close a connection on which a request may be on its way.
        """
        self._client_socket.shutdown(socket.SHUT_RD)

    def finish_client(self) -> None:
        """Shut down writing to the client after everything queued; what it still sends must be dropped. Both sides
        close when the client has ended too.
        """
        self.flush()
        self._client.finish()
        self._backend.close()
        self._half_closed = True
        self.hold_client(False)
        self._close_if_done()

    def part(self) -> None:
        """Half-close toward the client after what was sent to it, and close once the client has closed."""
        if not self._parted:
            self._parted = True
            self.finish_client()

    def linger(self) -> None:
        """Close both sides after LINGER_SECONDS, or later, once everything was sent to the client. A client whose send
        fails (EPIPE) may not read earlier bytes; gRPC's does not. So it may still send until then.
        """
        self._loop.call_later(LINGER_SECONDS, self._close_if_delivered)

    def _close_if_delivered(self) -> None:
        if self.delivered:
            self.close()
        else:
            self.linger()

    @property
    def delivered(self) -> bool:
        """Return whether everything was sent to the client."""
        return not self._client.waiting

    @property
    def slow(self) -> tuple[bool, bool]:
        """Return whether much is queued, for the client and for the backend."""
        return self._client.slow, self._backend.slow

    def close(self) -> None:
        """Close both sides immediately; what is queued is lost."""
        if self._closed:
            return
        self._closed = True
        self._client.close()
        self._backend.close()
        self.on_closed()
