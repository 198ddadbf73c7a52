"""Docker's calls of what exists: start with the update ahead of it, stop, remove."""

import asyncio
import json
import logging
from dataclasses import replace

import pytest

from runtimeproxy.docker.call import DockerCall
from runtimeproxy.docker.exchange import HeldExchange
from runtimeproxy.errors import Reason
from runtimeproxy.model import HookAnswer, HookRequest, Resources
from runtimeproxy.plugins.registration import FailurePolicy
from tests.docker.client import request
from tests.docker.daemon import until
from tests.docker.node import ASKED, CONTAINER, REMOVE, START, STOP, UPDATE, Node
from tests.fakes.dockerd_received import Injection
from tests.fakes.plugins import FAIL, IGNORE

CANARY = "canary-4711"


# -- start -------------------------------------------------------------------------------------------------------------


async def test_start_tells_before_and_after(node: Node) -> None:
    node.plugins.add("a")
    pod_id, container_id = await node.made()
    await node.act("start", container_id)
    known = HookRequest(node.pod_of(pod_id).effective, node.container(container_id).effective)
    assert [(asked.point, asked.request) for asked in node.plugins.asked] == [
        ("PreStartContainer", known),
        ("PostStartContainer", known),
    ]
    assert node.dockerd.requests(UPDATE) == []


async def test_start_that_starts_nothing_has_no_post_hook(node: Node) -> None:
    node.plugins.add("a")
    _, container_id = await node.running()
    assert (await node.act("start", container_id)).status == 304
    assert node.points == ["PreStartContainer"]
    node.dockerd.inject(START, Injection(status=500, message="no runc"))
    answer = await node.act("start", container_id)
    assert (answer.status, answer.message, node.points) == (500, "no runc", ["PreStartContainer"])


async def test_starts_resources_go_ahead_of_it_in_an_update_that_is_our_own(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    resources = Resources(cpuset_cpus="1", cpu_quota=20_000, oom_score_adj=5, unified={"cpu.idle": CANARY})
    node.plugins.add("a", HookAnswer(resources=resources), points=("PreStartContainer",))
    _, container_id = await node.made()
    assert (await node.act("start", container_id)).status == 204
    update, start = node.dockerd.requests(UPDATE)[0], node.dockerd.requests(START)[0]
    assert json.loads(update.body) == {"CpuQuota": 20_000, "CpusetCpus": "1"}
    assert update.at < start.at
    await node.event("update")
    assert node.recorder.total("updates_of_others") == 0
    container = node.container(container_id)
    assert container.original.resources == ASKED
    assert container.effective.resources == replace(ASKED, cpuset_cpus="1", cpu_quota=20_000)
    for field in ("oom_score_adj", "unified"):
        assert node.recorder.counted("fields_left_out", operation="StartContainer", field=field) == 1
    assert "StartContainer: Docker cannot set oom_score_adj, unified of a container: left out" in caplog.text
    assert CANARY not in caplog.text
    assert await node.updated_by_others(container_id) == 0


async def test_start_that_sets_nothing_that_docker_can_say_sends_no_update(node: Node) -> None:
    node.plugins.add("a", HookAnswer(resources=Resources(oom_score_adj=5)), points=("PreStartContainer",))
    _, container_id = await node.made()
    assert (await node.act("start", container_id)).status == 204
    assert node.dockerd.requests(UPDATE) == []


async def test_what_an_update_set_is_known_though_the_start_behind_it_failed(node: Node) -> None:
    node.plugins.add("a", HookAnswer(resources=Resources(cpu_quota=20_000)), points=("PreStartContainer",))
    _, container_id = await node.made()
    node.dockerd.inject(START, Injection(status=500, message="no runc"))
    assert (await node.act("start", container_id)).status == 500
    node.plugins.add("later", points=("PostStopContainer",))
    await node.act("stop", container_id)
    assert node.told_container.resources == replace(ASKED, cpu_quota=20_000)


@pytest.mark.parametrize("policy", [FAIL, IGNORE])
@pytest.mark.parametrize("lost", [False, True])
async def test_starts_update_that_fails_refuses_the_start_under_fail(
    node: Node, policy: FailurePolicy, lost: bool
) -> None:
    _, container_id = await node.made()
    resources = Resources(cpuset_cpus="0" if lost else "2000")  # the fake daemon has fewer
    node.plugins.add("koordlet", HookAnswer(resources=resources), policy=policy, points=("PreStartContainer",))
    if lost:  # it is done, but the answer never comes
        node.dockerd.inject(UPDATE, Injection(cut_after_bytes=0))
    answer = await node.act("start", container_id)
    if policy is FAIL:
        assert answer.status == 500
        assert "StartContainer refused: hook server 'koordlet' at PreStartContainer: runtime_rejected" in answer.message
        assert ("Requested CPUs are not available" in answer.message) is not lost
        assert node.dockerd.requests(START) == []
    else:
        assert answer.status == 204
        assert node.recorder.total("hook_fail_open") == 1
    failed = {"plugin": "koordlet", "hook": "PreStartContainer", "reason": Reason.RUNTIME_REJECTED.value}
    assert node.recorder.counted("hook_failures", **failed) == 1
    if not lost:
        assert node.container(container_id).effective.resources == ASKED
        assert await node.updated_by_others(container_id) == 0
    assert node.store.counts() == (1, 0)
    assert not node.front._events.expected_updates
    node.plugins.add("later", points=("PostStopContainer",))
    await node.act("stop", container_id)
    assert node.told_container.resources == replace(ASKED, **({"cpuset_cpus": "0"} if lost else {"cpu_shares": 4711}))


async def test_update_that_failed_ahead_of_a_start_makes_nobody_sure_again(node: Node) -> None:
    _, container_id = await node.made()
    node.plugins.add("a", HookAnswer(resources=Resources(cpuset_cpus="2000")), points=("PreStartContainer",))
    make = node.front.call

    def unsure(exchange: HeldExchange) -> DockerCall | None:
        call = make(exchange)
        assert call is not None
        call.unsure = True
        return call

    node.front.call = unsure  # type: ignore[method-assign]
    assert (await node.act("start", container_id)).status == 204
    assert node.recorder.total("hook_fail_open") == 1
    assert node.store.container(container_id) is None


async def test_client_that_leaves_in_a_starts_update_leaves_no_expectation(node: Node) -> None:
    _, container_id = await node.made()
    node.plugins.add("a", HookAnswer(resources=Resources(cpu_shares=2)), points=("PreStartContainer",))
    update = node.dockerd.inject(UPDATE, Injection(hang=True))
    client = await node.client()
    client.send(request("POST", f"/containers/{container_id}/start"))
    await until(lambda: update.hanging == 1)
    client.abort()
    await until(lambda: not node.front.tasks)
    assert node.dockerd.requests(START) == []
    assert node.store.counts() == (1, 0), "nobody knows whether the update was done"
    assert not node.front._events.expected_updates


# -- stop and remove ---------------------------------------------------------------------------------------------------


async def test_every_stop_that_the_daemon_agrees_to_is_told(node: Node) -> None:
    node.plugins.add("a")
    pod_id, container_id = await node.running()
    for made, points in ((container_id, ["PostStopContainer"] * 2), (pod_id, ["PostStopPodSandbox"])):
        assert [(await node.act("stop", made)).status for _ in range(2)] == [204, 304]
        assert node.points == points, "of a pod's stop nobody is told again"
    await until(lambda: node.store.counts() == (1, 1))
    del node.dockerd.state.containers[container_id]
    assert (await node.act("stop", container_id)).status == 404
    assert node.points == ["PostStopContainer"]
    node.dockerd.inject(STOP, Injection(status=500, message="no"))
    assert (await node.act("stop", pod_id)).status == 500
    assert node.points == []


@pytest.mark.parametrize("registered", [True, False])
async def test_start_and_a_stop_are_held_only_where_a_hook_server_is(node: Node, registered: bool) -> None:
    if registered:
        node.plugins.add("a", points=("PreUpdateContainerResources",))
    _, container_id = await node.made()
    for action in ("start", "stop"):
        assert (await node.act(action, container_id)).status == 204
    held = [
        node.recorder.counted("calls", operation=name, outcome="agreed") for name in ("StartContainer", "StopContainer")
    ]
    assert held == [registered, registered]


@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("what", ["updated", "destroyed"])
async def test_what_was_forgotten_during_a_stop_stays_forgotten(node: Node, what: str, registered: bool) -> None:
    _, container_id = await node.running()
    if registered:
        node.plugins.add("a")
    stop = node.dockerd.inject(STOP, Injection(hang=True))
    stopping = asyncio.create_task(node.act("stop", container_id))
    await until(lambda: stop.hanging == 1)
    if what == "updated":
        node.dockerd.state.update(container_id, {"CpuShares": 4711})
    else:
        node.dockerd.state.remove(container_id, force=True)
    await until(lambda: node.store.container(container_id) is None)
    stop.release()
    assert (await stopping).status == (204 if what == "updated" else 404)
    assert node.points == ["PostStopContainer"] * registered
    assert node.store.counts() == (1, 0)


@pytest.mark.parametrize("registered", [True, False])
async def test_what_is_removed_or_gone_is_forgotten(node: Node, registered: bool) -> None:
    if registered:
        node.plugins.add("a")
    pod_id, container_id = await node.running()
    assert (await node.remove(container_id, "")).status == 409
    assert node.store.counts() == (1, 1)
    assert (await node.remove(container_id)).status == 204
    assert node.store.counts() == (1, 0)
    second = await node.create_container(pod_id, replace(CONTAINER, name="second"))
    for gone, left in ((second, (1, 0)), (pod_id, (0, 0))):
        del node.dockerd.state.containers[gone]
        assert (await node.remove(gone)).status == 404
        assert node.store.counts() == left
    assert len(node.dockerd.requests(REMOVE)) == 4


async def test_calls_are_counted_by_what_they_were(node: Node) -> None:
    node.plugins.add("a")
    pod_id, container_id = await node.running()
    for made in (container_id, pod_id):
        await node.act("stop", made)
        await node.remove(made)
    operations = [times.operation for times in node.recorder.calls]
    made = ["RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "RemoveContainer"]
    assert operations == [*made, "StopPodSandbox", "RemovePodSandbox"]
    assert all(node.recorder.counted("calls", operation=name, outcome="agreed") == 1 for name in operations)
