"""A private dockerd: its own root, state, socket, containerd, images and cgroups; other engines are unaffected."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.engines import cgroups, images, leftovers
from tests.engines.engine import Engine, EngineError
from tests.engines.probe import DOCKERD, PATH
from tests.fakes.dockerd_client import UnixHttpConnection

REQUEST_SECONDS = 60.0
DIRECTORIES = (*leftovers.SHIM_DIRECTORIES, *map(Path, ("/run/docker/plugins", "/run/docker", "/run/runc")))
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
        config = self.base / "daemon.json"
        config.write_text(json.dumps(self._config()))
        # Without the machine's proxy variables, which dockerd would use for its registries.
        self._run([DOCKERD, "--config-file", str(config)], self._answers, {"PATH": PATH})

    def kill(self) -> None:
        super().kill()
        # Its containerd ends with it. Until process 1 has reaped that process, dockerd considers it alive.
        (self.base / "exec/containerd/containerd.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        if self.runs:
            self._remove_containers(keep=set())  # SIGTERM would wait for those that ignore it

        def processes() -> set[int]:
            """Return the ids of its containerd, the shims, and all processes in containers."""
            # The folder exec is in their command lines, but in no client's.
            return leftovers.processes(f"{self.base}/exec") | cgroups.processes(self.cgroup_prefix)

        self._end(processes, self.base / "exec/containerd/daemon")

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
            for reference in self._images():
                if reference not in initial_images:
                    self._delete(f"/images/{reference}?force=1")
            self.request("POST", "/build/prune?all=1")

    def _config(self) -> dict[str, Any]:
        return {
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
            **_oom_score(),
        }

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
        for container in self._containers():
            if container not in keep:
                self._delete(f"/containers/{container}?force=1&v=1")

    def _delete(self, path: str) -> None:
        try:
            self.request("DELETE", path)
        except EngineError as error:
            # Already removed, or being removed (run --rm).
            if "with 404" not in str(error) and "already in progress" not in str(error):
                raise


@cache
def _oom_score() -> dict[str, int]:
    """Return the setting of dockerd's own OOM score, which a machine without CAP_SYS_RESOURCE refuses to lower.

    Docker 25 has neither the option nor the default.
    """
    options = subprocess.run([DOCKERD, "--help"], capture_output=True, text=True, check=True, env={"PATH": PATH})
    return {"oom-score-adjust": 0} if "oom-score-adjust" in options.stdout else {}
