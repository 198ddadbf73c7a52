"""CRI's calls through the whole core, with real messages: hook requests, released messages and records."""

import asyncio
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy.core.call import DONE, UNANSWERED, UPDATE_SECONDS, Reply, Unreadable
from runtimeproxy.cri import api_pb2, calls
from runtimeproxy.errors import BackendError, BackendFailure, Reason
from runtimeproxy.model import fields, hookpoints
from runtimeproxy.model.fields import ContainerRecord, HookAnswer, HookRequest, PodRecord, Resources, Subject
from runtimeproxy.model.hookpoints import Operation, Stage
from runtimeproxy.plugins.registration import FailurePolicy
from runtimeproxy.wire import grpc
from tests.fakes import cri_pb2 as cri
from tests.fakes.node import CONTAINER, CREATE_REQUEST, POD, REQUESTED, REQUESTS, UPDATE, Node, changes, wire
from tests.fakes.plugins import FAIL, IGNORE
from tests.observe.events import shown_of

RUN_POD, STOP_POD, REMOVE_POD = Operation.RUN_POD_SANDBOX, Operation.STOP_POD_SANDBOX, Operation.REMOVE_POD_SANDBOX
CREATE, START = Operation.CREATE_CONTAINER, Operation.START_CONTAINER
STOP, REMOVE = Operation.STOP_CONTAINER, Operation.REMOVE_CONTAINER
UPDATE_POD = Operation.UPDATE_POD_SANDBOX_RESOURCES
CREATED = {CREATE: {"config": CREATE_REQUEST.config}}


def update(**resources: Any) -> cri.UpdateContainerResourcesRequest:
    return cri.UpdateContainerResourcesRequest(container_id="c1", linux=resources)


CODES = [(Reason.REFUSED, grpc.PERMISSION_DENIED), (Reason.UNREACHABLE, grpc.INTERNAL)]
ALONE = Subject(PodRecord(*[replace(POD, id="p2")] * 2), ContainerRecord(CONTAINER, CONTAINER))
STORED = [(None, ["c1", "p1"]), (Subject(PodRecord(POD, POD)), ["c1"]), (ALONE, ["p1"])]
LEFT_OUT = [(START, None, None), (UPDATE, update(cpuset_cpus="1"), cri.LinuxContainerResources())]
STATES = [(operation, state) for operation in (START, STOP) for state in api_pb2.ContainerState.values()]
STATES += [(STOP_POD, state) for state in api_pb2.PodSandboxState.values()]
DONE_STATES = {(START, api_pb2.CONTAINER_RUNNING), (START, api_pb2.CONTAINER_EXITED), (STOP, api_pb2.CONTAINER_EXITED)}
DONE_STATES.add((STOP_POD, api_pb2.SANDBOX_NOTREADY))
END, POD_END = ("a", "PostStopContainer"), ("a", "PostStopPodSandbox")
REMOVED = [(START, []), (STOP, [END]), (STOP_POD, [END, POD_END]), (REMOVE, [END]), (REMOVE_POD, [END, POD_END])]


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("operation", list(Operation))
async def test_unchanged_call_is_released_as_received(
    node: Node, operation: Operation, hooked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.know()
    if hooked:
        node.plugins.add("a")
    else:
        monkeypatch.setattr(calls, "PARSE_FIRST_BYTES", 0)
    held = await node.do(operation)
    assert (held.released, held.answers) == ([None], 1)
    assert node.metrics.counted("calls", operation=operation.value, outcome="agreed") == 1


@pytest.mark.parametrize(("message", "problem"), [(b"\x0a\xff", ""), (b"", ""), (None, "unknown compression")])
@pytest.mark.parametrize("policy", [FAIL, IGNORE])
@pytest.mark.parametrize("operation", list(Operation))
async def test_unreadable_message_is_refused_only_by_fail_policy(
    node: Node, operation: Operation, policy: FailurePolicy, message: bytes | None, problem: str
) -> None:
    node.plugins.add("a", policy=policy)
    held = node.held(operation)
    held._message, held.problem = message, problem
    await node.run(held)
    refuses = policy is FAIL and hookpoints.BY_CALL.get((operation, Stage.PRE))
    expected = ([], [grpc.INTERNAL]) if refuses else ([None], [])
    assert (held.released, [code for code, _ in held.refused]) == expected
    assert node.metrics.counted("calls_unreadable", operation=operation.value) == 1
    assert (node.plugins.notified(), node.store.counts()) == ([], (0, 0))


async def test_update_is_parsed_completely_first(node: Node) -> None:
    for operation, tail in ((UPDATE, b"\x22\x04\x0a\x02\xff\xff"), (UPDATE_POD, b"\x1a\x03\x32\x01\xff")):
        held = node.held(operation)
        held._message += tail
        with pytest.raises(Unreadable):
            held.order_key()


@pytest.mark.parametrize(("reason", "code"), CODES)
async def test_refusal_names_hook_server_hook_point_and_reason(node: Node, reason: Reason, code: int) -> None:
    node.plugins.add("koordlet", reason, policy=FAIL)
    held = await node.do(RUN_POD)
    text = f"RunPodSandbox refused: hook server 'koordlet' at PreRunPodSandbox: {reason.value}: as reported"
    assert (held.refused, held.released) == ([(code, f"runtimeproxy: {text}")], [])


async def test_pods_and_containers_have_separate_order_keys(node: Node) -> None:
    other = deepcopy(CREATE_REQUEST)
    other.config.metadata.name = "other"
    calls = [(CREATE, None), (CREATE, other), (RUN_POD, None), (UPDATE, None), (STOP, None), (STOP_POD, None)]
    keys = [node.held(operation, message).order_key() for operation, message in calls]
    assert keys == ["p1/main/2", "p1/other/2", "shop/web/u-1/1", "c1", "c1", "p1"]


async def test_pod_is_edited_and_recorded(node: Node) -> None:
    node.plugins.add("a", HookAnswer(labels={"l": "1"}, annotations={"n": "2"}, cgroup_parent="/hooked"))
    held = await node.do(RUN_POD)
    assert await held.read_subject(node.store) == held.subject(node.store), "the runtime does not know it yet"
    assert node.plugins.queried[0].request == HookRequest(replace(POD, id=""))
    assert node.backend.queried == [], "its own request is all that there is to read"
    expected = cri.RunPodSandboxRequest.FromString(wire(REQUESTS[RUN_POD]))
    expected.config.labels["l"] = "1"
    expected.config.annotations["n"] = "2"
    expected.config.linux.cgroup_parent = "/hooked"
    assert changes(held.released[0], cri.RunPodSandboxRequest) == expected
    hooked = replace(POD, labels={"qos": "BE", "l": "1"}, annotations={"n": "2"}, cgroup_parent="/hooked")
    assert node.pod == PodRecord(POD, hooked)
    held = await node.run(node.held(RUN_POD, given=Reply(agreed=True, message=b"")))
    assert (held.answers, node.store.counts()) == (1, (1, 0)), "an answer without an id makes no record"
    assert node.metrics.counted("calls_unreadable", operation="RunPodSandbox") == 1


@pytest.mark.parametrize(("handler", "used"), [("", False), ("runc", False), ("kata-qemu", True)])
async def test_pod_resources_are_effective_by_runtime_handler(node: Node, handler: str, used: bool) -> None:
    node.backend.no_effect = {RUN_POD: frozenset({"resources.cpu_shares"})}
    node.plugins.add("a", HookAnswer(resources=Resources(cpu_shares=7)))
    request = cri.RunPodSandboxRequest.FromString(wire(REQUESTS[RUN_POD]))
    request.runtime_handler = handler
    await node.do(RUN_POD, request)
    assert node.pod is not None
    assert [node.pod.effective.resources != node.pod.original.resources, node.pod.reported is None] == [used, used]


async def test_pod_update_changes_original_and_effective_record(node: Node) -> None:
    shares = [Resources(cpu_shares=number) for number in (1, 2, 5, 6)]
    original, effective = (replace(POD, resources=shares[at], overhead=shares[at + 2]) for at in (0, 1))
    quota, nine = Resources(cpu_quota=-1), Resources(cpu_shares=9)
    node.store.commit(Subject(PodRecord(original, effective, reported=nine)))
    await node.do(UPDATE_POD)
    assert node.pod == PodRecord(replace(original, resources=quota), replace(effective, resources=quota))
    assert node.pod.reported is None
    overhead = cri.LinuxContainerResources(cpu_shares=9)
    await node.do(UPDATE_POD, cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id="p1", overhead=overhead))
    assert node.pod.original.overhead == node.pod.effective.overhead == nine
    assert node.pod.original.resources == quota


async def test_create_is_edited_and_recorded(node: Node) -> None:
    """With its pod's changes, as of a resize that the runtime does not implement."""
    noted = replace(POD, annotations={"note": "new"}, resources=Resources(cpu_shares=9))
    request = deepcopy(CREATE_REQUEST)
    request.sandbox_config.annotations["note"], request.sandbox_config.linux.resources.cpu_shares = "new", 9
    node.store.commit(Subject(PodRecord(POD, POD)))
    await node.run(node.held(UPDATE_POD, given=Reply(agreed=False, no_op=True)))
    assert not len(node.metrics.events)
    resources = Resources(cpuset_cpus="0-1")
    answer = HookAnswer(annotations={"n": "1"}, envs={"B": "2"}, cgroup_parent="/other", resources=resources)
    node.plugins.add("a", answer)
    held = await node.do(CREATE, request)
    assert node.plugins.queried[0].request == HookRequest(noted, replace(CONTAINER, id=""))
    expected = cri.CreateContainerRequest.FromString(wire(request))
    expected.config.annotations["n"] = "1"
    expected.config.envs.add(key="B", value=b"2")
    expected.config.linux.resources.cpuset_cpus = "0-1"
    expected.sandbox_config.linux.cgroup_parent = "/other"
    assert changes(held.released[0], cri.CreateContainerRequest) == expected
    assert node.record.original == CONTAINER
    hooked = {"annotations": {"n": "1"}, "envs": {"A": "1", "B": "2"}, "cgroup_parent": "/other"}
    resources = Resources(cpu_shares=1024, cpuset_cpus="0-1")
    assert node.record.effective == replace(CONTAINER, resources=resources, **hooked)
    assert node.pod == PodRecord(noted, noted)


@pytest.mark.parametrize("removed", [False, True], ids=["it stays", "it leaves"])
@pytest.mark.parametrize("hook_points", [("PreRunPodSandbox",), ("PreRunPodSandbox", "PreCreateContainer"), ()])
async def test_cgroup_parent_of_pod_is_put_into_containers(node: Node, hook_points: Any, removed: bool) -> None:
    def once(request: HookRequest) -> HookAnswer:
        return HookAnswer(cgroup_parent="/hooked" if request.container is None else "")

    node.plugins.add("a", once, points=hook_points)
    await node.do(RUN_POD)
    if removed:
        node.plugins.plugins.clear()
    [released] = (await node.do(CREATE)).released
    expected = cri.CreateContainerRequest.FromString(wire(CREATE_REQUEST))
    expected.sandbox_config.linux.cgroup_parent = "/hooked"
    assert (released and changes(released, cri.CreateContainerRequest)) == (expected if hook_points else None)


@pytest.mark.parametrize(("stored", "queried"), STORED, ids=["nothing", "the pod", "it"])
async def test_only_missing_records_are_read(node: Node, stored: Subject | None, queried: list[str]) -> None:
    node.plugins.add("a")
    if stored is not None:
        node.store.commit(stored)
    node.backend.known_pods["p1"], node.backend.known_containers["c1"] = POD, CONTAINER
    await node.run(node.held(STOP, version="v1alpha2"))
    assert node.backend.queried == [("v1alpha2", any_id) for any_id in queried]
    assert node.plugins.queried[0].request == HookRequest(POD, CONTAINER)
    assert node.record == ContainerRecord(CONTAINER, CONTAINER)


@pytest.mark.parametrize("operation", [CREATE, START, STOP_POD])
async def test_subject_unknown_to_runtime_has_no_hooks(node: Node, operation: Operation) -> None:
    node.plugins.add("a", policy=FAIL)
    held = await node.do(operation)
    assert (held.released, node.plugins.notified(), node.store.counts()) == ([None], [], (0, 0))


@pytest.mark.parametrize("ambiguous", [False, True])
@pytest.mark.parametrize(("operation", "counts"), [(UPDATE, (1, 1)), (STOP, (1, 1)), (START, (1, 1)), (REMOVE, (1, 0))])
async def test_container_is_found_by_id_prefix(node: Node, operation: Operation, counts: Any, ambiguous: bool) -> None:
    """As crictl's users name it; the runtime is queried only where that is ambiguous."""
    node.know()
    if ambiguous:
        node.know(container=replace(CONTAINER, id="c2"))
        node.backend.known_containers["c"] = CONTAINER
    node.plugins.add("a")
    message: Any = type(REQUESTS[operation])(container_id="c")
    if operation is UPDATE:
        message.linux.memory_limit_in_bytes = 7
    held = await node.do(operation, message)
    assert node.backend.queried == [("v1", "c")] * ambiguous + [("v1", "c1")] * (operation is REMOVE)
    assert held.order_key() == "c1", "its turn is that of the whole id"
    assert node.store.counts() == (counts[0], counts[1] + ambiguous)
    if operation is UPDATE:
        assert node.record.original.resources == replace(REQUESTED, memory_limit_in_bytes=7)


@pytest.mark.parametrize("ambiguous", [False, True])
@pytest.mark.parametrize("operation", [STOP_POD, REMOVE_POD, CREATE])
async def test_pod_is_found_by_id_prefix(node: Node, operation: Operation, ambiguous: bool) -> None:
    parents = (replace(POD, cgroup_parent="/kubelets"), POD)
    node.store.commit(Subject(PodRecord(*parents)))
    if ambiguous:
        node.store.commit(Subject(PodRecord(*(replace(pod, id="p2") for pod in parents))))
        node.backend.known_pods["p"] = POD
    node.plugins.add("a")
    held = node.held(operation, type(REQUESTS[operation])(pod_sandbox_id="p", **CREATED.get(operation, {})))
    await node.run(held)
    assert held.order_key().startswith("p1")
    assert node.store.pod("p1") == (None if operation is REMOVE_POD else PodRecord(*parents))
    assert [record.effective.pod_id for record in node.store.snapshot().containers] in ([], ["p1"])
    assert len(node.plugins.queried) == 1


@pytest.mark.parametrize(("grpc_timeout", "seconds"), [(None, UPDATE_SECONDS), (b"8S", 6.5)], ids=["none", "8 s"])
async def test_start_sets_resources_by_extra_update(node: Node, grpc_timeout: bytes | None, seconds: float) -> None:
    """The update's timeout is the remaining time of the caller's deadline."""
    node.know()
    answer = HookAnswer(resources=Resources(cpuset_cpus="1", cpu_quota=-1))
    node.plugins.add("a", answer, delay_seconds=1.5, points=("PreStartContainer",))
    held = await node.run(node.held(START, version="v1alpha2", timeout=grpc_timeout))
    assert held.released == [None]
    [(version, request, given)] = node.backend.updates
    assert (version, given) == ("v1alpha2", seconds)
    assert cri.UpdateContainerResourcesRequest.FromString(request) == update(cpuset_cpus="1", cpu_quota=-1)
    runs = Resources(cpu_shares=1024, cpu_quota=-1, cpuset_cpus="1")
    assert node.record == ContainerRecord(CONTAINER, replace(CONTAINER, resources=runs), node.record.owners)


@pytest.mark.parametrize("operation", [RUN_POD, CREATE, START, UPDATE])
async def test_normalised_unlimited_memory_is_counted(node: Node, operation: Operation) -> None:
    if operation is not RUN_POD:
        node.know()
    node.plugins.add("a", HookAnswer(resources=Resources(memory_limit_in_bytes=-1, cpu_shares=5)))
    await node.do(operation)
    labels = {"hook_server": "a", "field": "resources.memory_limit_in_bytes"}
    assert node.metrics.counted("values_normalised", **labels) == node.metrics.total("values_normalised") == 1


@pytest.mark.parametrize(("operation", "message", "released"), LEFT_OUT)
async def test_unsupported_update_changes_are_left_out(
    node: Node, operation: Operation, message: Any, released: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def impossible(request: Any) -> HookAnswer:
        return HookAnswer(resources=replace(request.container.resources, oom_score_adj=7, cpuset_cpus=""))

    node.know()
    node.plugins.add("a", impossible, points=("PreStartContainer", "PreUpdateContainerResources"))
    [sent] = (await node.do(operation, message)).released
    assert (sent and changes(sent, cri.UpdateContainerResourcesRequest).linux) == released
    assert node.backend.updates == []
    assert node.record.effective.resources == REQUESTED
    for field in ("cpuset_cpus", "oom_score_adj"):
        assert node.metrics.counted("fields_left_out", operation=operation.value, field=field) == 1
    assert f"{operation.value}: an update cannot set cpuset_cpus, oom_score_adj of a container" in caplog.text
    (event,) = shown_of(node.metrics.events)
    assert (event["kind"], event["text"]) == ("no_effect", "left out: an update cannot set it")
    assert {entry["field"] for entry in event["fields"]} == {"resources.cpuset_cpus", "resources.oom_score_adj"}


async def test_start_makes_no_update_after_deadline(node: Node) -> None:
    node.know()
    base = node.held(START, timeout=b"1S")
    subject = base.subject(node.store)
    await asyncio.sleep(1)
    with pytest.raises(BackendError) as caught:
        await base.prepare(subject, fields.Adjustment(resources={"cpu_shares": 2}))
    assert (caught.value.kind, caught.value.not_done) == (BackendFailure.DEADLINE, True)
    await base.prepare(subject, fields.Adjustment())
    assert node.backend.updates == []


@pytest.mark.parametrize(("not_done", "unknown", "containers"), [(True, False, 1), (False, False, 0), (True, True, 0)])
async def test_container_is_reread_when_update_may_be_done(
    node: Node, not_done: bool, unknown: bool, containers: int
) -> None:
    node.know()
    node.backend.error = BackendError("no such cpu", BackendFailure.OTHER, not_done=not_done)
    node.plugins.add("a", HookAnswer(resources=Resources(cpu_shares=2)), points=("PreStartContainer",))
    base = node.held(START)
    base.state_unknown = unknown  # as of an earlier call for the same container
    await node.lifecycle.proceed(base)
    assert node.store.counts() == (1, containers)
    reason = Reason.RUNTIME_REJECTED.value
    assert node.metrics.counted("hook_failures", hook_server="a", hook="PreStartContainer", reason=reason) == 1


async def test_update_is_edited_and_recorded(node: Node) -> None:
    """But its OOM score: real containerd accepts the update while the process keeps its score."""
    node.know(container=replace(CONTAINER, annotations={"old": "1"}), annotations={})
    resources = Resources(unified={"a": "1", "b": "2"})
    node.plugins.add("a", HookAnswer(annotations={"hook": "3"}, resources=resources))
    request = update(unified={"a": "1"}, oom_score_adj=900)
    request.annotations["new"] = "2"
    [released] = (await node.do(UPDATE, request)).released
    seen = replace(REQUESTED, unified={"a": "1"}, oom_score_adj=900)
    assert node.notified() == replace(CONTAINER, annotations={"old": "1", "new": "2"}, resources=seen)
    request.linux.unified["b"], request.annotations["hook"] = "2", "3"
    request.MergeFromString(wire(cri.UpdateContainerResourcesRequest()))
    assert changes(released, cri.UpdateContainerResourcesRequest) == request
    assert node.record.original.annotations == {"new": "2"}
    assert node.record.original.resources == replace(REQUESTED, unified={"a": "1"})
    assert node.record.effective.annotations == {"old": "1", "new": "2", "hook": "3"}
    assert node.record.effective.resources == replace(REQUESTED, unified=resources.unified)


@pytest.mark.parametrize(("operation", "state"), STATES)
async def test_lost_call_outcome_is_read_from_state(node: Node, operation: Operation, state: int) -> None:
    """Meanwhile its request, which may have 16 MiB, is not in memory."""
    node.know()
    node.backend.known_pods["p1"], node.backend.known_containers["c1"] = POD, CONTAINER
    setattr(node.backend, "pod_is" if operation is STOP_POD else "container_is", state)
    held = await node.run(node.held(operation, given=UNANSWERED, version="v1alpha2"))
    assert held._message is None
    await asyncio.sleep(0.2)
    assert node.backend.queried == [("v1alpha2", "p1" if operation is STOP_POD else "c1")]
    done = node.metrics.counted("unknown_outcomes", operation=operation.value, result="agreed")
    assert done == ((operation, state) in DONE_STATES)


@pytest.mark.parametrize(("operation", "called"), REMOVED)
async def test_lost_end_is_reported_when_subject_is_removed(node: Node, operation: Operation, called: Any) -> None:
    node.know()
    node.plugins.add("a", points=("PostStartContainer", "PostStopContainer", "PostStopPodSandbox"))
    node.backend.known_pods["p1"], node.backend.known_containers["c1"] = POD, CONTAINER
    node.backend.container_is = api_pb2.CONTAINER_CREATED
    if operation in (REMOVE, REMOVE_POD):
        node.backend.pod_is, node.backend.container_is = api_pb2.SANDBOX_NOTREADY, api_pb2.CONTAINER_EXITED
    await node.run(node.held(operation, given=UNANSWERED))
    await asyncio.sleep(2)
    assert node.plugins.notified() == []
    node.backend.known_pods.clear()
    node.backend.known_containers.clear()
    await asyncio.sleep(300)
    assert node.plugins.notified() == called


@pytest.mark.parametrize("operation", [START, STOP, STOP_POD])
async def test_outcome_of_unsent_call_is_not_queried(node: Node, operation: Operation) -> None:
    node.know()
    held = node.held(operation)
    held.release = lambda *given: (held.end_stream(), type(held).release(held, *given))
    await node.run(held)
    await asyncio.sleep(300)
    assert node.backend.queried == []
    assert node.metrics.counted("unknown_outcomes", operation=operation.value, result="failed") == 1


async def test_update_is_recorded_over_later_reread(node: Node) -> None:
    """Its fields are recorded, whether the other fields were read before or after the update."""
    node.know()
    pending = node.held(UPDATE, update(cpu_shares=333), given=None)
    running = node.lifecycle.proceed(pending)
    await node.run(node.held(UPDATE, update(cpuset_cpus="4-5"), given=UNANSWERED))
    node.know(container=replace(CONTAINER, resources=replace(REQUESTED, cpuset_cpus="4-5")))
    pending.settle_with(DONE)
    await running
    assert node.record.effective.resources == replace(REQUESTED, cpuset_cpus="4-5", cpu_shares=333)
