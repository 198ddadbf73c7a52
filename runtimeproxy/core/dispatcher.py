"""Call the hook servers of one call in order, and apply failure policies, breakers and the call's time to each.

Invariants: every admitted attempt is ended. No log line is about a plugin that is no longer registered.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from runtimeproxy.core.call import HeldCall
from runtimeproxy.errors import HookError, Reason
from runtimeproxy.model import merge
from runtimeproxy.model.fields import NO_ADJUSTMENT, Adjustment, HookAnswer, HookRequest
from runtimeproxy.model.hookpoints import HookPoint, Operation, Stage
from runtimeproxy.observe.events import EventKind
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.plugins.client import BreakerState
from runtimeproxy.plugins.manager import Manager, Plugin
from runtimeproxy.plugins.registration import FailurePolicy

log = logging.getLogger(__name__)

OK, ENDED = "ok", "left"
"""The codes of hook calls that did not fail: a good answer, or the held call ended before it."""
MAX_STOPPED = 10_000
"""Largest number of stopped pods and containers whose notified plugins are recorded."""
_STOPS = frozenset({Operation.STOP_CONTAINER, Operation.STOP_POD_SANDBOX})
FIELDS_SHOWN = 20
"""Largest number of fields in one log line."""
FAILED_IN_RUNTIME = "%s of %s failed in the runtime; hook servers had set %s"
MADE_EARLIER = "%s of %s: the runtime answered with what an earlier call made, without %s that hook servers set"
NO_FIELDS: Mapping[str, str] = {}


class Dispatcher:
    """Calls the plugins of a hook point in order and merges their answers into one adjustment. ``budget_seconds`` is
    the budget for all plugins of a call whose caller's deadline does not shorten it."""

    def __init__(self, plugins: Manager, metrics: Metrics, clock: Callable[[], float], budget_seconds: float) -> None:
        self._plugins = plugins
        self.registered = plugins.registered
        self._metrics = metrics
        self._clock = clock
        self.budget_seconds = budget_seconds
        self._notified_of_stop: dict[str, set[str]] = {}
        """The names of the plugins that were notified of the end of a pod or a container, by its id."""

    async def before(self, call: HeldCall, hook_point: HookPoint, request: HookRequest, end: float) -> Adjustment:
        """Call the plugins of a call's Pre point in order, each with the changes of the earlier ones in its request.

        ``end`` is when the budget for all of them ends, on the clock given to the constructor. Raises HookError if a
        plugin refuses the call, or fails under policy Fail.
        """
        adjustment = NO_ADJUSTMENT
        plugins = self._plugins.by_point.get(hook_point.name, ())
        for place, plugin in enumerate(plugins, 1):
            current = merge.applied(request, adjustment) if place > 1 and adjustment else request
            until = end if place == len(plugins) else self._share(end, plugins[place:])
            try:
                answer = await self.attempt(plugin, hook_point, current, until)
            except HookError as error:
                self._apply_policy(call, plugin, error)
                continue
            change, broken = merge.validated(merge.difference(current, answer), current)
            if broken:
                self._report_broken_rules(call, plugin, hook_point, broken)
            change = merge.applicable(hook_point, change)
            for name in change.normalised:
                self._metrics.count("values_normalised", plugin.name, f"resources.{name}")
            adjustment = merge.combine(adjustment, plugin.name, change)
        for conflict in adjustment.conflicts:
            self._metrics.count("hook_conflicts", conflict.loser, hook_point.name)
            names = (conflict.loser, conflict.winner, hook_point.name)
            extra = {"kind": names, "call": call.call_id}
            log.warning("hook servers %s and %s set the same field at %s: the later one wins", *names, extra=extra)
        for loser in dict.fromkeys([conflict.loser for conflict in adjustment.conflicts]):
            fields = {conflict.field: conflict.winner for conflict in adjustment.conflicts if conflict.loser == loser}
            about = call.about()
            self._metrics.events.add(EventKind.CONFLICT, about, hook_server=loser, hook=hook_point.name, fields=fields)
        return adjustment

    async def after(self, call_id: str, hook_point: HookPoint, request: HookRequest, end: float) -> None:
        """Call the plugins of a Post point until ``end``; their answers and failures change nothing. Several calls
        report the end of a pod or a container: a plugin is called for it until one call succeeds."""
        subject = request.pod if request.container is None else request.container
        notified = self._notified_of_stop.setdefault(subject.id, set()) if hook_point.operation in _STOPS else set()
        plugins = [plugin for plugin in self._plugins.by_point.get(hook_point.name, ()) if plugin.name not in notified]
        for place, plugin in enumerate(plugins, 1):
            until = end if place == len(plugins) else self._share(end, plugins[place:])
            try:
                await self.attempt(plugin, hook_point, request, until)
                notified.add(plugin.name)
            except HookError as error:
                self._report_failure(request.name, call_id, plugin, error)
        if len(self._notified_of_stop) > MAX_STOPPED:
            del self._notified_of_stop[next(iter(self._notified_of_stop))]

    def has_pending_end(self, hook_point: HookPoint, any_id: str) -> bool:
        notified = self._notified_of_stop.get(any_id, ())
        return any(plugin.name not in notified for plugin in self._plugins.by_point.get(hook_point.name, ()))

    def forget_stop(self, any_id: str) -> None:
        """Forget which plugins were notified of an end, because a subject with this id has started. Not called at a
        removal: dockerd may report the end only after it."""
        self._notified_of_stop.pop(any_id, None)

    def _share(self, end: float, later: Sequence[Plugin]) -> float:
        """Return when a plugin's time ends, on the clock. Half of the remaining time is reserved for the ``later``
        plugins, up to their timeouts: one server that hangs must not make all others fail."""
        now = self._clock()
        remaining = end - now
        return now + max(remaining - sum(plugin.timeout_seconds for plugin in later), remaining / 2)

    async def attempt(self, plugin: Plugin, hook_point: HookPoint, request: HookRequest, end: float) -> HookAnswer:
        """Call a plugin, if it may be called now, and record the result. Its share of the budget ends at ``end``.
        Raises HookError."""
        if plugin.client.abandoned:
            raise HookError(plugin.name, hook_point.name, Reason.DISABLED, "it was disabled meanwhile")
        now = self._clock()
        seconds = min(plugin.timeout_seconds, end - now)
        if seconds <= 0:
            text = "the budget of the call is used up (--hook-budget)"
            raise HookError(plugin.name, hook_point.name, Reason.DEADLINE, text)
        fair = seconds >= min(plugin.timeout_seconds, self.budget_seconds) / 3  # the first of several gets half
        peer = plugin.client.peer()
        if peer.connection and plugin.unserved.get(hook_point.name) == peer.connection:
            text = "the server reported so; it is called again after it reconnects"
            raise HookError(plugin.name, hook_point.name, Reason.UNIMPLEMENTED, text)
        number = plugin.breaker.admit(peer.socket, now)
        if number is None:
            wait = plugin.breaker.remaining_seconds(now)
            text = f"it keeps failing, and is tried again in {wait:.0f} s" if wait else "another call is trying it"
            raise HookError(plugin.name, hook_point.name, Reason.BREAKER_OPEN, text)
        # These are kept if the held call is cancelled, which is no sign of a fault in the server.
        fault: Reason | None = Reason.INTERNAL
        code, began = ENDED, self._metrics.clock()
        try:
            answer = await plugin.client.call(hook_point, request, seconds, peer)
            fault, code = None, OK
            return answer
        except HookError as error:
            code = error.reason.value
            if fair or error.reason is not Reason.DEADLINE:  # else it was given too little time
                fault = error.reason
            if fault is Reason.UNIMPLEMENTED:
                self._remember_unserved(plugin, hook_point, peer.socket)
            raise
        finally:
            before = plugin.breaker.state
            plugin.breaker.end(number, fault, self._clock())
            if plugin.breaker.state is not before and plugin in self._plugins.by_point.get(hook_point.name, ()):
                self._report_breaker(plugin, hook_point, code)
            self._metrics.count("hook_calls", plugin.name, hook_point.name, code)
            self._metrics.observe("hook_call_duration_seconds", self._metrics.clock() - began, plugin.name)

    def _remember_unserved(self, plugin: Plugin, hook_point: HookPoint, socket: object) -> None:
        now = plugin.client.peer()
        if now.socket != socket or plugin.unserved.get(hook_point.name) == now.connection:
            return  # another server uses the socket now and has not registered, or this was logged already
        plugin.unserved[hook_point.name] = now.connection
        log.warning(
            "hook server %s does not serve %s although its registration lists it: take it out of runtime-hooks, or "
            "update the server; it is called again after it reconnects",
            plugin.name,
            hook_point.name,
            extra={"kind": f"{plugin.name} {hook_point.name}"},
        )

    def _report_breaker(self, plugin: Plugin, hook_point: HookPoint, code: str) -> None:
        breaker, kind = plugin.breaker, {"kind": plugin.name}
        opened = breaker.state is BreakerState.OPEN
        self._metrics.gauge("hook_breaker_open", float(opened), plugin.name)
        event = EventKind.BREAKER_OPEN if opened else EventKind.BREAKER_CLOSED
        self._metrics.events.add(event, hook_server=plugin.name, hook=hook_point.name, reason=code)
        if opened:
            self._metrics.count("hook_breaker_openings", plugin.name)
            log.warning(
                "hook server %s keeps failing: calls suspended for %g s", plugin.name, breaker.seconds, extra=kind
            )
        else:
            log.info("hook server %s recovered: calls resumed", plugin.name, extra=kind)

    def apply_policies(self, call: HeldCall, hook_points: Iterable[HookPoint], reason: Reason, detail: str) -> None:
        """Count a failure for each plugin of the points that could not be called. Raises HookError if a plugin of a Pre
        point has policy Fail."""
        for hook_point in hook_points:
            for plugin in self._plugins.by_point.get(hook_point.name, ()):
                if hook_point.stage is Stage.PRE:  # the error has no name here: the frame would keep it alive
                    self._apply_policy(call, plugin, HookError(plugin.name, hook_point.name, reason, detail))
                else:
                    error = HookError(plugin.name, hook_point.name, reason, detail)
                    self._report_failure(call.subject_name, call.call_id, plugin, error)

    def apply_owner_policies(self, call: HeldCall, hook_point: HookPoint, adjustment: Adjustment, detail: str) -> None:
        """Apply the policies of the plugins that own an adjustment which the runtime rejected (relay-rules C9).
        ``detail`` is the runtime's message. Raises HookError if one has policy Fail."""
        log_fields(FAILED_IN_RUNTIME, call, f"the update before {hook_point.operation.value}", adjustment.owners)
        owners = set(adjustment.owners.values())
        for plugin in self._plugins.by_point.get(hook_point.name, ()):
            if plugin.name in owners:
                error = HookError(plugin.name, hook_point.name, Reason.RUNTIME_REJECTED, peer_text=detail)
                self._apply_policy(call, plugin, error)

    def _report_broken_rules(
        self, call: HeldCall, plugin: Plugin, hook_point: HookPoint, broken: Sequence[merge.BrokenRule]
    ) -> None:
        """Count the bad fields of an answer. Under Ignore only these fields are dropped, each logged once per hook
        server. Raises HookError under policy Fail."""
        fields = {rule.field: plugin.name for rule in broken}
        for field in fields:
            self._metrics.count("hook_bad_fields", plugin.name, field)
        first = str(broken[0])
        if plugin.policy is FailurePolicy.FAIL:  # the error has no name here: the frame would keep it alive
            self._apply_policy(call, plugin, HookError(plugin.name, hook_point.name, Reason.BAD_ANSWER, first), fields)
        error = HookError(plugin.name, hook_point.name, Reason.BAD_ANSWER, first)
        self._count_failure(plugin, error)
        self._record_event(EventKind.FAILED_OPEN, call, error, fields)
        for rule in broken:
            if rule.field not in plugin.bad_fields:
                plugin.bad_fields.add(rule.field)
                log.warning(
                    "hook server %r at %s: bad_answer: %s: left out, the rest of its answer is used (policy Ignore), "
                    "for %s; this is logged once for this field",
                    plugin.name,
                    hook_point.name,
                    str(rule),
                    call.subject_name,
                    extra={"kind": (plugin.name, rule.field), "call": call.call_id},
                )

    def _apply_policy(
        self, call: HeldCall, plugin: Plugin, error: HookError, fields: Mapping[str, str] = NO_FIELDS
    ) -> None:
        """Count and log a failed Pre call; raise the error if the call is refused for it. ``fields`` maps bad fields of
        the answer to the plugin."""
        self._report_failure(call.subject_name, call.call_id, plugin, error)
        if error.reason is Reason.REFUSED:
            self._metrics.count("hook_refusals", plugin.name, error.hook)
        elif plugin.policy is FailurePolicy.FAIL and error.reason is not Reason.DISABLED:
            self._metrics.count("hook_fail_closed", plugin.name, error.hook, error.reason.value)
        else:
            self._record_event(EventKind.FAILED_OPEN, call, error, fields)
            return
        self._record_event(EventKind.REFUSED, call, error, fields)
        try:
            raise error
        finally:
            del error  # else traceback and frame would keep each other, and the call, alive

    def _record_event(self, kind: EventKind, call: HeldCall, error: HookError, fields: Mapping[str, str]) -> None:
        """Record how a failed Pre call ended; the error's text stays out of the event."""
        plugin, hook, reason = error.plugin, error.hook, error.reason.value
        if kind is EventKind.FAILED_OPEN:
            self._metrics.count("hook_fail_open", plugin, hook, reason)
        self._metrics.events.add(kind, call.about(), hook_server=plugin, hook=hook, reason=reason, fields=fields)

    def _count_failure(self, plugin: Plugin, error: HookError) -> None:
        self._metrics.count("hook_failures", plugin.name, error.hook, error.reason.value)
        plugin.last_error.note(self._metrics.events.wall_clock(), error.hook, error.reason)

    def _report_failure(self, name: str, call_id: str, plugin: Plugin, error: HookError) -> None:
        self._count_failure(plugin, error)
        if error.reason is Reason.UNIMPLEMENTED:
            return  # _remember_unserved has logged it once
        extra = {"kind": (error.plugin, error.hook, error.reason.value, name), "call": call_id}
        # Only the text is logged: a log record that is kept must not keep the call alive.
        log.warning("%s (policy %s), for %s", error.logged, plugin.policy.value, name or "one unknown", extra=extra)


def log_fields(text: str, call: HeldCall, what: str, owners: Mapping[str, str]) -> None:
    """Log which fields hook servers set (``owners``: fields and plugins) in a call that the runtime did not carry out
    with them. Its own message does not mention them."""
    if owners:
        fields = [f"{field} ({owner})" for field, owner in sorted(owners.items())]
        more = [f"{len(fields) - FIELDS_SHOWN} more"] if len(fields) > FIELDS_SHOWN else []
        extra = {"kind": (what, call.subject_name), "call": call.call_id}
        log.warning(text, what, call.subject_name, ", ".join(fields[:FIELDS_SHOWN] + more), extra=extra)
