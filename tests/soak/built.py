"""Artefacts of this version, and of a newer one that has all else of it."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.docs import ROOT

NEWER = "99.0.0"


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
