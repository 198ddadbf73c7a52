"""CRI's calls that name a pod or a container by the beginning of its id: it is the one that is known.

The held stream and the runtime's status are fakes; messages are real ones.
"""

import asyncio
from dataclasses import replace

import pytest

from runtimeproxy.hookpoints import Operation
from runtimeproxy.model import PodRecord, Resources, Subject
from tests.fakes import cri_pb2 as cri
from tests.fakes.clock import virtual_time
from tests.fakes.node import CONTAINER, CREATE_REQUEST, POD, Node

BEGINNING = {
    Operation.UPDATE_CONTAINER_RESOURCES: cri.UpdateContainerResourcesRequest(
        container_id="c", linux=cri.LinuxContainerResources(memory_limit_in_bytes=7)
    ),
    Operation.STOP_CONTAINER: cri.StopContainerRequest(container_id="c"),
    Operation.START_CONTAINER: cri.StartContainerRequest(container_id="c"),
}
"""Requests that name the container by the beginning of its id, as crictl's users do."""


@pytest.mark.parametrize("operation", BEGINNING)
@virtual_time
async def test_what_is_known_stands_where_a_request_has_but_the_beginning_of_the_id(operation: Operation) -> None:
    node = Node()
    kubelets = Resources(cpu_shares=2048)
    node.know(resources=kubelets)
    node.plugins.add("a")
    await node.do(operation, BEGINNING[operation])
    assert node.backend.asked == [], "the runtime need not be asked about what is known"
    told = node.told(0).resources
    assert told is not None
    assert told.cpu_shares == (2048 if operation is Operation.UPDATE_CONTAINER_RESOURCES else 1024)
    assert node.record.original.resources is not None
    assert node.record.original.resources.cpu_shares == 2048
    assert node.store.counts() == (1, 1)


@virtual_time
async def test_what_the_store_cannot_tell_by_the_beginning_of_an_id_the_runtime_is_asked() -> None:
    node = Node()
    node.know()
    node.know(container=replace(CONTAINER, id="c2"))
    node.plugins.add("a", points=("PreUpdateContainerResources",))
    node.backend.known_containers["c"] = CONTAINER
    original = node.record.original
    await node.do(Operation.UPDATE_CONTAINER_RESOURCES, BEGINNING[Operation.UPDATE_CONTAINER_RESOURCES])
    assert node.backend.asked == [("v1", "c")]
    assert node.record.original != original
    assert node.record.original.resources is not None
    assert node.record.original.resources.memory_limit_in_bytes == 7
    assert node.store.counts() == (1, 2)


@pytest.mark.parametrize(
    ("message", "counts"),
    [
        (cri.RemoveContainerRequest(container_id="c"), (1, 0)),
        (cri.RemovePodSandboxRequest(pod_sandbox_id="p"), (0, 0)),
    ],
)
@virtual_time
async def test_what_is_removed_by_the_beginning_of_its_id_is_forgotten_though_nobody_is_asked(
    message: cri.RemoveContainerRequest | cri.RemovePodSandboxRequest, counts: tuple[int, int]
) -> None:
    node = Node()
    node.know()
    of_pod = isinstance(message, cri.RemovePodSandboxRequest)
    await node.do(Operation.REMOVE_POD_SANDBOX if of_pod else Operation.REMOVE_CONTAINER, message)
    assert node.store.counts() == counts


@virtual_time
async def test_an_update_by_the_beginning_of_an_id_is_recorded_though_nobody_is_asked() -> None:
    node = Node()
    node.know()
    await node.do(Operation.UPDATE_CONTAINER_RESOURCES, BEGINNING[Operation.UPDATE_CONTAINER_RESOURCES])
    assert node.record.effective.resources is not None
    assert node.record.effective.resources.memory_limit_in_bytes == 7
    assert node.backend.asked == []


@pytest.mark.parametrize("ambiguous", [False, True])
@pytest.mark.parametrize("operation", [Operation.STOP_POD_SANDBOX, Operation.CREATE_CONTAINER])
@virtual_time
async def test_a_known_pod_stands_where_a_request_has_but_the_beginning_of_its_id(
    operation: Operation, ambiguous: bool
) -> None:
    node = Node()
    parents = replace(POD, cgroup_parent="/kubelets"), POD
    node.store.commit(Subject(PodRecord(*parents)))
    if ambiguous:
        node.store.commit(Subject(PodRecord(*(replace(pod, id="p2") for pod in parents))))
        node.backend.known_pods["p"] = POD
    node.plugins.add("a")
    message = {
        Operation.STOP_POD_SANDBOX: cri.StopPodSandboxRequest(pod_sandbox_id="p"),
        Operation.CREATE_CONTAINER: cri.CreateContainerRequest(pod_sandbox_id="p", config=CREATE_REQUEST.config),
    }[operation]
    held = node.held(operation, message)
    call = node.call(held)
    await node.lifecycle.run(call)
    assert node.pod == PodRecord(*parents)
    assert call.order_key().startswith("p1")
    assert [record.effective.pod_id for record in node.store.snapshot().containers] in ([], ["p1"])
    assert len(node.plugins.asked) == 1


@virtual_time
async def test_calls_that_name_a_container_in_two_ways_keep_their_order() -> None:
    node = Node()
    node.know(resources=Resources(cpu_shares=2048))
    node.plugins.add("a", delay_seconds=1.0, points=("PreUpdateContainerResources",))
    node.backend.known_containers["c"] = CONTAINER
    by_id, by_beginning = (
        asyncio.create_task(node.do(Operation.UPDATE_CONTAINER_RESOURCES, message))
        for message in (None, BEGINNING[Operation.UPDATE_CONTAINER_RESOURCES])
    )
    await asyncio.sleep(0.5)
    assert len(node.plugins.asked) == 1
    await asyncio.gather(by_id, by_beginning)
    assert len(node.plugins.asked) == 2
    assert node.loop.time() == 2.0
