"""The latest events of calls, hook servers, the runtime and the proxy itself; and the format of times.

Invariant: an event has names only (of pods, containers, hook servers, hook points, reasons, fields). It contains no
value of a request, and no text of a hook server, of the runtime or of another library's exception.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import chain, islice
from struct import Struct
from typing import Any, NamedTuple

EPOCH = datetime.fromtimestamp(0, UTC)
MOST_EVENTS, MOST_BYTES, FIXED_BYTES = 4096, 2 << 20, 352
"""Limits of the ring in events and bytes. An event has the bytes of its texts in UTF-8 and FIXED_BYTES, for the tuple,
numbers, object headers and its slot in the ring."""
PAGE, PAGE_BYTES = 100, 32 * 1024
"""Limits of one ``read``: events, and bytes of texts after which no event is added. With their JSON it takes 0.2 ms."""
MOST_FIELDS = 32
LONGEST_TEXTS, LONGEST_TEXT = 8192, 400
"""If all texts of an event exceed LONGEST_TEXTS characters, each is cut to LONGEST_TEXT. A label's key is shorter."""
PARTS = ("own", "turn", "hooks", "runtime", "post")
"""The parts of a call's time, in the order in which they are recorded."""
_SECONDS = Struct(f"{len(PARTS)}d")
_SEPARATOR = "\0"
_NAMES = ("call", "namespace", "pod", "podId", "container", "containerId", "hookServer", "text")
"""The texts that are joined to one, in their order; the fields with their owners follow them."""


def rfc3339(seconds: float) -> str:
    """Return a time in seconds since 1970 like ``2026-11-25T10:00:00.000Z``."""
    return (EPOCH + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class EventKind(Enum):
    """Kind of an event; docs/operation.rst has the meaning of each."""

    EDITED = "edited"
    NO_EFFECT = "no_effect"
    REFUSED = "refused"
    FAILED = "failed"
    FAILED_OPEN = "failed_open"
    UNHOOKED = "unhooked"
    CONFLICT = "conflict"
    SLOW = "slow"
    PLUGIN_ADDED = "plugin_added"
    PLUGIN_CHANGED = "plugin_changed"
    PLUGIN_REMOVED = "plugin_removed"
    PLUGIN_INVALID = "plugin_invalid"
    PLUGIN_DISABLED = "plugin_disabled"
    PLUGIN_ENABLED = "plugin_enabled"
    PLUGIN_UNREACHABLE = "plugin_unreachable"
    PLUGIN_REACHABLE = "plugin_reachable"
    BREAKER_OPEN = "breaker_open"
    BREAKER_CLOSED = "breaker_closed"
    RUNTIME_LOST = "runtime_lost"
    RUNTIME_BACK = "runtime_back"
    SYNC = "sync"
    DRAIN = "drain"
    STALL = "stall"


class About(NamedTuple):
    """The call that an event is about, with its subject as far as known."""

    operation: str = ""
    call: str = ""
    namespace: str = ""
    pod: str = ""
    pod_id: str = ""
    container: str = ""
    container_id: str = ""


Row = tuple[int, float, EventKind, str, str, str, bytes, bytes]
"""A stored event: number, time in seconds since 1970, kind, operation, hook point, reason, the packed parts of the
call's time, and all other texts."""


@dataclass(slots=True, eq=False)
class CallTimes:
    """Timestamps of one intercepted call in seconds on the metrics' clock; None if not reached. The proxy and the Pre
    hooks run until ``released``, the runtime until ``answered``, the Post hooks until ``done``. The others are waits in
    seconds: ``queued`` for an earlier call of the subject, ``hooks`` and ``post`` for hooks, ``querying`` for the
    runtime before the release."""

    operation: str
    held: float
    released: float | None = None
    answered: float | None = None
    done: float | None = None
    outcome: str = ""
    queued: float = 0.0
    hooks: float = 0.0
    querying: float = 0.0
    post: float = 0.0
    id: str = ""


_NO_CALL, _NO_FIELDS = About(), dict[str, str]()


class Events:
    """The ring of events, which are numbered from 1 to ``last``. ``wall_clock`` returns the seconds since 1970."""

    def __init__(self, wall_clock: Callable[[], float]) -> None:
        self.wall_clock = wall_clock
        self.last = self.bytes = 0
        self._ring: deque[Row] = deque()
        self._lost: set[str] = set()

    def __len__(self) -> int:
        return len(self._ring)

    def add(
        self,
        kind: EventKind,
        about: About = _NO_CALL,
        *,
        hook_server: str = "",
        hook: str = "",
        reason: str = "",
        fields: Mapping[str, str] = _NO_FIELDS,
        seconds: tuple[float, ...] = (),
        text: str = "",
    ) -> None:
        """Record an event. ``hook`` and ``reason`` are names from a table; ``fields`` maps names of fields to hook
        servers, ``seconds`` are those of PARTS. A full ring drops its oldest events."""
        if len(fields) > MOST_FIELDS:
            text = f"and {len(fields) - MOST_FIELDS} fields more"
        pairs = chain.from_iterable(islice(fields.items(), MOST_FIELDS))
        texts = (*about[1:], hook_server, text, *pairs)
        joined = _SEPARATOR.join(texts)
        if len(joined) > LONGEST_TEXTS or joined.count(_SEPARATOR) >= len(texts):
            joined = _SEPARATOR.join([text.replace(_SEPARATOR, "")[:LONGEST_TEXT] for text in texts])
        packed = joined.encode(errors="backslashreplace")
        self.bytes += FIXED_BYTES + len(packed)
        ring = self._ring
        while self.bytes > MOST_BYTES or len(ring) >= MOST_EVENTS:
            self.bytes -= FIXED_BYTES + len(ring.popleft()[-1])
        self.last += 1
        parts = _SECONDS.pack(*seconds) if seconds else b""
        ring.append((self.last, self.wall_clock(), kind, about.operation, hook, reason, parts, packed))

    def runtime_lost(self, seen_by: str, reason: str, text: str = "") -> None:
        """Record that the runtime is lost, unless an observer has reported it; ``seen_by`` names the observer."""
        if not self._lost:
            self.add(EventKind.RUNTIME_LOST, reason=reason, text=text)
        self._lost.add(seen_by)

    def runtime_back(self, *seen_by: str) -> None:
        """Record that the runtime is back when no observer reports its loss; without a name it is back for all
        observers."""
        if self._lost:
            self._lost.difference_update(seen_by or tuple(self._lost))
            if not self._lost:
                self.add(EventKind.RUNTIME_BACK)

    @property
    def runtime_is_lost(self) -> bool:
        return bool(self._lost)

    def read(self, since: int = 0) -> tuple[list[Row], tuple[int, int] | None]:
        """Return the next events after a number, at most PAGE, and the first and last number of dropped events before
        them, if any. A number above ``last`` is of an earlier process: all events are after it."""
        if since > self.last:
            since = 0
        first = self.last - len(self._ring) + 1
        begin = max(since + 1, first)
        rows: list[Row] = []
        remaining_bytes = PAGE_BYTES
        for row in islice(self._ring, begin - first, begin - first + PAGE):
            rows.append(row)
            remaining_bytes -= len(row[-1])
            if remaining_bytes <= 0:
                break
        return rows, (since + 1, first - 1) if since + 1 < first else None


def event_object(row: Row) -> dict[str, Any]:
    """Return an event as a JSON object, without the keys that do not apply."""
    number, at, kind, operation, hook, reason, parts, packed = row
    texts = packed.decode().split(_SEPARATOR)
    pairs = texts[len(_NAMES) :]
    event = {
        "number": number,
        "time": rfc3339(at),
        "kind": kind.value,
        "operation": operation,
        **dict(zip(_NAMES, texts, strict=False)),
        "hook": hook,
        "reason": reason,
        "fields": [{"field": field, "hookServer": owner} for field, owner in zip(pairs[::2], pairs[1::2], strict=True)],
        "seconds": dict(zip(PARTS, _SECONDS.unpack(parts), strict=True)) if parts else None,
    }
    return {key: value for key, value in event.items() if value}
