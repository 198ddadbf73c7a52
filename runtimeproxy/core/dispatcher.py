"""Runtime Dispatcher: asks the hook servers.

Owns whom to call, in which order, for how long, and what a failure means under the plugin's policy.
Must not know: fronts, the Store, how a hook server is reached, who is not asked for a while.
Invariant: nothing that breaks a rule is ever in an adjustment; every failure is counted, and logged without values (bad
fields of an answer that is used once each).
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from runtimeproxy.errors import HookError, Reason
from runtimeproxy.model import merge
from runtimeproxy.model.hookpoints import HookPoint, Operation, Stage
from runtimeproxy.model.values import NO_ADJUSTMENT, Adjustment, HookRequest
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.plugins.call_guard import CallGuard
from runtimeproxy.plugins.manager import Manager, Plugin
from runtimeproxy.plugins.registration import FailurePolicy

log = logging.getLogger(__name__)

STOPPED_PODS = 10_000
"""Of so many pods it is remembered who knows of their end: as many as there are records."""
FIELDS_SHOWN = 20
"""The most fields that a line of the log names."""


class Dispatcher:
    """Asks every matching plugin and makes one adjustment of the answers."""

    def __init__(self, plugins: Manager, recorder: Metrics, clock: Callable[[], float], budget_seconds: float) -> None:
        self._plugins = plugins
        self._recorder = recorder
        self._clock = clock
        self._attempts = CallGuard(plugins.plugins_for, recorder, clock, budget_seconds)
        self._know_of_stop: dict[str, set[str]] = {}
        """The plugins that know that a pod was stopped, by its id."""

    def registered(self, points: Iterable[HookPoint]) -> bool:
        """Tell whether any plugin is registered for one of the points."""
        return any(map(self._plugins.plugins_for, points))

    async def before(self, point: HookPoint, request: HookRequest, end: float) -> Adjustment:
        """Ask the plugins of a Pre point, each seeing what the earlier ones changed.

        ``end`` is when the budget of all of them is used up, on the clock. Raises HookError if one refuses the call, or
        fails under policy Fail.
        """
        adjustment = NO_ADJUSTMENT
        plugins = self._plugins.plugins_for(point)
        for place, plugin in enumerate(plugins, 1):
            seen = merge.applied(request, adjustment) if place > 1 and adjustment else request
            until = end if place == len(plugins) else self._share(end, plugins[place:])
            try:
                answer = await self._attempts.ask(plugin, point, seen, until)
            except HookError as error:
                self._failed(plugin, error, request.name)
                continue
            change, broken = merge.judged(merge.difference(seen, answer), seen)
            if broken:
                self._broke_rules(plugin, point, broken, request.name)
            adjustment = merge.combine(adjustment, plugin.name, merge.limited(point, change))
        for conflict in adjustment.conflicts:
            self._recorder.count("hook_conflicts", hook=point.name, loser=conflict.loser, winner=conflict.winner)
            log.warning(
                "hook servers %s and %s set the same field at %s: the later one wins",
                conflict.loser,
                conflict.winner,
                point.name,
                extra={"kind": (conflict.loser, conflict.winner, point.name)},
            )
        return adjustment

    async def after(self, point: HookPoint, request: HookRequest, end: float) -> None:
        """Tell the plugins of a Post point until ``end`` on the clock; their answers and failures change nothing.

        The kubelet stops a pod several times: who was told well of that is not told again.
        """
        once = point.operation is Operation.STOP_POD_SANDBOX
        know = self._know_of_stop.setdefault(request.pod.id, set()) if once else set()
        plugins = [plugin for plugin in self._plugins.plugins_for(point) if plugin.name not in know]
        for place, plugin in enumerate(plugins, 1):
            until = end if place == len(plugins) else self._share(end, plugins[place:])
            try:
                await self._attempts.ask(plugin, point, request, until)
                know.add(plugin.name)
            except HookError as error:
                self._count_failure(plugin, error, request.name)
        if len(self._know_of_stop) > STOPPED_PODS:
            del self._know_of_stop[next(iter(self._know_of_stop))]

    def forget_stop(self, pod_id: str) -> None:
        """Take the stop that is told next for another pod's: this one is gone, or a new one was given its id."""
        self._know_of_stop.pop(pod_id, None)

    def failed(self, point: HookPoint | None, reason: Reason, detail: str, name: str = "") -> None:
        """Count a failure of each plugin of a point that could not be asked; None is a point that does not exist.

        ``name`` is the pod's or the container's, "" if nobody knows. Raises HookError if one of a Pre point has policy
        Fail.
        """
        if point is None:
            return
        judge = self._failed if point.stage is Stage.PRE else self._count_failure
        for plugin in self._plugins.plugins_for(point):
            judge(plugin, HookError(plugin.name, point.name, reason, detail), name)

    def rejected(self, point: HookPoint, adjustment: Adjustment, detail: str, name: str) -> None:
        """Apply the policies of the plugins that own an adjustment which the runtime rejected (relay-rules C9).

        ``detail`` are the runtime's words, ``name`` is the container's. Raises HookError if one has policy Fail.
        """
        self.refused_with(f"the update before {point.operation.value}", name, adjustment.owners)
        owners = set(adjustment.owners.values())
        for plugin in self._plugins.plugins_for(point):
            if plugin.name in owners:
                self._failed(plugin, HookError(plugin.name, point.name, Reason.RUNTIME_REJECTED, said=detail), name)

    def refused_with(self, what: str, name: str, owners: Mapping[str, str]) -> None:
        """Log that the runtime refused what hook servers had a part in: its own words tell nothing of them.

        ``owners`` says who set a field.
        """
        if owners:
            fields = [f"{field} ({owner})" for field, owner in sorted(owners.items())]
            more = [f"{len(fields) - FIELDS_SHOWN} more"] if len(fields) > FIELDS_SHOWN else []
            shown = ", ".join(fields[:FIELDS_SHOWN] + more)
            kind = {"kind": (what, name)}
            log.warning("%s of %s failed in the runtime; hook servers had set %s", what, name, shown, extra=kind)

    def _share(self, end: float, behind: Sequence[Plugin]) -> float:
        """Return the end of a plugin's time: half of what is left is for those behind it, if they may need that, so
        that a server that hangs does not have all others fail."""
        now = self._clock()
        left = end - now
        return now + max(left - sum(plugin.timeout_seconds for plugin in behind), left / 2)

    def _broke_rules(self, plugin: Plugin, point: HookPoint, broken: Sequence[merge.BrokenRule], name: str) -> None:
        """Count the bad fields of an answer; under Ignore they alone are lost, and each is told once a hook server.

        Raises HookError under policy Fail.
        """
        for field in {rule.field for rule in broken}:
            self._recorder.count("hook_bad_fields", plugin=plugin.name, hook=point.name, field=field)
        if plugin.policy is FailurePolicy.FAIL:
            self._failed(plugin, HookError(plugin.name, point.name, Reason.BAD_ANSWER, str(broken[0])), name)
        for figure in ("hook_failures", "hook_fail_open"):
            self._recorder.count(figure, plugin=plugin.name, hook=point.name, reason=Reason.BAD_ANSWER.value)
        for rule in broken:
            if rule.field not in plugin.bad_fields:
                plugin.bad_fields.add(rule.field)
                log.warning(
                    "hook server %r at %s: bad_answer: %s: left out, the rest of its answer is used (policy Ignore), "
                    "for %s; of this field that is told once",
                    plugin.name,
                    point.name,
                    str(rule),
                    name,
                    extra={"kind": (plugin.name, rule.field)},
                )

    def _failed(self, plugin: Plugin, error: HookError, name: str) -> None:
        """Count a failed Pre call and raise it if it ends the call."""
        self._count_failure(plugin, error, name)
        if error.reason is Reason.REFUSED or plugin.policy is FailurePolicy.FAIL:
            try:
                raise error
            finally:
                del error  # the traceback has this frame: with its name the two would keep each other, and the call
        self._recorder.count("hook_fail_open", plugin=plugin.name, hook=error.hook, reason=error.reason.value)

    def _count_failure(self, plugin: Plugin, error: HookError, name: str) -> None:
        self._recorder.count("hook_failures", plugin=plugin.name, hook=error.hook, reason=error.reason.value)
        if error.reason is Reason.UNIMPLEMENTED:
            return  # logged once, when it was found out
        kind = (error.plugin, error.hook, error.reason.value, name)
        # The text alone: a record that is kept must not keep the call.
        log.warning(
            "%s (policy %s), for %s", error.logged, plugin.policy.value, name or "one unknown", extra={"kind": kind}
        )
