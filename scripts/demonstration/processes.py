"""The programs that the demo, the bench and the soak start, and the proxy's documented command lines.

A program that was started is always ended, even on a failure half way, or on SIGTERM and Ctrl-C.
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

START_SECONDS = 60.0
STOP_SECONDS = 20.0
LOOK_SECONDS = 0.002
REGISTRATION_SECONDS = 11.0
"""A registration takes effect within 500 ms, or within 10 s on a machine without working inotify."""

COMMAND = "koord-runtime-proxy"
PROGRAMS = os.environ.get("DEMO_PROGRAMS", "")
"""A directory with the programs that the demo shows, such as the archive's bin; else those of .venv."""
DOCUMENTED_FLAGS: Mapping[str, Sequence[str]] = {
    "cri": ("--remote-runtime-service-endpoint={runtime}", "--remote-image-service-endpoint={runtime}"),
    "docker": ("--backend-runtime-mode=Docker", "--remote-runtime-service-endpoint={runtime}"),
}
"""The flags by mode."""


class DemoError(Exception):
    """The demo cannot continue; the text has the reason and the remedy."""


class Interruption:
    """Turns a signal into one SystemExit, immediately or at the end of a block that must not be cut short."""

    message = "FAILED: interrupted; everything that was started is ended"

    def __init__(self) -> None:
        self._holds, self._received, self._raised = 0, False, False

    def listen(self) -> None:
        """Handle the signals from now on."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._receive())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Defer a signal to the end of the block. Raises SystemExit there."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            self._raise_if_due()

    def check(self) -> None:
        """Raise SystemExit if a signal was received: a later error may have replaced it."""
        if self._received:
            sys.exit(self.message)

    def _receive(self) -> None:
        self._received = True
        self._raise_if_due()

    def _raise_if_due(self) -> None:
        if self._received and not self._raised and not self._holds:
            self._raised = True  # a second signal must not cut short the ending of the programs
            sys.exit(self.message)


interruption = Interruption()
"""The one of this process."""


class Program(NamedTuple):
    """A running program and the file with its output."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def wait_until_it_listens(self, path: Path) -> None:
        """Wait until the program listens on a unix socket. Raises DemoError with the end of its output."""
        deadline = time.monotonic() + START_SECONDS
        while not _answers(path):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise DemoError(f"{self.name} does not listen on {path}; its output ends: {self.output()[-1500:]}")
            time.sleep(LOOK_SECONDS)

    def wait_until_it_prints(self, text: str, seconds: float = START_SECONDS) -> None:
        """Wait until a text is in the program's output. Raises DemoError with the output's end."""
        deadline = time.monotonic() + seconds
        while text not in self.output():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise DemoError(f"{self.name} does not print {text!r}; its output ends: {self.output()[-1500:]}")
            time.sleep(10 * LOOK_SECONDS)

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def troubles(self) -> list[str]:
        """Return the warnings and errors that the program logged."""
        return [line for line in self.output().splitlines() if {"WARNING", "ERROR"} & set(line.split())]

    def proc(self, file: str) -> str:
        """Return the content of one of the program's files in /proc."""
        return Path("/proc", str(self.process.pid), file).read_text()

    def memory(self, figure: str = "VmRSS") -> int:
        """Return the program's present resident bytes; with VmHWM the most since ``start_peak``
        (proc(5), status)."""
        return int(self.proc("status").partition(f"{figure}:")[2].split()[0]) * 1024

    def start_peak(self) -> None:
        """Reset the program's peak of memory: proc(5), clear_refs."""
        Path("/proc", str(self.process.pid), "clear_refs").write_text("5")

    def cpu_nanoseconds(self) -> int:
        """Return the CPU time that the program has used."""
        return cpu_nanoseconds(self.process.pid)


def cpu_nanoseconds(pid: int) -> int:
    """Return the CPU time that a process has used."""
    # The kernel's clock id for another process's CPU time (clock_getcpuclockid(3), which Python lacks).
    return time.clock_gettime_ns(~pid << 3 | 2)


@contextmanager
def programs(commands: Mapping[str, Sequence[str]], folder: Path, *, code: int = 0) -> Iterator[list[Program]]:
    """Run programs by name; at the end all are stopped together. Raises DemoError on another exit code."""
    running: list[Program] = []
    try:
        for name, command in commands.items():
            with interruption.held():
                running.append(_start(name, command, folder))
        yield running
    except BaseException:
        _stop(running)
        raise
    for ended, found in zip(running, _stop(running), strict=True):
        if found != code:
            raise DemoError(f"{ended.name} ended with exit code {found}; its output ends: {ended.output()[-1500:]}")


@contextmanager
def program(name: str, command: Sequence[str], folder: Path, *, code: int = 0) -> Iterator[Program]:
    """Run one program in the same way."""
    with programs({name: command}, folder, code=code) as [running]:
        yield running


def _start(name: str, command: Sequence[str], folder: Path) -> Program:
    log = folder / f"{name}.log"
    # The proxy is configured by the command line alone, whatever the shell has set.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RUNTIMEPROXY_")}
    with log.open("wb") as output:
        # A terminal and timeout(1) signal a whole process group; the demo ends its programs itself, in order.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, process_group=0
        )
    return Program(name, process, log)


def _stop(running: Sequence[Program]) -> list[int]:
    """Send each program one signal: a second one could kill a program that is already stopping."""
    with interruption.held():
        for each in running:
            each.process.terminate()
        return [_wait(each.process) for each in running]


def _wait(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def installed(command: str, *module: str) -> list[str]:
    """Return an installed command, or else the equivalent module with its arguments."""
    if PROGRAMS:
        return [str(Path(PROGRAMS, command))]
    path = Path(sys.executable).parent / command
    return [str(path)] if path.exists() else [sys.executable, "-m", *module]


def proxy_command(mode: str, folder: Path, runtime: str) -> list[str]:
    """Return a mode's documented command line, with the demo's own folder in place of the machine's."""
    return [
        *installed(COMMAND, "runtimeproxy", "run"),
        *(flag.format(runtime=runtime) for flag in DOCUMENTED_FLAGS[mode]),
        f"--koord-runtimeproxy-endpoint={proxy_socket(folder)}",
        f"--admin-endpoint={admin_socket(folder)}",
        f"--metrics-endpoint={metrics_socket(folder)}",
        f"--hookserver-config-dir={registrations(folder)}",
    ]


def shown(command: Sequence[str]) -> str:
    """Return a command line that can be pasted into a shell, in any directory."""
    modules = [f"PYTHONPATH={os.environ['PYTHONPATH']}"] if "-m" in command and "PYTHONPATH" in os.environ else []
    return shlex.join([*modules, *command])


def proxy_socket(folder: Path) -> Path:
    return folder / "runtimeproxy.sock"


def admin_socket(folder: Path) -> Path:
    return folder / "admin.sock"


def metrics_socket(folder: Path) -> Path:
    """Return the socket for collectors, which must have a directory of its own."""
    return folder / "metrics" / "metrics.sock"


def registrations(folder: Path) -> Path:
    return folder / "hookserver.d"


def wait_for_registration(proxy: Program, plugin: str) -> None:
    """Wait until the proxy's log names a plugin. Raises DemoError."""
    proxy.wait_until_it_prints(plugin, REGISTRATION_SECONDS)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True
