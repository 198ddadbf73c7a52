"""Asking a plugin, or not: the time that is left and what its server did before decide; what it does now is remembered.

Owns a plugin's share of a call's time, the use of the breakers, the hook points that servers say they do not serve, and
what is told of both.
Must not know: what is asked, what an answer means, policies.
Invariant: an attempt that was let in is ended whatever happens in it; a plugin that is gone is not told of any more.
"""

import logging
from collections.abc import Callable

from runtimeproxy.errors import HookError, Reason
from runtimeproxy.model.hookpoints import HookPoint
from runtimeproxy.model.values import HookAnswer, HookRequest
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.plugins.breaker import BreakerState
from runtimeproxy.plugins.manager import Plugin
from runtimeproxy.rpc.connection import Peer

log = logging.getLogger(__name__)


class CallGuard:
    """Decides for all plugins; ``registered`` tells those of a hook point.

    ``budget_seconds`` is what the plugins of a call have together if its caller is in no hurry.
    """

    def __init__(
        self,
        registered: Callable[[HookPoint], tuple[Plugin, ...]],
        recorder: Metrics,
        clock: Callable[[], float],
        budget_seconds: float,
    ) -> None:
        self._registered = registered
        self._recorder = recorder
        self._clock = clock
        self._budget_seconds = budget_seconds

    async def ask(self, plugin: Plugin, point: HookPoint, request: HookRequest, end: float) -> HookAnswer:
        """Ask a plugin, unless it is not to be asked now, and note what comes of it.

        ``end`` is when its share of the budget of all is used up, on the clock. Raises HookError.
        """
        now = self._clock()
        seconds = min(plugin.timeout_seconds, end - now)
        if seconds <= 0:
            text = "the budget of the call is used up (--hook-budget)"
            raise HookError(plugin.name, point.name, Reason.DEADLINE, text)
        fair = seconds >= min(plugin.timeout_seconds, self._budget_seconds) / 3  # the first of several has a half
        peer = plugin.client.peer()
        if peer.connection and plugin.unserved.get(point.name) == peer.connection:
            text = "the server said so, and is not asked again before it reconnects"
            raise HookError(plugin.name, point.name, Reason.UNIMPLEMENTED, text)
        number = plugin.breaker.admit(peer.socket, now)
        if number is None:
            wait = plugin.breaker.seconds_left(now)
            text = f"it keeps failing, and is tried again in {wait:.0f} s" if wait else "another call is trying it"
            raise HookError(plugin.name, point.name, Reason.BREAKER_OPEN, text)
        # What ends in no other way was left by its caller, which says nothing of the server.
        came: Reason | None = Reason.INTERNAL
        try:
            answer = await plugin.client.call(point, request, seconds, peer)
            came = None
        except HookError as error:
            if fair or error.reason is not Reason.DEADLINE:  # else a hurried caller, or the plugins before it
                came = error.reason
            if came is Reason.UNIMPLEMENTED:
                self._remember_unserved(plugin, point, peer)
            raise
        finally:
            before = plugin.breaker.state
            plugin.breaker.end(number, came, self._clock())
            if plugin.breaker.state is not before:
                self._tell(plugin, point)
        self._recorder.count("hook_calls", plugin=plugin.name, hook=point.name)
        return answer

    def _remember_unserved(self, plugin: Plugin, point: HookPoint, asked: Peer) -> None:
        now = plugin.client.peer()
        if now.socket != asked.socket or plugin.unserved.get(point.name) == now.connection:
            return  # another server has the socket now, and has said nothing; or it is known
        plugin.unserved[point.name] = now.connection
        log.warning(
            "hook server %s does not serve %s although its registration lists it: take it out of runtime-hooks, or "
            "update the server; it is not asked again before it reconnects",
            plugin.name,
            point.name,
            extra={"kind": f"{plugin.name} {point.name}"},
        )

    def _tell(self, plugin: Plugin, point: HookPoint) -> None:
        """Count and log that a breaker has opened or closed."""
        if plugin not in self._registered(point):
            return
        breaker, kind = plugin.breaker, {"kind": plugin.name}
        self._recorder.gauge("hook_breaker_open", float(breaker.state is BreakerState.OPEN), plugin=plugin.name)
        if breaker.state is BreakerState.OPEN:
            self._recorder.count("hook_breaker_openings", plugin=plugin.name)
            log.warning("hook server %s keeps failing: not asked for %g s", plugin.name, breaker.seconds, extra=kind)
        else:
            log.info("hook server %s answers again: asked as before", plugin.name, extra=kind)
