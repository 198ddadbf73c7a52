"""Root file systems of Debian as debootstrap creates them, named after their contents.

From the first use on, they are cached below $XDG_CACHE_HOME/runtimeproxy (~/.cache).
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

MAKE_SECONDS = 280.0
"""A tree takes 25 to 60 s, half of them downloads."""

# In memory, because dpkg waits for the disk after each file. Mounts end with the namespace, in any case.
SCRIPT = """
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 tree "$1/memory"
debootstrap --variant=minbase ${2:+--include="$2"} "$3" "$1/memory/tree"
rm -rf "$1"/memory/tree/var/cache/apt/archives/*.deb
cp -a "$1/memory/tree" "$1/tree"
"""


class TreeError(Exception):
    """A tree could not be created; the text has debootstrap's last lines."""


def debian(suite: str | None = None, packages: Sequence[str] = ("systemd",)) -> Path:
    """Return a minbase tree of a release (the host's by default) with some packages; it must not be changed.

    The first call creates it, which needs about a minute and the network; concurrent tests wait for it. Raises
    TreeError.
    """
    suite = suite or platform.freedesktop_os_release()["VERSION_CODENAME"]
    digest = hashlib.sha256("\0".join([SCRIPT, *packages]).encode()).hexdigest()[:8]
    return cached_directory(f"{suite}-{digest}", lambda work: _made(work, suite, packages))


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


def cached_directory(name: str, make: Callable[[Path], Path]) -> Path:
    """Return the cached directory of a name; it must not be changed.

    If it does not exist, ``make`` gets an empty directory, and returns the path to cache. Concurrent callers wait, also
    in other processes.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "runtimeproxy")
    cache.mkdir(parents=True, exist_ok=True)
    cached, work = cache / name, cache / f".{name}"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not cached.exists():
            shutil.rmtree(work, ignore_errors=True)  # of a killed process
            work.mkdir()
            try:
                make(work).rename(cached)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return cached
