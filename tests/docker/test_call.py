"""Docker's calls through the whole core: what all of them do, and those that make pods."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.errors import Reason
from runtimeproxy.model import HookAnswer, HookRequest, PodRecord, Resources
from runtimeproxy.plugins.registration import FailurePolicy
from tests.docker.client import chunked, request
from tests.docker.node import CREATE, PARENT, SYSTEMD_PARENT, TOLD_POD, Node, id_of, written
from tests.fakes.dockerd_received import Injection
from tests.fakes.plugins import FAIL, IGNORE

DRIVERS = [("cgroupfs", PARENT, PARENT), ("systemd", SYSTEMD_PARENT, SYSTEMD_PARENT.rpartition("/")[2])]
"""Driver, a parent as CRI has it, and as Docker has it."""
CANARY = "canary-4711"

PRE = [
    ("pod", "PreRunPodSandbox", "RunPodSandbox", CREATE),
    ("container", "PreCreateContainer", "CreateContainer", CREATE),
    ("start", "PreStartContainer", "StartContainer", "POST /containers/{ref}/start"),
    ("update", "PreUpdateContainerResources", "UpdateContainerResources", "POST /containers/{ref}/update"),
]

FAILURES = [
    pytest.param(Reason.REFUSED, IGNORE, id="refused under Ignore"),
    pytest.param(Reason.REFUSED, FAIL, id="refused under Fail"),
    pytest.param(Reason.UNREACHABLE, FAIL, id="unreachable"),
    pytest.param(Reason.BROKEN_ANSWER, FAIL, id="broken answer"),
    pytest.param(HookAnswer(resources=Resources(cpu_shares=-5)), FAIL, id="bad answer"),
]

# -- all calls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("behaviour", "policy"), FAILURES)
@pytest.mark.parametrize(("action", "point", "operation", "route"), PRE)
async def test_refused_call_is_500_and_never_reaches_the_daemon(
    node: Node, action: str, point: str, operation: str, route: str, behaviour: Any, policy: FailurePolicy
) -> None:
    pod_id, container_id = await node.running()
    before = len(node.dockerd.requests(route))
    node.plugins.add("koordlet", behaviour, policy=policy, points=(point,))
    target = {
        "pod": "/containers/create?name=k8s_POD_other_default_1_0",
        "container": "/containers/create?name=k8s_other_web-0_default_1_0",
    }.get(action, f"/containers/{container_id}/{action}")
    body = {"pod": node.pod_body(), "container": node.container_body(pod_id), "update": {"CpuShares": 7}}.get(action)
    known = node.store.snapshot()
    answer = await node.ask("POST", target, body)
    assert answer.status == 500
    reason = behaviour if isinstance(behaviour, Reason) else Reason.BAD_ANSWER
    expected = f"runtimeproxy: {operation} refused: hook server 'koordlet' at {point}: {reason.value}"
    assert answer.message.startswith(expected)
    assert len(node.dockerd.requests(route)) == before
    assert node.store.snapshot() == known
    assert node.recorder.counted("calls_refused", operation=operation) == 1


@pytest.mark.parametrize(
    "behaviour",
    [Reason.UNREACHABLE, Reason.DEADLINE, HookAnswer(annotations={"": "x"}), ValueError(CANARY)],
    ids=["unreachable", "deadline", "bad answer", "a fault of ours"],
)
@pytest.mark.parametrize(("action", "point", "operation", "route"), PRE)
async def test_under_ignore_the_daemon_gets_the_original_bytes(
    node: Node, action: str, point: str, operation: str, route: str, behaviour: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pod_id, container_id = await node.made()
    node.plugins.add("koordlet", behaviour, points=(point,))
    node.faults = int(isinstance(behaviour, ValueError))
    raw = {
        "pod": request("POST", "/containers/create?name=a-pod", written(node.pod_body())),
        "container": request("POST", "/containers/create?name=a-container", written(node.container_body(pod_id))),
        "start": request("POST", f"/containers/{container_id}/start"),
        "update": request("POST", f"/containers/{container_id}/update", b'{ "cpuShares":7 }'),
    }[action]
    client = await node.client()
    client.send(raw)
    assert (await client.answer()).status in (200, 201, 204)
    assert node.dockerd.requests(route)[-1].raw == raw
    assert node.recorder.total("hook_fail_open") == 1
    assert node.recorder.counted("calls", operation=operation, outcome="agreed") >= 1
    assert CANARY not in caplog.text


async def test_pod_with_the_skip_label_and_its_containers_are_told_to_nobody(node: Node) -> None:
    node.plugins.add("a", policy=FAIL, behaviour=Reason.REFUSED)
    pod_id = await node.create_pod(skip="true")
    container_id = await node.create_container(pod_id)
    for made in (pod_id, container_id):
        assert (await node.act("start", made)).status == 204
    assert (await node.act("update", container_id, b"{}")).status == 200
    node.forget()
    for made in (container_id, pod_id):
        assert (await node.act("stop", made)).status == 204
    assert node.points == []
    assert node.store.counts() == (1, 1)


# -- pods --------------------------------------------------------------------------------------------------------------


async def test_pod_is_told_and_kept_as_the_kubelet_asked_for_it(node: Node) -> None:
    node.plugins.add("a")
    pod_id = await node.create_pod()
    assert node.told == HookRequest(TOLD_POD)
    assert node.came(CREATE) == written(node.pod_body())
    whole = replace(TOLD_POD, id=pod_id)
    assert node.pod_of(pod_id) == PodRecord(whole, whole)


@pytest.mark.parametrize("framing", ["sized", "chunked"])
async def test_pod_is_changed_in_its_place_and_nowhere_else(node: Node, framing: str) -> None:
    answer = HookAnswer(
        labels={"l": "1"}, annotations={"n": "2"}, cgroup_parent="/hooked", resources=Resources(cpu_quota=50_000)
    )
    node.plugins.add("a", answer)
    body = written(node.pod_body()).replace(b'"Memory":0', b'"Memory":0,"New":[1e400, {}]')
    if framing == "chunked":
        client = await node.client()
        lines = ("Content-Type: application/json", "Transfer-Encoding: chunked", "Trailer: X", "X-Odd:   kept")
        client.send(request("POST", "/containers/create?name=web", b"", *lines) + chunked(body))
        created = await client.answer()
        head = node.dockerd.requests(CREATE)[0].head.raw
        assert b"X-Odd:   kept\r\n" in head
        assert b"Transfer-Encoding" not in head
        assert b"Trailer" not in head
    else:
        created = await node.create("web", body)
    released = json.loads(node.came(CREATE))
    wanted = json.loads(body)
    wanted["Labels"] |= {"l": "1", "annotation.n": "2"}
    wanted["HostConfig"] |= {"CgroupParent": "/hooked", "CpuQuota": 50_000}
    assert released == wanted
    pod = node.pod_of(id_of(created))
    assert pod.original == replace(TOLD_POD, id=id_of(created), attempt=0)
    assert pod.effective == replace(
        pod.original,
        labels={**TOLD_POD.labels, "l": "1"},
        annotations={"note": "pod", "n": "2"},
        cgroup_parent="/hooked",
        resources=Resources(cpu_quota=50_000),
    )


@pytest.mark.parametrize(("driver", "in_cri", "in_docker"), DRIVERS)
async def test_hooks_see_cris_parent_and_the_daemon_its_drivers(
    tmp_path: Path, driver: str, in_cri: str, in_docker: str
) -> None:
    hooked_cri = in_cri.replace("burstable", "besteffort")
    hooked_docker = in_docker.replace("burstable", "besteffort")

    def move(request: HookRequest) -> HookAnswer:
        return HookAnswer(cgroup_parent=hooked_cri if request.container is None else "")

    async with Node(tmp_path, cgroup_driver=driver) as node:
        await node.follow()
        node.plugins.add("a", move, points=("PreRunPodSandbox", "PreStartContainer"))
        pod_id = await node.create_pod()
        assert node.told.pod.cgroup_parent == in_cri
        assert node.host()["CgroupParent"] == hooked_docker
        container_id = await node.create_container(pod_id)
        assert node.host()["CgroupParent"] == hooked_docker, "the kubelet still names the old one"
        await node.act("start", container_id)
        assert node.told.pod.cgroup_parent == hooked_cri
        assert node.told_container.cgroup_parent == ""


@pytest.mark.parametrize(("driver", "in_cri", "in_docker"), DRIVERS)
async def test_parent_that_no_hook_changes_is_not_touched(
    tmp_path: Path, driver: str, in_cri: str, in_docker: str
) -> None:
    async with Node(tmp_path, cgroup_driver=driver) as node:
        await node.follow()
        node.plugins.add("a", HookAnswer(cgroup_parent=in_cri))
        pod_id = await node.create_pod()
        assert node.came(CREATE) == written(node.pod_body())
        await node.create_container(pod_id)
        assert node.came(CREATE) == written(node.container_body(pod_id))
        assert node.told.pod.cgroup_parent == in_cri
        assert node.host()["CgroupParent"] == in_docker


async def test_pod_is_told_once_the_daemon_named_its_driver(tmp_path: Path) -> None:
    async with Node(tmp_path, cgroup_driver="systemd") as node:
        pod_id = await node.create_pod()
        assert node.store.counts() == (0, 0), "nobody is asked for the driver where no plugin wants it"
        assert node.dockerd.requests("GET /info") == []
        node.plugins.add("a")
        container_id = await node.create_container(pod_id)
        assert node.told.pod.cgroup_parent == SYSTEMD_PARENT
        await node.remove(container_id)
        await node.remove(pod_id)
        await node.create_pod()
        assert node.told.pod.cgroup_parent == SYSTEMD_PARENT
        assert len(node.dockerd.requests("GET /info")) == 1


@pytest.mark.parametrize("policy", [FAIL, IGNORE])
@pytest.mark.parametrize(
    "injection",
    [Injection(status=500, message=CANARY), Injection(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")],
    ids=["error", "no JSON object"],
)
async def test_daemon_without_a_driver_is_a_failure_under_the_policy(
    tmp_path: Path, policy: FailurePolicy, injection: Injection, caplog: pytest.LogCaptureFixture
) -> None:
    async with Node(tmp_path) as node:
        node.plugins.add("koordlet", policy=policy)
        node.dockerd.inject("GET /info", injection)
        answer = await node.create("web", node.pod_body())
        if policy is FAIL:
            assert answer.status == 500
            assert "refused: hook server 'koordlet' at PreRunPodSandbox: unreadable" in answer.message
            assert node.dockerd.requests(CREATE) == []
        else:
            assert answer.status == 201
            assert node.came(CREATE) == written(node.pod_body())
        assert (node.points, node.store.counts()) == ([], (0, 0))
        assert CANARY not in caplog.text


@pytest.mark.parametrize(("name", "status"), [("taken", 409), ("-", 400)])
async def test_create_that_fails_leaves_nothing_and_its_answer_as_it_was(node: Node, name: str, status: int) -> None:
    await node.plain("taken")
    node.plugins.add("a")
    answer = await node.create(name, node.pod_body())
    assert answer.status == status
    assert (node.points, node.store.counts()) == (["PreRunPodSandbox"], (0, 0))
    node.dockerd.state.images.by_name.clear()
    pod_answer = await node.create("web", node.pod_body())
    assert (pod_answer.status, pod_answer.message) == (404, "No such image: runtimeproxy-pause:1")
    assert node.store.counts() == (0, 0)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"Id":""}', b"[1]"])
async def test_answer_without_an_id_goes_to_the_client_and_nothing_is_kept(node: Node, body: bytes) -> None:
    node.plugins.add("a")
    reply = b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    node.dockerd.inject(CREATE, Injection(raw=reply))
    assert (await node.create("web", node.pod_body())).raw == reply
    assert node.store.counts() == (0, 0)
    assert node.recorder.counted("calls_unreadable", operation="RunPodSandbox") == 1
