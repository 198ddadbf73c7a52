"""A pod's cgroup parent in CRI's form and in Docker's.

Owns the difference: CRI names a path from the root of the cgroup tree in both drivers, Docker under systemd one slice.
Must not know: bodies, requests, the daemon.
Invariant: what is no slice of systemd's is never changed; a slice survives the way to CRI's form and back.
Source: systemd.slice(5): a-b.slice lies in a.slice, "-.slice" is the root, no part is empty; docs/docker-mode.rst.
"""

import re
from enum import Enum


class Driver(Enum):
    """Who makes the daemon's cgroups; the value is the CgroupDriver of its /info."""

    __hash__ = object.__hash__

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


_ROOT = "-.slice"
_SLICE = re.compile(r"([^-/]+(?:-[^-/]+)*)\.slice")


def driver(text: str) -> Driver:
    """Read the daemon's CgroupDriver; every other one ("none") takes paths as they are, like cgroupfs."""
    return Driver.SYSTEMD if text == Driver.SYSTEMD.value else Driver.CGROUPFS


def to_cri(parent: str, driver: Driver) -> str:
    """Return HostConfig.CgroupParent as the path that CRI has; "" (the daemon's default) stays ""."""
    if driver is Driver.CGROUPFS:
        return parent
    if parent == _ROOT:
        return "/"
    match = _SLICE.fullmatch(parent)
    if match is None:
        return parent
    parts = match[1].split("-")
    return "".join(f"/{'-'.join(parts[: depth + 1])}.slice" for depth in range(len(parts)))


def to_docker(path: str, driver: Driver) -> str:
    """Return CRI's path as HostConfig.CgroupParent."""
    if driver is Driver.CGROUPFS or "/" not in path:
        return path
    return path.rstrip("/").rpartition("/")[2] or _ROOT
