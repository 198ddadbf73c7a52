"""CRI's calls that end without the runtime's answer: its own state tells what became of each.

The held stream and the runtime's state are fakes; messages are real ones.
"""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy import unsettled
from runtimeproxy.call import UNANSWERED
from runtimeproxy.cri import api_pb2
from runtimeproxy.hookpoints import Operation
from runtimeproxy.model import ContainerRecord, HookAnswer, HookRequest, PodRecord, Resources, Subject
from tests.fakes import cri_pb2 as cri
from tests.fakes.clock import virtual_time
from tests.fakes.node import ASKED, CONTAINER, POD, UPDATE, FakeHeld, Node

START, STOP, REMOVE = Operation.START_CONTAINER, Operation.STOP_CONTAINER, Operation.REMOVE_CONTAINER
RUN_POD, CREATE = Operation.RUN_POD_SANDBOX, Operation.CREATE_CONTAINER
STOP_POD, REMOVE_POD = Operation.STOP_POD_SANDBOX, Operation.REMOVE_POD_SANDBOX
UPDATE_POD = Operation.UPDATE_POD_SANDBOX_RESOURCES


async def unanswered(node: Node, operation: Operation, message: Any = None, version: str = "v1") -> FakeHeld:
    """Run a call that is released and never answered."""
    held = node.held(operation, message, version)
    held.given = UNANSWERED
    node.backend.asked.clear()
    await node.run(held)
    assert node.recorder.counted("calls", operation=operation.value, outcome="unsettled") == 1
    return held


@pytest.mark.parametrize("version", ["v1", "v1alpha2"])
@virtual_time
async def test_a_pod_that_was_made_is_kept_as_it_was_asked_for_and_hooked(version: str) -> None:
    node = Node()
    node.plugins.add("a", HookAnswer(cgroup_parent="/hooked"), points=("PreRunPodSandbox",))
    await unanswered(node, RUN_POD, version=version)
    await asyncio.sleep(0.2)
    assert node.store.counts() == (0, 0)
    node.backend.known_pods["p1"] = replace(POD, cgroup_parent="/hooked", labels={})
    await asyncio.sleep(0.5)
    assert node.pod == PodRecord(POD, replace(POD, cgroup_parent="/hooked"))
    assert node.backend.asked == [(version, "all pods")] * 2


@virtual_time
async def test_a_container_that_was_made_is_kept_as_it_was_asked_for_and_hooked() -> None:
    node = Node()
    node.store.commit(Subject(PodRecord(POD, POD)))
    node.plugins.add("a", HookAnswer(envs={"A": "2"}), points=("PreCreateContainer",))
    await unanswered(node, CREATE)
    node.backend.known_containers["c1"] = replace(CONTAINER, envs={}, resources=None)
    await asyncio.sleep(1)
    assert node.record == ContainerRecord(CONTAINER, replace(CONTAINER, envs={"A": "2"}))
    assert node.backend.asked == [("v1", "containers of p1")]


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
        (REMOVE, [], (1, 0)),
        (STOP_POD, [("a", "PostStopPodSandbox")], (0, 0)),
        (REMOVE_POD, [], (0, 0)),
        (UPDATE, [], (1, 1)),
        (UPDATE_POD, [], (1, 1)),
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


@virtual_time
async def test_an_update_that_was_done_keeps_the_kubelets_values_apart() -> None:
    def halve(request: HookRequest) -> HookAnswer:
        assert request.container is not None
        assert request.container.resources is not None
        return HookAnswer(resources=replace(request.container.resources, cpu_shares=400))

    node = Node()
    node.know(container=replace(CONTAINER, resources=replace(ASKED, cpu_shares=512)), resources=ASKED)
    node.plugins.add("a", halve)
    message = cri.UpdateContainerResourcesRequest(
        container_id="c1", linux=cri.LinuxContainerResources(cpu_shares=800, cpu_quota=7000)
    )
    await unanswered(node, UPDATE, message)
    before = node.store.snapshot()
    node.backend.known_containers["c1"] = replace(CONTAINER, resources=replace(ASKED, cpu_shares=512))
    await asyncio.sleep(0.5)
    assert node.store.snapshot() == before, "not done, or not yet"
    node.backend.known_containers["c1"] = replace(CONTAINER, resources=Resources(cpu_shares=400, cpu_quota=7000))
    await asyncio.sleep(0.5)
    assert node.record.original.resources == replace(ASKED, cpu_shares=800, cpu_quota=7000)
    assert node.record.effective.resources == replace(ASKED, cpu_shares=400, cpu_quota=7000)


@virtual_time
async def test_a_pods_update_that_was_done_is_kept() -> None:
    node = Node()
    node.know()
    await unanswered(node, UPDATE_POD)
    node.backend.known_pods["p1"] = POD
    await asyncio.sleep(0.5)
    assert node.pod.effective.resources is None
    node.backend.known_pods["p1"] = replace(POD, resources=Resources(cpu_quota=-1))
    await asyncio.sleep(0.5)
    assert node.pod.effective.resources == node.pod.original.resources == Resources(cpu_quota=-1)


@pytest.mark.parametrize("operation", list(Operation))
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


@pytest.mark.parametrize("operation", [RUN_POD, CREATE, STOP, Operation.UPDATE_CONTAINER_RESOURCES])
@virtual_time
async def test_requests_that_stay_unsettled_are_kept_as_far_as_they_are_short(
    operation: Operation, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node()
    node.know()
    node.plugins.add("a", points=("PostStopContainer", "PreRunPodSandbox"))
    message = node.held(operation).message
    monkeypatch.setattr(unsettled, "MOST_BYTES", 2 * len(message))
    for _ in range(3):
        held = node.held(operation)
        held.given = UNANSWERED
        await node.run(held)
    assert node.recorder.counted("unsettled", operation=operation.value, result="given_up") == 1
    await node.lifecycle.stop()
