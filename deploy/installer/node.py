"""The node: its files below a root directory, and its commands.

Owns how a command runs on the node instead of in the pod, and how a file is replaced.
Must not know: the purpose of any of them.
Invariant: a file has its old or its new content at any time; no link of the node leads out of its root.
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
ENTER_COMMAND = ("nsenter", "--target=1", "--mount", "--", "env", "--ignore-environment", _PATH)
"""Runs a command in the mount namespace of the node's process 1, without the pod's environment."""
COMMAND_SECONDS = 90.0
"""Timeout of a command: longer than a unit of the node may take to stop."""
MAX_OUTPUT_LENGTH = 200
"""Longest part of a command's output that is reported."""
_MAX_LINKS = 40
"""Links that a path may contain, as in Linux."""


@dataclass(frozen=True, slots=True)
class File:
    """A file's text, mode and owner (-1: that of this process); or a link, whose text is its target."""

    text: str
    mode: int
    user: int = -1
    group: int = -1
    link: bool = False


class Node:
    """A node with its files below ``root``."""

    def __init__(self, root: Path = Path("/host"), enter: Sequence[str] = ENTER_COMMAND) -> None:
        self.root = root
        self._enter = enter

    def path(self, node_path: str) -> Path:
        """Return the local path of a path of the node. An absolute link resolves below the root, as on the node.
        Raises OSError."""
        return self._resolve(node_path.split("/"), _MAX_LINKS)

    def entry(self, node_path: str) -> Path:
        """Return the local path without following a link in its last part. Raises OSError."""
        folder, _, name = node_path.rpartition("/")
        return self.path(folder) / name

    def _resolve(self, parts: list[str], links: int) -> Path:
        resolved = self.root
        for index, part in enumerate(parts):
            if part in ("", "."):
                continue
            if part == "..":
                resolved = resolved if resolved == self.root else resolved.parent
            elif (candidate := resolved / part).is_symlink():
                if not links:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), "/".join(parts))
                target = os.readlink(candidate)
                before = [] if target.startswith("/") else list(resolved.relative_to(self.root).parts)
                return self._resolve([*before, *target.split("/"), *parts[index + 1 :]], links - 1)
            else:
                resolved = candidate
        return resolved

    def text(self, node_path: str) -> str | None:
        """Return the text of a file; None if it does not exist. Raises OSError."""
        try:
            return self.path(node_path).read_bytes().decode(errors="surrogateescape")
        except FileNotFoundError:
            return None

    def file(self, node_path: str) -> File | None:
        """Return the file or the link at a path; None if it does not exist. Raises OSError."""
        path = self.entry(node_path)
        try:
            status = path.lstat()
            link = stat.S_ISLNK(status.st_mode)
            text = os.readlink(path) if link else path.read_bytes().decode(errors="surrogateescape")
        except FileNotFoundError:
            return None
        return File(text, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, link)

    def write(self, node_path: str, text: str, mode: int = 0o644) -> None:
        """Replace a file and keep its mode and owner, or create it with its directories. Raises OSError."""
        file = File(text, mode)
        with suppress(FileNotFoundError):
            status = self.path(node_path).stat()
            if stat.S_ISREG(status.st_mode):  # a unit that is masked is a link to a device
                file = File(text, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
        self.put(node_path, file)

    def put(self, node_path: str, file: File) -> None:
        """Replace a file or a link, or create it with its directories. Raises OSError."""
        path = self.entry(node_path)
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        sibling = path.with_name(f".{path.name}.runtimeproxy-installer")
        try:
            sibling.unlink(missing_ok=True)  # of an interrupted run
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

    def remove(self, node_path: str) -> None:
        """Remove a file or a link if it exists, or a directory if it is empty. Raises OSError."""
        path = self.entry(node_path)
        if path.is_dir() and not path.is_symlink():
            with suppress(OSError):
                path.rmdir()
        else:
            path.unlink(missing_ok=True)

    def query(self, *command: str, seconds: float = COMMAND_SECONDS) -> tuple[int, str]:
        """Run a command on the node; return its exit code and output. Raises Failed if it cannot be run."""
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

    def run(self, *command: str, seconds: float = COMMAND_SECONDS) -> str:
        """Run a command on the node; return its output. Raises Failed if it fails."""
        code, output = self.query(*command, seconds=seconds)
        if code:
            reported = " ".join(output.split())[:MAX_OUTPUT_LENGTH]
            raise Failed(f"{' '.join(command[:3])} failed with exit code {code}: {reported}")
        return output

    def is_active(self, unit: str) -> bool:
        """Return whether a unit of systemd is active. Raises Failed."""
        return self.query("systemctl", "is-active", "--quiet", unit)[0] == 0
