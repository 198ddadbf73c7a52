"""The words of the doctor: verdicts, findings, and a row of the table of checks.

Invariant: a finding that is neither ok nor skipped says what to do.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from runtimeproxy.cli.doctor.machine import Machine

CALL_SECONDS = 1.5
"""The time limit of one call on a socket."""
AS_ROOT = "run doctor as root, on the node itself"
"""What to do where this process may not look."""
CHECK_SECONDS = 2.0
"""The time limit of one check; longer than that of its calls, so that a call's own end is told."""


class Verdict(Enum):
    """What a check found; UNKNOWN: it could not look; SKIPPED: it does not apply to this node."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One verdict, one line why, one line what to do ("" where it is ok or skipped)."""

    verdict: Verdict
    why: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table; ``look`` may raise OSError or RuntimeProxyError, which becomes a finding.

    ``calls``: it makes connections, which another check would take for somebody else's.
    """

    id: str
    looks_at: str
    look: Callable[[Machine], Iterable[Finding]]
    calls: bool = False

    @property
    def place(self) -> str:
        """Return the place of the check's section in the documentation."""
        return f"docs/troubleshooting.rst#doctor-{self.id}"


def ok(why: str) -> Finding:
    """Return the finding that all is well."""
    return Finding(Verdict.OK, why)


def warning(why: str, do: str) -> Finding:
    """Return a finding that costs something, or will."""
    return Finding(Verdict.WARNING, why, do)


def failed(why: str, do: str) -> Finding:
    """Return a finding that stops the proxy, or lets calls go past it."""
    return Finding(Verdict.FAILED, why, do)


def skipped(why: str) -> Finding:
    """Return the finding that the check does not apply to this node."""
    return Finding(Verdict.SKIPPED, why)


def unknown(why: str, do: str) -> Finding:
    """Return the finding that doctor could not look."""
    return Finding(Verdict.UNKNOWN, why, do)
