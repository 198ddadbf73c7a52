"""The private containerd runs real containers, without any proxy: what other system tests rely on."""

import asyncio
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.engines import cgroups, cri, leftovers, streaming
from tests.engines.containerd import Containerd
from tests.engines.engine import EngineError
from tests.engines.images import BUSYBOX_IMAGE, PAUSE_IMAGE
from tests.fakes.cri_pb2 import CONTAINER_RUNNING, LinuxContainerResources, PodSandboxConfig

pytestmark = pytest.mark.engine

RESOURCES = LinuxContainerResources(
    cpu_shares=512, cpu_quota=50000, cpu_period=100000, memory_limit_in_bytes=64 << 20, cpuset_cpus="0"
)
VALUES = {name: getattr(RESOURCES, name) for name in cgroups.SETTINGS if getattr(RESOURCES, name)}


@pytest.fixture(params=cri.VERSIONS)
def client(containerd: Containerd, request: pytest.FixtureRequest) -> Iterator[cri.CriClient]:
    with cri.CriClient(containerd.socket, request.param) as made:
        yield made


def pod_of(containerd: Containerd) -> PodSandboxConfig:
    uid = uuid.uuid4().hex
    logs = str(containerd.directory(f"logs/{uid}"))
    return cri.pod_config("direct", uid, cgroup_parent=containerd.cgroup_parent(uid), log_directory=logs)


def test_a_container_shows_its_environment_and_cgroup_files(containerd: Containerd, client: cri.CriClient) -> None:
    pod = pod_of(containerd)
    command = ("/bin/sh", "-c", "echo from the container; sleep 3600")
    config = cri.container_config("main", command=command, envs=[("A", b"1"), ("B", b"two words")], resources=RESOURCES)
    pod_id = client.run_pod(pod)
    container_id = client.create(pod_id, config, pod)
    client.start(container_id)

    environment = client.environment(container_id)
    assert (environment["A"], environment["B"], environment["PATH"]) == (b"1", b"two words", b"/bin")
    for setting, value in VALUES.items():
        inside = client.exec_sync(container_id, "cat", cgroups.inside_file(setting)).stdout.decode()
        assert cgroups.parse(setting, inside) == cgroups.expected(setting, value)
        outside = cgroups.read(f"{pod.linux.cgroup_parent}/{container_id}", setting)
        assert outside == cgroups.expected(setting, value)

    status = client.status(container_id)
    assert status.status.state == CONTAINER_RUNNING
    assert json.loads(status.info["info"])["config"]["metadata"] == {"name": "main"}
    assert client.exec_sync(container_id, "/bin/sh", "-c", "exit 7").exit_code == 7
    assert "from the container" in Path(pod.log_directory, "main.log").read_text()

    client.stop(container_id)
    client.remove(container_id)
    client.stop_pod(pod_id)
    client.remove_pod(pod_id)
    assert not [item for item in client.pods() if item.id == pod_id]


def test_an_update_reaches_the_cgroup(containerd: Containerd, client: cri.CriClient) -> None:
    pod = pod_of(containerd)
    pod_id = client.run_pod(pod)
    container_id = client.create(pod_id, cri.container_config("main", resources=RESOURCES), pod)
    client.update(container_id, LinuxContainerResources(cpu_shares=256))  # before its first instruction
    client.start(container_id)
    cgroup = f"{pod.linux.cgroup_parent}/{container_id}"
    assert cgroups.read(cgroup, "cpu_shares") == cgroups.expected("cpu_shares", 256)
    client.update(container_id, LinuxContainerResources(cpu_quota=-1))
    assert cgroups.read(cgroup, "cpu_quota") == -1
    client.stop_pod(pod_id)
    client.remove_pod(pod_id)


async def test_the_streaming_urls_work(containerd: Containerd, client: cri.CriClient) -> None:
    pod = pod_of(containerd)
    pod_id = client.run_pod(pod)
    chatter = ("/bin/sh", "-c", "while true; do echo tick; sleep 0.05; done")
    container_id = client.create(pod_id, cri.container_config("main", command=chatter), pod)
    client.start(container_id)

    executed = await streaming.read_channels(client.exec_url(container_id, "/bin/sh", "-c", "echo out; echo err >&2"))
    assert (executed[streaming.STDOUT], executed[streaming.STDERR]) == (b"out\n", b"err\n")
    assert json.loads(executed[streaming.ERROR])["status"] == "Success"

    attached = await streaming.read_channels(client.attach_url(container_id), until=(streaming.STDOUT, b"tick\n"))
    assert b"tick\n" in attached[streaming.STDOUT]

    server, port = await upper_case_server()
    url = client.port_forward_url(pod_id, port)
    forwarded = await streaming.read_channels(url, until=(streaming.DATA, b"HELLO"), send=b"hello")
    assert forwarded[streaming.DATA] == port.to_bytes(2, "little") + b"HELLO"
    server.close()
    client.stop_pod(pod_id)
    client.remove_pod(pod_id)


async def upper_case_server() -> tuple[asyncio.Server, int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read(100)).upper())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


def test_images_and_errors(containerd: Containerd, client: cri.CriClient) -> None:
    assert {BUSYBOX_IMAGE, PAUSE_IMAGE} <= {tag for image in client.images() for tag in image.repo_tags}
    with pytest.raises(grpc.RpcError) as caught:
        client.start("no-such-container")
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert "runtimeproxy-busybox" in containerd.ctr("images", "ls")
    with pytest.raises(EngineError, match="no-such-task"):
        containerd.ctr("tasks", "kill", "no-such-task")


def test_an_engine_leaves_nothing_behind() -> None:
    with Containerd() as engine:
        pod = pod_of(engine)
        with cri.CriClient(engine.socket) as client:
            pod_id = client.run_pod(pod)
            container_id = client.create(pod_id, cri.container_config("main"), pod)
            client.start(container_id)
        parent = pod.linux.cgroup_parent
        assert cgroups.processes(parent)
        engine.terminate()
        assert cgroups.processes(parent), "containers outlive the daemon alone"
        engine.launch()
        with cri.CriClient(engine.socket) as client:
            assert [item.id for item in client.containers()] == [container_id]
        engine.terminate()  # so that only what the engine itself finds can be ended
    base = str(Path(engine.socket).parent)
    assert not Path(base).exists()
    assert base not in Path("/proc/self/mountinfo").read_text()
    assert not leftovers.processes(base)
    assert not list(cgroups.directories(parent.split("/")[1]))
