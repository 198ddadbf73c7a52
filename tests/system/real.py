"""Kubelets of a real engine, with one interface for both fronts.

Pods and containers are given in CRI's terms, as far as a kubelet's values reach the engine.
"""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from tests.engines import cri, docker_cli
from tests.fakes.cri_pb2 import ContainerConfig, LinuxContainerResources, PodSandboxConfig
from tests.fakes.dockershim import CRI_DOCKERD, Dockershim
from tests.fakes.dockershim_bodies import Pod, Values


class CriKubelet(cri.CriClient):
    def written(self, pod: PodSandboxConfig, container_id: str) -> str:
        log = Path(pod.log_directory, "main.log")
        lines = log.read_text().splitlines() if log.exists() else []
        return "\n".join(line.split(" ", 3)[3] for line in lines)

    def _infos(self, pod_id: str, container_id: str) -> list[Any]:
        return [json.loads(one.info["info"]) for one in (self.pod_status(pod_id), self.status(container_id))]

    def pids(self, pod_id: str, container_id: str) -> list[int]:
        return [info["pid"] for info in self._infos(pod_id, container_id)]

    def inspected(self, pod_id: str, container_id: str) -> Any:
        """Return the engine's report, without the values that differ between two equal requests."""
        pod, container = self._infos(pod_id, container_id)
        spec = container["runtimeSpec"]
        return pod["config"], container["config"], spec["linux"]["resources"], spec["process"]["env"]


class Kubelet:
    """A client on a socket that creates pods from CRI's messages by cri-dockerd's calls."""

    def __init__(self, socket: str, version: str = "") -> None:
        self.shim = shim = Dockershim(socket, CRI_DOCKERD)
        self.stop_pod, self.remove_pod = shim.stop_pod_sandbox, shim.remove_pod_sandbox
        self.start, self.remove, self.stop = shim.start_container, shim.remove_container, shim.stop_container

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.shim.close()

    def run_pod(self, config: PodSandboxConfig) -> str:
        # A machine may lack CAP_SYS_RESOURCE.
        return self.shim.run_pod_sandbox(**asdict(_pod(config)), oom_score_adj=0)

    def pods(self) -> list[Any]:
        return [SimpleNamespace(id=pod["Id"]) for pod in self.shim.list_pod_sandboxes()]

    def create(self, pod_id: str, config: ContainerConfig, pod: PodSandboxConfig) -> str:
        self.shim.pods[pod_id] = _pod(pod)
        return self.shim.create_container(
            *(pod_id, config.metadata.name),
            attempt=config.metadata.attempt,
            command=config.command,
            envs=[(entry.key, entry.value.decode()) for entry in config.envs],
            labels=config.labels,
            annotations=config.annotations,
            resources=_values(config.linux.resources),
        )

    def update(self, container_id: str, requested: LinuxContainerResources) -> None:
        self.shim.update_container_resources(container_id, _values(requested))

    def exec_sync(self, container_id: str, *command: str) -> Any:
        exit_code, stdout, stderr = self.shim.exec_sync(container_id, command)
        return SimpleNamespace(stdout=stdout, stderr=stderr, exit_code=exit_code)

    def written(self, pod: PodSandboxConfig, container_id: str) -> str:
        return b"".join(data for _, data in self.shim.logs(container_id)).decode()

    def pids(self, *ids: str) -> list[int]:
        return [self.shim.inspect(subject_id)["State"]["Pid"] for subject_id in ids]

    def inspected(self, *ids: str) -> Any:
        text = json.dumps([self.shim.inspect(container_id) for container_id in ids], indent=1)
        for container_id in ids:
            text = text.replace(container_id, "<container>")
        return docker_cli.masked(text.encode(), {**docker_cli.DRAWN, r'"Pid": \d+': "<pid>"}).splitlines()


def _pod(config: PodSandboxConfig) -> Pod:
    metadata, texts = config.metadata, (dict(config.labels), dict(config.annotations))
    return Pod(metadata.name, metadata.uid, metadata.namespace, metadata.attempt, *texts, config.linux.cgroup_parent)


def _values(given: LinuxContainerResources) -> Values:
    """Return the values that dockershim uses; it sets the swap limit itself."""
    return {field.name: value for field, value in given.ListFields()}
