"""ctr, whose services the proxy does not know, finds no difference between the proxy's socket and containerd's."""

import hashlib
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.containerd import Containerd, EngineError
from tests.engines.images import BUSYBOX_IMAGE
from tests.system.node import Node, end, plain_pod, rich_container, running

pytestmark = pytest.mark.engine

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


@pytest.fixture
def node(containerd: Containerd, tmp_path: Path) -> Iterator[Node]:
    with running(containerd, tmp_path) as made:
        yield made


def through(node: Node, *arguments: str) -> str:
    return node.engine.ctr(*arguments, socket=str(node.proxy.socket))


def masked(output: str, *ids: str) -> str:
    for one in ids:
        output = output.replace(one, "ID")
    return re.sub(r"\b\d+\b", "N", output)


def test_what_ctr_reads_is_the_same(node: Node) -> None:
    with node.client() as client:
        pod = plain_pod(node.engine)
        pod_id = client.run_pod(pod)
        container_id = client.create(pod_id, rich_container(), pod)
        client.start(container_id)
        for arguments in READING:
            output = through(node, *arguments)
            assert output.split(), arguments
            # containerd lists tasks and plugins in no fixed order.
            assert sorted(output.splitlines()) == sorted(node.engine.ctr(*arguments).splitlines()), arguments
        for listing in ("containers", "tasks"):
            assert {pod_id, container_id} <= set(through(node, listing, "ls", "-q").split()), listing
        assert container_id in through(node, "containers", "info", container_id)
        end(client, pod_id, container_id)


def test_ctr_runs_a_container(node: Node) -> None:
    outputs = []
    for socket_path in (node.engine.socket, str(node.proxy.socket)):
        name = f"ctr-{uuid.uuid4().hex[:8]}"
        cgroup = node.engine.cgroup_parent(name)
        command = ("/bin/sh", "-c", "echo hello from $$; ls /; exit 0")
        run = ("run", "--rm", "--snapshotter", "native", "--cgroup", cgroup)
        output = node.engine.ctr(*run, BUSYBOX_IMAGE, name, *command, socket=socket_path)
        outputs.append(masked(output, name))
        assert name not in node.engine.ctr("containers", "ls", "-q")
    assert outputs[0] == outputs[1]
    assert outputs[0].startswith("hello from N\nbin\n")
    assert node.told() == [], "what is no CRI call is handed to no hook server"


def test_errors_are_the_same(node: Node) -> None:
    said = []
    for socket_path in (node.engine.socket, str(node.proxy.socket)):
        with pytest.raises(EngineError, match="no-such-container") as caught:
            node.engine.ctr("containers", "info", "no-such-container", socket=socket_path)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_big_content_streams_through(node: Node, tmp_path: Path) -> None:
    digests = []
    for number, socket_path in enumerate((node.engine.socket, str(node.proxy.socket))):
        target = tmp_path / f"{number}.tar"
        node.engine.ctr("images", "export", str(target), BUSYBOX_IMAGE, socket=socket_path)
        assert target.stat().st_size > 1 << 20
        digests.append(hashlib.sha256(target.read_bytes()).hexdigest())
    assert digests[0] == digests[1]
    imported = through(node, "images", "import", "--snapshotter", "native", str(tmp_path / "1.tar"))
    assert BUSYBOX_IMAGE in imported
