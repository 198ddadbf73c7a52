"""How much the tests do: their usual amount, or a share of the full one when scripts/soak runs them.

Owns the full amounts, and the environment variable by which scripts/soak tells the share.
Must not know: which tests there are.
Invariant: no amount is below one.
"""

import os
from dataclasses import dataclass

SHARE_VARIABLE = "SOAK_SHARE"
"""Holds a number above 0, the share of the full amounts. Where it is not set the amounts are the usual ones."""

DEFAULT_EXAMPLES = 100
FULL_TIMES = 100
"""A property test's full number of examples is so many times its usual one."""


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


CALLS_OF_A_CLIENT = Amount(10_000, 100_000)
STREAM_BYTES = Amount(10 << 20, 1 << 30)
"""Through one pipe, each way."""
EXECS_ON_A_FAKE = Amount(100, 1_000)
EXECS_OF_THE_CLI = Amount(10, 1_000)
IDLE_SECONDS = Amount(2, 900)
"""How long a stream says nothing."""
STALL_SECONDS = Amount(1, 60)
"""How long a client does not read."""


def examples(usual: int = DEFAULT_EXAMPLES) -> int:
    """Return the ``max_examples`` of a property test in this run."""
    return Amount(usual, FULL_TIMES * usual).now
