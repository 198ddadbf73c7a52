"""What hook servers are told of pods and containers on runtimes of each shape, before and after a restart.

What a shape cannot tell stands in the tables; without a hook server there is nobody to tell it to.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.fakes import cri_pb2, hookanswers
from tests.system.cri_front import CRI_SHAPES
from tests.system.fronts import CONTAINER, PARENT, POD, Front
from tests.system.shaped import FRONTS, SKIPPED, SLICE_PARENT, ShapedNode, named

UNTOLD = {"cri cri-dockerd", "cri no verbose"}
"""They tell nothing of a cgroup parent: it is not set until the kubelet names it."""
OF_CONTAINERS = {"cri shim sandboxer", "cri shim gone"}
"""They tell it of containers alone."""
ENVS = {"A": "1", "B": "2"}
"""Of ``CONTAINER``."""
ENVS_AFTER = {"cri cri-o": ENVS | {"PATH": "/bin", "HOSTNAME": "fake"}, "cri cri-dockerd": {}, "cri no verbose": {}}
"""After a restart: CRI-O tells those of the image, too, others none."""


def parents(node: ShapedNode) -> set[str]:
    """Return what was told of the pod's cgroup parent, wherever anything was."""
    told = node.told()
    assert told
    return {
        message.cgroup_parent if point == "PostStopPodSandbox" else message.pod_cgroup_parent for point, message in told
    }


@pytest.mark.parametrize("parent", [PARENT, SLICE_PARENT], ids=["cgroupfs", "systemd"])
@pytest.mark.parametrize("front", FRONTS, ids=named)
async def test_the_cgroup_parent_is_told_as_far_as_anybody_knows_it(front: Front, parent: str, tmp_path: Path) -> None:
    async with ShapedNode(front, tmp_path) as node:
        caller = node.caller
        pods = [
            await caller.run_pod(replace(POD, name=name, cgroup_parent=parent)) for name in ("used", "new", "empty")
        ]
        used, new, empty = pods
        in_used, in_new = [await caller.create(pod_id) for pod_id in (used, new)]
        await caller.act("start", in_used)
        for act in (caller.update(in_used), caller.act("stop", in_used), caller.act("stop_pod", used)):
            await act
        node.hooks.calls = [call for call in node.hooks.calls if call.point.name != "PreRunPodSandbox"]
        assert parents(node) == {parent}

        await node.restart()
        await node.known()
        caller = node.caller
        for act in (caller.update(in_used), caller.act("stop", in_used), caller.act("stop_pod", used)):
            await act
        assert parents(node) == {"" if front.name in UNTOLD else parent}
        await caller.act("stop_pod", empty)
        assert parents(node) == {"" if front.name in UNTOLD | OF_CONTAINERS else parent}
        created = await caller.create(new)
        for one in (created, in_new):
            await caller.act("start", one)
            await caller.update(one)
            await caller.act("stop", one)
        await caller.act("stop_pod", new)
        assert parents(node) == {parent}, "a create repeats it"


@pytest.mark.parametrize("front", FRONTS, ids=named)
async def test_a_container_is_told_as_far_as_its_runtime_tells_it(front: Front, tmp_path: Path) -> None:
    """Where none was asked for a swap limit that a runtime sets by itself is none; Docker's shim asks for one."""
    async with ShapedNode(front, tmp_path) as node:
        container_id = await node.caller.create(await node.caller.run_pod())
        await node.restart()
        await node.known()
        node.told()
        await node.caller.act("start", container_id)
        ((_, told), _) = node.told()
        assert told.container_envs == ENVS_AFTER.get(front.name, ENVS)
        assert dict(told.container_annotations)["note"] == "kept"
        resources = {name: getattr(told.container_resources, name) for name in CONTAINER.resources}
        untold = front.name == "cri cri-dockerd"
        assert resources == (dict.fromkeys(resources, 0) if untold else CONTAINER.resources)
        swap = CONTAINER.resources["memory_limit_in_bytes"] if front.name.startswith("docker") else 0
        assert told.container_resources.memory_swap_limit_in_bytes == swap


@pytest.mark.parametrize("handler", ["", "kata"])
@pytest.mark.parametrize("front", CRI_SHAPES, ids=named)
async def test_a_pods_runtime_handler_is_told(front: Front, handler: str, tmp_path: Path) -> None:
    """cri-dockerd names the one that dockerd puts in where none was asked for."""
    async with ShapedNode(front, tmp_path) as node:
        request = cri_pb2.RunPodSandboxRequest.FromString(node.caller.pod_request(POD))
        request.runtime_handler = handler
        pod_id = node.caller.id_in("run_pod", await node.caller.send("run_pod", request.SerializeToString()))
        await node.caller.act("stop_pod", pod_id)
        await node.restart()
        await node.caller.act("stop_pod", pod_id)
        told = [message.runtime_handler for point, message in node.told() if point == "PostStopPodSandbox"]
        assert told == [handler, handler or ("runc" if front.name == "cri cri-dockerd" else "")]


# -- the end of a pod --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("front", FRONTS, ids=named)
async def test_the_stop_of_a_pod_is_told_until_it_was_told_well(front: Front, tmp_path: Path) -> None:
    """The kubelet stops a pod several times; a proxy that was started since knows nothing of who was told."""
    async with ShapedNode(front, tmp_path) as node:
        pod_id, skipped = await node.caller.run_pod(), await node.caller.run_pod(SKIPPED)
        node.told()
        node.hooks.default = failing(node.hooks.default, times=2)
        for calls in (3, 1):
            for _ in range(4):
                await node.caller.act("stop_pod", pod_id)
                await node.caller.act("stop_pod", skipped)
            told = node.told()
            assert [(point, message.pod_meta.name) for point, message in told] == [
                ("PostStopPodSandbox", POD.name)
            ] * calls
            await node.restart()


def failing(then: hookanswers.Answer, times: int) -> hookanswers.Answer:
    """Answer an error so many times."""
    left = list(range(times))

    async def answer(call: Any) -> bytes:
        if left:
            left.pop()
            return await hookanswers.status(grpc.StatusCode.INTERNAL)(call)
        return await then(call)

    return answer
