"""cpunormalization: whose quota is scaled, and to what; the formula is tested in test_node.py."""

from pathlib import Path
from typing import Any

import pytest

from runtimeproxy_hooks.lib.koordinator import RESOURCE_STATUS
from runtimeproxy_hooks.sdk import Malformed
from runtimeproxy_hooks.sdk.testing import NO_DIFFERENCE, Difference, HookTester
from runtimeproxy_hooks.servers.cpunormalization import NORMALIZED, CpuNormalization
from tests.hooks.nodes import annotation, node, qos


def on_node(path: Path, ratio: str) -> HookTester:
    return HookTester(CpuNormalization(node(path, f"cpu-normalization-ratio: {ratio}")))


def at_both(tester: HookTester, **call: Any) -> Difference:
    """Call both hook points, which set the same; the quota that a create scaled is in an annotation."""
    created, updated = tester.pre_create_container(**call), tester.pre_update_container_resources(**call)
    assert created.resources == updated.resources
    quotas = (call.get("resources", {}).get("cpu_quota"), created.resources.get("cpu_quota"))
    assert created.annotations == ({NORMALIZED: f"{quotas[0]}:{quotas[1]}"} if quotas[1] else {})
    assert not updated.annotations
    return updated


NUMA = {"numaNodeResources": [{"node": 0, "resources": {"cpu": "4"}}]}
SCALED = [
    *(("2", name, {}, 100_000, 50_000) for name in ("unknown", "LS")),
    *(("2", name, {}, 100_000, None) for name in ("LSR", "LSE", "BE", "SYSTEM")),
    *(("2", "LS", annotation(RESOURCE_STATUS, status), 100_000, 50_000) for status in ("null", '{"cpuset": ""}', NUMA)),
    ("2", "", annotation(RESOURCE_STATUS, {"CPUSet": "0-3"}), 100_000, None),
    *(("2", "", {}, quota, scaled) for quota, scaled in ((1999, 1000), (1000, None), (-1, None), (0, None))),
    *((ratio, "", {}, 100_000, scaled) for ratio, scaled in (("3", 33_334), ("0.5", None))),
]


@pytest.mark.parametrize(("ratio", "name", "annotations", "quota", "scaled"), SCALED)
def test_quota_of_containers_that_share_cpus_is_scaled(
    tmp_path: Path, ratio: str, name: str, annotations: dict[str, str], quota: int, scaled: int | None
) -> None:
    resources = {"cpu_quota": quota, "cpu_shares": 512}
    difference = at_both(on_node(tmp_path, ratio), labels=qos(name), annotations=annotations, resources=resources)
    assert difference.resources == ({"cpu_quota": scaled} if scaled else {})


def test_nothing_changes_without_resources_or_settings(tmp_path: Path) -> None:
    assert at_both(on_node(tmp_path, "2")) == NO_DIFFERENCE
    assert at_both(HookTester(CpuNormalization()), resources={"cpu_quota": 50_000}) == NO_DIFFERENCE


UPDATES = [
    ("1.2", 50_000, 41_667),  # the kubelet's quota, from a proxy that has stored it
    ("1.2", 41_667, 41_667),  # the runtime's quota, from a proxy that was started since then
    ("1.2", 60_000, 50_000),  # another quota of the kubelet's
    *(("1.5", 41_667, 33_334), ("1", 41_667, 50_000)),  # the node's settings were changed meanwhile
    ("1.2", -1, -1),
]


@pytest.mark.parametrize(("ratio", "quota", "result"), UPDATES)
def test_quota_is_not_scaled_again_after_a_restart(tmp_path: Path, ratio: str, quota: int, result: int) -> None:
    created = on_node(tmp_path, "1.2").pre_create_container(resources={"cpu_quota": 50_000})
    call: Any = {"container_annotations": created.annotations, "resources": {"cpu_quota": quota, "cpu_shares": 512}}
    updated = on_node(tmp_path, ratio).pre_update_container_resources(**call)
    assert updated.resources.get("cpu_quota", quota) == result
    assert updated.resources.keys() <= {"cpu_quota"}


@pytest.mark.parametrize("text", ["", "canary", "1:canary", "50000", ":", "1:2:3", "-1:2", "1:2\n", "9" * 20 + ":1"])
def test_foreign_quota_annotation_is_an_error_where_read(tmp_path: Path, text: str) -> None:
    tester, call = on_node(tmp_path, "2"), {"container_annotations": {NORMALIZED: text}}
    with pytest.raises(Malformed, match=NORMALIZED) as caught:
        tester.pre_update_container_resources(resources={"cpu_quota": 50_000}, **call)
    assert "canary" not in str(caught.value)
    assert not tester.pre_update_container_resources(resources={"cpu_shares": 512}, **call)
    created = tester.pre_create_container(resources={"cpu_quota": 50_000}, **call)
    assert created.annotations == {NORMALIZED: "50000:25000"}
