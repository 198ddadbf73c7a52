"""The Docker front: held and passing requests (relay-rules B10), clients that disconnect, HTTP/2 (B4), drains."""

import asyncio
import logging
import socket
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.docker import exchange, front
from runtimeproxy.model.fields import HookAnswer
from runtimeproxy.relay import drain
from tests.docker import messages as m
from tests.docker.client import Client, request
from tests.docker.node import CREATE, INSPECT, START, GatedClient, Node, id_of, on_node
from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes import dockershim_bodies as bodies
from tests.fakes.dockerd_client import until
from tests.fakes.dockerd_shapes import go_json
from tests.fakes.dockerd_wire import Injection
from tests.fakes.plugins import ALL_POINTS, FAIL, IGNORE, NOTHING, Behaviour
from tests.relay.test_dial import fill_backlog

IMAGE = b'"Image":"%b"' % BUSYBOX_IMAGE.encode()
PLAIN_BODY = b'{ %b,"HostConfig":null, "hostconfig":null,"Env":["\\u0041=1"],"New":1e400 }' % IMAGE
"""A create without a pod, in an unusual spelling, so that a rewritten body would differ."""
POD = b'%b,"Labels":{"io.kubernetes.docker.type":"podsandbox"}' % IMAGE
ODD = "/containers/create?name=odd"
UNREADABLE = {"a key twice": request("POST", ODD, b'{%b,"labels":{}}' % POD)}
UNREADABLE["encoded"] = request("POST", ODD, b"{%b}" % POD, "Content-Encoding: gzip")
UNREADABLE["too long"] = request("POST", ODD, b'{%b,"X":"%b"}' % (POD, b"x" * (17 << 20)))
PING, UPLOAD = m.PING, request("POST", "/build", b"x" * 100)
NOTICE_SECONDS = 0.3
QUICK_SECONDS = 10.0
"""Seconds, far below the limit, also on a busy machine."""
UPLOADS = m.request("POST", "/images/load", m.EXPECT, body=b"x" * 100_000)
ANSWERED = [(m.CREATE[:-3], 502), (PING + PING, 502), (UPLOADS, 502), (b"GET / nonsense\r\n\r\n", 400), (b"\0", 400)]
ANSWERED += [(m.PREFACE, 505), (b"x" * (1 << 20), 431)]
# The bytes that are read before the drain begins, that are not, and that are sent after its notice.
SENT = [(PING[:-5], b"", PING[-5:]), (b"", PING[:-5], b""), (UPLOAD[:-5], b"", UPLOAD[-5:]), (b"", UPLOAD[:-5], b"")]
SENT_ON_NODE = [({}, sent) for sent in (*SENT, (b"", b"", b""), (b"", PING, b""))]
SENT_ON_NODE += [({"unavailable": True}, sent) for sent in (SENT[0], (b"", PING, b""))]


@pytest.mark.parametrize(("prefix", "spelling"), [("", "{0.id}"), ("/v1.12", "{0.id:.12}"), ("/v1.41", "{0.name}")])
async def test_calls_run_their_hook_points(node: Node, prefix: str, spelling: str) -> None:
    node.prefix = prefix
    node.plugins.add("a")
    pod_id = await node.create_pod()
    assert node.points == ["PreRunPodSandbox"]
    container_id = await node.create_container(pod_id)
    assert node.points == ["PreCreateContainer"]
    container, pod = (spelling.format(node.dockerd.container(reference)) for reference in (container_id, pod_id))
    await node.act("start", pod)
    assert node.points == [], "the start of a sandbox is a part of RunPodSandbox"
    for action, reference, body, hook_points in (
        ("start", container, b"", ["PreStartContainer", "PostStartContainer"]),
        ("update", container, {"CpuShares": 512}, ["PreUpdateContainerResources"]),
        ("stop", container, b"", ["PostStopContainer"]),
        ("stop", pod, b"", ["PostStopPodSandbox"]),
    ):
        assert (await node.act(action, reference, body)).status in (200, 204)
        assert node.dockerd.received[-1].target == f"{prefix}/containers/{reference}/{action}"
        assert node.last_request.pod.id == pod_id
        assert reference == pod or node.last_request.container.id == container_id
        assert node.points == hook_points
    for reference, remaining in ((container, (1, 0)), (pod, (0, 0))):
        assert (await node.remove(reference)).status == 204
        await until(lambda remaining=remaining: node.store.counts() == remaining)  # type: ignore[misc]
    assert node.points == []
    assert bool(node.dockerd.requests(INSPECT)) is (container != container_id), "by its id all of it was known"
    if container == container_id:
        operations = "RunPodSandbox CreateContainer StartContainer UpdateContainerResources StopContainer"
        operations += " StopPodSandbox RemoveContainer RemovePodSandbox"
        assert [times.operation for times in node.metrics.calls] == operations.split()


async def test_calls_pass_unchanged_when_container_has_no_pod(node: Node) -> None:
    node.plugins.add("a", policy=FAIL)
    client = await node.client()

    async def passed(raw: bytes) -> Any:
        client.send(raw)
        answer = await client.answer()
        assert answer.status in (200, 201, 204)
        assert node.dockerd.received[-1].raw == raw
        return answer.body and answer.json

    fields = ("Content-Type: application/json", "Transfer-Encoding: chunked")
    await passed(request("POST", "/containers/create", b"", *fields) + m.chunks(PLAIN_BODY[:7], PLAIN_BODY[7:]))
    created = await passed(request("POST", "/containers/create?name=plain&name=2", PLAIN_BODY, "X-Odd:   kept  "))
    for action, body in (("start", b""), ("update", b'{"CpuShares": 3, "cpushares": 4}'), ("stop", b"")):
        await passed(request("POST", f"/containers/{created['Id']}/{action}", body))
    assert (await client.fetch("DELETE", f"/containers/{created['Id']}")).status == 204
    assert (node.points, node.store.counts()) == ([], (0, 0))
    assert not node.metrics.total("calls_unreadable")
    for path, count in (("create", 2), ("{id}/start", 0), ("{id}/update", 1), ("{id}/stop", 1)):  # the start was held
        assert node.metrics.counted("calls_passed", method=f"POST /containers/{path}") == count
    assert (node.metrics.total("calls"), node.metrics.total("calls_passed")) == (1, 5)


@pytest.mark.parametrize(
    ("action", "hook_points", "other_hook_points"),
    [
        ("start", ("PostStartContainer",), ("PostStopContainer", "PreUpdateContainerResources", "PostStopPodSandbox")),
        ("update", ("PreUpdateContainerResources",), ("PreStartContainer", "PostStopContainer")),
        ("stop", ("PostStopPodSandbox",), ("PreRunPodSandbox", "PostStartContainer", "PreUpdateContainerResources")),
    ],
)
async def test_unknown_container_is_read_when_hooks_need_it(
    node: Node, action: str, hook_points: tuple[str, ...], other_hook_points: tuple[str, ...]
) -> None:
    _, container_id = await node.create_both()
    node.forget()
    for registered, read in ((other_hook_points, False), (hook_points, True)):
        node.plugins.add("a", points=registered)
        await node.act(action, container_id, b"{}" if action == "update" else b"")
        assert bool(node.dockerd.requests(INSPECT)) is read
        assert node.store.counts() == ((1, 1) if read else (0, 0))
        node.dockerd.state.exit(node.dockerd.container(container_id), 0)


@pytest.mark.parametrize(
    ("route", "hook", "called"), [(INSPECT, "PreStartContainer", START), ("GET /info", "PreRunPodSandbox", CREATE)]
)
@on_node({"follows": False})
async def test_call_is_refused_when_subject_is_unreadable(node: Node, route: str, hook: str, called: str) -> None:
    _, container_id = await node.create_both()
    node.forget()
    node.plugins.add("koordlet", policy=FAIL)
    node.dockerd.inject(route, Injection(status=500, message="canary-4711"))
    before = len(node.dockerd.requests(called))
    answer = await (node.act("start", container_id) if called == START else node.create("web", node.pod_body()))
    assert (answer.status, node.dockerd.requests(called)[before:]) == (500, [])
    assert f"refused: hook server 'koordlet' at {hook}: unreadable" in answer.message
    assert "canary" not in answer.message
    assert (node.points, node.store.counts()) == ([], (0, 0))


@pytest.mark.parametrize("hook_point", ["", *ALL_POINTS[:2]])
@pytest.mark.parametrize("raw", UNREADABLE.values(), ids=UNREADABLE)
async def test_unreadable_create_passes_without_fail_policy(node: Node, raw: bytes, hook_point: str) -> None:
    node.plugins.add("lenient")
    node.plugins.add("strict", policy=FAIL, points=(hook_point,) if hook_point else ALL_POINTS[2:])
    node.dockerd.keep_body_bytes = len(raw)
    answer = await (await node.sends(raw)).answer()
    assert (node.points, node.store.counts()) == ([], (0, 0))
    if hook_point:
        assert (answer.status, node.dockerd.requests(CREATE)) == (500, [])
        assert answer.message.startswith("runtimeproxy: create refused: hook server 'strict': unreadable: ")
    else:
        [received] = node.dockerd.requests(CREATE)
        assert (answer.status, received.raw == raw) == (201, True)
        assert node.metrics.counted("calls_unreadable", operation="CreateContainer") == 1


async def test_store_is_loaded_after_events_are_open(node: Node, tmp_path: Path) -> None:
    pod_id, container_id = await node.create_both()
    (tmp_path / "later").mkdir()
    later = Node(tmp_path / "later", synced=True)
    state = later.dockerd.state = node.dockerd.state
    async with later:
        later.plugins.add("a")
        await until(lambda: later.store.counts() == (1, 1))
        assert later.store.snapshot() == node.store.snapshot()
        requests = [received.route for received in later.dockerd.received]
        assert requests.index("GET /events") < requests.index("GET /containers/json")
        later.front._events.expect_update(container_id)
        del state.containers[container_id]
        later.front.sync.soon()
        await until(lambda: later.store.counts() == (1, 0))
        assert (later.front._events.expected_updates, later.store.ids()) == ({}, {pod_id})


def create(node: Node) -> bytes:
    return request("POST", f"/containers/create?name={bodies.sandbox_name(node.pod)}", go_json(node.pod_body()))


async def hold_call(node: Node, raw: bytes = b"", behaviour: Behaviour = NOTHING) -> tuple[GatedClient, Client]:
    """Send a create, or other bytes; return the hook server that holds the call, and the client."""
    hook, client = node.plugins.gated("a", behaviour), await node.client()
    client.send(raw or create(node))
    await until(lambda: hook.waiting == 1)
    return hook, client


async def half_close(node: Node, client: Client) -> None:
    """Half-close the only connection, and wait until its EOF has been read."""
    client.half_close()
    (connection,) = node.front.connections
    await until(lambda: connection.client_ended)


async def test_half_closed_client_is_answered_while_connected(node: Node) -> None:
    hook, client = await hold_call(node)
    await half_close(node, client)
    client.abort()
    await until(lambda: hook.cancelled == 1 and not node.front.tasks and not node.front.connections)
    assert node.metrics.counted("calls", operation="RunPodSandbox", outcome="ended") == 1
    assert (node.front.budget.count, node.dockerd.requests(CREATE), node.store.counts()) == (0, [], (0, 0))
    node.plugins.plugins.clear()
    hook, client = await hold_call(node)
    await half_close(node, client)
    hook.gate.set()
    created = id_of(await client.answer())
    assert await client.ended() == b""
    assert (node.store.pod(created).effective.id, hook.cancelled) == (created, 0)


async def test_call_does_not_exist_when_client_aborts_inside_body(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """This is not an error: it does not count as a request that cannot be read."""
    node.plugins.add("a", policy=FAIL)
    client = await node.sends(create(node)[:-9])
    await until(lambda: node.front.budget.count > 0)
    client.abort()
    await until(lambda: not node.front.connections)
    assert (node.points, node.front.tasks, node.front.budget.count, node.dockerd.requests(CREATE)) == ([], set(), 0, [])
    assert not any(node.metrics.total(name) for name in ("hook_failures", "calls_unreadable", "calls"))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_daemon_is_redialled_when_it_closes_during_hold(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    hook, client = await hold_call(node, behaviour=HookAnswer(labels={"l": "1"}))
    node.dockerd.drop_connections()
    await until(lambda: node.dockerd.connections == 1)  # that of the event stream, which is followed again
    node.front.report_unavailable(ConnectionRefusedError())
    hook.gate.set()
    created = id_of(await client.answer())
    assert f"container runtime at {node.dockerd.socket_path} is reachable again" in caplog.text
    assert node.store.pod(created).effective.labels["l"] == "1"
    assert (await client.fetch("POST", f"/containers/{created}/start")).status == 204
    made_on, started_on = (node.dockerd.requests(route)[-1].connection for route in (CREATE, START))
    assert made_on == started_on


@pytest.mark.parametrize("failure", ["no socket", "a full backlog", "no socket, a client that half-closed"])
async def test_release_is_answered_502_when_daemon_is_unavailable(node: Node, failure: str) -> None:
    _, container_id = await node.create_both()
    hook, client = await hold_call(node, request("POST", f"/containers/{container_id}/update", b'{"CpuShares":5}'))
    (connection,) = node.front.connections
    assert isinstance(connection, front.DockerConnection)
    if "half-closed" in failure:
        await half_close(node, client)
    await node.dockerd.stop()
    with socket.socket(socket.AF_UNIX) as full:
        if failure == "a full backlog":
            full.bind(node.dockerd.socket_path)
            full.listen(0)
            waiting = fill_backlog(node.dockerd.socket_path)
        hook.gate.set()
        answer = await client.answer()
        if failure == "a full backlog":
            for sock in waiting:
                sock.close()
            Path(node.dockerd.socket_path).unlink()
    assert (answer.status, answer.message) == (502, f"runtimeproxy: {exchange.DAEMON_UNAVAILABLE}")
    assert answer.headers["connection"] == "close"
    assert await client.ended() == b""
    await until(lambda: not node.front.tasks and not connection.reader.ready)
    await node.dockerd.start()
    await until(lambda: node.dockerd.watchers == 1)
    node.dockerd.state.update(container_id, {"CpuShares": 9})
    await node.event("update")
    assert node.metrics.total("updates_of_others") == 1


@on_node({"follows": False})
async def test_info_is_queried_again_when_invalid(node: Node) -> None:
    node.dockerd.inject("GET /info", Injection(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", times=2))
    await node.follow()
    assert node.dockerd.counts["GET /info"] == 3
    assert node.metrics.total("backend_event_stream_losses") == 2


async def test_refused_pipelined_and_ambiguous_requests_are_answered(node: Node) -> None:
    node.plugins.add("a", policy=FAIL)
    client = await node.sends(request("POST", ODD, b"{", "Content-Encoding: gzip") * 500)
    for _ in range(500):
        assert (await client.answer()).status == 500
    await client.close()
    client = await node.sends(
        b"POST /containers/create HTTP/1.1\r\nHost: d\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}"
    )
    answer = await client.answer()
    assert (answer.status, answer.message.partition(":")[0]) == (400, "runtimeproxy")
    assert await client.ended() == b""
    assert (node.metrics.total("requests_refused"), node.dockerd.requests(CREATE)) == (1, [])
    await client.close()
    await until(lambda: not node.front.connections)


async def test_http2_client_bypasses_hooks_or_is_closed_by_policy(node: Node) -> None:
    for count, policy in enumerate((IGNORE, FAIL), 1):
        node.plugins.add("a", policy=policy, points=("PostStopPodSandbox",))
        answer = await (await node.sends(m.PREFACE)).ended()  # the fake daemon speaks no HTTP/2
        assert ((answer == b""), node.metrics.total("http2_tunnels")) == (policy is FAIL, count)


@on_node({"unavailable": True})
async def test_http2_client_is_closed_when_fail_policy_is_added(node: Node) -> None:
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(node.dockerd.socket_path)
        daemon.listen()  # it answers nothing, like a daemon that speaks HTTP/2
        http2, http1 = await node.client(), await node.client()
        http2.send(m.PREFACE)
        http1.send(request("GET", "/events"))
        await until(lambda: len(node.front.http2) == 1)
        for policy, remaining in ((IGNORE, 1), (FAIL, 0)):
            node.plugins.add(policy.name, policy=policy)
            node.plugins.on_change()
            await until(lambda remaining=remaining: len(node.front.http2) == remaining)  # type: ignore[misc]
        assert await http2.ended() == b""
        await until(lambda: len(node.front.connections) == 1)


@pytest.fixture
def _times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "NOTICE_SECONDS", NOTICE_SECONDS)
    monkeypatch.setattr(drain, "ANSWER_SECONDS", 0.1)


def drains(test: Callable[..., Any]) -> Any:
    return pytest.mark.slow(pytest.mark.usefixtures("_times")(test))


def start_stop(node: Node) -> "asyncio.Task[None]":
    return asyncio.create_task(node.stop(2 * QUICK_SECONDS))


async def connect_used(node: Node) -> Client:
    client = await node.client()
    assert (await client.fetch("GET", "/_ping")).status == 200
    return client


@drains
async def test_drain_sends_no_eof_to_daemon(node: Node) -> None:
    """EOF by the drain might end a call at the daemon, whether it passes or was held (promise 19)."""
    hang = node.dockerd.inject("GET /_ping", Injection(hang=True))
    created = node.dockerd.inject(CREATE, Injection(hang=True))
    hook = node.plugins.gated("a")
    passing, holding = await node.client(), await node.client()
    passing.send(PING)
    holding.send(create(node))
    await until(lambda: hang.hanging == 1 and hook.waiting == 1)
    stop = start_stop(node)
    await asyncio.sleep(0.05)
    with pytest.raises(BrokenPipeError):  # a later request is not taken
        passing.writer.get_extra_info("socket")._sock.send(PING)
    hook.gate.set()
    await until(lambda: created.hanging == 1)
    await asyncio.sleep(0.05)
    assert not any(received.cancelled for received in node.dockerd.received)
    hang.release()
    created.release()
    assert (await passing.answer("GET")).status == 200
    assert id_of(await holding.answer())
    await asyncio.wait_for(stop, QUICK_SECONDS)
    assert node.store.counts() == (1, 0)


async def connect_silent(node: Node) -> Client:
    count, client = len(node.front.connections), await node.client()
    await until(lambda: len(node.front.connections) > count)
    return client


@drains
@on_node({}, {"unavailable": True})
async def test_drain_accepts_first_request_of_new_client(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "NOTICE_SECONDS", 1000.0)  # never in this test
    early, silent = await connect_silent(node), await connect_silent(node)
    stop = start_stop(node)
    await asyncio.sleep(NOTICE_SECONDS / 6)
    early.send(PING)
    assert (await early.answer("GET")).status == (502 if node.unavailable else 200)
    monkeypatch.setattr(drain, "NOTICE_SECONDS", NOTICE_SECONDS)
    assert [await early.ended(), await silent.ended()] == [b"", b""]
    await asyncio.wait_for(stop, QUICK_SECONDS)


@drains
@pytest.mark.parametrize(("node", "sent"), SENT_ON_NODE, indirect=["node"])
async def test_drain_answers_request_that_has_begun(node: Node, sent: tuple[bytes, bytes, bytes]) -> None:
    """No more bytes arrive if a proxy with a daemon shuts down the reading side just after the first part."""
    client = await (connect_silent(node) if node.unavailable else connect_used(node))
    before, within, late = sent
    client.send(before)
    await asyncio.sleep(0.02 if before else 0)
    stop = start_stop(node)
    client.send(within)
    if before:
        await asyncio.sleep(2 * NOTICE_SECONDS)
        assert not stop.done()
    client.send(late)
    if (complete := b"".join(sent)) in (PING, UPLOAD):
        answer = await client.answer("GET" if complete == PING else "POST")
        assert answer.status == (502 if node.unavailable else 200 if complete == PING else 404)
    rest = await client.ended()
    assert rest == b"" or complete == UPLOAD[:-5], "the daemon answers it"
    await asyncio.wait_for(stop, QUICK_SECONDS)
    assert not node.front.connections
    await until(lambda: node.dockerd.connections == 0)


@pytest.fixture
async def waiting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    monkeypatch.setattr(front, "WAIT_SECONDS", getattr(request, "param", front.WAIT_SECONDS))
    proxy_side, client_side = socket.socketpair()
    client, connections = Client(*await asyncio.open_unix_connection(sock=client_side)), set[drain.Drainable]()
    front.BadGateway(asyncio.get_running_loop(), proxy_side, connections)
    assert len(connections) == 1
    yield client
    await client.close()
    await until(lambda: proxy_side.fileno() < 0)
    assert not connections


@pytest.mark.parametrize(("sent", "status"), ANSWERED)
async def test_bad_gateway_answers_first_request_and_closes(waiting: Client, sent: bytes, status: int) -> None:
    waiting.send(sent)
    notified, closes, body = m.error(await waiting.ended())
    assert (notified, closes) == (status, True)
    if status == 502:
        assert b"dockerd" in body
        assert b"--remote-runtime-service-endpoint" in body


async def test_bad_gateway_waits_for_complete_head(waiting: Client) -> None:
    head = m.request("HEAD", "/_ping")
    for octet in head[:-1]:
        waiting.send(bytes((octet,)))
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waiting.reader.read(1), 0.01)
    waiting.send(head[-1:])
    answer = await waiting.ended()
    assert answer.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    assert answer.endswith(b"\r\n\r\n"), "the answer to HEAD has no body"


@pytest.mark.parametrize(("waiting", "half_closes"), [(front.WAIT_SECONDS, True), (0.03, False)], indirect=["waiting"])
@pytest.mark.parametrize("sent", [PING, PING[:-1], b""])
async def test_bad_gateway_closes_idle_client(waiting: Client, half_closes: bool, sent: bytes) -> None:
    waiting.send(sent)
    if half_closes:
        waiting.half_close()
    assert bool(await waiting.ended()) is (sent == PING)


async def test_bad_gateway_discards_bytes_after_answer(waiting: Client) -> None:
    waiting.send(PING)
    assert m.error(await waiting.ended())[0] == 502
    tracemalloc.start()
    try:
        for _ in range(100):
            waiting.send(b"x" * 50_000)
            await waiting.writer.drain()
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
