"""PostStopContainer at dockerd's die event (hook-api, "Applied to")."""

import pytest

from tests.docker.node import INSPECT, Node
from tests.fakes.dockerd_client import until
from tests.fakes.dockerd_wire import Injection

END = "PostStopContainer"


async def die(node: Node, container_id: str, status: str = "exited") -> None:
    """End a container's process; its restart policy may start it again."""
    container = node.dockerd.container(container_id)
    container.status = status
    seen = node.metrics.counted("backend_events", action="die")
    node.dockerd.state._report(container, "die", exitCode="137")
    await node.event("die", seen + 1)
    await until(lambda: not node.front.tasks)


@pytest.mark.parametrize("known", [True, False])
async def test_container_that_dies_is_reported_once(node: Node, known: bool) -> None:
    node.plugins.add("a", points=(END,))
    pod_id, container_id = await node.running()
    if not known:
        node.forget()
    await die(node, container_id)
    assert (node.reported_container.id, node.notified.pod.id) == (container_id, pod_id)
    await die(node, container_id)
    for action, subject in (("stop", container_id), ("stop", pod_id)):
        await node.act(action, subject)
    await node.remove(container_id)
    assert node.points == [END]


async def test_container_that_runs_again_has_not_ended(node: Node) -> None:
    """Its restart policy starts it; a restart by a client has an end of its own."""
    node.plugins.add("a", points=(END,))
    _, container_id = await node.running()
    for status in ("restarting", "running"):
        await die(node, container_id, status)
        assert node.points == []
    node.dockerd.inject(INSPECT, Injection(status=500, message="no"))
    await die(node, container_id)
    assert node.points == [], "it may run again"
    node.dockerd.injections.clear()
    await die(node, container_id)
    container = node.dockerd.container(container_id)
    container.status = "running"
    node.dockerd.state._report(container, "restart")
    await node.event("restart")
    await node.act("stop", container_id)
    assert node.points == [END] * 2
