"""On real dockerd: what a hook server that fails, hangs, answers badly or refuses means under each policy."""

import http
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from runtimeproxy.hookapi import api_pb2
from tests.engines.dockerd import Dockerd
from tests.fakes import hookanswers
from tests.fakes.cri_pb2 import ContainerConfig, LinuxContainerResources, PodSandboxConfig
from tests.fakes.dockershim import DockerError
from tests.fakes.faults import FaultRelay
from tests.fakes.hookanswers import Answer
from tests.system.docker_node import DockerNode, Kubelet, running
from tests.system.docker_told import rich_container, rich_pod
from tests.system.node import PLUGIN, end, inside, register, serving, skipped
from tests.system.scene import resources_answer

pytestmark = pytest.mark.engine

PRE_POINTS = ("PreRunPodSandbox", "PreCreateContainer", "PreStartContainer", "PreUpdateContainerResources")
UPDATE = LinuxContainerResources(cpu_shares=99)
REFUSAL = "no room on this node"


async def bad(call: hookanswers.HookCall) -> bytes:
    """Answer a cpuset that is none."""

    def overwrite(response: hookanswers.Response) -> None:
        pod = isinstance(response, api_pb2.PodSandboxHookResponse)
        target = response.resources if pod else response.container_resources  # type: ignore[union-attr]
        target.cpuset_cpus = "one"

    return await hookanswers.echo(overwrite)(call)


HANGS = hookanswers.hang()
WORDS = "what a hook server says"
FAULTS: Mapping[str, tuple[Answer | None, str]] = {
    "dead": (None, "unreachable"),
    "fails": (hookanswers.status(grpc.StatusCode.INTERNAL, WORDS), f"error_status: gRPC status 13: {WORDS}"),
    "hangs": (HANGS, "deadline"),
    "answers nonsense": (hookanswers.garbage(), "bad_answer"),
    "answers badly": (bad, "bad_answer"),
    "refuses": (hookanswers.status(grpc.StatusCode.PERMISSION_DENIED, REFUSAL), REFUSAL),
}
"""What the hook server does, None if there is none -> what the kubelet reads of it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A node that keeps what passes to its dockerd."""

    node: DockerNode
    to_dockerd: FaultRelay

    def posts(self) -> bytes:
        """Return the first line of the first request but for GET and HEAD that dockerd was sent; empty if none was."""
        lines = [line for sent in self.to_dockerd.connections for line in bytes(sent.to_backend).split(b"\r\n")]
        return next((line for line in lines if line.startswith((b"POST ", b"DELETE ", b"PUT "))), b"")


@contextmanager
def faulty(engine: Dockerd, folder: Path, answer: Answer | None, policy: str) -> Iterator[Asked]:
    """Run a proxy whose only plugin does so at every point."""

    def prepare(node: DockerNode) -> None:
        if answer is not None:
            node.hooks.default = answer
            register(node, policy=policy, timeout="100ms" if answer is HANGS else "10s")
        else:
            node.proxy.register(f"{PLUGIN}.json", node.proxy.path / "nobody.sock", policy=policy)

    with ExitStack() as stack:
        relay = stack.enter_context(serving(FaultRelay(str(folder / "dockerd.sock"), engine.socket)))
        yield Asked(stack.enter_context(running(engine, folder, prepare, runtime=relay.listen)), relay)


@dataclass(frozen=True, slots=True)
class Result:
    """A pod and a container that were made directly; what dockerd tells of them."""

    pod: PodSandboxConfig
    container: ContainerConfig
    inspected: list[str]


@dataclass(frozen=True, slots=True)
class Made(Result):
    """A pod and a container that are there, not started."""

    pod_id: str
    container_id: str


@pytest.fixture(scope="module")
def direct(dockerd: Dockerd) -> Iterator[Kubelet]:
    with Kubelet(dockerd.socket) as made:
        yield made


@pytest.fixture(scope="module")
def made(dockerd: Dockerd, direct: Kubelet) -> Iterator[Made]:
    pod, container = rich_pod(dockerd), rich_container()
    with dockerd.restored():
        pod_id = direct.run_pod(pod)
        container_id = direct.create(pod_id, container, pod)
        yield Made(pod, container, direct.inspected(pod_id, container_id), pod_id, container_id)


@pytest.mark.parametrize("fault", FAULTS)
def test_fail_refuses_and_dockerd_is_not_asked(
    dockerd: Dockerd, tmp_path: Path, direct: Kubelet, made: Made, fault: str
) -> None:
    answer, reason = FAULTS[fault]
    another = rich_pod(dockerd, "another")
    with faulty(dockerd, tmp_path, answer, "Fail") as asked, asked.node.client() as client:
        calls: dict[str, Callable[[], object]] = {
            "PreRunPodSandbox": lambda: client.run_pod(another),
            "PreCreateContainer": lambda: client.create(made.pod_id, rich_container("refused"), made.pod),
            "PreStartContainer": lambda: client.start(made.container_id),
            "PreUpdateContainerResources": lambda: client.update(made.container_id, UPDATE),
        }
        for point, call in calls.items():
            with pytest.raises(DockerError) as caught:
                call()
            assert caught.value.status == http.HTTPStatus.INTERNAL_SERVER_ERROR
            for part in (PLUGIN, point, reason):
                assert part in caught.value.message
        assert not asked.posts()
        assert client.version(), "the connection lives"
    assert direct.inspected(made.pod_id, made.container_id) == made.inspected
    assert another.metadata.uid not in str(direct.shim.list_pod_sandboxes())


@pytest.fixture(scope="module")
def without(dockerd: Dockerd, direct: Kubelet) -> Result:
    """Run a pod directly and end it again."""
    pod, container = rich_pod(dockerd, "same"), rich_container()
    return Result(pod, container, result(direct, pod, container))


def result(client: Kubelet, pod: PodSandboxConfig, container: ContainerConfig) -> list[str]:
    """Run a pod; return what dockerd tells of it in the end."""
    pod_id = client.run_pod(pod)
    container_id = client.create(pod_id, container, pod)
    client.start(container_id)
    client.update(container_id, UPDATE)
    inspected = client.inspected(pod_id, container_id)
    end(client, pod_id, container_id)
    return inspected


def test_fail_with_a_dead_hook_server_lets_a_pod_with_the_skip_label_come_up(
    dockerd: Dockerd, tmp_path: Path, direct: Kubelet
) -> None:
    """It may be the hook server's own pod: its life is as it is without the proxy."""
    pod, container = skipped(rich_pod(dockerd, "own")), rich_container()
    expected = result(direct, pod, container)
    with faulty(dockerd, tmp_path, None, "Fail") as asked, asked.node.client() as client:
        assert result(client, pod, container) == expected


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "refuses"])
def test_ignore_does_as_if_there_were_no_plugin(dockerd: Dockerd, tmp_path: Path, without: Result, fault: str) -> None:
    with faulty(dockerd, tmp_path, FAULTS[fault][0], "Ignore") as asked, asked.node.client() as client:
        assert result(client, without.pod, without.container) == without.inspected
        assert asked.posts()


def test_a_refusal_counts_under_ignore_too(dockerd: Dockerd, tmp_path: Path, made: Made) -> None:
    answer, reason = FAULTS["refuses"]
    with faulty(dockerd, tmp_path, answer, "Ignore") as asked, asked.node.client() as client:
        for call in (lambda: client.run_pod(rich_pod(dockerd)), lambda: client.start(made.container_id)):
            with pytest.raises(DockerError) as caught:
                call()
            assert caught.value.status == http.HTTPStatus.INTERNAL_SERVER_ERROR
            assert reason in caught.value.message
        assert not asked.posts()


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
def test_what_dockerd_rejects_at_the_start_is_the_plugins_failure(
    dockerd: Dockerd, tmp_path: Path, policy: str
) -> None:
    pod, container = rich_pod(dockerd), rich_container()
    with faulty(dockerd, tmp_path, hookanswers.empty(), policy) as asked, asked.node.client() as client:
        pod_id = client.run_pod(pod)
        container_id = client.create(pod_id, container, pod)
        asked.node.hooks.on("PreStartContainer", resources_answer({"cpuset_cpus": "4095", "cpu_shares": 700}))
        if policy == "Ignore":
            client.start(container_id)
            assert inside(client, container_id, "cpu_shares") == 512
        else:
            with pytest.raises(DockerError) as caught:
                client.start(container_id)
            for part in (PLUGIN, "PreStartContainer", "runtime_rejected"):
                assert part in caught.value.message
            assert client.shim.inspect(container_id)["State"]["Status"] == "created"


def test_what_dockerd_refuses_of_a_hooks_create_is_told_in_its_words(dockerd: Dockerd, tmp_path: Path) -> None:
    """A hook's values stand in the request: the daemon's own error passes unchanged."""
    pod = rich_pod(dockerd)
    with faulty(dockerd, tmp_path, hookanswers.empty(), "Ignore") as asked, asked.node.client() as client:
        pod_id = client.run_pod(pod)
        asked.node.hooks.on("PreCreateContainer", resources_answer({"cpuset_cpus": "4095"}))
        with pytest.raises(DockerError) as caught:
            client.create(pod_id, rich_container(), pod)
        assert caught.value.status == http.HTTPStatus.BAD_REQUEST
        assert "4095" in caught.value.message
