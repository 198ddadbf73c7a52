"""The soak's calls beside something that goes on: the turns, their figure, and creates that are held."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from scripts.benchmark.cases import CRI, LIST, PROXY, SMALL, Case
from scripts.benchmark.h2load import Run
from scripts.benchmark.modes import MODES
from scripts.benchmark.served import Served
from scripts.demonstration.processes import DemoError
from scripts.soaking import attacked, beside, beside_figures, hung, slow
from scripts.soaking.beside import Beside, alone, held

TURNS = [(100, 200, 300), (100, 200, 1800), (200, 100, 100)]


def test_the_ratio_is_the_turns_median_between_the_last_two_situations() -> None:
    assert Beside(SMALL, [(100, 150), (100, 900), (200, 100)]).ratio == 1.5
    assert Beside(SMALL, TURNS).ratio == 1.5


def test_the_medians_are_those_of_each_situation() -> None:
    assert Beside(SMALL, TURNS).medians == [100, 200, 300]


class Costly:
    """Calls that take what the situation makes them take."""

    def __init__(self) -> None:
        self.microseconds = 100
        self.made: list[tuple[str, int]] = []

    def load(self, case: Case) -> "Costly":
        """Remember what is called."""
        self.case = case
        return self

    def run(self, calls: int) -> Run:
        self.made.append((self.case.name, calls))
        return Run((self.microseconds,) * calls, 1.0)

    @contextmanager
    def doubled(self, turn: int) -> Iterator[None]:
        self.made.append(("doubled", turn))
        self.microseconds *= 2
        yield
        self.microseconds //= 2


def test_every_situation_has_its_portion_of_every_case_in_every_turn(tmp_path: Path) -> None:
    costly = Costly()
    mode = replace(MODES[CRI], prepare=lambda served, case, way: costly.load(case))  # type: ignore[arg-type]
    found = beside.measure(Served(tmp_path), mode, PROXY, {SMALL: 3, LIST: 2}, (alone, costly.doubled), 2)
    assert [(each.case, each.turns) for each in found] == [(SMALL, [(100, 200)] * 2), (LIST, [(100, 200)] * 2)]
    made = [calls for name, calls in costly.made if name != "doubled"]
    assert made == [3, 2] * 5, "those of the first are none of a turn's"


def test_the_order_of_the_situations_takes_turns(tmp_path: Path) -> None:
    costly = Costly()
    mode = replace(MODES[CRI], prepare=lambda served, case, way: costly.load(case))  # type: ignore[arg-type]
    beside.measure(Served(tmp_path), mode, PROXY, dict.fromkeys((SMALL, LIST), 1), (alone, costly.doubled), 2)
    assert [costly.made.index(("doubled", turn)) for turn in (0, 1)] == [2, 9]


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
    monkeypatch.setattr(module, "measure", lambda name, share: [Beside(SMALL, [(100, 150)])])
    [figure] = figures(CRI, share).figures  # type: ignore[operator]
    assert (figure.found, figure.verdict) == ("1.50", verdict)


def test_of_an_attack_the_share_of_the_proxy_is_judged_and_every_situation_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = {"PING": [Beside(SMALL, [(100, 2_000, 3_800)])], "GOAWAY": [Beside(SMALL, [(100, 200, 401)])]}
    monkeypatch.setattr(attacked, "measure", lambda name, share: measured)
    found = beside_figures.beside_attacks(CRI, 1)
    assert [(figure.found, figure.verdict) for figure in found.figures] == [("1.90", "ok"), ("2.00", "MISSED")]
    assert found.table[1] == ("PING", SMALL.name, "100", "2,000", "3,800")
