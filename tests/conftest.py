"""How Hypothesis works here, the engines that tests share, what thousands of tests need not do again and again.

As root on Debian, where everything can run, a skipped test has failed. Hypothesis has the same examples in every run of
scripts/test, new ones in every run of scripts/soak. No deadline and no health check looks at the clock: how busy the
machine is decides nothing. An engine is started once a session, with a root of its own.
"""

import faulthandler
import gc
import os
import sys
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests import amounts, skips
from tests.engines import machine

if TYPE_CHECKING:
    from tests.engines.containerd import Containerd
    from tests.engines.dockerd import Dockerd

# Else every run, and every process that a test starts, would compile each file again: many seconds.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

CLOCKLESS = (HealthCheck.too_slow,)

HANG_SECONDS = 300.0
"""A test that takes about so long shows where it is, but in a soak, where tests may take longer."""


class Watch:
    """Shows all stacks on ``stderr`` if no test begins for a time.

    pytest's own faulthandler_timeout starts a thread for each test and waits for its end: seconds a run, many on a
    machine that is busy.
    """

    AGAIN_SECONDS = 30.0

    def __init__(self, stderr: int) -> None:
        self._stderr = stderr
        self._again = 0.0

    def pytest_runtest_logstart(self) -> None:
        """Put the moment off, if it was not just now."""
        if time.monotonic() >= self._again:
            self._again = time.monotonic() + self.AGAIN_SECONDS
            faulthandler.dump_traceback_later(HANG_SECONDS, file=self._stderr)

    def pytest_unconfigure(self) -> None:
        """Stop watching."""
        faulthandler.cancel_dump_traceback_later()
        os.close(self._stderr)


def pytest_configure(config: pytest.Config) -> None:
    """Watch and judge the tests, and choose the profile before their files say how many examples they want."""
    if not machine.why_no_engine():
        config.pluginmanager.register(skips)
    if amounts.SHARE_VARIABLE not in os.environ:
        config.pluginmanager.register(Watch(os.dup(2)))  # while nothing is captured yet
    amounts.quick = "not slow" in config.option.markexpr
    settings.register_profile(
        "usual", max_examples=amounts.examples(), derandomize=True, deadline=None, suppress_health_check=CLOCKLESS
    )
    settings.register_profile(
        "soak",
        max_examples=amounts.examples(),
        derandomize=False,  # Hypothesis takes its own profile for CI as the default there
        print_blob=True,
        deadline=None,
        suppress_health_check=CLOCKLESS,
    )
    settings.load_profile("soak" if amounts.SHARE_VARIABLE in os.environ else "usual")


def pytest_collection() -> None:
    """Keep the garbage collector away while hardly anything is given up."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep it away from what is there to the end, too: the tests and the modules."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape in what was captured what is no text (lone surrogates): a worker could not report it."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session")
def containerd() -> "Iterator[Containerd]":
    """Return a private containerd with the test images."""
    from tests.engines.containerd import Containerd  # heavy, and most tests need no engine

    with Containerd() as engine:
        yield engine


@pytest.fixture(scope="session")
def dockerd() -> "Iterator[Dockerd]":
    """Return a private dockerd with the test images."""
    from tests.engines.dockerd import Dockerd

    with Dockerd() as engine:
        yield engine
