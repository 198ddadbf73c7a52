"""Run the bench: ``python -m scripts.benchmark [--mode MODE] [--check] [--quick]``; scripts/bench calls it."""

import argparse
import gc
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from scripts.benchmark import admin, cases, many, measure
from scripts.demonstration.processes import DemoError
from scripts.figures import Figure, print_table, show

Bench = Callable[[int, float], tuple[list[Sequence[str]], list[Figure]]]
BENCHES: Mapping[str, Bench] = {
    **{mode: partial(measure.bench, mode) for mode in cases.MODES},
    "admin": admin.bench,
    "many": many.bench,
}
"""What is measured: each returns a table and the figures, and takes the number of rounds and the share of calls."""


def main() -> int:
    """Return the exit code: 0 if it measured and no checked limit was missed, else 1."""
    description = "Measure the proxy against a bare pipe, and what the admin socket and many calls at a time cost."
    parser = argparse.ArgumentParser(prog="scripts/bench", description=description)
    mode = "one mode of the proxy, the admin socket, or many calls at a time"
    parser.add_argument("--mode", choices=tuple(BENCHES), help=mode)
    parser.add_argument("--check", action="store_true", help="five rounds, and exit code 1 if a limit is missed")
    parser.add_argument("--quick", action="store_true", help="a tenth of the calls; rough figures, not judged")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all programs are ended on exit
    gc.freeze()  # garbage collection of the client must not show in the figures
    rounds, failures = measure.ROUNDS if arguments.check else 1, []
    for name in [arguments.mode] if arguments.mode else BENCHES:
        try:
            table, figures = BENCHES[name](rounds, 0.1 if arguments.quick else 1.0)
        except DemoError as error:
            failures.append(f"{name}: {error}")
            continue
        if not arguments.check or arguments.quick:
            figures = [figure._replace(kept=None) for figure in figures]
        title = f"{name}, median of {rounds} rounds" if arguments.check else f"{name}, one round"
        if table:
            print_table(title, table)
        show(f"{title}, limits", figures)
        failures += [f"{name}: {figure.missed}" for figure in figures if figure.missed]
    for text in failures:
        print(f"FAILED: {text}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
