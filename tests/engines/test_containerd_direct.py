"""The private containerd runs real containers, without any proxy: what other system tests rely on."""

import asyncio
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture
def client(containerd: Containerd) -> Iterator[cri.CriClient]:
    with containerd.restored(), cri.CriClient(containerd.socket) as made:
        yield made


def pod_of(containerd: Containerd) -> PodSandboxConfig:
    uid = uuid.uuid4().hex
    logs = str(containerd.directory(f"logs/{uid}"))
    return cri.pod_config("direct", uid, cgroup_parent=containerd.cgroup_parent(uid), log_directory=logs)


def test_container_shows_its_cgroup_files_and_its_log(containerd: Containerd, client: cri.CriClient) -> None:
    pod = pod_of(containerd)
    config = cri.container_config("main", command=("/bin/sh", "-c", "echo said; sleep 3600"), resources=RESOURCES)
    pod_id = client.run_pod(pod)
    container_id = client.create(pod_id, config, pod)
    client.update(container_id, LinuxContainerResources(cpu_shares=256))  # before its first instruction
    client.start(container_id)
    cgroup = f"{pod.linux.cgroup_parent}/{container_id}"
    for setting, value in {**VALUES, "cpu_shares": 256}.items():
        inside = client.exec_sync(container_id, "cat", cgroups.inside_file(setting)).stdout.decode()
        assert cgroups.parse(setting, inside) == cgroups.expected(setting, value)
        assert cgroups.read(cgroup, setting) == cgroups.expected(setting, value)
    client.update(container_id, LinuxContainerResources(cpu_quota=-1))
    assert cgroups.read(cgroup, "cpu_quota") == -1
    assert client.environment(container_id)["PATH"] == b"/bin"
    assert client.status(container_id).status.state == CONTAINER_RUNNING
    assert client.exec_sync(container_id, "/bin/sh", "-c", "exit 7").exit_code == 7
    assert "said" in Path(pod.log_directory, "main.log").read_text()


async def test_streaming_urls_work(containerd: Containerd, client: cri.CriClient) -> None:
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


async def upper_case_server() -> tuple[asyncio.Server, int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read(100)).upper())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


def test_images_are_there_and_ctr_tells_its_errors(containerd: Containerd, client: cri.CriClient) -> None:
    assert {BUSYBOX_IMAGE, PAUSE_IMAGE} <= {tag for image in client.images() for tag in image.repo_tags}
    assert "runtimeproxy-busybox" in containerd.ctr("images", "ls")
    with pytest.raises(EngineError, match="no-such-task"):
        containerd.ctr("tasks", "kill", "no-such-task")


def test_engine_leaves_nothing_behind() -> None:
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
