"""Run a soak, all of it or some of its steps; scripts/soak calls it with its arguments."""

import argparse
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import date

from scripts.figures import print_table, show
from scripts.soaking.results import RESULTS, machine, write
from scripts.soaking.steps import STEPS, Step

QUICK_SHARE = 0.01


def share(text: str) -> dict[str, float]:
    """Return the shares by step of ``NUMBER`` (every step) or ``STEP=NUMBER``. Raises argparse.ArgumentTypeError."""
    name, _, number = text.rpartition("=")
    names = [step.name for step in STEPS]
    if name and name not in names:
        raise argparse.ArgumentTypeError(f"there is no step {name!r}: take one of {', '.join(names)}")
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{number!r} is no share: take a number above 0, at most 1")
    return dict.fromkeys([name] if name else names, value)


def shares(quick: bool, given: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return each step's share; later values override earlier ones."""
    chosen = dict.fromkeys((step.name for step in STEPS), QUICK_SHARE if quick else 1.0)
    for more in given:
        chosen |= more
    return chosen


def soak(chosen: Mapping[str, float], steps: Sequence[Step], *, written: bool) -> list[str]:
    """Run steps, print their findings, and write them as soon as they are known; return what failed."""
    failures = []
    for step in steps:
        print(f"== {step.name}: {chosen[step.name]:g} of {step.full}", flush=True)
        where, began = f"{date.today().isoformat()}, {machine()}", time.monotonic()
        result = step.run(chosen[step.name])
        show(f"{step.name}, {time.monotonic() - began:.0f} s", result.found.figures)
        if result.found.table:
            print_table(f"{step.name}, in all", result.found.table)
        if written:
            write(result, where, [each.name for each in STEPS])
        failures += result.failures
    return failures


def main() -> int:
    """Return the exit code: 0 if no step failed, else 1."""
    names = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(prog="scripts/soak", description="Run the long runs with their full counts.")
    parser.add_argument("--quick", action="store_true", help=f"a hundredth of each; {RESULTS} is not written")
    parser.add_argument("--share", action="append", type=share, default=[], metavar="[STEP=]NUMBER")
    parser.add_argument("--step", action="append", choices=names, help=f"only this one; {RESULTS} is not written")
    parser.add_argument("--write", action="store_true", help=f"write what these found into {RESULTS} all the same")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all programs are ended on exit
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
