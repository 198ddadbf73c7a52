"""Which hook servers an operator has disabled, now and across restarts (docs/operation.rst).

Invariant: a change is in force before the mask is written, and stays in force if it cannot be. A mask that cannot be
used disables nobody and does not keep the proxy from starting: a file that anybody may have made must not be able to
take a policy out of force, and a node without its proxy is not ready. That is told as ``fault``.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial

from runtimeproxy.errors import ConfigError
from runtimeproxy.eventloop import run_in_daemon_thread
from runtimeproxy.observe.logs import UNLIMITED
from runtimeproxy.plugins.mask import MOST_NAMES, Disabled, MaskError, MaskFile, check_name, check_seconds

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 1.0
"""Seconds that a read or write of the mask may take before the start, or the answer, goes on without it."""
LOOK_SECONDS = 60.0
"""Most seconds between two looks for times that are over: the machine's clock may be set."""


class Disabling:
    """The disabled hook servers; ``on_change`` is called when ``names`` has changed. ``file`` None: they are forgotten
    at the proxy's end. ``wall`` returns the seconds since 1970."""

    def __init__(
        self, file: MaskFile | None, on_change: Callable[[], None], wall: Callable[[], float] = time.time
    ) -> None:
        self.names: Mapping[str, Disabled] = {}
        self.fault = ""
        """Why the mask could not be used the last time, "" if it could: one line, with what to do."""
        self._file = file
        self._on_change = on_change
        self._wall = wall
        self._writing = asyncio.Lock()
        self._writes: set[asyncio.Task[None]] = set()
        self._look: asyncio.TimerHandle | None = None

    async def load(self) -> None:
        """Read the mask."""
        if self._file is None:
            return
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                self.names = await run_in_daemon_thread(self._file.read)
        except (MaskError, TimeoutError, RuntimeError) as error:
            why = _why(error, self._file)
            self.fault = f"{why}: no hook server is disabled by it; remove it, and disable again what must not be asked"
            log.error("%s", self.fault, extra=UNLIMITED)
        for name, entry in self.names.items():
            log.warning("hook server %s is disabled%s", name, _told(entry), extra=UNLIMITED)
        if self.names:
            self._changed()

    def stop(self) -> None:
        """Stop looking for times that are over."""
        if self._look is not None:
            self._look.cancel()

    async def disable(self, name: str, reason: str, by: str, seconds: float | None = None) -> tuple[str, ...]:
        """Disable a hook server, for good or for so many seconds; return what the operator should know beside that.
        Raises ConfigError for what cannot be."""
        check_name(name)
        if seconds is not None:
            check_seconds(seconds)
        now = self._wall()
        before = self.names.get(name)
        entry = Disabled(reason, by, before.since if before else now, None if seconds is None else now + seconds)
        if before is None and len(self.names) >= MOST_NAMES:
            raise ConfigError(f"{MOST_NAMES} hook servers are disabled, which is the most: enable one first")
        self.names = {**self.names, name: entry}
        log.warning("hook server %s is disabled from now on%s", name, _told(entry), extra=UNLIMITED)
        self._changed()
        fault = "there is no file for it (--state-dir=none)" if self._file is None else await self._save()
        return (f"a restart of the proxy enables it again: {fault}",) if fault else ()

    async def enable(self, *names: str) -> tuple[str, ...]:
        """Enable hook servers; return what else the operator should know."""
        disabled = [name for name in names if name in self.names]
        if not disabled:
            return ("it was not disabled",)
        self._enable(disabled, "an operator has enabled it")
        fault = await self._save()
        return (f"a restart of the proxy may disable it again: {fault}",) if fault else ()

    def _enable(self, names: Collection[str], why: str) -> None:
        self.names = {name: entry for name, entry in self.names.items() if name not in names}
        for name in names:
            log.info("hook server %s is no longer disabled: %s", name, why, extra=UNLIMITED)
        self._changed()

    def _changed(self) -> None:
        self._on_change()
        self._end_times()

    def _end_times(self) -> None:
        """Enable each hook server whose time is over, and look again when the next one may be."""
        self.stop()
        now = self._wall()
        ends = {name: entry.until for name, entry in self.names.items() if entry.until is not None}
        left = {name: until - now for name, until in ends.items()}
        if over := [name for name, seconds in left.items() if seconds <= 0]:
            self._enable(over, "the time is over that it was disabled for")
        elif left:
            wait = min(LOOK_SECONDS, *left.values())
            self._look = asyncio.get_running_loop().call_later(wait, self._end_times)

    async def _save(self) -> str:
        """Write the mask; return why that failed, "" if it did not or if there is no file."""
        if self._file is None:
            return ""
        task = asyncio.create_task(self._write(self._file), name="write the mask")
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        done, _ = await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
        if not done:
            self.fault = _why(TimeoutError(), self._file)
        return self.fault

    async def _write(self, file: MaskFile) -> None:
        """Write what is disabled now, behind earlier writes."""
        async with self._writing:
            try:
                await run_in_daemon_thread(partial(file.write, self.names))
                self.fault = ""
            except (MaskError, RuntimeError) as error:
                self.fault = _why(error, file)
                log.error("%s: what is disabled does not survive a restart", self.fault, extra=UNLIMITED)


def _why(error: Exception, file: MaskFile) -> str:
    match error:
        case MaskError():
            return str(error)
        case TimeoutError():
            return f"{file.path} does not answer"
    return f"{file.path}: no thread can be started"


def _told(entry: Disabled) -> str:
    shown = entry.shown()
    until = f" until {shown['until']}" if shown["until"] else ""
    return f"{until} (by {entry.by}, since {shown['since']}): {entry.reason}"
