"""The demo's modes: a private engine or a fake runtime of the tests, and the calls of a kubelet of that mode.

Both kubelets make the same calls: run_pod, create, start, run (a command in a container), rdt_class, update, stop,
remove, stop_pod, remove_pod. Resources have CRI's names. Docker's API does not report the RDT class of a create.
"""

import http.client
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import grpc

from scripts.demonstration import processes
from scripts.demonstration.pods import COMMAND, CONTAINER, Pod, Values
from scripts.demonstration.processes import interruption
from tests.engines import cri
from tests.engines.containerd import Containerd
from tests.engines.dockerd import PAUSE, Dockerd
from tests.engines.images import PAUSE_IMAGE
from tests.fakes.cri_pb2 import LinuxContainerResources, PodSandboxConfig
from tests.fakes.dockershim import DockerError, Dockershim
from tests.fakes.dockershim_bodies import SANDBOX_OOM_SCORE_ADJ

ERRORS = (grpc.RpcError, DockerError, OSError, http.client.HTTPException)
"""What a call that fails raises."""
RDT_CLASS = "io.kubernetes.cri.rdt-class"
DEMO_PAUSE = "runtimeproxy-demo-pause:1"


def reason(error: BaseException) -> str:
    """Return why a call failed, without gRPC's dump of the call."""
    return str(error.details()) if isinstance(error, grpc.Call) else str(error)


class Place(NamedTuple):
    """Where a kubelet's pods are on the node: ``parent`` takes a pod's uid and its Kubernetes QoS class."""

    parent: Callable[[str, str], str] = lambda uid, qos: f"/kubepods/{qos}/pod{uid}"
    is_real: bool = False
    """Whether containers really run."""

    def cgroup_parent(self, pod: Pod) -> str:
        return self.parent(pod.uid, pod.kube_qos)

    def cgroup(self, pod: Pod, container_id: str) -> str:
        """Return a container's cgroup; "" if no container really runs."""
        return f"{self.cgroup_parent(pod)}/{container_id}" if self.is_real else ""


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
        return str(self._client.status(container_id).status.annotations.get(RDT_CLASS, ""))

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


def _resources(values: Values) -> LinuxContainerResources:
    return LinuxContainerResources(**values)


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
Connect = Callable[[str], AbstractContextManager[Kubelet]]
"""Connects a kubelet to a socket."""
Runtime = tuple[str, Connect]
"""The socket of the runtime, and what connects the scene's kubelet to the proxy."""


@contextmanager
def _cri_kubelet(place: Place, log_directory: str, socket: str) -> Iterator[Kubelet]:
    with cri.CriClient(socket) as client:
        yield CriKubelet(client, place, log_directory)


@contextmanager
def _docker_kubelet(place: Place, pause_image: str, oom_score_adj: int, socket: str) -> Iterator[Kubelet]:
    with Dockershim(socket, pause_image=pause_image) as shim:
        yield DockerKubelet(shim, place, oom_score_adj)


@contextmanager
def _containerd() -> Iterator[Runtime]:
    engine = Containerd()
    with _started(engine, "containerd"):
        logs = str(engine.directory("logs"))
        yield engine.socket, partial(_cri_kubelet, Place(engine.cgroup_parent, is_real=True), logs)


@contextmanager
def _dockerd() -> Iterator[Runtime]:
    engine = Dockerd()
    with _started(engine, "dockerd"):
        place, score = Place(engine.cgroup_parent, is_real=True), _sandbox_oom_score_adj()
        # The tests' image runs sleep, which as the first process of its container ignores SIGTERM.
        body = json.dumps({"Image": PAUSE, "StopSignal": "SIGKILL"}).encode()
        container_id = json.loads(engine.request("POST", "/containers/create", body))["Id"]
        name, _, tag = DEMO_PAUSE.partition(":")
        engine.request("POST", f"/commit?container={container_id}&repo={name}&tag={tag}")
        engine.request("DELETE", f"/containers/{container_id}")
        yield engine.socket, partial(_docker_kubelet, place, DEMO_PAUSE, score)


@contextmanager
def _started(engine: Containerd | Dockerd, name: str) -> Iterator[None]:
    try:
        engine.start()
        print(f"Runtime: a private {name} on {engine.socket}")
        yield
    finally:
        with interruption.held():
            engine.stop()


def _sandbox_oom_score_adj() -> int:
    """Return the sandbox's OomScoreAdj: dockershim's value, or 0 if the machine refuses it, which is printed."""
    attempt = ["sh", "-c", f"echo {SANDBOX_OOM_SCORE_ADJ} >/proc/self/oom_score_adj"]
    if not subprocess.run(attempt, check=False, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        return SANDBOX_OOM_SCORE_ADJ
    print(f"Note:    the sandbox has OomScoreAdj 0, dockershim's is {SANDBOX_OOM_SCORE_ADJ}; this machine refuses it")
    return 0


@contextmanager
def fake(mode: "Mode", folder: Path, why: str) -> Iterator[Runtime]:
    """Run a mode's fake runtime in a folder, and print why."""
    socket = folder / "fake.sock"
    print(f"Runtime: a FAKE one of the tests, {mode.fake_module}; no container really runs ({why})")
    command = [sys.executable, "-m", mode.fake_module, f"--socket={socket}"]
    with processes.program("fake", command, folder) as running:
        running.wait_until_it_listens(socket)
        yield str(socket), mode.fake_kubelet


class Mode(NamedTuple):
    """A mode; ``started`` runs its engine and raises EngineError."""

    title: str
    rdt: str
    engine: str
    started: Callable[[], AbstractContextManager[Runtime]]
    fake_module: str
    fake_kubelet: Connect


MODES: Mapping[str, Mode] = {
    "cri": Mode(
        "CRI mode",
        "this containerd has RDT off: it gets the class; the threads are moved right after the start",
        "containerd",
        _containerd,
        "tests.fakes.runtime",
        partial(_cri_kubelet, Place(), "/var/log/pods"),
    ),
    "docker": Mode(
        "Docker mode",
        "Docker has no field for the class; the threads are moved right after the start",
        "dockerd",
        _dockerd,
        "tests.fakes.dockerd",
        partial(_docker_kubelet, Place(), PAUSE_IMAGE, SANDBOX_OOM_SCORE_ADJ),
    ),
}
"""The modes by the value of --mode, in the order in which they are shown."""
