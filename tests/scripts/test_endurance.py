"""What a soak makes of memory over time, and what it sees of a proxy at rest."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from scripts.benchmark.cases import CRI
from scripts.soaking import day, endurance, figures, lives
from scripts.soaking.day import Day
from scripts.soaking.endurance import FRONTS, GROWTH_BYTES, Endured, Observed, Rest, Sample
from scripts.soaking.lives import Lived
from scripts.soaking.results import Figure
from tests.system.proxy import ProxyProcess

REST = Rest(tasks=3, descriptors=18, known=20, differing=0)


def endured(*bytes_at: tuple[float, float], before: Rest = REST, after: Rest = REST, stalls: int = 0) -> Endured:
    return Endured([Sample(0, 1 << 30)], [Sample(done, int(size)) for done, size in bytes_at], before, after, stalls)


def test_growth_is_that_of_the_straight_line_through_what_was_measured() -> None:
    steady = endured((100, 1000), (200, 1200), (300, 1400))
    assert (steady.slope, steady.growth) == (2, 400)
    spikes = endured((0, 1000), (1, 5000), (2, 1000), (3, 1000), (4, 5000), (5, 1000))
    assert spikes.growth == 0
    assert spikes.most == 1 << 30


def failures(found: Sequence[Figure]) -> list[str]:
    return [figure.what.partition(" ")[0] for figure in found if figure.kept is False]


@pytest.mark.parametrize(
    ("left", "full", "part"),
    [
        (endured((0, 0), (1, GROWTH_BYTES)), [], []),
        (endured((0, 0), (1, GROWTH_BYTES + 1)), ["growth"], []),
        (endured((0, 0), (1, 0), after=Rest(3, 20, 20, 0)), [], []),
        (endured((0, 0), (1, 0), after=Rest(3, 21, 20, 0)), ["open"], ["open"]),
        (endured((0, 0), (1, 0), after=Rest(3, 15, 20, 0)), ["open"], ["open"]),
        (endured((0, 0), (1, 0), after=Rest(4, 18, 20, 0)), ["tasks"], ["tasks"]),
        (endured((0, 0), (1, 0), after=Rest(2, 18, 20, 0)), ["tasks"], ["tasks"]),
        (endured((0, 0), (1, 0), before=Rest(3, 18, 20, 1)), ["pods"], ["pods"]),
        (endured((0, 0), (1, 0), after=Rest(3, 18, 20, 1)), ["pods"], ["pods"]),
    ],
)
def test_what_is_judged(left: Endured, full: list[str], part: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "measure", lambda name, share: Lived({"well": 5}, left))
    monkeypatch.setattr(day, "measure", lambda name, share: Day({"lists": 5}, {"events": 1}, left))
    for find in (figures.lived, figures.played):
        assert failures(find(CRI, 1).figures) == full
        assert failures(find(CRI, 0.5).figures) == part


def test_stalls_are_judged_in_a_whole_day(monkeypatch: pytest.MonkeyPatch) -> None:
    hung = endured((0, 0), (1, 0), stalls=1)
    monkeypatch.setattr(lives, "measure", lambda name, share: Lived({}, hung))
    monkeypatch.setattr(day, "measure", lambda name, share: Day({}, {}, hung))
    assert failures(figures.played(CRI, 1).figures) == ["times"]
    assert failures(figures.played(CRI, 0.5).figures) == []
    assert failures(figures.lived(CRI, 1).figures) == []


def test_the_picture_shows_the_warm_up_and_what_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    left = endured((5, 34 << 20), (10, 35 << 20))
    monkeypatch.setattr(lives, "measure", lambda name, share: Lived({}, left))
    plot = figures.lived(CRI, 1).plot
    assert plot is not None
    assert (plot.points, plot.mark) == ([(0, 1024), (5, 34), (10, 35)], 5)
    assert plot.text == figures.MEMORY_BELOW


async def test_of_calls_at_one_time_the_first_failure_is_raised_and_the_others_end() -> None:
    ended = []

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(ValueError, match="no"):
        await endurance.together(wait(), fail())
    assert ended == [True]


@pytest.fixture
async def seen(tmp_path: Path) -> AsyncIterator[Observed]:
    view = tmp_path / "view.json"
    command = (sys.executable, "-m", "scripts.soaking.shown", str(view), "60")
    async with FRONTS[CRI].process(tmp_path, program=command) as proxy:
        assert isinstance(proxy, ProxyProcess)
        yield Observed(proxy, view, 0)


@pytest.mark.slow
async def test_a_store_that_is_not_the_runtimes_list_is_seen(
    seen: Observed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read while no hook server is registered."""
    monkeypatch.setattr(endurance, "SETTLED_SECONDS", 0.2)
    async with endurance.RUNTIMES[CRI](str(tmp_path / "runtime.sock")) as fake:
        empty = await seen.rest(fake)
        async with FRONTS[CRI].caller(fake.socket_path) as outside:
            await outside.run_pod()
        lacking = await seen.rest(fake)
    assert (empty.known, empty.differing) == (0, 0)
    assert (lacking.known, lacking.differing) == (1, 1)
    assert lacking.tasks == empty.tasks > 0


@pytest.mark.slow
async def test_a_client_that_stays_is_seen(seen: Observed, tmp_path: Path) -> None:
    async with endurance.RUNTIMES[CRI](str(tmp_path / "runtime.sock")) as fake:
        alone = await seen.rest(fake)
        async with FRONTS[CRI].caller(seen.socket) as caller:
            await caller.act("ping")
            beside = await seen.rest(fake)
        after = await seen.rest(fake)
    assert beside.descriptors == alone.descriptors + 2
    assert after == alone


@pytest.mark.slow
async def test_memory_is_looked_at_from_the_beginning_to_the_end(
    seen: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endurance, "SAMPLE_SECONDS", 0.01)
    done = 0
    async with seen.sampled(lambda: done) as samples:
        while len(samples) < 3:
            await asyncio.sleep(0.01)
        done = 7
    assert (samples[0].done, samples[-1].done) == (0, 7)
    assert min(sample.bytes for sample in samples) > 1 << 20
