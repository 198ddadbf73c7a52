"""Cgroup files of both versions, on directory trees; test_cgroups_kernel.py has them on the kernel's own."""

import argparse
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy_hooks.cgroups import ROOT, SETTINGS, Cgroups, add_flag, overwrite, weight
from runtimeproxy_hooks.sdk import Malformed
from tests.amounts import examples

POD = "/kubepods/podx"
V1 = {
    "cpu,cpuacct/kubepods/podx/cpu.shares": "1024\n",
    "cpu,cpuacct/kubepods/podx/cpu.cfs_quota_us": "-1\n",
    "cpu,cpuacct/kubepods/podx/cgroup.procs": "17\n18\n0\n",
    "cpu,cpuacct/kubepods/podx/tasks": "17\n18\n19\n0\n",
    "cpu,cpuacct/kubepods/podx/c1/cgroup.procs": "20\n",
    "cpu,cpuacct/kubepods/podx/c1/tasks": "20\n21\n",
    "memory/kubepods/podx/memory.limit_in_bytes": "9223372036854771712\n",
    "memory/kubepods/podx/cgroup.procs": "17\n18\n22\n",
    "cpuset/kubepods/podx/cpuset.cpus": "0-1\n",
    "unified/kubepods/podx/cgroup.threads": "23\n",
}
V2 = {
    "cgroup.controllers": "cpu memory cpuset\n",
    "kubepods/podx/cpu.weight": "39\n",
    "kubepods/podx/cpu.max": "max 100000\n",
    "kubepods/podx/memory.max": "max\n",
    "kubepods/podx/cpuset.cpus": "0-1\n",
    "kubepods/podx/cgroup.procs": "17\n18\n0\n",
    "kubepods/podx/cgroup.threads": "17\n18\n19\n0\n",
    "kubepods/podx/c1/cgroup.procs": "20\n",
    "kubepods/podx/c1/cgroup.threads": "20\n21\n",
}
BAD_PATHS = [
    "",
    "/",
    "//",
    "/.",
    "/./",
    "kubepods/podx",
    "../x",
    "/..",
    "/kubepods/../../etc",
    "/kubepods/..",
    "/kubepods\0/podx",
]
USES: dict[str, Callable[[Cgroups, str], object]] = {
    "file": lambda cgroups, path: cgroups.file(path, "cpu", "cpu.shares", "cpu.weight"),
    "write": lambda cgroups, path: cgroups.write(path, "cpu_shares", 2),
    "container": lambda cgroups, path: cgroups.container(path, "c1") if path.strip("/.") else cgroups.pids(path),
    "pids": Cgroups.pids,
    "tids": Cgroups.tids,
}


def tree(root: Path, files: dict[str, str]) -> Path:
    for path, content in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return root


@pytest.fixture
def v1(tmp_path: Path) -> Cgroups:
    tree(tmp_path, V1)
    for link in ("cpu", "cpuacct"):
        (tmp_path / link).symlink_to("cpu,cpuacct")
    return Cgroups(tmp_path)


@pytest.fixture
def v2(tmp_path: Path) -> Cgroups:
    return Cgroups(tree(tmp_path, V2))


@pytest.fixture(params=["v1", "v2"])
def cgroups(request: pytest.FixtureRequest) -> Cgroups:
    found: Cgroups = request.getfixturevalue(request.param)
    return found


def test_the_version_is_what_is_mounted(cgroups: Cgroups, request: pytest.FixtureRequest) -> None:
    assert cgroups.v2 == ("v2" in request.node.name)


def test_cgroups_that_are_not_mounted_are_looked_for_again(tmp_path: Path) -> None:
    cgroups = Cgroups(tmp_path / "later")
    assert cgroups.absent == f"{tmp_path}/later holds no cgroups: mount the node's there, or set --cgroup-root"
    assert (cgroups.container(POD, "c1"), cgroups.pids(POD), cgroups.tids(POD)) == (None, [], [])
    with pytest.raises(FileNotFoundError):
        cgroups.write(POD, "cpu_quota", -1)
    tree(tmp_path / "later", V1)
    assert not cgroups.absent
    cgroups.write(POD, "cpu_quota", -1)


@pytest.mark.parametrize(
    ("setting", "value", "name", "content"),
    [
        ("cpu_shares", 512, "cpu,cpuacct/kubepods/podx/cpu.shares", "512\n"),
        ("cpu_quota", 50000, "cpu,cpuacct/kubepods/podx/cpu.cfs_quota_us", "50000\n"),
        ("cpu_quota", -1, "cpu,cpuacct/kubepods/podx/cpu.cfs_quota_us", "-1\n"),
        ("memory_limit_in_bytes", 1 << 30, "memory/kubepods/podx/memory.limit_in_bytes", "1073741824\n"),
        ("memory_limit_in_bytes", -1, "memory/kubepods/podx/memory.limit_in_bytes", "-1\n"),
        ("cpuset_cpus", "2-3,8", "cpuset/kubepods/podx/cpuset.cpus", "2-3,8\n"),
        ("cpuset_cpus", "", "cpuset/kubepods/podx/cpuset.cpus", "\n"),
    ],
)
def test_version_1_takes_values_as_cri_has_them(
    v1: Cgroups, setting: str, value: int | str, name: str, content: str
) -> None:
    v1.write(POD, setting, value)
    assert (v1.root / name).read_text() == content


@pytest.mark.parametrize(
    ("setting", "value", "before", "content"),
    [
        ("cpu_shares", 1024, "100\n", "39\n"),
        ("cpu_shares", 2, "100\n", "1\n"),
        ("cpu_quota", 50000, "max 100000\n", "50000 100000\n"),
        ("cpu_quota", 50000, "2000 20000\n", "50000 20000\n"),
        ("cpu_quota", -1, "2000 20000\n", "max 20000\n"),
        ("cpu_quota", -1, "\n", "max 100000\n"),
        ("memory_limit_in_bytes", 1 << 30, "max\n", "1073741824\n"),
        ("memory_limit_in_bytes", -1, "1073741824\n", "max\n"),
        ("cpuset_cpus", "2-3,8", "0\n", "2-3,8\n"),
        ("cpuset_cpus", "", "0\n", "\n"),
    ],
)
def test_version_2_has_words_of_its_own(v2: Cgroups, setting: str, value: int | str, before: str, content: str) -> None:
    file = v2.root / "kubepods/podx" / SETTINGS[setting].v2_name
    file.write_text(before)
    v2.write(POD, setting, value)
    assert file.read_text() == content


@pytest.mark.parametrize(
    ("shares", "expected"),
    [(-1, 1), (0, 1), (2, 1), (3, 1), (28, 1), (29, 2), (1024, 39), (262143, 9999), (262144, 10000), (1 << 40, 10000)],
)
def test_weight(shares: int, expected: int) -> None:
    assert weight(shares) == expected


@given(st.integers(), st.integers())
@settings(max_examples=examples())
def test_more_shares_never_weigh_less(one: int, other: int) -> None:
    assert 1 <= weight(min(one, other)) <= weight(max(one, other)) <= 10000


def test_any_file_by_controller(v1: Cgroups) -> None:
    inside = v1.root / "cpu,cpuacct/kubepods/podx"
    assert v1.file(POD, "cpu", "cpu.bvt_warp_ns", "other") == inside / "cpu.bvt_warp_ns"
    assert v1.file(f"{POD}//c1/.", "cpuacct", "cpuacct.usage", "other") == inside / "c1/cpuacct.usage"
    assert v1.file(POD, "net_cls", "net_cls.classid", "other") == v1.root / "net_cls/kubepods/podx/net_cls.classid"


def test_any_file_of_version_2(v2: Cgroups) -> None:
    assert v2.file(POD, "cpu", "other", "cpu.idle") == v2.root / "kubepods/podx/cpu.idle"


def test_nothing_is_ever_made(cgroups: Cgroups) -> None:
    before = sorted(cgroups.root.rglob("*"))
    for path in ("/kubepods/gone", f"{POD}/c1"):
        with pytest.raises(FileNotFoundError):
            cgroups.write(path, "cpu_shares", 2)
    assert sorted(cgroups.root.rglob("*")) == before


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("path", BAD_PATHS)
def test_a_path_that_leads_elsewhere(cgroups: Cgroups, path: str, use: str) -> None:
    with pytest.raises(Malformed, match="cgroup path: it must be absolute and below the root"):
        USES[use](cgroups, path)


@pytest.mark.parametrize("use", USES)
def test_a_link_leads_nowhere(cgroups: Cgroups, use: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "c1").mkdir()
    for name in ("cpu.shares", "cpu.weight", "cgroup.procs", "tasks"):
        (outside / name).write_text("1\n")
    for top in [cgroups.root] if cgroups.v2 else [path for path in cgroups.root.iterdir() if not path.is_symlink()]:
        (top / "link").symlink_to(outside)
    for path in ("/link", "/link/c1", "/kubepods/podx/../../link"):
        with pytest.raises(Malformed, match="cgroup path"):
            USES[use](cgroups, path)
    assert (outside / "cpu.shares").read_text() == (outside / "cpu.weight").read_text() == "1\n"


def test_a_link_to_what_is_not_there(cgroups: Cgroups) -> None:
    link = cgroups.file("/dangling", "cpu", "cpu.shares", "cpu.weight").parent
    link.symlink_to("/not/there")
    with pytest.raises(Malformed, match="cgroup path: it leads through a symbolic link"):
        cgroups.file("/dangling", "cpu", "cpu.shares", "cpu.weight")


def test_where_there_is_no_descriptor_a_path_is_judged_all_the_same(
    v1: Cgroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    (v1.root / "cpu,cpuacct/link").symlink_to("/etc")

    def too_many(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", too_many)
    assert v1.file(POD, "cpu", "cpu.shares", "cpu.weight").is_file()
    with pytest.raises(Malformed, match="cgroup path: it leads through a symbolic link"):
        v1.file("/link", "cpu", "cpu.shares", "cpu.weight")


def test_a_hierarchy_that_is_a_link(v1: Cgroups, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tree(tmp_path_factory.mktemp("outside"), {"kubepods/podx/cgroup.procs": "99\n"})
    (v1.root / "net_cls").symlink_to(outside)
    assert 99 not in v1.pids(POD)
    with pytest.raises(Malformed, match="cgroup path: it leads through a symbolic link"):
        v1.file(POD, "net_cls", "net_cls.classid", "other")


def test_the_root_may_be_a_link(cgroups: Cgroups, tmp_path_factory: pytest.TempPathFactory) -> None:
    link = tmp_path_factory.mktemp("links") / "root"
    link.symlink_to(cgroups.root)
    assert Cgroups(link).pids(POD) == cgroups.pids(POD) != []


def test_a_link_to_itself(cgroups: Cgroups) -> None:
    loop = cgroups.file("/loop", "cpu", "cpu.shares", "cpu.weight").parent
    loop.symlink_to(loop)
    assert cgroups.pids("/loop") == []
    with pytest.raises(OSError, match="symbolic links"):
        cgroups.write("/loop", "cpu_shares", 2)


def test_a_linked_file_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("before")
    (tmp_path / "file").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        overwrite(tmp_path / "file", "after")
    assert (tmp_path / "target").read_text() == "before"


@pytest.mark.parametrize(
    "name", ["ab12", "cri-containerd-ab12.scope", "docker-ab12.scope", "crio-ab12.scope", "pouch-ab12.scope"]
)
@pytest.mark.parametrize("top", ["cpu,cpuacct", "memory", "unified"])
def test_a_container_is_found_in_any_hierarchy(v1: Cgroups, top: str, name: str) -> None:
    assert v1.container(POD, "ab12") is None
    (v1.root / top / "kubepods/podx" / name).mkdir(parents=True)
    assert v1.container(POD, "ab12") == v1.container(f"{POD}/", "ab12") == f"{POD}/{name}"


def test_a_container_of_version_2(v2: Cgroups) -> None:
    assert v2.container(POD, "c1") == f"{POD}/c1"
    assert v2.container(POD, "c2") is None
    assert v2.container("/", "kubepods") == "/kubepods"


def test_no_id_is_no_container(cgroups: Cgroups) -> None:
    assert cgroups.container(POD, "") is None


@pytest.mark.parametrize("container_id", ["..", "a/b", "../c1", "/c1", "c\0"])
def test_an_id_that_is_a_path(cgroups: Cgroups, container_id: str) -> None:
    with pytest.raises(Malformed):
        cgroups.container(POD, container_id)


def test_processes_and_threads(v1: Cgroups) -> None:
    assert v1.pids(POD) == [17, 18, 20]
    assert v1.tids(POD) == [17, 18, 19, 20, 21]
    assert v1.pids(f"{POD}/c1") == [20]
    for name in ("cgroup.procs", "tasks", "c1/cgroup.procs", "c1/tasks"):
        (v1.root / "cpu,cpuacct/kubepods/podx" / name).write_text("0\n")
    assert v1.pids(POD) == [17, 18, 22]  # the next hierarchy's
    assert v1.tids(POD) == [23]


def test_processes_and_threads_of_version_2(v2: Cgroups) -> None:
    assert v2.pids(POD) == [17, 18, 20]
    assert v2.tids(POD) == [17, 18, 19, 20, 21]
    assert v2.tids(f"{POD}/c1") == [20, 21]


def test_what_is_gone_has_no_processes(cgroups: Cgroups) -> None:
    assert cgroups.pids("/kubepods/gone") == cgroups.tids("/kubepods/gone") == []
    file = cgroups.file(f"{POD}/c1", "cpu", "cgroup.procs", "cgroup.procs")
    file.unlink()
    file.symlink_to("gone")  # listed, and not there when it is read
    assert 20 not in cgroups.pids(POD)


def test_the_flag_is_added_once() -> None:
    parser = argparse.ArgumentParser()
    add_flag(parser)
    add_flag(parser)
    assert parser.parse_args([]).cgroup_root == ROOT
    assert parser.parse_args(["--cgroup-root", "/other"]).cgroup_root == Path("/other")
