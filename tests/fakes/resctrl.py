"""A stand-in for the resctrl file system: a directory tree that refuses what the kernel refuses.

Production code has no branch for it. A StandIn is a Resctrl that simulates the three requests to the kernel, and the
CPU; all other code is that of a real node. The kernel adds a new thread of a process to the process's group. Here the
tasks files list only written ids, until the thread ends.
"""

import errno
import os
import threading
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NoReturn

from runtimeproxy_hooks.lib.resctrl import LAST_STATUS, SCHEMATA, TASKS, Resctrl, parse_schemata

CLOSIDS = 4
"""Number of classes of service; the root has one of them."""
STEP, MOST_BANDWIDTH = 10, 100
"""The least value of MB and its step, and the greatest, in percent as Intel has them."""


class StandIn(Resctrl):
    """A Resctrl on a directory tree; the files of an earlier StandIn stay.

    ``limits`` are the resources of the machine, each with two ids; without any it only monitors. The requests in
    ``refused`` (mkdir, rmdir, schemata, tasks) fail, as without the rights.
    """

    def __init__(
        self, root: Path, refused: Collection[str] = (), limits: Collection[str] = ("L3", "MB"), cbm_mask: int = 0x7FF
    ) -> None:
        super().__init__(root)
        self.refused, self._cbm_mask, self._lock = refused, cbm_mask, threading.RLock()
        values = {"L3": f"{cbm_mask:03x}", "MB": f"{MOST_BANDWIDTH:3}"}
        self._full = {name: dict.fromkeys((0, 1), values[name]) for name in limits}
        if not (root / "info").exists():
            info = {"L3": {"cbm_mask": f"{cbm_mask:x}", "min_cbm_bits": 1}}
            info["MB"] = {"min_bandwidth": STEP, "bandwidth_gran": STEP}
            for name in limits:
                for file, value in info[name].items():
                    _show(root / "info" / name / file, f"{value}\n")
            self._lay_group(root)

    def tasks(self, group: str) -> frozenset[int]:
        """Return the ids of the threads in a group, without those that have ended."""
        with self._lock:
            directory = self._directory(group)
            self._show_tasks(directory, [tid for tid in _listed(directory) if _is_alive(tid)])
            return super().tasks(group)

    def _lay_group(self, directory: Path) -> None:
        if self._full:  # a machine with monitoring only has no schemata files
            self._show_limits(directory, self._full)
        self._show_tasks(directory, [])

    # The kernel's side.

    def _mkdir(self, directory: Path) -> None:
        with self._lock:
            self._check("mkdir")
            if not directory.exists() and len(self._groups()) + 1 >= CLOSIDS:
                self._refuse(errno.ENOSPC, "Out of CLOSIDs")
            directory.mkdir()
            self._lay_group(directory)

    def _rmdir(self, directory: Path) -> None:
        with self._lock:
            self._check("rmdir")
            for file in directory.iterdir():
                file.unlink()
            directory.rmdir()

    def _write(self, file: Path, text: str) -> None:
        with self._lock:
            file.stat()  # the kernel finds a file before it checks permissions
            self._check(file.name)
            (self._limit if file.name == SCHEMATA else self._assign)(file.parent, text)

    def _vendor(self) -> str:
        return "GenuineIntel"

    def _groups(self) -> list[Path]:
        return [path for path in self.root.iterdir() if (path / TASKS).exists()]

    def _limit(self, directory: Path, text: str) -> None:
        limits = parse_schemata((directory / SCHEMATA).read_text())
        *lines, unterminated = text.split("\n")
        try:
            if not lines or unterminated:
                raise ValueError("the last line has no end")
            for name, values in (line.split(":") for line in lines):
                for cache_id, value in (pair.split("=") for pair in values.split(";")):
                    if int(cache_id) not in limits[name]:
                        raise ValueError(f"no domain {cache_id}")
                    limits[name][int(cache_id)] = _bandwidth(value) if name == "MB" else self._mask(value)
        except (KeyError, ValueError) as error:
            self._refuse(errno.EINVAL, str(error))
        self._show_limits(directory, limits)

    def _mask(self, text: str) -> str:
        mask = int(text, 16)
        if not 0 < mask <= self._cbm_mask or "0" in f"{mask:b}".strip("0"):
            raise ValueError(f"Mask {text} out of range, or with non-consecutive 1-bits")
        return f"{mask:03x}"

    def _assign(self, directory: Path, text: str) -> None:
        tid = int(text) or threading.get_native_id()  # the kernel takes 0 for the writing thread
        if not _is_alive(tid):
            self._refuse(errno.ESRCH, f"No task {tid}")
        for group in self._groups():
            self._show_tasks(group, [listed for listed in _listed(group) if listed != tid])
        self._show_tasks(directory, [*_listed(directory), tid])

    def _check(self, request: str) -> None:
        if request in self.refused:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    def _refuse(self, number: int, text: str) -> NoReturn:
        _show(self.root / LAST_STATUS, f"{text}\n")
        raise OSError(number, os.strerror(number))

    def _show_limits(self, directory: Path, limits: Mapping[str, Mapping[int, str]]) -> None:
        lines = {name: ";".join(f"{key}={value}" for key, value in values.items()) for name, values in limits.items()}
        _show(directory / SCHEMATA, "".join(f"{name}:{values}\n" for name, values in lines.items()))

    def _show_tasks(self, directory: Path, tids: Iterable[int]) -> None:
        _show(directory / TASKS, "".join(f"{tid}\n" for tid in sorted(set(tids))))


def _show(file: Path, text: str) -> None:
    """Replace a file atomically: another process never reads a part of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}")
    new.write_text(text)
    new.replace(file)


def _bandwidth(text: str) -> str:
    if not STEP <= int(text) <= MOST_BANDWIDTH:
        raise ValueError(f"MB value {text} out of range [{STEP},{MOST_BANDWIDTH}]")
    return f"{-(-int(text) // STEP) * STEP:3}"


def _listed(directory: Path) -> list[int]:
    return [int(tid) for tid in (directory / TASKS).read_text().split()]


def _is_alive(tid: int) -> bool:
    return Path("/proc", str(tid)).exists()
