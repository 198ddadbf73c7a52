"""The soak's calls beside something that goes on: the turns, their figure, and creates that are held."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

from scripts.benchmark.cases import CRI, HOOKED, LIST, PROXY, SMALL, Case
from scripts.benchmark.h2load import Run
from scripts.benchmark.modes import MODES
from scripts.benchmark.served import Served
from scripts.demonstration.processes import DemoError
from scripts.soaking import beside, beside_figures, hung, slow
from scripts.soaking.beside import Beside, held

FOUND = Beside(SMALL, Run((100,) * 98 + (150, 900), 1.0), Run((80,) * 98 + (100, 5_000), 1.0))


def test_the_ratio_is_that_of_the_p99s_here_and_elsewhere() -> None:
    assert FOUND.p99s == (150, 100)
    assert FOUND.ratio == 1.5


class Costly:
    """Calls that take twice as long on the way at which something goes on."""

    def __init__(self) -> None:
        self.costly = ""
        self.made: list[tuple[Case, str, int]] = []
        self.turns: list[tuple[str, int]] = []

    def load(self, case: Case, way: str) -> SimpleNamespace:
        def run(calls: int) -> Run:
            self.made.append((case, way, calls))
            return Run((200 if way == self.costly else 100,) * calls, 1.0)

        return SimpleNamespace(run=run)

    @contextmanager
    def situation(self, way: str, turn: int) -> Iterator[None]:
        self.turns.append((way, turn))
        self.costly = way
        yield
        self.costly = ""


@pytest.fixture
def costly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Costly, Sequence[Beside]]:
    monkeypatch.setattr(beside, "PORTION", {SMALL: 3, LIST: 2})
    costly = Costly()
    mode = replace(MODES[CRI], load=lambda served, case, way: costly.load(case, way))
    return costly, beside.measure(Served(tmp_path), mode, {SMALL: 7, LIST: 2}, costly.situation, 2)


def test_each_proxy_is_once_the_one_at_which_it_goes_on(costly: tuple[Costly, Sequence[Beside]]) -> None:
    assert costly[0].turns == [(PROXY, 0), (HOOKED, 1)]
    small, lists = costly[1]
    assert small == Beside(SMALL, Run((200,) * 14, 6.0), Run((100,) * 14, 6.0))
    assert lists == Beside(LIST, Run((200,) * 4, 2.0), Run((100,) * 4, 2.0))


def test_the_proxies_take_turns_in_portions_and_in_being_the_first(costly: tuple[Costly, Sequence[Beside]]) -> None:
    warm, turn = costly[0].made[:4], costly[0].made[4:12]
    assert warm == [(case, way, count) for case, count in ((SMALL, 3), (LIST, 2)) for way in (PROXY, HOOKED)]
    assert turn == [
        *((SMALL, PROXY, 3), (SMALL, HOOKED, 3)),
        *((SMALL, HOOKED, 3), (SMALL, PROXY, 3)),
        *((SMALL, PROXY, 1), (SMALL, HOOKED, 1)),
        *((LIST, PROXY, 2), (LIST, HOOKED, 2)),
    ]


@pytest.fixture(autouse=True)
def short_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "HOLD_SECONDS", 0.05)


@contextmanager
def shut(gate: Event) -> Iterator[None]:
    yield
    gate.set()


def test_held_creates_end_with_the_hold() -> None:
    gate, made = Event(), []

    def create(number: int) -> None:
        gate.wait()
        made.append(number)

    with held(shut(gate), create, range(3)):
        assert made == []
    assert sorted(made) == [0, 1, 2]


def test_creates_that_do_not_wait_are_no_measurement() -> None:
    with pytest.raises(DemoError, match="did not wait"), held(shut(Event()), lambda number: None, [1]):
        pass


def test_a_create_that_fails_is_told() -> None:
    gate = Event()

    def create(number: int) -> None:
        gate.wait()
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"), held(shut(gate), create, [1]):
        pass


@pytest.mark.parametrize(("share", "verdict"), [(1, "MISSED"), (0.5, "not judged")])
@pytest.mark.parametrize(
    ("module", "figures"), [(hung, beside_figures.beside_hung), (slow, beside_figures.beside_slow)]
)
def test_a_ratio_is_judged_where_all_of_it_was_run(
    monkeypatch: pytest.MonkeyPatch, module: object, figures: object, share: float, verdict: str
) -> None:
    monkeypatch.setattr(module, "measure", lambda name, share: [FOUND])
    [figure] = figures(CRI, share).figures  # type: ignore[operator]
    assert (figure.found, figure.verdict) == ("1.50 (150 us to 100 us)", verdict)
