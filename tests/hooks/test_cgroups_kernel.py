"""Cgroup files of both versions on the kernel's own, and on directory trees for what the machine lacks.

A machine has one version, or one for some controllers and the other for the rest. Nothing is skipped on either.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtimeproxy_hooks.cgroups import ROOT, SETTINGS, Cgroups
from tests.engines import cgroups as in_force
from tests.hooks.nodes import tree

TWO_THREADS = (
    "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); "
    "print('ready', flush=True); time.sleep(60)"
)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    """A process of two threads."""
    with subprocess.Popen([sys.executable, "-c", TWO_THREADS], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
        child.kill()


@dataclass(frozen=True, slots=True)
class Own:
    """A cgroup made for a test: the kernel's, or directories with the files of a new one."""

    root: Path
    of_kernel: bool
    path: str = f"/runtimeproxy-test-{os.getpid()}"

    def takes(self, setting: str) -> bool:
        row = SETTINGS[setting]
        return Cgroups(self.root).file(self.path, row.controller, row.v1_name, row.v2_name).exists()

    def put_in(self, pid: int) -> None:
        threads = "".join(f"{tid}\n" for tid in os.listdir(f"/proc/{pid}/task"))
        for directory in in_force.directories(self.path, self.root):
            if not self.of_kernel:
                tree(directory, {"cgroup.procs": f"{pid}\n", "tasks": threads, "cgroup.threads": threads})
            elif directory.parent.name != "cpuset":  # takes no process before it has CPUs
                (directory / "cgroup.procs").write_text(str(pid))


def of_kernel(root: Path) -> Own:
    """Make a cgroup in every hierarchy under ``root``, with all controllers that it can have. Raises OSError."""
    own = Own(root, of_kernel=True)
    if in_force.is_v2(root):
        for controller in {row.controller for row in SETTINGS.values()}:
            with suppress(OSError):  # version 1 has it
                (root / "cgroup.subtree_control").write_text(f"+{controller}")  # runc does so, too, and leaves it
    for top in in_force.directories("/", root):
        Path(f"{top}{own.path}").mkdir()
    return own


def of_files(root: Path, version: str) -> Own:
    own = Own(root, of_kernel=False)
    if version == "v2":
        tree(root, {"cgroup.controllers": ""})
    for row in SETTINGS.values():
        name = f"{own.path}/{row.v2_name}" if version == "v2" else f"{row.controller}{own.path}/{row.v1_name}"
        tree(root, {name.lstrip("/"): ""})
    return own


@pytest.fixture(params=["v1", "v2"])
def owns(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Own]]:
    """Give a cgroup of each version: the kernel's if it is mounted and can be made, then one of files."""
    made = [of_files(tmp_path, request.param)]
    mounted = [root for root in (ROOT, ROOT / "unified") if not Cgroups(root).absent]
    kernels = [root for root in mounted if in_force.is_v2(root) == (request.param == "v2")][:1]
    try:
        with suppress(OSError):
            made[:0] = [of_kernel(root) for root in kernels]
        yield made
    finally:
        for root in kernels:
            in_force.remove(made[0].path, root)


QUOTAS = [("cpu_shares", 512), ("cpu_quota", 50000), ("cpu_quota", -1)]
LIMITS = [("memory_limit_in_bytes", 1 << 26), ("memory_limit_in_bytes", -1), ("cpuset_cpus", "0"), ("cpuset_cpus", "")]


@pytest.mark.parametrize(("setting", "value"), [*QUOTAS, *LIMITS])
def test_written_value_is_in_force(owns: list[Own], setting: str, value: int | str) -> None:
    own = next(own for own in owns if own.takes(setting))
    Cgroups(own.root).write(own.path, setting, value)
    assert in_force.read(own.path, setting, own.root) == in_force.expected(setting, value, own.root)


def test_process_is_listed_with_its_threads(owns: list[Own], process: subprocess.Popen[str]) -> None:
    own, *_ = owns
    cgroups = Cgroups(own.root)
    try:
        own.put_in(process.pid)
        assert cgroups.pids(own.path) == [process.pid]
        tids = cgroups.tids(own.path)
        assert process.pid in tids
        assert len(tids) == 2
        assert cgroups.container("/", own.path.strip("/")) == own.path
    finally:
        process.kill()
        process.wait()
    if own.of_kernel:
        assert cgroups.pids(own.path) == []
