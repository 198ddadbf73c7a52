"""Verdicts, findings, and a row of the table of checks. A finding has advice unless it is ok or skipped."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial

from runtimeproxy.cli.doctor.machine import Machine

CALL_SECONDS = 1.5
CHECK_SECONDS = 2.0
"""The time limit of one check; longer than that of its calls, so that the check reports how a call ended."""
AS_ROOT = "run doctor as root, on the node itself"


class Verdict(Enum):
    """The result of a check. WARNING: it costs something, or will. FAILED: it stops the proxy, or lets calls bypass it.
    UNKNOWN: doctor could not check. SKIPPED: the check does not apply to this node."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    verdict: Verdict
    why: str
    do: str


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table; an OSError or RuntimeProxyError of ``inspect`` becomes a finding. ``calls``: it makes
    connections, which another check would count as a client's."""

    id: str
    subject: str
    inspect: Callable[[Machine], Iterable[Finding]]
    calls: bool = False

    @property
    def place(self) -> str:
        return f"docs/troubleshooting.rst#doctor-{self.id}"


ok = partial(Finding, Verdict.OK, do="")
warning = partial(Finding, Verdict.WARNING)
failed = partial(Finding, Verdict.FAILED)
unknown = partial(Finding, Verdict.UNKNOWN)
skipped = partial(Finding, Verdict.SKIPPED, do="")
