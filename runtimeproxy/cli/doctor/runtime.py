"""Checks of the runtime behind the proxy, and of the kernel's cgroups.

Invariant: of an answer only names and versions are told, printable and short.
"""

import asyncio
import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from runtimeproxy.cli.doctor.findings import AS_ROOT, CALL_SECONDS, CHECK_SECONDS, Finding, failed, ok, unknown, warning
from runtimeproxy.cli.doctor.machine import Machine, denied
from runtimeproxy.cri.routes import VERSIONS, runtime_path
from runtimeproxy.errors import BackendError, WireError
from runtimeproxy.relay.rpc.connection import CallFailed, Kind, UnaryClient
from runtimeproxy.settings.config import Mode
from runtimeproxy.wire import grpc, protobuf

_LONGEST_NAME = 64
_LONGEST_ANSWER = 1 << 20
_NAME, _VERSION = 2, 3
"""Field numbers of CRI's VersionResponse."""


class _Connection(http.client.HTTPConnection):
    """An HTTP connection over the unix socket at ``path``."""

    def __init__(self, path: str) -> None:
        super().__init__("docker", timeout=CALL_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def runtime(machine: Machine) -> Iterator[Finding]:
    """Ask the runtime at its own socket."""
    path = machine.config.runtime_endpoint
    if denied(path):
        yield unknown(f"{path}: Permission denied", AS_ROOT)
        return
    began = time.monotonic()
    try:
        versions = told_by(path, machine.config.mode)
        fault = failed(f"{path} speaks no CRI version", "enable its CRI plugin")
    except BackendError as error:
        versions = {}
        fault = failed(f"{path}: {error}", "start the runtime, or set --remote-runtime-service-endpoint")
    if not versions:
        yield _unless_modes_differ(fault, "the runtime", path, machine.config.mode, began)
    elif list(versions) == ["v1alpha2"]:
        said = f"{path}: {versions['v1alpha2']}, CRI v1alpha2 only"
        yield warning(said, "update the runtime before a kubelet of 1.26 or later, which needs CRI v1")
    elif machine.config.mode is Mode.DOCKER:
        yield ok(f"{path}: {versions['docker']}")
    else:
        yield ok(f"{path}: {versions['v1']}, CRI {' and '.join(versions)}")


def proxy(machine: Machine) -> Iterator[Finding]:
    """Ask the runtime through the proxy."""
    path = machine.config.listen_endpoint
    if denied(path):
        yield unknown(f"{path}: Permission denied", AS_ROOT)
        return
    if machine.proxy() is None:
        yield unknown(f"no proxy serves {path}", "start it; no call was made, which could make systemd start it")
        return
    began, look = time.monotonic(), "look at the check runtime first, then at the proxy's log"
    try:
        versions = told_by(path, machine.config.mode)
        fault = failed(f"{path} speaks no CRI version", look)
    except BackendError as error:
        versions, fault = {}, failed(f"no answer through {path}: {error}", look)
    if versions:
        yield ok(f"the runtime answers through {path}")
    else:
        yield _unless_modes_differ(fault, "the proxy", path, machine.config.mode, began)


def _unless_modes_differ(fault: Finding, who: str, path: str, mode: Mode, began: float) -> Finding:
    """Return the fault of a call that began at a time, or that the modes differ, if the other mode's call succeeds."""
    other = Mode.CONTAINERD if mode is Mode.DOCKER else Mode.DOCKER
    if time.monotonic() - began < CHECK_SECONDS - CALL_SECONDS:  # else that call would exceed the check's time limit
        with suppress(BackendError):
            if told_by(path, other):
                modes = f"{who} at {path} answers in mode {other.value}, and --backend-runtime-mode is {mode.value}"
                return failed(f"the modes differ: {modes}", f"set --backend-runtime-mode={other.value}")
    return fault


def told_by(path: str, mode: Mode) -> dict[str, str]:
    """Return the runtime's name and version by the API's version. Raises BackendError."""
    return {"docker": _docker(path)} if mode is Mode.DOCKER else asyncio.run(_cri(path))


async def _cri(path: str) -> dict[str, str]:
    """Ask for each CRI version. Raises BackendError."""
    client = UnaryClient(path, max_reply_bytes=_LONGEST_ANSWER)
    try:
        answers = await asyncio.gather(*(_version(client, path, version) for version in VERSIONS))
    finally:
        await client.close()
    return {version: answer for version, answer in zip(VERSIONS, answers, strict=True) if answer}


async def _version(client: UnaryClient, path: str, version: str) -> str:
    """Return the runtime's name and version; "" if it does not speak this version of CRI. Raises BackendError."""
    try:
        answer = await client.call(runtime_path(version, "Version"), b"", CALL_SECONDS)
        texts = {field.number: answer[field.value_start : field.end] for field in protobuf.fields(answer)}
    except WireError:
        raise BackendError("its answer is no CRI message") from None
    except CallFailed as error:
        if error.code == grpc.UNIMPLEMENTED:
            return ""
        # A runtime's own text may repeat anything.
        said = f"gRPC status {error.code}" if error.kind is Kind.STATUS else error.text.removeprefix(f"{path}: ")
        raise BackendError(said) from None
    return " ".join(_shown(texts.get(number, b"").decode(errors="replace")) for number in (_NAME, _VERSION)).strip()


def _docker(path: str) -> str:
    """Return dockerd's versions and its cgroup driver. Raises BackendError."""
    connection = _Connection(path)
    try:
        version, info = _get(connection, "/version"), _get(connection, "/info")
    except TimeoutError:
        raise BackendError("no answer in time") from None
    except OSError as error:
        raise BackendError(error.strerror or "it closed the connection") from None
    except (http.client.HTTPException, ValueError, RecursionError):
        raise BackendError("its answer is not dockerd's") from None
    finally:
        connection.close()
    least, most = _text(version, "MinAPIVersion"), _text(version, "ApiVersion")
    groups = f"cgroup driver {_text(info, 'CgroupDriver')}, cgroup v{_text(info, 'CgroupVersion')}"
    return f"dockerd {_text(version, 'Version')}, API {least} to {most}, {groups}"


def _get(connection: http.client.HTTPConnection, path: str) -> dict[str, Any]:
    connection.request("GET", path)
    response = connection.getresponse()
    if response.status != http.HTTPStatus.OK:
        raise BackendError(f"GET {path}: status {response.status}")
    told = json.loads(response.read(_LONGEST_ANSWER))
    if not isinstance(told, dict):
        raise ValueError
    return told


def _text(told: dict[str, Any], key: str) -> str:
    value = told.get(key)
    return _shown(value) if isinstance(value, str) and value else "unknown"


def _shown(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable())[:_LONGEST_NAME]


def cgroup(machine: Machine) -> Iterator[Finding]:
    """Tell the version of the cgroup tree."""
    rows = [line.split() for line in machine.text("proc/mounts").splitlines()]
    mounts = {row[1]: row[2] for row in rows if row[2] in ("cgroup", "cgroup2")}
    if mounts.get("/sys/fs/cgroup") == "cgroup2":
        yield ok("cgroup v2")
    elif "cgroup" in mounts.values():
        yield ok("cgroup v1" + (" with a v2 tree beside it" if "cgroup2" in mounts.values() else ""))
    else:
        yield unknown("no cgroup tree is mounted here", "run doctor on the node itself, or in its mount namespace")
