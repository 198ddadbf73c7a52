"""The soak's small calls beside creates of 16 MiB."""

import pytest

from scripts.benchmark.cases import CRI, DOCKER, HOOKED, PROXY
from scripts.soaking import beside_figures, big
from scripts.soaking.big import BesideCreates

SHARE = 0.05


@pytest.mark.parametrize(("through", "verdict"), [(65_000, "ok"), (65_001, "MISSED")])
def test_what_the_proxy_adds_is_judged(through: float, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(big, "measure", lambda name, share: [BesideCreates(PROXY, through, 15_000)])
    [figure] = beside_figures.beside_creates(CRI, 1)
    assert (figure.found, figure.verdict) == ("65.0 ms (past the proxy 15.0 ms)", verdict)


def test_a_create_that_fails_is_told() -> None:
    def fail() -> None:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"), big._creating(fail):
        pass


def test_creates_go_on_beside_the_calls() -> None:
    made: list[int] = []
    with big._creating(lambda: made.append(1)):
        before = len(made)
        while len(made) == before:
            pass
    assert before > 0


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("mode", [CRI, DOCKER])
def test_a_small_part_of_it(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(big, "TURNS", 1)
    found = big.measure(mode, SHARE)
    assert [each.way for each in found] == [PROXY, HOOKED]
    assert all(each.through > 0 and each.past > 0 for each in found)
