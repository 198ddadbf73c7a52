"""Docker's calls through the whole core: failed hooks, and the creates of pods and of containers."""

import json
from dataclasses import replace

import pytest

from runtimeproxy.docker import messages
from runtimeproxy.errors import Reason
from runtimeproxy.model.fields import HookAnswer, HookRequest, Resources, Subject
from runtimeproxy.plugins.registration import FailurePolicy
from tests.docker.bodies import ANNOTATIONS, REPORTED, REPORTED_POD, REQUESTED, SYSTEMD_PARENT
from tests.docker.client import request
from tests.docker.node import CREATE, START, UPDATE, Node, id_of, on_each_driver, on_node, written
from tests.fakes.dockerd_wire import Injection
from tests.fakes.plugins import FAIL, IGNORE

CANARY = "canary-4711"
PRE = [
    ("pod", "PreRunPodSandbox", "RunPodSandbox", CREATE),
    ("container", "PreCreateContainer", "CreateContainer", CREATE),
    ("start", "PreStartContainer", "StartContainer", START),
    ("update", "PreUpdateContainerResources", "UpdateContainerResources", UPDATE),
]


@pytest.mark.parametrize("reason", [Reason.REFUSED, Reason.UNREACHABLE])
@pytest.mark.parametrize(("action", "point", "operation", "route"), PRE)
async def test_failed_hook_refuses_the_call_or_changes_no_byte(
    node: Node, action: str, point: str, operation: str, route: str, reason: Reason
) -> None:
    pod_id, container_id = await node.made()
    node.plugins.add("koordlet", reason, points=(point,))
    raw = {
        "pod": request("POST", "/containers/create?name=a-pod", written(node.pod_body())),
        "container": request("POST", "/containers/create?name=a-container", written(node.container_body(pod_id))),
        "start": request("POST", f"/containers/{container_id}/start"),
        "update": request("POST", f"/containers/{container_id}/update", b'{ "cpuShares":7 }'),
    }[action]
    answer = await (await node.sends(raw)).answer()
    received = [received.raw for received in node.dockerd.requests(route)]
    if reason is Reason.REFUSED:
        refusal = f"runtimeproxy: {operation} refused: hook server 'koordlet' at {point}: refused"
        assert (answer.status, answer.message.startswith(refusal), raw in received) == (500, True, False)
        assert node.metrics.counted("calls", operation=operation, outcome="refused") == 1
        assert node.store.counts() == (1, 1)
    else:
        assert answer.status in (200, 201, 204)
        assert received[-1] == raw
        assert node.metrics.total("hook_fail_open") == 1


async def test_creates_are_changed_only_where_a_hook_set_it(node: Node) -> None:
    limits = Resources(cpu_quota=50_000)
    of_pod = HookAnswer({"l": "1"}, {"n": "2"}, cgroup_parent="/hooked", resources=limits)
    node.plugins.add("a", of_pod, points=("PreRunPodSandbox",))
    body = written(node.pod_body()).replace(b'"Memory":0', b'"Memory":0,"New":[1e400, {}]')
    pod_id = id_of(await node.create("web", body))
    desired = json.loads(body)
    desired["Labels"] |= {"l": "1", "annotation.n": "2"}
    desired["HostConfig"] |= {"CgroupParent": "/hooked", "CpuQuota": 50_000}
    assert node.config() == desired
    pod = node.pod_of(pod_id)
    assert pod.original == replace(REPORTED_POD, id=pod_id, attempt=0)
    labels, annotations = {**REPORTED_POD.labels, "l": "1"}, {"note": "pod", "n": "2"}
    changes = {"labels": labels, "annotations": annotations, "cgroup_parent": "/hooked", "resources": limits}
    assert pod.effective == replace(pod.original, **changes)

    answer = HookAnswer({}, {"note": "hooked"}, {"B": "3", "C": "4"}, "/own", replace(limits, cpuset_cpus="1"))
    node.plugins.add("b", answer, points=("PreCreateContainer",))
    container_id = await node.create_container(pod_id)
    desired = node.container_body(pod_id)
    desired["Labels"]["annotation.note"] = "hooked"
    desired["Env"] = ["A=1", "B=3", "C=4"]
    desired["HostConfig"] |= {"CgroupParent": "/own", "CpuQuota": 50_000, "CpusetCpus": "1"}
    assert node.config() == desired
    container = node.container(container_id)
    assert container.original == replace(REPORTED, pod_id=pod_id, id=container_id)
    envs, resources = {"A": "1", "B": "3", "C": "4"}, replace(REQUESTED, cpu_quota=50_000, cpuset_cpus="1")
    changes = {"annotations": {**ANNOTATIONS, "note": "hooked"}, "envs": envs, "resources": resources}
    assert container.effective == replace(container.original, cgroup_parent="/own", **changes)
    assert node.pod_of(pod_id).effective.cgroup_parent == "/hooked"


@on_node({"cgroup_driver": "systemd", "follows": False})
async def test_pod_is_reported_once_the_daemon_named_its_driver(node: Node) -> None:
    pod_id = await node.create_pod()
    assert node.store.counts() == (0, 0), "the driver is not queried where no plugin wants it"
    assert node.dockerd.requests("GET /info") == []
    node.plugins.add("a")
    await node.create_container(pod_id)
    assert node.notified.pod.cgroup_parent == SYSTEMD_PARENT
    await node.remove(pod_id)
    await node.create_pod()
    assert node.notified.pod.cgroup_parent == SYSTEMD_PARENT
    assert len(node.dockerd.requests("GET /info")) == 1


@pytest.mark.parametrize("body", [b"", b"{}", b'{"Id":""}', b"[1]", b'{"Id":"%b"}'])
async def test_answer_without_an_id_of_its_own_is_not_kept(node: Node, body: bytes) -> None:
    """The last one is the id of a container."""
    _, container_id = await node.made()
    node.plugins.add("a")
    body = body.replace(b"%b", container_id.encode())
    reply = b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    node.dockerd.inject(CREATE, Injection(raw=reply))
    assert (await node.create("web", node.pod_body())).raw == reply
    has_id = container_id.encode() in body
    assert (node.store.counts(), node.store.pod(container_id)) == ((1, not has_id), None)
    assert node.metrics.counted("calls_unreadable", operation="RunPodSandbox") == (not has_id)


async def test_create_that_has_left_is_not_held_for_a_late_plugin(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a registered hook server the front releases a create at once; the lifecycle runs it in a later step."""
    pod_id = await node.create_pod()
    is_pods = messages.is_pods

    def registers(body: bytes) -> bool:
        assert len(node.dockerd.requests(CREATE)) == 1, "the daemon has not read yet what it was just sent"
        if not node.plugins.plugins:
            node.plugins.add("late", HookAnswer(envs={"B": "3"}), policy=FAIL)
        return is_pods(body)

    monkeypatch.setattr(messages, "is_pods", registers)
    container_id = await node.create_container(pod_id)
    assert (node.points, len(node.dockerd.requests(CREATE))) == ([], 2)
    assert node.arrived(CREATE) == written(node.container_body(pod_id))
    assert node.container(container_id).effective.envs == REPORTED.envs
    assert node.metrics.total("hook_failures") == 0


ENV = rb'"Env":["A=1","BARE","=odd","A=2","RAW=\ud800","E="]'


@on_each_driver
async def test_hook_that_answers_an_echo_changes_no_byte(node: Node) -> None:
    def echo(request: HookRequest) -> HookAnswer:
        notified = request.container
        if notified is None:
            return HookAnswer(request.pod.labels, request.pod.annotations, {}, request.pod.cgroup_parent)
        return HookAnswer({}, notified.annotations, notified.envs, request.pod.cgroup_parent, notified.resources)

    node.plugins.add("a", echo)
    pod_id = await node.create_pod()
    assert node.arrived(CREATE) == written(node.pod_body())
    body = written(node.container_body(pod_id)).replace(b'"Env":["A=1","B=2"]', ENV)
    assert (await node.create("web", body)).status == 201
    assert node.arrived(CREATE) == body


async def test_record_has_what_the_daemon_was_sent(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Docker cannot carry all fields, and has rules of its own."""
    unlimited = Resources(memory_limit_in_bytes=-1, unified={"memory.high": CANARY}, hugepage_limits={"2MB": 4711})
    node.plugins.add("a", HookAnswer(resources=unlimited), points=("PreCreateContainer",))
    container_id = await node.create_container(await node.create_pod())
    assert (node.host()["Memory"], node.host()["MemorySwap"]) == (0, 0)
    for field in ("hugepage_limits", "unified"):
        assert node.metrics.counted("fields_left_out", operation="CreateContainer", field=field) == 1
    assert "CreateContainer: Docker cannot set hugepage_limits, unified of a container: left out" in caplog.text
    assert CANARY not in caplog.text
    normalised = {"hook_server": "a", "field": "resources.memory_limit_in_bytes"}
    assert node.metrics.counted("values_normalised", **normalised) == node.metrics.total("values_normalised") == 1
    assert node.container(container_id).effective.resources == Resources(cpu_shares=1024, cpuset_cpus="0-1")


@on_each_driver
async def test_parent_changed_for_the_pod_goes_into_its_containers(node: Node) -> None:
    """Also where no hook server is registered any more."""
    parent, in_docker = "/hooked", "/hooked"
    if node.cgroup_driver == "systemd":
        parent, in_docker = "/a.slice/a-b.slice", "a-b.slice"
    node.plugins.add("a", HookAnswer(cgroup_parent=parent), points=("PreRunPodSandbox",))
    pod_id = await node.create_pod()
    assert node.host()["CgroupParent"] == in_docker
    node.plugins.plugins.clear()
    container_id = await node.create_container(pod_id)
    desired = node.container_body(pod_id)
    desired["HostConfig"]["CgroupParent"] = in_docker
    assert node.config() == desired
    node.store.forget(container_id)
    node.plugins.add("b", points=("PostStopContainer",))
    await node.act("stop", container_id)
    assert node.container(container_id).effective.cgroup_parent == "", "it is its pod's, also read again"
    assert node.notified.pod.cgroup_parent == parent


async def test_create_of_a_container_has_its_pods_newest_parent(node: Node) -> None:
    node.plugins.add("a", points=("PreCreateContainer",))
    pod_id = await node.create_pod()
    body = node.container_body(pod_id)
    body["HostConfig"]["CgroupParent"] = "/elsewhere"
    container_id = id_of(await node.create("web", body))
    assert node.arrived(CREATE) == written(body)
    assert node.container(container_id).effective.cgroup_parent == ""
    assert node.pod_of(pod_id).effective.cgroup_parent == "/elsewhere"


@pytest.mark.parametrize("known", ["not yet", "read, and nothing is queried"])
@on_each_driver
async def test_parent_of_a_pod_that_another_proxy_hooked_is_the_daemons(node: Node, known: str) -> None:
    hooked = node.pod.cgroup_parent.replace("burstable", "besteffort")
    node.plugins.add("a", HookAnswer(cgroup_parent=hooked), points=("PreRunPodSandbox",))
    pod_id = await node.create_pod()
    pod_host = node.host()["CgroupParent"]
    node.forget()
    if known != "not yet":
        read = await node.front._lookup.pod(pod_id)
        assert read is not None
        node.store.commit(Subject(read))
        node.plugins.plugins.clear()
    container_id = await node.create_container(pod_id)
    assert node.host()["CgroupParent"] == pod_host
    pod = node.pod_of(pod_id)
    assert pod.effective.cgroup_parent == hooked
    if known == "not yet":
        assert pod.original.cgroup_parent == node.pod.cgroup_parent, "as the container's create reported"
    assert node.container(container_id).effective.cgroup_parent == ""


@pytest.mark.parametrize("policy", [FAIL, IGNORE])
@pytest.mark.parametrize("sandbox", ["0" * 64, "plain"])
async def test_container_of_no_pod_passes_without_hooks(node: Node, policy: FailurePolicy, sandbox: str) -> None:
    if sandbox == "plain":
        sandbox = await node.plain()
    node.plugins.add("a", policy=policy)
    body = node.container_body(sandbox)
    assert (await node.create("web", body)).status == 201
    assert node.arrived(CREATE) == written(body)
    assert (node.points, node.store.counts()) == ([], (0, 0))
