"""The step of the image: a real containerd runs a hook server and the exporter of it, each with no more rights than its
chart gives it.

Must not know: how the image is made.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

from scripts.building.__main__ import build
from scripts.figures import MIB, Figure
from tests.engines import cri
from tests.engines.containerd import Containerd
from tests.fakes import cri_pb2
from tests.system.cri_front import CRI
from tests.system.proxy import wait_until

NOBODY = 65534
PORT = 19654
DEVICES = {"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [{"minor": 3}]})}


def image(share: float) -> list[Figure]:
    """Build the image and run both programs."""
    with tempfile.TemporaryDirectory(prefix="rp-image-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # for the exporter, which is nobody
        [made] = [path for path in build(["image"], folder / "dist", dirty=True) if path.suffix == ".tar"]
        size = made.stat().st_size
        with Containerd() as engine, cri.CriClient(engine.socket) as direct:
            engine.ctr("images", "import", "--snapshotter", "native", "--base-name", "docker.io/library/rp", str(made))
            wait_until(lambda: bool(tags(direct)), "containerd lists the image")
            visible, status = hooked(engine, direct, folder), scraped(engine, direct, folder)
    return [
        Figure("size of the image", f"{size / MIB:.0f} MiB"),
        Figure("GPU of a container, by the image's hook server without a capability", visible, "3", visible == "3"),
        Figure("status of a scrape by the image's exporter as nobody", f"{status}", "200", status == 200),
    ]


def tags(direct: cri.CriClient) -> list[str]:
    """Return the image's name, if containerd has it."""
    return [tag for image in direct.images() for tag in image.repo_tags if tag.startswith("docker.io/library/rp:")]


def hooked(engine: Containerd, direct: cri.CriClient, folder: Path) -> str:
    """Run a pod beside the image's hook server; return what the container sees of its annotation."""
    sockets = folder / "hooks"
    sockets.mkdir()
    proxy = CRI.process(folder / "proxy", remote_runtime_service_endpoint=engine.socket)
    program = ["runtimeproxy-hooks", "gpu", f"--endpoint={sockets}/gpu.sock", f"--register-dir={proxy.registrations}"]
    with proxy, running(engine, direct, program, 0, sockets, proxy.registrations):
        proxy.wait_for_registration("gpu.json")
        pod = cri.pod_config("pod", "uid", cgroup_parent=engine.cgroup_parent("uid"), annotations=DEVICES)
        with cri.CriClient(str(proxy.socket)) as client:
            container_id = client.create(client.run_pod(pod), cri.container_config("main"), pod)
            client.start(container_id)
            return client.environment(container_id).get("NVIDIA_VISIBLE_DEVICES", b"").decode()


def scraped(engine: Containerd, direct: cri.CriClient, folder: Path) -> int:
    """Let the image's exporter serve a proxy's metrics; return the status of a scrape."""
    metrics = folder / "metrics" / "metrics.sock"
    flags = {"metrics_endpoint": str(metrics), "metrics_group": str(NOBODY)}
    proxy = CRI.process(folder / "measured", remote_runtime_service_endpoint=engine.socket, **flags)
    program = ["runtimeproxy", "export", f"--metrics-endpoint={metrics}", f"--listen=127.0.0.1:{PORT}"]
    with proxy, running(engine, direct, program, None, metrics.parent):
        statuses: list[int] = []

        def answers() -> bool:
            client = HTTPConnection("127.0.0.1", PORT, timeout=10)
            try:
                client.request("GET", "/metrics")
                statuses.append(client.getresponse().status)
            except ConnectionRefusedError:
                return False
            finally:
                client.close()
            return True

        wait_until(answers, "the exporter answers")
        return statuses[0]


@contextmanager
def running(
    engine: Containerd, direct: cri.CriClient, program: Sequence[str], user: int | None, *mounts: Path
) -> Iterator[None]:
    """Run a program of the image as a user (None: the image's) with nothing of the host but its network and these
    directories: no capability, and a root that cannot be written."""
    uid = program[0]
    pod = cri.pod_config(uid, uid, cgroup_parent=engine.cgroup_parent(uid), log_directory=str(engine.directory("logs")))
    config = cri.container_config("main", command=program, image=tags(direct)[0])
    config.mounts.extend(cri_pb2.Mount(container_path=str(path), host_path=str(path)) for path in mounts)
    rights = config.linux.security_context
    rights.readonly_rootfs = rights.no_new_privs = True
    rights.capabilities.drop_capabilities.append("ALL")
    if user is not None:
        rights.run_as_user.value = user
    pod_id = direct.run_pod(pod)
    try:
        container_id = direct.create(pod_id, config, pod)
        direct.start(container_id)
        yield
        assert direct.status(container_id).status.state == cri_pb2.CONTAINER_RUNNING
    finally:
        direct.stop_pod(pod_id)
        direct.remove_pod(pod_id)
