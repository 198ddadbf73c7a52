"""Check every second which hook servers can be reached, whether or not there are calls for them.

Invariant: a look at one plugin costs two stats, and a connect where no connection is open; no iteration of the loop
looks at more than ``PER_ITERATION`` of them.
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

LOOK_SECONDS = 1.0
"""Seconds between two looks. A plugin is absent once two looks in a row find it so: a hook server may register a moment
before it listens, and the answer to a connection that a look has opened is seen by the next one."""
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
    """What is known of the plugins that ``plugins`` returns; only those that cannot be reached are in ``absences``."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, plugins: Callable[[], tuple[Plugin, ...]], metrics: Metrics
    ) -> None:
        self.absences: dict[str, Absence] = {}
        self._loop = loop
        self._plugins = plugins
        self._metrics = metrics
        self._absent_since: dict[HookClient, float] = {}
        """The first look that did not reach a client, of those that the last look did not reach either."""
        self._unchecked: Iterator[Plugin] = iter(())
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look at all plugins now and every LOOK_SECONDS, in pieces."""
        self._timer = self._loop.call_later(LOOK_SECONDS, self.start)
        plugins = self._plugins()
        names, clients = {plugin.name for plugin in plugins}, {plugin.client for plugin in plugins}
        self.absences = {name: absence for name, absence in self.absences.items() if name in names}
        self._absent_since = {client: since for client, since in self._absent_since.items() if client in clients}
        self._unchecked = iter(plugins)
        self._check_some()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._unchecked = iter(())

    def _check_some(self) -> None:
        chunk = list(islice(self._unchecked, PER_ITERATION))
        for plugin in chunk:
            self._check(plugin)
        if len(chunk) == PER_ITERATION:
            self._loop.call_soon(self._check_some)

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
