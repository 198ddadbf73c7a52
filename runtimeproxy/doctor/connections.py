"""The checks of who is connected to the runtime's sockets, past the proxy.

Owns the table of known clients of runtimes, and the path of the runtimes' NRI socket.
Must not know: what a client was told, and what the runtime answers.
Invariant: what the kernel says of both ends of a connection is told as a fact, and a count as a lower bound.
"""

from collections.abc import Iterable, Iterator

from runtimeproxy.doctor.clients import CRI_DOCKERD, KUBELET
from runtimeproxy.doctor.findings import AS_ROOT, Finding, failed, ok, unknown, warning
from runtimeproxy.doctor.machine import Machine
from runtimeproxy.doctor.unix_sockets import UnixSocket, at
from runtimeproxy.plugins import directory

WELL = {
    KUBELET: "cAdvisor inside it reads there",
    "cadvisor": "it only reads",
    "koordlet": "it creates no containers",
    "dockerd": "its containers are not pods",
    "buildkitd": "its containers are not pods",
}
"""Programs that may be connected to the runtime itself, and why."""
KOORDLET, NRI_SOCKET = "koordlet", "/var/run/nri/nri.sock"
_NO_NRI = "koordlet has the flag -enable-nri-runtime-hook=false (docs/koordlet.rst)"
_TO_DO = {
    "crictl": "set runtime-endpoint in /etc/crictl.yaml to the proxy's socket; to look only, it may stay",
    "docker": "set DOCKER_HOST to the proxy's socket; to look only, it may stay",
}
_ELSE = "point whoever creates or changes pods and containers at the proxy's socket; who only reads may stay"
_SUSPECTS = (*WELL, *_TO_DO, CRI_DOCKERD, "ctr", "nerdctl", "containerd", "node-problem-detector")
"""Programs that use a runtime's socket, for where it is not known which connection is whose."""


def past_the_proxy(machine: Machine) -> Iterator[Finding]:
    """Tell who is connected to the runtime's socket; where the kernel does not tell it, count."""
    path = machine.config.runtime_endpoint
    try:
        sockets = machine.sockets_with_peers()
    except OSError:
        yield _counted(machine)
        return
    ends, ends_at_proxy = client_ends(path, sockets), client_ends(machine.config.listen_endpoint, sockets)
    proxy, seen = machine.proxy(), set[int]()
    for process in machine.processes():
        opened = sockets_of(machine, process.pid)
        if count := len(ends & opened):
            said = f"(pid {process.pid}) has {count_of(count)} to {path}"
            ours = process.pid == proxy
            yield ok(f"the proxy {said}") if ours else _judged(process.name, said, bool(ends_at_proxy & opened))
        seen |= opened
    if not ends:
        yield ok(f"nobody is connected to {path}")
    if hidden := ends - seen:
        hidden &= client_ends(path, machine.sockets_with_peers())  # who has closed its end meanwhile is not hidden
    if hidden:
        yield unknown(f"{count_of(len(hidden))} to {path} of processes that cannot be seen here", AS_ROOT)


def nri(machine: Machine) -> Iterator[Finding]:
    """Look whether a koordlet that is registered here is connected to the runtime's NRI socket, too. Raises OSError."""
    files = directory.read(machine.config.hookserver_config_dir).items()
    if not any(KOORDLET in f"{name} {content!r}" for name, content in files):
        yield ok(f"no {KOORDLET} is registered")
        return
    try:
        ends = client_ends(NRI_SOCKET, machine.sockets_with_peers())
    except OSError:
        yield unknown(f"the kernel does not report who is connected to {NRI_SOCKET}", f"make sure that {_NO_NRI}")
        return
    why = f"is registered here and connected to {NRI_SOCKET}, too: each of its hooks runs twice, and scales twice"
    pids = [process.pid for process in machine.processes(KOORDLET) if ends & machine.open_sockets(process.pid)]
    found = [warning(f"{KOORDLET} (pid {pid}) {why}", f"see to it that {_NO_NRI}") for pid in pids]
    yield from found or [ok(f"no {KOORDLET} is connected to {NRI_SOCKET}")]


def sockets_of(machine: Machine, pid: int) -> frozenset[int]:
    """Return the sockets that a process has open, none if it may not be looked at: then its ends are hidden ones."""
    try:
        return machine.open_sockets(pid)
    except PermissionError:
        return frozenset()


def client_ends(path: str, sockets: Iterable[UnixSocket]) -> frozenset[int]:
    """Return the clients' ends of the connections to a path."""
    return frozenset(found.peer for found in at(path, sockets) if found.peer)


def _judged(name: str, said: str, at_proxy: bool) -> Finding:
    """Return the finding on a program that is connected to the runtime, and perhaps to the proxy, too."""
    if name in (KUBELET, CRI_DOCKERD) and not at_proxy:
        return failed(f"{name} {said}, and none to the proxy", f"restart it when the check {name} is ok")
    if name in WELL:
        return ok(f"{name} {said}: {WELL[name]}")
    return warning(f"{name} {said}, past the proxy", _TO_DO.get(name, _ELSE))


def count_of(count: int, what: str = "connection") -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _counted(machine: Machine) -> Finding:
    """Return how many connections the runtime has, and how many of these the proxy cannot be.

    /proc does not tell which client belongs to which connection. A client's own end has no path: the proxy cannot be
    more of the runtime's connections than it has such ends.
    """
    path, sockets = machine.config.runtime_endpoint, machine.sockets()
    count = sum(found.connected for found in at(path, sockets))
    ends = frozenset(found.inode for found in sockets if found.connected and not found.path)
    proxy = machine.proxy()
    others = count - (0 if proxy is None else len(ends & machine.open_sockets(proxy)))
    if others <= 0:
        return ok(f"{path} has {count_of(count)}, no more than the proxy's own")
    suspects = (p for p in machine.processes(*_SUSPECTS) if not ends.isdisjoint(machine.open_sockets(p.pid)))
    who = ", ".join(sorted(f"{process.name} pid {process.pid}" for process in suspects)) or "no known client is seen"
    return warning(f"{others} or more of {count_of(count)} to {path} go past the proxy (may be: {who})", _ELSE)
