"""How much the tests do: their usual amount, or a share of the full one when scripts/soak runs them."""

import os
from dataclasses import dataclass

SHARE_VARIABLE = "SOAK_SHARE"
"""Holds a number above 0, the share of the full amounts. Where it is not set the amounts are the usual ones."""

DEFAULT_EXAMPLES = 100
FULL_TIMES = 100
"""A property test's full number of examples is so many times its usual one."""
QUICK_TIMES = 4
"""Where slow tests are left out, a property test's number of examples is so many times smaller than its usual one."""

quick = False
"""Whether slow tests are left out; set before the test files are read."""


@dataclass(frozen=True, slots=True)
class Amount:
    """What a test does in scripts/test, and in a full scripts/soak."""

    usual: int
    full: int

    def at(self, share: float) -> int:
        """Return a share of the full amount."""
        return max(round(self.full * share), 1)

    @property
    def now(self) -> int:
        """Return the amount of this run."""
        share = os.environ.get(SHARE_VARIABLE)
        return self.usual if share is None else self.at(float(share))


CALLS_OF_A_CLIENT = Amount(1_000, 100_000)
STREAM_BYTES = Amount(10 << 20, 1 << 30)
"""Through one pipe, each way."""
EXECS_OF_THE_CLI = Amount(10, 1_000)
IDLE_SECONDS = Amount(2, 900)
"""How long a stream says nothing."""
STALL_SECONDS = Amount(1, 60)
"""How long a client does not read."""
RESTARTS = Amount(1, 100)
"""Of a proxy under load, by SIGTERM."""
SECOND_STARTS = Amount(1, 100)
"""Of a proxy whose socket another one has."""
HANGS = Amount(10, 2_000)
"""Calls whose hook server hangs, for each way of hanging and each front."""
HOOK_SERVERS = Amount(3, 100)
"""At one path, one after another."""
HOOK_FAILURES = Amount(100, 10_000)
"""Of kinds chosen at random, under each policy, on each front."""
HOSTILE_FILES = Amount(100, 10_000)
"""In the directory of the registrations."""
SWAPS = Amount(10, 1_000)
"""Of a registration file, while calls are made."""
RESTARTED_PODS = Amount(3, 200)
"""That run through the kill of the proxy, on each front's fake runtime."""
LOST_CREATES = Amount(2, 1_000)
"""That the runtime has carried out when the proxy is killed, with a restart after each."""


def examples(usual: int = DEFAULT_EXAMPLES) -> int:
    """Return the ``max_examples`` of a property test in this run."""
    number = Amount(usual, FULL_TIMES * usual).now
    return max(number // QUICK_TIMES, 1) if quick else number
