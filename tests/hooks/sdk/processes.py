"""Hook servers in processes of their own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LONG_SECONDS = 20.0
ROOT = Path(__file__).parents[3]
CHILD = ("-m", "tests.hooks.sdk.child")


class Process:
    """One hook server that listens in a directory and registers in a directory below it."""

    def __init__(
        self, folder: Path, *flags: str, program: Sequence[str] = CHILD, file: str = "obedient-dreamy.json"
    ) -> None:
        self.socket = folder / "a.sock"
        self.registrations = folder / "hookserver.d"
        self.file = self.registrations / file
        self._log = folder / f"log-{time.monotonic_ns()}"
        where = (f"--endpoint={self.socket}", f"--register-dir={self.registrations}")
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        with self._log.open("wb") as log:
            command = [sys.executable, *program, *where, *flags]
            self.process = subprocess.Popen(command, stderr=log, cwd=ROOT, env=environ)

    @property
    def log(self) -> str:
        """Return what the process wrote to stderr."""
        return self._log.read_text()

    def wait_ready(self) -> "Process":
        """Wait until it serves and has registered."""
        eventually(lambda: " serves " in self.log or self.process.poll() is not None)
        assert self.process.poll() is None, self.log
        return self

    def end(self, number: int) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(LONG_SECONDS)

    def registered(self) -> dict[str, object]:
        """Return the content of the registration file."""
        return dict(json.loads(self.file.read_text()))


@contextmanager
def running(folder: Path, *flags: str, **more: Any) -> Iterator[Process]:
    """Run a hook server; it is killed at the end if it has not ended by itself."""
    made = Process(folder, *flags, **more)
    try:
        yield made.wait_ready()
    finally:
        made.process.kill()
        made.process.wait(LONG_SECONDS)


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + LONG_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.01)
