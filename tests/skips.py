"""Count a skipped test as failed: tests/conftest.py loads this as a plugin if the variable is 1."""

from collections.abc import Generator
from typing import Any

import pytest

VARIABLE = "RUNTIMEPROXY_REQUIRE_ENGINES"
WORDS = f"with {VARIABLE}=1 a skipped test counts as failed"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Convert the report of a test, a fixture or a test file."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):  # a test that expects a failure is not skipped
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
        # In the process that ran the test: under xdist a worker, whose report is only forwarded.
        report.outcome, report.longrepr = "failed", f"{reason}; {WORDS}"
    return report


pytest_make_collect_report = pytest_runtest_makereport
