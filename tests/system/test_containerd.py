"""What only containerd has: execs and streaming URLs, an image service of its own, ctr, removals that are not told."""

import asyncio
import hashlib
import re
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import grpc
import pytest

from runtimeproxy import sync
from tests.engines import cri, streaming
from tests.engines.containerd import Containerd, EngineError
from tests.engines.images import BUSYBOX_IMAGE
from tests.engines.test_containerd_direct import upper_case_server
from tests.fakes.cri_pb2 import CONTAINER_EXITED
from tests.fakes.faults import FaultRelay
from tests.system.node import MIB, end, plain_pod, rich_container, serving, told_by_first_act
from tests.system.proxy import STATE_KNOWN, ProxyInside, until, wait_until
from tests.system.real import CONTAINERD, OLD_CRI, Kind, RealNode, on, running

pytestmark = pytest.mark.engine

BOTH = on(CONTAINERD, OLD_CRI)
ONE = on(CONTAINERD)


@BOTH
def test_execs_logs_and_exit_codes(node: RealNode, client: cri.CriClient) -> None:
    pod, container = node.rich_pod(), node.rich_container()
    pod_id = client.run_pod(pod)
    container_id = client.create(pod_id, container, pod)
    client.start(container_id)
    done = client.exec_sync(container_id, "/bin/sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.stderr, done.exit_code) == (b"out\n", b"err\n", 7)
    big = client.exec_sync(container_id, "head", "-c", str(3 * MIB), "/dev/zero")
    assert (big.stdout, big.exit_code) == (bytes(3 * MIB), 0)
    told_by_first_act(pod)
    lines = Path(pod.log_directory, "main.log").read_text().splitlines()
    assert [line.split(" ", 3)[1:] for line in lines][-1] == ["stdout", "F", "first=done"]
    client.stop(container_id)
    status = client.status(container_id).status
    assert (status.state, status.exit_code) == (CONTAINER_EXITED, 137)


@BOTH
async def test_the_streaming_urls_work(node: RealNode, client: cri.CriClient) -> None:
    pod = node.rich_pod()
    pod_id = client.run_pod(pod)
    chatter = ("/bin/sh", "-c", "while true; do echo tick; sleep 0.05; done")
    container_id = client.create(pod_id, cri.container_config("main", command=chatter), pod)
    client.start(container_id)

    executed = await streaming.read_channels(client.exec_url(container_id, "/bin/sh", "-c", "echo out; echo err >&2"))
    assert (executed[streaming.STDOUT], executed[streaming.STDERR]) == (b"out\n", b"err\n")
    attached = await streaming.read_channels(client.attach_url(container_id), until=(streaming.STDOUT, b"tick\n"))
    assert b"tick\n" in attached[streaming.STDOUT]

    server, port = await upper_case_server()
    url = await asyncio.to_thread(client.port_forward_url, pod_id, port)
    forwarded = await streaming.read_channels(url, until=(streaming.DATA, b"HELLO"), send=b"hello")
    assert forwarded[streaming.DATA] == port.to_bytes(2, "little") + b"HELLO"
    server.close()


# ---- an image service of its own


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


def before(
    kind: Kind, engine: Containerd, folder: Path, services: Services, images: str
) -> AbstractContextManager[RealNode]:
    """Run a proxy whose image service is at a socket of its own."""
    runtime = services.runtime.listen
    return running(kind, engine, folder, runtime=runtime, remote_image_service_endpoint=images)


@BOTH
def test_image_calls_go_to_a_socket_of_their_own(
    kind: Kind, containerd: Containerd, tmp_path: Path, services: Services
) -> None:
    name = BUSYBOX_IMAGE.encode()
    with before(kind, containerd, tmp_path, services, services.images.listen) as node, node.client() as client:
        client.version()
        assert BUSYBOX_IMAGE in {tag for image in client.images() for tag in image.repo_tags}
        # A relay notes what passed just after it passed.
        wait_until(lambda: replied(services.runtime, b"containerd"), "the runtime's relay noted the version")
        wait_until(lambda: replied(services.images, name), "the image service's relay noted the list")
        assert not replied(services.runtime, name)
        assert not replied(services.images, b"containerd")

        pod = node.plain_pod()
        pod_id = client.run_pod(pod)
        container_id = client.create(pod_id, node.rich_container(), pod)
        client.start(container_id)
        assert [point for point, _ in node.told()] == [
            "PreRunPodSandbox",
            "PreCreateContainer",
            "PreStartContainer",
            "PostStartContainer",
        ]


@BOTH
def test_without_the_image_service_the_runtime_is_served(
    kind: Kind, containerd: Containerd, tmp_path: Path, services: Services
) -> None:
    nobody = str(tmp_path / "nobody.sock")
    with before(kind, containerd, tmp_path, services, nobody) as node, node.client() as client:
        client.version()
        node.proxy.wait_for_log(STATE_KNOWN)  # the connection for that is there, too
        connections = len(services.runtime.connections)
        with pytest.raises(grpc.RpcError) as caught:
            client.images()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert client.version().runtime_name == "containerd"
        assert len(services.runtime.connections) == connections, "the client's connection lives"
        end(client, client.run_pod(node.plain_pod()))


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


def masked(output: str, *ids: str) -> str:
    for one in ids:
        output = output.replace(one, "ID")
    return re.sub(r"\b\d+\b", "N", output)


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


@ONE
def test_ctr_runs_a_container(node: RealNode) -> None:
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


@ONE
def test_errors_are_the_same(node: RealNode) -> None:
    said = []
    for socket_path in (node.engine.socket, str(node.proxy.socket)):
        with pytest.raises(EngineError, match="no-such-container") as caught:
            node.engine.ctr("containers", "info", "no-such-container", socket=socket_path)
        said.append(str(caught.value))
    assert said[0] == said[1]


@ONE
def test_big_content_streams_through(node: RealNode, tmp_path: Path) -> None:
    digests = []
    for number, socket_path in enumerate((node.engine.socket, str(node.proxy.socket))):
        target = tmp_path / f"{number}.tar"
        node.engine.ctr("images", "export", str(target), BUSYBOX_IMAGE, socket=socket_path)
        assert target.stat().st_size > 1 << 20
        digests.append(hashlib.sha256(target.read_bytes()).hexdigest())
    assert digests[0] == digests[1]
    imported = through(node, "images", "import", "--snapshotter", "native", str(tmp_path / "1.tar"))
    assert BUSYBOX_IMAGE in imported


# ---- what is gone from containerd leaves the Store


@pytest.fixture
async def inside(containerd: Containerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ProxyInside]:
    """A proxy that sweeps all the time."""
    monkeypatch.setattr(sync, "PASS_SECONDS", 0.2)
    monkeypatch.setattr(sync, "SOONEST_SECONDS", 0.05)
    socket = containerd.socket
    async with ProxyInside(
        tmp_path, remote_runtime_service_endpoint=socket, remote_image_service_endpoint=socket
    ) as proxy:
        yield proxy


def listed(containerd: Containerd) -> set[str]:
    """Return what containerd has, by its own word."""
    with cri.CriClient(containerd.socket) as direct:
        return {pod.id for pod in direct.pods()} | {container.id for container in direct.containers()}


class Made:
    """A pod with two containers, made through the proxy."""

    def __init__(self, containerd: Containerd, proxy: ProxyInside) -> None:
        pod = plain_pod(containerd)
        with cri.CriClient(str(proxy.socket)) as client:
            self.pod_id = client.run_pod(pod)
            self.ids = [client.create(self.pod_id, rich_container(name), pod) for name in ("first", "second")]

    @property
    def all(self) -> set[str]:
        return {self.pod_id, *self.ids}


def remove_directly(containerd: Containerd, made: Made) -> None:
    """Remove a container as crictl does it on containerd's own socket."""
    with cri.CriClient(containerd.socket) as direct:
        direct.remove(made.ids[0])


def remove_by_ctr(containerd: Containerd, made: Made) -> None:
    """Remove a container behind CRI's back, which hears of it at the next start of containerd at the latest."""
    containerd.ctr("containers", "rm", made.ids[0])
    containerd.terminate()
    containerd.launch()


def remove_pod_directly(containerd: Containerd, made: Made) -> None:
    """Remove all of it on containerd's own socket."""
    with cri.CriClient(containerd.socket) as direct:
        direct.stop_pod(made.pod_id)
        direct.remove_pod(made.pod_id)


@pytest.mark.slow
@pytest.mark.parametrize("remove", [remove_directly, remove_by_ctr, remove_pod_directly])
async def test_what_somebody_else_removed_is_swept(containerd: Containerd, inside: ProxyInside, remove: object) -> None:
    made = await asyncio.to_thread(Made, containerd, inside)
    assert inside.store.ids() == made.all
    await asyncio.to_thread(remove, containerd, made)  # type: ignore[arg-type]
    left = await asyncio.to_thread(listed, containerd) & made.all
    assert made.ids[0] not in left
    await until(lambda: inside.store.ids() == left, "the Store has what containerd has")
    if left:
        await asyncio.to_thread(remove_pod_directly, containerd, made)
    await until(lambda: inside.store.ids() == set(), "nothing is left")
