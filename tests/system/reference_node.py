"""A node with a real engine, a proxy and hook servers as programs, and what is asked alike of both engines' pods."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from tests.engines import cgroups, cri
from tests.engines.containerd import Containerd
from tests.engines.dockerd import Dockerd
from tests.fakes.cri_pb2 import ContainerConfig, PodSandboxConfig
from tests.system import node
from tests.system.docker_node import Kubelet
from tests.system.node import Values, assert_in_force, cri_resources
from tests.system.proxy import Folder, ProxyProcess
from tests.system.reference import HookProgram, served

Engine = Containerd | Dockerd
Client = cri.CriClient | Kubelet

ENGINES = ("containerd", "dockerd")
"""Fixtures of the whole session."""
UNLIMITED = -1
OWN_STATUS = 'while read name value; do echo "${name%:}=$value"; done < /proc/self/status'
"""No program is run for it: what the shell tells is true of the container's first instruction."""


@dataclass(frozen=True, slots=True)
class ReferenceNode:
    """A node; ``programs`` are its hook servers by name."""

    engine: Engine
    proxy: ProxyProcess
    programs: Mapping[str, HookProgram]

    def client(self) -> Client:
        socket = str(self.proxy.socket)
        return Kubelet(socket) if isinstance(self.engine, Dockerd) else cri.CriClient(socket)

    def pod(self, annotations: Mapping[str, str], qos: str = "", cgroup: str = "burstable") -> PodSandboxConfig:
        """Return a new pod of a QoS class of Koordinator's; ``cgroup`` is the class of Kubernetes."""
        pod = node.plain_pod(self.engine)
        pod.annotations.update(annotations)
        pod.labels.update({"koordinator.sh/qosClass": qos} if qos else {})
        pod.linux.cgroup_parent = self.engine.cgroup_parent(pod.metadata.uid, cgroup)
        return pod


@dataclass(frozen=True, slots=True)
class Running:
    """A pod with a container that was started, and its client."""

    client: Client
    pod: PodSandboxConfig
    pod_id: str
    container_id: str

    @property
    def cgroup(self) -> str:
        return f"{self.pod.linux.cgroup_parent}/{self.container_id}"

    def told(self) -> dict[str, str]:
        """Wait for the whole of the container's first act; return what it told."""
        if isinstance(self.client, Kubelet):
            return self.client.told_by_first_act(self.container_id)
        return node.told_by_first_act(self.pod)

    def update(self, **values: int | str) -> None:
        self.client.update(self.container_id, cri_resources(values))

    def assert_in_force(self, values: Values) -> None:
        """Compare what the container and the host see."""
        assert_in_force(self.client, self.container_id, self.pod.linux.cgroup_parent, values)


@contextmanager
def before(
    engine: Engine, folder: Path, hooks: Callable[[Folder], Sequence[HookProgram]], runtime: str = ""
) -> Iterator[ReferenceNode]:
    """Run the hook servers that ``hooks`` makes, then a proxy; ``runtime`` is a socket for the engine's own."""
    endpoint = runtime or engine.socket
    docker = isinstance(engine, Dockerd)
    flags = {"backend_runtime_mode": "Docker"} if docker else {"remote_image_service_endpoint": endpoint}
    proxy = ProxyProcess(folder, remote_runtime_service_endpoint=endpoint, **flags)
    programs = hooks(proxy)
    restored = engine.restored() if isinstance(engine, Dockerd) else nullcontext()
    with restored, served(*programs), proxy:
        yield ReferenceNode(engine, proxy, {program.name: program for program in programs})


@contextmanager
def running(
    made_on: ReferenceNode, pod: PodSandboxConfig, container: ContainerConfig, pod_quota: int = UNLIMITED
) -> Iterator[Running]:
    """Run a pod with a container as a kubelet does; both are removed in the end."""
    kubelet_makes(pod.linux.cgroup_parent, pod_quota)
    with made_on.client() as client:
        pod_id = client.run_pod(pod)
        container_id = client.create(pod_id, container, pod)
        client.start(container_id)
        yield Running(client, pod, pod_id, container_id)
        node.end(client, pod_id, container_id)


def container(script: str = "", envs: Sequence[tuple[str, bytes]] = (), **resources: int | str) -> ContainerConfig:
    """Return a container that tells its status, its cgroup files and its environment, if it does not run ``script``."""
    shell, flag, rest = node.first_act()
    script = script or f"{OWN_STATUS}; echo oom_score_adj=$(cat /proc/self/oom_score_adj); {rest}"
    return cri.container_config("main", command=(shell, flag, script), envs=envs, resources=cri_resources(resources))


def kubelet_makes(path: str, quota: int = UNLIMITED, root: Path = cgroups.ROOT) -> None:
    """Make a pod's cgroup as a kubelet does; it is removed with the engine."""
    if cgroups.is_v2(root):
        directory = root
        for name in path.strip("/").split("/"):
            (directory / "cgroup.subtree_control").write_text("+cpu +memory +cpuset")
            directory /= name
            directory.mkdir(exist_ok=True)
        (directory / "cpu.max").write_text("max" if quota == UNLIMITED else str(quota))
        return
    cpu, memory = (root / controller / path.lstrip("/") for controller in ("cpu", "memory"))
    cpu.mkdir(parents=True)
    memory.mkdir(parents=True)
    (cpu / "cpu.cfs_quota_us").write_text(str(quota))
