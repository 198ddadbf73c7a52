"""The proxy is killed and started again, on each front: it knows what it knew, and no call waits for that.

That is fault matrix P2 and promise 7.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.hookapi import api_pb2
from tests.amounts import LOST_CREATES, RESTARTED_PODS
from tests.fakes import cri_pb2, hookanswers, registration
from tests.fakes.faults import FaultRelay
from tests.fakes.hookserver import HookServer
from tests.system.cri_front import CRI
from tests.system.fronts import CONTAINER, POD, Caller, Failed, Front, Runtime
from tests.system.proxy import STATE_KNOWN, ProxyProcess, until

pytestmark = pytest.mark.slow

HOOKED_PARENT = "/kubepods/besteffort/pod-uid"
HOOKED_SHARES = 512
CALLED = ["PreUpdateContainerResources", "PostStopContainer", "PostStopPodSandbox"]
"""By a life that goes on."""


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


class Node:
    """A proxy as a program between a fake runtime and a kubelet, with a hook server."""

    def __init__(self, front: Front, folder: Path) -> None:
        self.proxy: ProxyProcess = front.process(folder)
        self.runtime: Runtime = front.runtime(str(self.proxy.runtime))
        self.hooks = HookServer(str(folder / "hooks.sock"), CHANGES)
        self.proxy.register("tester.json", self.hooks.socket_path)
        self.lost = front.lost
        self._front = front
        self._written = 0
        """How long the log was when the proxy was started."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Node"]:
        async with self.runtime, self.hooks, self.proxy:
            yield self

    def caller(self) -> Caller:
        return self._front.caller(self.proxy.socket)

    async def restart(self) -> None:
        """Start the proxy again after it was killed."""
        self._written = len(self.proxy.output())
        await asyncio.to_thread(self.proxy.start)

    @property
    def is_complete(self) -> bool:
        """Tell whether the state has been read since the proxy was started."""
        return STATE_KNOWN in self.proxy.output()[self._written :]

    async def complete(self) -> None:
        """Wait until the state has been read."""
        await until(lambda: self.is_complete, "the state is read", self.proxy.output)

    def told(self) -> list[tuple[str, Any]]:
        """Return what the hook server was told since the last time: hook points and messages, in order."""
        told = [(call.point.name, call.request) for call in self.hooks.calls]
        self.hooks.calls.clear()
        return told


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


async def test_after_a_kill_every_hook_message_is_as_the_one_before(front: Front, tmp_path: Path) -> None:
    """A start is told before the kill, too: the runtime refuses that one, or there would be no other after it."""
    async with Node(front, tmp_path).running() as node:
        async with node.caller() as caller:
            waiting_pod = await caller.run_pod(replace(POD, name="waiting"))
            lives = [await Life.begin(caller, waiting_pod, number) for number in range(RESTARTED_PODS.now)]
            node.told()
            node.runtime.upset("start", text="not yet")
            starts = [await refused_start(node, caller, life.waiting) for life in lives]
            node.runtime.upset("start")
            before = []
            for life in lives:
                await life.go_on(caller)
                before.append(node.told())
        node.proxy.kill()
        await node.restart()
        await node.complete()
        reads = node.runtime.reads()
        assert reads >= 3 * len(lives)
        async with node.caller() as caller:
            for life, start, messages in zip(lives, starts, before, strict=True):
                await caller.act("start", life.waiting)
                assert node.told() == [("PreStartContainer", start), ("PostStartContainer", start)]
                await life.go_on(caller)
                assert node.told() == as_after_a_restart(messages)
        assert node.runtime.reads() == reads, "all was known: no call had to ask"
        assert [point for point, _ in before[0]] == CALLED
        _, example = before[0][1]
        assert (example.container_envs["B"], example.container_resources.cpu_shares) == ("hooked", HOOKED_SHARES)


def as_after_a_restart(messages: Sequence[tuple[str, Any]]) -> Sequence[tuple[str, Any]]:
    """Return messages of a life that goes on: an update tells the kubelet's own values, and no runtime knows them any
    more where a hook had set others."""
    ((_, update), *_) = messages
    assert update.container_resources.cpu_shares == 2 * HOOKED_SHARES
    update.container_resources.cpu_shares = HOOKED_SHARES
    return messages


async def refused_start(node: Node, caller: Caller, container_id: str) -> Any:
    """Ask for a start that the runtime refuses; return what the hook server is told."""
    with pytest.raises(Failed, match="not yet"):
        await caller.act("start", container_id)
    ((point, message),) = node.told()
    assert point == "PreStartContainer"
    return message


@pytest.mark.parametrize("points", [registration.ALL_POINTS, ("PostStopContainer",)], ids=["all", "PostStop alone"])
async def test_a_pods_new_cgroup_parent_outlives_a_kill(front: Front, tmp_path: Path, points: Sequence[str]) -> None:
    """The record that was read of the pod does not tell that it is new; the container's own create does."""
    async with Node(front, tmp_path).running() as node:
        async with node.caller() as caller:
            pod_id = await caller.run_pod()
            pods = caller.pods
            before = await created(node, caller, pod_id)
        assert HOOKED_PARENT.encode() in before
        node.proxy.kill()
        node.proxy.register("tester.json", node.hooks.socket_path, points)
        await node.restart()
        await node.complete()
        async with node.caller() as caller:
            caller.pods.update(pods)
            for _ in range(2):
                after = await created(node, caller, pod_id)
                assert parent_of(front, after) == HOOKED_PARENT
        told = {call.request.pod_cgroup_parent for call in node.hooks.calls_of("PreCreateContainer")}
        assert told == {HOOKED_PARENT}


def parent_of(front: Front, request: bytes) -> str:
    """Return the cgroup parent of a create as its runtime reads it: in CRI mode the last one counts."""
    if front is CRI:
        return str(cri_pb2.CreateContainerRequest.FromString(request).sandbox_config.linux.cgroup_parent)
    return str(json.loads(request.partition(b"\r\n\r\n")[2] or request)["HostConfig"]["CgroupParent"])


async def created(node: "Node", caller: Caller, pod_id: str) -> bytes:
    """Create a container; return the request as it reached the runtime."""
    await caller.create(pod_id)
    return node.runtime.asked("create")[-1]


async def test_what_the_runtime_made_before_a_kill_without_an_answer_is_known_after_it(
    front: Front, tmp_path: Path
) -> None:
    """The kubelet sees an end of the connection and nothing else; what it asks for anew it gets."""
    async with Node(front, tmp_path).running() as node:
        inner = tmp_path / "inner.sock"
        node.proxy.runtime.rename(inner)
        async with FaultRelay(str(node.proxy.runtime), str(inner)) as relay:
            async with node.caller() as caller:
                pod_id = await caller.run_pod()
            for _ in range(LOST_CREATES.now):
                lost = await lost_create(node, relay, pod_id)
                await node.restart()
                await node.complete()
                reads = node.runtime.reads()
                async with node.caller() as caller:
                    again = await caller.create(pod_id)
                    assert again in node.runtime.container_ids()
                    node.told()
                    for one in (lost, again):
                        await caller.act("stop", one)
                told = [(message.container_meta.id, message.container_envs["B"]) for _, message in node.told()]
                assert told == [(lost, "hooked"), (again, "hooked")]
                assert node.runtime.reads() == reads, "it was known"


async def lost_create(node: Node, relay: FaultRelay, pod_id: str) -> str:
    """Kill the proxy when the runtime has made a container and its answer is on its way; return the container's id."""
    before = set(node.runtime.container_ids())
    async with node.caller() as caller:
        await caller.act("ping")
        relay.to_client.stop_reading()
        call = asyncio.ensure_future(caller.create(pod_id))
        await until(lambda: set(node.runtime.container_ids()) > before, "it is made")
        node.proxy.kill()
        with pytest.raises(Failed) as raised:
            await call
    assert raised.value.status == node.lost
    relay.to_client.resume_reading()
    (made,) = set(node.runtime.container_ids()) - before
    return made


async def test_a_start_does_not_wait_for_the_state(front: Front, tmp_path: Path) -> None:
    """The runtime answers no question about what there is, while it serves its clients."""
    async with Node(front, tmp_path).running() as node:
        async with node.caller() as caller:
            container_id = await caller.create(await caller.run_pod())
        node.proxy.kill()
        node.runtime.upset("pod_status", delay_seconds=3600)
        await node.restart()
        async with node.caller() as caller:
            await caller.act("ping")
            await caller.act("list")
            await caller.create(await caller.run_pod())
            assert not node.is_complete
            node.runtime.upset("pod_status")
            node.hooks.calls.clear()
            await caller.act("stop", container_id)
        (call,) = node.hooks.calls
        assert call.request.container_meta.id == container_id
