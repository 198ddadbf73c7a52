"""The proxy ends and is started again: it knows what it knew, a quota stays scaled once, and no call waits for that.

That is fault matrix P1, P2 and promise 7. ``kept`` is where --originals-dir is on tmpfs.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.hookapi import api_pb2
from tests.amounts import LOST_CREATES, RESTARTED_PODS
from tests.fakes import cri_pb2, hookanswers, registration
from tests.system.cri_front import CriCaller
from tests.system.fronts import CONTAINER, PARENT, POD, Caller, Failed, Front
from tests.system.keeping import file_of, mode_of, on_tmpfs, rows, scale
from tests.system.proxy import ProxyProcess, until
from tests.system.shaped import Answers, ShapedNode
from tests.system.test_scarce import tiny_disk

pytestmark = pytest.mark.slow

HOOKED_PARENT = "/kubepods/besteffort/pod-uid"
HOOKED_SHARES = 512
SLICES = "/kubepods.slice/kubepods-poduid.slice"
CALLED = ["PreUpdateContainerResources", "PostStopContainer", "PostStopPodSandbox"]
"""By a life that goes on."""
KILLS = 5
QUOTA, CHANGED_QUOTA = 400_000, 300_000


def changed(response: Any) -> None:
    """Change what a hook server may change of a container at its create."""
    response.container_envs.update({"B": "hooked", "NEW": "1"})
    response.container_annotations["note"] = "hooked"
    response.container_resources.cpu_shares //= 2


CHANGES = {
    "PreRunPodSandbox": hookanswers.reply(
        api_pb2.PodSandboxHookResponse(
            labels={"label": "hooked"}, annotations={"annotation": "hooked"}, cgroup_parent=HOOKED_PARENT
        )
    ),
    "PreCreateContainer": hookanswers.echo(changed),
}


def scaled(quota: int) -> int:
    """Return a quota on CPUs that are 1.5 times as fast, as koordlet computes it."""
    return -(-quota * 2 // 3)


SCALING = {point: hookanswers.echo(scale) for point in ("PreCreateContainer", "PreUpdateContainerResources")}
LIMITED = replace(CONTAINER, resources={**CONTAINER.resources, "cpu_quota": QUOTA})


class Node(ShapedNode):
    """A node whose proxy is a program; ``memory`` is where it keeps the kubelet's own values, on tmpfs."""

    def __init__(
        self, front: Front, folder: Path, answers: Answers = CHANGES, memory: Path | None = None, between: bool = False
    ) -> None:
        kept = str(memory or "none")
        super().__init__(front, folder, answers=answers, program=True, between=between, originals_dir=kept)
        self.file = file_of(memory or folder, self.proxy.socket)
        self.lost = front.lost

    async def kept(self, *ids: str) -> None:
        """Wait until something is kept of these, and of no others."""
        await until(lambda: rows(self.file).keys() == set(ids), "they are kept", lambda: str(rows(self.file)))

    def kill(self) -> None:
        """Kill the proxy."""
        assert isinstance(self.proxy, ProxyProcess)
        self.proxy.kill()

    async def quotas(self, container_id: str) -> tuple[int, int]:
        """Change the cpuset alone; return the quota that is told as the kubelet's, and the one that is in force."""
        self.told()
        await self.caller.update(container_id, {"cpuset_cpus": "0"})
        await self.caller.act("stop", container_id)
        (_, update), (_, stop) = self.told()
        return update.container_resources.cpu_quota, stop.container_resources.cpu_quota


@pytest.fixture
def memory() -> Iterator[Path]:
    with on_tmpfs() as folder:
        yield folder


@dataclass(frozen=True, slots=True)
class Life:
    """A pod with a container that runs, and in another pod a container that does not."""

    pod_id: str
    started: str
    waiting: str
    number: int

    @classmethod
    async def begin(cls, caller: Caller, waiting_pod: str, number: int) -> "Life":
        """Run them; no two of a number are alike."""
        pod_id = await caller.run_pod(replace(POD, name=f"pod-{number}", labels={"number": f"{number}"}))
        container = replace(CONTAINER, name=f"container-{number}")
        started, waiting = await caller.create(pod_id, container), await caller.create(waiting_pod, container)
        await caller.act("start", started)
        return cls(pod_id, started, waiting, number)

    async def go_on(self, caller: Caller) -> None:
        """Make every call that can be made again and again."""
        await caller.update(self.started, {"cpu_quota": 30_000 + self.number})
        await caller.act("stop", self.started)
        await caller.act("stop_pod", self.pod_id)


@pytest.mark.parametrize(
    ("kill", "is_kept"), [(True, False), (True, True), (False, True)], ids=["kill", "kill-kept", "stop-kept"]
)
async def test_hook_messages_after_a_restart_equal_those_before(
    front: Front, tmp_path: Path, memory: Path, kill: bool, is_kept: bool
) -> None:
    """A start is told before it, too: the runtime refuses that one, or there would be no other after it."""
    async with Node(front, tmp_path, memory=memory if is_kept else None) as node:
        waiting_pod = await node.caller.run_pod(replace(POD, name="waiting"))
        lives = [await Life.begin(node.caller, waiting_pod, number) for number in range(RESTARTED_PODS.now)]
        node.told()
        node.runtime.upset("start", text="not yet")
        starts = [await refused_start(node, life.waiting) for life in lives]
        node.runtime.upset("start")
        before = []
        for life in lives:
            await life.go_on(node.caller)
            before.append(node.told())
        if is_kept:
            await node.kept(waiting_pod, *(one for life in lives for one in (life.pod_id, life.started, life.waiting)))
        await node.restart(kill=kill)
        await node.known()
        reads = node.runtime.reads()
        assert reads >= 3 * len(lives)
        for life, start, messages in zip(lives, starts, before, strict=True):
            await node.caller.act("start", life.waiting)
            assert node.told() == [("PreStartContainer", start), ("PostStartContainer", start)]
            await life.go_on(node.caller)
            assert node.told() == (messages if is_kept else without_originals(messages))
        assert node.runtime.reads() == reads, "all was known: no call had to ask"
        assert [point for point, _ in before[0]] == CALLED
        _, example = before[0][1]
        assert (example.container_envs["B"], example.container_resources.cpu_shares) == ("hooked", HOOKED_SHARES)


def without_originals(messages: Sequence[tuple[str, Any]]) -> Sequence[tuple[str, Any]]:
    """Return messages of a life whose update tells the hook's value: no runtime knows the kubelet's own any more."""
    ((_, update), *_) = messages
    assert update.container_resources.cpu_shares == 2 * HOOKED_SHARES
    update.container_resources.cpu_shares = HOOKED_SHARES
    return messages


async def refused_start(node: Node, container_id: str) -> Any:
    """Ask for a start that the runtime refuses; return what the hook server is told."""
    with pytest.raises(Failed, match="not yet"):
        await node.caller.act("start", container_id)
    ((point, message),) = node.told()
    assert point == "PreStartContainer"
    return message


@pytest.mark.parametrize(
    ("points", "is_kept"),
    [(registration.ALL_POINTS, False), (("PostStopContainer",), False), (registration.ALL_POINTS, True)],
    ids=["all", "PostStop alone", "all-kept"],
)
async def test_hooked_cgroup_parent_outlives_a_kill(
    front: Front, tmp_path: Path, memory: Path, points: Sequence[str], is_kept: bool
) -> None:
    """The record that was read of the pod does not tell that it is new; a create or what is kept does."""
    async with Node(front, tmp_path, memory=memory if is_kept else None) as node:
        pod_id = await node.caller.run_pod()
        if is_kept:
            await node.kept(pod_id)
            assert rows(node.file)[pod_id]["cgroup_parent"] == [PARENT, HOOKED_PARENT]
        else:
            assert await created_in(node, pod_id) == HOOKED_PARENT
        node.kill()
        node.proxy.register("tester.json", node.hooks.socket_path, points)
        await node.restart()
        await node.known()
        for asked in (PARENT, SLICES if is_kept else PARENT):
            node.caller.pods[pod_id] = replace(node.caller.pods[pod_id], cgroup_parent=asked)
            assert await created_in(node, pod_id) == HOOKED_PARENT
        told = {call.request.pod_cgroup_parent for call in node.hooks.calls_of("PreCreateContainer")}
        assert told == {HOOKED_PARENT}


async def created_in(node: Node, pod_id: str) -> str:
    """Create a container; return the cgroup parent as its runtime reads it: in CRI mode the last one counts."""
    await node.caller.create(pod_id)
    request = node.runtime.asked("create")[-1]
    if isinstance(node.caller, CriCaller):
        return str(cri_pb2.CreateContainerRequest.FromString(request).sandbox_config.linux.cgroup_parent)
    return str(json.loads(request.partition(b"\r\n\r\n")[2])["HostConfig"]["CgroupParent"])


async def test_create_whose_answer_a_kill_lost_is_known_after_it(front: Front, tmp_path: Path) -> None:
    """The kubelet sees an end of the connection and nothing else; what it asks for anew it gets."""
    async with Node(front, tmp_path, between=True) as node:
        pod_id = await node.caller.run_pod()
        for _ in range(LOST_CREATES.now):
            lost = await lost_create(node, pod_id)
            await node.restart()
            await node.known()
            reads = node.runtime.reads()
            again = await node.caller.create(pod_id)
            assert again in node.runtime.container_ids()
            node.told()
            for one in (lost, again):
                await node.caller.act("stop", one)
            told = [(message.container_meta.id, message.container_envs["B"]) for _, message in node.told()]
            assert told == [(lost, "hooked"), (again, "hooked")]
            assert node.runtime.reads() == reads, "it was known"


async def lost_create(node: Node, pod_id: str) -> str:
    """Kill the proxy when the runtime has made a container and its answer is on its way; return the container's id."""
    before = set(node.runtime.container_ids())
    await node.caller.act("ping")
    node.relay.to_client.stop_reading()
    call = asyncio.ensure_future(node.caller.create(pod_id))
    await until(lambda: set(node.runtime.container_ids()) > before, "it is made")
    node.kill()
    with pytest.raises(Failed) as raised:
        await call
    assert raised.value.status == node.lost
    node.relay.to_client.resume_reading()
    (made,) = set(node.runtime.container_ids()) - before
    return made


async def test_start_does_not_wait_for_the_state(front: Front, tmp_path: Path) -> None:
    """The runtime answers no question about what there is, while it serves its clients."""
    async with Node(front, tmp_path) as node:
        container_id = await node.caller.create(await node.caller.run_pod())
        node.runtime.upset("pod_status", delay_seconds=3600)
        await node.restart()
        await node.caller.act("ping")
        await node.caller.act("list")
        await node.caller.create(await node.caller.run_pod())
        assert not node.is_known
        node.runtime.upset("pod_status")
        node.told()
        await node.caller.act("stop", container_id)
        ((_, told),) = node.told()
        assert told.container_meta.id == container_id


# ---- the kubelet's own values (--originals-dir)


@pytest.mark.parametrize("known", [True, False], ids=["known", "at once"])
async def test_quota_is_scaled_once_over_kills(front: Front, tmp_path: Path, memory: Path, known: bool) -> None:
    async with Node(front, tmp_path, SCALING, memory) as node:
        pod_id = await node.caller.run_pod()
        one, other = [await node.caller.create(pod_id, LIMITED) for _ in range(2)]
        await node.caller.update(other, {"cpu_quota": CHANGED_QUOTA})
        expected = {one: [QUOTA, scaled(QUOTA)], other: [CHANGED_QUOTA, scaled(CHANGED_QUOTA)]}
        await until(
            lambda: {each: pairs["resources.cpu_quota"] for each, pairs in rows(node.file).items()} == expected,
            "both are kept",
        )
        for _ in range(KILLS):
            await node.restart()
            if known:
                await node.known()
            for container_id, quotas in expected.items():
                assert await node.quotas(container_id) == tuple(quotas)
        assert mode_of(node.file) == 0o600


@pytest.mark.engine
async def test_full_disk_fails_no_call_and_is_written_once_it_has_room(front: Front, tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk", "size=64k") as disk:
        async with Node(front, tmp_path, SCALING, disk) as node:
            assert isinstance(node.proxy, ProxyProcess)
            output, told = node.proxy.output, f"originals: {node.file}: SQLITE_FULL: it is not written"
            pod_id = await node.caller.run_pod()
            ids = [await node.caller.create(pod_id, LIMITED)]
            await node.kept(*ids)
            with (disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
                while filler.write(bytes(4096)):
                    pass
            ids += [await node.caller.create(pod_id, LIMITED) for _ in range(50)]
            assert await node.quotas(ids[-1]) == (QUOTA, scaled(QUOTA))
            await until(lambda: told in output(), "it is told", output)
            (disk / "filler").unlink()
            await node.kept(*ids)
            await until(lambda: f"{node.file} is written again" in output(), "that is told", output)
            assert output().count(told) == 1
