"""A hook that does the same at every hook point, and how a tester asks it.

Owns the hook and the names of the methods by the kind of their points.
Must not know: what is tested.
"""

from collections.abc import Callable
from typing import Any

from runtimeproxy.hookpoints import SubjectKind
from runtimeproxy_hooks.sdk.context import ContainerContext, PodContext
from runtimeproxy_hooks.sdk.hook import METHODS, Hook
from runtimeproxy_hooks.sdk.testing import Difference, HookTester

Context = PodContext | ContainerContext
POD_METHODS = [name for name, point in METHODS.items() if point.subject is SubjectKind.POD]
CONTAINER_METHODS = [name for name in METHODS if name not in POD_METHODS]


class Everywhere(Hook):
    """Does the same at every hook point, and keeps what it was given."""

    def __init__(self, edit: Callable[[Any], object] = lambda context: None) -> None:
        self.edit = edit
        self.given: list[Any] = []

    def _at(self, context: Context) -> None:
        self.given.append(context)
        self.edit(context)

    pre_run_pod_sandbox = post_stop_pod_sandbox = pre_create_container = pre_start_container = _at
    post_start_container = pre_update_container_resources = post_stop_container = _at


def call(method: str, edit: Callable[[Any], object] = lambda context: None, **facts: Any) -> tuple[Any, Difference]:
    """Return the context that a hook was given, and the difference."""
    hook = Everywhere(edit)
    changed = getattr(HookTester(hook), method)(**facts)
    [context] = hook.given
    return context, changed
