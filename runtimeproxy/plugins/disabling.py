"""Which hook servers an operator has disabled, now and across restarts (docs/operation.rst).

Invariants: a change is in force before the mask, the file with the disabled hook servers, is written, and stays in
force if writing fails. An unusable mask disables no hook server, as any user may have made it, and does not prevent the
proxy's start.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from runtimeproxy.errors import ConfigError
from runtimeproxy.files import StateError, StateFile
from runtimeproxy.observe.events import EPOCH, rfc3339
from runtimeproxy.observe.logs import UNLIMITED
from runtimeproxy.relay.eventloop import run_in_daemon_thread

log = logging.getLogger(__name__)

SCHEMA_VERSION = 1
MAX_BYTES = 1 << 20
MAX_NAMES = 100
MAX_NAME_BYTES = 250
"""Most bytes of a hook server's name: a file's has 255 at most, .json included."""
MAX_REASON, MAX_BY = 200, 100  # characters
MAX_SECONDS = 365 * 86400


class MaskError(StateError):
    """The file has content that the proxy does not write."""


@dataclass(frozen=True, slots=True)
class Disabled:
    """Why a hook server is disabled, by whom, since and until when (None: until it is enabled), in seconds since 1970.
    Raises ConfigError for a text that could not be logged."""

    reason: str
    by: str
    since: float
    until: float | None = None

    def __post_init__(self) -> None:
        for field, text, limit in (("reason", self.reason, MAX_REASON), ("by", self.by, MAX_BY)):
            if not isinstance(text, str) or not 1 <= len(text) <= limit or not text.isprintable() or not text.strip():
                raise ConfigError(f"{field}: write 1 to {limit} printable characters")

    def shown(self) -> dict[str, str | None]:
        until = None if self.until is None else rfc3339(self.until)
        return {"reason": self.reason, "by": self.by, "since": rfc3339(self.since), "until": until}

    @property
    def details(self) -> str:
        until = "" if self.until is None else f" until {rfc3339(self.until)}"
        return f"{until} (by {self.by}, since {rfc3339(self.since)}): {self.reason}"


def check_name(name: str) -> None:
    """Raise ConfigError if no registration file can have this name, followed by .json, or if it could not be logged."""
    can_be_logged = name.isprintable() and name.strip()
    if not can_be_logged or name.startswith(".") or "/" in name or len(name.encode()) > MAX_NAME_BYTES:
        form = f"at most {MAX_NAME_BYTES} printable bytes, without a / and with no dot at the beginning"
        what = "write that of its registration file without .json, as runtimeproxy hook ls shows it"
        raise ConfigError(f"no hook server can have this name: {what}: {form}")


def check_seconds(seconds: float) -> None:
    if not 1 <= seconds <= MAX_SECONDS:
        raise ConfigError(f"for: {seconds:g} s is not a time from 1 s to 365 days; leave it out for no end")


def _seconds(text: str) -> float:
    return (datetime.fromisoformat(text) - EPOCH).total_seconds()


def encode(disabled: Mapping[str, Disabled]) -> bytes:
    entries = {name: entry.shown() for name, entry in sorted(disabled.items())}
    return json.dumps({"schemaVersion": SCHEMA_VERSION, "disabled": entries}, indent=2).encode() + b"\n"


def parse(content: bytes) -> dict[str, Disabled]:
    """Raises MaskError, whose text contains nothing of the content."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise MaskError("is not JSON") from None
    try:
        if document["schemaVersion"] != SCHEMA_VERSION:
            raise MaskError(f"does not have schemaVersion {SCHEMA_VERSION}")
        disabled = {}
        for name, entry in document["disabled"].items():
            check_name(name)
            until = None if entry.get("until") is None else _seconds(entry["until"])
            disabled[name] = Disabled(entry["reason"], entry["by"], _seconds(entry["since"]), until)
        return disabled
    except (KeyError, TypeError, ValueError, AttributeError, ConfigError):
        raise MaskError("does not have the form that the proxy writes") from None


def mask_file(state_dir: str, listen_endpoint: str) -> StateFile:
    """Return a proxy's mask, of which each socket has its own."""
    name = f"{listen_endpoint.strip('/').replace('/', '-')}.disabled.json"
    return StateFile(os.path.join(state_dir, name), MAX_BYTES, durable=True)


def read(file: StateFile) -> dict[str, Disabled]:
    """Return the disabled hook servers: none without a file. Raises StateError."""
    content, version = file.read()
    try:
        return {} if version is None else parse(content)
    except MaskError as error:
        raise MaskError(f"{file.path} {error}") from None


PATIENCE_SECONDS = 1.0
"""Seconds that a read or write of the mask may take before the start, or the answer, continues without it."""
CHECK_SECONDS = 60.0
"""Most seconds between two checks for expired periods: the machine's clock may be set."""


class Disabling:
    """The disabled hook servers; ``on_change`` is called when ``names`` has changed. ``file`` None: they are lost at
    the proxy's end. ``wall`` returns the seconds since 1970."""

    def __init__(
        self, file: StateFile | None, on_change: Callable[[], None], wall: Callable[[], float] = time.time
    ) -> None:
        self.names: Mapping[str, Disabled] = {}
        self.fault = ""
        """Why the mask could not be used the last time, "" if it could: one line, with the remedy."""
        self._file = file
        self._on_change = on_change
        self._wall = wall
        self._writing = asyncio.Lock()
        self._writes: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def load(self) -> None:
        if self._file is None:
            return
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                self.names = await run_in_daemon_thread(partial(read, self._file))
        except (StateError, TimeoutError, RuntimeError) as error:
            why = _cause(error, self._file)
            self.fault = f"{why}: no hook server is disabled by it; remove it, and disable again what must not run"
            log.error("%s", self.fault, extra=UNLIMITED)
        for name, entry in self.names.items():
            log.warning("hook server %s is disabled%s", name, entry.details, extra=UNLIMITED)
        if self.names:
            self._changed()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def disable(self, name: str, reason: str, by: str, seconds: float | None = None) -> tuple[str, ...]:
        """Disable a hook server, permanently or for ``seconds``; return notes for the operator. Raises ConfigError for
        invalid arguments and above MAX_NAMES."""
        check_name(name)
        if seconds is not None:
            check_seconds(seconds)
        now = self._wall()
        before = self.names.get(name)
        entry = Disabled(reason, by, before.since if before else now, None if seconds is None else now + seconds)
        if before is None and len(self.names) >= MAX_NAMES:
            raise ConfigError(f"{MAX_NAMES} hook servers are disabled, which is the most: enable one first")
        self.names = {**self.names, name: entry}
        log.warning("hook server %s is disabled from now on%s", name, entry.details, extra=UNLIMITED)
        self._changed()
        fault = "there is no file for it (--state-dir=none)" if self._file is None else await self._save()
        return (f"a restart of the proxy enables it again: {fault}",) if fault else ()

    async def enable(self, *names: str) -> tuple[str, ...]:
        """Enable hook servers; return notes for the operator."""
        disabled = [name for name in names if name in self.names]
        if not disabled:
            return ("it was not disabled",)
        self._enable(disabled, "an operator has enabled it")
        fault = await self._save()
        return (f"a restart of the proxy may disable it again: {fault}",) if fault else ()

    def _enable(self, names: Collection[str], why: str) -> None:
        self.names = {name: entry for name, entry in self.names.items() if name not in names}
        for name in names:
            log.info("hook server %s is enabled again: %s", name, why, extra=UNLIMITED)
        self._changed()

    def _changed(self) -> None:
        self._on_change()
        self._enable_expired()

    def _enable_expired(self) -> None:
        """Enable each hook server whose period has expired, and check again when the next one may be."""
        self.stop()
        now = self._wall()
        waits = {name: entry.until - now for name, entry in self.names.items() if entry.until is not None}
        if expired := [name for name, seconds in waits.items() if seconds <= 0]:
            self._enable(expired, "disable period expired")
        elif waits:
            wait = min(CHECK_SECONDS, *waits.values())
            self._timer = asyncio.get_running_loop().call_later(wait, self._enable_expired)

    async def _save(self) -> str:
        """Write the mask; return why that failed, "" if it did not or if there is no file."""
        if self._file is None:
            return ""
        task = asyncio.create_task(self._write(self._file), name="write the mask")
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
        if not task.done():
            self.fault = _cause(TimeoutError(), self._file)
        return self.fault

    async def _write(self, file: StateFile) -> None:
        """Write the disabled hook servers, after earlier writes."""
        async with self._writing:
            try:
                await run_in_daemon_thread(partial(file.write, encode(self.names)))
                self.fault = ""
            except (StateError, RuntimeError) as error:
                self.fault = _cause(error, file)
                log.error("%s: disabled hook servers are enabled again after a restart", self.fault, extra=UNLIMITED)


def _cause(error: Exception, file: StateFile) -> str:
    if isinstance(error, StateError):
        return str(error)
    is_late = isinstance(error, TimeoutError)
    return f"{file.path} does not answer" if is_late else f"{file.path}: no thread can be started"
