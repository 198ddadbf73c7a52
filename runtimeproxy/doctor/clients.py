"""Checks of where the kubelet and cri-dockerd really go.

Owns the places where these two programs are told their endpoint, and their order.
Must not know: what the runtime or a hook server answers.
Invariant: of arguments and files nothing is told but the endpoint.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from runtimeproxy.doctor.findings import Finding, failed, ok, skipped, unknown, warning
from runtimeproxy.doctor.machine import Machine, Process
from runtimeproxy.doctor.unix_sockets import same
from runtimeproxy.errors import ConfigError
from runtimeproxy.settings.config import Mode, parse_endpoint
from runtimeproxy.settings.options import CRIO_SOCKET, CRIO_SUFFIX

KUBELET, CRI_DOCKERD = "kubelet", "cri-dockerd"


class Told(NamedTuple):
    """An endpoint, and where it is set."""

    endpoint: str
    origin: str


def kubelet(machine: Machine) -> Iterator[Finding]:
    """Tell where each kubelet calls its runtime."""
    if machine.config.mode is Mode.DOCKER and any(machine.processes(CRI_DOCKERD)):
        yield skipped("the kubelet calls cri-dockerd, which the check cri-dockerd looks at")
        return
    flag = "docker-endpoint" if machine.config.mode is Mode.DOCKER else "container-runtime-endpoint"
    running = list(machine.processes(KUBELET))
    for process in running:
        told = _flag(process, flag) or (None if machine.config.mode is Mode.DOCKER else _from_files(machine, process))
        yield _judged(machine, process, told, flag)
    if not running:
        yield unknown("no process named kubelet is seen here", "start it, or run doctor in the node's pid namespace")


def cri_dockerd(machine: Machine) -> Iterator[Finding]:
    """Tell where each cri-dockerd calls dockerd."""
    if machine.config.mode is not Mode.DOCKER:
        yield skipped("cri-dockerd belongs to Docker mode")
        return
    flag, running = "docker-endpoint", list(machine.processes(CRI_DOCKERD))
    judged = [_judged(machine, process, _flag(process, flag), flag) for process in running]
    yield from judged or [ok("no cri-dockerd runs here")]


def endpoints(machine: Machine, process: Process) -> Iterator[Told]:
    """Yield each endpoint that a running kubelet or cri-dockerd is told. Raises OSError and ConfigError."""
    told = [
        _flag(process, name) for name in ("container-runtime-endpoint", "image-service-endpoint", "docker-endpoint")
    ]
    if process.name == KUBELET:
        told.append(_from_files(machine, process))
    yield from (found for found in told if found is not None)


def _judged(machine: Machine, process: Process, told: Told | None, flag: str) -> Finding:
    who, ours = f"{process.name} (pid {process.pid})", machine.config.listen_endpoint
    to_do = f"set --{flag}=unix://{ours} and restart {process.name}; see docs/kubelet.rst"
    if told is None:
        return failed(f"{who} is told no endpoint and takes its default, not the proxy", to_do)
    try:
        path = parse_endpoint(told.endpoint, told.origin)
    except ConfigError as error:
        return failed(f"{who}: {error}", to_do)
    where = f"{who} calls {path}, by {told.origin}"
    if same(path, ours):
        at_crio = flag == "container-runtime-endpoint" and machine.config.runtime_endpoint.endswith(CRIO_SOCKET)
        if at_crio and not path.endswith(CRIO_SUFFIX):
            why = f"{where}: it recognises CRI-O by the end {CRIO_SUFFIX}, and takes statistics in another way now"
            link = f"{os.path.dirname(ours)}/{CRIO_SUFFIX}"
            return warning(why, f"set --{flag}=unix://{link} and restart {process.name}; see docs/kubelet.rst, CRI-O")
        return ok(where)
    past = "the runtime itself, past the proxy" if same(path, machine.config.runtime_endpoint) else "no proxy"
    return failed(f"{where}: that is {past}", to_do)


def _flag(process: Process, name: str) -> Told | None:
    value = process.flag(name)
    return None if value is None else Told(value, f"--{name}")


def _from_files(machine: Machine, process: Process) -> Told | None:
    """Return what the last of the kubelet's drop-ins that names an endpoint says, or else its file. Raises OSError.

    Source: Kubernetes, "Kubelet Configuration Directory Merging"; a flag wins over both.
    """
    files = [name for name in (process.flag("config"),) if name]
    if folder := process.flag("config-dir"):
        seen = _seen_by(machine, process, folder)
        files += [f"{folder}/{path.relative_to(seen)}" for path in sorted(seen.rglob("*.conf"))]
    told = None
    for name in files:
        told = _endpoint_in(_seen_by(machine, process, name).read_text(errors="replace"), name) or told
    return told


def _seen_by(machine: Machine, process: Process, path: str) -> Path:
    """Return a path as the process sees it, in its own mount namespace and working directory."""
    base = "root" if os.path.isabs(path) else "cwd"
    return machine.path(f"proc/{process.pid}/{base}") / path.lstrip("/")


def _endpoint_in(text: str, name: str) -> Told | None:
    try:
        content: Any = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigError(f"{name}: the kubelet's configuration is not YAML that can be read") from None
    value = content.get("containerRuntimeEndpoint") if isinstance(content, dict) else None
    return Told(value, f"containerRuntimeEndpoint in {name}") if isinstance(value, str) and value else None
