"""The last run of each step, kept in a file of its own: steps that take hours need not be run on one day.

Owns the files' names and form.
Must not know: how anything is run, the document's text.
Invariant: an error's own text, which may name files of the machine, is not kept, nor are a picture's points.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path

from scripts.soaking.plots import Plot
from scripts.soaking.results import Figure, Found, Result

NOT_TO_ITS_END = "it did not come to its end; what it said was printed"


@dataclass(frozen=True, slots=True)
class Kept:
    """A step's result, the day on which it began, and the machine as it was then, in words."""

    day: date
    machine: str
    result: Result


def save(folder: Path, kept: Kept) -> None:
    """Write a step's file."""
    found, error = kept.result.found, kept.result.error
    plot = found.plot and replace(found.plot, points=())
    result = replace(kept.result, found=replace(found, plot=plot), error=error and NOT_TO_ITS_END)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"day": kept.day.isoformat(), "machine": kept.machine, "result": asdict(result)}, indent=1)
    _file(folder, result.step).write_text(text + "\n")


def load(folder: Path, steps: Iterable[str]) -> Iterator[Kept]:
    """Yield what is kept of some steps, in their order."""
    for step in steps:
        if (file := _file(folder, step)).exists():
            yield _read(json.loads(file.read_text()))


def _file(folder: Path, step: str) -> Path:
    return folder / f"{step}.json"


def _read(kept: dict) -> Kept:  # type: ignore[type-arg]  # as json gives it
    result, found = kept["result"], kept["result"]["found"]
    figures = tuple(Figure(**figure) for figure in found["figures"])
    read = Found(figures, found["table"], found["plot"] and Plot(**found["plot"]))
    return Kept(date.fromisoformat(kept["day"]), kept["machine"], Result(**{**result, "found": read}))
