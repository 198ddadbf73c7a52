"""Steps that are programs of the project's own: its tests, with a share of their full numbers, and the demo.

A step in which a test fails or is skipped has an error and no figures. A program is interrupted, not killed, when the
soak ends early, so that it can end what it has started.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

from scripts.demonstration.processes import DemoError
from scripts.figures import Figure
from tests.system.blast import BACK_SECONDS
from tests.amounts import SHARE_VARIABLE, Amount

PYTEST = ("pytest", "--quiet", "-p", "no:cacheprovider")
HYPOTHESIS = (*("-n", "2", "--dist", "worksteal"), "-m", "hypothesis", "--hypothesis-show-statistics", "tests")
"""In two processes, because some take many minutes."""
DEMOS = Amount(1, 10)


def system(*names: str) -> Sequence[str]:
    return [f"tests/system/test_{name}.py" for name in names]


def tests(arguments: Sequence[str], share: float) -> list[Figure]:
    """Run tests, whose numbers scale. Raises DemoError, with pytest's output, if one fails, is skipped, or none ran."""
    report, output = reported(arguments, share)
    passed = read_report(report)
    slowest, seconds = max(passed, key=lambda test: test[1])
    figures = [Figure("tests that passed", f"{len(passed)}"), Figure(f"slowest, {slowest}", f"{seconds:.0f} s")]
    figures += read_properties(report)
    if "hypothesis" in arguments:
        examples = sum(map(int, re.findall(r"- (\d+) passing", output)))
        figures.append(Figure("examples that they were given", f"{examples:,}", "1 or more", examples > 0))
    return figures


def blast(share: float) -> list[Figure]:
    """Put each bad hook server before real engines; return how long each way back took. Raises DemoError as ``tests``
    does."""
    report, _ = reported(system("blast_radius"), share)
    took = defaultdict[str, list[float]](list)
    for found in ElementTree.fromstring(report).iter("property"):
        took[found.attrib["name"]].append(float(found.attrib["value"]))
    return [
        Figure("tests that passed", f"{len(read_report(report))}"),
        *(
            Figure(
                f"seconds until a bad hook server is out of the way by: {way}; median and longest of {len(seconds)}",
                f"{median(seconds):.2f}, {max(seconds):.2f}",
                f"at most {BACK_SECONDS:g}",
                max(seconds) <= BACK_SECONDS,
            )
            for way, seconds in took.items()
        ),
    ]


def reported(arguments: Sequence[str], share: float) -> tuple[str, str]:
    """Run tests; return their report and pytest's output. Raises DemoError with the output."""
    with tempfile.TemporaryDirectory(prefix="rp-soak-") as folder:
        report = Path(folder, "report.xml")
        reporting = (f"--junit-xml={report}", "-o", "junit_family=xunit1")  # the other one has no properties
        code, output = run_module([*PYTEST, *reporting, *arguments], {SHARE_VARIABLE: repr(share)})
        if code:
            raise DemoError(f"pytest ended with exit code {code}; its output: {output}")
        return report.read_text(), output


def read_report(xml: str) -> list[tuple[str, float]]:
    """Return each test's name and seconds in pytest's JUnit report. Raises DemoError if one was skipped."""
    cases = list(ElementTree.fromstring(xml).iter("testcase"))
    if skipped := [case.attrib["name"] for case in cases if case.find("skipped") is not None]:
        raise DemoError(f"skipped were {', '.join(skipped)}")
    return [(case.attrib["name"], float(case.attrib["time"])) for case in cases]


def read_properties(xml: str) -> list[Figure]:
    """Return what tests have found (``record_property``) as figures without a limit, which the tests judge."""
    return [
        Figure(f"{entry.attrib['name']} ({case.attrib['name']})", entry.attrib["value"])
        for case in ElementTree.fromstring(xml).iter("testcase")
        for entry in case.iter("property")
    ]


def run_module(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a Python module with additional environment variables; return its exit code and its output."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    command, environ = [sys.executable, "-m", *arguments], os.environ | environment
    with subprocess.Popen(command, env=environ, text=True, errors="replace", **pipes) as process:  # type: ignore[call-overload]
        try:
            output, _ = process.communicate()
        except BaseException:
            process.send_signal(signal.SIGINT)
            raise
    return process.returncode, output


def demo(share: float) -> list[Figure]:
    """Run the demo several times in a row. Raises DemoError with the output of one that fails."""
    seconds = []
    for number in range(1, DEMOS.at(share) + 1):
        start = time.monotonic()
        code, output = run_module(["scripts.demonstration"], {})
        if code:
            raise DemoError(f"run {number} ended with exit code {code}; its output: {output}")
        seconds.append(time.monotonic() - start)
    return [
        Figure("runs in a row with exit code 0", f"{len(seconds)}"),
        Figure("seconds of a run, median and slowest", f"{median(seconds):.1f}, {max(seconds):.1f}"),
    ]
