"""The kubelet's calls in Docker mode: the scene's pod and containers as dockershim makes them.

Owns which of the shim's calls is which of the scene's.
Must not know: what is expected of them, whether dockerd is real.
Invariant: every call goes to the socket that it was given.
"""

import http.client
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from scripts.demonstration import scene
from tests.fakes.dockershim import DockerError, Dockershim

ERRORS = (DockerError, OSError, http.client.HTTPException)
"""What a call that fails raises."""


class DockerKubelet:
    """Makes the scene's calls by a dockershim; ``cgroup_parent`` is the pod's, ``oom_score_adj`` its sandbox's."""

    def __init__(self, shim: Dockershim, cgroup_parent: str, oom_score_adj: int) -> None:
        self._shim = shim
        self._cgroup_parent = cgroup_parent
        self._oom_score_adj = oom_score_adj
        self.start = shim.start_container
        self.update = shim.update_container_resources
        self.remove = shim.remove_container
        self.stop_pod = shim.stop_pod_sandbox
        self.remove_pod = shim.remove_pod_sandbox

    def run_pod(self) -> str:
        """Run the pod's sandbox; return its id."""
        return self._shim.run_pod_sandbox(
            scene.POD,
            str(uuid.uuid4()),
            labels=scene.LABELS,
            annotations=scene.ANNOTATIONS,
            cgroup_parent=self._cgroup_parent,
            oom_score_adj=self._oom_score_adj,
        )

    def create(self, pod_id: str, part: scene.Part) -> str:
        """Create a container; return its id."""
        return self._shim.create_container(pod_id, part.name, envs=list(part.envs.items()), resources=part.asked)

    def run(self, container_id: str, *command: str) -> tuple[int, bytes]:
        """Run a command in a container; return its exit code and its output."""
        exit_code, output, _ = self._shim.exec_sync(container_id, command)
        return exit_code, output

    def stop(self, container_id: str) -> None:
        """Stop a container."""
        self._shim.stop_container(container_id)


@contextmanager
def kubelet(socket: str, cgroup_parent: str, pause_image: str, oom_score_adj: int) -> Iterator[DockerKubelet]:
    """Connect to a socket until the end of the block."""
    with Dockershim(socket, pause_image=pause_image) as shim:
        yield DockerKubelet(shim, cgroup_parent, oom_score_adj)
