"""The kubelet's calls in CRI mode: the scene's pod and containers as CRI's messages.

Owns the messages.
Must not know: what is expected of them, whether the runtime is real.
Invariant: every call goes to the socket that it was given.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from scripts.demonstration import scene
from tests.engines import cri
from tests.fakes.cri_pb2 import LinuxContainerResources as Resources

ERRORS = (grpc.RpcError,)
"""What a call that fails raises."""


class CriKubelet:
    """Makes the scene's calls by a CRI client; ``cgroup_parent`` and ``log_directory`` are the pod's."""

    def __init__(self, client: cri.CriClient, cgroup_parent: str, log_directory: str) -> None:
        self._client = client
        self._pod = cri.pod_config(
            scene.POD,
            str(uuid.uuid4()),
            cgroup_parent=cgroup_parent,
            log_directory=log_directory,
            labels=scene.LABELS,
            annotations=scene.ANNOTATIONS,
        )
        self.start = client.start
        self.stop = client.stop
        self.remove = client.remove
        self.stop_pod = client.stop_pod
        self.remove_pod = client.remove_pod

    def run_pod(self) -> str:
        """Run the pod's sandbox; return its id."""
        return self._client.run_pod(self._pod)

    def create(self, pod_id: str, part: scene.Part) -> str:
        """Create a container; return its id."""
        envs = [(name, value.encode()) for name, value in part.envs.items()]
        resources = _resources(part.asked) if part.asked else None
        return self._client.create(pod_id, cri.container_config(part.name, envs=envs, resources=resources), self._pod)

    def run(self, container_id: str, *command: str) -> tuple[int, bytes]:
        """Run a command in a container; return its exit code and its output."""
        done = self._client.exec_sync(container_id, *command)
        return done.exit_code, done.stdout

    def update(self, container_id: str, resources: scene.Values) -> None:
        """Change resources."""
        self._client.update(container_id, _resources(resources))


def _resources(values: scene.Values) -> Resources:
    return Resources(**values)  # type: ignore[arg-type]


@contextmanager
def kubelet(socket: str, cgroup_parent: str, log_directory: str) -> Iterator[CriKubelet]:
    """Connect to a socket until the end of the block."""
    with cri.CriClient(socket) as client:
        yield CriKubelet(client, cgroup_parent, log_directory)
