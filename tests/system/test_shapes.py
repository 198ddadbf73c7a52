"""For each shape of a runtime: koordlet's answers with the resulting requests, and the values that the runtime reports.
Requests are compared byte for byte with those at the runtime; the policy is Fail, so none may be refused.
docs/koordlet.rst has the same rows.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.docker.messages import RESOURCE_TABLE
from tests.docs import KOORDLET, table
from tests.fakes import cri_pb2, hookanswers, registration
from tests.fakes.dockershim_bodies import Values
from tests.fakes.shapes import CONTAINERD, SHAPES
from tests.system.fronts import CONTAINER, CRI, CRI_SHAPES, DOCKER_ENGINES, PARENT, POD, Front
from tests.system.nodes import ShapedNode

FRONTS = (*CRI_SHAPES, *DOCKER_ENGINES)
EVERY = pytest.mark.parametrize(
    "front",
    [FRONTS[0], *(pytest.param(each, marks=pytest.mark.slow) for each in FRONTS[1:-1]), FRONTS[-1]],
    ids=[front.name for front in FRONTS],
)
"""Every shape; without slow tests only one CRI runtime and one dockerd."""
SLICE_PARENT = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poduid.slice"
REPORT_NO_PARENT = {"cri cri-dockerd", "cri no verbose"}
"""Shapes whose cgroup parent is unset until the kubelet sends it."""
REPORT_CONTAINERS_PARENT = {"cri shim sandboxer", "cri shim gone"}
"""Shapes that report it only for containers."""
ENVS_AFTER = {
    "cri cri-o": dict(CONTAINER.envs) | {"PATH": "/bin", "HOSTNAME": "fake"},
    "cri cri-dockerd": {},
    "cri no verbose": {},
}
"""After a restart: CRI-O also reports those of the image, others report none."""
SWAP = "memory_swap_limit_in_bytes"
PARENT_FIELDS = {"PostStopPodSandbox": "cgroup_parent"}
RESOURCES = {**CONTAINER.resources, SWAP: 0}
"""A swap limit set by the runtime counts as none; Docker's shim requests one."""


@EVERY
@pytest.mark.slow  # a second
@pytest.mark.parametrize("parent", [PARENT, SLICE_PARENT], ids=["cgroupfs", "systemd"])
async def test_hook_calls_have_values_that_runtime_reports(front: Front, parent: str, tmp_path: Path) -> None:
    async with ShapedNode(front, tmp_path, hookanswers.koordlet()) as node:

        async def passes(verb: str, request: bytes) -> None:
            assert (await node.passed(verb, request))[1] == request

        async def end(*containers: str, pod: str) -> set[str]:
            """End a pod; return its cgroup parents in all hook calls since the last end."""
            for one in containers:
                await passes("update", node.caller.update_request(one, {"cpu_shares": 512}, {}))
                await passes("stop", node.caller.request("stop", one))
            await passes("stop_pod", node.caller.request("stop_pod", pod))
            return {getattr(sent, PARENT_FIELDS.get(point, "pod_cgroup_parent")) for point, sent in node.notified()}

        pod = replace(POD, cgroup_parent=parent)
        used, new, empty = [await node.caller.run_pod(replace(pod, name=name)) for name in ("used", "new", "empty")]
        node.notified()
        in_used, in_new = [await node.created(pod_id) for pod_id in (used, new)]
        await passes("start", node.caller.request("start", in_used))
        assert await end(in_used, pod=used) == {parent}

        await node.restart()
        await node.wait_until_loaded()
        assert await end(in_used, pod=used) == {"" if front.name in REPORT_NO_PARENT else parent}
        reports_none = front.name in REPORT_NO_PARENT | REPORT_CONTAINERS_PARENT
        assert await end(pod=empty) == {"" if reports_none else parent}
        await node.caller.act("start", in_new)
        ((_, start), _) = node.notified()
        assert start.container_envs == ENVS_AFTER.get(front.name, dict(CONTAINER.envs))
        assert dict(start.container_annotations)["note"] == "kept"
        found = {name: getattr(start.container_resources, name) for name in RESOURCES}
        expected = RESOURCES if front in CRI_SHAPES else {**RESOURCES, SWAP: RESOURCES["memory_limit_in_bytes"]}
        assert found == (dict.fromkeys(RESOURCES, 0) if front.name == "cri cri-dockerd" else expected)
        created = await node.created(new)
        await node.caller.act("start", created)
        assert await end(created, in_new, pod=new) == {parent}, "a create repeats it"


@EVERY
async def test_absent_subject_gets_answer_of_runtime(front: Front, tmp_path: Path) -> None:
    """No hook server is called (relay-rules C4)."""
    async with ShapedNode(front, tmp_path) as node, node.new_caller(node.runtime.socket_path) as direct:
        for verb in ("start", "update", "stop", "remove", "stop_pod", "remove_pod"):
            calls = [caller.act(verb, "f" * 64) for caller in (node.caller, direct)]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert str(answers[0]) == str(answers[1]), verb
        assert node.hooks.calls == []
        total = node.inside.metrics.total
        assert (total("hook_failures"), total("calls_unreadable"), total("calls", outcome="refused")) == (0, 0, 0)


RUN_POD, CREATE, UPDATE = "PreRunPodSandbox", "PreCreateContainer", "PreUpdateContainerResources"
MIB = 1 << 20
LS: Values = {"cpu_period": 100_000, "cpu_quota": 150_000, "cpu_shares": 1536, "memory_limit_in_bytes": 64 * MIB}
SMALL: Values = {"cpu_period": 100_000, "cpu_quota": 1000, "cpu_shares": 10}
"""A limit of 10m, which the kubelet raises to the kernel's least quota."""
BE: Values = {"cpu_period": 100_000, "cpu_shares": 2, "oom_score_adj": 1000}
GPU = {"NVIDIA_VISIBLE_DEVICES": "0"}
HAMI = {**GPU, "CUDA_DEVICE_MEMORY_LIMIT": "17179869184", "CUDA_DEVICE_SM_LIMIT": "50"}
HAMI["LD_PRELOAD"] = "/usr/local/vgpu/libvgpu.so"
MONITORED = {**HAMI, "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/pod-uid_main.cache"}


@dataclass(frozen=True, slots=True)
class Case:
    """A row: the kubelet's request, koordlet's answer, and the request to the runtime.

    The answer is koordlet's echo of the request with ``sets`` and ``envs`` set in it, also with "". ``changes`` are the
    resources that differ from the kubelet's, 0 and "" for a removed field. ``held`` are the container's resources at
    its create, before an update. ``lifted`` replaces ``changes`` for runtimes that accept -1 in an update.
    """

    name: str
    hook_point: str
    queried: Values
    sets: Values
    changes: Values
    envs: Mapping[str, str] = field(default_factory=dict)
    held: Values = field(default_factory=dict)
    lifted: Values | None = None

    def answer(self, response: Any) -> None:
        target = response.resources if self.hook_point == RUN_POD else response.container_resources
        for name, value in self.sets.items():
            setattr(target, name, value)
        if self.envs:
            response.container_envs.update(self.envs)


BATCH: Values = {"cpu_shares": 512, "cpu_quota": 50_000, "memory_limit_in_bytes": 64 * MIB}
LARGER: Values = {**BATCH, "memory_limit_in_bytes": 96 * MIB}
NO_LIMITS: Values = {"cpu_quota": -1, "memory_limit_in_bytes": -1}
NO_QUOTA: Values = {"cpu_quota": -1}
OWN_CPUS: Values = {"cpuset_cpus": "0-1", "cpu_quota": -1}
ONE_CPU: Values = {"cpuset_cpus": "1"}
NO_CPUSET: Values = {"cpuset_cpus": ""}
LEAST: Values = {"cpu_quota": 1000}


def cpus(text: str) -> Values:
    return {"cpuset_cpus": text}


def update(name: str, queried: Values, sets: Values, changes: Values, held: Values, **more: Values) -> Case:
    return Case(f"update: {name}", UPDATE, queried, sets, changes, held=held, lifted=more.get("lifted"))


CASES = (
    # PreRunPodSandbox
    Case("pod: nothing", RUN_POD, {}, {}, {}),
    Case("pod: own CPUs", RUN_POD, {}, NO_QUOTA, NO_QUOTA),
    Case("pod: batch limits", RUN_POD, {}, BATCH, BATCH),
    Case("pod: batch without limits", RUN_POD, {}, {"cpu_shares": 512, **NO_LIMITS}, {"cpu_shares": 512, **NO_QUOTA}),
    Case("pod: batch limit, scaled", RUN_POD, {}, {"cpu_quota": 834}, LEAST),
    # PreCreateContainer
    Case("nothing", CREATE, LS, {}, {}),
    Case("own CPUs", CREATE, LS, OWN_CPUS, OWN_CPUS),
    Case("own CPUs, quota kept", CREATE, LS, ONE_CPU, ONE_CPU),
    Case("own CPUs, odd text", CREATE, LS, cpus(" 0 ,, 1,"), cpus("0,1")),
    Case("shared pools", CREATE, LS, cpus("0,1"), cpus("0,1")),
    Case("shared pools, the last empty", CREATE, LS, cpus("0-1,"), cpus("0-1")),
    Case("shared pools, the first empty", CREATE, LS, cpus(",0-1"), cpus("0-1")),
    Case("shared pools, all empty", CREATE, {**LS, **ONE_CPU}, cpus(","), {}),
    Case("no pool", CREATE, {**LS, **ONE_CPU}, NO_CPUSET, NO_CPUSET),
    Case("no class", CREATE, LS, cpus("0-1"), cpus("0-1")),
    Case("no class, static CPU manager", CREATE, {**LS, **ONE_CPU}, {}, {}),
    Case("best effort", CREATE, {**BE, **ONE_CPU}, NO_CPUSET, NO_CPUSET),
    Case("best effort, pools of its NUMA nodes", CREATE, {**BE, **ONE_CPU}, cpus("0,1"), cpus("0,1")),
    Case("system pod", CREATE, BE, cpus("0"), cpus("0")),
    Case("batch limits", CREATE, BE, BATCH, BATCH),
    Case("batch without limits", CREATE, BE, {"cpu_shares": 512, **NO_LIMITS}, {"cpu_shares": 512, **NO_QUOTA}),
    Case("batch without limits, the kubelet's go", CREATE, LS, NO_LIMITS, {**NO_QUOTA, "memory_limit_in_bytes": 0}),
    Case("batch, CPU suppressed by quota", CREATE, LS, NO_QUOTA, NO_QUOTA),
    Case("normalized", CREATE, LS, {"cpu_quota": 125_000}, {"cpu_quota": 125_000}),
    Case("normalized, below the kernel's least", CREATE, SMALL, {"cpu_quota": 834}, {}),
    Case("normalized to a small one", CREATE, {**SMALL, "cpu_quota": 1100}, {"cpu_quota": 917}, LEAST),
    Case("GPU", CREATE, LS, {}, {}, {"NVIDIA_VISIBLE_DEVICES": "0,1"}),
    Case("GPU share by HAMi-core", CREATE, LS, {}, {}, HAMI),
    Case("GPU share by HAMi-core, monitored", CREATE, LS, {}, {}, MONITORED),
    Case("GPU, shared pools and a small quota", CREATE, SMALL, {"cpu_quota": 834, **cpus("0-1,")}, cpus("0-1"), GPU),
    Case("RDMA", CREATE, LS, {}, {}),
    Case("RDT", CREATE, LS, {}, {}),
    # PreUpdateContainerResources
    update("nothing", {"cpu_shares": 512}, {}, {}, LS),
    update("own CPUs", cpus("0"), OWN_CPUS, OWN_CPUS, LS),
    update("shared pools, the last empty", cpus("0"), cpus("0-1,"), cpus("0-1"), LS),
    update("best effort", cpus("0"), NO_CPUSET, NO_CPUSET, BE),
    update("batch without limits, none held", {"cpu_shares": 2}, NO_LIMITS, NO_QUOTA, BE),
    update("batch without limits, one held", {"cpu_shares": 512}, NO_LIMITS, NO_QUOTA, LS, lifted=NO_LIMITS),
    update("batch limits", {"cpu_shares": 2}, LARGER, LARGER, LS),
    update("normalized, below the kernel's least", LEAST, {"cpu_quota": 834}, {}, SMALL),
)


PAUSE = {"cpu_shares": 2, "oom_score_adj": -998}
"""dockershim's request for each pod sandbox."""
LIFTING = {f"cri {shape.name}" for shape in SHAPES if shape.runtime_name == CONTAINERD.runtime_name}
"""The fronts with runtimes that accept -1 in an update."""
POINTS = (RUN_POD, CREATE, UPDATE, registration.KOORDLET_EXTRA_HOOK_POINT)
VERBS = {RUN_POD: "run_pod", CREATE: "create", UPDATE: "update"}
KINDS: Mapping[str, Any] = {
    RUN_POD: cri_pb2.RunPodSandboxRequest,
    CREATE: cri_pb2.CreateContainerRequest,
    UPDATE: cri_pb2.UpdateContainerResourcesRequest,
}
WHAT_IS_SENT = "What is sent to the runtime"


async def released(node: ShapedNode, case: Case) -> bytes:
    node.hooks.answers.clear()
    if case.hook_point != UPDATE:
        node.hooks.on(case.hook_point, hookanswers.echo(case.answer))
    pod_id = await node.caller.run_pod()
    if case.hook_point != RUN_POD:
        resources = case.held if case.hook_point == UPDATE else case.queried
        container_id = await node.caller.create(pod_id, replace(CONTAINER, envs=(("A", "1"),), resources=resources))
        await node.caller.act("start", container_id)
        if case.hook_point == UPDATE:
            node.hooks.on(case.hook_point, hookanswers.echo(case.answer))
            await node.caller.update(container_id, case.queried)
    return node.runtime.arrived(VERBS[case.hook_point])[-1]


Sent = tuple[dict[str, Any], dict[str, str]]
"""The resources and the environment that a request sets."""


def in_cri(case: Case, message: bytes) -> Sent:
    request: Any = KINDS[case.hook_point].FromString(message)
    resources = request.linux if case.hook_point == UPDATE else request.config.linux.resources
    envs = {entry.key: entry.value.decode() for entry in request.config.envs} if case.hook_point == CREATE else {}
    return {field.name: value for field, value in resources.ListFields()}, envs


def in_docker(case: Case, message: bytes) -> Sent:
    """Omit the swap limit, which equals the memory limit."""
    body = json.loads(message.partition(b"\r\n\r\n")[2])
    host = body if case.hook_point == UPDATE else body["HostConfig"]
    assert host["MemorySwap"] == host["Memory"], case.name
    found = {name: host[key] for name, key in RESOURCE_TABLE.items() if host.get(key) and key != "MemorySwap"}
    usual = PAUSE if case.hook_point == RUN_POD else {}
    envs = dict(entry.split("=", 1) for entry in body["Env"]) if case.hook_point == CREATE else {}
    return {name: value for name, value in found.items() if usual.get(name) != value}, envs


@EVERY
@pytest.mark.slow  # a second
async def test_released_resources_match_each_answer(front: Front, tmp_path: Path) -> None:
    async with ShapedNode(front, tmp_path, hookanswers.echo(), points=POINTS) as node:
        await node.wait_until_loaded()
        for case in CASES:
            message = await released(node, case)
            sent, envs = in_cri(case, message) if front.caller is CRI.caller else in_docker(case, message)
            changes = case.lifted if front.name in LIFTING and case.lifted is not None else case.changes
            assert sent == {name: value for name, value in {**case.queried, **changes}.items() if value}, case.name
            assert envs == ({"A": "1", **case.envs} if case.hook_point == CREATE else {}), case.name
        assert not node.inside.metrics.total("hook_failures")
        assert not node.inside.metrics.total("calls", outcome="refused")


def test_document_has_same_rows_and_variables() -> None:
    found = [(name, *re.findall(r"``([A-Z][A-Z_]+)``", sent)) for name, _, sent, *_ in table(KOORDLET, WHAT_IS_SENT)]
    assert [(name, {*envs}) for name, *envs in found] == [(case.name, {*case.envs}) for case in CASES]
