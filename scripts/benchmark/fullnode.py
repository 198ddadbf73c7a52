"""A proxy that starts on a full node: how soon it serves, how soon it knows all, what that takes of it and of others.

Owns the measurement (fault matrix S1 and promise 13).
Must not know: limits, how figures are shown.
Invariant: the idle proxy that memory is compared with is the same process, before a hook server is registered.
Run alone: ``python -m scripts.benchmark.fullnode cri|docker PODS CONTAINERS_OF_EACH``.
"""

import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.benchmark.cases import CRI, DOCKER
from scripts.benchmark.inhabited import LISTENS
from scripts.benchmark.modes import MODES, Mode
from scripts.demonstration.processes import DemoError, Program, program, programs
from tests.engines.cri import CriClient
from tests.fakes import registration
from tests.fakes.dockerd_client import UnixHttpConnection

PODS, CONTAINERS = 1_000, 3
"""S1: 1,000 pods with 3,000 containers."""
RECORDS_PODS, RECORDS_CONTAINERS = 2_500, 3
"""Promise 13: 10,000 records."""
SECONDS = 300.0
_KNOWN = "the runtime's state is known"
_COMPLETE = re.compile(rf"{_KNOWN}: (\d+) pods, (\d+) containers \(\d+ read in ([0-9.]+) s\)")


@dataclass(frozen=True, slots=True)
class FullNode:
    """What was found, what it took: seconds from the program's start, and from then to the end; bytes of memory.

    ``busy`` is how long of ``complete`` the proxy used a CPU; ``calls`` are the seconds of each call made meanwhile.
    """

    pods: int
    containers: int
    ready: float
    complete: float
    busy: float
    calls: tuple[float, ...]
    growth: int


def full_node(mode: Mode, pods: int = PODS, containers: int = CONTAINERS) -> FullNode:
    """Start a proxy on a node with so many pods, each of so many containers. Raises DemoError."""
    with tempfile.TemporaryDirectory(prefix="rp-fullnode-") as name:
        folder = Path(name)
        (folder / "hookserver.d").mkdir()
        runtime = [sys.executable, "-m", "scripts.benchmark.inhabited", mode.name, str(folder / "runtime.sock")]
        with program("runtime", [*runtime, str(pods), str(containers)], folder) as serving:
            _wait(serving, LISTENS)
            begun = time.monotonic()
            with programs({"proxy": _command(mode, folder)}, folder) as [proxy]:
                proxy.wait_until_it_listens(folder / "proxy.sock")
                ready = time.monotonic() - begun
                return _measured(mode, proxy, folder, ready)


def _command(mode: Mode, folder: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "runtimeproxy", "run", *mode.flags),
        f"--remote-runtime-service-endpoint={folder / 'runtime.sock'}",
        f"--koord-runtimeproxy-endpoint={folder / 'proxy.sock'}",
        f"--admin-endpoint={folder / 'admin.sock'}",
        f"--hookserver-config-dir={folder / 'hookserver.d'}",
    ]


def _measured(mode: Mode, proxy: Program, folder: Path, ready: float) -> FullNode:
    """Register a hook server, whom nobody calls, and wait until all is read for its sake."""
    with _CLIENTS[mode.name](str(folder / "proxy.sock")) as call:
        calls = [_seconds(call)]  # the first one connects
        idle, used = _resident_bytes(proxy), _cpu_seconds(proxy)
        registration.write(folder / "hookserver.d", "nobody.json", registration.text(str(folder / "nobody.sock")))
        output = _wait(proxy, _KNOWN, lambda: calls.append(_seconds(call)))
    found = _COMPLETE.search(output)
    assert found is not None
    return FullNode(
        pods=int(found[1]),
        containers=int(found[2]),
        ready=ready,
        complete=float(found[3]),
        busy=_cpu_seconds(proxy) - used,
        calls=tuple(calls[1:]),
        growth=_resident_bytes(proxy) - idle,
    )


@contextmanager
def _cri_client(path: str) -> Iterator[Callable[[], object]]:
    with CriClient(path) as client:
        yield client.version


@contextmanager
def _docker_client(path: str) -> Iterator[Callable[[], object]]:
    connection = UnixHttpConnection(path)

    def ping() -> None:
        connection.request("GET", "/_ping", headers={"Host": "docker"})
        connection.getresponse().read()

    try:
        yield ping
    finally:
        connection.close()


_CLIENTS: dict[str, Callable[[str], AbstractContextManager[Callable[[], object]]]] = {
    CRI: _cri_client,
    DOCKER: _docker_client,
}
"""Makes a mode's smallest call through the proxy."""


def _seconds(call: Callable[[], object]) -> float:
    begun = time.monotonic()
    call()
    return time.monotonic() - begun


def _cpu_seconds(proxy: Program) -> float:
    return time.clock_gettime(~proxy.process.pid << 3 | 2)  # the kernel's number for the CPU clock of a process


def _resident_bytes(proxy: Program) -> int:
    status = Path(f"/proc/{proxy.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def _wait(running: Program, text: str, meanwhile: Callable[[], object] = lambda: None) -> str:
    """Wait until a program has written a text, doing something now and then; return all that it wrote.

    Raises DemoError.
    """
    deadline = time.monotonic() + SECONDS
    while text not in running.output():
        if running.process.poll() is not None or time.monotonic() > deadline:
            raise DemoError(f"{running.name} does not say {text!r}; its output ends: {running.output()[-1500:]}")
        meanwhile()
        time.sleep(0.02)
    return running.output()


if __name__ == "__main__":
    print(full_node(MODES[sys.argv[1]], int(sys.argv[2]), int(sys.argv[3])))
