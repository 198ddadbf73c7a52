"""Groups and tasks on disk: the requests that reach the kernel, and which of its refusals mean nothing."""

import errno
import os
from pathlib import Path

import pytest

from runtimeproxy_hooks.resctrl import Bandwidth, Cache, Machine
from runtimeproxy_hooks.resctrl_fs import ROOT, Resctrl
from tests.fakes.resctrl import AMD, Hardware, StandIn

ME = os.getpid()


class Refusing(StandIn):
    """A stand-in that refuses every write."""

    def _write(self, file: Path, text: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.fixture
def resctrl(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path / "resctrl")


@pytest.mark.parametrize(
    ("hardware", "machine"),
    [
        (Hardware(), Machine({"L3": Cache((0, 1), 11, 1)}, Bandwidth((0, 1), "GenuineIntel", 10, 10))),
        (Hardware(mb_ids=()), Machine({"L3": Cache((0, 1), 11, 1)})),
        (Hardware(l3_ids=()), Machine({}, Bandwidth((0, 1), "GenuineIntel", 10, 10))),
        (Hardware(l3_ids=(), mb_ids=()), Machine()),
        (
            Hardware(cdp=True, mb_ids=(), cbm_mask=0xFFFFF, min_cbm_bits=2),
            Machine({"L3CODE": Cache((0, 1), 20, 2), "L3DATA": Cache((0, 1), 20, 2)}),
        ),
        (
            Hardware(l3_ids=(), mb_ids=(5,), vendor=AMD, min_bandwidth=0, bandwidth_gran=1),
            Machine({}, Bandwidth((5,), AMD, 0, 1)),
        ),
    ],
)
def test_what_can_be_limited_is_read_from_the_tree(tmp_path: Path, hardware: Hardware, machine: Machine) -> None:
    assert StandIn(tmp_path, hardware).machine() == machine


def test_the_vendor_is_this_machines_own(tmp_path: Path) -> None:
    StandIn(tmp_path, Hardware(l3_ids=()))
    said = Path("/proc/cpuinfo").read_text()
    machine = Resctrl(tmp_path).machine()
    known = "GenuineIntel" in said or "AuthenticAMD" in said
    assert (machine.bandwidth is not None and machine.bandwidth.vendor in said) if known else machine.notes


@pytest.mark.parametrize("below", ["", "nothing"])
def test_where_nothing_is_mounted_nothing_can_be_limited(tmp_path: Path, below: str) -> None:
    assert Resctrl(tmp_path / below).machine() == Machine()


def test_a_root_that_cannot_be_read_is_noted(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert Resctrl(file).machine() == Machine(notes=("it cannot be read: Not a directory",))


def test_a_group_is_made_once_and_removed_once(resctrl: StandIn) -> None:
    assert not resctrl.exists("LS")
    assert resctrl.make("LS") is True
    assert resctrl.exists("LS")
    assert resctrl.make("LS") is False
    resctrl.remove("LS")
    assert not resctrl.exists("LS")
    resctrl.remove("LS")


def test_no_free_class_is_an_error(tmp_path: Path) -> None:
    resctrl = StandIn(tmp_path, Hardware(closids=1))
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is looked at
        resctrl.make("LS")
    assert caught.value.errno == errno.ENOSPC


def test_limits_are_written_as_they_are(resctrl: StandIn) -> None:
    resctrl.make("LS")
    resctrl.limit("LS", "L3:1=3\nMB:0=40\n")
    assert (resctrl.root / "LS/schemata").read_text() == "L3:0=7ff;1=003\nMB:0= 40;1=100\n"


def test_a_thread_is_moved_and_one_that_has_ended_is_no_error(resctrl: StandIn) -> None:
    resctrl.make("LS")
    assert resctrl.tasks("LS") == frozenset()
    resctrl.move("LS", ME)
    resctrl.move("LS", int(Path("/proc/sys/kernel/pid_max").read_text()) + 1)
    assert resctrl.tasks("LS") == {ME}


@pytest.mark.parametrize("tid", [0, -1])
def test_the_writer_itself_is_never_moved(resctrl: StandIn, tid: int) -> None:
    resctrl.make("LS")
    with pytest.raises(ValueError, match="above 0"):
        resctrl.move("LS", tid)
    assert resctrl.tasks("LS") == frozenset()


def test_other_refusals_are_raised(tmp_path: Path) -> None:
    resctrl = Refusing(tmp_path)
    resctrl.make("LS")
    with pytest.raises(PermissionError):
        resctrl.move("LS", ME)
    with pytest.raises(PermissionError):
        resctrl.limit("LS", "L3:0=3\n")


@pytest.mark.parametrize(
    "group", ["", ".", "..", "info", "mon_groups", "mon_data", "LS/mon_groups", "/LS", "../LS", "L\nS", "L\0S"]
)
def test_what_is_no_group_is_not_touched(resctrl: StandIn, group: str) -> None:
    before = sorted(resctrl.root.rglob("*"))
    for act in (resctrl.make, resctrl.remove, resctrl.exists, resctrl.tasks):
        with pytest.raises(ValueError, match="a group's name"):
            act(group)
    assert sorted(resctrl.root.rglob("*")) == before


def test_the_kernels_words_are_one_line(resctrl: StandIn, tmp_path: Path) -> None:
    (resctrl.root / "info/last_cmd_status").write_text("Mask out of range\nand more\n")
    assert resctrl.last_status() == "Mask out of range and more"
    (resctrl.root / "info/last_cmd_status").write_text("ok\n")
    assert resctrl.last_status() == ""
    assert Resctrl(tmp_path / "nothing").last_status() == ""


def test_requests_are_plain_mkdir_write_and_rmdir(tmp_path: Path) -> None:
    """What a real mount is asked: here on a bare directory, where each of the three shows."""
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


def test_the_usual_place() -> None:
    assert Resctrl().root == ROOT == Path("/sys/fs/resctrl")
