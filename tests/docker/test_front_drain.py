"""How a client's connection to the Docker front ends: never between a request and its answer (promise 19)."""

import asyncio

import pytest

from runtimeproxy.relay import drain
from tests.docker.client import Client, request
from tests.docker.messages import error
from tests.docker.node import CREATE, Node, id_of, on_node, unavailable, written
from tests.fakes import dockershim_bodies as bodies
from tests.fakes.dockerd_client import until
from tests.fakes.dockerd_wire import Injection

pytestmark = pytest.mark.slow

PING_ROUTE = "GET /_ping"
PING = request("GET", "/_ping")
UPLOAD = request("POST", "/build", b"x" * 100)
NOTICE_SECONDS = 0.3
LIMIT_SECONDS = 20.0
QUICK_SECONDS = 10.0
"""Seconds, far below the limit, also on a busy machine."""


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "NOTICE_SECONDS", NOTICE_SECONDS)
    monkeypatch.setattr(drain, "ANSWER_SECONDS", 0.1)


def stopping(node: Node) -> "asyncio.Task[None]":
    return asyncio.create_task(node.stop(LIMIT_SECONDS))


async def stopped(stop: "asyncio.Task[None]", *clients: Client) -> None:
    """Wait until the front has stopped, which clients see as EOF, long before the limit."""
    for client in clients:
        await client.ended()
    await asyncio.wait_for(stop, QUICK_SECONDS)


async def used(node: Node) -> Client:
    """Return a connection on which a request was answered."""
    client = await node.client()
    assert (await client.fetch("GET", "/_ping")).status == 200
    return client


@pytest.mark.parametrize("queries", [False, True])
async def test_kept_connection_ends_and_what_has_been_sent_is_answered(node: Node, queries: bool) -> None:
    """The request is not yet read when the drain begins."""
    client = await used(node)
    stop = stopping(node)
    client.send(PING * queries)
    for _ in range(queries):
        assert (await client.answer("GET")).status == 200
    assert await client.ended() == b""
    await stopped(stop)
    await until(lambda: node.dockerd.connections == 0)


async def test_daemon_does_not_see_an_end_that_is_ours(node: Node) -> None:
    """EOF by the drain might end a call at the daemon, whether it passes or was held."""
    hang = node.dockerd.inject(PING_ROUTE, Injection(hang=True))
    made = node.dockerd.inject(CREATE, Injection(hang=True))
    hook = node.plugins.gated("a")
    passing, holding = await node.client(), await node.client()
    passing.send(PING)
    holding.send(request("POST", f"/containers/create?name={bodies.sandbox_name(node.pod)}", written(node.pod_body())))
    await until(lambda: hang.hanging == 1 and hook.waiting == 1)
    stop = stopping(node)
    await asyncio.sleep(0.05)
    with pytest.raises(BrokenPipeError):  # a later request is not taken
        passing.writer.get_extra_info("socket")._sock.send(PING)
    hook.gate.set()
    await until(lambda: made.hanging == 1)
    await asyncio.sleep(0.05)
    assert not any(received.cancelled for received in node.dockerd.received)
    hang.release()
    made.release()
    assert (await passing.answer("GET")).status == 200
    assert id_of(await holding.answer())
    await stopped(stop)
    assert node.store.counts() == (1, 0)


async def accepted(node: Node) -> Client:
    """Return a connection that has sent nothing yet."""
    count, client = len(node.front.connections), await node.client()
    await until(lambda: len(node.front.connections) > count)
    return client


@on_node({}, {"unavailable": True})
async def test_new_client_may_still_send_its_first_request(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "NOTICE_SECONDS", 1000.0)  # never in this test
    early, silent = await accepted(node), await accepted(node)
    stop = stopping(node)
    await asyncio.sleep(NOTICE_SECONDS / 6)
    early.send(PING)
    assert (await early.answer("GET")).status == (502 if node.unavailable else 200)
    monkeypatch.setattr(drain, "NOTICE_SECONDS", NOTICE_SECONDS)
    assert [await early.ended(), await silent.ended()] == [b"", b""]
    await stopped(stop)


HALF_SENT: list[tuple[dict[str, bool], bytes, bool]] = [({"unavailable": True}, PING, True)]
HALF_SENT += [({}, sent, waits) for sent in (PING, UPLOAD) for waits in (True, False)]


@pytest.mark.parametrize(("node", "sent", "waits"), HALF_SENT, indirect=["node"])
async def test_half_sent_request_is_waited_for_if_its_rest_can_come(node: Node, sent: bytes, waits: bool) -> None:
    """The rest cannot come where the first part comes just before a proxy with a daemon shuts down the reading side."""
    client = await (accepted(node) if node.unavailable else used(node))
    if waits:
        client.send(sent[:-5])
        await asyncio.sleep(0.02)
    stop = stopping(node)
    if waits:
        await asyncio.sleep(2 * NOTICE_SECONDS)
        assert not stop.done()
        client.send(sent[-5:])
        answer = await client.answer("GET" if sent is PING else "POST")
        assert answer.status == 502 if node.unavailable else answer.status < 500
    else:
        client.send(sent[:-5])
    await stopped(stop, client)
    assert not node.front.connections


@unavailable
async def test_unread_request_is_answered_without_a_daemon(node: Node) -> None:
    client = await accepted(node)
    client.send(PING)
    stop = stopping(node)
    assert error(await client.ended())[0] == 502
    await stopped(stop)
