"""A private containerd: its own root, state, socket, images and cgroups; other engines are unaffected."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc

from tests.engines import cgroups, images
from tests.engines.cri import CriClient
from tests.engines.engine import SHIM_DIRECTORIES, START_SECONDS, Engine, EngineError, processes

__all__ = ["Containerd", "EngineError"]

# restrict_oom_score_adj: a machine may lack CAP_SYS_RESOURCE. native: overlayfs does not nest on every machine, and the
# images are small. tcp streaming on port 0: the URLs of Exec must work.
# ignore_rdt_not_enabled_errors: a create may name an RDT class although this containerd has no RDT.
CONFIG = """
version = 2
root = "{base}/root"
state = "{base}/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]

grpc.address = "{socket}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  cni = {{ bin_dir = "/usr/lib/cni", conf_dir = "{base}/cni" }}
  containerd.snapshotter = "native"
  containerd.ignore_rdt_not_enabled_errors = true
  containerd.runtimes.runc = {{ runtime_type = "io.containerd.runc.v2", options = {{ Root = "{base}/runc" }} }}
"""


class Containerd(Engine):
    def __init__(self) -> None:
        super().__init__("containerd", "kubepods", SHIM_DIRECTORIES)

    def launch(self) -> None:
        config = self.base / "config.toml"
        config.write_text(CONFIG.format(base=self.base, socket=self.socket, pause=images.PAUSE_IMAGE))
        self._run(["containerd", "--config", str(config)], self._answers)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """At the end of the block restart the daemon if it has ended, and remove the pods created in the block."""
        retained = self._pods()
        try:
            yield
        finally:
            if self._daemon is None:
                self.launch()
            self._remove_pods(keep=retained)

    def stop(self) -> None:
        if self.runs:
            self._remove_pods(keep=set())
        mark = f"-address\0{self.socket}\0"
        self._end(lambda: processes(mark) | cgroups.processes(self.cgroup_prefix), self.base / "state")

    def load_images(self) -> None:
        busybox = shutil.which("busybox")
        assert busybox is not None
        archive = self.base / "images.tar"
        archive.write_bytes(images.archive(Path(busybox)))
        command = ["ctr", f"--address={self.socket}", "--namespace=k8s.io", "images", "import", "--snapshotter=native"]
        done = subprocess.run([*command, archive], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise EngineError(f"ctr failed with exit code {done.returncode}: {done.stderr.strip()}")
        # CRI is notified later, by an event, of images that were imported without it.
        deadline = time.monotonic() + START_SECONDS
        with CriClient(self.socket) as client:
            while not {tag for image in client.images() for tag in image.repo_tags}.issuperset(images.IMAGES):
                if time.monotonic() > deadline:
                    raise EngineError(f"containerd does not list the imported images after {START_SECONDS:.0f} s")
                time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            return os.path.exists(self.socket) and self._pods() is not None  # fails until the pods are loaded
        except grpc.RpcError:
            return False

    def _pods(self) -> set[str]:
        with CriClient(self.socket) as client:
            return {pod.id for pod in client.pods()}

    def _remove_pods(self, keep: set[str]) -> None:
        with CriClient(self.socket) as client:
            for pod_id in self._pods() - keep:
                with suppress(grpc.RpcError):  # ended below by process id
                    client.stop_pod(pod_id)
                    client.remove_pod(pod_id)
