"""A container, an exec and an image of the fake dockerd, and their representations in Docker's API."""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from tests.engines.images import BUSYBOX_IMAGE, PAUSE_IMAGE
from tests.fakes.dockerd_checks import Refused
from tests.fakes.dockerd_structs import Struct

NEVER = "0001-01-01T00:00:00Z"
INSPECTED = json.loads("""{
    "Id":"", "Created":"", "Path":"", "Args":[], "State":{}, "Image":"", "ResolvConfPath":"", "HostnamePath":"",
    "HostsPath":"", "LogPath":"", "Name":"", "RestartCount":0, "Driver":"vfs", "Platform":"linux", "MountLabel":"",
    "ProcessLabel":"", "AppArmorProfile":"", "ExecIDs":null, "HostConfig":{}, "GraphDriver":{"Data":null, "Name":"vfs"},
    "Mounts":[], "Config":{}, "NetworkSettings":{"Bridge":"", "Networks":{}}
}""")
LISTED = json.loads("""{
    "Id":"", "Names":[], "Image":"", "ImageID":"", "Command":"", "Created":0, "Ports":[], "Labels":{}, "State":"",
    "Status":"", "HostConfig":{"NetworkMode":""}, "NetworkSettings":{"Networks":{}}, "Mounts":[]
}""")
"""A container's inspect and its row in a list, with all fields in dockerd's order."""

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

    def inspect(self) -> Struct:
        life = {"Running": self.running, "ExitCode": self.exit_code, "Pid": 4712 if self.running else 0}
        return {"ID": self.id, **life, "ContainerID": self.container.id, "CanRemove": self.exit_code is not None}


@dataclass(slots=True, eq=False)
class Container:
    """A container; ``request`` is the body of its create as it came."""

    id: str
    name: str
    """The name without the leading slash."""
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
    def labels(self) -> dict[str, str]:
        return self.config["Labels"] or {}

    @property
    def state(self) -> Struct:
        nothing = dict.fromkeys(("Paused", "Restarting", "OOMKilled", "Dead"), False)
        process = {"Pid": 4711 if self.running else 0, "ExitCode": self.exit_code, "Error": ""}
        times = {"StartedAt": _moment(self.started), "FinishedAt": _moment(self.finished)}
        return {"Status": self.status, "Running": self.running, **nothing, **process, **times}

    def inspect(self) -> Struct:
        path, *arguments = self.command or [""]
        folder = f"/var/lib/docker/containers/{self.id}"
        names = {"Id": self.id, "Name": f"/{self.name}", "Image": self.image_id, "Created": _moment(self.created)}
        life = {"State": self.state, "Path": path, "Args": arguments, "ExecIDs": list(self.execs) or None}
        files = {f"{name}Path": f"{folder}/{name.lower()}" for name in ("ResolvConf", "Hostname", "Hosts", "Log")}
        return {**INSPECTED, **names, **life, **files, "HostConfig": self.host, "Config": self.config}

    def listed(self) -> Struct:
        seconds = int(time.time() - (self.started if self.running else self.finished))
        exited = f"Exited ({self.exit_code}) {seconds} seconds ago"
        status = {"created": "Created", "running": f"Up {seconds} seconds"}.get(self.status, exited)
        names = {"Id": self.id, "Names": [f"/{self.name}"], "Image": self.config["Image"], "ImageID": self.image_id}
        config = {"Command": " ".join(self.command), "Labels": self.labels, "Created": int(self.created)}
        host = {"NetworkMode": self.host["NetworkMode"]}
        return {**LISTED, **names, **config, "State": self.status, "Status": status, "HostConfig": host}


CREATED = "2026-01-01T00:00:00Z"
PATH, COMMAND = "PATH=/bin", ["/bin/sh"]
"""What every image sets."""


def familiar(reference: str) -> str:
    """Return a name as Docker shows it: without the default registry, with a tag."""
    for prefix in ("docker.io/library/", "docker.io/"):
        reference = reference.removeprefix(prefix)
    return reference if "@" in reference or ":" in reference.rpartition("/")[2] else f"{reference}:latest"


@dataclass(slots=True)
class Image:
    """An image; its settings are merged into a container's config."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return "sha256:" + hashlib.sha256(self.name.encode()).hexdigest()

    def inherited(self, config: dict[str, Any]) -> Struct:
        """Return a container's config with what this image adds to it."""
        env = config["Env"] or []
        has_path = any(entry.partition("=")[0] == "PATH" for entry in env)
        command = config["Cmd"] if config["Cmd"] or config["Entrypoint"] else COMMAND
        labels = {**self.labels, **(config["Labels"] or {})}
        return {**config, "Env": env if has_path else [*env, PATH], "Labels": labels, "Cmd": command}

    def inspect(self) -> Struct:
        config = {"Env": [PATH], "Cmd": COMMAND, "Labels": self.labels or None, "Entrypoint": None}
        machine = {"Architecture": "amd64", "Os": "linux", "RootFS": {"Type": "layers", "Layers": []}}
        names = {"Id": self.id, "RepoTags": [self.name], "RepoDigests": [], "Parent": "", "Created": CREATED}
        return {**names, "Config": config, "Size": 1 << 20, **machine}

    def listed(self) -> Struct:
        names = {"Id": self.id, "RepoTags": [self.name], "RepoDigests": None, "ParentId": ""}
        sizes = {"Containers": -1, "SharedSize": -1, "Size": 1 << 20, "VirtualSize": 1 << 20}
        return {**names, "Created": 1767225600, "Labels": self.labels or None, **sizes}


class Images:
    def __init__(self) -> None:
        self.by_name: dict[str, Image] = {}
        for name in (BUSYBOX_IMAGE, PAUSE_IMAGE):
            self.add(name)

    def add(self, reference: str, labels: Mapping[str, str] | None = None) -> Image:
        image = Image(familiar(reference), labels or {})
        self.by_name[image.name] = image
        return image

    def find(self, reference: str) -> Image:
        name = familiar(reference)
        if name in self.by_name:
            return self.by_name[name]
        digits = reference.removeprefix("sha256:")
        found = [image for image in self.by_name.values() if digits and image.id.startswith(f"sha256:{digits}")]
        if len(found) != 1:
            raise Refused(HTTPStatus.NOT_FOUND, f"No such image: {name}")
        return found[0]
