"""What hook servers are told on runtimes of each shape, before and after a restart, and their memory limits there.

What a shape cannot tell or does not take stands in the tables. The policy is Fail: what a hook server asks for never
stops a pod.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.fakes import cri_pb2, hookanswers
from tests.system.cri_front import CRI_SHAPES
from tests.system.fronts import CONTAINER, PARENT, POD, UPDATE, Caller, Front
from tests.system.shaped import FRONTS, SKIPPED, SLICE_PARENT, ShapedNode, limits, named

EVERY = pytest.mark.parametrize("front", FRONTS, ids=named)
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
    names = {"PostStopPodSandbox": "cgroup_parent"}
    return {getattr(message, names.get(point, "pod_cgroup_parent")) for point, message in told}


async def life_goes_on(caller: Caller, container_id: str, pod_id: str) -> None:
    await caller.update(container_id)
    await caller.act("stop", container_id)
    await caller.act("stop_pod", pod_id)


@pytest.mark.parametrize("parent", [PARENT, SLICE_PARENT], ids=["cgroupfs", "systemd"])
@EVERY
async def test_cgroup_parent_is_told_as_far_as_it_is_known(front: Front, parent: str, tmp_path: Path) -> None:
    async with ShapedNode(front, tmp_path) as node:
        caller = node.caller
        pod = replace(POD, cgroup_parent=parent)
        used, new, empty = [await caller.run_pod(replace(pod, name=name)) for name in ("used", "new", "empty")]
        in_used, in_new = [await caller.create(pod_id) for pod_id in (used, new)]
        await caller.act("start", in_used)
        await life_goes_on(caller, in_used, used)
        node.hooks.calls = [call for call in node.hooks.calls if call.point.name != "PreRunPodSandbox"]
        assert parents(node) == {parent}

        await node.restart()
        await node.known()
        caller = node.caller
        await life_goes_on(caller, in_used, used)
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


@EVERY
async def test_container_is_told_as_far_as_its_runtime_tells_it(front: Front, tmp_path: Path) -> None:
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
async def test_pods_runtime_handler_is_told(front: Front, handler: str, tmp_path: Path) -> None:
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


@EVERY
async def test_pod_stop_is_told_until_it_succeeds(front: Front, tmp_path: Path) -> None:
    """The kubelet stops a pod several times; a proxy that was started since knows nothing of who was told."""
    async with ShapedNode(front, tmp_path) as node:
        pod_id, skipped = await node.caller.run_pod(), await node.caller.run_pod(SKIPPED)
        node.told()
        node.hooks.default = failing(node.hooks.default, times=2)
        for calls in (3, 1):
            for _ in range(4):
                await node.caller.act("stop_pod", pod_id)
                await node.caller.act("stop_pod", skipped)
            told = [(point, message.pod_meta.name) for point, message in node.told()]
            assert told == [("PostStopPodSandbox", POD.name)] * calls
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


# -- memory limits, as koordlet sets them ------------------------------------------------------------------------------

LIMIT = int(CONTAINER.resources["memory_limit_in_bytes"])
UNLIMITED = replace(CONTAINER, resources={"cpu_shares": 2})
SWAPLESS = replace(CONTAINER, resources={"memory_limit_in_bytes": LIMIT, "memory_swap_limit_in_bytes": LIMIT})
OF_DOCKER = replace(CONTAINER, resources={"memory_limit_in_bytes": LIMIT})
"""The shim sets the swap limit by itself."""
TAKES_UNLIMITED = {"cri containerd", "cri shim sandboxer", "cri shim gone"}
"""In an update, for a container that has a limit."""
TELLS_NO_SWAP = {"cri cri-o", "cri cri-dockerd", "cri no verbose"}
"""Whether a swap limit that equals the memory limit was asked for; the first two set one by themselves."""

POINTS = ("PreCreateContainer", "PreUpdateContainerResources")


def memory(limit: int) -> dict[str, hookanswers.Answer]:
    """Return answers that set the memory limit of every container, as koordlet's BatchResource does."""
    return dict.fromkeys(POINTS, hookanswers.koordlet(memory_limit_in_bytes=limit))


async def updated(node: ShapedNode, container_id: str) -> tuple[int, int]:
    """Change a container's shares; return the limits that reached the runtime with it."""
    request = node.caller.update_request(container_id, UPDATE, {})
    return limits("update", (await node.passed("update", request))[1])


@EVERY
async def test_no_memory_limit_goes_out_as_each_runtime_takes_it(front: Front, tmp_path: Path) -> None:
    """As 0 in a create; in an update not at all where there is no limit, else as -1 where that is taken."""
    lifted = (-1, 0) if front.name in TAKES_UNLIMITED else (0, 0)
    async with ShapedNode(front, tmp_path, answers=memory(-1)) as node:
        pod_id = await node.caller.run_pod()
        for container in (UNLIMITED, CONTAINER):
            _, released = await node.passed("create", node.caller.create_request(pod_id, container))
            assert limits("create", released)[0] == 0
        node.hooks.on("PreCreateContainer", hookanswers.empty())
        pairs = [[await node.caller.create(pod_id, each) for each in (UNLIMITED, CONTAINER)] for _ in range(2)]
        for unlimited, limited in pairs:
            await node.known()
            assert await updated(node, unlimited) == (0, 0)
            assert await updated(node, limited) == lifted
            for one in (unlimited, limited):
                await node.caller.act("start", one)
            await node.restart()


@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "after a restart"])
@EVERY
async def test_swap_limit_that_equals_the_memory_limit_moves_with_it(
    front: Front, restarted: bool, tmp_path: Path
) -> None:
    container = OF_DOCKER if front.name.startswith("docker") else SWAPLESS
    async with ShapedNode(front, tmp_path, answers=memory(2 * LIMIT)) as node:
        pod_id = await node.caller.run_pod()
        if restarted:
            await node.restart()
        _, released = await node.passed("create", node.caller.create_request(pod_id, container))
        assert limits("create", released) == (2 * LIMIT, 2 * LIMIT)
        node.hooks.on("PreCreateContainer", hookanswers.empty())
        container_id = await node.caller.create(pod_id, container)
        if restarted:
            await node.restart()
            await node.known()
        known = not (restarted and front.name in TELLS_NO_SWAP)
        assert await updated(node, container_id) == (2 * LIMIT, 2 * LIMIT if known else 0)
