"""CRI's calls of containers by their id: reading unknown ones, the update ahead of a start, updates.

The held stream and the runtime's status are fakes; messages are real ones.
"""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy.call import Reply, Unreadable
from runtimeproxy.cri.updates import UPDATE_SECONDS
from runtimeproxy.errors import BackendError, Reason
from runtimeproxy.hookpoints import Operation
from runtimeproxy.model import (
    NO_ADJUSTMENT,
    Adjustment,
    ContainerInfo,
    ContainerRecord,
    HookAnswer,
    HookRequest,
    PodInfo,
    PodRecord,
    Resources,
    Subject,
)
from runtimeproxy.wire import grpc
from tests.fakes import cri_pb2 as cri
from tests.fakes.clock import virtual_time
from tests.fakes.node import ASKED, CONTAINER, POD, UPDATE, Node, changes, wire
from tests.fakes.plugins import FAIL

# -- containers by id ------------------------------------------------------------------------------------------------


@virtual_time
async def test_an_unknown_container_is_read_with_its_pod() -> None:
    node = Node()
    node.plugins.add("a")
    node.backend.known_pods["p1"], node.backend.known_containers["c1"] = POD, CONTAINER
    await node.do(Operation.STOP_CONTAINER)
    assert node.backend.asked == [("v1", "c1"), ("v1", "p1")]
    assert node.plugins.asked[0].request == HookRequest(POD, CONTAINER)
    assert node.record == ContainerRecord(CONTAINER, CONTAINER)


@virtual_time
async def test_only_what_the_store_lacks_is_read() -> None:
    node = Node()
    node.plugins.add("a")
    node.store.commit(Subject(PodRecord(POD, POD)))
    node.backend.known_containers["c1"] = CONTAINER
    await node.do(Operation.STOP_CONTAINER)
    assert node.backend.asked == [("v1", "c1")]
    node = Node()
    node.plugins.add("a")
    node.store.commit(Subject(PodRecord(PodInfo(), PodInfo()), ContainerRecord(CONTAINER, CONTAINER)))
    node.backend.known_pods["p1"] = POD
    await node.do(Operation.STOP_CONTAINER)
    assert node.backend.asked == [("v1", "p1")]
    assert node.plugins.asked[0].request == HookRequest(POD, CONTAINER)


@pytest.mark.parametrize("containers", [{}, {"c1": CONTAINER}])
@virtual_time
async def test_what_the_runtime_does_not_know_has_no_hooks(containers: dict[str, ContainerInfo]) -> None:
    node = Node()
    node.plugins.add("a", policy=FAIL)
    node.backend.known_containers = containers
    held = await node.do(Operation.START_CONTAINER)
    assert (held.released, node.plugins.told(), node.store.counts()) == ([None], [], (0, 0))


@virtual_time
async def test_a_removed_container_is_forgotten_alone() -> None:
    node = Node()
    node.know()
    await node.do(Operation.STOP_CONTAINER)
    assert node.store.counts() == (1, 1)
    await node.do(Operation.REMOVE_CONTAINER)
    assert node.store.counts() == (1, 0)


# -- start -----------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_starts_resources_go_ahead_of_it_in_an_update_and_into_the_record() -> None:
    node = Node()
    node.know()
    node.plugins.add("a", HookAnswer(resources=Resources(cpuset_cpus="1", cpu_quota=-1)), points=("PreStartContainer",))
    held = node.held(Operation.START_CONTAINER, version="v1alpha2")
    await node.run(held)
    assert held.released == [None]
    version, request, seconds = node.backend.updates[0]
    assert (version, seconds) == ("v1alpha2", UPDATE_SECONDS)
    assert cri.UpdateContainerResourcesRequest.FromString(request) == cri.UpdateContainerResourcesRequest(
        container_id="c1", linux=cri.LinuxContainerResources(cpuset_cpus="1", cpu_quota=-1)
    )
    assert node.record.original == CONTAINER
    assert node.record.effective.resources == Resources(cpu_shares=1024, cpu_quota=-1, cpuset_cpus="1")


def set_what_no_update_can(request: HookRequest) -> HookAnswer:
    """Change the OOM score and clear the cpuset; the other numbers are as they were sent."""
    assert request.container is not None
    assert request.container.resources is not None
    return HookAnswer(resources=replace(request.container.resources, oom_score_adj=7, cpuset_cpus=""))


@virtual_time
async def test_what_no_update_can_bring_about_is_left_out_of_a_start_and_of_the_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node()
    node.know()
    node.plugins.add("a", set_what_no_update_can, points=("PreStartContainer",))
    await node.do(Operation.START_CONTAINER)
    assert node.backend.updates == []
    assert node.record.effective.resources == ASKED
    for field in ("cpuset_cpus", "oom_score_adj"):
        assert node.recorder.counted("fields_left_out", operation="StartContainer", field=field) == 1
    assert "StartContainer: an update cannot set cpuset_cpus, oom_score_adj of a container: left out" in caplog.text


@virtual_time
async def test_what_no_update_can_bring_about_is_left_out_of_an_update_and_of_the_record() -> None:
    node = Node()
    node.know()
    node.plugins.add("a", set_what_no_update_can, points=("PreUpdateContainerResources",))
    held = await node.do(UPDATE, update(cpuset_cpus="1"))
    assert changes(held.released[0], cri.UpdateContainerResourcesRequest).linux == cri.LinuxContainerResources()
    assert node.record.effective.resources == ASKED
    for field in ("cpuset_cpus", "oom_score_adj"):
        assert node.recorder.counted("fields_left_out", operation="UpdateContainerResources", field=field) == 1


@virtual_time
async def test_the_update_of_a_start_has_what_is_left_of_the_callers_time() -> None:
    node = Node()
    node.know()
    answer = HookAnswer(resources=Resources(cpu_shares=2))
    node.plugins.add("a", answer, delay_seconds=1.5, points=("PreStartContainer",))
    held = node.held(Operation.START_CONTAINER)
    held.fields = {b"grpc-timeout": b"8S"}
    await node.run(held)
    assert [seconds for _, _, seconds in node.backend.updates] == [6.5]


@virtual_time
async def test_what_a_message_takes_to_come_comes_off_the_callers_time() -> None:
    node = Node()
    node.know()
    node.plugins.add("a")
    held = node.held(Operation.START_CONTAINER)
    held.fields = {b"grpc-timeout": b"2S"}
    await asyncio.sleep(1.5)
    await node.run(held)
    assert node.plugins.asked[0].timeout_seconds == 0.25


@virtual_time
async def test_a_start_whose_caller_has_no_time_left_updates_nothing() -> None:
    node = Node()
    node.know()
    held = node.held(Operation.START_CONTAINER)
    held.fields = {b"grpc-timeout": b"1S"}
    call = node.call(held)
    subject = call.subject(node.store)
    assert subject is not None
    await asyncio.sleep(1)
    with pytest.raises(BackendError) as caught:
        await call.prepare(subject, Adjustment(resources={"cpu_shares": 2}))
    assert caught.value.code == grpc.DEADLINE_EXCEEDED
    await call.prepare(subject, NO_ADJUSTMENT)
    assert node.backend.updates == []


@pytest.mark.parametrize("policy_fail", [False, True])
@virtual_time
async def test_a_rejected_update_refuses_the_start_under_fail_and_is_no_part_of_the_record(policy_fail: bool) -> None:
    node = Node()
    node.know()
    node.backend.error = BackendError("cpuset: no such cpu", grpc.UNKNOWN, not_done=True)
    answer = HookAnswer(resources=Resources(cpuset_cpus="77"))
    node.plugins.add("a", answer, **({"policy": FAIL} if policy_fail else {}))  # type: ignore[arg-type]
    held = await node.do(Operation.START_CONTAINER)
    assert (held.released, len(held.refused)) == (([], 1) if policy_fail else ([None], 0))
    assert node.record.effective == CONTAINER
    counted = node.recorder.counted(
        "hook_failures", plugin="a", hook="PreStartContainer", reason=Reason.RUNTIME_REJECTED.value
    )
    assert counted == 1
    assert node.recorder.total("hook_fail_open") == (not policy_fail)


@virtual_time
async def test_a_container_is_read_anew_once_nobody_knows_whether_its_update_was_done() -> None:
    node = Node()
    node.know()
    node.backend.error = BackendError("no answer in time", grpc.DEADLINE_EXCEEDED)
    node.plugins.add("a", HookAnswer(resources=Resources(cpuset_cpus="1")), points=("PreStartContainer",))
    await node.do(Operation.START_CONTAINER)
    assert node.store.counts() == (1, 0)


# -- update ----------------------------------------------------------------------------------------------------------


def update(**resources: Any) -> cri.UpdateContainerResourcesRequest:
    return cri.UpdateContainerResourcesRequest(
        container_id="c1", linux=cri.LinuxContainerResources(**resources) if resources else None
    )


def halve(request: HookRequest) -> HookAnswer:
    """Answer as a hook that scales does: a whole echo with half the shares."""
    assert request.container is not None
    resources = request.container.resources or Resources()
    return HookAnswer(resources=replace(resources, cpu_shares=resources.cpu_shares // 2))


def echo(request: HookRequest) -> HookAnswer:
    assert request.container is not None
    return HookAnswer(resources=request.container.resources, annotations=request.container.annotations)


HALVED = replace(CONTAINER, resources=replace(ASKED, cpu_shares=512))
"""The container as it runs after a hook has halved its shares at create."""

UPDATES = [
    pytest.param(echo, {"memory_limit_in_bytes": 5}, CONTAINER, None, {"memory_limit_in_bytes": 5}, id="echo"),
    pytest.param(
        HookAnswer(), {"memory_limit_in_bytes": 5}, HALVED, None, {"memory_limit_in_bytes": 5}, id="hook says nothing"
    ),
    pytest.param(
        echo,
        {"memory_limit_in_bytes": 5},
        HALVED,
        {"memory_limit_in_bytes": 5, "cpu_shares": 1024},
        {"memory_limit_in_bytes": 5, "cpu_shares": 1024},
        id="hook stands for the original",
    ),
    pytest.param(halve, {"cpu_shares": 800}, HALVED, {"cpu_shares": 400}, {"cpu_shares": 400}, id="scaled once"),
    pytest.param(halve, {"cpu_quota": -1}, HALVED, None, {"cpu_quota": -1}, id="scaled as it runs already"),
    pytest.param(halve, {}, CONTAINER, {"cpu_shares": 512}, {"cpu_shares": 512}, id="request without resources"),
    pytest.param(
        HookAnswer(resources=Resources(cpu_quota=-1, memory_limit_in_bytes=-1)),
        {"cpu_quota": 5000},
        CONTAINER,
        {"cpu_quota": -1},
        {"cpu_quota": -1},
        id="unlimited",
    ),
    pytest.param(
        lambda request: replace(echo(request), resources=replace(request.container.resources, cpuset_cpus="")),
        {"cpuset_cpus": "2-3", "cpu_shares": 7},
        CONTAINER,
        {"cpu_shares": 7},
        {"cpu_shares": 7},
        id="a cleared cpuset leaves the runtime's",
    ),
    pytest.param(
        HookAnswer(resources=Resources(unified={"a": "1", "b": "2"}, hugepage_limits={"2MB": 4})),
        {"unified": {"a": "1"}},
        CONTAINER,
        {
            "unified": {"a": "1", "b": "2"},
            "hugepage_limits": [cri.HugepageLimit(page_size="2MB", limit=4)],
        },
        {"unified": {"a": "1", "b": "2"}, "hugepage_limits": {"2MB": 4}},
        id="maps",
    ),
]


@pytest.mark.parametrize(("behaviour", "asked", "runs", "released", "now"), UPDATES)
@virtual_time
async def test_an_update_is_released_with_what_differs_from_what_the_runtime_would_hold(
    behaviour: Any, asked: dict[str, Any], runs: ContainerInfo, released: dict[str, Any] | None, now: dict[str, Any]
) -> None:
    node = Node()
    node.know(container=runs, resources=ASKED)
    node.plugins.add("a", behaviour)
    held = await node.do(UPDATE, update(**asked))
    assert node.told().resources == replace(ASKED, **asked)
    if released is None:
        assert held.released == [None]
    else:
        expected = cri.UpdateContainerResourcesRequest.FromString(wire(update(**released)))
        assert changes(held.released[0], cri.UpdateContainerResourcesRequest) == expected
    assert node.record.original.resources == replace(ASKED, **asked)
    assert runs.resources is not None
    assert node.record.effective.resources == replace(runs.resources, **now)


@virtual_time
async def test_a_hook_that_scales_never_scales_twice() -> None:
    node = Node()
    node.store.commit(Subject(PodRecord(POD, POD)))
    node.plugins.add("a", halve, points=("PreCreateContainer", "PreUpdateContainerResources"))
    await node.do(Operation.CREATE_CONTAINER)
    for _ in range(3):
        held = await node.do(UPDATE, update(memory_limit_in_bytes=2**20))
        assert held.released == [None]
        held = await node.do(UPDATE, update(cpu_shares=1024))
        assert changes(held.released[0], cri.UpdateContainerResourcesRequest).linux.cpu_shares == 512
    assert node.record.effective.resources == replace(ASKED, cpu_shares=512, memory_limit_in_bytes=2**20)
    assert node.record.original.resources == replace(ASKED, memory_limit_in_bytes=2**20)


@virtual_time
async def test_annotations_of_an_update_are_told_changed_and_kept() -> None:
    node = Node()
    node.know(container=replace(CONTAINER, annotations={"old": "1"}), annotations={})
    node.plugins.add("a", HookAnswer(annotations={"hook": "3"}))
    request = update()
    request.annotations["new"] = "2"
    held = await node.do(UPDATE, request)
    assert node.told().annotations == {"old": "1", "new": "2"}
    released = changes(held.released[0], cri.UpdateContainerResourcesRequest)
    assert dict(released.annotations) == {"new": "2", "hook": "3"}
    assert node.record.original.annotations == {"new": "2"}
    assert node.record.effective.annotations == {"old": "1", "new": "2", "hook": "3"}


@virtual_time
async def test_an_update_of_a_container_without_any_resources() -> None:
    node = Node()
    node.know(container=replace(CONTAINER, resources=None))
    node.plugins.add("a")
    held = await node.do(UPDATE, update())
    assert held.released == [None]
    assert node.told().resources is None
    assert node.record.effective.resources is None


@virtual_time
async def test_the_updates_of_two_clients_are_both_kept() -> None:
    node = Node()
    node.know()
    first, second = node.held(UPDATE, update(cpu_shares=5)), node.held(UPDATE, update(cpu_quota=9000))
    first.given = second.given = None
    tasks = [node.lifecycle.run(node.call(held)) for held in (first, second)]
    await asyncio.sleep(1)
    for held in (second, first):
        held.settle(Reply(agreed=True))
        await asyncio.sleep(1)
    await asyncio.gather(*tasks)
    assert node.record.effective.resources == replace(ASKED, cpu_shares=5, cpu_quota=9000)


@virtual_time
async def test_an_update_is_read_to_its_end_before_anything_is_asked() -> None:
    node = Node()
    broken = node.held(UPDATE, update(cpu_shares=5).SerializeToString() + b"\x22\x04\x0a\x02\xff\xff")
    with pytest.raises(Unreadable):
        node.call(broken).order_key()
