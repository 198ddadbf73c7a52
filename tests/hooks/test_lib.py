"""Cgroups and resctrl on directory trees, Koordinator's JSON and quantities by Go's rules, and the node's settings."""

import errno
import json
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy_hooks.lib import koordinator
from runtimeproxy_hooks.lib import node as node_module
from runtimeproxy_hooks.lib import resctrl as pure
from runtimeproxy_hooks.lib.cgroups import SETTINGS, Cgroups, overwrite
from runtimeproxy_hooks.lib.koordinator import DEVICE_ALLOCATED, MAX_INT64, Objects, member, milli, quantity, read_json
from runtimeproxy_hooks.lib.node import MAX_BYTES, GroupIdentities, Node, Pool, RdtClass, Settings, parse
from runtimeproxy_hooks.lib.resctrl import Bandwidth, Cache, Machine, Range, Resctrl, Wish
from runtimeproxy_hooks.sdk import Malformed
from tests.fakes.resctrl import StandIn
from tests.hooks.nodes import tree

Log, Patch = pytest.LogCaptureFixture, pytest.MonkeyPatch

# cgroups
POD = "/kubepods/podx"
CPU, MEMORY, CPUSET = (f"{top}{POD}" for top in ("cpu,cpuacct", "memory", "cpuset"))
V1 = {
    **{f"{CPU}/cpu.shares": "1024\n", f"{CPU}/cgroup.procs": "17\n18\n0\n", f"{CPU}/tasks": "17\n18\n19\n0\n"},
    **{f"{CPU}/c1/cgroup.procs": "20\n", f"{CPU}/c1/tasks": "20\n21\n", f"{MEMORY}/cgroup.procs": "17\n18\n22\n"},
    f"unified{POD}/cgroup.threads": "23\n",
}
V2 = {f"kubepods/podx/{file}": text for file, text in (("cgroup.procs", "17\n18\n0\n"), ("c1/cgroup.procs", "20\n"))}
V2 |= {"kubepods/podx/cgroup.threads": "17\n18\n19\n0\n", "kubepods/podx/c1/cgroup.threads": "20\n21\n"}
V2["cgroup.controllers"] = "cpu memory cpuset\n"
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
    *(("cpu_quota", 50000, "max 100000\n", "50000 100000"), ("cpu_quota", -1, "2000 20000\n", "max 20000")),
    *(("cpu_quota", -1, "\n", "max 100000"), ("memory_limit_in_bytes", 1 << 30, "max\n", "1073741824")),
    ("memory_limit_in_bytes", -1, "1073741824\n", "max"),
    *(("cpuset_cpus", cpus, "0\n", cpus) for cpus in ("2-3,8", "")),
]


@pytest.mark.parametrize(("setting", "value", "before", "in_v2"), WRITTEN)
def test_value_is_written_for_version(cgroups: Cgroups, setting: str, value: Any, before: str, in_v2: str) -> None:
    v2_name = f"kubepods/podx/{SETTINGS[setting].v2_name}"
    [file] = tree(cgroups.root, {v2_name if cgroups.v2 else V1_FILES[setting]: before})
    if value == -1:
        assert [cgroups.lift(POD, setting) for _ in range(2)] == [True, False]
    else:
        cgroups.write(POD, setting, value)
    assert file.read_text() == f"{in_v2 if cgroups.v2 else value}\n"


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
    assert (resctrl.make("LS"), (tmp_path / "LS").is_dir()) == (True, True)
    with pytest.raises(FileNotFoundError):
        resctrl.limit("LS", "L3:0=3\n")
    resctrl.remove("LS")
    assert not (tmp_path / "LS").exists()
    [tasks] = tree(tmp_path, {"BE/tasks": ""})
    resctrl.move("BE", ME)
    assert tasks.read_text() == f"{ME}\n"


def test_schemata_are_parsed_without_odd_parts() -> None:
    lines = pure.parse_schemata("    MB:0=2048;1=  16\n    L3:0=00ff;1=ffff\n")
    assert lines == {"MB": {0: "2048", 1: "16"}, "L3": {0: "00ff", 1: "ffff"}}
    odd = pure.parse_schemata("L3:uninitialized\nno line\nMB:0=90;\nL2:x=1;1=3\n")
    assert odd == {"MB": {0: "90"}, "L2": {1: "3"}}


# Koordinator
KINDS = {
    **{dict: "a JSON object", list: "a list", Objects: "a list of JSON objects", str: "a text", float: "a number"},
    **{int: "a whole number of 64 bits", bool: "true or false"},
}
SECRET = "canary"


def read(text: str, *kind: type) -> Any:
    return read_json({DEVICE_ALLOCATED: text}, DEVICE_ALLOCATED, kind or tuple(KINDS))


def read_member(text: str, kind: Any) -> Any:
    return member(read(f'{{"a": {text}}}'), "a", kind)


INVALID_JSON = (
    *("{", " ", SECRET, f'{{"{SECRET}": 1,}}', f"{{'{SECRET}': 1}}", '{"a": 1} {}', '\ufeff{"a": 1}', '{"a": "\x00"}'),
    *("NaN", '{"a": -Infinity}', '{"a": 1e999}', "1" * 5000, "[" * 200_000, '{"a":' * 200_000),
)


@pytest.mark.parametrize("text", INVALID_JSON, ids=lambda text: ascii(text[:20]))
def test_invalid_json_is_malformed_and_not_shown(text: str) -> None:
    with pytest.raises(Malformed, match=f"^annotation {DEVICE_ALLOCATED}: not JSON") as caught:
        read(text)
    assert SECRET not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("spaces", [0, 5000])  # cached, and too long for the cache
def test_error_of_cached_text_names_its_annotation(spaces: int) -> None:
    text = '{"a": {"b": "x"}}' + " " * spaces
    for key in ("one", "two", "one"):
        value = read_json({key: text}, key)
        assert value == {"a": {"b": "x"}}
        with pytest.raises(Malformed, match=f"annotation {key}"):
            member(member(value, "a", dict), "b", int)
        with pytest.raises(Malformed, match=f"annotation {key}: not JSON, from character {len(text)} on"):
            read_json({key: text + "}"}, key)
    for number in range(100):
        assert read_json({"key": f"[{number}]"}, "key") == [number]
    assert koordinator._read.cache_info().currsize == koordinator._READ_TEXTS


MEMBERS = [
    *(('{"BUSid": "a"}', "a"), ('{"bu\u017fID": "a"}', "a"), ('{"busID": ""}', "")),
    *(('{"busID": "a", "BUSID": "b"}', "b"), ('{"busID": "a", "BUSID": "b", "busID": "c"}', "c")),
    *(('{"BUSID": "b", "busID": "a"}', "a"), ('{"busid": "b", "BUSID": null}', "b")),
    *((text, "default") for text in ('{"busID": null}', '{"b": 1}', "null", "")),
]


@pytest.mark.parametrize(("text", "expected"), MEMBERS)
def test_member_is_matched_as_in_go(text: str, expected: str) -> None:
    assert member(read(text), "busID", str, "default") == expected


TYPED: list[tuple[str, set[Any]]] = [
    *(("{}", {dict}), ("true", {bool}), ("[]", {list, Objects}), ('[{"b": 1}, null]', {list, Objects})),
    *(("[{}, []]", {list}), ('"\\ud83d\\ude00"', {str}), ('"x\\udfff"', set()), ("-1", {int, float})),
    *((str(MAX_INT64), {int, float}), (str(MAX_INT64 + 1), {float}), ("1e3", {float})),
]


@pytest.mark.parametrize(("text", "kinds"), TYPED)
def test_member_of_wrong_type_is_malformed(text: str, kinds: set[type]) -> None:
    for kind in KINDS:
        if kind in kinds:
            assert read_member(text, kind) == json.loads(text)
        else:
            with pytest.raises(Malformed, match=rf"^annotation {DEVICE_ALLOCATED}: a must be {KINDS[kind]}$"):
                read_member(text, kind)
    for other in ("[]", '"x"', "1.5", "true"):
        with pytest.raises(Malformed, match=r"^annotation .*: the value must be a JSON object$"):
            read(other, dict)
        with pytest.raises(Malformed, match=r"^what should hold gpu: must be a JSON object$"):
            member(read(other), "gpu", list)
    assert read("null", dict) is None


QUANTITIES = [
    *((0, 0, 0), (-3, -3, -3000), (True + 1, 2, 2000), ("+5", 5, 5000), (" 5\n", 5, 5000), ("007", 7, 7000)),
    *(("1.", 1, 1000), (".5", 1, 500), ("500m", 1, 500), ("0.1m", 1, 1), ("-0.1m", -1, -1), ("-1.5", -2, -1500)),
    *((f"1{unit}", 1, least) for unit, least in (("n", 1), ("u", 1), ("m", 1), ("", 1000), ("e-3", 1))),
    *((f"1{unit}", 1000**n, 1000 ** (n + 1)) for n, unit in enumerate("kMGTP", 1)),
    *((f"1{unit}i", 1024**n, 1024**n * 1000) for n, unit in enumerate("KMGTP", 1)),
    *((text, 1000, 1_000_000) for text in ("1e3", "1E3", "1e+3", "1e0000003")),
    *(("9007199254740993", 9007199254740993, 9007199254740993000), ("0." + "0" * 61 + "1", 1, 1)),
    *(("0e999999999", 0, 0), ("0e-999999999", 0, 0), ("1e-999999999", 1, 1), ("-1e-999999999", -1, -1)),
    # A number of JSON keeps its text: a double cannot represent these.
    *((read("9007199254740993.0"), 9007199254740993, 9007199254740993000), (read("1.5"), 2, 1500)),
    (read("0.1000000000000000055511151231257827"), 1, 101),
]


@pytest.mark.parametrize(("value", "rounded", "thousandths"), QUANTITIES)
def test_quantity_is_exact_and_rounded_up(value: Any, rounded: int, thousandths: int) -> None:
    assert (quantity(value, "x"), milli(value, "x")) == (rounded, thousandths)


TOO_GREAT = [2**63, -(2**63), "9223372036854775808", "8Ei", "-10E", "1e19", "1e999999999", f"{MAX_INT64}.1"]
NO_QUANTITIES = [
    *("", " ", "-", ".", "Gi", "m", "e3", "1e", "1e+", "1 Gi", "1gi", "1K", "1Kim", "1e3Ki", "1_000", "1" * 65, "1,5"),
    *("1.2.3", "--1", "0x10", "1/2", "inf", "\u0663", "1\n1", SECRET, "1e" + "9" * 63, 10**70, float("nan"), True),
    *(None, [], {"a": 1}),
]


@pytest.mark.parametrize("value", [*TOO_GREAT, *NO_QUANTITIES])
def test_malformed_quantity_is_error_and_not_shown(value: Any) -> None:
    words = "^gpu-memory: beyond 64 bits" if value in TOO_GREAT else "^gpu-memory: not a quantity"
    for reads in (quantity, milli):
        with pytest.raises(Malformed, match=words) as caught:
            reads(value, "gpu-memory")
        assert SECRET not in str(caught.value)


# The node.
RDT = {"LSR": RdtClass(False, (0, 100), 100), "LS": RdtClass(False, (0, 100), 100), "BE": RdtClass(False, (0, 30), 100)}
IDENTITIES = GroupIdentities(enable=False, lsr=2, ls=2, be=-1)
DEFAULTS = Settings(1.0, "", (), (), False, "none", "", True, RDT, IDENTITIES)
TWO_POOLS = "shared-pools: [{socket: 0, node: 0, cpuset: '0-3'}, {socket: 1, node: 1, cpuset: '8,10-11'}]"
TWO_PARSED_POOLS = Pool(0, 0, "0-3"), Pool(1, 1, "8,10-11")
SWITCHES = (("be_cpu_manager", True), ("unset_cpu_quota", False), ("kubelet_cpu_manager_policy", "static"))
TWO_CLASSES = "rdt: {LSR: {enable: true, l3: [95, 100], mb: 90}, LS: {l3: [0, 1], mb: 1}}"
TWO_PARSED = {"LSR": RdtClass(True, (95, 100), 90), "LS": RdtClass(False, (0, 1), 1), "BE": RdtClass(l3=(0, 30))}
KEYS = [
    *((f"cpu-normalization-ratio: {text}", "cpu_normalization_ratio", float(text)) for text in ("2", ".5", "1.5e+1")),
    *((f"system-cpuset: {text}", "system_cpuset", text.strip("'")) for text in ("0-1", "010", "08,09", "''")),
    *((TWO_POOLS, "shared_pools", TWO_PARSED_POOLS), ("shared-pools: [{}]", "shared_pools", (Pool(0, 0, ""),))),
    ("be-shared-pools: [{node: 3, cpuset: 7}]", "be_shared_pools", (Pool(0, 3, "7"),)),
    *((f"{key.replace('_', '-')}: {str(value).lower()}", key, value) for key, value in SWITCHES),
    ("cpu-suppress-policy: cfsQuota", "cpu_suppress_policy", "cfsQuota"),
    *(("rdt: {BE: }", "rdt", RDT), (TWO_CLASSES, "rdt", TWO_PARSED)),
    ("group-identity: {enable: true, LSR: 1, LS: 0}", "group_identity", GroupIdentities(True, 1, 0, -1)),
]


@pytest.mark.parametrize(("text", "attribute", "expected"), KEYS)
def test_key_changes_only_its_setting(text: str, attribute: str, expected: Any) -> None:
    assert parse(text.encode(), "node.yaml") == replace(DEFAULTS, **{attribute: expected})
    for nothing in ("", "# nothing\n", "null", "{}", "rdt:\nshared-pools:\nsystem-cpuset: ~\n"):
        assert parse(nothing.encode(), "node.yaml") == Settings() == DEFAULTS


RATIO = "cpu-normalization-ratio must be a number above 0"
POLICY = "cpu-suppress-policy must be cfsQuota or cpuset; without the key the default holds"
MANAGER = "kubelet-cpu-manager-policy must be none or static; without the key the default holds"
CPUS = 'must be a list of CPUs, n and n-m with n <= m, like "0-3,8"'
PERCENTS = "rdt.BE.l3 must be [start, end] in whole percent, 0 <= start < end <= 100"
MB_RULE = "rdt.LS.mb must be a whole number from 1 to 100"
SETTINGS_KEYS = "cpu-normalization-ratio, cpu-suppress-policy, shared-pools, be-shared-pools, be-cpu-manager, "
SETTINGS_KEYS += "kubelet-cpu-manager-policy, system-cpuset, unset-cpu-quota, rdt, group-identity"
MAPPING = f"must be a mapping with some of the keys {SETTINGS_KEYS}"
NO_RATIOS = ("0", "-1", ".inf", ".nan", "x", "true", "[1]", "1:30.5", "1_0", "010", f"1{'0' * 400}")
NO_CPUSETS = ("0-", "[0]", "2024-01-01", '"0\\n"', "'\u0663'", "7-0", "0-12345678901", "1:30", "0_1", "0x1", "+1")
NO_PERCENTS = ("30", "[0, 5, 9]", "[a, b]", "[0, 3.0]", "[-1, 5]", "[5, 101]", "[5, 5]", "[false, 5]")
NO_MB = ("0", "101", "50.0", "'50'", "true", "050", "0:50")
INVALID = [
    *((f"cpu-normalization-ratio: {value}", RATIO) for value in NO_RATIOS),
    *((f"cpu-suppress-policy: {value}", POLICY) for value in ("CFSQuota", "1", "[]", "''")),
    ("kubelet-cpu-manager-policy: false", MANAGER),
    *((f"system-cpuset: {value}", f"system-cpuset {CPUS}") for value in NO_CPUSETS),
    *((f"rdt: {{BE: {{l3: {value}}}}}", PERCENTS) for value in NO_PERCENTS),
    *((f"rdt: {{LS: {{mb: {value}}}}}", MB_RULE) for value in NO_MB),
    ("be-cpu-manager: 1", "be-cpu-manager must be true or false"),
    ("shared-pools: {}", "shared-pools must be a list of socket, node, cpuset"),
    ("shared-pools: [0-3]", "shared-pools[0] must be a mapping with some of the keys socket, node, cpuset"),
    ("shared-pools: [{}, {cpuset: x}]", f"shared-pools[1].cpuset {CPUS}"),
    ("shared-pools: [{node: -1}]", f"shared-pools[0].node must be a whole number from 0 to {2**31 - 1}"),
    ("be-shared-pools: [{cpus: 1}]", "unknown key 'be-shared-pools[0].cpus'; did you mean cpuset?"),
    ("rdt: {BE: true}", "rdt.BE must be a mapping with some of the keys enable, l3, mb"),
    ("rdt: {be: {}}", "unknown key 'rdt.be'; did you mean BE?"),
    ("group-identity: {LS: 3}", "group-identity.LS must be a whole number from -1 to 2"),
    ("1: 1", f"unknown key '1'; there are {SETTINGS_KEYS}"),
    (f"{'z' * 900}: 1", f"unknown key '{'z' * 64}'; there are {SETTINGS_KEYS}"),
    ("rdt: {}\n\nrdt: {}", "'rdt' is in line 1 and in line 3: remove one"),
    ("&a [*a]", f"the file {MAPPING}"),
    ("[" * 50, "more than 10 levels deep; the settings have three"),
    ("#" * (MAX_BYTES + 1), f"longer than {MAX_BYTES} bytes; the settings are a few lines"),
]


@pytest.mark.parametrize(("text", "error"), INVALID, ids=lambda value: value[:60].replace("[" * 50, "deep"))
def test_invalid_value_is_error_with_file_key_and_rule(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text.encode(), "/etc/node.yaml")
    assert str(caught.value) == f"/etc/node.yaml: {error}"


NO_YAML = [b"{", b"\xff\xfe\xfd", b"\x00", b"[" * 100_000, b"!!python/object/apply:os.getcwd []", b"rdt: *gone"]


@pytest.mark.parametrize("content", NO_YAML)
def test_invalid_yaml_is_error_of_one_line(content: bytes) -> None:
    with pytest.raises(ConfigError, match=r"^node: this is not YAML: [^\n]+$"):
        parse(content, "node")


RATIO_IS = "cpu-normalization-ratio:"
LOADED, MISSING = ": node settings applied", " is not there: the default settings hold"
LIFE = [
    ("", 1, "INFO", " is empty: the default settings hold"),  # written in place, incomplete
    ("rdt: 7", 1, "ERROR", ": rdt must be a mapping with some of the keys LSR, LS, BE; the default settings hold"),
    *((f"{RATIO_IS} {ratio}", ratio, "INFO", LOADED) for ratio in (2, 2.5)),
    ("", 2.5, "INFO", " is empty: the last good settings hold"),
    (f"{RATIO_IS} x", 2.5, "ERROR", f": {RATIO}; the last good settings hold"),
    ("3", 2.5, "ERROR", f": the file {MAPPING}; the last good settings hold"),
    *(("{}", 1, "INFO", LOADED), (None, 1, "WARNING", MISSING), (f"{RATIO_IS} 3", 3, "INFO", LOADED)),
]
ODD_FILES = [(True, os.mkfifo), (False, Path.mkdir), (False, lambda path: path.symlink_to(path))]


@pytest.mark.parametrize(("usual", "make"), ODD_FILES)
def test_each_change_is_logged_once(tmp_path: Path, caplog: Log, monkeypatch: Patch, usual: bool, make: Any) -> None:
    file = tmp_path / "node.yaml"
    monkeypatch.setattr(node_module, "DEFAULT_FILE", file if usual else tmp_path / "unusual")
    caplog.set_level(logging.INFO)
    node = Node(file)
    for text, expected, level, words in [(None, 1, "INFO" if usual else "WARNING", MISSING), *LIFE]:
        if text is not None:
            file.write_text(text)
        elif file.exists():
            file.unlink()
        assert [node.settings.cpu_normalization_ratio for _ in range(3)] == [expected] * 3
        assert [(record.levelname, record.getMessage()) for record in caplog.records] == [(level, f"{file}{words}")]
        caplog.clear()
    assert Node(None).settings == DEFAULTS
    assert not caplog.records
    file.unlink()
    make(file)
    assert node.settings == node.settings
    [message] = caplog.messages
    assert str(file) in message


def test_config_map_change_is_found_and_not_reverted(tmp_path: Path, monkeypatch: Patch, caplog: Log) -> None:
    for version in ("1.5", "2.5"):
        [file] = tree(tmp_path, {f"{version}/node.yaml": f"{RATIO_IS} {version}"})
        os.utime(file, ns=(0, 0))
    (tmp_path / "..data").symlink_to("1.5")
    (tmp_path / "node.yaml").symlink_to("..data/node.yaml")
    node = Node(tmp_path / "node.yaml")
    assert node.settings.cpu_normalization_ratio == 1.5
    assert node.settings is node.settings
    (tmp_path / "new").symlink_to("2.5")
    (tmp_path / "new").rename(tmp_path / "..data")
    assert node.settings.cpu_normalization_ratio == 2.5
    seen, late = node_module._state, iter([None])  # a slow thread sees the state before the file existed
    monkeypatch.setattr(node_module, "_state", lambda path: next(late, seen(path)))
    caplog.set_level(logging.INFO)
    assert (node.settings.cpu_normalization_ratio, next(late, "used")) == (2.5, "used")
    assert not caplog.records
