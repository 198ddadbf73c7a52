"""Docker's calls through the whole core: failed hooks, and the creates of pods and of containers."""

import json
from dataclasses import replace

import pytest

from runtimeproxy.model.fields import HookAnswer, Resources, Subject
from runtimeproxy.plugins.registration import FailurePolicy
from tests.docker.bodies import ANNOTATIONS, REPORTED, REPORTED_POD, REQUESTED, SYSTEMD_PARENT
from tests.docker.node import CREATE, Node, id_of, on_each_driver, on_node, written
from tests.fakes.dockerd_wire import Injection
from tests.fakes.plugins import FAIL, IGNORE

CANARY = "canary-4711"


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
