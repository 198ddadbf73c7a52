"""Fields that a runtime ignores, on each shape: they are sent, they are no part of the record, and an event names them.

What a container has is compared with what the fake runtime did with the requests. The pod's cgroup is not part of the
fake: only a runtime that is unknown counts as one that uses the resources of a pod.
"""

from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.hookapi import api_pb2
from tests.fakes import cri_pb2, hookanswers
from tests.fakes.dockershim_bodies import Values
from tests.observe.events import shown_of
from tests.system.cri_front import CRI_SHAPES, CriRuntime
from tests.system.fronts import CONTAINER, PARENT, Front
from tests.system.keeping import on_tmpfs
from tests.system.shaped import ShapedNode, named

SHARES, SWAP, PARENT_OF_HOOK = 300, 1 << 30, "/kubepods/of-hook"
CREATED, UPDATED = (
    api_pb2.LinuxContainerResources(
        unified={file: "7"},
        hugepage_limits=[api_pb2.HugepageLimit(page_size=size, limit=1 << 30)],
        memory_swap_limit_in_bytes=swap,
    )
    for file, size, swap in (("memory.low", "2MB", SWAP), ("memory.high", "1GB", 2 * SWAP))
)
ANSWERS = {
    "PreRunPodSandbox": hookanswers.reply(
        api_pb2.PodSandboxHookResponse(resources=api_pb2.LinuxContainerResources(cpu_shares=SHARES))
    ),
    "PreCreateContainer": hookanswers.reply(
        api_pb2.ContainerResourceHookResponse(container_resources=CREATED, pod_cgroup_parent=PARENT_OF_HOOK)
    ),
    "PreStartContainer": hookanswers.reply(
        api_pb2.ContainerResourceHookResponse(
            container_resources=api_pb2.LinuxContainerResources(unified={"memory.min": "7"})
        )
    ),
    "PreUpdateContainerResources": hookanswers.reply(
        api_pb2.ContainerResourceHookResponse(container_resources=UPDATED, container_annotations={"of": "update"})
    ),
}
POD_FIELDS = {"resources.cpu_shares"}
CREATE_FIELDS = {
    "resources.memory_swap_limit_in_bytes",
    "resources.unified.memory.low",
    "resources.hugepage_limits.2MB",
}
START_FIELDS = {"resources.unified.memory.min"}
UPDATE_FIELDS = {
    "resources.memory_swap_limit_in_bytes",
    "resources.unified.memory.high",
    "resources.hugepage_limits.1GB",
    "annotations.of",
}
IGNORED: dict[str, list[set[str]]] = {
    "containerd": [POD_FIELDS, set(), set(), {"annotations.of"}],
    "cri-o": [POD_FIELDS, {"cgroup_parent"}, START_FIELDS, UPDATE_FIELDS],
    "docker": [POD_FIELDS, CREATE_FIELDS, START_FIELDS, UPDATE_FIELDS],
    "fake": [set(), set(), set(), set()],
}
"""The fields without effect in each of CALLS, by the runtime's name; a fake CRI-O is older than 1.36."""
CALLS = ("RunPodSandbox", "CreateContainer", "StartContainer", "UpdateContainerResources")
KUBELETS: Values = {"cpu_shares": 512, "unified": {"memory.max": "8"}}


def events_of(node: ShapedNode, kind: str) -> list[tuple[str, set[str], str]]:
    """Return operation, fields and text of each event of a kind."""
    found = [event for event in shown_of(node.inside.metrics.events) if event["kind"] == kind]
    return [
        (event["operation"], {field["field"] for field in event["fields"]}, event.get("text", "")) for event in found
    ]


@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "after a restart"])
@pytest.mark.parametrize("front", CRI_SHAPES, ids=named)
async def test_field_without_effect_is_sent_and_not_recorded(front: Front, restarted: bool, tmp_path: Path) -> None:
    with on_tmpfs() as memory:
        async with ShapedNode(front, tmp_path, answers=ANSWERS, originals_dir=str(memory)) as node:
            assert isinstance(node.runtime, CriRuntime)
            await node.known()
            pod_id = await node.caller.run_pod()
            container_id = await node.caller.create(pod_id)
            await node.caller.act("start", container_id)
            await node.caller.update(container_id, KUBELETS)
            sent = sent_resources(node)
            ignored = IGNORED[node.runtime.state.shape.runtime_name]
            text = f"sent, no effect in {node.runtime.state.shape.runtime_name}"
            expected = [(call, fields, text) for call, fields in zip(CALLS, ignored, strict=True) if fields]
            assert events_of(node, "no_effect") == expected
            edited = {call: fields for call, fields, _ in events_of(node, "edited")}
            everything = (POD_FIELDS, CREATE_FIELDS | {"cgroup_parent"}, START_FIELDS, UPDATE_FIELDS)
            assert [edited.get(call, set()) for call in CALLS] == [
                a - b for a, b in zip(everything, ignored, strict=True)
            ]
            if restarted:
                await node.restart()
                await node.known()
            node.told()
            await node.caller.act("stop", container_id)
            ((_, stop),) = node.told()
            has = node.runtime.state.containers[container_id].resources
    assert sent == [SHARES, SWAP, 2 * SWAP]
    assert stop.pod_resources.cpu_shares == (0 if ignored[0] else SHARES)
    assert stop.container_annotations == {"note": "kept"} | ({} if ignored[3] else {"of": "update"})
    assert stop.pod_cgroup_parent == (PARENT if "cgroup_parent" in ignored[1] else PARENT_OF_HOOK)
    assert stop.container_resources.unified == has.unified
    assert limits_of(stop.container_resources) == limits_of(has)
    set_by_itself = has.memory_swap_limit_in_bytes == CONTAINER.resources["memory_limit_in_bytes"]
    swap = stop.container_resources.memory_swap_limit_in_bytes
    assert swap == (0 if set_by_itself else has.memory_swap_limit_in_bytes)


def sent_resources(node: ShapedNode) -> list[int]:
    """Return of each call one value of the hook server's as it reached the runtime."""
    run, create, update = (node.runtime.asked(verb)[-1] for verb in ("run_pod", "create", "update"))
    pod = cri_pb2.RunPodSandboxRequest.FromString(run).config.linux.resources
    container = cri_pb2.CreateContainerRequest.FromString(create).config.linux.resources
    updated = cri_pb2.UpdateContainerResourcesRequest.FromString(update)
    assert updated.annotations == {"of": "update"}
    return [pod.cpu_shares, container.memory_swap_limit_in_bytes, updated.linux.memory_swap_limit_in_bytes]


def limits_of(resources: Any) -> dict[str, int]:
    return {limit.page_size: limit.limit for limit in resources.hugepage_limits}
