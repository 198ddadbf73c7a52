"""The latest events: what happened to calls, hook servers, the runtime and the proxy itself; and how times are written.

Invariant: an event has names only (of pods, containers, hook servers, hook points, reasons, fields). No value of a
request is in it, and no text of a hook server, of the runtime or of another library's exception.
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
"""Most events, and most bytes of them: each is counted with its texts in UTF-8 and FIXED_BYTES, for the tuple, numbers,
the objects' heads, its place in the ring."""
PAGE, PAGE_BYTES = 100, 32 * 1024
"""How many events one ``read`` returns at most: 0.2 ms, the JSON of them included. No event is added to so many bytes
of texts."""
MOST_FIELDS = 32
UNCUT, LONGEST_TEXT = 8192, 400
"""If all texts of an event have more than UNCUT characters, each is cut to LONGEST_TEXT; a label's or annotation's
whole key is shorter."""
PARTS = ("own", "turn", "hooks", "runtime", "post")
"""The parts of a call's time, in the order in which they are recorded."""
_SECONDS = Struct(f"{len(PARTS)}d")
_BETWEEN = "\0"
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
"""An event as it is kept: number, time in seconds since 1970, kind, operation, hook point, reason, the packed parts of
the call's time, and all other texts."""


@dataclass(slots=True, eq=False)
class CallTimes:
    """The moments of one intercepted call on the metrics' clock, in seconds; None if it was not reached. From held to
    released the proxy and the Pre hooks work, from released to answered the runtime, from answered to done the Post
    hooks. Within these, ``turn`` is the wait for an earlier call of its subject, ``hooks`` and ``post`` that for the
    hooks, ``querying`` that for the runtime before the release."""

    operation: str
    held: float
    released: float | None = None
    answered: float | None = None
    done: float | None = None
    outcome: str = ""
    turn: float = 0.0
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
        servers, ``seconds`` are those of PARTS. The oldest events go as the ring is full."""
        if len(fields) > MOST_FIELDS:
            text = f"and {len(fields) - MOST_FIELDS} fields more"
        pairs = chain.from_iterable(islice(fields.items(), MOST_FIELDS))
        texts = (*about[1:], hook_server, text, *pairs)
        joined = _BETWEEN.join(texts)
        if len(joined) > UNCUT or joined.count(_BETWEEN) >= len(texts):
            joined = _BETWEEN.join([each.replace(_BETWEEN, "")[:LONGEST_TEXT] for each in texts])
        retained = joined.encode(errors="backslashreplace")
        self.bytes += FIXED_BYTES + len(retained)
        ring = self._ring
        while self.bytes > MOST_BYTES or len(ring) >= MOST_EVENTS:
            self.bytes -= FIXED_BYTES + len(ring.popleft()[-1])
        self.last += 1
        parts = _SECONDS.pack(*seconds) if seconds else b""
        ring.append((self.last, self.wall_clock(), kind, about.operation, hook, reason, parts, retained))

    def runtime_lost(self, seen_by: str, reason: str, text: str = "") -> None:
        """Record that the runtime is lost, unless it is known to be; ``seen_by`` names who sees it."""
        if not self._lost:
            self.add(EventKind.RUNTIME_LOST, reason=reason, text=text)
        self._lost.add(seen_by)

    def runtime_back(self, *seen_by: str) -> None:
        """Record that the runtime is back, once nobody sees it lost any more; without a name it is back for all."""
        if self._lost:
            self._lost.difference_update(seen_by or tuple(self._lost))
            if not self._lost:
                self.add(EventKind.RUNTIME_BACK)

    @property
    def runtime_is_lost(self) -> bool:
        return bool(self._lost)

    def read(self, since: int = 0) -> tuple[list[Row], tuple[int, int] | None]:
        """Return the next events after a number, at most PAGE, and the first and last number of events between these
        and the number that are no longer kept, if any. A number that was not given yet is one of an earlier process:
        everything is after it."""
        if since > self.last:
            since = 0
        first = self.last - len(self._ring) + 1
        begin = max(since + 1, first)
        found: list[Row] = []
        room = PAGE_BYTES
        for row in islice(self._ring, begin - first, begin - first + PAGE):
            found.append(row)
            room -= len(row[-1])
            if room <= 0:
                break
        return found, (since + 1, first - 1) if since + 1 < first else None


def shown(row: Row) -> dict[str, Any]:
    """Return an event as it is shown: a JSON object without the keys that do not apply."""
    number, at, kind, operation, hook, reason, parts, retained = row
    texts = retained.decode().split(_BETWEEN)
    pairs = texts[len(_NAMES) :]
    found = {
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
    return {key: value for key, value in found.items() if value}
