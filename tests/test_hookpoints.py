"""Tests of the table of hook points against the hook protocol's own description (hook-api, "Applied to")."""

import pytest

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.hookpoints import BY_CALL, BY_NAME, CONCERNED, HOOK_POINTS, Operation, Part, Stage, SubjectKind

TABLE = {
    "PreRunPodSandbox": ("RunPodSandbox", Stage.PRE, SubjectKind.POD),
    "PreCreateContainer": ("CreateContainer", Stage.PRE, SubjectKind.CONTAINER),
    "PreStartContainer": ("StartContainer", Stage.PRE, SubjectKind.CONTAINER),
    "PostStartContainer": ("StartContainer", Stage.POST, SubjectKind.CONTAINER),
    "PreUpdateContainerResources": ("UpdateContainerResources", Stage.PRE, SubjectKind.CONTAINER),
    "PostStopContainer": ("StopContainer", Stage.POST, SubjectKind.CONTAINER),
    "PostStopPodSandbox": ("StopPodSandbox", Stage.POST, SubjectKind.POD),
}
APPLIES = {
    "PreRunPodSandbox": {Part.LABELS, Part.ANNOTATIONS, Part.CGROUP_PARENT, Part.RESOURCES},
    "PreCreateContainer": {Part.ANNOTATIONS, Part.RESOURCES, Part.ENVS, Part.CGROUP_PARENT},
    "PreStartContainer": {Part.RESOURCES},
    "PreUpdateContainerResources": {Part.RESOURCES, Part.ANNOTATIONS},
}
"""What an answer has an effect on; at every other point on nothing (hook-api, "Applied to")."""


def test_the_seven_hook_points_are_those_of_the_protocol() -> None:
    assert [point.name for point in HOOK_POINTS] == list(TABLE)
    methods = {method.name for method in api_pb2.DESCRIPTOR.services_by_name["RuntimeHookService"].methods}
    assert {point.method for point in HOOK_POINTS} == methods


@pytest.mark.parametrize("name", TABLE)
def test_a_row_says_when_about_what_and_with_which_effect(name: str) -> None:
    point = BY_NAME[name]
    assert (point.operation.value, point.stage, point.subject) == TABLE[name]
    assert point.name == point.stage.value + point.operation.value
    assert point.applies == APPLIES.get(name, set())


@pytest.mark.parametrize("name", TABLE)
def test_the_subject_is_what_the_rpc_method_takes(name: str) -> None:
    service = api_pb2.DESCRIPTOR.services_by_name["RuntimeHookService"]
    taken = service.methods_by_name[BY_NAME[name].method].input_type.name
    expected = {SubjectKind.POD: "PodSandboxHookRequest", SubjectKind.CONTAINER: "ContainerResourceHookRequest"}
    assert taken == expected[BY_NAME[name].subject]


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
