"""The proxy's own metrics.

Invariant: every series belongs to a row of the table. The first count of a series checks this, and each later one costs
a lookup. A test compares all call sites with the table.
"""

import logging
import os
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

from runtimeproxy.observe.events import PARTS, CallTimes, Events
from runtimeproxy.observe.metric_table import (
    HOOK_SERVER,
    HOOK_SERVER_SERIES,
    HOOK_SERVERS,
    METRICS,
    OTHER_LABEL,
    ROWS,
    SECONDS,
    Histogram,
    Key,
    Kind,
)

log = logging.getLogger(__name__)

RECENT_CALLS = 256
PROCESS = os.urandom(2).hex()
"""Prefix of this process's call ids: the numbers after it begin with 1 in each process."""


class Metrics:
    """Counters, gauges and histograms by name and labels, the times of the latest calls, and the events. ``runtime`` is
    the value of the label of that name."""

    def __init__(self, clock: Callable[[], float], runtime: str = "") -> None:
        self.clock = clock
        self.counters: dict[Key, int] = {
            (row.name, ()): 0 for row in ROWS if row.kind is Kind.COUNTER and not row.labels
        }
        self.gauges: dict[Key, float] = {}
        self.histograms: dict[Key, Histogram] = {}
        self.calls: deque[CallTimes] = deque(maxlen=RECENT_CALLS)
        self.events = Events(time.time)
        self.runtime = runtime
        self._calls_begun = self._hook_server_series = 0
        self._hook_servers: set[str] = set()

    def count(self, name: str, *labels: str) -> None:
        """Increment a counter by one; raise ValueError if the table has no such counter with so many labels."""
        try:
            self.counters[name, labels] += 1
        except KeyError:
            self._add(name, labels)

    def _add(self, name: str, labels: tuple[str, ...]) -> None:
        key = self._series(Kind.COUNTER, name, labels)
        if key not in self.counters and HOOK_SERVER in METRICS[name].labels:
            if self._hook_server_series == HOOK_SERVER_SERIES:
                key = name, (OTHER_LABEL, *labels[1:])
            else:
                self._hook_server_series += 1
        self.counters[key] = self.counters.get(key, 0) + 1

    def set_counter(self, name: str, value: int, *labels: str) -> None:
        self.counters[self._series(Kind.COUNTER, name, labels)] = value

    def gauge(self, name: str, value: float, *labels: str) -> None:
        self.gauges[self._series(Kind.GAUGE, name, labels)] = value

    def observe(self, name: str, value: float, *labels: str) -> None:
        try:
            histogram = self.histograms[name, labels]
        except KeyError:
            histogram = self.histograms.setdefault(self._series(Kind.HISTOGRAM, name, labels), Histogram())
        histogram.counts[bisect_left(SECONDS, value)] += 1
        histogram.sum += value

    def _series(self, kind: Kind, name: str, labels: tuple[str, ...]) -> Key:
        """Return the key of a series that the table has; a hook server above the limit is OTHER_LABEL."""
        row = METRICS.get(name)
        if row is None or row.kind is not kind or len(row.given) != len(labels):
            raise ValueError(f"{name} with {len(labels)} labels is not a {kind.value} of the table of metrics: add it")
        if HOOK_SERVER not in row.labels:
            return name, labels
        if len(self._hook_servers) < HOOK_SERVERS:
            self._hook_servers.add(labels[0])
        return name, labels if labels[0] in self._hook_servers else (OTHER_LABEL, *labels[1:])

    def is_shown(self, hook_server: str) -> bool:
        """Return whether a hook server has its own name in labels, now or as soon as it is counted."""
        return hook_server in self._hook_servers or len(self._hook_servers) < HOOK_SERVERS

    def forget(self, hook_server: str) -> None:
        """Drop the gauges of a removed hook server, or those of OTHER_LABEL if its name is not in labels."""
        shown = hook_server if hook_server in self._hook_servers else OTHER_LABEL
        for name, labels in tuple(self.gauges):
            if HOOK_SERVER in METRICS[name].labels and labels[0] == shown:
                del self.gauges[name, labels]

    def call(self, operation: str) -> CallTimes:
        """Record the start of an intercepted call, give it its id, and return its times."""
        self._calls_begun += 1
        times = CallTimes(operation, self.clock(), id=f"{PROCESS}-{self._calls_begun}")
        self.calls.append(times)
        return times

    def parts(self, times: CallTimes) -> tuple[float, ...]:
        """Return the seconds of a call up to now, or to its end, by events.PARTS."""
        end = self.clock() if times.done is None else times.done
        runtime = times.querying
        if times.released is not None:
            runtime += (end if times.answered is None else times.answered) - times.released
        own = end - times.held - times.queued - times.hooks - runtime - times.post
        return own, times.queued, times.hooks, runtime, times.post

    def record_end(self, times: CallTimes) -> tuple[float, ...]:
        """Count an ended call and its time by part; return the parts."""
        parts = self.parts(times)
        self.count("calls", times.operation, times.outcome)
        for part, seconds in zip(PARTS, parts, strict=True):
            if seconds or part == "own":
                self.observe("call_duration_seconds", seconds, times.operation, part)
        return parts

    def count_unsettable_fields(self, operation: str, fields: Sequence[str], by: str, call: str) -> None:
        """Count and log fields that a hook server set and that ``by``, the API of the request, cannot set."""
        for field in fields:
            self.count("fields_left_out", operation, field)
        names = ", ".join(fields)
        extra = {"kind": (operation, names), "call": call}
        log.warning("%s: %s cannot set %s of a container: left out", operation, by, names, extra=extra)

    def normalised(self, fields: Iterable[str], owners: Mapping[str, str]) -> None:
        """Count resource fields that the runtime is given another value for than the hook server set, with the same
        meaning. ``owners`` are the adjustment's."""
        for field in fields:
            if owner := owners.get(f"resources.{field}"):
                self.count("values_normalised", owner, f"resources.{field}")

    def counted(self, name: str, **labels: str) -> int:
        return self.counters.get((name, tuple(labels[label] for label in METRICS[name].given)), 0)

    def total(self, name: str, **labels: str) -> int:
        given = METRICS[name].given
        desired = {given.index(label): value for label, value in labels.items()}
        return sum(
            count
            for (counter, values), count in self.counters.items()
            if counter == name and all(values[at] == value for at, value in desired.items())
        )

    def figures(self) -> list[str]:
        """Return all series in the table's order, one value per line, in Prometheus' text format."""
        lines: dict[str, list[str]] = {row.name: [] for row in ROWS}
        for key, value in sorted({**self.counters, **self.gauges}.items()):
            lines[key[0]].append(self._line(key, value))
        for key, histogram in sorted(self.histograms.items()):
            below = tuple(accumulate(histogram.counts))
            for bound, count in zip((*SECONDS, "+Inf"), below, strict=True):
                lines[key[0]].append(self._line(key, count, "_bucket", le=str(bound)))
            lines[key[0]] += self._line(key, histogram.sum, "_sum"), self._line(key, below[-1], "_count")
        return [line for series in lines.values() for line in series]

    def _line(self, key: Key, value: float, suffix: str = "", **more: str) -> str:
        row, pairs = METRICS[key[0]], []
        for name, text in (row.labelled(key[1], self.runtime) | more).items():
            escaped = text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
            pairs.append(f'{name}="{escaped}"')
        number = f"{value:.0f}" if value == int(value) else repr(value)
        return f"{row.shown}{suffix}{{{','.join(pairs)}}} {number}" if pairs else f"{row.shown}{suffix} {number}"
