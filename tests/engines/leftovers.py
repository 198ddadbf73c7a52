"""Remove leftovers of an engine: processes, mounts, directories, shims' sockets.

All have the engine's mark; a process is ended by its id.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

END_SECONDS = 10.0
SHIM_DIRECTORIES = (Path("/run/containerd/s"), Path("/run/containerd"))
"""Directories of all shims' sockets, independent of the daemon's state directory; names are hashes of its address."""


def processes(mark: str) -> set[int]:
    """Return the ids of all processes whose command line contains a text."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if mark.encode() in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
    return found


def end(find: Callable[[], set[int]]) -> None:
    """Kill what ``find`` returns until it returns nothing.

    Raises TimeoutError with the ids of those that do not end.
    """
    deadline = time.monotonic() + END_SECONDS
    while leftovers := find():
        for pid in leftovers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {sorted(leftovers)} do not end; kill them by hand")
        time.sleep(0.02)


def mounts(base: Path) -> list[str]:
    """Return the mount points below a folder, oldest first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [mount_point for line in lines if (mount_point := line.split()[4]).startswith(f"{base}/")]


def unmount(base: Path) -> None:
    for mount_point in reversed(mounts(base)):
        subprocess.run(["umount", "--lazy", mount_point], check=True, stdin=subprocess.DEVNULL)


def remove_shim_sockets(state: Path) -> None:
    """Remove the sockets of shims that were killed; their bundles in the containerd's ``state`` name them.

    Must be called after the shims have ended.
    """
    for address in state.glob("io.containerd.runtime.v2.task/*/*/address"):
        Path(address.read_text().strip().removeprefix("unix://")).unlink(missing_ok=True)
