"""The node: its files below a root directory, and its commands.

Owns how a command comes to run on the node and not in the pod, and how a file is replaced.
Must not know: what any of them is for.
Invariant: a file has its old or its new content, whatever happens meanwhile; no link of the node leads out of its root.
"""

import errno
import os
import stat
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .errors import Failed

_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENTER = ("nsenter", "--target=1", "--mount", "--", "env", "--ignore-environment", _PATH)
"""What runs a command with the node's files, which its process 1 has, and without the pod's variables."""
SECONDS = 90.0
"""How long a command may take: longer than a unit of the node may take to stop."""
LONGEST = 200
"""Longest part of a command's output that is reported."""
_LINKS = 40
"""Through how many links a path may lead, as in Linux."""


@dataclass(frozen=True, slots=True)
class File:
    """A file's text, mode and owner, -1 for the process that writes it; or a link, whose text is where it leads."""

    text: str
    mode: int
    user: int = -1
    group: int = -1
    link: bool = False


class Node:
    """A node, whose files are below ``root``."""

    def __init__(self, root: Path = Path("/host"), enter: Sequence[str] = ENTER) -> None:
        self.root = root
        self._enter = enter

    def path(self, place: str) -> Path:
        """Return where a path of the node is found here: also an absolute link leads below the root, as it does on the
        node. Raises OSError."""
        return self._found(place.split("/"), _LINKS)

    def entry(self, place: str) -> Path:
        """Return where the last part of a path is itself found here, which may be a link. Raises OSError."""
        folder, _, name = place.rpartition("/")
        return self.path(folder) / name

    def _found(self, parts: list[str], links: int) -> Path:
        found = self.root
        for at, part in enumerate(parts):
            if part in ("", "."):
                continue
            if part == "..":
                found = found if found == self.root else found.parent
            elif (here := found / part).is_symlink():
                if not links:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), "/".join(parts))
                target = os.readlink(here)
                before = [] if target.startswith("/") else list(found.relative_to(self.root).parts)
                return self._found([*before, *target.split("/"), *parts[at + 1 :]], links - 1)
            else:
                found = here
        return found

    def text(self, place: str) -> str | None:
        """Return the text of a file; None if it is not there. Raises OSError."""
        try:
            return self.path(place).read_bytes().decode(errors="surrogateescape")
        except FileNotFoundError:
            return None

    def file(self, place: str) -> File | None:
        """Return the file or the link that is at a path; None if nothing is. Raises OSError."""
        path = self.entry(place)
        try:
            found = path.lstat()
            link = stat.S_ISLNK(found.st_mode)
            text = os.readlink(path) if link else path.read_bytes().decode(errors="surrogateescape")
        except FileNotFoundError:
            return None
        return File(text, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, link)

    def write(self, place: str, text: str, mode: int = 0o644) -> None:
        """Replace a file, whose mode and owner stay, or make it with its directories. Raises OSError."""
        file = File(text, mode)
        with suppress(FileNotFoundError):
            found = self.path(place).stat()
            if stat.S_ISREG(found.st_mode):  # a unit that is masked is a link to a device
                file = File(text, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)
        self.put(place, file)

    def put(self, place: str, file: File) -> None:
        """Replace a file or a link, or make it with its directories. Raises OSError."""
        path = self.entry(place)
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        sibling = path.with_name(f".{path.name}.runtimeproxy-installer")
        try:
            sibling.unlink(missing_ok=True)  # of a run that was cut off
            if file.link:
                sibling.symlink_to(file.text)
                os.lchown(sibling, file.user, file.group)
            else:
                with open(os.open(sibling, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
                    opened.write(file.text.encode(errors="surrogateescape"))
                    os.fchown(opened.fileno(), file.user, file.group)
                    os.fchmod(opened.fileno(), file.mode)
                    os.fsync(opened.fileno())
            os.replace(sibling, path)
        except OSError:
            with suppress(OSError):
                os.unlink(sibling)
            raise

    def remove(self, place: str) -> None:
        """Remove a file or a link if it is there, or a directory if nothing is in it. Raises OSError."""
        path = self.entry(place)
        if path.is_dir() and not path.is_symlink():
            with suppress(OSError):
                path.rmdir()
        else:
            path.unlink(missing_ok=True)

    def query(self, *command: str, seconds: float = SECONDS) -> tuple[int, str]:
        """Run a command on the node; return its exit code and what it printed. Raises Failed if it cannot be run."""
        try:
            done = subprocess.run(
                [*self._enter, *command],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=seconds,
                check=False,
                text=True,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(command[:3])} did not end within {seconds:g} s") from None
        except OSError as error:
            raise Failed(f"{command[0]} cannot be run: {error.strerror}") from None
        return done.returncode, done.stdout or done.stderr

    def run(self, *command: str, seconds: float = SECONDS) -> str:
        """Run a command on the node; return what it printed. Raises Failed if it fails."""
        code, output = self.query(*command, seconds=seconds)
        if code:
            reported = " ".join(output.split())[:LONGEST]
            raise Failed(f"{' '.join(command[:3])} failed with exit code {code}: {reported}")
        return output

    def active(self, unit: str) -> bool:
        """Return whether a unit of systemd is active. Raises Failed."""
        return self.query("systemctl", "is-active", "--quiet", unit)[0] == 0
