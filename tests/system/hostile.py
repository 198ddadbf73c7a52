"""The cost of an attack, or of long messages."""

from pathlib import Path


class Process:
    """The resources of a process: memory in bytes, and descriptors."""

    def __init__(self, pid: int) -> None:
        self._folder = Path("/proc", str(pid))

    def start_peak(self) -> int:
        (self._folder / "clear_refs").write_text("5")
        return self._memory("VmRSS")

    def peak(self) -> int:
        return self._memory("VmHWM")

    def resident(self) -> int:
        """Return its private memory.

        Without pages of files: the kernel decides which pages of a program and its libraries are in memory, and one
        call of new code loads many (proc_pid_status(5), RssAnon).
        """
        return self._memory("RssAnon")

    def descriptors(self) -> int:
        return len(list((self._folder / "fd").iterdir()))

    def _memory(self, figure: str) -> int:
        return int((self._folder / "status").read_text().partition(f"{figure}:")[2].split()[0]) * 1024
