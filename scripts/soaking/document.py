"""docs/results.rst: what a soak found, as reStructuredText.

Owns the document's text.
Must not know: how anything is run.
Invariant: each step says when it ran, on what, and how much of its full count.
"""

from collections.abc import Iterator, Sequence

from scripts.soaking.kept import Kept
from scripts.soaking.plots import Plot
from scripts.soaking.results import Figure, Result

RULES = ("=", "-")
STEPS_HEADER = ("step", "what runs", "what it shows", "count", "day", "took", "verdict")
FIGURES_HEADER = ("figure", "found", "limit", "verdict")


def render(kept: Sequence[Kept]) -> str:
    """Return the whole document."""
    lines = [
        ".. Written by scripts/soak: changes made here are lost with its next run.",
        "",
        *heading("Results", 0),
        "What ``scripts/soak`` found last, of each step.",
        "",
        *_reduced([each.result for each in kept]),
        *table([STEPS_HEADER, *map(_step_row, kept)]),
    ]
    for each in kept:
        lines += _section(each)
    return "\n".join(lines)


def heading(text: str, level: int) -> list[str]:
    """Return the lines of a heading."""
    return [text, RULES[level] * len(text), ""]


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table whose first row is the header."""
    yield from (".. list-table::", "   :header-rows: 1", "")
    for row in rows:
        for number, cell in enumerate(row):
            yield f"   {' ' if number else '*'} - {cell}".rstrip()
    yield ""


def picture(step: str) -> str:
    """Return where a step's picture is, from the document's folder."""
    return f"results/{step}.png"


def _reduced(results: Sequence[Result]) -> list[str]:
    shares = [f"{result.step} {result.share:g}" for result in results if result.share != 1]
    if not shares:
        return []
    return [f"**Not the full counts.** Of the full counts these shares were run: {', '.join(shares)}.", ""]


def _step_row(kept: Kept) -> tuple[str, ...]:
    result, day = kept.result, kept.day.isoformat()
    verdict = "FAILED" if result.failures else "ok"
    return (result.step, f"``{result.command}``", result.shows, result.count, day, f"{result.seconds:.0f} s", verdict)


def _section(kept: Kept) -> list[str]:
    result = kept.result
    lines = [*heading(result.step, 1), f"On {kept.day.isoformat()}; {kept.machine}.", ""]
    if result.error:
        lines += [f"{result.error.capitalize()}.", ""]
    if result.found.figures:
        lines += table([FIGURES_HEADER, *map(_figure_row, result.found.figures)])
    if result.found.table:
        lines += table(result.found.table)
    if result.found.plot:
        lines += _plot(result.step, result.found.plot)
    return lines


def _plot(step: str, plot: Plot) -> list[str]:
    return [f".. figure:: {picture(step)}", f"   :alt: {plot.text}", "", f"   {plot.text}", ""]


def _figure_row(figure: Figure) -> tuple[str, ...]:
    return (figure.what, figure.found, figure.limit, figure.verdict)
