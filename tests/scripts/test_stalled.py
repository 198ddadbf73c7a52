"""The soak's pings beside clients that do not read."""

import pytest

from scripts.soaking import stalled
from scripts.soaking.stalled import Stalled
from scripts.soaking.steps import STEPS


def test_the_ratio_is_the_turns_median() -> None:
    assert Stalled([(100, 150), (100, 900), (200, 100)], 0).ratio == 1.5


@pytest.mark.slow
@pytest.mark.engine
def test_a_small_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalled, "TURNS", 2)
    found = stalled.measure(0.01)
    assert len(found.turns) == 2
    assert 0 < found.growth <= stalled.GROWTH_BYTES
    monkeypatch.setattr(stalled, "measure", lambda share: found)
    (step,) = [step for step in STEPS if step.name == "stalled"]
    assert step.run(0.01).failures == []
