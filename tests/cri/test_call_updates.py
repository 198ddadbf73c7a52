"""CRI's updates one behind the other, without an answer, and with what no runtime changes.

The held stream and the runtime's state are fakes; messages are real ones.
"""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy import call as calls
from runtimeproxy.call import DONE, UNANSWERED
from runtimeproxy.cri import translate
from runtimeproxy.errors import BackendError
from runtimeproxy.hookpoints import Operation
from runtimeproxy.model import HookAnswer, HookRequest, PodRecord, Resources, Subject
from tests.fakes import cri_pb2 as cri
from tests.fakes.clock import virtual_time
from tests.fakes.node import ASKED, CONTAINER, POD, UPDATE, Node

START, UPDATE_POD = Operation.START_CONTAINER, Operation.UPDATE_POD_SANDBOX_RESOURCES


def update(**resources: Any) -> cri.UpdateContainerResourcesRequest:
    return cri.UpdateContainerResourcesRequest(container_id="c1", linux=cri.LinuxContainerResources(**resources))


def pod_update(**fields: Resources) -> Any:
    made = {name: cri.LinuxContainerResources(cpu_quota=value.cpu_quota) for name, value in fields.items()}
    return cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id="p1", **made)


async def unanswered(node: Node, operation: Operation, message: Any = None) -> None:
    held = node.held(operation, message)
    held.given = UNANSWERED
    await node.run(held)


@virtual_time
async def test_a_container_is_read_anew_after_a_lost_update() -> None:
    """The kubelet's own values stay where the runtime still has what the hook put in their place."""
    node = Node()
    node.know(container=replace(CONTAINER, resources=replace(ASKED, cpu_shares=512)), resources=ASKED)
    await unanswered(node, UPDATE, update(cpu_quota=7000))
    assert node.store.container("c1") is None
    now = Resources(cpu_shares=512, cpuset_cpus="0-3", cpu_quota=7000)
    node.backend.known_containers["c1"] = replace(CONTAINER, resources=now)
    node.plugins.add("a", points=("PostStopContainer",))
    await node.do(Operation.STOP_CONTAINER)
    assert node.record.effective.resources == now
    assert node.record.original.resources == replace(now, cpu_shares=1024)


@virtual_time
async def test_a_pod_is_read_anew_after_a_lost_update() -> None:
    node = Node()
    node.know()
    await unanswered(node, UPDATE_POD, pod_update(resources=Resources(cpu_quota=5000)))
    assert node.store.pod("p1") is None
    node.backend.known_pods["p1"] = replace(POD, resources=Resources(cpu_quota=5000))
    node.plugins.add("a", points=("PostStopPodSandbox",))
    await node.do(Operation.STOP_POD_SANDBOX)
    assert node.pod.original.resources == Resources(cpu_quota=5000)


@pytest.mark.parametrize("done_first", [False, True])
@virtual_time
async def test_an_update_beside_a_lost_one_keeps_nothing_older(done_first: bool) -> None:
    """Both were held on the same record; of the lost one nobody knows whether it was done before."""
    node = Node()
    node.know()
    lost, other = node.held(UPDATE, update(cpuset_cpus="4-5")), node.held(UPDATE, update(cpu_shares=333))
    lost.given = other.given = None
    running = [node.lifecycle.run(node.call(held)) for held in (lost, other)]
    replies = [(lost, UNANSWERED), (other, DONE)]
    for held, reply in reversed(replies) if done_first else replies:
        held.settle(reply)
    await asyncio.gather(*running)
    assert node.store.container("c1") is None


@virtual_time
async def test_an_update_is_kept_upon_what_was_read_behind_a_lost_one() -> None:
    """What it names holds, whether the rest was read before it was done or after."""
    node = Node()
    node.know()
    other = node.held(UPDATE, update(cpu_shares=333))
    other.given = None
    running = node.lifecycle.run(node.call(other))
    await unanswered(node, UPDATE, update(cpuset_cpus="4-5"))
    node.know(container=replace(CONTAINER, resources=replace(ASKED, cpuset_cpus="4-5")))
    other.settle(DONE)
    await running
    assert node.record.effective.resources == replace(ASKED, cpuset_cpus="4-5", cpu_shares=333)


@virtual_time
async def test_the_oom_score_of_an_update_is_not_what_the_container_has() -> None:
    """As real containerd: it takes the update, and the process keeps its score."""
    node = Node()
    node.know()
    node.plugins.add("a", points=("PreUpdateContainerResources",))
    await node.do(UPDATE, update(cpu_shares=2, oom_score_adj=900))
    told = node.plugins.asked[0].request.container
    assert told is not None
    assert told.resources == replace(ASKED, cpu_shares=2, oom_score_adj=900), "it is what the kubelet asks for"
    assert node.record.original.resources == node.record.effective.resources == replace(ASKED, cpu_shares=2)


@virtual_time
async def test_an_update_that_failed_ahead_of_a_start_makes_nobody_sure_again() -> None:
    node = Node()
    node.know()
    node.plugins.add("pre", HookAnswer(resources=Resources(cpu_shares=77)), points=("PreStartContainer",))
    node.backend.error = BackendError("busy", not_done=True)
    call = node.call(node.held(START))
    call.unsure = True
    await node.lifecycle.run(call)
    assert node.recorder.total("hook_fail_open") == 1
    assert node.store.container("c1") is None


@virtual_time
async def test_a_request_that_cannot_be_read_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is about what is asked for each record that is read meanwhile; a long message takes tens of milliseconds."""
    node = Node()
    reads = 0

    def broken(message: bytes) -> Any:
        nonlocal reads
        reads += 1
        raise calls.Unreadable("broken")

    monkeypatch.setattr(translate, "read_container", broken)
    held = node.held(Operation.CREATE_CONTAINER)
    held.given = None  # the runtime takes its time
    task = node.lifecycle.run(node.call(held))
    await asyncio.sleep(1)
    for _ in range(100):
        assert node.lifecycle.under_way() == set()
    task.cancel()
    await asyncio.wait([task])
    assert reads == 1


@pytest.mark.parametrize("echoes", ["watcher", "setter"])
@virtual_time
async def test_what_another_hook_server_set_stays_though_one_repeats_what_it_was_sent(echoes: str) -> None:
    """Who only looks answers with what it was told; that is no word on what another one set at the create."""

    def echo(request: HookRequest) -> HookAnswer:
        assert request.container is not None
        return HookAnswer(resources=request.container.resources)

    node = Node()
    node.store.commit(Subject(PodRecord(POD, POD)))
    node.plugins.add("setter", HookAnswer(resources=Resources(cpu_shares=333)), points=("PreCreateContainer",))
    await node.do(Operation.CREATE_CONTAINER)
    node.plugins.plugins.clear()
    node.plugins.add(echoes, echo, points=("PreUpdateContainerResources",))
    held = node.held(UPDATE, update(cpuset_cpus="4-5"))
    await node.run(held)
    assert (held.released == [None]) == (echoes == "watcher")
    assert node.record.effective.resources is not None
    assert node.record.effective.resources.cpu_shares == (333 if echoes == "watcher" else ASKED.cpu_shares)
