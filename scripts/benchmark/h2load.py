"""nghttp2's h2load as the client: how it is called, and what its log says.

Owns h2load's arguments and the reading of its per-request log.
Must not know: who listens, what is compared, what is asked for.
Invariant: a run in which any request failed is no measurement; it raises.
"""

import subprocess
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from scripts.benchmark.cases import DOCKER, Case
from scripts.demonstration.processes import DemoError

TIMEOUT_SECONDS = 300.0
WINDOW_BITS = "30"
"""Windows of 1 GiB: the client never makes the sender wait."""


@dataclass(frozen=True, slots=True)
class Run:
    """Requests of one or more runs: each one's microseconds, and the seconds that all of them took.

    ``meanwhile`` is how many requests ended while each one was under way, itself among them; it may be left out.
    """

    microseconds: tuple[int, ...]
    seconds: float
    meanwhile: tuple[int, ...] = ()

    def __add__(self, other: "Run") -> "Run":
        return Run(
            self.microseconds + other.microseconds, self.seconds + other.seconds, self.meanwhile + other.meanwhile
        )

    def percentile(self, percent: float) -> int:
        """Return the microseconds that ``percent`` of the requests did not exceed (nearest rank)."""
        ordered = sorted(self.microseconds)
        return ordered[max(ceil(len(ordered) * percent / 100), 1) - 1]

    @property
    def calls_per_second(self) -> float:
        """Return the rate over all runs."""
        return len(self.microseconds) / self.seconds


def read_log(text: str, calls: int, status: int) -> Run:
    """Read a log: tab-separated start in microseconds, HTTP status (-1 = failed), microseconds until the end.

    Raises DemoError unless it has ``calls`` requests with the status.
    """
    rows = [tuple(map(int, line.split("\t")[:3])) for line in text.splitlines()]
    good = sum(found == status for _, found, _ in rows)
    if not good == len(rows) == calls:
        raise DemoError(f"h2load made {len(rows)} requests of {calls}, {good} of them with status {status}")
    first = min(start for start, _, _ in rows)
    ends = sorted(start + took for start, _, took in rows)
    meanwhile = tuple(bisect_right(ends, start + took) - bisect_left(ends, start) for start, _, took in rows)
    return Run(tuple(took for _, _, took in rows), (ends[-1] - first) / 1e6, meanwhile)


@dataclass(frozen=True, slots=True)
class H2load:
    """The calls of a case to a socket; its files begin with ``files``.

    ``targets`` gives those of so many calls, which are gone through in turn; ``body`` is None where there is none.
    """

    case: Case
    socket: Path
    files: Path
    headers: tuple[str, ...]
    targets: Callable[[int], Sequence[str]]
    body: Path | None = None

    def command(self, calls: int) -> list[str]:
        """Return the command line of a run."""
        return [
            "h2load",
            f"--requests={calls}",
            *self._protocol(min(self.case.concurrency, calls)),
            *([f"--data={self.body}"] if self.body else []),
            f"--input-file={self._target_file}",
            f"--log-file={self._log}",
            *(f"--header={header}" for header in self.headers),
            f"--base-uri=unix:{self.socket}",
        ]

    def _protocol(self, concurrency: int) -> tuple[str, ...]:
        """Send calls at a time as the clients of the mode do: streams of one connection, or a connection each."""
        if self.case.mode == DOCKER:
            return ("--h1", f"--clients={concurrency}", "--max-concurrent-streams=1")
        windows = (f"--window-bits={WINDOW_BITS}", f"--connection-window-bits={WINDOW_BITS}")
        return ("--clients=1", f"--max-concurrent-streams={concurrency}", *windows)

    @property
    def _log(self) -> Path:
        return self.files.with_suffix(".log")

    @property
    def _target_file(self) -> Path:
        return self.files.with_suffix(".targets")

    def run(self, calls: int) -> Run:
        """Make calls. Raises DemoError if one fails."""
        self._target_file.write_text("".join(f"http://localhost{target}\n" for target in self.targets(calls)))
        self._log.unlink(missing_ok=True)  # h2load would append to it
        try:
            done = subprocess.run(self.command(calls), capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        except FileNotFoundError:
            raise DemoError("h2load is missing: apt-get install nghttp2-client") from None
        except subprocess.TimeoutExpired:
            raise DemoError(f"{calls} calls of {self.case.route} did not end in {TIMEOUT_SECONDS:.0f} s") from None
        if done.returncode:
            raise DemoError(f"h2load ended with exit code {done.returncode}: {done.stderr[-500:]}")
        return read_log(self._log.read_text(), calls, self.case.status)
