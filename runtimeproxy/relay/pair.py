"""Two connections whose bytes flow into each other.

Owns the pairing of a client with the backend: back-pressure, half-close, the order of closing.
Must not know: what the bytes mean; a ``Flow`` reads them and says what goes out.
Invariant: a side that does not read stops the other side's reading; EOF is passed on after everything before it.
"""

import asyncio
import logging
import socket
from typing import Protocol

from runtimeproxy.errors import WireError
from runtimeproxy.relay.endpoint import Endpoint

log = logging.getLogger(__name__)


class Flow(Protocol):
    """What reads the bytes of a pair."""

    def client_bytes(self, data: bytes) -> bool:
        """Take the client's bytes; True if more to send follows within this turn of the loop. Raises WireError."""

    def backend_bytes(self, data: bytes) -> bool:
        """Take the backend's bytes; True if more to send follows within this turn of the loop. Raises WireError."""

    def client_ended(self) -> None:
        """Take the client's EOF."""

    def backend_ended(self) -> bool:
        """Take the backend's EOF. True if bytes for the client are still to come: ``Pair.backend_done`` follows."""

    def outputs(self) -> tuple[list[bytes], list[bytes]]:
        """Return what is to be sent to the client and to the backend; the pair empties the lists."""

    def closed(self) -> None:
        """Take the end of both connections."""


class Pair:
    """A client's connection and its own connection to the backend."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, client: socket.socket, backend: socket.socket, flow: Flow
    ) -> None:
        self._client = Endpoint(loop, client, self)
        self._backend = Endpoint(loop, backend, self)
        self._flow = flow
        self._loop = loop
        self._to_client, self._to_backend = flow.outputs()
        self._backend_ended = False
        self._closed = False
        self._client.resume()
        self._backend.resume()

    def received(self, endpoint: Endpoint, data: bytes) -> None:
        """Hand bytes to the flow and send what it gives."""
        take = self._flow.client_bytes if endpoint is self._client else self._flow.backend_bytes
        try:
            follows = take(data)
        except WireError as error:
            side = "client" if endpoint is self._client else "runtime"
            log.warning("connection closed: the %s broke the protocol: %s", side, error)
            self.flush()
            self.close()
            return
        if follows:
            self._loop.call_soon(self.flush)  # one write takes it all
        else:
            self.flush()

    def flush(self) -> None:
        """Send what the flow has for both sides."""
        if self._to_client:
            self._client.write(b"".join(self._to_client) if len(self._to_client) > 1 else self._to_client[0])
            self._to_client.clear()
            if self._client.slow:
                self._backend.pause()
        if self._to_backend:
            self._backend.write(b"".join(self._to_backend) if len(self._to_backend) > 1 else self._to_backend[0])
            self._to_backend.clear()
            if self._backend.slow:
                self._client.pause()

    def drained(self, endpoint: Endpoint) -> None:
        """Read the other side again."""
        if self._closed:
            return
        if endpoint is self._client:
            self._backend.resume()
        else:
            self._client.resume()
        self._close_if_done()

    def ended(self, endpoint: Endpoint) -> None:
        """Pass EOF on in order."""
        if endpoint is self._client:
            self._flow.client_ended()
            self.flush()
            self._backend.finish()
            self._close_if_done()
        elif not self._flow.backend_ended():
            self.backend_done()

    def backend_done(self) -> None:
        """Pass the backend's EOF: everything for the client has been given."""
        self._backend_ended = True
        self.flush()
        self._client.finish()
        self._backend.close()
        self._close_if_done()

    def _close_if_done(self) -> None:
        """Close when nothing can flow any more: the backend has ended and the client has everything."""
        if self._backend_ended and not self._client.waiting:
            self.close()

    def close(self) -> None:
        """Close both sides at once."""
        if self._closed:
            return
        self._closed = True
        self._client.close()
        self._backend.close()
        self._flow.closed()
