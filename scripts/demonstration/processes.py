"""The programs that the demo starts: the proxy by its documented command lines, the hook server, the fake runtimes.

Owns their start, the wait until they listen, and their end by process id.
Must not know: what is shown.
Invariant: a program that was started is ended, also when the demo fails half way.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.demonstration.interruption import interruption

START_SECONDS = 20.0
STOP_SECONDS = 20.0
REGISTRATION_SECONDS = 11.0
"""A registration takes effect within 500 ms, within 10 s on a machine whose inotify does not work."""

COMMAND = "koord-runtime-proxy"
DOCUMENTED_FLAGS: Mapping[str, Sequence[str]] = {
    "cri": ("--remote-runtime-service-endpoint={runtime}", "--remote-image-service-endpoint={runtime}"),
    "docker": ("--backend-runtime-mode=Docker", "--remote-runtime-service-endpoint={runtime}"),
}
"""By mode."""


class DemoError(Exception):
    """The demo cannot go on; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Program:
    """A running program and the file that its output goes to."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def wait_until_it_listens(self, path: Path) -> None:
        """Wait until the program answers on its unix socket.

        Raises DemoError with the end of its output.
        """
        deadline = time.monotonic() + START_SECONDS
        while not _answers(path):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise DemoError(f"{self.name} does not listen on {path}; its output ends: {self.output()[-1500:]}")
            time.sleep(0.02)

    def output(self) -> str:
        """Return all that the program wrote."""
        return self.log.read_text(errors="replace")


@contextmanager
def program(name: str, command: Sequence[str], folder: Path) -> Iterator[Program]:
    """Run a program; at the end it is asked to stop, and its exit code must be 0.

    Raises DemoError.
    """
    log = folder / f"{name}.log"
    # The proxy's settings are the command line's alone, whatever the shell has set.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RUNTIMEPROXY_")}
    process: subprocess.Popen[bytes] | None = None
    try:
        with interruption.held(), log.open("wb") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
        running = Program(name, process, log)
        yield running
    except BaseException:
        if process is not None:
            _stop(process)
        raise
    if code := _stop(process):
        raise DemoError(f"{name} ended with exit code {code}; its output ends: {running.output()[-1500:]}")


def _stop(process: subprocess.Popen[bytes]) -> int:
    with interruption.held():
        process.terminate()
        try:
            return process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def proxy_command(mode: str, folder: Path, runtime: str) -> list[str]:
    """Return a mode's documented command line, with the demo's own folder in place of the machine's."""
    installed = Path(sys.executable).parent / COMMAND
    return [
        *([str(installed)] if installed.exists() else [sys.executable, "-m", "runtimeproxy", "run"]),
        *(flag.format(runtime=runtime) for flag in DOCUMENTED_FLAGS[mode]),
        f"--koord-runtimeproxy-endpoint={proxy_socket(folder)}",
        f"--admin-endpoint={folder / 'admin.sock'}",
        f"--hookserver-config-dir={registrations(folder)}",
    ]


def proxy_socket(folder: Path) -> Path:
    """Name the socket that the kubelet would be told of."""
    return folder / "runtimeproxy.sock"


def registrations(folder: Path) -> Path:
    """Name the directory of registration files."""
    return folder / "hookserver.d"


def hook_server_command(folder: Path) -> list[str]:
    """Return the command line of the demo's hook server."""
    return [
        *(sys.executable, "-m", "runtimeproxy_hooks.demo"),
        f"--endpoint={hook_socket(folder)}",
        f"--register-dir={registrations(folder)}",
        f"--call-log={call_log(folder)}",
    ]


def hook_socket(folder: Path) -> Path:
    """Name the hook server's socket."""
    return folder / "hooks.sock"


def call_log(folder: Path) -> Path:
    """Name the file that the hook server writes its calls to."""
    return folder / "calls.jsonl"


def wait_for_registration(proxy: Program, file_name: str) -> None:
    """Wait until the proxy's log names the registration file's plugin.

    Raises DemoError.
    """
    deadline = time.monotonic() + REGISTRATION_SECONDS
    while Path(file_name).stem not in proxy.output():
        if time.monotonic() > deadline:
            raise DemoError(f"the proxy's log does not name {file_name}; it ends: {proxy.output()[-1500:]}")
        time.sleep(0.02)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True
