"""Long runs: ``scripts/soak`` runs them with full counts, ``pytest -m soak tests/soak`` with small ones.

They share a front, artefacts, and the findings, which are printed with their limits.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.amounts import SHARE_VARIABLE
from tests.docs import ROOT
from tests.system.conftest import front

__all__ = ["front"]
MARKS = [pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(0)]
"""The marks of every test here."""
NEWER = "99.0.0"
"""A newer version, otherwise equal to this one."""


class Findings:
    """The measurements of a test. All are printed before a missed limit fails the test."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.missed: list[str] = []
        self._capsys = capsys
        self.full = os.environ.get(SHARE_VARIABLE) in ("1", "1.0")
        """Whether the counts are the full ones: growth over fewer calls has no limit."""

    def note(self, name: str, value: object, limit: object = "", passed: bool = True) -> None:
        line = f"{name}: {value}{f' (limit: {limit})' if limit != '' else ''}"
        with self._capsys.disabled():
            print(f"\n{line}", end="", flush=True)
        if not passed:
            self.missed.append(line)

    def equal(self, name: str, value: object, desired: object) -> None:
        self.note(name, value, desired, value == desired)


@pytest.fixture
def findings(capsys: pytest.CaptureFixture[str]) -> Iterator[Findings]:
    findings = Findings(capsys)
    yield findings
    assert findings.missed == []


def contains(printed: str, *words: str) -> None:
    """Fail unless an output contains all these texts."""
    assert [word for word in words if word not in printed] == [], printed[-2000:]


def built(folder: Path, artefacts: Sequence[str], version: str = "") -> Path:
    """Build artefacts of the last commit, of another version if one is given; return their directory."""
    source = folder / "checkout"
    git = ("git", "-c", "safe.directory=*", "-c", "user.name=soak", "-c", "user.email=soak")
    subprocess.run([*git, "clone", "-q", ROOT, source], check=True)
    if version:
        file = source / "runtimeproxy/settings/version.py"
        file.write_text(re.sub(r'^VERSION = ".*"$', f'VERSION = "{version}"', file.read_text(), flags=re.MULTILINE))
        subprocess.run([*git, "-C", source, "commit", "-qam", version], check=True)
    command = [sys.executable, "-m", "scripts.building", f"--dist={folder / 'dist'}", *artefacts]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder / "dist"
