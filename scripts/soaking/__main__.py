"""Runs a soak, all of it or some of its steps; scripts/soak calls it with its arguments."""

import argparse
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path

from scripts.demonstration.report import print_table
from scripts.soaking import document, figures, machine
from scripts.soaking.results import Result
from scripts.soaking.steps import STEPS, Step

RESULTS = Path("docs", "results.rst")
PICTURES = RESULTS.with_suffix("")
FIGURES_HEADER = ("figure", "found", "limit", "verdict")
QUICK_SHARE = 0.01


def share(text: str) -> dict[str, float]:
    """Read ``NUMBER``, the share of every step, or ``STEP=NUMBER``. Raises argparse.ArgumentTypeError."""
    name, _, number = text.rpartition("=")
    names = {step.name for step in STEPS}
    if name and name not in names:
        raise argparse.ArgumentTypeError(f"there is no step {name!r}: take one of {', '.join(sorted(names))}")
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{number!r} is no share: take a number above 0, at most 1")
    return dict.fromkeys([name] if name else names, value)


def shares(quick: bool, given: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return each step's share; what is given later counts."""
    chosen = dict.fromkeys((step.name for step in STEPS), QUICK_SHARE if quick else 1.0)
    for more in given:
        chosen |= more
    return chosen


def soak(chosen: Mapping[str, float], steps: Sequence[Step], *, written: bool) -> list[str]:
    """Run steps, print what they found, and write it as soon as it is known; return what failed."""
    failures = []
    for step in steps:
        print(f"== {step.name}: {chosen[step.name]:g} of {step.full}", flush=True)
        day, described = date.today(), machine.describe()
        result = step.run(chosen[step.name])
        rows = [(figure.what, figure.found, figure.limit, figure.verdict) for figure in result.found.figures]
        print_table(f"{step.name}, {result.seconds:.0f} s", [FIGURES_HEADER, *rows])
        if result.found.table:
            print_table(f"{step.name}, in all", result.found.table)
        if written:
            write(result, day, described)
        sys.stdout.flush()
        failures += result.failures
    return failures


def write(result: Result, day: date, described: str) -> None:
    """Put a step's row, and its picture, in the place of those of its last run."""
    rows = dict(document.rows_of(RESULTS.read_text())) if RESULTS.exists() else {}
    rows[result.step] = document.row(result, day, described)
    PICTURES.mkdir(parents=True, exist_ok=True)
    if result.found.plot is not None:
        from scripts.soaking.plots import draw  # only who keeps a picture needs matplotlib

        draw(result.found.plot, PICTURES / f"{result.step}.png")
    drawn = [(step.name, figures.MEMORY_BELOW) for step in STEPS if (PICTURES / f"{step.name}.png").exists()]
    RESULTS.write_text(document.render({step.name: rows[step.name] for step in STEPS if step.name in rows}, drawn))


def main() -> int:
    """Return the exit code: 0 if no step failed, else 1."""
    parser = argparse.ArgumentParser(prog="scripts/soak", description="Run the long runs with their full counts.")
    parser.add_argument("--quick", action="store_true", help=f"a hundredth of each; {RESULTS} is not written")
    parser.add_argument("--share", action="append", type=share, default=[], metavar="[STEP=]NUMBER")
    parser.add_argument(
        "--step",
        action="append",
        choices=[step.name for step in STEPS],
        help=f"run only this one, or these; {RESULTS} is not written",
    )
    parser.add_argument("--write", action="store_true", help=f"write what these found into {RESULTS} all the same")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is ended on the way out
    steps = [step for step in STEPS if not arguments.step or step.name in arguments.step]
    written = arguments.write or not (arguments.quick or arguments.step)
    failures = soak(shares(arguments.quick, arguments.share), steps, written=written)
    if written:
        print(f"written: {RESULTS}")
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
