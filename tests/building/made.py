"""The files of a release for the tests: built once a run, from the working tree; and where to run them."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.docs import ROOT
from tests.engines.probe import missing_tool

ARTEFACTS = ("wheel", "sdist", "archive", "deb", "chart", *(() if missing_tool("helm") else ("manifests",)))
"""What tests need of scripts/build."""
INSIDE = Path(__file__).with_name("inside.sh")
PROGRAMS = ("koord-runtime-proxy", "runtimeproxy", "runtimeproxy-hooks")


def release(folder: Path) -> Path:
    """Return the directory of the built files, which the first call with this folder makes, in whatever process."""
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "dist").exists():
            command = [sys.executable, "-m", "scripts.building", "--dirty", f"--dist={folder / 'fresh'}", *ARTEFACTS]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert not done.returncode, done.stderr
            (folder / "fresh").rename(folder / "dist")
    return folder / "dist"


def bare_tree(folder: Path) -> Path:
    """Make a root with nothing but sh and tar, which are the static busybox."""
    (folder / "bin").mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox, "run scripts/install"
    for name in ("sh", "tar"):
        shutil.copy(busybox, folder / "bin" / name)
    return folder


def inside(tree: Path, work: Path, shared: Path) -> Sequence[str]:
    """Return what runs a program, whose words follow, in a root of its own (inside.sh); ``work`` is made."""
    work.mkdir()
    return [str(INSIDE), str(tree), str(work), str(shared)]


def wrapped(archive: Path, command: Sequence[str], folder: Path) -> Path:
    """Write scripts that run the archive's programs by a command (``inside``) into a directory, by their names."""
    folder.mkdir()
    before = " ".join(f"'{word}'" for word in command)
    for name in PROGRAMS:
        (folder / name).write_text(f"#!/bin/sh\nexec {before} '{archive}/bin/{name}' \"$@\"\n")
        (folder / name).chmod(0o755)
    return folder


def libraries(pid: int) -> set[str]:
    """Return the files that a process has mapped into its memory (proc(5), maps)."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if line.count(" /") and os.sep in line}
