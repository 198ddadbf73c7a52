"""Two connections whose bytes flow into each other.

Owns the pairing of a client with the backend: back-pressure, half-close, the order of closing.
Must not know: what the bytes mean; a ``Flow`` reads them and decides what is sent.
Invariant: a side that does not read stops reading from the other side; EOF is passed on after everything before it.
"""

import asyncio
import logging
import socket
from collections import deque
from typing import Any, Protocol

from runtimeproxy.errors import WireError
from runtimeproxy.relay.endpoint import REQUEST_BYTES, Endpoint, ReadBuffer
from runtimeproxy.relay.hangups import Hangups
from runtimeproxy.wire.bodies import Send

log = logging.getLogger(__name__)

KEPT_BYTES = 208 * 1024
"""Send buffer in bytes that the kernel is asked to keep for a client. The kernel doubles it (socket(7)), so that the
data of one read from the backend is written immediately. It is the kernel's default, and the most that an unprivileged
process may ask for."""

LINGER_SECONDS = 1.0
"""How many seconds a client may still send after its last answer, so that it reads that before it sees the end."""


class Flow(Protocol):
    """Interface of the code that reads the bytes of a pair."""

    @property
    def happened(self) -> deque[Any]:
        """What is left to do after a read, so that its output leaves in the same write."""

    def act(self) -> None:
        """Called after a read: do that."""

    def client_bytes(self, data: bytes) -> None:
        """Called with bytes from the client. Raises WireError."""

    def backend_bytes(self, data: bytes) -> None:
        """Called with bytes from the backend. Raises WireError."""

    def client_ended(self) -> bool:
        """Called at the client's EOF. Return True if bytes for the backend are still to come; ``Pair.client_done`` must
        follow.
        """

    def client_gone(self) -> None:
        """Called if the pair watches for hang-ups: the client closed its socket, perhaps before ``client_ended``."""

    def backend_ended(self) -> bool:
        """Called at the backend's EOF. Return True if the connection goes on; ``Pair.backend_done`` ends it."""

    def outputs(self) -> tuple[list[bytes], list[bytes]]:
        """Return the lists of bytes to send to the client and to the backend; the pair empties them."""

    def closed(self) -> None:
        """Called after both connections were closed."""


class Bulk(Protocol):
    """Interface for large reads: each sends the first ``size`` bytes of a reused buffer if they pass unchanged."""

    def client_passes(self, buffer: bytearray, size: int, send: Send) -> bool:
        """Called with a large read from the client: send all of it by ``send``, or do nothing. Return whether it was
        sent.
        """

    def backend_passes(self, buffer: bytearray, size: int, send: Send) -> bool:
        """Called with a large read from the backend, in the same way."""


class Pair:
    """A client's connection and the proxy's connection to the backend for it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        client: socket.socket,
        backend: socket.socket,
        flow: Flow,
        buffer: ReadBuffer,
        hangups: Hangups | None = None,
        bulk: Bulk | None = None,
    ) -> None:
        self._bulk = bulk
        self._buffer = buffer
        self._client_socket = client
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KEPT_BYTES)
        self._client = self._endpoint(loop, client, REQUEST_BYTES if bulk is None else 0)
        self._backend = self._endpoint(loop, backend)  # its answers are long
        self._flow = flow
        self._loop = loop
        self._to_client, self._to_backend = flow.outputs()
        self._happened = flow.happened
        self._hangups = hangups
        self._others: list[Endpoint] = []
        self._backend_ended = False
        self._half_closed = False
        self.client_ended = False
        """True once the client's EOF was read."""
        self._client_gone = False
        self._client_held = False
        self._closed = False
        self.reading = False
        """True while the flow reads bytes; both sides are written after that."""
        self._client.resume()
        self._backend.resume()

    def _endpoint(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, most: int = 0) -> Endpoint:
        return Endpoint(loop, sock, self, self._buffer, None if self._bulk is None else self._passes, most)

    def _passes(self, endpoint: Endpoint, buffer: bytearray, size: int) -> bool:
        """Send bytes that pass unchanged, unless others are queued before them."""
        assert self._bulk is not None
        if endpoint is self._client:
            other, waiting, passes = self._backend, self._to_backend, self._bulk.client_passes
        else:
            other, waiting, passes = self._client, self._to_client, self._bulk.backend_passes
        if waiting or not passes(buffer, size, other.write_shared):
            return False
        if other.slow:
            endpoint.pause()
        if self._happened:  # the end of an answer began the turn of the next request
            self._flow.act()
        self.flush()
        return True

    def received(self, endpoint: Endpoint, data: bytes) -> None:
        """Pass bytes to the flow, resume the calls they are for, and send the output of both."""
        take = self._flow.client_bytes if endpoint is self._client else self._flow.backend_bytes
        self.reading = True
        try:
            take(data)
        except WireError as error:
            side = "client" if endpoint is self._client else "runtime"
            log.warning("connection closed: the %s broke the protocol: %s", side, error)
            self.flush()
            self.close()
        finally:
            self.reading = False
        if self._happened:
            self._flow.act()
        self.flush()

    def flush(self) -> None:
        """Send the flow's output to both sides."""
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
        the backend does not take yet, and its EOF has to follow them. Until then nothing else would tell the backend
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
        """Read another connection, whose answers the flow sends to the client, only while the client takes them."""
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
            if not self._flow.client_ended():
                self.client_done()
            if self._hangups is not None and not self._closed:
                self._client.watch(self._hangups, self._hung_up)
        elif endpoint is self._backend and not self._flow.backend_ended():
            self.backend_done()

    def _hung_up(self) -> None:
        self._client_gone = True
        self._flow.client_gone()
        self._close_if_done()

    def client_done(self) -> None:
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

    def backend_done(self) -> None:
        """Pass the backend's EOF on and end the pair, after everything for the client was given."""
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
        self._backend = self._endpoint(self._loop, backend)
        self._backend.resume()
        self.hold_client(self._client_held)  # the client may have been paused because the first backend was slow

    def shut_client(self) -> None:
        """Shut down reading from the client; what it has sent is still read, followed by EOF.

        Its later writes fail with EPIPE: on a unix socket no byte is lost in between (tried). This is the only safe way
        to close a connection on which a request may be on its way.
        """
        self._client_socket.shutdown(socket.SHUT_RD)

    def finish_client(self) -> None:
        """Shut down writing to the client after everything queued; the flow must drop what the client still sends. The
        pair closes when the client has ended too.
        """
        self.flush()
        self._client.finish()
        self._backend.close()
        self._half_closed = True
        self.hold_client(False)
        self._close_if_done()

    def linger(self) -> None:
        """Close both sides after LINGER_SECONDS, or later, once everything was sent to the client. A client whose send
        fails (EPIPE) may not read what came before; gRPC's does not. So it may still send until then.
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
        """Close both sides at once."""
        if self._closed:
            return
        self._closed = True
        self._client.close()
        self._backend.close()
        self._flow.closed()
