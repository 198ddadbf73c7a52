"""As root on Debian a skipped test counts as failed, tested in separate pytest runs with the conftest of the tests."""

from pathlib import Path

import pytest

from tests import skips

pytest_plugins = "pytester"
pytestmark = pytest.mark.slow
MACHINE = (
    "import os, platform; os.geteuid = lambda: {uid}; platform.freedesktop_os_release = lambda: dict(ID='{system}')"
)
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
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


def run(pytester: pytest.Pytester, uid: int, system: str, *arguments: str) -> pytest.RunResult:
    """Run both files on a machine as given."""
    pytester.makepyfile(the_machine=MACHINE.format(uid=uid, system=system), test_each=TESTS, test_whole=WHOLE)
    plugins = ("-p", "the_machine", "-p", "tests.conftest", "-p", "no:cacheprovider")
    return pytester.runpytest_subprocess(*plugins, "--continue-on-collection-errors", *arguments, timeout=120)


XDIST = pytest.param(("-p", "xdist", "-n", "2"), id="xdist")


@pytest.mark.parametrize("workers", [pytest.param((), id="one process"), XDIST])
def test_skipped_test_or_file_has_failed_as_root_on_debian(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    done = run(pytester, 0, "debian", *workers)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.assert_outcomes(failed=2, passed=1, xfailed=1, errors=3)
    for number in range(1, 6):
        assert f"Skipped: reason {number}; {skips.WORDS}" in done.stdout.str()


@pytest.mark.parametrize(("uid", "system"), [(1000, "debian"), (0, "fedora")])
def test_skipped_test_is_skipped_elsewhere(pytester: pytest.Pytester, uid: int, system: str) -> None:
    done = run(pytester, uid, system)
    assert done.ret == pytest.ExitCode.OK
    done.assert_outcomes(passed=1, skipped=5, xfailed=1)
