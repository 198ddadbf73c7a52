"""The error of a build, and the way to run a program that may fail."""

import subprocess
from collections.abc import Sequence
from pathlib import Path


class BuildError(Exception):
    """A build cannot continue: what, why, what to do."""


def run(command: Sequence[str | Path], folder: Path | None = None) -> str:
    """Run a program to its end and return its output. Raises BuildError with the end of it."""
    try:
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise BuildError(f"{error.filename} is not installed: run scripts/install release") from error
    if done.returncode:
        shown, text = " ".join(map(str, command[:4])), (done.stderr or done.stdout).decode(errors="replace")
        raise BuildError(f"{shown} ... ended with {done.returncode}: {text.strip()[-2000:]}")
    return done.stdout.decode()
