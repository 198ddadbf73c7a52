"""Count a skipped test as failed: tests/conftest.py loads this as a plugin if the variable is 1."""

from collections.abc import Generator
from typing import TypeVar

import pytest

VARIABLE = "RUNTIMEPROXY_REQUIRE_ENGINES"
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)
WORDS = f"with {VARIABLE}=1 a skipped test counts as failed"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _judged((yield))


def _judged(report: Report) -> Report:
    if report.skipped and not hasattr(report, "wasxfail"):  # a test that expects a failure is not skipped
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
        # In the process that ran the test: under xdist a worker, whose report is only forwarded.
        report.outcome, report.longrepr = "failed", f"{reason}; {WORDS}"
    return report
