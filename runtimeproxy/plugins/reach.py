"""Check every second which hook servers can be reached, whether or not there are calls for them.

Invariant: the check of a plugin costs two stats, and a connect if no connection is open; one iteration of the event
loop checks at most ``PER_ITERATION`` plugins.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from runtimeproxy.observe.events import EventKind
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.plugins.client import HookClient
from runtimeproxy.plugins.manager import Plugin
from runtimeproxy.plugins.registration import FailurePolicy

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""Seconds between two checks. A plugin is absent after two failed checks in a row: a hook server may register a moment
before it listens, and the next check sees the answer on a connection that a check has opened."""
PER_ITERATION = 16
_EFFECTS = {
    FailurePolicy.IGNORE: "calls pass without it (policy Ignore)",
    FailurePolicy.FAIL: "its calls are refused (policy Fail)",
}


@dataclass(frozen=True, slots=True)
class Absence:
    """A plugin that cannot be reached: since when, on the loop's clock, and why."""

    since: float
    why: str


class Reach:
    """Checks the plugins that ``plugins`` returns; ``absences`` contains those that cannot be reached."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, plugins: Callable[[], tuple[Plugin, ...]], metrics: Metrics
    ) -> None:
        self.absences: dict[str, Absence] = {}
        self._loop = loop
        self._plugins = plugins
        self._metrics = metrics
        self._absent_since: dict[HookClient, float] = {}
        """When the first of the consecutive failed checks of each client was made."""
        self._unchecked: Iterator[Plugin] = iter(())
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check all plugins now and every CHECK_SECONDS, in batches."""
        self._timer = self._loop.call_later(CHECK_SECONDS, self.start)
        plugins = self._plugins()
        names, clients = {plugin.name for plugin in plugins}, {plugin.client for plugin in plugins}
        self.absences = {name: absence for name, absence in self.absences.items() if name in names}
        self._absent_since = {client: since for client, since in self._absent_since.items() if client in clients}
        self._unchecked = iter(plugins)
        self._check_batch()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._unchecked = iter(())

    def _check_batch(self) -> None:
        batch = list(islice(self._unchecked, PER_ITERATION))
        for plugin in batch:
            self._check(plugin)
        if len(batch) == PER_ITERATION:
            self._loop.call_soon(self._check_batch)

    def _check(self, plugin: Plugin) -> None:
        why, now, absence = plugin.client.absence(), self._loop.time(), self.absences.get(plugin.name)
        if not why:
            self._absent_since.pop(plugin.client, None)
            if absence is not None:
                del self.absences[plugin.name]
                self._metrics.events.add(EventKind.PLUGIN_REACHABLE, hook_server=plugin.name)
                seconds = now - absence.since
                log.info(
                    "%s.json: hook server reachable after %.0f s", plugin.name, seconds, extra={"kind": plugin.name}
                )
        elif (since := self._absent_since.setdefault(plugin.client, now)) < now:
            self.absences[plugin.name] = Absence(since, why)
            if absence is None or absence.since < since:  # the registration may have got another socket
                self._report_absence(plugin, why)
        self._metrics.gauge("hook_unreachable", float(plugin.name in self.absences), plugin.name)

    def _report_absence(self, plugin: Plugin, why: str) -> None:
        self._metrics.events.add(EventKind.PLUGIN_UNREACHABLE, hook_server=plugin.name, text=why)
        log.warning(
            "%s.json: hook server unreachable: %s; %s: start it, or correct remote-endpoint (a path on the node, not "
            "one inside a pod), or remove the file",
            plugin.name,
            why,
            _EFFECTS[plugin.policy],
            extra={"kind": plugin.name},
        )
