"""The cgroup files of a container, seen from the host and from inside, on cgroup v1 and v2.

Values are given in CRI's terms (shares, microseconds, bytes, -1 for unlimited), whatever the files contain.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/sys/fs/cgroup")
REMOVE_SECONDS = 5.0
V1_UNLIMITED_BYTES = 1 << 62
"""A v1 memory limit above this means no limit."""

Value = int | str


def _bytes(text: str) -> int:
    return -1 if text.strip() == "max" or int(text) > V1_UNLIMITED_BYTES else int(text)


def weight(shares: int) -> int:
    """Return the cpu.weight that runc sets for CPU shares."""
    return 1 + (shares - 2) * 9999 // 262142


class Setting(NamedTuple):
    """The place of one number of a container: v1 controller and file, v2 file, and how to read each."""

    controller: str
    v1_file: str
    v2_file: str
    v1: Callable[[str], Value] = int
    v2: Callable[[str], Value] = int


SETTINGS: dict[str, Setting] = {
    "cpu_shares": Setting("cpu", "cpu.shares", "cpu.weight"),
    "cpu_quota": Setting(
        "cpu", "cpu.cfs_quota_us", "cpu.max", v2=lambda text: int(text.replace("max", "-1", 1).split()[0])
    ),
    "cpu_period": Setting("cpu", "cpu.cfs_period_us", "cpu.max", v2=lambda text: int(text.split()[1])),
    "memory_limit_in_bytes": Setting("memory", "memory.limit_in_bytes", "memory.max", _bytes, _bytes),
    "cpuset_cpus": Setting("cpuset", "cpuset.cpus", "cpuset.cpus", str.strip, str.strip),
    "cpuset_mems": Setting("cpuset", "cpuset.mems", "cpuset.mems", str.strip, str.strip),
}


def is_v2() -> bool:
    return (ROOT / "cgroup.controllers").exists()


def expected(setting: str, value: Value) -> Value:
    """Return the content of a setting's file when CRI's ``value`` is in force."""
    return weight(int(value)) if setting == "cpu_shares" and is_v2() else value


def inside_file(setting: str) -> str:
    """Name the file of a setting as a process in the container sees it."""
    row = SETTINGS[setting]
    return f"/sys/fs/cgroup/{row.v2_file}" if is_v2() else f"/sys/fs/cgroup/{row.controller}/{row.v1_file}"


def parse(setting: str, content: str) -> Value:
    row = SETTINGS[setting]
    return (row.v2 if is_v2() else row.v1)(content)


def read(cgroup: str, setting: str) -> Value:
    """Read a setting of a cgroup from the host.

    Raises FileNotFoundError if the cgroup or the controller does not exist.
    """
    row, path = SETTINGS[setting], cgroup.lstrip("/")
    file = ROOT / path / row.v2_file if is_v2() else ROOT / row.controller / path / row.v1_file
    return parse(setting, file.read_text())


def _below(cgroup: str) -> Iterator[Path]:
    """Yield the host's directories of a cgroup path and those below, deepest first; one a controller on v1."""
    hierarchies = [ROOT] if is_v2() else sorted(path for path in ROOT.iterdir() if not path.is_symlink())
    for hierarchy in hierarchies:
        for below, _, _ in os.walk(hierarchy / cgroup.lstrip("/"), topdown=False):
            yield Path(below)


def processes(cgroup: str) -> set[int]:
    """Return the ids of all processes in a cgroup and below it."""
    pids: set[int] = set()
    for directory in _below(cgroup):
        with suppress(OSError):  # the cgroup was removed after its processes ended
            pids.update(map(int, (directory / "cgroup.procs").read_text().split()))
    return pids


def remove(cgroup: str) -> None:
    """Remove a cgroup and all below it; the processes must be gone.

    Raises OSError if a cgroup stays busy: the kernel keeps it so for a moment after its last process.
    """
    deadline = time.monotonic() + REMOVE_SECONDS
    for directory in _below(cgroup):
        while directory.exists():
            try:
                with suppress(FileNotFoundError):  # the runtime removed it
                    directory.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
