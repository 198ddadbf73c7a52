"""The proxy's own metrics.

Owns counters, gauges, the timestamps of intercepted calls, and the log line on fields that cannot be set.
Must not know: who counts, how metrics are shown.
Invariant: labels are names from tables (operations, hook points, plugins, reasons), never values of a request.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

log = logging.getLogger(__name__)

Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]

RECENT_CALLS = 256


@dataclass(slots=True, eq=False)
class CallTimes:
    """The moments of one intercepted call on the event loop's clock, in seconds; None if it was not reached.

    From held to released the proxy and the Pre hooks work, from released to answered the runtime, from answered to done
    the Post hooks.
    """

    operation: str
    held: float
    released: float | None = None
    answered: float | None = None
    done: float | None = None
    outcome: str = ""


class Metrics:
    """Counters and gauges by name and labels, and the times of the latest calls."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.counters: Counter[Key] = Counter()
        self.gauges: dict[Key, float] = {}
        self.calls: deque[CallTimes] = deque(maxlen=RECENT_CALLS)

    def count(self, name: str, **labels: str) -> None:
        """Increment a counter by one."""
        self.counters[name, tuple(sorted(labels.items()))] += 1

    def counted(self, name: str, **labels: str) -> int:
        """Return a counter's value; 0 if it was never incremented."""
        return self.counters[name, tuple(sorted(labels.items()))]

    def total(self, name: str) -> int:
        """Return the sum of a counter over all its labels."""
        return sum(count for (counter, _), count in self.counters.items() if counter == name)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.gauges[name, tuple(sorted(labels.items()))] = value

    def figures(self) -> list[str]:
        """Return the counters and gauges, one per line, in Prometheus' text format."""
        return [_figure(key, value) for key, value in sorted({**self.counters, **self.gauges}.items())]

    def left_out(self, operation: str, fields: Sequence[str], by: str) -> None:
        """Count and log fields that a hook server set and that ``by``, the API of the request, has no means to set."""
        for field in fields:
            self.count("fields_left_out", operation=operation, field=field)
        if fields:
            names = ", ".join(fields)
            kind = {"kind": (operation, names)}
            log.warning("%s: %s cannot set %s of a container: left out", operation, by, names, extra=kind)

    def call(self, operation: str) -> CallTimes:
        """Record the start of an intercepted call and return its times."""
        times = CallTimes(operation, self.clock())
        self.calls.append(times)
        return times


def _figure(key: Key, value: float) -> str:
    name, labels = key
    spelt = ",".join(f'{label}="{text}"' for label, text in labels)
    return f"{name}{{{spelt}}} {value:g}" if spelt else f"{name} {value:g}"
