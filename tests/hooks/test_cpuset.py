"""cpuset: every case of the resource-status annotation and of the node's pools, the clear case, the pod's cgroup."""

import argparse
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.hookpoints import BY_NAME
from runtimeproxy.model import ContainerInfo, HookRequest, PodInfo, Resources
from runtimeproxy_hooks.cgroups import Cgroups
from runtimeproxy_hooks.cpuset import Cpuset
from runtimeproxy_hooks.koordinator import QOS_CLASS, RESOURCE_STATUS
from runtimeproxy_hooks.node import Node
from runtimeproxy_hooks.sdk import ContainerContext, Malformed
from runtimeproxy_hooks.sdk.testing import Difference, HookTester

POOLS = """
shared-pools: [{socket: 0, node: 0, cpuset: 0-3}, {socket: 0, node: 1, cpuset: "8-11,15"}]
be-shared-pools: [{socket: 0, node: 0, cpuset: 4-5}, {socket: 0, node: 1, cpuset: 12-13}]
"""
STATIC, GATE, SYSTEM = "kubelet-cpu-manager-policy: static\n", "be-cpu-manager: true\n", "system-cpuset: 0-1\n"
KEEP_QUOTA = "unset-cpu-quota: false\n"
GUARANTEED, BURSTABLE, BEST_EFFORT = "/kubepods/podu", "/kubepods/burstable/podu", "/kubepods/besteffort/podu"
ALL, NOTHING, CLEARED = {"cpuset_cpus": "0-3,8-11,15"}, {}, {"cpuset_cpus": ""}
EXCLUSIVE = {"cpuset_cpus": "4-7,9", "cpu_quota": -1}
SENT = {"cpu_shares": 1024, "cpu_quota": 200000, "cpuset_cpus": "0-15"}
"""A container as the kubelet's static policy asks for it."""

Make = Callable[[str], Cpuset]


def status(value: Any) -> dict[str, str]:
    return {RESOURCE_STATUS: value if isinstance(value, str) else json.dumps(value)}


def numa(*nodes: int, **resources: Any) -> dict[str, str]:
    return status({"numaNodeResources": [{"node": node, "resources": resources} for node in nodes]})


def label(qos: str) -> dict[str, str]:
    return {QOS_CLASS: qos}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return what makes a hook with a text of settings, and cgroups that are a directory tree of version 1."""

    def with_settings(text: str) -> Cpuset:
        file = tmp_path / "node.yaml"
        file.write_text(text)
        return Cpuset(Node(file), Cgroups(tmp_path))

    return with_settings


def changed(hook: Cpuset, **call: Any) -> dict[str, Any]:
    """Return the changed resources, the same at both hook points of containers; nothing else changes."""
    tester = HookTester(hook)
    created, updated = tester.pre_create_container(**call), tester.pre_update_container_resources(**call)
    assert created == updated == Difference(resources=created.resources)
    return created.resources


# -- CPUs of the pod's own -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [None, {}, SENT])
@pytest.mark.parametrize(
    ("value", "settings", "resources"),
    [
        pytest.param({"cpuset": "4-7,9"}, "", EXCLUSIVE, id="no settings"),
        pytest.param({"cpuset": "4-7,9"}, POOLS + STATIC, EXCLUSIVE, id="it wins over pools"),
        pytest.param({"cpuset": "4-7,9"}, KEEP_QUOTA, {"cpuset_cpus": "4-7,9"}, id="the quota stays"),
        pytest.param({"CPUSet": "4-7,9"}, "", EXCLUSIVE, id="key case"),
        pytest.param({"cpuset": "1,1,0-0"}, "", {"cpuset_cpus": "1,1,0-0", "cpu_quota": -1}, id="verbatim"),
        pytest.param(
            {"cpuset": "4-7,9", "numaNodeResources": [{"node": 0, "resources": {"cpu": "4"}}]},
            POOLS,
            EXCLUSIVE,
            id="it wins over NUMA nodes",
        ),
    ],
)
def test_a_cpuset_of_the_annotation_is_given(
    make: Make, value: Any, settings: str, resources: dict[str, Any], sent: dict[str, Any] | None
) -> None:
    assert changed(make(settings), annotations=status(value), resources=sent) == resources


@pytest.mark.parametrize("qos", ["LSE", "LSR", "LS", "BE", "SYSTEM", "", "other"])
def test_the_annotation_holds_for_every_class(make: Make, qos: str) -> None:
    hook = make(POOLS + SYSTEM)
    for parent in (GUARANTEED, BEST_EFFORT):
        call = {"annotations": status({"cpuset": "4-7,9"}), "labels": label(qos), "cgroup_parent": parent}
        assert changed(hook, **call) == EXCLUSIVE


def test_what_is_there_already_is_no_change(make: Make) -> None:
    assert changed(make(""), annotations=status({"cpuset": "4-7,9"}), resources=EXCLUSIVE) == NOTHING


# -- pools -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "qos", "parent", "annotations", "resources"),
    [
        # Nothing is known: nothing is set.
        pytest.param("", "LS", BURSTABLE, {}, NOTHING, id="no rule, LS"),
        pytest.param("", "BE", BEST_EFFORT, {}, NOTHING, id="no rule, BE: not even cleared"),
        pytest.param(GATE + KEEP_QUOTA, "BE", BEST_EFFORT, numa(0, cpu=1), NOTHING, id="settings of other things"),
        pytest.param("", "", GUARANTEED, numa(0, cpu=1), NOTHING, id="no rule, NUMA"),
        # 1. NUMA nodes with CPUs.
        pytest.param(POOLS, "LS", BURSTABLE, numa(0, cpu="4"), {"cpuset_cpus": "0-3"}, id="cpu as text"),
        pytest.param(POOLS, "LS", BURSTABLE, numa(0, cpu=4), {"cpuset_cpus": "0-3"}, id="cpu as number"),
        pytest.param(POOLS, "LS", BURSTABLE, numa(0, cpu="500m"), {"cpuset_cpus": "0-3"}, id="cpu in milli"),
        pytest.param(POOLS, "LS", BURSTABLE, numa(0, cpu="1n"), {"cpuset_cpus": "0-3"}, id="hardly any cpu"),
        pytest.param(POOLS, "LS", BURSTABLE, numa(0, cpu=-1), {"cpuset_cpus": "0-3"}, id="cpu other than 0"),
        pytest.param(POOLS, "LS", BURSTABLE, numa(0, cpu="0"), ALL, id="cpu 0"),
        pytest.param(POOLS, "LS", BURSTABLE, numa(0, memory="1Gi"), ALL, id="memory alone"),
        pytest.param(POOLS, "LS", BURSTABLE, numa(0, CPU=4), ALL, id="resources are keys of a map: exact"),
        pytest.param(
            POOLS,
            "LS",
            BURSTABLE,
            numa(1, **{"kubernetes.io/batch-cpu": "500"}),
            {"cpuset_cpus": "8-11,15"},
            id="batch-cpu",
        ),
        pytest.param(
            POOLS, "LS", BURSTABLE, numa(1, **{"kubernetes.io/batch-cpu": -1}), ALL, id="batch-cpu not above 0"
        ),
        pytest.param(POOLS, "LS", BURSTABLE, numa(1, 0, cpu=4), ALL, id="order of the pools"),
        pytest.param(POOLS, "LS", BURSTABLE, numa(0, 0, cpu=4), {"cpuset_cpus": "0-3"}, id="a node said twice"),
        pytest.param(
            POOLS,
            "LS",
            BURSTABLE,
            status({"numaNodeResources": [{"node": 1}, {"node": 0, "resources": {"cpu": 4}}]}),
            ALL,
            id="one entry with cpu counts all nodes",
        ),
        pytest.param(
            POOLS,
            "LS",
            BURSTABLE,
            status({"NUMANodeResources": [{"Node": 1, "RESOURCES": {"cpu": 4}}]}),
            {"cpuset_cpus": "8-11,15"},
            id="key case",
        ),
        pytest.param(
            POOLS,
            "LS",
            BURSTABLE,
            status({"cpuset": "", "numaNodeResources": [{"resources": {"cpu": 4}}]}),
            {"cpuset_cpus": "0-3"},
            id="no node is node 0, as in Go",
        ),
        pytest.param(POOLS, "", GUARANTEED, numa(1, cpu=4), {"cpuset_cpus": "8-11,15"}, id="no label"),
        pytest.param(POOLS + STATIC, "", GUARANTEED, numa(1, cpu=4), {"cpuset_cpus": "8-11,15"}, id="before static"),
        pytest.param(POOLS, "", BEST_EFFORT, numa(1, cpu=4), {"cpuset_cpus": "8-11,15"}, id="before best effort"),
        pytest.param(POOLS + SYSTEM, "SYSTEM", GUARANTEED, numa(0, cpu=4), {"cpuset_cpus": "0-3"}, id="before SYSTEM"),
        pytest.param(POOLS, "LSR", GUARANTEED, numa(0, cpu=4), {"cpuset_cpus": "0-3"}, id="LSR"),
        pytest.param(POOLS, "LS", BURSTABLE, numa(7, cpu=4), CLEARED, id="a node without a pool"),
        pytest.param(
            'shared-pools: [{node: 0, cpuset: ""}, {node: 1, cpuset: 8-11}]',
            "LS",
            BURSTABLE,
            numa(0, 1, cpu=4),
            {"cpuset_cpus": "8-11"},
            id="a pool without CPUs",
        ),
        pytest.param('shared-pools: [{node: 0, cpuset: ""}]', "LS", BURSTABLE, numa(0, cpu=4), CLEARED, id="all taken"),
        pytest.param(STATIC, "LS", BURSTABLE, numa(0, cpu=4), NOTHING, id="pools not known"),
        pytest.param(POOLS + GATE, "BE", BEST_EFFORT, numa(1, cpu=4), {"cpuset_cpus": "12-13"}, id="BE with the gate"),
        pytest.param(
            POOLS + GATE, "BE", BURSTABLE, numa(0, 1, cpu=4), {"cpuset_cpus": "4-5,12-13"}, id="BE, two nodes"
        ),
        pytest.param(POOLS + GATE, "BE", BEST_EFFORT, numa(7, cpu=4), CLEARED, id="BE, a node without a pool"),
        pytest.param(STATIC + GATE, "BE", BURSTABLE, numa(0, cpu=4), CLEARED, id="BE, pools not known"),
        pytest.param(POOLS + GATE, "BE", BEST_EFFORT, {}, CLEARED, id="BE with the gate, no NUMA nodes"),
        pytest.param(
            "be-shared-pools: [{node: 0, cpuset: 4-5}]", "BE", BEST_EFFORT, {}, CLEARED, id="BE pools alone are a rule"
        ),
        pytest.param(POOLS, "BE", BEST_EFFORT, numa(1, cpu=4), CLEARED, id="BE without the gate falls on"),
        pytest.param(POOLS, "BE", BURSTABLE, numa(1, cpu=4), ALL, id="BE without the gate falls on to the end"),
        # 2. SYSTEM.
        pytest.param(SYSTEM, "SYSTEM", GUARANTEED, {}, {"cpuset_cpus": "0-1"}, id="SYSTEM"),
        pytest.param(SYSTEM, "SYSTEM", BEST_EFFORT, {}, {"cpuset_cpus": "0-1"}, id="SYSTEM before best effort"),
        pytest.param(POOLS, "SYSTEM", GUARANTEED, {}, ALL, id="SYSTEM without a system cpuset"),
        pytest.param(SYSTEM, "LSR", GUARANTEED, {}, NOTHING, id="a system cpuset is for SYSTEM"),
        # 3. LS.
        pytest.param(POOLS, "LS", GUARANTEED, {}, ALL, id="LS"),
        pytest.param(POOLS + STATIC, "LS", BURSTABLE, {}, ALL, id="LS before static"),
        pytest.param(POOLS, "LS", BEST_EFFORT, status({"cpuset": ""}), ALL, id="LS before best effort"),
        pytest.param(STATIC, "LS", GUARANTEED, {}, NOTHING, id="LS, pools not known"),
        # 4. BestEffort.
        pytest.param(POOLS, "BE", BEST_EFFORT, {}, CLEARED, id="BE"),
        pytest.param(STATIC, "", BEST_EFFORT, {}, CLEARED, id="best effort without a label"),
        pytest.param(STATIC, "", "/kubepods.slice/kubepods-besteffort.slice/x.slice", {}, CLEARED, id="systemd's path"),
        # 5. The rest.
        pytest.param(POOLS + STATIC, "", GUARANTEED, {}, NOTHING, id="static"),
        pytest.param(POOLS + STATIC, "LSR", GUARANTEED, {}, NOTHING, id="static, LSR without CPUs of its own"),
        pytest.param(POOLS + STATIC, "BE", BURSTABLE, {}, NOTHING, id="static, BE"),
        pytest.param(POOLS, "", GUARANTEED, {}, ALL, id="not static"),
        pytest.param(POOLS, "other", BURSTABLE, {}, ALL, id="an unknown class"),
        pytest.param(POOLS, "LSE", "", {}, ALL, id="no cgroup parent"),
        pytest.param(POOLS, "", GUARANTEED, status("null"), ALL, id="the annotation is null"),
        pytest.param(POOLS, "", GUARANTEED, status({"numaNodeResources": [None]}), ALL, id="an entry is null"),
    ],
)
def test_the_first_rule_that_holds_decides(
    make: Make, settings: str, qos: str, parent: str, annotations: dict[str, str], resources: dict[str, Any]
) -> None:
    call = {"labels": label(qos), "cgroup_parent": parent, "annotations": annotations}
    assert changed(make(settings), resources=SENT, **call) == resources


def test_labels_may_be_missing(make: Make) -> None:
    assert changed(make(POOLS)) == ALL


def test_settings_are_read_again(make: Make) -> None:
    hook = make(POOLS)
    assert changed(hook, labels=label("LS")) == ALL
    make("shared-pools: [{node: 0, cpuset: 0-1}]")
    assert changed(hook, labels=label("LS")) == {"cpuset_cpus": "0-1"}


# -- the clear case --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [None, {}, {"cpu_shares": 2}, {"cpu_shares": 2, "cpuset_mems": "0"}])
def test_nothing_is_cleared_where_nothing_is_set(
    make: Make, sent: dict[str, Any] | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert changed(make(STATIC), cgroup_parent=BEST_EFFORT, resources=sent) == NOTHING
    assert not caplog.records


def test_what_the_wire_cannot_say_is_logged_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    hook = make(STATIC)
    for _ in range(3):
        assert changed(hook, cgroup_parent=BEST_EFFORT, resources={"cpuset_cpus": "0-15"}) == NOTHING
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    at_create, at_update = caplog.messages
    assert "stays as it is: cpuset_cpus: cannot be cleared where the request has no number" in at_create
    assert "stays as it is" in at_update
    assert changed(hook, cgroup_parent=BEST_EFFORT, resources=SENT) == CLEARED


# -- the pod ---------------------------------------------------------------------------------------------------------


def v1(root: Path, parent: str) -> Path:
    file = root / "cpu" / parent.strip("/") / "cpu.cfs_quota_us"
    file.parent.mkdir(parents=True)
    file.write_text("200000\n")
    return file


def v2(root: Path, parent: str) -> Path:
    (root / "cgroup.controllers").write_text("cpuset cpu memory\n")
    file = root / parent.strip("/") / "cpu.max"
    file.parent.mkdir(parents=True)
    file.write_text("200000 50000\n")
    return file


@pytest.mark.parametrize(("tree", "written"), [(v1, "-1"), (v2, "max 50000")])
def test_a_pod_with_cpus_of_its_own_has_no_quota(
    make: Make, tmp_path: Path, tree: Callable[[Path, str], Path], written: str
) -> None:
    hook, file = make(POOLS), tree(tmp_path, GUARANTEED)
    given = HookTester(hook).pre_run_pod_sandbox(annotations=status({"cpuset": "4-7"}), cgroup_parent=GUARANTEED)
    assert given == Difference(resources={"cpu_quota": -1})
    assert file.read_text().strip() == written


@pytest.mark.parametrize(
    ("settings", "annotations"),
    [
        pytest.param(KEEP_QUOTA, status({"cpuset": "4-7"}), id="the quota stays"),
        pytest.param(POOLS, {}, id="no annotation"),
        pytest.param(POOLS, status({"cpuset": ""}), id="no cpuset"),
        pytest.param(POOLS, numa(0, cpu=4), id="shared CPUs"),
    ],
)
def test_other_pods_keep_their_quota(make: Make, tmp_path: Path, settings: str, annotations: dict[str, str]) -> None:
    hook, file = make(settings), v1(tmp_path, GUARANTEED)
    assert not HookTester(hook).pre_run_pod_sandbox(annotations=annotations, cgroup_parent=GUARANTEED)
    assert file.read_text() == "200000\n"


@pytest.mark.parametrize("parent", [GUARANTEED, "", "/", "/kubepods/../x"])
def test_a_cgroup_that_cannot_be_written_is_logged_and_stops_no_pod(
    make: Make, parent: str, caplog: pytest.LogCaptureFixture
) -> None:
    annotations = status({"cpuset": "4-7"})
    given = HookTester(make("")).pre_run_pod_sandbox(annotations=annotations, cgroup_parent=parent, pod="p")
    assert given == Difference(resources={"cpu_quota": -1})
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line.startswith("default/p: the quota of the pod's cgroup stays as it is: ")


# -- what cannot be read ---------------------------------------------------------------------------------------------

UNREADABLE = [
    "{",
    "canary",
    "[]",
    "3",
    '"0-3"',
    {"cpuset": 3},
    {"cpuset": ["0-3"]},
    {"cpuset": True},
    {"numaNodeResources": {}},
    {"numaNodeResources": "canary"},
    {"numaNodeResources": ["canary"]},
    {"numaNodeResources": [3]},
    {"numaNodeResources": [{"node": "0"}]},
    {"numaNodeResources": [{"node": 0.5}]},
    {"numaNodeResources": [{"node": True}]},
    {"numaNodeResources": [{"node": 0, "resources": []}]},
    {"numaNodeResources": [{"node": 0, "resources": {"cpu": 4}}, {"node": 0, "resources": "canary"}]},
    {"numaNodeResources": [{"node": 0, "resources": {"cpu": "canary"}}]},
    {"numaNodeResources": [{"node": 0, "resources": {"cpu": True}}]},
    {"numaNodeResources": [{"node": 0, "resources": {"kubernetes.io/batch-cpu": []}}]},
    {"cpuset": "0-3", "numaNodeResources": [{"node": 0, "resources": {"cpu": ""}}]},
]


@pytest.mark.parametrize("value", UNREADABLE, ids=str)
def test_what_cannot_be_read_is_malformed_at_every_point(make: Make, value: Any) -> None:
    tester = HookTester(make(POOLS))
    for point in (tester.pre_run_pod_sandbox, tester.pre_create_container, tester.pre_update_container_resources):
        with pytest.raises(Malformed) as raised:
            point(annotations=status(value))
        assert "canary" not in str(raised.value)


@pytest.mark.parametrize("cpus", ["canary", "3-0", "0-", "0,a", " ", ","])
def test_a_cpuset_that_is_none_is_malformed_and_changes_nothing(cpus: str) -> None:
    pod, sent = PodInfo(annotations=status({"cpuset": cpus})), Resources(cpu_quota=200000)
    container = ContainerContext(BY_NAME["PreCreateContainer"], HookRequest(pod, ContainerInfo(resources=sent)))
    with pytest.raises(Malformed, match=f"annotation {RESOURCE_STATUS}: its cpuset cannot be used") as raised:
        Cpuset().pre_create_container(container)
    assert container.resources.value == sent
    assert "canary" not in str(raised.value)


# -- the server ------------------------------------------------------------------------------------------------------


def test_flags_name_the_settings_and_the_cgroup_root(make: Make, tmp_path: Path) -> None:
    make(POOLS)
    file = v1(tmp_path, GUARANTEED)
    hook, parser = Cpuset(), argparse.ArgumentParser()
    hook.add_arguments(parser)
    hook.configure(parser.parse_args([f"--node-config={tmp_path / 'node.yaml'}", f"--cgroup-root={tmp_path}"]))
    assert changed(hook, labels=label("LS")) == ALL
    HookTester(hook).pre_run_pod_sandbox(annotations=status({"cpuset": "4"}), cgroup_parent=GUARANTEED)
    assert file.read_text().strip() == "-1"


def test_its_hook_points() -> None:
    points = {point.name for point in Cpuset().points}
    assert points == {"PreRunPodSandbox", "PreCreateContainer", "PreUpdateContainerResources"}
