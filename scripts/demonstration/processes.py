"""The programs that demo and bench start.

A program that was started is always ended, even on a failure half way, or on SIGTERM and Ctrl-C.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.system.proxy import answers

START_SECONDS = 60.0
STOP_SECONDS = 20.0
LOOK_SECONDS = 0.002


class DemoError(Exception):
    """Demo or bench cannot continue; the text has the reason and the remedy."""


class Interruption:
    """Turns a signal into one SystemExit, immediately or at the end of a block that must not be cut short."""

    message = "FAILED: interrupted; everything that was started is ended"

    _holds, _received, _raised = 0, False, False

    def listen(self) -> None:
        """Handle the signals from now on."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._receive)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Defer a signal to the end of the block. Raises SystemExit there."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            self._raise_if_due()

    def check(self) -> None:
        """Raise SystemExit if a signal was received: a later error may have replaced it."""
        if self._received:
            sys.exit(self.message)

    def _receive(self, *_: object) -> None:
        self._received = True
        self._raise_if_due()

    def _raise_if_due(self) -> None:
        if self._received and not self._raised and not self._holds:
            self._raised = True  # a second signal must not cut short the ending of the programs
            sys.exit(self.message)


interruption = Interruption()
"""The one of this process."""


class Program(NamedTuple):
    """A running program and the file with its output."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def wait_until_it_listens(self, path: Path) -> None:
        """Wait until the program listens on a unix socket. Raises DemoError with the end of its output."""
        self._wait(lambda: answers(path), f"listen on {path}", START_SECONDS)

    def wait_until_it_prints(self, text: str, seconds: float = START_SECONDS) -> None:
        """Wait until a text is in the program's output. Raises DemoError with the output's end."""
        self._wait(lambda: text in self.output(), f"print {text!r}", seconds)

    def _wait(self, happened: Callable[[], bool], what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not happened():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise DemoError(f"{self.name} does not {what}; its output ends: {self.output()[-1500:]}")
            time.sleep(LOOK_SECONDS)

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def proc(self, file: str) -> str:
        """Return the content of one of the program's files in /proc."""
        return Path("/proc", str(self.process.pid), file).read_text()

    def memory(self, figure: str = "VmRSS") -> int:
        """Return the program's present resident bytes; with VmHWM the most since ``start_peak``: proc(5), status."""
        return int(self.proc("status").partition(f"{figure}:")[2].split()[0]) * 1024

    def start_peak(self) -> None:
        """Reset the program's peak of memory: proc(5), clear_refs."""
        Path("/proc", str(self.process.pid), "clear_refs").write_text("5")

    def cpu_nanoseconds(self) -> int:
        """Return the CPU time that the program has used."""
        # The kernel's clock id for another process's CPU time (clock_getcpuclockid(3), which Python lacks).
        return time.clock_gettime_ns(~self.process.pid << 3 | 2)


@contextmanager
def program(name: str, command: Sequence[str], folder: Path, *, code: int = 0) -> Iterator[Program]:
    """Run a program until the end of the block, with a log in a folder. Raises DemoError on another exit code."""
    running: Program | None = None
    # The proxy is configured by the command line alone, whatever the shell has set.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RUNTIMEPROXY_")}
    try:
        with interruption.held(), (folder / f"{name}.log").open("wb") as log:
            # A terminal and timeout(1) signal a whole process group; the demo ends its programs itself, in order.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, process_group=0
            )
            running = Program(name, process, Path(log.name))
        yield running
    except BaseException:
        if running is not None:
            _stop(running.process)
        raise
    if (found := _stop(running.process)) != code:
        raise DemoError(f"{name} ended with exit code {found}; its output ends: {running.output()[-1500:]}")


def _stop(process: subprocess.Popen[bytes]) -> int:
    """Send a program one signal, because a second one could kill it while it is stopping; return its exit code."""
    with interruption.held():
        process.terminate()
        try:
            return process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
