"""On each shape of a runtime the kubelet's values hold, and hook servers get what the runtime can report.

Every request is compared byte for byte with what reached the runtime; the policy is Fail, so none may be refused. What
a shape cannot report or does not accept is in the tables. For what does not exist the runtime's own answer arrives, and
no hook server is asked (relay-rules C4).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.hookapi import api_pb2
from tests.fakes import cri_pb2, hookanswers
from tests.fakes.hookserver import HookServer
from tests.fakes.registration import ALL_POINTS
from tests.system.cri_front import CRI_SHAPES
from tests.system.docker_front import DOCKER_ENGINES
from tests.system.fronts import CONTAINER, PARENT, POD, UPDATE, Caller, Failed, Front
from tests.system.keeping import on_tmpfs
from tests.system.shaped import FRONTS, QUIET, SKIPPED, SLICE_PARENT, ShapedNode, limits, named

EVERY = pytest.mark.parametrize("front", FRONTS, ids=named)
ONE_OF_EACH = [FRONTS[0], *(pytest.param(each, marks=pytest.mark.slow) for each in FRONTS[1:-1]), FRONTS[-1]]
ONE_QUICKLY = pytest.mark.parametrize("front", ONE_OF_EACH, ids=named)
"""Without slow tests one CRI runtime and one dockerd are enough."""

# ---- what no hook server changes

PODS = {
    "plain": (POD, PARENT),
    "skipped": (SKIPPED, PARENT),
    "moved": (replace(POD, name="moved"), SLICE_PARENT),
    "skipped and moved": (SKIPPED, SLICE_PARENT),
}
"""The pod as it is run, and the cgroup parent that the kubelet asks for in its containers' creates."""
HOOKS = [(name, ALL_POINTS) for name in QUIET] + [("silent", ["PostStopContainer"]), ("silent", ["PreRunPodSandbox"])]
"""The hook servers' answers, and their points."""
QUIETLY = [
    pytest.param(
        *(front, hooks, points),
        id=f"{front.name}-{hooks} at {len(points)}",
        marks=() if front is FRONTS[0] or hooks == "koordlet" else pytest.mark.slow,
    )
    for front in FRONTS
    for hooks, points in HOOKS
]


async def passes(node: ShapedNode, verb: str, request: bytes) -> None:
    assert (await node.passed(verb, request))[1] == request


@pytest.mark.parametrize(("front", "hooks", "points"), QUIETLY)
async def test_quiet_hook_server_changes_nothing(
    front: Front, hooks: str, points: Sequence[str], tmp_path: Path
) -> None:
    """The kubelet's cgroup parent holds, also a new one that it asks for after a restart."""
    async with ShapedNode(front, tmp_path, QUIET[hooks], points=points) as node:
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
                    await passes(node, "start", node.caller.request("start", container_id))
                    await passes(node, "update", node.caller.update_request(container_id, {"cpu_shares": 5}, {}))
        for kind, pod_id in pods.items():
            await passes(node, "stop", node.caller.request("stop", before[kind]))
            await passes(node, "stop_pod", node.caller.request("stop_pod", pod_id))


# ---- what does not exist, and the runtime answers

VERBS = ("start", "update", "stop", "remove", "stop_pod", "remove_pod")


async def outcome(caller: Caller, verb: str, request: bytes) -> object:
    """Return a caller's result of a request: the error, or None."""
    try:
        await caller.send(verb, request)
    except Failed as failed:
        return failed.status, failed.text
    return None


@EVERY
async def test_runtimes_own_answer_arrives_of_what_is_not_there(front: Front, tmp_path: Path) -> None:
    async with ShapedNode(front, tmp_path) as node, node.new_caller(node.runtime.socket_path) as direct:
        requests = [(verb, node.caller.request(verb, "f" * 64)) for verb in VERBS]
        if front in CRI_SHAPES:  # dockerd creates a container without a sandbox
            requests.append(("create", node.caller.create_request("f" * 64)))
        for verb, request in requests:
            assert await outcome(node.caller, verb, request) == await outcome(direct, verb, request), verb
        assert node.hooks.calls == []
        total = node.inside.metrics.total
        assert (total("hook_failures"), total("calls_unreadable"), total("calls", outcome="refused")) == (0, 0, 0)


# ---- the content of hook calls

UNTOLD = {"cri cri-dockerd", "cri no verbose"}
"""They do not report a cgroup parent: it is unset until the kubelet gives it."""
OF_CONTAINERS = {"cri shim sandboxer", "cri shim gone"}
"""They report it of containers only."""
ENVS = {"A": "1", "B": "2"}
"""The variables of ``CONTAINER``."""
ENVS_AFTER = {"cri cri-o": ENVS | {"PATH": "/bin", "HOSTNAME": "fake"}, "cri cri-dockerd": {}, "cri no verbose": {}}
"""After a restart: CRI-O reports those of the image, too, others none."""


def parents(node: ShapedNode) -> set[str]:
    """Return the pod's cgroup parents in all hook calls."""
    calls = node.told()
    assert calls
    names = {"PostStopPodSandbox": "cgroup_parent"}
    return {getattr(message, names.get(point, "pod_cgroup_parent")) for point, message in calls}


async def life_goes_on(caller: Caller, container_id: str, pod_id: str) -> None:
    await caller.update(container_id)
    await caller.act("stop", container_id)
    await caller.act("stop_pod", pod_id)


@pytest.mark.parametrize("parent", [PARENT, SLICE_PARENT], ids=["cgroupfs", "systemd"])
@EVERY
async def test_cgroup_parent_is_sent_as_far_as_it_is_known(front: Front, parent: str, tmp_path: Path) -> None:
    async with ShapedNode(front, tmp_path) as node:
        caller, pod = node.caller, replace(POD, cgroup_parent=parent)
        used, new, empty = [await caller.run_pod(replace(pod, name=name)) for name in ("used", "new", "empty")]
        node.told()
        in_used, in_new = [await caller.create(pod_id) for pod_id in (used, new)]
        await caller.act("start", in_used)
        await life_goes_on(caller, in_used, used)
        assert parents(node) == {parent}

        await node.restart()
        await node.known()
        caller = node.caller
        await life_goes_on(caller, in_used, used)
        assert parents(node) == {"" if front.name in UNTOLD else parent}
        await caller.act("stop_pod", empty)
        assert parents(node) == {"" if front.name in UNTOLD | OF_CONTAINERS else parent}
        created = await caller.create(new)
        for one in (created, in_new):
            await caller.act("start", one)
            await caller.update(one)
            await caller.act("stop", one)
        await caller.act("stop_pod", new)
        assert parents(node) == {parent}, "a create repeats it"


@EVERY
async def test_container_is_sent_as_far_as_it_is_reported(front: Front, tmp_path: Path) -> None:
    """A swap limit that a runtime sets without being asked counts as none; Docker's shim asks for one."""
    async with ShapedNode(front, tmp_path) as node:
        container_id = await node.caller.create(await node.caller.run_pod())
        await node.restart()
        await node.known()
        node.told()
        await node.caller.act("start", container_id)
        ((_, start), _) = node.told()
        assert start.container_envs == ENVS_AFTER.get(front.name, ENVS)
        assert dict(start.container_annotations)["note"] == "kept"
        resources = {name: getattr(start.container_resources, name) for name in CONTAINER.resources}
        untold = front.name == "cri cri-dockerd"
        assert resources == (dict.fromkeys(resources, 0) if untold else CONTAINER.resources)
        swap = CONTAINER.resources["memory_limit_in_bytes"] if front.name.startswith("docker") else 0
        assert start.container_resources.memory_swap_limit_in_bytes == swap


LIMIT = int(CONTAINER.resources["memory_limit_in_bytes"])
TELLS_NO_SWAP = {"cri cri-o", "cri cri-dockerd", "cri no verbose"}
"""They do not report that one equal to the memory limit was asked for; the first two set one by themselves."""


@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "after a restart"])
@ONE_QUICKLY
async def test_swap_limit_that_equals_the_memory_limit_moves_with_it(
    front: Front, restarted: bool, tmp_path: Path
) -> None:
    """A hook server sets the memory limit, as koordlet's BatchResource does."""
    doubled = hookanswers.koordlet(memory_limit_in_bytes=2 * LIMIT)
    answers = dict.fromkeys(("PreCreateContainer", "PreUpdateContainerResources"), doubled)
    swap = {} if front in DOCKER_ENGINES else {"memory_swap_limit_in_bytes": LIMIT}  # dockershim sets it by itself
    container = replace(CONTAINER, resources={"memory_limit_in_bytes": LIMIT, **swap})
    async with ShapedNode(front, tmp_path, answers=answers) as node:
        pod_id = await node.caller.run_pod()
        if restarted:
            await node.restart()
        _, released = await node.passed("create", node.caller.create_request(pod_id, container))
        assert limits("create", released) == (2 * LIMIT, 2 * LIMIT)
        node.hooks.on("PreCreateContainer", hookanswers.empty())
        container_id = await node.caller.create(pod_id, container)
        if restarted:
            await node.restart()
            await node.known()
        _, released = await node.passed("update", node.caller.update_request(container_id, UPDATE, {}))
        known = not (restarted and front.name in TELLS_NO_SWAP)
        assert limits("update", released) == (2 * LIMIT, 2 * LIMIT if known else 0)


OF_KUBELET: dict[str, Any] = {
    "unified": {"memory.high": "max", "memory.min": "0"},
    "hugepage_limits": [cri_pb2.HugepageLimit(page_size="2MB", limit=0)],
}
OF_HOOK = api_pb2.LinuxContainerResources(
    unified={"memory.high": "1000000"}, hugepage_limits=[api_pb2.HugepageLimit(page_size="2MB", limit=1 << 21)]
)


@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "after a restart"])
@pytest.mark.parametrize("front", CRI_SHAPES, ids=named)
async def test_entry_of_a_map_stays_when_another_server_echoes(front: Front, restarted: bool, tmp_path: Path) -> None:
    """Docker's API has no such fields."""
    container = replace(CONTAINER, resources={**CONTAINER.resources, **OF_KUBELET})
    answer = api_pb2.ContainerResourceHookResponse(container_resources=OF_HOOK)
    answers = {"PreCreateContainer": hookanswers.reply(answer)}
    echo = HookServer(str(tmp_path / "echo.sock"), default=hookanswers.koordlet())
    with on_tmpfs() as memory:
        node = ShapedNode(front, tmp_path, answers=answers, points=list(answers), originals_dir=str(memory))
        node.proxy.register("echo.json", echo.socket_path, ["PreUpdateContainerResources"], policy="Fail")
        async with echo, node:
            container_id = await node.caller.create(await node.caller.run_pod(), container)
            if restarted:
                await node.restart()
                await node.known()
            await passes(node, "update", node.caller.update_request(container_id, {"cpuset_cpus": "0"}, {}))
        assert echo.calls_of("PreUpdateContainerResources")


# ---- whatever a status says or leaves out
