"""docs/results.rst: what a soak found, as reStructuredText.

Owns the document's text.
Must not know: how anything is run.
Invariant: an error's own text, which may name files of the machine, is not written.
"""

from collections.abc import Iterator, Sequence
from datetime import date

from scripts.soaking.plots import Plot
from scripts.soaking.results import Figure, Result

RULES = ("=", "-")
STEPS_HEADER = ("step", "what runs", "what it shows", "count", "took", "verdict")
FIGURES_HEADER = ("figure", "found", "limit", "verdict")


def render(results: Sequence[Result], day: date, machine: str) -> str:
    """Return the whole document."""
    lines = [
        ".. Written by scripts/soak: changes made here are lost with its next run.",
        "",
        *heading("Results", 0),
        f"What ``scripts/soak`` found on {day.isoformat()}.",
        "",
        f"Machine: {machine}.",
        "",
        *_reduced(results),
        *table([STEPS_HEADER, *map(_step_row, results)]),
    ]
    for result in results:
        lines += _section(result)
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


def _step_row(result: Result) -> tuple[str, ...]:
    verdict = "FAILED" if result.failures else "ok"
    return (result.step, f"``{result.command}``", result.shows, result.count, f"{result.seconds:.0f} s", verdict)


def _section(result: Result) -> list[str]:
    lines = heading(result.step, 1)
    if result.error:
        lines += ["It did not come to its end; what it said was printed.", ""]
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
