"""The kubelet: its runtime, its drop-in, its restart, and its health after the restart.

Owns how long it is watched, and the timer that restores it if this process ends first.
Must not know: the proxy's tree.
Invariant: after the drop-in is written, either the kubelet is healthy with it, or its old configuration is restored and
it is restarted. This process does that, or a systemd timer if this process has ended.
"""

import http.client
import json
import re
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from .errors import Failed, Refused
from .journal import Journal, folder
from .node import Node

UNIT = "kubelet.service"
CRI_DOCKERD = "cri-docker.service"
WATCH_SECONDS = 60.0
HEALTHY_SECONDS = 20.0
"""How long it must have been healthy without interruption at the end of the watch."""
POLL_SECONDS = 1.0
RESTART_SECONDS = 60.0
TIMER = "runtimeproxy-kubelet-back"
TIMER_SECONDS = int(2 * RESTART_SECONDS + WATCH_SECONDS)
MODES = {"containerd": "Containerd", "cri-o": "Containerd", "docker": "Docker"}
"""The proxy's mode, by the beginning of the runtime's version that the kubelet reports for its node."""
CONFIGS = {"cri-o": {"remote-runtime-service-endpoint": "/var/run/crio/crio.sock"}}
"""Keys of the proxy's configuration whose default is another runtime's."""
HEAD = "# The node-installer of runtimeproxy wrote this, and takes it away again.\n"


@dataclass(frozen=True, slots=True)
class Kubelet:
    """The kubelet as the node object reports it. ``config`` are keys that the proxy needs for this runtime."""

    version: str
    mode: str
    ready: bool
    config: Mapping[str, str] = field(default_factory=dict)


def reported_by(node: Mapping[str, Any]) -> Kubelet:
    """Return the kubelet of a node object. Raises Refused if the proxy does not support its runtime."""
    info = node["status"]["nodeInfo"]
    runtime = info["containerRuntimeVersion"]
    name = runtime.partition("://")[0]
    mode = MODES.get(name)
    if mode is None:
        why = "the proxy is for containerd, CRI-O and Docker"
        raise Refused(f"the kubelet uses {runtime}, and {why}: leave this node out")
    return Kubelet(info["kubeletVersion"], mode, is_ready(node), CONFIGS.get(name, {}))


def is_ready(node: Mapping[str, Any]) -> bool:
    """Return whether a node object has the condition Ready."""
    conditions = {condition["type"]: condition["status"] for condition in node["status"].get("conditions", ())}
    return conditions.get("Ready") == "True"


class DropIn:
    """The drop-in that points a kubelet, or its cri-dockerd, at the proxy whose program is ``program``.

    ``unit`` is the unit that it configures. Raises Failed, Refused.
    """

    def __init__(self, node: Node, program: str, kubelet: Kubelet) -> None:
        self._node = node
        cri_dockerd = kubelet.mode == "Docker" and node.is_active(CRI_DOCKERD)
        command = [program, "kubelet-args", f"--kube-version={kubelet.version}", "-o", "json"]
        parts = json.loads(node.run(*command, *(["--cri-dockerd"] if cri_dockerd else [])))
        self.unit: str = parts["unit"]
        self.path: str = parts["file"]
        self._flags = " ".join(parts["flags"])

    @property
    def is_installed(self) -> bool:
        """Return whether the installer's own drop-in is on the node. Raises OSError."""
        return (self._node.text(self.path) or "").startswith(HEAD)

    def text(self) -> str:
        """Return the drop-in: the unit's own command, followed by the flags. Raises Failed, Refused."""
        return f"{HEAD}[Service]\nExecStart=\nExecStart={self._command()} {self._flags}\n"

    def _command(self) -> str:
        """Return the command of the unit without this drop-in. Raises Failed, Refused."""
        if self.unit not in (UNIT, CRI_DOCKERD):
            raise Refused(
                f"{self.unit} starts the kubelet here: point it at the proxy by hand (docs/kubelet.rst), and leave "
                "nodeInstaller.configureKubelet false"
            )
        code, text = self._node.query("systemctl", "cat", self.unit)
        if code:
            raise Refused(
                f"the node has no {self.unit}, so no drop-in can configure its kubelet: point it at the proxy by hand, "
                "and leave nodeInstaller.configureKubelet false"
            )
        parts = re.split(r"(?m)^# (/\S+)$", text)
        other_files = "\n".join(body for path, body in zip(parts[1::2], parts[2::2], strict=True) if path != self.path)
        commands: list[str] = []
        for line in re.sub(r"\s*\\\n\s*", " ", other_files).splitlines():
            if match := re.fullmatch(r"\s*ExecStart\s*=\s*(.*?)\s*", line):
                commands = [*commands, match[1]] if match[1] else []  # an empty one resets the list
        if len(commands) != 1:
            raise Refused(f"{self.unit} has {len(commands)} commands: point it at the proxy by hand")
        return commands[0]


class Watch:
    """Checks the health of a kubelet: its unit, its /healthz, and at the end whether its node is ready."""

    def __init__(
        self,
        node: Node,
        unit: str,
        port: int,
        ready: Callable[[], bool],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._units = (UNIT, unit)
        self._port = port
        self._ready = ready
        self._sleep = sleep
        self._clock = clock

    def fault(self) -> str:
        """Return the kubelet's current fault, "" if it is healthy."""
        for unit in self._units:
            if not self._node.is_active(unit):
                return f"{unit} is not active"
        return healthz(self._port)

    def wait_until_healthy(self) -> None:
        """Watch for WATCH_SECONDS. Raises Failed if the kubelet was unhealthy in the last HEALTHY_SECONDS."""
        begin, healthy_since, fault = self._clock(), None, self.fault()
        while (now := self._clock()) - begin < WATCH_SECONDS:
            self._sleep(POLL_SECONDS)
            if current := self.fault():
                healthy_since, fault = None, current
            elif healthy_since is None:
                healthy_since = now
        if healthy_since is None or self._clock() - healthy_since < HEALTHY_SECONDS:
            raise Failed(f"the kubelet did not become healthy within {WATCH_SECONDS:g} s: {fault}")
        if not self._ready():
            raise Failed(f"the node is not ready {WATCH_SECONDS:g} s after the kubelet's restart, and was before it")


def healthz(port: int) -> str:
    """Return the fault of the kubelet's /healthz, "" if there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=POLL_SECONDS)
    try:
        connection.request("GET", "/healthz")
        code = connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return f"the kubelet's /healthz on port {port} does not answer"
    finally:
        connection.close()
    return "" if code == HTTPStatus.OK else f"the kubelet's /healthz answers {code}"


def change(node: Node, journal: Journal, drop_in: DropIn, text: str | None, watch: Watch) -> None:
    """Write or remove the drop-in, restart the unit once, and watch.

    Raises Failed, OSError; then the caller undoes the journal and calls ``restore``.
    """
    previous = node.text(drop_in.path)
    _set_timer(node, drop_in, previous)
    journal.change({drop_in.path: text})
    restart(node, drop_in.unit)
    watch.wait_until_healthy()
    node.run("systemctl", "stop", f"{TIMER}.timer")  # fails if the timer has expired


def restore(node: Node, unit: str) -> None:
    """Restart a unit whose drop-in was restored. Raises Failed; then the timer restarts it once more."""
    restart(node, unit)
    node.query("systemctl", "stop", f"{TIMER}.timer")


def restart(node: Node, unit: str) -> None:
    """Reload systemd, and restart a unit. Raises Failed."""
    node.run("systemctl", "daemon-reload")
    node.run("systemctl", "restart", unit, seconds=RESTART_SECONDS)


def _set_timer(node: Node, drop_in: DropIn, previous: str | None) -> None:
    path, directory = shlex.quote(drop_in.path), shlex.quote(folder(drop_in.path))
    restore_files = (
        f"rm -f {path}" if previous is None else f"mkdir -p {directory}; printf %s {shlex.quote(previous)} >{path}"
    )
    script = f"{restore_files}; systemctl daemon-reload; systemctl restart {drop_in.unit}".replace("$", "$$")
    node.query("systemctl", "stop", f"{TIMER}.timer")
    unit = [f"--unit={TIMER}", "--collect", f"--on-active={TIMER_SECONDS}s"]
    node.run("systemd-run", *unit, "/bin/sh", "-c", script)  # systemd replaces $$ by $
