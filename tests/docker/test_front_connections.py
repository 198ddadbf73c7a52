"""What becomes of held calls when a client or the daemon leaves, and of many calls at once."""

import asyncio
import logging
import socket
from pathlib import Path

import pytest

from runtimeproxy.docker.reader import DAEMON_AWAY
from runtimeproxy.model import ContainerInfo, ContainerRecord, HookAnswer, PodInfo, PodRecord, Subject
from tests.docker.client import request
from tests.docker.daemon import until
from tests.docker.node import CONTAINER, CREATE, START, STOP, UPDATE, Node, id_of, written
from tests.fakes import dockershim_bodies as bodies
from tests.fakes.dockerd_received import Injection
from tests.fakes.plugins import FAIL
from tests.relay.test_dial import fill_backlog

AWAY = f"runtimeproxy: {DAEMON_AWAY}"


KNOWN = Subject(
    PodRecord(PodInfo(id="p1"), PodInfo(id="p1")),
    ContainerRecord(ContainerInfo(id="c1", pod_id="p1"), ContainerInfo(id="c1", pod_id="p1")),
)


def create(node: Node) -> bytes:
    return request("POST", f"/containers/create?name={bodies.sandbox_name(node.pod)}", written(node.pod_body()))


# -- the client leaves -------------------------------------------------------------------------------------------------


async def test_a_client_that_leaves_ends_its_held_call(node: Node) -> None:
    hook = node.plugins.gated("a")
    client = await node.client()
    client.send(create(node))
    await until(lambda: hook.waiting == 1)
    client.abort()
    await until(lambda: hook.cancelled == 1)
    await until(lambda: not node.front.tasks and not node.front.connections)
    assert node.recorder.counted("calls_ended", operation="RunPodSandbox") == 1
    assert node.front.held_bytes.count == 0
    assert (node.dockerd.requests(CREATE), node.store.counts()) == ([], (0, 0))


async def test_a_client_that_half_closes_gets_its_answer(node: Node) -> None:
    hook = node.plugins.gated("a")
    client = await node.client()
    client.send(create(node))
    client.half_close()
    await until(lambda: hook.waiting == 1)
    hook.gate.set()
    made = id_of(await client.answer())
    assert await client.ended() == b""
    assert node.pod_of(made).effective.id == made
    assert hook.cancelled == 0


async def test_a_client_that_leaves_after_it_has_half_closed_ends_its_held_call(node: Node) -> None:
    hook = node.plugins.gated("a")
    client = await node.client()
    client.send(create(node))
    client.half_close()
    await until(lambda: hook.waiting == 1)
    client.abort()
    await until(lambda: hook.cancelled == 1)
    assert node.dockerd.requests(CREATE) == []


async def test_a_held_call_whose_client_left_before_its_turn_asks_nobody(tmp_path: Path) -> None:
    async with Node(tmp_path, away=True) as node:
        with socket.socket(socket.AF_UNIX) as daemon:  # it reads nothing, so something is left to write
            daemon.bind(node.dockerd.socket_path)
            daemon.listen()
            daemon.setblocking(False)
            node.plugins.add("a")
            node.store.commit(KNOWN)
            client = await node.client()
            client.send(request("PUT", "/containers/x/archive", bytes(400_000)))
            connection, _ = await asyncio.get_running_loop().sock_accept(daemon)
            client.send(request("POST", "/containers/c1/update", b"{}"))
            (paired,) = node.front.connections
            await until(lambda: len(paired.reader._pending) == 2)
            client.abort()
            await until(lambda: not paired.reader._pending)
            assert node.front.connections
            connection.send(b"HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n")
            await asyncio.sleep(0.05)
            assert (node.points, node.front.tasks) == ([], set())
            connection.close()
            await until(lambda: not node.front.connections)


async def test_a_plain_create_that_no_daemon_was_there_for_counts_no_more(node: Node) -> None:
    client = await node.client()
    sent = request("POST", "/containers/create?name=plain", b'{"Image":"busybox"}')
    client.send(sent[:-1])
    await until(lambda: node.front.held_bytes.count > 0)
    await node.dockerd.stop()
    client.send(sent[-1:])
    assert (await client.answer()).status == 502
    assert node.front.held_bytes.count == 0


async def test_what_the_daemon_agreed_to_is_recorded_and_told_though_the_client_has_gone(node: Node) -> None:
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


async def test_a_client_that_leaves_once_its_call_is_released_ends_the_daemons_side(node: Node) -> None:
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


async def test_a_daemon_that_closes_during_a_hold_is_dialled_once_more(node: Node) -> None:
    hook = node.plugins.gated("a", HookAnswer(labels={"l": "1"}))
    client = await node.client()
    client.send(create(node))
    await until(lambda: hook.waiting == 1)
    node.dockerd.drop_connections()
    await until(lambda: node.dockerd.connections == 1)  # that of the events, which are followed again
    hook.gate.set()
    made = id_of(await client.answer())
    assert node.pod_of(made).effective.labels["l"] == "1"
    assert (await client.ask("POST", f"/containers/{made}/start")).status == 204
    made_on, started_on = (node.dockerd.requests(route)[-1].connection for route in (CREATE, START))
    assert made_on == started_on


async def test_a_daemon_that_is_dialled_once_more_is_told_to_be_there_again(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    hook = node.plugins.gated("a")
    client = await node.client()
    client.send(create(node))
    await until(lambda: hook.waiting == 1)
    node.dockerd.drop_connections()
    await until(lambda: node.dockerd.connections == 1)
    node.front.tell_away(ConnectionRefusedError())
    hook.gate.set()
    with caplog.at_level(logging.INFO):
        await client.answer()
    assert f"container runtime at {node.dockerd.socket_path} is reachable again" in caplog.text


async def test_a_daemon_that_is_away_at_the_release_is_502(node: Node) -> None:
    hook = node.plugins.gated("a")
    client = await node.client()
    client.send(create(node))
    await until(lambda: hook.waiting == 1)
    await node.dockerd.stop()
    hook.gate.set()
    answer = await client.answer()
    assert (answer.status, answer.message, answer.headers["connection"]) == (502, AWAY, "close")
    assert await client.ended() == b""
    assert node.recorder.total("backend_dial_failures") == 1
    await until(lambda: not node.front.tasks)
    assert node.store.counts() == (0, 0)


async def test_an_update_that_was_never_sent_is_not_waited_for(node: Node) -> None:
    _, container_id = await node.made()
    hook = node.plugins.gated("a")
    client = await node.client()
    client.send(request("POST", f"/containers/{container_id}/update", b'{"CpuShares":5}'))
    await until(lambda: hook.waiting == 1)
    await node.dockerd.stop()
    hook.gate.set()
    assert (await client.answer()).status == 502
    await until(lambda: not node.front.tasks)
    await node.dockerd.start()
    await until(lambda: node.dockerd.watchers == 1)
    node.dockerd.state.update(container_id, {"CpuShares": 9})
    await node.event("update")
    assert node.recorder.total("updates_of_others") == 1


async def test_a_daemon_that_dies_on_a_released_call_closes_the_client_and_nothing_is_sent_twice(node: Node) -> None:
    node.dockerd.inject(CREATE, Injection(cut_after_bytes=0, times=1))
    node.plugins.add("a")
    client = await node.client()
    client.send(create(node))
    assert await client.ended() == b""
    assert len(node.dockerd.requests(CREATE)) == 1
    await until(lambda: not node.front.tasks)
    assert node.recorder.counted("calls", operation="RunPodSandbox", outcome="unsettled") == 1
    assert node.store.counts() == (0, 0)


@pytest.mark.parametrize(
    ("method", "target", "route"),
    [
        ("GET", "/containers/json", "GET /containers/json"),
        ("POST", "/images/create?fromImage=web", "POST /images/create"),
        ("POST", "/containers/c1/wait", "POST /containers/{ref}/wait"),
    ],
)
async def test_a_daemon_that_dies_on_a_request_that_passes_closes_the_client_without_a_word(
    node: Node, method: str, target: str, route: str
) -> None:
    """As its own end looks. A 502 would be an answer, and no client repeats a request that was answered."""
    node.dockerd.inject(route, Injection(cut_after_bytes=0, times=1))
    client = await node.client()
    assert (await client.ask("GET", "/_ping")).status == 200
    client.send(request(method, target))
    assert await client.ended() == b""
    assert len(node.dockerd.requests(route)) == 1


async def test_a_daemon_that_dies_behind_its_answer_does_not_take_it_from_the_client(node: Node) -> None:
    _, container_id = await node.made()
    hook = node.plugins.gated("a", points=("PostStartContainer",))
    client = await node.client()
    client.send(request("POST", f"/containers/{container_id}/start"))
    await until(lambda: hook.waiting == 1)
    node.dockerd.drop_connections()
    await until(lambda: node.dockerd.connections == 1)
    hook.gate.set()
    assert (await client.answer()).status == 204
    assert await client.ended() == b""


async def test_a_daemon_that_is_missing_at_the_start(tmp_path: Path) -> None:
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


async def test_a_daemon_whose_backlog_is_full_at_the_release_is_502(tmp_path: Path) -> None:
    async with Node(tmp_path, away=True) as node:
        with socket.socket(socket.AF_UNIX) as daemon:
            daemon.bind(node.dockerd.socket_path)
            daemon.listen(0)
            node.store.commit(KNOWN)
            hook = node.plugins.gated("a")
            client = await node.client()
            client.send(request("POST", "/containers/c1/start"))
            await until(lambda: hook.waiting == 1)
            daemon.accept()[0].close()
            kept = fill_backlog(node.dockerd.socket_path)
            await asyncio.sleep(0.02)
            hook.gate.set()
            assert (await client.answer()).status == 502
            for sock in kept:
                sock.close()


async def test_a_daemon_that_says_nothing_sensible_of_itself_is_asked_again(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        node.dockerd.inject("GET /info", Injection(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", times=2))
        await node.follow()
        assert node.dockerd.counts["GET /info"] == 3
        assert node.recorder.total("backend_event_stream_losses") == 2


async def test_a_client_whose_daemon_is_away_gets_one_answer_to_its_request(tmp_path: Path) -> None:
    async with Node(tmp_path, away=True) as node:
        for raw, status in ((b"POST /x HTTP/1.1\r\nHost: d\r\n\r\n", 502), (b"no HTTP\r\n\r\n", 400)):
            client = await node.client()
            client.send(raw[:5])
            await asyncio.sleep(0.01)
            client.send(raw[5:] + b"more")
            answer = await client.answer()
            assert (answer.status, answer.headers["connection"]) == (status, "close")
            assert await client.ended() == b""
            await client.close()


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


async def test_the_calls_of_one_container_keep_their_order(node: Node) -> None:
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
    assert [container.resources.cpu_shares for container in told if container and container.resources] == [
        2,
        3,
        4,
        5,
        6,
    ]
    assert len(node.dockerd.requests(UPDATE)) == 5


async def test_pipelined_calls_are_held_in_their_turn(node: Node) -> None:
    node.plugins.add("a")
    _, container_id = await node.made()
    client = await node.client()
    ping, start = b"GET /_ping HTTP/1.1\r\nHost: d\r\n\r\n", request("POST", f"/containers/{container_id}/start")
    client.send(ping + start + start + ping)
    statuses = [(await client.answer(method)).status for method in ("GET", "POST", "POST", "GET")]
    assert statuses == [200, 204, 304, 200]
    assert node.points == ["PreStartContainer", "PostStartContainer", "PreStartContainer"]


async def test_a_refused_call_leaves_the_connection_as_it_was(node: Node) -> None:
    node.plugins.add("a", HookAnswer(cgroup_parent="relative"), policy=FAIL, points=("PreRunPodSandbox",))
    client = await node.client()
    client.send(create(node) + b"GET /_ping HTTP/1.1\r\nHost: d\r\n\r\n")
    refused = await client.answer()
    assert (refused.status, refused.headers.get("connection")) == (500, None)
    assert (await client.answer("GET")).body == b"OK"


# -- what is no HTTP/1.1 -----------------------------------------------------------------------------------------------


async def test_a_request_that_could_be_read_in_two_ways_is_refused_and_counted(node: Node) -> None:
    client = await node.client()
    both = b"POST /containers/create HTTP/1.1\r\nHost: d\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}"
    client.send(both)
    answer = await client.answer()
    assert (answer.status, answer.message.partition(":")[0]) == (400, "runtimeproxy")
    assert await client.ended() == b""
    assert node.recorder.total("requests_refused") == 1
    assert node.dockerd.requests(CREATE) == []
    await client.close()
    await until(lambda: not node.front.connections)


async def test_a_front_that_stops_lets_held_calls_finish(node: Node) -> None:
    hook = node.plugins.gated("a")
    client = await node.client()
    client.send(create(node))
    await until(lambda: hook.waiting == 1)
    stopping = asyncio.create_task(node.stop(5.0))
    await asyncio.sleep(0.02)
    assert not stopping.done()
    hook.gate.set()
    assert (await client.answer()).status == 201
    await stopping
    assert node.store.counts() == (1, 0)
