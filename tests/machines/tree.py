"""Root file systems of Debian with nothing but what debootstrap gives, made once and kept.

They are named after what is in them; machines.machine writes to a copy.
"""

import hashlib
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.machines.retained import retained

MAKE_SECONDS = 280.0
"""A tree takes 25 to 60 s, half of them downloads."""

# In memory, because dpkg waits for the disk after each file. Mounts end with the namespace, however this ends.
SCRIPT = """
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 tree "$1/memory"
debootstrap --variant=minbase ${2:+--include="$2"} "$3" "$1/memory/tree"
rm -rf "$1"/memory/tree/var/cache/apt/archives/*.deb
cp -a "$1/memory/tree" "$1/tree"
"""


class TreeError(Exception):
    """A tree could not be made; the text has debootstrap's last lines."""


def codename() -> str:
    """Return the name of this machine's Debian release, as ``bookworm``."""
    return platform.freedesktop_os_release()["VERSION_CODENAME"]


def debian(suite: str | None = None, packages: Sequence[str] = ("systemd",)) -> Path:
    """Return a minbase tree of a release (this machine's unless given) with some packages; nobody may write to it.

    The first call makes it, which takes about a minute and the network; tests that run at the same time wait for it.
    Raises TreeError.
    """
    suite = suite or codename()
    digest = hashlib.sha256("\0".join([SCRIPT, *packages]).encode()).hexdigest()[:8]
    return retained(f"{suite}-{digest}", lambda work: _made(work, suite, packages))


def _made(work: Path, suite: str, packages: Sequence[str]) -> Path:
    (work / "memory").mkdir()
    shell: list[str | Path] = ["sh", "-c", SCRIPT, "sh", work, ",".join(packages), suite]
    # --kill-child: with the namespace's first process all the others end.
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *shell]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=MAKE_SECONDS
    )
    if done.returncode:
        raise TreeError(f"debootstrap {suite} failed; its last lines: {(done.stdout + done.stderr)[-1500:]}")
    return work / "tree"
