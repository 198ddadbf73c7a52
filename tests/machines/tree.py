"""Root file systems of Debian with nothing but what debootstrap gives, named after what is in them.

Like all that takes long to make they are kept below $XDG_CACHE_HOME/runtimeproxy (~/.cache) from the first use on.
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


def debian(suite: str | None = None, packages: Sequence[str] = ("systemd",)) -> Path:
    """Return a minbase tree of a release (this machine's unless given) with some packages; nobody may write to it.

    The first call makes it, which takes about a minute and the network; tests that run at the same time wait for it.
    Raises TreeError.
    """
    suite = suite or platform.freedesktop_os_release()["VERSION_CODENAME"]
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


def retained(name: str, make: Callable[[Path], Path]) -> Path:
    """Return the kept directory of a name; nobody may write to it.

    If there is none, ``make`` is given an empty directory, and returns what to keep of it. Any caller meanwhile, also
    in another process, waits.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "runtimeproxy")
    cache.mkdir(parents=True, exist_ok=True)
    found, work = cache / name, cache / f".{name}"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            shutil.rmtree(work, ignore_errors=True)  # of one that was killed
            work.mkdir()
            try:
                make(work).rename(found)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return found
