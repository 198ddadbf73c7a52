"""Cgroup files of both versions, on directory trees; tests/system/test_engines_hooked.py uses the kernel's own."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runtimeproxy_hooks.lib.cgroups import SETTINGS, Cgroups, overwrite
from runtimeproxy_hooks.sdk import Malformed
from tests.hooks.nodes import tree

POD = "/kubepods/podx"
CPU, MEMORY, CPUSET = (f"{top}{POD}" for top in ("cpu,cpuacct", "memory", "cpuset"))
V1 = {
    **{f"{CPU}/cpu.shares": "1024\n", f"{CPU}/cgroup.procs": "17\n18\n0\n", f"{CPU}/tasks": "17\n18\n19\n0\n"},
    **{f"{CPU}/c1/cgroup.procs": "20\n", f"{CPU}/c1/tasks": "20\n21\n", f"{MEMORY}/cgroup.procs": "17\n18\n22\n"},
    f"unified{POD}/cgroup.threads": "23\n",
}
V2 = {
    **{"cgroup.controllers": "cpu memory cpuset\n", "kubepods/podx/cgroup.procs": "17\n18\n0\n"},
    **{"kubepods/podx/cgroup.threads": "17\n18\n19\n0\n", "kubepods/podx/c1/cgroup.procs": "20\n"},
    "kubepods/podx/c1/cgroup.threads": "20\n21\n",
}
V1_FILES = {
    **{"cpu_shares": f"{CPU}/cpu.shares", "cpu_quota": f"{CPU}/cpu.cfs_quota_us"},
    **{"memory_limit_in_bytes": f"{MEMORY}/memory.limit_in_bytes", "cpuset_cpus": f"{CPUSET}/cpuset.cpus"},
}
THROUGH_LINK = "cgroup path: it leads through a symbolic link"


def shares_file(cgroups: Cgroups, path: str = POD) -> Path:
    return cgroups.file(path, "cpu", "cpu.shares", "cpu.weight")


USES: dict[str, Callable[[Cgroups, str], object]] = {
    "file": shares_file,
    "write": lambda cgroups, path: cgroups.write(path, "cpu_shares", 2),
    "lift": lambda cgroups, path: cgroups.lift(path, "cpu_quota"),
    "container": lambda cgroups, path: cgroups.container(path, "c1"),
    "pids": Cgroups.pids,
    "tids": Cgroups.tids,
}


@pytest.fixture(params=["v1", "v2"])
def cgroups(tmp_path: Path, request: pytest.FixtureRequest) -> Cgroups:
    tree(tmp_path, V1 if request.param == "v1" else V2)
    if request.param == "v1":
        for link in ("cpu", "cpuacct"):
            (tmp_path / link).symlink_to("cpu,cpuacct")
    return Cgroups(tmp_path)


v1_only = pytest.mark.parametrize("cgroups", ["v1"], indirect=True)


def test_cgroups_mounted_later_are_found(tmp_path: Path) -> None:
    cgroups = Cgroups(tmp_path / "later")
    assert cgroups.absent == f"{tmp_path}/later holds no cgroups: mount the node's there, or set --cgroup-root"
    assert (cgroups.container(POD, "c1"), cgroups.pids(POD), cgroups.tids(POD)) == (None, [], [])
    tree(tmp_path / "later", V1)
    assert not cgroups.absent
    cgroups.write(POD, "cpu_shares", 2)


WRITTEN = [
    # runc's formula
    *(("cpu_shares", shares, "100\n", weight) for shares, weight in ((2, "1"), (28, "1"), (29, "2"), (1024, "39"))),
    *(("cpu_shares", shares, "100\n", weight) for shares, weight in ((262143, "9999"), (1 << 40, "10000"))),
    ("cpu_quota", 50000, "max 100000\n", "50000 100000"),
    ("cpu_quota", -1, "2000 20000\n", "max 20000"),
    ("cpu_quota", -1, "\n", "max 100000"),
    ("memory_limit_in_bytes", 1 << 30, "max\n", "1073741824"),
    ("memory_limit_in_bytes", -1, "1073741824\n", "max"),
    *(("cpuset_cpus", cpus, "0\n", cpus) for cpus in ("2-3,8", "")),
]


@pytest.mark.parametrize(("setting", "value", "before", "in_version_2"), WRITTEN)
def test_value_is_written_in_form_of_each_version(
    cgroups: Cgroups, setting: str, value: int | str, before: str, in_version_2: str
) -> None:
    v2_name = f"kubepods/podx/{SETTINGS[setting].v2_name}"
    [file] = tree(cgroups.root, {v2_name if cgroups.v2 else V1_FILES[setting]: before})
    if value == -1:
        assert [cgroups.lift(POD, setting) for _ in range(2)] == [True, False]
    else:
        cgroups.write(POD, setting, value)
    assert file.read_text() == f"{in_version_2 if cgroups.v2 else value}\n"


OUTSIDE = ("../x", "kubepods/podx", "/kubepods/../../etc", "/kubepods/..", "/kubepods\0/podx")


@pytest.mark.parametrize("use", USES)
def test_path_outside_or_at_root_is_malformed(cgroups: Cgroups, use: str) -> None:
    for path in (*OUTSIDE, *(("", "/", "//", "/./") if use != "container" else ())):
        with pytest.raises(Malformed, match="cgroup path: it must be absolute and below the root"):
            USES[use](cgroups, path)


@pytest.mark.parametrize("use", USES)
def test_linked_cgroup_is_refused(cgroups: Cgroups, use: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    files = tree(outside, dict.fromkeys(("cpu.shares", "cpu.weight", "cgroup.procs", "tasks", "c1/tasks"), "1\n"))
    for top in [cgroups.root] if cgroups.v2 else [path for path in cgroups.root.iterdir() if not path.is_symlink()]:
        (top / "link").symlink_to(outside)
    for path in ("/link", "/link/c1", "/kubepods/podx/../../link"):
        with pytest.raises(Malformed, match="cgroup path"):
            USES[use](cgroups, path)
    assert {file.read_text() for file in files} == {"1\n"}


def test_dangling_or_recursive_link_is_refused(cgroups: Cgroups) -> None:
    loop = shares_file(cgroups, "/loop").parent
    shares_file(cgroups, "/dangling").parent.symlink_to("/not/there")
    loop.symlink_to(loop)
    with pytest.raises(Malformed, match=THROUGH_LINK):
        shares_file(cgroups, "/dangling")
    assert cgroups.pids("/loop") == []
    with pytest.raises(OSError, match="symbolic links"):
        cgroups.write("/loop", "cpu_shares", 2)
    target, link = tree(cgroups.root, {"target": "before", "link": ""})
    link.unlink()
    link.symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        overwrite(link, "after")
    assert target.read_text() == "before"


@v1_only
def test_linked_hierarchy_is_ignored(cgroups: Cgroups, tmp_path_factory: pytest.TempPathFactory) -> None:
    [file] = tree(tmp_path_factory.mktemp("outside"), {"kubepods/podx/cgroup.procs": "99\n"})
    (cgroups.root / "net_cls").symlink_to(file.parents[2])
    assert 99 not in cgroups.pids(POD)
    with pytest.raises(Malformed, match=THROUGH_LINK):
        cgroups.file(POD, "net_cls", "net_cls.classid", "none")


@v1_only
def test_path_is_checked_without_free_descriptor(cgroups: Cgroups, monkeypatch: pytest.MonkeyPatch) -> None:
    (cgroups.root / "cpu,cpuacct/link").symlink_to("/etc")

    def too_many(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", too_many)
    assert shares_file(cgroups).is_file()
    with pytest.raises(Malformed, match=THROUGH_LINK):
        shares_file(cgroups, "/link")


NAMES = ("ab12", "cri-containerd-ab12.scope", "docker-ab12.scope", "crio-ab12", "crio-ab12.scope", "pouch-ab12.scope")


@pytest.mark.parametrize("name", NAMES)
def test_container_is_found_by_its_id(cgroups: Cgroups, name: str) -> None:
    assert [cgroups.container(POD, container_id) for container_id in ("ab12", "")] == [None, None]
    (cgroups.root / ("" if cgroups.v2 else "memory") / "kubepods/podx" / name).mkdir(parents=True)
    assert cgroups.container(POD, "ab12") == cgroups.container(f"{POD}/", "ab12") == f"{POD}/{name}"
    assert cgroups.container("/", "kubepods") == "/kubepods"
    for path in ("..", "a/b", "../c1", "/c1", "c\0"):
        with pytest.raises(Malformed):
            cgroups.container(POD, path)


def test_processes_and_threads_are_listed_recursively(cgroups: Cgroups, tmp_path: Path) -> None:
    (tmp_path / "link to the root").symlink_to(cgroups.root)
    for found in (cgroups, Cgroups(tmp_path / "link to the root")):
        assert (found.pids(POD), found.tids(POD)) == ([17, 18, 20], [17, 18, 19, 20, 21])
        assert (found.pids(f"{POD}/c1"), found.tids(f"{POD}/c1")) == ([20], [20, 21])


@v1_only
def test_next_hierarchy_is_listed_if_first_is_empty(cgroups: Cgroups) -> None:
    for name in ("cgroup.procs", "tasks", "c1/cgroup.procs", "c1/tasks"):
        (cgroups.root / CPU / name).write_text("0\n")
    assert (cgroups.pids(POD), cgroups.tids(POD)) == ([17, 18, 22], [23])


def test_removed_cgroup_has_no_processes_or_new_files(cgroups: Cgroups) -> None:
    before = sorted(cgroups.root.rglob("*"))
    assert cgroups.pids("/kubepods/gone") == cgroups.tids("/kubepods/gone") == []
    for path in ("/kubepods/gone", f"{POD}/c1"):
        with pytest.raises(FileNotFoundError):
            cgroups.write(path, "cpu_shares", 2)
    assert sorted(cgroups.root.rglob("*")) == before, "a file was created"
    file = cgroups.file(f"{POD}/c1", "cpu", "cgroup.procs", "cgroup.procs")
    file.unlink()
    file.symlink_to("gone")  # listed, but missing when it is read
    assert 20 not in cgroups.pids(POD)
