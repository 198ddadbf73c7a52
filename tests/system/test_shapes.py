"""On each shape of a runtime the kubelet's values are in force, and hook servers get what the runtime can report.

Every request is compared byte for byte with what reached the runtime; the policy is Fail, so none may be refused. What
a shape cannot report or does not accept is in the tables.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes import hookanswers
from tests.system.cri_front import CRI_SHAPES
from tests.system.fronts import CONTAINER, PARENT, POD, SKIP, Failed, Front
from tests.system.shaped import EVERY, ShapedNode

SLICE_PARENT = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poduid.slice"
PODS = {
    "plain": (POD, PARENT),
    "skipped": (replace(POD, name="skipped", labels=SKIP), PARENT),
    "moved": (replace(POD, name="moved"), SLICE_PARENT),
}
"""The pod as it is run, and the cgroup parent that the kubelet sets in its containers' creates."""


@EVERY
@pytest.mark.parametrize(
    "answer", [hookanswers.koordlet(), pytest.param(None, marks=pytest.mark.slow)], ids=["koordlet", "none"]
)
async def test_quiet_hook_server_changes_nothing(
    front: Front, answer: hookanswers.Answer | None, tmp_path: Path
) -> None:
    """The kubelet's cgroup parent is in force, also a new one that it sets after a restart."""
    async with ShapedNode(front, tmp_path, answer) as node:

        async def passes(verb: str, request: bytes) -> None:
            assert (await node.passed(verb, request))[1] == request

        pods, before = {}, {}
        for kind, (pod, parent) in PODS.items():
            pods[kind] = await node.caller.run_pod(pod)
            before[kind] = await node.created(pods[kind])
            node.caller.pods[pods[kind]] = replace(node.caller.pods[pods[kind]], cgroup_parent=parent)
        for restarted in (False, True):
            if restarted:
                await node.restart()
            for kind, pod_id in pods.items():
                new = await node.created(pod_id)
                for container_id in (new, before[kind]) if restarted else (new,):
                    await passes("start", node.caller.request("start", container_id))
                    await passes("update", node.caller.update_request(container_id, {"cpu_shares": 5}, {}))
        for kind, pod_id in pods.items():
            await passes("stop", node.caller.request("stop", before[kind]))
            await passes("stop_pod", node.caller.request("stop_pod", pod_id))


@EVERY
async def test_absent_subject_gets_the_runtimes_own_answer(front: Front, tmp_path: Path) -> None:
    """No hook server is called (relay-rules C4)."""
    async with ShapedNode(front, tmp_path) as node, node.new_caller(node.runtime.socket_path) as direct:
        verbs = ("start", "update", "stop", "remove", "stop_pod", "remove_pod")
        requests = [(verb, node.caller.request(verb, "f" * 64)) for verb in verbs]
        if front in CRI_SHAPES:  # dockerd creates a container without a sandbox
            requests.append(("create", node.caller.create_request("f" * 64)))
        for verb, request in requests:
            answers = []
            for caller in (node.caller, direct):
                try:
                    answers.append(await caller.send(verb, request) and None)
                except Failed as failed:
                    answers.append((failed.status, failed.text))
            assert answers[0] == answers[1], verb
        assert node.hooks.calls == []
        total = node.inside.metrics.total
        assert (total("hook_failures"), total("calls_unreadable"), total("calls", outcome="refused")) == (0, 0, 0)


# ---- the content of hook calls

REPORT_NO_PARENT = {"cri cri-dockerd", "cri no verbose"}
"""Their cgroup parent is unset until the kubelet sends it."""
REPORT_CONTAINERS_PARENT = {"cri shim sandboxer", "cri shim gone"}
"""They report it of containers only."""
ENVS_AFTER = {
    "cri cri-o": dict(CONTAINER.envs) | {"PATH": "/bin", "HOSTNAME": "fake"},
    "cri cri-dockerd": {},
    "cri no verbose": {},
}
"""After a restart: CRI-O reports those of the image, too, others none."""
SWAP = "memory_swap_limit_in_bytes"
RESOURCES = {**CONTAINER.resources, SWAP: 0}
"""A swap limit that a runtime sets by itself counts as none; Docker's shim requests one."""


def parents(node: ShapedNode) -> set[str]:
    """Return the pod's cgroup parents in all hook calls."""
    calls = node.notified()
    assert calls
    names = {"PostStopPodSandbox": "cgroup_parent"}
    return {getattr(message, names.get(point, "pod_cgroup_parent")) for point, message in calls}


@EVERY
@pytest.mark.parametrize("parent", [PARENT, SLICE_PARENT], ids=["cgroupfs", "systemd"])
async def test_hook_calls_have_what_the_runtime_reports(front: Front, parent: str, tmp_path: Path) -> None:
    async with ShapedNode(front, tmp_path) as node:

        async def end(*containers: str, pod: str) -> None:
            for one in containers:
                await node.caller.update(one)
                await node.caller.act("stop", one)
            await node.caller.act("stop_pod", pod)

        pod = replace(POD, cgroup_parent=parent)
        used, new, empty = [await node.caller.run_pod(replace(pod, name=name)) for name in ("used", "new", "empty")]
        node.notified()
        in_used, in_new = [await node.caller.create(pod_id) for pod_id in (used, new)]
        await node.caller.act("start", in_used)
        await end(in_used, pod=used)
        assert parents(node) == {parent}

        await node.restart()
        await node.known()
        await end(in_used, pod=used)
        assert parents(node) == {"" if front.name in REPORT_NO_PARENT else parent}
        await end(pod=empty)
        assert parents(node) == {"" if front.name in REPORT_NO_PARENT | REPORT_CONTAINERS_PARENT else parent}
        await node.caller.act("start", in_new)
        ((_, start), _) = node.notified()
        assert start.container_envs == ENVS_AFTER.get(front.name, dict(CONTAINER.envs))
        assert dict(start.container_annotations)["note"] == "kept"
        found = {name: getattr(start.container_resources, name) for name in RESOURCES}
        expected = RESOURCES if front in CRI_SHAPES else {**RESOURCES, SWAP: RESOURCES["memory_limit_in_bytes"]}
        assert found == (dict.fromkeys(RESOURCES, 0) if front.name == "cri cri-dockerd" else expected)
        created = await node.caller.create(new)
        await node.caller.act("start", created)
        await end(created, in_new, pod=new)
        assert parents(node) == {parent}, "a create repeats it"
