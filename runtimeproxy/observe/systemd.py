"""Notify systemd of the process's state (sd_notify(3)): ready, alive, stopping, and the line of ``systemctl status``.

Invariant: without a supervisor nothing is sent; one that does not read causes no delay. Notifying never raises, and
needs no new descriptor after the first message, so it continues when none is left (P8). The watchdog messages come from
the event loop itself, so that a loop that hangs is restarted (fault matrix P7, X7).
"""

import asyncio
import os
import socket
from collections.abc import Callable, MutableMapping

READY = b"READY=1"
STOPPING = b"STOPPING=1"
ALIVE = b"WATCHDOG=1"
STATUS_SECONDS = 1.0
"""Seconds between two checks whether the status has changed."""


class SystemdNotifier:
    """The supervisor that started the process; its variables are removed from the environment. ``status`` returns the
    state in one line."""

    def __init__(self, environ: MutableMapping[str, str], status: Callable[[], str]) -> None:
        self._status = status
        self._sent_status = ""
        self._address = environ.pop("NOTIFY_SOCKET", "")
        interval, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        ours = bool(self._address) and pid in ("", str(os.getpid()))
        self._beat_seconds = int(interval) / 2e6 if ours and interval.isascii() and interval.isdigit() else 0.0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._socket: socket.socket | None = None

    def ready(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send READY=1 and the status, and from now on WATCHDOG=1 in intervals, and the status when it has changed."""
        self._send(READY)
        if self._beat_seconds:
            self._beat(loop)
        if self._address:
            self._check(loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timers["beat"] = loop.call_later(self._beat_seconds, self._beat, loop)
        self._send(ALIVE)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timers["status"] = loop.call_later(STATUS_SECONDS, self._check, loop)
        status = self._status()
        if status != self._sent_status and self._send(f"STATUS={status}".encode()):
            self._sent_status = status

    def stopping(self) -> None:
        """Send STOPPING=1; the other messages continue."""
        self._send(STOPPING)

    def leave(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        if self._socket is not None:
            self._socket.close()

    def _send(self, state: bytes) -> bool:
        if not self._address:
            return False
        # An address that begins with @ is an abstract one, whose first byte is NUL.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            self._socket.sendto(state, address)
        except OSError:
            return False  # nobody listens or reads, or no descriptor is left for the first message
        return True
