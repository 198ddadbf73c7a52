"""Who uses the proxy: who is connected to its socket, and which kubelet or cri-dockerd is configured to call it.

Owns the places where one that does not run now is told its endpoint: its unit and the unit's files.
Must not know: what is done about it; the packages refuse to be removed.
Invariant: of arguments, units and files nothing is told but the proxy's own path. What cannot be looked at is an error,
never nobody.
"""

import re
from collections.abc import Iterator

from runtimeproxy.doctor.clients import CRI_DOCKERD, KUBELET, endpoints
from runtimeproxy.doctor.connections import client_ends, count_of, sockets_of
from runtimeproxy.doctor.machine import Machine
from runtimeproxy.doctor.unix_sockets import at, same
from runtimeproxy.errors import ConfigError
from runtimeproxy.settings.config import parse_endpoint

UNITS = ("kubelet.service", "cri-docker.service")
_PROPERTIES = "ExecStart,Environment,EnvironmentFiles"
_WORD = re.compile(r"[^\s\"'=;]+")
_FILE = re.compile(r"(?:--config[= ]|^EnvironmentFiles=)(/[^\s\"']+)", re.MULTILINE)
"""The files of a unit in which an endpoint may stand."""


def users(machine: Machine) -> Iterator[str]:
    """Yield a line for each program that is connected to the proxy or configured to call it. Raises OSError."""
    yield from _connected(machine)
    for process in machine.processes(KUBELET, CRI_DOCKERD):
        for told in endpoints(machine, process):
            if _is_ours(machine, told.endpoint):
                yield f"{process.name} (pid {process.pid}) is configured to call it, by {told.origin}"
    if machine.path("run/systemd/system").exists():
        for unit in UNITS:
            yield from _configured(machine, unit)


def _connected(machine: Machine) -> Iterator[str]:
    path = machine.config.listen_endpoint
    try:
        ends = client_ends(path, machine.sockets_with_peers())
    except OSError:  # the kernel does not tell peers
        if count := sum(found.connected for found in at(path, machine.sockets())):
            yield f"{count_of(count)} to {path}; the kernel does not tell whose"
        return
    for process in machine.processes():
        if own := ends & sockets_of(machine, process.pid):
            yield f"{process.name} (pid {process.pid}) has {count_of(len(own))} to {path}"
            ends -= own
    if ends:
        ends &= client_ends(path, machine.sockets_with_peers())  # who has closed its end meanwhile is not hidden
    if ends:
        yield f"{count_of(len(ends))} to {path} of processes that cannot be seen here"


def _configured(machine: Machine, unit: str) -> Iterator[str]:
    told = machine.systemctl(["show", f"--property={_PROPERTIES}", "--", unit])
    texts = {unit: told}
    for name in _FILE.findall(told):
        place = machine.path(name.lstrip("/"))
        if place.is_file():
            texts[f"{unit} by {name}"] = place.read_text(errors="replace")
    for origin, text in texts.items():
        if any(_is_ours(machine, word) for word in _WORD.findall(text)):
            yield f"{origin} is configured to call it"


def _is_ours(machine: Machine, endpoint: str) -> bool:
    try:
        return same(parse_endpoint(endpoint, ""), machine.config.listen_endpoint)
    except ConfigError:
        return False
