"""Look every few seconds which hook servers can be reached, whether or not calls ask them.

Owns since when a plugin cannot be reached, and why.
Must not know: what is done about it.
Invariant: a look at one plugin costs a stat, and a connect where no connection is open; no turn of the loop looks at
more than ``AT_ONCE`` of them.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from runtimeproxy.plugins.manager import Plugin

LOOK_SECONDS = 5.0
AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Absence:
    """A plugin that cannot be reached: since when, on the loop's clock, and why."""

    since: float
    why: str


class Reach:
    """What is known of the plugins that ``plugins`` returns; only those that cannot be reached are in ``absences``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, plugins: Callable[[], tuple[Plugin, ...]]) -> None:
        self.absences: dict[str, Absence] = {}
        self._loop = loop
        self._plugins = plugins
        self._left: Iterator[Plugin] = iter(())
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look at all plugins now and every LOOK_SECONDS, in pieces."""
        self._timer = self._loop.call_later(LOOK_SECONDS, self.start)
        plugins = self._plugins()
        names = {plugin.name for plugin in plugins}
        self.absences = {name: absence for name, absence in self.absences.items() if name in names}
        self._left = iter(plugins)
        self._look_at_some()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._left = iter(())

    def _look_at_some(self) -> None:
        piece = list(islice(self._left, AT_ONCE))
        for plugin in piece:
            why = plugin.client.absence()
            if not why:
                self.absences.pop(plugin.name, None)
                continue
            known = self.absences.get(plugin.name)
            self.absences[plugin.name] = Absence(self._loop.time() if known is None else known.since, why)
        if len(piece) == AT_ONCE:
            self._loop.call_soon(self._look_at_some)
