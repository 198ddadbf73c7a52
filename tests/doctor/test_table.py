"""The table of checks, and how one check's fault is kept from the others."""

import re
import threading
from collections.abc import Iterator

import pytest

from runtimeproxy.cli.doctor import table
from runtimeproxy.cli.doctor.findings import Check, Finding, Verdict, ok
from runtimeproxy.cli.doctor.machine import Machine
from runtimeproxy.errors import ConfigError
from tests.docs import DOCS
from tests.doctor.made import Made

CANARY = "canary-4711"


def test_each_check_has_its_section_in_the_documentation() -> None:
    terms = re.findall(r"^_`doctor-([\w-]+)`\n    \w", DOCS["troubleshooting"], re.MULTILINE)
    assert terms == [check.id for check in table.CHECKS]
    assert table.CHECKS[0].place == "docs/troubleshooting.rst#doctor-socket"


ERRORS: list[tuple[Exception, Verdict, str]] = [
    (PermissionError(13, "Permission denied", "/proc/1/fd"), Verdict.UNKNOWN, "/proc/1/fd: Permission denied"),
    (OSError(), Verdict.UNKNOWN, "OSError"),
    (ConfigError("there is no group 'x'"), Verdict.WARNING, "there is no group 'x'"),
    (ValueError(CANARY), Verdict.UNKNOWN, f"unexpected ValueError at {__file__}:"),
]


@pytest.mark.parametrize(("error", "verdict", "words"), ERRORS)
def test_check_that_raises_hides_no_other(made: Made, error: Exception, verdict: Verdict, words: str) -> None:
    def fail(machine: Machine) -> Iterator[Finding]:
        yield ok("half")
        raise error

    def well(machine: Machine) -> list[Finding]:
        return [ok("well")]

    checks = [Check("a", "", fail), Check("b", "", well)]
    (_, first), (_, second) = table.examine(made.machine, checks)
    assert (first.verdict, first.why.startswith(words), CANARY in first.why) == (verdict, True, False)
    assert second == ok("well")


def test_check_that_hangs_hides_no_other(made: Made) -> None:
    """Those that call begin when the others have ended."""
    over, order = threading.Event(), list[str]()

    def hang(machine: Machine) -> list[Finding]:
        order.append("a")
        over.wait()
        return []

    def well(machine: Machine) -> list[Finding]:
        order.append("b")
        return [ok("well")]

    checks = [Check("a", "a file", hang, calls=True), Check("b", "", well)]
    (_, first), (_, second) = table.examine(made.machine, checks, seconds=0.5)
    over.set()
    assert (first.verdict, first.why) == (Verdict.WARNING, "no answer within 0.5 s: a file")
    assert (second, order) == (ok("well"), ["b", "a"])


def test_examination_of_a_made_machine_changes_nothing(made: Made) -> None:
    made.proxy()
    made.process(40, "kubelet")
    before = {path: path.lstat().st_mtime_ns for path in made.root.parent.rglob("*")}
    list(table.examine(made.machine))
    assert {path: path.lstat().st_mtime_ns for path in made.root.parent.rglob("*")} == before
