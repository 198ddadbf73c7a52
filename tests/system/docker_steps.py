"""Docker commands in a row, played against a socket, and what two plays of them have in common.

A step that does not end as it says fails; no two failures are taken for equal.
"""

import io
import shlex
import shutil
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.engines import docker_cli
from tests.engines.docker_cli import Outcome, Typed

View = Callable[[bytes], str]
"""What of a command's output is compared."""

LAST_ARCHIVE = b"<the last archive that a step wrote>"
"""Stands for it as the ``stdin`` of a step."""


plain: View = docker_cli.masked
figures: View = partial(docker_cli.masked, rules=docker_cli.FIGURES)
"""A table of what is used, without the figures."""
transfer: View = partial(docker_cli.masked, rules=docker_cli.TRANSFERS)
"""What push and pull tell, without progress."""


def unordered(output: bytes) -> str:
    """Compare the lines of BuildKit's progress, in any order."""
    return "\n".join(docker_cli.lines(output, docker_cli.BUILDKIT))


def archive(output: bytes) -> str:
    """Compare what is in a tar archive."""
    return "\n".join(docker_cli.archived(output))


@dataclass(frozen=True, slots=True)
class Step:
    """A docker command, as a shell would split it, and how it must end.

    In the command {id} is the last id that a step wrote, {short} the first 12 digits of it, {folder} a folder of files,
    {registry} an address, {began} the time before the first step. ``shows`` is in what the command writes, masked.
    """

    command: str
    exit_code: int = 0
    shows: str = ""
    stdin: bytes | None = None
    terminal: Sequence[Typed] | None = None
    buildkit: bool = False
    view: View = plain


@dataclass(slots=True)
class Play:
    """One play of steps against a socket; ``results`` grows with each."""

    socket: str
    words: dict[str, str]
    results: list[tuple[str, str, str]] = field(default_factory=list)
    _archive: bytes = b""

    def take(self, step: Step) -> None:
        """Run one command, check how it ended, keep what is compared."""
        self.words["now"] = f"{time.time():.9f}"
        outcome = docker_cli.run(
            self.socket,
            *(self._filled(word) for word in shlex.split(step.command)),
            stdin=self._archive if step.stdin is LAST_ARCHIVE else step.stdin,
            terminal=step.terminal,
            buildkit=step.buildkit,
        )
        assert outcome.exit_code == step.exit_code, (step.command, outcome)
        on_stderr = plain if step.view is archive else step.view
        seen = (step.view(outcome.stdout), on_stderr(outcome.stderr))
        assert step.shows in "".join(seen), (step.command, outcome)
        self.results.append((step.command, *seen))
        self._remember(step, outcome)

    def _filled(self, word: str) -> str:
        for name, value in self.words.items():
            word = word.replace(f"{{{name}}}", value)
        return word

    def _remember(self, step: Step, outcome: Outcome) -> None:
        if step.view is archive:
            self._archive = outcome.stdout
        elif len(written := outcome.stdout.decode(errors="replace").strip()) == 64 and written.isalnum():
            self.words |= {"id": written, "short": written[:12]}


def play(socket: str, steps: Sequence[Step], folder: Path, files: Mapping[str, bytes], registry: str) -> list[Any]:
    """Run all steps; return what is compared of each, and at the end what is in the folder, which began with ``files``.

    Raises AssertionError with what a command wrote.
    """
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    words = {"folder": str(folder), "registry": registry, "began": f"{time.time():.9f}"}
    run = Play(socket, words)
    for step in steps:
        run.take(step)
    left = docker_cli.tree(folder)
    shutil.rmtree(folder)
    return [*run.results, left]


def tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def sh(script: str) -> str:
    """Return the words of a command that runs a script."""
    return f"sh -c {shlex.quote(script)}"
