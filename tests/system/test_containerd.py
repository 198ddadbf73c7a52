"""Features of containerd alone: streaming URLs, an image service of its own, ctr."""

import hashlib
import re
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engines import cri, streaming
from tests.engines.containerd import Containerd
from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes.faults import FaultRelay
from tests.system.node import serving
from tests.system.proxy import wait_until
from tests.system.real import CONTAINERD, OLD_CRI, Kind, RealNode, on, running

pytestmark = pytest.mark.engine

BOTH = on(CONTAINERD, OLD_CRI)


@BOTH
async def test_streaming_url_works(node: RealNode, client: cri.CriClient) -> None:
    pod = node.plain_pod()
    container_id = client.create(client.run_pod(pod), node.rich_container(), pod)
    client.start(container_id)
    came = await streaming.read_channels(client.exec_url(container_id, "/bin/sh", "-c", "echo out; echo err >&2"))
    assert (came[streaming.STDOUT], came[streaming.STDERR]) == (b"out\n", b"err\n")


# ---- an image service of its own


def replied(relay: FaultRelay, text: str) -> bool:
    return any(text.encode() in connection.to_client for connection in relay.connections)


@BOTH
def test_image_calls_go_to_a_socket_of_their_own(kind: Kind, containerd: Containerd, tmp_path: Path) -> None:
    with (
        serving(FaultRelay(str(tmp_path / "images.sock"), containerd.socket)) as images,
        running(kind, containerd, tmp_path, remote_image_service_endpoint=images.socket_path) as node,
        node.client() as client,
    ):
        assert client.version().runtime_name == "containerd"
        assert BUSYBOX_IMAGE in {tag for image in client.images() for tag in image.repo_tags}
        # A relay records what passed only after it passed.
        wait_until(lambda: replied(images, BUSYBOX_IMAGE), "the image service's relay noted the list")
        assert not replied(images, "containerd")


# ---- ctr, whose services are unknown to the proxy


def runs_a_container(node: RealNode, socket: str, folder: Path) -> str:
    name = f"ctr-{uuid.uuid4().hex[:8]}"
    command = ("/bin/sh", "-c", "echo hello from $$; ls /; exit 0")
    run = ("run", "--rm", "--snapshotter", "native", "--cgroup", node.engine.cgroup_parent(name))
    output = node.engine.ctr(*run, BUSYBOX_IMAGE, name, *command, socket=socket)
    assert name not in node.engine.ctr("containers", "ls", "-q")
    assert output.startswith("hello from ")
    return re.sub(r"\b\d+\b", "N", output.replace(name, "ID"))


def moves_big_content(node: RealNode, socket: str, folder: Path) -> str:
    target = folder / "exported.tar"
    node.engine.ctr("images", "export", str(target), BUSYBOX_IMAGE, socket=socket)
    assert target.stat().st_size > 1 << 20
    imported = node.engine.ctr("images", "import", "--snapshotter", "native", str(target), socket=socket)
    assert BUSYBOX_IMAGE in imported
    return hashlib.sha256(target.read_bytes()).hexdigest()


@on(CONTAINERD)
@pytest.mark.parametrize("scenario", [runs_a_container, moves_big_content])
def test_ctr_does_the_same(node: RealNode, tmp_path: Path, scenario: Callable[[RealNode, str, Path], str]) -> None:
    seen = [scenario(node, socket, tmp_path) for socket in (node.engine.socket, str(node.proxy.socket))]
    assert seen[0] == seen[1]
    assert node.told() == [], "what is no CRI call is handed to no hook server"
