"""Set up Hypothesis, event loops and engines for the tests, and avoid repeated work in thousands of tests.

There are no deadlines and no timed health checks, so that results do not depend on the machine's load.
"""

import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import none

from tests import amounts, skips
from tests.engines import probe
from tests.fakes.clock import VirtualLoop

# Otherwise every run and every child process compiles each file again, which takes many seconds.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def import_lazily(name: str, function: str) -> None:
    """Import a module on the first call of the only function that is used of it."""

    @cache
    def real() -> Callable[..., Any]:
        del sys.modules[name]  # the stand-in
        return getattr(import_module(name), function)

    sys.modules[name] = ModuleType(name)
    setattr(sys.modules[name], function, lambda *arguments: real()(*arguments))


# jsonschema imports it to check IRIs, which few schemas have. It builds 38 parsers: 1.4 s in each process.
import_lazily("rfc3987_syntax", "is_valid_syntax")


def pytest_configure(config: pytest.Config) -> None:
    """Set up the handling of skips, the times of a soak, and the Hypothesis profile.

    Tests choose their examples after that.
    """
    if os.environ.get(skips.VARIABLE) == "1":
        config.pluginmanager.register(skips)
    if amounts.SHARE_VARIABLE in os.environ:
        config.option.timeout = 0  # no timeout: in a soak tests may take hours
    amounts.quick = "not slow" in config.option.markexpr
    clockless: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    number = amounts.examples()
    # The same examples in every run of scripts/test, new ones in every run of scripts/soak.
    settings.register_profile("usual", max_examples=number, derandomize=True, **clockless)
    settings.register_profile("soak", max_examples=number, derandomize=False, print_blob=True, **clockless)
    settings.load_profile("soak" if amounts.SHARE_VARIABLE in os.environ else "usual")


MISSING: dict[str, Callable[..., str]] = {
    "engine": probe.missing_for,
    "history": probe.missing_history,
    "trees": probe.missing_for_trees,
    "release": probe.missing_for_release,
    "tool": probe.missing_tool,
}
"""By marker: a function of the marker's arguments that returns what the machine lacks, or ""."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test, before its fixtures, if the machine lacks what its markers need."""
    for marker, missing in MISSING.items():
        if (mark := item.get_closest_marker(marker)) and (reason := missing(*mark.args)):
            pytest.skip(reason)


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    marked = item.get_closest_marker("virtual_time") is not None
    return {"virtual time": VirtualLoop} if marked else {"usual": asyncio.new_event_loop}


def pytest_collection() -> None:
    """Disable the garbage collector during collection, which produces hardly any garbage."""
    # Hypothesis creates its random numbers and searches all objects for references to them: there are few now.
    given(none())(lambda _: None)()
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempt tests and modules from garbage collection, and run it rarely."""
    gc.freeze()
    gc.set_threshold(10_000)  # with Python's 700, four seconds of the fast set went into it
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape lone surrogates in captured output, which a worker could not send, and shrink its reports."""
    report = yield
    if report.passed:
        report.keywords = {}  # nearly half of the data; pytest reads only those of skipped tests
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session")
def containerd() -> Iterator[Any]:
    from tests.engines.containerd import Containerd  # slow to import, and most tests need no engine

    with Containerd() as engine:
        yield engine


@pytest.fixture(scope="session")
def dockerd() -> Iterator[Any]:
    from tests.engines.dockerd import Dockerd

    with Dockerd() as engine:
        yield engine


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory with the artefacts of scripts/build; all processes of the run share one build."""
    from tests.building.made import release

    base = tmp_path_factory.getbasetemp()
    return release((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "release")


@pytest.fixture(scope="session")
def archive(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the top of the unpacked archive; the path has a space."""
    folder = tmp_path_factory.mktemp("of its own")
    (file,) = release.glob("*_linux_x86_64.tar.gz")
    subprocess.run(["tar", "-xf", file, "-C", folder], check=True)
    (top,) = folder.iterdir()
    return top
