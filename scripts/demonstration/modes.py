"""The demo's modes: a private engine or a fake runtime of the tests, and the calls of a kubelet of that mode.

Both kubelets have the same methods. Resources have CRI's names. Docker's API does not report the RDT class of a create.
"""

import http.client
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import grpc

from scripts.demonstration.pods import COMMAND, CONTAINER, Pod, Values
from scripts.demonstration.processes import interruption, program
from tests.engines import cri
from tests.engines.containerd import Containerd
from tests.engines.dockerd import Dockerd
from tests.engines.engine import Engine, EngineError
from tests.engines.probe import missing_for
from tests.fakes.cri_pb2 import LinuxContainerResources, PodSandboxConfig
from tests.fakes.dockershim import DockerError, Dockershim

ERRORS = (grpc.RpcError, DockerError, OSError, http.client.HTTPException)
"""What a call that fails raises."""
RDT_CLASS = "io.kubernetes.cri.rdt-class"


def reason(error: BaseException) -> str:
    """Return why a call failed, without gRPC's dump of the call."""
    return str(error.details()) if isinstance(error, grpc.Call) else str(error)


class CriKubelet(cri.CriClient):
    """Makes the scene's calls by CRI; ``engine`` is None if the runtime is a fake."""

    def __init__(self, socket: str, engine: Engine | None) -> None:
        super().__init__(socket)
        self._engine = engine

    def new_pod(self, pod: Pod) -> str:
        return self.run_pod(self._config(pod))

    def new_container(self, pod_id: str, pod: Pod) -> str:
        envs = [(name, value.encode()) for name, value in pod.envs.items()]
        resources = LinuxContainerResources(**pod.requested) if pod.requested else None
        container = cri.container_config(CONTAINER, command=COMMAND, envs=envs, resources=resources)
        return self.create(pod_id, container, self._config(pod))

    def run(self, container_id: str, *command: str) -> tuple[int, bytes]:
        done = self.exec_sync(container_id, *command)
        return done.exit_code, done.stdout

    def rdt_class(self, container_id: str) -> str | None:
        return str(self.status(container_id).status.annotations.get(RDT_CLASS, ""))

    def limit(self, container_id: str, resources: Values) -> None:
        self.update(container_id, LinuxContainerResources(**resources))

    def _config(self, pod: Pod) -> PodSandboxConfig:
        return cri.pod_config(
            pod.name,
            pod.uid,
            cgroup_parent=_cgroup_parent(self._engine, pod),
            log_directory=str(self._engine.directory("logs")) if self._engine else "/var/log/pods",
            labels=pod.labels,
            annotations=pod.annotations,
        )


class DockerKubelet(Dockershim):
    """Makes the scene's calls as dockershim; ``engine`` is None if the runtime is a fake."""

    start, stop, remove = Dockershim.start_container, Dockershim.stop_container, Dockershim.remove_container
    stop_pod, remove_pod = Dockershim.stop_pod_sandbox, Dockershim.remove_pod_sandbox
    limit = Dockershim.update_container_resources

    def __init__(self, socket: str, engine: Engine | None) -> None:
        super().__init__(socket)
        self._engine = engine

    def new_pod(self, pod: Pod) -> str:
        # A machine may refuse the -998 that dockershim requests.
        parent, more = _cgroup_parent(self._engine, pod), {"labels": pod.labels, "annotations": pod.annotations}
        return self.run_pod_sandbox(pod.name, pod.uid, cgroup_parent=parent, oom_score_adj=0, **more)

    def new_container(self, pod_id: str, pod: Pod) -> str:
        envs = list(pod.envs.items())
        return self.create_container(pod_id, CONTAINER, command=COMMAND, envs=envs, resources=pod.requested)

    def run(self, container_id: str, *command: str) -> tuple[int, bytes]:
        exit_code, output, _ = self.exec_sync(container_id, command)
        return exit_code, output

    def rdt_class(self, container_id: str) -> str | None:
        return None


Kubelet = CriKubelet | DockerKubelet


def _cgroup_parent(engine: Engine | None, pod: Pod) -> str:
    return engine.cgroup_parent(pod.uid, pod.kube_qos) if engine else f"/kubepods/{pod.kube_qos}/pod{pod.uid}"


def cgroup(engine: Engine | None, pod: Pod, container_id: str) -> str:
    """Return a container's cgroup; "" if no container really runs."""
    return f"{_cgroup_parent(engine, pod)}/{container_id}" if engine else ""


class Mode(NamedTuple):
    """A mode: ``flags`` are the proxy's as documented, ``changed`` the fields that ``explain`` must name."""

    title: str
    rdt: str
    flags: Sequence[str]
    changed: str
    name: str
    engine: Callable[[], Engine]
    fake: str
    kubelet: Callable[[str, Engine | None], Kubelet]

    @contextmanager
    def runtime(self, folder: Path, why_fake: str) -> Iterator[tuple[str, Engine | None]]:
        """Run the engine, or a fake runtime if there is a reason why; yield its socket, and the engine. Raises
        EngineError."""
        if why_fake:
            socket = folder / "fake.sock"
            print(f"Runtime: a FAKE one of the tests, {self.fake}; no container really runs ({why_fake})")
            with program("fake", [sys.executable, "-m", self.fake, f"--socket={socket}"], folder) as running:
                running.wait_until_it_listens(socket)
                yield str(socket), None
            return
        if missing := missing_for(self.name):
            raise EngineError(missing)
        engine = self.engine()
        try:
            engine.start()
            print(f"Runtime: a private {self.name} on {engine.socket}")
            yield engine.socket, engine
        finally:
            with interruption.held():
                engine.stop()


MODES: Mapping[str, Mode] = {
    "cri": Mode(
        "CRI mode",
        "this containerd has RDT off: it gets the class; the threads are moved right after the start",
        ("--remote-runtime-service-endpoint={runtime}", "--remote-image-service-endpoint={runtime}"),
        "cpu_quota, cpu_shares, memory_limit_in_bytes",
        *("containerd", Containerd, "tests.fakes.runtime", CriKubelet),
    ),
    "docker": Mode(
        "Docker mode",
        "Docker has no field for the class; the threads are moved right after the start",
        ("--backend-runtime-mode=Docker", "--remote-runtime-service-endpoint={runtime}"),
        # The swap limit follows the memory limit.
        "cpu_quota, cpu_shares, memory_limit_in_bytes, memory_swap_limit_in_bytes",
        *("dockerd", Dockerd, "tests.fakes.dockerd", DockerKubelet),
    ),
}
"""The modes by the value of --mode, in the order in which they are shown."""
