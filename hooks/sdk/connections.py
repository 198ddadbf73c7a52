"""The listening socket of a hook server and all connections that came by it.

Owns accepting, the connections, and their deadlines.
Must not know: methods, what a call is answered.
Invariant: who connects is served or waits in the kernel; nothing that a client does ends another's connection.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable
from math import inf

from runtimeproxy.relay.listener import BACKLOG

from .alarm import Alarm
from .connection import Call, Connection
from .threads import READABLE, Threads

log = logging.getLogger(__name__)

MOST = 256
"""Connections at a time; more wait in the kernel until one has ended."""
_RETRY_SECONDS = 0.05


class Connections:
    """Hands each call to ``begin``, in one of the threads; that must not block."""

    def __init__(self, threads: Threads, begin: Callable[[Call], None]) -> None:
        self._threads = threads
        self._handler = begin
        self._alarm = Alarm(self._expire)
        self._open: set[Connection] = set()
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None

    def listen(self, path: str) -> None:
        """Listen on a path where nothing is. Raises OSError."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.bind(path)
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            raise
        self._sock = sock
        self._threads.watch(sock.fileno(), self, READABLE)

    # What comes.

    def ready(self, events: int) -> None:
        """Accept who waits."""
        try:
            self._accept()
        except BlockingIOError:
            pass  # it left already
        except OSError as error:
            log.warning("cannot accept a connection: %s", error.strerror)
            time.sleep(_RETRY_SECONDS)
        self._arm()

    def broken(self) -> None:
        """Go on after an error of ours: the connection that was to be made is lost."""
        self._arm()

    def _accept(self) -> None:
        with self._lock:
            if self._sock is None:
                return
            connection = Connection(self._sock.accept()[0], self._threads, self._begin, self._gone)
            self._open.add(connection)
            if connection.closed:  # another thread was faster: _gone came before
                self._open.discard(connection)
        connection.start()

    def _arm(self) -> None:
        with self._lock:
            if self._sock is not None and len(self._open) < MOST:
                self._threads.arm(self._sock.fileno(), READABLE)

    def _gone(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._arm()

    def _begin(self, call: Call) -> None:
        if call.deadline != inf:
            self._alarm.at(call.deadline)
        self._handler(call)

    def _expire(self, now: float) -> float:
        return min((connection.expire(now) for connection in list(self._open)), default=inf)

    # The end.

    @property
    def busy(self) -> bool:
        """Tell whether a call is open."""
        return any(connection.busy for connection in list(self._open))

    def leave(self) -> None:
        """Accept nobody, take no more calls, and close connections without one. Repeatable."""
        self._stop_listening()
        for connection in list(self._open):
            connection.leave()

    def _stop_listening(self) -> None:
        with self._lock:
            sock, self._sock = self._sock, None
            if sock is not None:
                self._threads.forget(sock.fileno())
                sock.close()

    def close(self) -> None:
        """Cut off the calls that are still open, and close every connection. Repeatable."""
        self._stop_listening()
        self._alarm.close()
        for connection in list(self._open):
            connection.close()
