"""PostStopContainer at dockerd's die event (hook-api, "Applied to")."""

import pytest

from tests.docker.daemon import until
from tests.docker.node import INSPECT, Node
from tests.fakes.dockerd_wire import Injection

END = "PostStopContainer"


async def die(node: Node, container_id: str, status: str = "exited") -> None:
    """End a container's process; its restart policy may start it again."""
    container = node.dockerd.container(container_id)
    container.status = status
    seen = node.metrics.counted("backend_events", action="die")
    node.dockerd.state._tell(container, "die", exitCode="137")
    await node.event("die", seen + 1)
    await until(lambda: not node.front.tasks)


@pytest.mark.parametrize("known", [True, False])
async def test_container_that_dies_is_reported_once(node: Node, known: bool) -> None:
    node.plugins.add("a", points=(END,))
    pod_id, container_id = await node.running()
    if not known:
        node.forget()
    await die(node, container_id)
    assert (node.told_container.id, node.told.pod.id) == (container_id, pod_id)
    await die(node, container_id)
    for action, subject in (("stop", container_id), ("stop", pod_id)):
        await node.act(action, subject)
    await node.remove(container_id)
    assert node.points == [END]


@pytest.mark.parametrize("status", ["restarting", "running"])
async def test_container_that_restarts_itself_has_not_ended(node: Node, status: str) -> None:
    node.plugins.add("a", points=(END,))
    _, container_id = await node.running()
    await die(node, container_id, status)
    assert node.points == []
    await die(node, container_id)
    assert node.points == [END]


async def test_restart_by_a_client_has_an_end_of_its_own(node: Node) -> None:
    node.plugins.add("a", points=(END,))
    _, container_id = await node.running()
    await die(node, container_id)
    container = node.dockerd.container(container_id)
    container.status = "running"
    node.dockerd.state._tell(container, "restart")
    await node.event("restart")
    await node.act("stop", container_id)
    assert node.points == [END] * 2


async def test_container_that_cannot_be_read_is_reported_later(node: Node) -> None:
    """It may run again."""
    node.plugins.add("a", points=(END,))
    _, container_id = await node.running()
    node.dockerd.inject(INSPECT, Injection(status=500, message="no"))
    await die(node, container_id)
    assert node.points == []
    await node.remove(container_id)
    assert node.points == [END]


async def test_container_removed_by_others_has_ended(node: Node) -> None:
    """The record is dropped before its state is read."""
    node.plugins.add("a", points=(END,))
    _, container_id = await node.running()
    node.dockerd.state.remove(container_id, force=True)
    await node.event("destroy")
    await until(lambda: not node.front.tasks)
    assert (node.points, node.store.container(container_id)) == ([END], None)


async def test_ends_of_others_cost_one_question_each(node: Node) -> None:
    pod_id, _ = await node.running()
    plain_id = await node.plain()
    await node.act("start", plain_id)
    for _ in range(2):
        await die(node, plain_id)
    assert node.dockerd.requests(INSPECT) == [], "no hook server wants to know"
    node.plugins.add("a", points=(END,))
    for _ in range(2):
        await die(node, plain_id)
    assert len(node.dockerd.requests(INSPECT)) == 1
    await die(node, pod_id)
    assert (len(node.dockerd.requests(INSPECT)), node.points) == (1, [])
