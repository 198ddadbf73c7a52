"""Accept client connections.

Invariant: running out of file descriptors pauses accepting and ends nothing (fault matrix P8).
"""

import asyncio
import logging
import socket
from collections.abc import Callable

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.1
"""Several pauses follow each other if the backlog is full of clients that have closed: each holds descriptors until its
close is noticed. Clients that wait for their places must be served within 1 s."""
BATCH = 64


class Acceptor:
    """Accepts on a listening socket until it is stopped."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, listener: socket.socket, accepted: Callable[[socket.socket], None]
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._accepted = accepted
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = None
        self._loop.add_reader(self._listener, self.accept)

    def stop(self) -> None:
        self._loop.remove_reader(self._listener)
        if self._timer is not None:
            self._timer.cancel()

    def accept(self) -> None:
        """Accept the pending connections, up to ``BATCH`` of them."""
        for _ in range(BATCH):
            try:
                client, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("accepting pauses for %s s: %s; raise the limit of open files", PAUSE_SECONDS, error.strerror)
                self.stop()
                self._timer = self._loop.call_later(PAUSE_SECONDS, self.start)
                return
            self._accepted(client)
