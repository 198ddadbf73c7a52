"""A container, an exec and an image of the fake dockerd, and what Docker's API shows of them."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from tests.engines.images import BUSYBOX_IMAGE, PAUSE_IMAGE
from tests.fakes.dockerd_checks import Refused

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


RECORDED_IMAGES = ("127.0.0.1:5000/pause:1", "127.0.0.1:5000/busybox:1")
"""The images of the recorded requests of cri-dockerd."""

DEFAULT_IMAGES = (BUSYBOX_IMAGE, PAUSE_IMAGE, *RECORDED_IMAGES)
CREATED = "2026-01-01T00:00:00Z"


def familiar(reference: str) -> str:
    """Return a name as Docker shows it: without the default registry, with a tag."""
    for prefix in ("docker.io/library/", "docker.io/"):
        reference = reference.removeprefix(prefix)
    return reference if "@" in reference or ":" in reference.rpartition("/")[2] else f"{reference}:latest"


@dataclass(slots=True)
class Image:
    """An image; what it sets is merged into a container's config."""

    name: str
    env: list[str] = field(default_factory=lambda: ["PATH=/bin"])
    labels: dict[str, str] = field(default_factory=dict)
    command: list[str] = field(default_factory=lambda: ["/bin/sh"])

    @property
    def id(self) -> str:
        """Return the id, which follows from the name."""
        return "sha256:" + hashlib.sha256(self.name.encode()).hexdigest()

    def inherited(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return a container's config with what this image adds to it."""
        own = config["Env"] or []
        named = {entry.partition("=")[0] for entry in own}
        more = [entry for entry in self.env if entry.partition("=")[0] not in named]
        command = config["Cmd"] if config["Cmd"] or config["Entrypoint"] else self.command
        labels = {**self.labels, **(config["Labels"] or {})}
        return {**config, "Env": [*own, *more], "Labels": labels, "Cmd": command}

    def inspect(self) -> dict[str, Any]:
        """Return what GET /images/{ref}/json answers."""
        config = {"Env": self.env, "Cmd": self.command, "Labels": self.labels or None, "Entrypoint": None}
        return {
            "Id": self.id,
            "RepoTags": [self.name],
            "RepoDigests": [],
            "Parent": "",
            "Created": CREATED,
            "Config": config,
            "Architecture": "amd64",
            "Os": "linux",
            "Size": 1 << 20,
            "RootFS": {"Type": "layers", "Layers": []},
        }

    def listed(self) -> dict[str, Any]:
        """Return what GET /images/json shows of it."""
        return {
            "Containers": -1,
            "Created": 1767225600,
            "Id": self.id,
            "Labels": self.labels or None,
            "ParentId": "",
            "RepoDigests": None,
            "RepoTags": [self.name],
            "SharedSize": -1,
            "Size": 1 << 20,
            "VirtualSize": 1 << 20,
        }


class Images:
    def __init__(self) -> None:
        self.by_name: dict[str, Image] = {}
        for name in DEFAULT_IMAGES:
            self.add(name)

    def add(
        self, reference: str, env: Sequence[str] = ("PATH=/bin",), labels: Mapping[str, str] | None = None
    ) -> Image:
        image = Image(familiar(reference), list(env), dict(labels or {}))
        self.by_name[image.name] = image
        return image

    def find(self, reference: str) -> Image:
        """Return the image. Raises Refused with status 404."""
        name = familiar(reference)
        if name in self.by_name:
            return self.by_name[name]
        digits = reference.removeprefix("sha256:")
        found = [image for image in self.by_name.values() if digits and image.id.startswith(f"sha256:{digits}")]
        if len(found) != 1:
            raise Refused(HTTPStatus.NOT_FOUND, f"No such image: {name}")
        return found[0]

    def find_or_add(self, reference: str) -> Image:
        """Return the image, which is there then, as after a pull."""
        try:
            return self.find(reference)
        except Refused:
            return self.add(reference)
