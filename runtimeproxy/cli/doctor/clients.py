"""The clients of the proxy and of the runtime: their configuration and connections."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from runtimeproxy.cli.doctor.findings import AS_ROOT, Finding, failed, ok, skipped, unknown, warning
from runtimeproxy.cli.doctor.machine import Machine, Process, UnixSocket, is_same_path, sockets_at
from runtimeproxy.errors import ConfigError
from runtimeproxy.plugins import directory
from runtimeproxy.settings.config import Mode, parse_endpoint
from runtimeproxy.settings.options import CRIO_SOCKET, CRIO_SUFFIX

KUBELET, CRI_DOCKERD = "kubelet", "cri-dockerd"


class Setting(NamedTuple):
    endpoint: str
    origin: str


def kubelet(machine: Machine) -> Iterator[Finding]:
    is_docker = machine.config.mode is Mode.DOCKER
    if is_docker and any(machine.processes(CRI_DOCKERD)):
        yield skipped("the kubelet calls cri-dockerd, which the check cri-dockerd looks at")
        return
    flag = "docker-endpoint" if is_docker else "container-runtime-endpoint"
    running = list(machine.processes(KUBELET))
    for process in running:
        setting = _flag(process, flag) or (None if is_docker else _from_files(machine, process))
        yield _judge_endpoint(machine, process, setting, flag)
    if not running:
        yield unknown("no process named kubelet is seen here", "start it, or run doctor in the node's pid namespace")


def cri_dockerd(machine: Machine) -> list[Finding]:
    if machine.config.mode is not Mode.DOCKER:
        return [skipped("cri-dockerd belongs to Docker mode")]
    flag, running = "docker-endpoint", list(machine.processes(CRI_DOCKERD))
    judged = [_judge_endpoint(machine, process, _flag(process, flag), flag) for process in running]
    return judged or [ok("no cri-dockerd runs here")]


def _judge_endpoint(machine: Machine, process: Process, setting: Setting | None, flag: str) -> Finding:
    program, ours = f"{process.name} (pid {process.pid})", machine.config.listen_endpoint
    advice = f"set --{flag}=unix://{ours} and restart {process.name}; see docs/kubelet.rst"
    if setting is None:
        return failed(f"{program} has no endpoint configured and uses its default, not the proxy", advice)
    try:
        path = parse_endpoint(setting.endpoint, setting.origin)
    except ConfigError as error:
        return failed(f"{program}: {error}", advice)
    where = f"{program} calls {path}, by {setting.origin}"
    if is_same_path(path, ours):
        at_crio = flag == "container-runtime-endpoint" and machine.config.runtime_endpoint.endswith(CRIO_SOCKET)
        if at_crio and not path.endswith(CRIO_SUFFIX):
            why = f"{where}: it recognises CRI-O by the end {CRIO_SUFFIX}, and takes statistics in another way now"
            link = f"{os.path.dirname(ours)}/{CRIO_SUFFIX}"
            return warning(why, f"set --{flag}=unix://{link} and restart {process.name}; see docs/kubelet.rst, CRI-O")
        return ok(where)
    target = "the runtime itself, past the proxy" if is_same_path(path, machine.config.runtime_endpoint) else "no proxy"
    return failed(f"{where}: that is {target}", advice)


def _flag(process: Process, name: str) -> Setting | None:
    value = process.flag(name)
    return None if value is None else Setting(value, f"--{name}")


def _from_files(machine: Machine, process: Process) -> Setting | None:
    """Return the endpoint of the last of the kubelet's drop-ins that names one, or else of its file; a flag wins over
    both (Kubernetes, "Kubelet Configuration Directory Merging"). Raises OSError and ConfigError."""
    files = [name for name in (process.flag("config"),) if name]
    if folder := process.flag("config-dir"):
        directory_path = _path_in_process(machine, process, folder)
        files += [f"{folder}/{path.relative_to(directory_path)}" for path in sorted(directory_path.rglob("*.conf"))]
    setting = None
    for name in files:
        text = _path_in_process(machine, process, name).read_text(errors="replace")
        try:
            content: Any = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError):
            raise ConfigError(f"{name}: the kubelet's configuration is not YAML that can be read") from None
        value = content.get("containerRuntimeEndpoint") if isinstance(content, dict) else None
        if isinstance(value, str) and value:
            setting = Setting(value, f"containerRuntimeEndpoint in {name}")
    return setting


def _path_in_process(machine: Machine, process: Process, path: str) -> Path:
    """Return a path as the process sees it, in its own mount namespace and working directory."""
    base = "root" if os.path.isabs(path) else "cwd"
    return machine.path(f"proc/{process.pid}/{base}") / path.lstrip("/")


EXPECTED_CLIENTS = {
    KUBELET: "cAdvisor inside it reads there",
    "cadvisor": "it only reads",
    "koordlet": "it creates no containers",
    "dockerd": "its containers are not pods",
    "buildkitd": "its containers are not pods",
}
"""Programs that may be connected to the runtime itself, and why."""
KOORDLET, NRI_SOCKET = "koordlet", "/var/run/nri/nri.sock"
_NO_NRI = "koordlet has the flag -enable-nri-runtime-hook=false (docs/koordlet.rst)"
_ADVICE = {
    "crictl": "set runtime-endpoint in /etc/crictl.yaml to the proxy's socket; to look only, it may stay",
    "docker": "set DOCKER_HOST to the proxy's socket; to look only, it may stay",
}
_MOVE_ADVICE = "point programs that create or change pods and containers at the proxy's socket; others may stay"
_SUSPECTS = (*EXPECTED_CLIENTS, *_ADVICE, CRI_DOCKERD, "ctr", "nerdctl", "containerd", "node-problem-detector")
"""Programs that use a runtime's socket, listed if the kernel does not report the peers of connections."""


def bypassing_clients(machine: Machine) -> Iterator[Finding]:
    """Report which processes are connected to the runtime's socket; where the kernel does not report it, count."""
    path = machine.config.runtime_endpoint
    try:
        sockets = machine.sockets_with_peers()
    except OSError:
        yield _count_connections(machine)
        return
    ends, ends_at_proxy = client_ends(path, sockets), client_ends(machine.config.listen_endpoint, sockets)
    proxy, seen = machine.proxy(), set[int]()
    for process in machine.processes():
        opened = sockets_of(machine, process.pid)
        seen |= opened
        if count := len(ends & opened):
            why = f"(pid {process.pid}) has {count_of(count)} to {path}"
            name = process.name
            if process.pid == proxy:
                yield ok(f"the proxy {why}")
            elif name in (KUBELET, CRI_DOCKERD) and not ends_at_proxy & opened:
                yield failed(f"{name} {why}, and none to the proxy", f"restart it when the check {name} is ok")
            elif name in EXPECTED_CLIENTS:
                yield ok(f"{name} {why}: {EXPECTED_CLIENTS[name]}")
            else:
                yield warning(f"{name} {why}, past the proxy", _ADVICE.get(name, _MOVE_ADVICE))
    if not ends:
        yield ok(f"nobody is connected to {path}")
    if hidden := ends - seen:
        hidden &= client_ends(path, machine.sockets_with_peers())  # an end that was closed meanwhile is not hidden
    if hidden:
        yield unknown(f"{count_of(len(hidden))} to {path} of processes that cannot be seen here", AS_ROOT)


def nri(machine: Machine) -> list[Finding]:
    files = directory.read(machine.config.hookserver_config_dir).items()
    if not any(KOORDLET in f"{name} {content!r}" for name, content in files):
        return [ok(f"no {KOORDLET} is registered")]
    try:
        ends = client_ends(NRI_SOCKET, machine.sockets_with_peers())
    except OSError:
        return [unknown(f"the kernel does not report who is connected to {NRI_SOCKET}", f"make sure that {_NO_NRI}")]
    why = f"is registered here and connected to {NRI_SOCKET}, too: each of its hooks runs twice, and scales twice"
    pids = [process.pid for process in machine.processes(KOORDLET) if ends & machine.open_sockets(process.pid)]
    findings = [warning(f"{KOORDLET} (pid {pid}) {why}", f"see to it that {_NO_NRI}") for pid in pids]
    return findings or [ok(f"no {KOORDLET} is connected to {NRI_SOCKET}")]


def sockets_of(machine: Machine, pid: int) -> frozenset[int]:
    """Return the sockets that a process has open, none if it may not be read: its ends are then hidden."""
    try:
        return machine.open_sockets(pid)
    except PermissionError:
        return frozenset()


def client_ends(path: str, sockets: Iterable[UnixSocket]) -> frozenset[int]:
    return frozenset(connection.peer for connection in sockets_at(path, sockets) if connection.peer)


def count_of(count: int, what: str = "connection") -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _count_connections(machine: Machine) -> Finding:
    """Count the runtime's connections, and those that cannot be the proxy's: it has at most as many as clients' ends,
    which have no path. /proc does not show which client belongs to which connection."""
    path, sockets = machine.config.runtime_endpoint, machine.sockets()
    count = sum(connection.connected for connection in sockets_at(path, sockets))
    ends = frozenset(connection.inode for connection in sockets if connection.connected and not connection.path)
    proxy = machine.proxy()
    direct = count - (0 if proxy is None else len(ends & machine.open_sockets(proxy)))
    if direct <= 0:
        return ok(f"{path} has {count_of(count)}, no more than the proxy's own")
    suspects = (p for p in machine.processes(*_SUSPECTS) if not ends.isdisjoint(machine.open_sockets(p.pid)))
    seen = ", ".join(sorted(f"{process.name} pid {process.pid}" for process in suspects)) or "no known client is seen"
    return warning(f"{direct} or more of {count_of(count)} to {path} go past the proxy (may be: {seen})", _MOVE_ADVICE)


UNITS = ("kubelet.service", "cri-docker.service")
_WORD = re.compile(r"[^\s\"'=;]+")
_FILE = re.compile(r"(?:--config[= ]|^EnvironmentFiles=)(/[^\s\"']+)", re.MULTILINE)
"""The files of a unit that may contain an endpoint."""


def users(machine: Machine) -> Iterator[str]:
    """Yield a line for each program that is connected to the proxy or configured to call it. Raises OSError."""
    yield from _connected(machine)
    for process in machine.processes(KUBELET, CRI_DOCKERD):
        flags = ("container-runtime-endpoint", "image-service-endpoint", "docker-endpoint")
        settings = [_flag(process, name) for name in flags]
        if process.name == KUBELET:
            settings.append(_from_files(machine, process))
        for setting in settings:
            if setting is not None and _is_ours(machine, setting.endpoint):
                yield f"{process.name} (pid {process.pid}) is configured to call it, by {setting.origin}"
    if machine.path("run/systemd/system").exists():
        for unit in UNITS:
            yield from _configured(machine, unit)


def _connected(machine: Machine) -> Iterator[str]:
    path = machine.config.listen_endpoint
    try:
        ends = client_ends(path, machine.sockets_with_peers())
    except OSError:  # the kernel does not report peers
        if count := sum(connection.connected for connection in sockets_at(path, machine.sockets())):
            yield f"{count_of(count)} to {path}; the kernel does not report whose"
        return
    for process in machine.processes():
        if own := ends & sockets_of(machine, process.pid):
            yield f"{process.name} (pid {process.pid}) has {count_of(len(own))} to {path}"
            ends -= own
    if ends:
        ends &= client_ends(path, machine.sockets_with_peers())  # an end that was closed meanwhile is not hidden
    if ends:
        yield f"{count_of(len(ends))} to {path} of processes that cannot be seen here"


def _configured(machine: Machine, unit: str) -> Iterator[str]:
    shown = machine.systemctl(["show", "--property=ExecStart,Environment,EnvironmentFiles", "--", unit])
    texts = {unit: shown}
    for name in _FILE.findall(shown):
        place = machine.path(name.lstrip("/"))
        if place.is_file():
            texts[f"{unit} by {name}"] = place.read_text(errors="replace")
    for origin, text in texts.items():
        if any(_is_ours(machine, word) for word in _WORD.findall(text)):
            yield f"{origin} is configured to call it"


def _is_ours(machine: Machine, endpoint: str) -> bool:
    try:
        return is_same_path(parse_endpoint(endpoint, ""), machine.config.listen_endpoint)
    except ConfigError:
        return False
