"""A client connection paired with a backend connection: the bytes of each are relayed to the other.

Invariants: if one peer does not read, reading from the other one pauses; EOF is passed on after all earlier bytes. A
write error ends the writing direction only: bytes that the peer sent before are still read and delivered. The event
loops' transports drop those bytes, so plain sockets are used (relay-rules C8).
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
limit keeps other connections responsive."""
HIGH_WATER = 256 * 1024
"""Queued bytes for a slow peer above which reading from the other peer pauses."""
LOW_WATER = 64 * 1024
SHARED_BYTES = 256 * 1000
"""Size of a read buffer in bytes. It exceeds the kernel's default unix socket buffer, so one read empties the socket.
Each further read would wake both peers, which costs more than copying the bytes."""
CHUNK_BYTES = 120 * 1024
"""Length in bytes of the chunks in which unsent bytes of the shared buffer are copied."""
DISCARDED_READS = 4
"""Most reads that are discarded before a close: the socket's buffer, and bytes sent meanwhile."""
PASSING_BYTES = 16 * 1024
"""Shortest read, in bytes, that is checked for data that can pass unchanged."""
QUEUE_ITEM_BYTES = 512
"""Memory overhead of a queue item in bytes: a stream of short lines must not need more memory than a dense one."""
CLIENT_SEND_BUFFER_BYTES = 208 * 1024
"""Send buffer of a client in bytes (SO_SNDBUF). The kernel doubles it (socket(7)), so that the data of one read from
the backend is written immediately. It is the kernel's default, and the most that an unprivileged process may
request."""

LINGER_SECONDS = 1.0
"""Seconds that a client may still send after its last answer, so that it reads the answer before the end."""


class ReadBuffer:
    """The read buffer that all endpoints of a thread share: data that passes unchanged is not copied."""

    def __init__(self, size: int = SHARED_BYTES) -> None:
        self.octets = bytearray(size)
        self.view = memoryview(self.octets)


Passes = Callable[["Endpoint", bytearray, int], bool]
"""Sends the given number of bytes of the buffer immediately and returns True, or returns False."""


class Handler(Protocol):
    """Interface of an endpoint's reader."""

    def received(self, endpoint: "Endpoint", data: bytes) -> None:
        """Called with bytes that were read."""

    def ended(self, endpoint: "Endpoint") -> None:
        """Called when the peer sends no more (EOF, or the connection broke)."""

    def drained(self, endpoint: "Endpoint") -> None:
        """Called when the queue for the peer has become short or empty."""


class Endpoint:
    """A connected socket whose bytes are passed to a handler, at most ``max_read_bytes`` at a time (0: the size of
    ``buffer``). A large read is offered to ``passes`` first, if given.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        handler: Handler,
        buffer: ReadBuffer,
        passes: Passes | None = None,
        max_read_bytes: int = 0,
    ) -> None:
        sock.setblocking(False)
        self._loop = loop
        self._sock = sock
        self._handler = handler
        self._buffer = buffer
        self._passes = passes
        self._max_read_bytes = max_read_bytes
        self._backlog: deque[bytes | memoryview] = deque()
        self.waiting = 0
        """Number of bytes queued for the peer."""
        self._reading = False
        self._ended = False
        self._finishing = False
        self.broken = False
        """True once writing has failed: later writes are dropped."""
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
            size = self._sock.recv_into(octets, self._max_read_bytes)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0
        if size and self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._loop.call_soon(self._reregister_reader)
        if not size:
            self.pause()
            self._ended = True
            self._handler.ended(self)
        elif size < PASSING_BYTES or self._passes is None or not self._passes(self, octets, size):
            self._handler.received(self, bytes(self._buffer.view[:size]))

    def _reregister_reader(self) -> None:
        """Register the reader again after POLLERR, which a peer causes by closing with unread bytes. uvloop then stops
        polling (UVPoll._fatal_error), although data and EOF are pending. getsockopt(2) has cleared the error."""
        if self._reading:
            self.pause()
            self.resume()

    def discard(self) -> None:
        """Drop received bytes: closing a socket with unread bytes sends the peer a reset instead of EOF."""
        try:
            for _ in range(DISCARDED_READS):
                if self.closed or not self._sock.recv_into(self._buffer.octets):
                    return
        except OSError:
            pass  # no more bytes, or the peer has closed

    def shutdown_read(self) -> None:
        """Stop receiving: later writes of the peer fail with EPIPE, and its EOF is not reported."""
        if self._ended or self.closed:
            return
        self.pause()
        self._ended = True
        with contextlib.suppress(OSError):  # the peer has closed
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
        """Return whether the queue is so long that reading from the other peer should pause."""
        return self.retained_bytes > HIGH_WATER

    @property
    def retained_bytes(self) -> int:
        """Return the memory of the queue: its bytes and the overhead of each item."""
        return self.waiting + len(self._backlog) * QUEUE_ITEM_BYTES

    def write(self, data: bytes) -> None:
        """Send bytes; those that the socket does not accept now are queued."""
        if self.broken or self.closed:
            return
        unsent: bytes | memoryview = data
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
            unsent = memoryview(data)[sent:]
            self._loop.add_writer(self._sock, self._writable)
        self._backlog.append(unsent)
        self.waiting += len(unsent)

    def write_shared(self, size: int) -> None:
        """Send the first ``size`` bytes of the buffer; those that the socket does not accept are copied and queued."""
        view, sent = self._buffer.view, 0
        if not (self._backlog or self.broken or self.closed):
            try:
                sent = self._sock.send(view[:size])
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                self.broken = True
        for offset in range(sent, size, CHUNK_BYTES):
            self.write(bytes(view[offset : min(offset + CHUNK_BYTES, size)]))

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
        """Close immediately; queued bytes are lost."""
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
    """A client and its backend. A subclass parses their bytes, appends output to ``outputs`` (for the client, for the
    backend) and events for ``act`` to ``ready``. After a read, each output is sent in one write.
    """

    client_bytes: Callable[[bytes], None]
    """Called with bytes from the client. Raises WireError."""
    backend_bytes: Callable[[bytes], None]
    """Called with bytes from the backend. Raises WireError."""
    client_passes: Callable[[bytearray, int, Send], bool]
    """Called with a large read from the client (a reused buffer and the size) if ``bulk``: send all of it by ``Send``
    if it passes unchanged, or do nothing. Return whether it was sent."""
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
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CLIENT_SEND_BUFFER_BYTES)
        self._client = self._endpoint(client, 0 if self.bulk else REQUEST_BYTES)
        self._backend = self._endpoint(backend)  # its answers are long
        self._to_client, self._to_backend = outputs
        self._ready = ready
        self._hangups = hangups
        self._attached: list[Endpoint] = []
        self._backend_ended = False
        self._half_closed = False
        self.client_ended = False
        """True once the client's EOF was read."""
        self._client_closed = False
        self._client_paused = False
        self._parted = False
        self._closed = False
        self._acting = False
        self._reading = False
        """True while a subclass reads bytes; both sides are written after that."""
        self._client.resume()
        self._backend.resume()

    # Methods of the subclass.

    @abstractmethod
    def act(self, event: object) -> None:
        """Called after the read with each event, in order."""

    @abstractmethod
    def client_eof(self) -> bool:
        """Called at the client's EOF. Return True if more bytes for the backend will follow; ``pass_client_eof`` must
        be called then.
        """

    def client_closed(self) -> None:  # noqa: B027
        """Called when the client has closed its socket, perhaps before ``client_eof``, if hang-ups are watched."""

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
        """Called repeatedly: return the unfinished work of the client."""

    # Reading and writing.

    def _endpoint(self, sock: socket.socket, max_read_bytes: int = 0) -> Endpoint:
        return Endpoint(self._loop, sock, self, self._buffer, self._passes if self.bulk else None, max_read_bytes)

    def _passes(self, endpoint: Endpoint, buffer: bytearray, size: int) -> bool:
        """Send bytes that pass unchanged, unless earlier output is pending."""
        if endpoint is self._client:
            target, waiting, passes = self._backend, self._to_backend, self.client_passes
        else:
            target, waiting, passes = self._client, self._to_client, self.backend_passes
        if waiting or not passes(buffer, size, target.write_shared):
            return False
        if target.slow:
            endpoint.pause()
        if self._ready:
            self.act_on_ready()
        self.flush()
        return True

    def received(self, endpoint: Endpoint, data: bytes) -> None:
        """Parse bytes, handle the events, and write both outputs."""
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
        """Handle the events and write the outputs; during a read, this is done after it."""
        if not self._reading:
            self.act_on_ready()
            self.flush()

    def act_on_ready(self) -> None:
        """Handle the events in order. Events that are added meanwhile are handled after the present one: otherwise
        thousands of pipelined requests would recurse."""
        if self._acting:
            return
        self._acting = True
        try:
            while self._ready:
                for event in batch.iterate(self._ready):
                    self.act(event)
        finally:
            self._acting = False

    def flush(self) -> None:
        """Write the outputs for both sides."""
        if self._to_client:
            self._client.write(b"".join(self._to_client) if len(self._to_client) > 1 else self._to_client[0])
            self._to_client.clear()
            if self._client.waiting and self._client.slow:
                self._backend.pause()
                for endpoint in self._attached:
                    endpoint.pause()
        if self._to_backend:
            self._backend.write(b"".join(self._to_backend) if len(self._to_backend) > 1 else self._to_backend[0])
            self._to_backend.clear()
            if self._backend.waiting and self._backend.slow:
                self._client.pause()
        if self._client.broken:
            self._shutdown_backend_read()

    def _shutdown_backend_read(self) -> None:
        """Shut down reading from the backend because writing to the client has failed.

        Without a proxy, the backend's next write would fail, too. The client's earlier bytes are still sent to the
        backend, followed by EOF. Until then, only a failing write shows the backend that nobody reads its answers.
        """
        if self._hangups is not None:
            self._backend.shutdown_read()
            self._backend.watch(self._hangups, self._on_backend_hangup)

    def drained(self, endpoint: Endpoint) -> None:
        """Continue reading from the other side once an endpoint's queue is short again."""
        if self._closed:
            return
        if endpoint is self._client:
            if endpoint.broken:
                self._shutdown_backend_read()
            self._backend.resume()
            for attached in self._attached:
                self.resume_attached(attached)
        elif not self._client_paused:
            self._client.resume()
        self._close_if_done()

    # Further connections whose answers go to the client.

    def attach(self, endpoint: Endpoint) -> None:
        """Read another connection, whose answers are sent to the client, while the client is not slow."""
        self._attached.append(endpoint)
        self.resume_attached(endpoint)

    def detach(self, endpoint: Endpoint) -> None:
        self._attached.remove(endpoint)

    def resume_attached(self, endpoint: Endpoint) -> None:
        """Continue reading an attached connection, unless its own peer or the client is slow."""
        if not endpoint.slow and not self._client.slow:
            endpoint.resume()

    def pause_client(self, paused: bool) -> None:
        """Stop reading from the client, or continue."""
        self._client_paused = paused
        if paused:
            self._client.pause()
        elif not self._backend.slow:
            self._client.resume()

    def ended(self, endpoint: Endpoint) -> None:
        """Pass EOF on in order; the EOF of a client that has closed its socket is not a half-close (relay-rules B1)."""
        if endpoint is self._client:
            self.client_ended = True
            if self._hangups is not None and self._client.hung_up:
                self._on_client_hangup()
                return
            if not self.client_eof():
                self.pass_client_eof()
            if self._hangups is not None and not self._closed:
                self._client.watch(self._hangups, self._on_client_hangup)
        elif endpoint is self._backend and not self.backend_eof():
            self.pass_backend_eof()

    def _on_client_hangup(self) -> None:
        self._client_closed = True
        self.client_closed()
        self._close_if_done()

    def pass_client_eof(self) -> None:
        """Pass the client's EOF on after all bytes for the backend."""
        self.flush()
        self._backend.finish()
        self._close_if_done()

    def half_close(self) -> None:
        """Pass the backend's EOF on and let the client send until its own EOF, as in a tunnel."""
        self._half_closed = True
        self.flush()
        self._client.finish()
        if self._hangups is not None:
            self._backend.watch(self._hangups, self._on_backend_hangup)
        self._close_if_done()

    def _on_backend_hangup(self) -> None:
        """End the backend's side, as it has closed its socket: later bytes of the client are lost."""
        self._backend_ended = True
        self._close_if_done()

    def pass_backend_eof(self) -> None:
        """Pass the backend's EOF on after all bytes for the client, and end the connection."""
        self._backend_ended = True
        self.flush()
        self._client.finish()
        self._backend.close()
        self._close_if_done()

    def _close_if_done(self) -> None:
        """Close both sides once no more bytes can be relayed. Either the backend has ended and everything was sent to
        the client, or both sides have ended, or the client has closed and everything was sent to the backend.
        """
        sent, delivered = not self._backend.waiting, not self._client.waiting
        both_ended = self._half_closed and self.client_ended and sent
        if (self._client_closed and sent) or (delivered and (self._backend_ended or both_ended)):
            self._client.discard()
            self.close()

    def replace_backend(self, backend: socket.socket) -> None:
        """Continue with another connection to the backend, after the first one has ended."""
        self._backend.close()
        self._backend = self._endpoint(backend)
        self._backend.resume()
        self.pause_client(self._client_paused)  # the client may have been paused because the first backend was slow

    def shut_client(self) -> None:
        """Shut down reading from the client; bytes already sent are still read, followed by EOF.

        Its later writes fail with EPIPE: on a unix socket no byte is lost in between (tested). This is the only safe
        way to close a connection on which a request may be in flight.
        """
        self._client_socket.shutdown(socket.SHUT_RD)

    def finish_client(self) -> None:
        """Shut down writing to the client after all queued bytes; the subclass must drop later bytes of the client.
        Both sides close when the client has ended too.
        """
        self.flush()
        self._client.finish()
        self._backend.close()
        self._half_closed = True
        self.pause_client(False)
        self._close_if_done()

    def part(self) -> None:
        """Half-close toward the client after all queued bytes, and close once the client has closed."""
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
        """Return whether the client and the backend are slow."""
        return self._client.slow, self._backend.slow

    def close(self) -> None:
        """Close both sides immediately; queued bytes are lost."""
        if self._closed:
            return
        self._closed = True
        self._client.close()
        self._backend.close()
        self.on_closed()
