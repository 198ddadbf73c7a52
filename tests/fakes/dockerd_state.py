"""The state of the fake dockerd: containers, execs, images, the checks of creates and updates, and the events."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from tests.engines.images import BUSYBOX_IMAGE, PAUSE_IMAGE
from tests.fakes.dockerd_shapes import CONFIG, HOST_CONFIG, RESOURCES, Struct

Event = dict[str, Any]
Filters = Mapping[str, frozenset[str]]
MIN_MEMORY_BYTES = 6 << 20
CPUS = 1024
UPDATABLE = {"BlkioWeight", "CpuShares", "NanoCpus", "CpuPeriod", "CpuQuota", "CpusetCpus", "CpusetMems"}
UPDATABLE |= {"Memory", "MemorySwap", "MemoryReservation"}
"""The fields that an update replaces if they are not zero; OomScoreAdj and CgroupParent are not among them."""

Values = Mapping[str, Any]
INSPECT_TEMPLATE = json.loads("""{
    "Id":"", "Created":"", "Path":"", "Args":[], "State":{}, "Image":"", "ResolvConfPath":"", "HostnamePath":"",
    "HostsPath":"", "LogPath":"", "Name":"", "RestartCount":0, "Driver":"vfs", "Platform":"linux", "MountLabel":"",
    "ProcessLabel":"", "AppArmorProfile":"", "ExecIDs":null, "HostConfig":{}, "GraphDriver":{"Data":null, "Name":"vfs"},
    "Mounts":[], "Config":{}, "NetworkSettings":{"Bridge":"", "Networks":{}}
}""")
"""A container's inspect, with all fields in dockerd's order."""
PATH, COMMAND = "PATH=/bin", ["/bin/sh"]
CGROUPFS = "cgroupfs"
SYSTEMD = "systemd"
VALID_NAME = re.compile(r"/?[a-zA-Z0-9][a-zA-Z0-9_.-]+")
KILLED, TERMINATED = 137, 143


def parse_filters(text: str) -> Filters:
    """Return the values of each filter, in today's form (``{"a": {"b": true}}``) or the old one (``{"a": ["b"]}``)."""
    return {key: frozenset(values) for key, values in json.loads(text or "{}").items()}


def labels_match(labels: Mapping[str, str], selectors: frozenset[str]) -> bool:
    pairs = (text.partition("=") for text in selectors)
    return all(key in labels and (not equals or labels[key] == value) for key, equals, value in pairs)


def event_matches(event: Event, filters: Filters) -> bool:
    fields = {"type": event["Type"], "event": event["Action"].partition(":")[0]}
    return all(fields[key] in values for key, values in filters.items() if key in fields)


@dataclass(eq=False)
class Refused(Exception):
    status: HTTPStatus
    message: str


def bad_request(message: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, message)


def check(host: Values, *, systemd: bool, update: bool) -> None:
    """Refuse an invalid create or update with status 400; no proxy may make a valid one invalid."""
    memory, swap, nano, parent = (host[name] for name in ("Memory", "MemorySwap", "NanoCpus", "CgroupParent"))
    cpuset = host["CpusetCpus"]
    unavailable = f"Requested CPUs are not available - requested {cpuset}, available:"
    slice_name = parent.rpartition(".slice")[0] if parent.endswith(".slice") else ""
    for refused, problem in (
        (memory != 0 and memory < MIN_MEMORY_BYTES, "Minimum memory limit allowed is 6MB"),
        (0 < swap < memory, "Minimum memoryswap limit should be larger than memory limit, see usage"),
        (memory == 0 < swap and not update, "You should always set the Memory limit when using Memoryswap limit"),
        (nano > 0 and host["CpuPeriod"] > 0, "Conflicting options: Nano CPUs and CPU Period cannot both be set"),
        (nano > 0 and host["CpuQuota"] > 0, "Conflicting options: Nano CPUs and CPU Quota cannot both be set"),
        (update and host["CpuShares"] < 0, "shares: invalid argument"),
        (any(int(number) >= CPUS for number in re.findall(r"\d+", cpuset)), f"{unavailable} 0-{CPUS - 1}"),
        (systemd and parent and not slice_name, "cgroup-parent for systemd cgroup should be a valid slice"),
    ):
        if refused:
            raise bad_request(problem)


def with_defaults(host: dict[str, Any]) -> dict[str, Any]:
    modes = {"NetworkMode": "default", "IpcMode": "private", "CgroupnsMode": "host", "Runtime": "runc"}
    defaults = {**modes, "ShmSize": 64 << 20, "LogConfig": {"Type": "json-file", "Config": {}}}
    if host["Memory"] > 0 and host["MemorySwap"] == 0:
        defaults["MemorySwap"] = 2 * host["Memory"]
    empty = ("", 0, HOST_CONFIG["LogConfig"])
    return {**host, **{name: value for name, value in defaults.items() if host[name] in empty}}


@dataclass(slots=True, eq=False)
class Container:
    id: str
    name: str
    config: dict[str, Any]
    host: dict[str, Any]
    image_id: str
    status: str = "created"
    exit_code: int = 0

    @property
    def running(self) -> bool:
        return self.status == "running"

    @property
    def labels(self) -> dict[str, str]:
        return self.config["Labels"] or {}

    def inspect(self) -> Struct:
        process = {"Pid": 4711 if self.running else 0, "ExitCode": self.exit_code}
        state = {"Status": self.status, "Running": self.running, **process}
        names = {"Id": self.id, "Name": f"/{self.name}", "Image": self.image_id}
        return {**INSPECT_TEMPLATE, **names, "State": state, "HostConfig": self.host, "Config": self.config}

    def listed(self) -> Struct:
        return {"Id": self.id, "Names": [f"/{self.name}"], "Labels": self.labels, "State": self.status}


@dataclass(slots=True, eq=False)
class Exec:
    """A command that was or will be run in a container; ``exit_code`` is None until it has ended."""

    container: Container
    command: list[str]
    exit_code: int | None = None


def normalise_name(reference: str) -> str:
    """Return a name as Docker shows it: without the default registry, with a tag."""
    for prefix in ("docker.io/library/", "docker.io/"):
        reference = reference.removeprefix(prefix)
    return reference if "@" in reference or ":" in reference.rpartition("/")[2] else f"{reference}:latest"


class Images:
    """The labels of each image by its name; its settings are merged into a container's config."""

    def __init__(self) -> None:
        self.by_name: dict[str, Mapping[str, str]] = {}
        self.add(BUSYBOX_IMAGE)
        self.add(PAUSE_IMAGE)

    def add(self, reference: str, labels: Mapping[str, str] | None = None) -> None:
        self.by_name[normalise_name(reference)] = labels or {}

    def inspect(self, reference: str) -> Struct:
        """Return an image's inspect, by its name, its id, or a unique prefix of its id. Raises Refused: 404."""
        name, digits = normalise_name(reference), reference.removeprefix("sha256:")
        names = [name] if name in self.by_name else [one for one in self.by_name if _digest(one).startswith(digits)]
        if len(names) != 1 or not reference:
            raise Refused(HTTPStatus.NOT_FOUND, f"No such image: {name}")
        config = {"Env": [PATH], "Cmd": COMMAND, "Labels": self.by_name[names[0]] or None, "Entrypoint": None}
        return {"Id": f"sha256:{_digest(names[0])}", "RepoTags": names, "Parent": "", "Config": config}


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


class DockerdState:
    def __init__(self, cgroup_driver: str = CGROUPFS) -> None:
        self.cgroup_driver = cgroup_driver
        self.images = Images()
        self.containers: dict[str, Container] = {}
        self.execs: dict[str, Exec] = {}
        self.subscribers: set[Callable[[Event], None]] = set()
        self._names: dict[str, Container] = {}

    def _report(self, container: Container, action: str, **more: str) -> None:
        image, now = container.config["Image"], time.time_ns()
        attributes = {**container.labels, "image": image, "name": container.name, **more}
        event: Event = {"status": action, "id": container.id, "from": image, "Type": "container", "Action": action}
        event["Actor"] = {"ID": container.id, "Attributes": dict(sorted(attributes.items()))}
        event |= {"scope": "local", "time": now // 10**9, "timeNano": now}
        for subscriber in tuple(self.subscribers):
            subscriber(event)

    def find(self, reference: str) -> Container:
        """Return a container by its id, its name, or a unique prefix of its id, in this order.

        Raises Refused: 404.
        """
        named = self.containers.get(reference) or self._names.get(reference.removeprefix("/"))
        matches = [one for key, one in self.containers.items() if reference and key.startswith(reference)]
        if named is None and len(matches) != 1:
            raise Refused(HTTPStatus.NOT_FOUND, f"No such container: {reference}")
        return named or matches[0]

    def _reserve(self, name: str) -> str:
        if not VALID_NAME.fullmatch(name):
            raise bad_request(f"Invalid container name ({name}), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed")
        if (owner := self._names.get(name.removeprefix("/"))) is not None:
            conflict = f'"/{owner.name}" is already in use by container "{owner.id}"'
            raise Refused(HTTPStatus.CONFLICT, f"Conflict. The container name {conflict}. You have to remove it.")
        return name.removeprefix("/")

    def create(self, name: str, body: dict[str, Any]) -> Container:
        requested = {key: value for key, value in (body.get("HostConfig") or {}).items() if value is not None}
        host = {key: requested.get(key, zero) for key, zero in HOST_CONFIG.items()}
        check(host, systemd=self.cgroup_driver == SYSTEMD, update=False)
        config = {key: body.get(key, zero) for key, zero in CONFIG.items()}
        image_id = ""
        if config["Image"]:
            image = self.images.inspect(config["Image"])
            image_id, labels, env = image["Id"], image["Config"]["Labels"], config["Env"] or []
            has_path = any(entry.partition("=")[0] == "PATH" for entry in env)
            config["Env"] = env if has_path else [*env, PATH]
            config["Labels"] = {**(labels or {}), **(config["Labels"] or {})}
            config["Cmd"] = config["Cmd"] if config["Cmd"] or config["Entrypoint"] else COMMAND
        if not config["Cmd"] and not config["Entrypoint"]:
            raise bad_request("No command specified")
        new_id = secrets.token_hex(32)
        name = self._reserve(name or f"fake_{new_id[:12]}")
        config["Hostname"] = config["Hostname"] or new_id[:12]
        container = Container(new_id, name, config, with_defaults(host), image_id)
        self.containers[new_id] = self._names[name] = container
        self._report(container, "create")
        return container

    def start(self, reference: str) -> None:
        container = self.find(reference)
        if container.running:
            raise Refused(HTTPStatus.NOT_MODIFIED, "")
        container.status, container.exit_code = "running", 0
        self._report(container, "start")

    def exit(self, container: Container, exit_code: int) -> None:
        container.status, container.exit_code = "exited", exit_code
        self._report(container, "die", exitCode=str(exit_code))

    def stop(self, reference: str) -> None:
        container = self.find(reference)
        if not container.running:
            raise Refused(HTTPStatus.NOT_MODIFIED, "")
        self._report(container, "kill", signal="15")
        self.exit(container, TERMINATED)
        self._report(container, "stop")

    def rename(self, reference: str, name: str) -> None:
        container = self.find(reference)
        new_name, old_name = self._reserve(name), container.name
        container.name = new_name
        self._names[new_name] = self._names.pop(old_name)
        self._report(container, "rename", oldName=f"/{old_name}")

    def update(self, reference: str, body: dict[str, Any]) -> None:
        """Change resources and restart policy. Raises Refused: 400, 404, or 409 if they conflict."""
        update = {key: zero if body.get(key) is None else body[key] for key, zero in RESOURCES.items()}
        check({**HOST_CONFIG, **update}, systemd=self.cgroup_driver == SYSTEMD, update=True)
        container, policy = self.find(reference), body.get("RestartPolicy") or HOST_CONFIG["RestartPolicy"]
        if update["Memory"] > container.host["MemorySwap"] and update["Memory"] != 0 == update["MemorySwap"]:
            raise Refused(HTTPStatus.CONFLICT, "Memory limit should be smaller than already set memoryswap limit")
        container.host = {**container.host, **{name: update[name] for name in UPDATABLE if update[name]}}
        if policy["Name"]:
            container.host["RestartPolicy"] = policy
        self._report(container, "update")

    def remove(self, reference: str, force: bool) -> None:
        container = self.find(reference)
        if container.running:
            if not force:
                raise Refused(HTTPStatus.CONFLICT, f"You cannot remove a running container {container.id}.")
            self._report(container, "kill", signal="9")
            self.exit(container, KILLED)
        del self.containers[container.id], self._names[container.name]
        self._report(container, "destroy")

    def exec_create(self, reference: str, command: list[str]) -> str:
        container, exec_id = self.find(reference), secrets.token_hex(32)
        if not container.running:
            raise Refused(HTTPStatus.CONFLICT, f"Container {container.id} is not running")
        self.execs[exec_id] = Exec(container, command)
        return exec_id

    def exec_find(self, exec_id: str) -> Exec:
        if exec_id not in self.execs:
            raise Refused(HTTPStatus.NOT_FOUND, f"No such exec instance: {exec_id}")
        return self.execs[exec_id]
