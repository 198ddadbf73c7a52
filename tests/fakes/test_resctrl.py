"""The stand-in for resctrl refuses what the kernel refuses, with the kernel's errors, and shows what it took."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes.resctrl import AMD, Hardware, StandIn, until_gone

ME = os.getpid()
ALL = "L3:0=7ff;1=7ff\nMB:0=100;1=100\n"


@contextmanager
def refused(number: int) -> Iterator[None]:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is looked at
        yield
    assert caught.value.errno == number


@pytest.fixture
def standin(tmp_path: Path) -> StandIn:
    standin = StandIn(tmp_path / "resctrl")
    standin.make("one")
    return standin


@pytest.mark.parametrize(
    ("hardware", "schemata"),
    [
        (Hardware(), ALL),
        (Hardware(mb_ids=()), "L3:0=7ff;1=7ff\n"),
        (Hardware(l3_ids=()), "MB:0=100;1=100\n"),
        (Hardware(cdp=True, l3_ids=(3,)), "L3DATA:3=7ff\nL3CODE:3=7ff\n    MB:0=100;1=100\n"),
        (Hardware(cbm_mask=0xFFFFF), "L3:0=fffff;1=fffff\nMB:0=  100;1=  100\n"),
        (Hardware(cbm_mask=0xFF, vendor=AMD), "L3:0=00ff;1=00ff\nMB:0=2048;1=2048\n"),
    ],
)
def test_machine_shows_its_schemata(tmp_path: Path, hardware: Hardware, schemata: str) -> None:
    assert (StandIn(tmp_path, hardware).root / "schemata").read_text() == schemata


def test_classes_run_out(standin: StandIn) -> None:
    standin.make("two")
    standin.make("three")
    with refused(errno.ENOSPC):
        standin.make("four")
    assert standin.last_status() == "Out of CLOSIDs"
    assert standin.make("three") is False, "one that is there needs no new class"
    standin.remove("two")
    assert standin.make("four") is True


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("L3:0=7f;1=7f;\nMB:0=90;1=90;\n", "L3:0=07f;1=07f\nMB:0= 90;1= 90\n"),
        ("L3:1=400\n", "L3:0=7ff;1=400\nMB:0=100;1=100\n"),
        ("MB:0=11\n", "L3:0=7ff;1=7ff\nMB:0= 20;1=100\n"),
        ("  L3:0=0x3\n", "L3:0=003;1=7ff\nMB:0=100;1=100\n"),
    ],
)
def test_line_is_taken(standin: StandIn, line: str, shown: str) -> None:
    standin.limit("one", line)
    assert (standin.root / "one/schemata").read_text() == shown
    assert (standin.root / "info/last_cmd_status").read_text() == "ok\n"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("L3:0=f7\n", "The mask f7 has non-consecutive 1-bits"),
        ("L3:0=0\n", "Mask out of range"),
        ("L3:0=fff\n", "Mask out of range"),
        ("L3:0=1\n", "Need at least 2 bits in the mask"),
        ("L3:0=xy\n", "Non-hex character in the mask xy"),
        ("L3:2=3\n", ""),
        ("L3:x=3\n", "Missing '=' or non-numeric domain"),
        ("L3:0=3;0=3\n", "Duplicate domain 0"),
        ("MB:0=9\n", "MB value 9 out of range [10,100]"),
        ("MB:0=101\n", "MB value 101 out of range [10,100]"),
        ("MB:0=a\n", "Non-decimal digit in MB value a"),
        ("MB:2=50\n", ""),
        ("L2:0=3\n", "Unknown or unsupported resource name 'L2'"),
        ("L3:\n", "Missing ':' or value"),
        ("", ""),
        ("L3:0=3", ""),
        ("L3:0=3\nMB:0=9\n", "MB value 9 out of range [10,100]"),
    ],
)
def test_refused_line_changes_nothing(tmp_path: Path, line: str, why: str) -> None:
    standin = StandIn(tmp_path, Hardware(min_cbm_bits=2))
    standin.make("one")
    with refused(errno.EINVAL):
        standin.limit("one", line)
    assert standin.last_status() == why
    assert (tmp_path / "one/schemata").read_text() == ALL


def test_task_is_in_one_group_and_falls_back_to_the_root(standin: StandIn) -> None:
    standin.make("two")
    standin.move("one", ME)
    assert standin.tasks("one") == {ME}
    standin.move("two", ME)
    assert (standin.tasks("one"), standin.tasks("two")) == (frozenset(), {ME})
    standin.remove("two")
    assert (standin.root / "tasks").read_text() == f"{ME}\n"


def test_ended_thread_is_refused_and_no_longer_listed(standin: StandIn) -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    tid = thread.native_id or 0
    standin.move("one", tid)
    assert standin.tasks("one") == {tid}
    over.set()
    until_gone([tid])
    assert standin.tasks("one") == frozenset()
    with refused(errno.ESRCH):
        standin._write(standin.root / "one/tasks", f"{tid}\n")
    assert standin.last_status() == f"No task {tid}"


def test_absent_group_takes_nothing_and_cannot_be_removed(standin: StandIn) -> None:
    for file in ("schemata", "tasks"):
        with refused(errno.ENOENT):
            standin._write(standin.root / "two" / file, "L3:0=3\n")
    with refused(errno.ENOENT):
        standin._rmdir(standin.root / "two")
