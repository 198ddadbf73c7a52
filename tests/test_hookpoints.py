"""The table of hook points beside the hook protocol's own description (hook-api, "Applied to")."""

import pytest

from runtimeproxy.hookpoints import BY_CALL, BY_NAME, CONCERNED, HOOK_POINTS, Operation, Part, Stage, SubjectKind

APPLIES = {
    "PreRunPodSandbox": {Part.LABELS, Part.ANNOTATIONS, Part.CGROUP_PARENT, Part.RESOURCES},
    "PreCreateContainer": {Part.ANNOTATIONS, Part.RESOURCES, Part.ENVS, Part.CGROUP_PARENT},
    "PreStartContainer": {Part.RESOURCES},
    "PostStartContainer": set(),
    "PreUpdateContainerResources": {Part.RESOURCES, Part.ANNOTATIONS},
    "PostStopContainer": set(),
    "PostStopPodSandbox": set(),
}
"""What an answer has an effect on."""


def test_seven_hook_points_say_when_and_about_what() -> None:
    """Their methods are those of the protocol: tests/hookapi/test_codec.py."""
    assert {point.name: point.applies for point in HOOK_POINTS} == APPLIES
    for point in HOOK_POINTS:
        assert point.name == point.stage.value + point.operation.value == point.method.removesuffix("Hook")
        assert point.subject is (SubjectKind.POD if "Pod" in point.name else SubjectKind.CONTAINER)


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("operation", Operation)
def test_point_is_found_by_operation_and_stage(operation: Operation, stage: Stage) -> None:
    assert BY_CALL.get((operation, stage)) is BY_NAME.get(stage.value + operation.value)


@pytest.mark.parametrize("operation", Operation)
def test_subject_is_wanted_by_the_points_of_its_operation(operation: Operation) -> None:
    """A create also needs its pod for what PreRunPodSandbox changed of the cgroup parent."""
    more = {"PreRunPodSandbox"} if operation is Operation.CREATE_CONTAINER else set()
    expected = {point.name for point in HOOK_POINTS if point.operation is operation} | more
    assert {point.name for point in CONCERNED[operation]} == expected
