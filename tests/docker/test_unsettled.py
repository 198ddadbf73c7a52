"""Docker's starts and stops that end without the daemon's answer: inspect tells what became of each."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtimeproxy import unsettled as module
from runtimeproxy.model import ContainerRecord, HookRequest
from tests.docker.client import request
from tests.docker.daemon import until
from tests.docker.node import CONTAINER, INSPECT, START, STOP, Node
from tests.fakes import dockershim_bodies as bodies
from tests.fakes.dockerd_received import Injection


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    """A node whose daemon is asked about calls without an answer as fast as it goes, and for long."""
    monkeypatch.setattr(module, "ASKED_AFTER_SECONDS", [0.02 * times for times in range(1, 500)])
    async with Node(tmp_path) as node:
        await node.follow()
        yield node


async def unanswered(node: Node, route: str, action: str, container_id: str, *, done: bool = True) -> None:
    """Send a start or a stop that the daemon carries out, or not yet, and never answers."""
    node.dockerd.inject(route, Injection(raw=None if done else b"", cut_after_bytes=0, times=1))
    client = await node.client()
    client.send(request("POST", f"{node.prefix}/containers/{container_id}/{action}"))
    assert await client.ended() == b""


@pytest.mark.parametrize(
    ("route", "action", "point"),
    [
        (START, "start", "PostStartContainer"),
        (STOP, "stop", "PostStopContainer"),
        (STOP, "stop", "PostStopPodSandbox"),
    ],
)
@pytest.mark.parametrize("done", [True, False])
async def test_a_post_hook_owed_for_a_lost_answer_is_told(
    node: Node, route: str, action: str, point: str, done: bool
) -> None:
    node.plugins.add("a", points=(point,))
    pod_id, container_id = await (node.running() if action == "stop" else node.made())
    of_pod = point == "PostStopPodSandbox"
    subject = pod_id if of_pod else container_id
    await unanswered(node, route, action, subject, done=done)
    if not done:
        await until(lambda: len(node.dockerd.requests(INSPECT)) >= 3)
        assert node.plugins.asked == []
        getattr(node.dockerd.state, action)(subject)
    await until(lambda: bool(node.plugins.asked))
    known = HookRequest(node.pod_of(pod_id).effective, None if of_pod else node.container(container_id).effective)
    assert [(asked.point, asked.request) for asked in node.plugins.asked] == [(point, known)]


async def test_a_stop_whose_container_removes_itself_is_told_and_leaves_no_record(node: Node) -> None:
    node.plugins.add("a", points=("PostStopContainer",))
    pod_id = await node.create_pod()
    body = node.container_body(pod_id)
    body["HostConfig"]["AutoRemove"] = True
    name = bodies.container_name(node.pod, CONTAINER)
    container_id = str((await node.create(name, body)).json["Id"])
    await node.act("start", container_id)
    await unanswered(node, STOP, "stop", container_id)
    await until(lambda: node.points == ["PostStopContainer"])
    assert node.store.counts() == (1, 0)


async def test_a_start_of_what_is_gone_never_was(node: Node) -> None:
    node.plugins.add("a")
    _, container_id = await node.made()
    await unanswered(node, START, "start", container_id, done=False)
    node.plugins.asked.clear()
    node.dockerd.state.remove(container_id, force=True)
    await until(lambda: node.recorder.counted("unsettled", operation="StartContainer", result="failed") == 1)
    assert node.points == []


# -- events that come before an answer ---------------------------------------------------------------------------------


async def test_what_is_destroyed_before_its_create_is_answered_leaves_no_record(node: Node) -> None:
    """The event overtakes the commit, which waits for another one's turn; the answer goes to the client as it is."""
    pod_id = await node.create_pod()
    turns = node.front.lifecycle._turns
    turn = turns.take(f"{pod_id}/{CONTAINER.name}/{CONTAINER.attempt}")
    try:
        creating = asyncio.create_task(node.create_container(pod_id))
        await until(lambda: len(node.dockerd.state.containers) == 2)
        (made,) = (one for one in node.dockerd.state.containers if one != pod_id)
        node.dockerd.state.remove(made, force=True)
        await node.event("destroy")
        assert not creating.done()
    finally:
        turns.leave(turn)
    assert await creating == made
    assert node.store.counts() == (1, 0)


async def test_a_container_that_is_made_and_stays_is_kept_by_the_same_way(node: Node) -> None:
    pod_id = await node.create_pod()
    container_id = await node.create_container(pod_id)
    assert isinstance(node.container(container_id), ContainerRecord)
