"""What soak tests have in common: a front, and the findings, which are printed with their limits."""

import os
from collections.abc import Iterator

import pytest

from tests.amounts import SHARE_VARIABLE
from tests.system.cri_front import CRI
from tests.system.docker_front import DOCKER
from tests.system.fronts import Front


class Findings:
    """What a test measured. Everything is printed before a missed limit fails the test."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.missed: list[str] = []
        self._capsys = capsys
        self.full = os.environ.get(SHARE_VARIABLE) in ("1", "1.0")
        """Whether the counts are the full ones: growth over fewer calls is not judged."""

    def note(self, what: str, found: object, limit: object = "", retained: bool = True) -> None:
        line = f"{what}: {found}{f' (limit: {limit})' if limit != '' else ''}"
        with self._capsys.disabled():
            print(f"\n{line}", end="", flush=True)
        if not retained:
            self.missed.append(line)

    def equal(self, what: str, found: object, desired: object) -> None:
        self.note(what, found, desired, found == desired)


@pytest.fixture
def findings(capsys: pytest.CaptureFixture[str]) -> Iterator[Findings]:
    made = Findings(capsys)
    yield made
    assert made.missed == []


@pytest.fixture(params=[CRI, DOCKER], ids=lambda front: front.name)
def front(request: pytest.FixtureRequest) -> Front:
    made: Front = request.param
    return made


def contains(printed: str, *words: str) -> None:
    """Fail unless an output has all these words."""
    assert [word for word in words if word not in printed] == [], printed[-2000:]
