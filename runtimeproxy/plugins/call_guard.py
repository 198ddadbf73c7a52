"""Decide whether a plugin is asked now and for how long, from the time left and its server's earlier results.

Owns a plugin's share of a call's time, the use of the breakers, the hook points that servers say they do not serve, and
the log lines on both.
Must not know: what is asked, what an answer means, policies.
Invariant: an attempt that was admitted is ended whatever happens in it; nothing is logged about a plugin that is no
longer registered.
"""

import logging
from collections.abc import Callable

from runtimeproxy.errors import HookError, Reason
from runtimeproxy.model.hookpoints import HookPoint
from runtimeproxy.model.values import HookAnswer, HookRequest
from runtimeproxy.observe.events import EventKind
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.plugins.breaker import BreakerState
from runtimeproxy.plugins.manager import Plugin
from runtimeproxy.rpc.connection import Peer

log = logging.getLogger(__name__)

OK, LEFT = "ok", "left"
"""The codes of hook calls that did not fail: the answer is good, or the held call ended before it came."""


class CallGuard:
    """Guards the calls to all plugins; ``registered`` returns those of a hook point. ``budget_seconds`` is the budget
    for all plugins of a call whose caller's deadline does not shorten it."""

    def __init__(
        self,
        registered: Callable[[HookPoint], tuple[Plugin, ...]],
        metrics: Metrics,
        clock: Callable[[], float],
        budget_seconds: float,
    ) -> None:
        self._registered = registered
        self._metrics = metrics
        self._clock = clock
        self._budget_seconds = budget_seconds

    async def ask(self, plugin: Plugin, point: HookPoint, request: HookRequest, end: float) -> HookAnswer:
        """Ask a plugin, unless it must not be asked now, and record the result. ``end`` is when its share of the budget
        ends, on the clock given to the constructor. Raises HookError."""
        if plugin.client.abandoned:
            raise HookError(plugin.name, point.name, Reason.DISABLED, "it was disabled meanwhile")
        now = self._clock()
        seconds = min(plugin.timeout_seconds, end - now)
        if seconds <= 0:
            text = "the budget of the call is used up (--hook-budget)"
            raise HookError(plugin.name, point.name, Reason.DEADLINE, text)
        fair = seconds >= min(plugin.timeout_seconds, self._budget_seconds) / 3  # the first of several gets half
        peer = plugin.client.peer()
        if peer.connection and plugin.unserved.get(point.name) == peer.connection:
            text = "the server said so, and is not asked again before it reconnects"
            raise HookError(plugin.name, point.name, Reason.UNIMPLEMENTED, text)
        number = plugin.breaker.admit(peer.socket, now)
        if number is None:
            wait = plugin.breaker.seconds_left(now)
            text = f"it keeps failing, and is tried again in {wait:.0f} s" if wait else "another call is trying it"
            raise HookError(plugin.name, point.name, Reason.BREAKER_OPEN, text)
        # If nothing else sets a result, the caller has left, which says nothing about the server.
        came: Reason | None = Reason.INTERNAL
        code, asked = LEFT, self._metrics.clock()
        try:
            answer = await plugin.client.call(point, request, seconds, peer)
            came, code = None, OK
            return answer
        except HookError as error:
            code = error.reason.value
            if fair or error.reason is not Reason.DEADLINE:  # else it was given too little time
                came = error.reason
            if came is Reason.UNIMPLEMENTED:
                self._remember_unserved(plugin, point, peer)
            raise
        finally:
            before = plugin.breaker.state
            plugin.breaker.end(number, came, self._clock())
            if plugin.breaker.state is not before:
                self._tell(plugin, point, code)
            self._metrics.count("hook_calls", plugin.name, point.name, code)
            self._metrics.observe("hook_call_duration_seconds", self._metrics.clock() - asked, plugin.name)

    def _remember_unserved(self, plugin: Plugin, point: HookPoint, asked: Peer) -> None:
        now = plugin.client.peer()
        if now.socket != asked.socket or plugin.unserved.get(point.name) == now.connection:
            return  # another server has the socket now and has not said so, or it is known already
        plugin.unserved[point.name] = now.connection
        log.warning(
            "hook server %s does not serve %s although its registration lists it: take it out of runtime-hooks, or "
            "update the server; it is not asked again before it reconnects",
            plugin.name,
            point.name,
            extra={"kind": f"{plugin.name} {point.name}"},
        )

    def _tell(self, plugin: Plugin, point: HookPoint, code: str) -> None:
        """Tell that a breaker opened or closed, by a call that ended with ``code``."""
        if plugin not in self._registered(point):
            return
        breaker, kind = plugin.breaker, {"kind": plugin.name}
        self._metrics.gauge("hook_breaker_open", float(breaker.state is BreakerState.OPEN), plugin.name)
        opened = breaker.state is BreakerState.OPEN
        self._metrics.events.add(
            EventKind.BREAKER_OPEN if opened else EventKind.BREAKER_CLOSED,
            hook_server=plugin.name,
            hook=point.name,
            reason=code,
        )
        if opened:
            self._metrics.count("hook_breaker_openings", plugin.name)
            log.warning("hook server %s keeps failing: not asked for %g s", plugin.name, breaker.seconds, extra=kind)
        else:
            log.info("hook server %s answers again: asked as before", plugin.name, extra=kind)
