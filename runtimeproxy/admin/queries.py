"""What the admin server can ask the daemon.

Owns the table of questions, and the answers' form: JSON values, in parts of which each takes less than 2 ms to make.
Must not know: HTTP, the channel's wire.
Invariant: no answer has a value of a request: of records there are names of fields, of failures reasons and texts of
the proxy's own.
"""

import os
import platform
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from runtimeproxy.admin import health, records
from runtimeproxy.admin.channel import BAD_REQUEST, NOT_FOUND, Part, Query, Refused
from runtimeproxy.admin.log_level import LogLevel
from runtimeproxy.admin.snapshot import series
from runtimeproxy.core.store import Store
from runtimeproxy.core.sync import Sync
from runtimeproxy.errors import ConfigError
from runtimeproxy.model.hookpoints import HOOK_POINTS
from runtimeproxy.observe.events import Events
from runtimeproxy.observe.histogram import Histogram, quantile
from runtimeproxy.observe.loop_watchdog import LoopWatchdog
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.observe.times import rfc3339
from runtimeproxy.plugins.client import BreakerState
from runtimeproxy.plugins.manager import LastError, Manager, Plugin
from runtimeproxy.plugins.reach import Absence, Reach
from runtimeproxy.plugins.registration import FailurePolicy, Registration, plugin_name
from runtimeproxy.settings.config import Setting
from runtimeproxy.settings.options import LOG_LEVELS, parse_duration
from runtimeproxy.version import VERSION

LOOK_SECONDS = 1.0
"""For how long one look at the state serves all questions about it."""
RECORDS_AT_ONCE = 500
"""How many records are looked at in one turn of the loop: half a millisecond."""
ROW_SECONDS = 0.0005
"""For how long rows are made in one turn; at least one is."""
PAGE = 100
"""How many records are told unless another number is asked for."""
NAMES = 20
"""How many hook servers an error lists."""
LEVEL_SECONDS, LONGEST_LEVEL_SECONDS = 600.0, 86_400.0
LEAST_LEVEL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Sources:
    """The parts of the proxy that are asked. ``listening_fault`` and ``runtime_fault`` return why nobody can connect to
    the proxy, or the proxy not to the runtime; "" if they can. ``clock`` is the loop's."""

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


def table(sources: Sources) -> Mapping[str, Query]:
    """Return the questions by name."""
    version = {
        "version": VERSION,
        "python": platform.python_version(),
        "mode": sources.mode,
        "pid": os.getpid(),
        "startedAt": rfc3339(time.time()),
    }
    readiness = _Readiness(sources)
    return {
        "metrics": partial(_metrics, sources.metrics, readiness),
        "livez": lambda _: iter([{"checks": [_check(health.Check("loop"))]}]),
        "readyz": readiness.parts,
        "version": lambda _: iter([version]),
        "configz": lambda _: iter([{"options": [_setting(setting) for setting in sources.settings]}]),
        "hooks": partial(_hooks, sources),
        "disable": partial(_disable, sources),
        "enable": partial(_enable, sources),
        "store": partial(_store, sources.store),
        "events": partial(_events, sources.metrics.events),
        "loglevel": partial(_log_level, sources.log_level),
    }


def _metrics(metrics: Metrics, readiness: "_Readiness", arguments: Mapping[str, Any]) -> Iterator[Part]:
    readiness.look()
    return series(metrics)


def _setting(setting: Setting) -> Part:
    return {"key": setting.key, "value": setting.value, "origin": setting.origin}


# -- health ----------------------------------------------------------------------------------------------------------


def _check(check: health.Check) -> Part:
    return {"name": check.name, "state": check.state.value, "reason": check.reason}


class _Readiness:
    """The checks of readyz, looked at once a second at most, however many ask, and when what is disabled changed."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._looked = -LOOK_SECONDS
        self._disabled: tuple[str, ...] = ()
        self._checks: list[Part] = []

    def parts(self, arguments: Mapping[str, Any]) -> Iterator[Part]:
        """Yield the checks."""
        self.look()
        yield {"checks": self._checks}

    def look(self) -> None:
        """Make the checks anew if they are old, and set the gauge of readiness."""
        now, disabled = self._sources.clock(), tuple(self._sources.manager.disabled)
        if now - self._looked >= LOOK_SECONDS or disabled != self._disabled:
            self._looked, self._disabled = now, disabled
            checks = health.readiness(facts(self._sources))
            self._checks = [_check(check) for check in checks]
            ready = all(check.state is not health.State.FAILED for check in checks)
            self._sources.metrics.gauge("ready", float(ready))


def facts(sources: Sources) -> health.Facts:
    """Return the proxy's present state."""
    now, manager, stall = sources.clock(), sources.manager, sources.watchdog.last_stall
    return health.Facts(
        listening_fault=sources.listening_fault(),
        registrations_read=manager.read,
        directory_fault=manager.complaint,
        runtime_fault=sources.runtime_fault() or sources.sync.runtime_fault,
        draining=sources.draining(),
        plugins=tuple(_plugin_facts(plugin, sources.reach, now) for plugin in manager.plugins),
        masked=tuple(manager.disabled),
        mask_fault=manager.mask_fault,
        invalid_files=tuple(manager.rejected),
        filling=sources.sync.filling,
        stall=None if stall is None else (stall.seconds, now - stall.ended),
    )


def _plugin_facts(plugin: Plugin, reach: Reach, now: float) -> health.PluginFacts:
    absence = reach.absences.get(plugin.name)
    return health.PluginFacts(
        plugin.name,
        plugin.policy is FailurePolicy.FAIL,
        None if absence is None else now - absence.since,
        "" if absence is None else absence.why,
        plugin.breaker.seconds_left(now) if plugin.breaker.state is BreakerState.OPEN else None,
    )


# -- hooks -----------------------------------------------------------------------------------------------------------


def _hooks(sources: Sources, arguments: Mapping[str, Any]) -> Iterator[Part]:
    manager, sums = sources.manager, _by_hook_server(sources.metrics)
    rejected, shown = manager.rejected, _registered(manager)
    yield {
        "hooks": [],
        "invalid": [{"file": name, "reason": rejected[name]} for name in rejected],
        "masked": [name for name in manager.disabled if name not in shown],
    }
    yield from _pieces("hooks", (_hook(sources, name, shown[name], sums) for name in shown))


def _registered(manager: Manager) -> dict[str, Plugin | Registration]:
    """Return the registered hook servers by name, disabled or not, in the order of their files."""
    found: dict[str, Plugin | Registration] = {plugin.name: plugin for plugin in manager.plugins}
    found.update(manager.masked)
    return {name: found[name] for name in sorted(found, key="{}.json".format)}


def _resolve(manager: Manager, text: str) -> str:
    """Return the name of the hook server that a name or a file's name means, a registered or disabled one if any."""
    names = (text, plugin_name(text))
    known = (name for group in (_registered(manager), manager.disabled) for name in names if name in group)
    return next(known, names[1])


def _listed(names: Iterable[str]) -> str:
    found = ["".join(letter if letter.isprintable() else "?" for letter in name) for name in names]
    more = f" and {len(found) - NAMES} more" if len(found) > NAMES else ""
    return f"there are {', '.join(found[:NAMES])}{more}" if found else "there are none"


def _by_hook_server(metrics: Metrics) -> dict[tuple[str, str], int]:
    """Return the sums of hook calls and failures, by counter and hook server."""
    sums: dict[tuple[str, str], int] = {}
    for (name, labels), value in metrics.counters.items():
        if name in ("hook_calls", "hook_failures"):
            sums[name, labels[0]] = sums.get((name, labels[0]), 0) + value
    return sums


def _hook(
    sources: Sources, name: str, known: Plugin | Registration | None, sums: Mapping[tuple[str, str], int]
) -> Part:
    """Return what is shown of a hook server: a plugin, the registration of a disabled one, or None for a name that is
    not registered. One whose figures are counted with those of others has none."""
    own, manager = sources.metrics.is_shown(name), sources.manager
    repeated = {point: other for (repeating, point), other in manager.repeated.items() if repeating == name}
    times = sources.metrics.histograms.get(("hook_call_duration_seconds", (name,)))
    disabled = manager.disabled.get(name)
    state = "disabled" if disabled else None
    absence = None
    if isinstance(known, Plugin):
        absence = sources.reach.absences.get(name)
        state = "unreachable" if absence else known.breaker.state.value
    return {
        "name": name,
        "endpoint": known and known.endpoint,
        "policy": known and known.policy.value,
        "points": [point.name for point in HOOK_POINTS if known and point.name in known.points - repeated.keys()],
        "sameSocketAs": sorted({*repeated.values(), *filter(None, [manager.disabled_with.get(name)])}),
        "timeoutSeconds": known and known.timeout_seconds,
        "state": state,
        "disabled": disabled and disabled.shown(),
        "unreachable": absence and _absence(absence, sources),
        "calls": sums.get(("hook_calls", name), 0) if own else None,
        "failures": sums.get(("hook_failures", name), 0) if own else None,
        "p50Seconds": _quantile(times, 0.5),
        "p99Seconds": _quantile(times, 0.99),
        "lastError": _last_error(known.last_error) if isinstance(known, Plugin) else None,
    }


def _absence(absence: Absence, sources: Sources) -> Part:
    """Return since when and why a hook server cannot be reached; its time is on the loop's clock."""
    since = sources.metrics.events.wall_clock() - (sources.clock() - absence.since)
    return {"since": rfc3339(since), "reason": absence.why}


def _quantile(times: Histogram | None, share: float) -> float | None:
    """Return a quantile in seconds; the highest bound for one above it, as JSON has no infinity."""
    found = None if times is None else quantile(times.bounds, times.counts, share)
    return None if times is None or found is None else min(found, times.bounds[-1])


def _last_error(error: LastError) -> Part | None:
    if not error.reason:
        return None
    return {"time": rfc3339(error.time), "hook": error.hook, "reason": error.reason}


async def _disable(sources: Sources, arguments: Mapping[str, Any]) -> AsyncIterator[Part]:
    """Disable a hook server, and yield what is shown of it then, with notes."""
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
    """Enable a hook server, and yield what is shown of it then, with notes."""
    manager, name = sources.manager, _resolve(sources.manager, arguments["name"])
    known = dict.fromkeys([*_registered(manager), *manager.disabled])
    if name not in known:
        raise Refused(NOT_FOUND, f"no such hook server is registered or disabled: {_listed(known)}")
    yield _switched(sources, name, await manager.enable(name))


def _switched(sources: Sources, name: str, notes: tuple[str, ...]) -> Part:
    known = _registered(sources.manager).get(name)
    return {**_hook(sources, name, known, _by_hook_server(sources.metrics)), "notes": list(notes)}


# -- store -----------------------------------------------------------------------------------------------------------


def _store(store: Store, arguments: Mapping[str, Any]) -> Iterator[Part]:
    """Yield one page of pods and containers, in the order of their ids."""
    page = records.Page(arguments.get("after", ""), arguments.get("limit", PAGE))
    yield {"pods": [], "containers": []}
    for ids in _selected(store, arguments.get("pod", ""), arguments.get("id", "")):
        page.add(ids)
        yield {}  # a turn of the loop
    yield from _pieces("pods", (row for one in page.ids if (row := _pod(store, one)) is not None))
    yield from _pieces("containers", (row for one in page.ids if (row := _container(store, one)) is not None))
    yield {"next": page.next}


def _selected(store: Store, pod: str, beginning: str) -> Iterator[list[str]]:
    """Yield in pieces the ids with a beginning, of these pods and their containers alone if ``pod`` is given."""
    pods, containers = store.snapshot()
    wanted = set[str]()
    for some_pods in _pieces_of(pods):
        infos = [record.effective for record in some_pods]
        ids = [info.id for info in infos if records.is_of_pod(pod, info.namespace, info.name, info.id)]
        wanted.update(ids)
        yield [one for one in ids if one.startswith(beginning)]
    for some in _pieces_of(containers):
        found = [record.effective for record in some if record.effective.id.startswith(beginning)]
        yield [info.id for info in found if info.pod_id in wanted or info.pod_id.startswith(pod)]


def _pod(store: Store, pod_id: str) -> Part | None:
    record = store.pod(pod_id)
    if record is None:
        return None
    return records.pod_row(record, [container.effective.id for container in store.containers_of(pod_id)])


def _container(store: Store, container_id: str) -> Part | None:
    record = store.container(container_id)
    return None if record is None else records.container_row(record)


# -- events ----------------------------------------------------------------------------------------------------------


def _events(events: Events, arguments: Mapping[str, Any]) -> Iterator[Part]:
    """Yield the events after a number, at most so many, as they are read, which costs calls the least: the server makes
    of them what is shown. Those that are no longer there are told in their place. Which of them a client wants is the
    server's matter, as one answer serves several."""
    last, left = arguments["since"], arguments["limit"]
    page = events.read(last, left)
    if page.gap is not None:
        yield {"events": [{"kind": "gap", "from": page.gap[0], "to": page.gap[1]}]}
    while page.events:
        yield {"events": page.events}
        left -= len(page.events)
        page = events.read(page.last, left)


# -- log level -------------------------------------------------------------------------------------------------------


def _log_level(log_level: LogLevel, arguments: Mapping[str, Any]) -> Iterator[Part]:
    """Set the log level, and yield it with the time until which it holds."""
    level = arguments["level"].lower()
    if level not in LOG_LEVELS:
        raise Refused(BAD_REQUEST, f"level is one of {', '.join(LOG_LEVELS)}")
    seconds = _seconds(arguments["for"]) if "for" in arguments else LEVEL_SECONDS
    if not LEAST_LEVEL_SECONDS <= seconds <= LONGEST_LEVEL_SECONDS:
        raise Refused(BAD_REQUEST, "for is from 1s to 24h")
    yield {"level": level, "until": log_level.change(level, seconds)}


def _seconds(text: str) -> float:
    """Return the seconds of a duration, which may be in hours here: "24h"."""
    hours = text.removesuffix("h")
    try:
        return parse_duration(text, "for") if hours == text else 60 * parse_duration(f"{hours}m", "for")
    except ConfigError:
        raise Refused(BAD_REQUEST, "for is a duration like 30s, 10m or 24h") from None


# -- pieces ----------------------------------------------------------------------------------------------------------

_T = TypeVar("_T")


def _pieces_of(values: tuple[_T, ...]) -> Iterator[tuple[_T, ...]]:
    return (values[at : at + RECORDS_AT_ONCE] for at in range(0, len(values), RECORDS_AT_ONCE))


def _pieces(key: str, rows: Iterable[Part]) -> Iterator[Part]:
    """Yield rows under a key, as many at once as are made within ROW_SECONDS."""
    piece: list[Part] = []
    began = time.monotonic()
    for row in rows:
        piece.append(row)
        if time.monotonic() - began >= ROW_SECONDS:
            yield {key: piece}
            piece, began = [], time.monotonic()
    yield {key: piece}
