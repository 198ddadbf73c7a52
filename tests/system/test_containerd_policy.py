"""On real containerd: what a dead hook server means under each policy, and an image service of its own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from tests.engines import cri
from tests.engines.containerd import Containerd
from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes import hookanswers
from tests.fakes.cri_pb2 import LinuxContainerResources
from tests.fakes.faults import FaultRelay
from tests.system.node import (
    PLUGIN,
    Node,
    end,
    inside,
    plain_pod,
    register,
    rich_container,
    running,
    serving,
    skipped,
)
from tests.system.proxy import STATE_KNOWN, wait_until

pytestmark = pytest.mark.engine

PRE_POINTS = ("PreRunPodSandbox", "PreCreateContainer", "PreStartContainer", "PreUpdateContainerResources")


@pytest.fixture(params=cri.VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def dead(policy: str) -> Callable[[Node], None]:
    """Register a hook server whose socket nobody listens on."""

    def prepare(node: Node) -> None:
        socket_path = str(node.proxy.path / "nobody.sock")
        node.proxy.register(f"{PLUGIN}.json", socket_path, PRE_POINTS, policy=policy)

    return prepare


def was_asked(node: Node, uid: str) -> bool:
    """Tell whether containerd's own log has a request that names the pod."""
    return uid in node.engine.log_file.read_text()


def assert_refused(error: grpc.RpcError, point: str, reason: str) -> None:
    assert error.code() is grpc.StatusCode.INTERNAL
    for part in (PLUGIN, point, reason):
        assert part in str(error.details())


def test_fail_with_a_dead_hook_server_refuses_a_pod(containerd: Containerd, tmp_path: Path, version: str) -> None:
    pod = plain_pod(containerd)
    with running(containerd, tmp_path, dead("Fail")) as node, node.client(version) as client:
        with pytest.raises(grpc.RpcError) as caught:
            client.run_pod(pod)
        assert_refused(caught.value, "PreRunPodSandbox", "unreachable")
        assert pod.metadata.uid not in [item.metadata.uid for item in client.pods()]
        assert not was_asked(node, pod.metadata.uid)


def test_fail_with_a_dead_hook_server_refuses_a_containers_calls(
    containerd: Containerd, tmp_path: Path, version: str
) -> None:
    pod = plain_pod(containerd)
    with cri.CriClient(containerd.socket, version) as direct:
        pod_id = direct.run_pod(pod)
        container_id = direct.create(pod_id, rich_container("made"), pod)
        with running(containerd, tmp_path, dead("Fail")) as node, node.client(version) as client:
            calls: dict[str, Callable[[], object]] = {
                "PreCreateContainer": lambda: client.create(pod_id, rich_container("refused"), pod),
                "PreStartContainer": lambda: client.start(container_id),
                "PreUpdateContainerResources": lambda: client.update(
                    container_id, LinuxContainerResources(cpu_shares=99)
                ),
            }
            for point, call in calls.items():
                with pytest.raises(grpc.RpcError) as caught:
                    call()
                assert_refused(caught.value, point, "unreachable")
            assert not was_asked(node, "refused")
            direct.start(container_id)  # it was not started before, or this fails
            assert inside(direct, container_id, "cpu_shares") != 99
        end(direct, pod_id, container_id)


def test_ignore_with_a_dead_hook_server_runs_the_pod(containerd: Containerd, tmp_path: Path, version: str) -> None:
    pod = plain_pod(containerd)
    with running(containerd, tmp_path, dead("Ignore")) as node, node.client(version) as client:
        pod_id = client.run_pod(pod)
        assert was_asked(node, pod.metadata.uid)
        container_id = client.create(pod_id, rich_container(), pod)
        client.start(container_id)
        client.update(container_id, LinuxContainerResources(memory_limit_in_bytes=1 << 27))
        assert inside(client, container_id, "memory_limit_in_bytes") == 1 << 27
        end(client, pod_id, container_id)


def test_fail_with_a_dead_hook_server_lets_a_pod_with_the_skip_label_come_up(
    containerd: Containerd, tmp_path: Path, version: str
) -> None:
    """It may be the hook server's own pod. Another pod's container is refused meanwhile."""
    pod, other = skipped(plain_pod(containerd)), plain_pod(containerd, "other")
    with cri.CriClient(containerd.socket, version) as direct:
        other_id = direct.run_pod(other)
        with running(containerd, tmp_path, dead("Fail")) as node, node.client(version) as client:
            pod_id = client.run_pod(pod)
            container_id = client.create(pod_id, rich_container(), pod)
            client.start(container_id)
            client.update(container_id, LinuxContainerResources(memory_limit_in_bytes=1 << 27))
            assert inside(client, container_id, "memory_limit_in_bytes") == 1 << 27
            with pytest.raises(grpc.RpcError) as caught:
                client.create(other_id, rich_container("refused"), other)
            assert_refused(caught.value, "PreCreateContainer", "unreachable")
            end(client, pod_id, container_id)
        end(direct, other_id)


def test_a_refusal_counts_under_ignore_too(containerd: Containerd, tmp_path: Path, version: str) -> None:
    pod = plain_pod(containerd)
    with running(containerd, tmp_path) as node, node.client(version) as client:
        refusal = hookanswers.status(grpc.StatusCode.PERMISSION_DENIED, "no room on this node")
        node.hooks.on("PreRunPodSandbox", refusal)
        with pytest.raises(grpc.RpcError) as caught:
            client.run_pod(pod)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "no room on this node" in str(caught.value.details())
        assert not was_asked(node, pod.metadata.uid)


class Services:
    """The engine's socket as two: one for the image service, one for the rest, each keeping what passed."""

    def __init__(self, engine: Containerd, folder: Path) -> None:
        self.runtime = FaultRelay(str(folder / "runtime.sock"), engine.socket)
        self.images = FaultRelay(str(folder / "images.sock"), engine.socket)


@pytest.fixture
def services(containerd: Containerd, tmp_path: Path) -> Iterator[Services]:
    made = Services(containerd, tmp_path)
    with serving(made.runtime), serving(made.images):
        yield made


def replied(relay: FaultRelay, text: bytes) -> bool:
    """Tell whether a text passed toward a client."""
    return any(text in connection.to_client for connection in relay.connections)


def test_image_calls_go_to_a_socket_of_their_own(
    containerd: Containerd, tmp_path: Path, services: Services, version: str
) -> None:
    name = BUSYBOX_IMAGE.encode()
    sockets = {"runtime": services.runtime.listen, "images": services.images.listen}
    with running(containerd, tmp_path, register, **sockets) as node, node.client(version) as client:
        client.version()
        assert BUSYBOX_IMAGE in {tag for image in client.images() for tag in image.repo_tags}
        # A relay notes what passed just after it passed.
        wait_until(lambda: replied(services.runtime, b"containerd"), "the runtime's relay noted the version")
        wait_until(lambda: replied(services.images, name), "the image service's relay noted the list")
        assert not replied(services.runtime, name)
        assert not replied(services.images, b"containerd")

        pod = plain_pod(containerd)
        pod_id = client.run_pod(pod)
        container_id = client.create(pod_id, rich_container(), pod)
        client.start(container_id)
        assert [point for point, _ in node.told()] == [*PRE_POINTS[:3], "PostStartContainer"]
        end(client, pod_id, container_id)


def test_without_the_image_service_the_runtime_is_served(
    containerd: Containerd, tmp_path: Path, services: Services, version: str
) -> None:
    sockets = {"runtime": services.runtime.listen, "images": str(tmp_path / "nobody.sock")}
    with running(containerd, tmp_path, register, **sockets) as node, node.client(version) as client:
        client.version()
        node.proxy.wait_for_log(STATE_KNOWN)  # the connection for that is there, too
        connections = len(services.runtime.connections)
        with pytest.raises(grpc.RpcError) as caught:
            client.images()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert client.version().runtime_name == "containerd"
        assert len(services.runtime.connections) == connections, "the client's connection lives"
        end(client, client.run_pod(plain_pod(containerd)))
