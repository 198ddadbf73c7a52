"""On each shape of a runtime hook servers get what the runtime can report, and a quiet one changes nothing.

Requests are compared byte for byte with what reached the runtime; the policy is Fail, so none may be refused.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes import hookanswers
from tests.system.cri_front import CRI_SHAPES
from tests.system.fronts import CONTAINER, PARENT, POD, Failed, Front
from tests.system.shaped import EVERY, ShapedNode

SLICE_PARENT = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poduid.slice"
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
    """Before and after a restart; the hook server echoes as koordlet."""
    async with ShapedNode(front, tmp_path, hookanswers.koordlet()) as node:

        async def passes(verb: str, request: bytes) -> None:
            assert (await node.passed(verb, request))[1] == request

        async def end(*containers: str, pod: str) -> None:
            for one in containers:
                await passes("update", node.caller.update_request(one, {"cpu_shares": 512}, {}))
                await passes("stop", node.caller.request("stop", one))
            await passes("stop_pod", node.caller.request("stop_pod", pod))

        pod = replace(POD, cgroup_parent=parent)
        used, new, empty = [await node.caller.run_pod(replace(pod, name=name)) for name in ("used", "new", "empty")]
        node.notified()
        in_used, in_new = [await node.created(pod_id) for pod_id in (used, new)]
        await passes("start", node.caller.request("start", in_used))
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
        created = await node.created(new)
        await node.caller.act("start", created)
        await end(created, in_new, pod=new)
        assert parents(node) == {parent}, "a create repeats it"


@EVERY
async def test_absent_subject_gets_the_runtimes_own_answer(front: Front, tmp_path: Path) -> None:
    """No hook server is called (relay-rules C4)."""
    async with ShapedNode(front, tmp_path) as node, node.new_caller(node.runtime.socket_path) as direct:
        for verb in ("start", "update", "stop", "remove", "stop_pod", "remove_pod"):
            answers: list[object] = []
            for caller in (node.caller, direct):
                try:
                    answers.append(await caller.send(verb, caller.request(verb, "f" * 64)))
                except Failed as failed:
                    answers.append((failed.status, failed.text))
            assert answers[0] == answers[1], verb
        assert node.hooks.calls == []
        total = node.inside.metrics.total
        assert (total("hook_failures"), total("calls_unreadable"), total("calls", outcome="refused")) == (0, 0, 0)
