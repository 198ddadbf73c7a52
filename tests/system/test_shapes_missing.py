"""What is not there, on runtimes of each shape: the runtime's own answer arrives, no hook server is asked of it.

Every runtime says in its own way that there is no such id; a status that is not found is not always of a pod that is
not there.
"""

import asyncio
from pathlib import Path

import pytest

from runtimeproxy.hookapi import api_pb2
from tests.fakes import hookanswers
from tests.fakes.faults import FaultRelay
from tests.system.cri_front import CRI_SHAPES
from tests.system.fronts import Caller, Failed, Front
from tests.system.proxy import ProxyInside, until
from tests.system.shaped import FRONTS, ShapedNode, named

VERBS = ("start", "update", "stop", "remove", "stop_pod", "remove_pod")
HOOKED = api_pb2.ContainerResourceHookResponse(container_envs={"B": "hooked"})


async def outcome(caller: Caller, verb: str, request: bytes) -> object:
    """Return what a caller gets of a request: the error, or None."""
    try:
        await caller.send(verb, request)
    except Failed as failed:
        return failed.status, failed.text
    return None


@pytest.mark.parametrize("front", FRONTS, ids=named)
async def test_of_what_is_not_there_the_runtimes_own_answer_arrives(front: Front, tmp_path: Path) -> None:
    async with ShapedNode(front, tmp_path) as node, node.new_caller(node.runtime.socket_path) as direct:
        assert isinstance(node.proxy, ProxyInside)
        requests = [(verb, node.caller.request(verb, "f" * 64)) for verb in VERBS]
        if front in CRI_SHAPES:  # dockerd makes a container without a sandbox
            requests.append(("create", node.caller.create_request("f" * 64)))
        for verb, request in requests:
            assert await outcome(node.caller, verb, request) == await outcome(direct, verb, request), verb
        assert node.hooks.calls == []
        counted = [node.proxy.recorder.total(name) for name in ("hook_failures", "calls_unreadable", "calls_refused")]
        assert counted == [0, 0, 0]


@pytest.mark.parametrize("front", FRONTS, ids=named)
async def test_the_stop_of_a_container_that_is_gone_meanwhile_is_told(front: Front, tmp_path: Path) -> None:
    """Its answer was lost, and the runtime is asked what became of it: there is no such id, in its own code."""
    async with ShapedNode(front, tmp_path) as node:
        container_id = await node.caller.create(await node.caller.run_pod())
        inner = tmp_path / "inner.sock"
        node.proxy.runtime.rename(inner)
        async with FaultRelay(str(node.proxy.runtime), str(inner)) as relay, node.new_caller() as caller:
            await caller.act("ping")
            relay.to_client.stop_reading()
            call = asyncio.ensure_future(caller.act("stop", container_id))
            await until(lambda: "stop" in node.runtime.verbs(), "the runtime has the request")
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            node.runtime.vanish(container_id)
            relay.to_client.resume_reading()
            (told,) = await asyncio.wait_for(node.hooks.wait_for_calls("PostStopContainer"), 20)
        inner.rename(node.proxy.runtime)
        assert told.request.container_meta.id == container_id


@pytest.mark.parametrize("front", CRI_SHAPES, ids=named)
async def test_a_pod_whose_verbose_status_is_not_found_is_there(front: Front, tmp_path: Path) -> None:
    """A controller of containerd's says NOT_FOUND of its own; no pod goes without its hooks for that."""
    async with ShapedNode(front, tmp_path, answers={"PreCreateContainer": hookanswers.reply(HOOKED)}) as node:
        pod_id = await node.caller.run_pod()
        await node.restart()
        await node.caller.create(pod_id)
        assert ("B", "hooked") in node.runtime.envs()
        await node.caller.act("stop_pod", pod_id)
        ((_, create), (_, stop)) = node.told()[-2:]
        assert {create.pod_meta.uid, stop.pod_meta.uid} == {"pod-uid"}
