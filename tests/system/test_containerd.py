"""Features of containerd alone: streaming URLs, and ctr, whose services are unknown to the proxy."""

import hashlib
import re
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engines import cri, streaming
from tests.engines.images import BUSYBOX_IMAGE
from tests.system.real import CONTAINERD, OLD_CRI, RealNode, on

pytestmark = pytest.mark.engine


@on(CONTAINERD, OLD_CRI)
async def test_streaming_url_works(node: RealNode, client: cri.CriClient) -> None:
    pod = node.plain_pod()
    container_id = client.create(client.run_pod(pod), node.rich_container(), pod)
    client.start(container_id)
    channels = await streaming.read_channels(client.exec_url(container_id, "/bin/sh", "-c", "echo out; echo err >&2"))
    assert (channels[streaming.STDOUT], channels[streaming.STDERR]) == (b"out\n", b"err\n")


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
    assert node.take_calls() == [], "what is no CRI call is handed to no hook server"
