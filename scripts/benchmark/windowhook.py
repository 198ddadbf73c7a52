"""The rdt hook on a stand-in for resctrl, which notes when a container's last thread was written to the tasks file.

The stand-in's write costs more than the kernel's: it shows the tasks of all its groups in files.
Run: ``python -m scripts.benchmark.windowhook RESCTRL_DIRECTORY NOTES [flags of the rdt hook]``; NOTES is a file that
gets one JSON line a container.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from runtimeproxy_hooks import ContainerContext, main
from runtimeproxy_hooks.rdt import Rdt
from runtimeproxy_hooks.resctrl_fs import TASKS
from tests.fakes.resctrl import StandIn

NAME = "rdt-window"
"""It stands in no path of the proxy's log before the hook is registered."""


@dataclass(frozen=True, slots=True)
class Note:
    """A container's id, how many threads were moved for it, and when the last one was, in nanoseconds of the epoch."""

    container: str
    threads: int
    at: int


def read(notes: Path) -> list[Note]:
    """Return all notes."""
    return [Note(**json.loads(line)) for line in notes.read_text().splitlines()]


class Noting(StandIn):
    """A stand-in that knows when each thread came into a group: one that has ended before does not."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.moved: list[int] = []

    def _write(self, file: Path, text: str) -> None:
        super()._write(file, text)
        if file.name == TASKS:
            self.moved.append(time.time_ns())


class NotingRdt(Rdt):
    """The hook as it is; containers are started one at a time."""

    name = NAME

    def __init__(self, resctrl: Noting, notes: Path) -> None:
        super().__init__(resctrl)
        self._stand_in, self._notes = resctrl, notes

    def post_start_container(self, container: ContainerContext) -> None:
        """Move the container's threads, then note it."""
        self._stand_in.moved.clear()
        super().post_start_container(container)
        moved = self._stand_in.moved
        note = Note(container.id, len(moved), moved[-1] if moved else 0)
        with self._notes.open("a") as notes:
            notes.write(json.dumps(asdict(note)) + "\n")


if __name__ == "__main__":
    main(NotingRdt(Noting(Path(sys.argv[1])), Path(sys.argv[2])), argv=sys.argv[3:])
