"""The node: its files below a root directory, and its commands.

Owns how a command comes to run on the node and not in the pod, and how a file is replaced.
Must not know: what any of them is for.
Invariant: a file has its old or its new content, whatever happens meanwhile.
"""

import os
import stat
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .errors import Failed

_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENTER = ("nsenter", "--target=1", "--mount", "--", "env", "--ignore-environment", _PATH)
"""What runs a command with the node's files, which its process 1 has, and without the pod's variables."""
SECONDS = 90.0
"""How long a command may take: longer than a unit of the node may take to stop."""
LONGEST = 200
"""Longest part of a command's output that is told."""


class Node:
    """A node, whose files are below ``root``."""

    def __init__(self, root: Path = Path("/host"), enter: Sequence[str] = ENTER) -> None:
        self.root = root
        self._enter = enter

    def path(self, place: str) -> Path:
        """Return where a path of the node is found here."""
        return self.root / place.lstrip("/")

    def text(self, place: str) -> str | None:
        """Return the text of a file; None if it is not there. Raises OSError."""
        try:
            return self.path(place).read_text(errors="surrogateescape")
        except FileNotFoundError:
            return None

    def write(self, place: str, text: str, mode: int = 0o644) -> None:
        """Replace a file, whose mode stays, or make it with its directories. Raises OSError."""
        path = self.path(place)
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            mode = stat.S_IMODE(path.stat().st_mode)
        beside = path.with_name(f".{path.name}.runtimeproxy-installer")
        try:
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
                file.write(text.encode(errors="surrogateescape"))
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            os.replace(beside, path)
        except OSError:
            with suppress(OSError):
                os.unlink(beside)
            raise

    def remove(self, place: str) -> None:
        """Remove a file if it is there. Raises OSError."""
        self.path(place).unlink(missing_ok=True)

    def ask(self, *command: str, seconds: float = SECONDS) -> tuple[int, str]:
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
        code, output = self.ask(*command, seconds=seconds)
        if code:
            told = " ".join(output.split())[:LONGEST]
            raise Failed(f"{' '.join(command[:3])} failed with exit code {code}: {told}")
        return output

    def active(self, unit: str) -> bool:
        """Return whether a unit of systemd is active. Raises Failed."""
        return self.ask("systemctl", "is-active", "--quiet", unit)[0] == 0
