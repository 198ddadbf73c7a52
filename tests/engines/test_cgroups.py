"""The cgroup table reads both versions alike, on directory trees in place of the kernel's."""

from pathlib import Path

import pytest

from tests.engines import cgroups

V1 = {
    "cpu/pod1/c1/cpu.shares": "512\n",
    "cpu/pod1/c1/cpu.cfs_quota_us": "-1\n",
    "cpu/pod1/c1/cpu.cfs_period_us": "100000\n",
    "memory/pod1/c1/memory.limit_in_bytes": "9223372036854771712\n",
    "cpuset/pod1/c1/cpuset.cpus": "0-1,3\n",
    "cpuset/pod1/c1/cpuset.mems": "0\n",
    "cpu/pod1/c1/cgroup.procs": "17\n18\n",
    "memory/pod1/c1/cgroup.procs": "17\n18\n",
}
V2 = {
    "cgroup.controllers": "cpu memory cpuset\n",
    "pod1/c1/cpu.weight": "20\n",
    "pod1/c1/cpu.max": "max 100000\n",
    "pod1/c1/memory.max": "max\n",
    "pod1/c1/cpuset.cpus": "0-1,3\n",
    "pod1/c1/cpuset.mems": "0\n",
    "pod1/c1/cgroup.procs": "17\n18\n",
}
IN_FORCE: dict[str, int | str] = {
    "cpu_shares": 512,
    "cpu_quota": -1,
    "cpu_period": 100000,
    "memory_limit_in_bytes": -1,
    "cpuset_cpus": "0-1,3",
    "cpuset_mems": "0",
}


@pytest.fixture(params=[V1, V2], ids=["v1", "v2"])
def root(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    for path, content in request.param.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return tmp_path


@pytest.mark.parametrize(("setting", "value"), IN_FORCE.items())
def test_setting_reads_the_same_in_both_versions(root: Path, setting: str, value: int | str) -> None:
    assert cgroups.read("/pod1/c1", setting, root) == cgroups.expected(setting, value, root)


def test_limits_are_numbers() -> None:
    assert cgroups.SETTINGS["cpu_quota"].v2("50000 100000") == 50000
    assert cgroups.SETTINGS["memory_limit_in_bytes"].v2("67108864\n") == 67108864
    assert cgroups.SETTINGS["memory_limit_in_bytes"].v1("67108864\n") == 67108864
    assert [cgroups.weight(shares) for shares in (2, 1024, 262144)] == [1, 39, 10000]


def test_file_inside_a_container(root: Path) -> None:
    expected = "cpu.weight" if cgroups.is_v2(root) else "cpu/cpu.shares"
    assert cgroups.inside_file("cpu_shares", root) == f"/sys/fs/cgroup/{expected}"


def test_processes_are_found_and_cgroups_removed(root: Path) -> None:
    assert cgroups.processes("/pod1", root) == {17, 18}
    for file in root.rglob("pod1/**/*"):
        if file.is_file():
            file.unlink()  # the kernel's files vanish with their directory
    cgroups.remove("/pod1", root)
    assert not list(cgroups.directories("/pod1", root))
