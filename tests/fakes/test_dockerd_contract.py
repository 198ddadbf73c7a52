"""The fake dockerd and a real one answer the same calls with the same statuses, texts and bytes."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.docker.client import Answer, Client, request
from tests.engines.dockerd import BUSYBOX, Dockerd
from tests.fakes.dockerd import FakeDockerd

MIB = 1 << 20
SLEEPING = {"Image": BUSYBOX, "Cmd": ["sleep", "1000"], "StopSignal": "SIGKILL"}
MISSING = "No such container: none"


class Daemon:
    """A dockerd that is called over its socket; ``parent`` is a cgroup for it."""

    def __init__(self, path: str, parent: str) -> None:
        self.path, self.parent = path, parent

    async def fetch(self, call: str, body: Any = None) -> Answer:
        client = await Client.connect(self.path)
        try:
            return await client.fetch(*call.split(" ", 1), b"" if body is None else json.dumps(body).encode())
        finally:
            client.abort()

    async def created(self, name: str, **more: Any) -> str:
        reply = await self.fetch(f"POST /containers/create?name={name}", {**SLEEPING, **more})
        assert (reply.status, reply.json["Warnings"]) == (201, []), reply
        return str(reply.json["Id"])

    async def running(self, name: str, **more: Any) -> str:
        container_id = await self.created(name, **more)
        assert (await self.fetch(f"POST /containers/{container_id}/start")).status == 204
        return container_id

    async def host(self, reference: str) -> dict[str, Any]:
        return dict((await self.fetch(f"GET /containers/{reference}/json")).json["HostConfig"])


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.engine)])
async def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Daemon]:
    if request.param == "fake":
        async with FakeDockerd(str(tmp_path / "docker.sock")) as fake:
            yield Daemon(fake.socket_path, "/kubepods/one")
    else:
        engine: Dockerd = request.getfixturevalue("dockerd")
        with engine.restored():
            yield Daemon(engine.socket, engine.cgroup_parent("one"))


async def test_life_cycle_has_statuses_of_dockerd(daemon: Daemon) -> None:
    container_id = await daemon.created("c1")
    for status, call in (
        *((204, "POST /start"), (304, "POST /start"), (409, "DELETE "), (204, "POST /stop?t=0"), (304, "POST /stop")),
        *((204, "POST /rename?name=c2"), (204, "POST /start"), (204, "DELETE ?force=1&v=1"), (404, "POST /stop")),
    ):
        reply = await daemon.fetch(call.replace(" ", f" /v1.41/containers/{container_id}"))
        assert (reply.status, bool(reply.body)) == (status, status not in (204, 304))


REFUSED: list[tuple[str, Any, int, str]] = [
    ("GET /containers/none/json", None, 404, MISSING),
    ("POST /containers/create?name=c1", SLEEPING, 409, 'Conflict. The container name "/c1" is already in use'),
    ("POST /containers/create", {"Image": "none", "Cmd": ["a"]}, 404, "No such image: none:latest"),
    ("POST /containers/none/update", {}, 404, MISSING),
    ("POST /containers/c2/exec", {"Cmd": ["true"]}, 409, "Container "),
    ("POST /exec/abc/start", {"Detach": False}, 404, "No such exec instance: abc"),
    ("GET /v1.99/info", None, 400, "client version 1.99 is too new. Maximum supported API version is 1."),
    ("GET /v1.41/nothing", None, 404, "page not found"),
]
HOSTS: list[tuple[Any, str]] = [({"Memory": 6 * MIB - 1}, "Minimum memory limit allowed is 6MB")]
HOSTS += [({"Memory": 8 * MIB, "MemorySwap": 7 * MIB}, "Minimum memoryswap limit")]
HOSTS += [({"MemorySwap": 8 * MIB}, "You should always set the Memory limit")]
HOSTS += [({"NanoCpus": 1, "CpuPeriod": 1000}, "Nano CPUs and CPU Period")]
HOSTS += [({"CpusetCpus": "0-5000"}, "Requested CPUs are not available - requested 0-5000, available: 0-")]
REFUSED += [("POST /containers/create", {**SLEEPING, "HostConfig": host}, 400, why) for host, why in HOSTS]


async def test_error_has_text_of_dockerd(daemon: Daemon) -> None:
    container_ids = {await daemon.running("c1"), await daemon.created("c2")}
    for call, body, status, message in REFUSED:
        reply = await daemon.fetch(call, body)
        assert (reply.status, message.casefold() in reply.message.casefold()) == (status, True), (call, reply)
    assert {row["Id"] for row in (await daemon.fetch("GET /containers/json?all=1")).json} == container_ids


async def test_update_changes_only_nonzero_values(daemon: Daemon) -> None:
    unusual = {"Memory": 8 * MIB, "CpuQuota": -1, "CgroupParent": daemon.parent, "CpusetCpus": "0-1"}
    container_id = await daemon.created(
        "c0", HostConfig={**unusual, "Unknown": 1, "Devices": None, "OomScoreAdj": None}
    )
    shown = await daemon.host(container_id)
    assert {**unusual, "MemorySwap": 16 * MIB, "ShmSize": 64 * MIB}.items() <= shown.items()
    host = {"Memory": 64 * MIB, "MemorySwap": 64 * MIB, "CpuShares": 512, "CpusetCpus": "0-1", "CpuQuota": 50000}
    container_id = await daemon.created("c1", HostConfig={**host, "CpuPeriod": 100_000, "CgroupParent": daemon.parent})
    update = f"POST /v1.41/containers/{container_id}/update"
    zeros = {"Memory": 0, "CpusetCpus": "", "CpuShares": 0, "RestartPolicy": {"Name": "", "MaximumRetryCount": 0}}
    for body, changed in (
        (zeros, {}),
        ({"CpuShares": 100, "CgroupParent": "/x", "OomScoreAdj": 5}, {"CpuShares": 100}),
        ({"Memory": 32 * MIB}, {"Memory": 32 * MIB}),
        ({"Memory": 128 * MIB, "MemorySwap": 128 * MIB}, {"Memory": 128 * MIB, "MemorySwap": 128 * MIB}),
        ({"CpuQuota": -1, "CpusetCpus": "1"}, {"CpuQuota": -1, "CpusetCpus": "1"}),
    ):
        before = await daemon.host(container_id)
        reply = await daemon.fetch(update, body)
        assert (reply.status, reply.json) == (200, {"Warnings": None})
        assert await daemon.host(container_id) == {**before, **changed}
    reply = await daemon.fetch(update, {"Memory": 256 * MIB})
    assert reply.status == 409
    assert "Memory limit should be smaller than already set memoryswap limit" in reply.message


async def test_container_is_found_listed_and_has_image_settings(daemon: Daemon) -> None:
    first = await daemon.created("k8s_a_b", Env=["A=1", "A"], Labels={"a": "own", "kind": "pod"}, Cmd=None)
    second = await daemon.running(first[:4], Labels={"kind": "pod"})
    for reference in (first, "k8s_a_b", first[:20], "k8s%5Fa_b", first[:4]):
        found = (await daemon.fetch(f"GET /containers/{reference}/json")).json["Id"]
        assert found == (second if reference == first[:4] else first)
    for query, listed in (
        ("", [second]),
        ("all=1", [second, first]),
        ('all=1&filters={"label":{"kind=pod":true,"a=own":true}}', [first]),
        ('all=1&filters={"label":["kind"]}', [second, first]),
    ):
        assert [row["Id"] for row in (await daemon.fetch(f"GET /containers/json?{query}")).json] == listed, query
    shown = (await daemon.fetch(f"GET /containers/{first}/json")).json
    config = shown["Config"]
    assert (config["Env"], config["Labels"]["a"], config["Cmd"]) == (["A=1", "A", "PATH=/bin"], "own", ["/bin/sh"])
    assert (shown["Name"], shown["State"]["Status"]) == ("/k8s_a_b", "created")
    for name in (BUSYBOX, f"docker.io/library/{BUSYBOX}", shown["Image"], shown["Image"][7:20]):
        image = (await daemon.fetch(f"GET /images/{name}/json")).json
        assert (image["Id"], image["RepoTags"]) == (shown["Image"], [BUSYBOX])


async def test_events_have_one_chunk_each_in_dockerd_order(daemon: Daemon) -> None:
    client = await Client.connect(daemon.path)
    client.send(request("GET", '/v1.41/events?filters={"type":{"container":true}}'))
    assert b"Transfer-Encoding: chunked" in await client.reader.readuntil(b"\r\n\r\n")
    subject_id = await daemon.running("c1", HostConfig={"NetworkMode": "none"})  # dockerd 26 renames in the network
    for change in ("rename?name=c2", "update", "stop", "start", "stop"):
        await daemon.fetch(f"POST /containers/{subject_id}/{change}", {"CpuShares": 5} if change == "update" else None)
    await daemon.fetch(f"DELETE /containers/{subject_id}")
    heard: list[Any] = []
    while not heard or heard[-1]["Action"] != "destroy":
        size = int(await client.reader.readline(), 16)
        heard.append(json.loads(await client.reader.readexactly(size + 2)))
    client.abort()
    actions = " ".join(event["Action"] for event in heard).replace("stop die", "die stop")  # either, since dockerd 23
    assert actions == "create start rename update kill die stop start kill die stop destroy"
    assert {event["id"] for event in heard} == {subject_id}
    assert heard[2]["Actor"]["Attributes"] == {"image": BUSYBOX, "name": "c2", "oldName": "/c1"}
