"""batchresource: every formula and edge case of best-effort resources, for containers, pods and the pod's cgroup."""

from pathlib import Path
from typing import Any

import pytest

from runtimeproxy_hooks.lib.cgroups import Cgroups
from runtimeproxy_hooks.lib.koordinator import BATCH_CPU, BATCH_MEMORY, EXTENDED_RESOURCE_SPEC, MAX_INT64
from runtimeproxy_hooks.sdk.testing import HookTester
from runtimeproxy_hooks.servers.batchresource import BatchResource
from tests.hooks.nodes import annotation, node, qos, tree

Log, Texts = pytest.LogCaptureFixture, dict[str, str]
BE = qos("BE")
POD = "/kubepods/besteffort/pod1"
GIB = 1 << 30


def spec(**containers: Any) -> Texts:
    return annotation(EXTENDED_RESOURCE_SPEC, {"containers": containers})


def amounts(request: Any = None, cpu: Any = None, memory: Any = None) -> dict[str, Any]:
    return {"requests": {BATCH_CPU: request}, "limits": {BATCH_CPU: cpu, BATCH_MEMORY: memory}}


def fields(shares: int, quota: int, memory: int) -> dict[str, int]:
    return {"cpu_shares": shares, "cpu_quota": quota, "memory_limit_in_bytes": memory}


@pytest.fixture
def tester(tmp_path: Path) -> HookTester:
    return HookTester(BatchResource(cgroups=Cgroups(tmp_path)))


AMOUNTS = [
    (amounts("500", "500", "2Gi"), fields(512, 50_000, 2 * GIB)),
    (amounts("500m", "500m", "500m"), fields(2, 1000, 1)),  # rounded up
    (amounts(1.5, "2000.5", "1.5Gi"), fields(2, 200_100, 3 * GIB // 2)),
    *((amounts(*none), fields(2, -1, -1)) for none in ((0, 0, 0), ("-1", "-1", "-1"))),
    (amounts("1M", MAX_INT64, MAX_INT64), fields(262144, MAX_INT64, MAX_INT64)),
    *((empty, fields(2, -1, -1)) for empty in (None, {"requests": None, "limits": {}})),
    ({"requests": {BATCH_CPU.upper(): "500", "cpu": "1"}}, fields(2, -1, -1)),
]


@pytest.mark.parametrize(("main", "expected"), AMOUNTS)
def test_container_gets_the_annotations_amounts(tester: HookTester, main: Any, expected: dict[str, int]) -> None:
    call: dict[str, Any] = {"labels": BE, "annotations": spec(main=main), "container": "main"}
    assert tester.pre_create_container(**call).resources == expected
    assert tester.pre_update_container_resources(**call, resources={"cpu_quota": 7000}).resources == expected


HALF = amounts(500, 500, 100)
SUMS = [
    ([HALF, amounts("1k", "1k", "1Ki")], fields(1536, 150_000, 1124)),
    ([amounts(1, 5, 1), amounts(2, 6, 1)], fields(3, 1100, 2)),
    *(([HALF, none], fields(512, -1, -1)) for none in (amounts(-200, -500, -100), None)),
    ([amounts("1M", MAX_INT64, MAX_INT64), amounts("1M", 1, 1)], fields(262144, MAX_INT64, MAX_INT64)),
]


@pytest.mark.parametrize(("containers", "expected"), SUMS)
def test_pod_gets_the_sums(tester: HookTester, containers: list[Any], expected: dict[str, int]) -> None:
    annotations = spec(**dict(zip("ab", containers, strict=False)))
    assert tester.pre_run_pod_sandbox(labels=BE, annotations=annotations).resources == expected


LISTED = spec(main=amounts(500, 500, 500))
UNCHANGED = [
    *((qos(name), LISTED, "main") for name in ("LSE", "LSR", "LS", "SYSTEM", "", "be")),
    *((BE, annotations, "main") for annotations in ({}, spec(), annotation(EXTENDED_RESOURCE_SPEC, "null"))),
    *((BE, LISTED, container) for container in ("sidecar", "MAIN", "")),
]


@pytest.mark.parametrize(("labels", "annotations", "container"), UNCHANGED)
def test_unlisted_pods_and_containers_are_not_changed(
    tester: HookTester, labels: Texts, annotations: Texts, container: str
) -> None:
    call: dict[str, Any] = {"labels": labels, "annotations": annotations}
    if container == "main":
        assert not tester.pre_run_pod_sandbox(**call)
    assert not tester.pre_create_container(**call, container=container)
    assert not tester.pre_update_container_resources(**call, container=container)


ON_NODES = [
    *(("cpu-suppress-policy: cfsQuota", 500, -1), ("cpu-suppress-policy: cpuset", 500, 50_000)),
    *(("cpu-normalization-ratio: 3", limit, quota) for limit, quota in ((500, 16_667), (20, 1000), (None, -1))),
    ("{cpu-normalization-ratio: 3, cpu-suppress-policy: cfsQuota}", 500, -1),
]


@pytest.mark.parametrize(("settings", "limit", "quota"), ON_NODES)
def test_quotas_depend_on_the_nodes_settings(tmp_path: Path, settings: str, limit: int | None, quota: int) -> None:
    tester = HookTester(BatchResource(node(tmp_path, settings), Cgroups(tmp_path)))
    for call in (tester.pre_run_pod_sandbox, tester.pre_create_container, tester.pre_update_container_resources):
        changed = call(labels=BE, annotations=spec(main=amounts(500, limit, 2 * GIB)))
        assert changed.resources == fields(512, quota, 2 * GIB)


CALL: dict[str, Any] = {"labels": BE, "annotations": LISTED, "cgroup_parent": POD}


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Return the files of the pod's cgroup."""
    names = (f"cpu{POD}/cpu.shares", f"cpu{POD}/cpu.cfs_quota_us", f"memory{POD}/memory.limit_in_bytes")
    return tree(tmp_path, dict.fromkeys(names, "old\n"))


def test_pods_cgroup_is_written_by_the_pods_hook_only(tester: HookTester, files: list[Path], caplog: Log) -> None:
    assert tester.pre_create_container(**CALL)
    assert [file.read_text() for file in files] == ["old\n"] * 3
    assert tester.pre_run_pod_sandbox(**CALL)
    assert [file.read_text() for file in files] == ["512\n", "50000\n", "500\n"]
    assert not caplog.records
    assert tester.pre_run_pod_sandbox(labels=BE, annotations=LISTED, cgroup_parent="/kubepods/../..").resources
    assert len(caplog.records) == 3


def test_unnamed_container_lifts_its_pods_limits(tester: HookTester, files: list[Path], caplog: Log) -> None:
    caplog.set_level("INFO", "runtimeproxy_hooks.servers")
    tester.pre_run_pod_sandbox(**CALL)
    for change in (tester.pre_create_container, tester.pre_update_container_resources):
        assert not change(**CALL, container="sidecar")
        assert [file.read_text() for file in files] == ["512\n", "-1\n", "-1\n"]
    [line] = caplog.messages
    assert "/sidecar>" in line
    assert line.endswith("lifted cpu_quota, memory_limit_in_bytes of its pod")


def test_each_kind_of_failed_write_is_logged_once(tester: HookTester, files: list[Path], caplog: Log) -> None:
    shares, quota, memory = files
    for file in (quota, memory):
        file.unlink()
    memory.mkdir()
    for _ in range(2):
        assert tester.pre_run_pod_sandbox(**CALL).resources == fields(512, 50_000, 500)
    assert (shares.read_text(), quota.exists()) == ("512\n", False)
    assert [message.split()[0] for message in caplog.messages] == ["cpu_quota", "memory_limit_in_bytes"]
    quota.mkdir()
    assert tester.pre_run_pod_sandbox(**CALL)
    assert len(caplog.records) == 3, "another kind of error is another line"
