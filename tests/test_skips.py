"""A skipped test counts as failed where engines are required, tested in separate pytest runs with the real conftest."""

from pathlib import Path

import pytest

from tests import skips

pytest_plugins = "pytester"
pytestmark = pytest.mark.slow
MACHINE = "from tests.engines import probe; probe.missing_right = lambda: 'no CAP_TEST; get it'"
# Test files that are run by themselves, to test the result of each kind of skip: nothing of the suite is switched off.
TESTS = """
import unittest
import pytest

def test_that_runs():
    pass

def test_that_says_it():
    pytest.skip("reason 1")

@pytest.mark.skipif(True, reason="reason 2")
def test_that_is_marked():
    pass

class Old(unittest.TestCase):
    def test_that_is_an_old_one(self):
        self.skipTest("reason 3")

@pytest.mark.engine
def test_that_needs_an_engine():
    pass

@pytest.fixture
def lacking():
    pytest.skip("reason 4")

def test_that_lacks_a_fixture(lacking):
    pass

@pytest.mark.xfail(reason="wrong as expected", strict=True)
def test_that_fails_as_expected():
    raise AssertionError
"""
WHOLE = "import pytest; pytest.skip('reason 5', allow_module_level=True)"


@pytest.fixture(autouse=True)
def _own_plugins_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv(skips.VARIABLE, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run both files on a machine without the rights of an engine."""
    pytester.makepyfile(the_machine=MACHINE, test_each=TESTS, test_whole=WHOLE)
    pytester.makeini("[pytest]\nmarkers =\n    engine: needs an engine\n")
    plugins = ("-p", "the_machine", "-p", "tests.conftest", "-p", "no:cacheprovider", "-rs")
    return pytester.runpytest_subprocess(*plugins, "--continue-on-collection-errors", *arguments, timeout=120)


XDIST = pytest.param(("-p", "xdist", "-n", "2"), id="xdist")


@pytest.mark.parametrize("workers", [pytest.param((), id="one process"), XDIST])
def test_skip_counts_as_failure_when_engines_are_required(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    monkeypatch.setenv(skips.VARIABLE, "1")
    done = run(pytester, *workers)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.assert_outcomes(failed=2, passed=1, xfailed=1, errors=4)
    for reason in (*(f"reason {number}" for number in range(1, 6)), "no CAP_TEST; get it"):
        assert f"Skipped: {reason}; {skips.WORDS}" in done.stdout.str()


def test_skip_names_the_missing_right(pytester: pytest.Pytester) -> None:
    done = run(pytester)
    assert done.ret == pytest.ExitCode.OK
    done.assert_outcomes(passed=1, skipped=6, xfailed=1)
    assert "no CAP_TEST; get it" in done.stdout.str()
