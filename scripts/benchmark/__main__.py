"""Runs the bench: ``python -m scripts.benchmark [--mode MODE] [--check] [--quick]``; scripts/bench calls it."""

import argparse
import gc
import signal
import sys

from scripts.benchmark import hookmode, limits, measure, memory, report
from scripts.benchmark.cases import CRI
from scripts.benchmark.limits import Check
from scripts.benchmark.modes import MODES, Mode
from scripts.demonstration.processes import DemoError

CHECK_ROUNDS = 5
QUICK_SHARE = 0.1
NAMES = (*MODES, hookmode.NAME)


def _bench(name: str, check: bool, share: float) -> list[str]:
    if name == hookmode.NAME:
        return hookmode.bench(CHECK_ROUNDS if check else 1, check, share)
    return bench(MODES[name], check, share)


def bench(mode: Mode, check: bool, share: float) -> list[str]:
    """Measure and print; return the limits that were missed, none unless they are checked. Raises DemoError."""
    rounds = []
    for number in range(CHECK_ROUNDS if check else 1):
        print(f"{mode.name}, round {number + 1}", flush=True)
        rounds.append(measure.one_round(mode, share))
    report.show_figures(mode.name, rounds)
    checks = list(limits.check(mode.name, memory.resident(mode, share)))
    if mode.name == CRI:
        passes = memory.huge_list_passes()
        checks.append(Check("a list of 16 MiB", "unchanged" if passes else "changed", "unchanged", passes))
    report.show_checks(mode.name, checks)
    if not check:
        return []
    verdicts = limits.judge(rounds)
    report.show_verdicts(mode.name, verdicts)
    missed = [(found.name, f"{found.median:.2f}", found.limit) for found in verdicts if not found.kept]
    missed += [(found.what, found.found, found.limit) for found in checks if not found.kept]
    return [f"{mode.name}: {what} is {found}, the limit is {limit}" for what, found, limit in missed]


def main() -> int:
    """Return the exit code: 0 if it measured and no checked limit was missed, else 1."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description="Measure the proxy beside a bare pipe, and the hook servers."
    )
    parser.add_argument("--mode", choices=NAMES, help="one mode of the proxy only, or only the hook servers")
    parser.add_argument("--check", action="store_true", help="five rounds, and exit code 1 if a limit is missed")
    parser.add_argument("--quick", action="store_true", help="a tenth of the calls; rough figures")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is ended on the way out
    gc.freeze()  # the client's own pauses are nobody's
    missed = []
    for name in [arguments.mode] if arguments.mode else NAMES:
        try:
            missed += _bench(name, arguments.check, QUICK_SHARE if arguments.quick else 1.0)
        except DemoError as error:
            missed.append(f"{name}: {error}")
    for text in missed:
        print(f"FAILED: {text}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
