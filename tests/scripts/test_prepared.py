"""The runtime with ready answers tells what the tests' fake one does."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtimeproxy.cri import status
from runtimeproxy.cri.backend import Backend
from runtimeproxy.errors import BackendError
from runtimeproxy.wire import grpc
from scripts.benchmark.inhabited import cri_node
from scripts.benchmark.prepared import PreparedRuntime
from tests.fakes.runtime_state import RuntimeState


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[PreparedRuntime]:
    async with cri_node(str(tmp_path / "runtime.sock"), pods=2, containers=2) as runtime:
        yield runtime


@pytest.fixture
async def backend(runtime: PreparedRuntime, tmp_path: Path) -> AsyncIterator[Backend]:
    backend = Backend(str(tmp_path / "runtime.sock"))
    yield backend
    await backend.close()


async def test_each_answer_is_that_of_the_fake_runtime_and_was_ready(
    runtime: PreparedRuntime, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = runtime.state.answer
    monkeypatch.setattr(runtime.state, "answer", None)
    for pod_id in runtime.state.pods:
        told = answer("v1", "PodSandboxStatus", status.pod_status_request(pod_id))
        assert await backend.pod("v1", pod_id) == status.read_pod_status(told, pod_id)
    for container_id in runtime.state.containers:
        told = answer("v1", "ContainerStatus", status.container_status_request(container_id))
        assert await backend.container("v1", container_id) == status.read_container_status(told, container_id)
    assert [pod.id for pod in await backend.pods("v1")] == list(runtime.state.pods)
    assert [container.id for container in await backend.containers("v1")] == list(runtime.state.containers)


async def test_what_is_not_there_and_what_is_not_known_are_refused(backend: Backend) -> None:
    assert await backend.pod("v1", "nobody") is None
    assert await backend.container("v1", "nobody") is None
    with pytest.raises(BackendError) as raised:
        await backend.update("v1", b"", 5.0)
    assert raised.value.code == grpc.UNIMPLEMENTED


async def test_a_list_longer_than_the_window_comes_whole(tmp_path: Path) -> None:
    state = RuntimeState()
    state.fill_list(300, 3 << 20)
    path = str(tmp_path / "runtime.sock")
    backend = Backend(path)
    async with PreparedRuntime(path, state):
        for _ in range(2):
            assert len(list(await backend.containers("v1"))) == 300
        await backend.close()
