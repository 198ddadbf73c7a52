"""A fake dockerd of a newer Engine answers as that does, by the API version that a request names."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.dockerd import FakeDockerd
from tests.fakes.dockerd_client import Raw, ask
from tests.fakes.dockerd_engines import ENGINE_20, ENGINE_28, ENGINE_29, Engine
from tests.fakes.dockershim import DOCKERSHIM, DockerError, Dockershim

IMAGE = "runtimeproxy-busybox:1"
ID = "k8s_app"


@asynccontextmanager
async def daemon(folder: Path, engine: Engine) -> AsyncIterator[FakeDockerd]:
    async with FakeDockerd(str(folder / "docker.sock"), engine=engine) as dockerd:
        body = {"Image": IMAGE, "Cmd": ["sleep", "9"]}
        assert (await ask(dockerd.socket_path, "POST", f"/containers/create?name={ID}", body)).status == 201
        yield dockerd


async def told(dockerd: FakeDockerd, target: str) -> Any:
    reply = await ask(dockerd.socket_path, "GET", target)
    assert reply.status == 200, reply.message
    return reply.json


def at(document: Any, path: str) -> Any:
    for name in path.split("."):
        document = document.get(name, "away") if isinstance(document, dict) else "away"
    return document


@pytest.mark.parametrize(
    ("engine", "api", "minimum", "builder", "swarm"),
    [
        (ENGINE_20, "1.41", "1.12", "1", None),
        (ENGINE_28, "1.51", "1.24", "2", "inactive"),
        (ENGINE_29, "1.52", "1.44", "2", "inactive"),
    ],
    ids=["20.10", "28", "29"],
)
async def test_a_ping_and_the_window_of_versions(
    tmp_path: Path, engine: Engine, api: str, minimum: str, builder: str, swarm: str | None
) -> None:
    async with daemon(tmp_path, engine) as dockerd:
        for method, target in (("GET", "/_ping"), ("HEAD", "/_ping"), ("GET", f"/v{minimum}/_ping")):
            headers = (await ask(dockerd.socket_path, method, target)).headers
            assert (headers["Api-Version"], headers["Builder-Version"], headers.get("Swarm")) == (api, builder, swarm)
            assert headers["Server"] == f"Docker/{engine.version} (linux)"
        version = await told(dockerd, "/version")
        assert (version["Version"], version["ApiVersion"], version["MinAPIVersion"]) == (engine.version, api, minimum)


@pytest.mark.parametrize(
    ("engine", "target", "message"),
    [
        (ENGINE_28, "/v1.23/info", "client version 1.23 is too old. Minimum supported API version is 1.24"),
        (ENGINE_29, "/v1.43/info", "client version 1.43 is too old. Minimum supported API version is 1.44"),
        (ENGINE_28, "/v1.52/info", "client version 1.52 is too new. Maximum supported API version is 1.51"),
        (ENGINE_29, "/v1.53/info", "client version 1.53 is too new. Maximum supported API version is 1.52"),
    ],
)
async def test_a_version_outside_the_window_is_refused(
    tmp_path: Path, engine: Engine, target: str, message: str
) -> None:
    async with daemon(tmp_path, engine) as dockerd:
        reply = await ask(dockerd.socket_path, "GET", target)
        assert reply.status == 400
        assert (reply.body.decode() if "1.23" in target else reply.message).startswith(message)


@pytest.mark.parametrize(
    ("engine", "target", "shown"),
    [
        (ENGINE_20, "/info", {"CgroupVersion": "1", "DefaultRuntime": "runc", "Runtimes.runc.status": "away"}),
        (ENGINE_28, "/info", {"CgroupVersion": "2", "DefaultRuntime": "runc", "Runtimes.runc.status": {}}),
        (ENGINE_28, "/v1.48/info", {"FirewallBackend": "away", "CgroupDriver": "cgroupfs"}),
        (ENGINE_29, "/info", {"Driver": "overlayfs", "DiscoveredDevices": [], "CgroupDriver": "cgroupfs"}),
        (
            ENGINE_20,
            f"/containers/{ID}/json",
            {"Config.OnBuild": None, "NetworkSettings.Bridge": "", "HostConfig.NetworkMode": "default"},
        ),
        (
            ENGINE_28,
            f"/containers/{ID}/json",
            {"HostConfig.NetworkMode": "bridge", "HostConfig.CgroupnsMode": "private", "Config.OnBuild": None},
        ),
        (
            ENGINE_29,
            f"/containers/{ID}/json",
            {
                "Config.OnBuild": "away",
                "Config.Image": IMAGE,
                "NetworkSettings.Bridge": "away",
                "GraphDriver": "away",
                "Storage.RootFS.Snapshot.Name": "overlayfs",
                "HostConfig.Runtime": "runc",
            },
        ),
        (
            ENGINE_29,
            f"/v1.44/containers/{ID}/json",
            {
                "Config.OnBuild": None,
                "NetworkSettings.Bridge": "",
                "GraphDriver.Name": "overlayfs",
                "Storage": "away",
                "ImageManifestDescriptor": "away",
            },
        ),
    ],
)
async def test_what_an_answer_has_in_each_version(
    tmp_path: Path, engine: Engine, target: str, shown: dict[str, Any]
) -> None:
    async with daemon(tmp_path, engine) as dockerd:
        document = await told(dockerd, target)
        assert {path: at(document, path) for path in shown} == shown


@pytest.mark.parametrize(
    ("engine", "version", "keys"),
    [
        (ENGINE_28, "/v1.48", {"Env", "Cmd", "Entrypoint", "Labels", "Volumes", "Hostname", "Image", "Tty"}),
        (ENGINE_28, "", {"Env", "Cmd", "Entrypoint", "Labels", "Volumes", "OnBuild", "User", "WorkingDir"}),
        (ENGINE_29, "/v1.44", {"Env", "Cmd", "Entrypoint", "Labels", "Volumes", "Hostname", "Image", "Tty"}),
        (ENGINE_29, "", {"Env", "Cmd"}),
    ],
)
async def test_what_an_images_config_has_in_each_version(
    tmp_path: Path, engine: Engine, version: str, keys: set[str]
) -> None:
    async with daemon(tmp_path, engine) as dockerd:
        config = (await told(dockerd, f"{version}/images/{IMAGE}/json"))["Config"]
        assert keys <= config.keys()
        assert ("Hostname" in config) == ("Hostname" in keys)
        assert config["Env"] == ["PATH=/bin"]
        if (engine, version) == (ENGINE_29, ""):
            assert config.keys() == keys


async def test_an_image_of_nothing_has_a_config_of_null(tmp_path: Path) -> None:
    async with daemon(tmp_path, ENGINE_29) as dockerd:
        dockerd.state.images.add("bare:1", env=()).command = []
        image = await told(dockerd, "/images/bare:1/json")
        assert (image["Config"], "Parent" in image) == (None, False)
        assert (await told(dockerd, "/v1.44/images/bare:1/json"))["Config"]["Env"] == []


@pytest.mark.parametrize(
    ("engine", "version", "accept", "kind", "old"),
    [
        (ENGINE_20, "", "*/*", "application/json", True),
        (ENGINE_28, "", "application/x-ndjson", "application/json", True),
        (ENGINE_29, "", "*/*", "application/x-ndjson", False),
        (ENGINE_29, "", "application/json-seq, application/x-ndjson", "application/json-seq", False),
        (ENGINE_29, "", "text/html", "application/json", False),
        (ENGINE_29, "/v1.51", "*/*", "application/x-ndjson", True),
    ],
)
async def test_events_in_each_version(
    tmp_path: Path, engine: Engine, version: str, accept: str, kind: str, old: bool
) -> None:
    async with daemon(tmp_path, engine) as dockerd:
        target = f"{version}/events?since=1&until={time.time() + 0.05:.3f}"
        reply = await ask(dockerd.socket_path, "GET", target, headers={"Accept": accept})
        assert reply.headers["Content-Type"] == kind
        assert reply.body.startswith(b"\x1e" if kind == "application/json-seq" else b"{")
        event = reply.body.removeprefix(b"\x1e")
        assert (b'"status"' in event, b'"from"' in event) == (old, old)
        assert b'"Action":"create"' in event


async def test_a_client_that_accepts_nothing_hears_json(tmp_path: Path) -> None:
    async with daemon(tmp_path, ENGINE_29) as dockerd, await Raw.connect(dockerd.socket_path) as raw:
        raw.send(b"GET /events HTTP/1.1\r\nHost: docker\r\n\r\n")
        assert b"\r\nContent-Type: application/json\r\n" in await raw.head()


@pytest.mark.parametrize(("engine", "version"), [(ENGINE_20, "v1.41"), (ENGINE_28, "v1.45"), (ENGINE_29, "v1.45")])
async def test_a_pod_of_cri_dockerd_lives_on_every_engine(tmp_path: Path, engine: Engine, version: str) -> None:
    async with FakeDockerd(str(tmp_path / "docker.sock"), engine=engine) as dockerd:
        await asyncio.to_thread(live, dockerd.socket_path)
        versions = {received.head.path.split("/")[1] for received in dockerd.received}
        assert versions == {"_ping", version}
        assert not dockerd.state.containers


def live(path: str) -> None:
    with Dockershim(path) as shim:
        pod_id = shim.run_pod_sandbox("web-0", "uid-1")
        container_id = shim.create_container(pod_id, "app")
        shim.start_container(container_id)
        shim.update_container_resources(container_id, {"cpuset_cpus": "0"})
        assert len(shim.list_containers()) == len(shim.list_pod_sandboxes()) == 1
        shim.stop_container(container_id)
        shim.remove_container(container_id)
        shim.stop_pod_sandbox(pod_id)
        shim.remove_pod_sandbox(pod_id)


async def test_dockershim_of_old_finds_no_version_on_engine_29(tmp_path: Path) -> None:
    async with FakeDockerd(str(tmp_path / "docker.sock"), engine=ENGINE_29) as dockerd:
        with pytest.raises(DockerError, match=r"client version 1\.40 is too old"):
            await asyncio.to_thread(informed, dockerd.socket_path)


def informed(path: str) -> Any:
    with Dockershim(path, DOCKERSHIM) as shim:
        return shim.info()
