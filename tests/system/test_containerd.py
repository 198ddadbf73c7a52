"""What only containerd has: execs and streaming URLs, an image service of its own, ctr, removals that are not told."""

import hashlib
import re
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.engines import cri, streaming
from tests.engines.containerd import Containerd, EngineError
from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes.faults import FaultRelay
from tests.system.node import serving
from tests.system.proxy import wait_until
from tests.system.real import CONTAINERD, OLD_CRI, Kind, RealNode, on, running

pytestmark = pytest.mark.engine

BOTH = on(CONTAINERD, OLD_CRI)
ONE = on(CONTAINERD)


@BOTH
async def test_streaming_url_works(node: RealNode, client: cri.CriClient) -> None:
    pod = node.plain_pod()
    container_id = client.create(client.run_pod(pod), node.rich_container(), pod)
    client.start(container_id)
    came = await streaming.read_channels(client.exec_url(container_id, "/bin/sh", "-c", "echo out; echo err >&2"))
    assert (came[streaming.STDOUT], came[streaming.STDERR]) == (b"out\n", b"err\n")


# ---- an image service of its own


def replied(relay: FaultRelay, text: bytes) -> bool:
    return any(text in connection.to_client for connection in relay.connections)


@BOTH
def test_image_calls_go_to_a_socket_of_their_own(kind: Kind, containerd: Containerd, tmp_path: Path) -> None:
    name = BUSYBOX_IMAGE.encode()
    relays = (FaultRelay(str(tmp_path / f"{service}.sock"), containerd.socket) for service in ("runtime", "images"))
    with ExitStack() as stack:
        runtime, images = (stack.enter_context(serving(relay)) for relay in relays)
        flags = {"runtime": runtime.listen, "remote_image_service_endpoint": images.listen}
        node = stack.enter_context(running(kind, containerd, tmp_path, **flags))
        client = stack.enter_context(node.client())
        client.version()
        assert BUSYBOX_IMAGE in {tag for image in client.images() for tag in image.repo_tags}
        # A relay notes what passed just after it passed.
        wait_until(lambda: replied(runtime, b"containerd"), "the runtime's relay noted the version")
        wait_until(lambda: replied(images, name), "the image service's relay noted the list")
        assert not replied(runtime, name)
        assert not replied(images, b"containerd")
        pod = node.plain_pod()
        client.start(client.create(client.run_pod(pod), node.rich_container(), pod))
        points = ["PreRunPodSandbox", "PreCreateContainer", "PreStartContainer", "PostStartContainer"]
        assert [point for point, _ in node.told()] == points


# ---- ctr, whose services the proxy does not know

READING = (
    ("version",),
    ("namespaces", "ls"),
    ("images", "ls"),
    ("containers", "ls"),
    ("tasks", "ls"),
    ("content", "ls", "-q"),
    ("plugins", "ls"),
    ("snapshots", "--snapshotter", "native", "ls"),
)


def through(node: RealNode, *arguments: str) -> str:
    return node.engine.ctr(*arguments, socket=str(node.proxy.socket))


@ONE
def test_what_ctr_reads_is_the_same(node: RealNode) -> None:
    with node.client() as client:
        pod = node.plain_pod()
        pod_id = client.run_pod(pod)
        container_id = client.create(pod_id, node.rich_container(), pod)
        client.start(container_id)
        for arguments in READING:
            output = through(node, *arguments)
            assert output.split(), arguments
            # containerd lists tasks and plugins in no fixed order.
            assert sorted(output.splitlines()) == sorted(node.engine.ctr(*arguments).splitlines()), arguments
        for listing in ("containers", "tasks"):
            assert {pod_id, container_id} <= set(through(node, listing, "ls", "-q").split()), listing
        assert container_id in through(node, "containers", "info", container_id)


def runs_a_container(node: RealNode, socket: str, folder: Path) -> str:
    name = f"ctr-{uuid.uuid4().hex[:8]}"
    command = ("/bin/sh", "-c", "echo hello from $$; ls /; exit 0")
    run = ("run", "--rm", "--snapshotter", "native", "--cgroup", node.engine.cgroup_parent(name))
    output = node.engine.ctr(*run, BUSYBOX_IMAGE, name, *command, socket=socket)
    assert name not in node.engine.ctr("containers", "ls", "-q")
    assert output.startswith("hello from ")
    return re.sub(r"\b\d+\b", "N", output.replace(name, "ID"))


def fails(node: RealNode, socket: str, folder: Path) -> str:
    with pytest.raises(EngineError, match="no-such-container") as caught:
        node.engine.ctr("containers", "info", "no-such-container", socket=socket)
    return str(caught.value)


def moves_big_content(node: RealNode, socket: str, folder: Path) -> str:
    target = folder / "exported.tar"
    node.engine.ctr("images", "export", str(target), BUSYBOX_IMAGE, socket=socket)
    assert target.stat().st_size > 1 << 20
    imported = node.engine.ctr("images", "import", "--snapshotter", "native", str(target), socket=socket)
    assert BUSYBOX_IMAGE in imported
    return hashlib.sha256(target.read_bytes()).hexdigest()


@ONE
@pytest.mark.parametrize("scenario", [runs_a_container, fails, moves_big_content])
def test_what_ctr_does_is_the_same(
    node: RealNode, tmp_path: Path, scenario: Callable[[RealNode, str, Path], str]
) -> None:
    seen = [scenario(node, socket, tmp_path) for socket in (node.engine.socket, str(node.proxy.socket))]
    assert seen[0] == seen[1]
    assert node.told() == [], "what is no CRI call is handed to no hook server"
