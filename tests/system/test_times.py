"""How times are judged: which may be measured again, and which fail whatever the number of tries."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import chain, cycle, repeat

import pytest

from tests.amounts import Amount
from tests.system import times

PROMISED = 0.1
TEN, ALL = Amount(10, 10), Amount(300, 300)
TRIES = {
    "a spoiled try is made again": (False, chain([0.0, 9.0], repeat(0.0)), TEN, True),
    "late once in six is late in every try": (False, cycle([0.0] * 5 + [1.0]), TEN, False),
    "the soak lets one in 300 be late": (True, chain([1.0], repeat(0.0)), ALL, True),
    "the soak lets no nine be late": (True, chain([1.0] * 9, repeat(0.0)), ALL, False),
}


@pytest.mark.parametrize(("soaked", "seconds", "amount", "passes"), TRIES.values(), ids=TRIES)
async def test_in_time(
    soaked: bool, seconds: Iterator[float], amount: Amount, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "SOAKED", soaked)

    async def two() -> Sequence[float]:
        return [next(seconds), next(seconds)]

    with nullcontext() if passes else pytest.raises(AssertionError):
        await times.in_time(PROMISED, amount, two)


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
