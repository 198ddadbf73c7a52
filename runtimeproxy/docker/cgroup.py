"""Convert a pod's cgroup parent between CRI's form and Docker's.

Owns the difference: CRI has a path from the root of the cgroup tree with both drivers, Docker under systemd one slice.
Must not know: bodies, requests, the daemon.
Invariant: what is not a systemd slice is never changed; a slice converted to CRI's form and back is the same.
Source: systemd.slice(5): a-b.slice is inside a.slice, "-.slice" is the root, no part is empty; docs/docker-mode.rst.
"""

import re
from enum import Enum


class Driver(Enum):
    """The daemon's cgroup driver; the value is the CgroupDriver of its /info."""

    __hash__ = object.__hash__

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


_ROOT = "-.slice"
_SLICE = re.compile(r"([^-/]+(?:-[^-/]+)*)\.slice")


def driver(text: str) -> Driver:
    """Return the driver for a CgroupDriver text; any unknown one ("none") takes paths unchanged, like cgroupfs."""
    return Driver.SYSTEMD if text == Driver.SYSTEMD.value else Driver.CGROUPFS


def to_cri(parent: str, driver: Driver) -> str:
    """Return HostConfig.CgroupParent as CRI's path; "" (the daemon's default) stays ""."""
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
