"""Notify systemd of the process's state (sd_notify(3)): ready, alive, stopping.

Owns the datagrams to NOTIFY_SOCKET and the watchdog messages that WATCHDOG_USEC asks for.
Must not know: what ready means, why the process stops.
Invariant: without a supervisor nothing is sent; one that does not read causes no delay. Notifying never raises, and
needs no new descriptor after the first message, so it goes on when none is left (P8). The watchdog messages come from
the event loop itself, so that a loop that hangs is restarted (fault matrix P7, X7).
"""

import asyncio
import os
import socket
from collections.abc import MutableMapping

READY = b"READY=1"
STOPPING = b"STOPPING=1"
ALIVE = b"WATCHDOG=1"


class SystemdNotifier:
    """The supervisor that started the process; its variables are removed from the environment."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._address = environ.pop("NOTIFY_SOCKET", "")
        interval, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        ours = bool(self._address) and pid in ("", str(os.getpid()))
        self._beat_seconds = int(interval) / 2e6 if ours and interval.isascii() and interval.isdigit() else 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._socket: socket.socket | None = None

    def ready(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send READY=1, and WATCHDOG=1 in intervals from now on."""
        self._tell(READY)
        if self._beat_seconds:
            self._beat(loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self._beat_seconds, self._beat, loop)
        self._tell(ALIVE)

    def stopping(self) -> None:
        """Send STOPPING=1; the watchdog messages go on."""
        self._tell(STOPPING)

    def leave(self) -> None:
        """Stop sending and close the socket."""
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            self._socket.close()

    def _tell(self, state: bytes) -> None:
        if not self._address:
            return
        # An address that begins with @ is an abstract one, whose first byte is NUL.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            self._socket.sendto(state, address)
        except OSError:
            pass  # nobody listens or reads, or no descriptor is left for the first message
