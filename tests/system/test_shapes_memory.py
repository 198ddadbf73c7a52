"""koordlet's memory limits as runtimes of each shape take them: no limit, and a limit above an equal swap limit.

A shape refuses what its runtime refuses, and the policy is Fail: what a hook server asks for never stops a pod.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes import hookanswers
from tests.system.fronts import CONTAINER, UPDATE, Front
from tests.system.shaped import FRONTS, ShapedNode, limits, named

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


@pytest.mark.parametrize("front", FRONTS, ids=named)
async def test_no_limit_goes_out_as_each_runtime_takes_it(front: Front, tmp_path: Path) -> None:
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
@pytest.mark.parametrize("front", FRONTS, ids=named)
async def test_a_swap_limit_that_equals_the_memory_limit_moves_with_it(
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
