"""The state of the fake dockerd: containers, their states and execs, and the events of both.

A change has happened before its event is sent; a refused call changes and sends nothing.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from tests.fakes import dockerd_checks as checks
from tests.fakes.dockerd_checks import Refused
from tests.fakes.dockerd_events import Events
from tests.fakes.dockerd_records import Container, Exec, Images
from tests.fakes.dockerd_structs import CONFIG, HOST_CONFIG, RESOURCES

CGROUPFS = "cgroupfs"
SYSTEMD = "systemd"
VALID_NAME = re.compile(r"/?[a-zA-Z0-9][a-zA-Z0-9_.-]+")
KILLED, TERMINATED = 137, 143


class DockerdState:
    """Everything that survives a restart of the fake dockerd."""

    def __init__(self, cgroup_driver: str = CGROUPFS) -> None:
        self.cgroup_driver = cgroup_driver
        self.images = Images()
        self.containers: dict[str, Container] = {}
        self.execs: dict[str, Exec] = {}
        self.events = Events()
        self._names: dict[str, Container] = {}

    # ---- containers

    def _tell(self, container: Container, action: str, **more: str) -> None:
        image = container.config["Image"]
        attributes = {**container.labels, "image": image, "name": container.name, **more}
        self.events.emit("container", action, container.id, attributes, image)

    def say(self, reference: str, data: bytes, stream: int = 1) -> None:
        """Write bytes to a container's stdout (1) or stderr (2)."""
        container = self.find(reference)
        container.output.append((stream, data))
        for listener in tuple(container.listeners):
            listener((stream, data))

    def find(self, reference: str) -> Container:
        """Return a container by its id, its name, or a unique prefix of its id, in this order.

        Raises Refused: 404.
        """
        if reference in self.containers:
            return self.containers[reference]
        if (named := self.named(reference)) is not None:
            return named
        found = [container for key, container in self.containers.items() if reference and key.startswith(reference)]
        if len(found) != 1:
            raise Refused(HTTPStatus.NOT_FOUND, f"No such container: {reference}")
        return found[0]

    def named(self, name: str) -> Container | None:
        return self._names.get(name.removeprefix("/"))

    def _reserve(self, name: str) -> str:
        if not VALID_NAME.fullmatch(name):
            raise checks.bad(f"Invalid container name ({name}), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed")
        if (owner := self.named(name)) is not None:
            taken = f'"/{owner.name}" is already in use by container "{owner.id}"'
            advice = "You have to remove (or rename) that container to be able to reuse that name."
            raise Refused(HTTPStatus.CONFLICT, f"Conflict. The container name {taken}. {advice}")
        return name.removeprefix("/")

    def create(self, name: str, request: bytes, body: dict[str, Any]) -> Container:
        checks.check_types(body)
        given = {key: value for key, value in (body.get("HostConfig") or {}).items() if value is not None}
        host = {key: given.get(key, zero) for key, zero in HOST_CONFIG.items()}
        checks.check(host, systemd=self.cgroup_driver == SYSTEMD, update=False)
        config = {key: body.get(key, zero) for key, zero in CONFIG.items()}
        image = self.images.find(config["Image"]) if config["Image"] else None
        if image is not None:
            config = image.inherited(config)
        if not config["Cmd"] and not config["Entrypoint"]:
            raise checks.bad("No command specified")
        new_id = secrets.token_hex(32)
        name = self._reserve(name or f"fake_{new_id[:12]}")
        config["Hostname"] = config["Hostname"] or new_id[:12]
        container = Container(new_id, name, request, config, checks.adapted(host), image.id if image else "")
        self.containers[new_id] = self._names[name] = container
        self._tell(container, "create")
        return container

    def start(self, reference: str) -> None:
        container = self.find(reference)
        if container.running:
            raise Refused(HTTPStatus.NOT_MODIFIED, "")
        container.status, container.started, container.exit_code = "running", time.time(), 0
        self._tell(container, "start")

    def exit(self, container: Container, exit_code: int) -> None:
        container.status, container.finished, container.exit_code = "exited", time.time(), exit_code
        self._tell(container, "die", exitCode=str(exit_code))
        if container.host["AutoRemove"]:
            self._destroy(container)

    def stop(self, reference: str) -> None:
        container = self.find(reference)
        if not container.running:
            raise Refused(HTTPStatus.NOT_MODIFIED, "")
        self._tell(container, "kill", signal="15")
        self.exit(container, TERMINATED)
        self._tell(container, "stop")

    def rename(self, reference: str, name: str) -> None:
        container = self.find(reference)
        new_name, old_name = self._reserve(name), container.name
        container.name = new_name
        self._names[new_name] = self._names.pop(old_name)
        self._tell(container, "rename", oldName=f"/{old_name}")

    def update(self, reference: str, body: dict[str, Any]) -> None:
        """Change resources and restart policy. Raises Refused: 400, 404, or 409 if they do not go together."""
        update = {key: zero if body.get(key) is None else body[key] for key, zero in RESOURCES.items()}
        update["RestartPolicy"] = body.get("RestartPolicy") or HOST_CONFIG["RestartPolicy"]
        checks.check_types({"HostConfig": update})
        settings = {**HOST_CONFIG, **update}
        checks.check(settings, systemd=self.cgroup_driver == SYSTEMD, update=True)
        container = self.find(reference)
        container.host = checks.updated(container.host, update)
        self._tell(container, "update")

    def remove(self, reference: str, force: bool) -> None:
        container = self.find(reference)
        if container.running:
            if not force:
                raise Refused(HTTPStatus.CONFLICT, f"You cannot remove a running container {container.id}.")
            self._tell(container, "kill", signal="9")
            self.exit(container, KILLED)
        if container.id in self.containers:  # AutoRemove may have been faster
            self._destroy(container)

    def _destroy(self, container: Container) -> None:
        del self.containers[container.id], self._names[container.name]
        for exec_id in container.execs:
            del self.execs[exec_id]
        self._tell(container, "destroy")

    # ---- execs

    def exec_create(self, reference: str, config: dict[str, Any]) -> Exec:
        container = self.find(reference)
        if not container.running:
            raise Refused(HTTPStatus.CONFLICT, f"Container {container.id} is not running")
        made = Exec(secrets.token_hex(32), container, config)
        self.execs[made.id] = made
        container.execs.append(made.id)
        self._tell(container, f"exec_create: {' '.join(config['Cmd'])}", execID=made.id)
        return made

    def exec_find(self, exec_id: str) -> Exec:
        if exec_id not in self.execs:
            raise Refused(HTTPStatus.NOT_FOUND, f"No such exec instance: {exec_id}")
        return self.execs[exec_id]

    def exec_start(self, made: Exec) -> None:
        made.running = True
        self._tell(made.container, f"exec_start: {' '.join(made.config['Cmd'])}", execID=made.id)

    def exec_exit(self, made: Exec, exit_code: int) -> None:
        made.running, made.exit_code = False, exit_code
        self._tell(made.container, "exec_die", execID=made.id, exitCode=str(exit_code))

    def each(self) -> Iterator[Container]:
        """Yield the containers, newest first as dockerd lists them."""
        return reversed(tuple(self.containers.values()))
