"""Features of dockerd alone: names and ids as references, swap limits, its own errors."""

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.dockershim import DockerError
from tests.system import told
from tests.system.node import MIB, PLUGIN, Values, assert_in_force, cri_resources, inside, resources_answer
from tests.system.real import DOCKERD, OLD_SHIM, Kind, Kubelet, RealNode, on, running

pytestmark = pytest.mark.engine

ONE = on(DOCKERD)

POINTS = {
    "start": ("PreStartContainer", "PostStartContainer"),
    "update": ("PreUpdateContainerResources",),
    "stop": ("PostStopContainer",),
}
"""Command of the docker CLI -> the content of its hook call."""


@ONE
def test_any_reference_tells_the_same(node: RealNode) -> None:
    pod, container = node.rich_pod(), node.rich_container()
    with node.client() as client:
        pod_id = client.run_pod(pod)
        container_id = client.create(pod_id, container, pod)
        name = client.shim.inspect(container_id)["Name"].removeprefix("/")
        seen = told.of_container(pod, container, container_id)
        after_update = told.of_container(pod, told.updated(container, cri_resources({"cpu_shares": 400})), container_id)
        node.told()
        for reference, is_known in ((name, True), (container_id[:12], True), (f"/{name}", True), (name, False)):
            for command in (("start",), ("update", "--cpu-shares", "400"), ("stop", "-t", "0")):
                if not is_known:
                    node.restart()
                client.docker(*command, reference)
                if command[0] == "update":
                    seen = after_update
                assert node.told() == [(point, seen) for point in POINTS[command[0]]]
        pod_name = client.shim.inspect(pod_id)["Name"].removeprefix("/")
        client.remove(container_id)  # a new proxy reports its end with the pod's stop
        for reference in (pod_name, pod_id[:12]):
            node.restart()  # a proxy that has reported a pod's stop does not report it again
            client.docker("stop", reference)
            assert node.told() == [("PostStopPodSandbox", told.of_pod(pod))]


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


@ONE
@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
def test_rejection_at_the_start_is_the_plugins_failure(kind: Kind, engine: Any, tmp_path: Path, policy: str) -> None:
    with running(kind, engine, tmp_path, lambda node: node.register(policy=policy)) as node, node.client() as client:
        pod, container = node.rich_pod(), node.rich_container()
        pod_id = client.run_pod(pod)
        container_id = client.create(pod_id, container, pod)
        node.hooks.on(START, resources_answer({"cpuset_cpus": "4095", "cpu_shares": 700}))
        if policy == "Ignore":
            client.start(container_id)
            assert inside(client, container_id, "cpu_shares") == 512
        else:
            with pytest.raises(DockerError) as caught:
                client.start(container_id)
            for part in (PLUGIN, "PreStartContainer", "runtime_rejected"):
                assert part in caught.value.message
            assert client.shim.inspect(container_id)["State"]["Status"] == "created"
