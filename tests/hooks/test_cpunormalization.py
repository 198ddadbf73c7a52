"""cpunormalization: whose quota is scaled, and to what."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy_hooks.cpunormalization import NORMALIZED, CpuNormalization
from runtimeproxy_hooks.koordinator import QOS_CLASS, RESOURCE_STATUS
from runtimeproxy_hooks.node import DEFAULT_FILE, Node
from runtimeproxy_hooks.sdk import Malformed
from runtimeproxy_hooks.sdk.testing import NO_DIFFERENCE, Difference, HookTester

LS = {QOS_CLASS: "LS"}


def on_node(path: Path, ratio: str) -> HookTester:
    file = path / "node.yaml"
    file.write_text(f"cpu-normalization-ratio: {ratio}")
    return HookTester(CpuNormalization(Node(file)))


def both(asked: HookTester, **call: Any) -> Difference:
    """Ask at both hook points, which set the same; what a create made of a quota stands in an annotation."""
    created, updated = asked.pre_create_container(**call), asked.pre_update_container_resources(**call)
    assert created.resources == updated.resources
    quotas = (call.get("resources", {}).get("cpu_quota"), created.resources.get("cpu_quota"))
    assert created.annotations == ({NORMALIZED: f"{quotas[0]}:{quotas[1]}"} if quotas[1] else {})
    assert not updated.annotations
    return updated


@pytest.mark.parametrize(
    ("ratio", "quota", "scaled"),
    [
        ("2", 100_000, 50_000),
        ("1.1", 110_000, 100_000),
        ("3", 100_000, 33_334),
        ("1.5", 1, 1),
        ("2", 1999, 1000),
        ("2", 1000, None),
        ("1", 100_000, None),
        ("1.0", 100_000, None),
        ("0.5", 100_000, None),
        ("2", -1, None),
        ("2", 0, None),
    ],
)
def test_a_quota_is_scaled_if_there_is_one(tmp_path: Path, ratio: str, quota: int, scaled: int | None) -> None:
    difference = both(on_node(tmp_path, ratio), labels=LS, resources={"cpu_quota": quota, "cpu_shares": 512})
    assert difference.resources == ({} if scaled is None or scaled == quota else {"cpu_quota": scaled})


def test_without_resources_or_settings_nothing_changes(tmp_path: Path) -> None:
    assert both(on_node(tmp_path, "2"), labels=LS) == NO_DIFFERENCE
    assert both(HookTester(CpuNormalization()), labels=LS, resources={"cpu_quota": 50_000}) == NO_DIFFERENCE


@pytest.mark.parametrize(
    ("labels", "scaled"),
    [
        ({}, True),
        ({"other": "x"}, True),
        ({QOS_CLASS: ""}, True),
        ({QOS_CLASS: "unknown"}, True),
        ({QOS_CLASS: "LS"}, True),
        ({QOS_CLASS: "LSR"}, False),
        ({QOS_CLASS: "LSE"}, False),
        ({QOS_CLASS: "BE"}, False),
        ({QOS_CLASS: "SYSTEM"}, False),
    ],
)
def test_only_containers_that_share_cpus_are_scaled(tmp_path: Path, labels: dict[str, str], scaled: bool) -> None:
    difference = both(on_node(tmp_path, "2"), labels=labels, resources={"cpu_quota": 100_000})
    assert difference.resources == ({"cpu_quota": 50_000} if scaled else {})


@pytest.mark.parametrize("labels", [{}, LS])
@pytest.mark.parametrize(
    ("status", "scaled"),
    [
        ("", True),
        ("null", True),
        ("{}", True),
        ('{"cpuset": null}', True),
        ('{"cpuset": ""}', True),
        (json.dumps({"numaNodeResources": [{"node": 0, "resources": {"cpu": "4"}}]}), True),
        ('{"cpuset": "0-3"}', False),
        ('{"CPUSet": "0-3"}', False),
    ],
)
def test_cpus_of_its_own_are_not_scaled(tmp_path: Path, labels: dict[str, str], status: str, scaled: bool) -> None:
    call = {"labels": labels, "annotations": {RESOURCE_STATUS: status}, "resources": {"cpu_quota": 100_000}}
    assert both(on_node(tmp_path, "2"), **call).resources == ({"cpu_quota": 50_000} if scaled else {})


@pytest.mark.parametrize("status", ["{", "[]", '{"cpuset": 3}', '{"cpuset": ["canary"]}'])
def test_a_malformed_annotation_is_an_error(tmp_path: Path, status: str) -> None:
    asked = on_node(tmp_path, "2")
    with pytest.raises(Malformed) as caught:
        asked.pre_create_container(annotations={RESOURCE_STATUS: status}, resources={"cpu_quota": 100_000})
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("ratio", "quota", "result"),
    [
        ("1.2", 50_000, 41_667),  # what the kubelet asked for, from a proxy that knows it
        ("1.2", 41_667, 41_667),  # what the runtime has, from a proxy that was started since then
        ("1.2", 60_000, 50_000),  # another quota of the kubelet's
        ("1.5", 41_667, 33_334),  # the node's settings were changed meanwhile
        ("1", 41_667, 50_000),
        ("1.2", -1, -1),
    ],
)
def test_after_a_restart_of_the_proxy_a_quota_is_not_scaled_again(
    tmp_path: Path, ratio: str, quota: int, result: int
) -> None:
    created = on_node(tmp_path, "1.2").pre_create_container(resources={"cpu_quota": 50_000})
    updated = on_node(tmp_path, ratio).pre_update_container_resources(
        container_annotations=created.annotations, resources={"cpu_quota": quota, "cpu_shares": 512}
    )
    assert updated.resources.get("cpu_quota", quota) == result
    assert updated.resources.keys() <= {"cpu_quota"}


@pytest.mark.parametrize("kept", ["", "canary", "1:canary", "50000", ":", "1:2:3", "-1:2", "1:2\n", "9" * 20 + ":1"])
def test_an_annotation_that_is_not_its_own_is_an_error_where_it_is_read(tmp_path: Path, kept: str) -> None:
    asked, call = on_node(tmp_path, "2"), {"container_annotations": {NORMALIZED: kept}}
    with pytest.raises(Malformed, match=NORMALIZED) as caught:
        asked.pre_update_container_resources(resources={"cpu_quota": 50_000}, **call)
    assert "canary" not in str(caught.value)
    assert not asked.pre_update_container_resources(resources={"cpu_shares": 512}, **call)
    assert asked.pre_create_container(resources={"cpu_quota": 50_000}, **call).annotations == {
        NORMALIZED: "50000:25000"
    }


def test_the_flag_names_the_file(tmp_path: Path) -> None:
    on_node(tmp_path, "4")
    hook, parser = CpuNormalization(), argparse.ArgumentParser()
    hook.add_arguments(parser)
    hook.add_arguments(parser)
    assert parser.parse_args([]).node_config.path == DEFAULT_FILE
    hook.configure(parser.parse_args([f"--node-config={tmp_path}/node.yaml"]))
    assert both(HookTester(hook), resources={"cpu_quota": 8000}).resources == {"cpu_quota": 2000}


def test_it_is_a_program() -> None:
    command = [sys.executable, "-m", "runtimeproxy_hooks.cpunormalization", "--help"]
    assert "--node-config" in subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
