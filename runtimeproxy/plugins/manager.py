"""The Plugins Manager: which hook servers are called at a hook point now.

Invariant: a plugin stays usable to the end of the call that got it; the tables for later calls are replaced together.
Nothing in the directory can end the task that follows it. A disabled hook server is in no table, whatever happens to
its file, and neither is one that names the same socket.
"""

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Set
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from weakref import WeakSet

from runtimeproxy.errors import Reason
from runtimeproxy.files import StateFile
from runtimeproxy.model.hookpoints import HOOK_POINTS, HookPoint
from runtimeproxy.observe.events import EventKind
from runtimeproxy.observe.logs import UNLIMITED
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.plugins import directory
from runtimeproxy.plugins.client import Breaker, BreakerState, HookClient
from runtimeproxy.plugins.disabling import Disabled, Disabling
from runtimeproxy.plugins.registration import Change, ChangeKind, FailurePolicy, Registration, Registry, plugin_name
from runtimeproxy.relay.eventloop import run_in_daemon_thread

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LastError:
    """The last failure of a plugin: seconds since 1970, hook point, reason; 0 and "" if there was none."""

    time: float = 0.0
    hook: str = ""
    reason: str = ""

    def note(self, time: float, hook: str, reason: Reason) -> None:
        self.time, self.hook, self.reason = time, hook, reason.value


@dataclass(frozen=True, slots=True, eq=False)
class Plugin:
    """One registered hook server; ``name`` is its file's name without .json, ``points`` are names of hook points. The
    object, with the recorded failures of the server, stays until its own registration changes."""

    name: str
    endpoint: str
    policy: FailurePolicy
    points: frozenset[str]
    timeout_seconds: float
    client: HookClient
    breaker: Breaker = field(default_factory=Breaker)
    unserved: dict[str, int] = field(default_factory=dict)
    """The hook points that the server reported as not served, each with the number of the connection that reported
    it."""
    bad_fields: set[str] = field(default_factory=set)
    """The names of the fields that it answered badly, each of which was logged."""
    last_error: LastError = field(default_factory=LastError)


PATIENCE_SECONDS = 5.0
"""Seconds that a read of the directory may take before a warning is logged, and the start continues without it."""
FAULT_SECONDS = 1.0
"""Seconds until the directory is read again after an error in the proxy itself."""
_RESULTS = {  # the result label of a change, and its event
    ChangeKind.ADDED: ("ok", EventKind.PLUGIN_ADDED),
    ChangeKind.CHANGED: ("ok", EventKind.PLUGIN_CHANGED),
    ChangeKind.RESTORED: ("ok", EventKind.PLUGIN_CHANGED),
    ChangeKind.REMOVED: ("removed", EventKind.PLUGIN_REMOVED),
    ChangeKind.REJECTED: ("rejected", EventKind.PLUGIN_INVALID),
}


class Manager:
    """Follows a registration directory, which need not exist. ``client_factory`` makes the client for (plugin name,
    socket path). ``mask`` is the file of disabled hook servers, None for no file."""

    def __init__(
        self,
        folder: str,
        *,
        timeout_seconds: float,
        metrics: Metrics,
        client_factory: Callable[[str, str], HookClient],
        mask: StateFile | None = None,
        poll_seconds: float = directory.POLL_SECONDS,
    ) -> None:
        self._folder = folder
        self._timeout_seconds = timeout_seconds
        self._metrics = metrics
        self._client_factory = client_factory
        self._watcher = directory.Watcher(folder, poll_seconds)
        self._registry = Registry()
        self.rejected: Mapping[str, str] = self._registry.rejected
        self._disabling = Disabling(mask, self._mask_changed, metrics.events.wall_clock)
        self._clients: WeakSet[HookClient] = WeakSet()
        """The clients in use: a call may still wait for one that no plugin has any more."""
        self._plugins: dict[str, Plugin] = {}
        self.by_point: dict[str, tuple[Plugin, ...]] = {}
        """The plugins of each hook point by its name, in file-name order, without points that have none."""
        self._fail_points: frozenset[str] = frozenset()
        self._built: tuple[Registration, ...] = ()
        self._repetitions: tuple[str, ...] = ()
        """The warnings about registrations of one socket that are logged."""
        self._sockets: dict[str, str] = {}
        """The sockets of the registrations by hook server, of a disabled one also after its file's removal."""
        self.repeated: Mapping[tuple[str, str], str] = {}
        """The hook servers and hook points at which another one of the same socket is called, each with its name."""
        self.disabled: Mapping[str, Disabled] = {}
        """The disabled hook servers by name: by hand, registered or not, or with one of the same socket."""
        self.disabled_with: Mapping[str, str] = {}
        """Those that are disabled with one of the same socket, each with its name."""
        self.on_change: Callable[[], None] | None = None
        self.read = False
        self.directory_fault = ""
        """Why the last scan could not read the directory; "" if it could."""
        self._task: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Read the mask and the directory, for which it waits at most PATIENCE_SECONDS, then follow the directory."""
        await self._disabling.load()
        first_scan = asyncio.Event()
        self._task = asyncio.create_task(self._follow(first_scan), name="plugins manager")
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await first_scan.wait()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self._watcher.close()
        self._disabling.stop()
        for plugin in self._plugins.values():
            self._retire(plugin.client)
        if self._closing:
            await asyncio.wait(self._closing)

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """Return the plugins that are called, in file-name order."""
        return tuple(self._plugins.values())

    def plugins_for(self, hook_point: HookPoint) -> tuple[Plugin, ...]:
        return self.by_point.get(hook_point.name, ())

    def registered(self, hook_points: Iterable[HookPoint]) -> bool:
        return any(hook_point.name in self.by_point for hook_point in hook_points)

    def fail_policy_registered(self, hook_point: HookPoint) -> bool:
        return hook_point.name in self._fail_points

    @property
    def masked(self) -> Mapping[str, Registration]:
        """Return the registrations of the disabled hook servers by name, with the timeout that would be in force."""
        return {
            plugin_name(entry.name): replace(entry, timeout_seconds=entry.timeout_seconds or self._timeout_seconds)
            for entry in self._registry.registrations
            if plugin_name(entry.name) in self.disabled
        }

    @property
    def mask_fault(self) -> str:
        return self._disabling.fault

    async def disable(self, name: str, reason: str, by: str, seconds: float | None = None) -> tuple[str, ...]:
        """Stop calling a hook server, and all others that name its socket, permanently or for ``seconds``, registered
        or not; return notes for the operator, in lines. Calls that wait for its answer continue without it immediately,
        under both policies. ``reason`` and ``by``, the user, are logged. Raises ConfigError."""
        notes = await self._disabling.disable(name, reason, by, seconds)
        unknown = f"it is not registered now: it will not be called once {name}.json is in {self._folder}"
        same = [f"{alias} names the same socket: it is disabled, too" for alias in self._aliases(name)]
        return (*([] if name in self.masked else [unknown]), *same, *notes)

    async def enable(self, name: str) -> tuple[str, ...]:
        """Call a disabled hook server again from now on, and all others that name its socket; return notes for the
        operator, in lines."""
        same = [alias for alias in self._aliases(name) if alias in self.disabled]
        notes = await self._disabling.enable(name, *same)
        return (*(f"{alias} names the same socket: it is enabled, too" for alias in same), *notes)

    def _aliases(self, name: str) -> list[str]:
        socket = self._sockets.get(name)
        return [alias for alias, path in self._sockets.items() if path == socket and alias != name]

    def _mask_changed(self) -> None:
        self._rebuild()
        self.measure()

    def _disable(self) -> None:
        names = self._disabling.names
        present = sockets_of(self._registry.registrations)
        self._sockets = {name: path for name, path in self._sockets.items() if name in names} | present
        before, before_with = self.disabled, self.disabled_with
        self.disabled_with = disabled_with(self._sockets, names)
        self.disabled = {**names, **{name: names[cause] for name, cause in self.disabled_with.items()}}
        for name in {**before, **self.disabled}:
            if before.get(name) == self.disabled.get(name):
                continue
            if name in self.disabled:
                if same := self.disabled_with.get(name):
                    log.warning("hook server %s is disabled: it names the socket of %s", name, same, extra=UNLIMITED)
                self._metrics.events.add(EventKind.PLUGIN_DISABLED, hook_server=name, text=self.disabled[name].reason)
                for client in [client for client in self._clients if client.plugin == name]:
                    client.abandon()
            else:
                if name in present or name not in before_with:
                    self._metrics.events.add(EventKind.PLUGIN_ENABLED, hook_server=name)
                self._metrics.forget(name)

    def measure(self) -> None:
        states = Counter(plugin.breaker.state for plugin in self._plugins.values())
        for plugin in self._plugins.values():
            self._metrics.gauge("hook_timeout_seconds", plugin.timeout_seconds, plugin.name)
            self._metrics.gauge("hook_breaker_open", float(plugin.breaker.state is BreakerState.OPEN), plugin.name)
            self._metrics.gauge("hook_disabled", 0, plugin.name)
        for name in self.disabled:
            self._metrics.gauge("hook_disabled", 1, name)
        self._metrics.gauge("plugins", len(self.masked), "disabled")
        for state in BreakerState:
            self._metrics.gauge("plugins", states[state], state.value)

    async def _follow(self, first_scan: asyncio.Event) -> None:
        while True:
            async with self._log_and_continue(), self._warn_if_slow():
                await run_in_daemon_thread(self._watcher.arm)
            async with self._log_and_continue(), self._warn_if_slow():
                await self._scan()
            first_scan.set()
            async with self._log_and_continue():
                await self._watcher.changed()

    @asynccontextmanager
    async def _warn_if_slow(self) -> AsyncIterator[None]:
        """Log a warning if a scan of the directory takes too long: no change is noticed until it has ended."""
        why = "does not answer: is there a link into a mount that is gone? The plugins stay as they are"
        loop = asyncio.get_running_loop()
        timer = loop.call_later(PATIENCE_SECONDS, self._report_fault, f"{self._folder} {why}")
        try:
            yield
        finally:
            timer.cancel()

    @asynccontextmanager
    async def _log_and_continue(self) -> AsyncIterator[None]:
        """Log an exception of the proxy's own and continue: the next event or poll tries again."""
        try:
            yield
        except Exception as error:
            log.error("reading %s failed inside the proxy: %s", self._folder, type(error).__name__)
            await asyncio.sleep(FAULT_SECONDS)

    async def _scan(self) -> None:
        try:
            contents = await run_in_daemon_thread(partial(directory.read, self._folder, self._registry.names))
        except OSError as error:
            self._report_fault(f"{self._folder} cannot be read ({error.strerror}): the plugins stay as they are")
            return
        self._report_fault("")
        for change in self._registry.replace(contents):
            self._report(change)
        self._rebuild()
        self._metrics.gauge("config_invalid_files", len(self._registry.rejected))
        self.read = True

    def _report_fault(self, text: str) -> None:
        """Log a problem of the directory itself once; "" means that it has ended."""
        if text and text != self.directory_fault:
            log.warning("%s", text, extra=UNLIMITED)
        self.directory_fault = text

    def _report(self, change: Change) -> None:
        result, kind = _RESULTS[change.kind]
        self._metrics.count("config_reloads", result)
        name, registration = plugin_name(change.name), change.registration
        if change.kind is ChangeKind.REJECTED:
            effect = "; the last good state stays" if registration else ""
            log.warning("registration rejected: %s%s", change.reason, effect, extra={"kind": change.name})
            self._metrics.events.add(kind, hook_server=name, text=f"{change.reason}{effect}")
            return
        self._metrics.gauge("config_last_reload_timestamp_seconds", time.time())
        if registration is None:
            self._metrics.events.add(kind, hook_server=name)
            plugin = self._plugins.get(change.name)
            if plugin is None or plugin.policy is not FailurePolicy.FAIL:
                log.info("registration %s removed", change.name, extra=UNLIMITED)
            else:
                why = f"it had policy Fail, and calls are no longer refused without it at {_names(plugin.points)}"
                log.warning("registration %s removed: %s", change.name, why, extra=UNLIMITED)
        else:
            summary = f"endpoint {registration.endpoint}, policy {registration.policy.value}"
            summary += f", points {_names(registration.points)}{'; it is disabled' if name in self.disabled else ''}"
            log.info("registration %s %s: %s", change.name, change.kind.value, summary, extra=UNLIMITED)
            self._metrics.events.add(kind, hook_server=name, text=summary)
            for warning in registration.warnings if change.kind is not ChangeKind.RESTORED else ():
                log.warning("registration %s", warning, extra={"kind": warning})

    def _rebuild(self) -> None:
        """Rebuild the tables if an enabled registration has changed, or a link in the path of its socket."""
        self._disable()
        before = self._plugins
        enabled = tuple(entry for entry in self._registry.registrations if plugin_name(entry.name) not in self.disabled)
        repeated = repeated_calls(enabled)
        if enabled == self._built and repeated == self.repeated:
            return
        unchanged = set(self._built)
        self._plugins = {
            entry.name: before[entry.name] if entry in unchanged else self._plugin(entry, before.get(entry.name))
            for entry in enabled
        }
        self._built, self.repeated = enabled, repeated
        plugins = self._plugins.values()
        by_hook_point: dict[str, tuple[Plugin, ...]] = {}
        for plugin in plugins:
            for hook_point in plugin.points:
                if (plugin.name, hook_point) not in repeated:
                    by_hook_point[hook_point] = (*by_hook_point.get(hook_point, ()), plugin)
        self.by_point = by_hook_point
        self._fail_points = frozenset().union(*(p.points for p in plugins if p.policy is FailurePolicy.FAIL))
        clients = {plugin.client for plugin in plugins}
        for plugin in before.values():
            if plugin.client not in clients:
                self._retire(plugin.client)
            if plugin not in plugins:
                self._metrics.forget(plugin.name)
        logged, self._repetitions = self._repetitions, repetitions(self.repeated)
        for warning in self._repetitions:
            if warning not in logged:
                log.warning("registrations %s; remove one of the two files", warning, extra=UNLIMITED)
        if self.on_change is not None:
            self.on_change()

    def _plugin(self, registration: Registration, before: Plugin | None) -> Plugin:
        name = plugin_name(registration.name)
        same = before is not None and before.endpoint == registration.endpoint
        client = before.client if before and same else self._client_factory(name, registration.endpoint)
        self._clients.add(client)
        seconds = registration.timeout_seconds or self._timeout_seconds
        return Plugin(name, registration.endpoint, registration.policy, registration.points, seconds, client)

    def _retire(self, client: HookClient) -> None:
        task = asyncio.create_task(client.close(), name="close hook client")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def sockets_of(registrations: Iterable[Registration]) -> dict[str, str]:
    """Return the socket of each registration by its hook server's name; /run and /var/run lead to the same one."""
    return {plugin_name(entry.name): os.path.realpath(entry.endpoint) for entry in registrations}


def disabled_with(sockets: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """Return the hook servers that name the same socket as one of ``names``, each with that one."""
    first = {sockets[name]: name for name in sorted(names, reverse=True) if name in sockets}
    return {name: first[path] for name, path in sockets.items() if path in first and name not in names}


def repeated_calls(registrations: Collection[Registration]) -> dict[tuple[str, str], str]:
    """Return the hook servers and hook points without a call, as another hook server names the same socket, each with
    that one's name: the first with policy Fail, or else the first."""
    sockets = sockets_of(registrations)
    called: dict[tuple[str, str], str] = {}
    repeated: dict[tuple[str, str], str] = {}
    for entry in sorted(registrations, key=lambda entry: entry.policy is not FailurePolicy.FAIL):
        name = plugin_name(entry.name)
        for hook_point in entry.points:
            first = called.setdefault((sockets[name], hook_point), name)
            if first != name:
                repeated[name, hook_point] = first
    return repeated


def repetitions(repeated: Mapping[tuple[str, str], str]) -> tuple[str, ...]:
    """Return a text for each pair of registration files in ``repeated_calls``."""
    points: dict[tuple[str, str], set[str]] = {}
    for (name, hook_point), first in repeated.items():
        points.setdefault((f"{first}.json", f"{name}.json"), set()).add(hook_point)
    return tuple(
        f"{first} and {name} name the same socket, which is called once, by {first}, at {_names(points[first, name])}"
        for first, name in sorted(points)
    )


def _names(hook_points: Set[str]) -> str:
    return ", ".join(hook_point.name for hook_point in HOOK_POINTS if hook_point.name in hook_points) or "none"
