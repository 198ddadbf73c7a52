"""The fake CRI runtime and a real containerd give equal answers, and the same fields in a verbose status."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from tests.engines import cgroups, cri
from tests.engines.containerd import Containerd
from tests.fakes import cri_pb2
from tests.fakes.runtime import FakeRuntime


@dataclass(frozen=True)
class Runtime:
    path: str
    parent: str
    """The pod's cgroup parent."""
    folder: str
    """A folder that can be mounted."""

    @property
    def pod(self) -> cri_pb2.PodSandboxConfig:
        return cri.pod_config("web", "u-1", cgroup_parent=self.parent, log_directory=f"{self.folder}/logs")

    def create(self, client: cri.CriClient) -> tuple[str, str]:
        envs = [("A", b"1"), ("A", b"two words")]
        resources = cri_pb2.LinuxContainerResources(cpu_shares=512, cpu_quota=50_000, cpu_period=100_000)
        config = cri.container_config("main", envs=envs, resources=resources, annotations={"c": "d"})
        config.mounts.add(container_path="/data", host_path=self.folder, readonly=True)
        pod_id = client.run_pod(self.pod)
        return pod_id, client.create(pod_id, config, self.pod)


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with FakeRuntime(str(tmp_path / "runtime.sock")) as fake:
        yield Runtime(fake.socket_path, "/kubepods/poduid-1", str(tmp_path))


@pytest.fixture
def real(containerd: Containerd) -> Iterator[Runtime]:
    uid = uuid.uuid4().hex
    with containerd.restored():
        yield Runtime(containerd.socket, containerd.cgroup_parent(uid), str(containerd.directory(f"contract/{uid}")))


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.engine)])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    found: Runtime = request.getfixturevalue(request.param)
    return found


def run_pod_to_its_end(runtime: Runtime, version: str) -> None:
    with cri.CriClient(runtime.path, version) as client:
        assert client.version().runtime_api_version == version.removeprefix("runtime.")
        pod_id, container_id = runtime.create(client)
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


@pytest.mark.parametrize("version", cri.VERSIONS)
async def test_fake_runtime_runs_pods_as_containerd(runtime: Runtime, version: str) -> None:
    await asyncio.to_thread(run_pod_to_its_end, runtime, version)


SUCCEED = {"RemovePodSandbox", "RemoveContainer"}
METHODS = ["PodSandboxStatus", "StopPodSandbox", "ContainerStatus", "StartContainer", "StopContainer", *sorted(SUCCEED)]


def codes_of_absent_ids(runtime: Runtime) -> None:
    with cri.CriClient(runtime.path) as client:
        version = client.version().runtime_version.removeprefix("v")
        for method in [*METHODS, "UpdateContainerResources"]:
            field, code = "pod_sandbox_id" if "Pod" in method else "container_id", None
            try:
                client.call(method, getattr(cri_pb2, f"{method}Request")(**{field: "gone"}))
            except grpc.RpcError as error:
                code = error.code()
            succeeds = method in SUCCEED or (method.startswith("Stop") and version >= "1.7")
            assert code is (None if succeeds else grpc.StatusCode.NOT_FOUND), method


async def test_absent_id_has_code_of_containerd(runtime: Runtime) -> None:
    await asyncio.to_thread(codes_of_absent_ids, runtime)
