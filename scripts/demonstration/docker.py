"""The kubelet's calls in Docker mode: the scene's pods and containers as dockershim makes them.

Owns which of the shim's calls is which of the scene's.
Must not know: what is expected of them, whether dockerd is real.
Invariant: every call goes to the socket that it was given.
"""

import http.client
from collections.abc import Iterator
from contextlib import contextmanager

from scripts.demonstration.pods import COMMAND, CONTAINER, Place, Pod
from tests.fakes.dockershim import DockerError, Dockershim

ERRORS = (DockerError, OSError, http.client.HTTPException)
"""What a call that fails raises."""


class DockerKubelet:
    """Makes the scene's calls by a dockershim; ``oom_score_adj`` is the sandboxes'."""

    def __init__(self, shim: Dockershim, place: Place, oom_score_adj: int) -> None:
        self._shim = shim
        self._place = place
        self._oom_score_adj = oom_score_adj
        self.start = shim.start_container
        self.update = shim.update_container_resources
        self.remove = shim.remove_container
        self.stop_pod = shim.stop_pod_sandbox
        self.remove_pod = shim.remove_pod_sandbox
        self.cgroup = place.cgroup

    def run_pod(self, pod: Pod) -> str:
        """Run the pod's sandbox; return its id."""
        return self._shim.run_pod_sandbox(
            pod.name,
            pod.uid,
            labels=pod.labels,
            annotations=pod.annotations,
            cgroup_parent=self._place.cgroup_parent(pod),
            oom_score_adj=self._oom_score_adj,
        )

    def create(self, pod_id: str, pod: Pod) -> str:
        """Create the pod's container; return its id."""
        envs = list(pod.envs.items())
        return self._shim.create_container(pod_id, CONTAINER, command=COMMAND, envs=envs, resources=pod.asked)

    def run(self, container_id: str, *command: str) -> tuple[int, bytes]:
        """Run a command in a container; return its exit code and its output."""
        exit_code, output, _ = self._shim.exec_sync(container_id, command)
        return exit_code, output

    def rdt_class(self, container_id: str) -> None:
        """Return None: no word of Docker's API means a class."""

    def stop(self, container_id: str) -> None:
        """Stop a container."""
        self._shim.stop_container(container_id)


@contextmanager
def kubelet(socket: str, place: Place, pause_image: str, oom_score_adj: int) -> Iterator[DockerKubelet]:
    """Connect to a socket until the end of the block."""
    with Dockershim(socket, pause_image=pause_image) as shim:
        yield DockerKubelet(shim, place, oom_score_adj)
