"""The private dockerd runs real containers, without any proxy: what other tests rely on."""

import json
import os
import stat
from pathlib import Path

import pytest

from tests.engines import cgroups, docker_cli, leftovers
from tests.engines.docker_cli import Outcome, Typed
from tests.engines.dockerd import BUSYBOX, PAUSE, Dockerd
from tests.engines.engine import EngineError
from tests.engines.registry import Registry
from tests.fakes.dockershim_bodies import SETTINGS

pytestmark = pytest.mark.engine

LEAST_VERSION, LEAST_API = (20, 10), (1, 41)
# overlayfs does not nest on every machine.
DRIVERS = {"overlay2", "vfs"}
KEY_FILE = Path("/etc/docker/key.json")
"""Written by a dockerd that is not told otherwise."""
RESOURCES = {"cpu_shares": 512, "cpu_quota": 50000, "cpu_period": 100000, "memory_limit_in_bytes": 64 << 20}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def start(engine: Dockerd, **host: object) -> str:
    # The first process of a container ignores SIGTERM unless it asks for it.
    body = {"Image": BUSYBOX, "Cmd": ["sleep", "1000"], "StopSignal": "SIGKILL", "HostConfig": host}
    made = json.loads(engine.request("POST", "/containers/create", json.dumps(body).encode()))["Id"]
    engine.request("POST", f"/containers/{made}/start")
    return str(made)


def test_daemon_is_the_expected_one(dockerd: Dockerd) -> None:
    version, info = dockerd.get("/version"), dockerd.get("/info")
    assert numbers(version["Version"]) >= LEAST_VERSION
    assert numbers(version["MinAPIVersion"]) <= LEAST_API <= numbers(version["ApiVersion"])
    assert info["Driver"] in DRIVERS
    assert info["CgroupDriver"] == "cgroupfs"
    assert info["DockerRootDir"].startswith(str(dockerd.base))
    assert stat.S_ISSOCK(os.stat(dockerd.socket).st_mode)


@pytest.mark.parametrize("host", [{}, {"NetworkMode": "none"}, {"NetworkMode": "host"}], ids=str)
def test_container_runs_under_its_cgroup_parent(dockerd: Dockerd, host: dict[str, object]) -> None:
    with dockerd.restored():
        own = start(dockerd, **host)
        parent = dockerd.cgroup_parent("one")
        asked = start(dockerd, **host, CgroupParent=parent, **{SETTINGS[name]: RESOURCES[name] for name in RESOURCES})
        pids = {made: dockerd.get(f"/containers/{made}/json")["State"]["Pid"] for made in (own, asked)}
        assert cgroups.processes(f"{dockerd.default_cgroup_parent}/{own}") == {pids[own]}
        assert cgroups.processes(f"{parent}/{asked}") == {pids[asked]}
        for setting, value in RESOURCES.items():
            assert cgroups.read(f"{parent}/{asked}", setting) == cgroups.expected(setting, value)
            inside = docker_cli.run(dockerd.socket, "exec", asked, "cat", cgroups.inside_file(setting)).stdout.decode()
            assert cgroups.parse(setting, inside) == cgroups.expected(setting, value)
    assert dockerd.get("/containers/json?all=1") == []


def test_images_are_there(dockerd: Dockerd) -> None:
    names = {name for image in dockerd.get("/images/json") for name in image["RepoTags"]}
    assert {BUSYBOX, PAUSE} <= names
    with pytest.raises(EngineError, match=r"404: .*No such container"):
        dockerd.get("/containers/none/json")


def image_ids(engine: Dockerd) -> dict[str, list[str]]:
    """Return the names of each image. dockerd lists images that were made at the same time in any order."""
    return {image["Id"]: image["RepoTags"] for image in engine.get("/images/json?all=1")}


def test_restored_removes_what_its_block_made(dockerd: Dockerd) -> None:
    before = image_ids(dockerd)
    with dockerd.restored():
        made = start(dockerd)
        dockerd.request("POST", f"/commit?container={made}&repo=committed&tag=1")
        dockerd.request("POST", f"/images/{BUSYBOX}/tag?repo=another&tag=1")
    assert image_ids(dockerd) == before
    assert dockerd.get("/containers/json?all=1") == []


def test_cli_has_pipes_or_a_terminal(dockerd: Dockerd) -> None:
    script = "echo out; echo err >&2; cat; exit 7"
    with dockerd.restored():
        piped = docker_cli.run(dockerd.socket, "run", "-i", "--rm", BUSYBOX, "sh", "-c", script, stdin=b"in")
        assert piped == Outcome(7, b"out\nin", b"err\n")
        typed = docker_cli.run(
            dockerd.socket,
            *("run", "-it", "--rm", BUSYBOX, "sh", "-c", "echo ready; read line; echo got $line; exit 3"),
            terminal=[Typed(b"ready", b"a word\n")],
        )
        assert typed == Outcome(3, b"ready\r\na word\r\ngot a word\r\n")


def test_registry_takes_and_gives(dockerd: Dockerd) -> None:
    with dockerd.restored(), Registry() as registry:
        name = f"{registry.address}/pushed:1"
        commands = (("tag", BUSYBOX, name), ("push", name), ("rmi", name), ("pull", name))
        outcomes = [docker_cli.run(dockerd.socket, *command) for command in commands]
        assert [outcome.exit_code for outcome in outcomes] == [0] * 4, outcomes
        assert b"Downloaded newer image" in outcomes[-1].stdout


@pytest.mark.parametrize("killed", [False, True], ids=["terminated", "killed"])
def test_engine_leaves_nothing_behind(killed: bool) -> None:
    there_before = KEY_FILE.exists()
    with Dockerd() as engine:
        made = start(engine, CgroupParent=engine.cgroup_parent("left"))
        assert len(engine.processes()) == 4, "daemon, containerd, shim, container"
        if killed:
            engine.kill()
            assert cgroups.processes(engine.cgroup_prefix), "containers outlive a killed daemon"
        else:
            engine.terminate()
            engine.launch()
            assert [container["Id"] for container in engine.get("/containers/json?all=1")] == [made]
        addresses = [
            Path(bundle.read_text().removeprefix("unix://"))
            for bundle in engine.base.glob("exec/containerd/daemon/io.containerd.runtime.v2.task/*/*/address")
        ]
        assert bool(addresses) == killed
    assert not engine.base.exists()
    assert not leftovers.processes(str(engine.base))
    assert not leftovers.mounts(engine.base)
    assert not list(cgroups.directories(engine.cgroup_prefix))
    assert not [path for path in addresses if path.exists()]
    assert KEY_FILE.exists() == there_before
