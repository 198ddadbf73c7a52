"""Directories that take long to make, kept below $XDG_CACHE_HOME/runtimeproxy (~/.cache) from the first use on."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


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
