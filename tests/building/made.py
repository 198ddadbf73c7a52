"""The files of a release, built once per run from the working tree, and roots to run them in."""

import fcntl
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.docs import ROOT
from tests.engines.probe import missing_tool

ARTEFACTS = ("wheel", "sdist", "archive", "deb", "chart", *(() if missing_tool("helm") else ("manifests",)))
"""The artefacts that tests use."""
INSIDE = Path(__file__).with_name("inside.sh")
PROGRAMS = ("koord-runtime-proxy", "runtimeproxy", "runtimeproxy-hooks")


def release(folder: Path) -> Path:
    """Return the directory of the built files. The first call with this folder builds them, in any process."""
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "dist").exists():
            command = [sys.executable, "-m", "scripts.building", "--dirty", f"--dist={folder / 'fresh'}", *ARTEFACTS]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert not done.returncode, done.stderr
            (folder / "fresh").rename(folder / "dist")
    return folder / "dist"


def inside(tree: Path, work: Path, shared: Path) -> Sequence[str]:
    """Return the command that runs another one in its own root (inside.sh); creates ``work``."""
    work.mkdir()
    return [str(INSIDE), str(tree), str(work), str(shared)]
