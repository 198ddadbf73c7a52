"""Runs pytest and other programs for a soak, and reads what pytest tells of its run.

Owns the commands' environment, their end, the reading of JUnit's XML and of Hypothesis's statistics.
Must not know: which tests are run, what their figures mean.
Invariant: a program is interrupted, not killed, when the soak ends early: it ends what it has started.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from scripts.demonstration.processes import DemoError
from tests.amounts import SHARE_VARIABLE

PYTEST = ("pytest", "--quiet", "-p", "no:cacheprovider")


@dataclass(frozen=True, slots=True)
class Passed:
    """Tests that all passed: each one's name and seconds, and pytest's output."""

    tests: Sequence[tuple[str, float]]
    output: str

    @property
    def examples(self) -> int:
        """Return the examples that Hypothesis says it made; its statistics must be in the output."""
        return sum(map(int, re.findall(r"- (\d+) passing", self.output)))


def run_tests(arguments: Sequence[str], share: float) -> Passed:
    """Run tests with a share of their full amounts.

    Raises DemoError, with pytest's output, if one fails, is skipped, or if there is none.
    """
    with tempfile.TemporaryDirectory(prefix="rp-soak-") as folder:
        report = Path(folder, "report.xml")
        code, output = run_module([*PYTEST, f"--junit-xml={report}", *arguments], {SHARE_VARIABLE: repr(share)})
        if code:
            raise DemoError(f"pytest ended with exit code {code}; its output: {output}")
        return Passed(read_report(report.read_text()), output)


def read_report(xml: str) -> list[tuple[str, float]]:
    """Return each test's name and seconds, of pytest's report in JUnit's XML. Raises DemoError if one was skipped."""
    cases = list(ElementTree.fromstring(xml).iter("testcase"))
    if skipped := [case.attrib["name"] for case in cases if case.find("skipped") is not None]:
        raise DemoError(f"skipped were {', '.join(skipped)}")
    return [(case.attrib["name"], float(case.attrib["time"])) for case in cases]


def run_module(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a Python module with more variables in its environment; return its exit code and its output."""
    command = [sys.executable, "-m", *arguments]
    with subprocess.Popen(
        command,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            output, _ = process.communicate()
        except BaseException:
            process.send_signal(signal.SIGINT)
            raise
    return process.returncode, output
