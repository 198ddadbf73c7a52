"""A restarted proxy has its previous state (fault matrix P1, P2 and promise 7)."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.hookapi import api_pb2
from tests.amounts import LOST_CREATES, RESTARTED_PODS
from tests.fakes import hookanswers
from tests.system.fronts import CONTAINER, POD, Failed, Front
from tests.system.keeping import file_of, on_tmpfs, rows
from tests.system.proxy import ProxyProcess, until
from tests.system.shaped import ShapedNode

pytestmark = pytest.mark.slow

HOOKED_SHARES = 512


def changed(response: Any) -> None:
    """Set every field that a hook server may change at a container's create."""
    response.container_envs.update({"B": "hooked", "NEW": "1"})
    response.container_annotations["note"] = "hooked"
    response.container_resources.cpu_shares //= 2


CHANGES = {
    "PreRunPodSandbox": hookanswers.reply(
        api_pb2.PodSandboxHookResponse(labels={"label": "hooked"}, annotations={"a": "hooked"}, cgroup_parent="/hooked")
    ),
    "PreCreateContainer": hookanswers.echo(changed),
}


def program(front: Front, folder: Path, **more: Any) -> ShapedNode:
    """Return a node with the proxy as a program, and a hook server that changes pods and containers."""
    return ShapedNode(front, folder, answers=CHANGES, program=True, **more)


async def hook_calls(node: ShapedNode, number: int, pod_id: str, started: str) -> Sequence[tuple[str, Any]]:
    """Make every repeatable call about a pod and its running container; return the hook calls."""
    await node.caller.update(started, {"cpu_quota": 30_000 + number})
    await node.caller.act("stop", started)
    await node.caller.act("stop_pod", pod_id)
    return node.notified()


@pytest.mark.parametrize(
    ("kill", "has_file"), [(True, False), (True, True), (False, True)], ids=["kill", "kill-file", "stop-file"]
)
async def test_hook_messages_are_equal_after_restart(front: Front, tmp_path: Path, kill: bool, has_file: bool) -> None:
    """The runtime refuses the start before the restart, so that another one is possible after it."""
    with on_tmpfs() as memory:
        async with program(front, tmp_path, originals_dir=str(memory) if has_file else "none") as node:
            file, caller = file_of(memory, node.proxy.socket), node.caller
            waiting_pod = await caller.run_pod(replace(POD, name="waiting"))
            lives, waiting, starts = [], [], []
            for number in range(RESTARTED_PODS.now):
                pod_id = await caller.run_pod(replace(POD, name=f"pod-{number}", labels={"number": f"{number}"}))
                container = replace(CONTAINER, name=f"container-{number}")
                lives.append((number, pod_id, await caller.create(pod_id, container)))
                waiting.append(await caller.create(waiting_pod, container))
                await caller.act("start", lives[-1][-1])
            node.notified()
            node.runtime.set_fault("start", text="not yet")
            for container_id in waiting:
                with pytest.raises(Failed, match="not yet"):
                    await caller.act("start", container_id)
                starts += [start for _, start in node.notified()]
            node.runtime.set_fault("start")
            before = [await hook_calls(node, *life) for life in lives]
            if has_file:
                ids = {waiting_pod, *waiting, *(subject_id for _, *life in lives for subject_id in life)}
                await until(lambda: rows(file).keys() == ids, "the values are stored", lambda: str(rows(file)))
            await node.restart(kill=kill)
            await node.wait_until_loaded()
            reads = node.runtime.reads()
            assert reads >= 3 * len(lives)
            for life, container_id, start, messages in zip(lives, waiting, starts, before, strict=True):
                await node.caller.act("start", container_id)
                assert node.notified() == [("PreStartContainer", start), ("PostStartContainer", start)]
                assert await hook_calls(node, *life) == (messages if has_file else without_originals(messages))
            assert node.runtime.reads() == reads, "no call had to read the runtime's state"
            points = [hook_point for hook_point, _ in before[0]]
            assert points == ["PreUpdateContainerResources", "PostStopContainer", "PostStopPodSandbox"]
            _, example = before[0][1]
            assert (example.container_envs["B"], example.container_resources.cpu_shares) == ("hooked", HOOKED_SHARES)


def without_originals(messages: Sequence[tuple[str, Any]]) -> Sequence[tuple[str, Any]]:
    """Return messages of a life whose update has the hook's value, since no runtime reports the kubelet's own."""
    ((_, update), *_) = messages
    assert update.container_resources.cpu_shares == 2 * HOOKED_SHARES
    update.container_resources.cpu_shares = HOOKED_SHARES
    return messages


async def test_create_with_lost_answer_is_in_store_after_kill(front: Front, tmp_path: Path) -> None:
    """The kubelet sees only an end of the connection; its repeated request succeeds."""
    async with program(front, tmp_path, between=True) as node:
        assert isinstance(node.proxy, ProxyProcess)
        pod_id = await node.caller.run_pod()
        for _ in range(LOST_CREATES.now):
            before = set(node.runtime.container_ids())
            await node.caller.act("ping")
            node.relay.to_client.stop_reading()
            call = asyncio.ensure_future(node.caller.create(pod_id))
            await until(lambda: len(node.runtime.container_ids()) > len(before), "it is made")  # noqa: B023
            node.proxy.kill()
            with pytest.raises(Failed) as raised:
                await call
            assert raised.value.status == front.lost
            node.relay.to_client.resume_reading()
            (lost,) = set(node.runtime.container_ids()) - before
            await node.restart()
            await node.wait_until_loaded()
            reads = node.runtime.reads()
            repeated_id = await node.caller.create(pod_id)
            node.notified()
            for one in (lost, repeated_id):
                await node.caller.act("stop", one)
            stops = [(message.container_meta.id, message.container_envs["B"]) for _, message in node.notified()]
            assert stops == [(lost, "hooked"), (repeated_id, "hooked")]
            assert node.runtime.reads() == reads, "no call had to read the runtime's state"
