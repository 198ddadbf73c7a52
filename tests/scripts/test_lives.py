"""The soak's lives of containers."""

import pytest

from scripts.benchmark.cases import CRI, DOCKER
from scripts.soaking import lives
from scripts.soaking.lives import CYCLE, ENDS, LIVES, WELL
from scripts.soaking.steps import STEPS


def test_every_end_comes_in_the_usual_number_of_lives() -> None:
    assert max(ENDS) < CYCLE <= LIVES.usual


@pytest.mark.slow
@pytest.mark.parametrize("mode", [CRI, DOCKER])
def test_a_small_part_of_it(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    share = LIVES.usual / LIVES.full
    found = lives.measure(mode, share)
    assert found.ends == {WELL[0]: CYCLE - len(ENDS), **{way: 1 for way, _ in ENDS.values()}}
    assert found.endured.after.known == 2 * lives.STANDING
    monkeypatch.setattr(lives, "measure", lambda name, share: found)
    (step,) = [step for step in STEPS if step.name == f"lives-{mode}"]
    assert step.run(share).failures == []
