"""The proxy's own calls to a runtime, a real gRPC server on a unix socket, and parsing what it reports; the JSON is
containerd 1.6.20's, shortened."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.core.call import Life, Unreadable
from runtimeproxy.core.store import Store
from runtimeproxy.core.sync import Listed
from runtimeproxy.cri import api_pb2, messages, status
from runtimeproxy.cri import backend as backend_module
from runtimeproxy.cri.backend import REPEATS_SECONDS, STATUS_SECONDS, Backend, CriState
from runtimeproxy.errors import BackendError, BackendFailure
from runtimeproxy.hookapi import codec
from runtimeproxy.model import hookpoints, no_effect
from runtimeproxy.model.fields import (
    ContainerInfo,
    ContainerRecord,
    HookRequest,
    PodInfo,
    PodRecord,
    Resources,
    Subject,
)
from tests.fakes import cri_pb2 as cri
from tests.fakes.runtime import FakeRuntime, Injection
from tests.fakes.shapes import NO_VERBOSE, SHAPES, Shape

Code = grpc.StatusCode
UPDATE = messages.update_request("c1", {"cpu_shares": 7}, None)

QUERIES: dict[str, Callable[[Backend], Awaitable[object]]] = {
    "ListPodSandbox": lambda backend: backend.pods("v1"),
    "ListContainers": lambda backend: backend.containers("v1"),
    "PodSandboxStatus": lambda backend: backend.pod("v1", "p1"),
    "ContainerStatus": lambda backend: backend.container("v1", "c1"),
    "UpdateContainerResources": lambda backend: backend.update("v1", UPDATE, 5.0),
}
UNAVAILABLE = [(Code.UNAVAILABLE, BackendFailure.UNAVAILABLE), (None, BackendFailure.UNAVAILABLE)]
FAILURES = [(Code.UNIMPLEMENTED, BackendFailure.UNIMPLEMENTED), (Code.CANCELLED, BackendFailure.OTHER), *UNAVAILABLE]
UPDATE_ERRORS: list[tuple[dict[str, Any], BackendFailure, bool]] = [
    ({}, BackendFailure.OTHER, True),
    ({"code": Code.UNKNOWN}, BackendFailure.OTHER, True),
    ({"code": Code.UNAVAILABLE}, BackendFailure.UNAVAILABLE, False),
    ({"code": Code.CANCELLED}, BackendFailure.OTHER, False),
    ({"delay_seconds": 60}, BackendFailure.DEADLINE, False),
]


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    async with FakeRuntime(str(tmp_path / "runtime.sock")) as runtime:
        yield runtime


@pytest.fixture
async def backend(runtime: FakeRuntime) -> AsyncIterator[Backend]:
    backend = Backend(runtime.socket_path)
    yield backend
    await backend.close()


@pytest.fixture
def state(backend: Backend) -> CriState:
    return CriState(backend, Store())


def answer(runtime: FakeRuntime, method: str, **fields: Any) -> Any:
    request = getattr(cri, f"{method}Request")(**fields).SerializeToString()
    return getattr(cri, f"{method}Response").FromString(runtime.state.answer("v1", method, request))


def create_both(runtime: FakeRuntime) -> tuple[str, str]:
    names = {"name": "web", "uid": "u-1", "namespace": "shop"}
    config = cri.PodSandboxConfig(metadata=names, linux={"cgroup_parent": "/kube/u-1"})
    pod_id = answer(runtime, "RunPodSandbox", config=config).pod_sandbox_id
    container = {"metadata": {"name": "main"}, "envs": [{"key": "A", "value": b"1"}]}
    made = answer(runtime, "CreateContainer", pod_sandbox_id=pod_id, sandbox_config=config, config=container)
    return pod_id, made.container_id


async def test_pod_of_container_is_found_by_list(runtime: FakeRuntime, backend: Backend) -> None:
    pod_id, container_id = create_both(runtime)
    create_both(runtime)
    runtime.state.shape = NO_VERBOSE
    container: Any = await backend.container("v1alpha2", container_id)
    assert (container.id, container.pod_id, container.name) == (container_id, pod_id, "main")
    listed = cri.ListContainersRequest.FromString(runtime.requests("ListContainers")[-1].message)
    assert (listed.filter.id, listed.filter.pod_sandbox_id) == (container_id, "")
    runtime.state.containers[container_id].pod_id = ""
    with pytest.raises(Unreadable, match="names the container's pod"):
        await backend.container("v1", container_id)
    runtime.state.big_list = b""
    assert await backend.container("v1", container_id) is None, "it is gone before its pod is known"


@pytest.mark.parametrize("code", [Code.UNKNOWN, Code.INTERNAL, Code.PERMISSION_DENIED])
async def test_missing_subject_is_none(runtime: FakeRuntime, backend: Backend, state: CriState, code: Code) -> None:
    reads = (backend.pod, backend.pod_state, backend.container, backend.container_state, backend.container_life)
    assert [await read("v1", "gone") for read in reads] == [None] * 5
    assert await state.pod("gone") is await state.container("gone") is None
    assert list(await backend.containers("v1")) == []
    pod_id, container_id = create_both(runtime)
    for method in ("PodSandboxStatus", "ContainerStatus"):
        runtime.inject(method, Injection(code=code, details="No such container"))
    assert [await read("v1", "gone") for read in reads] == [None] * 5
    for fetch, any_id in ((backend.pod, pod_id), (backend.container, container_id), (backend.pod_state, pod_id[:7])):
        with pytest.raises(BackendError) as caught:
            await fetch("v1", any_id)
        assert (caught.value.kind, f"gRPC status {code.value[0]}" in str(caught.value)) == (BackendFailure.OTHER, True)
    runtime.injections.clear()
    del runtime.state.pods[pod_id]
    assert await state.container(container_id) is None


@pytest.mark.parametrize("code", [Code.NOT_FOUND, Code.UNKNOWN])
async def test_plain_status_is_read_when_verbose_fails(runtime: FakeRuntime, backend: Backend, code: Code) -> None:
    pod_id, container_id = create_both(runtime)
    for method in ("PodSandboxStatus", "ContainerStatus"):
        runtime.inject(method, Injection(code=code, times=1))
    pod: Any = await backend.pod("v1", pod_id)
    container: Any = await backend.container("v1", container_id)
    assert (pod.name, pod.cgroup_parent, container.name, container.pod_id) == ("web", None, "main", pod_id)
    assert await backend.pod_state("v1", pod_id) == api_pb2.SANDBOX_READY
    assert await backend.container_state("v1", container_id) == api_pb2.CONTAINER_CREATED
    answer(runtime, "StopPodSandbox", pod_sandbox_id=pod_id)
    assert await backend.pod_state("v1alpha2", pod_id) == api_pb2.SANDBOX_NOTREADY
    assert await backend.container_state("v1alpha2", container_id) == api_pb2.CONTAINER_EXITED
    queried = [cri.PodSandboxStatusRequest.FromString(call.message) for call in runtime.requests("PodSandboxStatus")]
    assert [request.verbose for request in queried] == [True, False, False, False], "a state is in the plain status"


@pytest.mark.parametrize("method", QUERIES)
@pytest.mark.parametrize(("code", "kind"), FAILURES)
async def test_error_names_method_and_failure(
    runtime: FakeRuntime, backend: Backend, method: str, code: Code | None, kind: BackendFailure
) -> None:
    """Without delay, also where the runtime is away (None)."""
    if code is None:
        await runtime.stop()
    started = time.monotonic()
    runtime.inject(method, Injection(code=code, details="task is gone"))
    with pytest.raises(BackendError, match=f"^{method}: ") as caught:
        await QUERIES[method](backend)
    assert caught.value.kind is kind
    assert time.monotonic() - started < STATUS_SECONDS / 2
    updates = method == "UpdateContainerResources"
    if code is None:
        assert caught.value.not_done is updates
    else:  # errors of reads are logged; the runtime's words must not be
        assert ("task is gone" in str(caught.value)) is updates


async def test_update_is_sent_unchanged_and_may_be_done(runtime: FakeRuntime, backend: Backend) -> None:
    _, container_id = create_both(runtime)
    request = messages.update_request(container_id, {"cpu_shares": 7, "cpu_quota": -1}, None)
    await backend.update("v1alpha2", request, 5.0)
    received = runtime.received[-1]
    assert received.path == "/runtime.v1alpha2.RuntimeService/UpdateContainerResources"
    assert received.message == request
    assert 4.0 < (received.deadline_seconds or 0.0) <= 5.0
    for injection, *expected in UPDATE_ERRORS:
        runtime.inject("UpdateContainerResources", Injection(**injection))
        with pytest.raises(BackendError) as caught:
            await backend.update("v1", UPDATE, 0.5)
        assert [caught.value.kind, caught.value.not_done] == expected, injection


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
async def test_runtime_is_identified_by_name_and_version(runtime: FakeRuntime, backend: Backend, shape: Shape) -> None:
    """Only CRI-O repeats answers; that ends when an earlier process's creates have certainly ended."""
    runtime.state.shape = shape
    assert (backend.accepts_unlimited_memory, backend.no_effect, backend.repeats_until) == (False, {}, 0.0)
    started, until = asyncio.get_running_loop().time(), set()
    for code in (None, None, Code.UNKNOWN):  # it keeps what it knows
        runtime.inject("Version", Injection(code=code))
        await backend.identify("v1")
        assert backend.runtime_name == shape.runtime_name
        assert backend.accepts_unlimited_memory is (shape.runtime_name == "containerd")
        assert backend.no_effect == no_effect.of_runtime(shape.runtime_name, "1.0.0")
        until.add(backend.repeats_until)
    [end] = until
    assert (end - started >= REPEATS_SECONDS) is shape.repeats_answers


@pytest.mark.parametrize(("uid", "left"), [("u-1", (1, 1)), ("", (1, 1)), ("another's", (0, 0))])
async def test_records_of_another_uid_are_dropped(runtime: FakeRuntime, backend: Backend, uid: str, left: Any) -> None:
    store, (pod_id, container_id) = Store(), create_both(runtime)
    pod, container = PodInfo(id=pod_id, uid=uid), ContainerInfo(id=container_id, pod_id=pod_id)
    store.commit(Subject(PodRecord(pod, pod), ContainerRecord(container, container)))
    await CriState(backend, store).listed()
    assert store.counts() == left


async def test_long_list_is_read_in_parts(state: CriState, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    async def listed(*_: Any) -> Any:
        return iter([PodInfo(id=f"p{number}") for number in range(9)])

    monkeypatch.setattr(backend_module, "ITEMS_PER_ITERATION", 2)
    monkeypatch.setattr(backend, "pods", listed)
    monkeypatch.setattr(backend, "containers", listed)
    reading, iterations = asyncio.ensure_future(state.listed()), 0
    while not reading.done():
        iterations += 1
        await asyncio.sleep(0)
    assert len(reading.result().pods) == 9
    assert iterations >= 8


def lack_version(runtime: FakeRuntime, version: str) -> None:
    """Make the runtime answer as containerd does for a CRI version that it lacks."""
    for method in ("ListPodSandbox", "ListContainers", "PodSandboxStatus", "ContainerStatus", "Version"):
        path = f"/runtime.{version}.RuntimeService/{method}"
        runtime.inject(path, Injection(code=Code.UNIMPLEMENTED, details="unknown service"))


@pytest.mark.parametrize(("lacking", "version"), [("v1alpha2", "v1"), ("v1", "v1alpha2")])
async def test_state_is_read_in_v1_else_in_v1alpha2(
    runtime: FakeRuntime, backend: Backend, state: CriState, lacking: str, version: str
) -> None:
    def versions() -> set[str]:
        paths = {received.path for received in runtime.received if received.path not in runtime.injections}
        runtime.received.clear()
        return {path.split(".")[1] for path in paths}

    lack_version(runtime, lacking)
    assert [await backend.serves_cri() for _ in range(2)] == [True, True]
    runtime.received.clear()
    (pod_id, container_id), (another_pod, another) = create_both(runtime), create_both(runtime)
    assert await state.listed() == Listed([pod_id, another_pod], [container_id, another])
    pod: Any = await state.pod(pod_id)
    subject: Any = await state.container(container_id)
    assert pod.original is pod.effective
    assert (pod.effective.id, pod.effective.cgroup_parent) == (pod_id, "/kube/u-1")
    assert subject.pod == pod
    assert (subject.container.effective.id, subject.container.effective.envs) == (container_id, {"A": "1"})
    assert versions() == {version}
    runtime.injections.clear()
    await state.listed()
    assert await state.pod(pod_id) is not None
    assert versions() == {"v1"}, "it has learnt it"


async def test_runtime_without_version_serves_no_cri(runtime: FakeRuntime, backend: Backend, state: CriState) -> None:
    runtime.inject("ListContainers", Injection(code=Code.INTERNAL, details="canary-4711"))
    with pytest.raises(BackendError, match="ListContainers: gRPC status 13"):
        await state.listed()
    assert not any("v1alpha2" in received.path for received in runtime.received), "only UNIMPLEMENTED is a reason"
    lack_version(runtime, "v1")
    lack_version(runtime, "v1alpha2")
    assert [await backend.serves_cri() for _ in range(2)] == [False, False]
    with pytest.raises(BackendError):
        await state.listed()


PARENT = "/kubepods/besteffort/podu-1"
POD_INFO: dict[str, Any] = {
    "config": {"linux": {"cgroup_parent": PARENT, "overhead": {"cpu_shares": 5}, "resources": {"cpu_quota": -1}}},
    "runtimeSpec": {"linux": {"resources": {"cpu": {"shares": 2}}, "cgroupsPath": f"{PARENT}/p1"}},
    "cniResult": None,
}
ENVS = [("A", "1"), ("LOST", "\ufffd"), ("A", "2"), ("U", "é<&>😀")]
PLAIN = ["PATH=/bin", "HOSTNAME=vm"]
IN_SPEC = {
    "memory": {"limit": 2**28, "swap": 2**28},
    "cpu": {"shares": 200, "quota": -1, "period": 100000, "cpus": "0-1", "mems": "0"},
    "hugepageLimits": [{"pageSize": "2MB", "limit": 1}, {"pageSize": "2MB", "limit": 2**64 - 1}],
    "unified": {"memory.high": "max"},
}
CONTAINER_INFO: dict[str, Any] = {
    "sandboxID": "p1",
    "config": {
        "metadata": {"name": "main"},
        "envs": [*({"key": key, "value": value} for key, value in ENVS), {"key": "EMPTY"}],
        "annotations": {"k": "v"},
        "linux": {"resources": {"cpu_quota": 50000, "memory_limit_in_bytes": 2**27, "cpuset_cpus": "0"}},
    },
    "runtimeSpec": {
        "process": {"env": [*PLAIN, *(f"{key}={value}" for key, value in ENVS), "EMPTY="], "oomScoreAdj": 500},
        "linux": {"resources": IN_SPEC, "cgroupsPath": f"{PARENT}/c1"},
    },
}
CPU: Any = {"cpu_period": 100000, "cpu_quota": -1, "cpu_shares": 200, "cpuset_cpus": "0-1", "cpuset_mems": "0"}
MORE: Any = {"hugepage_limits": {"2MB": 2**64 - 1}, "unified": {"memory.high": "max"}}
RUNNING = Resources(**CPU, **MORE, memory_limit_in_bytes=2**28, oom_score_adj=500)
SPEC = "runtimeSpec.linux.resources"
RUNNING_ENVS = {"A": "2", "U": "é<&>😀", "EMPTY": ""}
NO_SCORE, NO_PAGES = replace(RUNNING, oom_score_adj=0), replace(RUNNING, hugepage_limits={})
PARTS: list[tuple[str, object, dict[str, Any]]] = [
    ("sandboxID", 5, {"pod_id": ""}),
    ("config.envs", 5, {"envs": {"PATH": "/bin", "HOSTNAME": "vm", **RUNNING_ENVS}}),
    ("config.envs", ["canary", {"key": "A", "value": 5}], {"envs": {"A": "2"}}),
    ("config.linux.resources.unified", {"a": 1}, {}),
    ("runtimeSpec.process", [], {"resources": NO_SCORE, "envs": RUNNING_ENVS}),
    ("runtimeSpec.process.env", [None, "canary\udfff"], {}),
    ("runtimeSpec.process.oomScoreAdj", 1.5, {"resources": NO_SCORE}),
    (f"{SPEC}.cpu.shares", "canary", {"resources": replace(RUNNING, cpu_shares=0)}),
    (f"{SPEC}.cpu.quota", 2**63, {"resources": replace(RUNNING, cpu_quota=50000)}),
    (f"{SPEC}.hugepageLimits", [{"pageSize": "2MB", "limit": -1}], {"resources": NO_PAGES}),
    (f"{SPEC}.hugepageLimits", [{"limit": 1}, None], {"resources": NO_PAGES}),
    (f"{SPEC}.unified", {"\ud800": "x", "k": "v"}, {"resources": replace(RUNNING, unified={"k": "v"})}),
    ("runtimeSpec.linux.cgroupsPath", "\ud800", {"cgroup_parent": ""}),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
LIVES = [
    ("CONTAINER_CREATED", 0, Life(started=False, running=False)),
    ("CONTAINER_RUNNING", 5, Life(started=True, running=True)),
    ("CONTAINER_EXITED", 5, Life(started=True, running=False)),
    ("CONTAINER_EXITED", 0, Life(started=False, running=False)),
    ("CONTAINER_EXITED", -(10**18), Life(started=False, running=False)),  # Go's zero time
    ("CONTAINER_UNKNOWN", 0, Life(started=True, running=True)),
]
SLICES = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu_1.slice"
CGROUPS: list[tuple[Any, str | None]] = [
    (None, None),
    ({"config": None, "runtimeSpec": None}, None),
    ({"config": {"linux": {"cgroup_parent": 5}}}, None),
    ({"config": {"linux": {"cgroup_parent": ""}}}, ""),
    ({"config": None, "runtimeSpec": {"linux": {"cgroupsPath": "/kube/u-1/crio-p1"}}}, "/kube/u-1"),
    ({"runtimeSpec": {"linux": {"cgroupsPath": "kubepods-burstable-podu_1.slice:crio:p1"}}}, SLICES),
    ({"runtimeSpec": {"linux": {"cgroupsPath": "system.slice:cri-containerd:p1"}}}, "/system.slice"),
    ({"runtimeSpec": {"linux": {"cgroupsPath": "/k8s.io/p1"}}}, ""),
    ({"runtimeSpec": {"linux": {"cgroupsPath": "/crio/crio-p1"}}}, ""),
]
PAGES = {"memory_limit_in_bytes": 5, "memory_swap_limit_in_bytes": 6, "hugepage_limits": [{"page_size": "2MB"}]}
READ_ENVS: list[tuple[Any, list[Any], dict[str, str]]] = [
    ([{"key": "A", "value": "1"}], ["A=nri=2"], {"A": "nri=2"}),
    ([{"key": "A"}], ["A"], {"A": ""}),
    ([{"key": "A", "value": "w6k="}], ["A=é"], {"A": "é"}),
    ([{"key": "A", "value": "/w=="}], ["A=\ufffd"], {}),
    ([{"key": "A", "value": "77+9"}], ["A=\ufffd"], {"A": "\ufffd"}),
    ([{"key": "A", "value": "\ufffd"}], ["A=\ufffd"], {}),
    ([{"key": "\ufffd", "value": "1"}], ["\ufffd=1"], {}),
    ([{"key": "A", "value": "77+9"}, {"key": "A", "value": "/w=="}], ["A=\ufffd"], {}),
    ([], ["IMAGE=1"], {}),
    (5, ["IMAGE=1", "BAD=\ufffd", None, "NONE"], {"IMAGE": "1"}),
]
METADATA = {"name": "web", "uid": "u-1", "namespace": "shop", "attempt": 3}
POD_STATUS = cri.PodSandboxStatus(
    id="p1", metadata=METADATA, labels={"qos": "BE"}, annotations={"x": "y"}, runtime_handler="kata"
)
CONTAINER_STATUS = cri.ContainerStatus(
    id="c1", metadata={"name": "main", "attempt": 1}, labels={"l": "not read"}, annotations={"k": "v"}
)


def pod(info: object, reported: cri.PodSandboxStatus = POD_STATUS) -> PodInfo:
    """Read a pod's status with this document as its verbose part."""
    response = cri.PodSandboxStatusResponse(status=reported, info={"info": json.dumps(info)})
    return status.read_pod_status(response.SerializeToString(), "p1")


def container(info: object, reported: cri.LinuxContainerResources | None = None) -> ContainerInfo:
    """Read a container's status in the same way; ``reported``: the resources next to the verbose part."""
    text = info if isinstance(info, str) else json.dumps(info)
    response = cri.ContainerStatusResponse(status=CONTAINER_STATUS, info={"info": text})
    if reported is not None:
        response.status.resources.linux.CopyFrom(reported)
    return status.read_container_status(response.SerializeToString(), "c1")


def with_value(path: str, value: object) -> ContainerInfo:
    """Read a container's status whose document has this value in the place of another one."""
    inner = info = deepcopy(CONTAINER_INFO)
    *parents, last = path.split(".")
    for key in parents:
        inner = inner.setdefault(key, {})
    inner[last] = value
    return container(info)


@pytest.mark.parametrize(("name", "started_at", "life"), LIVES)
def test_life_is_read_from_state_and_start_time(name: str, started_at: int, life: Life) -> None:
    response = cri.ContainerStatusResponse(status={"id": "c1", "state": name, "started_at": started_at})
    assert status.read_container_life(response.SerializeToString()) == life


def test_pod_status_is_read() -> None:
    named = ("p1", "web", "u-1", "shop", 3, "kata", {"qos": "BE"}, {"x": "y"}, PARENT)
    assert pod(POD_INFO) == PodInfo(*named, overhead=Resources(cpu_shares=5), resources=Resources(cpu_quota=-1))
    updated = {**POD_INFO, "overhead": {"linux": {"cpu_shares": 6}}, "resources": {"linux": {"cpu_quota": 7}}}
    assert (pod(updated).overhead, pod(updated).resources) == (Resources(cpu_shares=6), Resources(cpu_quota=7))


@pytest.mark.parametrize(("info", "parent"), CGROUPS)
def test_cgroup_parent_is_read_from_partial_status(info: Any, parent: str | None) -> None:
    assert pod(info) == replace(pod(POD_INFO), cgroup_parent=parent, overhead=None, resources=None)
    assert container(info).cgroup_parent == (parent or "")


def test_handler_and_envs_of_crio_are_read_from_spec() -> None:
    """It does not report which envs the image has."""
    labels = cri.PodSandboxStatus(labels={"io.kubernetes.container.name": "POD", "a": "b"})
    info = {"runtimeSpec": {"annotations": {"io.kubernetes.cri-o.RuntimeHandler": "kata"}}}
    assert pod(info, labels) == PodInfo("p1", runtime_handler="kata", labels={"a": "b"}, cgroup_parent=None)
    assert container({"runtimeSpec": {"process": {"env": ["PATH=/bin", "A=1"]}}}).envs == {"PATH": "/bin", "A": "1"}


@pytest.mark.parametrize("text", ["", "canary", "[" * 100_000, '{"pid": ' + "9" * 5000 + "}", "[]", "5", None])
def test_plain_status_is_used_without_document(text: str | None) -> None:
    info = {"other": "no JSON"} if text is None else {"info": text}
    message = cri.PodSandboxStatusResponse(status=POD_STATUS, info=info).SerializeToString()
    assert status.read_pod_status(message, "p1") == pod({})


def test_container_status_is_read() -> None:
    envs = {"A": "2", "U": "é<&>😀", "EMPTY": ""}
    assert container(CONTAINER_INFO) == ContainerInfo("c1", "p1", "main", 1, {"k": "v"}, RUNNING, envs, PARENT)
    reported = cri.LinuxContainerResources(cpu_shares=300, memory_limit_in_bytes=9, memory_swap_limit_in_bytes=9)
    requested = Resources(cpu_quota=50000, memory_limit_in_bytes=9, cpuset_cpus="0", cpu_shares=300)
    assert container(CONTAINER_INFO, reported).resources == requested
    without_swap = container({}, reported).resources
    assert without_swap == Resources(cpu_shares=300, memory_limit_in_bytes=9), "a swap limit that was not requested"


def memory(limit: int, swap: int = 0, **more: Any) -> Resources:
    return Resources(memory_limit_in_bytes=limit, memory_swap_limit_in_bytes=swap, **more)


@pytest.mark.parametrize(
    ("requested", "running", "expected"),
    [
        pytest.param({}, {"limit": 5, "swap": 5}, memory(5), id="containerd's default"),
        pytest.param({"memory_swap_limit_in_bytes": 5}, {"limit": 5, "swap": 5}, memory(5, 5), id="requested"),
        pytest.param({}, {"limit": 5, "swap": -1}, memory(5, -1), id="set by an update"),
        pytest.param(PAGES, {"limit": 4}, memory(4, 6, hugepage_limits={"2MB": 0}), id="not supported by the machine"),
        pytest.param(None, {}, None, id="neither"),
        pytest.param({}, {}, Resources(), id="nothing requested"),
    ],
)
def test_effective_resources_are_read(requested: object, running: object, expected: Resources | None) -> None:
    spec = {"linux": {"resources": {"memory": running}}}
    assert container({"config": {"linux": {"resources": requested}}, "runtimeSpec": spec}).resources == expected


@pytest.mark.parametrize(("requested", "running", "expected"), READ_ENVS)
def test_envs_are_read_from_config_and_spec(requested: object, running: list[str], expected: dict[str, str]) -> None:
    assert container({"config": {"envs": requested}, "runtimeSpec": {"process": {"env": running}}}).envs == expected


@pytest.mark.parametrize(("path", "value", "unknown"), PARTS, ids=[f"{path}={value!r}" for path, value, _ in PARTS])
def test_unreadable_part_is_unknown(path: str, value: object, unknown: dict[str, Any]) -> None:
    assert with_value(path, value) == replace(container(CONTAINER_INFO), **unknown)


@given(st.sampled_from([path for path, *_ in PARTS]), JSON)
def test_any_value_of_part_is_read(path: str, value: object) -> None:
    read = with_value(path, value)
    assert (read.id, read.name, read.annotations) == ("c1", "main", {"k": "v"})
    codec.encode(hookpoints.BY_NAME["PreStartContainer"], HookRequest(PodInfo(), read))


Read = Callable[[bytes], Any]
LISTS: list[Read] = [lambda message: [*status.pods(message)], lambda message: [*status.containers(message)]]
STATES = [status.read_pod_state, status.read_container_state, status.read_container_life]
STATUSES: list[Read] = [
    lambda message: status.read_pod_status(message, "requested"),
    lambda message: status.read_container_status(message, "requested"),
]


# The list, an item, or an id is cut; an id is no text; an item has no id.
INVALID = [b"\x0a", b"\x0a\x05\x0a", b"\x0a\x02\x0a\x07", b"\x0a\x03\x0a\x01\xff", b"\x0a\x00"]
INVALID_READS = [(read, b"\x0a\x05canary") for read in (*STATES, *STATUSES, *LISTS)]


@pytest.mark.parametrize(("read", "message"), [*INVALID_READS, *product(LISTS, INVALID)])
def test_invalid_message_raises(read: Read, message: bytes) -> None:
    with pytest.raises(Unreadable) as raised:
        read(message)
    assert "canary" not in str(raised.value)


@given(st.binary(max_size=60), st.sampled_from([*STATUSES, *LISTS]))
def test_any_bytes_are_read_or_unreadable(message: bytes, read: Read) -> None:
    with suppress(Unreadable):
        read(message)


def test_list_items_have_id_and_metadata() -> None:
    bare = (b"", b"\x0a\x00", b"\x12\x00")
    assert {read(message).id for read, message in product(STATUSES, bare)} == {"requested"}, "in a status without one"
    listed = [{"id": "p1", "metadata": METADATA, "labels": {"app": "web"}}, {"id": "p2"}]
    message = cri.ListPodSandboxResponse(items=listed).SerializeToString()
    pods = [PodInfo("p1", "web", "u-1", "shop", 3), PodInfo("p2")]
    assert [*status.pods(message)] == [*status.pods(b"\x12\x01x" + message + b"\x08\x07\xfa\x3e\x03new")] == pods
    container = cri.Container(id="c1", pod_sandbox_id="p1", metadata={"name": "main", "attempt": 2}).SerializeToString()
    container += b"\x42\x08\x0a\x01k\x12\x03\xff\xfe\xfd"  # a label, which is not read
    containers = b"\x0a" + bytes((len(container),)) + container
    assert [*status.containers(containers)] == [ContainerInfo("c1", "p1", "main", 2)]
    assert [*status.pods(b""), *status.containers(b"")] == []
    items = status.pods(message + b"\x0a\x05")
    assert [next(items).id, next(items).id] == ["p1", "p2"], "each is parsed when it is needed"
    with pytest.raises(Unreadable):
        next(items)
