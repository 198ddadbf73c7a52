"""docs/results.rst: what a soak found last of each step, one page.

Owns the document's text, which is also where the rows of steps that were not run again are kept.
Must not know: how anything is run.
Invariant: each row says when the step ran, on what, and how much of its full count; an error's own text, which may name
files of the machine, is not in it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date

from scripts.soaking.results import Figure, Result

_HEADER = ("step", "count", "day and machine", "figures with a limit")
_TOP = """\
.. Written by scripts/soak: changes made here are lost with its next run.

Results
=======

What ``scripts/soak`` found last, of each step; it prints more than stands here. The limit stands behind what was found.

.. list-table::
   :header-rows: 1

"""
_NOT_TO_ITS_END = "**It did not come to its end.**"
_VERDICTS = {True: "", False: " **MISSED**", None: " not judged"}


def row(result: Result, day: date, machine: str) -> str:
    """Return a step's row."""
    limited = [figure for figure in result.found.figures if figure.limit]
    failed = [_NOT_TO_ITS_END] if result.error or not result.found.figures else []
    lines = [*failed, *map(_figure, limited)] or ["none has one"]
    return _row((result.step, result.count, f"{day.isoformat()}, {machine}"), lines)


def render(rows: Mapping[str, str], pictures: Sequence[tuple[str, str]]) -> str:
    """Return the whole document: the rows by their steps, pictures of steps with the text below each."""
    text = _TOP + "\n".join([_row(_HEADER[:-1], _HEADER[-1:]), *rows.values()]) + "\n"
    for step, below in pictures:
        text += f"\n.. figure:: results/{step}.png\n   :alt: {step}\n\n   {step}: {below}\n"
    return text


def rows_of(document: str) -> Iterator[tuple[str, str]]:
    """Yield the rows of a document by their steps."""
    for found in re.finditer(r"^   \* - (\S+)\n(?:     .*\n)+", document, re.MULTILINE):
        if found[1] != _HEADER[0]:
            yield found[1], found[0].rstrip("\n")


def _row(cells: Sequence[str], lines: Sequence[str]) -> str:
    """Return a row of a list-table; its last cell has these lines."""
    head = [f"   * - {cells[0]}", *(f"     - {cell}" for cell in cells[1:])]
    if len(lines) == 1:
        return "\n".join([*head, f"     - {lines[0]}"])
    first, *more = lines
    return "\n".join([*head, f"     - | {first}", *(f"       | {line}" for line in more)])


def _figure(figure: Figure) -> str:
    return f"{figure.what}: {figure.found}; {figure.limit}{_VERDICTS[figure.kept]}"
