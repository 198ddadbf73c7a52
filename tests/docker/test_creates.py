"""A container's create: the pod it is told with, what is put into it, and what cannot be."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from runtimeproxy.docker import translate
from runtimeproxy.model import ContainerInfo, ContainerRecord, HookAnswer, HookRequest, Resources, Subject
from runtimeproxy.plugins.registration import FailurePolicy
from tests.docker.node import ASKED, CREATE, INSPECT, PARENT, SYSTEMD_PARENT, Node, id_of, written
from tests.fakes.plugins import FAIL, IGNORE

ANNOTATIONS = {
    "io.kubernetes.container.hash": "d464c1e4",
    "io.kubernetes.container.restartCount": "2",
    "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
    "io.kubernetes.container.terminationMessagePolicy": "File",
    "io.kubernetes.pod.terminationGracePeriod": "30",
    "note": "container",
}
TOLD = ContainerInfo(name="main", attempt=2, annotations=ANNOTATIONS, resources=ASKED, envs={"A": "1", "B": "2"})
CANARY = "canary-4711"


async def test_container_is_told_with_its_pod_and_kept_as_asked_for(node: Node) -> None:
    node.plugins.add("a")
    pod_id = await node.create_pod()
    container_id = await node.create_container(pod_id)
    told = replace(TOLD, pod_id=pod_id)
    assert node.told == HookRequest(node.pod_of(pod_id).effective, told)
    assert node.came(CREATE) == written(node.container_body(pod_id))
    whole = replace(told, id=container_id)
    assert node.container(container_id) == ContainerRecord(whole, whole)


async def test_create_that_has_left_is_not_held_for_a_late_plugin(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The front lets a create go at once where nobody is registered, and the lifecycle reads it in a later step."""
    pod_id = await node.create_pod()
    is_pods = translate.is_pods

    def registers(body: bytes) -> bool:
        assert len(node.dockerd.requests(CREATE)) == 1, "the daemon has not read yet what it was just sent"
        if not node.plugins.plugins:
            node.plugins.add("late", HookAnswer(envs={"B": "3"}), policy=FAIL)
        return is_pods(body)

    monkeypatch.setattr(translate, "is_pods", registers)
    container_id = await node.create_container(pod_id)
    assert (node.points, len(node.dockerd.requests(CREATE))) == ([], 2)
    assert node.came(CREATE) == written(node.container_body(pod_id))
    assert node.container(container_id).effective.envs == TOLD.envs
    assert node.recorder.total("hook_failures") == 0


async def test_container_is_changed_where_a_hook_said_so_and_nowhere_else(node: Node) -> None:
    answer = HookAnswer(
        annotations={"note": "hooked"},
        envs={"B": "3", "C": "4"},
        cgroup_parent="/own",
        resources=Resources(cpu_quota=20_000, cpuset_cpus="1"),
    )
    node.plugins.add("a", answer, points=("PreCreateContainer",))
    pod_id = await node.create_pod()
    container_id = await node.create_container(pod_id)
    wanted = node.container_body(pod_id)
    wanted["Labels"]["annotation.note"] = "hooked"
    wanted["Env"] = ["A=1", "B=3", "C=4"]
    wanted["HostConfig"] |= {"CgroupParent": "/own", "CpuQuota": 20_000, "CpusetCpus": "1"}
    assert node.config() == wanted
    container = node.container(container_id)
    assert container.original == replace(TOLD, pod_id=pod_id, id=container_id)
    assert container.effective == replace(
        container.original,
        annotations={**ANNOTATIONS, "note": "hooked"},
        envs={"A": "1", "B": "3", "C": "4"},
        cgroup_parent="/own",
        resources=replace(ASKED, cpu_quota=20_000, cpuset_cpus="1"),
    )
    assert node.pod_of(pod_id).effective.cgroup_parent == PARENT


ENV = rb'"Env":["A=1","BARE","=odd","A=2","RAW=\ud800","E="]'


async def test_envs_that_a_hook_cannot_be_told_stay_as_they_are(node: Node) -> None:
    node.plugins.add("a", HookAnswer(envs={"A": "3", "E": "4", "NEW": "5"}), points=("PreCreateContainer",))
    pod_id = await node.create_pod()
    body = written(node.container_body(pod_id)).replace(b'"Env":["A=1","B=2"]', ENV)
    container_id = id_of(await node.create("web", body))
    assert node.told_container.envs == {"A": "2", "RAW": "\ufffd", "E": ""}
    assert rb'"Env":["A=1","BARE","=odd","A=3","RAW=\ud800","E=4","NEW=5"]' in node.came(CREATE)
    assert node.container(container_id).effective.envs == {"A": "3", "RAW": "\ufffd", "E": "4", "NEW": "5"}


async def test_hook_that_answers_an_echo_changes_no_byte(node: Node) -> None:
    def echo(request: HookRequest) -> HookAnswer:
        told = request.container
        if told is None:
            return HookAnswer(request.pod.labels, request.pod.annotations, {}, request.pod.cgroup_parent)
        return HookAnswer({}, told.annotations, told.envs, request.pod.cgroup_parent, told.resources)

    node.plugins.add("a", echo)
    pod_id = await node.create_pod()
    assert node.came(CREATE) == written(node.pod_body())
    body = written(node.container_body(pod_id)).replace(b'"Env":["A=1","B=2"]', ENV)
    assert (await node.create("web", body)).status == 201
    assert node.came(CREATE) == body


async def test_fields_that_docker_cannot_carry_are_left_out_and_named(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    resources = Resources(hugepage_limits={"2MB": 4711}, unified={"memory.high": CANARY}, cpu_shares=2)
    node.plugins.add("a", HookAnswer(resources=resources))
    pod_id = await node.create_pod()
    assert node.host()["CpuShares"] == 2
    container_id = await node.create_container(pod_id)
    for operation in ("RunPodSandbox", "CreateContainer"):
        for field in ("hugepage_limits", "unified"):
            assert node.recorder.counted("fields_left_out", operation=operation, field=field) == 1
        assert f"{operation}: Docker cannot set hugepage_limits, unified of a container: left out" in caplog.text
    assert CANARY not in caplog.text
    effective = node.container(container_id).effective.resources
    assert effective == replace(ASKED, cpu_shares=2), "the record says what the daemon was asked for"


async def test_daemons_own_rules_stand_in_the_record(node: Node) -> None:
    limit = HookAnswer(resources=Resources(memory_limit_in_bytes=-1))
    node.plugins.add("a", limit, points=("PreCreateContainer",))
    container_id = await node.create_container(await node.create_pod())
    assert (node.host()["Memory"], node.host()["MemorySwap"]) == (0, 0)
    assert node.container(container_id).effective.resources == Resources(cpu_shares=1024, cpuset_cpus="0-1")


# -- the pod's parent --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "parent", "in_docker"),
    [("cgroupfs", "/hooked", "/hooked"), ("systemd", "/a.slice/a-b.slice", "a-b.slice")],
)
@pytest.mark.parametrize("registered", [True, False])
async def test_parent_changed_for_the_pod_goes_into_its_containers(
    tmp_path: Path, driver: str, parent: str, in_docker: str, registered: bool
) -> None:
    async with Node(tmp_path, cgroup_driver=driver) as node:
        await node.follow()
        node.plugins.add("a", HookAnswer(cgroup_parent=parent), points=("PreRunPodSandbox",))
        pod_id = await node.create_pod()
        if not registered:
            node.plugins.plugins.clear()
        container_id = await node.create_container(pod_id)
        wanted = node.container_body(pod_id)
        wanted["HostConfig"]["CgroupParent"] = in_docker
        assert node.config() == wanted
        assert node.container(container_id).original.cgroup_parent == ""
        node.store.forget(container_id)
        node.plugins.add("b", points=("PostStopContainer",))
        await node.act("stop", container_id)
        assert node.container(container_id).effective.cgroup_parent == "", "it is its pod's, also read again"
        assert node.told.pod.cgroup_parent == parent


async def test_containers_create_tells_the_newest_parent_of_its_pod(node: Node) -> None:
    node.plugins.add("a", points=("PreCreateContainer",))
    pod_id = await node.create_pod()
    body = node.container_body(pod_id)
    body["HostConfig"]["CgroupParent"] = "/elsewhere"
    container_id = id_of(await node.create("web", body))
    assert node.came(CREATE) == written(body)
    assert node.container(container_id).effective.cgroup_parent == ""
    assert node.pod_of(pod_id).effective.cgroup_parent == "/elsewhere"


@pytest.mark.parametrize("known", ["not yet", "read", "read, and nobody is asked"])
@pytest.mark.parametrize("driver", ["cgroupfs", "systemd"])
async def test_parent_of_a_pod_that_another_proxy_hooked_is_what_the_daemon_has(
    tmp_path: Path, driver: str, known: str
) -> None:
    hooked = (SYSTEMD_PARENT if driver == "systemd" else PARENT).replace("burstable", "besteffort")
    async with Node(tmp_path, cgroup_driver=driver) as node:
        await node.follow()
        node.plugins.add("a", HookAnswer(cgroup_parent=hooked), points=("PreRunPodSandbox",))
        pod_id = await node.create_pod()
        pod_host = node.host()["CgroupParent"]
        node.forget()
        if known != "not yet":
            read = await node.front._lookup.pod(pod_id)
            assert read is not None
            node.store.commit(Subject(read))
        if known == "read, and nobody is asked":
            node.plugins.plugins.clear()
        container_id = await node.create_container(pod_id)
        assert node.host()["CgroupParent"] == pod_host
        pod = node.pod_of(pod_id)
        assert pod.effective.cgroup_parent == hooked
        if known == "not yet":
            assert pod.original.cgroup_parent == node.pod.cgroup_parent, "as the container's create told"
        assert node.container(container_id).effective.cgroup_parent == ""


async def test_container_of_an_unknown_pod_that_names_no_parent_is_left_alone(node: Node) -> None:
    node.plugins.add("a", points=("PreCreateContainer",))
    pod_id = await node.create_pod()
    node.forget()
    body = node.container_body(pod_id)
    body["HostConfig"]["CgroupParent"] = ""
    assert (await node.create("web", body)).status == 201
    assert node.came(CREATE) == written(body)
    assert node.pod_of(pod_id).original.cgroup_parent == PARENT


# -- the pod is not known ----------------------------------------------------------------------------------------------


async def test_unknown_pod_is_read_as_it_was(node: Node) -> None:
    node.plugins.add("a")
    pod_id = await node.create_pod()
    known = node.pod_of(pod_id)
    node.forget()
    container_id = await node.create_container(pod_id)
    assert node.told == HookRequest(known.effective, replace(TOLD, pod_id=pod_id))
    assert node.pod_of(pod_id) == known
    assert node.container(container_id).effective.id == container_id
    assert len(node.dockerd.requests(INSPECT)) == 1


@pytest.mark.parametrize("policy", [FAIL, IGNORE])
@pytest.mark.parametrize("sandbox", ["0" * 64, "plain"])
async def test_container_whose_sandbox_is_none_passes_without_hooks(
    node: Node, policy: FailurePolicy, sandbox: str
) -> None:
    if sandbox == "plain":
        sandbox = await node.plain()
    node.plugins.add("a", policy=policy)
    body = node.container_body(sandbox)
    assert (await node.create("web", body)).status == 201
    assert node.came(CREATE) == written(body)
    assert (node.points, node.store.counts()) == ([], (0, 0))
