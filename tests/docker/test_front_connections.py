"""Held calls whose client or daemon leaves, many calls at once, and clients of HTTP/2 (relay-rules B4)."""

import asyncio
import logging
import socket
from pathlib import Path

import pytest

from runtimeproxy.docker.reader import DAEMON_AWAY
from runtimeproxy.docker.requests import PREFACE
from runtimeproxy.model import ContainerInfo, ContainerRecord, HookAnswer, PodInfo, PodRecord, Subject
from runtimeproxy.plugins.registration import FailurePolicy
from tests.docker.client import Client, request
from tests.docker.daemon import until
from tests.docker.node import CONTAINER, CREATE, START, STOP, UPDATE, GatedClient, Node, id_of, written
from tests.fakes import dockershim_bodies as bodies
from tests.fakes.dockerd_received import Injection
from tests.fakes.plugins import FAIL, IGNORE, NOTHING, Behaviour
from tests.relay.test_dial import fill_backlog

AWAY = f"runtimeproxy: {DAEMON_AWAY}"


KNOWN = Subject(
    PodRecord(PodInfo(id="p1"), PodInfo(id="p1")),
    ContainerRecord(ContainerInfo(id="c1", pod_id="p1"), ContainerInfo(id="c1", pod_id="p1")),
)


def create(node: Node) -> bytes:
    return request("POST", f"/containers/create?name={bodies.sandbox_name(node.pod)}", written(node.pod_body()))


async def held(node: Node, raw: bytes = b"", behaviour: Behaviour = NOTHING) -> tuple[GatedClient, Client]:
    """Send a create, or other bytes, and return the hook server that holds it and the client."""
    hook, client = node.plugins.gated("a", behaviour), await node.client()
    client.send(raw or create(node))
    await until(lambda: hook.waiting == 1)
    return hook, client


async def half_closed(node: Node, client: Client) -> None:
    """Half-close the only connection, and wait until its EOF has been read."""
    client.half_close()
    (connection,) = node.front.connections
    await until(lambda: connection.pair.client_ended)


# -- the client leaves -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [False, True])
async def test_client_that_leaves_ends_its_held_call(node: Node, half: bool) -> None:
    hook, client = await held(node)
    if half:
        await half_closed(node, client)
    client.abort()
    await until(lambda: hook.cancelled == 1)
    await until(lambda: not node.front.tasks and not node.front.connections)
    assert node.recorder.counted("calls_ended", operation="RunPodSandbox") == 1
    assert node.front.held_bytes.count == 0
    assert (node.dockerd.requests(CREATE), node.store.counts()) == ([], (0, 0))


async def test_client_that_half_closes_gets_its_answer(node: Node) -> None:
    hook, client = await held(node)
    await half_closed(node, client)
    hook.gate.set()
    made = id_of(await client.answer())
    assert await client.ended() == b""
    assert (node.pod_of(made).effective.id, hook.cancelled) == (made, 0)


async def test_plain_create_without_a_daemon_is_502_and_counts_no_more(node: Node) -> None:
    client = await node.client()
    sent = request("POST", "/containers/create?name=plain", b'{"Image":"busybox"}')
    client.send(sent[:-1])
    await until(lambda: node.front.held_bytes.count > 0)
    await node.dockerd.stop()
    client.send(sent[-1:])
    assert (await client.answer()).status == 502
    assert node.front.held_bytes.count == 0


async def test_post_hooks_are_asked_though_the_client_has_gone(node: Node) -> None:
    _, container_id = await node.made()
    hook = node.plugins.gated("a", points=("PostStartContainer",))
    client = await node.client()
    client.send(request("POST", f"/containers/{container_id}/start"))
    await until(lambda: hook.waiting == 1)
    client.abort()
    await until(lambda: not node.front.connections)
    hook.gate.set()
    await until(lambda: not node.front.tasks)
    assert (node.points, hook.cancelled) == (["PostStartContainer"], 0)


async def test_client_that_leaves_a_released_call_ends_the_daemons_side(node: Node) -> None:
    _, container_id = await node.running()
    node.plugins.add("a")
    stop = node.dockerd.inject(STOP, Injection(hang=True))
    client = await node.client()
    client.send(request("POST", f"/containers/{container_id}/stop?t=60"))
    await until(lambda: stop.hanging == 1)
    client.abort()
    await until(lambda: node.dockerd.requests(STOP)[0].client_ended)
    await until(lambda: not node.front.tasks)
    assert node.recorder.counted("calls", operation="StopContainer", outcome="unsettled") == 1
    assert node.points == []


# -- the daemon leaves -------------------------------------------------------------------------------------------------


async def test_daemon_that_closes_during_a_hold_is_dialled_once_more(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    hook, client = await held(node, behaviour=HookAnswer(labels={"l": "1"}))
    node.dockerd.drop_connections()
    await until(lambda: node.dockerd.connections == 1)  # that of the events, which are followed again
    node.front.tell_away(ConnectionRefusedError())
    hook.gate.set()
    made = id_of(await client.answer())
    assert f"container runtime at {node.dockerd.socket_path} is reachable again" in caplog.text
    assert node.pod_of(made).effective.labels["l"] == "1"
    assert (await client.ask("POST", f"/containers/{made}/start")).status == 204
    made_on, started_on = (node.dockerd.requests(route)[-1].connection for route in (CREATE, START))
    assert made_on == started_on


async def test_daemon_that_is_away_at_the_release_is_502(node: Node) -> None:
    hook, client = await held(node)
    await node.dockerd.stop()
    hook.gate.set()
    answer = await client.answer()
    assert (answer.status, answer.message, answer.headers["connection"]) == (502, AWAY, "close")
    assert await client.ended() == b""
    assert node.recorder.total("backend_dial_failures") == 1
    await until(lambda: not node.front.tasks)
    assert node.store.counts() == (0, 0)


async def test_update_that_was_never_sent_is_not_waited_for(node: Node) -> None:
    _, container_id = await node.made()
    hook, client = await held(node, request("POST", f"/containers/{container_id}/update", b'{"CpuShares":5}'))
    await node.dockerd.stop()
    hook.gate.set()
    assert (await client.answer()).status == 502
    await until(lambda: not node.front.tasks)
    await node.dockerd.start()
    await until(lambda: node.dockerd.watchers == 1)
    node.dockerd.state.update(container_id, {"CpuShares": 9})
    await node.event("update")
    assert node.recorder.total("updates_of_others") == 1


async def test_released_call_whose_daemon_dies_is_not_sent_twice(node: Node) -> None:
    node.dockerd.inject(CREATE, Injection(cut_after_bytes=0, times=1))
    node.plugins.add("a")
    client = await node.client()
    client.send(create(node))
    assert await client.ended() == b""
    assert len(node.dockerd.requests(CREATE)) == 1
    await until(lambda: not node.front.tasks)
    assert node.recorder.counted("calls", operation="RunPodSandbox", outcome="unsettled") == 1
    assert node.store.counts() == (0, 0)


async def test_daemon_that_is_missing_at_the_start(tmp_path: Path) -> None:
    async with Node(tmp_path, away=True) as node:
        await node.front.start()
        node.plugins.add("a")
        answer = await node.ask("GET", "/_ping")
        assert (answer.status, answer.message) == (502, AWAY)
        await node.dockerd.start()
        pod_id, container_id = await node.running()
        await until(lambda: node.dockerd.watchers == 1)
        assert node.store.counts() == (1, 1)
        await node.act("stop", container_id)
        assert (node.told.pod.id, node.told.pod.cgroup_parent) == (pod_id, node.pod.cgroup_parent)


async def test_daemon_whose_backlog_is_full_at_the_release_is_502(tmp_path: Path) -> None:
    async with Node(tmp_path, away=True) as node:
        with socket.socket(socket.AF_UNIX) as daemon:
            daemon.bind(node.dockerd.socket_path)
            daemon.listen(0)
            node.store.commit(KNOWN)
            hook, client = await held(node, request("POST", "/containers/c1/start"))
            daemon.accept()[0].close()
            kept = fill_backlog(node.dockerd.socket_path)
            await asyncio.sleep(0.02)
            hook.gate.set()
            assert (await client.answer()).status == 502
            for sock in kept:
                sock.close()


@pytest.mark.parametrize("framing", ["Content-Length: 1000000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\nfffff\r\n"])
@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 No\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno", b""])
async def test_client_inside_a_body_may_send_on_when_the_daemon_leaves(
    tmp_path: Path, framing: str, answer: bytes
) -> None:
    """A daemon may answer before it has read a request; a client that cannot write then may never read the answer."""
    async with Node(tmp_path, away=True) as node:
        with socket.socket(socket.AF_UNIX) as daemon:
            daemon.bind(node.dockerd.socket_path)
            daemon.listen()
            daemon.setblocking(False)
            client = await node.client()
            client.send(f"POST /images/create HTTP/1.1\r\nHost: d\r\n{framing}".encode())
            connection, _ = await asyncio.get_running_loop().sock_accept(daemon)
            await asyncio.get_running_loop().sock_recv(connection, 1000)
            connection.send(answer)
            connection.close()
            assert await client.ended() == answer
            for _ in range(20):
                client.send(b"x" * 1000)
                await client.writer.drain()
                await asyncio.sleep(0.005)
            (paired,) = node.front.connections
            assert (paired.reader.to_daemon, node.front.held_bytes.count) == ([], 0)
            await client.close()
            await until(lambda: not node.front.connections)


async def test_daemon_that_says_nothing_sensible_of_itself_is_asked_again(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.dockerd.inject("GET /info", Injection(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", times=2))
        await node.follow()
        assert node.dockerd.counts["GET /info"] == 3
        assert node.recorder.total("backend_event_stream_losses") == 2


# -- many at once ------------------------------------------------------------------------------------------------------


async def test_calls_of_different_containers_do_not_wait_for_one_another(node: Node) -> None:
    pod_id = await node.create_pod()
    hook = node.plugins.gated("a", points=("PreCreateContainer", "PreStartContainer"))

    async def run(name: str) -> None:
        container = bodies.Container(name, CONTAINER.image, command=("sleep", "1"))
        made = await node.create_container(pod_id, container)
        assert (await node.act("start", made)).status == 204

    tasks = [asyncio.create_task(run(f"c{number}")) for number in range(100)]
    await until(lambda: hook.waiting == 100)
    assert node.lifecycle.holds()[0] == 100
    hook.gate.set()
    await asyncio.gather(*tasks)
    assert node.store.counts() == (1, 100)
    assert len(node.dockerd.requests(START)) == 100


async def test_calls_of_one_container_keep_their_order(node: Node) -> None:
    _, container_id = await node.running()
    hook = node.plugins.gated("a")
    clients = [await node.client() for _ in range(5)]
    for shares, client in enumerate(clients, 2):
        client.send(request("POST", f"/containers/{container_id}/update", written({"CpuShares": shares})))
        await until(lambda shares=shares: node.lifecycle.holds()[0] == shares - 1)  # type: ignore[misc]
    assert hook.waiting == 1
    hook.gate.set()
    assert [(await client.answer()).status for client in clients] == [200] * 5
    told = [asked.request.container for asked in node.plugins.asked]
    assert [one.resources.cpu_shares for one in told if one and one.resources] == [2, 3, 4, 5, 6]
    assert len(node.dockerd.requests(UPDATE)) == 5


# -- what is no HTTP/1.1 -----------------------------------------------------------------------------------------------


async def test_ambiguous_request_is_refused_and_counted(node: Node) -> None:
    client = await node.client()
    client.send(
        b"POST /containers/create HTTP/1.1\r\nHost: d\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}"
    )
    answer = await client.answer()
    assert (answer.status, answer.message.partition(":")[0]) == (400, "runtimeproxy")
    assert await client.ended() == b""
    assert (node.recorder.total("requests_refused"), node.dockerd.requests(CREATE)) == (1, [])
    await client.close()
    await until(lambda: not node.front.connections)


@pytest.mark.parametrize("policy", [FAIL, IGNORE])
async def test_http2_client_goes_round_the_hooks_or_away(node: Node, policy: FailurePolicy) -> None:
    node.plugins.add("a", policy=policy, points=("PostStopPodSandbox",))
    client = await node.client()
    client.send(PREFACE + b"SM\r\n\r\n")
    answer = await client.ended()  # the fake daemon speaks no HTTP/2
    assert (answer == b"") is (policy is FAIL)
    assert node.recorder.total("http2_tunnels") == 1


async def test_http2_client_is_closed_when_a_plugin_with_policy_fail_comes(tmp_path: Path) -> None:
    async with Node(tmp_path, away=True) as node:
        with socket.socket(socket.AF_UNIX) as daemon:
            daemon.bind(node.dockerd.socket_path)
            daemon.listen()  # it says nothing to anybody, as a daemon that speaks HTTP/2 would not either
            http2, http1 = await node.client(), await node.client()
            http2.send(PREFACE + b"SM\r\n\r\n")
            http1.send(request("GET", "/events"))
            await until(lambda: len(node.front.http2) == 1)
            for policy, left in ((IGNORE, 1), (FAIL, 0)):
                node.plugins.add(policy.name, policy=policy)
                node.plugins.changed()
                await until(lambda left=left: len(node.front.http2) == left)  # type: ignore[misc]
            assert await http2.ended() == b""
            await until(lambda: len(node.front.connections) == 1)


# -- the client ends inside a body -------------------------------------------------------------------------------------


@pytest.mark.parametrize("plugins", [(), (IGNORE,), (FAIL,)], ids=["nobody", "Ignore", "Fail"])
async def test_client_that_leaves_inside_a_held_body_asked_nothing(
    node: Node, plugins: tuple[FailurePolicy, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody failed: it is no request that could not be read."""
    for policy in plugins:
        node.plugins.add("a", policy=policy)
    client = await node.client()
    client.send(create(node)[:-9])
    await until(lambda: node.front.held_bytes.count > 0)
    client.abort()
    await until(lambda: not node.front.connections)
    assert (node.points, node.front.tasks, node.front.held_bytes.count) == ([], set(), 0)
    assert node.dockerd.requests(CREATE) == []
    counts = ("hook_failures", "calls_unreadable", "calls_refused", "calls_ended", "calls")
    assert [node.recorder.total(name) for name in counts] == [0] * len(counts)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(("policy", "status"), [(IGNORE, 400), (FAIL, 500)], ids=["Ignore", "Fail"])
async def test_client_that_half_closes_inside_a_held_body_is_answered(
    node: Node, policy: FailurePolicy, status: int
) -> None:
    """The daemon answers what it was sent, unless a plugin refuses what cannot be read."""
    node.plugins.add("a", policy=policy)
    client = await node.client()
    client.send(create(node)[:-9])
    client.half_close()
    assert (await client.answer()).status == status
    assert await client.ended() == b""
    assert (node.points, node.recorder.total("calls_unreadable")) == ([], 1)
