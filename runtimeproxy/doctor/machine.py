"""Read the machine: processes, unix sockets and locks, files, and what systemd says of a unit.

Owns where these are read, below a root that a test can make itself, and their form.
Must not know: what is good or bad.
Invariant: it only reads. Of a process it reads the name, arguments, limits, cgroup and open sockets; never its
environment.
"""

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from runtimeproxy.doctor.unix_sockets import UnixSocket, at, listed, told
from runtimeproxy.settings.config import Config

SYSTEMCTL_SECONDS = 1.5


class Process(NamedTuple):
    """A process with a command line."""

    pid: int
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the name of the program, without its directory."""
        return os.path.basename(self.arguments[0])

    def flag(self, name: str) -> str | None:
        """Return the value of a flag, spelt ``--name=value`` or ``--name value``; of several the last; None if none."""
        found = None
        for place, argument in enumerate(self.arguments):
            if argument.startswith(f"--{name}="):
                found = argument.partition("=")[2]
            elif argument == f"--{name}" and place + 1 < len(self.arguments):
                found = self.arguments[place + 1]
        return found


def systemctl(arguments: Sequence[str]) -> str:
    """Return what systemctl prints. Raises OSError if it is missing, fails or takes too long."""
    command = ["systemctl", *arguments]
    try:
        done = subprocess.run(
            command, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SYSTEMCTL_SECONDS
        )
    except subprocess.SubprocessError as error:
        raise OSError(0, f"systemctl {arguments[0]} does not answer ({type(error).__name__})") from None
    return done.stdout


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine below ``root``, with the configuration that the proxy has."""

    config: Config
    root: Path = Path("/")
    systemctl: Callable[[Sequence[str]], str] = systemctl
    kernel: Callable[[Iterable[Path]], Iterable[UnixSocket]] = told

    def path(self, place: str) -> Path:
        """Return the path of a place, such as "proc/locks", below the root."""
        return self.root / place

    def text(self, place: str) -> str:
        """Return the text of a file. Raises OSError."""
        return self.path(place).read_text(errors="replace")

    def processes(self, *names: str) -> Iterator[Process]:
        """Yield the processes of these names, or all if none is given.

        Those that end meanwhile, and the kernel's own, are left out. Raises OSError.
        """
        for entry in os.listdir(self.path("proc")):
            if entry.isdigit():
                try:
                    words = self.text(f"proc/{entry}/cmdline").rstrip("\0").split("\0")
                except (FileNotFoundError, ProcessLookupError):
                    continue
                process = Process(int(entry), tuple(words))
                if words[0] and (not names or process.name in names):
                    yield process

    def sockets(self) -> tuple[UnixSocket, ...]:
        """Return the unix stream sockets of this network namespace. Raises OSError."""
        return tuple(listed(self.text("proc/net/unix")))

    def sockets_with_peers(self) -> tuple[UnixSocket, ...]:
        """Return the unix stream sockets with their peers, of the network namespaces of all processes.

        Processes that may not be looked at are left out. Raises OSError where the kernel does not tell peers.
        """
        namespaces: dict[int, Path] = {}
        for process in self.processes():
            place = self.path(f"proc/{process.pid}/ns/net")
            with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                namespaces.setdefault(os.stat(place).st_ino, place)
        return tuple(self.kernel(namespaces.values()))

    def listeners(self, path: str) -> frozenset[int]:
        """Return the inodes of the sockets that listen at a path. Raises OSError."""
        return frozenset(found.inode for found in at(path, self.sockets()) if found.listening)

    def open_sockets(self, pid: int) -> frozenset[int]:
        """Return the inodes of the sockets that a process has open, none if it has ended. Raises OSError."""
        folder = self.path(f"proc/{pid}/fd")
        try:
            links = [_link(folder / entry) for entry in os.listdir(folder)]
        except (FileNotFoundError, ProcessLookupError):
            return frozenset()
        return frozenset(int(link[8:-1]) for link in links if link.startswith("socket:["))

    def lock_holder(self) -> int | None:
        """Return the process that holds the lock beside the proxy's socket; None if nobody does. Raises OSError.

        /proc/locks is read, as a lock that is tried would stop a proxy that starts now.
        """
        try:
            found = os.stat(self.config.listen_endpoint + ".lock", follow_symlinks=False)
        except FileNotFoundError:
            return None
        place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        rows = (line.split() for line in self.text("proc/locks").splitlines())
        return next((int(row[4]) for row in rows if row[1] == "FLOCK" and row[5] == place), None)

    def proxy(self) -> int | None:
        """Return the process that serves the proxy's socket; None if none is seen. Raises OSError.

        It holds the lock; a socket that systemd handed over has none, and is open in systemd, too.
        """
        if (holder := self.lock_holder()) is not None:
            return holder
        listening = self.listeners(self.config.listen_endpoint)
        others = (process.pid for process in self.processes() if process.pid != 1) if listening else ()
        return next((pid for pid in others if not listening.isdisjoint(self.open_sockets(pid))), None)

    def unit(self, name: str, properties: Sequence[str]) -> Mapping[str, str]:
        """Return properties of a systemd unit that are in force. Raises OSError."""
        told = self.systemctl(["show", f"--property={','.join(properties)}", "--", name])
        return dict(line.split("=", 1) for line in told.splitlines() if "=" in line)


def denied(path: str) -> bool:
    """Return whether there is a socket at a path, or may be, that this process has no right to connect to."""
    try:
        os.stat(path)
    except OSError as error:
        return isinstance(error, PermissionError)
    return not os.access(path, os.W_OK, effective_ids=True)


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""  # closed meanwhile
