"""Which calls pass although no hook server can be called for them.

Owns the questions about hook servers that a connection has before it holds a call.
Must not know: connections, frames, how a hook server is called.
Invariant: a call that bypasses hook servers with policy Fail is refused.
"""

import logging

from runtimeproxy.core.lifecycle import Lifecycle
from runtimeproxy.errors import HookError, Reason
from runtimeproxy.model.hookpoints import BY_NAME, HOOK_POINTS
from runtimeproxy.observe.events import About, EventKind
from runtimeproxy.observe.metrics import Metrics
from runtimeproxy.plugins.manager import Manager
from runtimeproxy.plugins.registration import FailurePolicy

log = logging.getLogger(__name__)

RESTORE = About("RestorePod")


class Policy:
    """What passes, by the hook servers that are registered."""

    def __init__(self, lifecycle: Lifecycle, manager: Manager, metrics: Metrics) -> None:
        self._lifecycle = lifecycle
        self._manager = manager
        self._metrics = metrics

    def passes_ambiguous(self) -> bool:
        """Count a request without exactly one :path, and return whether it passes: not if any plugin has policy
        Fail."""
        self._metrics.count("requests_ambiguous")
        return not any(self._manager.fail_policy_registered(point) for point in HOOK_POINTS)

    def restore_refusal(self) -> str:
        """Record a RestorePod, which calls no hook server; return why it is refused, "" if it passes. It is refused if
        a hook server with policy Fail is registered for the create of pods or containers."""
        metrics = self._metrics
        for point in (BY_NAME["PreRunPodSandbox"], BY_NAME["PreCreateContainer"]):
            for plugin in self._manager.plugins_for(point):
                if plugin.policy is FailurePolicy.FAIL:
                    why = "RestorePod would start a pod without calling it"
                    error = HookError(plugin.name, point.name, Reason.UNHOOKED, why)
                    reason = error.reason.value
                    metrics.count("hook_fail_closed", plugin.name, point.name, reason)
                    metrics.events.add(
                        EventKind.REFUSED, RESTORE, hook_server=plugin.name, hook=point.name, reason=reason
                    )
                    log.warning("%s (policy %s)", error.logged, plugin.policy.value)
                    return f"runtimeproxy: RestorePod refused: {error}"
        metrics.events.add(EventKind.UNHOOKED, RESTORE, text="passed without hooks")
        if self._lifecycle.hooked:
            log.warning("RestorePod passed without hooks: hook servers are not called for the create of its containers")
        return ""
