"""The proxy's own calls to a runtime, a real gRPC server on a unix socket: status, lists, updates, its state."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
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


@pytest.fixture(params=["v1", "v1alpha2"])
def version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    async with FakeRuntime(str(tmp_path / "runtime.sock")) as runtime:
        yield runtime


@pytest.fixture
async def backend(runtime: FakeRuntime) -> AsyncIterator[Backend]:
    backend = Backend(runtime.socket_path)
    yield backend
    await backend.close()


def made(runtime: FakeRuntime) -> tuple[str, str]:
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name="web", uid="u-1", namespace="shop"),
        linux=cri.LinuxPodSandboxConfig(cgroup_parent="/kube/u-1"),
    )
    run = cri.RunPodSandboxRequest(config=config).SerializeToString()
    pod_id = cri.RunPodSandboxResponse.FromString(runtime.state.answer("v1", "RunPodSandbox", run)).pod_sandbox_id
    envs = [cri.KeyValue(key="A", value=b"1")]
    container = cri.ContainerConfig(metadata=cri.ContainerMetadata(name="main"), envs=envs)
    create = cri.CreateContainerRequest(pod_sandbox_id=pod_id, sandbox_config=config, config=container)
    reply = runtime.state.answer("v1", "CreateContainer", create.SerializeToString())
    return pod_id, cri.CreateContainerResponse.FromString(reply).container_id


async def test_pod_that_no_status_names_is_found_by_list(runtime: FakeRuntime, backend: Backend, version: str) -> None:
    pod_id, container_id = made(runtime)
    made(runtime)
    runtime.state.shape = NO_VERBOSE
    container = await backend.container(version, container_id)
    assert container is not None
    assert (container.id, container.pod_id, container.name) == (container_id, pod_id, "main")
    listed = cri.ListContainersRequest.FromString(runtime.requests("ListContainers")[-1].message)
    assert (listed.filter.id, listed.filter.pod_sandbox_id) == (container_id, "")


async def test_container_without_a_pod_cannot_be_read(runtime: FakeRuntime, backend: Backend) -> None:
    _, container_id = made(runtime)
    runtime.state.shape = NO_VERBOSE
    runtime.state.containers[container_id].pod_id = ""
    with pytest.raises(Unreadable, match="names the container's pod"):
        await backend.container("v1", container_id)


async def test_container_that_is_gone_before_its_pod_is_known_is_none(runtime: FakeRuntime, backend: Backend) -> None:
    _, container_id = made(runtime)
    runtime.state.shape = NO_VERBOSE
    runtime.state.big_list = b""
    assert await backend.container("v1", container_id) is None


async def test_unknown_subject_is_none(runtime: FakeRuntime, backend: Backend, state: CriState) -> None:
    for read in (backend.pod, backend.container, backend.pod_state, backend.container_state, backend.container_life):
        assert await read("v1", "nobody") is None
    assert list(await backend.containers("v1")) == []
    pod_id, container_id = made(runtime)
    assert await state.pod("nobody") is await state.container("nobody") is None
    del runtime.state.pods[pod_id]
    assert await state.container(container_id) is None


async def test_states_need_no_verbose_status(runtime: FakeRuntime, backend: Backend, version: str) -> None:
    pod_id, container_id = made(runtime)
    assert await backend.pod_state(version, pod_id) == api_pb2.SANDBOX_READY
    assert await backend.container_state(version, container_id) == api_pb2.CONTAINER_CREATED
    for method, request in (
        ("StartContainer", cri.StartContainerRequest(container_id=container_id)),
        ("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=pod_id)),
    ):
        runtime.state.answer(version, method, request.SerializeToString())
    # A stop of the pod ends its container.
    assert await backend.pod_state(version, pod_id) == api_pb2.SANDBOX_NOTREADY
    assert await backend.container_state(version, container_id) == api_pb2.CONTAINER_EXITED
    [queried, _] = runtime.requests("PodSandboxStatus")
    assert not cri.PodSandboxStatusRequest.FromString(queried.message).verbose


@pytest.mark.parametrize("code", [Code.UNKNOWN, Code.INTERNAL, Code.PERMISSION_DENIED])
async def test_any_error_may_mean_a_missing_subject(runtime: FakeRuntime, backend: Backend, code: Code) -> None:
    pod_id, container_id = made(runtime)
    for method in ("PodSandboxStatus", "ContainerStatus"):
        runtime.inject(method, Injection(code=code, details="No such container"))
    for missing in (backend.pod, backend.pod_state, backend.container, backend.container_state, backend.container_life):
        assert await missing("v1", "gone") is None
    for fetch, there in ((backend.pod, pod_id), (backend.container, container_id), (backend.pod_state, pod_id[:7])):
        with pytest.raises(BackendError) as caught:
            await fetch("v1", there)
        assert (caught.value.kind, f"gRPC status {code.value[0]}" in str(caught.value)) == (BackendFailure.OTHER, True)


@pytest.mark.parametrize("code", [Code.NOT_FOUND, Code.UNKNOWN])
async def test_plain_status_is_read_where_verbose_fails(runtime: FakeRuntime, backend: Backend, code: Code) -> None:
    pod_id, container_id = made(runtime)
    for method in ("PodSandboxStatus", "ContainerStatus"):
        runtime.inject(method, Injection(code=code, times=1))
    pod, container = await backend.pod("v1", pod_id), await backend.container("v1", container_id)
    assert pod is not None
    assert container is not None
    assert (pod.name, pod.cgroup_parent, container.name, container.pod_id) == ("web", None, "main", pod_id)
    queried = [cri.PodSandboxStatusRequest.FromString(it.message) for it in runtime.requests("PodSandboxStatus")]
    assert [request.verbose for request in queried] == [True, False]


@pytest.mark.parametrize("method", QUERIES)
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (Code.UNAVAILABLE, BackendFailure.UNAVAILABLE),
        (Code.UNIMPLEMENTED, BackendFailure.UNIMPLEMENTED),
        (Code.RESOURCE_EXHAUSTED, BackendFailure.OTHER),
        (Code.CANCELLED, BackendFailure.OTHER),
    ],
)
async def test_error_names_the_method_and_how_it_failed(
    runtime: FakeRuntime, backend: Backend, method: str, code: Code, kind: BackendFailure
) -> None:
    runtime.inject(method, Injection(code=code, details="task is gone"))
    with pytest.raises(BackendError, match=f"^{method}: ") as caught:
        await QUERIES[method](backend)
    assert caught.value.kind is kind
    # Errors of reads are logged; the runtime's words must not be.
    assert ("task is gone" in str(caught.value)) is (method == "UpdateContainerResources")


@pytest.mark.parametrize("method", QUERIES)
async def test_runtime_that_is_away_is_an_error_at_once(tmp_path: Path, method: str) -> None:
    unavailable, started = Backend(str(tmp_path / "nobody.sock")), time.monotonic()
    with pytest.raises(BackendError, match=method) as caught:
        await QUERIES[method](unavailable)
    assert caught.value.kind is BackendFailure.UNAVAILABLE
    assert caught.value.not_done is (method == "UpdateContainerResources")
    assert time.monotonic() - started < STATUS_SECONDS / 2
    await unavailable.close()


async def test_update_is_sent_as_it_is_with_its_time(runtime: FakeRuntime, backend: Backend, version: str) -> None:
    _, container_id = made(runtime)
    request = messages.update_request(container_id, {"cpu_shares": 7, "cpu_quota": -1}, None)
    await backend.update(version, request, 5.0)
    received = runtime.received[-1]
    assert received.path == f"/runtime.{version}.RuntimeService/UpdateContainerResources"
    assert received.message == request
    assert received.deadline_seconds is not None
    assert 4.0 < received.deadline_seconds <= 5.0


@pytest.mark.parametrize(
    ("injected", "kind", "not_done"),
    [
        (None, BackendFailure.OTHER, True),
        (Injection(code=Code.UNKNOWN), BackendFailure.OTHER, True),
        (Injection(code=Code.INVALID_ARGUMENT), BackendFailure.OTHER, True),
        (Injection(code=Code.UNAVAILABLE), BackendFailure.UNAVAILABLE, False),
        (Injection(code=Code.CANCELLED), BackendFailure.OTHER, False),
        (Injection(code=Code.DEADLINE_EXCEEDED), BackendFailure.DEADLINE, False),
        (Injection(delay_seconds=60), BackendFailure.DEADLINE, False),
    ],
)
async def test_refused_update_differs_from_an_unknown_outcome(
    runtime: FakeRuntime, backend: Backend, injected: Injection | None, kind: BackendFailure, not_done: bool
) -> None:
    if injected is not None:
        runtime.inject("UpdateContainerResources", injected)
    with pytest.raises(BackendError) as caught:
        await backend.update("v1", UPDATE, 0.5)
    assert (caught.value.kind, caught.value.not_done) == (kind, not_done)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
async def test_runtime_is_known_by_its_name_and_version(runtime: FakeRuntime, backend: Backend, shape: Shape) -> None:
    """Only CRI-O repeats answers; that ends when an earlier process's creates have certainly ended."""
    runtime.state.shape = shape
    assert (backend.accepts_unlimited_memory, backend.no_effect, backend.repeats_until) == (False, {}, 0.0)
    started, until = asyncio.get_running_loop().time(), set()
    for code in (None, None, Code.UNKNOWN):  # it keeps what it knows
        runtime.inject("Version", Injection(code=code))
        await backend.learn("v1")
        assert backend.runtime_name == shape.runtime_name
        assert backend.accepts_unlimited_memory is (shape.runtime_name == "containerd")
        assert backend.no_effect == no_effect.of_runtime(shape.runtime_name, "1.0.0")
        until.add(backend.repeats_until)
    [end] = until
    assert (end - started >= REPEATS_SECONDS) is shape.repeats_answers


@pytest.fixture
def state(backend: Backend) -> CriState:
    return CriState(backend, Store())


def lacks(runtime: FakeRuntime, version: str | None) -> None:
    """Make the runtime answer as containerd does for a CRI version that it lacks."""
    for method in ("ListPodSandbox", "ListContainers", "PodSandboxStatus", "ContainerStatus", "Version"):
        path = f"/runtime.{version}.RuntimeService/{method}"
        runtime.inject(path, Injection(code=Code.UNIMPLEMENTED, details="unknown service"))


def versions(runtime: FakeRuntime) -> set[str]:
    """Return the CRI versions that answered, and forget the requests."""
    paths = {received.path for received in runtime.received if received.path not in runtime.injections}
    runtime.received.clear()
    return {path.split(".")[1] for path in paths}


@pytest.mark.parametrize(("lacking", "version"), [(None, "v1"), ("v1alpha2", "v1"), ("v1", "v1alpha2")])
async def test_state_is_read_in_v1_else_in_v1alpha2(
    runtime: FakeRuntime, state: CriState, lacking: str | None, version: str
) -> None:
    lacks(runtime, lacking)
    (pod_id, container_id), (another_pod, another) = made(runtime), made(runtime)
    assert await state.listed() == Listed([pod_id, another_pod], [container_id, another])
    pod, subject = await state.pod(pod_id), await state.container(container_id)
    assert pod is not None
    assert pod.original is pod.effective
    assert (pod.effective.id, pod.effective.cgroup_parent) == (pod_id, "/kube/u-1")
    assert subject is not None
    assert subject.container is not None
    assert subject.pod == pod
    assert (subject.container.effective.id, subject.container.effective.envs) == (container_id, {"A": "1"})
    assert versions(runtime) == {version}
    runtime.injections.clear()
    await state.listed()
    assert await state.pod(pod_id) is not None
    assert versions(runtime) == {"v1"}, "it has learnt it"


@pytest.mark.parametrize("method", ["ListPodSandbox", "ListContainers"])
async def test_other_error_is_no_reason_to_try_another_version(
    runtime: FakeRuntime, state: CriState, method: str
) -> None:
    runtime.inject(method, Injection(code=Code.INTERNAL, details="canary-4711"))
    with pytest.raises(BackendError, match=f"{method}: gRPC status 13"):
        await state.listed()
    assert versions(runtime) == {"v1"}


async def test_pod_of_a_container_is_that_of_the_store(runtime: FakeRuntime, backend: Backend) -> None:
    store, (pod_id, container_id) = Store(), made(runtime)
    known = PodRecord(PodInfo(id=pod_id, name="requested"), PodInfo(id=pod_id, name="hooked"))
    store.commit(Subject(known))
    subject = await CriState(backend, store).container(container_id)
    assert subject is not None
    assert subject.pod == known
    assert runtime.requests("PodSandboxStatus") == []


@pytest.mark.parametrize(("uid", "left"), [("u-1", (1, 1)), ("", (1, 1)), ("another's", (0, 0))])
async def test_pod_with_the_id_of_a_lost_one_takes_its_records_with_it(
    runtime: FakeRuntime, backend: Backend, uid: str, left: tuple[int, int]
) -> None:
    store, (pod_id, container_id) = Store(), made(runtime)
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
    reading, turns = asyncio.ensure_future(state.listed()), 0
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(reading.result().pods) == 9
    assert turns >= 8


@pytest.mark.parametrize(("missing", "expected"), [((), True), (("v1",), True), (("v1", "v1alpha2"), False)])
async def test_runtime_with_a_version_serves_cri_and_is_read(
    runtime: FakeRuntime, backend: Backend, state: CriState, missing: tuple[str, ...], expected: bool
) -> None:
    for version in missing:
        lacks(runtime, version)
    assert [await backend.serves_cri() for _ in range(2)] == [expected] * 2
    with nullcontext() if expected else pytest.raises(BackendError):
        await state.listed()
