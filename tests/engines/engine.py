"""A private daemon that runs containers: its folder and cgroups, its start and end; other engines are unaffected.

Its processes are found by its own folder or cgroup prefix, and ended by process id.
"""

import shutil
import subprocess
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.engines import cgroups, leftovers, probe

START_SECONDS = 30.0
STOP_SECONDS = 20.0


class EngineError(Exception):
    """The engine is missing or did not start; the text says what to do."""


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
        path = self.base / name
        path.mkdir(parents=True, exist_ok=True)
        return path

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
        leftovers.end(processes)
        leftovers.remove_shim_sockets(state)
        leftovers.unmount(self.base)
        cgroups.remove(self.cgroup_prefix)
        shutil.rmtree(self.base)
        for path in self._directories:
            if path.is_dir() and not any(path.iterdir()):  # it may contain files of others
                path.rmdir()
