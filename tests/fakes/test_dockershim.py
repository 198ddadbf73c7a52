"""The dockershim client sends what dockershim and cri-dockerd send, according to recorded requests."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.fakes.dockerd import FakeDockerd
from tests.fakes.dockershim import CRI_DOCKERD, DOCKERSHIM, Dockershim, Generation

MIB = 1 << 20
UID = "6f1c2b60-8a55-4c0a-9d2e-3b1f0a6c7d10"
SLICE = "kubepods-burstable-podu1.slice"
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


async def play(dockerd: FakeDockerd, scene: Callable[[Dockershim], Value], kind: Generation = CRI_DOCKERD) -> Value:
    """Run a scene with a shim, in a thread."""

    def run() -> Value:
        with Dockershim(dockerd.socket_path, kind) as shim:
            return scene(shim)

    return await asyncio.to_thread(run)


def sandbox(shim: Dockershim) -> str:
    return shim.run_pod_sandbox("web-0", UID, annotations={"a/b": "<c>"}, cgroup_parent=f"/kubepods.slice/{SLICE}")


def life(shim: Dockershim) -> str:
    pod = sandbox(shim)
    resources = {"cpu_shares": 512, "memory_limit_in_bytes": 256 * MIB, "oom_score_adj": 968}
    container = shim.create_container(pod, "main", attempt=2, envs=[("A", "1=2"), ("A", "")], resources=resources)
    shim.start_container(container)
    assert shim.exec_sync(container, ["echo", "hi"]) == (0, b"hi\n", b"")
    shim.update_container_resources(container, {"cpu_shares": 256, "cpuset_cpus": "0"})
    return container


async def test_requests_are_those_of_the_go_client(dockerd: FakeDockerd) -> None:
    made = dockerd.container(await play(dockerd, life))
    assert (made.name, made.config["Env"]) == (f"k8s_main_web-0_default_{UID}_2", ["A=1=2", "A=", "PATH=/bin"])
    assert (made.host["MemorySwap"], made.host["OomScoreAdj"]) == (256 * MIB, 968)
    assert [received.route for received in dockerd.received] == [
        *("HEAD /_ping", "GET /info", "GET /images/{ref}/json", "POST /containers/create"),
        *("POST /containers/{ref}/start", "GET /containers/{ref}/json", "GET /containers/{ref}/json"),
        *("POST /containers/create", "POST /containers/{ref}/start", "GET /containers/{ref}/json"),
        *("GET /containers/{ref}/json", "POST /containers/{ref}/exec", "POST /exec/{ref}/start"),
        *("GET /exec/{ref}/json", "POST /containers/{ref}/update"),
    ]
    for received in dockerd.received:
        length = (("Content-Length", str(len(received.body))),) if received.method == "POST" else ()
        kind = (JSON,) if received.body else ()
        if received.route == "POST /exec/{ref}/start":
            kind = (("Connection", "Upgrade"), JSON, ("Upgrade", "tcp"))
            assert received.body == b'{"Detach":false,"Tty":false}\n'
        host = (("Host", "api.moby.localhost"), ("User-Agent", "Go-http-client/1.1"))
        assert received.headers == (*host, *length, *kind)
    assert dockerd.received[-1].body == RECORDED_UPDATE
    sandbox_create, container_create = dockerd.requests("POST /containers/create")
    assert b'"annotation.a/b":"\\u003cc\\u003e"' in sandbox_create.body
    assert b'"PortBindings":{},"RestartPolicy":{"Name":"","MaximumRetryCount":0},' in sandbox_create.body
    assert b'"Healthcheck":{"Test":["NONE"]},"Image"' in container_create.body
    assert container_create.body.endswith(b'"ReadonlyPaths":null},"NetworkingConfig":null}\n')


async def test_older_shim_differs(tmp_path: Path) -> None:
    async with FakeDockerd(str(tmp_path / "docker.sock"), api="1.39", cgroup_driver="systemd") as fake:
        container = await play(fake, life, DOCKERSHIM)
        first, second, *_ = fake.received
        assert (first.method, first.target, second.target) == ("GET", "/_ping", "/v1.39/info")
        assert {received.head.get("Host") for received in fake.received} == {"docker"}
        assert fake.container(container).host["CgroupParent"] == SLICE, "systemd's driver gets the last element"
        assert "Runtime" not in json.loads(fake.requests("POST /containers/create")[1].body)["HostConfig"]
        for kind, swap in ((DOCKERSHIM, 0), (CRI_DOCKERD, 300 * MIB)):
            grown = {"memory_limit_in_bytes": 128 * MIB if kind is DOCKERSHIM else 300 * MIB}
            await play(fake, lambda shim, grown=grown: shim.update_container_resources(container, grown), kind)
            assert json.loads(fake.received[-1].body)["MemorySwap"] == swap
