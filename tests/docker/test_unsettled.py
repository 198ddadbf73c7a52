"""Docker's calls that end without the daemon's answer: inspect tells what became of each."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy import unsettled
from runtimeproxy import unsettled as module
from runtimeproxy.hookpoints import Operation
from runtimeproxy.model import ContainerRecord, HookAnswer, HookRequest
from tests.docker.client import request
from tests.docker.daemon import until
from tests.docker.node import ASKED, CONTAINER, CREATE, INSPECT, PARENT, REMOVE, START, STOP, UPDATE, Node, written
from tests.fakes import dockershim_bodies as bodies
from tests.fakes.dockerd_received import Injection

HOOKED_PARENT = "/kubepods/besteffort/pod6f1c7c9e"


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    """A node whose daemon is asked about calls without an answer as fast as it goes, and for long."""
    monkeypatch.setattr(module, "ASKED_AFTER_SECONDS", [0.02 * times for times in range(1, 500)])
    async with Node(tmp_path) as node:
        await node.follow()
        yield node


async def unanswered(node: Node, route: str, method: str, target: str, body: Any = None, *, done: bool = True) -> None:
    """Send a request that the daemon carries out, or not yet, and never answers."""
    node.dockerd.inject(
        route, Injection(cut_after_bytes=0, times=1) if done else Injection(raw=b"", cut_after_bytes=0, times=1)
    )
    client = await node.client()
    client.send(request(method, f"{node.prefix}{target}", written(body)))
    assert await client.ended() == b""


def settled(node: Node, operation: Operation, result: str = "agreed") -> int:
    return node.recorder.counted("unsettled", operation=operation.value, result=result)


async def test_a_pod_that_was_made_is_kept_as_it_was_asked_for_and_hooked(node: Node) -> None:
    node.plugins.add("a", HookAnswer(cgroup_parent=HOOKED_PARENT), points=("PreRunPodSandbox",))
    target = f"/containers/create?name={bodies.sandbox_name(node.pod)}"
    await unanswered(node, CREATE, "POST", target, node.pod_body())
    await until(lambda: node.store.counts() == (1, 0))
    (pod,) = node.store.snapshot().pods
    assert (pod.original.cgroup_parent, pod.effective.cgroup_parent) == (PARENT, HOOKED_PARENT)
    assert pod.effective.id in node.dockerd.state.containers


async def test_a_container_that_was_made_is_kept_as_it_was_asked_for_and_hooked(node: Node) -> None:
    node.plugins.add("a", HookAnswer(envs={"B": "3"}), points=("PreCreateContainer",))
    pod_id = await node.create_pod()
    target = f"/containers/create?name={bodies.container_name(node.pod, CONTAINER)}"
    await unanswered(node, CREATE, "POST", target, node.container_body(pod_id))
    await until(lambda: node.store.counts() == (1, 1))
    (record,) = node.store.snapshot().containers
    assert (record.original.envs, record.effective.envs) == ({"A": "1", "B": "2"}, {"A": "1", "B": "3"})
    assert record.original.resources == ASKED


async def test_a_create_that_the_daemon_carries_out_late_is_found_when_it_has(node: Node) -> None:
    node.plugins.add("a", points=("PreCreateContainer",))
    pod_id = await node.create_pod()
    hanging = node.dockerd.inject(CREATE, Injection(hang=True))
    client = await node.client()
    name = bodies.container_name(node.pod, CONTAINER)
    body = written(node.container_body(pod_id))
    client.send(request("POST", f"{node.prefix}/containers/create?name={name}", body))
    await until(lambda: hanging.hanging == 1)
    client.abort()
    await until(lambda: len(node.dockerd.requests(INSPECT)) >= 3)
    assert node.store.counts() == (1, 0)
    node.dockerd.state.create(name, body, node.container_body(pod_id))
    await until(lambda: node.store.counts() == (1, 1))


async def test_bodies_of_creates_that_stay_unsettled_are_kept_as_far_as_they_are_short(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.plugins.add("a", HookAnswer(envs={"B": "3"}), points=("PreCreateContainer",))
    body = node.container_body(await node.create_pod())
    monkeypatch.setattr(unsettled, "MOST_BYTES", 4 * len(written(body)) + 100)
    for number in range(3):
        await unanswered(node, CREATE, "POST", f"/containers/create?name=k8s_{number}", body, done=False)
        await until(lambda number=number: len(node.lifecycle._unsettled) == min(number + 1, 2))  # type: ignore[misc]
    assert settled(node, Operation.CREATE_CONTAINER, "given_up") == 1


@pytest.mark.parametrize("known", ["hooked", "other name", "another's"])
async def test_what_another_create_has_made_is_not_taken_for_this_ones(node: Node, known: str) -> None:
    """The daemon refuses a second container of a name; here that answer is lost."""
    node.plugins.add("a", HookAnswer(envs={"B": "3"}), points=("PreCreateContainer",))
    pod_id = await node.create_pod()
    name = bodies.container_name(node.pod, CONTAINER)
    body = node.container_body(pod_id)
    if known == "hooked":
        await node.create_container(pod_id)
    elif known == "another's":
        body["Labels"]["io.kubernetes.container.name"] = "side"
        node.dockerd.state.create(name, written(body), body)
        body = node.container_body(pod_id)
    before = node.store.snapshot()
    node.plugins.plugins.clear()
    node.plugins.add("a", HookAnswer(envs={"B": "4"}), points=("PreCreateContainer",))
    await unanswered(node, CREATE, "POST", f"/containers/create?name={name}", body, done=known == "hooked")
    if known == "hooked":
        await until(lambda: settled(node, Operation.CREATE_CONTAINER, "failed") == 1)
    else:
        await until(lambda: len(node.dockerd.requests(INSPECT)) >= 3)
    assert node.store.snapshot() == before


async def test_a_pods_name_that_a_container_has_is_no_pod(node: Node) -> None:
    node.plugins.add("a", points=("PreRunPodSandbox",))
    pod_id = await node.create_pod()
    name = "k8s_POD_other_default_6f1c7c9e_0"
    body = node.container_body(pod_id)
    node.dockerd.state.create(name, written(body), body)
    await unanswered(node, CREATE, "POST", f"/containers/create?name={name}", node.pod_body(), done=False)
    await until(lambda: len(node.dockerd.requests(INSPECT)) >= 3)
    assert node.store.counts() == (1, 0)


async def test_a_create_without_a_name_is_left_to_the_next_list(node: Node) -> None:
    node.plugins.add("a", points=("PreCreateContainer",))
    pod_id = await node.create_pod()
    await unanswered(node, CREATE, "POST", "/containers/create", node.container_body(pod_id))
    await until(lambda: node.recorder.counted("calls", operation="CreateContainer", outcome="unsettled") == 1)
    await asyncio.sleep(0.1)
    assert node.dockerd.requests(INSPECT) == []


@pytest.mark.parametrize(
    ("route", "action", "point"), [(START, "start", "PostStartContainer"), (STOP, "stop", "PostStopContainer")]
)
@pytest.mark.parametrize("done", [True, False])
async def test_what_is_owed_of_a_container_is_told_once_it_is_so(
    node: Node, route: str, action: str, point: str, done: bool
) -> None:
    node.plugins.add("a", points=("PostStartContainer", "PostStopContainer"))
    pod_id, container_id = await (node.running() if action == "stop" else node.made())
    await unanswered(node, route, "POST", f"/containers/{container_id}/{action}", done=done)
    if not done:
        await until(lambda: len(node.dockerd.requests(INSPECT)) >= 3)
        assert node.plugins.asked == []
        getattr(node.dockerd.state, action)(container_id)
    await until(lambda: bool(node.plugins.asked))
    known = HookRequest(node.pod_of(pod_id).effective, node.container(container_id).effective)
    assert [(asked.point, asked.request) for asked in node.plugins.asked] == [(point, known)]


async def test_what_is_owed_of_a_pod_is_told(node: Node) -> None:
    node.plugins.add("a", points=("PostStopPodSandbox",))
    pod_id, _ = await node.running()
    await unanswered(node, STOP, "POST", f"/containers/{pod_id}/stop")
    await until(lambda: node.points == ["PostStopPodSandbox"])


async def test_a_stop_whose_container_removes_itself_is_told_and_leaves_no_record(node: Node) -> None:
    node.plugins.add("a", points=("PostStopContainer",))
    pod_id = await node.create_pod()
    body = node.container_body(pod_id)
    body["HostConfig"]["AutoRemove"] = True
    name = bodies.container_name(node.pod, CONTAINER)
    container_id = str((await node.create(name, body)).json["Id"])
    await node.act("start", container_id)
    await unanswered(node, STOP, "POST", f"/containers/{container_id}/stop")
    await until(lambda: node.points == ["PostStopContainer"])
    assert node.store.counts() == (1, 0)


async def test_a_remove_is_settled_by_what_is_no_longer_there(node: Node) -> None:
    node.plugins.add("a")
    _, container_id = await node.made()
    await unanswered(node, REMOVE, "DELETE", f"/containers/{container_id}?force=1", done=False)
    await until(lambda: len(node.dockerd.requests(INSPECT)) >= 3)
    assert node.store.counts() == (1, 1)
    node.dockerd.state.remove(container_id, force=True)
    await until(lambda: settled(node, Operation.REMOVE_CONTAINER) == 1)
    assert node.store.counts() == (1, 0)


async def test_a_start_of_what_is_gone_never_was(node: Node) -> None:
    node.plugins.add("a")
    _, container_id = await node.made()
    await unanswered(node, START, "POST", f"/containers/{container_id}/start", done=False)
    node.plugins.asked.clear()
    node.dockerd.state.remove(container_id, force=True)
    await until(lambda: settled(node, Operation.START_CONTAINER, "failed") == 1)
    assert node.points == []


async def test_an_update_that_was_done_keeps_the_kubelets_values_apart(node: Node) -> None:
    def halve(asked: HookRequest) -> HookAnswer:
        assert asked.container is not None
        assert asked.container.resources is not None
        shares = asked.container.resources.cpu_shares
        return HookAnswer(resources=replace(asked.container.resources, cpu_shares=shares // 2))

    node.plugins.add("a", halve, points=("PreCreateContainer", "PreUpdateContainerResources"))
    _, container_id = await node.running()
    assert node.container(container_id).effective.resources == replace(ASKED, cpu_shares=512)
    await unanswered(node, UPDATE, "POST", f"/containers/{container_id}/update", {"CpuShares": 800})
    await until(lambda: settled(node, Operation.UPDATE_CONTAINER_RESOURCES) == 1)
    resources = replace(ASKED, cpu_shares=800), replace(ASKED, cpu_shares=400)
    record = node.container(container_id)
    assert (record.original.resources, record.effective.resources) == resources


async def test_an_update_that_was_not_done_has_the_container_read_again_when_it_is_needed(node: Node) -> None:
    node.plugins.add("a")
    _, container_id = await node.running()
    await unanswered(node, UPDATE, "POST", f"/containers/{container_id}/update", {"CpuShares": 800}, done=False)
    await until(lambda: len(node.dockerd.requests(INSPECT)) >= 3)
    assert node.store.counts() == (1, 0)
    node.dockerd.state.remove(container_id, force=True)
    await until(lambda: settled(node, Operation.UPDATE_CONTAINER_RESOURCES, "failed") == 1)


# -- events that come before an answer ---------------------------------------------------------------------------------


async def test_what_is_destroyed_before_its_create_is_answered_leaves_no_record(node: Node) -> None:
    """The event overtakes the commit, which waits for another one's turn; the answer goes to the client as it is."""
    pod_id = await node.create_pod()
    turns = node.front.lifecycle._turns
    turn = turns.take(f"{pod_id}/{CONTAINER.name}/{CONTAINER.attempt}")
    try:
        creating = asyncio.create_task(node.create_container(pod_id))
        await until(lambda: len(node.dockerd.state.containers) == 2)
        (made,) = (one for one in node.dockerd.state.containers if one != pod_id)
        node.dockerd.state.remove(made, force=True)
        await node.event("destroy")
        assert not creating.done()
    finally:
        turns.leave(turn)
    assert await creating == made
    assert node.store.counts() == (1, 0)


async def test_a_container_that_is_made_and_stays_is_kept_by_the_same_way(node: Node) -> None:
    pod_id = await node.create_pod()
    container_id = await node.create_container(pod_id)
    assert isinstance(node.container(container_id), ContainerRecord)
