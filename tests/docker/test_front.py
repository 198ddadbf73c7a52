"""Which requests the Docker front holds, whom it asks about them, what of the others passes (relay-rules B10)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from runtimeproxy.plugins.registration import FailurePolicy
from tests.docker.client import chunked, request
from tests.docker.daemon import until
from tests.docker.node import CREATE, INSPECT, START, UPDATE, Node, written
from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes import dockershim_bodies as bodies
from tests.fakes.dockerd_received import Injection
from tests.fakes.plugins import ALL_POINTS, FAIL, IGNORE

PLAIN_BODY = b'{ "Image" : "%b","HostConfig":null, "hostconfig":null,"Env":["\\u0041=1"],"New":1e400 }' % (
    BUSYBOX_IMAGE.encode()
)
"""A create that is no pod's, in a spelling that nobody would write again."""


def percent(text: str) -> str:
    return "".join(f"%{ord(letter):02x}" for letter in text)


# -- which calls are held ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "/v1.12", "/v1.41"])
async def test_seven_points_fire_on_their_calls(node: Node, prefix: str) -> None:
    node.prefix = prefix
    node.plugins.add("a")
    pod_id = await node.create_pod()
    assert node.points == ["PreRunPodSandbox"]
    await node.act("start", pod_id)
    assert node.points == [], "the start of a sandbox is a part of RunPodSandbox"
    container_id = await node.create_container(pod_id)
    assert node.points == ["PreCreateContainer"]
    await node.act("start", container_id)
    assert node.points == ["PreStartContainer", "PostStartContainer"]
    await node.act("update", container_id, {"CpuShares": 512})
    assert node.points == ["PreUpdateContainerResources"]
    await node.act("stop", container_id)
    assert node.points == ["PostStopContainer"]
    await node.act("stop", pod_id)
    assert node.points == ["PostStopPodSandbox"]
    assert [(await node.remove(made)).status for made in (container_id, pod_id)] == [204, 204]
    assert node.points == []
    assert node.store.counts() == (0, 0)
    assert not node.dockerd.requests(INSPECT), "all of it was known"


async def test_store_knows_all_without_a_plugin(node: Node) -> None:
    pod_id, container_id = await node.running()
    update = written(bodies.update_body({"cpu_shares": 512}, moves_swap=True))
    assert (await node.act("update", container_id, update)).status == 200
    assert node.came(UPDATE) == update
    assert node.store.counts() == (1, 1)
    for record in (node.container(container_id).original, node.container(container_id).effective):
        assert record.resources is not None
        assert (record.resources.cpu_shares, record.id, record.pod_id) == (512, container_id, pod_id)
    await node.act("stop", container_id)
    assert node.store.counts() == (1, 1)
    await node.remove(pod_id)
    assert node.store.counts() == (0, 0)
    assert not node.recorder.total("calls_unreadable")
    assert not node.dockerd.requests(INSPECT)


# -- references --------------------------------------------------------------------------------------------------------


REFERENCES: dict[str, Callable[[str, str], str]] = {
    "full id": lambda full_id, name: full_id,
    "prefix": lambda full_id, name: full_id[:12],
    "name": lambda full_id, name: name,
    "encoded name": lambda full_id, name: percent(name),
    "encoded id": lambda full_id, name: percent(full_id),
}


@pytest.mark.parametrize("spelt", REFERENCES.values(), ids=REFERENCES)
async def test_any_reference_names_the_same_container(node: Node, spelt: Callable[[str, str], str]) -> None:
    node.plugins.add("a")
    pod_id, container_id = await node.made()
    container, pod = (spelt(made, node.dockerd.container(made).name) for made in (container_id, pod_id))
    for action in ("start", "update", "stop"):
        raw = request("POST", f"/containers/{container}/{action}", b"{}" if action == "update" else b"")
        client = await node.client()
        client.send(raw)
        assert (await client.answer()).status in (200, 204)
        assert node.dockerd.received[-1].raw == raw
        assert (node.told_container.id, node.told.pod.id) == (container_id, pod_id)
    assert node.points == list(ALL_POINTS[2:6])
    assert (await node.act("start", pod)).status == 204
    assert node.points == []
    await node.act("stop", pod)
    assert (node.told.pod.id, node.points) == (pod_id, ["PostStopPodSandbox"])
    for made, left in ((container, (1, 0)), (pod, (0, 0))):
        assert (await node.remove(made)).status == 204
        await until(lambda left=left: node.store.counts() == left)  # type: ignore[misc]


# -- what is no pod's --------------------------------------------------------------------------------------------------


async def test_plain_containers_calls_pass_as_they_came(node: Node) -> None:
    node.plugins.add("a", policy=FAIL)
    raw = request("POST", "/containers/create?name=plain&name=2", PLAIN_BODY, "X-Odd:   kept  ")
    client = await node.client()
    client.send(raw)
    answer = await client.answer()
    assert answer.status == 201
    assert node.dockerd.requests(CREATE)[0].raw == raw
    chunks = chunked(PLAIN_BODY)
    raw = request("POST", "/containers/create", b"", "Content-Type: application/json", "Transfer-Encoding: chunked")
    client.send(raw + chunks)
    assert (await client.answer()).status == 201
    assert node.dockerd.requests(CREATE)[1].raw == raw + chunks
    plain_id = answer.json["Id"]
    for action, body in (("start", b""), ("update", b'{"CpuShares": 3, "cpushares": 4}'), ("stop", b"")):
        raw = request("POST", f"/containers/{plain_id}/{action}", body)
        client.send(raw)
        assert (await client.answer()).status in (200, 204)
        assert node.dockerd.received[-1].raw == raw
    assert (await client.ask("DELETE", f"/containers/{plain_id}")).status == 204
    assert node.points == []
    assert node.store.counts() == (0, 0)
    assert not node.recorder.total("calls_unreadable")


async def test_b10_plain_container_is_remembered_by_its_full_id_only(node: Node) -> None:
    node.plugins.add("a")
    plain_id = await node.plain()

    async def asked(reference: str) -> int:
        before = len(node.dockerd.requests(INSPECT))
        await node.act("stop", reference)
        return len(node.dockerd.requests(INSPECT)) - before

    assert [await asked(reference) for reference in (plain_id, plain_id)] == [1, 0]
    assert [await asked(reference) for reference in ("plain", "plain", plain_id[:12])] == [1, 1, 1]
    await node.ask("POST", f"/containers/{plain_id}/rename?name=other")
    await node.event("rename")
    assert [await asked(reference) for reference in (plain_id, plain_id)] == [1, 0]
    await node.remove(plain_id)
    await node.event("destroy")
    assert [await asked(reference) for reference in (plain_id, plain_id)] == [1, 1], "it is gone: 404"


# -- who is asked for what the Store does not know ---------------------------------------------------------------------


ASKED = [
    ("start", ("PreStartContainer",), ("PostStopContainer", "PreUpdateContainerResources", "PreCreateContainer")),
    ("start", ("PostStartContainer",), ("PostStopPodSandbox",)),
    ("update", ("PreUpdateContainerResources",), ("PreStartContainer", "PostStopContainer")),
    ("stop", ("PostStopContainer",), ("PreStartContainer", "PostStartContainer")),
    ("stop", ("PostStopPodSandbox",), ("PreRunPodSandbox", "PreUpdateContainerResources")),
]


@pytest.mark.parametrize("reference", ["full id", "name"])
@pytest.mark.parametrize(("action", "concerned", "others"), ASKED)
async def test_unknown_container_is_read_only_for_a_plugin_of_its_points(
    node: Node, action: str, concerned: tuple[str, ...], others: tuple[str, ...], reference: str
) -> None:
    _, container_id = await node.made()
    named = container_id if reference == "full id" else node.dockerd.container(container_id).name
    body = b"{}" if action == "update" else None
    node.forget()
    node.plugins.add("other", points=others)
    await node.act(action, named, body)
    assert (node.points, node.dockerd.requests(INSPECT), node.store.counts()) == ([], [], (0, 0))
    node.plugins.add("a", points=concerned)
    if action == "start":
        node.dockerd.state.stop(container_id)
    await node.act(action, named, body)
    assert node.dockerd.requests(INSPECT)
    assert node.store.counts() == (1, 1)


@pytest.mark.parametrize(
    ("point", "asks"), [("PreCreateContainer", True), ("PreRunPodSandbox", True), ("PreStartContainer", False)]
)
async def test_creates_unknown_pod_is_read_only_for_a_plugin_it_concerns(node: Node, point: str, asks: bool) -> None:
    pod_id = await node.create_pod()
    node.forget()
    node.plugins.add("a", points=(point,))
    await node.create_container(pod_id)
    assert bool(node.dockerd.requests(INSPECT)) is asks
    assert node.store.counts() == ((1, 1) if asks else (0, 0))


async def test_remove_asks_nobody(node: Node) -> None:
    node.plugins.add("a", policy=FAIL)
    pod_id, container_id = await node.made()
    node.forget()
    for made in (container_id, pod_id):
        assert (await node.remove(made)).status == 204
    assert (node.points, node.dockerd.requests(INSPECT)) == ([], [])


async def test_call_on_what_nobody_knows_passes(node: Node) -> None:
    node.plugins.add("a", policy=FAIL)
    for action, body in (("start", None), ("stop", None), ("update", b"{}")):
        answer = await node.act(action, "nobody", body)
        assert (answer.status, answer.message) == (404, "No such container: nobody")
    assert node.points == []


@pytest.mark.parametrize("policy", [FAIL, IGNORE])
@pytest.mark.parametrize(
    "injection",
    [Injection(status=500, message="secret words"), Injection(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")],
    ids=["error", "no container"],
)
async def test_failed_inspect_is_a_failure_under_the_policy(
    node: Node, policy: FailurePolicy, injection: Injection
) -> None:
    _, container_id = await node.made()
    node.forget()
    node.plugins.add("koordlet", policy=policy)
    node.dockerd.inject(INSPECT, injection)
    answer = await node.act("start", container_id)
    if policy is FAIL:
        assert answer.status == 500
        assert "StartContainer refused: hook server 'koordlet' at PreStartContainer: unreadable" in answer.message
        assert "secret words" not in answer.message
        assert node.dockerd.requests(START) == []
    else:
        assert answer.status == 204
        assert node.recorder.total("hook_fail_open") == 1
    assert node.points == []


# -- creates that cannot be read ---------------------------------------------------------------------------------------


POD_LABELS = b'"Labels":{"io.kubernetes.docker.type":"podsandbox"}'
IMAGE = b'"Image":"%b"' % BUSYBOX_IMAGE.encode()
DEEP = b"[" * 100_000 + b"]" * 100_000
UNREADABLE: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "a key twice": (b'{%b,%b,"labels":{}}' % (IMAGE, POD_LABELS), ()),
    "encoded": (b"{%b,%b}" % (IMAGE, POD_LABELS), ("Content-Encoding: gzip",)),
    "too deep": (b'{%b,%b,"X":%b}' % (IMAGE, POD_LABELS, DEEP), ()),
    "too long": (b'{%b,%b,"X":"%b"}' % (IMAGE, POD_LABELS, b"x" * (17 << 20)), ()),
    "no JSON": (b"{%b,%b" % (IMAGE, POD_LABELS), ()),
    "no sandbox named": (b'{%b,"Labels":{"\\u0069o.kubernetes.docker.type":"container"}}' % IMAGE, ()),
}
every_unreadable = pytest.mark.parametrize(("body", "lines"), UNREADABLE.values(), ids=UNREADABLE)


@every_unreadable
@pytest.mark.parametrize("registered", [IGNORE, None])
async def test_unreadable_create_passes_unless_a_plugin_says_fail(
    node: Node, body: bytes, lines: tuple[str, ...], registered: FailurePolicy | None
) -> None:
    if registered is not None:
        node.plugins.add("a", policy=registered)
    node.plugins.add("later", policy=FAIL, points=ALL_POINTS[2:])
    if DEEP in body:  # the fake daemon cannot read it either
        node.dockerd.inject(CREATE, Injection(status=400))
    raw = request("POST", "/containers/create?name=odd", body, *lines)
    client = await node.client()
    client.send(raw)
    answer = await client.answer()
    node.dockerd.keep_body_bytes = len(body)
    received = node.dockerd.requests(CREATE)[0]
    assert answer.status == received.status
    assert received.raw == raw[: len(received.raw)]
    assert received.body_bytes == len(body)
    assert node.recorder.counted("calls_unreadable", operation="CreateContainer") == 1
    assert (node.points, node.store.counts()) == ([], (0, 0))


@every_unreadable
@pytest.mark.parametrize("point", ALL_POINTS[:2])
async def test_unreadable_create_is_refused_under_fail(
    node: Node, body: bytes, lines: tuple[str, ...], point: str
) -> None:
    node.plugins.add("lenient")
    node.plugins.add("strict", policy=FAIL, points=(point,))
    answer = await node.create("odd", body, *lines)
    assert answer.status == 500
    assert f"refused: hook server 'strict' at {point}: unreadable" in answer.message
    assert (node.dockerd.requests(CREATE), node.points) == ([], [])


@pytest.mark.parametrize(
    "body", [PLAIN_BODY, b'{%b,"X":%b}' % (IMAGE, DEEP), b"{%b" % IMAGE], ids=["a key twice", "deep", "no JSON"]
)
async def test_unreadable_create_of_no_pod_always_passes(node: Node, body: bytes) -> None:
    node.plugins.add("strict", policy=FAIL)
    if DEEP in body:
        node.dockerd.inject(CREATE, Injection(status=400))
    answer = await node.create("plain", body)
    assert node.came(CREATE) == body
    assert answer.status == node.dockerd.requests(CREATE)[0].status
    assert not node.recorder.total("calls_unreadable")


async def test_daemons_state_is_read_behind_its_events_and_swept(tmp_path: Path) -> None:
    async with Node(tmp_path) as earlier:
        await earlier.follow()
        pod_id, container_id = await earlier.made()
        state = earlier.dockerd.state
        known = earlier.store.snapshot()
    (tmp_path / "later").mkdir()
    async with Node(tmp_path / "later", synced=True) as node:
        node.plugins.add("a")
        node.dockerd.state = state
        await node.follow()
        await until(lambda: node.store.counts() == (1, 1))
        assert node.store.snapshot() == known
        requests = [received.route for received in node.dockerd.received]
        assert requests.index("GET /events") < requests.index("GET /containers/json")
        node.front._events.expect_update(container_id)
        del state.containers[container_id]
        node.front.sync.soon()
        await until(lambda: node.store.counts() == (1, 0))
        assert (node.front._events.expected_updates, node.store.ids()) == ({}, {pod_id})
