"""A stand-in for the resctrl file system: a directory tree that refuses what the kernel refuses.

Production code has no branch for it. A StandIn is a Resctrl whose three requests to the kernel, and whose CPU, are
simulated; all other code is that of a real node.

One thing differs from the kernel, where a new thread of a process in a group is in that group, too. Here the tasks
files list only what was written, until the thread ends; the root's lists only what was moved back to it.
"""

import errno
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from runtimeproxy_hooks.lib.resctrl import LAST_STATUS, SCHEMATA, TASKS, Resctrl, parse_schemata

LEAST_BANDWIDTH, MOST_BANDWIDTH, BANDWIDTH_STEP = 10, 100, 10
"""The values of MB, in percent as Intel has them."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """The simulated machine; a resource without ids does not exist on it."""

    closids: int = 4
    """Number of classes of service; the root has one of them."""
    l3_ids: tuple[int, ...] = (0, 1)
    cbm_mask: int = 0x7FF
    min_cbm_bits: int = 1
    mb_ids: tuple[int, ...] = (0, 1)

    @property
    def l3_names(self) -> tuple[str, ...]:
        return ("L3",) if self.l3_ids else ()

    def full(self) -> dict[str, dict[int, int]]:
        """Return the values of a group without limits, by resource and cache id."""
        limits = {name: dict.fromkeys(self.l3_ids, self.cbm_mask) for name in self.l3_names}
        return limits | ({"MB": dict.fromkeys(self.mb_ids, MOST_BANDWIDTH)} if self.mb_ids else {})

    def info(self) -> dict[str, Mapping[str, str]]:
        mask = {"cbm_mask": f"{self.cbm_mask:x}", "min_cbm_bits": str(self.min_cbm_bits)}
        bandwidth = {"min_bandwidth": str(LEAST_BANDWIDTH), "bandwidth_gran": str(BANDWIDTH_STEP)}
        files = dict.fromkeys(self.l3_names, mask) | ({"MB": bandwidth} if self.mb_ids else {})
        return {name: {**texts, "num_closids": str(self.closids)} for name, texts in files.items()}


class StandIn(Resctrl):
    """A Resctrl on a directory tree; what is in the tree already (created by another StandIn) stays."""

    def __init__(self, root: Path, hardware: Hardware | None = None) -> None:
        super().__init__(root)
        self.hardware = hardware or Hardware()
        self._lock = threading.RLock()
        self._writers = {SCHEMATA: self._limit, TASKS: self._assign}
        if not (root / "info").exists():
            self._lay_out()

    def tasks(self, group: str) -> frozenset[int]:
        """Return the ids of the threads in a group, without those that have ended."""
        with self._lock:
            directory = self._directory(group)
            self._show_tasks(directory, [tid for tid in _listed(directory) if _is_alive(tid)])
            return super().tasks(group)

    def _lay_out(self) -> None:
        for name, files in self.hardware.info().items():
            directory = self.root / "info" / name
            directory.mkdir(parents=True)
            for file, text in files.items():
                _show(directory / file, f"{text}\n")
        (self.root / "info").mkdir(parents=True, exist_ok=True)
        _show(self.root / LAST_STATUS, "ok\n")
        self._lay_group(self.root)

    def _lay_group(self, directory: Path) -> None:
        full = self.hardware.full()
        if full:  # a machine that only monitors has no schemata files
            self._show_limits(directory, full)
        self._show_tasks(directory, [])

    # The kernel's side.

    def _mkdir(self, directory: Path) -> None:
        with self._lock:
            if directory.exists():
                self._refuse(errno.EEXIST, "")
            if len(list(self._groups())) >= self.hardware.closids:
                self._refuse(errno.ENOSPC, "Out of CLOSIDs")
            directory.mkdir()
            self._lay_group(directory)
            self._agree()

    def _rmdir(self, directory: Path) -> None:
        with self._lock:
            if not directory.exists():
                self._refuse(errno.ENOENT, "")
            self._show_tasks(self.root, [*_listed(self.root), *_listed(directory)])
            for file in directory.iterdir():
                file.unlink()
            directory.rmdir()
            self._agree()

    def _write(self, file: Path, text: str) -> None:
        with self._lock:
            if not file.exists():
                self._refuse(errno.ENOENT, "")
            self._writers[file.name](file.parent, text)
            self._agree()

    def _vendor(self) -> str:
        return "GenuineIntel"

    def _groups(self) -> Iterator[Path]:
        """Yield the directories of all groups: the root is one."""
        yield self.root
        yield from (each for each in self.root.iterdir() if (each / TASKS).exists())

    def _limit(self, directory: Path, text: str) -> None:
        limits = {
            name: {each: int(value, 10 if name == "MB" else 16) for each, value in values.items()}
            for name, values in parse_schemata((directory / SCHEMATA).read_text()).items()
        }
        *lines, rest = text.split("\n")
        try:
            if not lines or rest:
                raise ValueError("the last line has no end")
            for name, values in (line.strip().split(":") for line in lines):
                limits[name].update(self._values(name, values, limits[name]))
        except (KeyError, ValueError) as error:
            self._refuse(errno.EINVAL, str(error))
        self._show_limits(directory, limits)

    def _values(self, name: str, text: str, known: Mapping[int, int]) -> dict[int, int]:
        """Return the value for each cache id. Raises ValueError, and KeyError for an unknown id."""
        read = self._bandwidth if name == "MB" else self._mask
        pairs = (pair.split("=") for pair in text.removesuffix(";").split(";"))
        values = {int(each): read(value) for each, value in pairs}
        if unknown := values.keys() - known.keys():
            raise KeyError(f"no domain {min(unknown)}")
        return values

    def _mask(self, text: str) -> int:
        mask = int(text, 16)
        if not 0 < mask <= self.hardware.cbm_mask:
            raise ValueError("Mask out of range")
        ones = mask // (mask & -mask)
        if ones & (ones + 1) or ones.bit_length() < self.hardware.min_cbm_bits:
            raise ValueError(f"The mask {mask:x} has non-consecutive or too few 1-bits")
        return mask

    def _bandwidth(self, text: str) -> int:
        value = int(text)
        if not LEAST_BANDWIDTH <= value <= MOST_BANDWIDTH:
            raise ValueError(f"MB value {value} out of range [{LEAST_BANDWIDTH},{MOST_BANDWIDTH}]")
        return -(-value // BANDWIDTH_STEP) * BANDWIDTH_STEP

    def _assign(self, directory: Path, text: str) -> None:
        tid = int(text) or threading.get_native_id()  # the kernel takes 0 for the writing thread
        if not _is_alive(tid):
            self._refuse(errno.ESRCH, f"No task {tid}")
        for group in self._groups():
            listed = _listed(group)
            if tid in listed and group != directory:
                self._show_tasks(group, [each for each in listed if each != tid])
        self._show_tasks(directory, [*_listed(directory), tid])

    # The content of the files.

    def _refuse(self, number: int, text: str) -> NoReturn:
        _show(self.root / LAST_STATUS, f"{text}\n")
        raise OSError(number, os.strerror(number))

    def _agree(self) -> None:
        _show(self.root / LAST_STATUS, "ok\n")

    def _show_limits(self, directory: Path, limits: Mapping[str, Mapping[int, int]]) -> None:
        longest = max(len(name) for name in limits)
        lines = (f"{name:>{longest}}:{self._values_shown(name, values)}\n" for name, values in limits.items())
        _show(directory / SCHEMATA, "".join(lines))

    def _values_shown(self, name: str, values: Mapping[int, int]) -> str:
        """Return values as the kernel shows them: masks with leading zeros, numbers with blanks."""
        width = max(len(f"{self.hardware.cbm_mask:x}"), len(str(MOST_BANDWIDTH)))
        form = str(width) if name == "MB" else f"0{width}x"
        return ";".join(f"{each}={value:{form}}" for each, value in values.items())

    def _show_tasks(self, directory: Path, tids: list[int]) -> None:
        _show(directory / TASKS, "".join(f"{tid}\n" for tid in sorted(set(tids))))


def _show(file: Path, text: str) -> None:
    """Replace a file atomically: another process never reads half of it."""
    new = file.with_name(f".{file.name}")
    new.write_text(text)
    new.replace(file)


def _listed(directory: Path) -> list[int]:
    return [int(tid) for tid in (directory / TASKS).read_text().split()]


def until_gone(tids: Iterable[int], seconds: float = 10.0) -> None:
    """Wait until threads no longer exist in the kernel: joining one waits for Python only. Raises TimeoutError."""
    end = time.monotonic() + seconds
    for tid in tids:
        while _is_alive(tid):
            if time.monotonic() > end:
                raise TimeoutError(f"thread {tid} has not ended within {seconds} s")
            time.sleep(0.001)


def _is_alive(tid: int) -> bool:
    return Path("/proc", str(tid)).exists()
