"""The programs of a round while they run: their sockets, CPU time and memory, and what was sent to them.

Owns the folder's layout, the reading of /proc, the counts of calls.
Must not know: how a program is started, what is sent.
Invariant: every call that a server is to count is noted here.
"""

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from scripts.benchmark.cases import TRANSFER_BYTES
from scripts.demonstration.processes import Program

START_PEAK_ANEW = "5"
"""What /proc/PID/clear_refs takes for that, see proc(5)."""


@dataclass(frozen=True, slots=True)
class Served:
    """The programs of a round, in a folder of their own."""

    folder: Path
    transfer_bytes: int = TRANSFER_BYTES
    programs: dict[str, Program] = field(default_factory=dict)
    sent: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Calls of a load, by way and route: the runtime counts them."""
    made: Counter[tuple[str, str]] = field(default_factory=Counter)
    """A kubelet's calls, by way and route, those that hook servers are asked about among them."""
    connections: ExitStack = field(default_factory=ExitStack)
    """What is to be closed before the programs are ended."""

    def socket(self, name: str) -> Path:
        """Name the socket that a program listens on."""
        return self.folder / f"{name}.sock"

    @property
    def client(self) -> Path:
        """Name the directory of h2load's files, which no proxy's watch on its registrations sees being written."""
        return self.folder / "client"

    def registrations(self, name: str) -> Path:
        """Name the directory of a proxy's registration files."""
        return self.folder / f"{name}-hooks" / "hookserver.d"

    def cpu_nanoseconds(self, name: str) -> int:
        """Return the CPU time that a program took so far."""
        # The kernel's clock id of another process's CPU time (clock_getcpuclockid(3), which Python does not have).
        return time.clock_gettime_ns(~self.programs[name].process.pid << 3 | 2)

    def resident_bytes(self, name: str) -> int:
        """Return the memory that a program has resident now."""
        return self._memory(name, "VmRSS")

    def peak_bytes(self, name: str) -> int:
        """Return the most memory that a program had resident since ``start_peak``."""
        return self._memory(name, "VmHWM")

    def start_peak(self, name: str) -> None:
        """Forget the most memory that a program has had."""
        self._proc(name, "clear_refs").write_text(START_PEAK_ANEW)

    def has_loaded(self, name: str, module: str) -> bool:
        """Tell whether a program has loaded a compiled module, by a part of its path."""
        return module in self._proc(name, "maps").read_text()

    def _memory(self, name: str, figure: str) -> int:
        return int(self._proc(name, "status").read_text().partition(f"{figure}:")[2].split()[0]) * 1024

    def _proc(self, name: str, file: str) -> Path:
        return Path(f"/proc/{self.programs[name].process.pid}/{file}")
