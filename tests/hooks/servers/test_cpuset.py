"""cpuset: the resource-status annotation, the node's pools, clearing, and the quota of the pod's cgroup."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy_hooks.lib.koordinator import BATCH_CPU, RESOURCE_STATUS
from runtimeproxy_hooks.sdk import Malformed
from runtimeproxy_hooks.sdk.testing import Difference, HookTester
from tests.hooks.nodes import annotation, on_node, qos, rows, tree

POOLS = """
shared-pools: [{socket: 0, node: 0, cpuset: 0-3}, {socket: 0, node: 1, cpuset: "8-11,15"}]
be-shared-pools: [{socket: 0, node: 0, cpuset: 4-5}, {socket: 0, node: 1, cpuset: 12-13}]
"""
STATIC, GATE, SYSTEM = "kubelet-cpu-manager-policy: static\n", "be-cpu-manager: true\n", "system-cpuset: 0-1\n"
KEEP_QUOTA = "unset-cpu-quota: false\n"
ONE_EMPTY_POOL = 'shared-pools: [{node: 0, cpuset: ""}, {node: 1, cpuset: 8-11}]'
GUARANTEED, BURSTABLE, BEST_EFFORT = "/kubepods/podu", "/kubepods/burstable/podu", "/kubepods/besteffort/podu"
SYSTEMD_BEST_EFFORT = "/kubepods.slice/kubepods-besteffort.slice/x.slice"
SENT = {"cpu_shares": 1024, "cpu_quota": 200000, "cpuset_cpus": "0-15"}
"""A container as the kubelet's static policy requests it."""

Make = Callable[[str], HookTester]


def cpus(text: str) -> dict[str, Any]:
    return {"cpuset_cpus": text}


ALL, POOL_0, POOL_1, CLEARED, NOTHING = cpus("0-3,8-11,15"), cpus("0-3"), cpus("8-11,15"), cpus(""), dict[str, Any]()
EXCLUSIVE = {**cpus("4-7,9"), "cpu_quota": -1}


def status(value: Any) -> dict[str, str]:
    return annotation(RESOURCE_STATUS, value)


def numa(*nodes: int, **resources: Any) -> dict[str, str]:
    return status({"numaNodeResources": [{"node": node, "resources": resources} for node in nodes]})


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda text: on_node(tmp_path, "cpuset", text)


def changed(tester: HookTester, **call: Any) -> dict[str, Any]:
    """Return the changed resources, the same at both hook points of containers; only they change."""
    created, updated = tester.pre_create_container(**call), tester.pre_update_container_resources(**call)
    assert created == updated == Difference(resources=created.resources)
    return created.resources


EXCLUSIVE_CPUS = [
    ("no settings", {"cpuset": "4-7,9"}, "", EXCLUSIVE),
    ("overrides pools", {"cpuset": "4-7,9"}, POOLS + STATIC + SYSTEM, EXCLUSIVE),
    ("quota is unchanged", {"cpuset": "4-7,9"}, KEEP_QUOTA, cpus("4-7,9")),
    ("key case, verbatim", {"CPUSet": "1,1,0-0"}, "", {**cpus("1,1,0-0"), "cpu_quota": -1}),
    ("overrides NUMA nodes", {"cpuset": "4-7,9", "numaNodeResources": [{"resources": {"cpu": "4"}}]}, POOLS, EXCLUSIVE),
]


@pytest.mark.parametrize(("value", "settings", "resources"), rows(EXCLUSIVE_CPUS))
def test_cpuset_of_the_annotation_is_set(make: Make, value: Any, settings: str, resources: Any) -> None:
    for name, sent in (("LSR", None), ("BE", {}), ("SYSTEM", SENT)):
        call = {"annotations": status(value), "labels": qos(name), "cgroup_parent": GUARANTEED}
        assert changed(make(settings), **call, resources=sent) == resources
    assert changed(make(settings), **call, resources={**SENT, **resources}) == NOTHING  # it is set already


SECOND_HAS_CPU = status({"numaNodeResources": [{"node": 1}, {"node": 0, "resources": {"cpu": 4}}]})
NODE_IN_OTHER_CASE = status({"NUMANodeResources": [{"Node": 1, "RESOURCES": {"cpu": 4}}]})
NO_NODE = status({"cpuset": "", "numaNodeResources": [{"resources": {"cpu": 4}}]})
BE_POOLS_ALONE = "be-shared-pools: [{node: 0, cpuset: 4-5}]"
RULES = [
    # Without settings nothing is set.
    ("no rule, BE: not even cleared", "", "BE", BEST_EFFORT, {}, NOTHING),
    ("unrelated settings, NUMA", GATE + KEEP_QUOTA, "", GUARANTEED, numa(0, cpu=1), NOTHING),
    # 1. NUMA nodes with CPUs.
    ("hardly any cpu", POOLS, "LS", BURSTABLE, numa(0, cpu="1n"), POOL_0),
    ("cpu 0", POOLS, "LS", BURSTABLE, numa(0, cpu="0", memory="1Gi"), ALL),
    ("batch-cpu", POOLS, "LS", BURSTABLE, numa(1, **{BATCH_CPU: "500"}), POOL_1),
    ("batch-cpu not above 0", POOLS, "LS", BURSTABLE, numa(1, **{BATCH_CPU: -1}), ALL),
    ("one entry with cpu counts all nodes", POOLS + SYSTEM, "SYSTEM", BURSTABLE, SECOND_HAS_CPU, ALL),
    ("key case", POOLS, "LS", BURSTABLE, NODE_IN_OTHER_CASE, POOL_1),
    ("no node is node 0, as in Go", POOLS, "LS", BURSTABLE, NO_NODE, POOL_0),
    ("before static and best effort", POOLS + STATIC, "", BEST_EFFORT, numa(1, cpu=-4), POOL_1),
    ("a node without a pool", POOLS, "LS", BURSTABLE, numa(7, cpu=4), CLEARED),
    ("a pool without CPUs", ONE_EMPTY_POOL, "LS", BURSTABLE, numa(0, 1, cpu=4), cpus("8-11")),
    ("no pools", STATIC, "LS", BURSTABLE, numa(0, cpu=4), NOTHING),
    ("BE with the gate, two nodes", POOLS + GATE, "BE", BURSTABLE, numa(0, 1, cpu=4), cpus("4-5,12-13")),
    ("BE, no pools", STATIC + GATE, "BE", BURSTABLE, numa(0, cpu=4), CLEARED),
    ("BE pools alone are a rule", BE_POOLS_ALONE, "BE", BEST_EFFORT, {}, CLEARED),
    ("BE without the gate: the last rule", POOLS, "BE", BURSTABLE, numa(1, cpu=4), ALL),
    # 2. SYSTEM.
    ("SYSTEM before best effort", SYSTEM, "SYSTEM", BEST_EFFORT, {}, cpus("0-1")),
    ("a system cpuset is for SYSTEM", SYSTEM, "LSR", GUARANTEED, {}, NOTHING),
    # 3. LS.
    ("LS before static and best effort", POOLS + STATIC, "LS", BEST_EFFORT, status({"cpuset": ""}), ALL),
    # 4. BestEffort.
    ("best effort without a label", STATIC, "", SYSTEMD_BEST_EFFORT, {}, CLEARED),
    # 5. Everything else.
    ("static", POOLS + STATIC, "LSR", GUARANTEED, {}, NOTHING),
    ("no cgroup parent", POOLS, "LSE", "", {}, ALL),
]


@pytest.mark.parametrize(("settings", "name", "parent", "annotations", "resources"), rows(RULES))
def test_first_matching_rule_determines_the_cpuset(
    make: Make, settings: str, name: str, parent: str, annotations: dict[str, str], resources: dict[str, Any]
) -> None:
    call = {"labels": qos(name), "cgroup_parent": parent, "annotations": annotations}
    assert changed(make(settings), resources=SENT, **call) == resources


def test_cpuset_that_cannot_be_cleared_is_logged_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    hook = make(STATIC)
    for _ in range(3):
        assert changed(hook, cgroup_parent=BEST_EFFORT, resources=cpus("0-15")) == NOTHING
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    at_create, at_update = caplog.messages
    assert "stays as it is: cpuset_cpus: cannot be cleared where the request has no number" in at_create
    assert "stays as it is" in at_update
    for sent, cleared in ((SENT, CLEARED), (None, NOTHING), ({"cpu_shares": 2}, NOTHING)):
        assert changed(hook, cgroup_parent=BEST_EFFORT, resources=sent) == cleared
    assert len(caplog.records) == 2


EXCLUSIVE_STATUS = status({"cpuset": "4-7"})
QUOTAS = [
    ("exclusive CPUs", POOLS, EXCLUSIVE_STATUS, "-1"),
    ("unset-cpu-quota is off", KEEP_QUOTA, EXCLUSIVE_STATUS, "200000"),
    ("shared CPUs", POOLS, numa(0, cpu=4), "200000"),
]


@pytest.mark.parametrize(("settings", "annotations", "quota"), rows(QUOTAS))
def test_pod_with_exclusive_cpus_has_no_quota(
    make: Make, tmp_path: Path, settings: str, annotations: Any, quota: str
) -> None:
    [file] = tree(tmp_path, {f"cpu{GUARANTEED}/cpu.cfs_quota_us": "200000\n"})
    changed = make(settings).pre_run_pod_sandbox(annotations=annotations, cgroup_parent=GUARANTEED)
    assert changed.resources == ({"cpu_quota": -1} if quota == "-1" else NOTHING)
    assert file.read_text() == f"{quota}\n"


@pytest.mark.parametrize("parent", [GUARANTEED, "/kubepods/../x"])
def test_failed_write_of_the_quota_is_logged_only(make: Make, parent: str, caplog: pytest.LogCaptureFixture) -> None:
    changed = make("").pre_run_pod_sandbox(annotations=EXCLUSIVE_STATUS, cgroup_parent=parent, pod="p")
    assert changed == Difference(resources={"cpu_quota": -1})
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line.startswith("default/p: the quota of the pod's cgroup stays as it is: ")


def test_invalid_cpuset_is_malformed(make: Make) -> None:
    for text in ("canary", "3-0", " "):
        with pytest.raises(Malformed, match=f"annotation {RESOURCE_STATUS}: its cpuset cannot be used") as raised:
            make("").pre_create_container(annotations=status({"cpuset": text}), resources=SENT)
        assert "canary" not in str(raised.value)
