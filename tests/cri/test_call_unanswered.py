"""CRI's calls that end without the runtime's answer, and updates one behind the other.

The held stream and the runtime's state are fakes; messages are real ones.
"""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import Message

from runtimeproxy.call import DONE, UNANSWERED, Unreadable
from runtimeproxy.cri import api_pb2, translate
from runtimeproxy.errors import BackendError
from runtimeproxy.hookpoints import Operation
from runtimeproxy.model import HookAnswer, HookRequest, PodRecord, Resources, Subject
from tests.fakes import cri_pb2 as cri
from tests.fakes.node import ASKED, CONTAINER, POD, UPDATE, FakeHeld, Node, changes

START, STOP, STOP_POD = Operation.START_CONTAINER, Operation.STOP_CONTAINER, Operation.STOP_POD_SANDBOX
UPDATE_POD = Operation.UPDATE_POD_SANDBOX_RESOURCES


def update(**resources: Any) -> cri.UpdateContainerResourcesRequest:
    return cri.UpdateContainerResourcesRequest(container_id="c1", linux=cri.LinuxContainerResources(**resources))


async def unanswered(node: Node, operation: Operation, message: Message | None = None, version: str = "v1") -> FakeHeld:
    held = node.held(operation, message, version=version)
    held.given = UNANSWERED
    return await node.run(held)


DONE_IN = {
    START: {api_pb2.CONTAINER_RUNNING, api_pb2.CONTAINER_EXITED},
    STOP: {api_pb2.CONTAINER_EXITED},
    STOP_POD: {api_pb2.SANDBOX_NOTREADY},
}
STATES = [(one, state) for one in (START, STOP) for state in api_pb2.ContainerState.values()]
STATES += [(STOP_POD, state) for state in api_pb2.PodSandboxState.values()]


@pytest.mark.parametrize("version", ["v1", "v1alpha2"])
@pytest.mark.parametrize(("operation", "state"), STATES)
async def test_the_runtimes_state_tells_whether_it_was_done(
    node: Node, operation: Operation, state: int, version: str
) -> None:
    node.know()
    node.backend.known_pods["p1"], node.backend.known_containers["c1"] = POD, CONTAINER
    setattr(node.backend, "pod_is" if operation is STOP_POD else "container_is", state)
    await unanswered(node, operation, version=version)
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
async def test_a_post_hook_of_a_stop_is_told_of_what_is_gone(
    node: Node, operation: Operation, told: list[tuple[str, str]], left: tuple[int, int]
) -> None:
    node.know()
    node.plugins.add("a", points=("PostStartContainer", "PostStopContainer", "PostStopPodSandbox"))
    await unanswered(node, operation)
    await asyncio.sleep(300)
    assert node.plugins.told() == told
    assert node.store.counts() == left
    assert len(node.backend.asked) == 1


@pytest.mark.parametrize("operation", [START, STOP, STOP_POD])
async def test_a_call_the_runtime_was_never_given_is_not_asked_about(node: Node, operation: Operation) -> None:
    node.know()
    held = node.held(operation)
    call = node.call(held)
    held.end()
    await node.lifecycle.run(call)
    await asyncio.sleep(300)
    assert node.backend.asked == []
    assert node.recorder.counted("unsettled", operation=operation.value, result="failed") == 1


async def test_the_request_of_an_unsettled_call_is_not_kept(node: Node) -> None:
    """A thousand of them may wait for minutes, and each request may have 16 MiB."""
    node.know()
    node.plugins.add("a", points=("PostStopContainer",))
    node.backend.known_containers["c1"] = CONTAINER
    held = await unanswered(node, STOP)
    assert held.message is None
    node.backend.container_is = api_pb2.CONTAINER_EXITED
    await asyncio.sleep(1)
    assert node.plugins.told() == [("a", "PostStopContainer")]


async def test_a_lost_pods_hooked_parent_goes_into_its_creates(node: Node) -> None:
    node.store.remembers = True
    node.plugins.add("a", HookAnswer(cgroup_parent="/hooked"), points=("PreRunPodSandbox",))
    await unanswered(node, Operation.RUN_POD_SANDBOX)
    node.backend.known_pods["p1"] = replace(POD, cgroup_parent="/hooked")
    held = await node.do(Operation.CREATE_CONTAINER)
    released = changes(held.released[0], cri.CreateContainerRequest)
    assert released.sandbox_config.linux.cgroup_parent == "/hooked"


# ---- updates


async def test_a_container_is_read_anew_after_a_lost_update(node: Node) -> None:
    """The kubelet's own values stay where the runtime still has what the hook put in their place."""
    node.know(container=replace(CONTAINER, resources=replace(ASKED, cpu_shares=512)), resources=ASKED)
    await unanswered(node, UPDATE, update(cpu_quota=7000))
    assert node.store.container("c1") is None
    now = Resources(cpu_shares=512, cpuset_cpus="0-3", cpu_quota=7000)
    node.backend.known_containers["c1"] = replace(CONTAINER, resources=now)
    node.plugins.add("a", points=("PostStopContainer",))
    await node.do(Operation.STOP_CONTAINER)
    assert node.record.effective.resources == now
    assert node.record.original.resources == replace(now, cpu_shares=1024)


async def test_a_pod_is_read_anew_after_a_lost_update(node: Node) -> None:
    node.know()
    await unanswered(node, UPDATE_POD)
    assert node.store.pod("p1") is None
    node.backend.known_pods["p1"] = replace(POD, resources=Resources(cpu_quota=5000))
    node.plugins.add("a", points=("PostStopPodSandbox",))
    await node.do(Operation.STOP_POD_SANDBOX)
    assert node.pod.original.resources == Resources(cpu_quota=5000)


@pytest.mark.parametrize("done_first", [False, True])
async def test_an_update_beside_a_lost_one_keeps_nothing_older(node: Node, done_first: bool) -> None:
    """Both were held on the same record; of the lost one nobody knows whether it was done before."""
    node.know()
    lost, other = node.held(UPDATE, update(cpuset_cpus="4-5")), node.held(UPDATE, update(cpu_shares=333))
    lost.given = other.given = None
    running = [node.lifecycle.run(node.call(held)) for held in (lost, other)]
    replies = [(lost, UNANSWERED), (other, DONE)]
    for held, reply in reversed(replies) if done_first else replies:
        held.settle(reply)
    await asyncio.gather(*running)
    assert node.store.container("c1") is None


async def test_an_update_is_kept_upon_what_was_read_behind_a_lost_one(node: Node) -> None:
    """What it names holds, whether the rest was read before it was done or after."""
    node.know()
    other = node.held(UPDATE, update(cpu_shares=333))
    other.given = None
    running = node.lifecycle.run(node.call(other))
    await unanswered(node, UPDATE, update(cpuset_cpus="4-5"))
    node.know(container=replace(CONTAINER, resources=replace(ASKED, cpuset_cpus="4-5")))
    other.settle(DONE)
    await running
    assert node.record.effective.resources == replace(ASKED, cpuset_cpus="4-5", cpu_shares=333)


async def test_the_oom_score_of_an_update_is_not_what_the_container_has(node: Node) -> None:
    """As real containerd: it takes the update, and the process keeps its score."""
    node.know()
    node.plugins.add("a", points=("PreUpdateContainerResources",))
    await node.do(UPDATE, update(cpu_shares=2, oom_score_adj=900))
    told = node.plugins.asked[0].request.container
    assert told is not None
    assert told.resources == replace(ASKED, cpu_shares=2, oom_score_adj=900), "it is what the kubelet asks for"
    assert node.record.original.resources == node.record.effective.resources == replace(ASKED, cpu_shares=2)


async def test_an_update_that_failed_ahead_of_a_start_makes_nobody_sure_again(node: Node) -> None:
    node.know()
    node.plugins.add("pre", HookAnswer(resources=Resources(cpu_shares=77)), points=("PreStartContainer",))
    node.backend.error = BackendError("busy", not_done=True)
    call = node.call(node.held(START))
    call.unsure = True
    await node.lifecycle.run(call)
    assert node.recorder.total("hook_fail_open") == 1
    assert node.store.container("c1") is None


async def test_a_request_that_cannot_be_read_is_tried_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is about what is asked for each record that is read meanwhile; a long message takes tens of milliseconds."""
    reads = 0

    def broken(message: bytes) -> Any:
        nonlocal reads
        reads += 1
        raise Unreadable("broken")

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
async def test_what_another_hook_server_set_stays_though_one_repeats_what_it_was_sent(node: Node, echoes: str) -> None:
    """Who only looks answers with what it was told; that is no word on what another one set at the create."""

    def echo(request: HookRequest) -> HookAnswer:
        assert request.container is not None
        return HookAnswer(resources=request.container.resources)

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
