"""The node's cgroup files, version 1 and 2: write settings, and list processes.

Invariant: no path from a request leads out of the hierarchy, and no file or directory is ever created.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..sdk.errors import Malformed

ROOT = Path("/sys/fs/cgroup")
FLAG = "--cgroup-root"
DEFAULT_PERIOD = "100000"
"""The kernel's default period in microseconds, to which the quotas of hooks refer."""

_PROCESSES = ("cgroup.procs",)
_THREADS = ("tasks", "cgroup.threads")  # version 1, version 2
_NAMES = ("{}", "cri-containerd-{}.scope", "docker-{}.scope", "crio-{}", "crio-{}.scope", "pouch-{}.scope")
"""The names of a container's cgroup in its pod's: CRI-O with cgroupfs calls it crio-ID, other runtimes ID."""


def weight(shares: int) -> int:
    """Return the cpu.weight of version 2, 1 to 10000, for CPU shares (runc's formula)."""
    return min(max(1 + (shares - 2) * 9999 // 262142, 1), 10000)


class Setting(NamedTuple):
    """The place of a number of CRI: controller and file of version 1, file of version 2."""

    controller: str
    v1_name: str
    v2_name: str


SETTINGS: Mapping[str, Setting] = {
    "cpu_shares": Setting("cpu", "cpu.shares", "cpu.weight"),
    "cpu_quota": Setting("cpu", "cpu.cfs_quota_us", "cpu.max"),
    "memory_limit_in_bytes": Setting("memory", "memory.limit_in_bytes", "memory.max"),
    "cpuset_cpus": Setting("cpuset", "cpuset.cpus", "cpuset.cpus"),
}


def _in_version_2(setting: str, value: int | str, before: str) -> str:
    """Return the content of version 2's file for a value in CRI's terms; ``before`` is the file's present content."""
    if setting == "cpu_shares":
        return str(weight(int(value)))
    text = "max" if value == -1 else str(value)
    if setting != "cpu_quota":
        return text
    fields = before.split()
    return f"{text} {fields[1] if len(fields) > 1 else DEFAULT_PERIOD}"


def overwrite(file: Path, content: str) -> None:
    """Write an existing cgroup file in one write; the file is never created. Raises OSError: FileNotFoundError if the
    kernel has no such file, others if the kernel refuses the content."""
    handle = os.open(file, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
    try:
        os.write(handle, f"{content}\n".encode())  # with its line end: an empty write would not clear the setting
    finally:
        os.close(handle)


class Cgroups:
    """The cgroups under ``root``: the unified hierarchy of version 2, or one directory per controller of version 1.

    Paths are CRI's: absolute, as if the hierarchy were the root directory ("/kubepods/pod<uid>"). Every method with a
    path raises Malformed if it is not absolute, is the hierarchy's root itself, contains ".." or NUL, or leads through
    a symbolic link.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self.root = Path(os.path.realpath(root))
        self._mounted: Sequence[Path] = ()

    @property
    def v2(self) -> bool:
        """Return whether ``root`` is a unified hierarchy (version 2)."""
        return (self.root / "cgroup.controllers").exists()

    @property
    def absent(self) -> str:
        """Return an error text with what to do if there is no hierarchy at all; "" if there is one."""
        return "" if self._hierarchies else f"{self.root} holds no cgroups: mount the node's there, or set {FLAG}"

    def file(self, path: str, controller: str, v1_name: str, v2_name: str) -> Path:
        """Return the path of a cgroup's file; neither it nor the cgroup need exist."""
        if self.v2:
            return Path(_inside(self.root, path), v2_name)
        mounted = (top for top in self._hierarchies if controller in top.name.split(","))
        return Path(_inside(next(mounted, self.root / controller), path), v1_name)

    def write(self, path: str, setting: str, value: int | str) -> None:
        """Write one of SETTINGS, the value in CRI's terms (shares, microseconds per period, bytes, -1 for unlimited).
        Raises OSError; FileNotFoundError if the cgroup or its controller does not exist."""
        file = self.file(path, *SETTINGS[setting])
        overwrite(file, _in_version_2(setting, value, file.read_text()) if self.v2 else str(value))

    def lift(self, path: str, setting: str) -> bool:
        """Write "unlimited" for one of SETTINGS; return whether there was a limit. Raises what ``write`` raises."""
        file = self.file(path, *SETTINGS[setting])
        before = file.read_text()
        self.write(path, setting, -1)
        return file.read_text() != before

    def container(self, parent: str, container_id: str) -> str | None:
        """Return the path of a container's cgroup under its pod's; None if there is none or the id is ""."""
        if not container_id:
            return None
        if "/" in container_id:
            raise Malformed("container id", "it is one name, without a slash")
        names = (name.format(container_id) for name in _NAMES)
        paths = (f"{parent.rstrip('/')}/{name}" for name in names)
        return next((path for path in paths if any(self._directories(path))), None)

    def pids(self, path: str) -> list[int]:
        """Return the ids of all processes in a cgroup and below it; none if it no longer exists. A process in another
        PID namespace, which this process cannot see, is omitted."""
        return self._ids(path, _PROCESSES)

    def tids(self, path: str) -> list[int]:
        """Return the ids of all threads in a cgroup and below it; none if it no longer exists."""
        return self._ids(path, _THREADS)

    @property
    def _hierarchies(self) -> Sequence[Path]:
        self._mounted = self._mounted or self._check()  # not cached if empty: hierarchies may be mounted later
        return self._mounted

    def _check(self) -> Sequence[Path]:
        if self.v2:
            return (self.root,)
        try:
            tops = sorted(self.root.iterdir())
        except OSError:
            return ()
        # Links are second names of a directory ("cpu,cpuacct").
        return tuple(top for top in tops if top.is_dir() and not top.is_symlink())

    def _directories(self, path: str) -> Iterator[str]:
        return (inside for top in self._hierarchies if os.path.isdir(inside := _inside(top, path)))

    def _ids(self, path: str, names: Sequence[str]) -> list[int]:
        # A process is in every hierarchy of version 1: the first one with processes lists all.
        listed = (_ids_below(directory, names) for directory in self._directories(path))
        return sorted(next((ids for ids in listed if ids), ()))


def _inside(top: Path, path: str) -> str:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not path.startswith("/") or not parts or ".." in parts or "\0" in path:
        raise Malformed("cgroup path", 'it must be absolute and below the root, without ".." and NUL')
    inside = "/".join((str(top), *parts))
    if _resolved(inside) != inside:
        raise Malformed("cgroup path", "it leads through a symbolic link")
    return inside


def _resolved(path: str) -> str:
    """Return the path with all links resolved by the kernel, which is faster than os.path.realpath."""
    try:
        handle = os.open(path, os.O_PATH)
    except OSError:
        return os.path.realpath(path)  # the path does not exist, is a dangling link, or no descriptor is left
    try:
        return os.readlink(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)


def _ids_below(directory: str, names: Sequence[str]) -> set[int]:
    ids: set[int] = set()
    for below, _, files in os.walk(directory):
        for name in names:
            if name in files:
                try:
                    with open(f"{below}/{name}", "rb", buffering=0) as listed:
                        ids.update(int(number) for number in listed.read().split())
                except OSError:
                    pass  # the cgroup was removed meanwhile; a threaded one (version 2) is listed by the one above it
    return ids - {0}  # 0 is listed for a process in another PID namespace
