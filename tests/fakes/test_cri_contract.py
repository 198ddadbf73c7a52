"""The fake CRI runtime and a real containerd give equal answers, and the same fields in a verbose status."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from tests.engines import cgroups, cri
from tests.engines.containerd import Containerd
from tests.fakes import cri_pb2
from tests.fakes.runtime import FakeRuntime


class Runtime(NamedTuple):
    path: str
    parent: str  # the pod's cgroup parent
    logs: str


SUCCEED = {"RemovePodSandbox", "RemoveContainer"}
METHODS = ["PodSandboxStatus", "StopPodSandbox", "ContainerStatus", "StartContainer", "StopContainer"]
METHODS += ["UpdateContainerResources", *sorted(SUCCEED)]


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with FakeRuntime(str(tmp_path / "runtime.sock")) as fake:
        yield Runtime(fake.socket_path, "/kubepods/poduid-1", f"{tmp_path}/logs")


@pytest.fixture
def real(containerd: Containerd) -> Iterator[Runtime]:
    uid = uuid.uuid4().hex
    with containerd.restored():
        logs = f"{containerd.directory(f'contract/{uid}')}/logs"
        yield Runtime(containerd.socket, containerd.cgroup_parent(uid), logs)


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.engine)])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    found: Runtime = request.getfixturevalue(request.param)
    return found


def run_pod_to_its_end(runtime: Runtime, version: str) -> None:
    pod = cri.pod_config("web", "u-1", cgroup_parent=runtime.parent, log_directory=runtime.logs)
    resources = cri_pb2.LinuxContainerResources(cpu_shares=512, cpu_quota=50_000, cpu_period=100_000)
    envs = [("A", b"1"), ("A", b"two words")]
    with cri.CriClient(runtime.path, version) as client:
        assert client.version().runtime_api_version == version.removeprefix("runtime.")
        pod_id = client.run_pod(pod)
        container_id = client.create(pod_id, cri.container_config("main", envs=envs, resources=resources), pod)
        client.start(container_id)
        client.update(container_id, cri_pb2.LinuxContainerResources(cpu_quota=60_000))
        assert client.environment(container_id)["A"] == b"two words"
        for setting, value in (("cpu_shares", 512), ("cpu_quota", 60_000)):
            read = client.exec_sync(container_id, "cat", cgroups.inside_file(setting)).stdout.decode()
            assert cgroups.parse(setting, read) == cgroups.expected(setting, value)
        info = json.loads(client.status(container_id).info["info"])
        assert info["config"]["envs"] == [{"key": "A", "value": "1"}, {"key": "A", "value": "two words"}]
        assert info["config"]["linux"]["resources"]["cpu_quota"] == 50_000
        assert info["runtimeSpec"]["linux"]["cgroupsPath"] == f"{runtime.parent}/{container_id}"
        assert info["runtimeSpec"]["linux"]["resources"]["cpu"]["quota"] == 60_000
        assert container_id in [container.id for container in client.containers()]
        assert client.status(container_id[:20]).status.id == container_id
        client.stop(container_id)
        client.remove(container_id)
        client.stop_pod(pod_id)
        client.remove_pod(pod_id)
        assert pod_id not in [pod.id for pod in client.pods()]
        release = client.version().runtime_version.removeprefix("v")
        for method in METHODS:
            field, code = "pod_sandbox_id" if "Pod" in method else "container_id", None
            try:
                client.call(method, getattr(cri_pb2, f"{method}Request")(**{field: "gone"}))
            except grpc.RpcError as error:
                code = error.code()
            succeeds = method in SUCCEED or (method.startswith("Stop") and release >= "1.7")
            assert code is (None if succeeds else grpc.StatusCode.NOT_FOUND), method


@pytest.mark.parametrize("version", cri.VERSIONS)
async def test_fake_runtime_runs_pods_as_containerd(runtime: Runtime, version: str) -> None:
    """A call for an absent id has containerd's code."""
    await asyncio.to_thread(run_pod_to_its_end, runtime, version)
