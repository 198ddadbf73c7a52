"""resctrl: the texts of its files, as pure functions, and its file system.

Invariants: the kernel accepts all values: masks without gaps and of the required width, numbers in its steps, existing
cache ids. Only groups directly under the root are created and removed; a file is never created; each id is one write().
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path("/sys/fs/resctrl")
SCHEMATA, TASKS = "schemata", "tasks"
LAST_STATUS = Path("info", "last_cmd_status")

_CPUINFO = Path("/proc/cpuinfo")
_NOT_GROUPS = frozenset({"", ".", "..", "info", "mon_groups", "mon_data"})

Range = tuple[int, int]
"""From and to, in percent of a cache's ways."""

L3_NAMES = ("L3", "L3CODE", "L3DATA")
"""The names of L3 lines; code and data have a line each where resctrl is mounted with cdp."""
MB_NAME = "MB"
INFO_FILES: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(L3_NAMES, ("cbm_mask", "min_cbm_bits")),
    MB_NAME: ("min_bandwidth", "bandwidth_gran"),
}
"""The files in the directory info/NAME that are read."""

_FULL = 100
_AMD_UNLIMITED = 2048
_AMD_UNITS = 160  # eighths of a GB/s that koordlet takes for 100 %, which it writes as unlimited


@dataclass(frozen=True, slots=True)
class Cache:
    """One resource with masks: ``ids`` are its cache ids, ``ways`` the width of its full mask."""

    ids: tuple[int, ...]
    ways: int
    min_bits: int


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The MB resource; ``vendor`` (as in /proc/cpuinfo) determines the unit of its numbers."""

    ids: tuple[int, ...]
    vendor: str
    minimum: int
    step: int


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources that a node can limit; false if none. ``notes`` name unusable resources with the reason."""

    caches: Mapping[str, Cache] = field(default_factory=dict)
    bandwidth: Bandwidth | None = None
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.caches) or self.bandwidth is not None


@dataclass(frozen=True, slots=True)
class Wish:
    """The limits for a class or a pod, in percent; ``..._of`` by cache id, which override the common value. Raises
    ValueError naming the rule, never the value."""

    l3: Range | None = None
    mb: int | None = None
    l3_of: Mapping[int, Range] = field(default_factory=dict)
    mb_of: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ranges = [*self.l3_of.values(), *([] if self.l3 is None else [self.l3])]
        if not all(0 <= start < end <= _FULL for start, end in ranges):
            raise ValueError(f"a range goes from a lower to a higher percentage, both from 0 to {_FULL}")
        percentages = [*self.mb_of.values(), *([] if self.mb is None else [self.mb])]
        if not all(1 <= percentage <= _FULL for percentage in percentages):
            raise ValueError(f"a memory bandwidth is 1 to {_FULL} percent")


def cache_mask(desired: Range, cache: Cache) -> int:
    """Return the mask of a range: both ends rounded up to whole ways, as koordlet does. A mask narrower than the kernel
    accepts (95 to 100 % of 11 ways: empty) is extended downwards, then upwards."""
    start, end = (_ceil(cache.ways * percentage, _FULL) for percentage in desired)
    bits = max(cache.min_bits, 1)
    start = max(min(start, end - bits), 0)
    end = max(end, start + bits)
    return (1 << end) - (1 << start)


def bandwidth_value(percentage: int, bandwidth: Bandwidth) -> int:
    return _VALUES[bandwidth.vendor](percentage, bandwidth)


def _intel(percentage: int, bandwidth: Bandwidth) -> int:
    """Return the percentage rounded up to the machine's steps; the kernel refuses under the minimum and over 100."""
    stepped = _ceil(percentage, bandwidth.step) * bandwidth.step
    return min(max(stepped, bandwidth.minimum), _FULL)


def _amd(percentage: int, bandwidth: Bandwidth) -> int:
    """Return the bandwidth in eighths of a GB/s; 100 % is unlimited."""
    return _AMD_UNLIMITED if percentage == _FULL else max(_AMD_UNITS * percentage // _FULL, bandwidth.minimum)


_VALUES: Mapping[str, Callable[[int, Bandwidth], int]] = {"GenuineIntel": _intel, "AuthenticAMD": _amd}


def _ceil(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def schemata(machine: Machine, wish: Wish) -> str:
    """Return the text to write to a group's schemata file; "" without limits. It contains only limited resources; the
    kernel keeps the others. Ids that the machine does not have are omitted."""
    values: dict[str, dict[int, str]] = {}
    for name, cache in machine.caches.items():
        ranges = {key: wish.l3_of.get(key, wish.l3) for key in cache.ids}
        values[name] = {key: f"{cache_mask(range_, cache):x}" for key, range_ in ranges.items() if range_ is not None}
    if (bandwidth := machine.bandwidth) is not None:
        percents = {key: wish.mb_of.get(key, wish.mb) for key in bandwidth.ids}
        values[MB_NAME] = {key: str(bandwidth_value(mb, bandwidth)) for key, mb in percents.items() if mb is not None}
    lines = {name: ";".join(f"{key}={value}" for key, value in ids.items()) for name, ids in values.items()}
    return "".join(f"{name}:{line}\n" for name, line in lines.items() if line)


def unknown_ids(machine: Machine, wish: Wish) -> bool:
    """Return whether limits are given for cache ids that a resource of the machine does not have."""
    caches = any(wish.l3_of.keys() - set(cache.ids) for cache in machine.caches.values())
    return caches or (machine.bandwidth is not None and bool(wish.mb_of.keys() - set(machine.bandwidth.ids)))


def parse_schemata(text: str) -> dict[str, dict[int, str]]:
    """Return the content of a schemata file: values by cache id by resource. Lines without ids ("L3:uninitialized")
    have no values and are omitted."""
    resources: dict[str, dict[int, str]] = {}
    for line in text.splitlines():
        name, _, values = line.partition(":")
        pairs = (pair.partition("=") for pair in values.split(";"))
        ids = {int(key): value.strip() for key, equals, value in pairs if equals and key.strip().isdecimal()}
        if ids:
            resources[name.strip()] = ids
    return resources


def machine_of(root_schemata: str, info: Mapping[str, Mapping[str, str]], vendor: str) -> Machine:
    """Return the resources that a node can limit, from its root schemata, the texts of INFO_FILES by resource, and the
    CPU's vendor. An unusable resource is omitted with a note."""
    lines = parse_schemata(root_schemata)
    caches: dict[str, Cache] = {}
    bandwidth, notes = None, []
    for name in lines.keys() & info.keys():
        try:
            if name == MB_NAME:
                bandwidth = _bandwidth(lines[name], info[name], vendor)
            else:
                caches[name] = _cache(lines[name], info[name])
        except ValueError as error:
            notes.append(f"{name} is not used: {error}")
    return Machine(dict(sorted(caches.items())), bandwidth, tuple(sorted(notes)))


def _cache(values: Mapping[int, str], info: Mapping[str, str]) -> Cache:
    mask, bits = int(info["cbm_mask"], 16), int(info["min_cbm_bits"])
    ways = mask.bit_length()
    if not mask or mask != (1 << ways) - 1:
        raise ValueError("its cbm_mask is not an unbroken row of ones")
    if bits > ways:
        raise ValueError("its min_cbm_bits is wider than its cbm_mask")
    return Cache(tuple(sorted(values)), ways, bits)


def _bandwidth(values: Mapping[int, str], info: Mapping[str, str], vendor: str) -> Bandwidth:
    minimum, step = int(info["min_bandwidth"]), int(info["bandwidth_gran"])
    if vendor not in _VALUES:
        raise ValueError(f"how its numbers count is known for {' and '.join(_VALUES)} only")
    if _VALUES[vendor] is _intel and any(int(value) > _FULL for value in values.values()):
        raise ValueError("its numbers are no percentages; mount resctrl without mba_MBps")
    return Bandwidth(tuple(sorted(values)), vendor, minimum, max(step, 1))


# -- the file system ---------------------------------------------------------------------------------------------------


class Resctrl:
    """The groups under ``root``, named by their directories; all state is on disk. Methods raise OSError if the kernel
    refuses, and ValueError for a name that is not a group's."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root

    def machine(self) -> Machine:
        """Return the resources that can be limited: none if resctrl is not mounted or only monitors."""
        try:
            schemata = (self.root / SCHEMATA).read_text()
            return machine_of(schemata, dict(self._info()), self._vendor())
        except FileNotFoundError:
            return Machine()
        except OSError as error:
            return Machine(notes=(f"it cannot be read: {error.strerror}",))

    def exists(self, group: str) -> bool:
        return os.path.isdir(f"{self.root}/{_checked(group)}")

    def make(self, group: str) -> bool:
        """Create a group; return whether it is new. Raises OSError: ENOSPC if no class of service is free."""
        try:
            self._mkdir(self._directory(group))
        except FileExistsError:
            return False
        return True

    def remove(self, group: str) -> None:
        """Remove a group, if it exists; the kernel moves its tasks back to the root."""
        try:
            self._rmdir(self._directory(group))
        except FileNotFoundError:
            pass  # never created, or removed before

    def limit(self, group: str, schemata: str) -> None:
        """Write schemata lines: the kernel accepts all of them or, with EINVAL, none."""
        self._write(self._directory(group) / SCHEMATA, schemata)

    def tasks(self, group: str) -> frozenset[int]:
        return frozenset(int(tid) for tid in (self._directory(group) / TASKS).read_text().split())

    def move(self, group: str, tid: int) -> None:
        """Move a thread into a group, out of its present one; a thread that has ended is no error."""
        if tid <= 0:
            raise ValueError("a thread's id is above 0; to the kernel 0 is the writing thread")
        try:
            self._write(self._directory(group) / TASKS, f"{tid}\n")
        except ProcessLookupError:
            pass  # it has ended since it was listed

    def last_status(self) -> str:
        """Return the kernel's reason for its last refusal; "" if it gives none."""
        try:
            status = " ".join((self.root / LAST_STATUS).read_text().split())
        except OSError:
            return ""
        return "" if status == "ok" else status

    def _directory(self, group: str) -> Path:
        return self.root / _checked(group)

    def _info(self) -> Iterator[tuple[str, dict[str, str]]]:
        for name, files in INFO_FILES.items():
            directory = self.root / "info" / name
            try:
                yield name, {file: (directory / file).read_text().strip() for file in files}
            except FileNotFoundError:
                continue  # not on this machine, or monitoring only

    # The three system calls, and the CPU's vendor. Overridden in tests.

    def _mkdir(self, directory: Path) -> None:
        directory.mkdir(0o755)

    def _rmdir(self, directory: Path) -> None:
        directory.rmdir()

    def _write(self, file: Path, text: str) -> None:
        handle = os.open(file, os.O_WRONLY)
        try:
            os.write(handle, text.encode())
        finally:
            os.close(handle)

    def _vendor(self) -> str:
        with _CPUINFO.open() as lines:
            fields = (line.partition(":") for line in lines)
            return next((value.strip() for name, _, value in fields if name.strip() == "vendor_id"), "")


def _checked(group: str) -> str:
    if group in _NOT_GROUPS or "/" in group or not group.isprintable():
        raise ValueError("a group's name is one directory's, and none of the kernel's own")
    return group
