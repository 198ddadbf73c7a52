"""A skipped test counts as failed where engines are required, tested in separate pytest runs with the real conftest."""

from pathlib import Path

import pytest

from tests import skips

pytest_plugins = "pytester"
pytestmark = pytest.mark.slow
MACHINE = "from tests.engines import probe; probe.missing_right = lambda: 'no CAP_TEST; get it'"
# A separate test file, to test the result of each kind of skip: no test of the suite is disabled.
TESTS = """
import unittest
import pytest

def test_runs():
    pass

@pytest.mark.skipif(True, reason="reason 1")
def test_marked():
    pass

class Old(unittest.TestCase):
    def test_old(self):
        self.skipTest("reason 2")

@pytest.mark.engine
def test_engine():
    pass

@pytest.fixture
def lacking():
    pytest.skip("reason 3")

def test_fixture(lacking):
    pass

@pytest.mark.xfail(reason="wrong as expected", strict=True)
def test_expected_failure():
    raise AssertionError
"""
MODULE = "import pytest; pytest.skip('reason 4', allow_module_level=True)"
XDIST = ("-p", "xdist", "-n", "2")


@pytest.mark.parametrize(("required", "workers"), [(False, ()), (True, ()), (True, XDIST)])
def test_skip_counts_as_failure_when_engines_are_required(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, required: bool, workers: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv(skips.VARIABLE, "1" if required else "0")
    pytester.makepyfile(the_machine=MACHINE, test_each=TESTS, test_whole=MODULE)
    pytester.makeini("[pytest]\nmarkers =\n    engine: needs an engine\n")
    plugins = ("-p", "the_machine", "-p", "tests.conftest", "-p", "no:cacheprovider", "-rs", *workers)
    done = pytester.runpytest_subprocess(*plugins, "--continue-on-collection-errors", timeout=120)
    assert done.ret == (pytest.ExitCode.TESTS_FAILED if required else pytest.ExitCode.OK)
    counts = {"failed": 1, "errors": 4} if required else {"skipped": 5}
    done.assert_outcomes(passed=1, xfailed=1, **counts)
    for reason in (*(f"reason {number}" for number in range(1, 5)), "no CAP_TEST; get it"):
        assert (f"Skipped: {reason}; {skips.WORDS}" if required else reason) in done.stdout.str()
