"""Checks of the runtime and of the cgroup tree. Of an answer only names and versions are shown, printable and short."""

import asyncio
import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

from runtimeproxy.cli.doctor.findings import AS_ROOT, CALL_SECONDS, CHECK_SECONDS, Finding, failed, ok, unknown, warning
from runtimeproxy.cli.doctor.machine import Machine, is_denied
from runtimeproxy.cri.routes import VERSIONS, runtime_path
from runtimeproxy.errors import BackendError, WireError
from runtimeproxy.relay.rpc.connection import CallFailed, Kind, UnaryClient
from runtimeproxy.settings.config import Mode
from runtimeproxy.wire import grpc, protobuf

_LONGEST_NAME = 64
_LONGEST_ANSWER = 1 << 20
_NAME, _VERSION = 2, 3
"""Field numbers of CRI's VersionResponse."""


def runtime(machine: Machine) -> Iterator[Finding]:
    path, mode = machine.config.runtime_endpoint, machine.config.mode
    start = "start the runtime, or set --remote-runtime-service-endpoint"
    versions = _call(path, mode, "the runtime", path, "enable its CRI plugin", start)
    if isinstance(versions, Finding):
        yield versions
    elif list(versions) == ["v1alpha2"]:
        why = f"{path}: {versions['v1alpha2']}, CRI v1alpha2 only"
        yield warning(why, "update the runtime before a kubelet of 1.26 or later, which needs CRI v1")
    elif mode is Mode.DOCKER:
        yield ok(f"{path}: {versions['docker']}")
    else:
        yield ok(f"{path}: {versions['v1']}, CRI {' and '.join(versions)}")


def proxy(machine: Machine) -> list[Finding]:
    path = machine.config.listen_endpoint
    if not is_denied(path) and machine.proxy() is None:
        return [unknown(f"no proxy serves {path}", "start it; no call was made, which could make systemd start it")]
    advice = "look at the check runtime first, then at the proxy's log"
    versions = _call(path, machine.config.mode, "the proxy", f"no answer through {path}", advice, advice)
    return [versions if isinstance(versions, Finding) else ok(f"the runtime answers through {path}")]


def _call(path: str, mode: Mode, who: str, without_answer: str, enable: str, start: str) -> dict[str, str] | Finding:
    """Return the runtime's versions, or why it returned none: it speaks no CRI (what to do is ``enable``), does not
    answer (``start``), or answers in the other mode only."""
    if is_denied(path):
        return unknown(f"{path}: Permission denied", AS_ROOT)
    began = time.monotonic()
    try:
        if versions := _versions(path, mode):
            return versions
        fault = failed(f"{path} speaks no CRI version", enable)
    except BackendError as error:
        fault = failed(f"{without_answer}: {error}", start)
    actual = Mode.CONTAINERD if mode is Mode.DOCKER else Mode.DOCKER
    if time.monotonic() - began < CHECK_SECONDS - CALL_SECONDS:  # else that call would exceed the check's time limit
        with suppress(BackendError):
            if _versions(path, actual):
                modes = f"{who} at {path} answers in mode {actual.value}, and --backend-runtime-mode is {mode.value}"
                return failed(f"the modes differ: {modes}", f"set --backend-runtime-mode={actual.value}")
    return fault


def _versions(path: str, mode: Mode) -> dict[str, str]:
    """Return the runtime's name and version by the API's version. Raises BackendError."""
    return {"docker": _docker(path)} if mode is Mode.DOCKER else asyncio.run(_cri(path))


async def _cri(path: str) -> dict[str, str]:
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
        text = f"gRPC status {error.code}" if error.kind is Kind.STATUS else error.text.removeprefix(f"{path}: ")
        raise BackendError(text) from None
    return " ".join(_shown(texts.get(number, b"").decode(errors="replace")) for number in (_NAME, _VERSION)).strip()


def _docker(path: str) -> str:
    """Return dockerd's versions and its cgroup driver. Raises BackendError."""
    try:
        version, info = _get(path, "/version"), _get(path, "/info")
    except TimeoutError:
        raise BackendError("no answer in time") from None
    except OSError as error:
        raise BackendError(error.strerror or "it closed the connection") from None
    except (http.client.HTTPException, ValueError, RecursionError):
        raise BackendError("its answer is not dockerd's") from None
    least, most = _text(version, "MinAPIVersion"), _text(version, "ApiVersion")
    groups = f"cgroup driver {_text(info, 'CgroupDriver')}, cgroup v{_text(info, 'CgroupVersion')}"
    return f"dockerd {_text(version, 'Version')}, API {least} to {most}, {groups}"


def _get(path: str, route: str) -> dict[str, Any]:
    with closing(http.client.HTTPConnection("docker")) as connection:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(CALL_SECONDS)
        connection.sock.connect(path)
        connection.request("GET", route)
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise BackendError(f"GET {route}: status {response.status}")
        answer = json.loads(response.read(_LONGEST_ANSWER))
    if not isinstance(answer, dict):
        raise ValueError
    return answer


def _text(answer: dict[str, Any], key: str) -> str:
    value = answer.get(key)
    return _shown(value) if isinstance(value, str) and value else "unknown"


def _shown(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable())[:_LONGEST_NAME]


def cgroup(machine: Machine) -> list[Finding]:
    rows = [line.split() for line in machine.text("proc/mounts").splitlines()]
    mounts = {row[1]: row[2] for row in rows if row[2] in ("cgroup", "cgroup2")}
    if mounts.get("/sys/fs/cgroup") == "cgroup2":
        return [ok("cgroup v2")]
    if "cgroup" in mounts.values():
        return [ok("cgroup v1" + (" with a v2 tree next to it" if "cgroup2" in mounts.values() else ""))]
    return [unknown("no cgroup tree is mounted here", "run doctor on the node itself, or in its mount namespace")]
