"""A real containerd runs a hook server and the exporter of the image, with the rights of the chart."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.docs import ROOT
from tests.engines import cri
from tests.engines.containerd import Containerd
from tests.fakes import cri_pb2
from tests.soak import MARKS
from tests.soak.conftest import Findings
from tests.system.cri_front import CRI
from tests.system.proxy import wait_until

pytestmark = [*MARKS, pytest.mark.engine, pytest.mark.release]

NOBODY = 65534
PORT = 19654
DEVICES = {"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [{"minor": 3}]})}


def test_image_serves_hooks_and_metrics(containerd: Containerd, findings: Findings, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)  # for the exporter, which is nobody
    dist = tmp_path / "dist"
    subprocess.run(
        [sys.executable, "-m", "scripts.building", "--dirty", f"--dist={dist}", "image"], check=True, cwd=ROOT
    )
    [image] = dist.glob("*.tar")
    findings.note("MiB of the image", image.stat().st_size >> 20)
    with cri.CriClient(containerd.socket) as direct:
        containerd.ctr("images", "import", "--snapshotter", "native", "--base-name", "docker.io/library/rp", str(image))
        wait_until(lambda: bool(tags(direct)), "containerd lists the image")
        assert visible_gpu(containerd, direct, tmp_path) == "3"
        assert scrape_status(containerd, direct, tmp_path) == 200


def tags(direct: cri.CriClient) -> list[str]:
    """Return the image's name, if containerd has it."""
    return [tag for image in direct.images() for tag in image.repo_tags if tag.startswith("docker.io/library/rp:")]


def visible_gpu(engine: Containerd, direct: cri.CriClient, folder: Path) -> str:
    """Run a pod with the image's hook server; return the GPU that its container sees."""
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


def scrape_status(engine: Containerd, direct: cri.CriClient, folder: Path) -> int:
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
