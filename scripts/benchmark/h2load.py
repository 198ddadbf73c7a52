"""nghttp2's h2load as the client: how it is called, and what its log says.

Owns h2load's arguments and the reading of its per-request log.
Must not know: who listens, what is compared.
Invariant: a run in which any request failed is no measurement; it raises.
"""

import subprocess
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from scripts.benchmark.cases import Case
from scripts.demonstration.processes import DemoError

TIMEOUT_SECONDS = 300.0
WINDOW_BITS = "30"
"""Windows of 1 GiB: the client never makes the sender wait."""


@dataclass(frozen=True, slots=True)
class Run:
    """Requests of one or more runs: each one's microseconds, and the seconds that all of them took."""

    microseconds: tuple[int, ...]
    seconds: float

    def __add__(self, other: "Run") -> "Run":
        return Run(self.microseconds + other.microseconds, self.seconds + other.seconds)

    def percentile(self, percent: float) -> int:
        """Return the microseconds that ``percent`` of the requests did not exceed (nearest rank)."""
        ordered = sorted(self.microseconds)
        return ordered[max(ceil(len(ordered) * percent / 100), 1) - 1]

    @property
    def calls_per_second(self) -> float:
        """Return the rate over all runs."""
        return len(self.microseconds) / self.seconds


def read_log(text: str, calls: int) -> Run:
    """Read a log: tab-separated start in microseconds, HTTP status (-1 = failed), microseconds until the end.

    Raises DemoError unless it has ``calls`` requests with status 200.
    """
    rows = [tuple(map(int, line.split("\t")[:3])) for line in text.splitlines()]
    good = sum(status == 200 for _, status, _ in rows)
    if not good == len(rows) == calls:
        raise DemoError(f"h2load made {len(rows)} requests of {calls}, {good} of them with status 200")
    first = min(start for start, _, _ in rows)
    last = max(start + took for start, _, took in rows)
    return Run(tuple(took for _, _, took in rows), (last - first) / 1e6)


def command(case: Case, socket: Path, body: Path, log: Path, calls: int) -> list[str]:
    """Return the command line of a run: one connection, ``case.concurrency`` streams at a time."""
    headers = [f"--header={header}" for header in ("content-type: application/grpc", "te: trailers", *case.headers)]
    return [
        "h2load",
        f"--requests={calls}",
        "--clients=1",
        f"--max-concurrent-streams={min(case.concurrency, calls)}",
        f"--window-bits={WINDOW_BITS}",
        f"--connection-window-bits={WINDOW_BITS}",
        f"--data={body}",
        f"--log-file={log}",
        *headers,
        f"--base-uri=unix:{socket}",
        f"http://localhost{case.path}",
    ]


def run(case: Case, socket: Path, body: Path, calls: int) -> Run:
    """Make calls through a socket. Raises DemoError if one fails."""
    log = body.with_suffix(".log")
    log.unlink(missing_ok=True)
    try:
        done = subprocess.run(
            command(case, socket, body, log, calls), capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )
    except FileNotFoundError:
        raise DemoError("h2load is missing: apt-get install nghttp2-client") from None
    except subprocess.TimeoutExpired:
        raise DemoError(f"{calls} calls of {case.path} did not end in {TIMEOUT_SECONDS:.0f} s") from None
    if done.returncode:
        raise DemoError(f"h2load ended with exit code {done.returncode}: {done.stderr[-500:]}")
    return read_log(log.read_text(), calls)
