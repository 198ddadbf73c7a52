"""A client that creates pods on Docker by the recorded requests of dockershim and cri-dockerd, in the same order."""

from __future__ import annotations

import http.client
import json
import re
import select
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self
from urllib.parse import quote, urlencode

from tests.engines.images import BUSYBOX_IMAGE, PAUSE_IMAGE
from tests.fakes import dockershim_bodies as bodies
from tests.fakes.dockerd_client import UnixHttpConnection
from tests.fakes.dockerd_shapes import go_json, version_number
from tests.fakes.dockershim_bodies import SANDBOX_OOM_SCORE_ADJ, Container, Pod, Values

Header = tuple[str, str]

SHORT_CALL_SECONDS = 119.0
JSON = ("Content-Type", "application/json")
UPGRADE = (("Connection", "Upgrade"), JSON, ("Upgrade", "tcp"))
CONFLICT = re.compile(r"Conflict. (?:.)+ is already in use by container \"?([0-9a-z]+)\"?")
UNVERSIONED_API = "1.24"
EXEC_INSPECTIONS = 5
EXEC_INSPECTION_PAUSE_SECONDS = 2.0
SANDBOX_GRACE_SECONDS = 10


class DockerError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class Generation:
    """The differences between the shims: the newest API version, the Host header, and three options."""

    api: str
    host: str
    pings_by_head: bool
    reads_runtime: bool
    """True if it inspects the sandbox before it creates a container in it."""
    moves_swap: bool
    """True if an update of memory sets the swap limit, too."""


CRI_DOCKERD = Generation("1.45", "api.moby.localhost", pings_by_head=True, reads_runtime=True, moves_swap=True)
DOCKERSHIM = Generation("1.40", "docker", pings_by_head=False, reads_runtime=False, moves_swap=False)


def _send(connection: UnixHttpConnection, method: str, target: str, host: str, body: Any, *headers: Header) -> Any:
    content = b"" if body is None else go_json(body)
    length = (("Content-Length", str(len(content))),) if method == "POST" else ()
    connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
    for name, value in (("Host", host), ("User-Agent", "Go-http-client/1.1"), *length, *headers):
        connection.putheader(name, value)
    connection.endheaders(content or None)
    response = connection.getresponse()
    if response.status < http.client.BAD_REQUEST:
        return response
    content = response.read()
    try:
        message = str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        message = content.decode(errors="replace").strip()
    raise DockerError(response.status, message)


class Dockershim:
    """A shim on a socket; names, numbers and resources are in CRI's terms. Every failed call raises DockerError.

    It stores the pods that it has run: a container's create repeats the pod's name and cgroup parent.
    """

    def __init__(self, socket_path: str, generation: Generation = CRI_DOCKERD) -> None:
        self.generation = generation
        self.pods: dict[str, Pod] = {}
        self._path = socket_path
        self._keepalive = UnixHttpConnection(socket_path, timeout=SHORT_CALL_SECONDS)

    def close(self) -> None:
        self._keepalive.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    @cached_property
    def prefix(self) -> str:
        """The prefix with the version for every path, negotiated by the first ping."""
        method = "HEAD" if self.generation.pings_by_head else "GET"
        response = _send(self._keepalive, method, "/_ping", self.generation.host, None)
        response.read()
        offered = response.headers.get("Api-Version", UNVERSIONED_API)
        return f"/v{min(offered, self.generation.api, key=version_number)}"

    @cached_property
    def cgroup_driver(self) -> str:
        return str(self._call("GET", "/info")["CgroupDriver"])

    def run_pod_sandbox(self, name: str, uid: str, *, oom_score_adj: int = SANDBOX_OOM_SCORE_ADJ, **config: Any) -> str:
        """Run a pod sandbox with the fields of a Pod; return its id. ``cgroup_parent`` is a full path.

        If a machine cannot set a negative ``oom_score_adj`` give 0: the shim itself always requests -998.
        """
        pod = Pod(name, uid, **config)
        driver = self.cgroup_driver
        self._call("GET", f"/images/{PAUSE_IMAGE}/json")
        body = bodies.sandbox_body(pod, PAUSE_IMAGE, driver, oom_score_adj)
        sandbox_id = self._create(bodies.sandbox_name(pod), body)
        self.pods[sandbox_id] = pod
        self._call("POST", f"/containers/{sandbox_id}/start")
        self.inspect(sandbox_id)
        return sandbox_id

    def stop_pod_sandbox(self, sandbox_id: str) -> None:
        try:
            self.inspect(sandbox_id)
            self._call("POST", f"/containers/{sandbox_id}/stop?t={SANDBOX_GRACE_SECONDS}")
        except DockerError as error:
            if error.status != http.client.NOT_FOUND:
                raise

    def remove_pod_sandbox(self, sandbox_id: str) -> None:
        for container in self._list(f"io.kubernetes.sandbox.id={sandbox_id}"):
            self._delete(container["Id"])
        self._delete(sandbox_id)
        self.pods.pop(sandbox_id, None)

    def create_container(self, pod: str, name: str, *, image: str = BUSYBOX_IMAGE, **more: Any) -> str:
        """Create a container, with the fields of a Container, in the pod with this sandbox id; return its id."""
        config, container = self.pods[pod], Container(name, image, **{"command": ("sleep", "1000"), **more})
        runtime = self.inspect(pod)["HostConfig"]["Runtime"] if self.generation.reads_runtime else ""
        body = bodies.container_body(config, container, pod, self.cgroup_driver, runtime)
        return self._create(bodies.container_name(config, container), body)

    def _create(self, name: str, body: Mapping[str, Any]) -> str:
        """Create a container; if the name is in use, remove its owner for the kubelet's next try."""
        try:
            return str(self._call("POST", f"/containers/create?{urlencode({'name': name})}", body)["Id"])
        except DockerError as error:
            owner = CONFLICT.search(error.message)
            if error.status == http.client.CONFLICT and owner is not None:
                with suppress(DockerError):
                    self._call("DELETE", f"/containers/{owner[1]}?v=1")
            raise

    def start_container(self, container_id: str) -> None:
        """Start a created container; its log path is requested even if that failed."""
        try:
            self._call("POST", f"/containers/{container_id}/start")
        finally:
            self.inspect(container_id)

    def update_container_resources(self, container_id: str, resources: Values) -> None:
        body = bodies.update_body(resources, self.generation.moves_swap)
        self._call("POST", f"/containers/{container_id}/update", body)

    def stop_container(self, container_id: str, timeout: int = 0) -> None:
        """Stop a container within ``timeout`` seconds of grace; one that does not run counts as stopped."""
        self._call("POST", f"/containers/{container_id}/stop?t={timeout}")

    def remove_container(self, container_id: str) -> None:
        self.inspect(container_id)
        self._delete(container_id)

    def list_pod_sandboxes(self) -> list[dict[str, Any]]:
        return self._list("io.kubernetes.docker.type=podsandbox")

    def inspect(self, container_id: str) -> dict[str, Any]:
        return dict(self._call("GET", f"/containers/{container_id}/json"))

    def exec_sync(self, container_id: str, argv: Sequence[str]) -> tuple[int, bytes, bytes]:
        self.inspect(container_id)
        exec_id = self._call("POST", f"/containers/{container_id}/exec", bodies.exec_body(argv))["Id"]
        output = {1: b"", 2: b""}
        for number, data in self._frames("POST", f"/exec/{exec_id}/start", {"Detach": False, "Tty": False}, *UPGRADE):
            output[number] += data
        for _ in range(EXEC_INSPECTIONS):
            inspected = self._call("GET", f"/exec/{exec_id}/json")
            if not inspected["Running"]:
                return int(inspected["ExitCode"]), output[1], output[2]
            time.sleep(EXEC_INSPECTION_PAUSE_SECONDS)
        raise DockerError(http.client.OK, f"exec {exec_id} still runs although its output has ended")

    def logs(self, container_id: str) -> Iterator[tuple[int, bytes]]:
        """Yield a container's output as received: 1 for stdout or 2 for stderr, and the bytes of a frame."""
        return self._frames("GET", f"/containers/{container_id}/logs?stderr=1&stdout=1&tail=", None)

    def _frames(self, method: str, path: str, body: Any, *headers: Header) -> Iterator[tuple[int, bytes]]:
        """Yield the frames of a multiplexed stream, on a separate connection without a timeout or stdin."""
        with closing(UnixHttpConnection(self._path, timeout=None)) as connection:
            stream = _send(connection, method, self.prefix + path, self.generation.host, body, *headers)
            if headers:
                if stream.status != http.client.SWITCHING_PROTOCOLS:
                    raise DockerError(stream.status, "unable to upgrade to tcp")
                connection.sock.shutdown(socket.SHUT_WR)
                stream = stream.fp  # its buffer may contain bytes that followed the head
            while header := stream.read(8):
                number, length = struct.unpack(">BxxxL", header)
                yield number, stream.read(length)

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        """Make a call on the keep-alive connection, or a new one if the other side closed it; return the reply's JSON.

        Raises DockerError, and OSError or HTTPException if the connection fails.
        """
        prefix, headers = self.prefix, () if body is None else (JSON,)
        if self._keepalive.sock is not None and select.select([self._keepalive.sock], [], [], 0)[0]:
            self.close()
        try:
            content = _send(self._keepalive, method, prefix + path, self.generation.host, body, *headers).read()
        except (OSError, http.client.HTTPException):
            self.close()
            raise
        return json.loads(content) if content else None

    def _delete(self, container_id: str) -> None:
        self._call("DELETE", f"/containers/{container_id}?force=1&v=1")

    def _list(self, label: str) -> list[dict[str, Any]]:
        filters = go_json({"label": {label: True}}).decode().strip()
        return list(self._call("GET", f"/containers/json?all=1&filters={quote(filters, safe='')}"))
