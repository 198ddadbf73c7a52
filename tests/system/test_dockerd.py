"""Features of dockerd alone: names and ids as references, swap limits, its own errors."""

import pytest

from tests.system.node import MIB, Values, assert_in_force, cri_resources, resources_answer
from tests.system.real import DOCKERD, OLD_SHIM, Kubelet, RealNode, on

pytestmark = pytest.mark.engine


# -- memory ------------------------------------------------------------------------------------------------------------

# The kubelet's limit is 64 MiB, and its swap limit the same: no swap.
CREATE, START, UPDATE = "PreCreateContainer", "PreStartContainer", "PreUpdateContainerResources"


def memory(mib: int) -> Values:
    return {"memory_limit_in_bytes": mib * MIB}


MEMORY: list[tuple[str, Values, int, int]] = [
    (CREATE, {**memory(32), "memory_swap_limit_in_bytes": -1}, 32, -1),
    (START, memory(80), 80, 80 * MIB),
    (UPDATE, memory(80), 80, 80 * MIB),
    (UPDATE, memory(32), 32, 32 * MIB),
]
"""A change at a hook point -> dockerd's final limits, memory in MiB and swap; the kubelet updates to 48 MiB."""


@on(DOCKERD, OLD_SHIM)
def test_swap_goes_with_memory(node: RealNode, client: Kubelet) -> None:
    """Even if dockershim leaves the swap limit out of an update, memory is raised."""
    pod = node.plain_pod()
    pod_id = client.run_pod(pod)
    for number, (point, values, mib, swap) in enumerate(MEMORY):
        node.hooks.answers.clear()
        node.hooks.on(point, resources_answer(values))
        container_id = client.create(pod_id, node.rich_container(f"main-{number}"), pod)
        client.start(container_id)
        if point == UPDATE:
            client.update(container_id, cri_resources(memory(48)))
        host = client.host(container_id)
        assert host["Memory"] == mib * MIB, (point, values)
        if node.speaks.moves_swap and node.engine.get("/info")["SwapLimit"]:  # else the kernel does not account for it
            assert host["MemorySwap"] == swap, (point, values)
        assert_in_force(client, container_id, pod.linux.cgroup_parent, memory(mib))
        client.remove(container_id)


# -- what dockerd rejects ----------------------------------------------------------------------------------------------
