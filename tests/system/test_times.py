"""How times are judged: what may be taken again, and what no try lets through."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain, cycle, repeat

import pytest

from tests.amounts import Amount
from tests.system import times

PROMISED = 0.1
TEN = Amount(10, 10)


def taking(seconds: Iterator[float]) -> Callable[[], Awaitable[Sequence[float]]]:
    async def two() -> Sequence[float]:
        return [next(seconds), next(seconds)]

    return two


async def test_a_try_that_was_spoiled_is_made_again() -> None:
    await times.in_time(PROMISED, TEN, taking(chain([0.0, 9.0], repeat(0.0))))


async def test_what_is_late_once_in_six_is_late_in_every_try() -> None:
    with pytest.raises(AssertionError):
        await times.in_time(PROMISED, TEN, taking(cycle([0.0] * 5 + [1.0])))


@pytest.mark.parametrize(("late", "passes"), [(1, True), (9, False)])
async def test_the_soak_judges_all(late: int, passes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "SOAKED", True)
    seconds = chain([1.0] * late, repeat(0.0))
    with nullcontext() if passes else pytest.raises(AssertionError):
        await times.in_time(PROMISED, Amount(300, 300), taking(seconds))


@pytest.mark.parametrize(("soaked", "good", "passes"), [(False, 1, True), (False, 0, False), (True, 5, False)])
async def test_one_good_round_is_enough_but_for_the_soak(
    soaked: bool, good: int, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "SOAKED", soaked)
    rounds = iter([1.0] * (times.TRIES - good) + [0.0] * good)

    async def one() -> float:
        return next(rounds)

    with nullcontext() if passes else pytest.raises(AssertionError):
        await times.in_rounds(PROMISED, one)
