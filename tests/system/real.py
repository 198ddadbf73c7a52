"""A real engine with the proxy in front of it, and one interface for both fronts.

Pods and containers are given in CRI's terms, as far as a kubelet's values reach the engine.
"""

import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import grpc
import pytest

from runtimeproxy.hookapi import api_pb2
from tests.engines import cgroups, cri, docker_cli
from tests.fakes import hookanswers, registration
from tests.fakes.cri_pb2 import ContainerConfig, HugepageLimit, LinuxContainerResources, PodSandboxConfig
from tests.fakes.dockershim import CRI_DOCKERD, DockerError, Dockershim
from tests.fakes.dockershim_bodies import Pod, Values
from tests.fakes.hookserver import HookServer
from tests.system.cri_front import CRI
from tests.system.docker_front import DOCKER
from tests.system.fronts import Front
from tests.system.proxy import ProxyProcess, serving, wait_until

MIB = 1 << 20
CPU = str(min(os.sched_getaffinity(0)))
PLUGIN = "tester"
LAST_LINE = "first=done"


def resources(**values: int | str) -> LinuxContainerResources:
    return LinuxContainerResources(**values)


def resources_answer(**values: int | str) -> hookanswers.Answer:
    """Return an answer with only these resources."""
    set_there = api_pb2.LinuxContainerResources(**values)  # type: ignore[arg-type]
    return hookanswers.reply(api_pb2.ContainerResourceHookResponse(container_resources=set_there))


# ---- a container's own report


def first_act() -> tuple[str, ...]:
    """Return a command that first prints its environment and its cgroup files to its log."""
    files = "; ".join(f"echo {setting}=$(cat {cgroups.inside_file(setting)})" for setting in cgroups.SETTINGS)
    return ("/bin/sh", "-c", f"{files}; env; echo {LAST_LINE}; sleep 3600")


def printed(client: Any, pod: PodSandboxConfig, container_id: str) -> dict[str, str]:
    """Wait for all of the first lines that ``main`` prints; return them as names and values."""
    wait_until(lambda: LAST_LINE in client.written(pod, container_id), "it has printed its first lines")
    return dict(line.partition("=")[::2] for line in client.written(pod, container_id).splitlines())


def assert_in_force(client: Any, container_id: str, parent: str, values: Values) -> None:
    """Compare the container's cgroup files, as seen inside and from the host under this cgroup parent."""
    expected = {setting: cgroups.expected(setting, value) for setting, value in values.items()}
    files = {setting: client.exec_sync(container_id, "cat", cgroups.inside_file(setting)).stdout for setting in values}
    assert {setting: cgroups.parse(setting, file.decode()) for setting, file in files.items()} == expected
    assert {setting: cgroups.read(f"{parent}/{container_id}", setting) for setting in values} == expected


def end(client: Any, pod_id: str, *container_ids: str) -> None:
    """Stop and remove containers, then their pod, as a kubelet does."""
    for container_id in container_ids:
        client.stop(container_id)
        client.remove(container_id)
    client.stop_pod(pod_id)
    client.remove_pod(pod_id)
    assert pod_id not in [pod.id for pod in client.pods()]


# ---- kubelets


class CriKubelet(cri.CriClient):
    """A kubelet of a node with a containerd."""

    def written(self, pod: PodSandboxConfig, container_id: str) -> str:
        log = Path(pod.log_directory, "main.log")
        lines = log.read_text().splitlines() if log.exists() else []
        return "\n".join(line.split(" ", 3)[3] for line in lines)

    def infos(self, pod_id: str, container_id: str) -> tuple[Any, Any]:
        pod, container = self.pod_status(pod_id), self.status(container_id)
        return json.loads(pod.info["info"]), json.loads(container.info["info"])

    def pids(self, pod_id: str, container_id: str) -> list[int]:
        return [info["pid"] for info in self.infos(pod_id, container_id)]

    def inspected(self, pod_id: str, container_id: str) -> Any:
        """Return the engine's report, without the values that differ between two equal requests."""
        pod, container = self.infos(pod_id, container_id)
        spec = container["runtimeSpec"]
        return pod["config"], container["config"], spec["linux"]["resources"], spec["process"]["env"]


class Kubelet:
    """A client on a socket that creates pods from CRI's messages by cri-dockerd's calls."""

    def __init__(self, socket: str, version: str = "") -> None:
        self.shim = shim = Dockershim(socket, CRI_DOCKERD)
        self.stop_pod, self.remove_pod = shim.stop_pod_sandbox, shim.remove_pod_sandbox
        self.start, self.remove, self.stop = shim.start_container, shim.remove_container, shim.stop_container

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.shim.close()

    def run_pod(self, config: PodSandboxConfig) -> str:
        # A machine may lack CAP_SYS_RESOURCE.
        return self.shim.run_pod_sandbox(**asdict(_pod(config)), oom_score_adj=0)

    def pods(self) -> list[Any]:
        return [SimpleNamespace(id=pod["Id"]) for pod in self.shim.list_pod_sandboxes()]

    def create(self, pod_id: str, config: ContainerConfig, pod: PodSandboxConfig) -> str:
        self.shim.pods[pod_id] = _pod(pod)
        return self.shim.create_container(
            *(pod_id, config.metadata.name),
            attempt=config.metadata.attempt,
            command=config.command,
            envs=[(entry.key, entry.value.decode()) for entry in config.envs],
            labels=config.labels,
            annotations=config.annotations,
            resources=_values(config.linux.resources),
        )

    def update(self, container_id: str, requested: LinuxContainerResources) -> None:
        self.shim.update_container_resources(container_id, _values(requested))

    def exec_sync(self, container_id: str, *command: str) -> Any:
        """Run a command in a container; return its output and exit code."""
        exit_code, stdout, stderr = self.shim.exec_sync(container_id, command)
        return SimpleNamespace(stdout=stdout, stderr=stderr, exit_code=exit_code)

    def written(self, pod: PodSandboxConfig, container_id: str) -> str:
        return b"".join(data for _, data in self.shim.logs(container_id)).decode()

    def pids(self, *ids: str) -> list[int]:
        return [self.shim.inspect(subject_id)["State"]["Pid"] for subject_id in ids]

    def inspected(self, *ids: str) -> Any:
        text = json.dumps([self.shim.inspect(container_id) for container_id in ids], indent=1)
        for container_id in ids:
            text = text.replace(container_id, "<container>")
        return docker_cli.masked(text.encode(), {**docker_cli.DRAWN, r'"Pid": \d+': "<pid>"}).splitlines()


def _pod(config: PodSandboxConfig) -> Pod:
    metadata, texts = config.metadata, (dict(config.labels), dict(config.annotations))
    return Pod(metadata.name, metadata.uid, metadata.namespace, metadata.attempt, *texts, config.linux.cgroup_parent)


def _values(given: LinuxContainerResources) -> Values:
    """Return the values that dockershim uses; it sets the swap limit itself."""
    return {field.name: value for field, value in given.ListFields()}


# ---- nodes


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of node; ``engine`` is the session's fixture, ``version`` that of the kubelet's CRI."""

    name: str
    engine: str
    front: Front
    kubelet: Callable[..., Any]
    version: str = cri.V1


CONTAINERD = Kind("containerd", "containerd", CRI, CriKubelet)
DOCKERD = Kind("dockerd", "dockerd", DOCKER, Kubelet)
OLD_CRI = Kind("containerd-v1alpha2", "containerd", CRI, CriKubelet, cri.V1ALPHA2)


@dataclass(frozen=True, slots=True)
class RealNode:
    """A proxy, a hook server and an engine."""

    kind: Kind
    proxy: ProxyProcess
    hooks: HookServer
    engine: Any

    @property
    def front(self) -> Front:
        return self.kind.front

    def client(self) -> Any:
        return self.kind.kubelet(str(self.proxy.socket), self.kind.version)

    def direct(self) -> Any:
        return self.kind.kubelet(self.engine.socket, self.kind.version)

    def register(self, points: Sequence[str] = registration.ALL_POINTS, **more: str) -> None:
        """Register the hook server as the plugin ``PLUGIN``; ``more`` as in ``registration.text``."""
        self.proxy.register(f"{PLUGIN}.json", self.hooks.socket_path, points, **more)

    def pop_calls(self) -> list[tuple[str, Any]]:
        """Return the hook points and messages of the calls since the last time, in order."""
        calls = [(call.point.name, call.request) for call in self.hooks.calls]
        self.hooks.calls.clear()
        return calls

    def points(self) -> list[str]:
        return [hook_point for hook_point, _ in self.pop_calls()]

    def plain_pod(self, name: str = "plain") -> PodSandboxConfig:
        """Return a pod with only a name, a cgroup parent and a log directory."""
        uid = str(uuid.uuid4())
        logs = str(self.engine.directory(f"logs/{uid}"))
        return cri.pod_config(name, uid, cgroup_parent=self.engine.cgroup_parent(uid), log_directory=logs)

    def rich_pod(self) -> PodSandboxConfig:
        """Return a pod with all fields that a kubelet may set."""
        pod = self.plain_pod("rich")
        pod.metadata.attempt = 2
        pod.labels.update({"app": "web", "koordinator.sh/qosClass": "BE"})
        pod.annotations.update({"example.com/text": "line\nnext", "example.com/empty": ""})
        pod.linux.overhead.CopyFrom(resources(cpu_shares=102, memory_limit_in_bytes=16 * MIB))
        # containerd only stores a pod's resources, so the two maps need no special machine.
        limits = resources(cpu_period=100000, cpu_quota=150000, cpu_shares=614, memory_limit_in_bytes=128 * MIB)
        limits.hugepage_limits.append(HugepageLimit(page_size="2MB", limit=4 * MIB))
        limits.unified["memory.high"] = "100000000"
        pod.linux.resources.CopyFrom(limits)
        return pod

    def rich_container(self, **more: int | str) -> ContainerConfig:
        """Return a container with all fields that a kubelet may set, and ``more`` resources."""
        usual: Values = {"cpu_period": 100000, "cpu_quota": 50000, "cpu_shares": 512, "memory_limit_in_bytes": 64 * MIB}
        config = cri.container_config(
            "main",
            command=first_act(),
            envs=[("LEVEL", b"info"), ("SENTENCE", b"two words = three"), ("EMPTY", b"")],
            resources=resources(**{**usual, **more}),
            labels={"io.kubernetes.container.name": "main"},
            annotations={"example.com/hash": "f00"},
        )
        config.metadata.attempt = 3
        return config

    def failure(self, call: Callable[[], object]) -> object:
        """Make a call that must fail; return its status."""
        with pytest.raises((grpc.RpcError, DockerError, ConnectionError)) as caught:
            call()
        error: Any = caught.value
        return error.code() if isinstance(error, grpc.RpcError) else getattr(error, "status", None)


def on(*kinds: Kind) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.name, scope="module")


@contextmanager
def running(
    kind: Kind, engine: Any, folder: Path, prepare: Callable[[RealNode], None] = RealNode.register, **flags: str
) -> Iterator[RealNode]:
    """Run a hook server, then ``prepare``, and then a proxy in front of an engine; its pods are removed at the end."""
    if kind.front is CRI:
        flags = {"remote_image_service_endpoint": engine.socket, **flags}
    proxy = kind.front.process(folder / "proxy", remote_runtime_service_endpoint=engine.socket, **flags)
    with engine.restored(), serving(HookServer(str(folder / "hooks.sock"))) as hooks:
        node = RealNode(kind, proxy, hooks, engine)
        prepare(node)
        with proxy:
            yield node


# ---- fixtures for conftest: a node for a module, reset for each test


@pytest.fixture(scope="module")
def engine(kind: Kind, request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(kind.engine)


@pytest.fixture(scope="module")
def shared(kind: Kind, engine: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    """Run a node whose hook server is called at every hook point."""
    with running(kind, engine, tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture(name="node")
def lent(shared: RealNode) -> Iterator[RealNode]:
    """Yield the node without answers and recorded calls; its pods are removed at the end."""
    shared.hooks.answers.clear()
    shared.pop_calls()
    with shared.engine.restored():
        yield shared


@pytest.fixture
def client(node: RealNode) -> Iterator[Any]:
    with node.client() as made:
        yield made
