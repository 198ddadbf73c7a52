"""The proxy under test, in its own folder: as a program, or in the test's process to inspect its parts.

It also runs fakes in their own threads.
"""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any, Self

from runtimeproxy import app
from runtimeproxy.relay.acceptor import Acceptor
from runtimeproxy.relay.listener import listen
from runtimeproxy.settings import config
from runtimeproxy.settings.config import Config
from tests.amounts import SHARE_VARIABLE, Amount
from tests.fakes import registration

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-m", "runtimeproxy", "run")
WAIT_SECONDS = 20.0
"""Seconds to wait for an expected event on a busy machine."""
LISTENING = "listening on "
STATE_LOADED = "the runtime's state is known"


class Folder:
    """The files of a proxy: the runtime listens at ``runtime``, hook servers register in ``registrations``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder
        self.socket, self.runtime, self.admin = (folder / f"{name}.sock" for name in ("proxy", "runtime", "admin"))
        self.registrations, self.log = folder / "hookserver.d", folder / "proxy.log"
        self.registrations.mkdir(exist_ok=True)

    def flags(self, **changes: str) -> dict[str, str]:
        """Return the flags of a proxy that uses only the folder; ``changes`` sets others, with _ for -."""
        flags = {
            **{"koord-runtimeproxy-endpoint": str(self.socket), "admin-endpoint": str(self.admin)},
            **{"remote-runtime-service-endpoint": str(self.runtime), "log-level": "debug"},
            **{"hookserver-config-dir": str(self.registrations), "state-dir": str(self.path / "state")},
            "originals-dir": "none",  # else the result depends on whether the folder is on tmpfs
            "hook-timeout": "10s",  # on a busy machine the default may be exceeded
        }
        return flags | {name.replace("_", "-"): value for name, value in changes.items()}

    def register(
        self, name: str, endpoint: str | Path, points: Sequence[str] = registration.ALL_POINTS, **more: str
    ) -> Path:
        """Write a registration file, atomically; ``more`` as in ``registration.text``."""
        return registration.write(self.registrations, name, registration.text(str(endpoint), points, **more))


class ProxyProcess(Folder):
    """The proxy as a program, whose output is added to a log over all its starts.

    Use with ``with``, or with ``async with`` if the test's own loop serves it. ``flags`` are those of the command line
    with _ for -. ``program`` is the command before them.
    """

    def __init__(
        self,
        folder: Path,
        *,
        program: Sequence[str] = PROGRAM,
        environment: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        **flags: str,
    ) -> None:
        super().__init__(folder)
        self.process: subprocess.Popen[bytes] | None = None
        self.command = [*program, *(f"--{name}={value}" for name, value in self.flags(**flags).items())]
        self._pass_fds = pass_fds
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("RUNTIMEPROXY_")}
        self.environment |= {"PYTHONPATH": str(ROOT)} | dict(environment or {})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, *details: object) -> None:
        self.stop(kind is None)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, kind: object, *details: object) -> None:
        await asyncio.to_thread(self.stop, kind is None)

    @property
    def pid(self) -> int:
        assert self.process is not None, "the proxy was not started"
        return self.process.pid

    def start(self) -> None:
        listened = self.output().count(LISTENING)
        self.launch()
        try:
            self.wait_until_it_listens(listened + 1)
        except BaseException:
            self.stop(checked=False)  # the block is not entered, so __exit__ would not end it
            raise

    def wait_until_it_listens(self, count: int = 1) -> None:
        """Wait for its log line, which follows the reading of registrations."""
        wait_until(lambda: self.ended or self.output().count(LISTENING) >= count, "the proxy listens", self.output)
        assert not self.ended, f"the proxy ended immediately: {self.output()}"

    def launch(self) -> None:
        more: Any = {"env": self.environment, "cwd": self.path, "pass_fds": self._pass_fds}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **more)

    @property
    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def kill(self) -> None:
        """Kill the process (SIGKILL), as the OOM killer does: its files stay."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def stop(self, checked: bool = True) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if checked:
            self.check(code)

    def check(self, code: int, expected: int = 0) -> None:
        assert code == expected, f"exit code {code}: {self.output()[-4000:]}"
        assert re.findall(".*(?:Traceback| ERROR |internal error).*", self.output()) == []

    def wait_for_log(self, text: str, count: int = 1) -> None:
        wait_until(lambda: self.output().count(text) >= count, f"the log contains {text!r}", self.output)


class ProxyInside(Folder):
    """The proxy in the test's own event loop, for tests that inspect its ``metrics`` and ``store``."""

    def __init__(self, folder: Path, **flags: str) -> None:
        super().__init__(folder)
        self.config: Config = config.load(self.flags(**flags), {})

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._listener = listen(self.config.listen_endpoint, mode=self.config.socket_mode)
        self.app = app.Proxy(self.config, loop)
        self.metrics, self.store = self.app.metrics, self.app.store
        await self.app.start()
        self._acceptor = Acceptor(loop, self._listener.socket, self.app.front.accept)
        self._acceptor.start()
        return self

    async def __aexit__(self, kind: object, *details: object) -> None:
        self._acceptor.stop()
        await self.app.stop(self.config.drain_timeout_seconds if kind is None else 0.0)
        self._listener.close()
        if kind is None:
            assert not self.metrics.total("internal_errors")


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


SUPERVISED = 'exec 3<&"$1"; shift; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
"""Starts a program as systemd does with a socket: the listener is file descriptor 3, the variables name the process."""


@contextmanager
def handed_over(path: Path) -> Iterator[dict[str, Any]]:
    """Listen as systemd does for a unit with a socket; yield the arguments that hand the listener over to a proxy."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(socket.SOMAXCONN)  # as systemd does: while nothing accepts, each client waits in it
        os.set_inheritable(listener.fileno(), True)
        program = ["bash", "-c", SUPERVISED, "supervisor", str(listener.fileno()), *PROGRAM]
        yield {"program": program, "pass_fds": [listener.fileno()]}


@contextmanager
def serving(server: Any) -> Iterator[Any]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fake server")
    thread.start()

    def run(step: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(step, loop).result(WAIT_SECONDS)

    try:
        run(server.start())
        yield server
        run(server.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def answers(path: Path) -> bool:
    """Return whether a server listens on a socket; the file exists earlier."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def wait_until(condition: Callable[[], bool], description: str, more: Callable[[], str] = str) -> None:
    """Wait for a condition; the failure names it and shows the end of ``more``."""
    for _ in _attempts(condition, description, more):
        time.sleep(0.01)


async def until(condition: Callable[[], bool], description: str, more: Callable[[], str] = str) -> None:
    for _ in _attempts(condition, description, more):
        await asyncio.sleep(0.005)


def _attempts(condition: Callable[[], bool], description: str, more: Callable[[], str]) -> Iterator[None]:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {description}: {more()[-4000:]}"
        yield


# ---- the file of original values


@contextmanager
def on_tmpfs() -> Iterator[Path]:
    with TemporaryDirectory(prefix="runtimeproxy-test-", dir="/dev/shm") as folder:
        yield Path(folder)


def rows(file: Path) -> dict[str, dict[str, Any]]:
    try:
        content = file.read_bytes()
    except FileNotFoundError:  # a damaged file is removed before it is written again
        return {}
    lines = (line[9:].split(b"\t") for line in content.splitlines()[1:])
    return {json.loads(any_id): json.loads(text)[1] for any_id, text in lines}


# ---- measured times, compared with a limit, so that no single time decides

MANY = 100
FEW_TIMES = 10
"""Factor of the limit for few times, since the machine may be busy. The soak measures many."""
TRIES = 10
SOAKED = SHARE_VARIABLE in os.environ


def check_times(seconds: Sequence[float], promised: float) -> None:
    """Compare the p99 of many times with the promised seconds, the median of few with a larger limit."""
    many = len(seconds) >= MANY
    figure = quantiles(seconds, n=100)[-1] if many else median(seconds)
    assert figure < (promised if many else FEW_TIMES * promised), seconds


async def in_time(promised: float, amount: Amount, some: Callable[[], Awaitable[Sequence[float]]]) -> None:
    """Measure an amount of times, some per call, and check them against the promised seconds.

    The soak measures them once, and compares the p99. Otherwise one try with all times below the limit suffices, as
    another program may spoil the others. A delay once per try fails every try.
    """
    for _ in range(TRIES):
        took: list[float] = []
        while len(took) < amount.now:
            took += await some()
        if SOAKED:
            return check_times(took, promised)
        if max(took) < promised:
            return None
    raise AssertionError(took)
