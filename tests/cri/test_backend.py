"""The proxy's own calls to a runtime, a real gRPC server on a unix socket: status, lists, updates, its state."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from runtimeproxy.core.call import Unreadable
from runtimeproxy.core.store import Store
from runtimeproxy.core.sync import Listed
from runtimeproxy.cri import api_pb2, messages
from runtimeproxy.cri import backend as backend_module
from runtimeproxy.cri.backend import REPEATS_SECONDS, STATUS_SECONDS, Backend, CriState
from runtimeproxy.errors import BackendError, BackendFailure
from runtimeproxy.model import no_effect
from runtimeproxy.model.fields import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Subject
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


async def test_states_are_read_from_plain_status(runtime: FakeRuntime, backend: Backend) -> None:
    pod_id, container_id = create_both(runtime)
    assert await backend.pod_state("v1", pod_id) == api_pb2.SANDBOX_READY
    assert await backend.container_state("v1", container_id) == api_pb2.CONTAINER_CREATED
    answer(runtime, "StopPodSandbox", pod_sandbox_id=pod_id)
    assert await backend.pod_state("v1alpha2", pod_id) == api_pb2.SANDBOX_NOTREADY
    assert await backend.container_state("v1alpha2", container_id) == api_pb2.CONTAINER_EXITED
    [queried, _] = runtime.requests("PodSandboxStatus")
    assert not cri.PodSandboxStatusRequest.FromString(queried.message).verbose


@pytest.mark.parametrize("code", [Code.UNKNOWN, Code.INTERNAL, Code.PERMISSION_DENIED])
async def test_missing_subject_is_none_after_any_error(
    runtime: FakeRuntime, backend: Backend, state: CriState, code: Code
) -> None:
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
    queried = [cri.PodSandboxStatusRequest.FromString(call.message) for call in runtime.requests("PodSandboxStatus")]
    assert [request.verbose for request in queried] == [True, False]


UNAVAILABLE = [(Code.UNAVAILABLE, BackendFailure.UNAVAILABLE), (None, BackendFailure.UNAVAILABLE)]
FAILURES = [(Code.UNIMPLEMENTED, BackendFailure.UNIMPLEMENTED), (Code.CANCELLED, BackendFailure.OTHER), *UNAVAILABLE]


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


UPDATE_ERRORS: list[tuple[dict[str, Any], BackendFailure, bool]] = [
    ({}, BackendFailure.OTHER, True),
    ({"code": Code.UNKNOWN}, BackendFailure.OTHER, True),
    ({"code": Code.UNAVAILABLE}, BackendFailure.UNAVAILABLE, False),
    ({"code": Code.CANCELLED}, BackendFailure.OTHER, False),
    ({"delay_seconds": 60}, BackendFailure.DEADLINE, False),
]


async def test_update_is_sent_unchanged_and_may_be_done(runtime: FakeRuntime, backend: Backend) -> None:
    _, container_id = create_both(runtime)
    request = messages.update_request(container_id, {"cpu_shares": 7, "cpu_quota": -1}, None)
    await backend.update("v1alpha2", request, 5.0)
    received = runtime.received[-1]
    assert received.path == "/runtime.v1alpha2.RuntimeService/UpdateContainerResources"
    assert received.message == request
    assert received.deadline_seconds is not None
    assert 4.0 < received.deadline_seconds <= 5.0
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


@pytest.mark.parametrize(("uid", "remaining"), [("u-1", (1, 1)), ("", (1, 1)), ("another's", (0, 0))])
async def test_records_are_dropped_when_pod_id_has_new_uid(
    runtime: FakeRuntime, backend: Backend, uid: str, remaining: tuple[int, int]
) -> None:
    store, (pod_id, container_id) = Store(), create_both(runtime)
    pod, container = PodInfo(id=pod_id, uid=uid), ContainerInfo(id=container_id, pod_id=pod_id)
    store.commit(Subject(PodRecord(pod, pod), ContainerRecord(container, container)))
    await CriState(backend, store).listed()
    assert store.counts() == remaining


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
