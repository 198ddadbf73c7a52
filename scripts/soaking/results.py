"""The findings of a soak's steps, and docs/results.rst, the page with each step's last findings.

The page is also the storage for the rows of steps that were not run again. Each row says when the step ran, on what
machine, and how much of its full count; an error's text, which may name files of the machine, is left out.
"""

import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.figures import Figure

RESULTS = Path("docs", "results.rst")
PICTURES = RESULTS.with_suffix("")
_HEADER = ("step", "count", "day and machine", "figures with a limit")
_TOP = """\
.. Written by scripts/soak: changes made here are lost with its next run.

Results
=======

What ``scripts/soak`` found last, of each step; it prints more than stands here. The limit stands behind what was found.

.. list-table::
   :header-rows: 1

"""
BELOW = "Resident memory in MiB over lifecycles; the warm-up ends at the upright line."
"""The caption below a picture."""
_VERDICTS = {True: "", False: " **MISSED**", None: " not judged"}


class Plot(NamedTuple):
    """Points ordered by x; at ``mark`` there is a vertical line."""

    points: Sequence[tuple[float, float]]
    mark: float


class Found(NamedTuple):
    """The findings of a step: figures and, if it has them, a table (the first row is the header) and a picture."""

    figures: Sequence[Figure] = ()
    table: Sequence[Sequence[str]] = ()
    plot: Plot | None = None


class Result(NamedTuple):
    """The result of a step; ``error`` is what ended it early, or ""; ``amount`` is what was run of its full count."""

    step: str
    amount: str
    found: Found
    error: str = ""

    @property
    def failures(self) -> list[str]:
        """Return what failed, with the step's name; a step without a figure has failed."""
        if self.error or not self.found.figures:
            return [f"{self.step}: {self.error or 'it found nothing'}"]
        return [f"{self.step}: {figure.missed}" for figure in self.found.figures if figure.missed]

    def row(self, where: str) -> str:
        """Return the step's row of the page; ``where`` is the day and the machine."""
        lines = ["**It did not come to its end.**"] if self.error or not self.found.figures else []
        lines += [
            f"{figure.what}: {figure.found}; {figure.limit}{_VERDICTS[figure.kept]}"
            for figure in self.found.figures
            if figure.limit
        ]
        return _row((self.step, self.amount, where), lines or ["none has one"])


def _row(cells: Sequence[str], lines: Sequence[str]) -> str:
    """Return a row of a list-table; its last cell has these lines."""
    first, *more = [f"| {line}" for line in lines] if len(lines) > 1 else lines
    head = [f"   * - {cells[0]}", *(f"     - {cell}" for cell in (*cells[1:], first))]
    return "\n".join([*head, *(f"       {line}" for line in more)])


def render(rows: Mapping[str, str], pictures: Sequence[str]) -> str:
    """Return the whole page: the rows by step, and the pictures of steps."""
    text = _TOP + "\n".join([_row(_HEADER[:-1], _HEADER[-1:]), *rows.values()]) + "\n"
    for step in pictures:
        text += f"\n.. figure:: results/{step}.png\n   :alt: {step}\n\n   {step}: {BELOW}\n"
    return text


def rows_of(page: str) -> Iterator[tuple[str, str]]:
    """Yield the rows of a page by step."""
    for found in re.finditer(r"^   \* - (\S+)\n(?:     .*\n)+", page, re.MULTILINE):
        if found[1] != _HEADER[0]:
            yield found[1], found[0].rstrip("\n")


def write(result: Result, where: str, order: Sequence[str]) -> None:
    """Replace a step's row and picture by those of this run."""
    rows = dict(rows_of(RESULTS.read_text())) if RESULTS.exists() else {}
    rows[result.step] = result.row(where)
    PICTURES.mkdir(parents=True, exist_ok=True)
    if result.found.plot is not None:
        draw(result.found.plot, PICTURES / f"{result.step}.png")
    drawn = [step for step in order if (PICTURES / f"{step}.png").exists()]
    RESULTS.write_text(render({step: rows[step] for step in order if step in rows}, drawn))


def draw(plot: Plot, file: Path) -> None:
    """Draw the points as a line; the y axis begins at zero, so that small growth looks small."""
    from matplotlib.figure import Figure as Picture  # matplotlib is imported only for a picture

    picture = Picture(figsize=(7.2, 3.0), layout="constrained")
    axes = picture.subplots()
    axes.plot(*zip(*plot.points, strict=True))
    axes.axvline(plot.mark, color="black")
    axes.set_ylim(0, 1.1 * max(y for _, y in plot.points) or 1)
    axes.grid(color="lightgrey")
    picture.savefig(file, dpi=100)


def machine() -> str:
    """Return a description of this machine and its load, for comparing figures, without anything that identifies it."""
    kernel = re.match(r"[\d.]*\d|", platform.release())  # what follows the version may name a provider
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
    return (
        f"{len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB of memory, "
        f"Linux {kernel[0] if kernel else ''}, {platform.freedesktop_os_release()['PRETTY_NAME']}, "
        f"Python {platform.python_version()}; load average {os.getloadavg()[0]:.1f} at the start"
    )
