"""The fake dockerd and a real one answer the same calls with the same statuses, texts and bytes.

Only values that are independent of machine and version are asserted.
"""

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
        self.path = path
        self.parent = parent

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

    async def send(self, call: str, *lines: str, body: bytes = b"") -> tuple[Client, bytes]:
        """Send a request on its own connection; return the connection, and the head of the answer."""
        client = await Client.connect(self.path)
        client.send(request(*call.split(" ", 1), body, *lines))
        return client, await client.reader.readuntil(b"\r\n\r\n")


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.engine)])
async def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Daemon]:
    if request.param == "fake":
        async with FakeDockerd(str(tmp_path / "docker.sock")) as fake:
            yield Daemon(fake.socket_path, "/kubepods/one")
    else:
        engine: Dockerd = request.getfixturevalue("dockerd")
        with engine.restored():
            yield Daemon(engine.socket, engine.cgroup_parent("one"))


# ---- containers


async def test_life_cycle_has_statuses_of_dockerd(daemon: Daemon) -> None:
    container_id = await daemon.created("c1")
    answers = []
    for call in (
        *("POST /start", "POST /start", "DELETE ", "POST /stop?t=0", "POST /stop", "POST /rename?name=c2"),
        *("POST /start", "DELETE ?force=1&v=1", "DELETE ?force=1", "POST /stop"),
    ):
        method, action = call.split(" ")
        reply = await daemon.fetch(f"{method} /v1.41/containers/{container_id}{action}")
        assert bool(reply.body) == (reply.status not in (204, 304))
        answers.append(reply.status)
    assert answers == [204, 304, 409, 204, 304, 204, 204, 204, 404, 404]


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
HOSTS: list[tuple[Any, int, str]] = [
    ({"Memory": 6 * MIB - 1}, 400, "Minimum memory limit allowed is 6MB"),
    ({"Memory": 8 * MIB, "MemorySwap": 7 * MIB}, 400, "Minimum memoryswap limit"),
    ({"MemorySwap": 8 * MIB}, 400, "You should always set the Memory limit"),
    ({"NanoCpus": 1, "CpuPeriod": 1000}, 400, "Nano CPUs and CPU Period"),
    ({"CpusetCpus": "0-5000"}, 400, "Requested CPUs are not available - requested 0-5000, available: 0-"),
]
REFUSED += [("POST /containers/create", {**SLEEPING, "HostConfig": host}, *why) for host, *why in HOSTS]


@pytest.mark.parametrize(("call", "body", "status", "message"), REFUSED)
async def test_error_has_text_of_dockerd(daemon: Daemon, call: str, body: Any, status: int, message: str) -> None:
    container_ids = {await daemon.running("c1"), await daemon.created("c2")}
    reply = await daemon.fetch(call, body)
    assert reply.status == status
    assert message.casefold() in reply.message.casefold()
    assert {row["Id"] for row in (await daemon.fetch("GET /containers/json?all=1")).json} == container_ids


async def test_unusual_values_are_accepted_and_shown(daemon: Daemon) -> None:
    host = {"Memory": 8 * MIB, "CpuQuota": -1, "CgroupParent": daemon.parent, "CpusetCpus": "0-1"}
    container_id = await daemon.created("c1", HostConfig={**host, "Unknown": 1, "Devices": None, "OomScoreAdj": None})
    shown = await daemon.host(container_id)
    assert {**host, "MemorySwap": 16 * MIB, "ShmSize": 64 * MIB}.items() <= shown.items()


async def test_update_changes_only_nonzero_values(daemon: Daemon) -> None:
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
    for reference, found in (
        *((way, first) for way in (first, "k8s_a_b", first[:20], "k8s%5Fa_b")),
        (first[:4], second),
    ):
        assert (await daemon.fetch(f"GET /containers/{reference}/json")).json["Id"] == found
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


# ---- streams


async def test_events_have_one_chunk_each_in_dockerd_order(daemon: Daemon) -> None:
    client, head = await daemon.send('GET /v1.41/events?filters={"type":{"container":true}}')
    assert b"Transfer-Encoding: chunked" in head
    subject_id = await daemon.running("c1", HostConfig={"NetworkMode": "none"})  # dockerd 26 renames in the network
    for change in ("rename?name=c2", "update", "stop", "start", "stop"):
        await daemon.fetch(f"POST /containers/{subject_id}/{change}", {"CpuShares": 5} if change == "update" else None)
    await daemon.fetch(f"DELETE /containers/{subject_id}")
    heard: list[Any] = []
    while not heard or heard[-1]["Action"] != "destroy":
        size = int(await client.reader.readline(), 16)
        heard.append(json.loads(await client.reader.readexactly(size + 2)))
    client.abort()
    actions = "create start rename update kill die stop start kill die stop destroy"
    heard_actions = " ".join(event["Action"] for event in heard)
    assert heard_actions.replace("stop die", "die stop") == actions  # from dockerd 23 on either may come first
    assert {event["id"] for event in heard} == {subject_id}
    assert heard[2]["Actor"]["Attributes"] == {"image": BUSYBOX, "name": "c2", "oldName": "/c1"}
