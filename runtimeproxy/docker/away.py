"""A client whose daemon is away: its first request is answered 502 (facts/docker-mode, "Wire rules").

Owns that one answer.
Must not know: what the request asks for.
Invariant: nothing is said before a request has come: HTTP's clients drop what they did not ask for.
"""

import asyncio
import socket

from runtimeproxy.docker.reader import DAEMON_AWAY
from runtimeproxy.relay.endpoint import Endpoint
from runtimeproxy.wire import http1
from runtimeproxy.wire.http1 import BadMessage

WAIT_SECONDS = 10.0
"""How long such a client may take to send its request's head, and then to close."""
_STATUS = 502


class Away:
    """Answers one client and ends."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: socket.socket) -> None:
        self._head = bytearray()
        self._answered = False
        self._endpoint = Endpoint(loop, client, self)
        self._timer = loop.call_later(WAIT_SECONDS, self._endpoint.close)
        self._endpoint.resume()

    def received(self, endpoint: Endpoint, data: bytes) -> None:
        """Wait for the end of the head, answer, and drop what comes behind it."""
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
        """Close behind the client."""
        self._timer.cancel()
        endpoint.close()

    def drained(self, endpoint: Endpoint) -> None:
        """Need nothing: the answer is short."""
