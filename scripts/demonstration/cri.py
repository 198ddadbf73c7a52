"""The kubelet's calls in CRI mode: the scene's pods and containers as CRI's messages.

Owns the messages.
Must not know: what is expected of them.
Invariant: every call goes to the socket that it was given.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from scripts.demonstration.pods import COMMAND, CONTAINER, Place, Pod, Values
from tests.engines import cri
from tests.fakes.cri_pb2 import LinuxContainerResources as Resources
from tests.fakes.cri_pb2 import PodSandboxConfig

ERRORS = (grpc.RpcError,)
"""What a call that fails raises."""

RDT_CLASS = "io.kubernetes.cri.rdt-class"


class CriKubelet:
    """Makes the scene's calls by a CRI client."""

    def __init__(self, client: cri.CriClient, place: Place, log_directory: str) -> None:
        self._client = client
        self._place = place
        self._log_directory = log_directory
        self.start = client.start
        self.stop = client.stop
        self.remove = client.remove
        self.stop_pod = client.stop_pod
        self.remove_pod = client.remove_pod
        self.cgroup = place.cgroup

    def run_pod(self, pod: Pod) -> str:
        """Run the pod's sandbox; return its id."""
        return self._client.run_pod(self._config(pod))

    def create(self, pod_id: str, pod: Pod) -> str:
        """Create the pod's container; return its id."""
        envs = [(name, value.encode()) for name, value in pod.envs.items()]
        resources = _resources(pod.asked) if pod.asked else None
        container = cri.container_config(CONTAINER, command=COMMAND, envs=envs, resources=resources)
        return self._client.create(pod_id, container, self._config(pod))

    def run(self, container_id: str, *command: str) -> tuple[int, bytes]:
        """Run a command in a container; return its exit code and its output."""
        done = self._client.exec_sync(container_id, *command)
        return done.exit_code, done.stdout

    def rdt_class(self, container_id: str) -> str | None:
        """Return the class of the annotation that the runtime's status of the container has, "" if it has none."""
        return self._client.status(container_id).status.annotations.get(RDT_CLASS, "")

    def update(self, container_id: str, resources: Values) -> None:
        """Change resources."""
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
    return Resources(**values)


@contextmanager
def kubelet(socket: str, place: Place, log_directory: str) -> Iterator[CriKubelet]:
    """Connect to a socket until the end of the block."""
    with cri.CriClient(socket) as client:
        yield CriKubelet(client, place, log_directory)
