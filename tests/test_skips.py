"""As root on Debian a skipped test has failed, in pytest runs of their own with the conftest of the tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import skips

ROOT = Path(__file__).parents[1]
MACHINE = (
    "import os, platform; os.geteuid = lambda: {uid}; platform.freedesktop_os_release = lambda: dict(ID='{system}')"
)
# Test files that are run by themselves, to see what becomes of each kind of skip: nothing of the suite is switched off.
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


def run(folder: Path, uid: int, system: str, *arguments: str) -> tuple[int, str, str]:
    """Run both files on a machine as given; return pytest's exit code, its closing line, all it printed."""
    (folder / "the_machine.py").write_text(MACHINE.format(uid=uid, system=system))
    (folder / "test_each.py").write_text(TESTS)
    (folder / "test_whole.py").write_text(WHOLE)
    plugins = ["-p", "the_machine", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugins, "--continue-on-collection-errors", *arguments]
    own = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTHONPATH": f"{folder}:{ROOT}"}
    env = os.environ | own
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout.rstrip().splitlines()[-1].strip("= "), done.stdout + done.stderr


XDIST = pytest.param(("-p", "xdist", "-n", "2"), id="xdist", marks=pytest.mark.slow)


@pytest.mark.parametrize("workers", [pytest.param((), id="one process"), XDIST])
def test_skipped_test_or_file_has_failed_as_root_on_debian(tmp_path: Path, workers: tuple[str, ...]) -> None:
    code, closing, printed = run(tmp_path, 0, "debian", *workers)
    assert code == pytest.ExitCode.TESTS_FAILED, printed
    assert closing.startswith("2 failed, 1 passed, 1 xfailed, 3 errors in "), printed
    for number in range(1, 6):
        assert f"Skipped: reason {number}; {skips.WORDS}" in printed


@pytest.mark.parametrize(("uid", "system"), [(1000, "debian"), (0, "fedora")])
def test_skipped_test_is_skipped_elsewhere(tmp_path: Path, uid: int, system: str) -> None:
    code, closing, printed = run(tmp_path, uid, system)
    assert code == pytest.ExitCode.OK, printed
    assert closing.startswith("1 passed, 5 skipped, 1 xfailed in "), printed
