"""A private daemon: its folder and cgroups, its start and its end; nothing of another one is touched.

Everything is found by its own folder or cgroup prefix, and ended by process id.
"""

import shutil
import subprocess
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.engines import cgroups, leftovers, probe

START_SECONDS = 30.0
STOP_SECONDS = 20.0
LOOK_SECONDS = 0.02


class EngineError(Exception):
    """The engine is missing or did not start; the text says what to do."""


class Daemon(ABC):
    """A program with a folder and a log; use as a context manager or with start and stop."""

    def __init__(self, name: str) -> None:
        self.base = Path(tempfile.mkdtemp(prefix=f"rp-{name}-"))
        self.log_file = self.base / f"{name}.log"
        self._name = name
        self._daemon: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *details: object) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> Self:
        """Start the daemon, with everything that tests use. Raises EngineError."""

    def stop(self) -> None:
        """Stop the daemon and remove its folder."""
        self.terminate()
        shutil.rmtree(self.base)

    def terminate(self) -> None:
        """Stop only the daemon, if it runs."""
        if self._daemon is None:
            return
        self._daemon.terminate()
        try:
            self._daemon.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._daemon.kill()
            self._daemon.wait()
        self._daemon = None

    def kill(self) -> None:
        assert self._daemon is not None
        self._daemon.kill()
        self._daemon.wait()
        self._daemon = None

    def _require_programs(self) -> None:
        if missing := probe.missing_programs(self._name):
            raise EngineError(missing)

    def _run(self, command: Sequence[str], answers: Callable[[], bool], env: Mapping[str, str] | None = None) -> None:
        """Start the program and wait until it answers. Raises EngineError with the end of its log."""
        with self.log_file.open("ab") as log:
            # A group of its own: a terminal's Ctrl-C must not end it before its containers are removed.
            daemon = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, process_group=0
            )
        self._daemon = daemon
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and daemon.poll() is None:
            if answers():
                return
            time.sleep(LOOK_SECONDS)
        state = "runs" if daemon.poll() is None else f"exited with {daemon.returncode}"
        log_end = self.log_file.read_text(errors="replace")[-2000:]
        raise EngineError(f"{self._name} {state} but does not answer in {START_SECONDS:.0f} s; its log ends: {log_end}")


class Engine(Daemon):
    """A daemon that runs containers, with a socket and a cgroup of its own."""

    def __init__(self, name: str, cgroup: str, directories: Iterable[Path]) -> None:
        super().__init__(name)
        self.socket = str(self.base / f"{name}.sock")
        self.cgroup_prefix = f"{cgroup}-{uuid.uuid4().hex[:8]}"
        self._directories = leftovers.NewDirectories(directories)

    @property
    def _runs(self) -> bool:
        return self._daemon is not None and self._daemon.poll() is None

    def cgroup_parent(self, pod_uid: str, qos: str = "besteffort") -> str:
        """Return the cgroup parent that this engine's kubelet would give a pod.

        Cgroups below this prefix, also those that a hook chose, are removed with the engine.
        """
        return f"/{self.cgroup_prefix}/{qos}/pod{pod_uid}"

    def directory(self, name: str) -> Path:
        path = self.base / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _sweep(self, processes: Callable[[], set[int]], state: Path) -> None:
        """End what the stopped daemon left, and remove everything it created; ``state`` is its containerd's."""
        leftovers.end(processes)
        leftovers.remove_shim_sockets(state)
        leftovers.unmount(self.base)
        cgroups.remove(self.cgroup_prefix)
        shutil.rmtree(self.base)
        self._directories.remove()
