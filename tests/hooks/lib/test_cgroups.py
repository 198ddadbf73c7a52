"""Cgroup files of both versions, on directory trees; tests/system/test_hook_programs.py uses the kernel's own."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runtimeproxy_hooks.lib.cgroups import SETTINGS, Cgroups, overwrite, weight
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


@pytest.fixture
def v1(tmp_path: Path) -> Cgroups:
    tree(tmp_path, V1)
    for link in ("cpu", "cpuacct"):
        (tmp_path / link).symlink_to("cpu,cpuacct")
    return Cgroups(tmp_path)


@pytest.fixture
def v2(tmp_path: Path) -> Cgroups:
    tree(tmp_path, V2)
    return Cgroups(tmp_path)


@pytest.fixture(params=["v1", "v2"])
def cgroups(request: pytest.FixtureRequest) -> Cgroups:
    found: Cgroups = request.getfixturevalue(request.param)
    assert found.v2 == (request.param == "v2")
    return found


def test_cgroups_that_are_mounted_later_are_found(tmp_path: Path) -> None:
    cgroups = Cgroups(tmp_path / "later")
    assert cgroups.absent == f"{tmp_path}/later holds no cgroups: mount the node's there, or set --cgroup-root"
    assert (cgroups.container(POD, "c1"), cgroups.pids(POD), cgroups.tids(POD)) == (None, [], [])
    with pytest.raises(FileNotFoundError):
        cgroups.write(POD, "cpu_shares", 2)
    tree(tmp_path / "later", V1)
    assert not cgroups.absent
    cgroups.write(POD, "cpu_shares", 2)


V1_FILES = {
    **{"cpu_shares": f"{CPU}/cpu.shares", "cpu_quota": f"{CPU}/cpu.cfs_quota_us"},
    **{"memory_limit_in_bytes": f"{MEMORY}/memory.limit_in_bytes", "cpuset_cpus": f"{CPUSET}/cpuset.cpus"},
}
WRITTEN = [
    ("cpu_shares", 1024, "100\n", "39"),
    ("cpu_quota", 50000, "max 100000\n", "50000 100000"),
    ("cpu_quota", 50000, "2000 20000\n", "50000 20000"),
    ("cpu_quota", -1, "2000 20000\n", "max 20000"),
    ("cpu_quota", -1, "\n", "max 100000"),
    ("memory_limit_in_bytes", 1 << 30, "max\n", "1073741824"),
    ("memory_limit_in_bytes", -1, "1073741824\n", "max"),
    ("cpuset_cpus", "2-3,8", "0\n", "2-3,8"),
    ("cpuset_cpus", "", "0\n", ""),
]


@pytest.mark.parametrize(("setting", "value", "before", "in_version_2"), WRITTEN)
def test_value_is_written_in_the_form_of_each_version(
    cgroups: Cgroups, setting: str, value: int | str, before: str, in_version_2: str
) -> None:
    v2_name = f"kubepods/podx/{SETTINGS[setting].v2_name}"
    [file] = tree(cgroups.root, {v2_name if cgroups.v2 else V1_FILES[setting]: before})
    assert cgroups.lift(POD, setting) if value == -1 else not cgroups.write(POD, setting, value)
    assert file.read_text() == f"{in_version_2 if cgroups.v2 else value}\n"


WEIGHTS = [(-1, 1), (2, 1), (28, 1), (29, 2), (1024, 39), (262143, 9999), (262144, 10000), (1 << 40, 10000)]


@pytest.mark.parametrize(("shares", "expected"), WEIGHTS)
def test_weight_is_runcs_formula(shares: int, expected: int) -> None:
    assert weight(shares) == expected


def test_no_file_is_created(cgroups: Cgroups) -> None:
    before = sorted(cgroups.root.rglob("*"))
    for path in ("/kubepods/gone", f"{POD}/c1"):
        with pytest.raises(FileNotFoundError):
            cgroups.write(path, "cpu_shares", 2)
    assert sorted(cgroups.root.rglob("*")) == before


ROOTS = ("", "/", "//", "/.", "/./")
OUTSIDE = ("../x", "kubepods/podx", "/kubepods/../../etc", "/kubepods/..", "/kubepods\0/podx")
ELSEWHERE = [(use, path) for use in USES for path in (*OUTSIDE, *(ROOTS if use != "container" else ()))]


@pytest.mark.parametrize(("use", "path"), ELSEWHERE)
def test_path_that_leads_elsewhere_or_to_the_root_is_malformed(cgroups: Cgroups, use: str, path: str) -> None:
    with pytest.raises(Malformed, match="cgroup path: it must be absolute and below the root"):
        USES[use](cgroups, path)


@pytest.mark.parametrize("use", USES)
def test_link_leads_nowhere(cgroups: Cgroups, use: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    files = tree(outside, dict.fromkeys(("cpu.shares", "cpu.weight", "cgroup.procs", "tasks", "c1/tasks"), "1\n"))
    for top in [cgroups.root] if cgroups.v2 else [path for path in cgroups.root.iterdir() if not path.is_symlink()]:
        (top / "link").symlink_to(outside)
    for path in ("/link", "/link/c1", "/kubepods/podx/../../link"):
        with pytest.raises(Malformed, match="cgroup path"):
            USES[use](cgroups, path)
    assert {file.read_text() for file in files} == {"1\n"}


def test_linked_hierarchy_is_ignored(v1: Cgroups, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    tree(outside, {"kubepods/podx/cgroup.procs": "99\n"})
    (v1.root / "net_cls").symlink_to(outside)
    assert 99 not in v1.pids(POD)
    with pytest.raises(Malformed, match=THROUGH_LINK):
        v1.file(POD, "net_cls", "net_cls.classid", "none")


def test_linked_file_is_not_written(tmp_path: Path) -> None:
    [target] = tree(tmp_path, {"target": "before"})
    (tmp_path / "file").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        overwrite(tmp_path / "file", "after")
    assert target.read_text() == "before"


NAMES = ("ab12", "cri-containerd-ab12.scope", "docker-ab12.scope", "crio-ab12", "crio-ab12.scope", "pouch-ab12.scope")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("top", ["cpu,cpuacct", "memory", "unified", ""], ids=lambda top: top or "version 2")
def test_container_is_found_in_any_hierarchy(request: pytest.FixtureRequest, top: str, name: str) -> None:
    found: Cgroups = request.getfixturevalue("v1" if top else "v2")
    assert found.container(POD, "ab12") is None
    (found.root / top / "kubepods/podx" / name).mkdir(parents=True)
    assert found.container(POD, "ab12") == found.container(f"{POD}/", "ab12") == f"{POD}/{name}"


def test_container_is_found_by_its_id(cgroups: Cgroups) -> None:
    assert [cgroups.container(POD, name) for name in ("c1", "c2", "")] == [f"{POD}/c1", None, None]
    assert cgroups.container("/", "kubepods") == "/kubepods"
    for path in ("..", "a/b", "../c1", "/c1", "c\0"):
        with pytest.raises(Malformed):
            cgroups.container(POD, path)


def test_processes_and_threads_are_listed_recursively(cgroups: Cgroups) -> None:
    assert (cgroups.pids(POD), cgroups.tids(POD)) == ([17, 18, 20], [17, 18, 19, 20, 21])
    assert (cgroups.pids(f"{POD}/c1"), cgroups.tids(f"{POD}/c1")) == ([20], [20, 21])


def test_next_hierarchy_is_listed_if_the_first_is_empty(v1: Cgroups) -> None:
    for name in ("cgroup.procs", "tasks", "c1/cgroup.procs", "c1/tasks"):
        (v1.root / CPU / name).write_text("0\n")
    assert (v1.pids(POD), v1.tids(POD)) == ([17, 18, 22], [23])


def test_limit_is_lifted_once(cgroups: Cgroups) -> None:
    name = "kubepods/podx/cpu.max" if cgroups.v2 else V1_FILES["cpu_quota"]
    [file] = tree(cgroups.root, {name: "50000 20000\n" if cgroups.v2 else "50000\n"})
    assert [cgroups.lift(POD, "cpu_quota") for _ in range(2)] == [True, False]
    assert file.read_text() == ("max 20000\n" if cgroups.v2 else "-1\n")


def test_link_to_nothing_or_to_itself_leads_nowhere(cgroups: Cgroups) -> None:
    loop = shares_file(cgroups, "/loop").parent
    shares_file(cgroups, "/dangling").parent.symlink_to("/not/there")
    loop.symlink_to(loop)
    with pytest.raises(Malformed, match=THROUGH_LINK):
        shares_file(cgroups, "/dangling")
    assert cgroups.pids("/loop") == []
    with pytest.raises(OSError, match="symbolic links"):
        cgroups.write("/loop", "cpu_shares", 2)


def test_path_is_checked_without_a_free_descriptor(v1: Cgroups, monkeypatch: pytest.MonkeyPatch) -> None:
    (v1.root / "cpu,cpuacct/link").symlink_to("/etc")

    def too_many(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", too_many)
    assert shares_file(v1).is_file()
    with pytest.raises(Malformed, match=THROUGH_LINK):
        shares_file(v1, "/link")


def test_root_may_be_a_link(cgroups: Cgroups, tmp_path_factory: pytest.TempPathFactory) -> None:
    link = tmp_path_factory.mktemp("links") / "root"
    link.symlink_to(cgroups.root)
    assert Cgroups(link).pids(POD) == cgroups.pids(POD) != []


def test_removed_cgroup_has_no_processes(cgroups: Cgroups) -> None:
    assert cgroups.pids("/kubepods/gone") == cgroups.tids("/kubepods/gone") == []
    file = cgroups.file(f"{POD}/c1", "cpu", "cgroup.procs", "cgroup.procs")
    file.unlink()
    file.symlink_to("gone")  # listed, but missing when it is read
    assert 20 not in cgroups.pids(POD)
