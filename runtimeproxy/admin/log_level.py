"""Change the log level for a limited time; the configured level is restored without a further request."""

import asyncio
import logging
import time
from collections.abc import Callable

from runtimeproxy.observe import logs
from runtimeproxy.observe.events import rfc3339
from runtimeproxy.observe.logs import UNLIMITED

log = logging.getLogger(__name__)


class LogLevel:
    """The level of the log. ``wall_clock`` returns seconds since 1970."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, configured: str, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._loop = loop
        self._configured = configured
        self._wall_clock = wall_clock
        self._timer: asyncio.TimerHandle | None = None

    def change(self, level: str, seconds: float) -> str:
        """Set a level for so many seconds, which replaces an earlier change. Return the time at which the configured
        level is restored."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._restore)
        until = rfc3339(self._wall_clock() + seconds)
        _set(level, f"the log level is {level} until {until}, then {self._configured} again")
        return until

    def _restore(self) -> None:
        _set(self._configured, f"the log level is {self._configured} again, as configured")


def _set(level: str, text: str) -> None:
    """Change the level, and log that while the more verbose of both levels is set."""
    before = log.isEnabledFor(logging.WARNING)
    if before:
        log.warning("%s", text, extra=UNLIMITED)
    logs.set_level(level)
    if not before:
        log.warning("%s", text, extra=UNLIMITED)
