"""The suite's own rules: amounts scale with a soak, and skips count as failures where engines are required."""

import re
from pathlib import Path

import pytest
from hypothesis import settings

from tests import amounts, skips
from tests.docs import ROOT

pytest_plugins = "pytester"
AMOUNTS = [(None, False, (30, 100, 10)), ("0.5", False, (1500, 5000, 500)), (None, True, (2, 8, 10))]


@pytest.mark.parametrize(("share", "quick", "found"), AMOUNTS)
def test_amounts_are_usual_unless_soak_sets_share(
    monkeypatch: pytest.MonkeyPatch, share: str | None, quick: bool, found: tuple[int, ...]
) -> None:
    monkeypatch.delenv(amounts.SHARE_VARIABLE, raising=False)
    if share:
        monkeypatch.setenv(amounts.SHARE_VARIABLE, share)
    monkeypatch.setattr(amounts, "quick", quick)
    assert (amounts.examples(30), amounts.examples(), amounts.EXECS_OF_THE_CLI.now) == found


def test_every_property_test_has_examples_that_scale() -> None:
    assert [path for path in ROOT.glob("tests/**/*.py") if re.search(r"max_examples=\d", path.read_text())] == []
    assert settings().deadline is None
    assert settings.get_profile("usual").derandomize
    assert not settings.get_profile("soak").derandomize


MACHINE = "from tests.engines import probe; probe.missing_right = lambda: 'no CAP_TEST; get it'"
# A separate test file, to test the result of each kind of skip: no test of the suite is disabled.
TESTS = """
import pytest

def test_runs(): pass

def test_within(): pytest.skip("reason 2")

@pytest.mark.engine
def test_engine(): pass

@pytest.fixture
def lacking(): pytest.skip("reason 3")

def test_fixture(lacking): pass

@pytest.mark.xfail(reason="wrong as expected", strict=True)
def test_expected_failure(): raise AssertionError
"""


@pytest.mark.slow
@pytest.mark.parametrize(("required", "workers"), [(False, ()), (True, ()), (True, ("-p", "xdist", "-n", "2"))])
def test_skip_counts_as_failure_when_engines_are_required(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, required: bool, workers: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv(skips.VARIABLE, "1" if required else "0")
    whole = "import pytest; pytest.skip('reason 1', allow_module_level=True)"
    pytester.makepyfile(the_machine=MACHINE, test_each=TESTS, test_whole=whole)
    pytester.makeini("[pytest]\nmarkers =\n    engine: needs an engine\n")
    plugins = ("-p", "the_machine", "-p", "tests.conftest", "-p", "no:cacheprovider", "-rs", *workers)
    done = pytester.runpytest_subprocess(*plugins, "--continue-on-collection-errors", timeout=120)
    assert done.ret == (pytest.ExitCode.TESTS_FAILED if required else pytest.ExitCode.OK)
    done.assert_outcomes(passed=1, xfailed=1, **({"failed": 1, "errors": 3} if required else {"skipped": 4}))
    for reason in ("reason 1", "reason 2", "reason 3", "no CAP_TEST; get it"):
        assert (f"Skipped: {reason}; {skips.WORDS}" if required else reason) in done.stdout.str()
