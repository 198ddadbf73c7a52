"""The kubelet's calls for the scene's pods, in CRI mode and in Docker mode. Resources have CRI's names.

Both make the same calls: run_pod, create, start, run (a command in a container), rdt_class, update, stop, remove,
stop_pod, remove_pod. Docker's API does not report the class that the runtime was given at the create.
"""

import http.client
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from scripts.demonstration.pods import COMMAND, CONTAINER, Place, Pod, Values
from tests.engines import cri
from tests.fakes.cri_pb2 import LinuxContainerResources as Resources
from tests.fakes.cri_pb2 import PodSandboxConfig
from tests.fakes.dockershim import DockerError, Dockershim

ERRORS = (grpc.RpcError, DockerError, OSError, http.client.HTTPException)
"""What a call that fails raises."""


def reason(error: BaseException) -> str:
    """Return why a call failed, without gRPC's dump of the call."""
    return str(error.details()) if isinstance(error, grpc.Call) else str(error)


RDT_CLASS = "io.kubernetes.cri.rdt-class"


class CriKubelet:
    """Makes the scene's calls with a CRI client."""

    def __init__(self, client: cri.CriClient, place: Place, log_directory: str) -> None:
        self._client, self._place, self._log_directory = client, place, log_directory
        self.start, self.stop, self.remove = client.start, client.stop, client.remove
        self.stop_pod, self.remove_pod = client.stop_pod, client.remove_pod
        self.cgroup = place.cgroup

    def run_pod(self, pod: Pod) -> str:
        return self._client.run_pod(self._config(pod))

    def create(self, pod_id: str, pod: Pod) -> str:
        envs = [(name, value.encode()) for name, value in pod.envs.items()]
        resources = _resources(pod.requested) if pod.requested else None
        container = cri.container_config(CONTAINER, command=COMMAND, envs=envs, resources=resources)
        return self._client.create(pod_id, container, self._config(pod))

    def run(self, container_id: str, *command: str) -> tuple[int, bytes]:
        done = self._client.exec_sync(container_id, *command)
        return done.exit_code, done.stdout

    def rdt_class(self, container_id: str) -> str | None:
        return self._client.status(container_id).status.annotations.get(RDT_CLASS, "")

    def update(self, container_id: str, resources: Values) -> None:
        self._client.update(container_id, _resources(resources))

    def _config(self, pod: Pod) -> PodSandboxConfig:
        return cri.pod_config(
            pod.name,
            pod.uid,
            cgroup_parent=self._place.cgroup_parent(pod),
            log_directory=self._log_directory,
            labels=pod.labels,
            annotations=pod.annotations,
        )


def _resources(values: Values) -> Resources:
    return Resources(**values)  # type: ignore[arg-type]


class DockerKubelet:
    """Makes the scene's calls with a dockershim; ``oom_score_adj`` is that of the sandboxes."""

    def __init__(self, shim: Dockershim, place: Place, oom_score_adj: int) -> None:
        self._shim, self._place, self._oom_score_adj = shim, place, oom_score_adj
        self.start, self.stop, self.remove = shim.start_container, shim.stop_container, shim.remove_container
        self.update = shim.update_container_resources
        self.stop_pod, self.remove_pod = shim.stop_pod_sandbox, shim.remove_pod_sandbox
        self.cgroup = place.cgroup

    def run_pod(self, pod: Pod) -> str:
        return self._shim.run_pod_sandbox(
            pod.name,
            pod.uid,
            labels=pod.labels,
            annotations=pod.annotations,
            cgroup_parent=self._place.cgroup_parent(pod),
            oom_score_adj=self._oom_score_adj,
        )

    def create(self, pod_id: str, pod: Pod) -> str:
        envs = list(pod.envs.items())
        return self._shim.create_container(pod_id, CONTAINER, command=COMMAND, envs=envs, resources=pod.requested)

    def run(self, container_id: str, *command: str) -> tuple[int, bytes]:
        exit_code, output, _ = self._shim.exec_sync(container_id, command)
        return exit_code, output

    def rdt_class(self, container_id: str) -> str | None:
        return None


Kubelet = CriKubelet | DockerKubelet


@contextmanager
def cri_kubelet(socket: str, place: Place, log_directory: str) -> Iterator[Kubelet]:
    with cri.CriClient(socket) as client:
        yield CriKubelet(client, place, log_directory)


@contextmanager
def docker_kubelet(socket: str, place: Place, pause_image: str, oom_score_adj: int) -> Iterator[Kubelet]:
    with Dockershim(socket, pause_image=pause_image) as shim:
        yield DockerKubelet(shim, place, oom_score_adj)
