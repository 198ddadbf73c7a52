"""On each shape of a runtime the kubelet's word stands, whatever the runtime tells or lacks, over restarts too.

Every request is compared byte for byte with what reached the runtime; the policy is Fail, so none may be refused. Of
what is not there the runtime's own answer arrives, and no hook server is asked (relay-rules C4).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from runtimeproxy import sync
from runtimeproxy.hookapi import api_pb2
from tests.fakes import hookanswers
from tests.fakes.registration import ALL_POINTS
from tests.system.cri_front import CRI_SHAPES
from tests.system.fronts import CONTAINER, PARENT, POD, Caller, Failed, Front
from tests.system.shaped import FRONTS, QUIET, SKIPPED, SLICE_PARENT, ShapedNode, named

EVERY = pytest.mark.parametrize("front", FRONTS, ids=named)
EVERY_CRI = pytest.mark.parametrize("front", CRI_SHAPES, ids=named)
PODS = {
    "plain": (POD, PARENT),
    "skipped": (SKIPPED, PARENT),
    "moved": (replace(POD, name="moved"), SLICE_PARENT),
    "skipped and moved": (SKIPPED, SLICE_PARENT),
}
"""The pod as it is run, and the cgroup parent that the kubelet asks for in its containers' creates."""


async def changes_nothing(node: ShapedNode) -> None:
    """Live with pods of every kind, over a restart; each request goes out as it came."""
    pods, before = {}, {}
    for kind, (pod, parent) in PODS.items():
        pods[kind] = await node.caller.run_pod(pod)
        before[kind] = await node.created(pods[kind])
        node.caller.pods[pods[kind]] = replace(node.caller.pods[pods[kind]], cgroup_parent=parent)
    for restarts in range(2):
        if restarts:
            await node.restart()
        for kind, pod_id in pods.items():
            new = await node.created(pod_id)
            for container_id in (new, before[kind]) if restarts else (new,):
                await passes(node, "start", node.caller.request("start", container_id))
                await passes(node, "update", node.caller.update_request(container_id, {"cpu_shares": 5}, {}))
    for kind, pod_id in pods.items():
        await passes(node, "stop", node.caller.request("stop", before[kind]))
        await passes(node, "stop_pod", node.caller.request("stop_pod", pod_id))


async def passes(node: ShapedNode, verb: str, request: bytes) -> None:
    assert (await node.passed(verb, request))[1] == request


HOOKS = [(name, ALL_POINTS) for name in QUIET] + [("silent", ["PostStopContainer"]), ("silent", ["PreRunPodSandbox"])]
"""Who answers, and at which points."""


@pytest.mark.parametrize(("hooks", "points"), HOOKS, ids=[f"{name} at {len(points)}" for name, points in HOOKS])
@EVERY
async def test_quiet_hook_server_changes_nothing(
    front: Front, hooks: str, points: Sequence[str], tmp_path: Path
) -> None:
    """Rows 1 and 7: the kubelet's cgroup parent stands, also one that it asks for anew after a restart."""
    async with ShapedNode(front, tmp_path, QUIET[hooks], points=points) as node:
        await changes_nothing(node)


KILLED = {"cri containerd", "cri cri-o", "cri cri-dockerd", "cri shim gone", "docker 29"}
"""Those that tell most and least; each is tried over a restart that is no kill."""


@pytest.mark.slow
@pytest.mark.parametrize("front", [front for front in FRONTS if front.name in KILLED], ids=named)
async def test_quiet_hook_server_changes_nothing_over_a_kill(front: Front, tmp_path: Path) -> None:
    async with ShapedNode(front, tmp_path, QUIET["koordlet"], program=True) as node:
        await changes_nothing(node)


# -- ids used anew -----------------------------------------------------------------------------------------------------

OTHER = replace(POD, name="other", uid="other-uid", labels={"of": "other"}, cgroup_parent="/kubepods/pod-other-uid")
TOLD = ["PreCreateContainer", "PreStartContainer", "PostStartContainer", "PostStopContainer", "PostStopPodSandbox"]


@pytest.mark.parametrize("way", ["by the proxy", "behind it"])
@pytest.mark.parametrize("removed", [False, True], ids=["lost", "removed before"])
@EVERY_CRI
async def test_id_used_anew_is_another_pods(front: Front, way: str, removed: bool, tmp_path: Path) -> None:
    """A runtime that has lost its state gives ids anew; dockerd's are random."""
    async with ShapedNode(front, tmp_path) as node:
        pod_id = await node.caller.run_pod()
        container_id = await node.created(pod_id)
        if removed:
            for verb, subject in (("remove", container_id), ("stop_pod", pod_id), ("remove_pod", pod_id)):
                await node.caller.act(verb, subject)
        await node.lose_state()
        runs = node.caller if way == "by the proxy" else node.new_caller(node.runtime.socket_path)
        assert await runs.run_pod(OTHER) == pod_id
        if runs is not node.caller:
            await runs.close()
        node.hooks.calls.clear()
        assert await node.created(pod_id, container=replace(CONTAINER, name="another")) == container_id
        for verb, subject in (("start", container_id), ("stop", container_id), ("stop_pod", pod_id)):
            await node.caller.act(verb, subject)
        told = [call.request for call in node.hooks.calls]
        assert [call.point.name for call in node.hooks.calls] == TOLD
        assert {request.pod_meta.uid for request in told} == {OTHER.uid}
        assert {request.container_meta.name for request in told[:-1]} == {"another"}
        assert {request.pod_cgroup_parent for request in told[:-1]} == {OTHER.cgroup_parent}
        assert told[-1].cgroup_parent == OTHER.cgroup_parent


@EVERY_CRI
async def test_list_shows_that_an_id_is_another_pods(
    front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call of the proxy's has made it, and none but its stop is to come."""
    monkeypatch.setattr(sync, "SOONEST_SECONDS", 0.01)
    async with ShapedNode(front, tmp_path) as node:
        pod_id = await node.caller.run_pod()
        await node.created(pod_id)
        await node.known()
        await node.lose_state()
        async with node.new_caller(node.runtime.socket_path) as direct:
            assert await direct.run_pod(OTHER) == pod_id
        await node.read_anew()
        node.told()
        await node.caller.act("stop_pod", pod_id)
        ((_, told),) = node.told()
        assert (told.pod_meta.uid, dict(told.labels)["of"]) == (OTHER.uid, "other")


# -- what is not there -------------------------------------------------------------------------------------------------

VERBS = ("start", "update", "stop", "remove", "stop_pod", "remove_pod")
HOOKED = api_pb2.ContainerResourceHookResponse(container_envs={"B": "hooked"})


async def outcome(caller: Caller, verb: str, request: bytes) -> object:
    """Return what a caller gets of a request: the error, or None."""
    try:
        await caller.send(verb, request)
    except Failed as failed:
        return failed.status, failed.text
    return None


@EVERY
async def test_runtimes_own_answer_arrives_of_what_is_not_there(front: Front, tmp_path: Path) -> None:
    async with ShapedNode(front, tmp_path) as node, node.new_caller(node.runtime.socket_path) as direct:
        requests = [(verb, node.caller.request(verb, "f" * 64)) for verb in VERBS]
        if front in CRI_SHAPES:  # dockerd makes a container without a sandbox
            requests.append(("create", node.caller.create_request("f" * 64)))
        for verb, request in requests:
            assert await outcome(node.caller, verb, request) == await outcome(direct, verb, request), verb
        assert node.hooks.calls == []
        counted = [node.inside.recorder.total(name) for name in ("hook_failures", "calls_unreadable", "calls_refused")]
        assert counted == [0, 0, 0]


@EVERY_CRI
async def test_pod_whose_verbose_status_is_not_found_is_hooked(front: Front, tmp_path: Path) -> None:
    """A controller of containerd's says NOT_FOUND of its own; no pod goes without its hooks for that."""
    async with ShapedNode(front, tmp_path, answers={"PreCreateContainer": hookanswers.reply(HOOKED)}) as node:
        pod_id = await node.caller.run_pod()
        await node.restart()
        await node.caller.create(pod_id)
        assert ("B", "hooked") in node.runtime.envs()
        await node.caller.act("stop_pod", pod_id)
        ((_, create), (_, stop)) = node.told()[-2:]
        assert {create.pod_meta.uid, stop.pod_meta.uid} == {"pod-uid"}
