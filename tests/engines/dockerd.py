"""A private dockerd: its own root, state, socket, containerd, images and cgroups; other engines are unaffected."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.engines import cgroups, images
from tests.engines.engine import SHIM_DIRECTORIES, Engine, EngineError, processes
from tests.engines.probe import DOCKERD, PATH
from tests.fakes.dockerd_client import UnixHttpConnection

REQUEST_SECONDS = 60.0
DIRECTORIES = (*SHIM_DIRECTORIES, *map(Path, ("/run/docker/plugins", "/run/docker", "/run/runc")))
"""Directories created by every dockerd, independent of its exec-root; the last one by its BuildKit."""

BUSYBOX, PAUSE = (name.removeprefix("docker.io/library/") for name in images.IMAGES)
"""The images by the names that docker shows."""


class Dockerd(Engine):
    def __init__(self) -> None:
        super().__init__("dockerd", "docker", DIRECTORIES)

    def load_images(self) -> None:
        busybox = shutil.which("busybox", path=PATH)
        assert busybox is not None
        self.request("POST", "/images/load", images.archive(Path(busybox)))

    def launch(self) -> None:
        options = subprocess.run([DOCKERD, "--help"], capture_output=True, text=True, check=True, env={"PATH": PATH})
        config = {
            "data-root": f"{self.base}/root",
            "exec-root": f"{self.base}/exec",
            "pidfile": f"{self.base}/docker.pid",
            "hosts": [f"unix://{self.socket}"],
            "deprecated-key-path": f"{self.base}/key.json",  # not in /etc/docker
            "cgroup-parent": f"/{self.cgroup_prefix}/default",
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            # No network of the machine is changed: a container has its loopback, or the host's network.
            "bridge": "none",
            "iptables": False,
        }
        if "oom-score-adjust" in options.stdout:  # before Docker 25; without CAP_SYS_RESOURCE its default is refused
            config["oom-score-adjust"] = 0
        (self.base / "daemon.json").write_text(json.dumps(config))
        # Without the machine's proxy variables, which dockerd would use for its registries.
        self._run([DOCKERD, f"--config-file={self.base}/daemon.json"], self._answers, {"PATH": PATH})

    def kill(self) -> None:
        super().kill()
        # Its containerd ends with it. Until process 1 has reaped that process, dockerd considers it alive.
        (self.base / "exec/containerd/containerd.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        if self.runs:
            self._remove_containers(keep=set())  # SIGTERM would wait for those that ignore it

        # The folder exec is in the command lines of its containerd and the shims, but in no client's.
        mark = f"{self.base}/exec"
        self._end(lambda: processes(mark) | cgroups.processes(self.cgroup_prefix), self.base / "exec/containerd/daemon")

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Send one request; return the body of its answer.

        Raises EngineError with the daemon's error text, OSError if it does not listen.
        """
        connection = UnixHttpConnection(self.socket, timeout=REQUEST_SECONDS)
        try:
            headers = {"Host": "docker"} | ({"Content-Type": "application/json"} if body else {})
            connection.request(method, path, body or None, headers)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status >= 400:
            raise EngineError(f"dockerd answers {method} {path} with {response.status}: {answer.decode()}")
        return answer

    def get(self, path: str) -> Any:
        return json.loads(self.request("GET", path))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Remove at the end of the block the containers, image names, images and build caches created in it."""
        containers, initial_images = set(self._containers()), set(self._images())
        try:
            yield
        finally:
            self._remove_containers(containers)
            for reference in (name for name in self._images() if name not in initial_images):
                self._delete(f"/images/{reference}?force=1")
            self.request("POST", "/build/prune?all=1")

    def _answers(self) -> bool:
        try:
            return self.request("GET", "/_ping") == b"OK"
        except OSError:
            return False

    def _containers(self) -> list[str]:
        return [container["Id"] for container in self.get("/containers/json?all=1")]

    def _images(self) -> list[str]:
        """Return names and digests before ids: dockerd refuses to remove an id that still has a name."""
        listed = self.get("/images/json?all=1")
        names = [name for image in listed for key in ("RepoTags", "RepoDigests") for name in image[key] or ()]
        return [*(name for name in names if "<none>" not in name), *(image["Id"] for image in listed)]

    def _remove_containers(self, keep: set[str]) -> None:
        for container in {*self._containers()} - keep:
            self._delete(f"/containers/{container}?force=1&v=1")

    def _delete(self, path: str) -> None:
        try:
            self.request("DELETE", path)
        except EngineError as error:
            # Already removed, or being removed (run --rm).
            if "with 404" not in str(error) and "already in progress" not in str(error):
                raise
