"""The soak: every count scales, a failed step is named and keeps no other from running, the page has all results."""

import argparse
import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import settings

from scripts.benchmark import admin, hooks
from scripts.benchmark.cases import CRI, DOCKER, HOOKED, PROXY
from scripts.benchmark.loads import Run
from scripts.benchmark.peers import Gate
from scripts.demonstration.processes import DemoError
from scripts.figures import Figure
from scripts.soaking import __main__ as soaking
from scripts.soaking import day, endurance, results, steps, tested, under_load
from scripts.soaking.day import EVENTS, KUBELETS, LINES, Kubelet
from scripts.soaking.endurance import CYCLE, ENDS, FRONTS, LIVES, RUNTIMES, Endured, Fake, Observed, Rest, Sample
from scripts.soaking.results import Found, Result
from scripts.soaking.steps import STEPS, Step
from tests import amounts
from tests.amounts import Amount
from tests.system.proxy import ProxyProcess

Patch, Out = pytest.MonkeyPatch, pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]
NAMES = [step.name for step in STEPS]
GOOD = Figure("growth", "0.01 MiB", "below 1 MiB", True)
BAD = Figure("growth", "1.50 MiB", "below 1 MiB", False)
UNJUDGED = Figure("ratio", "9", "below 1.5")
FULL = "100,000 calls"


@pytest.mark.parametrize(
    ("full", "share", "amount"), [(1000, 1, 1000), (1000, 0.01, 10), (5, 0.01, 1), (10_000, 0.0346, 346)]
)
def test_amount_scales(full: int, share: float, amount: int) -> None:
    assert Amount(1, full).at(share) == amount


@pytest.mark.parametrize(
    ("share", "quick", "found"),
    [(None, False, (30, 100, 1_000)), ("0.5", False, (1500, 5000, 50_000)), (None, True, (5, 16, 1_000))],
)
def test_amounts_are_the_usual_ones_unless_a_soak_says_its_share(
    monkeypatch: Patch, share: str | None, quick: bool, found: tuple[int, ...]
) -> None:
    monkeypatch.delenv(amounts.SHARE_VARIABLE, raising=False)
    if share:
        monkeypatch.setenv(amounts.SHARE_VARIABLE, share)
    monkeypatch.setattr(amounts, "quick", quick)
    assert (amounts.examples(30), amounts.examples(), amounts.CALLS_OF_A_CLIENT.now) == found


def test_every_property_test_has_examples_that_scale() -> None:
    assert [path for path in ROOT.glob("tests/**/*.py") if re.search(r"max_examples=\d", path.read_text())] == []
    assert settings().deadline is None
    assert settings.get_profile("usual").derandomize
    assert not settings.get_profile("soak").derandomize


@pytest.mark.parametrize(
    ("share", "rounds", "calls_share"), [(1, 5, 1), (0.6, 3, 1), (0.2, 1, 1), (0.01, 1, 0.05), (0.3, 2, 0.75)]
)
def test_rounds_and_calls_of_the_bench_make_the_share(share: float, rounds: int, calls_share: float) -> None:
    assert steps.rounds(share) == (rounds, pytest.approx(calls_share))


def test_later_share_counts() -> None:
    assert soaking.shares(False, []) == dict.fromkeys(NAMES, 1.0)
    assert soaking.shares(True, []) == dict.fromkeys(NAMES, 0.01)
    chosen = soaking.shares(True, [soaking.share("0.2"), soaking.share("demo=1")])
    assert chosen == {**dict.fromkeys(NAMES, 0.2), "demo": 1.0}


NO_SHARES = [
    ("none=0.1", "there is no step 'none': take one of memory-cri, "),
    *((f"demo={text}", f"'{text}' is no share: take a number above 0, at most 1") for text in ("", "0", "1.5", "nan")),
]


@pytest.mark.parametrize(("text", "says"), NO_SHARES)
def test_bad_share_is_refused(text: str, says: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=re.escape(says)):
        soaking.share(text)


@pytest.mark.parametrize(
    ("figures", "error", "failures"),
    [
        ([GOOD, UNJUDGED, Figure("calls", "5")], "", []),
        ([GOOD, BAD], "", ["memory: growth is 1.50 MiB, the limit is below 1 MiB"]),
        ([], "the proxy ended", ["memory: the proxy ended"]),
        ([], "", ["memory: it found nothing"]),
    ],
)
def test_what_failed_is_named(figures: list[Figure], error: str, failures: list[str]) -> None:
    assert Result("memory", FULL, Found(figures), error).failures == failures


def test_page_has_what_each_step_found_last(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    order = ["memory", "streams", "demo", "lives-cri"]
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "docs" / "results" / "lives-cri.png").touch()
    for found in (
        Result("demo", f"0.3 of {FULL}", Found(), "see /run/x.sock"),
        Result("memory", FULL, Found([BAD])),
        Result("streams", FULL, Found([Figure("calls", "5")])),
        Result("memory", FULL, Found([GOOD, BAD, Figure("calls", "5"), UNJUDGED])),
    ):
        results.write(found, "2026-11-21, 2 cores", order)
    assert (tmp_path / "docs" / "results.rst").read_text() == (ROOT / "tests/scripts/soaked.rst").read_text()


def test_machine_is_described_without_a_name(monkeypatch: Patch) -> None:
    monkeypatch.setattr("platform.release", lambda: "6.1.0-18-amd64")
    monkeypatch.setattr("os.getloadavg", lambda: (1.04, 0, 0))
    described = r"\d+ cores, \d+ GiB of memory, Linux 6\.1\.0, .*, Python 3\.\S+; load average 1\.0 at the start"
    assert re.fullmatch(described, results.machine())


def fail(share: float) -> Found:
    raise RuntimeError("the engine is gone")


TWO = (Step("first", FULL, fail), Step("second", FULL, lambda share: Found([Figure("share", f"{share}")])))


FAILED = "FAILED: first: the engine is gone\n"
RUNS = [
    ("", {"first": "1", "second": "1"}, FAILED, ["docs"]),
    ("--quick", {"first": "0.01", "second": "0.01"}, FAILED, []),
    ("--quick --write", {"first": "0.01", "second": "0.01"}, FAILED, ["docs"]),
    ("--step second", {"second": "1"}, "", []),
]


@pytest.mark.parametrize(("arguments", "shares", "failed", "written"), RUNS)
def test_failed_step_keeps_no_other_from_running(
    monkeypatch: Patch, capsys: Out, tmp_path: Path, arguments: str, shares: Any, failed: str, written: list[str]
) -> None:
    monkeypatch.setattr(soaking, "STEPS", TWO)
    monkeypatch.setattr("sys.argv", ["soak", *arguments.split()])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    assert soaking.main() == bool(failed)
    printed = capsys.readouterr()
    assert printed.err == failed
    assert dict(re.findall(r"== (\w+): (\S+) of 100,000", printed.out)) == shares
    assert os.listdir(tmp_path) == written
    assert results.RESULTS.exists() is bool(written)


def test_report_of_pytest_is_read() -> None:
    cases = '<testcase name="test_a" time="1.5"/><testcase name="test_a" time="0.25"/>'
    assert tested.read_report(f"<testsuites>{cases}</testsuites>") == [("test_a", 1.5), ("test_a", 0.25)]
    with pytest.raises(DemoError, match="skipped were test_b"):
        tested.read_report('<testsuite><testcase name="test_b" time="0"><skipped/></testcase></testsuite>')


@pytest.mark.slow
def test_tests_are_run_with_a_share_of_their_examples(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    numbers = tmp_path / "test_numbers.py"
    numbers.write_text(
        "from hypothesis import given, settings, strategies as st\nfrom tests.amounts import examples\n"
        "@settings(max_examples=examples(10))\n@given(st.integers())\ndef test_number(x):\n    assert x == x\n"
    )
    arguments = ["-m", "hypothesis", "--hypothesis-show-statistics", str(tmp_path)]
    assert tested.tests(arguments, 0.05)[-1] == Figure("examples that they were given", "50", "1 or more", True)
    numbers.write_text(numbers.read_text().replace("x == x", "x < 5"))
    with pytest.raises(DemoError, match=r"(?s)exit code 1.*assert 5 < 5"):
        tested.tests(arguments, 1)


@pytest.mark.slow
def test_times_of_the_ways_back_are_figures(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    rows = tmp_path / "test_rows.py"
    rows.write_text(
        "import pytest\n@pytest.mark.parametrize('seconds', [0.1, 0.3, 9])\n"
        "def test_row(seconds, record_property):\n    record_property('away', seconds)\n"
    )
    monkeypatch.setattr(tested, "system", lambda name: [str(rows)])
    passed, away = tested.blast(1)
    assert passed == Figure("tests that passed", "3")
    assert ("away; median and longest of 3" in away.what, away.found, away.kept) == (True, "0.30, 9.00", False)


@pytest.mark.parametrize(("codes", "error"), [([0, 0], ""), ([0, 3], "run 2 ended with exit code 3; its output: so")])
def test_demo_must_end_well_each_time(monkeypatch: Patch, codes: list[int], error: str) -> None:
    left = iter(codes)
    monkeypatch.setattr(tested, "run_module", lambda arguments, environment: (next(left), "so"))
    [step] = [step for step in STEPS if step.name == "demo"]
    ended = step.run(len(codes) / tested.DEMOS.full)
    assert (ended.error, [figure.found for figure in ended.found.figures[:1]]) == (error, [] if error else ["2"])


@contextmanager
def shut(gate: Event) -> Iterator[None]:
    yield
    gate.set()


@pytest.fixture
def short_holds(monkeypatch: Patch) -> None:
    monkeypatch.setattr(under_load, "HOLD_SECONDS", 0.05)


@pytest.mark.usefixtures("short_holds")
def test_held_creates_end_with_the_hold() -> None:
    gate, made = Event(), list[int]()
    with under_load.held([lambda: gate.wait() and made.append(1)] * 3, lambda: shut(gate)):
        assert made == []
    assert made == [1, 1, 1]


@pytest.mark.usefixtures("short_holds")
@pytest.mark.parametrize(
    ("create", "says"), [(lambda: None, "did not wait"), (lambda: 1 / 0, "division by zero")], ids=["passes", "fails"]
)
def test_create_that_is_not_held_is_no_measurement(create: Callable[[], object], says: str) -> None:
    with pytest.raises((DemoError, ZeroDivisionError), match=says), under_load.held([create], lambda: shut(Event())):
        pass


def test_proxies_take_turns_in_portions_and_in_being_the_first() -> None:
    made = [(PROXY, 3), (HOOKED, 3), (HOOKED, 3), (PROXY, 3), (PROXY, 1), (HOOKED, 1)]
    assert list(under_load.portions(7, 3)) == made


def test_calls_go_on_meanwhile_and_a_failure_is_raised() -> None:
    made: list[int] = []
    with under_load.meanwhile(lambda: made.append(1)):
        before = len(made)
        while len(made) == before:
            pass
    assert before > 0
    with pytest.raises(ZeroDivisionError), under_load.meanwhile(lambda: 1 / 0):
        pass


@pytest.mark.parametrize(
    ("figure", "found", "kept"),
    [
        (partial(under_load.ratio, "a", Run((105, 1)), Run((100, 1)), 1.05), "1.05 (105 us to 100 us)", True),
        (partial(under_load.ratio, "a", Run((106, 1)), Run((100, 1)), 1.05), "1.06 (106 us to 100 us)", False),
        (partial(under_load.crowd_figure, "a", 50.0, 5.0), "5.0 (directly 50.0)", True),
        (partial(under_load.crowd_figure, "a", 50.0, 5.1), "5.1 (directly 50.0)", False),
        (partial(under_load.creates_figure, "a", 65.0, 15.0), "65.0 ms (past the proxy 15.0 ms)", True),
        (partial(under_load.creates_figure, "a", 65.1, 15.0), "65.1 ms (past the proxy 15.0 ms)", False),
        (lambda share: under_load.stalled_figures([9.0, 2.0, 1.0], 0, share)[1], "2.00", True),
        (lambda share: under_load.stalled_figures([9.0, 2.1, 1.0], 0, share)[1], "2.10", False),
        (lambda share: day.stalls(endured((0, 0), (1, 0), stalls=1), share), "1", False),
    ],
)
def test_figure_is_judged_where_all_of_it_was_run(figure: Callable[[float], Figure], found: str, kept: bool) -> None:
    assert (figure(1).found, figure(1).kept, figure(0.5).kept) == (found, kept, None)


def test_wait_in_a_crowd_is_counted_in_time_or_in_calls() -> None:
    run = Run((10, 20, 90, 30), 1.0, (2, 2, 3, 1))
    assert (under_load.unfairness(run, in_calls=False), under_load.unfairness(run, in_calls=True)) == (4.5, 1.5)


async def test_gate_is_shut_and_opened_by_signals() -> None:
    gate, loop, answered = Gate(), asyncio.get_running_loop(), list[str]()
    loop.add_signal_handler(signal.SIGUSR1, gate.shut)
    loop.add_signal_handler(signal.SIGUSR2, gate.open)

    def stops(method: str) -> bool:
        return gate.stops(method, lambda: answered.append(method))

    assert not stops("CreateContainer")
    async with asyncio.timeout(20):
        with under_load.signalled(os.getpid(), signal.SIGUSR1, signal.SIGUSR2):
            while not stops("CreateContainer"):
                await asyncio.sleep(0)
            assert not stops("Version")
        while not answered:
            await asyncio.sleep(0)
    assert (answered, stops("CreateContainer")) == (["CreateContainer"], False)


REST = Rest(tasks=3, descriptors=18, known=20, differing=0)


def endured(*sizes: tuple[float, float], before: Rest = REST, after: Rest = REST, stalls: int = 0) -> Endured:
    measured = [Sample(done, int(size)) for done, size in sizes]
    return Endured([Sample(0, 1 << 30)], measured, before, after, stalls)


def test_growth_is_that_of_the_straight_line_through_what_was_measured() -> None:
    steady = endured((100, 1000), (200, 1200), (300, 1400))
    assert (steady.slope, steady.growth) == (2, 400)
    assert endured((0, 1000), (1, 5000), (2, 1000), (3, 1000), (4, 5000), (5, 1000)).growth == 0


FLAT = ((0, 0), (1, 0))


@pytest.mark.parametrize(
    ("left", "full", "part"),
    [
        (endured((0, 0), (1, 1 << 20)), [], []),
        (endured((0, 0), (1, (1 << 20) + 1)), ["growth"], []),
        (endured(*FLAT, after=REST._replace(descriptors=20)), [], []),
        (endured(*FLAT, after=REST._replace(descriptors=21)), ["open"], ["open"]),
        (endured(*FLAT, after=REST._replace(descriptors=15)), ["open"], ["open"]),
        (endured(*FLAT, after=REST._replace(tasks=4)), ["tasks"], ["tasks"]),
        (endured(*FLAT, after=REST._replace(tasks=2)), ["tasks"], ["tasks"]),
        (endured(*FLAT, before=REST._replace(differing=1)), ["pods"], ["pods"]),
        (endured(*FLAT, after=REST._replace(differing=1)), ["pods"], ["pods"]),
    ],
)
def test_what_is_left_is_judged(left: Endured, full: list[str], part: list[str]) -> None:
    def failures(share: float) -> list[str]:
        return [figure.what.partition(" ")[0] for figure in left.figures(share) if figure.kept is False]

    assert [failures(1), failures(0.5)] == [full, part]


def test_picture_shows_the_warm_up_and_what_comes_after_it() -> None:
    assert endurance.picture(endured((5, 34 << 20), (10, 35 << 20))) == ([(0, 1024), (5, 34), (10, 35)], 5)


async def test_first_failure_of_calls_at_one_time_ends_the_others() -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def refuse() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await endurance.together(wait(), refuse())
    assert ended == [True]


@pytest.mark.slow
async def test_proxy_at_rest_is_seen_as_it_is(tmp_path: Path, monkeypatch: Patch) -> None:
    """Nothing is read while no hook server is registered, so the Store stays empty."""
    monkeypatch.setattr(endurance, "SETTLED_SECONDS", 0.2)
    monkeypatch.setattr(endurance, "SAMPLE_SECONDS", 0.01)
    view = tmp_path / "view.json"
    command = (sys.executable, "-m", "scripts.soaking.observed", str(view), "60")
    runtime, front = RUNTIMES[CRI](str(tmp_path / "runtime.sock")), FRONTS[CRI]
    async with front.process(tmp_path, program=command) as proxy, runtime as fake:
        assert isinstance(proxy, ProxyProcess)
        seen, done = Observed(proxy, view, 0), 0
        async with seen.sampled(lambda: done) as samples:
            alone = await seen.rest(fake)
            async with front.caller(seen.socket) as caller:
                await caller.act("ping")
                beside_one = await seen.rest(fake)
            async with front.caller(fake.socket_path) as outside:
                await outside.run_pod()
            lacking = await seen.rest(fake)
            done = 7
    assert (alone.known, alone.differing) == (0, 0)
    assert beside_one.descriptors == alone.descriptors + 2
    assert lacking == alone._replace(known=1, differing=1)
    assert (samples[0].done, samples[-1].done) == (0, 7)
    assert min(sample.bytes for sample in samples) > 1 << 20


@pytest.mark.slow
@pytest.mark.parametrize("mode", [CRI, DOCKER])
async def test_lives_end_in_every_way_and_leave_nothing(mode: str, tmp_path: Path) -> None:
    assert max(ENDS) < CYCLE <= LIVES.usual
    share = LIVES.usual / LIVES.full
    ends, left = await endurance.live(mode, share, tmp_path)
    assert ends == {"well": CYCLE - len(ENDS), **{way: 1 for way, _ in ENDS.values()}}
    assert left.after.known == 2 * endurance.STANDING
    assert [figure for figure in left.figures(share) if figure.missed] == []


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "streams"), [(CRI, {EVENTS}), (DOCKER, {EVENTS, LINES})])
async def test_minute_of_a_day_has_its_calls(mode: str, streams: set[str], tmp_path: Path) -> None:
    share = day.DAY_SECONDS.usual / day.DAY_SECONDS.full
    node, left = await day.play(mode, share, tmp_path)
    assert node.calls == {"lists": 60, "statuses": 12, "probes": 180, "lifecycles": 1}
    assert node.heard.keys() == streams
    assert left.after.known == 2 * day.PODS
    assert [figure for figure in left.figures(share) if figure.missed] == []


@pytest.fixture(params=[CRI, DOCKER])
async def kubelet(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Kubelet, str, Fake]]:
    """Yield a kubelet, a running container, and their runtime."""
    async with RUNTIMES[request.param](str(tmp_path / "runtime.sock")) as fake:
        async with FRONTS[request.param].caller(fake.socket_path) as caller:
            container_id = (await endurance.begin(caller))[1]
        async with KUBELETS[request.param](Path(fake.socket_path), fake) as made:
            yield made, container_id, fake


async def test_answer_that_lacks_something_ends_the_day(kubelet: Any, monkeypatch: Patch) -> None:
    made, container_id, fake = kubelet
    with pytest.raises(DemoError, match="a list has 1 containers"):
        await day.list_all(made)
    await made.status()
    await made.probe(container_id)
    monkeypatch.setattr(day, "PROBE", ("echo", "no"))
    with pytest.raises(DemoError, match="no good answer"):
        await made.probe(container_id)
    for pod_id in fake.pod_ids():
        fake.vanish(pod_id)
    with pytest.raises(DemoError, match="no good answer"):
        await made.lists()


async def test_what_is_told_must_be_heard(kubelet: Any, monkeypatch: Patch) -> None:
    made, container_id, fake = kubelet
    await made.follow(container_id)
    made.tell(container_id)
    await made.all_heard()
    made.told[EVENTS] += 1
    monkeypatch.setattr(day, "PATIENCE_SECONDS", 0.1)
    with pytest.raises(TimeoutError):
        await made.all_heard()
    monkeypatch.undo()
    await fake.stop()
    with pytest.raises(Exception, match=r"has ended|UNAVAILABLE|CANCELLED"):
        await made.all_heard()


# Other tests run a small part of these steps, or there is no small part: some make whole systems.
OTHERS = (
    "archive",
    "built",
    "cluster",
    "lives",
    "day",
    "demo",
    "documents",
    "fresh",
    "image",
    "migration",
    "package",
    "properties",
    "blast",
    *steps.TESTED,
)
MEASURED = [
    pytest.param(step, id=step.name, marks=[pytest.mark.history] if step.name.startswith("versions") else [])
    for step in STEPS
    if not step.name.startswith(OTHERS)
]


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("step", MEASURED)
def test_small_part_of_a_step_is_measured(step: Step, monkeypatch: Patch) -> None:
    monkeypatch.setattr(hooks, "one_round", partial(hooks.one_round, servers=hooks.HOOK_SERVERS[-1:]))
    for name, value in {"TURNS": 1, "STARTS": 1, "MODES": admin.MODES[:1]}.items():
        monkeypatch.setattr(admin, name, value)
    for name, value in {"TURNS": 2, "HOLD_SECONDS": 0.3, "CROWD_TURNS": 1, "STALLED_TURNS": 2}.items():
        monkeypatch.setattr(under_load, name, value)
    ended = step.run(0.002)
    assert ended.failures == []
    assert bool(ended.found.table) is step.name.startswith("bench-")
    assert all(len(row) == len(ended.found.table[0]) for row in ended.found.table)
