"""A container and an exec of the fake dockerd, and what Docker's API shows of them.

What is shown is the record as it is now.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

NEVER = "0001-01-01T00:00:00Z"

Output = tuple[int, bytes]
"""Bytes that a container wrote: 1 for stdout or 2 for stderr, and the bytes."""


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ") if seconds else NEVER


@dataclass(slots=True, eq=False)
class Exec:
    """A command that was or will be run in a container; ``config`` is the body of the exec create."""

    id: str
    container: Container
    config: dict[str, Any]
    running: bool = False
    exit_code: int | None = None

    @property
    def tty(self) -> bool:
        return bool(self.config.get("Tty"))

    @property
    def command(self) -> list[str]:
        return list(self.config["Cmd"])

    def inspect(self) -> dict[str, Any]:
        """Return what GET /exec/{ref}/json answers."""
        entrypoint, *arguments = self.command
        process = {"tty": self.tty, "entrypoint": entrypoint, "arguments": arguments, "privileged": False}
        return {
            "ID": self.id,
            "Running": self.running,
            "ExitCode": self.exit_code,
            "ProcessConfig": process,
            "OpenStdin": bool(self.config.get("AttachStdin")),
            "OpenStderr": bool(self.config.get("AttachStderr")),
            "OpenStdout": bool(self.config.get("AttachStdout")),
            "CanRemove": self.exit_code is not None,
            "ContainerID": self.container.id,
            "DetachKeys": "",
            "Pid": 4712 if self.running else 0,
        }


@dataclass(slots=True, eq=False)
class Container:
    """A container; ``request`` is the body of its create as it came."""

    id: str
    name: str
    """Without the slash in front."""
    request: bytes
    config: dict[str, Any]
    host: dict[str, Any]
    image_id: str
    created: float = field(default_factory=time.time)
    status: str = "created"
    exit_code: int = 0
    started: float = 0.0
    finished: float = 0.0
    execs: list[str] = field(default_factory=list)
    output: deque[Output] = field(default_factory=lambda: deque(maxlen=10_000))
    listeners: set[Callable[[Output], None]] = field(default_factory=set)
    stdin: bytearray = field(default_factory=bytearray)
    """What came through attach."""

    @property
    def running(self) -> bool:
        return self.status == "running"

    @property
    def tty(self) -> bool:
        return bool(self.config["Tty"])

    @property
    def command(self) -> list[str]:
        return [*(self.config["Entrypoint"] or []), *(self.config["Cmd"] or [])]

    @property
    def state(self) -> dict[str, Any]:
        return {
            "Status": self.status,
            "Running": self.running,
            "Paused": False,
            "Restarting": False,
            "OOMKilled": False,
            "Dead": False,
            "Pid": 4711 if self.running else 0,
            "ExitCode": self.exit_code,
            "Error": "",
            "StartedAt": _moment(self.started),
            "FinishedAt": _moment(self.finished),
        }

    def inspect(self, size: bool = False) -> dict[str, Any]:
        """Return what GET /containers/{ref}/json answers."""
        command = self.command or [""]
        folder = f"/var/lib/docker/containers/{self.id}"
        shown = {
            "Id": self.id,
            "Created": _moment(self.created),
            "Path": command[0],
            "Args": command[1:],
            "State": self.state,
            "Image": self.image_id,
            "ResolvConfPath": f"{folder}/resolv.conf",
            "HostnamePath": f"{folder}/hostname",
            "HostsPath": f"{folder}/hosts",
            "LogPath": f"{folder}/{self.id}-json.log",
            "Name": f"/{self.name}",
            "RestartCount": 0,
            "Driver": "vfs",
            "Platform": "linux",
            "MountLabel": "",
            "ProcessLabel": "",
            "AppArmorProfile": "",
            "ExecIDs": list(self.execs) or None,
            "HostConfig": self.host,
            "GraphDriver": {"Data": None, "Name": "vfs"},
        }
        sizes = {"SizeRw": 0, "SizeRootFs": 1 << 20} if size else {}
        network = {"Bridge": "", "Networks": {}}
        return {**shown, **sizes, "Mounts": [], "Config": self.config, "NetworkSettings": network}

    def listed(self) -> dict[str, Any]:
        """Return what GET /containers/json shows of it."""
        seconds = int(time.time() - (self.started if self.running else self.finished))
        exited = f"Exited ({self.exit_code}) {seconds} seconds ago"
        return {
            "Id": self.id,
            "Names": [f"/{self.name}"],
            "Image": self.config["Image"],
            "ImageID": self.image_id,
            "Command": " ".join(self.command),
            "Created": int(self.created),
            "Ports": [],
            "Labels": self.config["Labels"] or {},
            "State": self.status,
            "Status": {"created": "Created", "running": f"Up {seconds} seconds"}.get(self.status, exited),
            "HostConfig": {"NetworkMode": self.host["NetworkMode"]},
            "NetworkSettings": {"Networks": {}},
            "Mounts": [],
        }
