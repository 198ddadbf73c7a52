"""CRI's calls through the whole core: what all of them do, and those that make pods and containers.

The held stream and the runtime's status are fakes; messages are real ones.
"""

import asyncio
from dataclasses import replace

import pytest

from runtimeproxy import hookpoints
from runtimeproxy.call import Reply
from runtimeproxy.cri import call, translate
from runtimeproxy.cri.kinds import KINDS
from runtimeproxy.errors import Reason
from runtimeproxy.hookpoints import Operation, Stage
from runtimeproxy.model import (
    NO_ADJUSTMENT,
    HookAnswer,
    HookRequest,
    PodRecord,
    Resources,
    Subject,
)
from runtimeproxy.plugins.registration import FailurePolicy
from runtimeproxy.wire import grpc
from tests.fakes import cri_pb2 as cri
from tests.fakes.clock import virtual_time
from tests.fakes.node import BROKEN, CONTAINER, CREATE_REQUEST, POD, POD_REQUEST, UPDATE, Node, changes, wire
from tests.fakes.plugins import FAIL, IGNORE

# -- all operations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("operation", list(Operation))
@virtual_time
async def test_a_call_that_nobody_changes_is_released_as_it_came(operation: Operation, hooked: bool) -> None:
    node = Node()
    node.know()
    if hooked:
        node.plugins.add("a")
    held = await node.do(operation)
    assert held.released == [None]
    assert held.answers == 1
    assert node.recorder.counted("calls", operation=operation.value, outcome="agreed") == 1


@pytest.mark.parametrize("long", [False, True])
@virtual_time
async def test_a_long_message_that_nobody_is_asked_about_is_read_before_its_release(
    long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short one is read while the runtime works."""
    monkeypatch.setattr(call, "READ_FIRST_BYTES", len(wire(CREATE_REQUEST)) - long)
    node, steps = Node(), list[str]()
    node.know()
    held = node.held(Operation.CREATE_CONTAINER)
    release, read = held.release, translate.read_container
    monkeypatch.setattr(held, "release", lambda message: steps.append("released") or release(message))
    monkeypatch.setattr(translate, "read_container", lambda message: steps.append("read") or read(message))
    await node.run(held)
    assert steps == (["read", "released"] if long else ["released", "read"])


@pytest.mark.parametrize(("message", "problem"), [(BROKEN, ""), (b"", ""), (None, "unknown compression")])
@pytest.mark.parametrize("policy", [FAIL, IGNORE])
@pytest.mark.parametrize("operation", list(Operation))
@virtual_time
async def test_a_message_that_cannot_be_read_is_refused_under_fail_and_passes_else(
    operation: Operation, policy: FailurePolicy, message: bytes | None, problem: str
) -> None:
    node = Node()
    node.plugins.add("a", policy=policy)
    held = node.held(operation)
    held.message, held.problem = message, problem
    await node.run(held)
    if policy is FAIL and hookpoints.BY_CALL.get((operation, Stage.PRE)):
        assert (held.released, [code for code, _ in held.refused]) == ([], [grpc.INTERNAL])
    else:
        assert (held.released, held.refused) == ([None], [])
    assert node.recorder.counted("calls_unreadable", operation=operation.value) == 1
    assert (node.plugins.told(), node.store.counts()) == ([], (0, 0))


@pytest.mark.parametrize(
    ("reason", "code"), [(Reason.REFUSED, grpc.PERMISSION_DENIED), (Reason.UNREACHABLE, grpc.INTERNAL)]
)
@virtual_time
async def test_a_refused_call_names_plugin_point_and_reason(reason: Reason, code: int) -> None:
    node = Node()
    node.plugins.add("koordlet", reason, policy=FAIL)
    held = await node.do(Operation.RUN_POD_SANDBOX)
    text = f"RunPodSandbox refused: hook server 'koordlet' at PreRunPodSandbox: {reason.value}: as told"
    assert held.refused == [(code, f"runtimeproxy: {text}")]
    assert held.released == []
    assert held.answers == 0


@pytest.mark.parametrize(
    ("header", "deadline"), [({}, None), ({b"grpc-timeout": b"5S"}, 5.0), ({b"grpc-timeout": b"x"}, None)]
)
@virtual_time
async def test_the_deadline_is_the_callers_on_the_loops_clock(
    header: dict[bytes, bytes], deadline: float | None
) -> None:
    node = Node()
    held = node.held(Operation.START_CONTAINER)
    held.fields = header
    assert node.call(held).deadline == deadline


@pytest.mark.parametrize("released", [False, True])
@virtual_time
async def test_the_first_end_of_a_call_counts(released: bool) -> None:
    node = Node()
    node.know()
    held = node.held(Operation.START_CONTAINER)
    held.given = None
    call = node.call(held)
    if released:
        task = asyncio.ensure_future(call.release(None, NO_ADJUSTMENT))
        await asyncio.sleep(0)
        held.settle(Reply(agreed=True))
        held.settle(Reply(agreed=False))
        assert await task == Reply(agreed=True)
    else:
        held.end()
        assert await call.release(None, NO_ADJUSTMENT) == Reply(agreed=False, answered=False)
        assert held.released == []


@virtual_time
async def test_a_call_without_a_reply_takes_none() -> None:
    node = Node()
    held = node.held(Operation.START_CONTAINER)
    held.given = None
    task = asyncio.ensure_future(node.call(held).release(None, NO_ADJUSTMENT))
    await asyncio.sleep(0)
    held.on_reply()
    await asyncio.sleep(0)
    assert not task.done()
    held.settle(Reply(agreed=True))
    await task


@virtual_time
async def test_the_end_of_a_held_call_ends_its_hooks_and_a_late_release_does_nothing() -> None:
    node = Node()
    node.know()
    client = node.plugins.add("a", HookAnswer(resources=Resources(cpu_shares=2)), delay_seconds=1)
    held = node.held(Operation.START_CONTAINER)
    call = node.call(held)
    task = node.lifecycle.run(call)
    held.on_ended = task.cancel
    await asyncio.sleep(0.5)
    held.end()
    await task
    assert client.cancelled == 1
    assert (held.released, held.answers, node.backend.updates) == ([], 0, [])
    assert node.record.effective == CONTAINER


@virtual_time
async def test_from_the_answer_on_the_clients_leaving_stops_nothing() -> None:
    node = Node()
    node.plugins.add("a", delay_seconds=1, points=("PreCreateContainer", "PostStartContainer"))
    node.know()
    held = node.held(Operation.START_CONTAINER)
    task = node.lifecycle.run(node.call(held))
    held.on_ended = task.cancel
    await asyncio.sleep(0.5)
    held.settle(Reply(agreed=False, answered=False))
    await task
    assert node.plugins.told() == [("a", "PostStartContainer")]
    times = node.recorder.calls[-1]
    assert (times.held, times.released, times.answered, times.done) == (0, 0, 0, 1)


# -- pods ------------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_pod_is_told_changed_and_kept_as_asked_and_as_it_is() -> None:
    node = Node()
    node.plugins.add("a", HookAnswer(labels={"l": "1"}, annotations={"n": "2"}, cgroup_parent="/hooked"))
    held = await node.do(Operation.RUN_POD_SANDBOX)
    assert node.plugins.asked[0].request == HookRequest(replace(POD, id=""))
    released = changes(held.released[0], cri.RunPodSandboxRequest)
    expected = cri.RunPodSandboxRequest.FromString(wire(POD_REQUEST))
    expected.config.labels["l"] = "1"
    expected.config.annotations["n"] = "2"
    expected.config.linux.cgroup_parent = "/hooked"
    assert released == expected
    assert node.pod.original == POD
    assert node.pod.effective == replace(
        POD, labels={"qos": "BE", "l": "1"}, annotations={"n": "2"}, cgroup_parent="/hooked"
    )


@virtual_time
async def test_a_pod_without_an_id_in_the_answer_is_not_kept_and_the_answer_goes() -> None:
    node = Node()
    held = node.held(Operation.RUN_POD_SANDBOX)
    held.given = Reply(agreed=True, message=b"")
    await node.run(held)
    assert held.answers == 1
    assert node.store.counts() == (0, 0)
    assert node.recorder.counted("calls_unreadable", operation="RunPodSandbox") == 1


@virtual_time
async def test_a_pods_own_request_is_all_that_is_to_read() -> None:
    node = Node()
    call = node.call(node.held(Operation.RUN_POD_SANDBOX))
    assert await call.read_subject(node.store) == call.subject(node.store)
    assert node.backend.asked == []


@virtual_time
async def test_an_update_of_a_pod_is_kept_in_both_records_without_mixing_them() -> None:
    node = Node()
    original = replace(POD, resources=Resources(cpu_shares=1), overhead=Resources(cpu_shares=5))
    effective = replace(POD, resources=Resources(cpu_shares=2), overhead=Resources(cpu_shares=6))
    node.store.commit(Subject(PodRecord(original, effective)))
    await node.do(Operation.UPDATE_POD_SANDBOX_RESOURCES)
    assert node.pod.original == replace(original, resources=Resources(cpu_quota=-1))
    assert node.pod.effective == replace(effective, resources=Resources(cpu_quota=-1))
    overhead = cri.UpdatePodSandboxResourcesRequest(
        pod_sandbox_id="p1", overhead=cri.LinuxContainerResources(cpu_shares=9)
    )
    await node.do(Operation.UPDATE_POD_SANDBOX_RESOURCES, overhead)
    assert node.pod.original.overhead == node.pod.effective.overhead == Resources(cpu_shares=9)
    assert node.pod.original.resources == Resources(cpu_quota=-1)


@virtual_time
async def test_a_removed_pod_is_forgotten_with_its_containers() -> None:
    node = Node()
    node.know()
    await node.do(Operation.STOP_POD_SANDBOX)
    assert node.store.counts() == (1, 1)
    await node.do(Operation.REMOVE_POD_SANDBOX)
    assert node.store.counts() == (0, 0)


@pytest.mark.parametrize("version", ["v1", "v1alpha2"])
@virtual_time
async def test_an_unknown_pod_is_read_in_the_callers_version(version: str) -> None:
    node = Node()
    node.plugins.add("a")
    node.backend.known_pods["p1"] = POD
    await node.run(node.held(Operation.STOP_POD_SANDBOX, version=version))
    assert node.backend.asked == [(version, "p1")]
    assert node.plugins.asked[0].request == HookRequest(POD)
    assert node.pod == PodRecord(POD, POD)


# -- create ----------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_container_is_told_changed_and_kept_as_asked_and_as_it_is() -> None:
    node = Node()
    node.store.commit(Subject(PodRecord(POD, POD)))
    node.plugins.add(
        "a",
        HookAnswer(
            annotations={"n": "1"}, envs={"B": "2"}, cgroup_parent="/other", resources=Resources(cpuset_cpus="0-1")
        ),
    )
    held = await node.do(Operation.CREATE_CONTAINER)
    assert node.plugins.asked[0].request == HookRequest(POD, replace(CONTAINER, id=""))
    expected = cri.CreateContainerRequest.FromString(wire(CREATE_REQUEST))
    expected.config.annotations["n"] = "1"
    expected.config.envs.add(key="B", value=b"2")
    expected.config.linux.resources.cpuset_cpus = "0-1"
    expected.sandbox_config.linux.cgroup_parent = "/other"
    assert changes(held.released[0], cri.CreateContainerRequest) == expected
    assert node.record.original == CONTAINER
    assert node.record.effective == replace(
        CONTAINER,
        annotations={"n": "1"},
        envs={"A": "1", "B": "2"},
        cgroup_parent="/other",
        resources=Resources(cpu_shares=1024, cpuset_cpus="0-1"),
    )
    assert node.pod == PodRecord(POD, POD)


PARENTS = [
    pytest.param("/hooked", ("PreRunPodSandbox",), "/hooked", id="no plugin at create"),
    pytest.param(
        "/hooked", ("PreRunPodSandbox", "PreCreateContainer"), "/hooked", id="a plugin that says nothing more"
    ),
    pytest.param("", (), "/kube/u-1", id="no hook"),
]


@pytest.mark.parametrize(("answer", "points", "parent"), PARENTS)
@virtual_time
async def test_a_cgroup_parent_changed_for_the_pod_goes_into_its_containers(
    answer: str, points: tuple[str, ...], parent: str
) -> None:
    node = Node()

    def once(request: HookRequest) -> HookAnswer:
        return HookAnswer(cgroup_parent=answer if request.container is None else "")

    node.plugins.add("a", once, points=points)
    await node.do(Operation.RUN_POD_SANDBOX)
    held = await node.do(Operation.CREATE_CONTAINER)
    if not answer:
        assert held.released == [None]
        return
    expected = cri.CreateContainerRequest.FromString(wire(CREATE_REQUEST))
    expected.sandbox_config.linux.cgroup_parent = parent
    assert changes(held.released[0], cri.CreateContainerRequest) == expected


@virtual_time
async def test_a_kubelet_that_names_the_hooked_parent_itself_is_left_alone() -> None:
    node = Node()
    node.store.commit(Subject(PodRecord(POD, replace(POD, cgroup_parent="/hooked"))))
    request = cri.CreateContainerRequest.FromString(CREATE_REQUEST.SerializeToString())
    request.sandbox_config.linux.cgroup_parent = "/hooked"
    assert (await node.do(Operation.CREATE_CONTAINER, request)).released == [None]


@pytest.mark.parametrize("known", ["not yet", "read", "read, and nobody is asked"])
@pytest.mark.parametrize(("kubelets", "runtimes", "put_in"), [("/kube/u-1", "/hooked", True), ("", "/hooked", False)])
@virtual_time
async def test_the_parent_of_a_pod_that_is_read_is_what_the_runtime_has(
    kubelets: str, runtimes: str, put_in: bool, known: str
) -> None:
    node = Node()
    pod = replace(POD, cgroup_parent=runtimes)
    if known != "read, and nobody is asked":
        node.plugins.add("a", points=("PreCreateContainer",))
    if known == "not yet":
        node.backend.known_pods["p1"] = pod
    else:
        node.store.commit(Subject(PodRecord(pod, pod, read=True)))
    request = cri.CreateContainerRequest.FromString(CREATE_REQUEST.SerializeToString())
    request.sandbox_config.linux.cgroup_parent = kubelets
    held = await node.do(Operation.CREATE_CONTAINER, request)
    assert {asked.request.pod.cgroup_parent for asked in node.plugins.asked} <= {runtimes}
    if put_in:
        released = changes(held.released[0], cri.CreateContainerRequest)
        assert released.sandbox_config.linux.cgroup_parent == runtimes
    else:
        assert held.released == [None]
    assert node.store.counts() == (1, 1)


@virtual_time
async def test_a_containers_create_tells_the_kubelets_newest_word_on_its_pod() -> None:
    node = Node()
    node.know()
    node.plugins.add("a")
    request = cri.CreateContainerRequest.FromString(CREATE_REQUEST.SerializeToString())
    request.sandbox_config.linux.cgroup_parent = "/elsewhere"
    request.sandbox_config.annotations["note"] = "new"
    request.sandbox_config.metadata.CopyFrom(POD_REQUEST.config.metadata)
    assert (await node.do(Operation.CREATE_CONTAINER, request)).released == [None]
    told = node.plugins.asked[0].request.pod
    assert (told.cgroup_parent, told.annotations["note"]) == ("/elsewhere", "new")
    assert node.store.pod(POD.id).effective == told


@virtual_time
async def test_a_container_of_a_pod_that_the_runtime_does_not_know_passes_without_hooks() -> None:
    node = Node()
    node.plugins.add("a", policy=FAIL)
    held = await node.do(Operation.CREATE_CONTAINER)
    assert (held.released, node.plugins.told(), node.store.counts()) == ([None], [], (0, 0))


@virtual_time
async def test_calls_of_two_containers_of_a_pod_have_turns_of_their_own() -> None:
    node = Node()
    other = cri.CreateContainerRequest.FromString(CREATE_REQUEST.SerializeToString())
    other.config.metadata.name = "other"
    keys = [
        node.call(node.held(Operation.CREATE_CONTAINER, request)).order_key() for request in (CREATE_REQUEST, other)
    ]
    assert keys == ["p1/main/2", "p1/other/2"]
    assert node.call(node.held(Operation.RUN_POD_SANDBOX)).order_key() == "shop/web/u-1/1"
    assert (
        node.call(node.held(UPDATE)).order_key() == node.call(node.held(Operation.STOP_CONTAINER)).order_key() == "c1"
    )


def test_every_operation_has_its_kind() -> None:
    assert KINDS.keys() == set(Operation)
