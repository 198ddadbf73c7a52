"""The soak: every count scales, a failed step is named and keeps no other from running, the document says it all."""

import argparse
import re
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings

from scripts.benchmark import answers, hookmode
from scripts.benchmark.hookservers import HOOK_SERVERS
from scripts.benchmark.limits import Verdict
from scripts.demonstration.processes import DemoError
from scripts.soaking import __main__ as soaking
from scripts.soaking import document, machine, programs, steps, tested
from scripts.soaking.results import Figure, Found, Result
from scripts.soaking.steps import STEPS, Step
from tests import amounts
from tests.amounts import Amount

ROOT = Path(__file__).parents[2]
DAY = date(2026, 11, 21)
NAMES = [step.name for step in STEPS]
RUN_BY_OTHERS = {
    "properties",
    "clients",
    "stalled",
    "demo",
    *(name for name, *_ in steps.FAULTS),
    *(name for name in NAMES if name.startswith(("hung-", "slow-", "crowd-", "lives-", "day-"))),
}
GOOD = Figure("growth", "0.01 MiB", "below 1 MiB", True)
BAD = Figure("growth", "1.50 MiB", "below 1 MiB", False)


def result(*figures: Figure, step: str = "memory", share: float = 1, error: str = "") -> Result:
    return Result(step, "scripts/bench", "memory stays small", "100,000 calls", share, 61.4, Found(figures), error)


def a_step(name: str, find: Callable[[float], Found]) -> Step:
    return Step(name, "scripts/x", "that it works", "10 runs", find)


@pytest.mark.parametrize(
    ("amount", "share", "expected"),
    [
        (Amount(10, 1000), 1, 1000),
        (Amount(10, 1000), 0.01, 10),
        (Amount(1, 10), 0.3, 3),
        (Amount(1, 5), 0.01, 1),
        (Amount(100, 10_000), 0.0346, 346),
    ],
)
def test_an_amount_scales(amount: Amount, share: float, expected: int) -> None:
    assert amount.at(share) == expected


def test_amounts_are_the_usual_ones_unless_a_soak_says_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(amounts.SHARE_VARIABLE, raising=False)
    monkeypatch.setattr(amounts, "quick", False)
    assert (amounts.examples(30), amounts.examples(), amounts.CALLS_OF_A_CLIENT.now) == (30, 100, 1_000)
    monkeypatch.setenv(amounts.SHARE_VARIABLE, "0.5")
    assert (amounts.examples(30), amounts.examples(), amounts.CALLS_OF_A_CLIENT.now) == (1500, 5000, 50_000)


def test_where_slow_tests_are_left_out_there_are_fewer_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(amounts.SHARE_VARIABLE, raising=False)
    monkeypatch.setattr(amounts, "quick", True)
    assert (amounts.examples(1), amounts.examples(30), amounts.examples()) == (1, 7, 25)


def test_no_property_test_has_a_number_of_examples_that_does_not_scale() -> None:
    assert [path for path in ROOT.glob("tests/**/*.py") if re.search(r"max_examples=\d", path.read_text())] == []


def test_hypothesis_depends_on_no_clock() -> None:
    assert settings().deadline is None
    assert settings.get_profile("usual").derandomize
    assert not settings.get_profile("soak").derandomize


@pytest.mark.parametrize(
    ("share", "rounds", "calls_share"), [(1, 5, 1), (0.6, 3, 1), (0.2, 1, 1), (0.01, 1, 0.05), (0.3, 2, 0.75)]
)
def test_rounds_and_calls_of_the_bench_make_the_share(share: float, rounds: int, calls_share: float) -> None:
    assert steps.bench_rounds(share) == (rounds, pytest.approx(calls_share))


def test_shares_are_of_every_step_or_of_one_and_the_later_counts() -> None:
    assert soaking.shares(False, []) == dict.fromkeys(NAMES, 1.0)
    assert soaking.shares(True, []) == dict.fromkeys(NAMES, 0.01)
    chosen = soaking.shares(True, [soaking.share("0.2"), soaking.share("demo=1")])
    assert chosen == {**dict.fromkeys(NAMES, 0.2), "demo": 1.0}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("none=0.1", "there is no step 'none': take one of bench-cri, "),
        ("demo=", "'' is no share"),
        ("0", "'0' is no share: take a number above 0, at most 1"),
        ("1.5", "'1.5' is no share"),
        ("nan", "'nan' is no share"),
    ],
)
def test_a_share_that_is_none(text: str, says: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=re.escape(says)):
        soaking.share(text)


@pytest.mark.parametrize(
    ("ended", "failures"),
    [
        (result(GOOD), []),
        (result(GOOD, Figure("ratio", "9", "1.5", None)), []),
        (result(GOOD, BAD), ["memory: growth is 1.50 MiB, the limit is below 1 MiB"]),
        (result(error="the proxy ended"), ["memory: the proxy ended"]),
        (result(), ["memory: it found nothing"]),
    ],
)
def test_what_failed_is_named(ended: Result, failures: list[str]) -> None:
    assert ended.failures == failures


@pytest.mark.parametrize(
    ("figure", "verdict"),
    [(GOOD, "ok"), (BAD, "MISSED"), (Figure("a", "1", "2"), "not judged"), (Figure("a", "1"), "")],
)
def test_verdicts(figure: Figure, verdict: str) -> None:
    assert figure.verdict == verdict


def test_a_ratio_is_judged_by_its_median_if_at_all() -> None:
    verdict = Verdict("small call", 1.3, 1.1, 1.25)
    judged = Figure("small call", "1.30 (best round 1.10)", "at most 1.25", False)
    assert steps.ratio(verdict, judged=True) == judged
    assert steps.ratio(verdict, judged=False).verdict == "not judged"


def test_the_document() -> None:
    results = [
        result(GOOD, BAD, Figure("calls", "5"), Figure("ratio", "9", "below 1.5", None)),
        result(GOOD, step="streams"),
        result(step="demo", share=0.3, error="see /run/x.sock"),
    ]
    rows = {ended.step: document.row(ended, DAY, "2 cores") for ended in results}
    written = document.render(rows, [("lives-cri", "Resident memory.")])
    assert written == (ROOT / "tests/scripts/soaked.rst").read_text()
    assert dict(document.rows_of(written)) == rows


@pytest.mark.parametrize(
    ("kernel", "words"), [("6.1.0-18-amd64", "Linux 6.1.0,"), ("6.18.44", "Linux 6.18.44,"), ("x", "Linux (unknown),")]
)
def test_the_machine_in_words(kernel: str, words: str) -> None:
    described = machine.in_words(2, 25 << 30, kernel, "Debian GNU/Linux 12", "3.11.7", 1.04)
    assert words in described
    assert described.replace(words, "") == (
        "2 cores, 25 GiB of memory,  Debian GNU/Linux 12, Python 3.11.7; load average 1.0 at the start"
    )
    assert "Python 3." in machine.describe()


def test_pytests_report_is_read() -> None:
    cases = '<testcase name="test_a" time="1.5"/><testcase name="test_a" time="0.25"/>'
    assert programs.read_report(f"<testsuites><testsuite>{cases}</testsuite></testsuites>") == [
        ("test_a", 1.5),
        ("test_a", 0.25),
    ]
    with pytest.raises(DemoError, match="skipped were test_b"):
        programs.read_report('<testsuite><testcase name="test_b" time="0"><skipped/></testcase></testsuite>')


def a_test_file(folder: Path, condition: str) -> list[str]:
    """Write a property test of all numbers; return pytest's arguments that run it."""
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    (folder / "test_numbers.py").write_text(
        "from hypothesis import given, settings, strategies as st\nfrom tests.amounts import examples\n"
        f"@settings(max_examples=examples(10))\n@given(st.integers())\ndef test_number(x):\n    assert {condition}\n"
    )
    return ["--hypothesis-show-statistics", str(folder)]


@pytest.mark.slow
def test_tests_are_run_with_a_share_of_their_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    passed = programs.run_tests(a_test_file(tmp_path, "x == x"), 0.05)
    assert [name for name, _ in passed.tests] == ["test_number"]
    assert passed.examples == 50
    with pytest.raises(DemoError, match=r"(?s)exit code 1.*assert 5 < 5"):
        programs.run_tests(a_test_file(tmp_path, "x < 5"), 1)


@pytest.mark.parametrize("quick", [True, False])
def test_a_failed_step_keeps_no_other_from_running(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, quick: bool
) -> None:
    def fail(share: float) -> Found:
        raise RuntimeError("the engine is gone")

    table = (a_step("first", fail), a_step("second", lambda share: Found([Figure("share", f"{share}")])))
    monkeypatch.setattr(soaking, "STEPS", table)
    monkeypatch.setattr("sys.argv", ["soak", *(["--quick"] if quick else [])])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    assert soaking.main() == 1
    printed = capsys.readouterr()
    assert printed.err == "FAILED: first: the engine is gone\n"
    assert "second: 0.01 of 10 runs" in printed.out or not quick
    assert (tmp_path / "docs" / "results.rst").exists() is not quick


def test_a_step_runs_alone_and_leaves_the_results_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = Found([GOOD])
    monkeypatch.setattr(soaking, "STEPS", (a_step("first", lambda _: found), a_step("second", lambda _: found)))
    monkeypatch.setattr("sys.argv", ["soak", "--step", "second"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    assert soaking.main() == 0
    assert re.findall(r"== (\w+)", capsys.readouterr().out) == ["second"]
    assert list(tmp_path.iterdir()) == []


def test_what_a_step_found_takes_the_place_of_its_last_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(soaking, "STEPS", [a_step(name, lambda _: Found(())) for name in ("memory", "other")])
    for ended in (result(BAD, step="other"), result(GOOD), result(step="other", share=0.5, error="it hung")):
        soaking.write(ended, DAY, "2 cores")
    rows = dict(document.rows_of((tmp_path / "docs" / "results.rst").read_text()))
    assert list(rows) == ["memory", "other"], "in the order of the steps"
    assert rows["other"] == document.row(result(step="other", share=0.5, error="it hung"), DAY, "2 cores")


@pytest.mark.parametrize(
    ("codes", "says"), [([0, 0, 0], ""), ([0, 3, 0], "run 2 ended with exit code 3; its output: so")]
)
def test_the_demo_must_end_well_each_time(monkeypatch: pytest.MonkeyPatch, codes: list[int], says: str) -> None:
    left = iter(codes)
    monkeypatch.setattr(steps, "run_module", lambda arguments, environment: (next(left), "so"))
    [step] = [step for step in STEPS if step.name == "demo"]
    ended = step.run(len(codes) / steps.DEMOS.full)
    assert ended.error == says
    assert [figure.found for figure in ended.found.figures if "in a row" in figure.what] == ([] if says else ["3"])


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("step", [step for step in STEPS if step.name not in RUN_BY_OTHERS], ids=lambda s: s.name)
def test_a_small_part_of_what_no_other_test_runs(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each hook server's row has its own tests, as have the starts of containers.
    monkeypatch.setattr(answers, "one_round", partial(answers.one_round, servers=HOOK_SERVERS[-1:]))
    monkeypatch.setattr(hookmode, "windows", lambda share: "another test starts containers")
    # All of the streams' tests are run anyway: here are those that every byte of a soak goes through.
    monkeypatch.setattr(tested, "run_tests", lambda files, share: programs.run_tests([*files, "-k=both_ways"], share))
    ended = step.run(0.01)
    assert ended.failures == []
    assert bool(ended.found.table) is step.name.startswith("bench-")
    assert all(len(row) == len(ended.found.table[0]) for row in ended.found.table)
    windows = [figure for figure in ended.found.figures if figure.what.startswith(hookmode.WINDOW)]
    assert len(windows) == (2 if step.name == "bench-hooks" else 0)
