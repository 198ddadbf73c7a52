"""Docker's calls through the whole core: creates, calls on existing containers, ends without a call, look-ups."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from runtimeproxy.core import open_calls
from runtimeproxy.core.call import NOT_DONE, Unreadable
from runtimeproxy.core.sync import Listed
from runtimeproxy.docker import sync as module
from runtimeproxy.docker.messages import Driver
from runtimeproxy.errors import BackendError
from runtimeproxy.model import fields
from runtimeproxy.model.fields import ContainerInfo, HookAnswer, HookRequest, PodInfo, PodRecord, Resources, Subject
from tests.docker.bodies import ANNOTATIONS, PARENT, REPORTED, REPORTED_POD, REQUESTED, SYSTEMD_PARENT
from tests.docker.client import request
from tests.docker.daemon import reply
from tests.docker.node import CREATE, INSPECT, START, STOP, UPDATE, Node, id_of, on_node
from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes.dockerd_client import until
from tests.fakes.dockerd_shapes import go_json
from tests.fakes.dockerd_wire import Injection
from tests.fakes.plugins import FAIL

CANARY = "canary-4711"
END = "PostStopContainer"
INFO, IMAGE, REMOVE = "GET /info", "GET /images/{ref}/json", "DELETE /containers/{ref}"
PLAIN_BODY = {"Image": BUSYBOX_IMAGE}
REFUSED = reply(b"{}", 500)
NOT_EXPECTED = [(b"{", (), 400), (b'{"CpuShares":-1}', (), 400), (b'{"CpuShares":5,"cpushares":6}', (), 200)]
NOT_EXPECTED += [(b'{"CpuShares":5}', ("Content-Encoding: gzip",), 200)]  # dockerd reads it as it is


def check_left_out(node: Node, caplog: pytest.LogCaptureFixture, operation: str, fields: str) -> None:
    """Check that the fields are counted and logged as left out, without their values."""
    for field in fields.split(", "):
        assert node.metrics.counted("fields_left_out", operation=operation, field=field) == 1
    assert f"{operation}: Docker cannot set {fields} of a container: left out" in caplog.text
    assert CANARY not in caplog.text


async def test_creates_are_changed_only_in_fields_set_by_hook(node: Node) -> None:
    limits = Resources(cpu_quota=50_000)
    pod_answer = HookAnswer({"l": "1"}, {"n": "2"}, cgroup_parent="/hooked", resources=limits)
    node.plugins.add("a", pod_answer, points=("PreRunPodSandbox",))
    body = go_json(node.pod_body()).replace(b'"Memory":0', b'"Memory":0,"New":[1e400, {}]')
    pod_id = id_of(await node.create("web", body))
    expected = json.loads(body)
    expected["Labels"] |= {"l": "1", "annotation.n": "2"}
    expected["HostConfig"] |= {"CgroupParent": "/hooked", "CpuQuota": 50_000}
    assert json.loads(node.received_body()) == expected
    pod = node.store.pod(pod_id)
    assert pod.original == replace(REPORTED_POD, id=pod_id, attempt=0)
    labels, annotations = {**REPORTED_POD.labels, "l": "1"}, {"note": "pod", "n": "2"}
    changes = {"labels": labels, "annotations": annotations, "cgroup_parent": "/hooked", "resources": limits}
    assert pod.effective == replace(pod.original, **changes)

    answer = HookAnswer({}, {"note": "hooked"}, {"B": "3", "C": "4"}, "/own", replace(limits, cpuset_cpus="1"))
    node.plugins.add("b", answer, points=("PreCreateContainer",))
    container_id = await node.create_container(pod_id)
    expected = node.container_body(pod_id)
    expected["Labels"]["annotation.note"] = "hooked"
    expected["Env"] = ["A=1", "B=3", "C=4"]
    expected["HostConfig"] |= {"CgroupParent": "/own", "CpuQuota": 50_000, "CpusetCpus": "1"}
    assert json.loads(node.received_body()) == expected
    container = node.store.container(container_id)
    assert container.original == replace(REPORTED, pod_id=pod_id, id=container_id)
    envs, resources = {"A": "1", "B": "3", "C": "4"}, replace(REQUESTED, cpu_quota=50_000, cpuset_cpus="1")
    changes = {"annotations": {**ANNOTATIONS, "note": "hooked"}, "envs": envs, "resources": resources}
    assert container.effective == replace(container.original, cgroup_parent="/own", **changes)
    assert node.store.pod(pod_id).effective.cgroup_parent == "/hooked"


@on_node({"cgroup_driver": "systemd", "follows": False})
async def test_driver_is_queried_once_when_hooks_need_it(node: Node) -> None:
    pod_id = await node.create_pod()
    assert node.store.counts() == (0, 0), "the driver is not queried where no plugin wants it"
    assert node.dockerd.requests("GET /info") == []
    node.plugins.add("a")
    await node.create("other", node.pod_body())
    assert node.last_request.pod.cgroup_parent == SYSTEMD_PARENT
    await node.create_container(pod_id)
    assert node.last_request.pod.cgroup_parent == SYSTEMD_PARENT
    assert len(node.dockerd.requests("GET /info")) == 1


@pytest.mark.parametrize("body", [b"", b"{}", b'{"Id":""}', b"[1]", b'{"Id":"%b"}'])
async def test_answer_without_new_id_makes_no_record(node: Node, body: bytes) -> None:
    """The last one is the id of a container."""
    _, container_id = await node.create_both()
    node.plugins.add("a")
    body = body.replace(b"%b", container_id.encode())
    node.dockerd.inject(CREATE, Injection(raw=reply(body, 201)))
    assert (await node.create("web", node.pod_body())).raw == reply(body, 201)
    has_id = container_id.encode() in body
    assert (node.store.counts(), node.store.pod(container_id)) == ((1, not has_id), None)
    assert node.metrics.counted("calls_unreadable", operation="RunPodSandbox") == (not has_id)


async def test_record_has_sent_resources(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    unlimited = Resources(memory_limit_in_bytes=-1, unified={"memory.high": CANARY}, hugepage_limits={"2MB": 4711})
    node.plugins.add("a", HookAnswer(resources=unlimited), points=("PreCreateContainer",))
    container_id = await node.create_container(await node.create_pod())
    assert (node.host()["Memory"], node.host()["MemorySwap"]) == (0, 0)
    check_left_out(node, caplog, "CreateContainer", "hugepage_limits, unified")
    normalised = {"hook_server": "a", "field": "resources.memory_limit_in_bytes"}
    assert node.metrics.counted("values_normalised", **normalised) == node.metrics.total("values_normalised") == 1
    assert node.store.container(container_id).effective.resources == Resources(cpu_shares=1024, cpuset_cpus="0-1")


@pytest.mark.parametrize("stored", ["not yet", "read, and nothing is queried"])
@on_node({"cgroup_driver": "cgroupfs"}, {"cgroup_driver": "systemd"})
async def test_reread_pod_has_cgroup_parent_of_daemon(node: Node, stored: str) -> None:
    hooked = node.pod.cgroup_parent.replace("burstable", "besteffort")
    node.plugins.add("a", HookAnswer(cgroup_parent=hooked), points=("PreRunPodSandbox",))
    pod_id = await node.create_pod()
    pod_host = node.host()["CgroupParent"]
    node.forget()
    if stored != "not yet":
        node.store.commit(Subject(await node.lookup.pod(pod_id)))
        node.plugins.plugins.clear()
    container_id = await node.create_container(pod_id)
    assert node.host()["CgroupParent"] == pod_host
    pod = node.store.pod(pod_id)
    assert pod.effective.cgroup_parent == hooked
    if stored == "not yet":
        assert pod.original.cgroup_parent == node.pod.cgroup_parent, "as the container's create reported"
    assert node.store.container(container_id).effective.cgroup_parent == ""


async def test_start_sets_resources_by_extra_update(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    hook_points = ("PreStartContainer", "PostStartContainer")
    resources = Resources(cpuset_cpus="1", cpu_quota=20_000, oom_score_adj=5, unified={"cpu.idle": CANARY})
    node.plugins.add("a", HookAnswer(resources=resources), points=hook_points)
    pod_id, container_id = await node.create_both()
    expected = HookRequest(node.store.pod(pod_id).effective, node.store.container(container_id).effective)
    assert (await node.act("start", container_id)).status == 204
    assert node.plugins.queried[0].request == expected
    assert node.points == list(hook_points)
    update, start = node.dockerd.requests(UPDATE)[0], node.dockerd.requests(START)[0]
    assert json.loads(update.body) == {"CpuQuota": 20_000, "CpusetCpus": "1"}
    assert update.at < start.at
    await node.event("update")
    assert node.metrics.total("updates_of_others") == 0
    container = node.store.container(container_id)
    assert container.original.resources == REQUESTED
    assert container.effective.resources == replace(REQUESTED, cpuset_cpus="1", cpu_quota=20_000)
    check_left_out(node, caplog, "StartContainer", "oom_score_adj, unified")
    node.plugins.plugins.clear()
    node.plugins.add("b", HookAnswer(resources=Resources(oom_score_adj=5)), points=hook_points)
    assert (await node.act("start", container_id)).status == 304
    assert (node.points, len(node.dockerd.requests(UPDATE))) == (["PreStartContainer"], 1), "it sets nothing in Docker"
    assert await node.update_externally(container_id) == 0


@pytest.mark.parametrize("lost", [False, True])
async def test_start_is_refused_when_extra_update_fails(node: Node, lost: bool) -> None:
    _, container_id = await node.create_both()
    resources = Resources(cpuset_cpus="0" if lost else "2000")  # the fake daemon has fewer
    node.plugins.add("koordlet", HookAnswer(resources=resources), policy=FAIL, points=("PreStartContainer",))
    if lost:  # it is done, but the answer is lost
        node.dockerd.inject(UPDATE, Injection(cut_after_bytes=0))
    answer = await node.act("start", container_id)
    assert answer.status == 500
    assert "StartContainer refused: hook server 'koordlet' at PreStartContainer: runtime_rejected" in answer.message
    assert ("Requested CPUs are not available" in answer.message) is not lost
    if not lost:
        assert node.store.container(container_id).effective.resources == REQUESTED
        assert await node.update_externally(container_id) == 0
    assert (node.dockerd.requests(START), node.store.counts()) == ([], (1, 0))
    assert not node.front._events.expected_updates


async def test_update_leaves_out_unsupported_fields(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    resources = Resources(memory_limit_in_bytes=-1, oom_score_adj=5, cpu_shares=2)
    answer = HookAnswer(annotations={"n": CANARY}, resources=resources)
    node.plugins.add("a", answer, points=("PreUpdateContainerResources",))
    _, container_id = await node.create_both()
    assert (await node.act("update", container_id, b'{"cpuShares": 0}')).status == 200
    assert node.received_body(UPDATE) == b'{"cpuShares": 2}'
    check_left_out(node, caplog, "UpdateContainerResources", "memory_limit_in_bytes, oom_score_adj, annotations")
    effective = node.store.container(container_id).effective
    assert effective.resources == replace(REQUESTED, cpu_shares=2)
    assert "n" not in effective.annotations, "the daemon was not notified of it"


@pytest.mark.parametrize("registered", [True, False])
async def test_own_update_keeps_record_and_external_one_does_not(node: Node, registered: bool) -> None:
    if registered:
        node.plugins.add("a")
    pod_id, container_id = await node.running()
    assert (await node.act("update", container_id, {"CpuShares": 7})).status == 200
    await node.event("update")
    assert node.metrics.total("updates_of_others") == 0
    assert node.store.container(container_id).original.resources == replace(REQUESTED, cpu_shares=7)
    assert await node.update_externally(container_id) == 0
    node.plugins.add("b")
    await node.act("stop", container_id)
    assert node.last_request.container.resources == replace(REQUESTED, cpu_shares=4711)
    assert node.last_request.pod == node.store.pod(pod_id).effective


@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize(("body", "lines", "status"), NOT_EXPECTED)
async def test_update_event_is_not_expected_when_update_fails(
    node: Node, registered: bool, body: bytes, lines: tuple[str, ...], status: int
) -> None:
    _, container_id = await node.create_both()
    if registered:
        node.plugins.add("a")
    assert (await node.act("update", container_id, body, *lines)).status == status
    assert node.received_body(UPDATE) == body
    if status == 200:  # its values are unknown, so the container is read again when needed
        await until(lambda: node.store.container(container_id) is None)
        assert node.metrics.counted("calls_unreadable", operation="UpdateContainerResources") == 1
    else:
        assert node.store.container(container_id).effective.resources == REQUESTED
        assert await node.update_externally(container_id) == 0


async def test_update_is_not_sent_when_call_has_ended(node: Node) -> None:
    _, container_id = await node.create_both()
    hook, proceed = node.plugins.gated("a"), Mock(wraps=node.front.proceed)
    node.front.proceed = proceed  # type: ignore[method-assign]
    await node.sends(request("POST", f"/containers/{container_id}/update", b'{"CpuShares":7}'))
    await until(lambda: hook.waiting == 1)
    [call] = proceed.call_args.args
    call.connection_lost()
    call.release(None, fields.NO_ADJUSTMENT)
    for connection in node.front.connections:
        connection.act_on_ready()  # type: ignore[attr-defined]
    assert (node.dockerd.requests(UPDATE), node.front._events.expected_updates) == ([], {})
    assert await call.settle() == NOT_DONE
    await until(lambda: hook.cancelled == 1)


@pytest.mark.parametrize("through", ["the proxy", "the proxy, by name", "the daemon"])
async def test_sandbox_update_calls_no_hook_and_is_reread(node: Node, through: str) -> None:
    """Its containers keep their originals: else a hook would scale its own result, which the daemon shows."""

    def scale_shares(request: Any) -> HookAnswer:
        resources = request.container.resources
        return HookAnswer(resources=replace(resources, cpu_shares=resources.cpu_shares // 2))

    node.plugins.add("a", scale_shares, policy=FAIL, points=("PreCreateContainer", "PreUpdateContainerResources"))
    pod_id, container_id = await node.create_both()
    if through == "the daemon":
        node.dockerd.state.update(pod_id, {"CpuShares": 77})
    else:
        reference = node.dockerd.container(pod_id).name if "name" in through else pod_id
        assert (await node.act("update", reference, {"CpuShares": 77})).status == 200
    await until(lambda: node.store.pod(pod_id) is None)
    assert node.points == []
    assert (await node.act("update", container_id, {"CpusetCpus": "0"})).status == 200
    assert node.last_request.container.resources.cpu_shares == REQUESTED.cpu_shares
    node.plugins.add("b", points=("PostStopPodSandbox",))
    await node.act("stop", pod_id)
    assert node.last_request.pod.resources == Resources(cpu_shares=77)


@pytest.mark.parametrize("stored", [True, False])
async def test_stop_stores_no_record_after_external_update(node: Node, stored: bool) -> None:
    """Also if only this call has read it, so that nothing in the Store was forgotten."""
    _, container_id = await node.running()
    if not stored:
        node.forget()
    node.plugins.add("a")
    stop = node.dockerd.inject(STOP, Injection(hang=True))
    stopping = asyncio.create_task(node.act("stop", container_id))
    await until(lambda: stop.hanging == 1)
    node.dockerd.state.update(container_id, {"CpuShares": 4711})
    await until(lambda: node.metrics.total("updates_of_others") == 1)
    stop.release()
    assert (await stopping).status == 204
    assert (node.points, node.store.container(container_id)) == ([END], None)


async def lose_answer(node: Node, monkeypatch: pytest.MonkeyPatch, route: str, reference: str, done: bool) -> None:
    """Make a call that the daemon carries out or not, and never answers; query the outcome as fast as possible."""
    monkeypatch.setattr(open_calls, "QUERIED_AFTER_SECONDS", [0.02 * times for times in range(1, 500)])
    node.dockerd.inject(route, Injection(raw=None if done else b"", cut_after_bytes=0, times=1))
    method, target = route.replace("{ref}", reference).split(" ")
    assert await (await node.sends(request(method, f"{target}?force=1"))).ended() == b""


@pytest.mark.parametrize(
    ("route", "hook_point"),
    [(START, "PostStartContainer"), (STOP, END), (STOP, "PostStopPodSandbox"), (REMOVE, "PostStopPodSandbox")],
)
@pytest.mark.parametrize("done", [True, False])
async def test_lost_answer_runs_hook_if_done(
    node: Node, monkeypatch: pytest.MonkeyPatch, route: str, hook_point: str, done: bool
) -> None:
    node.plugins.add("a", points=(hook_point,))
    pod_id, container_id = await (node.create_both() if route == START else node.running())
    is_pod = hook_point == "PostStopPodSandbox"
    subject = pod_id if is_pod else container_id
    expected = HookRequest(
        node.store.pod(pod_id).effective, None if is_pod else node.store.container(container_id).effective
    )
    await lose_answer(node, monkeypatch, route, subject, done)
    if not done:
        await until(lambda: len(node.dockerd.requests(INSPECT)) >= 3)
        assert node.plugins.queried == []
        state = node.dockerd.state
        {START: state.start, STOP: state.stop, REMOVE: partial(state.remove, force=True)}[route](subject)
    await until(lambda: bool(node.plugins.queried))
    assert [(queried.point, queried.request) for queried in node.plugins.queried] == [(hook_point, expected)]


@pytest.mark.parametrize(("route", "called"), [(START, []), (STOP, [END])])
async def test_lost_answer_runs_stop_hook_if_removed(
    node: Node, monkeypatch: pytest.MonkeyPatch, route: str, called: list[str]
) -> None:
    node.plugins.add("a", points=("PostStartContainer", END))
    _, container_id = await (node.create_both() if route == START else node.running())
    await lose_answer(node, monkeypatch, route, container_id, done=False)
    node.dockerd.state.remove(container_id, force=True)
    await until(lambda: node.metrics.total("unknown_outcomes") == 1 and len(node.plugins.queried) == len(called))
    assert (node.points, node.store.counts()) == (called, (1, 0))


async def die(node: Node, container_id: str, status: str = "exited") -> None:
    """End a container's process; its restart policy may start it again."""
    container = node.dockerd.container(container_id)
    container.status = status
    seen = node.metrics.counted("backend_events", action="die")
    node.dockerd.state._report(container, "die", exitCode="137")
    await node.event("die", seen + 1)
    await until(lambda: not node.front.tasks)


@pytest.mark.parametrize("stored", [True, False])
async def test_container_end_is_reported_unless_restarted(node: Node, stored: bool) -> None:
    """At dockerd's die event (hook-api, "Applied to"); after a restart by a client it can end again."""
    node.plugins.add("a", points=(END,))
    pod_id, container_id = await node.running()
    if not stored:
        node.forget()
    for status in ("restarting", "running"):
        await die(node, container_id, status)
        assert node.points == []
    node.dockerd.inject(INSPECT, Injection(status=500, message="no"))
    await die(node, container_id)
    assert node.points == [], "it may run again"
    node.dockerd.injections.clear()
    for _ in range(2):
        await die(node, container_id)
        assert (node.last_request.container.id, node.last_request.pod.id) == (container_id, pod_id)
    container = node.dockerd.container(container_id)
    container.status = "running"
    node.dockerd.state._report(container, "restart")
    await node.event("restart")
    for subject in (container_id, container_id, pod_id):
        await node.act("stop", subject)
    await node.remove(container_id)
    assert node.points == [END] * 2


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Node]:
    """Run a node with an empty Store; its daemon has a pod with a container."""
    async with Node(tmp_path, follows=False) as rig:
        await rig.create_both()
        rig.forget()
        yield rig


async def test_lookup_prefers_stored_records(rig: Node) -> None:
    pod = PodRecord(PodInfo(id=rig.pod_id, name="original"), PodInfo(id=rig.pod_id, name="effective"))
    rig.store.commit(Subject(pod))
    assert await rig.lookup.container(rig.pod_id[:12]) == Subject(pod)
    assert (await rig.lookup.container(rig.container_id)).pod == pod
    info = ContainerInfo(id=rig.container_id, pod_id=rig.pod_id, name="known")
    stored = Subject(pod, fields.ContainerRecord(info, info))
    rig.store.commit(stored)
    assert await rig.lookup.container(rig.container_id[:12]) == rig.lookup.stored(rig.container_id) == stored
    assert rig.lookup.stored(rig.container_id[:12]) is None
    assert rig.dockerd.counts[INSPECT] == 3
    rig.store.forget(rig.container_id)
    hooked = PodInfo(id=rig.pod_id, cgroup_parent="/hooked")
    rig.store.commit(Subject(PodRecord(replace(hooked, cgroup_parent="/requested"), hooked)))
    assert (await rig.read(rig.container_id)).cgroup_parent == PARENT, "it is the container's own"
    rig.forget()
    del rig.dockerd.state.containers[rig.pod_id]
    for reference in ("nobody", "f" * 64, "..", rig.container_id):
        assert await rig.lookup.read(reference) is await rig.lookup.pod(reference) is None
        assert not rig.lookup.is_plain(reference)


async def test_unknown_pod_parent_is_read_from_container(rig: Node) -> None:
    """An unknown parent is None; the empty one is the daemon's default."""
    pod = (await rig.fetch("GET", f"/containers/{rig.pod_id}/json")).json
    del pod["HostConfig"]["CgroupParent"]
    rig.dockerd.inject(INSPECT, Injection(raw=reply(json.dumps(pod).encode())))
    subject = await rig.lookup.container(rig.pod_id)
    assert subject.pod.effective.cgroup_parent is None
    rig.store.commit(subject)
    del rig.dockerd.injections[INSPECT]
    assert (await rig.lookup.container(rig.container_id)).pod.effective.cgroup_parent == PARENT


async def test_images_and_plain_containers_are_cached_bounded(rig: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second", "third"):
        again = rig.dockerd.state.create(name, rig.container_body(rig.pod_id)).id
        assert (await rig.read(again)).envs == {"A": "1", "B": "2"}, "without the image's PATH"
    assert rig.dockerd.counts[IMAGE] == 2, "the container's image, and the sandbox's"
    monkeypatch.setattr(module, "IMAGE_LIMIT", 1)
    for _ in range(2):
        assert await rig.lookup.pod(rig.pod_id) is not None
        assert await rig.lookup.container(rig.container_id) is not None
    assert rig.dockerd.counts[IMAGE] > 4
    rig.dockerd.state.images.by_name.clear()
    rig.lookup._images.clear()
    count = rig.dockerd.counts[IMAGE]
    for _ in range(2):
        assert (await rig.read(rig.container_id)).envs == {"A": "1", "B": "2", "PATH": "/bin"}
    assert rig.dockerd.counts[IMAGE] == count + 4, "an image that is absent is not cached"
    monkeypatch.setattr(module, "STANDALONE_LIMIT", 2)
    plain = [rig.dockerd.state.create(f"plain{number}", {"Cmd": ["true"]}).id for number in range(3)]
    for container_id in plain:
        assert await rig.lookup.read(container_id) is None
    assert [rig.lookup.is_plain(container_id) for container_id in plain] == [False, True, True]


async def test_b10_plain_container_is_cached_by_full_id(rig: Node) -> None:
    rig.dockerd.inject(INFO, Injection(status=500))
    rig.dockerd.inject(IMAGE, Injection(status=500))
    plain = rig.dockerd.state.create("plain", PLAIN_BODY).id
    assert await rig.lookup.read("plain") is None
    assert (rig.lookup.is_plain(plain), rig.lookup.is_plain("plain")) == (True, False)
    assert (rig.dockerd.counts[INFO], rig.dockerd.counts[IMAGE]) == (0, 0)
    for _ in range(2):
        rig.lookup.forget_plain(plain)
        assert not rig.lookup.is_plain(plain)
    rig.dockerd.injections.clear()
    rig.dockerd.state.create("odd", {**PLAIN_BODY, "Labels": {"io.kubernetes.docker.type": "something else"}})
    assert await rig.lookup.listed() == Listed([rig.pod_id], [rig.container_id])
    for body in (b"{}", b'{"Id":1}', b'{"Config":7,"n":"io.kubernetes.docker.type"}'):
        rig.lookup.forget_plain(rig.container_id)
        rig.dockerd.inject(INSPECT, Injection(raw=reply(body)))
        assert await rig.lookup.read(rig.container_id) is None
        with pytest.raises(Unreadable):
            await rig.lookup.read("a-name")
        assert (rig.lookup.is_plain(rig.container_id), rig.lookup.is_plain("a-name")) == (True, False)


@pytest.mark.parametrize(
    ("route", "raw", "error"),
    [(INFO, reply(b'{"CgroupDriver":1}'), Unreadable), (INFO, REFUSED, BackendError), (INSPECT, REFUSED, BackendError)],
)
async def test_lookup_raises_and_retries_when_daemon_fails(rig: Node, route: str, raw: bytes, error: Any) -> None:
    rig.dockerd.inject(route, Injection(raw=raw))
    for fetch in (rig.lookup.read(rig.container_id), rig.lookup.read(rig.pod_id), rig.lookup.pod(rig.pod_id)):
        with pytest.raises(error):
            await fetch
    assert rig.lookup.driver is None
    rig.dockerd.injections.clear()
    before = rig.dockerd.counts[INFO]
    for _ in range(2):
        assert await rig.lookup.cached_driver() is Driver.CGROUPFS
    assert rig.dockerd.counts[INFO] == before + 1
    await rig.lookup.read_driver()
    assert rig.dockerd.counts[INFO] == before + 2, "it is queried once until it changes"
