"""A private dockerd: its own root, state, socket, containerd, images and cgroups; no other engine is touched.

Everything is found by this engine's own folder or cgroup prefix, and ended by process id.
"""

import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.engines import cgroups, images, leftovers
from tests.engines.containerd import EngineError

DOCKERD = "/usr/sbin/dockerd"
"""Debian's, whatever else stands on the PATH."""
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAMS = (DOCKERD, "containerd", "containerd-shim-runc-v2", "runc", "busybox")
PACKAGES = "docker.io busybox-static"
START_SECONDS = 30.0
STOP_SECONDS = 20.0
REQUEST_SECONDS = 60.0
DIRECTORIES = (*leftovers.SHIM_DIRECTORIES, *map(Path, ("/run/docker/plugins", "/run/docker", "/run/runc")))
"""Made by every dockerd, whatever its exec-root; the last by its BuildKit."""

BUSYBOX, PAUSE = (name.removeprefix("docker.io/library/") for name in images.IMAGES)
"""The images by the names that docker shows."""


class Dockerd:
    """A dockerd of our own with the test images; use as a context manager or with start and stop."""

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="rp-dockerd-"))
        self.socket = str(self.base / "docker.sock")
        self.log_file = self.base / "dockerd.log"
        self.cgroup_prefix = f"docker-{uuid.uuid4().hex[:8]}"
        self._daemon: subprocess.Popen[bytes] | None = None
        self._directories = leftovers.NewDirectories(DIRECTORIES)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> Self:
        """Start the daemon, wait until it answers, load the images.

        Raises EngineError.
        """
        if lacking := [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]:
            raise EngineError(f"not found: {', '.join(lacking)}; apt-get install {PACKAGES}")
        self.launch()
        busybox = shutil.which("busybox", path=PATH)
        assert busybox is not None
        self.request("POST", "/images/load", images.archive(Path(busybox)))
        return self

    def launch(self) -> None:
        """Start the daemon (again, after ``terminate``) and wait until it answers.

        Raises EngineError with the end of its log.
        """
        config = self.base / "daemon.json"
        config.write_text(json.dumps(self._config()))
        with self.log_file.open("ab") as log:
            # Without the machine's proxy variables, which dockerd would use for its registries.
            self._daemon = subprocess.Popen(
                [DOCKERD, "--config-file", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": PATH},
            )
        self._wait_until_it_answers(self._daemon)

    def terminate(self) -> None:
        """Stop the daemon and its containers; what it keeps on disk is there at the next ``launch``."""
        if self._daemon is None:
            return
        self._daemon.terminate()
        try:
            self._daemon.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._daemon.kill()
            self._daemon.wait()
        self._daemon = None

    def kill(self) -> None:
        """End the daemon at once (SIGKILL); its containers live on until the next ``launch`` or ``stop``."""
        assert self._daemon is not None
        self._daemon.kill()
        self._daemon.wait()
        self._daemon = None
        # Its containerd ends with it. Until process 1 has waited for that one, dockerd takes it for alive by its pid.
        (self.base / "exec/containerd/containerd.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        """Stop everything that this engine started, and remove all it made."""
        if self._daemon is not None and self._daemon.poll() is None:
            self._remove_containers(keep=set())  # or SIGTERM waits for each that does not listen to it
        self.terminate()
        leftovers.end(self.processes)
        leftovers.remove_shim_sockets(self.base / "exec/containerd/daemon")
        leftovers.unmount(self.base)
        cgroups.remove(self.cgroup_prefix)
        shutil.rmtree(self.base)
        self._directories.remove()

    def processes(self) -> set[int]:
        """Return the ids of the daemon, its containerd, the shims, and all processes in containers."""
        # The folder exec is named on their command lines and on nobody's who only talks to the daemon.
        return leftovers.processes(f"{self.base}/exec") | cgroups.processes(self.cgroup_prefix) | self._own_pid()

    def cgroup_parent(self, pod_uid: str, qos: str = "besteffort") -> str:
        """Name the cgroup parent that a kubelet of this engine's own would give a pod.

        Cgroups below this prefix, also those that a hook chose, are removed with the engine.
        """
        return f"/{self.cgroup_prefix}/{qos}/pod{pod_uid}"

    @property
    def default_cgroup_parent(self) -> str:
        """Name the cgroup parent of a container that asks for none."""
        return f"/{self.cgroup_prefix}/default"

    def directory(self, name: str) -> Path:
        """Make a directory that is removed with the engine."""
        path = self.base / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def request(self, method: str, path: str, body: bytes = b"", socket: str | None = None) -> bytes:
        """Send one request to this engine, or to ``socket``; return the body of its answer.

        Raises EngineError with what the daemon said, OSError if it does not listen.
        """
        connection = _UnixConnection(socket or self.socket)
        try:
            connection.request(method, path, body or None, {"Content-Type": "application/json"} if body else {})
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status >= 400:
            raise EngineError(f"dockerd answers {method} {path} with {response.status}: {answer.decode()}")
        return answer

    def get(self, path: str) -> Any:
        """Return what the daemon answers to a GET, out of its JSON."""
        return json.loads(self.request("GET", path))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Remove at the end of the block the containers, image names, images and build caches that came within it."""
        containers, kept_images = set(self._containers()), set(self._images())
        try:
            yield
        finally:
            self._remove_containers(containers)
            for reference in self._images():
                if reference not in kept_images:
                    self._delete(f"/images/{reference}?force=1")
            self.request("POST", "/build/prune?all=1")

    def _config(self) -> dict[str, Any]:
        return {
            "data-root": f"{self.base}/root",
            "exec-root": f"{self.base}/exec",
            "pidfile": f"{self.base}/docker.pid",
            "hosts": [f"unix://{self.socket}"],
            "deprecated-key-path": f"{self.base}/key.json",  # else it writes to /etc/docker
            "cgroup-parent": self.default_cgroup_parent,
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            # No network of the machine is changed: a container has its loopback, or the host's network.
            "bridge": "none",
            "iptables": False,
            "oom-score-adjust": 0,  # a machine may lack CAP_SYS_RESOURCE
        }

    def _wait_until_it_answers(self, daemon: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and daemon.poll() is None:
            if os.path.exists(self.socket) and self._answers():
                return
            time.sleep(0.02)
        state = "runs" if daemon.poll() is None else f"exited with {daemon.returncode}"
        log_end = self.log_file.read_text(errors="replace")[-2000:]
        raise EngineError(f"dockerd {state} but does not answer after {START_SECONDS:.0f} s; its log ends: {log_end}")

    def _answers(self) -> bool:
        try:
            return self.request("GET", "/_ping") == b"OK"
        except OSError:
            return False

    def _own_pid(self) -> set[int]:
        return set() if self._daemon is None or self._daemon.poll() is not None else {self._daemon.pid}

    def _containers(self) -> list[str]:
        return [container["Id"] for container in self.get("/containers/json?all=1")]

    def _images(self) -> list[str]:
        """Return names and digests before ids: an id that still has a name elsewhere would be refused."""
        listed = self.get("/images/json?all=1")
        names = [name for image in listed for key in ("RepoTags", "RepoDigests") for name in image[key] or ()]
        return [*(name for name in names if "<none>" not in name), *(image["Id"] for image in listed)]

    def _remove_containers(self, keep: set[str]) -> None:
        for container in self._containers():
            if container not in keep:
                self._delete(f"/containers/{container}?force=1&v=1")

    def _delete(self, path: str) -> None:
        try:
            self.request("DELETE", path)
        except EngineError as error:
            # Gone with another one, or on its way (run --rm).
            if "with 404" not in str(error) and "already in progress" not in str(error):
                raise


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("docker", timeout=REQUEST_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(REQUEST_SECONDS)
        self.sock.connect(self._path)
