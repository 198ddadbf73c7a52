"""The resctrl file system: what it can limit, its groups, and the tasks in them.

Invariant: only groups directly under the root are created and removed; a file is never created; each id is one write().
"""

import os
from collections.abc import Iterator
from pathlib import Path

from .resctrl import INFO_FILES, Machine, machine_of

ROOT = Path("/sys/fs/resctrl")
SCHEMATA, TASKS = "schemata", "tasks"
LAST_STATUS = Path("info", "last_cmd_status")

_CPUINFO = Path("/proc/cpuinfo")
_NOT_GROUPS = frozenset({"", ".", "..", "info", "mon_groups", "mon_data"})


class Resctrl:
    """The groups under ``root``, named by their directories; all state is on disk. Methods raise OSError if the kernel
    refuses, and ValueError for a name that is not a group's."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root

    def machine(self) -> Machine:
        """Return what can be limited: nothing if resctrl is not mounted or only monitors."""
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
        """Return the ids of the threads in a group."""
        return frozenset(int(tid) for tid in (self._directory(group) / TASKS).read_text().split())

    def move(self, group: str, tid: int) -> None:
        """Move a thread into a group, out of its present one; a thread that has ended is no error."""
        if tid <= 0:
            raise ValueError("a thread's id is above 0; to the kernel 0 is whoever writes it")
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

    # The three requests to the kernel, and the CPU's vendor. Overridden in tests.

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
