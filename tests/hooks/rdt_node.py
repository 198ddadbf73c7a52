"""A node for tests of rdt: resctrl, cgroups and settings in a directory, stand-ins for resctrl, and real threads."""

import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from runtimeproxy_hooks.lib.koordinator import RESCTRL
from runtimeproxy_hooks.lib.resctrl import Resctrl
from runtimeproxy_hooks.sdk.testing import CONTAINER_ID, UID, HookTester
from runtimeproxy_hooks.servers.rdt import Rdt
from tests.fakes.resctrl import StandIn, until_gone
from tests.hooks.nodes import annotation, configured

POD_GROUP = f"koordlet-{UID}"
FULL = "L3:0=7ff;1=7ff\nMB:0=100;1=100\n"
EVERY_CLASS: Mapping[str, Any] = {name: {"enable": True} for name in ("LSR", "LS", "BE")}
SMALL = {"llc": {"schemata": {"range": [0, 30]}}, "mb": {"schemata": {"percent": 20}}}


class Node:
    """A hook on a node with its files in a directory of the test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.root = directory / "resctrl"
        self.cgroup_root = directory / "cgroup"
        (self.cgroup_root).mkdir()
        (self.cgroup_root / "cgroup.controllers").touch()  # version 2
        self.resctrl = StandIn(self.root)

    def hook(self, *flags: str, classes: Mapping[str, Any] | None = None, resctrl: Resctrl | None = None) -> HookTester:
        """Return a tester for a hook that was configured with flags."""
        config = self._directory / "node.yaml"
        config.write_text(yaml.safe_dump({"rdt": dict(classes or {})}))
        hook = Rdt(resctrl or self.resctrl)
        return HookTester(configured(hook, f"--node-config={config}", f"--cgroup-root={self.cgroup_root}", *flags))

    def schemata(self, group: str) -> str:
        return (self.root / group / "schemata").read_text()

    def groups(self) -> list[str]:
        return sorted(each.name for each in self.root.iterdir() if (each / "tasks").exists())

    def container(self, *tids: int) -> Path:
        """Create the container's cgroup and list threads in it."""
        directory = self.cgroup_root / f"kubepods/pod{UID}/{CONTAINER_ID}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup.threads").write_text("".join(f"{tid}\n" for tid in tids))
        return directory


def annotated(said: object) -> dict[str, str]:
    return annotation(RESCTRL, said)


@contextmanager
def threads(count: int) -> Iterator[list[int]]:
    """Yield the ids of threads of this process, and end them."""
    over = threading.Event()
    started = [threading.Thread(target=over.wait) for _ in range(count)]
    for each in started:
        each.start()
    tids = [each.native_id or 0 for each in started]
    try:
        yield tids
    finally:
        over.set()
        until_gone(tids)


class Watching(StandIn):
    """A stand-in that records what is written to it, and does something before each of the first moves."""

    def __init__(self, root: Path, *acts: Callable[[], object]) -> None:
        super().__init__(root)
        self._acts = iter(acts)
        self.limited: list[str] = []
        self.moved: list[int] = []

    def limit(self, group: str, schemata: str) -> None:
        super().limit(group, schemata)
        self.limited.append(group)

    def move(self, group: str, tid: int) -> None:
        next(self._acts, lambda: None)()
        self.moved.append(tid)
        super().move(group, tid)


class Refusing(StandIn):
    """A stand-in that refuses to write some files, or to create or remove groups, as for a user who is not root."""

    def __init__(self, root: Path, *refused: str) -> None:
        super().__init__(root)
        self._refused = refused

    def _look(self, request: str) -> None:
        if request in self._refused:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    def _write(self, file: Path, text: str) -> None:
        if file.exists():  # the kernel finds a file before it checks permissions
            self._look(file.name)
        super()._write(file, text)

    def _rmdir(self, directory: Path) -> None:
        self._look("rmdir")
        super()._rmdir(directory)

    def _mkdir(self, directory: Path) -> None:
        self._look("mkdir")
        super()._mkdir(directory)
