"""Run the bench: ``python -m scripts.benchmark [--mode MODE] [--check] [--quick]``; scripts/bench calls it."""

import argparse
import gc
import signal
import sys
from collections.abc import Iterator

from scripts.benchmark import admin, cases, many, measure
from scripts.demonstration.processes import DemoError
from scripts.figures import Figure, print_table, show

OTHERS = {
    admin.NAME: (admin.bench, "calls during requests to the admin socket, conditions alternating"),
    many.NAME: (many.bench, "many calls at a time, and other calls during them"),
}
"""What is measured besides the modes: how, and what its table shows."""
NAMES = (*cases.MODES, *OTHERS)


def bench(name: str, check: bool, share: float) -> Iterator[Figure]:
    """Measure and print; yield the figures. Limits are judged by the median of five rounds. Raises DemoError."""
    rounds = measure.ROUNDS if check else 1
    title = f"{name}, median of {rounds} rounds" if check else f"{name}, one round"
    if name in OTHERS:
        measure_other, shown = OTHERS[name]
        measured, figures = measure_other(rounds, share)
        print_table(f"{title}, {shown}", measured)
    else:
        found, figures = measure.bench(name, rounds, share)
        print_table(f"{title}, ways alternating", cases.figure_table(found))
        resident = measure.resident(name, share)
        show(f"{name}, the proxy by itself", resident)
        yield from resident if check else ()
    if check:
        show(f"{name}, limits by the median of the rounds", figures)
        yield from figures


def main() -> int:
    """Return the exit code: 0 if it measured and no checked limit was missed, else 1."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure the proxy against a bare pipe, and what the admin socket and many calls at a time cost.",
    )
    parser.add_argument(
        "--mode",
        choices=NAMES,
        help="one mode of the proxy, the admin socket, or many calls at a time",
    )
    parser.add_argument("--check", action="store_true", help="five rounds, and exit code 1 if a limit is missed")
    parser.add_argument("--quick", action="store_true", help="a tenth of the calls; rough figures")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all programs are ended on exit
    gc.freeze()  # garbage collection of the client must not show in the figures
    failures = []
    for name in [arguments.mode] if arguments.mode else NAMES:
        try:
            figures = list(bench(name, arguments.check, 0.1 if arguments.quick else 1.0))
            failures += [f"{name}: {figure.missed}" for figure in figures if figure.missed]
        except DemoError as error:
            failures.append(f"{name}: {error}")
    for text in failures:
        print(f"FAILED: {text}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
