"""A machine with its own real systemd as process 1, in namespaces and cgroups of its own; root on Debian only.

It has its own processes, network (loopback alone), host name, /run, /tmp and /dev; /sys and the kernel's settings are
read-only, cgroups and engines work. Nothing of it outlives the ``with`` block, nor a test that is killed.
"""

import os
import select
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

SECONDS = 60.0
"""The longest wait for anything."""
LOOK_SECONDS = 0.05
BOOT = Path(__file__).with_name("boot.sh")
STARTED = ("running", "degraded")
"""Answers of ``systemctl is-system-running`` after a boot; degraded: a unit of the tree failed."""


class MachineError(Exception):
    """A command in a machine failed, or what was waited for did not come; the text has the output."""


class Machine:
    """A booted tree; use as a context manager.

    ``tree`` is its root (tests.machines.tree.debian()), which is not written to: all that is written is in memory.
    ``work`` is an empty directory of the test's own. ``binds`` are paths in the machine with what is seen there of
    this one, read-only. With ``overlay`` this machine's /usr is there, too, where the tree's has nothing.
    """

    def __init__(
        self, tree: Path, work: Path, binds: Mapping[str, Path] | None = None, *, overlay: bool = False
    ) -> None:
        self._tree = tree
        self._overlay = "/usr" if overlay else ""
        self._work = work
        self._binds = [f"{source}:{place}" for place, source in (binds or {}).items()]
        self.name = f"machine-{uuid.uuid4().hex[:8]}"
        """Of its cgroup, in each hierarchy."""
        self._log = work / "boot.log"
        self.pid = 0
        """Of its systemd, as this machine numbers it."""

    def __enter__(self) -> Self:
        (self._work / "mount").mkdir(parents=True)
        command: list[str | Path]
        command = [BOOT, self.name, self._tree, self._overlay, self._work / "mount", *self._binds]
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C ends the test, and that ends the machine.
            self._boot = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        try:
            assert self._boot.stdout is not None
            ready, _, _ = select.select([self._boot.stdout], [], [], SECONDS)
            self.pid = int(self._boot.stdout.readline() or 0) if ready else 0
            if not self.pid:
                raise MachineError("the machine does not boot")
            self.until(lambda: self.run("systemctl", "is-system-running", check=False).strip() in STARTED, "the boot")
        except BaseException as error:
            self.__exit__()
            error.add_note(f"the log of its start: {self._log.read_text()[-2000:]}")
            raise
        return self

    def __exit__(self, *details: object) -> None:
        assert self._boot.stdin is not None
        assert self._boot.stdout is not None
        self._boot.stdin.close()
        self._boot.stdout.close()
        self._boot.wait(SECONDS)

    def run(
        self,
        *command: str | Path,
        input: str | None = None,
        check: bool = True,
        seconds: float = SECONDS,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Run a command in the machine as root; return what it writes to standard output and error.

        What it leaves in the background is not a unit: start daemons with systemd-run or a unit.

        Raises MachineError if it fails (unless ``check`` is False), or takes longer than ``seconds``.
        """
        # timeout: nsenter's end would not be its child's.
        inner = ["timeout", "--signal=KILL", f"{seconds:.0f}", *map(str, command)]
        done = subprocess.run(
            [*self._enter("--all"), *inner],
            input=input or "",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=seconds + SECONDS,
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LANG": "C.UTF-8", **(env or {})},
        )
        if check and done.returncode:
            what = " ".join(map(str, command))
            raise MachineError(f"{what}: exit code {done.returncode}; it wrote: {done.stdout[-4000:]}")
        return done.stdout

    def popen(self, *command: str | Path, namespaces: Sequence[str] = ("--all",)) -> subprocess.Popen[bytes]:
        """Start a command in the machine; the caller ends it.

        With ``namespaces=["--net"]`` it is a program of this machine in that one's network.
        """
        return subprocess.Popen(
            [*self._enter(*namespaces), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def path(self, inside: str | Path) -> Path:
        """Return where this machine sees a path of that one; unix sockets there can be connected to."""
        # A link with an absolute target (/var/run) would lead out of the machine.
        return self.root / self.run("realpath", "--canonicalize-missing", inside).strip().lstrip("/")

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self.pid}/root")

    def copy(self, source: Path, inside: str | Path) -> None:
        """Copy a file or directory into the machine, to that name, with modes and links; makes the parents."""
        target = self.path(inside)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(source, target)

    def write(self, inside: str | Path, text: str, mode: int = 0o644) -> None:
        """Write a file in the machine; makes the parents."""
        target = self.path(inside)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)

    def show(self, unit: str, name: str) -> str:
        """Return a property of a unit, as ``systemctl show`` reports it."""
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def journal(self, unit: str) -> str:
        """Return the messages of a unit and of systemd about it."""
        return self.run("journalctl", "--no-pager", "--output=cat", "--unit", unit)

    def until(self, condition: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
        """Wait until a condition holds. Raises MachineError after that time."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline or not os.path.exists(self.root):
                raise MachineError(f"waited {seconds:.0f} s for {what}")
            time.sleep(LOOK_SECONDS)

    def _enter(self, *namespaces: str) -> list[str]:
        # Into cgroups next to its own first: nsenter changes what is seen of them, not where the process is.
        groups = " ".join(f"{path}/cgroup.procs" for path in self._cgroups())
        into = f'for group in {groups}; do echo $$ >"$group"; done; exec "$@"'
        return ["sh", "-c", into, "sh", "nsenter", "--target", str(self.pid), *namespaces, "--"]

    def _cgroups(self) -> list[Path]:
        found = []
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            mounted, _, kind = line.partition(" - ")
            with suppress(IndexError):
                if kind.startswith("cgroup"):
                    found.append(Path(mounted.split()[4], f"{self.name}-outer"))
        return found
