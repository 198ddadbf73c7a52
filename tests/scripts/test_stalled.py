"""The soak's pings beside clients that do not read."""

import pytest

from scripts.soaking import stalled
from scripts.soaking.stalled import Stalled


def test_the_ratio_is_the_turns_median() -> None:
    assert Stalled([(100, 150), (100, 900), (200, 100)], 0).ratio == 1.5


@pytest.mark.slow
@pytest.mark.engine
def test_a_small_part_of_it() -> None:
    found = stalled.measure(0.01)
    assert len(found.turns) == stalled.TURNS
    assert 0 < found.growth <= stalled.GROWTH_BYTES
