"""What the fake runtime tells of a pod and a container in a verbose status is what containerd tells."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines import cri
from tests.engines.containerd import Containerd
from tests.fakes import cri_pb2
from tests.fakes.runtime_state import RuntimeState
from tests.fakes.spec import MASKED_PATHS, READONLY_PATHS

pytestmark = pytest.mark.engine

RESOURCES = cri_pb2.LinuxContainerResources(cpu_shares=512, cpu_quota=50_000, cpu_period=100_000)


def test_a_verbose_status_has_the_keys_of_containerds_and_about_its_length(containerd: Containerd) -> None:
    uid = uuid.uuid4().hex
    logs = str(containerd.directory(f"logs/{uid}"))
    parent = containerd.cgroup_parent(uid)
    pod = cri.pod_config("alike", uid, cgroup_parent=parent, log_directory=logs, labels={"a": "b"})
    config = cri.container_config("main", envs=[("A", b"1")], resources=RESOURCES, annotations={"c": "d"})
    config.mounts.add(container_path="/data", host_path=str(containerd.directory(f"data/{uid}")), readonly=True)
    config.linux.security_context.masked_paths.extend(MASKED_PATHS)
    config.linux.security_context.readonly_paths.extend(READONLY_PATHS)
    with cri.CriClient(containerd.socket) as client:
        pod_id = client.run_pod(pod)
        container_id = client.create(pod_id, config, pod)
        client.start(container_id)
        real: list[Any] = [client.pod_status(pod_id), client.status(container_id)]
        client.stop_pod(pod_id)
        client.remove_pod(pod_id)
    for theirs, ours in zip(real, told(pod, config), strict=True):
        expected, found = (set(keys(json.loads(status.info["info"]))) for status in (theirs, ours))
        assert found == expected
        expected, found = ({field.name for field, _ in status.status.ListFields()} for status in (theirs, ours))
        assert found == expected
        assert len(ours.info["info"]) == pytest.approx(len(theirs.info["info"]), rel=0.2)


def told(pod: cri_pb2.PodSandboxConfig, config: cri_pb2.ContainerConfig) -> list[Any]:
    """Return what the fake runtime tells of such a pod and its running container."""
    state = RuntimeState()

    def call(method: str, request: Any, reply: Any) -> Any:
        return reply.FromString(state.answer("v1", method, request.SerializeToString()))

    run = cri_pb2.RunPodSandboxRequest(config=pod)
    pod_id = call("RunPodSandbox", run, cri_pb2.RunPodSandboxResponse).pod_sandbox_id
    create = cri_pb2.CreateContainerRequest(pod_sandbox_id=pod_id, config=config, sandbox_config=pod)
    container_id = call("CreateContainer", create, cri_pb2.CreateContainerResponse).container_id
    start = cri_pb2.StartContainerRequest(container_id=container_id)
    call("StartContainer", start, cri_pb2.StartContainerResponse)
    of_pod = cri_pb2.PodSandboxStatusRequest(pod_sandbox_id=pod_id, verbose=True)
    of_container = cri_pb2.ContainerStatusRequest(container_id=container_id, verbose=True)
    return [
        call("PodSandboxStatus", of_pod, cri_pb2.PodSandboxStatusResponse),
        call("ContainerStatus", of_container, cri_pb2.ContainerStatusResponse),
    ]


def keys(document: Any, above: str = "") -> Iterator[str]:
    """Name every place of a document; the elements of an array have one place."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield f"{above}.{key}"
            yield from keys(value, f"{above}.{key}")
    elif isinstance(document, list):
        for value in document:
            yield from keys(value, f"{above}[]")
