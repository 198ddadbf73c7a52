"""What the fake dockerd knows: containers, their lives and their execs, and the events of both.

A change of state has happened before its event is told; a refused call changes and tells nothing.
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
_DEADLY = {"9": KILLED, "15": TERMINATED, "2": 130, "3": 131}
_SIGNALS = {"KILL": "9", "TERM": "15", "INT": "2", "QUIT": "3", "HUP": "1", "USR1": "10", "USR2": "12"}


class DockerdState:
    """All that survives a restart of the fake dockerd."""

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
        attributes = {**(container.config["Labels"] or {}), "image": image, "name": container.name, **more}
        self.events.emit("container", action, container.id, attributes, image)

    def say(self, reference: str, data: bytes, stream: int = 1) -> None:
        """Let a container write bytes to its stdout (1) or stderr (2)."""
        container = self.find(reference)
        container.output.append((stream, data))
        for listener in tuple(container.listeners):
            listener((stream, data))

    def find(self, reference: str) -> Container:
        """Return a container by its id, its name, or a unique prefix of its id, in this order.

        Raises Refused: 404, or 500 for a prefix of several.
        """
        if reference in self.containers:
            return self.containers[reference]
        if (named := self.named(reference)) is not None:
            return named
        found = [container for key, container in self.containers.items() if reference and key.startswith(reference)]
        if len(found) > 1:
            raise Refused(HTTPStatus.INTERNAL_SERVER_ERROR, f"Multiple IDs found with provided prefix: {reference}")
        if not found:
            raise Refused(HTTPStatus.NOT_FOUND, f"No such container: {reference}")
        return found[0]

    def named(self, name: str) -> Container | None:
        """Return the container with exactly this name, with or without the slash."""
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
        """Create a container from the body of a create. Raises Refused."""
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
        """Start a container; one whose command is ``true`` ends at once. Raises Refused: 404, or 304 if it runs."""
        container = self.find(reference)
        if container.running:
            raise Refused(HTTPStatus.NOT_MODIFIED, "")
        container.status, container.started, container.exit_code = "running", time.time(), 0
        self._tell(container, "start")
        if container.command == ["true"]:
            self.exit(container, 0)

    def exit(self, container: Container, exit_code: int) -> None:
        container.status, container.finished, container.exit_code = "exited", time.time(), exit_code
        self._tell(container, "die", exitCode=str(exit_code))
        if container.host["AutoRemove"]:
            self._destroy(container)

    def stop(self, reference: str) -> None:
        """Stop a container. Raises Refused: 404, or 304 if it does not run."""
        container = self.find(reference)
        if not container.running:
            raise Refused(HTTPStatus.NOT_MODIFIED, "")
        self._tell(container, "kill", signal="15")
        self.exit(container, TERMINATED)
        self._tell(container, "stop")

    def kill(self, reference: str, signal: str) -> None:
        """Send a signal. Raises Refused: 400, 404, or 409 if the container does not run."""
        try:
            container = self.find(reference)
        except Refused as refused:
            raise Refused(refused.status, f"Cannot kill container: {reference}: {refused.message}") from refused
        number = _SIGNALS.get(signal.upper().removeprefix("SIG"), signal) or "9"
        if not number.isdigit() or not 0 < int(number) < 65:
            raise checks.bad(f"Invalid signal: {signal}")
        if not container.running:
            problem = f"Container {container.id} is not running"
            raise Refused(HTTPStatus.CONFLICT, f"Cannot kill container: {reference}: {problem}")
        self._tell(container, "kill", signal=number)
        if number in _DEADLY:
            self.exit(container, _DEADLY[number])

    def restart(self, reference: str) -> None:
        """Stop a container if it runs, then start it. Raises Refused: 404."""
        container = self.find(reference)
        if container.running:
            self._tell(container, "kill", signal="15")
            # As dockerd does, AutoRemove is left out for the moment.
            container.status, container.finished, container.exit_code = "exited", time.time(), TERMINATED
            self._tell(container, "die", exitCode=str(TERMINATED))
            self._tell(container, "stop")
        self.start(container.id)
        self._tell(container, "restart")

    def rename(self, reference: str, name: str) -> None:
        """Give a container another name. Raises Refused: 400, 404, or 409 if the name is taken."""
        if not name:
            raise checks.bad("Neither old nor new names may be empty")
        container = self.find(reference)
        if container.name == name.removeprefix("/"):
            raise checks.bad("Renaming a container with the same name as its current name")
        try:
            new_name = self._reserve(name)
        except Refused as refused:
            raise Refused(refused.status, f"Error when allocating new name: {refused.message}") from refused
        old_name, container.name = container.name, new_name
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
        try:
            container.host = checks.updated(container.host, update)
        except Refused as refused:
            message = f"Cannot update container {container.id}: {refused.message}"
            raise Refused(refused.status, message) from refused
        self._tell(container, "update")

    def remove(self, reference: str, force: bool) -> None:
        """Remove a container. Raises Refused: 404, or 409 if it runs and force is not given."""
        container = self.find(reference)
        if container.running:
            if not force:
                advice = "Stop the container before attempting removal or force remove"
                problem = f"You cannot remove a running container {container.id}. {advice}"
                raise Refused(HTTPStatus.CONFLICT, problem)
            self._tell(container, "kill", signal="9")
            self.exit(container, KILLED)
        if container.id in self.containers:  # AutoRemove may have been faster
            self._destroy(container)

    def _destroy(self, container: Container) -> None:
        del self.containers[container.id], self._names[container.name]
        for exec_id in container.execs:
            del self.execs[exec_id]
        self._tell(container, "destroy")

    def prune(self) -> list[str]:
        """Remove all that do not run; return their ids."""
        stopped = [container for container in self.containers.values() if not container.running]
        for container in stopped:
            self._destroy(container)
        self.events.emit("container", "prune", "", {"reclaimed": "0"})
        return [container.id for container in stopped]

    # ---- execs

    def exec_create(self, reference: str, config: dict[str, Any]) -> Exec:
        """Prepare a command. Raises Refused: 400, 404, or 409 if the container does not run."""
        if not config.get("Cmd"):
            raise checks.bad("No exec command specified")
        container = self.find(reference)
        if not container.running:
            raise Refused(HTTPStatus.CONFLICT, f"Container {container.id} is not running")
        made = Exec(secrets.token_hex(32), container, config)
        self.execs[made.id] = made
        container.execs.append(made.id)
        self._tell(container, f"exec_create: {' '.join(config['Cmd'])}", execID=made.id)
        return made

    def exec_find(self, exec_id: str) -> Exec:
        """Return an exec. Raises Refused: 404."""
        if exec_id not in self.execs:
            raise Refused(HTTPStatus.NOT_FOUND, f"No such exec instance: {exec_id}")
        return self.execs[exec_id]

    def exec_start(self, made: Exec) -> None:
        """Let a command run. Raises Refused: 409."""
        if not made.container.running:
            raise Refused(HTTPStatus.CONFLICT, f"Container {made.container.id} is not running")
        if made.running or made.exit_code is not None:
            why = "is already running" if made.running else "has already run"
            raise Refused(HTTPStatus.CONFLICT, f"Error: Exec command {made.id} {why}")
        made.running = True
        self._tell(made.container, f"exec_start: {' '.join(made.config['Cmd'])}", execID=made.id)

    def exec_exit(self, made: Exec, exit_code: int) -> None:
        made.running, made.exit_code = False, exit_code
        self._tell(made.container, "exec_die", execID=made.id, exitCode=str(exit_code))

    def each(self) -> Iterator[Container]:
        """Yield the containers, newest first as dockerd lists them."""
        return reversed(tuple(self.containers.values()))
