"""What is left of a kubelet's pod and container on their way through dockershim, and what comes in on it.

Without this difference the messages are those of CRI mode (facts on dockershim in tests/fakes).
"""

from tests.engines import cri
from tests.fakes.cri_pb2 import ContainerConfig, PodSandboxConfig
from tests.system import node
from tests.system.node import Engine

KUBELETS_ANNOTATIONS = {
    "io.kubernetes.container.hash": "d464c1e4",
    "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
    "io.kubernetes.container.terminationMessagePolicy": "File",
    "io.kubernetes.pod.terminationGracePeriod": "30",
}
RESTARTS = "io.kubernetes.container.restartCount"


def passed_on(pod: PodSandboxConfig) -> PodSandboxConfig:
    """Return what dockershim passes on of a pod: its labels name it, its overhead and resources stay behind."""
    left = PodSandboxConfig.FromString(pod.SerializeToString())
    left.labels["io.kubernetes.pod.name"] = pod.metadata.name
    left.labels["io.kubernetes.pod.namespace"] = pod.metadata.namespace
    left.labels["io.kubernetes.pod.uid"] = pod.metadata.uid
    left.linux.ClearField("overhead")
    left.linux.ClearField("resources")
    return left


def without_swap(container: ContainerConfig) -> ContainerConfig:
    """Return a container with the swap limit that goes with its memory limit: none of it is swap."""
    left = ContainerConfig.FromString(container.SerializeToString())
    left.linux.resources.memory_swap_limit_in_bytes = container.linux.resources.memory_limit_in_bytes
    return left


def rich_pod(engine: Engine, name: str = "rich") -> PodSandboxConfig:
    """Return a pod with all that dockershim passes on of one."""
    return passed_on(node.rich_pod(engine, name))


def plain_pod(engine: Engine, name: str = "plain") -> PodSandboxConfig:
    """Return a pod with nothing but a name and a cgroup parent."""
    return passed_on(node.plain_pod(engine, name))


def rich_container(name: str = "main", **resources: int | str) -> ContainerConfig:
    """Return a container with all that dockershim passes on of one; ``resources`` are set beside the usual ones."""
    return _annotated(without_swap(node.rich_container(name, **resources)))


def plain_container(name: str = "main") -> ContainerConfig:
    """Return a container with nothing but a name and a command; dockershim always passes resources on."""
    return _annotated(without_swap(cri.container_config(name)))


def _annotated(container: ContainerConfig) -> ContainerConfig:
    container.annotations.update({**KUBELETS_ANNOTATIONS, RESTARTS: str(container.metadata.attempt)})
    return container
