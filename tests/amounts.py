"""Amounts of work in tests: the usual ones, or a share of the full ones in scripts/soak."""

import os
from dataclasses import dataclass

SHARE_VARIABLE = "SOAK_SHARE"
"""The variable with the share of the full amounts, a number above 0. Without it the usual amounts apply."""
DEFAULT_EXAMPLES = 100
FULL_TIMES = 100  # a property test's full number of examples relative to its usual one
QUICK_TIMES = 12  # without slow tests, the number of examples is the usual one divided by this
quick = False  # whether slow tests are deselected; set before the test files are imported


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount: the usual one of scripts/test, and the full one of scripts/soak."""

    usual: int
    full: int

    @property
    def now(self) -> int:
        share = os.environ.get(SHARE_VARIABLE)
        return self.usual if share is None else max(round(self.full * float(share)), 1)


STREAM_BYTES = Amount(10 << 20, 1 << 30)  # through one pipe, each way
EXECS_OF_THE_CLI = Amount(10, 1_000)
IDLE_SECONDS = Amount(2, 900)  # that a stream is silent
RESTARTS = Amount(1, 100)  # of a proxy under load, by SIGTERM
KILLS = Amount(1, 50)  # of a proxy under load, by SIGKILL
CRASH_SECONDS = Amount(1, 60)  # of a crash loop of a proxy that cannot start
SECOND_STARTS = Amount(1, 100)  # of a proxy while another one uses its socket
HANGS = Amount(10, 2_000)  # calls whose hook server hangs, for each way of hanging and each front
HOOK_FAILURES = Amount(100, 10_000)  # of random kinds, under each policy, on each front
SWAPS = Amount(10, 1_000)  # replacements of a registration file, while calls are made
RESTARTED_PODS = Amount(3, 200)  # that outlive a kill of the proxy, on each front's fake runtime
LOST_CREATES = Amount(2, 1_000)  # that the runtime has completed when the proxy is killed before a restart
CALLS_OF_THE_UNIT = Amount(100, 10_000)  # through the proxy that runs as the shipped unit, in each mode


def examples(usual: int = DEFAULT_EXAMPLES) -> int:
    number = Amount(usual, FULL_TIMES * usual).now
    return max(number // QUICK_TIMES, 1) if quick else number
