"""A real engine with the proxy before it, with one interface for both fronts.

Pods and containers are given in CRI's terms, as far as a kubelet's values reach the engine.
"""

import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self

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
from tests.system.fronts import Failed, Front
from tests.system.proxy import STATE_KNOWN, ProxyProcess, serving, wait_until

MIB = 1 << 20
CPU = str(min(os.sched_getaffinity(0)))
PLUGIN = "tester"
LAST_LINE = "first=done"


def resources(**values: int | str) -> LinuxContainerResources:
    return LinuxContainerResources(**values)  # type: ignore[arg-type]


def resources_answer(**values: int | str) -> hookanswers.Answer:
    """Return an answer with these resources and nothing else."""
    set_there = api_pb2.LinuxContainerResources(**values)  # type: ignore[arg-type]
    return hookanswers.reply(api_pb2.ContainerResourceHookResponse(container_resources=set_there))


# ---- what a container reports of itself


def first_act() -> tuple[str, ...]:
    """Return a command that first prints its environment and its cgroup files to its log."""
    files = "; ".join(f"echo {setting}=$(cat {cgroups.inside_file(setting)})" for setting in cgroups.SETTINGS)
    return ("/bin/sh", "-c", f"{files}; env; echo {LAST_LINE}; sleep 3600")


def inside(client: Any, container_id: str, setting: str) -> cgroups.Value:
    """Read a setting by ExecSync from the container's own cgroup files."""
    return cgroups.parse(setting, client.exec_sync(container_id, "cat", cgroups.inside_file(setting)).stdout.decode())


def assert_in_force(client: Any, container_id: str, parent: str, values: Values) -> None:
    """Compare what the container sees, and what the host sees of it under this cgroup parent."""
    expected = {setting: cgroups.expected(setting, value) for setting, value in values.items()}
    assert {setting: inside(client, container_id, setting) for setting in values} == expected
    assert {setting: cgroups.read(f"{parent}/{container_id}", setting) for setting in values} == expected


def end(client: Any, pod_id: str, *container_ids: str) -> None:
    """Stop and remove containers, then their pod, as a kubelet does."""
    for container_id in container_ids:
        client.stop(container_id)
        client.remove(container_id)
    client.stop_pod(pod_id)
    client.remove_pod(pod_id)
    assert pod_id not in [pod.id for pod in client.pods()]


# ---- nodes


@dataclass(frozen=True, slots=True)
class _Real:
    """A proxy, a hook server and an engine."""

    proxy: ProxyProcess
    hooks: HookServer
    engine: Any
    version: str = cri.V1
    """The CRI version of the kubelet."""

    front: ClassVar[Front]

    def client(self, socket: str = "") -> Any:
        """Return a kubelet on the proxy, or on another socket."""
        return cri.CriClient(socket or str(self.proxy.socket), self.version)

    def direct(self) -> Any:
        return self.client(self.engine.socket)

    def register(self, points: Sequence[str] = registration.ALL_POINTS, **more: str) -> None:
        """Register the hook server as the plugin ``PLUGIN``; ``more`` as in ``registration.text``."""
        self.proxy.register(f"{PLUGIN}.json", self.hooks.socket_path, points, **more)

    def take_calls(self) -> list[tuple[str, Any]]:
        """Return the hook points and messages of the calls since the last time, in order."""
        calls = [(call.point.name, call.request) for call in self.hooks.calls]
        self.hooks.calls.clear()
        return calls

    def points(self) -> list[str]:
        return [point for point, _ in self.take_calls()]

    def restart(self, *, wait_for_state: bool = False) -> None:
        """Kill the proxy and start it again; with ``wait_for_state``, wait until it has read the runtime's state."""
        self.proxy.kill()
        written = len(self.proxy.output())
        self.proxy.start()
        if wait_for_state:
            wait_until(lambda: STATE_KNOWN in self.proxy.output()[written:], "the state is read", self.proxy.output)
        self.take_calls()

    def plain_pod(self, name: str = "plain") -> PodSandboxConfig:
        """Return a pod with nothing but a name, a cgroup parent and a log directory."""
        uid = str(uuid.uuid4())
        logs = str(self.engine.directory(f"logs/{uid}"))
        return cri.pod_config(name, uid, cgroup_parent=self.engine.cgroup_parent(uid), log_directory=logs)

    def rich_pod(self, name: str = "rich") -> PodSandboxConfig:
        """Return a pod with all fields that a kubelet may set."""
        pod = self.plain_pod(name)
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

    def rich_container(self, name: str = "main", **more: int | str) -> ContainerConfig:
        """Return a container with all fields that a kubelet may set; ``more`` resources than the usual ones."""
        usual: Values = {"cpu_period": 100000, "cpu_quota": 50000, "cpu_shares": 512, "memory_limit_in_bytes": 64 * MIB}
        config = cri.container_config(
            name,
            command=first_act(),
            envs=[("LEVEL", b"info"), ("SENTENCE", b"two words = three"), ("EMPTY", b"")],
            resources=resources(**{**usual, **more}),
            labels={"io.kubernetes.container.name": name},
            annotations={"example.com/hash": "f00"},
        )
        config.metadata.attempt = 3
        return config

    def first_act(self, client: Any, pod: PodSandboxConfig, container_id: str) -> dict[str, str]:
        """Wait for all of the first lines that ``main`` prints; return them as names and values."""
        wait_until(lambda: LAST_LINE in self.written(client, pod, container_id), "it has printed its first lines")
        return dict(line.partition("=")[::2] for line in self.written(client, pod, container_id).splitlines())

    def failure(self, call: Callable[[], object]) -> Failed:
        """Make a call that must fail; return its failure."""
        with pytest.raises((grpc.RpcError, DockerError, ConnectionError)) as caught:
            call()
        error: Any = caught.value
        if isinstance(error, grpc.RpcError):
            return Failed(error.code(), str(error.details()))
        return Failed(error.status, error.message) if isinstance(error, DockerError) else Failed(None, str(error))


class CriNode(_Real):
    """A node with a containerd."""

    front = CRI

    def written(self, client: Any, pod: PodSandboxConfig, container_id: str) -> str:
        log = Path(pod.log_directory, "main.log")
        lines = log.read_text().splitlines() if log.exists() else []
        return "\n".join(line.split(" ", 3)[3] for line in lines)

    def pids(self, client: Any, pod_id: str, container_id: str) -> tuple[int, int]:
        return _info(client.pod_status(pod_id))["pid"], _info(client.status(container_id))["pid"]

    def inspected(self, client: Any, pod_id: str, container_id: str) -> Any:
        """Return the engine's report, without the values that differ between two equal requests."""
        pod, container = _info(client.pod_status(pod_id)), _info(client.status(container_id))
        spec = container["runtimeSpec"]
        return pod["config"], container["config"], spec["linux"]["resources"], spec["process"]["env"]


def _info(status: Any) -> Any:
    return json.loads(status.info["info"])


class Kubelet:
    """A client on a socket that makes pods from CRI's messages through cri-dockerd's calls."""

    def __init__(self, socket: str) -> None:
        self.shim = shim = Dockershim(socket, CRI_DOCKERD)
        self.stop_pod, self.remove_pod = shim.stop_pod_sandbox, shim.remove_pod_sandbox
        self.start, self.remove, self.stop = shim.start_container, shim.remove_container, shim.stop_container

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.shim.close()

    def run_pod(self, config: PodSandboxConfig) -> str:
        pod = _pod(config)
        return self.shim.run_pod_sandbox(
            *(pod.name, pod.uid),
            namespace=pod.namespace,
            attempt=pod.attempt,
            labels=pod.labels,
            annotations=pod.annotations,
            cgroup_parent=pod.cgroup_parent,
            oom_score_adj=0,  # a machine may lack CAP_SYS_RESOURCE
        )

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


def _pod(config: PodSandboxConfig) -> Pod:
    metadata, texts = config.metadata, (dict(config.labels), dict(config.annotations))
    return Pod(metadata.name, metadata.uid, metadata.namespace, metadata.attempt, *texts, config.linux.cgroup_parent)


def _values(given: LinuxContainerResources) -> Values:
    """Return the values that dockershim uses; it sets the swap limit itself."""
    named = {field.name: value for field, value in given.ListFields()}
    named.pop("memory_swap_limit_in_bytes", None)
    return named


class ShimNode(_Real):
    """A node with a dockerd, whose kubelet uses cri-dockerd."""

    front = DOCKER

    def client(self, socket: str = "") -> Any:
        return Kubelet(socket or str(self.proxy.socket))

    def written(self, client: Any, pod: PodSandboxConfig, container_id: str) -> str:
        return b"".join(data for _, data in client.shim.logs(container_id)).decode()

    def pids(self, client: Any, pod_id: str, container_id: str) -> tuple[int, int]:
        pod, container = (client.shim.inspect(one)["State"]["Pid"] for one in (pod_id, container_id))
        return pod, container

    def inspected(self, client: Any, pod_id: str, container_id: str) -> Any:
        ids = (pod_id, container_id)
        text = json.dumps([client.shim.inspect(one) for one in ids], indent=1)
        for one in ids:
            text = text.replace(one, "<container>")
        return docker_cli.masked(text.encode(), {**docker_cli.DRAWN, r'"Pid": \d+': "<pid>"}).splitlines()


RealNode = CriNode | ShimNode


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of node; ``engine`` is the fixture of the whole session."""

    name: str
    engine: str
    node: type[RealNode]
    version: str = cri.V1


CONTAINERD = Kind("containerd", "containerd", CriNode)
DOCKERD = Kind("dockerd", "dockerd", ShimNode)
OLD_CRI = Kind("containerd-v1alpha2", "containerd", CriNode, cri.V1ALPHA2)


def on(*kinds: Kind) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.name, scope="module")


@contextmanager
def running(
    kind: Kind, engine: Any, folder: Path, prepare: Callable[[RealNode], None] = _Real.register, **flags: str
) -> Iterator[RealNode]:
    """Run a hook server, then ``prepare``, and then a proxy before an engine; at the end its pods are removed."""
    if kind.node is CriNode:
        flags = {"remote_image_service_endpoint": engine.socket, **flags}
    proxy = kind.node.front.process(folder / "proxy", remote_runtime_service_endpoint=engine.socket, **flags)
    with engine.restored(), serving(HookServer(str(folder / "hooks.sock"))) as hooks:
        made = kind.node(proxy, hooks, engine, kind.version)
        prepare(made)
        with proxy:
            yield made


# ---- fixtures for conftest: a node for a module, reset for each test


@pytest.fixture(scope="module")
def engine(kind: Kind, request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(kind.engine)


@pytest.fixture(scope="module")
def shared(kind: Kind, engine: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    """Run a node whose hook server is called at every point."""
    with running(kind, engine, tmp_path_factory.mktemp("node")) as made:
        yield made


@pytest.fixture(name="node")
def lent(shared: RealNode) -> Iterator[RealNode]:
    """Yield the node without chosen answers and recorded calls; at the end what was created is removed."""
    shared.hooks.answers.clear()
    shared.take_calls()
    with shared.engine.restored():
        yield shared


@pytest.fixture
def client(node: RealNode) -> Iterator[Any]:
    with node.client() as made:
        yield made
