"""CRI's starts and stops that end without the runtime's answer: its own state tells what became of each.

The held stream and the runtime's state are fakes; messages are real ones.
"""

import asyncio
from typing import Any

import pytest

from runtimeproxy.call import UNANSWERED
from runtimeproxy.cri import api_pb2
from runtimeproxy.hookpoints import Operation
from runtimeproxy.model import HookRequest
from tests.fakes.clock import virtual_time
from tests.fakes.node import CONTAINER, POD, FakeHeld, Node

START, STOP, STOP_POD = Operation.START_CONTAINER, Operation.STOP_CONTAINER, Operation.STOP_POD_SANDBOX


async def unanswered(node: Node, operation: Operation, message: Any = None, version: str = "v1") -> FakeHeld:
    """Run a call that is released and never answered."""
    held = node.held(operation, message, version)
    held.given = UNANSWERED
    node.backend.asked.clear()
    await node.run(held)
    assert node.recorder.counted("calls", operation=operation.value, outcome="unsettled") == 1
    return held


@pytest.mark.parametrize(
    ("operation", "state", "point"),
    [
        (START, api_pb2.CONTAINER_RUNNING, "PostStartContainer"),
        (START, api_pb2.CONTAINER_EXITED, "PostStartContainer"),
        (STOP, api_pb2.CONTAINER_EXITED, "PostStopContainer"),
    ],
)
@virtual_time
async def test_what_is_owed_of_a_container_is_told_once_it_is_so(
    operation: Operation, state: api_pb2.ContainerState, point: str
) -> None:
    node = Node()
    node.know()
    node.plugins.add("a", points=("PostStartContainer", "PostStopContainer"))
    node.backend.known_containers["c1"] = CONTAINER
    node.backend.container_is = api_pb2.CONTAINER_RUNNING if operation is STOP else api_pb2.CONTAINER_CREATED
    await unanswered(node, operation)
    await asyncio.sleep(0.5)
    assert node.plugins.told() == []
    node.backend.container_is = state
    await asyncio.sleep(0.5)
    assert [(asked.point, asked.request) for asked in node.plugins.asked] == [(point, HookRequest(POD, CONTAINER))]
    assert node.backend.asked == [("v1", "c1")] * 3


@pytest.mark.parametrize(
    ("operation", "told", "left"),
    [
        (START, [], (1, 1)),
        (STOP, [("a", "PostStopContainer")], (1, 0)),
        (STOP_POD, [("a", "PostStopPodSandbox")], (0, 0)),
    ],
)
@virtual_time
async def test_of_what_is_gone_the_stop_is_owed_all_the_same(
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


@virtual_time
async def test_what_is_owed_of_a_pod_is_told_once_it_is_so() -> None:
    node = Node()
    node.know()
    node.plugins.add("a", points=("PostStopPodSandbox",))
    node.backend.known_pods["p1"] = POD
    await unanswered(node, STOP_POD)
    await asyncio.sleep(0.5)
    assert node.plugins.told() == []
    node.backend.pod_is = api_pb2.SANDBOX_NOTREADY
    await asyncio.sleep(0.5)
    assert node.plugins.told() == [("a", "PostStopPodSandbox")]


@pytest.mark.parametrize("operation", [START, STOP, STOP_POD])
@virtual_time
async def test_what_the_runtime_was_never_given_is_not_asked_about(operation: Operation) -> None:
    node = Node()
    node.know()
    held = node.held(operation)
    call = node.call(held)
    held.end()
    await node.lifecycle.run(call)
    await asyncio.sleep(300)
    assert node.backend.asked == []
    assert node.recorder.counted("unsettled", operation=operation.value, result="failed") == 1


@pytest.mark.parametrize("version", ["v1", "v1alpha2"])
@pytest.mark.parametrize(
    ("operation", "is_now", "known"),
    [
        (START, {"container_is": api_pb2.CONTAINER_CREATED}, False),
        (START, {"container_is": api_pb2.CONTAINER_UNKNOWN}, False),
        (START, {"container_is": api_pb2.CONTAINER_RUNNING}, True),
        (START, {"container_is": api_pb2.CONTAINER_EXITED}, True),
        (STOP, {"container_is": api_pb2.CONTAINER_CREATED}, False),
        (STOP, {"container_is": api_pb2.CONTAINER_UNKNOWN}, False),
        (STOP, {"container_is": api_pb2.CONTAINER_RUNNING}, False),
        (STOP, {"container_is": api_pb2.CONTAINER_EXITED}, True),
        (STOP_POD, {"pod_is": api_pb2.SANDBOX_READY}, False),
        (STOP_POD, {"pod_is": api_pb2.SANDBOX_NOTREADY}, True),
    ],
)
@virtual_time
async def test_the_runtimes_state_tells_whether_it_was_done(
    operation: Operation, is_now: dict[str, Any], known: bool, version: str
) -> None:
    node = Node()
    node.know()
    node.backend.known_pods["p1"], node.backend.known_containers["c1"] = POD, CONTAINER
    for name, state in is_now.items():
        setattr(node.backend, name, state)
    await unanswered(node, operation, version=version)
    await asyncio.sleep(0.2)
    assert node.backend.asked == [(version, "p1" if operation is STOP_POD else "c1")]
    assert node.recorder.counted("unsettled", operation=operation.value, result="agreed") == known


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
