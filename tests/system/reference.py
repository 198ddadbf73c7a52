"""The project's own hook servers as a user starts them: as programs.

A hook server's files are in its proxy's folder, and processes are ended by their id.
"""

import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tests.system.proxy import ROOT, WAIT_SECONDS, Folder, Program, wait_until

HOOKS = (sys.executable, "-m", "runtimeproxy_hooks")
FAIL = "--failure-policy=Fail"
SERVES = " serves "


class HookProgram(Program):
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

    def wait_until_it_serves(self) -> None:
        """Wait for the line of the log that says so, which comes when the registration file is written."""
        wait_until(lambda: self.ended or SERVES in self.output(), "the hook server serves", self.output)
        assert not self.ended, f"the hook server ended at once: {self.output()}"

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
        assert self.registration.exists() is (FAIL in self.command)


@contextmanager
def served(*programs: HookProgram) -> Iterator[None]:
    """Run hook servers; they start at the same time, and end so."""
    with ThreadPoolExecutor(len(programs)) as pool:
        try:
            for program in programs:
                program.launch(cwd=ROOT)
            for program in programs:
                program.wait_until_it_serves()
            yield
        finally:
            codes = list(pool.map(HookProgram.end, programs))
    for program, code in zip(programs, codes, strict=True):
        program.check(code)
