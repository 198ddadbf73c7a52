"""How often a proxy started for a socket since the node's boot, and how often one ended without being told to.

Owns the file beside the socket, its form, and its lock, which a proxy holds for its life.
Must not know: why a proxy ends, how the counts are shown.
Invariant: no fault of the file keeps a proxy from starting or delays it. A count is written before what may fail: a
proxy that cannot even be imported is counted by the next one. A second proxy of the socket counts nothing.
"""

import fcntl
import os
import stat
from contextlib import suppress

_MAKE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_BOOT = "/proc/sys/kernel/random/boot_id"
_RUNS, _ENDED = "runs", "ended"


class Starts:
    """The counts for the socket at a path; both are 0 while the file cannot be used, as where others may write."""

    def __init__(self, socket_path: str) -> None:
        self.starts = 0
        """Starts since the boot, this one too."""
        self.unclean = 0
        """Earlier proxies among them that ended without being told to."""
        self._path = f"{socket_path}.starts"
        self._file: int | None = None

    def begin(self) -> None:
        """Count this start, unless it is counted, or the socket's directory is not there yet."""
        if self._file is not None:
            return
        with suppress(OSError, ValueError):  # ValueError: the abstract address of a socket unit begins with NUL
            if not _is_ours(os.stat(os.path.dirname(self._path)), (0, os.geteuid())):
                return
            file = os.open(self._path, _MAKE, 0o600)
            try:
                found = os.fstat(file)
                if _is_ours(found, (os.geteuid(),)) and stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    starts, unclean, state = _counts(os.pread(file, 200, 0))
                    self.starts, self.unclean = starts + 1, unclean + (state == _RUNS)
                    self._write(file, _RUNS)
                    self._file = file
            finally:
                if self._file is None:
                    os.close(file)

    def end(self) -> None:
        """Note that this proxy ends as it should."""
        if self._file is not None:
            with suppress(OSError):
                self._write(self._file, _ENDED)
            os.close(self._file)
            self._file = None

    def _write(self, file: int, state: str) -> None:
        """Write all in one piece of one length, so that a kill leaves the old counts or the new ones."""
        os.pwrite(file, f"{_boot()} {self.starts:10} {self.unclean:10} {state:5}\n".encode(), 0)


def _is_ours(found: os.stat_result, owners: tuple[int, ...]) -> bool:
    """Return whether no other user or group can have written a directory or a file."""
    return found.st_uid in owners and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _boot() -> str:
    """Return what tells this boot from others: nothing under ProcSubset=pid, where the directory, on tmpfs, does."""
    with suppress(OSError), open(_BOOT) as file:
        return file.read().strip()
    return "-"


def _counts(content: bytes) -> tuple[int, int, str]:
    """Return what a file has: nothing if it is empty, of an earlier boot, or not of this form."""
    words = content.partition(b"\n")[0].decode(errors="replace").split()
    if len(words) != 4 or words[0] != _boot() or not (words[1].isdecimal() and words[2].isdecimal()):
        return 0, 0, _ENDED
    return int(words[1]), int(words[2]), words[3]
