"""The proxy before a real containerd is killed with pods running; and what is gone from containerd leaves the Store."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from runtimeproxy import sync
from tests.engines import cri
from tests.engines.containerd import Containerd
from tests.system import restarted, scaled
from tests.system.keeping import on_tmpfs
from tests.system.node import Node, plain_pod, rich_container, rich_pod, running
from tests.system.proxy import ProxyInside, until

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture
def node(containerd: Containerd, tmp_path: Path) -> Iterator[Node]:
    with running(containerd, tmp_path) as made:
        yield made


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


def pids(client: cri.CriClient, pod_id: str, container_id: str) -> tuple[int, int]:
    """Ask containerd for the process ids of a pod and a container."""
    pod, container = client.pod_status(pod_id), client.status(container_id)
    return json.loads(pod.info["info"])["pid"], json.loads(container.info["info"])["pid"]


def test_after_a_kill_pods_run_on_and_every_hook_message_is_as_the_one_before(node: Node) -> None:
    with node.client() as client:
        restarted.compare(node, client, lambda node, name: rich_pod(node.engine, name), rich_container(), pids)


def test_a_quota_is_scaled_once_over_kills(containerd: Containerd, tmp_path: Path) -> None:
    with (
        on_tmpfs() as memory,
        running(containerd, tmp_path, scaled.keeping(memory)) as node,
        node.client() as client,
    ):
        scaled.over_kills(
            node, client, memory, plain_pod(containerd), lambda name: rich_container(name, cpu_quota=scaled.QUOTA)
        )


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
