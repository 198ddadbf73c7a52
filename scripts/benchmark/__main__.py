"""Runs the bench: ``python -m scripts.benchmark [--check] [--quick]``; scripts/bench installs and calls it."""

import argparse
import signal
import sys

from scripts.benchmark import limits, measure, memory, report
from scripts.demonstration.processes import DemoError

CHECK_ROUNDS = 5
QUICK_SHARE = 0.1


def bench(check: bool, share: float) -> list[str]:
    """Measure and print; return the limits that were missed, none unless they are checked. Raises DemoError."""
    rounds = []
    for number in range(CHECK_ROUNDS if check else 1):
        print(f"round {number + 1}", flush=True)
        rounds.append(measure.one_round(share))
    report.show_figures(rounds)
    resident = memory.resident(share)
    report.show_resident(resident)
    huge_list_passed = memory.huge_list_passes()
    print("A list of 16 MiB", "passes unchanged" if huge_list_passed else "does NOT pass unchanged")
    if not check:
        return []
    verdicts = limits.judge(rounds)
    report.show_verdicts(verdicts)
    ratios = [
        f"{verdict.name} is {verdict.median:.2f}, the limit is {verdict.bound:.2f}"
        for verdict in verdicts
        if not verdict.kept
    ]
    return ratios + limits.missed_by(resident, huge_list_passed)


def main() -> int:
    """Return the exit code: 0 if it measured and no checked limit was missed, else 1."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measure the proxy beside a bare pipe.")
    parser.add_argument("--check", action="store_true", help="five rounds, and exit code 1 if a limit is missed")
    parser.add_argument("--quick", action="store_true", help="a tenth of the calls; rough figures")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is ended on the way out
    try:
        missed = bench(arguments.check, QUICK_SHARE if arguments.quick else 1.0)
    except DemoError as error:
        missed = [str(error)]
    for text in missed:
        print(f"FAILED: {text}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
