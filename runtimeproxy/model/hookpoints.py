"""The table of hook points: operations, stages, and the parts that an answer may change (hook-api, "Applied to").
An operation has at most one Pre and one Post point."""

from dataclasses import dataclass
from enum import Enum


class Operation(Enum):
    """The runtime calls that are held, by CRI's method names."""

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is slow, and this is on the path of every call

    RUN_POD_SANDBOX = "RunPodSandbox"
    STOP_POD_SANDBOX = "StopPodSandbox"
    REMOVE_POD_SANDBOX = "RemovePodSandbox"
    UPDATE_POD_SANDBOX_RESOURCES = "UpdatePodSandboxResources"
    CREATE_CONTAINER = "CreateContainer"
    START_CONTAINER = "StartContainer"
    UPDATE_CONTAINER_RESOURCES = "UpdateContainerResources"
    STOP_CONTAINER = "StopContainer"
    REMOVE_CONTAINER = "RemoveContainer"


class Stage(Enum):
    __hash__ = object.__hash__

    PRE = "Pre"
    POST = "Post"


class SubjectKind(Enum):
    __hash__ = object.__hash__

    POD = "pod"
    CONTAINER = "container"


class Part(Enum):
    __hash__ = object.__hash__

    LABELS = "labels"
    ANNOTATIONS = "annotations"
    CGROUP_PARENT = "cgroup_parent"
    RESOURCES = "resources"
    ENVS = "envs"


@dataclass(frozen=True, slots=True)
class HookPoint:
    """A row; ``applies`` lists the parts of an answer that have an effect."""

    name: str
    operation: Operation
    stage: Stage
    subject: SubjectKind
    applies: frozenset[Part]

    @property
    def method(self) -> str:
        return self.name + "Hook"


def _hook_point(name: str, subject: SubjectKind, *applies: Part) -> HookPoint:
    stage = Stage.PRE if name.startswith(Stage.PRE.value) else Stage.POST
    return HookPoint(name, Operation(name.removeprefix(stage.value)), stage, subject, frozenset(applies))


HOOK_POINTS: tuple[HookPoint, ...] = (
    _hook_point("PreRunPodSandbox", SubjectKind.POD, Part.LABELS, Part.ANNOTATIONS, Part.CGROUP_PARENT, Part.RESOURCES),
    _hook_point(
        "PreCreateContainer", SubjectKind.CONTAINER, Part.ANNOTATIONS, Part.RESOURCES, Part.ENVS, Part.CGROUP_PARENT
    ),
    _hook_point("PreStartContainer", SubjectKind.CONTAINER, Part.RESOURCES),
    _hook_point("PostStartContainer", SubjectKind.CONTAINER),
    _hook_point("PreUpdateContainerResources", SubjectKind.CONTAINER, Part.RESOURCES, Part.ANNOTATIONS),
    _hook_point("PostStopContainer", SubjectKind.CONTAINER),
    _hook_point("PostStopPodSandbox", SubjectKind.POD),
)

BY_NAME: dict[str, HookPoint] = {row.name: row for row in HOOK_POINTS}

UNRECORDED = frozenset({Operation.START_CONTAINER, Operation.STOP_CONTAINER, Operation.STOP_POD_SANDBOX})
"""The operations that change no record."""
BY_CALL: dict[tuple[Operation, Stage], HookPoint] = {(row.operation, row.stage): row for row in HOOK_POINTS}

CONTAINER_END = BY_NAME["PostStopContainer"]
POD_END = BY_NAME["PostStopPodSandbox"]
REMOVES = frozenset({Operation.REMOVE_CONTAINER, Operation.REMOVE_POD_SANDBOX})

# PreRunPodSandbox's change of the cgroup parent is set in the creates of the pod's containers (hook-api). The pod's
# stop or the remove reports the end of a subject that had no stop of its own (hook-api).
_ALSO = {
    Operation.CREATE_CONTAINER: (BY_NAME["PreRunPodSandbox"],),
    Operation.STOP_POD_SANDBOX: (CONTAINER_END,),
    Operation.REMOVE_CONTAINER: (CONTAINER_END,),
    Operation.REMOVE_POD_SANDBOX: (CONTAINER_END, POD_END),
}

CONCERNED: dict[Operation, tuple[HookPoint, ...]] = {
    operation: tuple(row for row in HOOK_POINTS if row.operation is operation) + _ALSO.get(operation, ())
    for operation in Operation
}
"""The hook points that need an operation's subject."""
PRE: dict[Operation, tuple[HookPoint, ...]] = {
    operation: tuple(row for row in HOOK_POINTS if row.operation is operation and row.stage is Stage.PRE)
    for operation in Operation
}
POST: dict[Operation, tuple[HookPoint, ...]] = {
    operation: tuple(row for row in rows if row.stage is Stage.POST) for operation, rows in CONCERNED.items()
}
"""The Post points that may be due once the runtime agreed to an operation."""
