"""CRI's updates one behind the other, without an answer, and with what no runtime changes.

The held stream and the runtime's state are fakes; messages are real ones.
"""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy import call as calls
from runtimeproxy.call import UNANSWERED
from runtimeproxy.cri import api_pb2, translate
from runtimeproxy.errors import BackendError
from runtimeproxy.hookpoints import Operation
from runtimeproxy.model import HookAnswer, HookRequest, PodRecord, Resources, Subject
from tests.fakes import cri_pb2 as cri
from tests.fakes.clock import virtual_time
from tests.fakes.node import ASKED, CONTAINER, POD, UPDATE, Node
from tests.fakes.plugins import FAIL

START, UPDATE_POD = Operation.START_CONTAINER, Operation.UPDATE_POD_SANDBOX_RESOURCES
LONG_AGO_SECONDS = 300
"""By then nobody asks about an update any more."""


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
async def test_an_update_that_is_found_out_late_takes_nothing_back_from_a_later_one() -> None:
    node = Node()
    node.know()
    node.plugins.add("a", HookAnswer(resources=Resources(cpuset_cpus="7")), points=("PreUpdateContainerResources",))
    node.backend.known_containers["c1"] = CONTAINER
    await unanswered(node, UPDATE, update(cpuset_cpus="0-1", cpu_shares=333))
    await asyncio.sleep(2)
    await node.run(node.held(UPDATE, update(cpuset_cpus="4-5")))
    held = replace(ASKED, cpuset_cpus="7", cpu_shares=333)
    node.backend.known_containers["c1"] = replace(CONTAINER, resources=held)
    await asyncio.sleep(LONG_AGO_SECONDS)
    assert node.record.original.resources == replace(held, cpuset_cpus="4-5")
    assert node.record.effective.resources == held
    assert node.recorder.counted("unsettled", operation=UPDATE.value, result="agreed") == 1


@virtual_time
async def test_an_update_that_a_later_one_repeats_is_not_asked_about() -> None:
    node = Node()
    node.know()
    node.plugins.add("a", points=("PreUpdateContainerResources",))
    await unanswered(node, UPDATE, update(cpuset_cpus="0-1"))
    await node.run(node.held(UPDATE, update(cpuset_cpus="4-5")))
    assert node.recorder.counted("unsettled", operation=UPDATE.value, result="repeated") == 1
    assert node.backend.asked == []


@pytest.mark.parametrize(
    ("later", "result"),
    [({"resources": Resources(cpu_quota=5000)}, "agreed"), ({"overhead": Resources(cpu_quota=5000)}, "agreed")],
)
@virtual_time
async def test_a_pods_update_is_found_out_beside_one_that_says_less(later: dict[str, Resources], result: str) -> None:
    node = Node()
    node.know()
    both = {"overhead": Resources(cpu_quota=3000), "resources": Resources(cpu_quota=3000)}
    await unanswered(node, UPDATE_POD, pod_update(**both))
    await node.run(node.held(UPDATE_POD, pod_update(**later)))
    assert node.recorder.counted("unsettled", operation=UPDATE_POD.value, result="repeated") == 0
    await unanswered(node, UPDATE_POD, pod_update(**later))
    await node.run(node.held(UPDATE_POD, pod_update(**both)))
    assert node.recorder.counted("unsettled", operation=UPDATE_POD.value, result="repeated") == 2


@virtual_time
async def test_a_pods_update_that_is_found_out_late_takes_nothing_back_from_a_later_one() -> None:
    node = Node()
    node.know()
    await unanswered(node, UPDATE_POD, pod_update(overhead=Resources(cpu_quota=1), resources=Resources(cpu_quota=10)))
    await node.run(node.held(UPDATE_POD, pod_update(resources=Resources(cpu_quota=20))))
    node.backend.known_pods["p1"] = replace(POD, overhead=Resources(cpu_quota=1), resources=Resources(cpu_quota=20))
    await asyncio.sleep(LONG_AGO_SECONDS)
    assert node.recorder.counted("unsettled", operation=UPDATE_POD.value, result="agreed") == 1
    assert (node.pod.effective.overhead, node.pod.effective.resources) == (
        Resources(cpu_quota=1),
        Resources(cpu_quota=20),
    )


@virtual_time
async def test_of_two_lost_updates_the_later_one_counts_whichever_is_found_out_first() -> None:
    node = Node()
    node.know()
    node.backend.known_containers["c1"] = CONTAINER
    for quota in (50_000, 60_000):
        await unanswered(node, UPDATE, update(cpu_quota=quota))
    for quota in (50_000, 60_000):
        node.backend.known_containers["c1"] = replace(CONTAINER, resources=replace(ASKED, cpu_quota=quota))
        await asyncio.sleep(0.15)
    await asyncio.sleep(LONG_AGO_SECONDS)
    assert node.recorder.counted("unsettled", operation=UPDATE.value, result="agreed") == 2
    assert node.record.effective.resources == replace(ASKED, cpu_quota=60_000)


@virtual_time
async def test_a_hook_that_scales_never_scales_twice_beside_an_update_that_is_found_out_late() -> None:
    def half(request: HookRequest) -> HookAnswer:
        assert request.container is not None
        assert request.container.resources is not None
        quota = request.container.resources.cpu_quota
        return HookAnswer(resources=Resources(cpu_quota=quota // 2) if quota else None)

    node = Node()
    node.know(replace(POD), replace(CONTAINER, resources=replace(ASKED, cpu_quota=0)))
    node.backend.known_pods["p1"] = POD
    node.backend.known_containers["c1"] = replace(CONTAINER, resources=replace(ASKED, cpu_quota=0))
    node.plugins.add("half", half, points=("PreUpdateContainerResources",))
    await unanswered(node, UPDATE, update(memory_limit_in_bytes=1))  # never done, so it is forgotten in the end
    await asyncio.sleep(100)
    await unanswered(node, UPDATE, update(cpuset_cpus="4-5"))
    await asyncio.sleep(26)
    assert node.store.container("c1") is None
    await node.run(node.held(UPDATE, update(cpu_quota=100_000)))
    held = replace(ASKED, cpu_quota=50_000, cpuset_cpus="4-5")
    node.backend.known_containers["c1"] = replace(CONTAINER, resources=held)
    await asyncio.sleep(LONG_AGO_SECONDS)
    assert node.record.original.resources == replace(held, cpu_quota=100_000)
    assert node.record.effective.resources == held


@virtual_time
async def test_a_pods_update_that_cannot_be_read_is_nothing_to_ask_about() -> None:
    node = Node()
    node.know()
    message = pod_update(resources=Resources(cpu_quota=5000)).SerializeToString()
    await unanswered(node, UPDATE_POD, message + b"\x1a\x03\x32\x01\xff")
    await node.run(node.held(UPDATE_POD, message))
    assert node.recorder.counted("calls_unreadable", operation=UPDATE_POD.value) == 1
    await asyncio.sleep(LONG_AGO_SECONDS)
    assert node.backend.asked == []


@pytest.mark.parametrize("answered", [True, False])
@virtual_time
async def test_the_oom_score_of_an_update_is_not_what_the_container_has(answered: bool) -> None:
    """As real containerd: it takes the update, and the process keeps its score."""
    node = Node()
    node.know()
    node.plugins.add("a", points=("PreUpdateContainerResources",))
    held = node.held(UPDATE, update(cpu_shares=2, oom_score_adj=900))
    if not answered:
        held.given = UNANSWERED
    await node.run(held)
    node.backend.known_containers["c1"] = replace(CONTAINER, resources=replace(ASKED, cpu_shares=2))
    await asyncio.sleep(LONG_AGO_SECONDS)
    told = node.plugins.asked[0].request.container
    assert told is not None
    assert told.resources == replace(ASKED, cpu_shares=2, oom_score_adj=900), "it is what the kubelet asks for"
    assert node.record.original.resources == node.record.effective.resources == replace(ASKED, cpu_shares=2)


@virtual_time
async def test_a_container_of_which_nobody_knows_is_read_anew() -> None:
    """The runtime may spell what it was given in a way of its own, so that it is never found again."""
    node = Node()
    node.know()
    node.backend.known_containers["c1"] = replace(CONTAINER, resources=replace(ASKED, cpuset_cpus="0-1"))
    await unanswered(node, UPDATE, update(cpuset_cpus="0,1"))
    await asyncio.sleep(LONG_AGO_SECONDS)
    assert node.store.container("c1") is None
    node.plugins.add("a", points=("PostStopContainer",))
    await node.do(Operation.STOP_CONTAINER)
    assert node.record.effective.resources == replace(ASKED, cpuset_cpus="0-1")


@virtual_time
async def test_a_start_that_is_found_out_late_brings_back_nothing_that_nobody_is_sure_of() -> None:
    node = Node()
    node.know()
    node.backend.known_containers["c1"] = CONTAINER
    node.backend.container_is = api_pb2.CONTAINER_CREATED
    await unanswered(node, START)
    answer = HookAnswer(resources=Resources(cpu_shares=77))
    node.plugins.add("pre", answer, points=("PreStartContainer",), policy=FAIL)
    node.backend.error = BackendError("no answer")
    held = node.held(START)
    await node.run(held)
    assert held.refused
    node.backend.container_is = api_pb2.CONTAINER_RUNNING
    await asyncio.sleep(10)
    assert node.recorder.counted("unsettled", operation=START.value, result="agreed") == 1
    assert node.store.container("c1") is None


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
async def test_what_hook_servers_set_at_a_later_update_stays_theirs() -> None:
    asked = 0

    def note(request: HookRequest) -> HookAnswer:
        nonlocal asked
        asked += 1
        return HookAnswer(annotations={"asked": str(asked)})

    def at_the_second(request: HookRequest) -> HookAnswer:
        return HookAnswer(resources=Resources(cpu_quota=99_000) if asked == 2 else None)

    node = Node()
    node.know()
    node.backend.known_containers["c1"] = CONTAINER
    for name, answer in (("notes", note), ("sets", at_the_second)):
        node.plugins.add(name, answer, points=("PreUpdateContainerResources",))
    await unanswered(node, UPDATE, update(cpuset_cpus="4-5"))
    await node.run(node.held(UPDATE, update(cpu_shares=333)))
    held = replace(ASKED, cpuset_cpus="4-5", cpu_shares=333, cpu_quota=99_000)
    node.backend.known_containers["c1"] = replace(CONTAINER, resources=held)
    await asyncio.sleep(LONG_AGO_SECONDS)
    assert node.recorder.counted("unsettled", operation=UPDATE.value, result="agreed") == 1
    assert node.record.effective.resources == held
    assert node.record.effective.annotations["asked"] == "2"
    assert dict(node.record.owners) == {"cpu_quota": "sets"}


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
