"""What is gone from a real dockerd is gone from the Store, whoever removed it; what others changed is read anew."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.engines.dockerd import BUSYBOX, Dockerd
from tests.fakes.cri_pb2 import LinuxContainerResources
from tests.fakes.hookserver import HookServer
from tests.system import docker_told, told
from tests.system.docker_node import Kubelet
from tests.system.proxy import ProxyInside, until

pytestmark = pytest.mark.engine

POD_AND_CONTAINER, POD, NOTHING = (1, 1), (1, 0), (0, 0)


@pytest.fixture
async def inside(dockerd: Dockerd, tmp_path: Path) -> AsyncIterator[ProxyInside]:
    made = ProxyInside(tmp_path, backend_runtime_mode="Docker", remote_runtime_service_endpoint=dockerd.socket)
    with dockerd.restored():
        async with made as proxy:
            await all_heard(dockerd, proxy)  # then the daemon's cgroup driver is known, too, and pods are kept
            yield proxy


async def all_heard(engine: Dockerd, inside: ProxyInside) -> None:
    """Wait until the proxy has heard of something later: events come in order.

    Twice, as what is heard may be one of the two removals that are on their way at most.
    """
    for _ in range(2):
        heard = inside.recorder.counted("backend_events", action="destroy")
        body = json.dumps({"Image": BUSYBOX}).encode()
        made = json.loads(await asyncio.to_thread(engine.request, "POST", "/containers/create", body))["Id"]
        await asyncio.to_thread(engine.request, "DELETE", f"/containers/{made}")
        await until(lambda: inside.recorder.counted("backend_events", action="destroy") > heard, "it is heard")  # noqa: B023


class Made:
    """A pod and its container, made through the proxy; ``direct`` is somebody on dockerd's own socket."""

    def __init__(self, engine: Dockerd, proxy: ProxyInside) -> None:
        self.client, self.direct = Kubelet(str(proxy.socket)), Kubelet(engine.socket)
        self.pod, self.container = docker_told.rich_pod(engine), docker_told.rich_container()
        self.pod_id = self.client.run_pod(self.pod)
        self.container_id = self.client.create(self.pod_id, self.container, self.pod)
        self.name = self.client.shim.inspect(self.container_id)["Name"].removeprefix("/")

    def close(self) -> None:
        """Close both connections."""
        self.client.close()
        self.direct.close()

    def fail_to_remove(self) -> None:
        """Try to remove what runs."""
        self.client.start(self.container_id)
        self.client.docker("rm", self.name, exit_code=1)


@pytest.fixture
async def made(dockerd: Dockerd, inside: ProxyInside) -> AsyncIterator[Made]:
    made = await asyncio.to_thread(Made, dockerd, inside)
    assert inside.store.counts() == POD_AND_CONTAINER
    yield made
    made.close()


WAYS: dict[str, tuple[Callable[[Made], object], tuple[int, int]]] = {
    "the kubelet": (lambda made: made.client.remove(made.container_id), POD),
    "the kubelet, the pod": (lambda made: made.client.remove_pod(made.pod_id), NOTHING),
    "rm by name": (lambda made: made.client.docker("rm", "-f", made.name), POD),
    "rm by short id": (lambda made: made.client.docker("rm", "-f", made.container_id[:12]), POD),
    "rm of both": (lambda made: made.client.docker("rm", "-f", made.container_id[:12], made.pod_id[:12]), NOTHING),
    "prune": (lambda made: made.client.docker("container", "prune", "-f"), POD),
    "direct rm": (lambda made: made.direct.docker("rm", "-f", made.name), POD),
    "direct rm of both": (lambda made: made.direct.docker("rm", "-f", made.name, made.pod_id), NOTHING),
    "direct prune": (lambda made: made.direct.docker("container", "prune", "-f"), POD),
    "direct update": (lambda made: made.direct.docker("update", "--cpu-shares", "99", made.name), POD),
    "rename": (lambda made: made.client.docker("rename", made.name, "another"), POD_AND_CONTAINER),
    "restart": (lambda made: made.client.docker("restart", "-t", "0", made.name), POD_AND_CONTAINER),
    "kill": (lambda made: made.direct.docker("kill", made.pod_id), POD_AND_CONTAINER),
    "rm that fails": (Made.fail_to_remove, POD_AND_CONTAINER),
}
"""What happens to a pod with a container -> how many pods and containers are known when all was heard of it."""


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_known_after(dockerd: Dockerd, inside: ProxyInside, made: Made, way: str) -> None:
    act, left = WAYS[way]
    await asyncio.to_thread(act, made)
    await all_heard(dockerd, inside)
    assert inside.store.counts() == left


async def test_after_a_kill_of_dockerd_its_events_are_followed_again(
    dockerd: Dockerd, inside: ProxyInside, made: Made
) -> None:
    dockerd.kill()
    await until(lambda: inside.recorder.total("backend_event_stream_losses") == 1, "the loss is seen")
    await asyncio.to_thread(dockerd.launch)
    assert inside.store.counts() == POD_AND_CONTAINER
    await asyncio.to_thread(made.direct.docker, "rm", "-f", made.name)
    await until(lambda: inside.store.counts() == POD, "the container is forgotten")


async def test_what_somebody_else_set_is_told(inside: ProxyInside, made: Made, tmp_path: Path) -> None:
    async with HookServer(str(tmp_path / "hooks.sock")) as hooks:
        await asyncio.to_thread(made.direct.docker, "update", "--cpu-shares", "99", made.name)
        await until(lambda: inside.store.counts() == POD, "the container is forgotten")
        inside.register("late.json", hooks.socket_path, ["PostStopContainer"])
        await until(lambda: inside.recorder.total("config_reloads") == 1, "the hook server is known")
        await asyncio.to_thread(made.client.stop, made.container_id)
    changed = told.updated(made.container, LinuxContainerResources(cpu_shares=99))
    assert [call.request for call in hooks.calls] == [told.of_container(made.pod, changed, made.container_id)]
