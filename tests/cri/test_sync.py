"""The state of a CRI runtime as the sync reads it: in v1, else in v1alpha2, lists first."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from runtimeproxy.cri import sync as module
from runtimeproxy.cri.backend import Backend
from runtimeproxy.cri.sync import State
from runtimeproxy.errors import BackendError
from runtimeproxy.model import PodInfo, PodRecord, Subject
from runtimeproxy.store import Store
from runtimeproxy.sync import Listed
from tests.cri.test_backend import made
from tests.fakes.runtime import FakeRuntime, Injection


class Rig:
    """A state on a fake runtime."""

    def __init__(self, runtime: FakeRuntime) -> None:
        self.runtime = runtime
        self.backend = Backend(runtime.socket_path)
        self.store = Store()
        self.state = State(self.backend, self.store)

    def lacks(self, version: str) -> None:
        """Let the runtime not know a version, as containerd answers."""
        unknown = Injection(code=grpc.StatusCode.UNIMPLEMENTED, details="unknown service")
        for method in ("ListPodSandbox", "ListContainers", "PodSandboxStatus", "ContainerStatus"):
            self.runtime.inject(f"/runtime.{version}.RuntimeService/{method}", unknown)

    def versions(self) -> set[str]:
        """Return which versions answered, and forget what was asked."""
        paths = {received.path for received in self.runtime.received if received.path not in self.runtime.injections}
        self.runtime.received.clear()
        return {path.split(".")[1] for path in paths}


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with FakeRuntime(str(tmp_path / "runtime.sock")) as runtime:
        rig = Rig(runtime)
        yield rig
        await rig.backend.close()


@pytest.mark.parametrize(("lacking", "version"), [(None, "v1"), ("v1alpha2", "v1"), ("v1", "v1alpha2")])
async def test_the_state_is_read_in_v1_else_in_v1alpha2(rig: Rig, lacking: str | None, version: str) -> None:
    if lacking:
        rig.lacks(lacking)
    pod_id, container_id = made(rig.runtime)
    assert await rig.state.listed() == Listed([pod_id], [container_id])
    pod = await rig.state.pod(pod_id)
    assert pod is not None
    assert pod.original is pod.effective
    assert (pod.effective.id, pod.effective.cgroup_parent) == (pod_id, "/kube/u-1")
    subject = await rig.state.container(container_id)
    assert subject is not None
    assert subject.container is not None
    assert subject.pod == pod
    assert (subject.container.effective.id, subject.container.effective.envs) == (container_id, {"A": "1"})
    assert rig.versions() == {version}


async def test_a_runtime_that_has_learnt_v1_is_read_in_it(rig: Rig) -> None:
    rig.lacks("v1")
    pod_id, _ = made(rig.runtime)
    await rig.state.listed()
    rig.runtime.injections.clear()
    rig.versions()
    await rig.state.listed()
    assert await rig.state.pod(pod_id) is not None
    assert rig.versions() == {"v1"}


async def test_a_runtime_that_has_neither_version_cannot_be_read(rig: Rig) -> None:
    rig.lacks("v1")
    rig.lacks("v1alpha2")
    with pytest.raises(BackendError):
        await rig.state.listed()


@pytest.mark.parametrize("method", ["ListPodSandbox", "ListContainers"])
async def test_another_error_is_no_reason_to_try_another_version(rig: Rig, method: str) -> None:
    rig.runtime.inject(method, Injection(code=grpc.StatusCode.INTERNAL, details="canary-4711"))
    with pytest.raises(BackendError, match=f"{method}: gRPC status 13"):
        await rig.state.listed()
    assert rig.versions() == {"v1"}


async def test_the_pod_of_a_container_is_that_of_the_store(rig: Rig) -> None:
    pod_id, container_id = made(rig.runtime)
    known = PodRecord(PodInfo(id=pod_id, name="asked"), PodInfo(id=pod_id, name="hooked"))
    rig.store.commit(Subject(known))
    subject = await rig.state.container(container_id)
    assert subject is not None
    assert subject.pod == known
    assert rig.runtime.requests("PodSandboxStatus") == []


async def test_what_is_not_there_is_none(rig: Rig) -> None:
    pod_id, container_id = made(rig.runtime)
    assert await rig.state.pod("nobody") is None
    assert await rig.state.container("nobody") is None
    del rig.runtime.state.pods[pod_id]
    assert await rig.state.container(container_id) is None


async def test_a_long_list_is_read_in_parts_between_which_others_have_a_turn(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ITEMS_AT_ONCE", 2)
    turns = 0

    async def listed(*_: Any) -> Any:
        return iter([PodInfo(id=f"p{number}") for number in range(9)])

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(rig.backend, "pods", listed)
    monkeypatch.setattr(rig.backend, "containers", listed)
    counting = asyncio.create_task(count())
    assert len((await rig.state.listed()).pods) == 9
    counting.cancel()
    assert turns >= 8
