"""Clients of scripts/benchmark/load, the program on Go's libraries, and the times of their calls."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import NamedTuple

from scripts.demonstration.processes import DemoError

LOAD = str(Path(__file__).parents[2] / ".venv/bin/load")
"""The program, which scripts/bench builds."""


class Run(NamedTuple):
    """The calls of one or more runs: the microseconds of each, the seconds of all together, the end of the last in
    nanoseconds of the monotonic clock."""

    microseconds: Sequence[int] = ()
    seconds: float = 0.0
    ended: int = 0

    def plus(self, other: "Run") -> "Run":
        return Run((*self.microseconds, *other.microseconds), self.seconds + other.seconds, other.ended)

    def percentile(self, percent: float) -> int:
        """Return the microseconds that ``percent`` of the calls did not exceed (nearest rank)."""
        return sorted(self.microseconds)[max(ceil(len(self.microseconds) * percent / 100), 1) - 1]


class Load:
    """A client of one method. Its connections stay open between the runs."""

    def __init__(self, process: "subprocess.Popen[str]", method: str) -> None:
        self._process, self._method = process, method

    def run(self, calls: int, pause: float = 0.0) -> Run:
        """Make calls, each after a pause in seconds; return their times. Raises DemoError if one fails."""
        self.start(calls, pause)
        return self.result()

    def start(self, calls: int, pause: float = 0.0) -> None:
        """Begin to make calls; ``result`` waits for them."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{calls} {round(pause * 1e6)}\n")
        self._process.stdin.flush()

    def result(self) -> Run:
        """Wait for the started calls; return their times. Raises DemoError if one failed."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise DemoError(f"the client of {self._method} ended; its errors are above")
        answer = json.loads(line)
        if answer["error"]:
            raise DemoError(f"{self._method} failed: {answer['error']}")
        return Run(answer["microseconds"], answer["seconds"], answer["ended"])


@contextmanager
def client(mode: str, socket: Path, method: str, *flags: str) -> Iterator[Load]:
    """Run a client until the end of the block, which begins once what the method's calls need was created. Raises
    DemoError."""
    command = [LOAD, "call", mode, str(socket), method, *flags]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise DemoError(f"the client of {method} ended; its errors are above")
            yield Load(process, method)
        finally:
            process.kill()
