"""The proxy is killed and started again, on each front: it knows what it knew, and no call waits for that."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.hookapi import api_pb2
from tests.amounts import LOST_CREATES, RESTARTED_PODS
from tests.fakes import hookanswers, registration
from tests.fakes.faults import FaultRelay
from tests.fakes.hookserver import HookServer
from tests.system.fronts import CONTAINER, PARENT, POD, Caller, Front, Runtime
from tests.system.proxy import ProxyProcess, until

pytestmark = pytest.mark.slow

COMPLETE = "the runtime's state is known"
HOOKED_PARENT = "/kubepods/besteffort/pod-uid"


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
        return COMPLETE in self.proxy.output()[self._written :]

    async def complete(self) -> None:
        """Wait until the state has been read."""
        await until(lambda: self.is_complete, "the state is read", self.proxy.output)

    async def stopped(self, caller: Caller, verb: str, subject_id: str) -> bytes:
        """Stop something; return what the hook server is told."""
        self.hooks.calls.clear()
        await caller.act(verb, subject_id)
        (call,) = self.hooks.calls
        return call.message


async def test_after_a_kill_every_hook_message_is_as_the_one_before(front: Front, tmp_path: Path) -> None:
    async with Node(front, tmp_path).running() as node:
        told: dict[tuple[str, str], bytes] = {}
        async with node.caller() as caller:
            for number in range(RESTARTED_PODS.now):
                pod_id = await caller.run_pod(replace(POD, name=f"pod-{number}", labels={"number": f"{number}"}))
                container_id = await caller.create(pod_id, replace(CONTAINER, name=f"container-{number}"))
                await caller.act("start", container_id)
                await caller.update(container_id, {"cpu_quota": 30_000 + number})
                for verb, subject_id in (("stop", container_id), ("stop_pod", pod_id)):
                    told[verb, subject_id] = await node.stopped(caller, verb, subject_id)
        node.proxy.kill()
        await node.restart()
        await node.complete()
        reads = node.runtime.reads()
        assert reads >= len(told)
        async with node.caller() as caller:
            again = {(verb, one): await node.stopped(caller, verb, one) for verb, one in told}
        points = {"stop": api_pb2.ContainerResourceHookRequest, "stop_pod": api_pb2.PodSandboxHookRequest}
        for (verb, subject_id), message in told.items():
            before, after = (points[verb].FromString(one) for one in (message, again[verb, subject_id]))
            assert after == before
        assert node.runtime.reads() == reads, "all was known: no call had to ask"
        (example,) = [points["stop"].FromString(told[key]) for key in list(told)[:1]]
        assert (example.container_envs["B"], example.container_resources.cpu_shares) == ("hooked", 512)


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
                assert HOOKED_PARENT.encode() in after
                assert PARENT.encode() not in after
        told = {call.request.pod_cgroup_parent for call in node.hooks.calls_of("PreCreateContainer")}
        assert told == {HOOKED_PARENT}


async def created(node: "Node", caller: Caller, pod_id: str) -> bytes:
    """Create a container; return the request as it reached the runtime."""
    await caller.create(pod_id)
    return node.runtime.asked("create")[-1]


async def test_what_the_runtime_made_before_a_kill_without_an_answer_is_known_after_it(
    front: Front, tmp_path: Path
) -> None:
    async with Node(front, tmp_path).running() as node:
        inner = tmp_path / "inner.sock"
        node.proxy.runtime.rename(inner)
        async with FaultRelay(str(node.proxy.runtime), str(inner)) as relay:
            async with node.caller() as caller:
                pod_id = await caller.run_pod()
            for _ in range(LOST_CREATES.now):
                before = set(node.runtime.container_ids())
                async with node.caller() as caller:
                    request = caller.create_request(pod_id)
                    await caller.act("ping")
                    relay.to_client.stop_reading()
                    call = asyncio.ensure_future(caller.send("create", request))
                    await until(lambda known=before: set(node.runtime.container_ids()) > known, "it is made")
                    node.proxy.kill()
                    await asyncio.gather(call, return_exceptions=True)
                relay.to_client.resume_reading()
                await node.restart()
                await node.complete()
                (made,) = set(node.runtime.container_ids()) - before
                reads = node.runtime.reads()
                async with node.caller() as caller:
                    told = await node.stopped(caller, "stop", made)
                assert api_pb2.ContainerResourceHookRequest.FromString(told).container_envs["B"] == "hooked"
                assert node.runtime.reads() == reads, "it was known"


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
