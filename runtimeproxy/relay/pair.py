"""Two connections whose bytes flow into each other.

Owns the pairing of a client with the backend: back-pressure, half-close, the order of closing.
Must not know: what the bytes mean; a ``Flow`` reads them and says what goes out.
Invariant: a side that does not read stops the other side's reading; EOF is passed on after everything before it.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

from runtimeproxy.errors import WireError
from runtimeproxy.relay.endpoint import REQUEST_BYTES, Endpoint, ReadBuffer
from runtimeproxy.relay.hangups import Hangups
from runtimeproxy.wire.bodies import Send

log = logging.getLogger(__name__)

KEPT_BYTES = 208 * 1024
"""What the kernel is asked to keep for a client; it keeps twice that (socket(7)), so that what one read of the backend
takes is written at once. It is the kernel's own default, and as much as anybody may ask for."""

LINGER_SECONDS = 1.0
"""How long a client may still send after it was given the last answer, so that it reads that before it sees the end."""


class Flow(Protocol):
    """What reads the bytes of a pair."""

    def client_bytes(self, data: bytes) -> None:
        """Take the client's bytes. Raises WireError."""

    def backend_bytes(self, data: bytes) -> None:
        """Take the backend's bytes. Raises WireError."""

    def client_ended(self) -> bool:
        """Take the client's EOF. True if bytes for the backend are still to come: ``Pair.client_done`` follows."""

    def client_gone(self) -> None:
        """Take that the client has closed altogether, ``client_ended`` or not; only of a pair that watches for it."""

    def backend_ended(self) -> bool:
        """Take the backend's EOF. True if the connection goes on; ``Pair.backend_done`` ends it."""

    def outputs(self) -> tuple[list[bytes], list[bytes]]:
        """Return what is to be sent to the client and to the backend; the pair empties the lists."""

    def closed(self) -> None:
        """Take the end of both connections."""


class Bulk(Protocol):
    """Sends the first ``size`` bytes of a buffer that is used again, if they pass as they are; else returns False."""

    def client_passes(self, buffer: bytearray, size: int, send: Send) -> bool:
        """Take the client's bytes, or none of them."""

    def backend_passes(self, buffer: bytearray, size: int, send: Send) -> bool:
        """Take the backend's bytes, or none of them."""


class Pair:
    """A client's connection and its own connection to the backend."""

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
        self._hangups = hangups
        self._others: list[Endpoint] = []
        self._backend_ended = False
        self._half_closed = False
        self.client_ended = False
        """True once the client's EOF was read."""
        self._client_gone = False
        self._client_held = False
        self._closed = False
        self._later: deque[Callable[[], object]] = deque()
        self.reading = False
        """True while the flow reads bytes, behind which both sides are written."""
        self._client.resume()
        self._backend.resume()

    def _endpoint(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, most: int = 0) -> Endpoint:
        return Endpoint(loop, sock, self, self._buffer, None if self._bulk is None else self._passes, most)

    def _passes(self, endpoint: Endpoint, buffer: bytearray, size: int) -> bool:
        """Send bytes that pass as they are, unless others wait to be sent before them."""
        assert self._bulk is not None
        if endpoint is self._client:
            other, waiting, passes = self._backend, self._to_backend, self._bulk.client_passes
        else:
            other, waiting, passes = self._client, self._to_client, self._bulk.backend_passes
        if waiting or not passes(buffer, size, other.write_shared):
            return False
        if other.slow:
            endpoint.pause()
        self.flush()
        return True

    def received(self, endpoint: Endpoint, data: bytes) -> None:
        """Hand bytes to the flow, have the calls go on that they are about, and send what that gives."""
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
        if self._later:
            self._go_on()
        self.flush()

    def later(self, go_on: Callable[[], object]) -> None:
        """Have a call go on once all is read that came with it, so that what it sends leaves in one write."""
        self._later.append(go_on)
        if not self.reading:
            self._go_on()

    def _go_on(self) -> None:
        while self._later:
            self._later.popleft()()

    def flush(self) -> None:
        """Send what the flow has for both sides."""
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
        """Pass on that the client takes nothing more: without a proxy the backend's next write would fail, too.

        The client may have closed behind bytes that the backend does not take, which come before its end: so long may
        nobody else tell the backend that it sends to nobody. What the client has sent still goes to it.
        """
        if self._hangups is not None:
            self._backend.refuse()
            self._backend.watch(self._hangups, self._backend_hung_up)

    def drained(self, endpoint: Endpoint) -> None:
        """Read the other side again."""
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

    # What else the client is given.

    def attach(self, other: Endpoint) -> None:
        """Read another connection, whose answers the flow gives to the client, only while the client takes them."""
        self._others.append(other)
        self.read_on(other)

    def detach(self, other: Endpoint) -> None:
        """Know no more of an attached connection."""
        self._others.remove(other)

    def read_on(self, other: Endpoint) -> None:
        """Read an attached connection, unless its own peer or the client takes nothing."""
        if not other.slow and not self._client.slow:
            other.resume()

    def hold_client(self, hold: bool) -> None:
        """Read the client no further, or again."""
        self._client_held = hold
        if hold:
            self._client.pause()
        elif not self._backend.slow:
            self._client.resume()

    def ended(self, endpoint: Endpoint) -> None:
        """Pass EOF on in order; of a client that has closed altogether it is no half-close (relay-rules B1)."""
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
        """Pass the client's EOF: everything for the backend has been given."""
        self.flush()
        self._backend.finish()
        self._close_if_done()

    def half_close(self) -> None:
        """Pass the backend's EOF and let the client send on until its own, as in a tunnel."""
        self._half_closed = True
        self.flush()
        self._client.finish()
        if self._hangups is not None:
            self._backend.watch(self._hangups, self._backend_hung_up)
        self._close_if_done()

    def _backend_hung_up(self) -> None:
        """Take that the backend has closed altogether: what the client still sends goes nowhere."""
        self._backend_ended = True
        self._close_if_done()

    def backend_done(self) -> None:
        """Pass the backend's EOF and end: everything for the client has been given."""
        self._backend_ended = True
        self.flush()
        self._client.finish()
        self._backend.close()
        self._close_if_done()

    def _close_if_done(self) -> None:
        """Close when nothing can flow any more.

        The backend has ended and the client has everything, both sides have ended, or the client is gone and the
        backend has everything.
        """
        sent, delivered = not self._backend.waiting, not self._client.waiting
        both_ended = self._half_closed and self.client_ended and sent
        if (self._client_gone and sent) or (delivered and (self._backend_ended or both_ended)):
            self._client.discard()
            self.close()

    def replace_backend(self, backend: socket.socket) -> None:
        """Go on with another connection to the backend, whose first one has ended."""
        self._backend.close()
        self._backend = self._endpoint(self._loop, backend)
        self._backend.resume()
        self.hold_client(self._client_held)  # it may have been paused for the first one's sake

    def shut_client(self) -> None:
        """Let the client send no more; what it has sent is still read, and EOF behind it.

        What it sends from now on fails in its own hands (EPIPE), unsent: on a unix socket no byte is lost between
        (run). Of all ways to close a connection on which a request may be on its way this one alone is safe.
        """
        self._client_socket.shutdown(socket.SHUT_RD)

    def finish_client(self) -> None:
        """Half-close toward the client behind the last that it is given; what it still sends is the flow's to drop.

        The pair closes when the client has ended too.
        """
        self.flush()
        self._client.finish()
        self._backend.close()
        self._half_closed = True
        self.hold_client(False)
        self._close_if_done()

    def linger(self) -> None:
        """Close both sides after LINGER_SECONDS, and when the client has everything.

        A client whose send fails (EPIPE) may not read what came before, as gRPC's does not: until then it may send.
        """
        self._loop.call_later(LINGER_SECONDS, self._close_if_delivered)

    def _close_if_delivered(self) -> None:
        if self.delivered:
            self.close()
        else:
            self.linger()

    @property
    def delivered(self) -> bool:
        """Tell whether the client has everything."""
        return not self._client.waiting

    @property
    def slow(self) -> tuple[bool, bool]:
        """Tell of the client and of the backend whether much waits of what it is to be sent."""
        return self._client.slow, self._backend.slow

    def close(self) -> None:
        """Close both sides at once."""
        if self._closed:
            return
        self._closed = True
        self._client.close()
        self._backend.close()
        self._flow.closed()
