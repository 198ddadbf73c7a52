"""The methods of the control protocol (docs/control-protocol.rst).

Invariants: no answer contains a value of a request. Each part of an answer takes less than 2 ms to make.
"""

import os
import platform
import resource
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from heapq import nsmallest
from itertools import chain, islice, tee
from math import inf
from typing import Any, TypeVar

from runtimeproxy.admin import health, records
from runtimeproxy.admin.log_level import LogLevel
from runtimeproxy.admin.protocol import BAD_REQUEST, NOT_FOUND, UNAVAILABLE, Part, Refused, encoded
from runtimeproxy.admin.server import Method
from runtimeproxy.core.store import Store
from runtimeproxy.core.sync import Sync
from runtimeproxy.errors import ConfigError
from runtimeproxy.model.hookpoints import HOOK_POINTS
from runtimeproxy.observe.events import MOST_EVENTS, EventKind, Events, Row, event_object, rfc3339
from runtimeproxy.observe.loop_watchdog import LoopWatchdog
from runtimeproxy.observe.metric_table import SECONDS, Histogram, quantile
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.plugins.client import BreakerState
from runtimeproxy.plugins.manager import Manager, Plugin
from runtimeproxy.plugins.reach import Reach
from runtimeproxy.plugins.registration import FailurePolicy, Registration, plugin_name
from runtimeproxy.settings.config import Setting
from runtimeproxy.settings.options import LOG_LEVELS, parse_duration
from runtimeproxy.settings.version import VERSION

READINESS_SECONDS, METRICS_SECONDS = 1.0, 0.25
"""How long the results of readyz's checks, and the metrics, are reused."""
RECORDS_PER_ITERATION, SERIES_PER_ITERATION, ROW_SECONDS = 500, 200, 0.0005
"""Limits of an iteration of the loop in records, series, and seconds for rows: half a millisecond, or one row."""
PAGE, LONGEST_PAGE, EVENTS = 100, 1000, 1000
"""Default and maximum number of records in an answer, and the default number of events."""
FOLLOWERS = 16
"""Most clients that follow: half of all connections, so that other requests are served."""
ENCODED_EVENTS = 256
TEXT_CHARACTERS = 512
NAMES = 20
KINDS = tuple(kind.value for kind in EventKind)
LEAST_LEVEL_SECONDS, LEVEL_SECONDS, LONGEST_LEVEL_SECONDS = 1.0, 600.0, 86_400.0
_EVENTS = b'{"events":[%s]}'


@dataclass(frozen=True, slots=True)
class Sources:
    """The parts of the proxy that are read. ``listening_fault`` and ``runtime_fault`` return why no client can connect
    to the proxy, or the proxy to the runtime; "" if they can. ``clock`` is the loop's."""

    mode: str
    settings: tuple[Setting, ...]
    metrics: Metrics
    store: Store
    manager: Manager
    reach: Reach
    sync: Sync
    watchdog: LoopWatchdog
    log_level: LogLevel
    draining: Callable[[], bool]
    listening_fault: Callable[[], str]
    runtime_fault: Callable[[], str]
    clock: Callable[[], float]


def methods(sources: Sources) -> Mapping[str, Method]:
    version: Part = {"version": VERSION, "python": platform.python_version(), "mode": sources.mode}
    version |= {"pid": os.getpid(), "startedAt": rfc3339(time.time())}
    readiness = _Readiness(sources)
    options = [{"key": setting.key, "value": setting.value, "origin": setting.origin} for setting in sources.settings]
    page = {"pod": _text, "id": _text, "limit": _count(LONGEST_PAGE), "after": _text}
    events: dict[str, Callable[[Any], Any]] = {"since": _number, "limit": _count(MOST_EVENTS), "follow": _boolean}
    events |= {"pod": _text, "hookServer": _text, "kind": _kind}
    disable = {"name": _text, "reason": _text, "for": _text, "unregistered": _boolean}
    return {
        "metrics": Method(_Metrics(sources, readiness).parts, public=True),
        "livez": Method(lambda _: iter([{"checks": [health.verdict("loop")]}]), public=True),
        "readyz": Method(readiness.parts, public=True),
        "version": Method(lambda _: iter([version])),
        "configz": Method(lambda _: iter([{"options": options}])),
        "hooks": Method(partial(_hooks, sources)),
        "disable": Method(partial(_disable, sources), disable, ("name", "reason"), signed=True),
        "enable": Method(partial(_enable, sources), {"name": _text}, ("name",)),
        "store": Method(partial(_store, sources.store), page),
        "events": Method(_Events(sources.metrics.events).parts, events),
        "loglevel": Method(partial(_log_level, sources.log_level), {"level": _text, "for": _text}, ("level",)),
    }


def _require(value: Any, is_right: bool, fault: str) -> Any:
    if not is_right:
        raise ValueError(fault)
    return value


def _text(value: Any) -> Any:
    is_text = isinstance(value, str) and len(value) <= TEXT_CHARACTERS and value.isprintable()
    return _require(value, is_text, f"is not a text of at most {TEXT_CHARACTERS} characters")


def _number(value: Any) -> Any:
    return _require(value, type(value) is int and 0 <= value < 1 << 53, "is not a number from 0")


def _count(most: int) -> Callable[[Any], Any]:
    return lambda value: _require(value, 1 <= _number(value) <= most, f"is not from 1 to {most}")


def _kind(value: Any) -> Any:
    return _require(value, value in KINDS, f"is not one of {', '.join(KINDS)}")


def _boolean(value: Any) -> Any:
    return _require(value, isinstance(value, bool), "is not true or false")


class _Metrics:
    """Answers with all series. Requests within METRICS_SECONDS share the parts, each of which is encoded once."""

    def __init__(self, sources: Sources, readiness: "_Readiness") -> None:
        self._sources = sources
        self._readiness = readiness
        self._parts: Iterator[bytes] = iter(())
        self._due = 0.0

    def parts(self, arguments: Mapping[str, Any]) -> Iterator[bytes]:
        if self._sources.clock() >= self._due:
            self._readiness.inspect()
            made = map(encoded, _series(self._sources.metrics))
            self._parts = chain([next(made)], made)  # an error of the first part, which reads /proc, is not shared
            self._due = self._sources.clock() + METRICS_SECONDS
        self._parts, parts = tee(self._parts)
        return parts


def _series(metrics: Metrics) -> Iterator[Part]:
    """Yield the label runtime and the metrics of the process, then all series. Counters and gauges have name, labels
    and value, histograms have name, labels, bucket counts and sum."""
    yield {"runtime": metrics.runtime, "process": _process(), "values": [], "histograms": []}
    values = iter([*metrics.counters.items(), *metrics.gauges.items()])
    while chunk := list(islice(values, SERIES_PER_ITERATION)):
        yield {"values": [(*key, value) for key, value in chunk]}
    histograms = iter([*metrics.histograms.items()])
    while series_chunk := list(islice(histograms, SERIES_PER_ITERATION)):
        yield {"histograms": [(*key, histogram.counts, histogram.sum) for key, histogram in series_chunk]}


def _process() -> dict[str, float]:
    """Return the metrics of this process under the names of Prometheus' client libraries (proc(5))."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    # /proc/stat, which has the boot time too, is hidden by the unit (ProcSubset=pid).
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return {
        "process_virtual_memory_bytes": int(fields[20]),
        "process_resident_memory_bytes": int(fields[21]) * resource.getpagesize(),
        "process_start_time_seconds": int(fields[19]) / ticks + boot,
        "process_cpu_seconds_total": (int(fields[11]) + int(fields[12])) / ticks,
        "process_max_fds": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "process_open_fds": len(os.listdir("/proc/self/fd")),
    }


class _Readiness:
    """The checks of readyz. They run at most once a second for all clients, and when a hook server was disabled or
    enabled."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._checked_at = -READINESS_SECONDS
        self._disabled: tuple[str, ...] = ()
        self._checks: list[dict[str, str]] = []

    def parts(self, arguments: Mapping[str, Any]) -> Iterator[Part]:
        self.inspect()
        yield {"checks": self._checks}

    def inspect(self) -> None:
        """Repeat the checks if their results are old, and set the gauge ``ready``."""
        now, disabled = self._sources.clock(), tuple(self._sources.manager.disabled)
        if now - self._checked_at >= READINESS_SECONDS or disabled != self._disabled:
            self._checked_at, self._disabled = now, disabled
            self._checks = _checks(self._sources, now)
            ready = all(check["state"] != health.FAILED for check in self._checks)
            self._sources.metrics.gauge("ready", float(ready))


def _checks(sources: Sources, now: float) -> list[dict[str, str]]:
    manager, stall = sources.manager, sources.watchdog.last_stall
    failing, unreachable, suspended = [], [], []
    for plugin in manager.plugins:
        absence = sources.reach.absences.get(plugin.name)
        if absence and plugin.policy is FailurePolicy.FAIL and now - absence.since >= health.UNREACHABLE_SECONDS:
            failing.append(f"{plugin.name} for {now - absence.since:.0f} s ({absence.why})")
        elif absence:
            unreachable.append(f"{plugin.name} ({absence.why})")
        if plugin.breaker.state is BreakerState.OPEN:
            suspended.append(f"{plugin.name} (tried again in {plugin.breaker.remaining_seconds(now):.0f} s)")
    not_read = "" if manager.read else manager.directory_fault or "the registration directory was not read yet"
    disabled = [health.reason_with_names("disabled by hand", manager.disabled), manager.mask_fault]
    if stall and now - stall.ended > health.STALL_REPORTED_SECONDS:
        stall = None
    failed = {
        "listening": sources.listening_fault(),
        "registrations_read": not_read,
        "runtime": sources.runtime_fault() or sources.sync.runtime_fault,
        "not_draining": "the proxy is stopping" if sources.draining() else "",
        "fail_plugins": health.reason_with_names("policy Fail and unreachable", failing),
    }
    degraded = {
        "registrations_read": manager.directory_fault,
        "plugins": health.reason_with_names("unreachable", unreachable),
        "breakers": health.reason_with_names("calls suspended, as they keep failing", suspended),
        "disabled_plugins": "; ".join(filter(None, disabled)),
        "invalid_files": health.reason_with_names("rejected", manager.rejected),
        "store": "the runtime's pods and containers are still being read" if sources.sync.filling else "",
        "loop": f"it hung for {stall.seconds:.2f} s, {now - stall.ended:.0f} s ago" if stall else "",
    }
    return [health.verdict(name, failed.get(name, ""), degraded.get(name, "")) for name in health.CHECKS]


def _hooks(sources: Sources, arguments: Mapping[str, Any]) -> Iterator[Part]:
    manager, sums = sources.manager, _by_hook_server(sources.metrics)
    rejected, shown = manager.rejected, _registered(manager)
    yield {
        "hooks": [],
        "invalid": [{"file": name, "reason": rejected[name]} for name in rejected],
        "masked": [name for name in manager.disabled if name not in shown],
    }
    yield from _chunks("hooks", (_hook(sources, name, shown[name], sums) for name in shown))


def _registered(manager: Manager) -> dict[str, Plugin | Registration]:
    """Return the registered hook servers by name, disabled or not, in the order of their files."""
    registered: dict[str, Plugin | Registration] = {plugin.name: plugin for plugin in manager.plugins}
    registered.update(manager.masked)
    return {name: registered[name] for name in sorted(registered, key="{}.json".format)}


def _resolve(manager: Manager, text: str) -> str:
    """Return the hook server that a name or a file's name selects. A registered or disabled one has priority."""
    names = (text, plugin_name(text))
    matches = (name for group in (_registered(manager), manager.disabled) for name in names if name in group)
    return next(matches, names[1])


def _listed(names: Iterable[str]) -> str:
    printable_names = ["".join(letter if letter.isprintable() else "?" for letter in name) for name in names]
    more = f" and {len(printable_names) - NAMES} more" if len(printable_names) > NAMES else ""
    return f"there are {', '.join(printable_names[:NAMES])}{more}" if printable_names else "there are none"


def _by_hook_server(metrics: Metrics) -> dict[tuple[str, str], int]:
    sums: dict[tuple[str, str], int] = {}
    for (name, labels), value in metrics.counters.items():
        if name in ("hook_calls", "hook_failures"):
            sums[name, labels[0]] = sums.get((name, labels[0]), 0) + value
    return sums


def _hook(
    sources: Sources, name: str, plugin: Plugin | Registration | None, sums: Mapping[tuple[str, str], int]
) -> Part:
    """Return a hook server as JSON; ``plugin`` is None if it is not registered. Its metrics are None if they are
    counted under OTHER_LABEL."""
    own, manager = sources.metrics.is_shown(name), sources.manager
    repeated = {hook_point: server for (repeating, hook_point), server in manager.repeated.items() if repeating == name}
    served = plugin.points - repeated.keys() if plugin else frozenset()
    times = sources.metrics.histograms.get(("hook_call_duration_seconds", (name,)))
    disabled = manager.disabled.get(name)
    state = "disabled" if disabled else None
    unreachable = last_error = None
    if isinstance(plugin, Plugin):
        absence = sources.reach.absences.get(name)
        state = "unreachable" if absence else plugin.breaker.state.value
        if absence:  # its time is on the loop's clock
            since = sources.metrics.events.wall_clock() - (sources.clock() - absence.since)
            unreachable = {"since": rfc3339(since), "reason": absence.why}
        last = plugin.last_error
        if last.reason:
            last_error = {"time": rfc3339(last.time), "hook": last.hook, "reason": last.reason}
    return {
        "name": name,
        "endpoint": plugin and plugin.endpoint,
        "policy": plugin and plugin.policy.value,
        "points": [hook_point.name for hook_point in HOOK_POINTS if hook_point.name in served],
        "sameSocketAs": sorted({*repeated.values(), *filter(None, [manager.disabled_with.get(name)])}),
        "timeoutSeconds": plugin and plugin.timeout_seconds,
        "state": state,
        "disabled": disabled and disabled.shown(),
        "unreachable": unreachable,
        "calls": sums.get(("hook_calls", name), 0) if own else None,
        "failures": sums.get(("hook_failures", name), 0) if own else None,
        "p50Seconds": _quantile(times, 0.5),
        "p99Seconds": _quantile(times, 0.99),
        "lastError": last_error,
    }


def _quantile(times: Histogram | None, share: float) -> float | None:
    """Return a quantile in seconds, at most the highest bound, as JSON has no infinity."""
    seconds = None if times is None else quantile(SECONDS, times.counts, share)
    return None if seconds is None else min(seconds, SECONDS[-1])


async def _disable(sources: Sources, arguments: Mapping[str, Any]) -> AsyncIterator[Part]:
    seconds = _seconds(arguments["for"]) if "for" in arguments else None
    manager, name = sources.manager, _resolve(sources.manager, arguments["name"])
    registered = _registered(manager)
    if name not in registered and not arguments.get("unregistered"):
        not_registered = f"no such hook server is registered: {_listed(registered)}"
        raise Refused(NOT_FOUND, f"{not_registered}; to disable one before it registers add --unregistered")
    try:
        notes = await manager.disable(name, arguments["reason"], arguments["by"], seconds)
    except ConfigError as error:
        raise Refused(BAD_REQUEST, str(error)) from None
    yield _switched(sources, name, notes)


async def _enable(sources: Sources, arguments: Mapping[str, Any]) -> AsyncIterator[Part]:
    manager, name = sources.manager, _resolve(sources.manager, arguments["name"])
    names = dict.fromkeys([*_registered(manager), *manager.disabled])
    if name not in names:
        raise Refused(NOT_FOUND, f"no such hook server is registered or disabled: {_listed(names)}")
    yield _switched(sources, name, await manager.enable(name))


def _switched(sources: Sources, name: str, notes: tuple[str, ...]) -> Part:
    plugin = _registered(sources.manager).get(name)
    return {**_hook(sources, name, plugin, _by_hook_server(sources.metrics)), "notes": list(notes)}


def _store(store: Store, arguments: Mapping[str, Any]) -> Iterator[Part | bytes]:
    after, limit = arguments.get("after", ""), arguments.get("limit", PAGE)
    ids: list[str] = []
    yield {"pods": [], "containers": []}
    for chunk in _selected(store, arguments.get("pod", ""), arguments.get("id", "")):
        ids = nsmallest(limit + 1, ids + [record_id for record_id in chunk if record_id > after])
        yield b""
    page = ids[:limit]
    pods = ((pod, store.containers_of(record_id)) for record_id in page if (pod := store.pod(record_id)) is not None)
    pod_rows = (records.pod_row(pod, [inside.effective.id for inside in containers]) for pod, containers in pods)
    yield from _chunks("pods", pod_rows)
    containers = (container for record_id in page if (container := store.container(record_id)) is not None)
    yield from _chunks("containers", map(records.container_row, containers))
    yield {"next": page[-1] if len(ids) > limit else None}


def _selected(store: Store, pod: str, prefix: str) -> Iterator[list[str]]:
    """Yield in chunks the ids with a prefix; if ``pod`` is given, only those of matching pods and their containers."""
    pods, containers = store.snapshot()
    pod_ids = set[str]()
    for pod_chunk in _chunks_of(pods):
        infos = [record.effective for record in pod_chunk]
        ids = [info.id for info in infos if records.is_of_pod(pod, info.namespace, info.name, info.id)]
        pod_ids.update(ids)
        yield [pod_id for pod_id in ids if pod_id.startswith(prefix)]
    for container_chunk in _chunks_of(containers):
        matches = [record.effective for record in container_chunk if record.effective.id.startswith(prefix)]
        yield [info.id for info in matches if info.pod_id in pod_ids or info.pod_id.startswith(pod)]


class _Events:
    """Answers with the ring's events; at most FOLLOWERS clients get new ones too."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._followers = 0

    def parts(self, arguments: Mapping[str, Any]) -> Iterator[bytes | None]:
        """Yield the selected events after ``since`` in order, and a gap for dropped events. ``follow`` continues with
        new events. Raises Refused."""
        follow = arguments.get("follow", False)
        last, remaining = arguments.get("since", 0), arguments.get("limit", inf if follow else EVENTS)
        if follow and self._followers >= FOLLOWERS:
            raise Refused(UNAVAILABLE, f"{FOLLOWERS} clients follow already; try again without follow, or later")
        self._followers += follow
        try:
            yield _EVENTS % b""
            while remaining > 0:
                rows, gap = self._events.read(last)
                encoded_events = []
                if gap is not None:
                    last = gap[1]
                    encoded_events.append(encoded({"kind": "gap", "from": gap[0], "to": last}))
                began = time.monotonic()
                for row in rows:
                    if len(encoded_events) >= remaining or time.monotonic() - began >= ROW_SECONDS:
                        break
                    last = row[0]
                    event, octets = _encoded(row)
                    if _matches(event, arguments):
                        encoded_events.append(octets)
                remaining -= len(encoded_events)
                if encoded_events:
                    yield _EVENTS % b",".join(encoded_events)
                elif rows:
                    yield b""
                elif follow:
                    yield None
                else:
                    return
        finally:
            self._followers -= follow


@lru_cache(ENCODED_EVENTS)
def _encoded(row: Row) -> tuple[Part, bytes]:
    """Return an event as an object and as JSON, which all clients that follow share."""
    event = event_object(row)
    return event, encoded(event)


def _matches(event: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """Return whether ``pod``, ``hookServer`` and ``kind`` select an event. The name of a registration file selects its
    hook server."""
    if arguments.get("kind") not in (None, event["kind"]):
        return False
    ids = [event.get(key, "") for key in ("podId", "containerId")]
    if not records.is_of_pod(arguments.get("pod", ""), event.get("namespace"), event.get("pod"), *ids):
        return False
    name = arguments.get("hookServer")
    servers = {event.get("hookServer", ""), *(field["hookServer"] for field in event.get("fields", ()))}
    return name is None or not servers.isdisjoint({name, plugin_name(name)})


def _log_level(log_level: LogLevel, arguments: Mapping[str, Any]) -> Iterator[Part]:
    level = arguments["level"].lower()
    if level not in LOG_LEVELS:
        raise Refused(BAD_REQUEST, f"level is one of {', '.join(LOG_LEVELS)}")
    seconds = _seconds(arguments["for"]) if "for" in arguments else LEVEL_SECONDS
    if not LEAST_LEVEL_SECONDS <= seconds <= LONGEST_LEVEL_SECONDS:
        raise Refused(BAD_REQUEST, "for is from 1s to 24h")
    yield {"level": level, "until": log_level.change(level, seconds)}


def _seconds(text: str) -> float:
    """Return the seconds of a duration, which may be in hours here."""
    hours = text.removesuffix("h")
    try:
        return parse_duration(text, "for") if hours == text else 60 * parse_duration(f"{hours}m", "for")
    except ConfigError:
        raise Refused(BAD_REQUEST, "for is a duration like 30s, 10m or 24h") from None


_T = TypeVar("_T")


def _chunks_of(values: tuple[_T, ...]) -> Iterator[tuple[_T, ...]]:
    return (values[at : at + RECORDS_PER_ITERATION] for at in range(0, len(values), RECORDS_PER_ITERATION))


def _chunks(key: str, rows: Iterable[Part]) -> Iterator[Part]:
    """Yield rows under a key, as many in a part as are made within ROW_SECONDS."""
    chunk: list[Part] = []
    began = time.monotonic()
    for row in rows:
        chunk.append(row)
        if time.monotonic() - began >= ROW_SECONDS:
            yield {key: chunk}
            chunk, began = [], time.monotonic()
    yield {key: chunk}
