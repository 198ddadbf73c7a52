"""What a soak found: figures, limits, and which step failed.

Owns what counts as a failure.
Must not know: how anything is run or written.
Invariant: a step without a figure has failed.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plot:
    """Points in the order of their x; ``mark`` is an x at which a line stands upright, for what the text says of it."""

    points: Sequence[tuple[float, float]]
    mark: float
    text: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of a step's table; ``kept`` is None where there is no limit, or where it is not judged."""

    what: str
    found: str
    limit: str = ""
    kept: bool | None = None

    @property
    def verdict(self) -> str:
        """Say whether the limit was kept."""
        if self.kept is None:
            return "not judged" if self.limit else ""
        return "ok" if self.kept else "MISSED"


@dataclass(frozen=True, slots=True)
class Found:
    """What a step found: its figures and, if it has them, a table, whose first row is the header, and a picture."""

    figures: Sequence[Figure]
    table: Sequence[Sequence[str]] = ()
    plot: Plot | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A step's end: ``found`` or, where an error ended it, ``error``, a text that may name files."""

    step: str
    command: str
    shows: str
    full: str
    share: float
    seconds: float
    found: Found = Found(())
    error: str = ""

    @property
    def failures(self) -> list[str]:
        """Name what failed, with the step; nothing if nothing did."""
        if self.error or not self.found.figures:
            return [f"{self.step}: {self.error or 'it found nothing'}"]
        missed = [figure for figure in self.found.figures if figure.kept is False]
        return [f"{self.step}: {figure.what} is {figure.found}, the limit is {figure.limit}" for figure in missed]

    @property
    def count(self) -> str:
        """Say how much of the full count was run."""
        return self.full if self.share == 1 else f"{self.share:g} of {self.full}"
