"""A real engine with the proxy before it, with one interface for both fronts.

Pods and containers are given in CRI's terms, as far as a kubelet's values reach the engine.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import grpc
import pytest

from tests.engines import cri, docker_cli
from tests.engines.docker_cli import Mask, Outcome
from tests.fakes import cri_pb2, registration
from tests.fakes.cri_pb2 import ContainerConfig, LinuxContainerResources, PodSandboxConfig
from tests.fakes.dockershim import CRI_DOCKERD, DOCKERSHIM, DockerError, Dockershim, Generation
from tests.fakes.dockershim_bodies import Pod, Values
from tests.fakes.hookserver import HookServer
from tests.system import hook_requests, node
from tests.system.cri_front import CRI
from tests.system.docker_front import DOCKER
from tests.system.fronts import Failed, Front
from tests.system.node import LAST_LINE, names_and_values
from tests.system.proxy import STATE_KNOWN, ProxyProcess, wait_until


@dataclass(frozen=True, slots=True)
class _Real:
    """A proxy, a hook server and an engine; the kubelet speaks a version of CRI, or is a generation of the shim."""

    proxy: ProxyProcess
    hooks: HookServer
    engine: Any
    speaks: Any

    front: ClassVar[Front]
    client_class: ClassVar[Any]

    def client(self) -> Any:
        return self.client_class(str(self.proxy.socket), self.speaks)

    def direct(self) -> Any:
        return self.client_class(self.engine.socket, self.speaks)

    def register(self, points: Sequence[str] = registration.ALL_POINTS, **more: str) -> None:
        """Register the hook server as the plugin ``PLUGIN``; ``more`` as in ``registration.text``."""
        self.proxy.register(f"{node.PLUGIN}.json", self.hooks.socket_path, points, **more)

    def take_calls(self) -> list[tuple[str, Any]]:
        """Return the hook points and messages of the calls since the last time, in order."""
        calls = [(call.point.name, call.request) for call in self.hooks.calls]
        self.hooks.calls.clear()
        return calls

    def restart(self, *, wait_for_state: bool = False) -> None:
        """Kill the proxy and start it again; with ``wait_for_state``, wait until it has read the runtime's state."""
        self.proxy.kill()
        written = len(self.proxy.output())
        self.proxy.start()
        if wait_for_state:
            wait_until(lambda: STATE_KNOWN in self.proxy.output()[written:], "the state is read", self.proxy.output)
        self.take_calls()

    def rich_pod(self, name: str = "rich") -> PodSandboxConfig:
        return self.pod_as_passed(node.rich_pod(self.engine, name))

    def plain_pod(self, name: str = "plain") -> PodSandboxConfig:
        return self.pod_as_passed(node.plain_pod(self.engine, name))

    def rich_container(self, name: str = "main", **resources: int | str) -> ContainerConfig:
        return self.container_as_passed(node.rich_container(name, **resources))

    def plain_container(self, name: str = "main") -> ContainerConfig:
        return self.container_as_passed(cri.container_config(name))

    def pod_as_passed(self, pod: PodSandboxConfig) -> PodSandboxConfig:
        """Return the part of a pod that reaches the engine."""
        return pod

    def container_as_passed(self, container: ContainerConfig) -> ContainerConfig:
        return container

    def sent(self, container: ContainerConfig) -> ContainerConfig:
        """Return a container as this kubelet sends it: dockershim adds a swap limit to each memory limit."""
        return container

    def updated(self, container: ContainerConfig, requested: LinuxContainerResources) -> ContainerConfig:
        return hook_requests.updated(container, requested)

    def failure(self, call: Callable[[], object]) -> Failed:
        """Make a call that must fail; return its failure."""
        with pytest.raises((grpc.RpcError, DockerError, ConnectionError)) as caught:
            call()
        error: Any = caught.value
        if isinstance(error, grpc.RpcError):
            return Failed(error.code(), str(error.details()))
        return Failed(error.status, error.message) if isinstance(error, DockerError) else Failed(None, str(error))

    def run_to_end(self, client: Any, pod: PodSandboxConfig, container: ContainerConfig, resources: Any) -> Any:
        """Run a pod with a container to its end; return the engine's report while it ran."""
        pod_id = client.run_pod(pod)
        container_id = client.create(pod_id, container, pod)
        client.start(container_id)
        client.update(container_id, resources)
        report = self.inspected(client, pod_id, container_id)
        node.end(client, pod_id, container_id)
        return report


class CriNode(_Real):
    """A node with a containerd."""

    front = CRI
    client_class = cri.CriClient

    def first_act(self, client: Any, pod: PodSandboxConfig, container_id: str) -> dict[str, str]:
        """Wait for all of the first lines that ``main`` prints; return them as names and values."""
        return node.reported_by_first_act(pod)

    def written(self, pod: PodSandboxConfig, container_id: str) -> str:
        return Path(pod.log_directory, "main.log").read_text()

    def pod_texts(self, client: Any, pod_id: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
        status = client.pod_status(pod_id).status
        return status.labels, status.annotations

    def pod_shares(self, client: Any, pod_id: str) -> int:
        return int(_info(client.pod_status(pod_id))["config"]["linux"]["resources"]["cpu_shares"])

    def annotations(self, client: Any, container_id: str) -> Mapping[str, str]:
        return dict(client.status(container_id).status.annotations)

    def is_running(self, client: Any, container_id: str) -> bool:
        return bool(client.status(container_id).status.state == cri_pb2.CONTAINER_RUNNING)

    def pids(self, client: Any, pod_id: str, container_id: str) -> tuple[int, int]:
        return _info(client.pod_status(pod_id))["pid"], _info(client.status(container_id))["pid"]

    def inspected(self, client: Any, pod_id: str, container_id: str) -> Any:
        """Return the engine's report, without the values that differ between two equal requests."""
        pod, container = _info(client.pod_status(pod_id)), _info(client.status(container_id))
        spec = container["runtimeSpec"]
        return pod["config"], container["config"], spec["linux"]["resources"], spec["process"]["env"]


def _info(status: Any) -> Any:
    return json.loads(status.info["info"])


# ---- dockershim


class Kubelet:
    """A client on a socket that makes pods from CRI's messages through dockershim."""

    def __init__(self, socket: str, generation: Generation = CRI_DOCKERD) -> None:
        self.socket = socket
        self.shim = shim = Dockershim(socket, generation)
        self.version = shim.version
        self.stop_pod, self.remove_pod = shim.stop_pod_sandbox, shim.remove_pod_sandbox
        self.start, self.remove = shim.start_container, shim.remove_container

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.shim.close()

    def docker(self, *arguments: str, exit_code: int = 0) -> Outcome:
        """Run a docker command on this socket, which must end with this exit code."""
        outcome = docker_cli.run(self.socket, *arguments)
        assert outcome.exit_code == exit_code, outcome
        return outcome

    def run_pod(self, config: PodSandboxConfig) -> str:
        pod = _pod(config)
        return self.shim.run_pod_sandbox(
            pod.name,
            pod.uid,
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
            pod_id,
            config.metadata.name,
            attempt=config.metadata.attempt,
            command=config.command,
            envs=[(entry.key, entry.value.decode()) for entry in config.envs],
            labels=config.labels,
            annotations=config.annotations,
            resources=_values(config.linux.resources),
        )

    def update(self, container_id: str, resources: LinuxContainerResources) -> None:
        self.shim.update_container_resources(container_id, _values(resources))

    def stop(self, container_id: str, grace_seconds: int = 0) -> None:
        self.shim.stop_container(container_id, grace_seconds)

    def exec_sync(self, container_id: str, *command: str) -> Any:
        """Run a command in a container; return its output and exit code."""
        exit_code, stdout, stderr = self.shim.exec_sync(container_id, command)
        return SimpleNamespace(stdout=stdout, stderr=stderr, exit_code=exit_code)

    def host_config(self, container_id: str) -> dict[str, Any]:
        return dict(self.shim.inspect(container_id)["HostConfig"])

    def labels(self, container_id: str) -> dict[str, str]:
        return dict(self.shim.inspect(container_id)["Config"]["Labels"])

    def first_lines(self, container_id: str) -> dict[str, str]:
        output = b""
        for _, data in self.shim.logs(container_id, follow=True):
            output += data
            if f"{LAST_LINE}\n".encode() in output:
                break
        return names_and_values(output.decode().splitlines())

    def inspected(self, *ids: str) -> list[str]:
        text = json.dumps([self.shim.inspect(one) for one in ids], indent=1)
        for number, one in enumerate(ids):
            text = text.replace(one, f"<container {number}>")
        pids = Mask("<pid>", r'"Pid": \d+')
        return docker_cli.masked(text.encode(), (*docker_cli.DRAWN, pids)).splitlines()


def _pod(config: PodSandboxConfig) -> Pod:
    metadata = config.metadata
    return Pod(
        metadata.name,
        metadata.uid,
        metadata.namespace,
        metadata.attempt,
        dict(config.labels),
        dict(config.annotations),
        config.linux.cgroup_parent,
    )


def _values(resources: LinuxContainerResources) -> Values:
    """Return the values that dockershim uses; it sets the swap limit itself."""
    named = {field.name: value for field, value in resources.ListFields()}
    named.pop("memory_swap_limit_in_bytes", None)
    return named


def _without_swap(container: ContainerConfig) -> ContainerConfig:
    """Return a container with the swap limit that dockershim adds to its memory limit: no swap."""
    changed = ContainerConfig.FromString(container.SerializeToString())
    changed.linux.resources.memory_swap_limit_in_bytes = container.linux.resources.memory_limit_in_bytes
    return changed


class ShimNode(_Real):
    """A node with a dockerd, whose kubelet uses dockershim."""

    front = DOCKER
    client_class = Kubelet

    def pod_as_passed(self, pod: PodSandboxConfig) -> PodSandboxConfig:
        """Return a pod with dockershim's labels, and with neither overhead nor resources."""
        passed = PodSandboxConfig.FromString(pod.SerializeToString())
        for name in ("name", "namespace", "uid"):
            passed.labels[f"io.kubernetes.pod.{name}"] = getattr(pod.metadata, name)
        passed.linux.ClearField("overhead")
        passed.linux.ClearField("resources")
        return passed

    def container_as_passed(self, container: ContainerConfig) -> ContainerConfig:
        """Return a container with the annotations that dockershim adds."""
        passed = _without_swap(container)
        added = {"hash": "d464c1e4", "restartCount": str(container.metadata.attempt)}
        added |= {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
        passed.annotations.update({f"io.kubernetes.container.{name}": text for name, text in added.items()})
        passed.annotations["io.kubernetes.pod.terminationGracePeriod"] = "30"
        return passed

    def sent(self, container: ContainerConfig) -> ContainerConfig:
        return _without_swap(container)

    def updated(self, container: ContainerConfig, requested: LinuxContainerResources) -> ContainerConfig:
        changed = hook_requests.updated(container, requested)
        moves = self.speaks.moves_swap and requested.memory_limit_in_bytes
        return _without_swap(changed) if moves else changed

    def first_act(self, client: Any, pod: PodSandboxConfig, container_id: str) -> dict[str, str]:
        return dict(client.first_lines(container_id))

    def written(self, pod: PodSandboxConfig, container_id: str) -> str:
        return str(self.engine.request("GET", f"/containers/{container_id}/logs?stdout=1").decode())

    def pod_texts(self, client: Any, pod_id: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
        labels = client.labels(pod_id)
        del labels["io.kubernetes.container.name"], labels["io.kubernetes.docker.type"]
        annotations = self.annotations(client, pod_id)
        return {key: value for key, value in labels.items() if not key.startswith("annotation.")}, annotations

    def pod_shares(self, client: Any, pod_id: str) -> int:
        return int(client.host_config(pod_id)["CpuShares"])

    def annotations(self, client: Any, container_id: str) -> Mapping[str, str]:
        labels = client.labels(container_id).items()
        return {key.removeprefix("annotation."): value for key, value in labels if key.startswith("annotation.")}

    def is_running(self, client: Any, container_id: str) -> bool:
        return bool(client.shim.inspect(container_id)["State"]["Running"])

    def pids(self, client: Any, pod_id: str, container_id: str) -> tuple[int, int]:
        pod, container = (client.shim.inspect(one)["State"]["Pid"] for one in (pod_id, container_id))
        return pod, container

    def inspected(self, client: Any, pod_id: str, container_id: str) -> Any:
        return client.inspected(pod_id, container_id)


RealNode = CriNode | ShimNode


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of node; ``engine`` is the fixture of the whole session."""

    name: str
    engine: str
    node: type[RealNode]
    speaks: Any


CONTAINERD = Kind("containerd", "containerd", CriNode, cri.V1)
DOCKERD = Kind("dockerd", "dockerd", ShimNode, CRI_DOCKERD)
OLD_CRI = Kind("containerd-v1alpha2", "containerd", CriNode, cri.V1ALPHA2)
OLD_SHIM = Kind("dockerd-dockershim", "dockerd", ShimNode, DOCKERSHIM)


def on(*kinds: Kind) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.name, scope="module")


@contextmanager
def running(
    kind: Kind,
    engine: Any,
    folder: Path,
    prepare: Callable[[RealNode], None] = _Real.register,
    *,
    runtime: str = "",
    **flags: str,
) -> Iterator[RealNode]:
    """Run a hook server, then ``prepare``, and then a proxy before an engine or before another ``runtime`` socket.

    At the end what was created is removed.
    """
    endpoint = runtime or engine.socket
    if kind.node is CriNode:
        flags = {"remote_image_service_endpoint": endpoint, **flags}
    proxy = kind.node.front.process(folder / "proxy", remote_runtime_service_endpoint=endpoint, **flags)
    with engine.restored(), node.serving(HookServer(str(folder / "hooks.sock"))) as hooks:
        made = kind.node(proxy, hooks, engine, kind.speaks)
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
