"""The table of hook points compared with the hook protocol's own description (hook-api, "Applied to")."""

import pytest

from runtimeproxy.model.hookpoints import CONCERNED, HOOK_POINTS, POST, Operation

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
