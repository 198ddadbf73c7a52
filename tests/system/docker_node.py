"""A kubelet of a node with a real dockerd: a test asks it as it asks the client of CRI."""

import json
from types import SimpleNamespace
from typing import Any, Self

from tests.engines import docker_cli
from tests.engines.docker_cli import Mask, Outcome
from tests.fakes.cri_pb2 import ContainerConfig, LinuxContainerResources, PodSandboxConfig
from tests.fakes.dockershim import CRI_DOCKERD, Dockershim, Generation
from tests.fakes.dockershim_bodies import Pod, Values
from tests.system.node import LAST_LINE, names_and_values

OF_THIS_RUN = (*docker_cli.DRAWN, Mask("<pid>", r'"Pid": \d+', "processes are numbered as they come"))
"""What differs between two containers that were asked for alike."""


class Kubelet:
    """A client on a socket that makes pods of CRI's messages through dockershim."""

    def __init__(self, socket: str, generation: Generation = CRI_DOCKERD) -> None:
        self.socket = socket
        self.shim = shim = Dockershim(socket, generation)
        self.version = shim.version
        self.stop_pod, self.remove_pod = shim.stop_pod_sandbox, shim.remove_pod_sandbox
        self.start, self.remove = shim.start_container, shim.remove_container

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.shim.close()

    def docker(self, *arguments: str, exit_code: int = 0) -> Outcome:
        """Run a docker command on this socket, which must end so."""
        outcome = docker_cli.run(self.socket, *arguments)
        assert outcome.exit_code == exit_code, outcome
        return outcome

    def run_pod(self, config: PodSandboxConfig) -> str:
        pod = _pod(config)
        return self.shim.run_pod_sandbox(
            pod.name,
            pod.uid,
            namespace=pod.namespace,
            attempt=pod.attempt,
            labels=pod.labels,
            annotations=pod.annotations,
            cgroup_parent=pod.cgroup_parent,
            oom_score_adj=0,  # a machine may lack CAP_SYS_RESOURCE
        )

    def pods(self) -> list[Any]:
        return [SimpleNamespace(id=pod["Id"]) for pod in self.shim.list_pod_sandboxes()]

    def create(self, pod_id: str, config: ContainerConfig, pod: PodSandboxConfig) -> str:
        self.shim.pods[pod_id] = _pod(pod)
        return self.shim.create_container(
            pod_id,
            config.metadata.name,
            attempt=config.metadata.attempt,
            command=config.command,
            envs=[(entry.key, entry.value.decode()) for entry in config.envs],
            labels=config.labels,
            annotations=config.annotations,
            resources=_values(config.linux.resources),
        )

    def update(self, container_id: str, resources: LinuxContainerResources) -> None:
        self.shim.update_container_resources(container_id, _values(resources))

    def stop(self, container_id: str, grace_seconds: int = 0) -> None:
        self.shim.stop_container(container_id, grace_seconds)

    def exec_sync(self, container_id: str, *command: str) -> Any:
        """Run a command in a container; return its output and exit code."""
        exit_code, stdout, stderr = self.shim.exec_sync(container_id, command)
        return SimpleNamespace(stdout=stdout, stderr=stderr, exit_code=exit_code)

    def host(self, container_id: str) -> dict[str, Any]:
        """Return what dockerd was asked for beside the image's own: its HostConfig."""
        return dict(self.shim.inspect(container_id)["HostConfig"])

    def labels(self, container_id: str) -> dict[str, str]:
        return dict(self.shim.inspect(container_id)["Config"]["Labels"])

    def told_by_first_act(self, container_id: str) -> dict[str, str]:
        """Follow the container's log to the end of its first act; return its lines as names and values."""
        output = b""
        for _, data in self.shim.logs(container_id, follow=True):
            output += data
            if f"{LAST_LINE}\n".encode() in output:
                break
        return names_and_values(output.decode().splitlines())

    def inspected(self, *ids: str) -> list[str]:
        """Return what dockerd tells of containers, but for what differs between two that were asked for alike."""
        text = json.dumps([self.shim.inspect(one) for one in ids], indent=1)
        for number, one in enumerate(ids):
            text = text.replace(one, f"<container {number}>")
        return docker_cli.masked(text.encode(), OF_THIS_RUN).splitlines()


def _pod(config: PodSandboxConfig) -> Pod:
    metadata = config.metadata
    return Pod(
        metadata.name,
        metadata.uid,
        metadata.namespace,
        metadata.attempt,
        dict(config.labels),
        dict(config.annotations),
        config.linux.cgroup_parent,
    )


def _values(resources: LinuxContainerResources) -> Values:
    """Return what dockershim passes on; it sets the swap limit by itself."""
    named = {field.name: value for field, value in resources.ListFields()}
    named.pop("memory_swap_limit_in_bytes", None)
    return named


# ---- what is left of a kubelet's pod and container on their way through dockershim, and what comes in on it


def annotations(container: ContainerConfig) -> dict[str, str]:
    """Return the annotations that a kubelet gives each container of dockershim's."""
    return {
        "io.kubernetes.container.hash": "d464c1e4",
        "io.kubernetes.container.restartCount": str(container.metadata.attempt),
        "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
        "io.kubernetes.container.terminationMessagePolicy": "File",
        "io.kubernetes.pod.terminationGracePeriod": "30",
    }


def passed_on(pod: PodSandboxConfig) -> PodSandboxConfig:
    """Return what dockershim passes on of a pod: its labels name it, its overhead and resources stay behind."""
    left = PodSandboxConfig.FromString(pod.SerializeToString())
    for name in ("name", "namespace", "uid"):
        left.labels[f"io.kubernetes.pod.{name}"] = getattr(pod.metadata, name)
    left.linux.ClearField("overhead")
    left.linux.ClearField("resources")
    return left


def without_swap(container: ContainerConfig) -> ContainerConfig:
    """Return a container with the swap limit that goes with its memory limit: none of it is swap."""
    left = ContainerConfig.FromString(container.SerializeToString())
    left.linux.resources.memory_swap_limit_in_bytes = container.linux.resources.memory_limit_in_bytes
    return left
