"""batchresource: every formula and edge case of best-effort resources, for containers, pods and the pod's cgroup."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy_hooks.batchresource import BatchResource
from runtimeproxy_hooks.cgroups import ROOT, Cgroups
from runtimeproxy_hooks.koordinator import BATCH_CPU, BATCH_MEMORY, EXTENDED_RESOURCE_SPEC, MAX_INT64, QOS_CLASS
from runtimeproxy_hooks.node import DEFAULT_FILE, Node
from runtimeproxy_hooks.sdk import Malformed
from runtimeproxy_hooks.sdk.testing import NO_DIFFERENCE, HookTester

BE = {QOS_CLASS: "BE"}
POD = "/kubepods/besteffort/pod1"
V1_FILES = ("cpu/{}/cpu.shares", "cpu/{}/cpu.cfs_quota_us", "memory/{}/memory.limit_in_bytes")
V2_FILES = ("{}/cpu.weight", "{}/cpu.max", "{}/memory.max")
GIB = 1 << 30


def spec(**containers: Any) -> dict[str, str]:
    return {EXTENDED_RESOURCE_SPEC: json.dumps({"containers": containers})}


def amounts(request: Any = None, cpu: Any = None, memory: Any = None) -> dict[str, Any]:
    return {"requests": {BATCH_CPU: request}, "limits": {BATCH_CPU: cpu, BATCH_MEMORY: memory}}


def fields(shares: int, quota: int, memory: int) -> dict[str, int]:
    return {"cpu_shares": shares, "cpu_quota": quota, "memory_limit_in_bytes": memory}


def node(path: Path, text: str) -> Node:
    file = path / "node.yaml"
    file.write_text(text)
    return Node(file)


@pytest.fixture
def tester(tmp_path: Path) -> HookTester:
    return HookTester(BatchResource(cgroups=Cgroups(tmp_path / "no-cgroups")))


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        (amounts("500", "500", "2Gi"), fields(512, 50_000, 2 * GIB)),
        (amounts(500, 500, 2 * GIB), fields(512, 50_000, 2 * GIB)),
        (amounts("1e3", "1k", "1e9"), fields(1024, 100_000, 10**9)),
        (amounts("500m", "500m", "500m"), fields(2, 1000, 1)),
        (amounts(1.5, "2000.5", "1.5Gi"), fields(2, 200_100, 3 * GIB // 2)),
        (amounts("500"), fields(512, -1, -1)),
        (amounts(None, "500"), fields(2, 50_000, -1)),
        (amounts(None, None, "16Gi"), fields(2, -1, 16 * GIB)),
        (amounts(), fields(2, -1, -1)),
        (amounts(0, 0, 0), fields(2, -1, -1)),
        (amounts("-1", "-1", "-1"), fields(2, -1, -1)),
        (amounts(1, 1, 1), fields(2, 1000, 1)),
        (amounts("1M", "1M", "7Ei"), fields(262144, 100_000_000, 7 << 60)),
        (amounts(1, MAX_INT64, MAX_INT64), fields(2, MAX_INT64, MAX_INT64)),
        ({}, fields(2, -1, -1)),
        (None, fields(2, -1, -1)),
        ({"requests": None, "limits": {}}, fields(2, -1, -1)),
        ({"Requests": {BATCH_CPU: "500"}, "LIMITS": {BATCH_MEMORY: "1Ki"}}, fields(512, -1, 1024)),
        ({"requests": {BATCH_CPU.upper(): "500", "cpu": "1"}}, fields(2, -1, -1)),
    ],
)
def test_a_container_is_given_what_the_annotation_says(tester: HookTester, main: Any, expected: dict[str, int]) -> None:
    call: dict[str, Any] = {"labels": BE, "annotations": spec(main=main), "container": "main"}
    assert tester.pre_create_container(**call).resources == expected
    assert tester.pre_update_container_resources(**call, resources={"cpu_quota": 7000}).resources == expected


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ({"a": amounts("500", "500", "2Gi")}, fields(512, 50_000, 2 * GIB)),
        ({"a": amounts(500, 500, 100), "b": amounts("1k", "1k", "1Ki")}, fields(1536, 150_000, 1124)),
        ({"a": amounts(1, 1, 1), "b": amounts(1, 1, 1)}, fields(2, 1000, 2)),
        ({"a": amounts(1, 5, 1), "b": amounts(2, 6, 1)}, fields(3, 1100, 2)),
        ({"a": amounts(500, 500, 100), "b": amounts(500, None, 100)}, fields(1024, -1, 200)),
        ({"a": amounts(500, 500, 100), "b": amounts(500, 500, "0")}, fields(1024, 100_000, -1)),
        ({"a": amounts(500, 500, 100), "b": amounts(-200, -500, -100)}, fields(512, -1, -1)),
        ({"a": amounts(500, 500, 100), "b": {}}, fields(512, -1, -1)),
        ({"a": amounts(500, 500, 100), "b": None}, fields(512, -1, -1)),
        ({"a": amounts(500, 500, 100), "b": {"requests": {BATCH_CPU: 500}}}, fields(1024, -1, -1)),
        ({"a": amounts("1M", MAX_INT64, MAX_INT64), "b": amounts("1M", 1, 1)}, fields(262144, MAX_INT64, MAX_INT64)),
    ],
)
def test_a_pod_is_given_the_sums(tester: HookTester, containers: Any, expected: dict[str, int]) -> None:
    assert tester.pre_run_pod_sandbox(labels=BE, annotations=spec(**containers)).resources == expected


LISTED = spec(main=amounts(500, 500, 500))


@pytest.mark.parametrize(
    ("labels", "annotations"),
    [
        *(({QOS_CLASS: other}, LISTED) for other in ("LSE", "LSR", "LS", "SYSTEM", "", "be", "other")),
        ({}, LISTED),
        ({}, {EXTENDED_RESOURCE_SPEC: "{"}),
        (BE, {}),
        (BE, {EXTENDED_RESOURCE_SPEC: ""}),
        (BE, {EXTENDED_RESOURCE_SPEC: "null"}),
        (BE, {EXTENDED_RESOURCE_SPEC: "{}"}),
        (BE, {EXTENDED_RESOURCE_SPEC: '{"containers": null}'}),
        (BE, {EXTENDED_RESOURCE_SPEC: '{"containers": {}}'}),
    ],
)
def test_other_classes_and_pods_without_a_list_are_left_alone(
    tester: HookTester, labels: dict[str, str], annotations: dict[str, str]
) -> None:
    assert tester.pre_run_pod_sandbox(labels=labels, annotations=annotations) == NO_DIFFERENCE
    assert tester.pre_create_container(labels=labels, annotations=annotations) == NO_DIFFERENCE


@pytest.mark.parametrize("container", ["other", "MAIN", ""])
def test_a_container_that_is_not_listed_is_left_alone(tester: HookTester, container: str) -> None:
    assert not tester.pre_create_container(labels=BE, annotations=LISTED, container=container)
    assert not tester.pre_update_container_resources(labels=BE, annotations=LISTED, container=container)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[]", "the value must be a JSON object"),
        ('{"containers": []}', "containers must be a JSON object"),
        ('{"containers": {"main": []}}', "main must be a JSON object"),
        ('{"containers": {"main": {"requests": []}}}', "requests must be a JSON object"),
        ('{"containers": {"main": {"limits": "canary"}}}', "limits must be a JSON object"),
        (f'{{"containers": {{"main": {{"limits": {{"{BATCH_CPU}": "canary"}}}}}}}}', "not a quantity"),
        (f'{{"containers": {{"main": {{"limits": {{"{BATCH_CPU}": true}}}}}}}}', f"{BATCH_CPU} must be a text or"),
        (f'{{"containers": {{"main": {{"limits": {{"{BATCH_MEMORY}": "8Ei"}}}}}}}}', "beyond 64 bits"),
        (f'{{"containers": {{"main": {{"requests": {{"{BATCH_CPU}": "1e999999999"}}}}}}}}', "beyond 64 bits"),
        (f'{{"containers": {{"main": {{"requests": {{"{BATCH_CPU}": NaN}}}}}}}}', "NaN"),
    ],
)
def test_a_malformed_annotation_is_an_error(tester: HookTester, text: str, why: str) -> None:
    for ask in (tester.pre_run_pod_sandbox, tester.pre_create_container, tester.pre_update_container_resources):
        with pytest.raises(Malformed, match=why) as caught:
            ask(labels=BE, annotations={EXTENDED_RESOURCE_SPEC: text})  # type: ignore[operator]
        assert "canary" not in str(caught.value)
        assert EXTENDED_RESOURCE_SPEC in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "limit", "quota"),
    [
        ("{}", 500, 50_000),
        ("cpu-suppress-policy: cfsQuota", 500, -1),
        ("cpu-suppress-policy: cpuset", 500, 50_000),
        ("cpu-normalization-ratio: 3", 500, 16_667),
        ("cpu-normalization-ratio: 0.5", 500, 50_000),
        ("cpu-normalization-ratio: 3", 20, 1000),
        ("cpu-normalization-ratio: 3", None, -1),
        ("{cpu-normalization-ratio: 3, cpu-suppress-policy: cfsQuota}", 500, -1),
    ],
)
def test_the_node_decides_on_quotas(tmp_path: Path, settings: str, limit: int | None, quota: int) -> None:
    tester = HookTester(BatchResource(node(tmp_path, settings), Cgroups(tmp_path)))
    annotations = spec(main=amounts(500, limit, 2 * GIB))
    expected = fields(512, quota, 2 * GIB)
    assert tester.pre_create_container(labels=BE, annotations=annotations).resources == expected
    assert tester.pre_update_container_resources(labels=BE, annotations=annotations).resources == expected
    assert tester.pre_run_pod_sandbox(labels=BE, annotations=annotations).resources == expected


def tree(root: Path, names: tuple[str, ...]) -> list[Path]:
    files = [root / name.format(POD.strip("/")) for name in names]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("old\n")
    return files


def v1(root: Path) -> list[Path]:
    return tree(root, V1_FILES)


def v2(root: Path) -> list[Path]:
    (root / "cgroup.controllers").write_text("cpu memory\n")
    return tree(root, V2_FILES)


@pytest.mark.parametrize(
    ("make", "main", "contents"),
    [
        (v1, amounts(500, 500, "1Ki"), ["512", "50000", "1024"]),
        (v1, amounts(), ["2", "-1", "-1"]),
        (v2, amounts(500, 500, "1Ki"), ["20", "50000 100000", "1024"]),
        (v2, amounts(), ["1", "max 100000", "max"]),
        (v2, amounts("1M", 10, 1), ["10000", "1000 100000", "1"]),
    ],
)
def test_the_pods_cgroup_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Any, main: Any, contents: list[str]
) -> None:
    files = make(tmp_path)
    tester = HookTester(BatchResource(cgroups=Cgroups(tmp_path)))
    assert tester.pre_create_container(labels=BE, annotations=spec(main=main), cgroup_parent=POD)
    assert [file.read_text() for file in files] == ["old\n"] * 3, "a container's hook writes nothing"
    assert tester.pre_run_pod_sandbox(labels=BE, annotations=spec(main=main), cgroup_parent=POD)
    assert [file.read_text().strip() for file in files] == contents
    assert not caplog.records


def test_what_cannot_be_written_is_logged_once_a_kind_and_the_rest_is_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shares, quota, memory = v1(tmp_path)
    quota.unlink()
    memory.unlink()
    memory.mkdir()
    tester = HookTester(BatchResource(cgroups=Cgroups(tmp_path)))
    for _ in range(2):
        difference = tester.pre_run_pod_sandbox(labels=BE, annotations=LISTED, cgroup_parent=POD)
        assert difference.resources == fields(512, 50_000, 500)
    assert shares.read_text() == "512\n"
    assert not quota.exists()
    assert [record.message.split()[0] for record in caplog.records] == ["cpu_quota", "memory_limit_in_bytes"]
    quota.mkdir()
    assert tester.pre_run_pod_sandbox(labels=BE, annotations=LISTED, cgroup_parent=POD)
    assert len(caplog.records) == 3, "another kind of error is another line"


@pytest.mark.parametrize("parent", ["/", "relative/pod1", "/kubepods/../..", "/a\0b"])
def test_a_path_that_is_no_pods_is_not_written_and_fails_no_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, parent: str
) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.shares").write_text("old")
    tester = HookTester(BatchResource(cgroups=Cgroups(tmp_path)))
    difference = tester.pre_run_pod_sandbox(labels=BE, annotations=LISTED, cgroup_parent=parent)
    assert difference.resources == fields(512, 50_000, 500)
    assert (tmp_path / "cpu" / "cpu.shares").read_text() == "old"
    assert len(caplog.records) == 3


def test_a_malformed_pod_is_not_written_in_part(tmp_path: Path) -> None:
    files = v1(tmp_path)
    tester = HookTester(BatchResource(cgroups=Cgroups(tmp_path)))
    with pytest.raises(Malformed):
        tester.pre_run_pod_sandbox(
            labels=BE, annotations=spec(a=amounts(500, 500, 1), b=amounts(500, 500, "x")), cgroup_parent=POD
        )
    assert [file.read_text() for file in files] == ["old\n"] * 3


def test_the_flags_say_where_the_node_and_its_cgroups_are(tmp_path: Path) -> None:
    [shares, *_] = v1(tmp_path)
    node(tmp_path, "cpu-suppress-policy: cfsQuota")
    hook, parser = BatchResource(), argparse.ArgumentParser()
    hook.add_arguments(parser)
    BatchResource().add_arguments(parser)
    assert (parser.parse_args([]).node_config.path, parser.parse_args([]).cgroup_root) == (DEFAULT_FILE, ROOT)
    hook.configure(parser.parse_args([f"--node-config={tmp_path}/node.yaml", f"--cgroup-root={tmp_path}"]))
    difference = HookTester(hook).pre_run_pod_sandbox(labels=BE, annotations=LISTED, cgroup_parent=POD)
    assert difference.resources["cpu_quota"] == -1
    assert shares.read_text() == "512\n"


def test_it_is_a_program() -> None:
    command = [sys.executable, "-m", "runtimeproxy_hooks.batchresource", "--help"]
    assert "--node-config" in subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
