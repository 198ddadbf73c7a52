"""What becomes of a held request whose client ends inside its body: it has left, or still waits for an answer."""

import logging

import pytest

from runtimeproxy.plugins.registration import FailurePolicy
from tests.docker.client import request
from tests.docker.daemon import until
from tests.docker.node import CREATE, Node, written
from tests.fakes import dockershim_bodies as bodies
from tests.fakes.plugins import FAIL, IGNORE


def cut_create(node: Node) -> bytes:
    return request("POST", f"/containers/create?name={bodies.sandbox_name(node.pod)}", written(node.pod_body()))[:-9]


@pytest.mark.parametrize("plugins", [(), (IGNORE,), (FAIL,)], ids=["nobody", "Ignore", "Fail"])
async def test_a_client_that_leaves_inside_the_body_of_a_held_request_asked_nothing(
    node: Node, plugins: tuple[FailurePolicy, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody failed: it is no request that could not be read."""
    for policy in plugins:
        node.plugins.add("a", policy=policy)
    client = await node.client()
    client.send(cut_create(node))
    await until(lambda: node.front.held_bytes.count > 0)
    client.abort()
    await until(lambda: not node.front.connections)
    assert (node.points, node.front.tasks, node.front.held_bytes.count) == ([], set(), 0)
    assert node.dockerd.requests(CREATE) == []
    counts = ("hook_failures", "calls_unreadable", "calls_refused", "calls_ended", "calls")
    assert [node.recorder.total(name) for name in counts] == [0] * len(counts)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(("policy", "status"), [(IGNORE, 400), (FAIL, 500)], ids=["Ignore", "Fail"])
async def test_a_client_that_half_closes_inside_a_held_body_is_answered(
    node: Node, policy: FailurePolicy, status: int
) -> None:
    """The daemon answers what it was sent, unless a plugin refuses what cannot be read."""
    node.plugins.add("a", policy=policy)
    client = await node.client()
    client.send(cut_create(node))
    client.half_close()
    assert (await client.answer()).status == status
    assert await client.ended() == b""
    assert (node.points, node.recorder.total("calls_unreadable")) == ([], 1)
