"""Cgroup files of both versions, and resctrl's masks, numbers, lines, groups and tasks, on directory trees.

tests/system/test_hook_programs.py uses the kernel's own.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from runtimeproxy_hooks.lib import resctrl as pure
from runtimeproxy_hooks.lib.cgroups import SETTINGS, Cgroups, overwrite
from runtimeproxy_hooks.lib.resctrl import Bandwidth, Cache, Machine, Range, Resctrl, Wish
from runtimeproxy_hooks.sdk import Malformed
from tests.fakes.resctrl import StandIn
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
V1_FILES = {"cpu_shares": f"{CPU}/cpu.shares", "cpu_quota": f"{CPU}/cpu.cfs_quota_us"}
V1_FILES |= {"memory_limit_in_bytes": f"{MEMORY}/memory.limit_in_bytes", "cpuset_cpus": f"{CPUSET}/cpuset.cpus"}
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


def test_cgroups_mounted_later_are_found(tmp_path: Path) -> None:
    cgroups = Cgroups(tmp_path)
    assert cgroups.absent == f"{tmp_path} holds no cgroups: mount the node's there, or set --cgroup-root"
    assert (cgroups.container(POD, "c1"), cgroups.pids(POD), cgroups.tids(POD)) == (None, [], [])
    tree(tmp_path, V1)
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
LINKED = ("/link", "/link/c1", "/kubepods/podx/../../link")


@pytest.mark.parametrize("use", USES)
def test_path_outside_or_through_link_is_malformed(cgroups: Cgroups, use: str, tmp_path_factory: Any) -> None:
    outside = tmp_path_factory.mktemp("outside")
    files = tree(outside, dict.fromkeys(("cpu.shares", "cpu.weight", "cgroup.procs", "tasks", "c1/tasks"), "1\n"))
    for top in [cgroups.root] if cgroups.v2 else [path for path in cgroups.root.iterdir() if not path.is_symlink()]:
        (top / "link").symlink_to(outside)
    for path in (*OUTSIDE, *(("", "/", "//", "/./") if use != "container" else ()), *LINKED):
        words = "it" if path in LINKED else "it must be absolute and below the root"
        with pytest.raises(Malformed, match=f"cgroup path: {words}"):
            USES[use](cgroups, path)
    assert {file.read_text() for file in files} == {"1\n"}


def test_odd_link_is_refused_or_ignored(cgroups: Cgroups, tmp_path_factory: pytest.TempPathFactory) -> None:
    loop = shares_file(cgroups, "/loop").parent
    shares_file(cgroups, "/dangling").parent.symlink_to("/not/there")
    loop.symlink_to(loop)
    target, link = tree(cgroups.root, {"target": "before", "link": ""})
    link.unlink()
    link.symlink_to(target)
    [file] = tree(tmp_path_factory.mktemp("outside"), {"kubepods/podx/cgroup.procs": "99\n"})
    (cgroups.root / "net_cls").symlink_to(file.parents[2])
    with pytest.raises(Malformed, match=THROUGH_LINK):
        shares_file(cgroups, "/dangling")
    for write in (lambda: cgroups.write("/loop", "cpu_shares", 2), lambda: overwrite(link, "after")):
        with pytest.raises(OSError, match="symbolic links"):
            write()
    assert (cgroups.pids("/loop"), target.read_text(), 99 in cgroups.pids(POD)) == ([], "before", False)
    with mock.patch("os.open", side_effect=OSError(errno.EMFILE, "no free descriptor")):
        assert shares_file(cgroups).parent.is_dir()
        with pytest.raises(Malformed, match=THROUGH_LINK):
            shares_file(cgroups, "/dangling")
    if not cgroups.v2:
        with pytest.raises(Malformed, match=THROUGH_LINK):
            cgroups.file(POD, "net_cls", "net_cls.classid", "none")


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
    if not cgroups.v2:  # the next hierarchy, if the first is empty
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


# resctrl

INTEL, AMD, ME = "GenuineIntel", "AuthenticAMD", os.getpid()

L3, MB = Cache((0, 1), ways=11, min_bits=1), Bandwidth((0, 1), INTEL, minimum=10, step=10)
L3_INFO, MB_INFO = {"cbm_mask": "7ff", "min_cbm_bits": "1"}, {"min_bandwidth": "10", "bandwidth_gran": "10"}
FULL, MB_ONLY, L3_ONLY = Machine({"L3": L3}, MB), Machine({}, MB), Machine({"L3": L3})
CODE_AND_DATA = Machine({"L3CODE": L3, "L3DATA": L3})
SPARSE_IDS = Machine({"L3": Cache((8, 16), 4, 1)}, Bandwidth((16,), AMD, 0, 1))
Limits = tuple[Machine, Wish, str, bool]


def capacity_limits(count: int, min_bits: int, percent: Range, mask: str) -> Limits:
    return Machine({"L3": Cache((0,), count, min_bits)}), Wish(l3=percent), f"L3:0={mask}\n", False


def bandwidth(vendor: str, minimum: int, step: int, percent: int, value: int) -> Limits:
    return Machine({}, Bandwidth((0,), vendor, minimum, step)), Wish(mb=percent), f"MB:0={value}\n", False


SCHEMATA: list[Limits] = [
    (FULL, Wish(l3=(0, 100), mb=100), "L3:0=7ff;1=7ff\nMB:0=100;1=100\n", False),
    (FULL, Wish(), "", False),
    # only one cache id is written; the kernel does not change the others
    (FULL, Wish(l3_of={1: (20, 50)}), "L3:1=38\n", False),
    # an id's own value overrides the common one
    (FULL, Wish((20, 80), 20, {0: (20, 50)}, {1: 40}), "L3:0=38;1=1f8\nMB:0=20;1=40\n", False),
    # missing resources are omitted; an id that a resource does not have is reported
    (L3_ONLY, Wish(l3=(0, 100), mb=50), "L3:0=7ff;1=7ff\n", False),
    *((MB_ONLY, Wish(l3_of={7: (0, 50)}), "", False), (L3_ONLY, Wish(mb_of={2: 10}), "", False)),
    (FULL, Wish(l3_of={0: (0, 50), -1: (0, 50)}, mb_of={7: 50}), "L3:0=3f\n", True),
    # code and data have a line each; ids need not be 0 and 1, nor the same
    (CODE_AND_DATA, Wish(l3=(0, 30)), "L3CODE:0=f;1=f\nL3DATA:0=f;1=f\n", False),
    (SPARSE_IDS, Wish(l3=(0, 50), mb=100), "L3:8=3;16=3\nMB:16=2048\n", False),
    # koordlet drops such a line, because both ends round up to the same way
    *(capacity_limits(11, 1, *row) for row in (((95, 100), "400"), ((50, 51), "20"))),
    # the kernel refuses a mask narrower than min_cbm_bits
    *(capacity_limits(20, 2, *row) for row in (((0, 1), "3"), ((99, 100), "c0000"))),
    *(capacity_limits(20, *row) for row in ((3, (50, 52), "700"), (20, (40, 45), "fffff"))),
    *(bandwidth(INTEL, 10, 10, *row) for row in ((1, 10), (11, 20), (90, 90), (91, 100))),
    *(bandwidth(*row) for row in ((INTEL, 5, 5, 12, 15), (INTEL, 10, 30, 95, 100), (AMD, 8, 1, 1, 8))),
    *(bandwidth(AMD, 0, 1, *row) for row in ((1, 1), (33, 52), (99, 158), (100, 2048))),
]


@pytest.mark.parametrize(("machine", "wish", "lines", "unknown"), SCHEMATA)
def test_group_has_line_for_each_resource(machine: Machine, wish: Wish, lines: str, unknown: bool) -> None:
    assert pure.schemata(machine, wish) == lines
    assert pure.unknown_ids(machine, wish) is unknown


BOTH_LINES, BOTH_INFO = "L3:0=7ff;1=7ff\nMB:0=100;1=100\n", {"L3": L3_INFO, "MB": MB_INFO}
AMD_ROOT = "    MB:0=2048\nSMBA:0=2048\n    L3:0=ffff\n"
AMD_INFO = {"L3": {"cbm_mask": "ffff", "min_cbm_bits": "0"}, "MB": {"min_bandwidth": "0", "bandwidth_gran": "0"}}
AMD_MACHINE = Machine({"L3": Cache((0,), 16, 0)}, Bandwidth((0,), AMD, 0, 1))
NO_ROW, WIDER = "L3 is not used: its cbm_mask is not an unbroken row", "L3 is not used: its min_cbm_bits is wider"
FOREIGN = "MB is not used: how its numbers count is known for GenuineIntel"
MEGABYTES = "MB is not used: its numbers are no percentages; mount resctrl"
MACHINES: list[tuple[str, dict[str, dict[str, str]], str, Machine, str]] = [
    (BOTH_LINES, BOTH_INFO, INTEL, FULL, ""),
    ("L3:1=3;0=7ff\n", {"L3": L3_INFO}, INTEL, L3_ONLY, ""),
    ("L3DATA:0=7ff;1=7ff\nL3CODE:0=7ff;1=7ff\n", {"L3CODE": L3_INFO, "L3DATA": L3_INFO}, INTEL, CODE_AND_DATA, ""),
    (AMD_ROOT, AMD_INFO, AMD, AMD_MACHINE, ""),
    # a line without its info, and an info without its line
    *(("L3:0=7ff\n", {}, INTEL, Machine(), ""), ("L2:0=ff\n", {"L3": L3_INFO}, INTEL, Machine(), "")),
    *(("L3:0=1", {"L3": {**L3_INFO, "cbm_mask": mask}}, INTEL, Machine(), NO_ROW) for mask in ("7fe", "0")),
    ("L3:0=1", {"L3": {**L3_INFO, "cbm_mask": ""}}, INTEL, Machine(), "L3 is not used: invalid literal"),
    ("L3:0=1", {"L3": {**L3_INFO, "min_cbm_bits": "12"}}, INTEL, Machine(), WIDER),
    ("MB:0=4294967295", {"MB": MB_INFO}, INTEL, Machine(), MEGABYTES),
    (BOTH_LINES, BOTH_INFO, "HygonGenuine", L3_ONLY, FOREIGN),  # L3 is used
]


@pytest.mark.parametrize(("root", "info", "vendor", "used", "note"), MACHINES)
def test_machine_is_parsed_from_schemata_and_info(root: str, info: Any, vendor: str, used: Machine, note: str) -> None:
    machine = pure.machine_of(root, info, vendor)
    assert (machine.caches, machine.bandwidth, bool(machine)) == (used.caches, used.bandwidth, bool(used))
    assert [text.startswith(note) for text in machine.notes] == ([True] if note else [])


def test_vendor_is_of_cpuinfo_and_no_mount_limits_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert Resctrl(tmp_path).machine() == Resctrl(tmp_path / "nothing").machine() == Machine()
    assert Resctrl(tmp_path / "nothing").last_status() == ""
    assert Resctrl(tmp_path / "file").machine() == Machine(notes=("it cannot be read: Not a directory",))
    StandIn(tmp_path, limits=["MB"])
    cpuinfo = Path("/proc/cpuinfo").read_text()
    machine = Resctrl(tmp_path).machine()
    supported = INTEL in cpuinfo or AMD in cpuinfo
    assert (machine.bandwidth is not None and machine.bandwidth.vendor in cpuinfo) if supported else machine.notes


def test_thread_is_moved_to_group_with_valid_name(tmp_path: Path) -> None:
    resctrl = StandIn(tmp_path)
    assert [resctrl.make("LS") for _ in range(2)] == [True, False]
    for tid in (0, -1):
        with pytest.raises(ValueError, match="above 0"):
            resctrl.move("LS", tid)
    assert resctrl.tasks("LS") == frozenset()
    resctrl.move("LS", ME)
    resctrl.move("LS", int(Path("/proc/sys/kernel/pid_max").read_text()) + 1)
    assert resctrl.tasks("LS") == {ME}
    for _ in range(2):
        resctrl.remove("LS")
        assert not resctrl.exists("LS")
    for text, status in (("Mask out of range\nand more\n", "Mask out of range and more"), ("ok\n", "")):
        (resctrl.root / "info/last_cmd_status").write_text(text)
        assert resctrl.last_status() == status
    before = sorted(tmp_path.rglob("*"))
    for group in ("", "..", "info", "mon_groups", "LS/mon_groups", "/LS", "L\nS", "L\0S"):
        for act in (resctrl.make, resctrl.remove, resctrl.exists, resctrl.tasks):
            with pytest.raises(ValueError, match="a group's name"):
                act(group)
    assert sorted(tmp_path.rglob("*")) == before


def test_requests_are_plain_mkdir_write_and_rmdir(tmp_path: Path) -> None:
    """The requests to a real mount, tested on a bare directory, where each of the three is visible."""
    resctrl = Resctrl(tmp_path)
    resctrl.make("LS")
    assert (tmp_path / "LS").is_dir()
    with pytest.raises(FileNotFoundError):
        resctrl.limit("LS", "L3:0=3\n")
    resctrl.remove("LS")
    assert not (tmp_path / "LS").exists()
    (tmp_path / "BE").mkdir()
    (tmp_path / "BE/tasks").touch()
    resctrl.move("BE", ME)
    assert (tmp_path / "BE/tasks").read_text() == f"{ME}\n"


def test_schemata_are_parsed_without_odd_parts() -> None:
    lines = pure.parse_schemata("    MB:0=2048;1=  16\n    L3:0=00ff;1=ffff\n")
    assert lines == {"MB": {0: "2048", 1: "16"}, "L3": {0: "00ff", 1: "ffff"}}
    odd = pure.parse_schemata("L3:uninitialized\nno line\nMB:0=90;\nL2:x=1;1=3\n")
    assert odd == {"MB": {0: "90"}, "L2": {1: "3"}}
