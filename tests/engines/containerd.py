"""A private containerd: its own root, state, socket, images and cgroups; nothing of another engine is touched.

Everything is found by this engine's own directory or cgroup prefix, and ended by process id.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from tests.engines import cgroups, images, leftovers
from tests.engines.cri import CriClient

BINARIES = ("containerd", "ctr", "runc", "containerd-shim-runc-v2", "busybox")
START_SECONDS = 30.0
STOP_SECONDS = 10.0

# restrict_oom_score_adj: a machine may lack CAP_SYS_RESOURCE. native: overlayfs does not nest on every machine, and the
# images are small. tcp streaming on port 0: the URLs of Exec, Attach and PortForward must work.
# ignore_rdt_not_enabled_errors: a create may name an RDT class although this containerd has no RDT.
CONFIG = """
version = 2
root = "{base}/root"
state = "{base}/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]

[grpc]
  address = "{socket}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "{base}/cni"

[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "native"
  ignore_rdt_not_enabled_errors = true

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  Root = "{base}/runc"
"""


class EngineError(Exception):
    """The engine is missing or did not start; the text says what to do."""


def missing_binaries() -> list[str]:
    """Name the programs that the engine needs and the machine lacks."""
    return [name for name in BINARIES if shutil.which(name) is None]


class Containerd:
    """A containerd of our own, with images and cgroup parents; use as a context manager or with start and stop."""

    def __init__(self) -> None:
        self._base = Path(tempfile.mkdtemp(prefix="rp-containerd-"))
        self.socket = str(self._base / "containerd.sock")
        self.log_file = self._base / "containerd.log"
        self._kubepods = f"kubepods-{uuid.uuid4().hex[:8]}"
        self._daemon: subprocess.Popen[bytes] | None = None
        self._directories = leftovers.NewDirectories(leftovers.SHIM_DIRECTORIES)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> Self:
        """Start the daemon, wait until CRI answers, import the images.

        Raises EngineError.
        """
        if lacking := missing_binaries():
            packages = "apt-get install containerd runc containernetworking-plugins busybox-static"
            raise EngineError(f"not found: {', '.join(lacking)}; {packages}")
        self.launch()
        self._import_images()
        return self

    def launch(self) -> None:
        """Start the daemon (again, after its end) and wait until CRI answers."""
        config = self._base / "config.toml"
        config.write_text(CONFIG.format(base=self._base, socket=self.socket, pause=images.PAUSE_IMAGE))
        with self.log_file.open("ab") as log:
            self._daemon = subprocess.Popen(
                ["containerd", "--config", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._wait_until_it_answers(self._daemon)

    def terminate(self) -> None:
        """Stop the daemon alone; containers and shims live on, as in an upgrade of containerd."""
        if self._daemon is None:
            return
        self._daemon.terminate()
        try:
            self._daemon.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._daemon.kill()
            self._daemon.wait()
        self._daemon = None

    def halt(self) -> None:
        """Halt the daemon (SIGSTOP): what is asked of it waits, until ``kill``."""
        assert self._daemon is not None
        self._daemon.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """End the daemon at once (SIGKILL); containers and shims live on."""
        assert self._daemon is not None
        self._daemon.kill()
        self._daemon.wait()
        self._daemon = None

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Have the daemon run at the end of the block, whatever became of it, without the pods that came within it."""
        kept = self._pods()
        try:
            yield
        finally:
            if self._daemon is None:
                self.launch()
            else:
                self._daemon.send_signal(signal.SIGCONT)
            self._remove_pods(keep=kept)

    def stop(self) -> None:
        """Stop everything that this engine started, and remove all it made."""
        if self._daemon is not None and self._daemon.poll() is None:
            self._remove_pods(keep=set())
        self.terminate()
        leftovers.end(self._leftovers)
        leftovers.remove_shim_sockets(self._base / "state")
        leftovers.unmount(self._base)
        cgroups.remove(self._kubepods)
        shutil.rmtree(self._base)
        self._directories.remove()

    def cgroup_parent(self, pod_uid: str, qos: str = "besteffort") -> str:
        """Name the cgroup parent that a kubelet of this engine's own would give a pod.

        Cgroups below this prefix, also those that a hook chose, are removed with the engine.
        """
        return f"/{self._kubepods}/{qos}/pod{pod_uid}"

    def directory(self, name: str) -> Path:
        """Make a directory that is removed with the engine."""
        path = self._base / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def ctr(self, *arguments: str, socket: str | None = None) -> str:
        """Run ctr against this engine, or against ``socket``; return its output.

        Raises EngineError with what ctr said.
        """
        command = ["ctr", "--address", socket or self.socket, "--namespace", "k8s.io", *arguments]
        done = subprocess.run(
            command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
        if done.returncode:
            raise EngineError(f"ctr {arguments[0]} failed with exit code {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def _wait_until_it_answers(self, daemon: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and daemon.poll() is None:
            if os.path.exists(self.socket) and self._answers():
                return
            time.sleep(0.05)
        state = "runs" if daemon.poll() is None else f"exited with {daemon.returncode}"
        log_end = self.log_file.read_text(errors="replace")[-2000:]
        raise EngineError(
            f"containerd {state} but does not answer CRI after {START_SECONDS:.0f} s; its log ends: {log_end}"
        )

    def _answers(self) -> bool:
        with CriClient(self.socket) as client:
            try:
                client.pods()  # unlike the version, told only when what was there is known
            except grpc.RpcError:
                return False
        return True

    def _import_images(self) -> None:
        busybox = shutil.which("busybox")
        assert busybox is not None
        archive = self._base / "images.tar"
        archive.write_bytes(images.archive(Path(busybox)))
        self.ctr("images", "import", "--snapshotter", "native", str(archive))
        self._wait_for_images()

    def _wait_for_images(self) -> None:
        # CRI learns of images imported behind its back by an event, a moment later.
        deadline = time.monotonic() + START_SECONDS
        with CriClient(self.socket) as client:
            while time.monotonic() < deadline:
                known = {tag for image in client.images() for tag in image.repo_tags}
                if known.issuperset(images.IMAGES):
                    return
                time.sleep(0.05)
        raise EngineError(f"containerd does not list the imported images after {START_SECONDS:.0f} s")

    def _pods(self) -> set[str]:
        with CriClient(self.socket) as client:
            return {pod.id for pod in client.pods()}

    def _remove_pods(self, keep: set[str]) -> None:
        with CriClient(self.socket) as client:
            for pod_id in self._pods() - keep:
                try:
                    client.stop_pod(pod_id)
                    client.remove_pod(pod_id)
                except grpc.RpcError:
                    continue  # what CRI cannot end is ended by its process ids below

    def _leftovers(self) -> set[int]:
        return leftovers.processes(f"-address\0{self.socket}\0") | cgroups.processes(self._kubepods)
