"""The dockershim client sends what dockershim and cri-dockerd send, and makes pods on the fake dockerd."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.engines.images import PAUSE_IMAGE
from tests.fakes.dockerd import FakeDockerd, Injection
from tests.fakes.dockershim import CRI_DOCKERD, DOCKERSHIM, DockerError, Dockershim, Generation

MIB = 1 << 20
UID = "6f1c2b60-8a55-4c0a-9d2e-3b1f0a6c7d10"
CGROUP_PARENT = f"/kubepods/burstable/pod{UID}"
GO_HEADERS = (("Host", "api.moby.localhost"), ("User-Agent", "Go-http-client/1.1"))
JSON = ("Content-Type", "application/json")
RECORDED_UPDATE = (
    b'{"CpuShares":256,"Memory":0,"NanoCpus":0,"CgroupParent":"","BlkioWeight":0,"BlkioWeightDevice":null,'
    b'"BlkioDeviceReadBps":null,"BlkioDeviceWriteBps":null,"BlkioDeviceReadIOps":null,"BlkioDeviceWriteIOps":null,'
    b'"CpuPeriod":0,"CpuQuota":0,"CpuRealtimePeriod":0,"CpuRealtimeRuntime":0,"CpusetCpus":"0","CpusetMems":"",'
    b'"Devices":null,"DeviceCgroupRules":null,"DeviceRequests":null,"MemoryReservation":0,"MemorySwap":0,'
    b'"MemorySwappiness":null,"OomKillDisable":null,"PidsLimit":null,"Ulimits":null,"CpuCount":0,"CpuPercent":0,'
    b'"IOMaximumIOps":0,"IOMaximumBandwidth":0,"RestartPolicy":{"Name":"","MaximumRetryCount":0}}\n'
)
"""As cri-dockerd sent it."""

Value = TypeVar("Value")


@pytest.fixture
async def dockerd(tmp_path: Path) -> AsyncIterator[FakeDockerd]:
    async with FakeDockerd(str(tmp_path / "docker.sock")) as fake:
        yield fake


async def play(
    dockerd: FakeDockerd, scene: Callable[[Dockershim], Value], generation: Generation = CRI_DOCKERD
) -> Value:
    """Run a scene with a shim, in a thread."""

    def run() -> Value:
        with Dockershim(dockerd.socket_path, generation) as shim:
            return scene(shim)

    return await asyncio.to_thread(run)


def sandbox(shim: Dockershim) -> str:
    return shim.run_pod_sandbox(
        "web-0", UID, labels={"app": "web"}, annotations={"a/b": "<c>"}, cgroup_parent=CGROUP_PARENT
    )


def life(shim: Dockershim) -> tuple[str, str]:
    pod = sandbox(shim)
    resources = {"cpu_shares": 512, "memory_limit_in_bytes": 256 * MIB, "cpuset_cpus": "0-1", "oom_score_adj": 968}
    envs = [("A", "1=2"), ("EMPTY", ""), ("A", "again")]
    container = shim.create_container(pod, "main", attempt=2, envs=envs, annotations={"note": "x"}, resources=resources)
    shim.start_container(container)
    assert shim.exec_sync(container, ["echo", "hi"]) == (0, b"hi\n", b"")
    shim.update_container_resources(container, {"cpu_shares": 256, "cpuset_cpus": "0"})
    return pod, container


async def test_container_is_made_as_the_shim_makes_it(dockerd: FakeDockerd) -> None:
    pod, container = await play(dockerd, life)
    made = dockerd.container(container)
    assert made.name == f"k8s_main_web-0_default_{UID}_2"
    assert made.config["Env"] == ["A=1=2", "EMPTY=", "A=again", "PATH=/bin"]
    labels = {"io.kubernetes.sandbox.id": pod, "annotation.note": "x", "io.kubernetes.docker.type": "container"}
    assert labels.items() <= made.config["Labels"].items()
    host = {"Memory": 256 * MIB, "MemorySwap": 256 * MIB, "CpuShares": 256, "CpusetCpus": "0", "OomScoreAdj": 968}
    host |= {"CgroupParent": CGROUP_PARENT, "NetworkMode": f"container:{pod}"}
    assert host.items() <= made.host.items()
    parent = dockerd.container(pod)
    assert (parent.name, parent.host["OomScoreAdj"]) == (f"k8s_POD_web-0_default_{UID}_0", -998)
    assert parent.config["Labels"] == {
        "annotation.a/b": "<c>",
        "app": "web",
        "io.kubernetes.container.name": "POD",
        "io.kubernetes.docker.type": "podsandbox",
        "io.kubernetes.pod.name": "web-0",
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": UID,
    }


async def test_requests_are_those_of_the_go_client(dockerd: FakeDockerd) -> None:
    await play(dockerd, life)
    assert [received.route for received in dockerd.received][:14] == [
        "HEAD /_ping",
        "GET /info",
        "GET /images/{ref}/json",
        "POST /containers/create",
        "POST /containers/{ref}/start",
        "GET /containers/{ref}/json",
        "GET /containers/{ref}/json",
        "POST /containers/create",
        "POST /containers/{ref}/start",
        "GET /containers/{ref}/json",
        "GET /containers/{ref}/json",
        "POST /containers/{ref}/exec",
        "POST /exec/{ref}/start",
        "GET /exec/{ref}/json",
    ]
    for received in dockerd.received:
        length = ("Content-Length", str(len(received.body)))
        more: tuple[tuple[str, str], ...] = {"POST": (length, JSON) if received.body else (length,)}.get(
            received.method, ()
        )
        if received.route == "POST /exec/{ref}/start":
            more = (length, ("Connection", "Upgrade"), JSON, ("Upgrade", "tcp"))
            assert received.body == b'{"Detach":false,"Tty":false}\n'
            assert received.early_bytes == 0
        assert received.headers == (*GO_HEADERS, *more)
    [update] = dockerd.requests("POST /containers/{ref}/update")
    assert update.body == RECORDED_UPDATE
    sandbox_create, container_create = dockerd.requests("POST /containers/create")
    assert b'"annotation.a/b":"\\u003cc\\u003e"' in sandbox_create.body
    assert b'"PortBindings":{},"RestartPolicy":{"Name":"","MaximumRetryCount":0},' in sandbox_create.body
    assert b'"Healthcheck":{"Test":["NONE"]},"Image"' in container_create.body
    assert container_create.body.endswith(b'"ReadonlyPaths":null},"NetworkingConfig":null}\n')


async def test_older_shim_differs(tmp_path: Path) -> None:
    async with FakeDockerd(str(tmp_path / "docker.sock"), api="1.39") as fake:
        _, container = await play(fake, life, DOCKERSHIM)
        assert [received.target.split("/")[1] for received in fake.received][:2] == ["_ping", "v1.39"]
        assert fake.received[0].method == "GET"
        assert {received.head.get("Host") for received in fake.received} == {"docker"}
        routes = [received.route for received in fake.received]
        assert routes[5:7] == ["GET /containers/{ref}/json", "POST /containers/create"]
        created = json.loads(fake.requests("POST /containers/create")[1].body)
        assert "Runtime" not in created["HostConfig"]

        def grow(shim: Dockershim) -> None:
            shim.update_container_resources(container, {"memory_limit_in_bytes": 128 * MIB})

        await play(fake, grow, DOCKERSHIM)
        assert json.loads(fake.received[-1].body)["MemorySwap"] == 0
        await play(fake, grow)
        assert json.loads(fake.received[-1].body)["MemorySwap"] == 128 * MIB


async def test_systemd_driver_gets_the_last_element(tmp_path: Path) -> None:
    def systemd(shim: Dockershim) -> None:
        parents = "/kubepods.slice/kubepods-burstable.slice"
        pod = shim.run_pod_sandbox("web", "u1", cgroup_parent=f"{parents}/kubepods-burstable-podu1.slice")
        shim.create_container(pod, "main")

    async with FakeDockerd(str(tmp_path / "docker.sock"), cgroup_driver="systemd") as fake:
        await play(fake, systemd)
        parents = {container.host["CgroupParent"] for container in fake.state.containers.values()}
        assert parents == {"kubepods-burstable-podu1.slice"}


async def test_missing_image_is_pulled(dockerd: FakeDockerd) -> None:
    dockerd.state.images.by_name.clear()
    await play(dockerd, sandbox)
    [pull] = dockerd.requests("POST /images/create")
    assert pull.head.query == {"fromImage": PAUSE_IMAGE.rpartition(":")[0], "tag": "1"}
    assert pull.head.get("X-Registry-Auth") == "e30="
    dockerd.feed("POST /images/create").say(b'{"errorDetail":{"message":"denied"},"error":"denied"}\r\n')
    dockerd.feed("POST /images/create").end()
    with pytest.raises(DockerError, match="denied"):
        await play(dockerd, lambda shim: shim.pull_image("other"))
    dockerd.inject("GET /images/{ref}/json", Injection(status=500, message="no disk"))
    with pytest.raises(DockerError, match="500: no disk"):
        await play(dockerd, lambda shim: shim.ensure_image("other"))


async def test_taken_name_is_freed_and_the_call_fails(dockerd: FakeDockerd) -> None:
    await play(dockerd, sandbox)
    [owner] = dockerd.state.containers
    dockerd.state.stop(owner)
    with pytest.raises(DockerError, match=f'is already in use by container "{owner}"') as caught:
        await play(dockerd, sandbox)
    assert caught.value.status == 409
    assert not dockerd.state.containers
    assert dockerd.received[-1].target == f"/v1.41/containers/{owner}?v=1"
    await play(dockerd, sandbox)
    with pytest.raises(DockerError, match="already in use"):  # it runs: the DELETE without force fails, too
        await play(dockerd, sandbox)
    assert len(dockerd.state.containers) == 1


async def test_name_of_a_gone_owner_is_avoided(dockerd: FakeDockerd) -> None:
    await play(dockerd, sandbox)
    dockerd.inject("DELETE /containers/{ref}", Injection(status=404, message="No such container: x"))
    pod = await play(dockerd, sandbox)
    name = dockerd.container(pod).name.split("_")
    assert (len(name), name[5], len(name[6])) == (7, "0", 8)
