"""Runs a soak, all of it or some of its steps; scripts/soak calls it with its arguments."""

import argparse
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path

from scripts.demonstration.report import print_table
from scripts.soaking import document, machine
from scripts.soaking.plots import png
from scripts.soaking.results import Result
from scripts.soaking.steps import STEPS, Step

RESULTS = Path("docs", "results.rst")
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


def soak(chosen: Mapping[str, float], steps: Sequence[Step]) -> list[Result]:
    """Run steps and print what they found."""
    results = []
    for step in steps:
        print(f"== {step.name}: {chosen[step.name]:g} of {step.full}", flush=True)
        result = step.run(chosen[step.name])
        results.append(result)
        rows = [(figure.what, figure.found, figure.limit, figure.verdict) for figure in result.found.figures]
        print_table(f"{step.name}, {result.seconds:.0f} s", [document.FIGURES_HEADER, *rows])
        sys.stdout.flush()
    return results


def write(results: Sequence[Result], described: str) -> None:
    """Write the document and the pictures that it shows."""
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(document.render(results, date.today(), described))
    for result in results:
        if result.found.plot:
            file = RESULTS.parent / document.picture(result.step)
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(png(result.found.plot))


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
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS} all the same")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is ended on the way out
    described = machine.describe()
    steps = [step for step in STEPS if not arguments.step or step.name in arguments.step]
    results = soak(shares(arguments.quick, arguments.share), steps)
    if arguments.write or not (arguments.quick or arguments.step):
        write(results, described)
        print(f"written: {RESULTS}")
    failures = [failure for result in results for failure in result.failures]
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
