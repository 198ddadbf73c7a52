"""The argument of a hook's method: a pod or a container as the kubelet requests it, to read and to edit.

Invariant: the answer is the whole request with the edits, an echo, which koord-runtime-proxy reads correctly, too. The
resources are omitted if none was set; at updates they contain only those that were set (see ``edits``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from runtimeproxy.model import no_effect
from runtimeproxy.model.fields import ContainerInfo, HookAnswer, HookRequest, Resources
from runtimeproxy.model.hookpoints import HookPoint, Operation, Part, Stage
from runtimeproxy.model.merge import parent_rule

from .edits import EditableResources, Entries, Environment, Sealed, is_text
from .errors import NotSayable

_UPDATES = frozenset({Operation.START_CONTAINER, Operation.UPDATE_CONTAINER_RESOURCES})
"""The operations that send resources to the runtime in an update (at a start: an extra one)."""


def in_no_runtime(operation: Operation) -> frozenset[str]:
    """Return the fields that have no effect in any runtime, whatever its version and the pod's handler."""
    if operation is Operation.RUN_POD_SANDBOX:
        return frozenset()
    tables = [no_effect.of_runtime(name, "") for name in {row.runtime for row in no_effect.ROWS}]
    return frozenset.intersection(*(table.get(operation, frozenset()) for table in tables))


def _fixed(hook_point: HookPoint, part: Part) -> str:
    """Return why a part cannot be edited at a hook point; "" if it can."""
    if part in hook_point.applies:
        if part.value in in_no_runtime(hook_point.operation):
            return f"at {hook_point.name} no runtime uses {part.value}: set them at PreCreateContainer"
        return ""
    if hook_point.stage is Stage.POST:
        return f"{hook_point.name} comes after the runtime's answer: nothing can be changed any more"
    parts = ", ".join(sorted(item.value for item in hook_point.applies))
    return f"at {hook_point.name} a hook server can change {parts} only"


class _Context(Sealed):
    """The common part of pods and containers."""

    _assignable = frozenset({"cgroup_parent"})

    def __init__(self, hook_point: HookPoint, sent_parent: str, resources: Resources | None) -> None:
        self.hook_point: Final = hook_point.name
        """The name of the hook point, as in a registration file."""
        self._parent_fixed = _fixed(hook_point, Part.CGROUP_PARENT)
        self._sent_parent = self._parent = sent_parent
        self.resources: Final = EditableResources(
            resources,
            _fixed(hook_point, Part.RESOURCES),
            update=hook_point.operation in _UPDATES,
            alone=hook_point.operation is Operation.START_CONTAINER,
        )

    @property
    def cgroup_parent(self) -> str:
        """The pod's cgroup, a full path in CRI's form ("/kubepods/pod<uid>", "/kubepods.slice/...")."""
        return self._parent

    @cgroup_parent.setter
    def cgroup_parent(self, path: str) -> None:
        as_sent = bool(path) and path == self._sent_parent
        rule = parent_rule(path, self._sent_parent) if is_text(path) else "must be a text in UTF-8"
        if why := self._parent_fixed or ("" if as_sent else rule):
            raise NotSayable(f"cgroup_parent: {why}")
        self._parent = path


class PodContext(_Context):
    """A pod sandbox, at the hook points of pods."""

    def __init__(self, hook_point: HookPoint, request: HookRequest) -> None:
        pod = request.pod
        super().__init__(hook_point, pod.cgroup_parent or "", pod.resources)
        self.name: Final = pod.name
        self.namespace: Final = pod.namespace
        self.uid: Final = pod.uid
        self.attempt: Final = pod.attempt
        self.runtime_handler: Final = pod.runtime_handler
        self.overhead: Final = EditableResources(pod.overhead, "the pod's overhead can only be read")
        self.labels: Final = Entries(pod.labels, str, "labels", _fixed(hook_point, Part.LABELS))
        self.annotations: Final = Entries(pod.annotations, str, "annotations", _fixed(hook_point, Part.ANNOTATIONS))
        self._sealed = True

    def __repr__(self) -> str:
        return f"<{self.hook_point} of pod {self.namespace}/{self.name}>"

    def answer(self) -> HookAnswer:
        return HookAnswer(
            labels=self.labels.value,
            annotations=self.annotations.value,
            cgroup_parent=self.cgroup_parent,
            resources=self.resources.answer,
        )


@dataclass(frozen=True, slots=True)
class Pod:
    """The pod of a container, read-only; its cgroup is the container's ``cgroup_parent``."""

    name: str
    namespace: str
    uid: str
    attempt: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    resources: EditableResources


class ContainerContext(_Context):
    """A container and its pod, at the hook points of containers; ``id`` is "" at PreCreateContainer."""

    def __init__(self, hook_point: HookPoint, request: HookRequest) -> None:
        pod, container = request.pod, request.container or ContainerInfo()
        super().__init__(hook_point, container.cgroup_parent or pod.cgroup_parent or "", container.resources)
        self.name: Final = container.name
        self.id: Final = container.id
        self.attempt: Final = container.attempt
        fixed = "a container's hook cannot change its pod"
        self.pod: Final = Pod(
            name=pod.name,
            namespace=pod.namespace,
            uid=pod.uid,
            attempt=pod.attempt,
            labels=Entries(pod.labels, str, "labels", fixed),
            annotations=Entries(pod.annotations, str, "annotations", fixed),
            resources=EditableResources(pod.resources, fixed),
        )
        self.annotations: Final = Entries(
            container.annotations, str, "annotations", _fixed(hook_point, Part.ANNOTATIONS)
        )
        self.env: Final = Environment(container.envs, str, "env", _fixed(hook_point, Part.ENVS))
        self._sealed = True

    def __repr__(self) -> str:
        return f"<{self.hook_point} of container {self.pod.namespace}/{self.pod.name}/{self.name}>"

    def answer(self) -> HookAnswer:
        return HookAnswer(
            annotations=self.annotations.value,
            envs=self.env.value,
            cgroup_parent=self.cgroup_parent,
            resources=self.resources.answer,
        )
