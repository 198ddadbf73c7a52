"""Answer a client's first request with 502 while dockerd is not reachable (docs/docker-mode.rst, "Wire rules").

Owns that one answer.
Must not know: what the request asks for.
Invariant: nothing is sent before a request has come: HTTP clients discard an answer to no request.
"""

import asyncio
import socket

from runtimeproxy.docker.reader import DAEMON_AWAY
from runtimeproxy.relay.connection import REQUEST_BYTES, Endpoint, ReadBuffer
from runtimeproxy.relay.drain import Drainable, Unfinished
from runtimeproxy.wire import http1
from runtimeproxy.wire.http1 import BadMessage

WAIT_SECONDS = 10.0
"""Seconds that such a client has to send its request's head and, after the answer, to close."""
_STATUS = 502


class BadGateway:
    """Answers one client and closes; until then it is in the front's set of connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: socket.socket, connections: set[Drainable]) -> None:
        self._head = bytearray()
        self._answered = False
        self._shut = False
        self._client = client
        self._connections = connections
        connections.add(self)
        self._endpoint = Endpoint(loop, client, self, ReadBuffer(REQUEST_BYTES))
        self._timer = loop.call_later(WAIT_SECONDS, self.close)
        self._endpoint.resume()

    def received(self, endpoint: Endpoint, data: bytes) -> None:
        """Collect the head of the first request, answer it once it is complete, and drop what follows."""
        if self._answered:
            return
        seen = len(self._head)
        self._head += data
        try:
            end = http1.head_end(self._head, 0, seen)
            if not end:
                return
            method = http1.request_head(bytes(self._head[:end])).method
            answer = http1.response(_STATUS, f"runtimeproxy: {DAEMON_AWAY}", close=True, method=method)
        except BadMessage as error:
            answer = http1.response(error.status, f"runtimeproxy: {error}", close=True)
        self._answered = True
        endpoint.write(answer)
        endpoint.finish()

    def ended(self, endpoint: Endpoint) -> None:
        self.close()

    def drained(self, endpoint: Endpoint) -> None:
        """Do nothing: the answer is short."""

    def drain(self, refusing: bool) -> None:
        """With ``refusing``, stop a client that has begun no request from sending one; bytes sent before are read."""
        if refusing and not self._head and not self._shut:
            self._shut = True
            self._client.shutdown(socket.SHUT_RD)

    def unfinished(self) -> Unfinished:
        """Return one call while a request has begun or may be among bytes not yet read, and is not answered."""
        return Unfinished(calls=int(not self._answered and (self._shut or bool(self._head))))

    def part(self) -> None:
        """Half-close toward the client, which closes once it has read its answer."""
        self._endpoint.finish()

    def close(self) -> None:
        self._timer.cancel()
        self._connections.discard(self)
        self._endpoint.close()
