"""The stand-in for resctrl refuses what the kernel refuses, with the kernel's errors, and shows what it accepted."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes.resctrl import Hardware, StandIn

ME = os.getpid()
ALL = "L3:0=7ff;1=7ff\nMB:0=100;1=100\n"


@contextmanager
def refused(number: int) -> Iterator[None]:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is looked at
        yield
    assert caught.value.errno == number


@pytest.fixture
def standin(tmp_path: Path) -> StandIn:
    standin = StandIn(tmp_path / "resctrl", Hardware(min_cbm_bits=2))
    standin.make("one")
    return standin


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("L3:0=7f;1=7f;\nMB:0=90;1=90;\n", "L3:0=07f;1=07f\nMB:0= 90;1= 90\n"),
        ("  L3:1=600\n", "L3:0=7ff;1=600\nMB:0=100;1=100\n"),
        ("MB:0=11\n", "L3:0=7ff;1=7ff\nMB:0= 20;1=100\n"),
    ],
)
def test_line_is_taken(standin: StandIn, line: str, shown: str) -> None:
    standin.limit("one", line)
    assert ((standin.root / "one/schemata").read_text(), standin.last_status()) == (shown, "")


@pytest.mark.parametrize(
    "line",
    [
        *("L3:0=f7\n", "L3:0=0\n", "L3:0=fff\n", "L3:0=1\n", "L3:0=xy\n", "L3:2=3\n", "L3:x=3\n", "L3:\n", "L2:0=3\n"),
        *("MB:0=9\n", "MB:0=101\n", "MB:0=a\n", "", "L3:0=3", "L3:0=3\nMB:0=9\n"),
    ],
)
def test_refused_line_changes_nothing(standin: StandIn, line: str) -> None:
    with refused(errno.EINVAL):
        standin.limit("one", line)
    assert standin.last_status()
    assert (standin.root / "one/schemata").read_text() == ALL


def test_task_is_in_one_group_and_falls_back_to_the_root(standin: StandIn) -> None:
    standin.make("two")
    standin.move("one", ME)
    assert standin.tasks("one") == {ME}
    standin.move("two", ME)
    assert (standin.tasks("one"), standin.tasks("two")) == (frozenset(), {ME})
    standin.remove("two")
    assert (standin.root / "tasks").read_text() == f"{ME}\n"
