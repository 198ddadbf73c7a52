"""A private daemon that runs containers: its folder and cgroups, its start and end; other engines are unaffected.

Its processes are found by its own folder or cgroup prefix, and ended by process id.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.engines import cgroups, probe

START_SECONDS, STOP_SECONDS, END_SECONDS = 30.0, 20.0, 10.0
SHIM_DIRECTORIES = (Path("/run/containerd/s"), Path("/run/containerd"))
"""Directories of all shims' sockets, independent of the daemon's state directory; names are hashes of its address."""


class EngineError(Exception):
    """The engine is missing or did not start; the text says what to do."""


def processes(mark: str) -> set[int]:
    """Return the ids of all processes whose command line contains a text."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if mark.encode() in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
    return found


def end(find: Callable[[], set[int]]) -> None:
    """Kill what ``find`` returns until it returns nothing. Raises TimeoutError with the ids of those that live on."""
    deadline = time.monotonic() + END_SECONDS
    while leftovers := find():
        for pid in leftovers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {sorted(leftovers)} do not end; kill them by hand")
        time.sleep(0.02)


def mounts(base: Path) -> list[str]:
    """Return the mount points below a folder, oldest first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [mount_point for line in lines if (mount_point := line.split()[4]).startswith(f"{base}/")]


class Engine(ABC):
    """A daemon with its own folder, log, socket and cgroup; use as a context manager."""

    def __init__(self, name: str, cgroup: str, directories: Iterable[Path]) -> None:
        self.base = Path(tempfile.mkdtemp(prefix=f"rp-{name}-"))
        self.log_file = self.base / f"{name}.log"
        self.socket = str(self.base / f"{name}.sock")
        self.cgroup_prefix = f"{cgroup}-{uuid.uuid4().hex[:8]}"
        self._name = name
        self._daemon: subprocess.Popen[bytes] | None = None
        # Directories outside of its folder that it creates if they do not exist, deepest first.
        self._directories = [path for path in directories if not path.exists()]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *details: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the daemon with the tests' images. Raises EngineError."""
        if missing := probe.missing_programs(self._name):
            raise EngineError(missing)
        self.launch()
        self.load_images()

    @abstractmethod
    def launch(self) -> None:
        """Start the daemon and wait until it answers; its state outlives its end. Raises EngineError."""

    @abstractmethod
    def load_images(self) -> None: ...

    @abstractmethod
    def stop(self) -> None:
        """Stop the daemon, and remove everything that it created."""

    @property
    def runs(self) -> bool:
        return self._daemon is not None and self._daemon.poll() is None

    def kill(self) -> None:
        """Kill the daemon (SIGKILL); its containers live on until the next ``launch`` or ``stop``."""
        assert self._daemon is not None
        self._daemon.kill()
        self._daemon.wait()
        self._daemon = None

    def cgroup_parent(self, pod_uid: str, qos: str = "besteffort") -> str:
        """Return the cgroup parent that this engine's kubelet would give a pod.

        Cgroups below this prefix, also those that a hook chose, are removed with the engine.
        """
        return f"/{self.cgroup_prefix}/{qos}/pod{pod_uid}"

    def directory(self, name: str) -> Path:
        (self.base / name).mkdir(parents=True, exist_ok=True)
        return self.base / name

    def _run(self, command: Sequence[str], answers: Callable[[], bool], env: Mapping[str, str] | None = None) -> None:
        """Start the program and wait until it answers. Raises EngineError with the end of its log."""
        with self.log_file.open("ab") as log:
            # In its own process group: Ctrl-C must not end it before its containers are removed.
            pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self._daemon = daemon = subprocess.Popen(command, env=env, process_group=0, **pipes)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and daemon.poll() is None:
            if answers():
                return
            time.sleep(0.02)
        state = "runs" if daemon.poll() is None else f"exited with {daemon.returncode}"
        log_end = self.log_file.read_text(errors="replace")[-2000:]
        raise EngineError(f"{self._name} {state} but does not answer in {START_SECONDS:.0f} s; its log ends: {log_end}")

    def _end(self, processes: Callable[[], set[int]], state: Path) -> None:
        """Stop the daemon, end its remaining processes, and remove its files; ``state`` is its containerd's."""
        if self._daemon is not None:
            self._daemon.terminate()
            try:
                self._daemon.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
            self._daemon = None
        end(processes)
        for address in state.glob("io.containerd.runtime.v2.task/*/*/address"):  # of shims that were killed
            Path(address.read_text().strip().removeprefix("unix://")).unlink(missing_ok=True)
        for mount_point in reversed(mounts(self.base)):
            subprocess.run(["umount", "--lazy", mount_point], check=True, stdin=subprocess.DEVNULL)
        cgroups.remove(self.cgroup_prefix)
        shutil.rmtree(self.base)
        for path in self._directories:
            if path.is_dir() and not any(path.iterdir()):  # it may contain files of others
                path.rmdir()
