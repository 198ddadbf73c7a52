"""Figures of the bench and the demo: rows with limits and verdicts, and the tables that are printed."""

from collections.abc import Sequence
from typing import NamedTuple

MIB = 1 << 20


class Figure(NamedTuple):
    """A row; ``kept`` is None if there is no limit, or if it is not judged."""

    what: str
    found: str
    limit: str = ""
    kept: bool | None = None

    @property
    def verdict(self) -> str:
        return {True: "ok", False: "MISSED", None: "not judged" if self.limit else ""}[self.kept]

    @property
    def missed(self) -> str:
        return f"{self.what} is {self.found}, the limit is {self.limit}" if self.kept is False else ""


def at_most(what: str, found: float, bound: float, unit: str = "", *, digits: int = 2) -> Figure:
    """Return a figure with an upper limit."""
    return Figure(what, f"{found:,.{digits}f}{unit}", f"at most {bound:g}{unit}", found <= bound)


def show(title: str, figures: Sequence[Figure]) -> None:
    """Print figures with their verdicts."""
    rows = [(figure.what, figure.found, figure.limit, figure.verdict) for figure in figures]
    print_table(title, [("figure", "found", "limit", "verdict"), *rows])


def print_table(title: str, rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a title; the first row is the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    print("\n".join(["", title, "", lines[0], "  ".join("-" * width for width in widths), *lines[1:]]), flush=True)
