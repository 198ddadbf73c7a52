"""resctrl: masks, bandwidth numbers and schemata lines, then groups and tasks on disk."""

import os
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy_hooks.lib import resctrl as pure
from runtimeproxy_hooks.lib.resctrl import Bandwidth, Cache, Machine, Range, Resctrl, Wish
from tests.fakes.resctrl import Hardware, StandIn

INTEL, AMD, ME = "GenuineIntel", "AuthenticAMD", os.getpid()

L3 = Cache((0, 1), ways=11, min_bits=1)
MB = Bandwidth((0, 1), INTEL, minimum=10, step=10)
L3_INFO = {"cbm_mask": "7ff", "min_cbm_bits": "1"}
MB_INFO = {"min_bandwidth": "10", "bandwidth_gran": "10"}


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


@pytest.fixture
def resctrl(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path / "resctrl")


def test_vendor_matches_cpuinfo(tmp_path: Path) -> None:
    StandIn(tmp_path, Hardware(l3_ids=()))
    cpuinfo = Path("/proc/cpuinfo").read_text()
    machine = Resctrl(tmp_path).machine()
    supported = INTEL in cpuinfo or AMD in cpuinfo
    assert (machine.bandwidth is not None and machine.bandwidth.vendor in cpuinfo) if supported else machine.notes


def test_thread_is_moved_unless_it_has_ended(resctrl: StandIn) -> None:
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


@pytest.mark.parametrize("group", ["", "..", "info", "mon_groups", "LS/mon_groups", "/LS", "L\nS", "L\0S"])
def test_invalid_group_name_is_refused(resctrl: StandIn, group: str) -> None:
    before = sorted(resctrl.root.rglob("*"))
    for act in (resctrl.make, resctrl.remove, resctrl.exists, resctrl.tasks):
        with pytest.raises(ValueError, match="a group's name"):
            act(group)
    assert sorted(resctrl.root.rglob("*")) == before


def test_last_status_is_one_line(resctrl: StandIn, tmp_path: Path) -> None:
    (resctrl.root / "info/last_cmd_status").write_text("Mask out of range\nand more\n")
    assert resctrl.last_status() == "Mask out of range and more"
    (resctrl.root / "info/last_cmd_status").write_text("ok\n")
    assert resctrl.last_status() == ""
    assert Resctrl(tmp_path / "nothing").last_status() == ""


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


PARSED: list[tuple[str, dict[str, dict[int, str]]]] = [
    ("    MB:0=2048;1=  16\n    L3:0=00ff;1=ffff\n", {"MB": {0: "2048", 1: "16"}, "L3": {0: "00ff", 1: "ffff"}}),
    *(("L3:0=7ff;\n", {"L3": {0: "7ff"}}), ("L3:uninitialized\nMB:0=90\n", {"MB": {0: "90"}})),
    ("no line\nL3:x=1;1=3\n", {"L3": {1: "3"}}),
]


@pytest.mark.parametrize(("text", "values"), PARSED)
def test_schemata_are_parsed(text: str, values: dict[str, dict[int, str]]) -> None:
    assert pure.parse_schemata(text) == values


def test_missing_or_unreadable_mount_limits_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert Resctrl(tmp_path).machine() == Resctrl(tmp_path / "nothing").machine() == Machine()
    assert Resctrl(tmp_path / "file").machine() == Machine(notes=("it cannot be read: Not a directory",))
