"""The fake CRI runtime and a real containerd answer the same calls alike, and report as much in a verbose status."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.engines import cgroups, cri
from tests.engines.containerd import Containerd
from tests.fakes import cri_pb2
from tests.fakes.runtime import FakeRuntime
from tests.fakes.spec import MASKED_PATHS, READONLY_PATHS

RESOURCES = cri_pb2.LinuxContainerResources(cpu_shares=512, cpu_quota=50_000, cpu_period=100_000)


@dataclass(frozen=True)
class Runtime:
    """A runtime, with a pod for it."""

    path: str
    pod: cri_pb2.PodSandboxConfig
    data: str
    """A folder that can be mounted."""

    @property
    def config(self) -> cri_pb2.ContainerConfig:
        envs = [("A", b"1"), ("A", b"two words")]
        config = cri.container_config("main", envs=envs, resources=RESOURCES, annotations={"c": "d"})
        config.mounts.add(container_path="/data", host_path=self.data, readonly=True)
        config.linux.security_context.masked_paths.extend(MASKED_PATHS)
        config.linux.security_context.readonly_paths.extend(READONLY_PATHS)
        return config


def runtime_at(path: str, parent: str, folder: Path) -> Runtime:
    logs = folder / "logs"
    return Runtime(path, cri.pod_config("web", "u-1", cgroup_parent=parent, log_directory=str(logs)), str(folder))


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with FakeRuntime(str(tmp_path / "runtime.sock")) as fake:
        yield runtime_at(fake.socket_path, "/kubepods/poduid-1", tmp_path)


@pytest.fixture
def real(containerd: Containerd) -> Iterator[Runtime]:
    uid = uuid.uuid4().hex
    with containerd.restored():
        yield runtime_at(containerd.socket, containerd.cgroup_parent(uid), containerd.directory(f"contract/{uid}"))


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.engine)])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    found: Runtime = request.getfixturevalue(request.param)
    return found


def create(client: cri.CriClient, runtime: Runtime) -> tuple[str, str]:
    pod_id = client.run_pod(runtime.pod)
    container_id = client.create(pod_id, runtime.config, runtime.pod)
    return pod_id, container_id


def live(runtime: Runtime, version: str) -> None:
    with cri.CriClient(runtime.path, version) as client:
        assert client.version().runtime_api_version == version.removeprefix("runtime.")
        pod_id, container_id = create(client, runtime)
        client.start(container_id)
        client.update(container_id, cri_pb2.LinuxContainerResources(cpu_quota=60_000))
        assert client.environment(container_id)["A"] == b"two words"
        for setting, value in (("cpu_shares", 512), ("cpu_quota", 60_000)):
            read = client.exec_sync(container_id, "cat", cgroups.inside_file(setting)).stdout.decode()
            assert cgroups.parse(setting, read) == cgroups.expected(setting, value)
        told = json.loads(client.status(container_id).info["info"])
        assert told["config"]["envs"] == [{"key": "A", "value": "1"}, {"key": "A", "value": "two words"}]
        assert told["config"]["linux"]["resources"]["cpu_quota"] == 50_000
        assert told["runtimeSpec"]["linux"]["cgroupsPath"] == f"{runtime.pod.linux.cgroup_parent}/{container_id}"
        assert told["runtimeSpec"]["linux"]["resources"]["cpu"]["quota"] == 60_000
        assert container_id in [container.id for container in client.containers()]
        assert client.status(container_id[:20]).status.id == container_id
        client.stop(container_id)
        client.remove(container_id)
        client.stop_pod(pod_id)
        client.remove_pod(pod_id)
        assert pod_id not in [pod.id for pod in client.pods()]


@pytest.mark.parametrize("version", cri.VERSIONS)
async def test_pod_lives_and_ends_alike(runtime: Runtime, version: str) -> None:
    await asyncio.to_thread(live, runtime, version)


REFUSED = ("PodSandboxStatus", "StopPodSandbox", "ContainerStatus", "StartContainer", "StopContainer")
CODES = {
    **dict.fromkeys((*REFUSED, "UpdateContainerResources"), grpc.StatusCode.NOT_FOUND),
    **dict.fromkeys(("RemovePodSandbox", "RemoveContainer")),
}


@pytest.mark.parametrize(("method", "code"), CODES.items())
async def test_absent_id_has_containerds_code(runtime: Runtime, method: str, code: grpc.StatusCode | None) -> None:
    field = "pod_sandbox_id" if "Pod" in method else "container_id"

    def answered() -> grpc.StatusCode | None:
        nonlocal code
        with cri.CriClient(runtime.path) as client:
            version = client.call("Version", cri_pb2.VersionRequest()).runtime_version
            if method.startswith("Stop") and version.removeprefix("v") >= "1.7":
                code = None
            try:
                client.call(method, getattr(cri_pb2, f"{method}Request")(**{field: "gone"}))
            except grpc.RpcError as error:
                return error.code()  # type: ignore[no-any-return]
        return None

    assert await asyncio.to_thread(answered) is code


def told(runtime: Runtime) -> list[Any]:
    with cri.CriClient(runtime.path) as client:
        pod_id, container_id = create(client, runtime)
        client.start(container_id)
        return [client.pod_status(pod_id), client.status(container_id)]


@pytest.mark.engine
async def test_verbose_status_has_containerds_keys_and_about_its_length(fake: Runtime, real: Runtime) -> None:
    answers = [await asyncio.to_thread(told, runtime) for runtime in (fake, real)]
    for ours, theirs in zip(*answers, strict=True):
        assert set(keys(json.loads(ours.info["info"]))) == set(keys(json.loads(theirs.info["info"])))
        shown, expected = ({field.name for field, _ in told.status.ListFields()} for told in (ours, theirs))
        assert shown == expected
        assert len(ours.info["info"]) == pytest.approx(len(theirs.info["info"]), rel=0.2)


def keys(document: Any, above: str = "") -> Iterator[str]:
    """Yield the path of every value of a document; the elements of an array share one path."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield f"{above}.{key}"
            yield from keys(value, f"{above}.{key}")
    elif isinstance(document, list):
        for value in document:
            yield from keys(value, f"{above}[]")
