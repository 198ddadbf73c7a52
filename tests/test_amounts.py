"""The amounts of the tests: usual ones, and with scripts/soak a share of the full ones."""

import re

import pytest
from hypothesis import settings

from tests import amounts
from tests.docs import ROOT


@pytest.mark.parametrize(
    ("share", "quick", "found"),
    [(None, False, (30, 100, 1_000)), ("0.5", False, (1500, 5000, 50_000)), (None, True, (5, 16, 1_000))],
)
def test_amounts_are_usual_unless_soak_sets_share(
    monkeypatch: pytest.MonkeyPatch, share: str | None, quick: bool, found: tuple[int, ...]
) -> None:
    monkeypatch.delenv(amounts.SHARE_VARIABLE, raising=False)
    if share:
        monkeypatch.setenv(amounts.SHARE_VARIABLE, share)
    monkeypatch.setattr(amounts, "quick", quick)
    assert (amounts.examples(30), amounts.examples(), amounts.CALLS_OF_A_CLIENT.now) == found


def test_every_property_test_has_examples_that_scale() -> None:
    assert [path for path in ROOT.glob("tests/**/*.py") if re.search(r"max_examples=\d", path.read_text())] == []
    assert settings().deadline is None
    assert settings.get_profile("usual").derandomize
    assert not settings.get_profile("soak").derandomize
