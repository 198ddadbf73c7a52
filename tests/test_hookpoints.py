"""The table of hook points beside the hook protocol's own description (hook-api, "Applied to")."""

import pytest

from runtimeproxy.hookapi import api_pb2
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
SERVICE = api_pb2.DESCRIPTOR.services_by_name["RuntimeHookService"]
MESSAGES = {SubjectKind.POD: "PodSandboxHookRequest", SubjectKind.CONTAINER: "ContainerResourceHookRequest"}


def test_the_seven_hook_points_are_those_of_the_protocol() -> None:
    assert {point.name: point.applies for point in HOOK_POINTS} == APPLIES
    assert {point.method for point in HOOK_POINTS} == {method.name for method in SERVICE.methods}


@pytest.mark.parametrize("name", APPLIES)
def test_a_row_says_when_and_about_what(name: str) -> None:
    point = BY_NAME[name]
    assert name == point.stage.value + point.operation.value
    assert SERVICE.methods_by_name[point.method].input_type.name == MESSAGES[point.subject]


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("operation", Operation)
def test_a_point_is_found_by_operation_and_stage(operation: Operation, stage: Stage) -> None:
    assert BY_CALL.get((operation, stage)) is BY_NAME.get(stage.value + operation.value)


@pytest.mark.parametrize("operation", Operation)
def test_a_subject_is_wanted_by_the_points_of_its_operation(operation: Operation) -> None:
    """A create also needs its pod for what PreRunPodSandbox changed of the cgroup parent."""
    expected = {point.name for point in HOOK_POINTS if point.operation is operation}
    if operation is Operation.CREATE_CONTAINER:
        expected.add("PreRunPodSandbox")
    assert {point.name for point in CONCERNED[operation]} == expected
