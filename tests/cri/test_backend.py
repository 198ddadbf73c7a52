"""The backend asks a real gRPC server on a unix socket for the status of pods and containers, and sends updates."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from runtimeproxy.call import Unreadable
from runtimeproxy.cri import api_pb2, edit
from runtimeproxy.cri import backend as backend_module
from runtimeproxy.cri.backend import STATUS_SECONDS, Backend
from runtimeproxy.errors import BackendError
from runtimeproxy.wire import grpc as wire_grpc
from tests.fakes import cri_pb2 as cri
from tests.fakes.descriptors import no_descriptors
from tests.fakes.runtime import FakeRuntime, Injection
from tests.fakes.shapes import SHAPES, Shape

VERSIONS = ("v1", "v1alpha2")
UPDATE = edit.update_request("c1", {"cpu_shares": 7}, None)

ASKS: dict[str, Callable[[Backend], Awaitable[object]]] = {
    "ListPodSandbox": lambda backend: backend.pods("v1"),
    "ListContainers": lambda backend: backend.containers("v1"),
    "PodSandboxStatus": lambda backend: backend.pod("v1", "p1"),
    "ContainerStatus": lambda backend: backend.container("v1", "c1"),
    "UpdateContainerResources": lambda backend: backend.update("v1", UPDATE, 5.0),
}


@pytest_asyncio.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    async with FakeRuntime(str(tmp_path / "runtime.sock")) as runtime:
        yield runtime


@pytest_asyncio.fixture
async def backend(runtime: FakeRuntime) -> AsyncIterator[Backend]:
    backend = Backend(runtime.socket_path)
    yield backend
    await backend.close()


def made(runtime: FakeRuntime) -> tuple[str, str]:
    """Make a pod with a container in the runtime and return their ids."""
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name="web", uid="u-1", namespace="shop"),
        linux=cri.LinuxPodSandboxConfig(cgroup_parent="/kube/u-1"),
    )
    run = cri.RunPodSandboxRequest(config=config)
    pod = cri.RunPodSandboxResponse.FromString(runtime.state.answer("v1", "RunPodSandbox", run.SerializeToString()))
    create = cri.CreateContainerRequest(
        pod_sandbox_id=pod.pod_sandbox_id,
        sandbox_config=config,
        config=cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name="main"), envs=[cri.KeyValue(key="A", value=b"1")]
        ),
    )
    reply = runtime.state.answer("v1", "CreateContainer", create.SerializeToString())
    return pod.pod_sandbox_id, cri.CreateContainerResponse.FromString(reply).container_id


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_pod_is_read_in_the_version_asked_for(runtime: FakeRuntime, backend: Backend, version: str) -> None:
    pod_id, _ = made(runtime)
    pod = await backend.pod(version, pod_id)
    assert pod is not None
    assert (pod.id, pod.name, pod.cgroup_parent) == (pod_id, "web", "/kube/u-1")
    assert runtime.received[-1].path == f"/runtime.{version}.RuntimeService/PodSandboxStatus"


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_container_is_read_in_the_version_asked_for(
    runtime: FakeRuntime, backend: Backend, version: str
) -> None:
    pod_id, container_id = made(runtime)
    container = await backend.container(version, container_id)
    assert container is not None
    assert (container.id, container.pod_id, container.name, container.envs) == (
        container_id,
        pod_id,
        "main",
        {"A": "1"},
    )
    assert runtime.received[-1].path == f"/runtime.{version}.RuntimeService/ContainerStatus"


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_containers_pod_is_looked_for_in_the_list_where_its_status_does_not_name_it(
    runtime: FakeRuntime, backend: Backend, version: str
) -> None:
    pod_id, container_id = made(runtime)
    made(runtime)
    runtime.state.verbose = False
    container = await backend.container(version, container_id)
    assert container is not None
    assert (container.id, container.pod_id, container.name) == (container_id, pod_id, "main")
    listed = cri.ListContainersRequest.FromString(runtime.requests("ListContainers")[-1].message)
    assert (listed.filter.id, listed.filter.pod_sandbox_id) == (container_id, "")


async def test_a_container_whose_pod_nobody_names_cannot_be_read(runtime: FakeRuntime, backend: Backend) -> None:
    _, container_id = made(runtime)
    runtime.state.verbose = False
    runtime.state.containers[container_id].pod_id = ""
    with pytest.raises(Unreadable, match="names the container's pod"):
        await backend.container("v1", container_id)


async def test_a_container_that_is_gone_before_its_pod_is_known_is_none(runtime: FakeRuntime, backend: Backend) -> None:
    _, container_id = made(runtime)
    runtime.state.verbose = False
    runtime.state.big_list = b""
    assert await backend.container("v1", container_id) is None


async def test_what_the_runtime_does_not_know_is_none(backend: Backend) -> None:
    assert await backend.pod("v1", "p1") is None
    assert await backend.container("v1", "c1") is None
    assert await backend.pod_state("v1", "p1") is None
    assert await backend.container_state("v1", "c1") is None


@pytest.mark.parametrize("version", VERSIONS)
async def test_all_that_there_is_is_listed_in_the_version_asked_for(
    runtime: FakeRuntime, backend: Backend, version: str
) -> None:
    pods, containers = zip(*(made(runtime) for _ in range(3)), strict=True)
    assert [pod.id for pod in await backend.pods(version)] == list(pods)
    found = list(await backend.containers(version))
    assert [(container.id, container.pod_id) for container in found] == list(zip(containers, pods, strict=True))
    methods = ["ListPodSandbox", "ListContainers"]
    assert [received.path for received in runtime.received] == [
        f"/runtime.{version}.RuntimeService/{method}" for method in methods
    ]


@pytest.mark.parametrize("version", VERSIONS)
async def test_states_are_asked_for_without_the_verbose_part(
    runtime: FakeRuntime, backend: Backend, version: str
) -> None:
    pod_id, container_id = made(runtime)
    assert await backend.pod_state(version, pod_id) == api_pb2.SANDBOX_READY
    assert await backend.container_state(version, container_id) == api_pb2.CONTAINER_CREATED
    start = cri.StartContainerRequest(container_id=container_id).SerializeToString()
    runtime.state.answer(version, "StartContainer", start)
    assert await backend.container_state(version, container_id) == api_pb2.CONTAINER_RUNNING
    runtime.state.answer(
        version, "StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=pod_id).SerializeToString()
    )
    assert await backend.pod_state(version, pod_id) == api_pb2.SANDBOX_NOTREADY
    (asked, *_) = runtime.requests("PodSandboxStatus")
    assert not cri.PodSandboxStatusRequest.FromString(asked.message).verbose


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_update_is_sent_as_it_is_with_the_time_it_has(
    runtime: FakeRuntime, backend: Backend, version: str
) -> None:
    _, container_id = made(runtime)
    request = edit.update_request(container_id, {"cpu_shares": 7, "cpu_quota": -1}, None)
    await backend.update(version, request, 5.0)
    received = runtime.received[-1]
    assert received.path == f"/runtime.{version}.RuntimeService/UpdateContainerResources"
    assert received.message == request
    assert received.deadline_seconds is not None
    assert 4.0 < received.deadline_seconds <= 5.0
    assert runtime.state.containers[container_id].resources.cpu_shares == 7


@pytest.mark.parametrize("method", ASKS)
@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED])
async def test_an_error_status_names_the_method_and_keeps_its_code(
    runtime: FakeRuntime, backend: Backend, method: str, code: grpc.StatusCode
) -> None:
    runtime.inject(method, Injection(code=code, details="task is gone"))
    with pytest.raises(BackendError) as caught:
        await ASKS[method](backend)
    assert caught.value.code == code.value[0]
    assert str(caught.value).startswith(f"{method}: ")
    # What is read is told in the log, where the runtime's words have no place.
    assert ("task is gone" in str(caught.value)) is (method == "UpdateContainerResources")


@pytest.mark.parametrize(
    ("code", "not_done"),
    [
        (grpc.StatusCode.UNKNOWN, True),
        (grpc.StatusCode.INVALID_ARGUMENT, True),
        (grpc.StatusCode.UNAVAILABLE, False),
        (grpc.StatusCode.CANCELLED, False),
        (grpc.StatusCode.DEADLINE_EXCEEDED, False),
    ],
)
async def test_a_refused_update_is_told_from_one_that_nobody_knows_of(
    runtime: FakeRuntime, backend: Backend, code: grpc.StatusCode, not_done: bool
) -> None:
    runtime.inject("UpdateContainerResources", Injection(code=code, details="no such cpu"))
    with pytest.raises(BackendError) as caught:
        await backend.update("v1", UPDATE, 5.0)
    assert caught.value.not_done is not_done


async def test_an_update_of_a_container_that_is_not_there_is_an_error(backend: Backend) -> None:
    with pytest.raises(BackendError, match="not found") as caught:
        await backend.update("v1", UPDATE, 5.0)
    assert caught.value.code == wire_grpc.NOT_FOUND
    assert caught.value.not_done


async def test_an_update_that_no_runtime_was_there_for_is_not_done(tmp_path: Path) -> None:
    backend = Backend(str(tmp_path / "nobody.sock"))
    with pytest.raises(BackendError) as caught:
        await backend.update("v1", UPDATE, 5.0)
    assert caught.value.not_done
    await backend.close()


async def test_an_update_that_there_was_no_descriptor_for_is_not_done(backend: Backend) -> None:
    with no_descriptors(), pytest.raises(BackendError, match="the proxy itself lacks") as caught:
        await backend.update("v1", UPDATE, 0.1)
    assert caught.value.not_done


@pytest.mark.parametrize("method", ASKS)
async def test_a_runtime_that_is_away_is_an_error_at_once(tmp_path: Path, method: str) -> None:
    backend = Backend(str(tmp_path / "nobody.sock"))
    started = time.monotonic()
    with pytest.raises(BackendError, match=method) as caught:
        await ASKS[method](backend)
    assert caught.value.code == wire_grpc.UNAVAILABLE
    assert time.monotonic() - started < STATUS_SECONDS / 2
    await backend.close()


async def test_an_update_that_the_runtime_does_not_answer_ends_with_its_time(
    runtime: FakeRuntime, backend: Backend
) -> None:
    runtime.inject("UpdateContainerResources", Injection(delay_seconds=60))
    with pytest.raises(BackendError, match="UpdateContainerResources") as caught:
        await backend.update("v1", UPDATE, 0.1)
    assert caught.value.code == wire_grpc.DEADLINE_EXCEEDED
    assert not caught.value.not_done


async def test_a_status_that_the_runtime_does_not_answer_ends_with_its_time(
    runtime: FakeRuntime, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_module, "STATUS_SECONDS", 0.1)
    runtime.inject("ContainerStatus", Injection(delay_seconds=60))
    with pytest.raises(BackendError) as caught:
        await backend.container("v1", "c1")
    assert caught.value.code == wire_grpc.DEADLINE_EXCEEDED


@pytest.mark.parametrize("code", [grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.PERMISSION_DENIED])
async def test_of_what_is_not_there_a_runtime_may_say_anything(
    runtime: FakeRuntime, backend: Backend, code: grpc.StatusCode
) -> None:
    pod_id, container_id = made(runtime)
    for method in ("PodSandboxStatus", "ContainerStatus"):
        runtime.inject(method, Injection(code=code, details="No such container"))
    for missing in (backend.pod, backend.pod_state, backend.container, backend.container_state):
        assert await missing("v1", "gone") is None
    for ask, there in ((backend.pod, pod_id), (backend.container, container_id), (backend.pod_state, pod_id[:7])):
        with pytest.raises(BackendError) as caught:
            await ask("v1", there)
        assert caught.value.code == code.value[0], "it is listed"


@pytest.mark.parametrize("code", [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNKNOWN])
async def test_where_only_the_verbose_status_fails_the_plain_one_is_asked_for(
    runtime: FakeRuntime, backend: Backend, code: grpc.StatusCode
) -> None:
    pod_id, container_id = made(runtime)
    for method in ("PodSandboxStatus", "ContainerStatus"):
        runtime.inject(method, Injection(code=code, times=1))
    pod, container = await backend.pod("v1", pod_id), await backend.container("v1", container_id)
    assert pod is not None
    assert container is not None
    assert (pod.name, pod.cgroup_parent) == ("web", None)
    assert (container.name, container.pod_id) == ("main", pod_id)
    assert [
        cri.PodSandboxStatusRequest.FromString(r.message).verbose for r in runtime.requests("PodSandboxStatus")
    ] == [
        True,
        False,
    ]


async def test_a_runtime_that_comes_back_is_reached_again(tmp_path: Path) -> None:
    path = str(tmp_path / "runtime.sock")
    backend = Backend(path)
    async with FakeRuntime(path) as first:
        pod_id, _ = made(first)
        assert await backend.pod("v1", pod_id) is not None
    with pytest.raises(BackendError):
        await backend.pod("v1", pod_id)
    async with FakeRuntime(path, first.state):
        assert await backend.pod("v1", pod_id) is not None
    await backend.close()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
async def test_only_containerd_is_known_to_take_no_memory_limit_in_an_update(
    runtime: FakeRuntime, backend: Backend, shape: Shape
) -> None:
    runtime.state.shape = shape
    assert not backend.lifts_memory
    await backend.learn("v1")
    assert backend.lifts_memory is (shape.runtime_name == "containerd")
    runtime.inject("Version", Injection(code=grpc.StatusCode.UNKNOWN))
    await backend.learn("v1")
    assert backend.lifts_memory is (shape.runtime_name == "containerd"), "it does not tell"
