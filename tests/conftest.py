"""How Hypothesis works here, the loops and engines of tests, what thousands of tests need not do again and again.

As root on Debian, where everything can run, a skipped test has failed. No deadline and no health check looks at the
clock: how busy the machine is decides nothing.
"""

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests import amounts, skips
from tests.engines import machine
from tests.fakes.clock import VirtualLoop

if TYPE_CHECKING:
    from tests.engines.containerd import Containerd
    from tests.engines.dockerd import Dockerd

# Else every run, and every process that a test starts, would compile each file again: many seconds.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_configure(config: pytest.Config) -> None:
    """Judge skips, let a soak take its time, and choose the profile before tests say how many examples they want."""
    if not machine.why_no_engine():
        config.pluginmanager.register(skips)
    if amounts.SHARE_VARIABLE in os.environ:
        config.option.timeout = 0  # in a soak tests may take hours
    amounts.quick = "not slow" in config.option.markexpr
    clockless: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    number = amounts.examples()
    # The same examples in every run of scripts/test, new ones in every run of scripts/soak.
    settings.register_profile("usual", max_examples=number, derandomize=True, **clockless)
    settings.register_profile("soak", max_examples=number, derandomize=False, print_blob=True, **clockless)
    settings.load_profile("soak" if amounts.SHARE_VARIABLE in os.environ else "usual")


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run an async test on the loop that it is marked for."""
    marked = item.get_closest_marker("virtual_time") is not None
    return {"virtual time": VirtualLoop} if marked else {"usual": asyncio.new_event_loop}


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
