"""A machine made of files: processes, sockets and locks as in /proc, below a folder of the test; its findings."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from runtimeproxy.cli.doctor import hookservers, runtime
from runtimeproxy.cli.doctor.findings import Finding
from runtimeproxy.cli.doctor.machine import Machine, UnixSocket
from runtimeproxy.plugins.disabling import mask_file
from runtimeproxy.settings import config
from tests.fakes import registration

PATIENCE_SECONDS = 20.0  # of a call on a busy machine
CANARY, KERNEL = "canary-4711", "6.1.0-9-amd64"
HEAD = "Num       RefCount Protocol Flags    Type St Inode Path"
FILES = {"proc/net/unix": HEAD, "proc/locks": "", "proc/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"}
FILES |= {"proc/sys/fs/file-nr": "1000\t0\t100000\n", "proc/sys/kernel/osrelease": f"{KERNEL}\n"}


class Made:
    """The machine; ``ours`` and ``runtime`` are the sockets' paths, and ``registrations`` the directory.

    ``kernel`` is what each query of the kernel returns: the last one is repeated, and without any the query fails.
    ``namespaces`` has the network namespaces of each query, ``units`` the arguments of each call of systemctl, and
    ``unit`` is what systemctl prints.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.ours, self.runtime = folder / "run" / "proxy.sock", folder / "run" / "runtime.sock"
        self.registrations = folder / "hookserver.d"
        self.ours.parent.mkdir(mode=0o755)
        self.sockets: list[str] = []
        self.kernel: list[list[UnixSocket]] = []
        self.namespaces: list[set[str]] = []
        self.units: list[Sequence[str]] = []
        self.unit = ""
        self.mask = mask_file(str(folder / "state"), str(self.ours))
        self.flags: dict[str, str] = {"hook-timeout": "20s", "state-dir": str(folder / "state")}
        for place, text in FILES.items():
            self.write(place, text)

    @property
    def machine(self) -> Machine:
        paths = {"koord-runtimeproxy-endpoint": self.ours, "remote-runtime-service-endpoint": self.runtime}
        paths["hookserver-config-dir"] = self.registrations
        flags = {flag: str(path) for flag, path in paths.items()} | self.flags
        return Machine(config.load(flags, {}, None, "", os.path.realpath), self.root, self._systemctl, self._kernel)

    def _kernel(self, namespaces: Iterable[Path]) -> Iterable[UnixSocket]:
        self.namespaces.append({os.readlink(namespace) for namespace in namespaces})
        if not self.kernel:
            raise FileNotFoundError
        return self.kernel[0] if len(self.kernel) == 1 else self.kernel.pop(0)

    def _systemctl(self, arguments: Sequence[str]) -> str:
        self.units.append(arguments)
        return self.unit

    def write(self, place: str, text: str) -> Path:
        path = self.root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def register(self, name: str, content: str) -> None:
        self.registrations.mkdir(mode=0o755, exist_ok=True)
        registration.write(self.registrations, name, content)

    def process(
        self, pid: int, *command: str, sockets: Sequence[int] = (), limit: str = "9", network: str = "n"
    ) -> None:
        """Make a process with its open sockets, its limit of open files and its network namespace."""
        folder = self.write(f"proc/{pid}/cmdline", "".join(f"{argument}\0" for argument in command)).parent
        self.write(f"proc/{pid}/limits", f"Max open files            {limit}                 {limit}        files\n")
        self.write(f"proc/namespaces/{network}", "")
        for name in ("ns", "fd"):
            (folder / name).mkdir()
        (folder / "ns/net").symlink_to(f"../../namespaces/{network}")
        for number, inode in enumerate(sockets):
            (folder / "fd" / str(number)).symlink_to(f"socket:[{inode}]")

    def socket(self, inode: int, path: object = "", *, listening: bool = False) -> None:
        """Make a connected socket, or one that listens."""
        flags, state = ("00010000", "01") if listening else ("00000000", "03")
        self.sockets.append(f"0000000000000000: 00000002 00000000 {flags} 0001 {state} {inode:5} {path}".rstrip())
        self.write("proc/net/unix", "\n".join([HEAD, *self.sockets, ""]))

    def connections(self, path: object, *ends: int, more: Sequence[UnixSocket] = ()) -> list[UnixSocket]:
        """Return what the kernel lists if these are the clients' ends of the connections to a socket."""
        accepted = [UnixSocket(1000 + end, False, True, str(path), end) for end in ends]
        clients = [UnixSocket(end, False, True, "", 1000 + end) for end in ends]
        return [UnixSocket(1, True, False, str(path)), *accepted, *clients, *more]

    def lock(self, pid: int) -> None:
        """Make the lock next to the proxy's socket, held by a process."""
        path = Path(f"{self.ours}.lock")
        path.touch()
        status = path.stat()
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        other = "1: POSIX  ADVISORY  READ 9 00:01:2 0 EOF"
        self.write("proc/locks", f"{other}\n2: FLOCK  ADVISORY  WRITE {pid} {place} 0 EOF\n")

    def proxy(self, *, pid: int = 70, inode: int = 700, ends: Sequence[int] = (), limit: str = "65536") -> None:
        """Make a proxy that listens and holds the lock; ``ends`` are its ends of connections."""
        self.socket(inode, self.ours, listening=True)
        for end in ends:
            self.socket(end)
        self.process(pid, "/opt/bin/koord-runtime-proxy", sockets=[inode, *ends], limit=limit)
        self.lock(pid)


def verdicts(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    """Return verdict and reason of each; a finding has advice unless it is ok or was skipped."""
    results = list(findings)
    assert all(finding.do for finding in results if finding.verdict.value not in ("ok", "skipped"))
    return [(finding.verdict.value, finding.why) for finding in results]


def only(check: Callable[[Machine], Iterable[Finding]], made: Made) -> tuple[str, str]:
    (finding,) = verdicts(check(made.machine))
    return finding


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls take longer than on a node."""
    for module in (hookservers, runtime):
        monkeypatch.setattr(module, "CALL_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(runtime, "CHECK_SECONDS", 2 * PATIENCE_SECONDS)
