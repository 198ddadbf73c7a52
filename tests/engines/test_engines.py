"""The private engines, without any proxy: they touch nothing of another's, and leave nothing behind."""

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.engines import cgroups, cri, leftovers
from tests.engines.containerd import Containerd
from tests.engines.dockerd import BUSYBOX, Dockerd
from tests.system.proxy import wait_until

KEY_FILE = Path("/etc/docker/key.json")
"""Written by a dockerd that is not configured otherwise."""


def test_processes_with_the_mark_are_ended_and_no_others() -> None:
    mark = uuid.uuid4().hex
    command = [sys.executable, "-c", "import time; time.sleep(1000)"]
    marked, other = subprocess.Popen([*command, mark]), subprocess.Popen(command)
    try:
        wait_until(lambda: leftovers.processes(mark) == {marked.pid}, "it runs its program, and is found")
        leftovers.end(lambda: leftovers.processes(mark))
        assert (marked.wait(), other.poll()) == (-9, None)
    finally:
        for process in (marked, other):
            process.kill()
            process.wait()


def test_new_directories_go_when_they_are_empty(tmp_path: Path) -> None:
    old, new, used = tmp_path / "old", tmp_path / "new", tmp_path / "used"
    old.mkdir()
    directories = leftovers.NewDirectories([new / "below", new, old, used])
    (new / "below").mkdir(parents=True)
    used.mkdir()
    (used / "file").touch()
    directories.remove()
    assert sorted(tmp_path.iterdir()) == [old, used]


def assert_gone(engine: Containerd | Dockerd) -> None:
    assert not engine.base.exists()
    assert not leftovers.processes(str(engine.base))
    assert not leftovers.mounts(engine.base)
    assert not list(cgroups.directories(engine.cgroup_prefix))


@pytest.mark.engine
def test_containerd_leaves_nothing_behind() -> None:
    with Containerd() as engine:
        parent = engine.cgroup_parent("left")
        pod = cri.pod_config("left", "left", cgroup_parent=parent, log_directory=str(engine.directory("logs")))
        with cri.CriClient(engine.socket) as client:
            container_id = client.create(client.run_pod(pod), cri.container_config("main"), pod)
            client.start(container_id)
        engine.terminate()
        assert cgroups.processes(parent), "containers outlive the daemon alone"
        engine.launch()
        with cri.CriClient(engine.socket) as client:
            assert [item.id for item in client.containers()] == [container_id]
        engine.terminate()  # so that only what the engine itself finds can be ended
    assert_gone(engine)


# ---- dockerd


def start(engine: Dockerd, **host: object) -> str:
    # The first process of a container ignores SIGTERM unless it handles it.
    body = {"Image": BUSYBOX, "Cmd": ["sleep", "1000"], "StopSignal": "SIGKILL", "HostConfig": host}
    made = json.loads(engine.request("POST", "/containers/create", json.dumps(body).encode()))["Id"]
    engine.request("POST", f"/containers/{made}/start")
    return str(made)


@pytest.mark.engine
@pytest.mark.parametrize("killed", [False, True], ids=["terminated", "killed"])
def test_dockerd_leaves_nothing_behind(killed: bool) -> None:
    there_before = KEY_FILE.exists()
    with Dockerd() as engine:
        made = start(engine, CgroupParent=engine.cgroup_parent("left"))
        assert engine.get("/info")["DockerRootDir"].startswith(str(engine.base))
        assert len(engine.processes()) == 4, "daemon, containerd, shim, container"
        if killed:
            engine.kill()
            assert cgroups.processes(engine.cgroup_prefix), "containers outlive a killed daemon"
        else:
            engine.terminate()
            engine.launch()
            assert [container["Id"] for container in engine.get("/containers/json?all=1")] == [made]
        bundles = engine.base.glob("exec/containerd/daemon/io.containerd.runtime.v2.task/*/*/address")
        addresses = [Path(bundle.read_text().removeprefix("unix://")) for bundle in bundles]
        assert bool(addresses) == killed
    assert_gone(engine)
    assert not [path for path in addresses if path.exists()]
    assert KEY_FILE.exists() == there_before


@pytest.mark.engine
def test_restored_removes_what_its_block_made(dockerd: Dockerd) -> None:
    def images() -> dict[str, list[str]]:
        """Return the images of the machine's own dockerd; those created at the same time are listed in any order."""
        return {image["Id"]: image["RepoTags"] for image in dockerd.get("/images/json?all=1")}

    before = images()
    with dockerd.restored():
        made = start(dockerd)
        dockerd.request("POST", f"/commit?container={made}&repo=committed&tag=1")
        dockerd.request("POST", f"/images/{BUSYBOX}/tag?repo=another&tag=1")
    assert images() == before
    assert dockerd.get("/containers/json?all=1") == []
