"""What the kubelet asked for outlives the proxy, however that ends, on each front: scaled once is scaled once."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.amounts import RESTARTED_PODS
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.fronts import CONTAINER, PARENT, POD, Caller, Front, Runtime
from tests.system.keeping import file_of, mode_of, on_tmpfs, rows
from tests.system.proxy import STATE_KNOWN, ProxyProcess, until
from tests.system.test_restart import CHANGES, HOOKED_PARENT

pytestmark = pytest.mark.slow

KILLS = 5
QUOTA, CHANGED_QUOTA = 400_000, 300_000


def scaled(quota: int) -> int:
    """Return a quota on CPUs that are 1.5 times as fast, as koordlet computes it."""
    return -(-quota * 2 // 3)


def scale(response: Any) -> None:
    if response.container_resources.cpu_quota > 0:
        response.container_resources.cpu_quota = scaled(response.container_resources.cpu_quota)


SCALING = {point: hookanswers.echo(scale) for point in ("PreCreateContainer", "PreUpdateContainerResources")}


class Node:
    """A proxy as a program between a fake runtime and a kubelet, with a hook server, and a file on tmpfs."""

    def __init__(self, front: Front, folder: Path, memory: Path, answers: dict[str, hookanswers.Answer]) -> None:
        self.proxy: ProxyProcess = front.process(folder, originals_dir=str(memory))
        self.file = file_of(memory, self.proxy.socket)
        self.runtime: Runtime = front.runtime(str(self.proxy.runtime))
        self.hooks = HookServer(str(folder / "hooks.sock"), answers)
        self.proxy.register("tester.json", self.hooks.socket_path)
        self.pods: dict[str, Any] = {}
        self._front = front

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Node"]:
        async with self.runtime, self.hooks, self.proxy:
            yield self

    @asynccontextmanager
    async def caller(self) -> AsyncIterator[Caller]:
        """Lend a kubelet that knows its pods."""
        async with self._front.caller(self.proxy.socket) as caller:
            caller.pods = self.pods
            yield caller

    async def kept(self, *ids: str) -> None:
        """Wait until something is kept of these, and of no others."""
        await until(lambda: rows(self.file).keys() == set(ids), "they are kept", lambda: str(rows(self.file)))

    async def restart(self, *, kill: bool = True, known: bool = True) -> None:
        """End the proxy and start it again."""
        written = len(self.proxy.output())
        await asyncio.to_thread(self.proxy.kill if kill else self.proxy.stop)
        await asyncio.to_thread(self.proxy.start)
        if known:
            await until(lambda: STATE_KNOWN in self.proxy.output()[written:], "the state is read", self.proxy.output)
        self.hooks.calls.clear()

    def told(self) -> list[tuple[str, Any]]:
        """Return what the hook server was told since the last time."""
        told = [(call.point.name, call.request) for call in self.hooks.calls]
        self.hooks.calls.clear()
        return told

    async def quotas(self, caller: Caller, container_id: str) -> tuple[int, int]:
        """Change the cpuset alone; return the quota that is told as the kubelet's, and the one that is in force."""
        self.told()
        await caller.update(container_id, {"cpuset_cpus": "0"})
        await caller.act("stop", container_id)
        (_, update), (_, stop) = self.told()
        return update.container_resources.cpu_quota, stop.container_resources.cpu_quota


@pytest.fixture
def memory() -> Iterator[Path]:
    with on_tmpfs() as folder:
        yield folder


def with_quota(quota: int) -> Any:
    return replace(CONTAINER, resources={**CONTAINER.resources, "cpu_quota": quota})


@pytest.mark.parametrize("known", [True, False], ids=["known", "at once"])
async def test_a_quota_is_scaled_once_over_kills(front: Front, tmp_path: Path, memory: Path, known: bool) -> None:
    async with Node(front, tmp_path, memory, SCALING).running() as node:
        async with node.caller() as caller:
            pod_id = await caller.run_pod()
            created = await caller.create(pod_id, with_quota(QUOTA))
            updated = await caller.create(pod_id, with_quota(QUOTA))
            await caller.update(updated, {"cpu_quota": CHANGED_QUOTA})
            await node.kept(created, updated)
            await until(
                lambda: rows(node.file)[updated]["resources.cpu_quota"] == [CHANGED_QUOTA, scaled(CHANGED_QUOTA)],
                "the update is kept",
            )
        asked = len(node.runtime.asked("update"))
        for _ in range(KILLS):
            await node.restart(known=known)
            async with node.caller() as caller:
                assert await node.quotas(caller, created) == (QUOTA, scaled(QUOTA))
                assert await node.quotas(caller, updated) == (CHANGED_QUOTA, scaled(CHANGED_QUOTA))
        updates = node.runtime.asked("update")[asked:]
        assert len(updates) == 2 * KILLS
        assert mode_of(node.file) == 0o600


@pytest.fixture
def disk() -> Iterator[Path]:
    """A directory on a disk: that of all temporary files may be on tmpfs."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("where", ["none", "not on tmpfs"])
async def test_without_the_file_it_is_scaled_with_each_start(
    front: Front, tmp_path: Path, disk: Path, where: str
) -> None:
    """The runtime's value is all that is known then."""
    folder = disk / "originals"
    node = Node(front, tmp_path, folder, SCALING)
    if where == "none":
        node.proxy.command.append("--originals-dir=none")
    async with node.running():
        async with node.caller() as caller:
            container_id = await caller.create(await caller.run_pod(), with_quota(QUOTA))
        quota = scaled(QUOTA)
        for _ in range(2):
            await node.restart()
            async with node.caller() as caller:
                assert await node.quotas(caller, container_id) == (quota, quota := scaled(quota))
    assert not node.file.exists()
    told = f"the kubelet's own values do not outlive this process: {folder} is not on tmpfs (--originals-dir)"
    assert node.proxy.output().count(told) == (0 if where == "none" else 3)
    assert " WARNING " not in node.proxy.output()


# -- all that is told --------------------------------------------------------------------------------------------------


async def test_pods_are_told_of_field_by_field_as_before_a_kill(front: Front, tmp_path: Path, memory: Path) -> None:
    """What the kubelet asked for is, too: the update tells its own values, not the hooked ones."""
    async with Node(front, tmp_path, memory, CHANGES).running() as node:
        lives, before = [], []
        async with node.caller() as caller:
            for number in range(RESTARTED_PODS.now):
                pod_id = await caller.run_pod(replace(POD, name=f"pod-{number}", labels={"number": f"{number}"}))
                lives.append((pod_id, await caller.create(pod_id, replace(CONTAINER, name=f"container-{number}"))))
            node.told()
            for number, life in enumerate(lives):
                before.append(await told_of(node, caller, number, *life))
        await node.kept(*(one for life in lives for one in life))
        for kill in (True, False):
            await node.restart(kill=kill)
            async with node.caller() as caller:
                for number, (life, told) in enumerate(zip(lives, before, strict=True)):
                    assert await told_of(node, caller, number, *life) == told
        _, (point, update), *_ = before[0]
        assert point == "PreUpdateContainerResources"
        assert update.container_resources.cpu_shares == CONTAINER.resources["cpu_shares"]
        async with node.caller() as caller:
            for pod_id, container_id in lives:
                await caller.act("remove", container_id)
                await caller.act("stop_pod", pod_id)
                await caller.act("remove_pod", pod_id)
        await node.kept()


async def told_of(node: Node, caller: Caller, number: int, pod_id: str, container_id: str) -> list[tuple[str, Any]]:
    """Make every call of a life that can be made again and again; return what is told of them."""
    another = replace(CONTAINER, name=f"another-{number}", attempt=7)
    made = caller.id_in("create", await caller.send("create", caller.container_request(pod_id, another)))
    await caller.update(container_id, {"cpu_quota": 30_000 + number})
    await caller.act("stop", container_id)
    await caller.act("stop_pod", pod_id)
    told = node.told()
    await caller.act("remove", made)
    return told


async def test_what_hooks_set_is_the_pods_and_what_the_kubelet_set_is_its(
    front: Front, tmp_path: Path, memory: Path
) -> None:
    """A hook's cgroup parent goes into later creates; one that the kubelet changed stays changed."""
    async with Node(front, tmp_path, memory, CHANGES).running() as node:
        async with node.caller() as caller:
            moved = await caller.run_pod()
            node.hooks.answers.pop("PreRunPodSandbox")
            asked = await caller.run_pod()
            await node.kept(moved)
        kept = rows(node.file)[moved]
        assert kept["cgroup_parent"] == [PARENT, HOOKED_PARENT]
        assert kept["labels.label"] == kept["annotations.annotation"] == [None, "hooked"]
        await node.restart()
        async with node.caller() as caller:
            for pod_id, parent in ((moved, HOOKED_PARENT), (asked, PARENT)):
                await caller.create(pod_id)
                assert parent.encode() in node.runtime.asked("create")[-1]
            slices = "/kubepods.slice/kubepods-poduid.slice"
            for pod_id, parent in ((moved, HOOKED_PARENT), (asked, slices)):
                caller.pods[pod_id] = replace(caller.pods[pod_id], cgroup_parent=slices)
                await caller.create(pod_id)
                assert parent.encode() in node.runtime.asked("create")[-1]
        told = [message for point, message in node.told() if point == "PreCreateContainer"]
        assert [message.pod_cgroup_parent for message in told] == [HOOKED_PARENT, PARENT, HOOKED_PARENT, slices]
        assert [message.pod_labels.get("label", "") for message in told] == ["hooked", "", "hooked", ""]
