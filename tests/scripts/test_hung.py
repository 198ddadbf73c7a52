"""The soak's small calls beside creates whose hook server hangs."""

import pytest

from scripts.benchmark.cases import CRI, DOCKER, SMALL
from scripts.soaking import hung
from scripts.soaking.hung import Hung


def test_the_ratio_is_the_turns_median() -> None:
    assert Hung(SMALL, [(100, 150), (100, 900), (200, 100)]).ratio == 1.5


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("mode", [CRI, DOCKER])
def test_a_small_part_of_it(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hung, "TURNS", 2)
    found = hung.measure(mode, 0.01)
    assert len(found) == 2
    for each in found:
        assert len(each.turns) == 2
        assert each.ratio > 0
