"""The project's own hook servers as a user starts them: as programs.

Owns a hook server's start, the wait until it serves, its kill, and its end with what every run must keep to: exit code
0, no fault in the log, a registration file left only by policy Fail.
Must not know: what a hook does, whether a proxy runs.
Invariant: a hook server's files are in its proxy's folder, and processes are ended by their id.
"""

import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tests.system.proxy import ROOT, SIGNS_OF_A_FAULT, WAIT_SECONDS, Folder, wait_until

HOOKS = (sys.executable, "-m", "runtimeproxy_hooks")
FAIL = "--failure-policy=Fail"
SERVES = " serves "


class HookProgram:
    """A hook server as a program. ``words`` stand before its flags: the names of hooks, for the project's own."""

    def __init__(
        self, folder: Folder, *words: str, program: Sequence[str] = HOOKS, name: str = "", flags: Sequence[str] = ()
    ) -> None:
        self.name = name or "-".join(words)
        self.socket = folder.path / f"{uuid.uuid4().hex[:8]}.sock"
        self.registration = folder.registrations / f"{self.name}.json"
        self.log = self.socket.with_suffix(".log")
        where = (f"--endpoint={self.socket}", f"--register-dir={folder.registrations}")
        self.command = [*program, *words, *where, *flags]
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start the program, its output added to the log."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT)

    def start(self) -> None:
        """Start the program and wait until it serves."""
        served = self.output().count(SERVES)
        self.launch()
        self.wait_until_it_serves(served + 1)

    def wait_until_it_serves(self, count: int = 1) -> None:
        """Wait for the line of the log that says so, which comes when the registration file is written."""
        wait_until(lambda: self.ended or self.output().count(SERVES) >= count, "the hook server serves", self.output)
        assert not self.ended, f"the hook server ended at once: {self.output()}"

    @property
    def ended(self) -> bool:
        """Tell whether the process is no more."""
        return self.process is None or self.process.poll() is not None

    def kill(self) -> None:
        """End the process at once (SIGKILL): what it has made is left."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def end(self) -> int:
        """End the process as systemd does (SIGTERM, after a time SIGKILL); return its exit code."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.terminate()
        try:
            return process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def check(self, code: int) -> None:
        """Check an end: the exit code, the log, and that nothing is registered any more, but under Fail."""
        assert code == 0, f"exit code {code}: {self.output()[-4000:]}"
        assert not self.faults(), self.faults()
        assert self.registration.exists() is (FAIL in self.command and "--unregister" not in self.command)

    def faults(self) -> list[str]:
        """Return the lines of the log that tell of a fault of the hook server's own."""
        return [line for line in self.output().splitlines() if any(sign in line for sign in SIGNS_OF_A_FAULT)]

    def output(self) -> str:
        """Return all that the program wrote, over all its starts."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""


@contextmanager
def served(*programs: HookProgram) -> Iterator[None]:
    """Run hook servers; they start at the same time, and end so."""
    with ThreadPoolExecutor(len(programs)) as pool:
        try:
            for program in programs:
                program.launch()
            for program in programs:
                program.wait_until_it_serves()
            yield
        finally:
            codes = list(pool.map(HookProgram.end, programs))
    for program, code in zip(programs, codes, strict=True):
        program.check(code)
