"""CRI's starts and stops that end without the runtime's answer: its own state tells what became of each.

The held stream and the runtime's state are fakes; messages are real ones.
"""

import asyncio
from dataclasses import replace

import pytest

from runtimeproxy.call import UNANSWERED
from runtimeproxy.cri import api_pb2
from runtimeproxy.hookpoints import Operation
from runtimeproxy.model import HookAnswer
from tests.fakes import cri_pb2 as cri
from tests.fakes.clock import virtual_time
from tests.fakes.node import CONTAINER, POD, FakeHeld, Node, changes

START, STOP, STOP_POD = Operation.START_CONTAINER, Operation.STOP_CONTAINER, Operation.STOP_POD_SANDBOX


async def unanswered(node: Node, operation: Operation, version: str = "v1") -> FakeHeld:
    """Run a call that is released and never answered."""
    held = node.held(operation, version=version)
    held.given = UNANSWERED
    await node.run(held)
    return held


DONE_IN = {
    START: {api_pb2.CONTAINER_RUNNING, api_pb2.CONTAINER_EXITED},
    STOP: {api_pb2.CONTAINER_EXITED},
    STOP_POD: {api_pb2.SANDBOX_NOTREADY},
}
STATES = [(one, state) for one in (START, STOP) for state in api_pb2.ContainerState.values()]
STATES += [(STOP_POD, state) for state in api_pb2.PodSandboxState.values()]


@pytest.mark.parametrize("version", ["v1", "v1alpha2"])
@pytest.mark.parametrize(("operation", "state"), STATES)
@virtual_time
async def test_the_runtimes_state_tells_whether_it_was_done(operation: Operation, state: int, version: str) -> None:
    node = Node()
    node.know()
    node.backend.known_pods["p1"], node.backend.known_containers["c1"] = POD, CONTAINER
    setattr(node.backend, "pod_is" if operation is STOP_POD else "container_is", state)
    await unanswered(node, operation, version)
    await asyncio.sleep(0.2)
    assert node.backend.asked == [(version, "p1" if operation is STOP_POD else "c1")]
    done = node.recorder.counted("unsettled", operation=operation.value, result="agreed")
    assert done == (state in DONE_IN[operation])


@pytest.mark.parametrize(
    ("operation", "told", "left"),
    [
        (START, [], (1, 1)),
        (STOP, [("a", "PostStopContainer")], (1, 0)),
        (STOP_POD, [("a", "PostStopPodSandbox")], (0, 0)),
    ],
)
@virtual_time
async def test_a_post_hook_of_a_stop_is_told_of_what_is_gone(
    operation: Operation, told: list[tuple[str, str]], left: tuple[int, int]
) -> None:
    node = Node()
    node.know()
    node.plugins.add("a", points=("PostStartContainer", "PostStopContainer", "PostStopPodSandbox"))
    await unanswered(node, operation)
    await asyncio.sleep(300)
    assert node.plugins.told() == told
    assert node.store.counts() == left
    assert len(node.backend.asked) == 1


@pytest.mark.parametrize("operation", [START, STOP, STOP_POD])
@virtual_time
async def test_a_call_the_runtime_was_never_given_is_not_asked_about(operation: Operation) -> None:
    node = Node()
    node.know()
    held = node.held(operation)
    call = node.call(held)
    held.end()
    await node.lifecycle.run(call)
    await asyncio.sleep(300)
    assert node.backend.asked == []
    assert node.recorder.counted("unsettled", operation=operation.value, result="failed") == 1


@virtual_time
async def test_the_request_of_an_unsettled_call_is_not_kept() -> None:
    """A thousand of them may wait for minutes, and each request may have 16 MiB."""
    node = Node()
    node.know()
    node.plugins.add("a", points=("PostStopContainer",))
    node.backend.known_containers["c1"] = CONTAINER
    held = await unanswered(node, STOP)
    assert held.message is None
    node.backend.container_is = api_pb2.CONTAINER_EXITED
    await asyncio.sleep(1)
    assert node.plugins.told() == [("a", "PostStopContainer")]


@virtual_time
async def test_a_lost_pods_hooked_parent_goes_into_its_creates() -> None:
    node = Node()
    node.store.remembers = True
    node.plugins.add("a", HookAnswer(cgroup_parent="/hooked"), points=("PreRunPodSandbox",))
    await unanswered(node, Operation.RUN_POD_SANDBOX)
    node.backend.known_pods["p1"] = replace(POD, cgroup_parent="/hooked")
    held = await node.do(Operation.CREATE_CONTAINER)
    released = changes(held.released[0], cri.CreateContainerRequest)
    assert released.sandbox_config.linux.cgroup_parent == "/hooked"
