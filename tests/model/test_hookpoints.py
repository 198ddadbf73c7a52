"""The table of hook points compared with the hook protocol's own description (hook-api, "Applied to")."""

import pytest

from runtimeproxy.model.hookpoints import BY_CALL, BY_NAME, CONCERNED, HOOK_POINTS, POST, Operation, Stage, SubjectKind


def test_point_says_when_and_about_what() -> None:
    """docs/registration.rst has what each applies to, docs/hook-api.rst the methods: both are compared with this."""
    for point in HOOK_POINTS:
        assert point.name == point.stage.value + point.operation.value == point.method.removesuffix("Hook")
        assert point.subject is (SubjectKind.POD if "Pod" in point.name else SubjectKind.CONTAINER)
        assert bool(point.applies) is (point.stage is Stage.PRE)


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("operation", Operation)
def test_point_is_found_by_operation_and_stage(operation: Operation, stage: Stage) -> None:
    assert BY_CALL.get((operation, stage)) is BY_NAME.get(stage.value + operation.value)


ALSO = {
    Operation.CREATE_CONTAINER: {"PreRunPodSandbox"},
    Operation.STOP_POD_SANDBOX: {"PostStopContainer"},
    Operation.REMOVE_CONTAINER: {"PostStopContainer"},
    Operation.REMOVE_POD_SANDBOX: {"PostStopContainer", "PostStopPodSandbox"},
}


@pytest.mark.parametrize("operation", Operation)
def test_subject_is_wanted_by_the_points_of_its_operation(operation: Operation) -> None:
    """And a create's for what PreRunPodSandbox changed of the cgroup parent, an end's for its Post points."""
    expected = {point.name for point in HOOK_POINTS if point.operation is operation} | ALSO.get(operation, set())
    assert {point.name for point in CONCERNED[operation]} == expected
    assert {point.name for point in POST[operation]} == {name for name in expected if name.startswith("Post")}
