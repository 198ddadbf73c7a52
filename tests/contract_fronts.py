"""A kubelet on each front that makes one pod's life, for the contract of all fronts.

Owns the pod and the container, the calls of their life through CRI and through dockershim, and the list of fronts.
Must not know: what is compared.
Invariant: on each front the kubelet says all that its protocol can say of the same pod.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tests.engines import cri
from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes import cri_pb2, dockershim_bodies
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.dockershim import CRI_DOCKERD, DOCKERSHIM, Dockershim, Generation
from tests.fakes.runtime import FakeRuntime

PARENT = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod6f1c.slice"
MIB = 1 << 20
POD = dockershim_bodies.Pod(
    "web-0",
    "6f1c",
    namespace="shop",
    attempt=1,
    labels={"app": "web"},
    annotations={"kubernetes.io/config.source": "api"},
    cgroup_parent=PARENT,
)
CONTAINER = dockershim_bodies.Container(
    "main",
    BUSYBOX_IMAGE,
    attempt=2,
    command=("sleep", "3600"),
    envs=(("A", "1"), ("B", ""), ("C", "x=y")),
    annotations={"note": "kept"},
    resources={
        "cpu_period": 100_000,
        "cpu_quota": 50_000,
        "cpu_shares": 512,
        "memory_limit_in_bytes": 256 * MIB,
        "oom_score_adj": 968,
        "cpuset_cpus": "0-3",
    },
)
UPDATE: dict[str, Any] = {"cpu_shares": 400, "memory_limit_in_bytes": 128 * MIB}
KUBELETS_LABELS = {
    "io.kubernetes.pod.name": POD.name,
    "io.kubernetes.pod.namespace": POD.namespace,
    "io.kubernetes.pod.uid": POD.uid,
}
KUBELETS_ANNOTATIONS = {
    "io.kubernetes.container.hash": "d464c1e4",
    "io.kubernetes.container.restartCount": "2",
    "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
    "io.kubernetes.container.terminationMessagePolicy": "File",
    "io.kubernetes.pod.terminationGracePeriod": "30",
}
"""What a kubelet adds to every container; the fake dockershim adds it, too."""


class Kubelet(Protocol):
    """A kubelet's calls, which wait for their answers."""

    def run_pod(self) -> str: ...
    def create(self, pod_id: str) -> str: ...
    def start(self, container_id: str) -> None: ...
    def update(self, container_id: str) -> None: ...
    def stop(self, container_id: str) -> None: ...
    def stop_pod(self, pod_id: str) -> None: ...
    def remove(self, container_id: str) -> None: ...
    def remove_pod(self, pod_id: str) -> None: ...
    def close(self) -> None: ...


class CriKubelet(cri.CriClient):
    """A kubelet that speaks CRI: it tells all that it knows."""

    pod = cri.pod_config(
        POD.name,
        POD.uid,
        cgroup_parent=POD.cgroup_parent,
        labels={**POD.labels, **KUBELETS_LABELS},
        annotations=POD.annotations,
    )
    pod.metadata.namespace, pod.metadata.attempt = POD.namespace, POD.attempt
    pod.linux.overhead.cpu_shares = 5
    pod.linux.resources.memory_limit_in_bytes = 512 * MIB
    resources = cri_pb2.LinuxContainerResources(
        hugepage_limits=[cri_pb2.HugepageLimit(page_size="2MB", limit=4 * MIB)],
        unified={"memory.high": "1000"},
        **dict[str, Any](CONTAINER.resources),
    )
    container = cri.container_config(
        CONTAINER.name,
        envs=[(key, value.encode()) for key, value in CONTAINER.envs],
        resources=resources,
        labels=KUBELETS_LABELS,
        annotations={**CONTAINER.annotations, **KUBELETS_ANNOTATIONS},
    )
    container.metadata.attempt = CONTAINER.attempt

    def run_pod(self) -> str:  # type: ignore[override]
        request = cri_pb2.RunPodSandboxRequest(config=self.pod, runtime_handler="runc")
        return str(self.call("RunPodSandbox", request).pod_sandbox_id)

    def create(self, pod_id: str) -> str:  # type: ignore[override]
        return super().create(pod_id, self.container, self.pod)

    def update(self, container_id: str) -> None:  # type: ignore[override]
        super().update(container_id, cri_pb2.LinuxContainerResources(**UPDATE))


class DockerKubelet:
    """A kubelet behind a shim."""

    def __init__(self, socket: str, generation: Generation) -> None:
        shim = self._shim = Dockershim(socket, generation)
        self.start, self.stop, self.remove = shim.start_container, shim.stop_container, shim.remove_container
        self.stop_pod, self.remove_pod, self.close = shim.stop_pod_sandbox, shim.remove_pod_sandbox, shim.close

    def run_pod(self) -> str:
        return self._shim.run_pod_sandbox(**_arguments(POD))

    def create(self, pod_id: str) -> str:
        return self._shim.create_container(pod_id, **_arguments(CONTAINER))

    def update(self, container_id: str) -> None:
        self._shim.update_container_resources(container_id, UPDATE)


def _arguments(value: dockershim_bodies.Pod | dockershim_bodies.Container) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


@dataclass(frozen=True)
class Front:
    """A front, with the fake runtime behind it and the kubelet before it."""

    name: str
    mode: str
    runtime: Callable[[str], Any]
    kubelet: Callable[[str], Kubelet]

    def __str__(self) -> str:
        return self.name


def _cri(version: str) -> Front:
    return Front(f"CRI {version}", "Containerd", FakeRuntime, lambda socket: CriKubelet(socket, version))


def _docker(shim: str, generation: Generation, driver: str) -> Front:
    return Front(
        f"Docker, {shim}, {driver}",
        "Docker",
        lambda socket: FakeDockerd(socket, cgroup_driver=driver),
        lambda socket: DockerKubelet(socket, generation),
    )


FRONTS = [
    *(_cri(version) for version in cri.VERSIONS),
    *(_docker("cri-dockerd", CRI_DOCKERD, driver) for driver in ("cgroupfs", "systemd")),
    _docker("dockershim", DOCKERSHIM, "cgroupfs"),
]
